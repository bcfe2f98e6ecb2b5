//! The layer door: the functions that a loader calls in a layer (cl_loader_layers).
//!
//! No driver is opened here. The loader is still initializing itself, so its functions are stored and called later.

use std::ffi::c_void;
use std::panic::catch_unwind;

use once_cell::sync::OnceCell;
use opencl_sys::cl_icd::cl_icd_dispatch;
use opencl_sys::cl_layer::*;
use opencl_sys::*;

use super::copies;
use crate::cl::dispatch::{DispatchTable, SLOTS};
use crate::cl::info::{Number, Reply};
use crate::driver::layer::{self, MAX_LAYERS};
use crate::hook;

/// The content of each layer's table. A loader may keep its address.
static TABLES: [OnceCell<[usize; SLOTS]>; MAX_LAYERS] = [const { OnceCell::new() }; MAX_LAYERS];

/// The table of a layer that does nothing: NULL means the function below.
static NOTHING: [usize; SLOTS] = [0; SLOTS];

/// Programs that list layers call it, too.
#[unsafe(no_mangle)]
extern "C" fn clGetLayerInfo(
    name: cl_layer_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let reply = Reply {
        size,
        value,
        size_ret,
    };
    match name {
        CL_LAYER_API_VERSION => reply.answer(&CL_LAYER_API_VERSION_100.to_value()),
        CL_LAYER_NAME => reply.answer(b"oclcache\0"),
        _ => CL_INVALID_VALUE,
    }
}

/// Called by ocl-icd, and by Khronos' loader up to 3.0.
#[unsafe(no_mangle)]
extern "C" fn clInitLayer(
    num_entries: cl_uint,
    target: *const cl_icd_dispatch,
    num_entries_ret: *mut cl_uint,
    layer_ret: *mut *const cl_icd_dispatch,
) -> cl_int {
    if target.is_null() || num_entries_ret.is_null() || layer_ret.is_null() {
        return CL_INVALID_VALUE;
    }
    let copy = catch_unwind(copies::active).ok().flatten();
    if let Some(init) = copy.and_then(|copy| copy.init_layer) {
        // SAFETY: the same function of another copy, with the loader's own arguments.
        return unsafe { init(num_entries, target, num_entries_ret, layer_ret) };
    }
    let table = catch_unwind(|| {
        // SAFETY: the loader's table of that many entries, of loaders that are never unloaded while they can be called.
        let target = unsafe { DispatchTable::of_loader(target, num_entries as usize) };
        init(target?)
    });
    let table = table.ok().flatten().unwrap_or(&NOTHING);
    // SAFETY: not NULL, so they are the loader's places for the answer.
    unsafe {
        num_entries_ret.write(num_entries.min(SLOTS as cl_uint));
        layer_ret.write(table.as_ptr().cast());
    }
    CL_SUCCESS
}

/// Called by Khronos' loader since 3.1, which refuses a layer without it (measured). No properties exist yet.
#[unsafe(no_mangle)]
extern "C" fn clInitLayerWithProperties(
    num_entries: cl_uint,
    target: *const cl_icd_dispatch,
    num_entries_ret: *mut cl_uint,
    layer_ret: *mut *const cl_icd_dispatch,
    properties: *const cl_layer_properties,
) -> cl_int {
    // SAFETY: NULL or a list that ends with 0.
    if !properties.is_null() && unsafe { properties.read() } != CL_LAYER_PROPERTIES_LIST_END {
        return CL_INVALID_PROPERTY;
    }
    clInitLayer(num_entries, target, num_entries_ret, layer_ret)
}

/// The loader ends. Nothing is called or released: drivers may be gone, and the functions below are never called again.
#[unsafe(no_mangle)]
extern "C" fn clDeinitLayer() -> cl_int {
    CL_SUCCESS
}

fn init(target: DispatchTable) -> Option<&'static [usize; SLOTS]> {
    let config = super::open()?;
    if config.disable() {
        return None;
    }
    let Some(layer) = layer::register(target) else {
        tracing::warn!("too many loaders: no cache in this one's layer");
        return None;
    };
    tracing::debug!(layer, "a loader's layer");
    Some(TABLES[layer].get_or_init(|| hook::layer_table(layer)))
}
