//! Findings of audits: an entry that differs from what the driver compiles. The cache is then off for that driver.
//!
//! ```text
//! v1/audit/<identity>           the mark: a frame (see `framing`) of a [`AuditMark`]
//! v1/audit/<identity>.stored    the entry that was served
//! v1/audit/<identity>.built     the same entry as the audit compiled it
//! ```
//!
//! An identity is the digest of the driver's part of keys, so an updated driver has another identity and no mark. After an update of
//! oclcache that changes keys, so has every driver: what was changed may have mended the difference. The cache is off if the file exists,
//! whatever it contains: damage must not turn the cache on again. `oclcache clear` removes all marks. Archives contain none.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::ownership::begins_as_ours;
use super::stats::{DAY_MS, date};
use super::{ClearResult, Store, StoreError, TEMPORARY};
use crate::framing;
use crate::key::ingredients::Key;
use crate::log::{path, text};

pub(super) const AUDIT: &str = "audit";
const MAGIC: &[u8] = b"oclcaud2";
const STORED: &str = ".stored";
const BUILT: &str = ".built";
/// A mark has a few lines.
const MAX_MARK_BYTES: u64 = 1 << 20;
/// Both entries of the latest findings are kept, since entries can be large. All marks are kept.
const MAX_KEPT: usize = 4;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditMark {
    /// The driver's family.
    pub family: String,
    /// The driver's library.
    pub library: String,
    /// The key of the entry, in digits.
    pub key: String,
    /// The program that recorded the entry.
    pub program: String,
    /// Its kernels, with blanks between them.
    pub kernels: String,
    /// What differed.
    pub differences: Vec<String>,
    /// The time of the audit, in milliseconds since 1970.
    pub found_ms: u64,
    /// The version of oclcache that found it.
    pub version: String,
}

/// A finding, for lists.
#[derive(Clone, Debug)]
pub struct AuditFinding {
    /// The driver for which the cache is off.
    pub identity: Key,
    /// The mark; None if the file is damaged.
    pub mark: Option<AuditMark>,
    /// The files of the two entries, as far as they are kept.
    pub results: Vec<PathBuf>,
}

/// The finding in one line, for people.
impl fmt::Display for AuditFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mark {
            None => f.write_str("the mark of an audit is damaged; `oclcache clear` removes it")?,
            Some(mark) => {
                let key = mark.key.get(..16).unwrap_or(&mark.key);
                let day = u32::try_from(mark.found_ms / DAY_MS).unwrap_or(0);
                let (year, month, day) = date(day);
                let line = format!(
                    "the entry {key} of {} (kernels: {}) is not what {} ({}) compiles; different: {}; found {year:04}-{month:02}-{day:02}",
                    mark.program,
                    mark.kernels,
                    mark.family,
                    mark.library,
                    mark.differences.join(", "),
                );
                write!(f, "{}", text(line.as_bytes()))?;
            }
        }
        let results: Vec<String> = (self.results.iter())
            .map(|file| path(file).to_string())
            .collect();
        match results.is_empty() {
            true => Ok(()),
            false => write!(f, "; both results: {}", results.join(" ")),
        }
    }
}

/// Whether a name is that of a mark or an entry of an audit.
pub(super) fn is_ours(name: &str) -> bool {
    let identity = [STORED, BUILT]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix));
    Key::from_hex(identity.unwrap_or(name)).is_some()
}

impl Store {
    /// Whether an audit found a wrong entry of this driver. Costs two system calls, or one if no audit ever found any.
    pub fn is_marked(&self, identity: &Key) -> bool {
        match self.root.open_below(AUDIT) {
            Ok(Some(directory)) => directory.facts(&identity.hex()).is_some(),
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(%error, "the directory of audits cannot be opened: the cache stays on");
                false
            }
        }
    }

    /// Turns the cache off for a driver, and keeps both entries.
    ///
    /// # Errors
    /// The mark cannot be written. An entry that cannot be kept is only logged.
    pub fn mark(
        &self,
        identity: &Key,
        mark: &AuditMark,
        stored: &[u8],
        built: &[u8],
    ) -> Result<(), StoreError> {
        let directory = self.root.create(AUDIT)?;
        let temporary = self.root.create(TEMPORARY)?;
        let name = identity.hex();
        let bytes = framing::encode(MAGIC, mark).unwrap_or_default();
        directory.write_by_rename(&temporary, &name, &bytes)?;
        for (suffix, result) in [(STORED, stored), (BUILT, built)] {
            let name = format!("{name}{suffix}");
            if let Err(error) = directory.write_by_rename(&temporary, &name, result) {
                tracing::warn!(%error, "an entry of the audit is not kept");
            }
        }
        remove_old_results(&directory)
    }

    /// All findings.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn marks(&self) -> Result<Vec<AuditFinding>, StoreError> {
        let Some(directory) = self.root.open_below(AUDIT)? else {
            return Ok(Vec::new());
        };
        let mut names = directory.names()?;
        names.sort();
        let marked = |name: &String| {
            let identity = Key::from_hex(name)?;
            let bytes = directory.read(name, MAX_MARK_BYTES).ok().flatten();
            let result = |suffix| {
                let name = format!("{name}{suffix}");
                names.contains(&name).then(|| directory.path().join(name))
            };
            Some(AuditFinding {
                identity,
                mark: bytes.and_then(|bytes| framing::decode(MAGIC, &bytes)),
                results: [STORED, BUILT].into_iter().filter_map(result).collect(),
            })
        };
        Ok(names.iter().filter_map(marked).collect())
    }
}

fn remove_old_results(directory: &Directory) -> Result<(), StoreError> {
    let names = directory.names()?.into_iter();
    let results = names.filter(|name| is_ours(name) && Key::from_hex(name).is_none());
    let mut results: Vec<_> = results
        .map(|name| (directory.modified_ms(&name), name))
        .collect();
    results.sort();
    let excess = results.len().saturating_sub(2 * MAX_KEPT);
    let old = results[..excess].iter();
    for (_, name) in old.filter(|(_, name)| begins_as_ours(directory, name)) {
        directory.remove(name)?;
    }
    Ok(())
}

/// Removes all findings.
///
/// # Errors
/// A file cannot be removed.
pub(super) fn clear(root: &Directory, cleared: &mut ClearResult) -> Result<(), StoreError> {
    let Some(directory) = root.open_below(AUDIT)? else {
        return Ok(());
    };
    for name in directory.names()?.into_iter().filter(|name| is_ours(name)) {
        // Also a mark that a power cut has emptied, which turns the cache off as well.
        if begins_as_ours(&directory, &name)
            && let Some(file) = directory.facts(&name)
            && directory.remove(&name)?
        {
            cleared.files += 1;
            cleared.bytes += file.taken();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Limits;

    #[test]
    fn a_mark_holds_until_the_cache_is_cleared_whatever_is_in_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open(&path, Limits::default()).expect("a store");
        let (one, other) = (Key([1; 32]), Key([2; 32]));
        assert!(!store.is_marked(&one));
        assert!(store.marks().expect("listed").is_empty());
        let mark = AuditMark {
            family: "stub".to_owned(),
            differences: vec!["binary 0".to_owned()],
            ..AuditMark::default()
        };
        store
            .mark(&one, &mark, b"oclcache stored", b"oclcache built")
            .expect("marked");
        assert!(store.is_marked(&one) && !store.is_marked(&other));
        let [found] = &store.marks().expect("listed")[..] else {
            panic!("one was found");
        };
        assert_eq!((found.identity, &found.mark), (one, &Some(mark)));
        let results = found.results.iter().map(std::fs::read);
        let results: Vec<_> = results.map(|bytes| bytes.expect("kept")).collect();
        assert_eq!(results, [&b"oclcache stored"[..], b"oclcache built"]);
        let file = path.join("v1/audit").join(one.hex());
        std::fs::write(file, [0; 9]).expect("damaged");
        assert!(store.is_marked(&one));
        assert_eq!(store.marks().expect("listed")[0].mark, None);
        assert_eq!(store.clear().expect("cleared").files, 3);
        assert!(!store.is_marked(&one));
    }

    #[test]
    fn of_many_findings_the_marks_stay_and_the_latest_results() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open(&path, Limits::default()).expect("a store");
        let count = MAX_KEPT as u8 + 3;
        for number in 0..count {
            let mark = store.mark(
                &Key([number; 32]),
                &AuditMark::default(),
                b"oclcache one",
                b"oclcache two",
            );
            mark.expect("marked");
        }
        let marks = store.marks().expect("listed");
        assert_eq!(marks.len(), usize::from(count));
        let results = marks.iter().map(|marked| marked.results.len());
        assert_eq!(results.sum::<usize>(), 2 * MAX_KEPT);
    }
}
