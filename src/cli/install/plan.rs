//! What is written and removed, shown before it is done. Nothing that is not ours is replaced or removed.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::super::failure::Failure;
use crate::log::{path, text};

/// With this the name of each copy of our library begins.
const LIBRARY: &[u8] = b"liboclcache";
/// The first line of a file of variables that is ours.
pub const HEADER: &str = "# Written by `oclcache install`; `oclcache uninstall` removes it.";
/// A larger file is none of ours, in bytes.
const MAX_BYTES: u64 = 1 << 16;
/// Everybody reads what is registered.
const MODE: u32 = 0o644;

/// One step.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Write(PathBuf, Vec<u8>),
    Remove(PathBuf),
    /// Only if it is empty.
    RemoveDirectory(PathBuf),
}

/// All steps, in order.
#[derive(Default)]
pub struct InstallPlan {
    steps: Vec<Step>,
    /// Before each path that is written, for packagers.
    root: Option<PathBuf>,
}

impl InstallPlan {
    pub fn new(root: Option<&Path>) -> InstallPlan {
        InstallPlan {
            steps: Vec::new(),
            root: root.map(Path::to_owned),
        }
    }

    /// A path as it is on this machine now.
    fn place(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// The file is to have this content.
    ///
    /// # Errors
    /// There is something else.
    pub fn write(&mut self, file: &Path, content: Vec<u8>) -> Result<(), Failure> {
        let file = self.place(file);
        match read(&file)? {
            Some(known) if known == content => {}
            Some(known) => {
                ours(&file, &known)?;
                self.steps.push(Step::Write(file, content));
            }
            None => self.steps.push(Step::Write(file, content)),
        }
        Ok(())
    }

    /// The file is to be gone.
    ///
    /// # Errors
    /// It is not ours, or a package's.
    pub fn remove(&mut self, file: &Path) -> Result<(), Failure> {
        let file = self.place(file);
        let Some(known) = read(&file)? else {
            return Ok(());
        };
        ours(&file, &known)?;
        // A package manager would take it for what somebody has changed.
        if is_of_package(&known) {
            return Err(Failure::new(format_args!(
                "`{}` is of a package, by the place of the library: remove the package, or the file if there is none",
                path(&file)
            )));
        }
        self.steps.push(Step::Remove(file));
        Ok(())
    }

    /// The file, which is known to be ours, is to be gone.
    pub fn remove_known(&mut self, file: &Path) {
        let file = self.place(file);
        self.steps.push(Step::Remove(file));
    }

    /// The directory is to be gone, if it is empty then.
    pub fn remove_directory(&mut self, directory: &Path) {
        let directory = self.place(directory);
        if directory.is_dir() {
            self.steps.push(Step::RemoveDirectory(directory));
        }
    }

    /// Whether nothing is to be written or removed.
    pub fn is_empty(&self) -> bool {
        let is_done = |step: &Step| matches!(step, Step::RemoveDirectory(_));
        self.steps.iter().all(is_done)
    }

    /// For people, before it is done.
    pub fn shown(&self) -> String {
        let mut shown = String::new();
        for step in &self.steps {
            let _ = match step {
                Step::Write(file, content) => {
                    let _ = writeln!(shown, "write {}", path(file));
                    content
                        .split(|byte| *byte == b'\n')
                        .filter(|line| !line.is_empty())
                        .try_for_each(|line| writeln!(shown, "    {}", text(line)))
                }
                Step::Remove(file) => writeln!(shown, "remove {}", path(file)),
                Step::RemoveDirectory(_) => Ok(()),
            };
        }
        shown
    }

    /// Does it. Each file is whole or as it was.
    ///
    /// # Errors
    /// The first that cannot be done; `next` is what to do then.
    pub fn apply(&self, next: &str) -> Result<(), Failure> {
        for step in &self.steps {
            let (done, action, at) = match step {
                Step::Write(file, content) => (write(file, content), "write", file),
                Step::Remove(file) => (std::fs::remove_file(file), "remove", file),
                Step::RemoveDirectory(directory) => {
                    // It may have what others have put there.
                    let _ = std::fs::remove_dir(directory);
                    continue;
                }
            };
            done.map_err(|error| {
                Failure::new(format_args!(
                    "cannot {action} `{}`: {error}; {next}",
                    path(at)
                ))
            })?;
        }
        Ok(())
    }
}

/// What a file has, if there is one.
fn read(file: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let not_ours = |why: &str| {
        let file = path(file);
        Err(Failure::new(format_args!(
            "`{file}` {why}, so it is not of oclcache and is left as it is; take it away if you do not need it"
        )))
    };
    match file.symlink_metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Failure::new(format_args!(
            "cannot examine `{}`: {error}",
            path(file)
        ))),
        Ok(metadata) if !metadata.is_file() => not_ours("is no regular file"),
        Ok(metadata) if metadata.len() > MAX_BYTES => not_ours("is too large"),
        Ok(_) => std::fs::read(file)
            .map(Some)
            .map_err(|error| Failure::new(format_args!("cannot read `{}`: {error}", path(file)))),
    }
}

/// Whether a file's content is such as we write.
fn ours(file: &Path, content: &[u8]) -> Result<(), Failure> {
    let line = content.split(|byte| *byte == b'\n').next();
    let line = line.unwrap_or_default();
    let name = line.rsplit(|byte| *byte == b'/').next();
    if line == HEADER.as_bytes() || name.unwrap_or_default().starts_with(LIBRARY) {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "`{}` names `{}`, so it is not of oclcache and is left as it is; take it away if you do not need it",
        path(file),
        text(line)
    )))
}

/// Whether a registration names a library where package managers put them (Filesystem Hierarchy Standard 3.0, 4.1 and 4.9), or
/// by its name alone.
fn is_of_package(content: &[u8]) -> bool {
    content.starts_with(LIBRARY)
        || content.starts_with(b"/usr/") && !content.starts_with(b"/usr/local/")
}

fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)?;
    let mut new = tempfile::Builder::new()
        .prefix(".oclcache-")
        .tempfile_in(directory)?;
    new.write_all(content)?;
    // The umask of who installs is not that of who reads.
    new.as_file()
        .set_permissions(Permissions::from_mode(MODE))?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}

/// What a registration says.
pub fn registration(library: &Path) -> Vec<u8> {
    [library.as_os_str().as_bytes(), b"\n"].concat()
}
