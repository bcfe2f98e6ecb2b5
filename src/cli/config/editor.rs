//! Changes one line of a configuration file and keeps everything else: comments, order and blanks.
//!
//! A new file is written and renamed, so that a program that starts meanwhile reads the old file or the new one. If the file is a link,
//! as dotfile managers make it, the target is written and the link stays.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use toml_edit::{DocumentMut, Item, Table, Value};

use crate::cli::failure::Failure;
use crate::cli::replace_file::replace;
use crate::log::{path, text};
use crate::trust;

/// The limit that the reader has, too.
const MAX_BYTES: u64 = 1 << 20;

/// A configuration file that is being changed.
pub struct ConfigEditor {
    /// The path as the caller named it.
    named: PathBuf,
    /// The path without links.
    file: PathBuf,
    document: DocumentMut,
    /// The mode of the existing file.
    mode: Option<u32>,
    /// Held until the file is written, so that no change of two at once is lost.
    _lock: Option<File>,
}

impl ConfigEditor {
    /// Reads a file; a missing one counts as empty.
    pub fn open(named: &Path) -> Result<ConfigEditor, Failure> {
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
                        "`{shown}` is a broken link; remove it, or make its target"
                    )));
                }
                own_place(named)?;
                return Ok(ConfigEditor {
                    named: named.to_owned(),
                    file: named.to_owned(),
                    document: DocumentMut::new(),
                    mode: None,
                    _lock: lock,
                });
            }
            Err(error) => return Err(cannot(error)),
        };
        // Opening a FIFO would block.
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
            return Err(Failure::new(format_args!("`{shown}` is larger than 1 MiB")));
        }
        let document: DocumentMut = content.parse().map_err(|error: toml_edit::TomlError| {
            let before = error.span().and_then(|span| content.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            let why = text(error.message().as_bytes()).to_string();
            Failure::new(format_args!(
                "`{shown}` is not TOML: line {line}: {why}; correct it first"
            ))
        })?;
        Ok(ConfigEditor {
            named: named.to_owned(),
            file,
            document,
            // Others must not write it: a user who can write this file chooses which libraries are loaded.
            mode: Some(metadata.mode() & 0o755),
            _lock: lock,
        })
    }

    /// Sets a key.
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
                    "`{name}` is not a table in `{file}`; correct it first"
                ))
            })?;
        }
        match table.get_mut(key) {
            // Keep the comment beside the value.
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

    /// Removes a key, and tables that become empty. Returns whether the key existed.
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

    /// Writes the file. One in which nothing is left is removed, with its directory, unless a link leads to it.
    pub fn write(&self) -> Result<(), Failure> {
        let content = self.document.to_string();
        let written = match content.trim().is_empty() && !self.named.is_symlink() {
            true => remove(&self.file),
            false => replace(&self.file, content.as_bytes(), self.mode),
        };
        written.map_err(|error| failed(&self.named, error))
    }
}

/// Removes a file, and its directory if that has no others.
fn remove(file: &Path) -> io::Result<()> {
    fs::remove_file(file)?;
    if let Some(directory) = file.parent() {
        let _ = fs::remove_dir(directory);
    }
    Ok(())
}

fn failed(named: &Path, error: io::Error) -> Failure {
    let file = path(named);
    Failure::new(match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("cannot write `{file}`: {error}; run this as the owner of the file")
        }
        _ => format!("cannot write `{file}`: {error}"),
    })
}

/// Makes the directory of the file.
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

/// Locks the directory of the file, links resolved. None if that is not possible, as on some network file systems.
fn lock(named: &Path) -> Option<File> {
    let real = named.canonicalize();
    let file = real.as_deref().unwrap_or(named);
    let directory = File::open(file.parent()?).ok()?;
    flock(&directory, FlockOperation::LockExclusive).ok()?;
    Some(directory)
}

/// Fails if the directory belongs to another user: under sudo, HOME may be the caller's, and root must leave no files there.
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

/// Fails if another user owns a directory or link on the path and could choose which file is written.
fn own_parts(path: &Path) -> Result<(), Failure> {
    let foreign = trust::foreign_part(path);
    foreign.map_or(Ok(()), |place| Err(of_another_user(&place)))
}

fn of_another_user(place: &Path) -> Failure {
    Failure::new(format_args!(
        "`{}` belongs to another user; run this command as that user",
        path(place)
    ))
}
