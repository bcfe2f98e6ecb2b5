//! The calls in which drivers start the threads that compile for them later, and read variables: how the calling thread rounds is
//! noted, and which variables there are.
//!
//! Nothing is decided here, so there is no guard around the driver's function, and exceptions of the application's callback pass
//! through. In an empty cache directory the driver's files are read beside the first such calls.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use opencl_sys::*;

use super::quietly;
use crate::cache::early_reading::{self, EarlyReading};
use crate::driver::layer;
use crate::driver::variable_history::{self, NotedCall};
use crate::driver::{Driver, FloatState, StartOfThreads};

type Notify = Option<unsafe extern "C" fn(*const i8, *const c_void, usize, *mut c_void)>;

/// Begins to read a driver's files beside such a call, where that is of use. The result has no destructor that could be in the
/// way of an exception, or of a thread that ends in the call: the reading then ends by itself.
#[inline]
fn begin_reading(start: StartOfThreads, driver: usize) -> ManuallyDrop<Option<EarlyReading>> {
    #[cold]
    fn begin(start: StartOfThreads, driver: usize) -> Option<EarlyReading> {
        quietly(|| early_reading::begin(Driver::at(driver), start)).flatten()
    }
    let is_of_use = early_reading::is_allowed();
    ManuallyDrop::new(is_of_use.then(|| begin(start, driver)).flatten())
}

#[inline]
fn end_reading(reading: ManuallyDrop<Option<EarlyReading>>) {
    #[cold]
    fn end(reading: EarlyReading) {
        quietly(|| reading.end());
    }
    if let Some(reading) = ManuallyDrop::into_inner(reading) {
        end(reading);
    }
}

/// Notes what the driver may take from the calling thread and from the process, and keep. The result has no destructor, as above.
fn note(start: StartOfThreads, function: &str) -> Option<NotedCall> {
    FloatState::note(start);
    // The others search for devices.
    let is_search = function != "clCreateContext";
    quietly(|| variable_history::began(is_search))
}

fn end_noted(call: Option<NotedCall>) {
    if let Some(call) = call {
        quietly(|| variable_history::ended(call));
    }
}

macro_rules! thread_starts {
    ($(
        $(#[$doc:meta])*
        $slot:ident($($argument:ident: $type:ty),*) -> $result:ty = $start:ident;
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C-unwind" fn $slot<const DRIVER: usize>($($argument: $type),*) -> $result {
                let noted = note(StartOfThreads::$start, stringify!($slot));
                let Some(function) = Driver::at(DRIVER).below().$slot else {
                    // Only slots that hold a function are ever replaced.
                    std::process::abort()
                };
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
                // SAFETY: the function's own type, but that an exception may leave it.
                let function = unsafe { std::mem::transmute::<*const (), Function>(function as *const ()) };
                let reading = begin_reading(StartOfThreads::$start, DRIVER);
                // SAFETY: the driver's own function with the arguments of the application's call.
                let result = unsafe { function($($argument),*) };
                end_reading(reading);
                end_noted(noted);
                result
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
                    let noted = note(StartOfThreads::$start, stringify!($slot));
                    let Some(function) = layer::below(LAYER).$slot else {
                        // Only slots that hold a function are ever replaced.
                        std::process::abort()
                    };
                    type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
                    // SAFETY: as above.
                    let function = unsafe { std::mem::transmute::<*const (), Function>(function as *const ()) };
                    // SAFETY: as above.
                    let result = unsafe { function($($argument),*) };
                    end_noted(noted);
                    result
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
