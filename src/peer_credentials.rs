//! Who is at the other end of a Unix socket.
//!
//! For a process of another PID namespace the kernel gives the number 0, for which the type of rustix has no value.

#![allow(unsafe_code)] // asks in place of rustix

use std::io;
use std::mem;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};

/// A process as it was when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its effective user.
    pub user: u32,
    /// Its number; None: this process sees no number of it.
    pub process: Option<NonZeroU32>,
}

/// Asks the kernel who is at the other end.
///
/// # Errors
/// It is not a connected Unix socket.
pub fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = mem::size_of_val(&found) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which `found` has, and each value of them is one of its numbers.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials {
        user: found.uid,
        process: found.pid.try_into().ok().and_then(NonZeroU32::new),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_of_a_pair_is_this_process_and_a_file_has_none() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let expected = PeerCredentials {
            user: rustix::process::geteuid().as_raw(),
            process: NonZeroU32::new(std::process::id()),
        };
        assert_eq!(of(&one).expect("asked"), expected);
        assert!(of(std::fs::File::open("/dev/null").expect("opened")).is_err());
    }
}
