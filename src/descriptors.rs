//! How many file descriptors the process has left.

#![allow(unsafe_code)] // asks about numbers that may be nobody's descriptors

use rustix::process::{Resource, getrlimit};

/// Fewer are left to the driver. Measured: about seven of ours stay open, and PoCL 3.1 compiles with no more than two.
const LEAST: usize = 32;
/// So many numbers are looked at, from the limit down. The kernel gives the lowest free number, so the highest ones are free in nearly
/// all processes. If these are not, more are looked at.
const LOOKED_AT: [usize; 2] = [LEAST, 4096];

/// Whether the process may open so many more descriptors that ours are in nobody's way.
///
/// Opens none to find out: another thread may need the last one.
pub fn has_room() -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let numbers = || (0..limit).rev();
    let mut looks = LOOKED_AT.iter().map(|count| numbers().take(*count));
    looks.any(|numbers| free(numbers) >= LEAST)
}

/// How many of these numbers are nobody's descriptors. Asks for all of them in one system call.
fn free(numbers: impl Iterator<Item = i32>) -> usize {
    let ask = |fd| libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    let mut asked: Vec<libc::pollfd> = numbers.map(ask).collect();
    // SAFETY: the pointer and the count are those of the array, and nothing is waited for.
    let answered = unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, 0) };
    let is_free = |one: &&libc::pollfd| one.revents & libc::POLLNVAL != 0;
    match answered {
        1.. => asked.iter().filter(is_free).count(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_number_is_free_until_it_is_a_descriptors() {
        assert!(has_room());
        let file = std::fs::File::open("/dev/null").expect("opened");
        let number = file.as_raw_fd();
        assert_eq!(free([number, i32::MAX, i32::MAX - 1].into_iter()), 2);
        assert_eq!(free([number].into_iter()), 0);
        assert_eq!(free(std::iter::empty()), 0);
    }
}
