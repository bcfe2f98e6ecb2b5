//! Where contexts are made, drivers start the threads that compile for them later: only how the calling thread rounds is noted.
//!
//! Nothing else happens here, so there is no panic guard, and exceptions of the application's callback pass through.

use std::ffi::c_void;

use opencl_sys::*;

use crate::driver::layer;
use crate::driver::{Driver, FloatState};

type Notify = Option<unsafe extern "C" fn(*const i8, *const c_void, usize, *mut c_void)>;

macro_rules! contexts {
    ($(
        $(#[$doc:meta])*
        $slot:ident($($argument:ident: $type:ty),*);
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C-unwind" fn $slot<const DRIVER: usize>($($argument: $type),*) -> cl_context {
                FloatState::note_context();
                let Some(function) = Driver::at(DRIVER).below().$slot else {
                    // Only slots that hold a function are ever replaced.
                    std::process::abort()
                };
                type Function = unsafe extern "C-unwind" fn($($type),*) -> cl_context;
                // SAFETY: the function's own type, but that an exception may leave it.
                let function = unsafe { std::mem::transmute::<*const (), Function>(function as *const ()) };
                // SAFETY: the driver's own function with the arguments of the application's call.
                unsafe { function($($argument),*) }
            }
        )*

        /// The hooks of this file for one driver.
        pub(super) fn table<const DRIVER: usize>() -> Vec<super::Hook> {
            vec![$(super::Hook {
                name: stringify!($slot),
                slot: crate::cl::dispatch::Slot::$slot,
                function: $slot::<DRIVER> as *const () as usize,
            }),*]
        }

        pub(super) mod in_layer {
            use super::*;

            $(
                #[allow(non_snake_case)]
                unsafe extern "C-unwind" fn $slot<const LAYER: usize>($($argument: $type),*) -> cl_context {
                    FloatState::note_context();
                    let Some(function) = layer::below(LAYER).$slot else {
                        // Only slots that hold a function are ever replaced.
                        std::process::abort()
                    };
                    type Function = unsafe extern "C-unwind" fn($($type),*) -> cl_context;
                    // SAFETY: as above.
                    let function = unsafe { std::mem::transmute::<*const (), Function>(function as *const ()) };
                    // SAFETY: as above.
                    unsafe { function($($argument),*) }
                }
            )*

            /// The functions of this file for one layer.
            pub(in crate::hook) fn table<const LAYER: usize>() -> Vec<crate::hook::Hook> {
                vec![$(crate::hook::Hook {
                    name: stringify!($slot),
                    slot: crate::cl::dispatch::Slot::$slot,
                    function: $slot::<LAYER> as *const () as usize,
                }),*]
            }
        }
    };
}

contexts! {
    /// Slot 4.
    clCreateContext(
        properties: *const cl_context_properties,
        num_devices: cl_uint,
        devices: *const cl_device_id,
        pfn_notify: Notify,
        user_data: *mut c_void,
        errcode_ret: *mut cl_int
    );
    /// Slot 5.
    clCreateContextFromType(
        properties: *const cl_context_properties,
        device_type: cl_device_type,
        pfn_notify: Notify,
        user_data: *mut c_void,
        errcode_ret: *mut cl_int
    );
}
