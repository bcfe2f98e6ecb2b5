//! When entries were used, as far as their files do not say so yet.
//!
//! The time of modification of an entry's file is the time of its last use, but a hit must not write to a disk. So a hit notes the
//! use in the live directory. A listing of entries takes the later one of the two times. Once an hour a process that stores an entry
//! writes some noted times into the files, and empties the shards of notes that it has gone through; so does `oclcache gc` with more.
//!
//! ```text
//! uses = { shard }    256 shards, by the first byte of the key
//! shard = { set }     256 sets, by the second byte of the key
//! set = { note }      4 notes; the oldest one gives way
//! note = key time     32 bytes, and 64 bits, little-endian: milliseconds since 1970, 0 if the note is free
//! ```
//!
//! The file has holes, so it takes a page for each entry or so, and 10 MiB at most. No lock is taken: a note that is lost or torn
//! by two writers costs an entry its place in the order. A torn key has no entry.
//!
//! Without a live directory a process keeps its notes in memory, until it stores something or exits.

use std::collections::BTreeMap;
use std::io;

use super::directory::{Directory, FileFacts};
use super::evict::used_ms;
use super::sizes::SHARDS;
use super::{SUFFIX, Store, StoreError, file_name, shard_of};
use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
use crate::guarded_file::GuardedFile;
use crate::key::ingredients::Key;
use crate::syscall_filters;

/// The file in the live directory.
pub(super) const NAME: &str = "uses";
const SETS: usize = 256;
const NOTES: usize = 4;
/// A note, in bytes.
const NOTE: usize = 32 + size_of::<u64>();
const SET: usize = NOTES * NOTE;
const SHARD: usize = SETS * SET;
const LENGTH: u64 = (SHARDS * SHARD) as u64;
/// How many uses a process keeps in memory where there is no live directory. With more, the order of eviction is less exact.
const MAX_OWN: usize = 4096;

/// Uses that only this process knows are dated at this interval at most, in milliseconds.
const OWN_INTERVAL_MS: u64 = 3_600_000;
/// How many files `oclcache gc` dates.
pub(super) const MAX_DATED: usize = 4096;
/// How many a process dates that stores an entry, once an hour, and one at its end whose uses nobody else sees: the program waits, on NFS
/// perhaps for a millisecond for each.
pub(super) const MAX_DATED_BY_A_PROGRAM: usize = 256;
/// How many files are looked at for each one that may be dated.
const LOOKED_AT_FOR_ONE: usize = 4;
/// The notes of a store.
pub struct Uses {
    file: Option<GuardedFile>,
    own: Mutex<UseTimes>,
}

/// When each of some entries was used, in milliseconds since 1970.
pub type UseTimes = BTreeMap<Key, u64>;

impl Uses {
    /// The notes in a live directory, or in memory if there is none.
    pub fn open(live: Option<&Directory>) -> Uses {
        let opened = live.and_then(|live| {
            let (file, length) = live.open_or_create_guarded(NAME).ok()?;
            if length != LENGTH {
                file.resize(LENGTH).ok()?;
            }
            Some(file)
        });
        Uses {
            file: opened,
            own: Mutex::new(UseTimes::new()),
        }
    }

    /// Notes that an entry is used now.
    pub fn note(&self, key: &Key, now_ms: u64) {
        if let Some(file) = &self.file {
            if let Err(error) = note_in(file, key, now_ms) {
                tracing::debug!(%error, "the use of an entry is not noted: it may be evicted earlier");
            }
            return;
        }
        let mut own = self.own.lock();
        if own.len() < MAX_OWN || own.contains_key(key) {
            own.insert(*key, now_ms);
        }
    }

    /// Whether all processes of this cache see what is noted.
    pub fn are_seen_by_all(&self) -> bool {
        self.file.is_some()
    }

    /// The first shard from this one on of which something may be noted.
    fn next_noted(&self, shard: usize) -> Option<usize> {
        let is_shard = |shard: &usize| *shard < SHARDS;
        let Some(file) = &self.file else {
            return Some(shard).filter(is_shard);
        };
        match file.data_from((shard * SHARD) as u64) {
            Ok(data) => usize::try_from(data?)
                .ok()
                .map(|at| at / SHARD)
                .filter(is_shard),
            // Some file systems tell no holes.
            Err(_) => Some(shard).filter(is_shard),
        }
    }

    /// What is noted of the entries of a shard.
    pub fn of(&self, shard: usize) -> UseTimes {
        let Some(file) = &self.file else {
            let is_of = |key: &Key| shard_of(key) == shard;
            let own = self.own.lock();
            let notes = own.iter().filter(|(key, _)| is_of(key));
            return notes.map(|(key, time)| (*key, *time)).collect();
        };
        let mut notes = vec![0; SHARD];
        match file.read_exact_at(&mut notes, (shard * SHARD) as u64) {
            Ok(()) => parse(&notes).filter(|(_, time)| *time > 0).collect(),
            Err(_) => UseTimes::new(),
        }
    }

    /// Forgets the notes of some shards, once the files are dated. A use that is noted meanwhile is lost.
    pub fn forget(&self, shards: &[usize]) {
        let Some(file) = &self.file else {
            let is_of_others = |key: &Key, _: &mut u64| !shards.contains(&shard_of(key));
            return self.own.lock().retain(is_of_others);
        };
        for shard in shards {
            if let Err(error) = forget_in(file, *shard) {
                tracing::debug!(%error, "noted uses of entries are not forgotten");
            }
        }
    }

    /// Forgets all notes, once the files are dated. A use that is noted meanwhile is lost.
    pub fn clear(&self) {
        match &self.file {
            Some(file) => {
                let cleared = file.resize(0).and_then(|()| file.resize(LENGTH));
                if let Err(error) = cleared {
                    tracing::debug!(%error, "noted uses of entries are not forgotten");
                }
            }
            None => self.own.lock().clear(),
        }
    }
}

/// Overwrites the notes of a shard. Their pages stay.
fn forget_in(file: &GuardedFile, shard: usize) -> io::Result<()> {
    let at = shard * SHARD;
    let mut notes = vec![0; SHARD];
    file.read_exact_at(&mut notes, at as u64)?;
    let (sets, _) = notes.as_chunks::<SET>();
    for (index, set) in sets.iter().enumerate() {
        if *set != [0; SET] {
            file.overwrite_at(&[0; SET], (at + index * SET) as u64)?;
        }
    }
    Ok(())
}

/// Replaces the note of this entry in its set; if there is none, the oldest one.
fn note_in(file: &GuardedFile, key: &Key, now_ms: u64) -> io::Result<()> {
    let at = usize::from(key.0[0]) * SHARD + usize::from(key.0[1]) * SET;
    let mut set = [0; SET];
    file.read_exact_at(&mut set, at as u64)?;
    let known = parse(&set).position(|(known, _)| known == *key);
    let oldest = || {
        let times = parse(&set).map(|(_, time)| time).enumerate();
        times
            .min_by_key(|(_, time)| *time)
            .map_or(0, |(index, _)| index)
    };
    let index = known.unwrap_or_else(oldest);
    let note = [key.0.as_slice(), &now_ms.to_le_bytes()].concat();
    file.overwrite_at(&note, (at + index * NOTE) as u64)
}

fn parse(notes: &[u8]) -> impl Iterator<Item = (Key, u64)> {
    let (notes, _) = notes.as_chunks::<NOTE>();
    notes.iter().map(|note| {
        let (key, time) = note.split_at(size_of::<Key>());
        let key = Key(key.try_into().expect("32 bytes"));
        (key, u64::from_le_bytes(time.try_into().expect("8 bytes")))
    })
}

/// An entry as its directory lists it.
#[derive(Clone, Copy, Debug)]
pub struct ListedEntry {
    /// The key that it is named after.
    pub key: Key,
    /// Facts about its file, with the time of the last use.
    pub file: FileFacts,
    /// The fingerprint of its file.
    pub fingerprint: FileFingerprint,
}

impl Store {
    /// The notes of uses.
    pub(super) fn uses(&self) -> &Uses {
        self.uses.get_or_init(|| {
            let live = self.live().map(|live| &*live.directory);
            Box::new(Uses::open(live))
        })
    }

    /// Notes that an entry is used now.
    pub(super) fn note_use(&self, key: &Key) {
        if self.limits.is_some() {
            self.uses().note(key, self.root.now_ms());
        }
    }

    /// Dates the files of entries that were used, so that nothing is lost when the notes are: this many at most, and the others in later
    /// turns.
    pub(super) fn date_uses(&self, most: usize) {
        let uses = self.uses();
        // Each process without a live directory would date the same files.
        let later_ms = if uses.are_seen_by_all() {
            0
        } else {
            OWN_INTERVAL_MS
        };
        // A process that dates no more than so many would always date the same ones, if they are used all the time.
        let first = (self.root.now_ms() % SHARDS as u64) as usize;
        let (mut dated, mut looked_at, mut passed) = (0, 0, Vec::new());
        let mut are_all_passed = true;
        for shards in [first..SHARDS, 0..first] {
            let mut next = shards.start;
            while let Some(shard) = uses.next_noted(next).filter(|shard| *shard < shards.end) {
                next = shard + 1;
                let noted = uses.of(shard);
                if noted.is_empty() {
                    continue;
                }
                let Ok(directory) = self.shard(shard) else {
                    are_all_passed = false;
                    continue;
                };
                for (key, time_ms) in noted {
                    looked_at += 1;
                    let directory = directory.as_ref();
                    let is_late =
                        |directory: &&Directory| is_undated(directory, &key, time_ms, later_ms);
                    let Some(directory) = directory.filter(is_late) else {
                        continue;
                    };
                    if dated == most {
                        return uses.forget(&passed);
                    }
                    dated += 1;
                    date(directory, &key, time_ms);
                }
                passed.push(shard);
                // On a network file system, another host may have dated all of them.
                if looked_at / LOOKED_AT_FOR_ONE > most {
                    return uses.forget(&passed);
                }
            }
        }
        if !are_all_passed {
            uses.forget(&passed);
        } else if !passed.is_empty() {
            uses.clear();
        }
    }

    /// Writes what hits have left to be written when the process ends.
    pub fn at_end(&self) {
        if self.limits.is_some()
            && let Some(uses) = self.uses.get()
            && !uses.are_seen_by_all()
            && !syscall_filters::were_added()
        {
            self.date_uses(MAX_DATED_BY_A_PROGRAM);
        }
    }

    /// The entries of a shard, with facts about their files. The times are those of the last uses, noted ones included.
    pub(super) fn entries_of(
        &self,
        shard: usize,
        directory: &Directory,
    ) -> Result<Vec<(Key, FileFacts)>, StoreError> {
        let listed = self.listed_entries(shard, directory)?.into_iter();
        Ok(listed.map(|entry| (entry.key, entry.file)).collect())
    }

    /// The same with fingerprints.
    pub(super) fn listed_entries(
        &self,
        shard: usize,
        directory: &Directory,
    ) -> Result<Vec<ListedEntry>, StoreError> {
        let (noted, now) = (self.uses().of(shard), self.root.now_ms());
        let entry = |name: String| {
            let key = name.strip_suffix(SUFFIX).and_then(Key::from_hex)?;
            let (mut file, fingerprint) = directory.facts_and_fingerprint(&name)?;
            if let Some(noted) = noted.get(&key) {
                let used = used_ms(&file, now);
                file.modified_ms = used.map_or(*noted, |used| used.max(*noted));
            }
            Some(ListedEntry {
                key,
                file,
                fingerprint,
            })
        };
        let names = directory.names_by_inode()?.into_iter();
        Ok(names.filter_map(entry).collect())
    }
}

/// Whether an entry was used so much later than its file says.
fn is_undated(directory: &Directory, key: &Key, time_ms: u64, later_ms: u64) -> bool {
    let file = directory.facts(&file_name(key));
    let used = file.map(|file| used_ms(&file, time_ms));
    used.is_some_and(|used| used.is_none_or(|used| used.saturating_add(later_ms) < time_ms))
}

/// Dates the file of an entry. A failure costs the entry its place in the order.
fn date(directory: &Directory, key: &Key, time_ms: u64) {
    if let Err(error) = directory.set_modified(&file_name(key), time_ms) {
        tracing::debug!(%error, "the use of an entry is not dated: it may be evicted earlier");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::entry::tests::{content, facts};
    use crate::store::{ENTRIES, Limits, shard_name};

    fn key(bytes: [u8; 3]) -> Key {
        Key([bytes.to_vec(), vec![0; 29]]
            .concat()
            .try_into()
            .expect("32"))
    }

    fn each(test: impl Fn(&Uses)) {
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let live = Directory::open(memory.path()).expect("opened");
        for live in [live.as_ref(), None] {
            test(&Uses::open(live));
        }
    }

    #[test]
    fn the_latest_use_is_noted_until_all_are_forgotten() {
        each(|uses| {
            let (one, other) = (key([7, 1, 1]), key([8, 1, 1]));
            assert!(uses.of(7).is_empty());
            uses.note(&one, 5);
            uses.note(&other, 6);
            uses.note(&one, 7);
            let noted: Vec<usize> =
                std::iter::successors(uses.next_noted(0), |shard| uses.next_noted(shard + 1))
                    .filter(|shard| !uses.of(*shard).is_empty())
                    .collect();
            assert_eq!(noted, [7, 8]);
            assert_eq!(uses.of(7), [(one, 7)].into());
            assert_eq!(uses.of(8), [(other, 6)].into());
            assert_eq!(uses.of(9), UseTimes::new());
            uses.forget(&[7]);
            assert_eq!(uses.of(7), UseTimes::new());
            assert_eq!(uses.of(8), [(other, 6)].into());
            uses.clear();
            assert_eq!(uses.of(8), UseTimes::new());
            uses.note(&one, 9);
            assert_eq!(uses.of(7), [(one, 9)].into());
        });
    }

    #[test]
    fn of_a_full_set_the_oldest_note_goes() {
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let live = Directory::open(memory.path()).expect("opened");
        let (uses, others) = (Uses::open(live.as_ref()), Uses::open(live.as_ref()));
        for number in 1..=4 {
            uses.note(&key([7, 1, number]), 10 + u64::from(number));
        }
        others.note(&key([7, 1, 1]), 20);
        others.note(&key([7, 1, 5]), 21);
        let left: Vec<u8> = uses.of(7).keys().map(|key| key.0[2]).collect();
        assert_eq!(left, [1, 3, 4, 5]);
    }

    #[test]
    fn a_file_that_somebody_has_cut_is_read_as_empty_and_harms_nobody() {
        let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let live = Directory::open(memory.path()).expect("opened");
        let uses = Uses::open(live.as_ref());
        uses.note(&key([7, 1, 1]), 5);
        let file = std::fs::File::options()
            .write(true)
            .open(memory.path().join(NAME));
        file.expect("opened").set_len(100).expect("cut");
        uses.note(&key([7, 1, 1]), 6);
        assert_eq!(uses.of(7), UseTimes::new());
        let again = Uses::open(live.as_ref());
        again.note(&key([7, 1, 1]), 7);
        assert_eq!(uses.of(7).len(), 1);
    }

    #[test]
    fn however_many_uses_are_noted_each_is_dated_in_its_turn() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Store::open(directory.path(), Limits::default()).expect("a store");
        let meta = facts();
        let keys: Vec<Key> = (0..12).map(|number| key([20 * number, 1, 1])).collect();
        let long_ago = store.root.now_ms() - 86_400_000;
        let shard_with = |key: &Key| store.shard(shard_of(key)).expect("opened").expect("there");
        for key in &keys {
            let published = store.publish(key, &content(&meta, &[b"binary"]));
            published.expect("stored");
            let dated = shard_with(key).set_modified(&file_name(key), long_ago);
            dated.expect("dated");
        }
        let undated = || {
            let is_old = |key: &&Key| {
                let file = shard_with(key).facts(&file_name(key));
                file.expect("an entry").modified_ms == long_ago
            };
            keys.iter().filter(is_old).count()
        };
        keys.iter().for_each(|key| store.note_use(key));
        for left in [7, 2, 0] {
            store.date_uses(5);
            assert_eq!(undated(), left);
        }
        let uses = store.uses();
        assert!((0..SHARDS).all(|shard| uses.of(shard).is_empty()));
    }

    #[test]
    fn a_program_that_stores_an_entry_dates_few_files() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Store::open(directory.path(), Limits::default()).expect("a store");
        let entries = store.root.create(ENTRIES).expect("made");
        let shard = entries.create(&shard_name(20)).expect("made");
        let now = store.root.now_ms();
        let keys: Vec<Key> = (0..=255)
            .flat_map(|set| [1, 2].map(|number| key([20, set, number])))
            .collect();
        for key in &keys {
            let name = file_name(key);
            std::fs::write(shard.path().join(&name), "").expect("written");
            shard.set_modified(&name, now - 86_400_000).expect("dated");
            store.note_use(key);
        }
        let dated = || {
            let is_dated = |key: &&Key| {
                let file = shard.facts(&file_name(key)).expect("a file");
                file.modified_ms >= now
            };
            keys.iter().filter(is_dated).count()
        };
        let meta = facts();
        let published = store.publish(&key([20, 1, 3]), &content(&meta, &[b"binary"]));
        published.expect("stored");
        assert_eq!(dated(), MAX_DATED_BY_A_PROGRAM);
        store.date_uses(MAX_DATED);
        assert_eq!(dated(), keys.len());
    }

    #[test]
    fn notes_of_a_shard_that_cannot_be_opened_stay() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Store::open(directory.path(), Limits::default()).expect("a store");
        let meta = facts();
        let (one, other) = (key([20, 1, 1]), key([40, 1, 1]));
        for key in [&one, &other] {
            let published = store.publish(key, &content(&meta, &[b"binary"]));
            published.expect("stored");
            store.note_use(key);
        }
        let shard = store.shard(shard_of(&one)).expect("opened").expect("there");
        let set_mode = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(shard.path(), mode).expect("changed");
        };
        set_mode(0o777);
        store.date_uses(5);
        set_mode(0o700);
        let noted = [&one, &other].map(|key| store.uses().of(shard_of(key)).len());
        assert_eq!(noted, [1, 0]);
        store.date_uses(5);
        assert!(store.uses().of(shard_of(&one)).is_empty());
    }
}
