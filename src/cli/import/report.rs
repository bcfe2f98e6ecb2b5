//! The result for each member of an archive.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::output::{print_json, say};
use crate::key::ingredients::Key;
use crate::log::text;

/// How many of each kind are listed without `--json`.
const SHOWN: usize = 20;

/// The results of an import.
#[derive(Default)]
pub struct ImportReport {
    pub archive: String,
    /// Whether this cache exported the archive.
    pub is_own: bool,
    pub dry_run: bool,
    pub taken: Vec<Key>,
    /// How many of them are recipes.
    pub recipes: usize,
    /// Entries that were stored already.
    pub present: Vec<Key>,
    /// Entries that fit no driver of this machine, and what they are for.
    pub unfit: Vec<(Key, String)>,
    /// Names of refused members, and why.
    pub refused: Vec<(Vec<u8>, String)>,
    pub failed: Vec<(Key, String)>,
    /// The number of other entries that were evicted.
    pub removed: u64,
    /// Drivers that could not be opened, and why.
    pub silent: Vec<(PathBuf, String)>,
    /// The system directory, if not the user's cache.
    pub system: Option<PathBuf>,
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = if self.dry_run {
            "would be imported"
        } else {
            "imported"
        };
        write!(f, "{} {done}", self.taken.len())?;
        if self.recipes > 0 {
            write!(
                f,
                " ({} of them recipes for `oclcache bake --imported`)",
                self.recipes
            )?;
        }
        if !self.present.is_empty() {
            write!(f, ", {} already stored", self.present.len())?;
        }
        if !self.unfit.is_empty() {
            write!(f, ", {} fit no driver of this machine", self.unfit.len())?;
        }
        write!(f, ", {} refused", self.refused.len())?;
        if !self.failed.is_empty() {
            write!(f, ", {} not stored", self.failed.len())?;
        }
        if self.removed > 0 {
            write!(f, ", {} others removed to make room", self.removed)?;
        }
        Ok(())
    }
}

impl ImportReport {
    /// Prints the results and returns the exit code; `stopped` is why the import was not completed.
    pub fn finish(&self, as_json: bool, stopped: Option<Failure>) -> Result<ExitCode, Failure> {
        for (library, why) in &self.silent {
            let (library, why) = (crate::log::path(library), text(why.as_bytes()));
            say(&format!(
                "oclcache: cannot open the driver `{library}`: {why}"
            ));
        }
        list(
            "refused",
            self.refused
                .iter()
                .map(|(name, why)| (text(name).to_string(), why)),
        );
        list(
            "not stored",
            self.failed.iter().map(|(key, why)| (key.hex(), why)),
        );
        if self.taken.is_empty() {
            list(
                "fits no driver",
                self.unfit
                    .iter()
                    .map(|(key, why)| (key.hex()[..16].to_owned(), why)),
            );
        }
        if as_json {
            print_json(&self.json())?;
        }
        say(&format!("oclcache: {self}"));
        if let Some(stopped) = stopped {
            return Err(stopped);
        }
        if self.taken.is_empty() && self.present.is_empty() && !self.unfit.is_empty() {
            return Err(Failure::new(
                "no entry fits a driver of this machine; import them anyway with `--all`",
            ));
        }
        match self.refused.is_empty() && self.failed.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Ok(ExitCode::FAILURE),
        }
    }

    fn json(&self) -> Value {
        let keys = |keys: &[Key]| keys.iter().map(Key::hex).collect::<Vec<_>>();
        let reasons = |items: &[(Key, String)]| -> Vec<Value> {
            let item = |(key, why): &(Key, String)| json!({ "key": key.hex(), "why": why });
            items.iter().map(item).collect()
        };
        let refused = self
            .refused
            .iter()
            .map(|(name, why)| json!({ "member": String::from_utf8_lossy(name), "why": why }));
        json!({
            "archive": self.archive,
            "own": self.is_own,
            "dry_run": self.dry_run,
            "imported": keys(&self.taken),
            "recipes": self.recipes,
            "present": keys(&self.present),
            "unfit": reasons(&self.unfit),
            "refused": refused.collect::<Vec<_>>(),
            "failed": reasons(&self.failed),
            "removed": self.removed,
            "system": self.system.as_ref().map(|path| path.to_string_lossy()),
        })
    }
}

fn list<'a>(what: &str, items: impl ExactSizeIterator<Item = (String, &'a String)>) {
    let more = items.len().saturating_sub(SHOWN);
    for (name, why) in items.take(SHOWN) {
        say(&format!("{what}: {name}: {}", text(why.as_bytes())));
    }
    if more > 0 {
        say(&format!("{what}: and {more} more; list all with `--json`"));
    }
}
