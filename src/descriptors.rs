//! How many file descriptors the process has left.

#![allow(unsafe_code)] // asks about numbers that may be nobody's descriptors

use rustix::process::{Resource, getrlimit};

/// Fewer are left to the driver. Measured: about eight of ours stay open, and PoCL 3.1 compiles with no more than two.
const LEAST: usize = 32;
/// At most so many numbers are looked at, from the limit down. The kernel gives the lowest free number, so the highest ones are free in
/// nearly all processes.
const MAX_LOOKED_AT: usize = 4096;

/// Whether the process may open so many more descriptors that ours are in nobody's way.
///
/// Opens none to find out: another thread may need the last one.
pub fn has_room() -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Systems that imitate this one may give any size. So that there is no room is believed only when the numbers say so.
    open_ones().is_some_and(|open| limit.saturating_sub(open) >= LEAST as u64) || has_free(limit)
}

/// How many descriptors this thread has open, which may not share those of the first thread (CLONE_FILES of unshare(2)): the size of the
/// directory that lists them, since Linux 6.2. None: the system does not tell.
fn open_ones() -> Option<u64> {
    let listed = rustix::fs::stat("/proc/thread-self/fd").ok()?;
    u64::try_from(listed.st_size).ok().filter(|open| *open > 0)
}

/// Whether enough numbers below the limit are free.
fn has_free(limit: u64) -> bool {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let numbers = (0..limit).rev().take(MAX_LOOKED_AT);
    numbers
        .filter(|number| is_free(*number))
        .take(LEAST)
        .count()
        == LEAST
}

/// One system call for each number. `poll` answers for all at once, but it takes descriptors of O_PATH for free numbers, and it asks
/// the files themselves: one of `/proc/self/mountinfo` then forgets a change that the program waits for (measured).
fn is_free(number: i32) -> bool {
    // SAFETY: asks only.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    flags == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn a_number_is_free_until_it_is_a_descriptors() {
        assert!(has_room());
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(has_free(limit) && !has_free(LEAST as u64 - 1));
        let opened = |flags| {
            let mut options = std::fs::OpenOptions::new();
            let options = options.read(true).custom_flags(flags);
            options.open("/dev/null").expect("opened")
        };
        for flags in [0, libc::O_PATH] {
            let file = opened(flags);
            assert!(!is_free(file.as_raw_fd()), "{flags:#o}");
        }
        assert!(is_free(i32::MAX));
    }

    #[test]
    fn descriptors_of_a_thread_that_shares_none_are_counted() {
        let open = std::thread::spawn(|| {
            // SAFETY: nothing is open but for this thread from now on.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let held = [(); 200].map(|()| std::fs::File::open("/dev/null").expect("opened"));
            let open = open_ones();
            drop(held);
            open
        });
        let open = open.join().expect("no panic");
        assert!(open.is_none_or(|open| open >= 200), "{open:?}");
    }

    #[test]
    fn open_descriptors_are_counted_where_the_system_does() {
        // Other tests open some meanwhile.
        let held = [(); 100].map(|()| std::fs::File::open("/dev/null").expect("opened"));
        let open = open_ones();
        assert!(
            open.is_none_or(|open| open >= held.len() as u64),
            "{open:?}"
        );
    }
}
