//! Locks that are free in a forked child, whichever thread forks.
//!
//! A child has one thread, the one that forked. A lock that another thread held at that moment would stay locked in the child, and
//! its data half changed. So all locks of this library are of these types. A thread is counted from the moment it wants a lock
//! until it gives the lock back. Before each fork, a handler of pthread_atfork waits until no thread is counted, and threads that
//! come meanwhile wait for the fork. So no lock is held across a fork, and the child only resets two counts. Threads that wait for
//! a lock are counted as well: otherwise a child could have a lock that threads wait for which do not exist there.
//!
//! The locks have no data of their own for each thread that waits, as those of parking_lot have. The first use of such data registers a
//! destructor, for which a thread waits beside a library's constructor (see `linker_lock`; measured: of 16 threads that built there,
//! some hung for ever).
//!
//! The same holds for calls that take a lock of the C library ([`without_forks`]).
//!
//! No driver and no callback is called with a lock held, so the handler waits only for short work of ours: at most a small file is
//! read or written. Both waits end after [`PATIENCE`], because another handler of the application may wait for a thread that waits
//! here. Then everything continues as if there were no handler.
//!
//! vfork and posix_spawn run no handlers; their children execute another program at once.

#![allow(unsafe_code)] // registers the handlers
#![allow(clippy::disallowed_types)] // this is where they are taken from

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;
use rustix::thread::futex;

/// How long a fork waits for threads that hold locks, and how long threads wait for a fork.
const PATIENCE: Duration = Duration::from_secs(1);

/// The number of threads that hold or want locks. With [`FORKING`] it works as in Dekker's algorithm, hence `SeqCst`: a thread
/// counts itself, then looks for forks; a fork counts itself, then looks for threads.
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// The number of forks that are about to happen.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// The first call in a child.
static IN_CHILD: OnceBox<fn()> = OnceBox::new();

thread_local! {
    /// How many locks this thread holds or wants.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Registers the handlers. `in_child` runs in each child, where it may take locks. Only the first call has an effect.
pub fn prepare(in_child: fn()) {
    if IN_CHILD.set(Box::new(in_child)).is_ok() {
        // SAFETY: the functions take and give nothing. The C library drops them should this library be unmapped.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(after_in_child)) };
    }
}

/// The locks of the forking thread do not count: it forks in a signal handler, and the child continues where the parent was.
fn own_count() -> u32 {
    HELD.get().min(1)
}

extern "C" fn before() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    let until = Instant::now() + PATIENCE;
    loop {
        let inside = INSIDE.load(Ordering::SeqCst);
        if inside <= own_count() || !wait(&INSIDE, inside, until) {
            return;
        }
    }
}

extern "C" fn in_parent() {
    if FORKING.fetch_sub(1, Ordering::SeqCst) == 1 {
        wake(&FORKING);
    }
}

extern "C" fn after_in_child() {
    FORKING.store(0, Ordering::SeqCst);
    INSIDE.store(own_count(), Ordering::SeqCst);
    if own_count() == 0
        && let Some(in_child) = IN_CHILD.get()
    {
        in_child();
    }
}

/// Waits until the word may differ from `seen`; false if it is too late.
fn wait(word: &AtomicU32, seen: u32, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let Ok(timeout) = left.try_into() else {
        return false;
    };
    if left.is_zero() {
        return false;
    }
    let _ = futex::wait(word, futex::Flags::PRIVATE, seen, Some(&timeout));
    true
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Calls something that takes a short lock of the C library, which would stay locked in a child: the C library resets few of its
/// locks.
///
/// An example is dl_iterate_phdr (glibc 2.36): without this, 1 in 2,000 children of threads that build hung in it for ever. It does
/// not help if a thread of another library is in it at a fork; the lock is held for microseconds.
pub fn without_forks<T>(body: impl FnOnce() -> T) -> T {
    let _inside = Inside::enter();
    body()
}

/// While it lives, no other thread forks. It cannot be sent to another thread.
struct Inside(PhantomData<*const ()>);

impl Inside {
    #[inline]
    fn enter() -> Inside {
        let held = HELD.get();
        HELD.set(held + 1);
        if held == 0 {
            INSIDE.fetch_add(1, Ordering::SeqCst);
            if FORKING.load(Ordering::SeqCst) > 0 {
                let_forks_happen();
            }
        }
        Inside(PhantomData)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let held = HELD.get() - 1;
        if held == 0 {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            if FORKING.load(Ordering::SeqCst) > 0 {
                wake(&INSIDE);
            }
        }
        HELD.set(held);
    }
}

#[cold]
fn let_forks_happen() {
    let until = Instant::now() + PATIENCE;
    loop {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        wake(&INSIDE);
        let forking = FORKING.load(Ordering::SeqCst);
        let in_time = forking == 0 || wait(&FORKING, forking, until);
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if !in_time || FORKING.load(Ordering::SeqCst) == 0 {
            return;
        }
    }
}

macro_rules! guards {
    ($($(#[$doc:meta])* $name:ident: $inner:ident;)*) => {$(
        $(#[$doc])*
        pub struct $name<'a, T> {
            // Given back before this thread stops being counted.
            guard: rustix_futex_sync::$inner<'a, T>,
            _inside: Inside,
        }

        impl<T> Deref for $name<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.guard
            }
        }
    )*};
}

guards! {
    /// A locked [`Mutex`].
    MutexGuard: MutexGuard;
    /// An [`RwLock`] locked for reading.
    ReadGuard: RwLockReadGuard;
    /// An [`RwLock`] locked for writing.
    WriteGuard: RwLockWriteGuard;
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A lock for one thread at a time.
#[derive(Default)]
pub struct Mutex<T>(rustix_futex_sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(rustix_futex_sync::Mutex::new(value))
    }

    /// Locks it. Waits for other threads.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let _inside = Inside::enter();
        MutexGuard {
            guard: self.0.lock(),
            _inside,
        }
    }

    /// Locks it; None if another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let _inside = Inside::enter();
        Some(MutexGuard {
            guard: self.0.try_lock()?,
            _inside,
        })
    }
}

/// A lock for many readers or one writer.
#[derive(Default)]
pub struct RwLock<T>(rustix_futex_sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(rustix_futex_sync::RwLock::new(value))
    }

    /// Locks it for reading. Waits for a writer.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let _inside = Inside::enter();
        ReadGuard {
            guard: self.0.read(),
            _inside,
        }
    }

    /// Locks it for writing. Waits for other threads.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let _inside = Inside::enter();
        WriteGuard {
            guard: self.0.write(),
            _inside,
        }
    }
}

/// Lets threads wait, without holding a lock, until a state has changed that a lock guards.
#[derive(Default)]
pub struct Signal(AtomicU32);

impl Signal {
    /// A signal that no thread waits for.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The present count of changes. Call it with the lock of the state held, and pass the result to [`Signal::wait`] without the
    /// lock.
    pub fn now(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Waits for a call of [`Signal::notify`] after `seen` was read, or until it is too late. May return early.
    pub fn wait(&self, seen: u32, until: Instant) {
        wait(&self.0, seen, until);
    }

    /// Wakes the waiting threads. Call it after the state has changed.
    pub fn notify(&self) {
        self.0.fetch_add(1, Ordering::Release);
        wake(&self.0);
    }
}
