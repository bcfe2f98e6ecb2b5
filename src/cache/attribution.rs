//! The driver and device for which an event without a plan is counted.

use std::sync::Arc;

use crate::cl::{Device, Program};
use crate::driver::{self, BuildArguments, Driver, device};
use crate::key::ingredients::Ingredient;
use crate::shadow::CachedProgram;
use crate::store::stats::Labels;

/// A driver and a device, as far as they are known.
#[derive(Clone, Default)]
pub struct Attribution {
    /// None if the program is not known.
    pub driver: Option<&'static Driver>,
    device: Option<Arc<[Ingredient]>>,
}

impl Attribution {
    /// A driver without a device.
    pub fn driver(driver: &'static Driver) -> Attribution {
        Attribution {
            driver: Some(driver),
            device: None,
        }
    }

    /// The first of the devices that a call names, or of the program's.
    pub fn program(
        driver: &'static Driver,
        program: Program,
        call: &BuildArguments,
    ) -> Attribution {
        if driver::is_ending() {
            return Attribution::driver(driver);
        }
        // What a call names may be no device. NVIDIA's driver 580 refuses to build for it, and crashed where its name was asked for here
        // (the crash is measured, its cause inferred).
        let devices = driver.program_devices(program).unwrap_or_default();
        let named = call.devices.as_ref().and_then(|named| named.first());
        let known = named.filter(|device| devices.contains(device));
        match known.or(devices.first()).copied() {
            Some(device) => Attribution::device(driver, device),
            None => Attribution::driver(driver),
        }
    }

    /// The first device of a serving program.
    pub fn inner(inner: &CachedProgram) -> Attribution {
        let driver = inner.driver();
        let first = inner.devices().first();
        first.map_or_else(
            || Attribution::driver(driver),
            |device| Attribution::device(driver, *device),
        )
    }

    /// A device of a driver.
    pub fn device(driver: &'static Driver, device: Device) -> Attribution {
        // No function of a driver that is being torn down may be called.
        let identities = (!driver::is_ending())
            .then(|| driver.device_identities(&[device]))
            .flatten();
        Attribution {
            driver: Some(driver),
            device: identities.and_then(|mut identities| identities.pop()),
        }
    }

    /// The labels of the counters.
    pub fn place(&self) -> Labels<'_> {
        let name = self.device.as_deref().and_then(device::name);
        Labels {
            driver: self.driver.map_or("", |driver| driver.profile.family),
            device: name.unwrap_or_default(),
        }
    }
}
