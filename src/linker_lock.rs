//! Whether the dynamic linker is busy for long, so that this thread must not call it.
//!
//! A constructor of a library that is being opened may wait for another thread, which builds a program. glibc holds a lock while
//! constructors run, and dlsym(3), dlopen(3), dladdr(3) and the first use of a thread-local variable with a destructor wait for it: for
//! ever here. Drivers that call none of these while they compile (rusticl; PoCL and Intel's CPU runtime hang without us, too) must not
//! hang for our sake. The lock may be taken right after it was found free: so it is looked at before each such call, and what is left is
//! a matter of microseconds.
//!
//! No function tells who has the lock. It is one of the few recursive mutexes in the linker's own data, `_rtld_global`, whose place and
//! size its symbol tells, and a mutex says which thread has it. The place in there changes from version to version, so all words are
//! looked at that could be such a mutex, and it counts if it says that another thread of this process has it. Other C libraries have no
//! such data, and nothing is found.

#![allow(unsafe_code)] // the dynamic linker's own data

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};

use crate::fork_safety::Mutex;
use crate::proc_file;

/// How long a thread that has the lock may mostly sleep before a call is left to the driver.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long it may have the lock whatever it does: the largest libraries are opened in seconds.
const LONGEST: Duration = Duration::from_secs(5);
/// How long the lock is looked at without a pause. A thread that calls the linker all the time gives it back for some hundred nanoseconds.
const BRIEF: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_millis(1);
/// How long a verdict holds without being confirmed.
const REMEMBERED: Duration = Duration::from_secs(2);

/// The words of glibc's `pthread_mutex_t` on 64-bit processors, as far as they tell something (bits/struct_mutex.h). It is a part of the
/// binary interface, since programs initialize it themselves.
const LOCK: usize = 0;
const COUNT: usize = 1;
const OWNER: usize = 2;
const USERS: usize = 3;
const KIND: usize = 4;
const MUTEX: usize = 5;
/// PTHREAD_MUTEX_RECURSIVE_NP.
const RECURSIVE: i32 = 1;
const LOCKED: i32 = 1;
const LOCKED_AND_WAITED_FOR: i32 = 2;

/// What may be mutexes in the linker's own data: about ten (glibc 2.36).
static MUTEXES: OnceLock<Vec<&'static [AtomicI32]>> = OnceLock::new();

/// Looks for the linker's mutexes, and for what rustix looks up in the linker when it is asked for the time first. Called before there is
/// a program to be built, where the linker may be called.
pub fn prepare() {
    let _ = clock_gettime(ClockId::RealtimeCoarse);
    MUTEXES.get_or_init(|| {
        let places = linker_data().unwrap_or_default().windows(MUTEX);
        let is_recursive = |words: &&[AtomicI32]| words[KIND].load(Ordering::Relaxed) == RECURSIVE;
        places.filter(is_recursive).collect()
    });
}

#[cfg(all(target_env = "gnu", target_pointer_width = "64"))]
fn linker_data() -> Option<&'static [AtomicI32]> {
    const RTLD_DL_SYMENT: libc::c_int = 1; // dlfcn.h
    /// `Elf64_Sym`.
    #[repr(C)]
    struct Symbol {
        name: u32,
        info: u8,
        other: u8,
        section: u16,
        value: u64,
        size: u64,
    }
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    let mut symbol: *mut Symbol = std::ptr::null_mut();
    // SAFETY: a name, and room for both answers (dladdr(3)).
    let (place, found) = crate::fork_safety::without_forks(|| unsafe {
        let place = libc::dlsym(libc::RTLD_DEFAULT, c"_rtld_global".as_ptr());
        let symbol = (&raw mut symbol).cast();
        let found = libc::dladdr1(place, info.as_mut_ptr(), symbol, RTLD_DL_SYMENT);
        (place, found)
    });
    if place.is_null() || found == 0 || symbol.is_null() || !place.cast::<AtomicI32>().is_aligned()
    {
        return None;
    }
    // SAFETY: the linker gave both; its data lives as long as the process, and is never made unreadable. It is read as atomic words,
    // since other threads write it.
    unsafe {
        let is_it = (*info.as_ptr()).dli_saddr == place;
        let count = usize::try_from((*symbol).size).ok()? / size_of::<AtomicI32>();
        is_it.then(|| std::slice::from_raw_parts(place.cast(), count))
    }
}

#[cfg(not(all(target_env = "gnu", target_pointer_width = "64")))]
fn linker_data() -> Option<&'static [AtomicI32]> {
    None
}

/// The thread that was found to wait while it had the lock, and when that was last seen: a program may build much meanwhile.
static VERDICT: Mutex<Option<(i32, Instant)>> = Mutex::new(None);

/// Whether another thread has the linker's lock and mostly sleeps, so that it may wait for this one. Waits until the lock is free, or that
/// is known.
pub fn is_busy_for_long() -> bool {
    let Some(first) = holder() else {
        return false;
    };
    // A handler of a signal may have interrupted this here.
    let known = VERDICT.try_lock().and_then(|verdict| *verdict);
    let is_known = known.is_some_and(|(thread, at)| thread == first && at.elapsed() < REMEMBERED);
    if is_known || waits(first) {
        if let Some(mut verdict) = VERDICT.try_lock() {
            *verdict = Some((first, Instant::now()));
        }
        return true;
    }
    false
}

/// Whether the lock does not become free before it is known that its holder waits, or has it for too long.
fn waits(mut holder: i32) -> bool {
    let began = Instant::now();
    let (mut since, mut looks, mut sleeps) = (began, 0, 0);
    while !becomes_free() {
        thread::sleep(PAUSE);
        let Some(now) = self::holder() else {
            return false;
        };
        if now != holder {
            holder = now;
            (since, looks, sleeps) = (Instant::now(), 0, 0);
        }
        looks += 1;
        sleeps += u32::from(is_asleep(holder));
        let is_over = since.elapsed() >= PATIENCE && sleeps > looks / 2;
        if is_over || began.elapsed() >= LONGEST {
            return true;
        }
    }
    false
}

/// Whether the lock is free at some time soon.
fn becomes_free() -> bool {
    let until = Instant::now() + BRIEF;
    loop {
        if holder().is_none() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::hint::spin_loop();
    }
}

/// The other thread that has the linker's lock.
fn holder() -> Option<i32> {
    let mutexes = MUTEXES.get().into_iter().flatten();
    let mut holders = mutexes.filter_map(|mutex| {
        let word = |index: usize| mutex[index].load(Ordering::Relaxed);
        let is_locked = matches!(word(LOCK), LOCKED | LOCKED_AND_WAITED_FOR)
            && word(COUNT) > 0
            && word(USERS) == 1;
        is_locked.then(|| word(OWNER))
    });
    holders.find(|owner| is_another_thread(*owner))
}

/// Whether a thread of this process sleeps until something happens; one that waits for a disk does not count (proc_pid_stat(5), state).
fn is_asleep(thread: i32) -> bool {
    let status = proc_file::read(&format!("/proc/self/task/{thread}/stat"));
    let status = status.unwrap_or_default();
    // The state follows the thread's name, which stands in parentheses. The name may contain parentheses, too.
    let name_end = status.iter().rposition(|byte| *byte == b')');
    let state = name_end.and_then(|end| status.get(end + 2));
    state == Some(&b'S')
}

/// Whether this is the number of a thread of this process, but not of this one.
fn is_another_thread(number: i32) -> bool {
    if number <= 0 || number == gettid().as_raw_nonzero().get() {
        return false;
    }
    // SAFETY: asks only; no signal is sent.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// dl_iterate_phdr(3) holds another lock of the linker's while it calls its function.
    #[test]
    fn a_lock_of_the_linkers_is_held_by_the_thread_that_has_it_and_only_for_others() {
        extern "C" fn visit(
            _: *mut libc::dl_phdr_info,
            _: usize,
            seen: *mut libc::c_void,
        ) -> libc::c_int {
            let by_itself = holder().is_some();
            let by_other = thread::scope(|scope| scope.spawn(|| holder().is_some()).join());
            // SAFETY: the caller's, who waits.
            unsafe {
                *seen.cast::<Option<(bool, bool)>>() = Some((by_itself, by_other.unwrap_or(false)))
            };
            1
        }
        prepare();
        let mut seen: Option<(bool, bool)> = None;
        #[allow(clippy::disallowed_methods)] // no child is forked meanwhile
        // SAFETY: the function above, and what it writes to.
        crate::fork_safety::without_forks(|| unsafe {
            libc::dl_iterate_phdr(Some(visit), (&raw mut seen).cast())
        });
        let tells = cfg!(all(target_env = "gnu", target_pointer_width = "64"));
        // Other tests may call the linker meanwhile.
        assert_eq!(seen.map(|(_, by_other)| by_other), Some(tells));
    }
}
