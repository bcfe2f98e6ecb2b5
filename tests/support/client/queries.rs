//! Queries made and their answers printed: code, size, value, and what becomes of a buffer that is too small.

use std::ffi::c_void;
use std::ptr;

use opencl_sys::*;

use crate::cl::{Handle, call};

/// How the bytes of an answer are printed.
#[derive(Clone, Copy)]
pub enum Form<'a> {
    Text,
    /// Names separated by semicolons, sorted: for drivers that shuffle them.
    SortedNames,
    U32,
    I32,
    U64,
    /// Whether the handles are these.
    Handles(&'a [Handle]),
}

type Ask<'a> = &'a dyn Fn(usize, *mut c_void, *mut usize) -> cl_int;

/// The bytes of text that is safe to print on one line.
pub fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// An answer as bytes, by the two-call protocol.
pub fn ask(ask: Ask) -> Result<Vec<u8>, cl_int> {
    ask_into(0, ask)
}

/// An answer in a buffer that was full of one byte before.
fn ask_into(fill: u8, ask: Ask) -> Result<Vec<u8>, cl_int> {
    let mut size = 0;
    match ask(0, ptr::null_mut(), &mut size) {
        CL_SUCCESS => {}
        code => return Err(code),
    }
    // Some answers are empty, and NULL would mean "size only".
    let mut bytes = vec![fill; size.max(1)];
    match ask(size, bytes.as_mut_ptr().cast(), ptr::null_mut()) {
        CL_SUCCESS => {
            bytes.truncate(size);
            Ok(bytes)
        }
        code => Err(code),
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes
        .chunks_exact(N)
        .map(|chunk| chunk.try_into().expect("exact chunks"))
}

fn format(bytes: &[u8], form: Form) -> String {
    let words: Vec<String> = match form {
        Form::Text => return format!("\"{}\"", escape(bytes)),
        Form::SortedNames => {
            let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
            let mut names: Vec<&[u8]> = text.split(|byte| *byte == b';').collect();
            names.sort();
            return format!("sorted \"{}\"", escape(&names.join(&b';')));
        }
        Form::U32 => words(bytes)
            .map(|word| u32::from_ne_bytes(word).to_string())
            .collect(),
        Form::I32 => words(bytes)
            .map(|word| i32::from_ne_bytes(word).to_string())
            .collect(),
        Form::U64 => words(bytes)
            .map(|word| u64::from_ne_bytes(word).to_string())
            .collect(),
        Form::Handles(known) => words(bytes)
            .map(|word| {
                let handle = usize::from_ne_bytes(word) as Handle;
                let position = known.iter().position(|known| *known == handle);
                position.map_or("unknown".to_owned(), |index| format!("#{index}"))
            })
            .collect(),
    };
    words.join(" ")
}

/// Asks in every way and prints the answers.
pub fn show(label: &str, asking: Ask, form: Form) {
    match ask(asking) {
        Err(code) => {
            println!("{label}: code {code}");
            // Some drivers tell the size of what they refuse.
            let mut size = 77_777;
            let code = asking(0, ptr::null_mut(), &mut size);
            println!("{label}: size alone: code {code} {size}");
        }
        Ok(bytes) => {
            println!(
                "{label}: size {} value {}",
                bytes.len(),
                format(&bytes, form)
            );
            // Some drivers tell a size and do not write all of it.
            if let [Ok(one), Ok(other)] = [0x55, 0xaa].map(|fill| ask_into(fill, asking)) {
                let pairs = one.iter().zip(&other).enumerate();
                let unwritten = pairs.filter(|(_, (one, other))| one != other);
                let unwritten: Vec<usize> = unwritten.map(|(index, _)| index).collect();
                println!("{label}: unwritten bytes {unwritten:?}");
            }
            if !bytes.is_empty() {
                // Some drivers take a size of none for a query of the size alone.
                for size in [0, 4.min(bytes.len() - 1), bytes.len() - 1] {
                    let mut short = vec![0xaa_u8; bytes.len()];
                    let (value, mut size_ret) = (short.as_mut_ptr().cast(), 77_777);
                    let codes = [
                        asking(size, value, ptr::null_mut()),
                        asking(size, value, &mut size_ret),
                    ];
                    let touched = short.iter().any(|byte| *byte != 0xaa);
                    println!("{label}: {size} bytes: {codes:?} {size_ret} touched {touched}");
                }
            }
        }
    }
    for size in [1, 1000] {
        let mut size_ret = 77_777;
        let codes = [
            asking(size, ptr::null_mut(), ptr::null_mut()),
            asking(size, ptr::null_mut(), &mut size_ret),
        ];
        println!("{label}: NULL of {size} bytes: {codes:?} {size_ret}");
    }
    println!(
        "{label}: all NULL: code {}",
        asking(0, ptr::null_mut(), ptr::null_mut())
    );
}

pub fn program_info(program: Handle, param: cl_program_info) -> Result<Vec<u8>, cl_int> {
    ask(&|size, value, size_ret| call!(clGetProgramInfo(program, param, size, value, size_ret)))
}

/// The binary of a program for one device.
pub fn binary(program: Handle) -> Result<Vec<u8>, cl_int> {
    let sizes = program_info(program, CL_PROGRAM_BINARY_SIZES)?;
    let size = sizes
        .first_chunk()
        .map_or(0, |size| usize::from_ne_bytes(*size));
    let mut binary = vec![0_u8; size];
    let mut place = binary.as_mut_ptr();
    let code = call!(clGetProgramInfo(
        program,
        CL_PROGRAM_BINARIES,
        size_of::<Handle>(),
        (&raw mut place).cast(),
        ptr::null_mut()
    ));
    if code == CL_SUCCESS {
        Ok(binary)
    } else {
        Err(code)
    }
}

pub fn build_info(
    program: Handle,
    device: Handle,
    param: cl_program_build_info,
) -> Result<Vec<u8>, cl_int> {
    ask(&|size, value, size_ret| {
        call!(clGetProgramBuildInfo(
            program, device, param, size, value, size_ret
        ))
    })
}

pub fn kernel_info(kernel: Handle, param: cl_kernel_info) -> Result<Vec<u8>, cl_int> {
    ask(&|size, value, size_ret| call!(clGetKernelInfo(kernel, param, size, value, size_ret)))
}

/// An answer of four bytes or the code in its place.
pub fn number(answer: Result<Vec<u8>, cl_int>) -> String {
    match answer {
        Ok(bytes) if bytes.is_empty() => "nothing".to_owned(),
        Ok(bytes) if bytes.len() == 8 => format(&bytes, Form::U64),
        Ok(bytes) => format(&bytes, Form::I32),
        Err(code) => format!("code {code}"),
    }
}

/// A text or the code in its place.
pub fn string(answer: Result<Vec<u8>, cl_int>) -> String {
    match answer {
        Ok(bytes) => format(&bytes, Form::Text),
        Err(code) => format!("code {code}"),
    }
}

/// Whether the answer is this handle.
pub fn is_handle(answer: Result<Vec<u8>, cl_int>, handle: Handle) -> String {
    match answer {
        Ok(bytes) => match bytes.try_into().map(usize::from_ne_bytes) {
            Ok(found) if found == handle as usize => "same".to_owned(),
            Ok(_) => "another".to_owned(),
            Err(bytes) => format!("{} bytes", bytes.len()),
        },
        Err(code) => format!("code {code}"),
    }
}

pub fn program_references(program: Handle) -> String {
    number(program_info(program, CL_PROGRAM_REFERENCE_COUNT))
}

pub fn kernel_references(kernel: Handle) -> String {
    number(kernel_info(kernel, CL_KERNEL_REFERENCE_COUNT))
}

pub fn context_references(context: Handle) -> String {
    number(ask(&|size, value, size_ret| {
        call!(clGetContextInfo(
            context,
            CL_CONTEXT_REFERENCE_COUNT,
            size,
            value,
            size_ret
        ))
    }))
}
