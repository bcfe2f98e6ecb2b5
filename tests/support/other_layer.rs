//! A loader layer that changes nothing and has no function of its own, so that nothing but its name tells that it is there.

// The C ABI of loader layers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

const LAYER_API_VERSION: u32 = 100; // CL_LAYER_API_VERSION_100

static TABLE: OnceLock<Vec<usize>> = OnceLock::new();

/// # Safety
/// As loaders call it (the layer interface of cl_khr_icd): CL_LAYER_API_VERSION asks for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetLayerInfo(
    _name: c_uint,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> c_int {
    // SAFETY: by the contract, the value has that size if there is one.
    unsafe {
        if size >= size_of::<u32>() && !value.is_null() {
            value.cast::<u32>().write(LAYER_API_VERSION);
        }
        if !size_ret.is_null() {
            size_ret.write(size_of::<u32>());
        }
    }
    0
}

/// # Safety
/// As loaders call it: `target` has `entries` functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clInitLayer(
    entries: c_uint,
    target: *const usize,
    entries_ret: *mut c_uint,
    table_ret: *mut *const usize,
) -> c_int {
    // SAFETY: by the contract.
    let target = unsafe { std::slice::from_raw_parts(target, entries as usize) };
    let table = TABLE.get_or_init(|| target.to_vec());
    // SAFETY: places for the answers, by the contract.
    unsafe {
        entries_ret.write(table.len() as c_uint);
        table_ret.write(table.as_ptr());
    }
    0
}

/// # Safety
/// As [`clInitLayer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clInitLayerWithProperties(
    entries: c_uint,
    target: *const usize,
    entries_ret: *mut c_uint,
    table_ret: *mut *const usize,
    _properties: *const c_void,
) -> c_int {
    // SAFETY: by the contract.
    unsafe { clInitLayer(entries, target, entries_ret, table_ret) }
}
