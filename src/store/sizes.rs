//! The size and the least recent use of each shard, so that a process knows without listing whether there is room for an entry, and
//! where to evict if there is none.
//!
//! ```text
//! <cache directory>/v1/sizes    256 counters: bytes, then 256: milliseconds since 1970, or one of two marks
//! ```
//!
//! These are hints. They become a little wrong if a process is killed, if somebody removes files, or if a process lists a shard
//! while another publishes there. The next listing of the shard, for eviction or now and then after a store, corrects them. Only
//! the limits of size depend on them.

use std::{fmt, io};

use super::directory::Directory;
use super::ownership::is_our_start;
use crate::fork_safety::Mutex;
use crate::guarded_file::GuardedFile;

/// The number of shards: one for each first byte of keys.
pub const SHARDS: usize = 256;
/// How long a process waits for another one that counts.
const PATIENCE_MS: u32 = 15;
const NAME: &str = "sizes";
const MAGIC: &[u8; 8] = b"oclcsiz1";
const COUNTERS: usize = 2 * SHARDS;
type Counters = [u64; COUNTERS];
/// Of the file, in bytes.
const LENGTH: usize = MAGIC.len() + COUNTERS * size_of::<u64>();
/// In place of a time: nobody has listed the shard yet.
const UNKNOWN: u64 = 0;
/// In place of a time: the shard is empty.
const EMPTY: u64 = u64::MAX;
/// No shard has so many bytes: the counter is wrong.
const ABSURD: u64 = 1 << 50;

/// The counters of all shards, shared by all processes. They are read and written, never mapped: if somebody truncates a
/// mapped file, the programs that use it die.
pub struct Sizes {
    file: GuardedFile,
    /// Excludes the threads of this process; [`GuardedFile::alone`] excludes processes.
    changing: Mutex<()>,
    /// Whether locks answer at once.
    is_local: bool,
}

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sizes").field(&self.file).finish()
    }
}

impl Sizes {
    /// Opens the file in the directory of this format, and makes it if it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(root: &Directory) -> io::Result<Sizes> {
        let sizes = Sizes {
            file: GuardedFile::new(root.open_or_create_file(NAME)?)?,
            changing: Mutex::new(()),
            is_local: !root.file_system().is_network(),
        };
        if !sizes.is_whole() {
            sizes.alone(|| match sizes.is_whole() {
                true => Ok(()),
                false => sizes.begin_anew(),
            })?;
        }
        Ok(sizes)
    }

    /// Opens the file to read it only: a hit makes no file.
    ///
    /// # Errors
    /// There is none, or it is not whole.
    pub fn open_to_read(root: &Directory) -> io::Result<Sizes> {
        let sizes = Sizes {
            file: GuardedFile::new(root.open_to_read(NAME)?)?,
            changing: Mutex::new(()),
            is_local: true,
        };
        match sizes.is_whole() {
            true => Ok(sizes),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn is_whole(&self) -> bool {
        self.read().is_some()
    }

    /// Writes the file anew, unless it is another file that a user has.
    fn begin_anew(&self) -> io::Result<()> {
        let mut start = [0; MAGIC.len()];
        let length = self.file.read_at(&mut start, 0)?;
        if !is_our_start(&start[..length]) {
            tracing::warn!(
                "the cache may exceed its maximum size: `v1/sizes` is a file that oclcache did not write; move it away"
            );
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let fresh = [MAGIC.as_slice(), &[0; COUNTERS * size_of::<u64>()]].concat();
        self.file.write_all_at(&fresh, 0)
    }

    fn alone<T>(&self, body: impl FnOnce() -> T) -> T {
        let _thread = self.changing.lock();
        match self.is_local {
            true => self.file.alone(PATIENCE_MS, body),
            false => body(),
        }
    }

    /// The sum of all shards.
    pub fn total(&self) -> u64 {
        self.snapshot()[..SHARDS]
            .iter()
            .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// A shard of unknown size.
    pub fn unknown(&self) -> Option<usize> {
        let snapshot = self.snapshot();
        (0..SHARDS).find(|shard| snapshot[SHARDS + shard] == UNKNOWN || snapshot[*shard] > ABSURD)
    }

    /// The shards that nobody has listed yet.
    pub fn unlisted(&self) -> Vec<usize> {
        let snapshot = self.snapshot();
        let is_unlisted = |shard: &usize| snapshot[SHARDS + shard] == UNKNOWN;
        (0..SHARDS).filter(is_unlisted).collect()
    }

    /// The shard with the least recently used entry, except `but`, and when that was used; None if there is no other entry.
    pub fn oldest(&self, but: Option<usize>) -> Option<(usize, u64)> {
        let snapshot = self.snapshot();
        (0..SHARDS)
            .filter(|shard| Some(*shard) != but)
            .map(|shard| (shard, snapshot[SHARDS + shard]))
            .filter(|(_, used)| !matches!(*used, UNKNOWN | EMPTY))
            .min_by_key(|(_, used)| *used)
    }

    /// The bytes of one shard.
    pub fn of(&self, shard: usize) -> u64 {
        self.snapshot()[shard]
    }

    /// Notes that an entry was stored, or removed (`stored` is negative).
    pub fn add(&self, shard: usize, bytes: i64, now_ms: u64) {
        self.change(|counters| {
            counters[shard] = counters[shard].saturating_add_signed(bytes);
            let used = &mut counters[SHARDS + shard];
            if *used == EMPTY && bytes > 0 {
                *used = now_ms;
            }
        });
    }

    /// Notes the result of listing a shard: its size, and in `oldest_ms` when its least recently used entry was used, None if it is
    /// empty. `known` is what the counter said before the listing: what others have stored since then stays added.
    pub fn listed(&self, shard: usize, known: u64, bytes: u64, oldest_ms: Option<u64>) {
        self.change(|counters| {
            counters[shard] = match counters[shard] {
                now if now > ABSURD => bytes,
                now => now.saturating_add(bytes).saturating_sub(known),
            };
            let oldest = oldest_ms.map(|oldest| oldest.clamp(UNKNOWN + 1, EMPTY - 1));
            counters[SHARDS + shard] = oldest.unwrap_or(EMPTY);
        });
    }

    /// Notes that shards of unknown size have no directory. A new cache has 256 of them.
    pub fn absent(&self, shards: &[usize]) {
        self.change(|counters| {
            for shard in shards {
                if counters[SHARDS + shard] == UNKNOWN {
                    counters[*shard] = 0;
                    counters[SHARDS + shard] = EMPTY;
                }
            }
        });
    }

    fn snapshot(&self) -> Counters {
        self.read().unwrap_or([0; COUNTERS])
    }

    /// None if the file is not whole.
    fn read(&self) -> Option<Counters> {
        let mut bytes = [0; LENGTH];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        let (bytes, _) = bytes.strip_prefix(MAGIC)?.as_chunks();
        let mut counters = [0; COUNTERS];
        for (counter, bytes) in counters.iter_mut().zip(bytes) {
            *counter = u64::from_le_bytes(*bytes);
        }
        Some(counters)
    }

    /// Writes the counters that the function changes: without a lock, other processes may be changing others.
    fn change(&self, change: impl FnOnce(&mut Counters)) {
        self.alone(|| {
            let begun = || {
                // Somebody has truncated it.
                self.begin_anew().ok()?;
                self.read()
            };
            let Some(before) = self.read().or_else(begun) else {
                return;
            };
            let mut after = before;
            change(&mut after);
            let mut at = MAGIC.len();
            let pairs: Vec<(u64, u64)> = before.into_iter().zip(after).collect();
            for run in pairs.chunk_by(|one, next| (one.0 == one.1) == (next.0 == next.1)) {
                if run.iter().any(|(before, after)| before != after) {
                    let bytes: Vec<u8> = run
                        .iter()
                        .flat_map(|(_, after)| after.to_le_bytes())
                        .collect();
                    let _ = self.file.write_all_at(&bytes, at as u64);
                }
                at += size_of::<u64>() * run.len();
            }
        });
    }
}
