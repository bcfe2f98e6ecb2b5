//! Locks that a fork finds free, whichever thread forks.
//!
//! A child has one thread, the one that forked. What another thread had locked at that moment stays locked in the child, and
//! what it was changing stays half changed. So every lock of this library is one of these: whoever wants one is counted
//! until it gives the lock back, and before each fork a handler of pthread_atfork waits until nobody is counted; who comes
//! meanwhile waits until the fork has happened. So nothing is held across a fork, and the child has nothing to unlock: it
//! sets two counts. Who waits for a lock is counted as well, so that at a fork no thread stands in parking_lot's queues,
//! which would lead the child into memory of threads that are gone.
//!
//! The same holds for what takes a lock of the C library's own ([`without_forks`]).
//!
//! No driver and no callback is called with a lock held, so the handler waits for short work of ours only: at most a small
//! file is read or written. Both waits end after [`PATIENCE`] all the same, since another handler of the application's may
//! wait for a thread that waits here. Then all goes on as if there was no handler.
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

/// How long a fork waits for threads that hold locks, and they for a fork.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads that hold or want locks. Together with [`FORKING`] it works as in Dekker's algorithm, hence `SeqCst`: a thread
/// counts itself, then looks for forks; a fork counts itself, then looks for threads.
static INSIDE: AtomicU32 = AtomicU32::new(0);

/// Forks that are about to happen.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// What a child does first.
static IN_CHILD: OnceBox<fn()> = OnceBox::new();

thread_local! {
    /// How many locks this thread holds or wants.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// From now on forks find all locks free, and `in_child` runs in each child, where it may take locks. Only the first call
/// has an effect.
pub fn prepare(in_child: fn()) {
    if IN_CHILD.set(Box::new(in_child)).is_ok() {
        // SAFETY: the functions take and give nothing. The C library drops them should this library be unmapped.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(after_in_child)) };
    }
}

/// What this thread itself holds does not count: it forks in a signal handler, and the child goes on where it was.
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

/// Waits until the word may be another than `seen`; false if it is too late.
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

/// Calls what takes a short lock that is not ours, and that a child would find taken: the C library resets few of its own.
///
/// Such is dl_iterate_phdr's (glibc 2.36): children of threads that build hung in it for ever, one of 2,000, when it was
/// called plainly. Where another library's thread is in it at a fork, nothing helps; it is held for microseconds.
pub fn without_forks<T>(body: impl FnOnce() -> T) -> T {
    let _inside = Inside::enter();
    body()
}

/// While it lives, no other thread forks. It stays on its thread.
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
            guard: parking_lot::$inner<'a, T>,
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
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Not locked.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let _inside = Inside::enter();
        MutexGuard {
            guard: self.0.lock(),
            _inside,
        }
    }

    /// None if another thread has it.
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
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Not locked.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Waits for it, to read.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let _inside = Inside::enter();
        ReadGuard {
            guard: self.0.read(),
            _inside,
        }
    }

    /// Waits for it, to write.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let _inside = Inside::enter();
        WriteGuard {
            guard: self.0.write(),
            _inside,
        }
    }
}

/// Something that threads wait for without a lock: that a state has changed which a lock guards.
#[derive(Default)]
pub struct Signal(AtomicU32);

impl Signal {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// To be taken with the lock held that guards the state, and passed to [`Signal::wait`] without it.
    pub fn now(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Waits until there was a call of [`Signal::notify`] after `seen` was taken, or until it is too late. May end early.
    pub fn wait(&self, seen: u32, until: Instant) {
        wait(&self.0, seen, until);
    }

    /// To be called after the state has changed.
    pub fn notify(&self) {
        self.0.fetch_add(1, Ordering::Release);
        wake(&self.0);
    }
}
