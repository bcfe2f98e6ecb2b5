//! Which of a program's devices a call is for, and which state the others keep from earlier calls.

use std::sync::Arc;

use super::Cache;
use crate::cl::Device;
use crate::driver::profile::Rebuild;
use crate::driver::{BuildArguments, Driver};
use crate::key::ingredients::{Ingredient, Kind};
use crate::outcome::Bypass;
use crate::shadow::{NamedDevice, Operation, Recipe, Ticket};

/// The indices of the devices that a call names, ascending.
pub fn targets(
    driver: &Driver,
    devices: &[Device],
    arguments: &BuildArguments,
) -> Result<Vec<usize>, Bypass> {
    let Some(named) = &arguments.devices else {
        return Ok((0..devices.len()).collect());
    };
    let mut targets = named
        .iter()
        .map(|device| index(driver, devices, *device))
        .collect::<Option<Vec<_>>>()
        .ok_or(Bypass::SomeDevices)?;
    // PoCL lists the binaries of a program in the order of this list, whatever CL_PROGRAM_DEVICES says (measured).
    if !targets.is_sorted() {
        return Err(Bypass::UnusualArguments);
    }
    targets.dedup();
    Ok(targets)
}

/// The index of the program's device that a handle means. If the driver treats sub-devices as devices, a program has the devices of
/// its context; otherwise (measured: PoCL) it has the root device of any sub-device. The handle may be invalid. Only a driver of
/// the latter kind is asked about it, and such a driver reads the handle anyway in a build or compilation that the program's state
/// permits (and crashes if it is no device).
pub fn index(driver: &Driver, devices: &[Device], wanted: Device) -> Option<usize> {
    let position = |wanted| devices.iter().position(|device| *device == wanted);
    match position(wanted) {
        None if Cache::get().behavior(driver).sub_devices_are_their_root => {
            position(driver.root_device(wanted))
        }
        found => found,
    }
}

/// Puts the program's own devices in the place of those that a call names, and returns how it named them. The application may release
/// a sub-device that it has built for, while the program has the root device and lives on. PoCL ends the process when it is given the
/// handle of a sub-device that was released (measured for clGetDeviceInfo).
pub fn replace_named(
    driver: &Driver,
    devices: &[Device],
    arguments: &mut BuildArguments,
) -> Result<Vec<NamedDevice>, Bypass> {
    let targets = targets(driver, devices, arguments)?;
    let Some(named) = &mut arguments.devices else {
        return Ok(Vec::new());
    };
    let own = targets.iter().map(|index| devices[*index]).collect();
    let named = std::mem::replace(named, own).into_iter();
    let known = |device| Some(NamedDevice::new(device, index(driver, devices, device)?));
    Ok(named.filter_map(known).collect())
}

/// The recipe of the state that devices keep which the call does not name.
pub fn previous(
    ticket: &Ticket,
    devices: &[Device],
    arguments: &BuildArguments,
    operation: &Operation,
) -> Result<Option<Arc<Recipe>>, Bypass> {
    let targets = targets(ticket.driver, devices, arguments)?;
    // Not before it matters: to know the behavior, the driver is identified, which takes a first build 60 ms.
    let keeps = || Cache::get().behavior(ticket.driver).rebuild == Rebuild::KeepsVariables;
    // Each device keeps what it has when the program is built for another (measured: Intel's CPU runtime), variables of program scope
    // included, which no P' of them all does.
    if devices.len() > 1 && keeps() {
        return Err(Bypass::SomeDevices);
    }
    if !ticket.built || targets.len() == devices.len() {
        return Ok(None);
    }
    let recipe = ticket.recipe.as_ref().ok_or(Bypass::SomeDevices)?;
    let mut kept = Vec::new();
    for call in recipe.calls() {
        kept.extend(self::targets(ticket.driver, devices, &call.arguments)?);
    }
    if kept.iter().all(|index| targets.contains(index)) {
        return Ok(None);
    }
    // One call builds an inner program for all its devices, with the options of this call.
    let alike = matches!(
        (operation, &recipe.operation),
        (Operation::Build, Operation::Build) | (Operation::Compile(_), Operation::Compile(_))
    );
    if !alike
        || recipe.arguments.options != arguments.options
        || recipe.calls().len() >= Recipe::MAX_CHAIN
    {
        return Err(Bypass::SomeDevices);
    }
    Ok(Some(recipe.clone()))
}

/// The ingredients that tell which of several devices a call is for. Some drivers also build for the sub-devices of a device
/// (measured: Intel's CPU runtime), so the key tells which devices have the same root.
pub fn chosen(driver: &Driver, devices: &[Device], targets: &[usize]) -> Vec<Ingredient> {
    let number =
        |name, index: usize| Ingredient::new(Kind::Device, name, (index as u32).to_le_bytes());
    let roots = devices.iter().map(|device| {
        let root = driver.root_device(*device);
        let same_root = |other: &Device| driver.root_device(*other) == root;
        let first = devices.iter().position(same_root).unwrap_or_default();
        let is_root = usize::from(root == *device);
        number("root of device", 2 * first + is_root)
    });
    let targets = targets
        .iter()
        .map(|index| number("only for device", *index));
    roots.chain(targets).collect()
}
