//! Whether the dynamic linker is busy for long, so that this thread must not call it.
//!
//! A constructor of a library that is being opened may wait for another thread, which builds a program. glibc holds a lock while
//! constructors run, and dlsym(3), dlopen(3), dladdr(3) and the first use of a thread-local variable with a destructor wait for it: for
//! ever here. Drivers that call none of these while they compile (rusticl; PoCL and Intel's CPU runtime hang without us, too) must not
//! hang for our sake. The lock may be taken right after it was found free: so it is looked at before each such call of a build, and what
//! is left is a matter of microseconds.
//!
//! No function tells who has a lock. It is one of the few recursive mutexes in the linker's own data, `_rtld_global`, whose place and
//! size its symbol tells, and a mutex says which thread has it. The place in there changes from version to version, so all words are
//! looked at that could be such a mutex, and it counts if it says that another thread has it. That thread may have ended, or have been
//! lost in a fork: then the lock stays as it is. Other C libraries have no such data, and nothing is found.

#![allow(unsafe_code)] // the dynamic linker's own data

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};

use crate::fork_safety::without_forks;
use crate::proc_file;

/// How long a thread that has the lock may mostly sleep before a call is left to the driver.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long it may have the lock whatever it does.
const LONGEST: Duration = Duration::from_secs(1);
/// How long the lock is looked at without a pause. A thread that calls the linker all the time gives it back for some hundred nanoseconds.
const BRIEF: Duration = Duration::from_micros(50);
const PAUSE: Duration = Duration::from_millis(1);

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

/// What may be a mutex of the linker's.
type Words = [AtomicI32];

/// The linker's lock, as it is seen from outside.
struct LinkerLock {
    /// What may be its mutexes: about ten (glibc 2.36).
    mutexes: Vec<&'static Words>,
    /// The thread that was found to wait while it had the lock; 0: none. A program may build much meanwhile.
    waiting: AtomicI32,
}

static LOCK_OF_LINKER: OnceBox<LinkerLock> = OnceBox::new();

/// Looks for the linker's mutexes, and for what rustix looks up in the linker when it is asked for the time first. Called before there is
/// a program to be built, where the linker may be called.
pub fn prepare() {
    let _ = clock_gettime(ClockId::RealtimeCoarse);
    LOCK_OF_LINKER.get_or_init(|| {
        let places = linker_data().unwrap_or_default().windows(MUTEX);
        let is_recursive = |words: &&Words| words[KIND].load(Ordering::Relaxed) == RECURSIVE;
        Box::new(LinkerLock::of(places.filter(is_recursive).collect()))
    });
}

/// How often the linker was busy for long.
static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// Whether another thread has the linker's lock and mostly sleeps, so that it may wait for this one. Waits until the lock is free, or that
/// is known.
pub fn is_busy_for_long() -> bool {
    let lock = LOCK_OF_LINKER.get();
    let is_busy = lock.is_some_and(LinkerLock::is_busy_for_long);
    if is_busy {
        REFUSALS.fetch_add(1, Ordering::Relaxed);
    }
    is_busy
}

/// Whether any thread has the lock, this one as well. Waits for nothing.
pub fn is_held() -> bool {
    let lock = LOCK_OF_LINKER.get();
    lock.is_none_or(|lock| lock.mutexes.iter().any(|words| holder_of(words).is_some()))
}

/// What the function finds out from the linker; None if some of it may not have been asked, since that was busy for long.
pub fn complete<T>(find: impl FnOnce() -> T) -> Option<T> {
    let before = REFUSALS.load(Ordering::Relaxed);
    let found = find();
    (REFUSALS.load(Ordering::Relaxed) == before).then_some(found)
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
    let (place, found) = without_forks(|| unsafe {
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

impl LinkerLock {
    fn of(mutexes: Vec<&'static Words>) -> LinkerLock {
        LinkerLock {
            mutexes,
            waiting: AtomicI32::new(0),
        }
    }

    fn is_busy_for_long(&self) -> bool {
        let known = self.waiting.load(Ordering::Relaxed);
        let waiting = match self.holder() {
            Some(first) if first == known && !self.becomes_free() => return true,
            Some(first) => self.find_waiting(first).unwrap_or(0),
            None => 0,
        };
        if waiting != known {
            self.waiting.store(waiting, Ordering::Relaxed);
        }
        waiting != 0
    }

    /// Who has the lock, if it does not become free before it is known that this thread waits, or has it for too long.
    fn find_waiting(&self, mut holder: i32) -> Option<i32> {
        let began = Instant::now();
        let (mut since, mut looks, mut sleeps) = (began, 0, 0);
        while !self.becomes_free() {
            thread::sleep(PAUSE);
            let now = self.holder()?;
            if now != holder {
                holder = now;
                (since, looks, sleeps) = (Instant::now(), 0, 0);
            }
            looks += 1;
            sleeps += u32::from(is_asleep(holder));
            let is_over = since.elapsed() >= PATIENCE && sleeps > looks / 2;
            if is_over || began.elapsed() >= LONGEST {
                return Some(holder);
            }
        }
        None
    }

    /// Whether the lock is free at some time soon.
    fn becomes_free(&self) -> bool {
        let until = Instant::now() + BRIEF;
        loop {
            if self.holder().is_none() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// The other thread that has the lock.
    fn holder(&self) -> Option<i32> {
        let mut holders = self.mutexes.iter().filter_map(|words| holder_of(words));
        // Asked for only where one is held: a system call.
        holders.find(|holder| *holder != own_number())
    }
}

fn own_number() -> i32 {
    gettid().as_raw_nonzero().get()
}

/// The thread that has a mutex, if this is one.
fn holder_of(words: &Words) -> Option<i32> {
    let word = |index: usize| words[index].load(Ordering::Relaxed);
    let is_locked =
        matches!(word(LOCK), LOCKED | LOCKED_AND_WAITED_FOR) && word(COUNT) > 0 && word(USERS) == 1;
    let owner = word(OWNER);
    (is_locked && owner > 0).then_some(owner)
}

/// Whether a thread of this process sleeps until something happens, or is none any more; one that waits for a disk does not count
/// (proc_pid_stat(5), state). If the system does not tell, it may sleep.
fn is_asleep(thread: i32) -> bool {
    let Ok(status) = proc_file::read(&format!("/proc/self/task/{thread}/stat")) else {
        return true;
    };
    // The state is behind the last closing parenthesis: before it stands the thread's name in parentheses, which may contain some itself.
    let name_end = status.iter().rposition(|byte| *byte == b')');
    let state = name_end.and_then(|end| status.get(end + 2));
    matches!(state, None | Some(b'S' | b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// dl_iterate_phdr(3) holds another lock of the linker's while it calls its function.
    #[test]
    fn a_lock_of_the_linkers_is_held_by_the_thread_that_has_it_and_only_for_others() {
        extern "C" fn visit(_: *mut libc::dl_phdr_info, _: usize, seen: *mut c_void) -> c_int {
            let is_held = || LOCK_OF_LINKER.get()?.holder();
            let by_other = thread::scope(|scope| scope.spawn(|| is_held().is_some()).join());
            // SAFETY: the caller's, who waits.
            unsafe { *seen.cast::<Option<bool>>() = by_other.ok() };
            1
        }
        prepare();
        let mut seen: Option<bool> = None;
        #[allow(clippy::disallowed_methods)] // no child is forked meanwhile
        // SAFETY: the function above, and what it writes to.
        without_forks(|| unsafe {
            libc::dl_iterate_phdr(Some(visit), (&raw mut seen).cast());
        });
        let tells = cfg!(all(target_env = "gnu", target_pointer_width = "64"));
        // Other tests may call the linker meanwhile.
        assert_eq!(seen, Some(tells));
    }

    /// A lock with one mutex, which nobody has.
    fn free_lock() -> LinkerLock {
        let words: &'static mut [AtomicI32; MUTEX] = Box::leak(Box::default());
        words[KIND] = AtomicI32::new(RECURSIVE);
        LinkerLock::of(vec![words])
    }

    fn set_holder(lock: &LinkerLock, holder: Option<i32>) {
        let words = lock.mutexes[0];
        let is_held = i32::from(holder.is_some());
        words[OWNER].store(holder.unwrap_or(0), Ordering::SeqCst);
        for word in [COUNT, USERS, LOCK] {
            words[word].store(is_held, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_lock_is_busy_for_long_while_another_thread_has_it_and_sleeps() {
        let (number, is_over) = (AtomicI32::new(0), AtomicBool::new(false));
        let sleeper_is = || Some(number.load(Ordering::SeqCst)).filter(|number| *number != 0);
        let lock = free_lock();
        assert!(!lock.is_busy_for_long());
        set_holder(&lock, Some(own_number()));
        assert!(!lock.is_busy_for_long());
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                number.store(own_number(), Ordering::SeqCst);
                while !is_over.load(Ordering::SeqCst) {
                    thread::park();
                }
            });
            while sleeper_is().is_none() {
                thread::sleep(PAUSE);
            }
            set_holder(&lock, sleeper_is());
            assert_eq!([(); 3].map(|()| lock.is_busy_for_long()), [true; 3]);
            // It uses the linker much from now on.
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    set_holder(&lock, sleeper_is());
                    set_holder(&lock, None);
                }
            });
            while lock.is_busy_for_long() {}
            is_over.store(true, Ordering::SeqCst);
            sleeper.thread().unpark();
        });
        assert!(!lock.is_busy_for_long());
    }

    /// The lock stays as it is.
    #[test]
    fn a_lock_is_busy_for_long_whose_holder_has_ended() {
        let lock = free_lock();
        let ended = thread::spawn(own_number).join();
        set_holder(&lock, ended.ok());
        assert!(lock.is_busy_for_long());
    }

    #[test]
    fn a_thread_that_works_is_not_asleep() {
        assert!(!is_asleep(own_number()));
    }
}
