//! One look at a driver, for one key: each path is asked for its state once, and what earlier processes found is read from one file.
//!
//! What identifies a driver is remembered in several files of the cache directory: the list of its files, its programs, and its
//! bindings. Processes with other libraries or variables share some of these and not others. The snapshot of a search has copies of
//! all of them, and the answers for the variables of a process, so that a later process of the same kind reads one file. It proves
//! nothing by itself: each part has its own identity and checksum, and those that depend on files have the states of these.
//!
//! Without it, the first key of a process made 60 to 100 more system calls (measured with strace on four drivers).

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::file_memory::{FileMemory, list_identity};
use super::identity::HOLDS;
use crate::content_digest::ReadAlong;
use crate::file_fingerprint::FileFingerprint;
use crate::framing;
use crate::key::ingredients::sha256;
use crate::stop::Stop;

const MAGIC: &[u8] = b"oclcsnap1";
/// A list of files has some kB, bindings have 150.
const MAX_BYTES: u64 = 4 << 20;
/// A process has some dozens of variables.
const MAX_NAMES: usize = 1 << 12;
/// Room for so many states from the first one on. A first look asks for 20 to 90, and the next smaller table has room for 56.
const STATES: usize = 112;

/// A digest.
type Digest = [u8; 32];

/// Facts in memory, perhaps a part of a file.
#[derive(Clone, Debug, Default)]
pub struct FactBytes {
    file: Arc<Vec<u8>>,
    place: Range<usize>,
}

impl Deref for FactBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.file.get(self.place.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for FactBytes {
    fn from(bytes: Vec<u8>) -> FactBytes {
        let place = 0..bytes.len();
        FactBytes {
            file: bytes.into(),
            place,
        }
    }
}

impl FactBytes {
    /// Reads a file, in one system call beside that for its length.
    ///
    /// # Errors
    /// It cannot be read, or there is no memory for it.
    pub fn read(file: &File) -> io::Result<FactBytes> {
        let size = file.metadata()?.len().min(MAX_BYTES) as usize;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size)?;
        bytes.resize(size, 0);
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes.into())
    }
}

/// One look at a driver.
pub struct Look<'a> {
    memory: &'a dyn FileMemory,
    reader: OnceCell<Vec<u8>>,
    states: RefCell<States>,
    snapshot: RefCell<Snapshot>,
}

/// The states of files and directories, and where links lead, by the bytes of paths: see [`super::path_map`]. They are trusted for as long
/// as a look may be old: a search that finds something new takes longer.
struct States {
    since: Instant,
    known: HashMap<OsString, Option<FileFingerprint>>,
    /// Targets of links.
    targets: HashMap<OsString, Option<PathBuf>>,
}

impl States {
    /// Forgets what is too old.
    fn refresh(&mut self) {
        if self.since.elapsed() >= HOLDS {
            self.known.clear();
            self.targets.clear();
        }
        if self.known.is_empty() && self.targets.is_empty() {
            self.since = Instant::now();
        }
    }
}

/// Facts of one search.
#[derive(Default)]
struct Snapshot {
    /// The identity of its file. None before the search has begun.
    identity: Option<Digest>,
    /// What the file has.
    known: Content,
    /// What this look has used.
    used: Content,
    /// Whether this look has found something that no earlier process had found.
    is_new: bool,
}

#[derive(Clone, Debug, Default)]
struct Content {
    parts: BTreeMap<Digest, FactBytes>,
    /// Whether names occur, by the identity of the libraries and the digest of the name: names of variables are a program's own.
    names: BTreeMap<(Digest, Digest), bool>,
}

impl<'a> Look<'a> {
    /// Begins now.
    pub fn new(memory: &'a dyn FileMemory) -> Look<'a> {
        Look {
            memory,
            reader: OnceCell::new(),
            states: RefCell::new(States {
                since: Instant::now(),
                known: HashMap::new(),
                targets: HashMap::new(),
            }),
            snapshot: RefCell::default(),
        }
    }

    /// Keeps the snapshot, if this look has kept something else as well. So a hit of a process whose search is known writes nothing.
    pub fn keep(&self) {
        let snapshot = self.snapshot.borrow();
        if let Some(identity) = &snapshot.identity
            && snapshot.is_new
            && let Ok(bytes) = snapshot.kept().encode(identity)
        {
            self.memory.remember_facts(identity, &bytes);
        }
    }
}

impl Snapshot {
    /// What this look has used, with the names that other processes have asked for in the same libraries.
    fn kept(&self) -> Content {
        let mut kept = self.used.clone();
        let lists: BTreeSet<Digest> = kept.names.keys().map(|(list, _)| *list).collect();
        let others = self.known.names.iter();
        for (place, occurs) in others.filter(|((list, _), _)| lists.contains(list)) {
            if kept.names.len() >= MAX_NAMES {
                break;
            }
            kept.names.entry(*place).or_insert(*occurs);
        }
        kept
    }
}

impl FileMemory for Look<'_> {
    fn digest(&self, path: &Path) -> io::Result<Digest> {
        self.memory.digest(path)
    }

    fn identities(&self, paths: &[&Path], along: &dyn ReadAlong) -> Vec<io::Result<Vec<u8>>> {
        self.memory.identities(paths, along)
    }

    fn knows_no_driver(&self) -> bool {
        self.memory.knows_no_driver()
    }

    fn facts(&self, identity: &Digest) -> io::Result<Option<File>> {
        self.memory.facts(identity)
    }

    fn remember_facts(&self, identity: &Digest, facts: &[u8]) {
        self.snapshot.borrow_mut().is_new = true;
        self.memory.remember_facts(identity, facts);
    }

    fn part(&self, identity: &Digest) -> io::Result<Option<FactBytes>> {
        let mut snapshot = self.snapshot.borrow_mut();
        let known = snapshot.known.parts.remove(identity);
        let part = match known {
            Some(known) => Some(known),
            None => self.memory.part(identity)?,
        };
        if let Some(part) = &part {
            snapshot.used.parts.insert(*identity, part.clone());
        }
        Ok(part)
    }

    fn remember_part(&self, identity: &Digest, facts: &[u8]) {
        let mut snapshot = self.snapshot.borrow_mut();
        let part = facts.to_vec().into();
        snapshot.used.parts.insert(*identity, part);
        drop(snapshot);
        self.remember_facts(identity, facts);
    }

    fn begin(&self, search: &Digest) {
        let identity = list_identity(MAGIC, [&search[..]].into_iter());
        let read = || {
            let bytes = self.memory.part(&identity).ok()??;
            Content::decode(bytes, &identity)
        };
        *self.snapshot.borrow_mut() = Snapshot {
            known: read().unwrap_or_default(),
            identity: Some(identity),
            ..Snapshot::default()
        };
    }

    fn occurs(&self, libraries: &Digest, name: &[u8]) -> Option<bool> {
        let snapshot = self.snapshot.borrow();
        if snapshot.known.names.is_empty() {
            return None;
        }
        let place = (*libraries, sha256(name));
        snapshot.known.names.get(&place).copied()
    }

    fn note_name(&self, libraries: &Digest, name: &[u8], occurs: bool) {
        let mut snapshot = self.snapshot.borrow_mut();
        if snapshot.identity.is_some() && snapshot.used.names.len() < MAX_NAMES {
            let place = (*libraries, sha256(name));
            snapshot.used.names.insert(place, occurs);
        }
    }

    fn lacks_names(&self) {
        self.memory.lacks_names();
    }

    fn state(&self, path: &Path) -> Option<FileFingerprint> {
        let mut states = self.states.borrow_mut();
        states.refresh();
        if let Some(known) = states.known.get(path.as_os_str()) {
            return *known;
        }
        let state = self.memory.state(path);
        if states.known.is_empty() {
            states.known.reserve(STATES);
        }
        states.known.insert(path.as_os_str().to_owned(), state);
        state
    }

    fn target(&self, path: &Path) -> Option<PathBuf> {
        let mut states = self.states.borrow_mut();
        states.refresh();
        if let Some(known) = states.targets.get(path.as_os_str()) {
            return known.clone();
        }
        let target = self.memory.target(path);
        states
            .targets
            .insert(path.as_os_str().to_owned(), target.clone());
        target
    }

    fn reader(&self) -> Vec<u8> {
        self.reader.get_or_init(|| self.memory.reader()).clone()
    }

    fn stop(&self) -> Stop {
        self.memory.stop()
    }

    fn is_neutral_library(&self, name: &str) -> bool {
        self.memory.is_neutral_library(name)
    }
}

/// The length of a part, and that of the list of names.
const LENGTH: usize = size_of::<u32>();

impl Content {
    /// The identity, the number of names, the names, and the parts, each behind its identity and length.
    fn encode(&self, identity: &Digest) -> io::Result<Vec<u8>> {
        let mut body = identity.to_vec();
        body.extend((self.names.len() as u32).to_le_bytes());
        for ((libraries, name), occurs) in &self.names {
            body.extend(libraries);
            body.extend(name);
            body.push(u8::from(*occurs));
        }
        for (identity, part) in &self.parts {
            body.try_reserve(identity.len() + LENGTH + part.len())?;
            body.extend(identity);
            body.extend((part.len() as u32).to_le_bytes());
            body.extend(&**part);
        }
        framing::frame(MAGIC, &body)
    }

    /// None if it is damaged, or of another search.
    fn decode(file: FactBytes, identity: &Digest) -> Option<Content> {
        let (body, rest) = framing::unframe(MAGIC, &file)?;
        let mut left = body.strip_prefix(identity)?;
        if !rest.is_empty() {
            return None;
        }
        let end = body.as_ptr() as usize - file.as_ptr() as usize + body.len();
        let mut content = Content::default();
        for _ in 0..take_length(&mut left)? {
            let place = (take_digest(&mut left)?, take_digest(&mut left)?);
            let (occurs, behind) = left.split_first()?;
            left = behind;
            content.names.insert(place, *occurs != 0);
        }
        while !left.is_empty() {
            let identity = take_digest(&mut left)?;
            let length = take_length(&mut left)?;
            let start = file.place.start + end - left.len();
            left = left.get(length..)?;
            let part = FactBytes {
                file: file.file.clone(),
                place: start..start + length,
            };
            content.parts.insert(identity, part);
        }
        Some(content)
    }
}

fn take_digest(left: &mut &[u8]) -> Option<Digest> {
    let (digest, rest) = left.split_first_chunk()?;
    *left = rest;
    Some(*digest)
}

fn take_length(left: &mut &[u8]) -> Option<usize> {
    let (length, rest) = left.split_first_chunk()?;
    *left = rest;
    Some(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::names::tests::TestMemory;

    const SEARCH: Digest = [1; 32];

    fn kept(memory: &TestMemory) {
        let look = Look::new(memory);
        look.begin(&SEARCH);
        look.remember_part(&[2; 32], b"one");
        look.remember_part(&[3; 32], b"");
        look.note_name(&[4; 32], b"HOME", true);
        look.note_name(&[4; 32], b"PATH", false);
        look.keep();
    }

    #[test]
    fn a_later_look_reads_all_parts_from_one_file() {
        let memory = TestMemory::new();
        kept(&memory);
        let files = memory.files();
        assert_eq!(files.len(), 3);
        for (file, magic) in files.iter().map(|file| (file, std::fs::read(file))) {
            if !magic.expect("read").starts_with(MAGIC) {
                std::fs::remove_file(file).expect("removed");
            }
        }
        let look = Look::new(&memory);
        look.begin(&SEARCH);
        let part = |number: u8| look.part(&[number; 32]).expect("read");
        assert_eq!(part(2).as_deref(), Some(&b"one"[..]));
        assert_eq!(part(3).as_deref(), Some(&b""[..]));
        assert!(part(4).is_none());
        assert!(part(2).is_none(), "the second time from its own file");
        assert_eq!(look.occurs(&[4; 32], b"HOME"), Some(true));
        assert_eq!(look.occurs(&[4; 32], b"PATH"), Some(false));
        assert_eq!(look.occurs(&[4; 32], b"USER"), None);
        assert_eq!(look.occurs(&[5; 32], b"HOME"), None);
        let other = Look::new(&memory);
        other.begin(&[9; 32]);
        assert!(other.part(&[2; 32]).expect("read").is_none());
    }

    #[test]
    fn a_snapshot_that_is_written_again_keeps_the_names_that_other_processes_asked_for() {
        let memory = TestMemory::new();
        kept(&memory);
        let look = Look::new(&memory);
        look.begin(&SEARCH);
        look.note_name(&[4; 32], b"USER", true);
        look.remember_part(&[5; 32], b"new");
        look.keep();
        let look = Look::new(&memory);
        look.begin(&SEARCH);
        let occurs = |name: &[u8]| look.occurs(&[4; 32], name);
        assert_eq!(
            [occurs(b"HOME"), occurs(b"PATH"), occurs(b"USER")],
            [Some(true), Some(false), Some(true)]
        );
    }

    #[test]
    fn a_look_that_finds_nothing_new_writes_nothing() {
        let memory = TestMemory::new();
        kept(&memory);
        let times = |files: Vec<PathBuf>| -> Vec<_> {
            let states = files.iter().map(|file| FileFingerprint::at(file));
            states.collect()
        };
        let before = times(memory.files());
        let look = Look::new(&memory);
        look.begin(&SEARCH);
        look.part(&[2; 32]).expect("read").expect("known");
        look.note_name(&[4; 32], b"USER", true);
        look.keep();
        assert_eq!(times(memory.files()), before);
    }

    #[test]
    fn a_damaged_snapshot_has_no_parts() {
        let content = Content {
            parts: [([2; 32], b"one".to_vec().into())].into(),
            names: [(([4; 32], [5; 32]), true)].into(),
        };
        let bytes = content.encode(&SEARCH).expect("memory");
        let read = |bytes: &[u8]| Content::decode(bytes.to_vec().into(), &SEARCH);
        assert!(read(&bytes).is_some());
        assert!(Content::decode(bytes.clone().into(), &[9; 32]).is_none());
        for index in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[index] ^= 0x10;
            assert!(read(&flipped).is_none(), "byte {index}");
            assert!(read(&bytes[..index]).is_none(), "cut at {index}");
        }
    }

    #[test]
    fn a_state_is_asked_for_once_in_a_look_until_that_is_old() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        let look = Look::new(&memory);
        assert_eq!(look.state(&path), None);
        std::fs::write(&path, "").expect("written");
        let now = FileFingerprint::at(&path);
        let begin = |since| look.states.borrow_mut().since = since;
        let soon = Instant::now() + 600 * HOLDS;
        begin(soon);
        assert_eq!(look.state(&path), None);
        assert_eq!(Look::new(&memory).state(&path), now);
        let old = Instant::now().checked_sub(2 * HOLDS);
        begin(old.expect("the system runs for longer"));
        assert_eq!(look.state(&path), now);
    }
}
