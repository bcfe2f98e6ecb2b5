//! The files to write and remove, which are shown first. Files that are not ours are never replaced or removed.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;
use crate::cli::replace_file::{directory_of, replace};
use crate::log::{path, text};

/// How the name of each copy of our library begins.
const LIBRARY: &[u8] = b"liboclcache";
/// The first line of our file of variables.
pub const HEADER: &str = "# Written by `oclcache install`; `oclcache uninstall` removes it.";
/// Larger files are not ours: we never write them.
const MAX_BYTES: u64 = 1 << 16;
/// All users read a registration, whatever the umask of the installing one.
const MODE: u32 = 0o644;

/// One step.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Write(PathBuf, Vec<u8>),
    Remove(PathBuf),
    /// Only if it is empty.
    RemoveDirectory(PathBuf),
}

/// The steps, in order.
#[derive(Default)]
pub struct InstallPlan {
    steps: Vec<Step>,
    /// A prefix of each path that is written, for packagers.
    root: Option<PathBuf>,
}

impl InstallPlan {
    pub fn new(root: Option<&Path>) -> InstallPlan {
        InstallPlan {
            steps: Vec::new(),
            root: root.map(Path::to_owned),
        }
    }

    /// A path with the prefix.
    fn place(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// Plans to write a file, unless it has this content.
    ///
    /// # Errors
    /// The file exists and is not ours.
    pub fn write(&mut self, file: &Path, content: Vec<u8>) -> Result<(), Failure> {
        let file = self.place(file);
        match read(&file)? {
            Some(known) if known == content => {}
            Some(known) => {
                check_ours(&file, &known)?;
                self.steps.push(Step::Write(file, content));
            }
            None => self.steps.push(Step::Write(file, content)),
        }
        Ok(())
    }

    /// Plans to remove a file, if it exists.
    ///
    /// # Errors
    /// It is not ours, or belongs to a package.
    pub fn remove(&mut self, file: &Path) -> Result<(), Failure> {
        let file = self.place(file);
        let Some(known) = read(&file)? else {
            return Ok(());
        };
        check_ours(&file, &known)?;
        // The package manager would consider it changed.
        if is_of_package(&known) {
            return Err(Failure::new(format_args!(
                "`{}` belongs to a package, by the path of the library; remove the package, or the file if there is no package",
                path(&file)
            )));
        }
        self.steps.push(Step::Remove(file));
        Ok(())
    }

    /// Plans to remove a file that is known to be ours.
    pub fn remove_known(&mut self, file: &Path) {
        let file = self.place(file);
        self.steps.push(Step::Remove(file));
    }

    /// Plans to remove a directory, if it is empty then.
    pub fn remove_directory(&mut self, directory: &Path) {
        let directory = self.place(directory);
        if directory.is_dir() {
            self.steps.push(Step::RemoveDirectory(directory));
        }
    }

    /// Whether no file is written or removed.
    pub fn is_empty(&self) -> bool {
        let is_done = |step: &Step| matches!(step, Step::RemoveDirectory(_));
        self.steps.iter().all(is_done)
    }

    /// The plan as a message.
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

    /// Carries out the plan. Each file is written completely or not at all.
    ///
    /// # Errors
    /// The first step that fails; `next` is what to do then.
    pub fn apply(&self, next: &str) -> Result<(), Failure> {
        for step in &self.steps {
            let (done, action, at) = match step {
                Step::Write(file, content) => (write(file, content), "write", file),
                Step::Remove(file) => (std::fs::remove_file(file), "remove", file),
                Step::RemoveDirectory(directory) => {
                    // It may contain files of others.
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

/// The content of a file; None if there is none.
fn read(file: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let not_ours = |why: &str| {
        let file = path(file);
        Err(Failure::new(format_args!(
            "`{file}` {why}, so it is not from oclcache and is not changed; remove it if you do not need it"
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
        Ok(metadata) if !metadata.is_file() => not_ours("is not a regular file"),
        Ok(metadata) if metadata.len() > MAX_BYTES => not_ours("is too large"),
        Ok(_) => std::fs::read(file)
            .map(Some)
            .map_err(|error| Failure::new(format_args!("cannot read `{}`: {error}", path(file)))),
    }
}

/// Fails if the content of a file is not ours.
fn check_ours(file: &Path, content: &[u8]) -> Result<(), Failure> {
    let line = content.split(|byte| *byte == b'\n').next();
    let line = line.unwrap_or_default();
    let name = line.rsplit(|byte| *byte == b'/').next();
    if line == HEADER.as_bytes() || name.unwrap_or_default().starts_with(LIBRARY) {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "`{}` names `{}`, so it is not from oclcache and is not changed; remove it if you do not need it",
        path(file),
        text(line)
    )))
}

/// Whether a registration names a library where package managers install libraries (Filesystem Hierarchy Standard 3.0, 4.1 and 4.9),
/// or by name only.
fn is_of_package(content: &[u8]) -> bool {
    content.starts_with(LIBRARY)
        || content.starts_with(b"/usr/") && !content.starts_with(b"/usr/local/")
}

fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(directory_of(file))?;
    replace(file, content, Some(MODE))
}

/// The content of a registration.
pub fn registration(library: &Path) -> Vec<u8> {
    [library.as_os_str().as_bytes(), b"\n"].concat()
}
