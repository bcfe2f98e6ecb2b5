//! Functions for the slots of a table that a driver lacks: each has the type of its slot and does nothing but fail.
//!
//! Loaders with ICD 2.0 fill the gaps of their own tables in the same way: CL_INVALID_OPERATION, returned or written to
//! `errcode_ret` (Khronos' loader, `icd_dispatch_generated.c`; ocl-icd, `icd_generator.rb`).

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use opencl_sys::cl_icd::cl_icd_dispatch;
use opencl_sys::{CL_INVALID_OPERATION, cl_bitfield, cl_int, cl_uint};

use super::dispatch::{SLOTS, with_slots};

/// A type of functions of which one only fails.
trait Unsupported {
    /// The address of that one.
    fn address() -> usize;
}

/// Functions with these arguments that return an error, and those that write it behind them.
macro_rules! unsupported {
    ($($argument:ident)*) => {
        impl<$($argument),*> Unsupported for unsafe extern "C" fn($($argument),*) -> cl_int {
            fn address() -> usize {
                unsafe extern "C" fn fail<$($argument),*>($(_: $argument),*) -> cl_int {
                    CL_INVALID_OPERATION
                }
                fail::<$($argument),*> as *const () as usize
            }
        }

        impl<Object, $($argument),*> Unsupported for unsafe extern "C" fn($($argument,)* *mut cl_int) -> *mut Object {
            fn address() -> usize {
                unsafe extern "C" fn fail<Object, $($argument),*>(
                    $(_: $argument,)* errcode_ret: *mut cl_int
                ) -> *mut Object {
                    if !errcode_ret.is_null() {
                        // SAFETY: the last argument of each function that makes an object is NULL or the caller's place for
                        // an error code (OpenCL 3.0, 4.4 and the like).
                        unsafe { errcode_ret.write(CL_INVALID_OPERATION) };
                    }
                    null_mut()
                }
                fail::<Object, $($argument),*> as *const () as usize
            }
        }
    };
}

unsupported!();
unsupported!(A);
unsupported!(A B);
unsupported!(A B C);
unsupported!(A B C D);
unsupported!(A B C D E);
unsupported!(A B C D E F);
unsupported!(A B C D E F G);
unsupported!(A B C D E F G H);
unsupported!(A B C D E F G H I);
unsupported!(A B C D E F G H I J);
unsupported!(A B C D E F G H I J K);
unsupported!(A B C D E F G H I J K L);
unsupported!(A B C D E F G H I J K L M);
unsupported!(A B C D E F G H I J K L M N);

/// The functions that report no error.
macro_rules! silent {
    ($(($($argument:ty),*) -> $result:ty = $answer:expr;)*) => {
        $(
            impl Unsupported for unsafe extern "C" fn($($argument),*) -> $result {
                fn address() -> usize {
                    unsafe extern "C" fn fail($(_: $argument),*) -> $result {
                        $answer
                    }
                    fail as *const () as usize
                }
            }
        )*
    };
}

silent! {
    // clGetExtensionFunctionAddress
    (*const c_char) -> *mut c_void = null_mut();
    // clGetExtensionFunctionAddressForPlatform
    (*mut c_void, *const c_char) -> *mut c_void = null_mut();
    // clSVMAlloc
    (*mut c_void, cl_bitfield, usize, cl_uint) -> *mut c_void = null_mut();
    // clSVMFree
    (*mut c_void, *mut c_void) -> () = ();
}

/// For each slot a function of its type.
pub fn functions() -> [usize; SLOTS] {
    fn of<F: Unsupported>(_: fn(&cl_icd_dispatch) -> Option<F>) -> usize {
        F::address()
    }
    macro_rules! each {
        ($($name:ident),*) => {
            [$(of(|table| table.$name)),*]
        };
    }
    with_slots!(each)
}
