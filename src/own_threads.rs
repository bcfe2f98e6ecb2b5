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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use crate::reserve::has_room;
use crate::{linker_lock, proc_file, syscall_filters, task_limit};
pub use promise::Promise;

mod promise;

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
        || syscall_filters::are_own_or_inherited()
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
    let locked = || proc_file::number_of(&proc_file::read("/proc/self/status").ok()?, "VmLck:");
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

/// Whether the caller is scheduled before all usual threads (sched(7)).
pub fn is_real_time() -> bool {
    // SAFETY: asks only, for this thread. The function of musl does nothing.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
    !usual.map(libc::c_long::from).contains(&policy)
}

#[cfg(test)]
pub mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_that_nobody_has_asked_for_has_no_helpers() {
        let asked = || (is_unasked(), useful(8));
        let before = asked();
        assert_eq!(unasked(asked), (true, 0));
        assert_eq!(asked(), before);
    }

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

    #[test]
    fn a_thread_has_its_stack_for_itself() {
        assert!(cfg!(not(target_env = "gnu")) || taken_by_c_library() > 0);
    }

    /// Adds a filter that lets everything pass. It holds for this thread only.
    fn filter() -> bool {
        let filter = [libc::sock_filter {
            code: 0x06, // return
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        }];
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: a program of that many instructions (seccomp(2)).
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        }
    }

    #[test]
    fn a_thread_with_a_filter_of_its_own_starts_none() {
        syscall_filters::note();
        let confined = thread::spawn(|| (filter(), may_start(), syscall_filters::were_added()));
        assert_eq!(confined.join().expect("it ends"), (true, false, true));
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
        let of_parent = || {
            // SAFETY: the child goes on with the test, and what forked it ends as it does.
            unsafe {
                let is_set = filter();
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
            (&filter, false),
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
}
