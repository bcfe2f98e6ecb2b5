//! The journal: one record for each build that was not a hit, so that `oclcache explain` needs no set-up. Programs that were loaded from
//! binaries are only counted.
//!
//! ```text
//! <cache directory>/v1/journal       records, appended by all processes
//! <cache directory>/v1/journal.old   the former journal, renamed when it reached its maximum size
//!
//! record = a frame (see `framing`) with the magic number "oclcjrn2"; another encoding gets another
//! body   = zstd of the postcard encoding of `JournalRecord`
//! ```
//!
//! A process opens the file (`O_APPEND`), appends a record with one write, and closes the file. Local file systems keep such writes
//! of several processes apart. No process keeps the file open or waits for another, so forks and kills do no harm. The reader skips
//! a record that is cut or damaged (a full disk, a network file system), and continues at the next magic number.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::compressed::{self, DecodeLimits};
use super::directory::Directory;
use super::lock::try_lock_file;
use super::ownership::{is_our_start, may_write};
use super::{ClearResult, StoreError};
use crate::framing::{frame, unframe};
use crate::guarded_file::may_reach;
use crate::key::ingredients::{Ingredient, Key};
use crate::outcome::{Bypass, NotBakeable};

const NAME: &str = "journal";
const OLD: &str = "journal.old";
const MAGIC: &[u8] = b"oclcjrn2";

/// A journal of this size is renamed: it has some hundreds of builds.
const MAX_JOURNAL_BYTES: u64 = 1 << 20;
/// Larger records leave out the ingredients of the key, so that one build does not push out all others.
const MAX_RECORD_BYTES: usize = 1 << 18;
/// Of a file that is read: processes that append at once may exceed the maximum.
const MAX_FILE_BYTES: u64 = 16 * MAX_JOURNAL_BYTES;

/// What a miss left in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kept {
    /// An entry.
    Entry,
    /// A recipe, which becomes an entry when it is baked.
    Recipe,
    /// Nothing.
    Nothing,
    /// Nothing, and no baker can bake it: the number of the reason, because a later version may have more reasons.
    NotBakeable(u8),
}

impl Kept {
    /// Nothing, because of this reason.
    pub fn not_bakeable(reason: NotBakeable) -> Kept {
        Kept::NotBakeable(reason as u8)
    }

    /// Nothing, because of this failure to write.
    pub fn unwritten(error: &StoreError) -> Kept {
        match error.is_full() {
            true => Kept::not_bakeable(NotBakeable::NoRoom),
            false => Kept::Nothing,
        }
    }

    /// Why no baker can bake it, if this version knows the reason.
    pub fn reason(self) -> Option<NotBakeable> {
        match self {
            Kept::NotBakeable(number) => NotBakeable::ALL.get(usize::from(number)).copied(),
            _ => None,
        }
    }

    /// Whether the cache has an entry or a recipe of it.
    pub fn is_something(self) -> bool {
        matches!(self, Kept::Entry | Kept::Recipe)
    }
}

/// The outcome of a build that was not a hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BuildResult {
    /// Built by the driver after a look-up.
    Miss {
        /// What it left in the cache.
        kept: Kept,
        /// Whether look-ups were turned off.
        recache: bool,
    },
    /// Built by the driver without a look-up: the number of the reason, because a later version may have more reasons.
    Bypassed(u8),
    /// The driver's build failed.
    Failed,
}

impl BuildResult {
    /// A bypass for this reason.
    pub fn bypassed(reason: Bypass) -> BuildResult {
        BuildResult::Bypassed(reason as u8)
    }

    /// The reason of a bypass, if this version knows it.
    pub fn reason(&self) -> Option<Bypass> {
        match self {
            BuildResult::Bypassed(number) => Bypass::ALL.get(usize::from(*number)).copied(),
            _ => None,
        }
    }
}

/// The key of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The key.
    pub key: Key,
    /// The ingredients of the key; empty in records that would be too large.
    pub ingredients: Vec<Ingredient>,
    /// The build options, as in an entry.
    pub options: Option<Vec<u8>>,
}

/// One build call that was not a hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalRecord {
    /// When it ended, in milliseconds since 1970.
    pub time_ms: u64,
    /// How long the driver took, in nanoseconds.
    pub compile_ns: u64,
    /// The name of the program that was running.
    pub executable: String,
    /// Its process.
    pub process: u32,
    /// The driver's family by its profile; empty if the program is not known here.
    pub driver_family: String,
    /// The kernels of the program, as far as they are known.
    pub kernel_names: Vec<Vec<u8>>,
    /// The outcome.
    pub ended: BuildResult,
    /// The key, unless it was bypassed.
    pub build: Option<Build>,
}

impl JournalRecord {
    /// When the driver began, in milliseconds since 1970.
    pub fn began_ms(&self) -> u64 {
        self.time_ms.saturating_sub(self.compile_ns / 1_000_000)
    }
}

/// The time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Adds a record. A failure is logged only: the application cannot help it.
pub fn append(root: &Directory, record: JournalRecord) {
    if let Err(error) = try_append(root, record) {
        tracing::debug!(%error, "a build is not written to the journal");
    }
}

fn try_append(root: &Directory, mut record: JournalRecord) -> io::Result<()> {
    let mut bytes = encode(&record)?;
    if bytes.len() > MAX_RECORD_BYTES {
        record.kernel_names = Vec::new();
        if let Some(build) = &mut record.build {
            build.ingredients = Vec::new();
            build.options = None;
        }
        bytes = encode(&record)?;
    }
    let mut file = open_with_room(root)?;
    may_reach(file.metadata()?.len() + bytes.len() as u64)?;
    // Not `write_all`: the rest of a record could follow the record of another process.
    match file.write(&bytes)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Opens the file to append to. Renames a full one first.
///
/// A process renames the file only while it has the file locked, so only one of several does. The former `journal.old`, with the
/// oldest records, is lost. No process waits for the lock: one that does not get it, or has opened the file before it was
/// renamed, appends to the old file, which is read as well. On network file systems a lock may never answer, so no process takes
/// one, and two processes may rename two files, the second one short.
fn open_with_room(root: &Directory) -> io::Result<File> {
    let file = open_ours(root)?;
    let is_network = root.file_system().is_network();
    if file.metadata()?.len() < MAX_JOURNAL_BYTES || !is_network && !try_lock_file(&file) {
        return Ok(file);
    }
    if root.is_named(NAME, &file) {
        if !may_write(root, OLD, b"") {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        root.rename(NAME, OLD).map_err(|failure| failure.error)?;
    }
    drop(file);
    open_ours(root)
}

/// Opens the file to append to, unless a user has another file of this name.
fn open_ours(root: &Directory) -> io::Result<File> {
    let file = root.open_to_append(NAME)?;
    let mut start = [0; MAGIC.len()];
    let length = file.read_at(&mut start, 0)?;
    match is_our_start(&start[..length]) {
        true => Ok(file),
        false => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

fn encode(record: &JournalRecord) -> io::Result<Vec<u8>> {
    frame(MAGIC, &compressed::encode(record)?)
}

/// All whole records, oldest first.
///
/// # Errors
/// A file cannot be read, or is not a regular file of this user.
pub fn read(root: &Directory) -> Result<Vec<JournalRecord>, StoreError> {
    let content = |name: &str| {
        let bytes = root.read(name, MAX_FILE_BYTES);
        bytes
            .map(Option::unwrap_or_default)
            .map_err(|error| StoreError {
                action: "read",
                path: root.path().join(name),
                error,
            })
    };
    let new = content(NAME)?;
    let old = content(OLD)?;
    let mut records = decode(&old);
    // If it was renamed between the two reads, both have the same records.
    if !old.starts_with(&new) {
        records.extend(decode(&new));
    }
    records.sort_by_key(|record| record.time_ms);
    Ok(records)
}

fn decode(mut bytes: &[u8]) -> Vec<JournalRecord> {
    let mut records = Vec::new();
    let is_magic = |window: &[u8]| window == MAGIC;
    while let Some(at) = bytes.windows(MAGIC.len()).position(is_magic) {
        bytes = &bytes[at..];
        bytes = match unframe(MAGIC, bytes) {
            Some((body, rest)) => {
                records.extend(compressed::decode(body, DecodeLimits::OWN).ok());
                rest
            }
            None => &bytes[MAGIC.len()..],
        };
    }
    records
}

/// Removes the journal, and counts files of its names that the cache did not write.
///
/// # Errors
/// A file cannot be removed.
pub(super) fn clear(root: &Directory, cleared: &mut ClearResult) -> Result<(), StoreError> {
    for name in [NAME, OLD] {
        let Some(facts) = root.facts(name) else {
            continue;
        };
        // Another process may remove it meanwhile, and a third one create it again: look twice.
        let look = || root.read_start(name, MAGIC.len());
        let start = look().or_else(look);
        if !start.is_some_and(|start| MAGIC.starts_with(&start)) {
            cleared.foreign += u64::from(root.facts(name).is_some());
        } else if root.remove(name)? {
            cleared.files += 1;
            cleared.bytes += facts.taken();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let directory = Directory::create_all(&temporary.path().join("v1")).expect("made");
        (temporary, directory)
    }

    fn record(number: u64, kernels: usize) -> JournalRecord {
        // Digests, which do not compress.
        let name = |index: usize| {
            crate::key::ingredients::sha256(format!("{number} {index}").as_bytes()).to_vec()
        };
        JournalRecord {
            time_ms: number,
            compile_ns: 1,
            executable: "app".into(),
            process: 7,
            driver_family: "pocl".into(),
            kernel_names: (0..kernels).map(name).collect(),
            ended: BuildResult::Miss {
                kept: Kept::Entry,
                recache: false,
            },
            build: Some(Build {
                key: Key([1; 32]),
                ingredients: Vec::new(),
                options: Some(b"-DN=1".to_vec()),
            }),
        }
    }

    fn times(directory: &Directory) -> Vec<u64> {
        let records = read(directory).expect("read");
        records.iter().map(|record| record.time_ms).collect()
    }

    #[test]
    fn what_is_cut_or_damaged_is_skipped_and_all_else_is_read() {
        let (_temporary, directory) = directory();
        for number in 0..5 {
            append(&directory, record(number, 3));
        }
        let path = directory.path().join(NAME);
        let good = std::fs::read(&path).expect("a journal");
        let length = good.len() / 5;
        for at in 0..length {
            let mut flipped = good.clone();
            flipped[2 * length + at] ^= 0x10;
            std::fs::write(&path, &flipped).expect("written");
            assert_eq!(times(&directory), [0, 1, 3, 4], "byte {at}");
            let cut = [&good[..2 * length], &good[2 * length + at + 1..]].concat();
            std::fs::write(&path, cut).expect("written");
            assert_eq!(times(&directory), [0, 1, 3, 4], "without {at} bytes");
        }
        std::fs::write(&path, &good[..good.len() - 1]).expect("written");
        append(&directory, record(9, 3));
        assert_eq!(times(&directory), [0, 1, 2, 3, 9], "behind a cut one");
    }

    #[test]
    fn it_stays_bounded_and_what_is_lost_is_the_oldest() {
        let (_temporary, directory) = directory();
        let most = 400;
        for number in 0..most {
            append(&directory, record(number, 256));
        }
        let sizes = [NAME, OLD].map(|name| directory.facts(name).expect("a file").size);
        assert!(sizes.iter().sum::<u64>() < 2 * MAX_JOURNAL_BYTES + (64 << 10));
        let times = times(&directory);
        let first = times[0];
        assert!(first > 0 && times.len() > 100);
        assert!(times.into_iter().eq(first..most));
    }

    #[test]
    fn threads_that_append_at_once_lose_nothing_but_old_records() {
        let (_temporary, directory) = directory();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let directory = &directory;
                scope.spawn(move || {
                    for number in 0..100 {
                        append(directory, record(100 * thread + number, 128));
                    }
                });
            }
        });
        // 1.7 MB: moved away once, so all is there.
        let mut times = times(&directory);
        times.sort_unstable();
        assert!(times.into_iter().eq(0..400));
        assert!(directory.facts(OLD).is_some());
    }

    #[test]
    fn a_record_that_would_push_out_all_others_is_kept_short() {
        let (_temporary, directory) = directory();
        append(&directory, record(1, 20_000));
        let records = read(&directory).expect("read");
        assert_eq!(records[0].kernel_names, Vec::<Vec<u8>>::new());
        assert!(directory.facts(NAME).expect("a file").size < 1000);
    }

    #[test]
    fn a_journal_that_another_process_has_only_begun_is_the_caches() {
        let (_temporary, directory) = directory();
        for (content, (files, foreign)) in
            [(&b""[..], (1, 0)), (b"oclc", (1, 0)), (b"mine", (0, 1))]
        {
            std::fs::write(directory.path().join(NAME), content).expect("written");
            let mut cleared = ClearResult::default();
            clear(&directory, &mut cleared).expect("cleared");
            assert_eq!((cleared.files, cleared.foreign), (files, foreign));
        }
    }

    #[test]
    fn what_stands_in_its_place_is_not_written_to() {
        let (temporary, directory) = directory();
        let mine = temporary.path().join("mine");
        std::fs::write(&mine, "mine").expect("written");
        std::os::unix::fs::symlink(&mine, directory.path().join(NAME)).expect("linked");
        append(&directory, record(1, 1));
        assert_eq!(std::fs::read(&mine).expect("read"), b"mine");
        assert!(read(&directory).is_err());
    }
}
