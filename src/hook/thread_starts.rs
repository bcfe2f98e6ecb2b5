//! The calls in which drivers start the threads that compile for them later: only how the calling thread rounds is noted.
//!
//! Nothing else happens here, so there is no panic guard, and exceptions of the application's callback pass through.

use std::ffi::c_void;

use opencl_sys::*;

use crate::driver::layer;
use crate::driver::{Driver, FloatState, StartOfThreads};

type Notify = Option<unsafe extern "C" fn(*const i8, *const c_void, usize, *mut c_void)>;

macro_rules! thread_starts {
    ($(
        $(#[$doc:meta])*
        $slot:ident($($argument:ident: $type:ty),*) -> $result:ty = $start:ident;
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C-unwind" fn $slot<const DRIVER: usize>($($argument: $type),*) -> $result {
                FloatState::note(StartOfThreads::$start);
                let Some(function) = Driver::at(DRIVER).below().$slot else {
                    // Only slots that hold a function are ever replaced.
                    std::process::abort()
                };
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
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
                unsafe extern "C-unwind" fn $slot<const LAYER: usize>($($argument: $type),*) -> $result {
                    FloatState::note(StartOfThreads::$start);
                    let Some(function) = layer::below(LAYER).$slot else {
                        // Only slots that hold a function are ever replaced.
                        std::process::abort()
                    };
                    type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
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

thread_starts! {
    /// Slot 2.
    clGetDeviceIDs(
        platform: cl_platform_id,
        device_type: cl_device_type,
        num_entries: cl_uint,
        devices: *mut cl_device_id,
        num_devices: *mut cl_uint
    ) -> cl_int = Devices;
    /// Slot 4.
    clCreateContext(
        properties: *const cl_context_properties,
        num_devices: cl_uint,
        devices: *const cl_device_id,
        pfn_notify: Notify,
        user_data: *mut c_void,
        errcode_ret: *mut cl_int
    ) -> cl_context = Context;
    /// Slot 5.
    clCreateContextFromType(
        properties: *const cl_context_properties,
        device_type: cl_device_type,
        pfn_notify: Notify,
        user_data: *mut c_void,
        errcode_ret: *mut cl_int
    ) -> cl_context = Context;
}
