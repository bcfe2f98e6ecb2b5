//! Replaces a file by renaming a temporary one, so that nobody reads half of it, and a power cut leaves the old file or the new one.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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
