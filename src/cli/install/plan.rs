//! The files to write and remove, which are shown first. Files that are not ours are never replaced or removed.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::cli::failure::Failure;
use crate::cli::replace_file::directory_of;
use crate::cli::start_files::{HEADER, LINE, LinePosition, insert_line, without_line};
use crate::log::{path, text};

/// How the name of each copy of our library begins.
const LIBRARY: &[u8] = b"liboclcache";
/// Larger files are not ours: we never write them.
const MAX_BYTES: u64 = 1 << 16;
/// All users read a registration, whatever the umask of the installing one.
pub const DATA: u32 = 0o644;
pub const PROGRAM: u32 = 0o755;
/// How the names of temporary files begin.
pub const TEMPORARY: &str = ".oclcache-";

/// One step.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Write(PathBuf, Vec<u8>, u32),
    Copy {
        from: PathBuf,
        to: PathBuf,
        mode: u32,
    },
    /// Our line comes into a start-up file of a shell, or goes.
    Edit {
        /// The file by the name that people know.
        file: PathBuf,
        /// The file that is replaced.
        target: PathBuf,
        edit: Edit,
    },
    Remove(PathBuf),
    /// Only if it is empty.
    RemoveDirectory(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Insert(LinePosition),
    Remove,
}

/// The steps, in order.
#[derive(Default)]
pub struct InstallPlan {
    steps: Vec<Step>,
    /// A prefix of each path that is written, for packagers.
    root: Option<PathBuf>,
    is_for_all: bool,
}

impl InstallPlan {
    pub fn for_user() -> InstallPlan {
        InstallPlan::default()
    }

    pub fn for_all(root: Option<&Path>) -> InstallPlan {
        InstallPlan {
            steps: Vec::new(),
            root: root.map(Path::to_owned),
            is_for_all: true,
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
    pub fn write(&mut self, file: &Path, content: Vec<u8>, mode: u32) -> Result<(), Failure> {
        let file = self.place(file);
        match read(&file)? {
            Some(known) if known == content && has_mode(&file, mode) => return Ok(()),
            Some(known) => check_ours(&file, &known)?,
            None => {}
        }
        self.steps.push(Step::Write(file, content, mode));
        Ok(())
    }

    /// Plans to copy a file to a directory of ours, unless the copy is equal.
    ///
    /// # Errors
    /// Something else than a file is there.
    pub fn copy(&mut self, from: &Path, to: &Path, mode: u32) -> Result<(), Failure> {
        if is_file(to)? && is_equal(from, to) && has_mode(to, mode) {
            return Ok(());
        }
        self.steps.push(Step::Copy {
            from: from.to_owned(),
            to: to.to_owned(),
            mode,
        });
        Ok(())
    }

    /// Plans to insert our line into a start-up file. `target` is what the file is behind links.
    pub fn insert_line(&mut self, file: &Path, target: PathBuf, position: LinePosition) {
        self.edit(file, target, Edit::Insert(position));
    }

    /// Plans to remove our line from a start-up file.
    pub fn remove_line(&mut self, file: &Path, target: PathBuf) {
        self.edit(file, target, Edit::Remove);
    }

    fn edit(&mut self, file: &Path, target: PathBuf, edit: Edit) {
        self.steps.push(Step::Edit {
            file: file.to_owned(),
            target,
            edit,
        });
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

    /// Plans to remove a file of a directory of ours, if it exists.
    ///
    /// # Errors
    /// Something else than a file is there.
    pub fn remove_copy(&mut self, file: &Path) -> Result<(), Failure> {
        if is_file(file)? {
            self.remove_known(file);
        }
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

    /// Plans to remove a directory and those above it, below another one, as far as they are empty then.
    pub fn remove_directories(&mut self, directory: &Path, below: &Path) {
        let above = directory.ancestors();
        for one in above.take_while(|one| one.starts_with(below) && *one != below) {
            self.remove_directory(one);
        }
    }

    /// Adds the steps of another plan.
    pub fn append(&mut self, mut other: InstallPlan) {
        self.steps.append(&mut other.steps);
    }

    /// Whether no file is written or removed.
    pub fn is_empty(&self) -> bool {
        let is_done = |step: &Step| matches!(step, Step::RemoveDirectory(_));
        self.steps.iter().all(is_done)
    }

    /// The plan as a message. Of files with several lines, the content is shown only if `is_long`.
    pub fn shown(&self, is_long: bool) -> String {
        let mut shown = String::new();
        for step in &self.steps {
            let _ = match step {
                Step::Write(file, content, _) => {
                    let _ = writeln!(shown, "write {}", path(file));
                    let lines = content.split(|byte| *byte == b'\n');
                    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
                    lines
                        .iter()
                        .filter(|_| is_long || lines.len() == 1)
                        .try_for_each(|line| writeln!(shown, "    {}", text(line)))
                }
                Step::Copy { from, to, .. } => {
                    writeln!(shown, "copy {}\n  to {}", path(from), path(to))
                }
                Step::Edit { file, target, edit } => {
                    let of_link = match file == target || file.symlink_metadata().is_err() {
                        true => String::new(),
                        false => format!(" ({})", path(target)),
                    };
                    let file = format!("{}{of_link}", path(file));
                    let _ = match edit {
                        Edit::Insert(_) if !target.exists() => {
                            writeln!(shown, "write {file}, with this line:")
                        }
                        Edit::Insert(LinePosition::First) => {
                            writeln!(shown, "insert this line at the top of {file}:")
                        }
                        Edit::Insert(LinePosition::Last) => {
                            writeln!(shown, "insert this line at the end of {file}:")
                        }
                        Edit::Remove => writeln!(shown, "remove this line from {file}:"),
                    };
                    writeln!(shown, "    {LINE}")
                }
                Step::Remove(file) => writeln!(shown, "remove {}", path(file)),
                Step::RemoveDirectory(_) => Ok(()),
            };
        }
        shown
    }

    /// Carries out the plan. All files are written under other names first. Only if this succeeds, anything that exists is changed.
    ///
    /// # Errors
    /// The first step that fails; `next` is what to do then.
    pub fn apply(&self, next: &str) -> Result<(), Failure> {
        let failed = |action: &str, at: &Path, error: io::Error, done: &str| {
            let at = path(at);
            Failure::new(format_args!(
                "cannot {action} `{at}`: {error}{done}; {next}"
            ))
        };
        let mut made = Vec::new();
        let mut staged = Vec::new();
        for step in &self.steps {
            match self.stage(step, &mut made) {
                Ok(new) => staged.push(new),
                Err(error) => {
                    drop(staged);
                    for directory in made.iter().rev() {
                        let _ = std::fs::remove_dir(directory);
                    }
                    return Err(failed(
                        "write",
                        step.place(),
                        error,
                        ", so nothing was done",
                    ));
                }
            }
        }
        for (step, new) in self.steps.iter().zip(staged) {
            let at = step.place();
            let (action, done) = match (step, new) {
                // It may contain files of others.
                (Step::RemoveDirectory(_), _) => {
                    let _ = std::fs::remove_dir(at);
                    continue;
                }
                (_, Some(new)) => (
                    "write",
                    new.persist(at).map(drop).map_err(|error| error.error),
                ),
                (_, None) => ("remove", remove(at)),
            };
            done.map_err(|error| failed(action, at, error, ""))?;
        }
        Ok(())
    }

    /// Writes the new content of a step's file beside it; None if the step removes the file. Notes the directories that it makes.
    fn stage(&self, step: &Step, made: &mut Vec<PathBuf>) -> io::Result<Option<NamedTempFile>> {
        let (mut content, mode): (Box<dyn Read + '_>, u32) = match step {
            Step::Write(_, content, mode) => (Box::new(content.as_slice()), *mode),
            Step::Copy { from, mode, .. } => (Box::new(File::open(from)?), *mode),
            Step::Edit { file, target, edit } => {
                // Somebody may have changed it since it was shown.
                let (known, mode) = match std::fs::read(target) {
                    Ok(known) => (Some(known), target.metadata()?.mode() & 0o7777),
                    Err(error) if error.kind() == ErrorKind::NotFound => (None, DATA),
                    Err(error) => return Err(error),
                };
                let new = match (edit, known.as_deref()) {
                    (Edit::Insert(position), known) => Some(insert_line(known, *position)),
                    // A link is not left without its file.
                    (Edit::Remove, Some(known)) => {
                        without_line(known).or_else(|| file.is_symlink().then(Vec::new))
                    }
                    (Edit::Remove, None) => None,
                };
                match new {
                    Some(new) => (Box::new(io::Cursor::new(new)), mode),
                    None => return Ok(None),
                }
            }
            Step::Remove(_) | Step::RemoveDirectory(_) => return Ok(None),
        };
        let directory = directory_of(step.place());
        self.make_directories(directory, made)?;
        let mut new = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .tempfile_in(directory)?;
        io::copy(&mut content, new.as_file_mut())?;
        new.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        new.as_file().sync_all()?;
        Ok(Some(new))
    }

    /// Makes a directory and those above it. Others may not write there, whatever the umask.
    fn make_directories(&self, directory: &Path, made: &mut Vec<PathBuf>) -> io::Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        if let Some(above) = directory.parent() {
            self.make_directories(above, made)?;
        }
        DirBuilder::new().mode(PROGRAM).create(directory)?;
        made.push(directory.to_owned());
        if self.is_for_all {
            std::fs::set_permissions(directory, Permissions::from_mode(PROGRAM))?;
        }
        Ok(())
    }
}

impl Step {
    /// The path that is written or removed.
    fn place(&self) -> &Path {
        match self {
            Step::Write(place, ..)
            | Step::Copy { to: place, .. }
            | Step::Edit { target: place, .. }
            | Step::Remove(place)
            | Step::RemoveDirectory(place) => place,
        }
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn has_mode(file: &Path, mode: u32) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.mode() & 0o777 == mode)
}

/// Whether two files have the same content.
fn is_equal(one: &Path, other: &Path) -> bool {
    let metadata = |file: &Path| std::fs::metadata(file).ok();
    let (Some(first), Some(second)) = (metadata(one), metadata(other)) else {
        return false;
    };
    (first.dev(), first.ino()) == (second.dev(), second.ino())
        || first.len() == second.len()
            && matches!((std::fs::read(one), std::fs::read(other)), (Ok(one), Ok(other)) if one == other)
}

/// The content of a file; None if there is none.
fn read(file: &Path) -> Result<Option<Vec<u8>>, Failure> {
    if !is_file(file)? {
        return Ok(None);
    }
    let content = std::fs::metadata(file).and_then(|metadata| match metadata.len() {
        0..=MAX_BYTES => std::fs::read(file).map(Some),
        _ => Ok(None),
    });
    match content {
        Ok(Some(content)) => Ok(Some(content)),
        Ok(None) => Err(not_ours(file, "is too large")),
        Err(error) => Err(Failure::new(format_args!(
            "cannot read `{}`: {error}",
            path(file)
        ))),
    }
}

/// Whether a file exists.
///
/// # Errors
/// Something else than a file is there, so it is not ours.
fn is_file(file: &Path) -> Result<bool, Failure> {
    match file.symlink_metadata() {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(error) => Err(Failure::new(format_args!(
            "cannot examine `{}`: {error}",
            path(file)
        ))),
        Ok(metadata) if !metadata.is_file() => Err(not_ours(file, "is not a regular file")),
        Ok(_) => Ok(true),
    }
}

fn not_ours(file: &Path, why: &str) -> Failure {
    let file = path(file);
    Failure::new(format_args!(
        "`{file}` {why}, so it is not from `oclcache install` and is not changed; remove it if you do not need it"
    ))
}

/// Fails if the content of a file is not ours.
fn check_ours(file: &Path, content: &[u8]) -> Result<(), Failure> {
    let mut lines = content.split(|byte| *byte == b'\n');
    let line = lines.next().unwrap_or_default();
    // In a script, the header is below the name of the interpreter.
    let has_header = [line, lines.next().unwrap_or_default()].contains(&HEADER.as_bytes());
    let name = line.rsplit(|byte| *byte == b'/').next();
    if has_header || name.unwrap_or_default().starts_with(LIBRARY) {
        return Ok(());
    }
    Err(not_ours(file, &format!("names `{}`", text(line))))
}

/// Whether a registration names a library where package managers install libraries (Filesystem Hierarchy Standard 3.0, 4.1 and 4.9),
/// or by name only.
fn is_of_package(content: &[u8]) -> bool {
    content.starts_with(LIBRARY)
        || content.starts_with(b"/usr/") && !content.starts_with(b"/usr/local/")
}

/// The content of a registration.
pub fn registration(library: &Path) -> Vec<u8> {
    [library.as_os_str().as_bytes(), b"\n"].concat()
}
