//! Functions that applications look up by name: the hooked functions, and extension functions that take a program.
//!
//! P of a served program is not built, so a function that looks into a program must get P'. For all other names the driver's own
//! function is returned.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use opencl_sys::*;

use super::create::created_with_il;
use super::{Hook, for_each_driver, quietly};
use crate::cl::Program;
use crate::cl::dispatch::Slot;
use crate::driver::layer::{self, MAX_LAYERS};
use crate::driver::reentrancy::HookEntry;
use crate::driver::{Driver, MAX_DRIVERS};
use crate::shadow;

/// What the loader below a layer gave for a name.
fn given(layer: usize, name: &str) -> &'static AtomicUsize {
    static GIVEN: [[AtomicUsize; NAMES_IN_LAYER.len()]; MAX_LAYERS] =
        [const { [const { AtomicUsize::new(0) }; NAMES_IN_LAYER.len()] }; MAX_LAYERS];
    let index = NAMES_IN_LAYER.iter().position(|known| *known == name);
    &GIVEN[layer][index.expect("one of the names")]
}

pub(super) mod without_platform {
    use super::*;

    crate::hook::numbered! {
        /// Slot 65.
        clGetExtensionFunctionAddress(function_name: *const c_char) -> *mut c_void = |driver, below| wrapped(driver, function_name, below.call());
    }

    /// In a layer the argument does not tell the driver, and its objects may come later.
    pub(in crate::hook) mod in_layer {
        use super::*;

        #[allow(non_snake_case)]
        unsafe extern "C" fn clGetExtensionFunctionAddress<const LAYER: usize>(
            function_name: *const c_char,
        ) -> *mut c_void {
            let Some(below) = layer::below(LAYER).clGetExtensionFunctionAddress else {
                // Only slots that hold a function are ever replaced.
                std::process::abort()
            };
            // SAFETY: the loader's own function with the argument of the application's call.
            let own = unsafe { below(function_name) };
            if function_name.is_null() || own.is_null() {
                return own;
            }
            // SAFETY: not NULL, so it is a C string (OpenCL 3.0, 5.20), which the loader has just looked up.
            let name = unsafe { CStr::from_ptr(function_name) };
            let index = NAMES_IN_LAYER
                .iter()
                .position(|known| known.as_bytes() == name.to_bytes());
            let Some(index) = index else {
                return own;
            };
            let replaced = quietly(|| {
                given(LAYER, NAMES_IN_LAYER[index]).store(own as usize, Ordering::Relaxed);
                functions_in_layer::<LAYER>()[index] as *mut c_void
            });
            replaced.unwrap_or(own)
        }

        /// The function of this module for one layer.
        pub(in crate::hook) fn table<const LAYER: usize>() -> Vec<Hook> {
            vec![Hook {
                name: "clGetExtensionFunctionAddress",
                slot: Slot::clGetExtensionFunctionAddress,
                function: clGetExtensionFunctionAddress::<LAYER> as *const () as usize,
            }]
        }
    }
}

super::hooks! {
    /// Slot 107.
    clGetExtensionFunctionAddressForPlatform(
        platform: cl_platform_id,
        function_name: *const c_char,
    ) -> *mut c_void = |driver, below| wrapped(driver, function_name, below.call());
}

fn wrapped(driver: &'static Driver, name: *const c_char, own: *mut c_void) -> *mut c_void {
    if name.is_null() || own.is_null() {
        return own;
    }
    // SAFETY: not NULL, so it is a C string (OpenCL 3.0, 5.20), which the driver has just looked up.
    super::by_name(driver, unsafe { CStr::from_ptr(name) }).unwrap_or(own)
}

/// The name of an extension function, and the address of our wrapper.
pub(super) type ProgramFunction = (&'static str, usize);

/// A name as C takes it.
macro_rules! c_name {
    ($name:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("no C string"),
            }
        }
    };
}

/// Declares wrappers of extension functions. A wrapper makes the same call with the executing program in place of P.
macro_rules! program_functions {
    ($($name:ident($object:ident: $object_type:ty, [program], $($argument:ident: $type:ty),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name<const DRIVER: usize>(
                $object: $object_type, program: cl_program, $($argument: $type),*
            ) -> cl_int {
                // SAFETY: the arguments of the application's call.
                unsafe { of_driver::$name(DRIVER, $object, program, $($argument),*) }
            }
        )*

        /// One instance for all drivers.
        mod of_driver {
            use super::*;

            $(
            #[inline(never)]
            #[allow(non_snake_case, clippy::too_many_arguments)] // as the function has them
            pub(super) unsafe fn $name(
                number: usize, $object: $object_type, program: cl_program, $($argument: $type),*
            ) -> cl_int {
                type Function =
                    unsafe extern "C" fn($object_type, cl_program, $($type),*) -> cl_int;
                let driver = Driver::at(number);
                let own = driver.extension_function(c_name!($name));
                if own.is_null() {
                    // A wrapper is returned only for names that the driver knows.
                    return CL_INVALID_OPERATION;
                }
                // SAFETY: the driver's function of this name has this type (extension specifications of cl_intel_*).
                let own = unsafe { std::mem::transmute::<*mut c_void, Function>(own) };
                // SAFETY: the application's own arguments.
                let function = || unsafe { own($object, program, $($argument),*) };
                let entry = HookEntry {
                    function: stringify!($name),
                    object: program as usize,
                    driver: number,
                };
                crate::hook::guard(entry, true, function, |below| {
                    let (executing, _inner) = shadow::executing(Program::new(program));
                    // SAFETY: the application's own arguments but for the program, which lives as long as `_inner`.
                    below.instead(|| unsafe { own($object, executing.raw(), $($argument),*) })
                })
            }
            )*
        }

        /// The same functions for one layer. They find the driver by what the loader gave.
        mod of_layer {
            use super::*;

            $(
            #[allow(non_snake_case)]
            pub(super) unsafe extern "C" fn $name<const LAYER: usize>(
                $object: $object_type, program: cl_program, $($argument: $type),*
            ) -> cl_int {
                type Function =
                    unsafe extern "C" fn($object_type, cl_program, $($type),*) -> cl_int;
                const OF_DRIVERS: [Function; MAX_DRIVERS] = for_each_driver!(super::$name);
                let given = given(LAYER, stringify!($name)).load(Ordering::Relaxed);
                let function = match layer::driver_with(LAYER, c_name!($name), given) {
                    Some(driver) => OF_DRIVERS[driver.index()],
                    // SAFETY: a wrapper is returned only once the loader has given this function, which has this type.
                    None => unsafe { std::mem::transmute::<usize, Function>(given) },
                };
                // SAFETY: the application's own arguments.
                unsafe { function($object, program, $($argument),*) }
            }
            )*
        }

        /// The names whose functions find the driver by themselves in a layer. clCreateProgramWithILKHR is not one of them: loaders ask a
        /// driver whose ICD suffix ends the name, and none has the suffix KHR.
        const NAMES_IN_LAYER: &[&str] = &[$(stringify!($name)),*];

        fn functions_in_layer<const LAYER: usize>() -> Vec<usize> {
            vec![$(of_layer::$name::<LAYER> as *const () as usize),*]
        }

        pub(super) fn program_functions<const DRIVER: usize>() -> Vec<ProgramFunction> {
            vec![
                $((stringify!($name), $name::<DRIVER> as *const () as usize),)*
                ("clCreateProgramWithILKHR", create_program_with_il_khr::<DRIVER> as *const () as usize),
            ]
        }
    };
}

/// clCreateProgramWithILKHR of cl_khr_il_program.
unsafe extern "C" fn create_program_with_il_khr<const DRIVER: usize>(
    context: cl_context,
    il: *const c_void,
    length: usize,
    errcode_ret: *mut cl_int,
) -> cl_program {
    type Function =
        unsafe extern "C" fn(cl_context, *const c_void, usize, *mut cl_int) -> cl_program;
    let driver = Driver::at(DRIVER);
    let own = driver.extension_function(c"clCreateProgramWithILKHR");
    if own.is_null() {
        // A wrapper is returned only for names that the driver knows.
        return std::ptr::null_mut();
    }
    // SAFETY: the driver's function of this name has this type (cl_khr_il_program).
    let own = unsafe { std::mem::transmute::<*mut c_void, Function>(own) };
    // SAFETY: the application's own arguments.
    let function = || unsafe { own(context, il, length, errcode_ret) };
    let entry = HookEntry {
        function: "clCreateProgramWithILKHR",
        object: context as usize,
        driver: DRIVER,
    };
    super::guard(entry, true, function, |below| {
        // SAFETY: the arguments are those of the application's call.
        unsafe { created_with_il(driver, context, il, length, below.call()) }
    })
}

program_functions! {
    clGetDeviceGlobalVariablePointerINTEL(
        device: cl_device_id, [program], name: *const c_char, size_ret: *mut usize, pointer_ret: *mut *mut c_void,
    );
    clGetDeviceFunctionPointerINTEL(device: cl_device_id, [program], name: *const c_char, pointer_ret: *mut cl_ulong);
    clEnqueueReadGlobalVariableINTEL(
        queue: cl_command_queue, [program], name: *const c_char, blocking: cl_bool, size: usize, offset: usize,
        pointer: *mut c_void, num_events: cl_uint, events: *const cl_event, event: *mut cl_event,
    );
    clEnqueueWriteGlobalVariableINTEL(
        queue: cl_command_queue, [program], name: *const c_char, blocking: cl_bool, size: usize, offset: usize,
        pointer: *const c_void, num_events: cl_uint, events: *const cl_event, event: *mut cl_event,
    );
    clEnqueueReadHostPipeINTEL(
        queue: cl_command_queue, [program], symbol: *const c_char, blocking: cl_bool, pointer: *mut c_void, size: usize,
        num_events: cl_uint, events: *const cl_event, event: *mut cl_event,
    );
    clEnqueueWriteHostPipeINTEL(
        queue: cl_command_queue, [program], symbol: *const c_char, blocking: cl_bool, pointer: *const c_void, size: usize,
        num_events: cl_uint, events: *const cl_event, event: *mut cl_event,
    );
}
