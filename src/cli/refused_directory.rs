//! What to do about a cache directory that is refused because of its owner or its mode.
//!
//! A user may have named a directory that is shared with others, such as `/tmp`, or that has other things in it. Another owner or mode
//! would take it from those who use it: so a command is named only for a directory with a cache in it and nothing else.

use std::fmt::{self, Display, Formatter};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::output::quoted;
use super::replace_file::is_writable;
use crate::config::Config;
use crate::log::path;
use crate::store::{VERSION_DIRECTORY, is_only_a_cache};

/// What makes a cache usable whose directory is refused. It is shown for people.
pub enum Remedy {
    /// This command makes the directory the user's own.
    Command(String),
    /// The user can have a directory of his own in it.
    Below(PathBuf),
    /// Another directory.
    Elsewhere,
}

impl Remedy {
    /// None if this user owns the directory and nobody else may write it, or if it is within a cache.
    pub fn of(directory: &Path) -> Option<Remedy> {
        let metadata = directory.metadata().ok()?;
        let own = rustix::process::geteuid().as_raw();
        let is_foreign = metadata.uid() != own;
        let is_within = directory.iter().any(|part| part == VERSION_DIRECTORY);
        if is_within || !is_foreign && metadata.mode() & 0o022 == 0 {
            return None;
        }
        let command = match is_foreign {
            true => format!("sudo chown -R {own}"),
            false => "chmod go-w".to_owned(),
        };
        // What root has restored in a user's home cannot be listed.
        let is_default = || {
            let default = Config::read().foreign_directory();
            default.is_some_and(|default| default == directory) && !directory.is_symlink()
        };
        // Elsewhere its owner may use it, or all users if it is the system's.
        let is_a_cache = is_only_a_cache(directory);
        let may_take = || is_default() || is_a_cache && !is_foreign;
        // Root can write any.
        let is_shared = metadata.mode() & 0o022 != 0 && is_writable(directory);
        let quoted = quoted(directory).filter(|_| may_take());
        Some(match quoted {
            Some(quoted) => Remedy::Command(format!("{command} {quoted}")),
            None if is_shared && !is_a_cache => {
                Remedy::Below(directory.join(format!("oclcache-{own}")))
            }
            None => Remedy::Elsewhere,
        })
    }
}

impl Display for Remedy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const ELSEWHERE: &str = "set OCLCACHE_DIR to a directory of yours";
        match self {
            Remedy::Command(command) => write!(
                f,
                "`{command}` makes it yours, if you trust its content; or {ELSEWHERE}"
            ),
            Remedy::Below(below) => write!(
                f,
                "set OCLCACHE_DIR to a directory below it, such as `{}`",
                path(below)
            ),
            Remedy::Elsewhere => f.write_str(ELSEWHERE),
        }
    }
}
