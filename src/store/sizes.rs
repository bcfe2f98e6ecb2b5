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

use std::{fmt, io};

use super::directory::Directory;
use crate::fork_safety::Mutex;
use crate::guarded_file::GuardedFile;

/// How many shards there are: by the first byte of the key.
pub const SHARDS: usize = 256;
const NAME: &str = "sizes";
const MAGIC: &[u8; 8] = b"oclcsiz1";
const COUNTERS: usize = 2 * SHARDS;
/// Of the file.
const LENGTH: usize = MAGIC.len() + COUNTERS * size_of::<u64>();
/// Nobody has listed the shard yet.
const UNKNOWN: u64 = 0;
/// There is nothing in it.
const EMPTY: u64 = u64::MAX;
/// More than any shard has, in bytes: a number that looks wrong.
const ABSURD: u64 = 1 << 50;

/// The counters of all shards, shared by all processes. They are read and written, never mapped: who cuts a mapped file ends
/// the programs that touch it.
pub struct Sizes {
    file: GuardedFile,
    /// Of this process's threads; [`GuardedFile::alone`] is for processes.
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

    fn is_whole(&self) -> bool {
        let mut found = [0; LENGTH];
        self.file.read_exact_at(&mut found, 0).is_ok() && found.starts_with(MAGIC)
    }

    fn begin_anew(&self) -> io::Result<()> {
        let fresh = [MAGIC.as_slice(), &[0; COUNTERS * size_of::<u64>()]].concat();
        self.file.write_all_at(&fresh, 0)
    }

    fn alone<T>(&self, body: impl FnOnce() -> T) -> T {
        let _thread = self.changing.lock();
        match self.is_local {
            true => self.file.alone(body),
            false => body(),
        }
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
        let mut bytes = [0; LENGTH];
        if self.file.read_exact_at(&mut bytes, 0).is_ok()
            && let Some(bytes) = bytes.strip_prefix(MAGIC)
        {
            for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                *number = u64::from_le_bytes(*bytes);
            }
        }
        numbers
    }

    fn load(&self, index: usize) -> u64 {
        self.snapshot()[index]
    }

    fn change(&self, index: usize, change: impl Fn(u64) -> u64) {
        self.alone(|| {
            // Somebody has cut it.
            if !self.is_whole() && self.begin_anew().is_err() {
                return;
            }
            let at = (MAGIC.len() + index * size_of::<u64>()) as u64;
            let mut bytes = [0; size_of::<u64>()];
            if self.file.read_exact_at(&mut bytes, at).is_ok() {
                let changed = change(u64::from_le_bytes(bytes));
                let _ = self.file.write_all_at(&changed.to_le_bytes(), at);
            }
        });
    }
}
