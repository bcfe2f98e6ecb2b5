//! Decides whether the loader that asks for platforms already has them.
//!
//! ocl-icd asks twice if two `.icd` files name one library, and any loader asks two copies of this library, of which one answers
//! for both (`copies`). Its list would have each platform twice. But another loader in the same process, such as a wheel's, must get
//! all platforms, and so must the same loader after it was unloaded and loaded again.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::{library_has, loaded_changes};
use crate::fork_safety::Mutex;

/// How often a loader asked for the function that gives the platforms. Each enumeration begins with that.
static ASKED: AtomicUsize = AtomicUsize::new(0);

static GIVEN: Mutex<Vec<Given>> = Mutex::new(Vec::new());

/// A loader that was given the platforms.
#[derive(Clone, Copy)]
struct Given {
    loader: usize,
    asked: usize,
    unloads: u64,
}

/// Counts the beginning of an enumeration.
pub fn asked() {
    ASKED.fetch_add(1, Ordering::Relaxed);
}

/// Whether the calling library got the platforms in an earlier enumeration and still has them. If a library was unloaded since,
/// it may have been that loader.
pub fn is_repeated() -> bool {
    let loader = caller();
    let given = GIVEN
        .lock()
        .iter()
        .find(|given| given.loader == loader)
        .copied();
    given.is_some_and(|given| {
        given.asked != ASKED.load(Ordering::Relaxed) && given.unloads == loaded_changes().unloads
    })
}

/// Whether the library that calls us is a loader with ICD 2.0: it has the name of a function that only those ask drivers for.
/// ocl-icd asks for it behind the platforms, so not at all where there are none (measured on 2.3.4).
pub fn caller_knows_icd2() -> bool {
    let name = c"clIcdGetFunctionAddressForPlatformKHR".to_bytes_with_nul();
    let caller = caller();
    // An unknown caller may be one.
    caller == 0 || library_has(caller, name)
}

/// Remembers that the calling library gets the platforms.
pub fn given() {
    let now = Given {
        loader: caller(),
        asked: ASKED.load(Ordering::Relaxed),
        unloads: loaded_changes().unloads,
    };
    let mut given = GIVEN.lock();
    given.retain(|given| given.loader != now.loader);
    given.push(now);
}

/// The start address of the library that called this one.
fn caller() -> usize {
    let mut walk = Walk {
        ours: begin_of(caller as fn() -> usize as usize),
        caller: 0,
    };
    // SAFETY: `frame` is given its `Walk` back, and ends the walk at the first frame that is not ours, so that no code of others
    // is unwound.
    unsafe { _Unwind_Backtrace(frame, (&raw mut walk).cast()) };
    walk.caller
}

struct Walk {
    ours: usize,
    caller: usize,
}

// Of the unwinder that Rust's standard library brings along (Itanium C++ ABI, level I).
unsafe extern "C" {
    fn _Unwind_Backtrace(
        frame: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

const URC_NO_REASON: c_int = 0;
const URC_END_OF_STACK: c_int = 5;

unsafe extern "C" fn frame(context: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: `caller` passed a `Walk` of its own, and the context is the unwinder's.
    let (walk, address) = unsafe { (&mut *data.cast::<Walk>(), _Unwind_GetIP(context)) };
    match begin_of(address) {
        library if library == walk.ours => URC_NO_REASON,
        library => {
            walk.caller = library;
            URC_END_OF_STACK
        }
    }
}

/// The start address of the library that contains an address.
fn begin_of(address: usize) -> usize {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr only looks the address up; what it does not fill is NULL.
    unsafe {
        libc::dladdr(address as *const c_void, info.as_mut_ptr());
        info.assume_init().dli_fbase as usize
    }
}
