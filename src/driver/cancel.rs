//! Defers the cancellation (pthread_cancel) of threads that are in a hook.
//!
//! The C library unwinds a canceled thread from any read, write or sleep, and Rust's functions end the process in such an
//! unwinding. So a thread is canceled after the call has returned, or in a callback of the application.

use std::ffi::c_int;

const DISABLED: c_int = 1;

unsafe extern "C" {
    /// POSIX; the same in glibc and musl, where 1 is PTHREAD_CANCEL_DISABLE.
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
}

/// Whether a thread may be canceled.
#[derive(Clone, Copy)]
pub struct CancelState(c_int);

impl CancelState {
    /// Disables the cancellation of this thread. Returns the state before.
    #[inline]
    pub fn disable() -> CancelState {
        let mut before = 0;
        pthread_setcancelstate(DISABLED, Some(&mut before));
        CancelState(before)
    }

    /// Restores the state on this thread.
    #[inline]
    pub fn restore(self) {
        pthread_setcancelstate(self.0, None);
    }
}

/// While it lives, this thread is not canceled.
pub struct Uncanceled(CancelState);

impl Uncanceled {
    #[inline]
    pub fn enter() -> Uncanceled {
        Uncanceled(CancelState::disable())
    }
}

impl Drop for Uncanceled {
    #[inline]
    fn drop(&mut self) {
        self.0.restore();
    }
}
