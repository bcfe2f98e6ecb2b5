//! The filters of system calls (seccomp(2)) of this thread, and those of other processes.
//!
//! Each thread has its own, and one that it installs stays. A filter may kill for any call, so what a program has forbidden must not be
//! called, and the question itself is asked in the way that the filters before it have allowed.

#![allow(unsafe_code)] // asks the C library for a number

use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::race::OnceBox;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{getpid, getppid};
use rustix::thread::{SecureComputingMode, no_new_privs, secure_computing_mode};

use crate::fork_generation::generation;
use crate::guarded_file::GuardedFile;
use crate::proc_file;

const OF_PROCESS: &str = "/proc/self/status";
const OF_THREAD: &str = "/proc/thread-self/status";
const OF_FIRST_PROCESS: &str = "/proc/1/status";

/// The filters of a thread, as proc_pid_status(5) tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filters {
    is_on: bool,
    /// How many there are. None: the kernel is older than 5.9 and does not tell.
    count: Option<u32>,
    /// Whether the thread can gain no privileges.
    no_new_privs: bool,
    /// Whether it has CAP_SYS_ADMIN.
    is_privileged: bool,
}

/// Bit of the capability (linux/capability.h).
const CAP_SYS_ADMIN: u32 = 21;

/// What was noted of the filters.
struct Noted {
    /// Those of the thread that noted them. None: the system does not tell.
    of_thread: Option<Filters>,
    of_first_thread: Option<FirstThread>,
}

static NOTED: OnceBox<Noted> = OnceBox::new();
/// Whether prctl(2) has told of a filter in any thread since.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Notes the filters of this thread and of the process's first one, unless that was done.
pub fn note() {
    NOTED.get_or_init(|| {
        let of_first_thread = FirstThread::note();
        let known = of_first_thread.as_ref().filter(|_| is_first_thread());
        let known = known.map(|first| first.filters);
        Box::new(Noted {
            of_thread: known.or_else(|| Filters::read(OF_THREAD)),
            of_first_thread,
        })
    });
}

fn noted() -> Option<Filters> {
    NOTED.get()?.of_thread
}

/// Whether the system calls of this thread are filtered, or were those of any thread that asked before: filters stay.
///
/// A filter may be added at any time, so it is asked for at each look (prctl(2), 0.3 µs). The first time that is read in /proc (20 µs),
/// since a filter that is on already may kill for prctl(2) as well.
pub fn are_on() -> bool {
    note();
    match noted() {
        Some(noted) if !noted.is_on => {
            let is_seen = SEEN.load(Ordering::Relaxed) || is_told();
            SEEN.fetch_or(is_seen, Ordering::Relaxed);
            is_seen
        }
        _ => true,
    }
}

/// Whether this thread may have filters that were not there when they were noted. If nothing was noted, none was on.
///
/// The end of the process asks, where nothing may be allocated. Usually that is its first thread ([`first_thread_has_more`]). All others
/// ask by prctl(2), for which a filter may kill.
pub fn were_added() -> bool {
    first_thread_has_more().unwrap_or_else(may_have_been_added)
}

/// Whether this is the first thread of the process and has filters that were not there when they were noted. None: it is another thread, or
/// that is not known.
///
/// Its status is read from a file that stays open, by fstat(2) and pread(2), which sandboxes let pass that know neither open(2) nor prctl(2).
pub fn first_thread_has_more() -> Option<bool> {
    let first = NOTED.get()?.of_first_thread.as_ref()?;
    is_first_thread().then(|| first.has_more()).flatten()
}

/// The same by prctl(2). A filter that is on beside one that was on before, as in a container, is told by what it needs: a thread adds none
/// that can still gain privileges, unless it is privileged itself. Where that is no difference, as in a container that allows nobody to gain
/// any, the answer is yes.
fn may_have_been_added() -> bool {
    match NOTED.get().map(|noted| noted.of_thread) {
        Some(Some(noted)) if noted.is_on => noted.no_new_privs || no_new_privs().unwrap_or(true),
        Some(None) => true,
        _ => is_told(),
    }
}

/// Why this thread starts no process: it may have more filters than its parent. Then the program installed them itself, as browsers do, and
/// a filter that kills for starting a process or thread would kill this one.
pub fn refusal() -> Option<&'static str> {
    match differ_from_those_of(&[parent()]) {
        None => Some("`/proc` does not tell whether system calls are filtered"),
        Some(differ) => differ.then_some("system calls are filtered"),
    }
}

/// Whether this thread may have filters that its parent or the first process does not have. A container has one for all its processes. A
/// child has that of a parent that has made its own sandbox.
pub fn are_own_or_inherited() -> bool {
    differ_from_those_of(&[parent(), first_process()]).unwrap_or(true)
}

/// `others`: files of their status, None for a parent that there cannot be here. The result is None if the system does not tell of this
/// thread.
fn differ_from_those_of(others: &[Option<String>]) -> Option<bool> {
    let own = Filters::read(OF_THREAD)?;
    let differs = |other: &Option<String>| match other {
        Some(other) => own.may_exceed(Filters::read(other)),
        None => own.may_be_of_first_process(),
    };
    Some(own.is_on && others.iter().any(differs))
}

/// The parent's status. A process that something outside of the container has started there (`docker exec`) has the filter that all have.
fn parent() -> Option<String> {
    match getppid() {
        Some(parent) => Some(format!("/proc/{}/status", parent.as_raw_nonzero())),
        None => first_process(),
    }
}

/// The status of the first process, if this is another one.
fn first_process() -> Option<String> {
    (!getpid().is_init()).then(|| OF_FIRST_PROCESS.to_owned())
}

/// Whether prctl(2) tells of a filter of this thread. Asked where none was on before.
fn is_told() -> bool {
    match secure_computing_mode() {
        Ok(mode) => mode != SecureComputingMode::Disabled,
        // The kernel has no filters.
        Err(error) => error != Errno::INVAL,
    }
}

/// How far below its beginning a first thread's stack is looked for. Usually it has 8 MiB, and no other stack is as near.
const MAX_STACK_BYTES: usize = 64 << 20;

/// Whether this is the first thread of the process, without a system call: the kernel puts the bytes of AT_RANDOM (getauxval(3)) above its
/// stack.
fn is_first_thread() -> bool {
    let here = 0_u8;
    let here = (&raw const here).addr();
    // SAFETY: it only looks a number up.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    (top.saturating_sub(MAX_STACK_BYTES)..top).contains(&here)
}

/// The first thread of the process, and the filters that it had.
struct FirstThread {
    /// Its status.
    status: GuardedFile,
    process: u32,
    generation: u64,
    filters: Filters,
}

impl FirstThread {
    fn note() -> Option<FirstThread> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let status = retry_on_intr(|| openat(CWD, OF_PROCESS, flags, Mode::empty())).ok()?;
        let status = GuardedFile::new(status.into()).ok()?;
        let (process, filters) = FirstThread::read(&status)?;
        Some(FirstThread {
            status,
            process,
            generation: generation(),
            filters,
        })
    }

    /// The number of the process and the filters of its first thread now. None: the file tells neither, or is too long.
    fn read(status: &GuardedFile) -> Option<(u32, Filters)> {
        let mut bytes = [0; 4096];
        let count = status.read_at(&mut bytes, 0).ok()?;
        let told = bytes.get(..count).filter(|_| count < bytes.len())?;
        Some((proc_file::number_of(told, "Pid:")?, Filters::parse(told)))
    }

    /// Whether it has other filters now. None: it is not known, or this is a forked child.
    fn has_more(&self) -> Option<bool> {
        if generation() != self.generation {
            return None;
        }
        let (process, now) = FirstThread::read(&self.status)?;
        let then = self.filters;
        let differs = match (then.count, now.count) {
            (Some(then), Some(now)) => now != then,
            _ => now.is_on && (!then.is_on || now.no_new_privs),
        };
        (process == self.process).then_some(differs)
    }
}

impl Filters {
    /// None: the system does not tell.
    fn read(status: &str) -> Option<Filters> {
        Some(Filters::parse(&proc_file::read(status).ok()?))
    }

    /// Whether there may be more than another process has. None: the system hides its status, as `/proc` may those of other users.
    fn may_exceed(self, other: Option<Filters>) -> bool {
        let counts = self.count.zip(other.and_then(|other| other.count));
        self.is_on && counts.is_none_or(|(own, other)| own != other)
    }

    /// Whether the first process of a container may have added one: it has what it needs for that (seccomp(2)). What it added before it gave
    /// up a privilege is not told.
    fn may_be_of_first_process(self) -> bool {
        self.is_on && (self.no_new_privs || self.is_privileged)
    }

    fn parse(status: &[u8]) -> Filters {
        let number = |name| proc_file::number_of(status, name);
        let capabilities = proc_file::word_of(status, "CapEff:");
        let capabilities = capabilities.and_then(|word| u64::from_str_radix(word, 16).ok());
        Filters {
            // Without this line the kernel has no filters.
            is_on: number("Seccomp:").is_some_and(|mode| mode > 0),
            count: number("Seccomp_filters:"),
            no_new_privs: number("NoNewPrivs:") != Some(0),
            is_privileged: capabilities.is_none_or(|bits| bits >> CAP_SYS_ADMIN & 1 != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_with_the_number_of_the_status_tells_nothing() {
        let mut first = FirstThread::note().expect("noted");
        assert_eq!(first.has_more(), Some(false));
        let theirs = File::from(
            rustix::fs::memfd_create(c"theirs", rustix::fs::MemfdFlags::CLOEXEC).expect("made"),
        );
        let status = std::fs::read(OF_PROCESS).expect("read");
        theirs.write_all_at(&status, 0).expect("written");
        first.status.give_number_to(&theirs);
        assert_eq!(first.has_more(), None);
    }

    #[test]
    fn filters_are_read_from_the_status() {
        for (status, is_on, count) in [
            (
                "Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n",
                false,
                Some(0),
            ),
            ("Seccomp:\t2\nSeccomp_filters:\t3\n", true, Some(3)),
            ("Seccomp:\t2\n", true, None),
            ("Name:\tx\n", false, None),
        ] {
            let found = Filters::parse(status.as_bytes());
            assert_eq!((found.is_on, found.count), (is_on, count), "{status}");
        }
    }

    #[test]
    fn filters_are_compared_by_their_number_or_by_what_adding_one_needs() {
        const NONE: &str =
            "NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\nCapEff:\t0000000000000000\n";
        const ONE: &str =
            "NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\nCapEff:\t00000000a80425fb\n";
        const TWO: &str =
            "NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t2\nCapEff:\t0000000000000000\n";
        const PRIVILEGED: &str = "NoNewPrivs:\t0\nSeccomp:\t2\nCapEff:\t000001ffffffffff\n";
        const OLD: &str = "NoNewPrivs:\t0\nSeccomp:\t2\nCapEff:\t0000000000000000\n";
        for (own, other, expected) in [
            (NONE, None, false),
            (NONE, Some(NONE), false),
            (ONE, Some(NONE), true),
            (ONE, Some(ONE), false),
            (TWO, Some(ONE), true),
            (TWO, Some(TWO), false),
            (ONE, None, true),
            (OLD, Some(NONE), true),
            (OLD, Some(OLD), true),
        ] {
            let other = other.map(|other| Filters::parse(other.as_bytes()));
            let found = Filters::parse(own.as_bytes()).may_exceed(other);
            assert_eq!(found, expected, "{own} {other:?}");
        }
        for (status, expected) in [(NONE, false), (ONE, false), (TWO, true), (PRIVILEGED, true)] {
            let found = Filters::parse(status.as_bytes()).may_be_of_first_process();
            assert_eq!(found, expected, "{status}");
        }
    }
}
