//! The outbox: which entries this machine's driver built, and which of them are to be sent.
//!
//! ```text
//! $XDG_STATE_HOME/oclcache/storing/<cache>/<key>   the marker of an entry that is being stored
//! $XDG_STATE_HOME/oclcache/outbox/<cache>/<key>    the same if the entry is to be sent
//! $XDG_STATE_HOME/oclcache/sent/<cache>/<key>      the same if it was sent, or need not be
//! marker = a frame (see `framing`) of [`Marker`]
//! cache  = a hash of the path of the cache directory
//! ```
//!
//! Only what this machine's driver built may be signed: a signed entry counts as that elsewhere. The cache directory cannot tell,
//! since it may have been restored from a copy that others could change. So the markers are elsewhere, and have the digest of the
//! entry. An entry without a marker, or with another digest, is never sent.
//!
//! A marker is written to `storing` before its entry is stored: every process that reads the entry can then tell that this machine
//! built it. The marker of an entry that it replaces stays until then, since that is the one that is read if storing fails. After the
//! entry is stored its marker is moved to `outbox`, and the entry will be sent. A marker survives the end of any process, and one that
//! a power cut has damaged counts as none.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::framing;
use crate::key::ingredients::{Key, hex, sha256};
use crate::store::StoreError;
use crate::store::directory::Directory;

const MAGIC: &[u8] = b"oclcmrk1";
const STORING: &str = "storing";
const OUTBOX: &str = "outbox";
const SENT: &str = "sent";
/// Larger files are not ours.
const MAX_MARKER_BYTES: u64 = 4096;
/// The bytes of a name, before they are written as hexadecimal digits.
const NAME_BYTES: usize = 16;

/// What is known of an entry that this machine's driver built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// SHA-256 of the entry's file.
    pub sha256: [u8; 32],
    /// How long the driver took to build it, in nanoseconds.
    pub compile_ns: u64,
    /// It is a recipe that nobody has baked yet.
    pub is_pending: bool,
}

/// The markers of one cache directory.
#[derive(Debug)]
pub struct Outbox {
    storing: Directory,
    pending: Directory,
    sent: Directory,
}

impl Outbox {
    /// Opens the markers of the cache directory of these settings, and makes their directories.
    ///
    /// # Errors
    /// For people: why there are none.
    pub(crate) fn open(config: &Config) -> Result<Outbox, String> {
        let (cache, state) = (config.directory()?, own_state(config)?);
        let opened =
            Directory::create_all(&state).and_then(|state| Outbox::open_in(&state, &cache));
        opened.map_err(|error| error.to_string())
    }

    /// The same in a directory of the user's state that is there. None if it is not.
    ///
    /// # Errors
    /// For people: why there are none.
    pub(super) fn open_again(config: &Config) -> Result<Option<Outbox>, String> {
        let (cache, state) = (config.directory()?, own_state(config)?);
        let opened = Directory::open(&state).and_then(|state| {
            let state = state.map(|state| Outbox::open_in(&state, &cache));
            state.transpose()
        });
        opened.map_err(|error| error.to_string())
    }

    /// Opens the markers for reading only. None if there are none.
    ///
    /// # Errors
    /// For people: they cannot be read.
    pub(super) fn open_existing(config: &Config) -> Result<Option<Outbox>, String> {
        let name = name_of(&config.directory()?);
        let state = config.state_directory();
        let state = state.map(|state| Directory::open(&state)).transpose();
        let open = |state: &Directory, place| match state.open_below(place)? {
            Some(place) => place.open_below(&name),
            None => Ok(None),
        };
        let opened = state.and_then(|state| {
            let Some(state) = state.flatten() else {
                return Ok(None);
            };
            let places = [STORING, OUTBOX, SENT].map(|place| open(&state, place));
            let [storing, pending, sent] = places;
            let places = (storing?, pending?, sent?);
            let (Some(storing), Some(pending), Some(sent)) = places else {
                return Ok(None);
            };
            Ok(Some(Outbox {
                storing,
                pending,
                sent,
            }))
        });
        opened.map_err(|error| error.to_string())
    }

    fn open_in(state: &Directory, cache: &Path) -> Result<Outbox, StoreError> {
        let name = name_of(cache);
        Ok(Outbox {
            storing: state.create(STORING)?.create(&name)?,
            pending: state.create(OUTBOX)?.create(&name)?,
            sent: state.create(SENT)?.create(&name)?,
        })
    }

    /// Whether a directory was removed, or an application has closed its descriptor.
    pub(super) fn is_lost(&self) -> bool {
        self.places().into_iter().any(Directory::is_lost)
    }

    /// Notes that this machine's driver built an entry with this content, which is about to be stored.
    pub(crate) fn note_built(&self, key: &Key, marker: &Marker) -> Result<(), StoreError> {
        write(&self.storing, key, marker)
    }

    /// Notes that an entry is to be sent, which was noted as built here, and is stored now.
    pub(crate) fn mark(&self, key: &Key, marker: &Marker) -> Result<(), StoreError> {
        match read(&self.storing, key) {
            Ok(Some(noted)) if noted == *marker => self.storing.move_to(&key.hex(), &self.pending),
            // Another process is storing its own.
            _ => write(&self.pending, key, marker),
        }
    }

    /// The keys of entries that are to be sent, in any order.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn pending(&self) -> Result<Vec<Key>, StoreError> {
        keys(&self.pending)
    }

    /// Whether an entry of this key is being stored, or its process ended meanwhile.
    pub(crate) fn is_being_stored(&self, key: &Key) -> bool {
        matches!(read(&self.storing, key), Ok(Some(_)))
    }

    /// The keys of all entries that this machine's driver built, sent ones included.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn all(&self) -> Result<Vec<Key>, StoreError> {
        let mut all = Vec::new();
        for place in self.places() {
            all.extend(keys(place)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// The marker of a key: that of the entry that is to be sent, or the one that was sent.
    ///
    /// # Errors
    /// A marker cannot be read now.
    pub fn marker(&self, key: &Key) -> Result<Option<Marker>, StoreError> {
        match read(&self.pending, key)? {
            None => read(&self.sent, key),
            marker => Ok(marker),
        }
    }

    /// The marker of the entry of a key whose file has these bytes. None: this machine's driver did not build it.
    ///
    /// # Errors
    /// A marker cannot be read now, and no other one is of this entry.
    pub fn marker_of(&self, key: &Key, entry: &[u8]) -> Result<Option<Marker>, StoreError> {
        let digest = sha256(entry);
        let mut unread = None;
        for place in self.places() {
            match read(place, key) {
                Ok(Some(marker)) if marker.sha256 == digest => return Ok(Some(marker)),
                Ok(_) => {}
                Err(error) => unread = Some(error),
            }
        }
        unread.map_or(Ok(None), Err)
    }

    /// Whether this machine's driver certainly built the entry of a key whose file has these bytes.
    pub fn is_built_here(&self, key: &Key, entry: &[u8]) -> bool {
        matches!(self.marker_of(key, entry), Ok(Some(_)))
    }

    /// In the order in which a marker goes through them, so that none is missed that is moved meanwhile.
    fn places(&self) -> [&Directory; 3] {
        [&self.storing, &self.pending, &self.sent]
    }

    /// Notes that the entry of this marker was sent, or need not be. None: it has no marker. Does nothing if there is a newer marker, and
    /// removes one that is damaged.
    ///
    /// # Errors
    /// The marker stays.
    pub fn sent(&self, key: &Key, marker: Option<&Marker>) -> Result<(), StoreError> {
        let found = read(&self.pending, key)?;
        if found.is_none() && is_damaged(&self.pending, key) {
            return self.pending.remove(&key.hex()).map(drop);
        }
        if found.is_none() || found.as_ref() != marker {
            return Ok(());
        }
        self.pending.move_to(&key.hex(), &self.sent)?;
        match read(&self.sent, key)? {
            Some(newer) if Some(&newer) != marker => self.put_back(key, &newer),
            _ => Ok(()),
        }
    }

    /// Puts a marker back among those that are to be sent. It was written after the look at its forerunner, and moved in its place. One
    /// that was written since is newer still, and stays.
    fn put_back(&self, key: &Key, newer: &Marker) -> Result<(), StoreError> {
        let bytes = encoded(&self.pending, newer)?;
        let first = self.pending.write_first(&self.pending, &key.hex(), &bytes);
        // The file system may know no second names.
        first.or_else(|_| write(&self.pending, key, newer))
    }

    /// Puts the entry of a key, whose file has these bytes, back among those that are to be sent. Returns whether this machine's driver
    /// built it.
    ///
    /// # Errors
    /// The marker stays where it is.
    pub fn send_again(&self, key: &Key, entry: &[u8]) -> Result<bool, StoreError> {
        match self.marker_of(key, entry)? {
            Some(marker) => self.mark(key, &marker).map(|()| true),
            None => Ok(false),
        }
    }

    /// Where the markers are of entries that are to be sent.
    pub fn path(&self) -> &Path {
        self.pending.path()
    }
}

/// The directory of the user's state.
///
/// # Errors
/// For people: there is no place for one, or it is another user's.
fn own_state(config: &Config) -> Result<PathBuf, String> {
    let state = config.state_directory();
    let state = state.ok_or("neither XDG_STATE_HOME nor HOME is set to an absolute path")?;
    // Root must leave no files where HOME is another user's.
    match crate::trust::foreign_part(&state) {
        Some(foreign) => {
            let foreign = crate::log::path(&foreign);
            Err(format!("`{foreign}` belongs to another user"))
        }
        None => Ok(state),
    }
}

/// The name of the directories of a cache's markers.
fn name_of(cache: &Path) -> String {
    hex(&sha256(cache.as_os_str().as_bytes())[..NAME_BYTES])
}

fn keys(place: &Directory) -> Result<Vec<Key>, StoreError> {
    let names = place.names()?.into_iter();
    Ok(names.filter_map(|name| Key::from_hex(&name)).collect())
}

fn write(place: &Directory, key: &Key, marker: &Marker) -> Result<(), StoreError> {
    place.write_by_rename(place, &key.hex(), &encoded(place, marker)?)
}

/// The bytes of a marker that is about to be written.
fn encoded(place: &Directory, marker: &Marker) -> Result<Vec<u8>, StoreError> {
    framing::encode(MAGIC, marker).map_err(|error| StoreError {
        action: "write",
        path: place.path().to_owned(),
        error,
    })
}

/// The marker of a key. None: there is none, or something else.
///
/// # Errors
/// It cannot be read now.
fn read(place: &Directory, key: &Key) -> Result<Option<Marker>, StoreError> {
    match place.read(&key.hex(), MAX_MARKER_BYTES) {
        Ok(bytes) => Ok(bytes.and_then(|bytes| framing::decode(MAGIC, &bytes))),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(StoreError {
            action: "read",
            path: place.path().join(key.hex()),
            error,
        }),
    }
}

/// Whether there is something of the name of a key that is no marker, such as what a power cut has left.
fn is_damaged(place: &Directory, key: &Key) -> bool {
    match place.read(&key.hex(), MAX_MARKER_BYTES) {
        Ok(Some(bytes)) => framing::decode::<Marker>(MAGIC, &bytes).is_none(),
        Ok(None) => false,
        Err(error) => error.kind() == io::ErrorKind::InvalidData,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::store::disk::Disk;

    const KEY: Key = Key([7; 32]);

    fn marker(entry: &[u8]) -> Marker {
        Marker {
            sha256: sha256(entry),
            compile_ns: 5,
            is_pending: false,
        }
    }

    fn outbox() -> (tempfile::TempDir, Outbox) {
        let state = tempfile::tempdir().expect("a temporary directory");
        let outbox = Directory::create_all(state.path())
            .and_then(|state| Outbox::open_in(&state, Path::new("/cache")));
        (state, outbox.expect("made"))
    }

    /// Copies a file to another place before the next rename, as another process may.
    #[derive(Debug, Default)]
    struct Meanwhile(Mutex<Option<[PathBuf; 2]>>);

    impl Disk for Meanwhile {
        fn rename(
            &self,
            from: BorrowedFd<'_>,
            name: &Path,
            to: BorrowedFd<'_>,
            new: &Path,
        ) -> rustix::io::Result<()> {
            if let Some([from, to]) = self.0.lock().expect("locked").take() {
                std::fs::copy(from, to).expect("copied");
            }
            rustix::fs::renameat(from, name, to, new)
        }
    }

    #[test]
    fn a_marker_that_is_written_when_its_forerunner_is_moved_stays() {
        let (state, disk) = (
            tempfile::tempdir().expect("made"),
            Arc::<Meanwhile>::default(),
        );
        let directory = Directory::create_all_on(disk.clone(), state.path()).expect("made");
        let outbox = Outbox::open_in(&directory, Path::new("/cache")).expect("made");
        let [old, new] = [b"old", b"new"].map(|entry| marker(entry));
        outbox.note_built(&KEY, &new).expect("noted");
        write(&outbox.pending, &KEY, &old).expect("written");
        let paths = [&outbox.storing, &outbox.pending].map(|place| place.path().join(KEY.hex()));
        *disk.0.lock().expect("locked") = Some(paths);
        outbox.sent(&KEY, Some(&old)).expect("nothing to do");
        assert_eq!(outbox.pending().expect("listed"), [KEY]);
        assert_eq!(outbox.marker(&KEY).expect("read"), Some(new));
        outbox.sent(&KEY, Some(&new)).expect("moved");
        assert_eq!(outbox.pending().expect("listed"), []);
    }

    #[test]
    fn only_an_entry_that_was_marked_and_is_unchanged_counts_as_built_here() {
        let (state, outbox) = outbox();
        assert!(!outbox.is_built_here(&KEY, b"entry"));
        outbox.mark(&KEY, &marker(b"entry")).expect("marked");
        assert!(outbox.is_built_here(&KEY, b"entry"));
        assert!(!outbox.is_built_here(&KEY, b"entrx"));
        assert!(!outbox.is_built_here(&Key([8; 32]), b"entry"));
        // Of another cache.
        let other = Directory::create_all(state.path())
            .and_then(|state| Outbox::open_in(&state, Path::new("/other")));
        let other = other.expect("made");
        assert!(!other.is_built_here(&KEY, b"entry"));
        outbox.sent(&KEY, Some(&marker(b"entry"))).expect("moved");
        assert_eq!(outbox.pending().expect("listed"), []);
        assert!(outbox.is_built_here(&KEY, b"entry"));
    }

    #[test]
    fn a_marker_that_was_written_while_its_forerunner_was_sent_stays() {
        let (_state, outbox) = outbox();
        outbox.mark(&KEY, &marker(b"old")).expect("marked");
        outbox.mark(&KEY, &marker(b"new")).expect("marked");
        outbox
            .sent(&KEY, Some(&marker(b"old")))
            .expect("nothing to do");
        assert_eq!(outbox.pending().expect("listed"), [KEY]);
        outbox.sent(&KEY, Some(&marker(b"new"))).expect("moved");
        assert!(outbox.send_again(&KEY, b"new").expect("marked again"));
        assert_eq!(outbox.pending().expect("listed"), [KEY]);
        assert!(!outbox.send_again(&KEY, b"old").expect("nothing"));
        assert!(!outbox.send_again(&Key([8; 32]), b"new").expect("nothing"));
    }

    #[test]
    fn an_entry_counts_as_built_here_before_it_is_stored_and_when_its_forerunner_is_sent_meanwhile()
    {
        let (_state, outbox) = outbox();
        let (old, new) = (marker(b"old"), marker(b"new"));
        outbox.note_built(&KEY, &old).expect("noted");
        assert!(outbox.is_built_here(&KEY, b"old"));
        assert_eq!(outbox.pending().expect("listed"), []);
        outbox.mark(&KEY, &old).expect("marked");
        outbox.note_built(&KEY, &new).expect("noted");
        assert!(outbox.is_built_here(&KEY, b"old"));
        assert!(outbox.is_built_here(&KEY, b"new"));
        outbox.sent(&KEY, Some(&old)).expect("removed");
        assert_eq!(outbox.pending().expect("listed"), []);
        assert!(outbox.is_built_here(&KEY, b"new"));
        outbox.mark(&KEY, &new).expect("marked");
        assert_eq!(outbox.pending().expect("listed"), [KEY]);
        outbox.sent(&KEY, Some(&new)).expect("removed");
        assert!(outbox.is_built_here(&KEY, b"new"));
    }

    #[test]
    fn a_process_that_ends_while_it_stores_takes_the_marker_of_no_entry() {
        let (_state, outbox) = outbox();
        let [old, new] = [b"old", b"new"].map(|entry| marker(entry));
        outbox.mark(&KEY, &old).expect("marked");
        outbox.sent(&KEY, Some(&old)).expect("moved");
        outbox.note_built(&KEY, &new).expect("noted");
        // Whether its entry was stored or not, the one that is there counts as built here, and can be sent.
        for (entry, marker) in [(b"old", old), (b"new", new)] {
            let found = outbox.marker_of(&KEY, entry);
            assert_eq!(found.expect("read"), Some(marker));
            assert!(outbox.is_being_stored(&KEY));
            assert!(outbox.send_again(&KEY, entry).expect("marked"));
            assert_eq!(outbox.marker(&KEY).expect("read"), Some(marker));
            outbox.sent(&KEY, Some(&marker)).expect("moved");
        }
        assert!(!outbox.is_being_stored(&KEY));
        assert_eq!(outbox.all().expect("listed"), [KEY]);
    }

    #[test]
    fn a_damaged_marker_counts_as_none() {
        let (_state, outbox) = outbox();
        outbox.mark(&KEY, &marker(b"entry")).expect("marked");
        let file = outbox.path().join(KEY.hex());
        let mut bytes = std::fs::read(&file).expect("read");
        for index in 0..bytes.len() {
            bytes[index] ^= 1;
            std::fs::write(&file, &bytes).expect("written");
            assert!(!outbox.is_built_here(&KEY, b"entry"), "byte {index}");
            bytes[index] ^= 1;
        }
    }

    #[test]
    fn a_damaged_marker_leaves_the_outbox_when_its_entry_was_looked_at() {
        let (_state, outbox) = outbox();
        let built = marker(b"entry");
        outbox.mark(&KEY, &built).expect("marked");
        outbox.sent(&KEY, None).expect("nothing to do");
        assert_eq!(outbox.pending().expect("listed"), [KEY]);
        for marker in [None, Some(&built)] {
            std::fs::write(outbox.path().join(KEY.hex()), b"").expect("cut");
            outbox.sent(&KEY, marker).expect("removed");
            assert_eq!(outbox.pending().expect("listed"), []);
        }
        outbox.sent(&KEY, None).expect("nothing to do");
    }
}
