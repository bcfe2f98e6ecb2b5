//! Remembers the BLAKE3 of driver files, some of which have hundreds of megabytes and no build-id.
//!
//! BLAKE3 and not the SHA-256 of the rest of a key: Intel's CPU runtime has 330 MB, which SHA-256 read in 0.21 s where the processor has
//! instructions for it, longer than a small program compiles.
//!
//! A digest is remembered by host, device, inode, size, mtime and ctime. No key contains these, so entries can be copied to other
//! hosts. A file that changed less than two seconds ago is read each time, because it could change again without a change of its
//! times.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::{Store, TEMPORARY};
use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
use crate::framing;

pub(super) const DIRECTORY: &str = "digests";
const MAGIC: &[u8] = b"oclcdig2";
/// A driver has some dozens of files. Forgetting a digest costs only time.
const MAX_REMEMBERED: usize = 4096;
/// How often a file is read that changes while it is read.
const ATTEMPTS: u32 = 4;

type Remembered = Vec<(FileFingerprint, [u8; 32])>;

/// Digests of files, with a memory in the store if there is one.
pub struct Digests {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    remembered: Option<Remembered>,
    changed: bool,
}

impl Digests {
    /// Nothing is read before the first digest is asked for.
    pub fn new() -> Digests {
        Digests {
            state: Mutex::default(),
        }
    }

    /// The BLAKE3 of a file's content.
    ///
    /// # Errors
    /// The file cannot be read, or changes meanwhile.
    pub fn digest(&self, store: Option<&Store>, path: &Path) -> io::Result<[u8; 32]> {
        // Try again: a new link to a file changes its ctime but not its content.
        (1..ATTEMPTS)
            .find_map(|_| self.try_digest(store, path).ok())
            .map_or_else(|| self.try_digest(store, path), Ok)
    }

    fn try_digest(&self, store: Option<&Store>, path: &Path) -> io::Result<[u8; 32]> {
        let stamp = FileFingerprint::of(&std::fs::metadata(path)?);
        let mut state = self.state.lock();
        let remembered = state
            .remembered
            .get_or_insert_with(|| store.and_then(load).unwrap_or_default());
        if let Some((_, digest)) = remembered.iter().find(|(known, _)| *known == stamp) {
            return Ok(*digest);
        }
        drop(state);
        let mut file = File::open(path)?;
        let digest = blake3_of(&mut file)?;
        if FileFingerprint::of(&file.metadata()?) != stamp {
            return Err(io::Error::other("it changed while it was read"));
        }
        if stamp.is_settled() {
            let mut state = self.state.lock();
            let remembered = state.remembered.get_or_insert_default();
            let excess = (remembered.len() + 1).saturating_sub(MAX_REMEMBERED);
            remembered.drain(..excess);
            remembered.push((stamp, digest));
            state.changed = true;
        }
        Ok(digest)
    }

    /// The next [`Digests::save`] writes all digests: it is into another store.
    pub fn forget_saved(&self) {
        let mut state = self.state.lock();
        state.changed = state.remembered.is_some();
    }

    /// Writes the digests into the store, if there are new ones.
    pub fn save(&self, store: &Store) {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.changed) {
            return;
        }
        let Ok(bytes) = framing::encode(MAGIC, &state.remembered) else {
            return;
        };
        drop(state);
        let write = || {
            let temporary = store.root().create(TEMPORARY)?;
            let directory = store.root().create(DIRECTORY)?;
            directory.write_by_rename(&temporary, &host(), &bytes)
        };
        let written = write();
        if let Err(error) = written {
            tracing::debug!(%error, "digests of driver files are not stored: the next process computes them again");
        }
    }
}

impl Default for Digests {
    fn default() -> Self {
        Self::new()
    }
}

fn load(store: &Store) -> Option<Remembered> {
    let directory = store.root().open_below(DIRECTORY).ok()??;
    let bytes = directory.read(&host(), 16 << 20).ok()??;
    framing::decode::<Option<Remembered>>(MAGIC, &bytes)?
}

/// A name that no other host has. Device and inode numbers are valid on one host only.
pub(super) fn host() -> String {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let host = rustix::system::uname();
    format!(
        "{:016x}",
        xxh3_64(&[host.nodename().to_bytes(), &machine].concat())
    )
}

/// Whether a name has the form of [`host`].
pub(super) fn is_host(name: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == 16 && name.bytes().all(is_digit)
}

fn blake3_of(file: &mut File) -> io::Result<[u8; 32]> {
    let mut hash = blake3::Hasher::new();
    // Small enough for the reserve (see `reserve`) if the system has no memory left.
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hash.finalize().into()),
            Ok(length) => {
                hash.update(&buffer[..length]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::*;

    #[test]
    fn two_files_of_equal_size_and_mtime_have_digests_of_their_own_also_when_remembered() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store =
            Store::open(&directory.path().join("cache"), Limits::default()).expect("a store");
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(1000);
        let write = |name: &str, content: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).expect("written");
            File::options()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_modified(old))
                .expect("dated");
            path
        };
        let (one, other) = (write("one", "content 1"), write("other", "content 2"));
        let first = Digests::new();
        // Fresh files are not remembered, whatever their mtime says: their ctime is new.
        let digests = [&one, &other].map(|path| first.digest(Some(&store), path).expect("read"));
        assert_ne!(digests[0], digests[1]);
        first.save(&store);
        assert!(load(&store).is_none_or(|remembered| remembered.is_empty()));
        // Put back in place with the same size and mtime, as a careless installation does.
        write("one", "content 3");
        assert_ne!(first.digest(Some(&store), &one).expect("read"), digests[0]);
    }

    #[test]
    fn a_settled_file_is_remembered_across_processes_and_forgotten_when_the_memory_is_damaged() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store =
            Store::open(&directory.path().join("cache"), Limits::default()).expect("a store");
        // A file that no test changes.
        let settled = Path::new("/proc/self/exe")
            .canonicalize()
            .expect("an executable");
        let settled = [settled.as_path(), Path::new("/bin/sh")]
            .into_iter()
            .find(|path| {
                std::fs::metadata(path)
                    .is_ok_and(|metadata| FileFingerprint::of(&metadata).is_settled())
            })
            .expect("a settled file")
            .to_owned();
        let first = Digests::new();
        let digest = first.digest(Some(&store), &settled).expect("read");
        first.save(&store);
        assert_eq!(load(&store).expect("saved").len(), 1);
        let another = directory.path().join("another");
        let another = Store::open(&another, Limits::default()).expect("a store");
        first.save(&another);
        assert!(load(&another).is_none(), "saved once");
        first.forget_saved();
        first.save(&another);
        assert_eq!(load(&another).expect("saved").len(), 1);
        assert_eq!(
            Digests::new().digest(Some(&store), &settled).expect("read"),
            digest
        );
        let file = store.root().path().join(DIRECTORY).join(host());
        let mut bytes = std::fs::read(&file).expect("read");
        bytes[12] ^= 1;
        std::fs::write(&file, bytes).expect("written");
        assert!(load(&store).is_none());
        assert_eq!(
            Digests::new().digest(Some(&store), &settled).expect("read"),
            digest
        );
    }
}
