//! Replaces a file by renaming a temporary one, so that nobody reads half of it, and a power cut leaves the old file or the new one.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::failure::Failure;
use crate::log::path;
use rustix::fs::{Access, AtFlags, CWD, accessat};

/// The directory of a file.
pub fn directory_of(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Whether this user can make files in a directory.
pub fn is_writable(directory: &Path) -> bool {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, directory, access, AtFlags::EACCESS).is_ok()
}

/// Fails if the file exists and is not an earlier report, which begins with this mark.
pub fn may_replace(file: &Path, mark: &str) -> Result<(), Failure> {
    let shown = path(file);
    let is_plain = match file.symlink_metadata() {
        Ok(found) => found.is_file(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Failure::new(format_args!(
                "cannot examine `{shown}`: {error}; name another file"
            )));
        }
    };
    let mut start = Vec::new();
    let opened = is_plain.then(|| File::open(file)).and_then(Result::ok);
    let read = opened.map(|opened| opened.take(mark.len() as u64).read_to_end(&mut start));
    match read {
        Some(Ok(_)) if start == mark.as_bytes() => Ok(()),
        _ => Err(Failure::new(format_args!(
            "`{shown}` exists and is not a report of oclcache, so it is not overwritten; name another file"
        ))),
    }
}

/// Replaces a file. Its mode is `mode`, or the one with which programs create files, limited by the umask.
///
/// # Errors
/// The file cannot be written.
pub fn replace(file: &Path, content: &[u8], mode: Option<u32>) -> io::Result<()> {
    let mut new = tempfile::Builder::new()
        .prefix(".oclcache-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory_of(file))?;
    if let Some(mode) = mode {
        let permissions = Permissions::from_mode(mode);
        new.as_file().set_permissions(permissions)?;
    }
    new.write_all(content)?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}
