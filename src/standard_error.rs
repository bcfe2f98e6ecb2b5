//! Standard error, which belongs to the application.

#![allow(unsafe_code)] // masks signals

use std::io;

use rustix::io::Errno;

/// Writes to it without a lock, for which a child that is forked meanwhile would wait.
///
/// No signal ends the program where nobody reads its standard error (SIGPIPE), or where that is a file that may not grow (SIGXFSZ): both
/// are sent to the thread that writes, which blocks them meanwhile and takes back what is new.
///
/// # Errors
/// As for write(2).
pub fn write(bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the sets are ours, all zeros is a set without signals, and the mask is that of this thread alone.
    unsafe {
        let [mut raised, mut before, mut pending]: [libc::sigset_t; 3] = std::mem::zeroed();
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            libc::sigaddset(&mut raised, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raised, &mut before);
        let is_in = |set: &libc::sigset_t, signal| libc::sigismember(set, signal) == 1;
        // Only what was blocked can be pending.
        if is_in(&before, libc::SIGPIPE) || is_in(&before, libc::SIGXFSZ) {
            libc::sigpending(&mut pending);
        }
        let written = rustix::io::write(rustix::stdio::stderr(), bytes);
        let signal = match written {
            Err(Errno::PIPE) => Some(libc::SIGPIPE),
            Err(Errno::FBIG) => Some(libc::SIGXFSZ),
            _ => None,
        };
        if let Some(signal) = signal.filter(|signal| !is_in(&pending, *signal)) {
            take(signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        Ok(written?)
    }
}

/// Takes a signal that is blocked and may be pending. sigtimedwait(3) might end a canceled thread.
fn take(signal: libc::c_int) {
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a set of ours, of which the kernel reads the part that it has, and a time.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, signal);
        libc::syscall(
            libc::SYS_rt_sigtimedwait,
            &raw const set,
            std::ptr::null_mut::<libc::siginfo_t>(),
            &raw const at_once,
            size_of::<u64>(),
        );
    }
}
