//! Threads of ours in a process that is not.
//!
//! They handle no signal, since the application's handlers run in its own threads. There are none
//! - if the program limits its address space, of which the allocator takes 64 MiB for each thread,
//! - if it limits its data, or locks all memory that it gets: where there is none left for the thread-local variables of a thread, the C
//!   library ends the process (measured),
//! - if few more threads may be started, so that the driver finds none left,
//! - if the program has a filter of system calls that its parent or the first process does not have: it may end a process that starts a
//!   thread,
//! - if the caller has a real-time priority, which a thread inherits: it would keep a processor from the program's other threads.

#![allow(unsafe_code)] // masks signals, and asks the C library

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getppid, getrlimit};
use rustix::thread::gettid;

use crate::fork_generation::generation;
use crate::fork_safety::{Mutex, Signal};
use crate::reserve::has_room;
use crate::{linker_lock, proc_file, task_limit};

/// How long a thread that waits sleeps before it looks again, should it not be woken.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a thread needs beside its stack, in bytes: thread-local variables and what the allocator begins with.
const OWN_DATA: usize = 1 << 20;

/// Starts a thread that handles no signals, with a stack of this size for itself.
///
/// # Errors
/// There can be no more threads, or none is started beside a library's constructor: the standard library registers a destructor then
/// (see `linker_lock`).
pub fn start(stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    if linker_lock::is_busy_for_long() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let size = stack.saturating_add(taken_by_c_library());
    if !has_room(size.saturating_add(OWN_DATA)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let mut started = None;
    without_signals(|| {
        let thread = thread::Builder::new().name("oclcache".into());
        started = Some(thread.stack_size(size).spawn(run));
    });
    started.unwrap_or_else(|| Err(io::ErrorKind::Other.into()))
}

/// What [`taken_by_c_library`] has found out, and [`UNKNOWN`] before.
static TAKEN_BY_C_LIBRARY: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = usize::MAX;

/// Asks the C library what a thread needs, where the dynamic linker may be called: later it may not, see `linker_lock`.
pub fn prepare() {
    taken_by_c_library();
}

/// How much of a thread's stack the C library takes: the thread-local variables of the libraries that the program was started with, which
/// may be megabytes (measured: without this, a thread ended the process).
fn taken_by_c_library() -> usize {
    let known = TAKEN_BY_C_LIBRARY.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known;
    }
    // SAFETY: only the address is taken. glibc's function tells the size; other C libraries put nothing there and have no such function.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    let taken = match function.is_null() {
        true => 0,
        // SAFETY: the type that glibc and the standard library have for it (std::sys::thread::unix). It reads its argument at most.
        false => unsafe {
            let tell: unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t =
                std::mem::transmute(function);
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&mut attributes);
            let size = tell(&attributes);
            libc::pthread_attr_destroy(&mut attributes);
            size
        },
    };
    TAKEN_BY_C_LIBRARY.store(taken, Ordering::Relaxed);
    taken
}

/// What a function that runs on another thread is going to return.
pub struct Promise<T> {
    shared: Arc<Shared<T>>,
    thread: JoinHandle<()>,
    /// The process that has the thread.
    generation: u64,
}

struct Shared<T> {
    /// None until the function has returned, and again when its result was taken.
    result: Mutex<Option<T>>,
    state: AtomicU8,
    changed: Signal,
    /// The number that the system has given to the thread.
    number: AtomicI32,
}

/// What [`Shared::state`] says, in this order.
const STARTED: u8 = 0;
const BEGUN: u8 = 1;
const OVER: u8 = 2;
/// The thread has not begun in time, and does nothing.
const GIVEN_UP: u8 = 3;

impl<T: Send + 'static> Promise<T> {
    /// Runs two functions on a thread of its own. None: it could not be started, or has not run the first one within this time.
    ///
    /// The first should need what the second needs: the caller may hold a lock of the C library's, for which the thread would wait
    /// as long as the caller waits for it. That of the dynamic linker is held in each library's constructor.
    pub fn new(
        stack: usize,
        patience: Duration,
        first: impl FnOnce() + Send + 'static,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Promise<T>> {
        let shared = Arc::new(Shared {
            result: Mutex::new(None),
            state: AtomicU8::new(STARTED),
            changed: Signal::new(),
            number: AtomicI32::new(0),
        });
        let of_thread = shared.clone();
        let started = start(stack, move || {
            let number = gettid().as_raw_nonzero().get();
            of_thread.number.store(number, Ordering::Relaxed);
            let result = catch_unwind(AssertUnwindSafe(|| {
                first();
                of_thread.goes_on(BEGUN).then(run)
            }));
            *of_thread.result.lock() = result.ok().flatten();
            of_thread.state.store(OVER, Ordering::Release);
            of_thread.changed.notify();
        });
        let thread = started.ok()?;
        let until = Instant::now() + patience;
        loop {
            let seen = shared.changed.now();
            if shared.state.load(Ordering::Acquire) != STARTED {
                let generation = generation();
                return Some(Promise {
                    shared,
                    thread,
                    generation,
                });
            }
            if Instant::now() >= until && shared.goes_on(GIVEN_UP) {
                return None;
            }
            shared.changed.wait(seen, until);
        }
    }

    /// Waits for the result and for the end of the thread, while it `may_wait`, which is asked now and then. None: a function has
    /// panicked, or the thread was not waited for, or this is a forked child, which has no such thread.
    pub fn wait(self, may_wait: impl Fn() -> bool) -> Option<T> {
        self.wait_by_steps(LOOK_AGAIN, may_wait)
    }

    /// The same, for at most this time. A thread that takes longer ends by itself.
    pub fn wait_for(self, patience: Duration) -> Option<T> {
        let until = Instant::now() + patience;
        self.wait_by_steps(patience, || Instant::now() < until)
    }

    fn wait_by_steps(self, step: Duration, may_wait: impl Fn() -> bool) -> Option<T> {
        loop {
            let seen = self.shared.changed.now();
            if self.generation != generation() {
                std::mem::forget(self.thread);
                return None;
            }
            if self.shared.state.load(Ordering::Acquire) == OVER {
                // Programs that must have one thread may go on at once: unshare(CLONE_NEWUSER) asks for that.
                let _ = self.thread.join();
                until_gone(self.shared.number.load(Ordering::Relaxed));
                return self.shared.result.lock().take();
            }
            if !may_wait() {
                return None;
            }
            self.shared.changed.wait(seen, Instant::now() + step);
        }
    }
}

/// Waits until the system does not count an ended thread any more. It may do so for some microseconds after pthread_join(3) has returned
/// (measured: after up to 7 of 10,000).
fn until_gone(thread: i32) {
    const PATIENCE: Duration = Duration::from_millis(100);
    let until = Instant::now() + PATIENCE;
    // SAFETY: asks only; no signal is sent.
    while unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) } == 0
        && Instant::now() < until
    {
        thread::yield_now();
    }
}

impl<T> Shared<T> {
    /// Leaves the first state for this one. False: it was left before.
    fn goes_on(&self, next: u8) -> bool {
        let left = self
            .state
            .compare_exchange(STARTED, next, Ordering::AcqRel, Ordering::Acquire);
        self.changed.notify();
        left.is_ok()
    }
}

/// Runs with all signals blocked, as threads inherit it that are started meanwhile: the application's handlers run in its own threads.
fn without_signals(run: impl FnOnce()) {
    // SAFETY: both sets are ours, all zeros is a set without signals, and the mask is that of this thread alone.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    run();
    // SAFETY: the set is the mask that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
}

thread_local! {
    /// Whether [`unasked`] runs. Without a destructor, which a thread could not register beside a constructor (see `linker_lock`).
    static IS_UNASKED: Cell<bool> = const { Cell::new(false) };
}

/// Does work that nobody has asked for: no other thread helps, and no message tells of it.
pub fn unasked<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_UNASKED.set(self.0);
        }
    }
    let _before = Before(IS_UNASKED.replace(true));
    work()
}

/// Whether nobody has asked for what this thread does.
pub fn is_unasked() -> bool {
    IS_UNASKED.get()
}

/// How many [`DriverAtWork`] there are.
static IN_DRIVERS: AtomicUsize = AtomicUsize::new(0);

/// While it lives, a driver compiles beside threads of ours.
pub struct DriverAtWork(());

impl DriverAtWork {
    /// From now on.
    pub fn begin() -> DriverAtWork {
        IN_DRIVERS.fetch_add(1, Ordering::Relaxed);
        DriverAtWork(())
    }

    /// How many there are.
    pub fn count() -> usize {
        IN_DRIVERS.load(Ordering::Relaxed)
    }
}

impl Drop for DriverAtWork {
    fn drop(&mut self) {
        IN_DRIVERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many threads, of at most so many, would have a processor beside the caller, and may be started. Reads files of control groups.
pub fn useful(most: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    match (processors - 1).min(most) {
        0 => 0,
        _ if !may_start() => 0,
        useful => useful,
    }
}

/// Whether a thread may be started here, whatever processor it has.
pub fn may_start() -> bool {
    let is_limited = |limit| getrlimit(limit).current.is_some();
    !(is_unasked()
        || is_limited(Resource::As)
        || is_limited(Resource::Data)
        || locks_all()
        || has_own_filter()
        || is_real_time()
        || !task_limit::has_room())
}

/// The same, beside drivers at work.
pub fn useful_beside_drivers(most: usize) -> usize {
    let at_work = DriverAtWork::count();
    useful(most.saturating_add(at_work)).saturating_sub(at_work)
}

/// Whether all memory is locked that this process gets from now on (MCL_FUTURE of mlockall(2)). Nothing tells that but a new page.
fn locks_all() -> bool {
    const PAGE: usize = 4096;
    let locked = || number_of(&proc_file::read("/proc/self/status").ok()?, "VmLck:");
    // SAFETY: a new mapping, which nothing is ever written to or read from.
    let with_page = unsafe {
        let access = ProtFlags::READ.union(ProtFlags::WRITE);
        let Ok(page) = mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) else {
            return true;
        };
        let with_page = locked();
        if munmap(page, PAGE).is_err() {
            return true;
        }
        with_page
    };
    with_page != Some(0) && with_page != locked()
}

/// Whether the program has a filter of system calls that its parent or the first process does not have. A container has one for all its
/// processes. A child has that of a parent that has made its own sandbox.
fn has_own_filter() -> bool {
    let filters =
        |process: &str| filters(&proc_file::read(&format!("/proc/{process}/status")).ok()?);
    match filters("self") {
        Some(0) => false,
        own => {
            let parent = getppid().map(|parent| parent.as_raw_nonzero().to_string());
            own.is_none()
                || parent.and_then(|parent| filters(&parent)) != own
                || filters("1") != own
        }
    }
}

/// Whether the caller is scheduled before all usual threads (sched(7)).
fn is_real_time() -> bool {
    // SAFETY: asks only, for this thread. The function of musl does nothing.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
    !usual.map(libc::c_long::from).contains(&policy)
}

/// How many filters a process has. None: the system does not tell.
fn filters(status: &[u8]) -> Option<u32> {
    match number_of(status, "Seccomp:") {
        Some(0) => Some(0),
        _ => number_of(status, "Seccomp_filters:"), // since Linux 5.9
    }
}

/// The first number of a field of proc_pid_status(5).
fn number_of(status: &[u8], name: &str) -> Option<u32> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    let mut words = std::str::from_utf8(value).ok()?.split_ascii_whitespace();
    words.next()?.parse().ok()
}

#[cfg(test)]
pub mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn work_that_nobody_has_asked_for_has_no_helpers() {
        let asked = || (is_unasked(), useful(8));
        let before = asked();
        assert_eq!(unasked(asked), (true, 0));
        assert_eq!(asked(), before);
    }

    const STACK: usize = 256 << 10;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// How a child has ended. One that hangs is killed.
    pub fn end_of(child: libc::pid_t) -> libc::c_int {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut status = -1;
        // SAFETY: of a child of this process.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            if Instant::now() > deadline {
                // SAFETY: as above.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            thread::sleep(Duration::from_millis(1));
        }
        status
    }

    /// Which signals this thread blocks.
    fn blocked() -> Vec<i32> {
        // SAFETY: the set is ours, all zeros is a set without signals, and nothing is changed.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
            set
        };
        // SAFETY: the set is a set, and the numbers are those of signals.
        let is_blocked = |signal: &i32| unsafe { libc::sigismember(&set, *signal) == 1 };
        (1..32).filter(is_blocked).collect()
    }

    #[test]
    fn a_thread_handles_no_signals_and_hands_over_its_result() {
        let own = blocked();
        let promise = Promise::new(STACK, PATIENCE, || {}, blocked).expect("a thread");
        let all = (1..32).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal));
        assert_eq!(promise.wait(|| true), Some(all.collect()));
        assert_eq!(blocked(), own);
        let promise = Promise::new(STACK, PATIENCE, || {}, || panic!("in a thread"));
        assert_eq!(promise.expect("a thread").wait(|| true), None::<()>);
    }

    #[test]
    fn a_thread_that_was_waited_for_is_gone() {
        for _ in 0..2000 {
            let own = || gettid().as_raw_nonzero().get();
            let promise = Promise::new(STACK, PATIENCE, || {}, own);
            let thread = promise
                .and_then(|promise| promise.wait(|| true))
                .expect("a thread");
            // SAFETY: asks only; no signal is sent.
            let told = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) };
            assert_eq!(told, -1, "unshare(2) would find two threads");
        }
    }

    #[test]
    fn a_thread_that_cannot_begin_is_given_up_and_does_nothing() {
        let held = Arc::new(Mutex::new(0));
        let (first, second) = (held.clone(), held.clone());
        let guard = held.lock();
        let short = Duration::from_millis(10);
        let promise = Promise::new(
            STACK,
            short,
            move || *first.lock() += 1,
            move || *second.lock() += 2,
        );
        assert!(promise.is_none());
        drop(guard);
        // Both are dropped when the thread ends.
        let deadline = Instant::now() + PATIENCE;
        while Arc::strong_count(&held) > 1 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*held.lock(), 1);
    }

    #[test]
    fn a_thread_that_may_not_be_waited_for_goes_on_alone() {
        let held = Arc::new(Mutex::new(0));
        let seen = held.clone();
        let guard = held.lock();
        let promise = Promise::new(STACK, PATIENCE, || {}, move || *seen.lock() += 1);
        assert_eq!(promise.expect("a thread").wait(|| false), None);
        drop(guard);
        let deadline = Instant::now() + PATIENCE;
        while *held.lock() == 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*held.lock(), 1);
    }

    #[test]
    fn a_thread_has_its_stack_for_itself() {
        assert!(cfg!(not(target_env = "gnu")) || taken_by_c_library() > 0);
    }

    #[test]
    fn a_child_that_is_forked_meanwhile_does_not_wait_for_the_thread() {
        let may_end = Arc::new(AtomicBool::new(false));
        let seen = may_end.clone();
        let promise = Promise::new(
            STACK,
            PATIENCE,
            || {},
            move || {
                while !seen.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
            },
        );
        let promise = promise.expect("a thread");
        // SAFETY: the child calls what is tested, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_none = promise.wait(|| true).is_none();
            // SAFETY: it ends the child.
            unsafe { libc::_exit(i32::from(!is_none)) };
        }
        let status = end_of(child);
        may_end.store(true, Ordering::SeqCst);
        assert_eq!(promise.wait(|| true), Some(()));
        assert_eq!(status, 0, "the child hung");
    }

    #[test]
    fn where_the_program_is_limited_there_are_none() {
        let limited_to = |most, resource| {
            let limit = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            // SAFETY: it limits this child of the test, and reads what is lent to it.
            unsafe { libc::setrlimit(resource, &limit) == 0 }
        };
        let limited = |resource| limited_to(1 << 40, resource);
        let filter = [libc::sock_filter {
            code: 0x06, // return
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        }];
        let filters = || {
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_ptr().cast_mut(),
            };
            // SAFETY: of this child of the test, and a program of that many instructions (seccomp(2)).
            unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
            }
        };
        let of_parent = || {
            // SAFETY: the child goes on with the test, and what forked it ends as it does.
            unsafe {
                let is_set = filters();
                match libc::fork() {
                    0 => is_set,
                    child => libc::_exit(i32::from(end_of(child) != 0)),
                }
            }
        };
        let first = || {
            let priority = libc::sched_param { sched_priority: 1 };
            // SAFETY: of this child of the test. Who may not have this gets no other case.
            let is_set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) == 0 };
            is_set || limited(libc::RLIMIT_AS)
        };
        // SAFETY: as above.
        let locks = || unsafe { libc::mlockall(libc::MCL_FUTURE) == 0 };
        let unlimited = || true;
        let cases: [(&dyn Fn() -> bool, bool); 8] = [
            (&unlimited, true),
            (&|| limited(libc::RLIMIT_AS), false),
            (&|| limited(libc::RLIMIT_DATA), false),
            (&locks, false),
            (&|| limited_to(100, libc::RLIMIT_NPROC), false),
            (&filters, false),
            (&of_parent, false),
            (&first, false),
        ];
        let has_any = useful(1) > 0;
        for (number, (limit, expected)) in cases.into_iter().enumerate() {
            // SAFETY: the child calls what is tested, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_set = limit();
                let is_right = is_set && (useful(1) > 0) == (expected && has_any);
                // SAFETY: it ends the child.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            assert_eq!(end_of(child), 0, "case {number}");
        }
    }

    #[test]
    fn filters_are_read_from_the_status() {
        for (status, expected) in [
            ("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n", Some(0)),
            ("Seccomp:\t2\nSeccomp_filters:\t3\n", Some(3)),
            ("Seccomp:\t2\n", None),
            ("Seccomp:\t0\n", Some(0)),
            ("", None),
        ] {
            assert_eq!(filters(status.as_bytes()), expected, "{status}");
        }
    }
}
