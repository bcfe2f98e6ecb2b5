//! The identity of a driver's devices: everything about them that changes what is compiled for them.

use std::collections::HashMap;
use std::sync::Arc;

use opencl_sys::*;

use super::{Driver, processor};
use crate::cl::info::Number;
use crate::cl::{Device, Platform};
use crate::key::ingredients::{Ingredient, Kind};

/// The devices' parts of keys, by root device.
pub type Devices = HashMap<Device, Arc<[Ingredient]>>;

/// The queries of a device whose answers may change code or the preprocessor's definitions.
const DEVICE_QUERIES: &[(&str, cl_device_info)] = &[
    ("device name", CL_DEVICE_NAME),
    ("device vendor", CL_DEVICE_VENDOR),
    ("device vendor id", CL_DEVICE_VENDOR_ID),
    ("device version", CL_DEVICE_VERSION),
    ("driver version", CL_DRIVER_VERSION),
    ("device profile", CL_DEVICE_PROFILE),
    ("device type", CL_DEVICE_TYPE),
    ("device OpenCL C version", CL_DEVICE_OPENCL_C_VERSION),
    ("device extensions", CL_DEVICE_EXTENSIONS),
    ("device address bits", CL_DEVICE_ADDRESS_BITS),
    ("device endian little", CL_DEVICE_ENDIAN_LITTLE),
    ("device image support", CL_DEVICE_IMAGE_SUPPORT),
    ("device single fp config", CL_DEVICE_SINGLE_FP_CONFIG),
    ("device max work-group size", CL_DEVICE_MAX_WORK_GROUP_SIZE),
    ("device local memory size", CL_DEVICE_LOCAL_MEM_SIZE),
];

/// Queries that only newer devices answer. An error counts as an answer.
const OPTIONAL_DEVICE_QUERIES: &[(&str, cl_device_info)] = &[
    ("device double fp config", CL_DEVICE_DOUBLE_FP_CONFIG),
    ("device IL version", CL_DEVICE_IL_VERSION),
    ("device numeric version", CL_DEVICE_NUMERIC_VERSION),
];

const PLATFORM_QUERIES: &[(&str, cl_platform_info)] = &[
    ("platform name", CL_PLATFORM_NAME),
    ("platform vendor", CL_PLATFORM_VENDOR),
    ("platform version", CL_PLATFORM_VERSION),
];

/// The name of the device whose part of the key this is.
pub fn name(identity: &[Ingredient]) -> Option<&[u8]> {
    let first = identity.first()?;
    let is_name = first.kind == Kind::Device && first.name == DEVICE_QUERIES[0].0;
    is_name.then(|| first.value.strip_suffix(b"\0").unwrap_or(&first.value))
}

impl Driver {
    /// The part of the key for these devices, in this order. A sub-device compiles as its root device does.
    ///
    /// None if a device does not answer.
    pub fn device_identities(&self, devices: &[Device]) -> Option<Vec<Arc<[Ingredient]>>> {
        devices
            .iter()
            .map(|&device| {
                let root = self.root_device(device);
                if let Some(known) = self.devices.lock().get(&root) {
                    return Some(known.clone());
                }
                let identity: Arc<[Ingredient]> = self.take_device_identity(root)?.into();
                self.devices.lock().insert(root, identity.clone());
                Some(identity)
            })
            .collect()
    }

    /// The device itself, or the root device of a sub-device.
    pub fn root_device(&self, mut device: Device) -> Device {
        while let Ok(value) = self.device_info(device, CL_DEVICE_PARENT_DEVICE) {
            match Device::from_value(&value) {
                Some(parent) if !parent.is_null() => device = parent,
                _ => break,
            }
        }
        device
    }

    fn take_device_identity(&self, device: Device) -> Option<Vec<Ingredient>> {
        let mut ingredients = Vec::new();
        let kind = self.device_info(device, CL_DEVICE_TYPE).ok()?;
        let kind: cl_device_type = Number::from_value(&kind)?;
        let is_processor = kind & CL_DEVICE_TYPE_CPU != 0;
        let version = self.device_info(device, CL_DRIVER_VERSION).ok()?;
        let is_measured = |known: &&str| version.starts_with(known.as_bytes());
        let ignores_local_memory =
            is_processor && self.profile.ignores_local_memory.iter().any(is_measured);
        for (name, query) in DEVICE_QUERIES {
            if *query == CL_DEVICE_LOCAL_MEM_SIZE && ignores_local_memory {
                continue;
            }
            ingredients.push(Ingredient::new(
                Kind::Device,
                *name,
                self.device_info(device, *query).ok()?,
            ));
        }
        for (name, query) in OPTIONAL_DEVICE_QUERIES {
            let value = self
                .device_info(device, *query)
                .unwrap_or_else(|code| code.to_le_bytes().to_vec());
            ingredients.push(Ingredient::new(Kind::Device, *name, value));
        }
        let features = self
            .device_info(device, CL_DEVICE_OPENCL_C_FEATURES)
            .unwrap_or_default();
        ingredients.push(Ingredient::new(
            Kind::Device,
            "device OpenCL C features",
            feature_names(&features),
        ));
        let platform = Platform::from_value(&self.device_info(device, CL_DEVICE_PLATFORM).ok()?)?;
        for (name, query) in PLATFORM_QUERIES {
            ingredients.push(Ingredient::new(
                Kind::Device,
                *name,
                self.platform_info(platform, *query).ok()?,
            ));
        }
        if is_processor {
            ingredients.extend(processor::ingredients(self.profile.processor)?);
        }
        Some(ingredients)
    }
}

/// The versions and names in an array of cl_name_version: a u32, and a name in 64 bytes. Intel's CPU runtime leaves uninitialized
/// memory after the name (measured), so the array itself differs in each process.
fn feature_names(features: &[u8]) -> Vec<u8> {
    let mut names = Vec::new();
    for feature in features.chunks(size_of::<cl_name_version>()) {
        let (version, name) = feature.split_at(feature.len().min(size_of::<u32>()));
        names.extend(version);
        names.extend(name.iter().take_while(|byte| **byte != 0));
        names.push(0);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_the_name_of_a_feature_does_not_matter() {
        let feature = |rest: u8| {
            let mut bytes = vec![0, 0, 0xc0, 0];
            bytes.extend(b"__opencl_c_fp64\0");
            bytes.resize(size_of::<cl_name_version>(), rest);
            bytes
        };
        let names = |features: &[Vec<u8>]| feature_names(&features.concat());
        assert_eq!(
            names(&[feature(1), feature(2)]),
            names(&[feature(3), feature(4)])
        );
        assert_ne!(names(&[feature(1)]), names(&[feature(1), feature(1)]));
    }
}
