//! Remembers the digests of driver files, some of which have hundreds of megabytes and no build-id.
//!
//! A digest is remembered by host, device, inode, size, mtime and ctime. No key contains these, so entries can be copied to other
//! hosts. A file that changed less than two seconds ago is read each time, because it could change again without a change of its
//! times. A file whose times are not those of a clock is remembered while its mount lasts, or for this process only: see
//! `file_fingerprint`.

use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::{Store, TEMPORARY};
use crate::content_digest::{self, Alone, ReadAlong, SeenFile};
use crate::file_fingerprint::{FileFingerprint, FileSystems, MountIdentity, Seconds, Validity};
use crate::fork_safety::Mutex;
use crate::framing;
use crate::host;
use crate::regular_file;
use crate::stop::Stop;

pub(super) const DIRECTORY: &str = "digests";
const MAGIC: &[u8] = b"oclcdig6";
/// A driver has some dozens of files. Forgetting a digest costs only time.
const MAX_REMEMBERED: usize = 4096;
/// How often a file is read that changes while it is read.
const ATTEMPTS: u32 = 4;

/// Files and their digests, each with the mount during which the digest is valid. None: it does not depend on a mount.
type Remembered = Vec<(FileFingerprint, Option<MountIdentity>, [u8; 32])>;

/// Digests of files, with a memory in the store if there is one.
pub struct Digests {
    state: Mutex<State>,
    /// Stops reading.
    stop: Stop,
}

#[derive(Default)]
struct State {
    remembered: Option<Remembered>,
    /// What later processes could not trust.
    of_this_process: Remembered,
    changed: bool,
}

impl State {
    /// The digest of a file in this state that was found last, and the mount that must last for it.
    fn known(&self, stamp: &FileFingerprint) -> Option<(Option<MountIdentity>, [u8; 32])> {
        let remembered = self.remembered.iter().flatten();
        let mut all = remembered.chain(&self.of_this_process).rev();
        let (_, mount, digest) = all.find(|(known, ..)| known == stamp)?;
        Some((mount.clone(), *digest))
    }
}

/// What is known of a file.
enum Seen {
    /// Its digest.
    Known([u8; 32]),
    /// Its state, how long that tells every change, and the mount during which it does.
    Unknown(FileFingerprint, Validity, Option<MountIdentity>),
}

impl Digests {
    /// Nothing is read before the first digest is asked for.
    pub fn new() -> Digests {
        Digests::until(Stop::default())
    }

    /// The same. Once this is set, no file is read.
    pub fn until(stop: Stop) -> Digests {
        Digests {
            state: Mutex::default(),
            stop,
        }
    }

    /// Remembers what the other one has found out, as if it had read the files.
    pub fn take_over(&self, other: &Digests, store: &Store) {
        let other = std::mem::take(&mut *other.state.lock());
        let mut state = self.state.lock();
        let remembered = state
            .remembered
            .get_or_insert_with(|| load(store).unwrap_or_default());
        for one in other.remembered.into_iter().flatten() {
            add(remembered, one);
        }
        state.changed |= other.changed;
        for one in other.of_this_process {
            add(&mut state.of_this_process, one);
        }
    }

    /// The digest of a file's content.
    ///
    /// # Errors
    /// The file cannot be read, or changes meanwhile.
    pub fn digest(&self, store: Option<&Store>, path: &Path) -> io::Result<[u8; 32]> {
        let digest = self.digests(store, &[path], &Alone).pop();
        digest.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    /// The same of several files, which are read on several threads. `along` reads those along that are not remembered.
    pub fn digests(
        &self,
        store: Option<&Store>,
        paths: &[&Path],
        along: &dyn ReadAlong,
    ) -> Vec<io::Result<[u8; 32]>> {
        let mut digests = self.try_digests(store, paths, along);
        // Try again: a new link to a file changes its ctime but not its content.
        for _ in 1..ATTEMPTS {
            let failed: Vec<usize> = (0..paths.len())
                .filter(|index| digests[*index].is_err())
                .collect();
            if failed.is_empty() || self.stop.is_set() {
                break;
            }
            let again: Vec<&Path> = failed.iter().map(|index| paths[*index]).collect();
            for (index, digest) in failed
                .into_iter()
                .zip(self.try_digests(store, &again, along))
            {
                digests[index] = digest;
            }
        }
        digests
    }

    fn try_digests(
        &self,
        store: Option<&Store>,
        paths: &[&Path],
        along: &dyn ReadAlong,
    ) -> Vec<io::Result<[u8; 32]>> {
        let seen: Vec<io::Result<Seen>> = paths.iter().map(|path| self.see(store, path)).collect();
        let mut unknown: Vec<SeenFile<'_>> = Vec::new();
        for (path, seen) in paths.iter().zip(&seen) {
            // Another path may lead to a file of the list.
            if let Ok(Seen::Unknown(state, validity, _)) = *seen
                && !unknown.iter().any(|other| other.state == state)
            {
                unknown.push(SeenFile {
                    path,
                    state,
                    is_settled: validity != Validity::Moment,
                });
            }
        }
        let mut read = unknown
            .iter()
            .zip(content_digest::of_files(&unknown, along, &self.stop))
            .peekable();
        let digest_of = |(path, seen): (&&Path, _)| match seen {
            Ok(Seen::Known(digest)) => Ok(digest),
            Ok(Seen::Unknown(state, validity, mount)) => {
                match read.next_if(|(file, _)| file.state == state) {
                    Some((_, digest)) => {
                        let digest = digest?;
                        self.remember(state, validity, mount, digest);
                        Ok(digest)
                    }
                    // It was read by another path, and may be remembered. This one must lead there as well.
                    None => self.digest(store, path),
                }
            }
            Err(error) => Err(error),
        };
        paths.iter().zip(seen).map(digest_of).collect()
    }

    /// The digest of the file at this path, or its state if that digest is unknown.
    fn see(&self, store: Option<&Store>, path: &Path) -> io::Result<Seen> {
        let seen = Seconds::now();
        let metadata = std::fs::metadata(path)?;
        let stamp = FileFingerprint::of(&metadata);
        let mut state = self.state.lock();
        state
            .remembered
            .get_or_insert_with(|| store.and_then(load).unwrap_or_default());
        let known = state.known(&stamp);
        drop(state);
        if !metadata.is_file() {
            return Err(regular_file::is_none());
        }
        match known {
            Some((mount, digest)) if mount.is_none() || mount == MountIdentity::at(path) => {
                // Opened for it as well: it may have been remembered by a process that has more rights.
                regular_file::open_seen(path)?.ok_or_else(regular_file::is_none)?;
                Ok(Seen::Known(digest))
            }
            _ => {
                let validity = stamp.validity(path, seen, &mut FileSystems::default());
                let mount = match validity {
                    Validity::Mount => MountIdentity::at(path),
                    _ => None,
                };
                Ok(Seen::Unknown(stamp, validity, mount))
            }
        }
    }

    /// Remembers the digest of a file that was read.
    fn remember(
        &self,
        stamp: FileFingerprint,
        validity: Validity,
        mount: Option<MountIdentity>,
        digest: [u8; 32],
    ) {
        let mut state = self.state.lock();
        match (validity, &mount) {
            (Validity::Moment, _) => {}
            (Validity::Process, _) | (Validity::Mount, None) => {
                add(&mut state.of_this_process, (stamp, None, digest));
            }
            (Validity::Mount | Validity::Lasting, _) => {
                let remembered = state.remembered.get_or_insert_default();
                add(remembered, (stamp, mount, digest));
                state.changed = true;
            }
        }
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

fn add(remembered: &mut Remembered, one: (FileFingerprint, Option<MountIdentity>, [u8; 32])) {
    // Of another mount, which is gone.
    remembered.retain(|(known, ..)| *known != one.0);
    let excess = (remembered.len() + 1).saturating_sub(MAX_REMEMBERED);
    remembered.drain(..excess);
    remembered.push(one);
}

fn load(store: &Store) -> Option<Remembered> {
    let directory = store.root().open_below(DIRECTORY).ok()??;
    let bytes = directory.read(&host(), 16 << 20).ok()??;
    framing::decode::<Option<Remembered>>(MAGIC, &bytes)?
}

/// A name that no other host has, but for clones of a running machine and their containers. Device and inode numbers are valid on one host
/// only.
pub(super) fn host() -> String {
    let host = host::of_files();
    // Containers have the number of their image, if any.
    let machine = match host == host::name() {
        true => std::fs::read("/etc/machine-id").unwrap_or_default(),
        false => Vec::new(),
    };
    format!("{:016x}", xxh3_64(&[host, &machine].concat()))
}

/// Whether a name has the form of [`host`].
pub(super) fn is_host(name: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == 16 && name.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;

    use super::super::Limits;
    use super::*;
    use crate::regular_file::tests::without_rights;

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
                let state = FileFingerprint::at(path);
                let mut systems = FileSystems::default();
                state.is_some_and(|state| {
                    match state.validity(path, Seconds::now(), &mut systems) {
                        Validity::Moment | Validity::Process => false,
                        Validity::Mount => MountIdentity::at(path).is_some(),
                        Validity::Lasting => true,
                    }
                })
            })
            .expect("a settled file")
            .to_owned();
        let first = Digests::new();
        // One file, also if several paths lead there.
        let read = first
            .digests(Some(&store), &[&settled, &settled], &Alone)
            .into_iter();
        let [digest, again] = &read.map(|digest| digest.expect("read")).collect::<Vec<_>>()[..]
        else {
            panic!("two digests");
        };
        assert_eq!(digest, again);
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
            *digest
        );
        let file = store.root().path().join(DIRECTORY).join(host());
        let mut bytes = std::fs::read(&file).expect("read");
        bytes[12] ^= 1;
        std::fs::write(&file, bytes).expect("written");
        assert!(load(&store).is_none());
        assert_eq!(
            Digests::new().digest(Some(&store), &settled).expect("read"),
            *digest
        );
    }

    #[test]
    fn a_digest_that_another_process_remembered_makes_no_file_readable() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "").expect("written");
        for (mode, is_readable) in [(0o000, false), (0o400, true)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("changed");
            let stamp = FileFingerprint::at(&path).expect("a file");
            let digests = Digests::new();
            add(
                &mut digests.state.lock().of_this_process,
                (stamp, None, [7; 32]),
            );
            let digest = without_rights(|| digests.digest(None, &path).ok());
            assert_eq!(digest, is_readable.then_some([7; 32]));
        }
    }

    #[test]
    fn what_is_no_regular_file_has_no_digest() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fifo = directory.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)
            .expect("made");
        for path in [&fifo, directory.path()] {
            assert!(Digests::new().digest(None, path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn what_later_processes_could_not_trust_is_remembered_in_this_one_only() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store =
            Store::open(&directory.path().join("cache"), Limits::default()).expect("a store");
        let stamp = FileFingerprint::at(Path::new("/bin/sh")).expect("a file");
        let digests = Digests::new();
        add(
            &mut digests.state.lock().of_this_process,
            (stamp, None, [7; 32]),
        );
        let known = digests.digest(Some(&store), Path::new("/bin/sh"));
        assert_eq!(known.expect("remembered"), [7; 32]);
        digests.save(&store);
        assert!(load(&store).is_none());
    }

    #[test]
    fn a_digest_of_an_image_lasts_as_long_as_its_mount() {
        let path = Path::new("/bin/sh");
        let Some(mount) = MountIdentity::at(path) else {
            return;
        };
        let stamp = FileFingerprint::at(path).expect("a file");
        let another = MountIdentity::at(Path::new("/proc"));
        for (mount, is_trusted) in [(Some(mount), true), (another, false)] {
            let digests = Digests::new();
            let mut state = digests.state.lock();
            let remembered = state.remembered.get_or_insert_default();
            add(remembered, (stamp, mount, [7; 32]));
            drop(state);
            let digest = digests.digest(None, path).expect("readable");
            assert_eq!(digest == [7; 32], is_trusted);
        }
    }
}
