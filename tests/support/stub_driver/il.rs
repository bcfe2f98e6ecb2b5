//! Programs in an intermediate language: as much of SPIR-V as names kernels and specialization constants.
//!
//! Each kernel of a module takes one buffer, and computes numbers that follow from the module and the constants.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::Arc;

use opencl_sys::*;

use crate::abi::{self, Outcome, code};
use crate::context::CONTEXTS;
use crate::program::{Origin, PROGRAMS, Program, program};

const MAGIC: u32 = 0x0723_0203;
const HEADER: usize = 5;
const ENTRY_POINT: u32 = 15;
const DECORATE: u32 = 71;
const SPEC_ID: u32 = 1;

/// The values that were set, by constant.
pub type Constants = BTreeMap<u32, Vec<u8>>;

/// The words after a module's header, an instruction each: its code and its operands. None if that is no module.
fn instructions(il: &[u8]) -> Option<Vec<(u32, Vec<u32>)>> {
    let words: Vec<u32> = il
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("exact chunks")))
        .collect();
    if words.first() != Some(&MAGIC) || words.len() < HEADER || !il.len().is_multiple_of(4) {
        return None;
    }
    let mut rest = &words[HEADER..];
    let mut found = Vec::new();
    while let Some(first) = rest.first() {
        let count = (first >> 16) as usize;
        if count == 0 || count > rest.len() {
            return None;
        }
        found.push((first & 0xffff, rest[1..count].to_vec()));
        rest = &rest[count..];
    }
    Some(found)
}

fn constants(il: &[u8]) -> Vec<u32> {
    let decorations = instructions(il).unwrap_or_default().into_iter();
    decorations
        .filter_map(|(code, operands)| match operands[..] {
            [_, SPEC_ID, id] if code == DECORATE => Some(id),
            _ => None,
        })
        .collect()
}

/// A source that stands for a module with its constants; None if that is no module.
pub fn source(il: &[u8], set: &Constants) -> Option<Vec<u8>> {
    let mut text = format!("// {il:?} {set:?}\n");
    for (_, operands) in instructions(il)?
        .into_iter()
        .filter(|(code, _)| *code == ENTRY_POINT)
    {
        // The execution model and the function stand before the name.
        let bytes: Vec<u8> = operands
            .iter()
            .skip(2)
            .flat_map(|word| word.to_le_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        let name = String::from_utf8(bytes).ok()?;
        let _ = writeln!(text, "kernel void {name}(global uint *out) {{ }}");
    }
    Some(text.into_bytes())
}

pub unsafe extern "C" fn create(
    context: cl_context,
    il: *const c_void,
    length: usize,
    errcode: *mut cl_int,
) -> cl_program {
    // SAFETY: the application's module has `length` bytes.
    let il = unsafe { abi::list(il.cast::<u8>(), length) };
    let outcome = (|| {
        let held = CONTEXTS.hold(context).ok_or(CL_INVALID_CONTEXT)?;
        if instructions(&il).is_none() {
            return Err(CL_INVALID_VALUE);
        }
        let devices = held.object().devices.clone();
        let program = Program::new(held, devices, Origin::Il(il));
        Ok(PROGRAMS.insert(Arc::new(program), context))
    })();
    // SAFETY: the application's own place.
    unsafe { abi::handle(outcome, errcode) }
}

pub unsafe extern "C" fn set_constant(
    handle: cl_program,
    id: cl_uint,
    size: usize,
    value: *const c_void,
) -> cl_int {
    let set = || -> Outcome {
        let program = program(handle)?;
        let Origin::Il(il) = &program.origin else {
            return Err(CL_INVALID_PROGRAM);
        };
        if !constants(il).contains(&id) {
            return Err(CL_INVALID_SPEC_ID);
        }
        // All constants of a module are words.
        if value.is_null() || size != size_of::<u32>() {
            return Err(CL_INVALID_VALUE);
        }
        // SAFETY: the application's value has `size` bytes.
        let bytes = unsafe { abi::list(value.cast::<u8>(), size) };
        program.state.lock().constants.insert(id, bytes);
        Ok(())
    };
    code(set())
}
