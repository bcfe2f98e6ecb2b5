//! The cost of a key, for tests: bytes read and tokens handled. No text may make it cost more than linear time.

#[cfg(test)]
thread_local! {
    static COUNT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts bytes or tokens.
#[inline(always)]
pub fn count(_amount: usize) {
    #[cfg(test)]
    COUNT.set(COUNT.get() + _amount);
}

/// The cost of `body` on this thread.
#[cfg(test)]
pub fn of<R>(body: impl FnOnce() -> R) -> (R, usize) {
    let before = COUNT.get();
    let result = body();
    (result, COUNT.get() - before)
}
