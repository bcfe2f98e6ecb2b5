//! Threads that are canceled (pthread_cancel) while they are in a hook.
//!
//! The C library unwinds such a thread from wherever it reads, writes or sleeps, and Rust's functions stop no such unwinding
//! but end the process. So a thread is canceled when the call has returned, or in a callback of the application's.

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
    /// From now on this thread is not canceled. Gives what it was before.
    #[inline]
    pub fn disable() -> CancelState {
        let mut before = 0;
        pthread_setcancelstate(DISABLED, Some(&mut before));
        CancelState(before)
    }

    /// Gives this thread the state.
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
