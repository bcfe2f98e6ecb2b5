//! Changes one line of a configuration file and leaves all else as it is: comments, order and blanks.
//!
//! The file is written anew beside the old one and renamed, so that a program that starts meanwhile reads the one or the other.
//! Where a link stands for it, as managers of such files make it, the file that it leads to is written, and the link stays.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use toml_edit::{DocumentMut, Item, Table, Value};

use super::super::failure::Failure;
use crate::log::{path, text};
use crate::trust;

/// A larger file is no configuration; the reader has the same limit.
const MAX_BYTES: u64 = 1 << 20;

/// A configuration file that is being changed.
pub struct Edited {
    /// As it was named.
    named: PathBuf,
    /// Without links.
    file: PathBuf,
    document: DocumentMut,
    /// Of the file that is there.
    mode: Option<u32>,
    /// Held until it is written, so that of two changes at once none is lost.
    _lock: Option<File>,
}

impl Edited {
    /// Reads a file; one that is not there is empty.
    pub fn open(named: &Path) -> Result<Edited, Failure> {
        let shown = path(named);
        let cannot =
            |error: io::Error| Failure::new(format_args!("cannot read `{shown}`: {error}"));
        let lock = lock(named);
        let file = match named.canonicalize() {
            Ok(file) => {
                own_parts(named)?;
                file
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if named.is_symlink() {
                    return Err(Failure::new(format_args!(
                        "`{shown}` is a link to nothing; remove it, or make what it leads to"
                    )));
                }
                own_place(named)?;
                return Ok(Edited {
                    named: named.to_owned(),
                    file: named.to_owned(),
                    document: DocumentMut::new(),
                    mode: None,
                    _lock: lock,
                });
            }
            Err(error) => return Err(cannot(error)),
        };
        // A FIFO would block.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
        let opened = File::options().read(true).custom_flags(flags).open(&file);
        let opened = opened.map_err(cannot)?;
        let metadata = opened.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Err(Failure::new(format_args!(
                "`{shown}` is not a regular file; move it away"
            )));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(of_another_user(named));
        }
        let mut content = String::new();
        let read = opened.take(MAX_BYTES).read_to_string(&mut content);
        if read.map_err(cannot)? as u64 == MAX_BYTES {
            return Err(Failure::new(format_args!("`{shown}` is too large")));
        }
        let document: DocumentMut = content.parse().map_err(|error: toml_edit::TomlError| {
            let before = error.span().and_then(|span| content.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            let why = text(error.message().as_bytes()).to_string();
            Failure::new(format_args!(
                "`{shown}` is not TOML: line {line}: {why}; correct it first"
            ))
        })?;
        Ok(Edited {
            named: named.to_owned(),
            file,
            document,
            // A user who can write this file chooses which libraries are run.
            mode: Some(metadata.mode() & 0o755),
            _lock: lock,
        })
    }

    /// Gives a key a value.
    pub fn set(&mut self, keys: &[&str], mut value: Value) -> Result<(), Failure> {
        let Some((key, tables)) = keys.split_last() else {
            return Ok(());
        };
        let mut table = self.document.as_table_mut() as &mut dyn toml_edit::TableLike;
        for name in tables {
            let new = || {
                let mut table = Table::new();
                table.set_implicit(*name != tables[tables.len() - 1]);
                Item::Table(table)
            };
            let below = table.entry(name).or_insert_with(new).as_table_like_mut();
            table = below.ok_or_else(|| {
                let (file, name) = (path(&self.named), text(name.as_bytes()));
                Failure::new(format_args!(
                    "`{name}` is no table in `{file}`; correct it first"
                ))
            })?;
        }
        match table.get_mut(key) {
            // What is said beside the value stays.
            Some(Item::Value(old)) => {
                *value.decor_mut() = old.decor().clone();
                *old = value;
            }
            _ => {
                table.insert(key, Item::Value(value));
            }
        }
        Ok(())
    }

    /// Takes a key out. Tells whether it was there. Tables that have become empty go with it.
    pub fn unset(&mut self, keys: &[&str]) -> bool {
        fn remove(table: &mut dyn toml_edit::TableLike, keys: &[&str]) -> bool {
            match keys {
                [] => false,
                [key] => table.remove(key).is_some(),
                [name, rest @ ..] => {
                    let below = table.get_mut(name).and_then(Item::as_table_like_mut);
                    let Some(below) = below else {
                        return false;
                    };
                    let removed = remove(below, rest);
                    if removed && below.is_empty() {
                        table.remove(name);
                    }
                    removed
                }
            }
        }
        remove(self.document.as_table_mut(), keys)
    }

    /// Puts it into its place.
    pub fn write(&self) -> Result<(), Failure> {
        let failed = |error| failed(&self.named, error);
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        let temporary = tempfile::Builder::new()
            .prefix(".config.toml-")
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(directory);
        let mut temporary = temporary.map_err(failed)?;
        if let Some(mode) = self.mode {
            let permissions = fs::Permissions::from_mode(mode);
            let changed = temporary.as_file().set_permissions(permissions);
            changed.map_err(failed)?;
        }
        let content = self.document.to_string();
        let written = temporary.write_all(content.as_bytes());
        // What a power cut leaves is the old file or the new one.
        written
            .and_then(|()| temporary.as_file().sync_all())
            .map_err(failed)?;
        let put = temporary.persist(&self.file);
        put.map_err(|error| failed(error.error))?;
        Ok(())
    }
}

fn failed(named: &Path, error: io::Error) -> Failure {
    let file = path(named);
    Failure::new(match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("cannot write `{file}`: {error}; run this as the user whose file it is")
        }
        _ => format!("cannot write `{file}`: {error}"),
    })
}

/// Makes the directory in which the file is to stand.
pub fn make_place(named: &Path) -> Result<(), Failure> {
    let directory = named.parent().unwrap_or(Path::new("/"));
    if !directory.exists() {
        own_place(named)?;
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o755).create(directory);
        made.map_err(|error| failed(named, error))?;
    }
    Ok(())
}

/// Locks the directory in which the file really stands. None where that cannot be, as on some network file systems.
fn lock(named: &Path) -> Option<File> {
    let real = named.canonicalize();
    let file = real.as_deref().unwrap_or(named);
    let directory = File::open(file.parent()?).ok()?;
    flock(&directory, FlockOperation::LockExclusive).ok()?;
    Some(directory)
}

/// Under sudo HOME may still be the caller's, in whose directories root must leave no files.
fn own_place(file: &Path) -> Result<(), Failure> {
    let exists = |place: &&Path| place.metadata().is_ok();
    let Some(place) = file.ancestors().skip(1).find(exists) else {
        return Ok(());
    };
    own_parts(place)?;
    let owner = place.metadata().map(|metadata| metadata.uid()).ok();
    match owner == Some(rustix::process::geteuid().as_raw()) {
        true => Ok(()),
        false => Err(of_another_user(place)),
    }
}

/// Fails if another user owns a directory or link on the path: that user would choose which file is written.
fn own_parts(path: &Path) -> Result<(), Failure> {
    let foreign = trust::foreign_part(path);
    foreign.map_or(Ok(()), |place| Err(of_another_user(&place)))
}

fn of_another_user(place: &Path) -> Failure {
    Failure::new(format_args!(
        "`{}` belongs to another user than the one who runs this command; run it as that user",
        path(place)
    ))
}
