//! Locks between the processes and threads of one host that share a store. They are only ever tried, never waited for.
//!
//! A lock is one byte of the file `v1/locks`, locked by fcntl. The offset of the byte is made of the key, so no key needs a file of
//! its own, and two keys share a lock with a chance of 1 in 2^61. The kernel gives such a lock back when its process ends, however
//! it ends, and a forked child has none of its parent's locks (measured: a forked child keeps a flock or an OFD lock of a killed
//! holder). But they belong to the process:
//!
//! - Two threads would both get the same lock, so the process has a table of its locks.
//! - Closing any descriptor of the file gives all locks back, so a process opens it once for each store.
//!
//! On network file systems such locks are not trusted. There, and where they do not work, the lock is an abstract Unix socket,
//! bound to a name made of the same offset: it excludes the processes of one host and network namespace, and the kernel gives it
//! back, too. A child closes the sockets that it inherits at once. If that does not work either, there is no lock.
//!
//! No lock uses the first 64 KiB of the file. They count the builds that were [abandoned](LockGuard::signal_abandoned).

mod file;
mod socket;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use fs2::FileExt;

use super::LOCKS;
use super::directory::Directory;
use crate::filesystem::FileSystem;
use crate::fork_generation::generation;
use crate::fork_safety::{Mutex, MutexGuard};
use crate::guarded_file::GuardedFile;
use crate::key::ingredients::Key;
use file::LockFile;
pub use file::is_lock_file;

/// What a lock is for. Each purpose has offsets of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A driver builds the program of this key.
    Build(Key),
    /// A driver loads the entry of this key for the first time.
    Load(Key),
    /// Entries of the store are removed.
    Evict,
    /// Pending recipes of the store are baked.
    Bake,
    /// Statistics of dead processes are merged, or files of statistics are moved. The hosts share the statistics, so this lock is
    /// one of the file on network file systems, too. Those locks may not answer there: the library does not ask for this one.
    Statistics,
}

/// The result of an attempt to get a lock.
#[derive(Debug)]
pub enum LockAttempt {
    /// The lock is held until the guard is dropped.
    Got(LockGuard),
    /// Another process or thread of this user has the lock.
    Taken,
    /// No lock works here, or another user has bound the name of the socket: do not wait.
    Unavailable,
}

/// The locks of one store.
#[derive(Clone)]
pub struct Locks(Arc<Shared>);

struct Shared {
    directory: Arc<Directory>,
    /// Whether locks by fcntl are trusted on the file system of this file.
    is_trusted: fn(BorrowedFd<'_>) -> bool,
    state: Mutex<State>,
}

struct State {
    /// See [`crate::fork_generation`].
    process: u64,
    file: Option<Arc<LockFile>>,
    /// By offset.
    held: BTreeMap<u64, Held>,
    /// The number of the last lock, so that a guard that a child inherited gives back no lock of the child.
    serial: u64,
    /// When another process of this user was last seen to have bound a socket.
    seen: BTreeMap<u64, Instant>,
}

struct Held {
    serial: u64,
    backend: LockBackend,
}

enum LockBackend {
    File(Arc<LockFile>),
    Socket { _open: GuardedFile },
}

/// A lock that is held. Another thread may drop it. In a forked child it has no effect.
pub struct LockGuard {
    shared: Arc<Shared>,
    byte: u64,
    serial: u64,
}

/// The offset of the lock. Purposes differ in the upper bits, which are never all 0; the sign bit is not used.
fn byte_of(purpose: Purpose) -> u64 {
    const KEY_BITS: u32 = 61;
    let (number, key) = match purpose {
        Purpose::Build(key) => (1, key),
        Purpose::Load(key) => (2, key),
        Purpose::Evict => return 3 << KEY_BITS,
        Purpose::Bake => return 3 << KEY_BITS | 1,
        Purpose::Statistics => return 3 << KEY_BITS | 2,
    };
    let bytes = key.0[..8].iter();
    let key = bytes.fold(0, |number, byte| number << 8 | u64::from(*byte));
    number << KEY_BITS | key >> (u64::BITS - KEY_BITS)
}

impl Locks {
    /// The locks of the store in this directory. Opens nothing yet.
    pub fn new(directory: Arc<Directory>) -> Locks {
        Locks::trusting(directory, |file| !FileSystem::of(file).is_network())
    }

    fn trusting(directory: Arc<Directory>, is_trusted: fn(BorrowedFd<'_>) -> bool) -> Locks {
        let state = Mutex::new(State {
            process: generation(),
            file: None,
            held: BTreeMap::new(),
            serial: 0,
            seen: BTreeMap::new(),
        });
        Locks(Arc::new(Shared {
            directory,
            is_trusted,
            state,
        }))
    }

    /// Tries to get a lock, and does not wait.
    pub fn try_lock(&self, purpose: Purpose) -> LockAttempt {
        let shared = &self.0;
        let byte = byte_of(purpose);
        let file = shared.file();
        let mut state = shared.state();
        if state.held.contains_key(&byte) {
            return LockAttempt::Taken;
        }
        let is_of_all_hosts = purpose == Purpose::Statistics;
        let file = file.filter(|file| file.is_trusted() || is_of_all_hosts);
        let failed = match file.map(|file| (file.try_lock(byte), file)) {
            Some((Ok(true), file)) => {
                return LockAttempt::Got(shared.hold(&mut state, byte, LockBackend::File(file)));
            }
            Some((Ok(false), _)) => return LockAttempt::Taken,
            Some((Err(error), _)) => Some(error),
            None => None,
        };
        drop(state);
        if let Some(error) = failed {
            tracing::debug!(%error, "the file of locks cannot be locked");
        }
        match is_of_all_hosts {
            true => LockAttempt::Unavailable,
            false => shared.try_socket(byte),
        }
    }

    /// How many builds of this key were abandoned ([`LockGuard::signal_abandoned`]); None if nobody counts them here. One in 8,192
    /// keys shares its number with another.
    pub fn abandonments(&self, key: &Key) -> Option<u64> {
        self.0.file()?.abandonments(byte_of(Purpose::Build(*key)))
    }

    /// Called in a forked child, which has none of its parent's locks: a socket that the child kept open would stay locked after
    /// the parent's end.
    pub fn forked(&self) {
        drop(self.0.state());
    }
}

/// Locks an open file until it is closed; false: another process has it locked, or no lock works. For a file that is replaced
/// under a lock of its own.
pub fn try_lock_file(file: &File) -> bool {
    file.try_lock_exclusive().is_ok()
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").finish_non_exhaustive()
    }
}

impl Shared {
    /// The state of this process.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let process = generation();
        if state.process != process {
            state.process = process;
            state.held.clear();
        }
        state
    }

    /// The file, if it can be opened. Opens it again if somebody has removed it, so that this process excludes those that start
    /// later.
    fn file(&self) -> Option<Arc<LockFile>> {
        let known = self.state().file.clone();
        if let Some(file) = &known
            && file.is_open()
            && self.directory.is_named(LOCKS, file.file())
        {
            return known;
        }
        let opened = match LockFile::open(&self.directory, LOCKS, self.is_trusted) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "the file of locks cannot be opened");
                return None;
            }
        };
        let mut state = self.state();
        match &state.file {
            // Another thread was faster. Closing the second descriptor would give back all locks of the process, so it is closed
            // only if the process holds none, and while the state is locked.
            Some(file) if file.is_open() && file.is_same(&opened) => {
                let mut held = state.held.values();
                match held.any(|held| matches!(held.backend, LockBackend::File(_))) {
                    true => opened.leave_open(),
                    false => drop(opened),
                }
                Some(file.clone())
            }
            _ => {
                let file = Arc::new(opened);
                state.file = Some(file.clone());
                Some(file)
            }
        }
    }

    fn hold(self: &Arc<Self>, state: &mut State, byte: u64, backend: LockBackend) -> LockGuard {
        state.serial += 1;
        let serial = state.serial;
        state.held.insert(byte, Held { serial, backend });
        LockGuard {
            shared: self.clone(),
            byte,
            serial,
        }
    }

    fn try_socket(self: &Arc<Self>, byte: u64) -> LockAttempt {
        let Some((device, inode)) = self.directory.identity() else {
            return LockAttempt::Unavailable;
        };
        let Ok(address) = socket::address(device, inode, byte) else {
            return LockAttempt::Unavailable;
        };
        for _ in 0..socket::ATTEMPTS {
            // The state stays locked until the socket is in the table, so that no thread forks in between.
            let mut state = self.state();
            if state.held.contains_key(&byte) {
                return LockAttempt::Taken;
            }
            match socket::bind(&address) {
                Ok(Some(open)) => {
                    state.seen.remove(&byte);
                    let backend = LockBackend::Socket { _open: open };
                    return LockAttempt::Got(self.hold(&mut state, byte, backend));
                }
                Ok(None) => {}
                Err(error) => {
                    drop(state);
                    tracing::debug!(%error, "no lock works here: builds of several processes may repeat each other");
                    return LockAttempt::Unavailable;
                }
            }
            state.seen.retain(|_, at| at.elapsed() < socket::TRUSTED);
            if state.seen.contains_key(&byte) {
                return LockAttempt::Taken;
            }
            drop(state);
            match socket::holder(&address) {
                socket::Holder::ThisUser => {
                    self.state().seen.insert(byte, Instant::now());
                    return LockAttempt::Taken;
                }
                socket::Holder::Other => return LockAttempt::Unavailable,
                socket::Holder::NotYet => std::thread::sleep(socket::PAUSE),
            }
        }
        LockAttempt::Unavailable
    }
}

impl State {
    fn has(&self, guard: &LockGuard) -> bool {
        let held = self.held.get(&guard.byte);
        held.is_some_and(|held| held.serial == guard.serial)
    }
}

impl LockGuard {
    /// Tells those who wait for the lock that the build leaves no entry, so they need not take turns.
    pub fn signal_abandoned(&self) {
        let is_held = self.shared.state().has(self);
        if let Some(file) = self.shared.file().filter(|_| is_held) {
            file.add_abandonment(self.byte);
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if state.has(self)
            && let Some(held) = state.held.remove(&self.byte)
            && let LockBackend::File(file) = held.backend
        {
            file.unlock(self.byte);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub mod tests {
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use super::*;

    fn directory(path: &Path) -> Arc<Directory> {
        Arc::new(Directory::create_all(path).expect("a directory"))
    }

    fn key(byte: u8) -> Key {
        Key([byte; 32])
    }

    /// A child that another test starts has a socket that was given back until it executes its program.
    fn got(locks: &Locks, purpose: Purpose) -> LockGuard {
        const ATTEMPTS: u32 = 1000;
        for _ in 0..ATTEMPTS {
            match locks.try_lock(purpose) {
                LockAttempt::Got(guard) => return guard,
                LockAttempt::Taken => std::thread::sleep(std::time::Duration::from_millis(10)),
                LockAttempt::Unavailable => {
                    panic!("no lock works here: builds of several processes may repeat each other")
                }
            }
        }
        panic!("it is not given back");
    }

    fn is_taken(attempt: &LockAttempt) -> bool {
        matches!(attempt, LockAttempt::Taken)
    }

    /// The bytes of a file that the kernel has locked. Its table is read again and again: while other processes lock and
    /// unlock, a reader may miss a line.
    fn locked(file: &Path) -> Vec<u64> {
        use std::os::unix::fs::MetadataExt;
        let inode = format!(":{} ", std::fs::metadata(file).expect("a file").ino());
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let locks = std::fs::read_to_string("/proc/locks").expect("a table of locks");
            let of_file = locks.lines().filter(|line| line.contains(&inode));
            let start = |line: &str| line.split_whitespace().rev().nth(1)?.parse().ok();
            found.extend(of_file.filter_map(start).collect::<Vec<u64>>());
        }
        found.into_iter().collect()
    }

    #[test]
    fn one_thread_has_it_and_the_next_one_gets_it() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let locks = Locks::new(directory(temporary.path()));
        let guard = got(&locks, Purpose::Build(key(1)));
        assert!(is_taken(&locks.try_lock(Purpose::Build(key(1)))));
        let other_key = got(&locks, Purpose::Build(key(2)));
        let other_purpose = got(&locks, Purpose::Load(key(1)));
        let _evict = got(&locks, Purpose::Evict);
        assert!(is_taken(&locks.try_lock(Purpose::Evict)));
        let _other_of_store = got(&locks, Purpose::Statistics);
        std::thread::spawn(|| drop(guard)).join().expect("dropped");
        let _again = got(&locks, Purpose::Build(key(1)));
        drop((other_key, other_purpose));
    }

    #[test]
    fn the_kernel_holds_what_is_held_and_no_more() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let locks = Locks::new(directory(temporary.path()));
        let first = got(&locks, Purpose::Build(key(255)));
        let second = got(&locks, Purpose::Load(key(128)));
        let file = temporary.path().join(LOCKS);
        let expected = [(1 << 62) - 1, 0x5010_1010_1010_1010];
        assert_eq!(locked(&file), expected);
        drop(second);
        assert_eq!(locked(&file), expected[..1]);
        drop(first);
        assert!(locked(&file).is_empty());
    }

    #[test]
    fn a_removed_file_is_made_anew_and_what_was_held_stays_held() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let locks = Locks::new(directory(temporary.path()));
        let guard = got(&locks, Purpose::Build(key(1)));
        let file = temporary.path().join(LOCKS);
        std::fs::remove_file(&file).expect("removed");
        let _other = got(&locks, Purpose::Build(key(2)));
        assert_eq!(locked(&file).len(), 1);
        assert!(is_taken(&locks.try_lock(Purpose::Build(key(1)))));
        drop(guard);
        let _again = got(&locks, Purpose::Build(key(1)));
        assert_eq!(locked(&file).len(), 2);
    }

    #[test]
    fn on_a_network_file_system_a_socket_is_the_lock() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        // As two processes: they share no table.
        let one = Locks::trusting(directory(temporary.path()), |_| false);
        let other = Locks::trusting(directory(temporary.path()), |_| false);
        let guard = got(&one, Purpose::Build(key(1)));
        assert!(locked(&temporary.path().join(LOCKS)).is_empty());
        for _ in 0..3 {
            assert!(is_taken(&other.try_lock(Purpose::Build(key(1)))));
        }
        let _other_key = got(&other, Purpose::Build(key(2)));
        drop(guard);
        drop(got(&one, Purpose::Statistics));
        let _statistics = got(&other, Purpose::Statistics);
        assert_eq!(
            locked(&temporary.path().join(LOCKS)).len(),
            1,
            "hosts share them"
        );
        let _guard = got(&other, Purpose::Build(key(1)));
        assert!(is_taken(&one.try_lock(Purpose::Build(key(1)))));
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        let elsewhere = Locks::trusting(directory(elsewhere.path()), |_| false);
        let _elsewhere = got(&elsewhere, Purpose::Build(key(1)));
    }

    #[test]
    fn a_forked_child_holds_nothing_and_its_guards_are_nothing() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let parent = Locks::trusting(directory(temporary.path()), |_| false);
        let other = Locks::trusting(directory(temporary.path()), |_| false);
        let inherited = got(&parent, Purpose::Build(key(1)));
        // As it is in a child, but that the parent's own descriptor is closed as well: as if that was killed.
        parent.0.state.lock().process = 0;
        parent.forked();
        drop(got(&other, Purpose::Build(key(1))));
        let _childs = got(&parent, Purpose::Build(key(1)));
        let before = parent.abandonments(&key(1));
        inherited.signal_abandoned();
        drop(inherited);
        assert_eq!(parent.abandonments(&key(1)), before);
        assert!(is_taken(&other.try_lock(Purpose::Build(key(1)))));
    }

    fn address(directory: &Directory, purpose: Purpose) -> rustix::net::SocketAddrUnix {
        let (device, inode) = directory.identity().expect("known");
        socket::address(device, inode, byte_of(purpose)).expect("a name")
    }

    /// Binds the name of a lock and does not listen: nobody gets the lock by its socket, or learns who has it.
    pub fn occupied(directory: &Directory, purpose: Purpose) -> OwnedFd {
        let family = rustix::net::AddressFamily::UNIX;
        let bound = rustix::net::socket(family, rustix::net::SocketType::STREAM, None);
        let bound = bound.expect("a socket");
        rustix::net::bind(&bound, &address(directory, purpose)).expect("bound");
        bound
    }

    #[test]
    fn a_name_that_is_bound_by_whoever_does_not_listen_is_not_waited_for() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let directory = directory(temporary.path());
        let _bound = occupied(&directory, Purpose::Build(key(1)));
        let locks = Locks::trusting(directory, |_| false);
        let attempt = locks.try_lock(Purpose::Build(key(1)));
        assert!(matches!(attempt, LockAttempt::Unavailable));
    }

    #[test]
    fn a_name_that_is_bound_by_another_user_is_not_waited_for() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let directory = directory(temporary.path());
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: a lock in the way that is another user's (this is not root)");
            return;
        }
        let address = address(&directory, Purpose::Build(key(1)));
        // The user of one thread only.
        let bind = || {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("another user");
            socket::bind(&address).expect("a socket").expect("bound")
        };
        let _bound = std::thread::scope(|scope| scope.spawn(bind).join().expect("bound"));
        let locks = Locks::trusting(directory, |_| false);
        let attempt = locks.try_lock(Purpose::Build(key(1)));
        assert!(matches!(attempt, LockAttempt::Unavailable));
    }

    /// The kernel has no number for a process of another namespace.
    #[test]
    fn a_process_of_another_pid_namespace_has_the_lock() {
        const DIRECTORY: &str = "OCLCACHE_TEST_LOCKED";
        if let Some(locked) = std::env::var_os(DIRECTORY) {
            let locks = Locks::trusting(directory(Path::new(&locked)), |_| false);
            assert!(is_taken(&locks.try_lock(Purpose::Build(key(1)))));
            return;
        }
        let unshare = || {
            let mut unshare = std::process::Command::new("unshare");
            unshare.args(["--pid", "--fork"]);
            unshare
        };
        let can = unshare().arg("true").output();
        if !can.is_ok_and(|can| can.status.success()) {
            eprintln!("skipped: a lock across PID namespaces (there is no right to make one)");
            return;
        }
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let locks = Locks::trusting(directory(temporary.path()), |_| false);
        let _guard = got(&locks, Purpose::Build(key(1)));
        let mut other = unshare();
        other.arg(std::env::current_exe().expect("known"));
        let name = "store::lock::tests::a_process_of_another_pid_namespace_has_the_lock";
        other.args(["--exact", name]);
        let other = other.env(DIRECTORY, temporary.path()).output();
        let other = other.expect("started");
        let shown = String::from_utf8_lossy(&other.stdout);
        assert!(shown.contains("1 passed"), "{shown}");
    }

    #[test]
    fn what_is_no_file_of_ours_in_its_place_leaves_the_socket() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let file = temporary.path().join(LOCKS);
        let precious = temporary.path().join("precious");
        std::fs::write(&precious, "mine").expect("written");
        let fifo = || {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &file,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                0,
            )
            .expect("made");
        };
        let places: [&dyn Fn(); 4] = [
            &fifo,
            &|| std::fs::create_dir(&file).expect("made"),
            &|| std::os::unix::fs::symlink(&precious, &file).expect("made"),
            &|| std::fs::hard_link(&precious, &file).expect("made"),
        ];
        for place in places {
            place();
            let one = Locks::new(directory(temporary.path()));
            let other = Locks::new(directory(temporary.path()));
            let guard = got(&one, Purpose::Build(key(1)));
            assert!(is_taken(&other.try_lock(Purpose::Build(key(1)))));
            guard.signal_abandoned();
            assert_eq!(one.abandonments(&key(1)), None);
            let _ = std::fs::remove_file(&file);
            let _ = std::fs::remove_dir(&file);
        }
        assert_eq!(std::fs::read(&precious).expect("read"), b"mine");
    }

    #[test]
    fn an_abandoned_build_changes_the_number_of_its_key_only() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let locks = Locks::new(directory(temporary.path()));
        let other = Locks::new(directory(temporary.path()));
        let before = (locks.abandonments(&key(1)), locks.abandonments(&key(2)));
        got(&other, Purpose::Build(key(1))).signal_abandoned();
        assert_ne!(locks.abandonments(&key(1)), before.0);
        assert_eq!(locks.abandonments(&key(2)), before.1);
        assert!(before.0.is_some());
    }
}
