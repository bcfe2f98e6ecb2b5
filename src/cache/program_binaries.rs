//! The binaries of a program that the driver has built.

use opencl_sys::*;

use super::plan::Plan;
use crate::cl::Program;
use crate::driver::Driver;

/// The binaries of a program.
pub(super) struct ProgramBinaries {
    /// The devices that have a binary, by their index, ascending.
    pub(super) built: Vec<usize>,
    /// The binary of each of these devices.
    pub(super) bytes: Vec<Vec<u8>>,
    /// CL_PROGRAM_BINARIES lists only these devices.
    pub(super) only_built_listed: bool,
}

/// Asks the driver for the binaries of all devices that have one.
pub(super) fn binaries(
    driver: &Driver,
    program: Program,
    plan: &Plan,
) -> Result<ProgramBinaries, String> {
    let code = |what, code: cl_int| format!("the driver does not give {what} ({code})");
    let devices = driver
        .program_devices(program)
        .map_err(|error| code("the devices", error))?;
    if devices != plan.devices {
        // The sources of AMD's driver do that in a build for some devices; not tested.
        return Err("the program has other devices now".to_owned());
    }
    let sizes = driver
        .program_binary_sizes(program)
        .map_err(|error| code("the sizes of its binary", error))?;
    let only_built_listed = sizes.len() != devices.len();
    let built = if only_built_listed {
        plan.targets.clone()
    } else {
        // More devices than the call names may have one: their sub-devices on Intel's CPU runtime (measured), and devices of
        // earlier builds.
        let is_built = |index: &usize| {
            sizes[*index] > 0
                && driver.build_status(program, devices[*index]) == Ok(CL_BUILD_SUCCESS)
        };
        (0..devices.len()).filter(is_built).collect()
    };
    if only_built_listed && sizes.len() != built.len()
        || !plan.targets.iter().all(|target| built.contains(target))
    {
        return Err("a device has no binary".to_owned());
    }
    let mut all = driver
        .program_binaries(program, &sizes)
        .map_err(|error| code("its binary", error))?;
    let bytes = if only_built_listed {
        all
    } else {
        built
            .iter()
            .map(|index| std::mem::take(&mut all[*index]))
            .collect()
    };
    if bytes.iter().any(Vec::is_empty) {
        return Err("a device has no binary".to_owned());
    }
    Ok(ProgramBinaries {
        built,
        bytes,
        only_built_listed,
    })
}
