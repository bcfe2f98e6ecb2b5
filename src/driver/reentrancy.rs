//! Where a thread is: in the application's code, in a hook, or in the driver below a hook.
//!
//! A hook that is entered from inside another hook on the same thread calls the driver unchanged. While the driver works on the
//! application's own call, and in the application's callbacks, hooks work as they do elsewhere.

use std::cell::Cell;

use super::foreign_call;

/// A call that has come to one of our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookEntry {
    /// The function's name.
    pub function: &'static str,
    /// Its first argument.
    pub object: usize,
    /// The number of the driver whose hook it is.
    pub driver: usize,
}

/// Whose code a thread executes.
#[derive(Clone, Copy)]
enum Position {
    /// The application's.
    Outside,
    /// A hook's.
    Inside(HookEntry),
    /// The driver's, in the application's own call to this hook. The driver may call the application back.
    Below(HookEntry),
}

thread_local! {
    static POSITION: Cell<Position> = const { Cell::new(Position::Outside) };
    /// How many hooks, and callbacks of drivers for our calls, this thread has entered and not left.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The position and depth of a thread.
#[derive(Clone, Copy)]
pub struct ThreadState {
    position: Position,
    depth: u32,
}

impl ThreadState {
    /// This thread's.
    pub(super) fn now() -> ThreadState {
        ThreadState {
            position: POSITION.get(),
            depth: DEPTH.get(),
        }
    }

    /// Restores this state on the current thread.
    pub(super) fn restore(self) {
        POSITION.set(self.position);
        DEPTH.set(self.depth);
    }

    /// Enters one more hook or callback of a driver than in this state.
    pub(super) fn deepen(self) {
        DEPTH.set(self.depth + 1);
    }
}

struct Restore(ThreadState);

impl Drop for Restore {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// Whether the running hook was entered from inside another hook, or from a callback: an outer caller may hold locks.
pub fn is_nested() -> bool {
    DEPTH.get() > 1
}

/// Whether no hook and no callback of a driver is running on this thread.
pub fn is_outermost() -> bool {
    DEPTH.get() == 0
}

/// Whether this thread is inside a hook.
pub fn is_inside() -> bool {
    matches!(POSITION.get(), Position::Inside(_))
}

/// Distinguishes this thread from all other live threads. `std::thread::current` panics where a thread's local variables are
/// gone, as in handlers of `atexit`, which may build.
pub(super) fn this_thread() -> usize {
    POSITION.with(|position| std::ptr::from_ref(position) as usize)
}

/// Enters a hook, and returns the state before. None if a hook of ours already handles this call: that hook runs on this
/// thread, or has passed the application's call down and the call now reaches the hook of another driver number, as where a
/// layer precedes a hooked table.
pub(super) fn enter(entry: HookEntry) -> Option<ThreadState> {
    let is_handled = match POSITION.get() {
        Position::Outside => false,
        Position::Inside(_) => true,
        Position::Below(above) => {
            entry.driver != above.driver
                && entry.object == above.object
                && entry.function == above.function
        }
    };
    if is_handled {
        return None;
    }
    let before = ThreadState::now();
    if before.depth == 0 {
        foreign_call::give_back_what_is_left();
    }
    POSITION.set(Position::Inside(entry));
    before.deepen();
    Some(before)
}

/// From now on the thread executes the driver's code, if it is in a hook.
pub(super) fn enter_driver() {
    if let Position::Inside(entry) = POSITION.get() {
        POSITION.set(Position::Below(entry));
    }
}

/// From now on the thread executes the application's code.
pub(super) fn enter_application() {
    POSITION.set(Position::Outside);
}

/// Runs `body` as a hook. None, without running it, if a hook of ours already handles the call: see [`enter`].
pub fn as_hook<R>(entry: HookEntry, body: impl FnOnce() -> R) -> Option<R> {
    let _restore = Restore(enter(entry)?);
    Some(body())
}

/// Makes a call of the driver during which the driver may call the application back: hooks work in such a callback.
pub fn outside<R>(body: impl FnOnce() -> R) -> R {
    let _restore = Restore(ThreadState::now());
    enter_driver();
    body()
}
