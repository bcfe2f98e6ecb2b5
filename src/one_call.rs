//! What is asked of the system once in a call of the application.
//!
//! A hit opens a dozen files of the cache. For each one it must know who the effective user is, how large a file may be, and whether the
//! descriptor of the directory still is ours. A program can change these, but hardly while it is inside one of our functions: then the
//! answer of some microseconds ago holds (measured with strace: 29 of the 138 calls of a first hit on PoCL asked these again).
//!
//! Nothing is created, written or removed by an earlier answer about a descriptor. Only the descriptor itself may be closed by one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

thread_local! {
    static CALL: Cell<Option<Call>> = const { Cell::new(None) };
}

/// A call in which a thread is.
#[derive(Clone, Copy)]
struct Call {
    /// Tells it from all others.
    number: u64,
    user: Option<u32>,
    /// Of file sizes, in bytes; `u64::MAX` if there is none.
    limit: Option<u64>,
}

/// A part of a call of the application. A drop ends it, also if an exception leaves it.
pub struct CallPart {
    is_outermost: bool,
}

impl Drop for CallPart {
    fn drop(&mut self) {
        if self.is_outermost {
            CALL.set(None);
        }
    }
}

/// Begins a part of a call of the application, in which this thread waits for nobody.
pub fn begin() -> CallPart {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let is_outermost = CALL.get().is_none();
    if is_outermost {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        CALL.set(Some(Call {
            number,
            user: None,
            limit: None,
        }));
    }
    CallPart { is_outermost }
}

/// Runs such a part.
pub fn during<T>(run: impl FnOnce() -> T) -> T {
    let _part = begin();
    run()
}

/// The number of the call in which this thread is.
pub fn number() -> Option<u64> {
    CALL.get().map(|call| call.number)
}

/// The effective user.
pub fn effective_user() -> u32 {
    let ask = || rustix::process::geteuid().as_raw();
    once(ask, |call| &mut call.user)
}

/// The limit on the sizes of files, in bytes (RLIMIT_FSIZE of setrlimit(2)).
pub fn file_size_limit() -> u64 {
    let ask = || getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    once(ask, |call| &mut call.limit)
}

/// What this call was answered, or is answered now.
fn once<T: Copy>(ask: impl FnOnce() -> T, place: impl FnOnce(&mut Call) -> &mut Option<T>) -> T {
    let Some(mut call) = CALL.get() else {
        return ask();
    };
    let answer = *place(&mut call).get_or_insert_with(ask);
    CALL.set(Some(call));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_a_number_of_its_own_and_calls_within_it_have_the_same() {
        assert_eq!(number(), None);
        let one = during(|| (number(), during(number)));
        assert!(one.0.is_some() && one.0 == one.1);
        assert_eq!(number(), None);
        assert_ne!(during(number), one.0);
        let other = std::thread::scope(|scope| scope.spawn(|| during(number)).join());
        assert!(!other.is_ok_and(|other| other == one.0));
        let ended = std::panic::catch_unwind(|| during(|| panic!("in a call")));
        assert!(ended.is_err() && number().is_none());
    }

    #[test]
    fn the_effective_user_is_asked_for_again_in_the_next_call() {
        let user = rustix::process::geteuid();
        if !user.is_root() {
            return;
        }
        // Only this thread becomes another user.
        std::thread::spawn(|| {
            let become_user = |user| {
                let kept = rustix::thread::Uid::ROOT;
                let user = rustix::thread::Uid::from_raw(user);
                rustix::thread::set_thread_res_uid(kept, user, kept).expect("changed");
            };
            let (before, meanwhile) = during(|| {
                let before = effective_user();
                become_user(4242);
                (before, effective_user())
            });
            assert_eq!((before, meanwhile), (0, 0));
            assert_eq!((during(effective_user), effective_user()), (4242, 4242));
        })
        .join()
        .expect("no panic");
    }
}
