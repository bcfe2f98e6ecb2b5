//! A loader layer: the functions below it, which the loader gave us, and the drivers that are seen through them.
//!
//! A layer precedes all drivers of one loader. The first word of a call's first handle tells the driver; the loader itself reads
//! that word next. A driver is registered when its first context or platform is seen. It then has hooks of its own, as if they were
//! in its table; the function below them is the loader's.

use std::ffi::{CStr, c_void};
use std::panic::catch_unwind;

use once_cell::sync::OnceCell;
use opencl_sys::cl_icd::cl_icd_dispatch;
use opencl_sys::*;

use super::float_registers::OwnWork;
use super::{Driver, loaded, reentrancy};
use crate::cl::dispatch::{DispatchTable, Slot, masked, words};
use crate::cl::info::{Reply, ask};
use crate::cl::{Context, Device, Platform};
use crate::driver::profile::Recognition;

/// The number of loaders in one process that can use us as a layer. Each has its own hooks.
pub const MAX_LAYERS: usize = 4;

static LAYERS: [OnceCell<cl_icd_dispatch>; MAX_LAYERS] = [const { OnceCell::new() }; MAX_LAYERS];

/// The kind of a function's first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstArgument {
    /// A `cl_context`: its platform can be queried.
    Context,
    /// A `cl_platform_id`.
    Platform,
    /// Another object. Its application has created a context before.
    Other,
}

/// Keeps the functions that a loader gave us. A loader that is opened again at the same address has the same.
///
/// None if there are too many loaders.
pub fn register(target: DispatchTable) -> Option<usize> {
    let functions = target.copy();
    LAYERS.iter().position(|layer| {
        let known = layer.get_or_init(|| functions);
        words(known) == words(&functions)
    })
}

/// The functions below a layer: a copy, since a loader that ends frees its own.
pub fn below(layer: usize) -> &'static cl_icd_dispatch {
    LAYERS[layer]
        .get()
        .expect("a layer's hooks run only after it was registered")
}

/// The driver whose hooks handle a call through a layer. None if only the function below handles it.
///
/// # Safety
/// `object` is the first argument of a call that the loader passes on, which will read its first word.
pub unsafe fn driver_of(
    layer: usize,
    object: *mut c_void,
    first: FirstArgument,
) -> Option<&'static Driver> {
    if object.is_null() || reentrancy::is_inside() {
        return None;
    }
    // SAFETY: by the contract.
    let address = unsafe { DispatchTable::of_object(object, 0) }?.address();
    let drivers = || Driver::all().filter(|driver| driver.table.address() == address);
    // The call will reach the hooks in the driver's own table.
    if drivers().any(|driver| driver.layer.is_none() && driver.is_reached_by_every_call()) {
        return None;
    }
    if let Some(known) = drivers().find(|driver| driver.layer == Some(layer)) {
        return Some(known);
    }
    if first == FirstArgument::Other {
        return None;
    }
    let _work = OwnWork::begin();
    // SAFETY: by the contract.
    catch_unwind(|| unsafe { register_driver(layer, object, first) })
        .ok()
        .flatten()
}

/// The driver, seen through this layer or hooked in its own table, whose function of this name is at `address`.
pub fn driver_with(layer: usize, name: &CStr, address: usize) -> Option<&'static Driver> {
    let mut drivers = Driver::all();
    drivers.find(|driver| {
        driver.layer.is_none_or(|number| number == layer)
            && driver.extension_function(name) as usize == address
    })
}

/// # Safety
/// As [`driver_of`].
unsafe fn register_driver(
    layer: usize,
    object: *mut c_void,
    first: FirstArgument,
) -> Option<&'static Driver> {
    let below = below(layer);
    let platform = match first {
        FirstArgument::Platform => Platform::new(object),
        _ => platform_of(below, Context::new(object))?,
    };
    let text = |name| {
        super::library::text(|reply: Reply| match below.clGetPlatformInfo {
            // SAFETY: the loader's own function; the platform came from it or from the application.
            Some(function) => unsafe {
                function(
                    platform.raw(),
                    name,
                    reply.size,
                    reply.value,
                    reply.size_ret,
                )
            },
            None => CL_INVALID_OPERATION,
        })
    };
    let recognition = Recognition::ask(text);
    // SAFETY: an object of a driver, whose table has the functions of the platform's version.
    let table = unsafe { DispatchTable::of_object(object, recognition.slots) }?;
    let in_place = Driver::all().find(|driver| driver.table.address() == table.address());
    let own = in_place.map_or_else(|| table.copy(), |driver| driver.own);
    let function = words(&own)[Slot::clBuildProgram.index()];
    let library = loaded::path_of(function).unwrap_or_default();
    // A loader may unload the driver at its end, and the next loader may have another driver at this address.
    for address in [function, table.address()] {
        loaded::pin(address);
    }
    let between = others_between(below);
    // Functions that the driver lacks are left out: ocl-icd reads a slot beyond the end of an old driver's table, and calls what it
    // finds there (measured on 2.3.1).
    let below = masked(below, &own);
    let driver = Driver::register(table, Some(layer), |index| Driver {
        layer: Some(layer),
        between,
        ..Driver::new(
            index,
            table,
            below,
            own,
            library,
            vec![platform],
            &recognition,
        )
    })?;
    tracing::debug!(
        driver = %crate::log::path(&driver.library), profile = driver.profile.family, layer, "hooked as a layer"
    );
    Some(driver)
}

fn platform_of(below: &cl_icd_dispatch, context: Context) -> Option<Platform> {
    let devices = ask(|size, value, size_ret| match below.clGetContextInfo {
        // SAFETY: the loader's own function and the application's context.
        Some(function) => unsafe {
            function(context.raw(), CL_CONTEXT_DEVICES, size, value, size_ret)
        },
        None => CL_INVALID_OPERATION,
    });
    let device = Device::from_value(devices.ok()?.get(..size_of::<usize>())?)?;
    let platform = ask(|size, value, size_ret| match below.clGetDeviceInfo {
        // SAFETY: the loader's own function and a device of the context.
        Some(function) => unsafe {
            function(device.raw(), CL_DEVICE_PLATFORM, size, value, size_ret)
        },
        None => CL_INVALID_OPERATION,
    });
    Platform::from_value(&platform.ok()?).filter(|platform| !platform.is_null())
}

/// The functions of layers between us and the loader. Layers may change what is compiled, so they belong to the key. The loader
/// does not; unlike a layer, it has a clGetPlatformIDs that programs link to.
fn others_between(below: &cl_icd_dispatch) -> Vec<usize> {
    let mut functions = words(below).to_vec();
    functions.retain(|function| *function != 0 && !loaded::is_in_loader(*function));
    functions
}
