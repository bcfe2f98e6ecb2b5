//! Programs, and what the process does before: each argument is a step.

use std::env;
use std::process::Command;
use std::ptr;

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::queries::binary;

const USAGE: &str =
    "the steps are: devices, context, set NAME VALUE, unset NAME, sh COMMAND, build FILE";

pub fn section(arguments: &[String]) -> Result<(), String> {
    let loader = env::var("CLIENT_LOADER").unwrap_or_else(|_| "libOpenCL.so.1".to_owned());
    cl::open(&loader)?;
    let (mut platform, mut device) = (ptr::null_mut(), ptr::null_mut());
    let mut context: Handle = ptr::null_mut();
    let code = call!(clGetPlatformIDs(1, &mut platform, ptr::null_mut()));
    println!("platforms: {code}");
    let mut steps = arguments.iter().map(String::as_str);
    while let Some(step) = steps.next() {
        let mut next = || steps.next().ok_or(USAGE);
        match step {
            "devices" => {
                let (all, none) = (CL_DEVICE_TYPE_ALL, ptr::null_mut());
                let code = call!(clGetDeviceIDs(platform, all, 1, &mut device, none));
                println!("devices: {code}");
            }
            "context" => {
                let (mut code, none) = (1, ptr::null_mut());
                let properties = ptr::null();
                context = call!(clCreateContext(
                    properties, 1, &device, None, none, &mut code
                ));
                println!("context: {code}");
            }
            // SAFETY: no other thread of this program reads or writes variables.
            "set" => unsafe { env::set_var(next()?, next()?) },
            // SAFETY: as above.
            "unset" => unsafe { env::remove_var(next()?) },
            "sh" => {
                let status = Command::new("sh").arg("-c").arg(next()?).status();
                println!(
                    "sh: {:?}",
                    status.map_err(|error| error.to_string())?.code()
                );
            }
            "build" => {
                let file = next()?;
                let source = std::fs::read_to_string(file);
                let source = source.map_err(|error| format!("{file}: {error}"))?;
                let (program, code) = cl::program(context, &source);
                let built = cl::build(program, Some(""));
                let bytes = binary(program).map(|binary| binary.len());
                println!("build: {code} {built}, {bytes:?} bytes");
                cl::release_program(program);
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(())
}
