//! What a build would be keyed by, or why it cannot be.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use opencl_sys::*;

use super::Cache;
use crate::cl::{Device, Program};
use crate::driver::profile::Rebuild;
use crate::driver::{BuildArguments, Driver};
use crate::key::options::{self, Options};
use crate::key::recipe::{self, Ingredient, Key, Kind};
use crate::key::source;
use crate::outcome::Bypass;
use crate::shadow::{Inner, Ticket};

/// Sources and options beyond this are left to the driver, in bytes.
const LARGEST_TEXT: usize = 64 << 20;

/// A build whose result is known by its key.
pub struct Plan {
    /// The key.
    pub key: Key,
    /// What it was made of.
    pub ingredients: Vec<Ingredient>,
    /// The source without the NUL.
    pub source: Vec<u8>,
    /// The options; None is NULL.
    pub options: Option<Options>,
    /// The directories of include options, whose spelling is not in the key.
    pub include_dirs: Vec<Vec<u8>>,
    /// The program's devices, in its order.
    pub devices: Vec<Device>,
    /// The call's arguments.
    pub arguments: BuildArguments,
}

impl Plan {
    /// The first digits of the key, for the log.
    pub fn key_prefix(&self) -> String {
        self.key.hex()[..16].to_owned()
    }
}

impl Cache {
    /// Plans a build of a program that is not being built otherwise.
    pub(super) fn plan(&self, ticket: &Ticket, arguments: &BuildArguments) -> Result<Plan, Bypass> {
        if ticket.concurrent {
            return Err(Bypass::ConcurrentBuild);
        }
        if ticket.release_callback {
            return Err(Bypass::ReleaseCallback);
        }
        if ticket.failed {
            return Err(Bypass::AfterFailedBuild);
        }
        if ticket.built && has_kernels(ticket) {
            return Err(Bypass::LiveKernels);
        }
        let served = ticket.inner.is_some();
        match ticket.driver.profile.rebuild {
            Rebuild::KeepsKernels if ticket.built => return Err(Bypass::BuiltBefore),
            Rebuild::KeepsVariables if ticket.built && !served => return Err(Bypass::BuiltBefore),
            _ => {}
        }
        let length = ticket.source_length.ok_or(Bypass::UnusualArguments)?;
        self.key(ticket.driver, ticket.program, length, arguments)
    }

    /// Plans a build without regard to the program's state.
    pub(super) fn key(
        &self,
        driver: &'static Driver,
        program: Program,
        source_length: usize,
        arguments: &BuildArguments,
    ) -> Result<Plan, Bypass> {
        if self.store.is_none() {
            return Err(Bypass::NoCacheDirectory);
        }
        let devices = driver
            .program_devices(program)
            .map_err(|_| Bypass::UnidentifiedDevice)?;
        if let Some(wanted) = &arguments.devices {
            let all = wanted.len() == devices.len()
                && devices.iter().all(|device| wanted.contains(device));
            if !all {
                return Err(Bypass::SomeDevices);
            }
        }
        let options_bytes = arguments.options.as_ref().map(|options| options.as_bytes());
        if source_length > LARGEST_TEXT
            || options_bytes.is_some_and(|options| options.len() > LARGEST_TEXT)
        {
            return Err(Bypass::TooLarge);
        }
        let options = options_bytes.map(options::parse).transpose()?;
        if driver.profile.refuses_debug && options.as_ref().is_some_and(|options| options.debug) {
            return Err(Bypass::RefusedByProfile);
        }
        let source = source_text(driver, program, source_length)?;
        let definitions = options
            .iter()
            .flat_map(|options| options.definitions.iter().map(Vec::as_slice));
        let texts: Vec<&[u8]> = [source.as_slice()].into_iter().chain(definitions).collect();
        if let Some(reason) = source::obstacle(&texts) {
            return Err(reason);
        }
        let device_identities = driver
            .device_identities(&devices)
            .ok_or(Bypass::UnidentifiedDevice)?;
        let driver_identity = driver
            .identity(&|path| self.digest(path))
            .ok_or(Bypass::UnidentifiedDriver)?;
        self.remember_digests();

        let mut ingredients = vec![
            Ingredient::new(Kind::Source, "", recipe::sha256(&source)),
            match &options {
                Some(options) => {
                    Ingredient::new(Kind::Options, "given", recipe::sha256(&options.normalised))
                }
                None => Ingredient::new(Kind::Options, "NULL", []),
            },
        ];
        for (index, identity) in device_identities.iter().enumerate() {
            ingredients.push(Ingredient::new(
                Kind::Device,
                "device",
                (index as u32).to_le_bytes(),
            ));
            ingredients.extend(identity.iter().cloned());
        }
        ingredients.extend(driver_identity.iter().cloned());
        ingredients.extend(environment(driver));
        if driver.profile.looks_at_executable {
            ingredients.push(Ingredient::new(Kind::Executable, "", executable()));
        }
        let include_dirs = options
            .as_ref()
            .map(|options| options.include_dirs.clone())
            .unwrap_or_default();
        Ok(Plan {
            key: recipe::key(&ingredients),
            ingredients,
            source,
            options,
            include_dirs,
            devices,
            arguments: arguments.clone(),
        })
    }
}

/// Whether kernels are attached to the program, so that only the driver can say whether it may be built again. Kernels
/// that the application has released may still be executing: drivers that count them in the program's references tell.
pub(super) fn has_kernels(ticket: &Ticket) -> bool {
    ticket.kernels > 0
        || has_more_references(ticket.driver, ticket.program, ticket.references)
        || ticket
            .inner
            .as_ref()
            .is_some_and(|inner| has_inner_kernels(ticket, inner))
}

/// Whether some of them are kernels of P'.
pub(super) fn has_inner_kernels(ticket: &Ticket, inner: &Inner) -> bool {
    ticket.inner_kernels > 0 || has_more_references(ticket.driver, inner.program(), 1)
}

fn has_more_references(driver: &Driver, program: Program, ours: cl_uint) -> bool {
    driver
        .program_references(program)
        .is_ok_and(|references| references > ours)
}

/// The source as the driver has it. It must have the length that the application gave, since some drivers could compile
/// more than they show (OpenCL 3.0, 5.8.7: NUL characters within strings are left out of CL_PROGRAM_SOURCE).
fn source_text(driver: &Driver, program: Program, length: usize) -> Result<Vec<u8>, Bypass> {
    let mut source = driver
        .program_info(program, CL_PROGRAM_SOURCE)
        .map_err(|_| Bypass::NotFromSource)?;
    if source.pop() != Some(0) || source.len() != length {
        return Err(Bypass::UnusualArguments);
    }
    Ok(source)
}

/// The variables that change code, in the order of their names.
fn environment(driver: &Driver) -> Vec<Ingredient> {
    let profile = driver.profile;
    let suffix = driver.suffix();
    let by_suffix = |name: &[u8]| {
        profile.suffix_variables
            && !suffix.is_empty()
            && name
                .strip_prefix(suffix)
                .is_some_and(|rest| rest.starts_with(b"_"))
    };
    let mut found: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| {
            by_suffix(name.as_bytes())
                || name
                    .to_str()
                    .is_some_and(|name| profile.environment.changes_code(name))
        })
        .collect();
    found.sort();
    found
        .into_iter()
        .map(|(name, value)| {
            Ingredient::new(Kind::Environment, name.to_string_lossy(), value.into_vec())
        })
        .collect()
}

/// The name of the running program's file.
pub(super) fn executable() -> Vec<u8> {
    let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    path.file_name()
        .map(|name| name.as_bytes().to_vec())
        .unwrap_or_default()
}
