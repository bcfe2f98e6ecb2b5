//! What the entries take, shard by shard, and which shard has the one that was not used for longest: so that a store knows
//! without a listing whether there is room, and where to look if there is none.
//!
//! ```text
//! <cache directory>/v1/sizes    256 counters: bytes, then 256: milliseconds since 1970, or one of two marks
//! ```
//!
//! These are hints. Processes that are killed, files that somebody removes and processes that list a shard while another
//! publishes there leave them a little wrong, until the shard is listed the next time: when it is looked through for
//! something to remove, and now and then when something is stored in it. Nothing but the limits of size depends on them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::directory::Directory;
use super::mapping::Mapping;
use crate::kept::KeptFile;

/// How many shards there are: by the first byte of the key.
pub const SHARDS: usize = 256;
const NAME: &str = "sizes";
const MAGIC: &[u8; 8] = b"oclcsiz1";
const COUNTERS: usize = 2 * SHARDS;
/// Nobody has listed the shard yet.
const UNKNOWN: u64 = 0;
/// There is nothing in it.
const EMPTY: u64 = u64::MAX;
/// More than any shard has, in bytes: a number that looks wrong.
const ABSURD: u64 = 1 << 50;

/// The counters of all shards, shared by all processes.
#[derive(Debug)]
pub struct Sizes(Counters);

#[derive(Debug)]
enum Counters {
    Mapped(Mapping),
    /// Where a file may not be mapped. Two processes that write one counter at once lose one of the two changes.
    Written(KeptFile),
}

impl Sizes {
    /// Opens the file in the directory of this format, and makes it if it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(root: &Directory) -> io::Result<Sizes> {
        if let Some(mapping) = Mapping::open(root, NAME, MAGIC, COUNTERS)? {
            return Ok(Sizes(Counters::Mapped(mapping)));
        }
        let file = KeptFile::new(root.open_or_create_file(NAME)?)?;
        let mut magic = [0; MAGIC.len()];
        if file.read_exact_at(&mut magic, 0).is_err() || magic != *MAGIC {
            let fresh = [MAGIC.as_slice(), &[0; COUNTERS * size_of::<u64>()]].concat();
            file.write_all_at(&fresh, 0)?;
        }
        Ok(Sizes(Counters::Written(file)))
    }

    /// All bytes that are known of.
    pub fn total(&self) -> u64 {
        self.snapshot()[..SHARDS]
            .iter()
            .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// A shard whose size nobody knows.
    pub fn unknown(&self) -> Option<usize> {
        let snapshot = self.snapshot();
        (0..SHARDS).find(|shard| snapshot[SHARDS + shard] == UNKNOWN || snapshot[*shard] > ABSURD)
    }

    /// Whether nobody has listed the shard yet.
    pub fn is_unknown(&self, shard: usize) -> bool {
        self.load(SHARDS + shard) == UNKNOWN
    }

    /// The shard with the entry that was not used for longest, but for shards in `but`, and when that was used; None if there
    /// is no other entry.
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
        self.load(shard)
    }

    /// An entry was stored, or used by now and then removed (`stored` is negative).
    pub fn add(&self, shard: usize, bytes: i64, now_ms: u64) {
        self.change(shard, |known| known.saturating_add_signed(bytes));
        self.change(SHARDS + shard, |used| match used {
            EMPTY if bytes > 0 => now_ms,
            used => used,
        });
    }

    /// A shard was listed: it had this many bytes, and before that the counter said `known`. `oldest_ms` is when the entry was
    /// used that was not used for longest; None: there is no entry.
    ///
    /// What others stored since `known` was read stays added.
    pub fn listed(&self, shard: usize, known: u64, bytes: u64, oldest_ms: Option<u64>) {
        self.change(shard, |now| {
            if now > ABSURD {
                return bytes;
            }
            now.saturating_add(bytes).saturating_sub(known)
        });
        let oldest = oldest_ms.map_or(EMPTY, |oldest| oldest.clamp(UNKNOWN + 1, EMPTY - 1));
        self.change(SHARDS + shard, |_| oldest);
    }

    fn snapshot(&self) -> [u64; COUNTERS] {
        let mut numbers = [0; COUNTERS];
        match &self.0 {
            Counters::Mapped(mapping) => {
                for (number, counter) in numbers.iter_mut().zip(mapping.counters()) {
                    *number = counter.load(Ordering::Relaxed);
                }
            }
            Counters::Written(file) => {
                let mut bytes = [0; COUNTERS * size_of::<u64>()];
                if file.read_exact_at(&mut bytes, MAGIC.len() as u64).is_ok() {
                    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                        *number = u64::from_le_bytes(*bytes);
                    }
                }
            }
        }
        numbers
    }

    fn load(&self, index: usize) -> u64 {
        self.snapshot()[index]
    }

    fn change(&self, index: usize, change: impl Fn(u64) -> u64) {
        match &self.0 {
            Counters::Mapped(mapping) => {
                let counter: &AtomicU64 = &mapping.counters()[index];
                let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| {
                    Some(change(number))
                });
            }
            Counters::Written(file) => {
                let at = (MAGIC.len() + index * size_of::<u64>()) as u64;
                let mut bytes = [0; size_of::<u64>()];
                if file.read_exact_at(&mut bytes, at).is_ok() {
                    let changed = change(u64::from_le_bytes(bytes));
                    let _ = file.write_all_at(&changed.to_le_bytes(), at);
                }
            }
        }
    }
}
