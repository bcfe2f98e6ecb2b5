//! What a driver and its devices are: everything about them that changes what they compile.
//!
//! Version strings alone do not do: drivers and their compiler libraries are updated without a change of them. So the key
//! has each library that the driver needs, as it is loaded, and the files that its profile names.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use opencl_sys::*;

use super::{Driver, loaded};
use crate::cl::info::Number;
use crate::cl::{Device, Platform};
use crate::key::ingredients::{Ingredient, Kind};

/// The SHA-256 of a file's content.
pub type FileDigest<'a> = &'a dyn Fn(&Path) -> io::Result<[u8; 32]>;

/// The driver's part of a key.
pub type DriverIdentity = Arc<[Ingredient]>;

/// The devices' parts of keys, by root device.
pub type Devices = HashMap<Device, Arc<[Ingredient]>>;

/// What a device answers that may change code or what the preprocessor defines.
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

/// Answers that only newer devices have; an error is an answer as well.
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

impl Driver {
    /// The driver's part of the key, taken at the first call.
    ///
    /// None: a file could not be read, or a library that is in use was replaced on disk and has no build-id, so what
    /// compiles is not provable.
    pub fn identity(&self, digest: FileDigest) -> Option<DriverIdentity> {
        if let Some(known) = self.identity.get() {
            return known.clone();
        }
        // Without a lock, since hashing can take a second. Two threads that both do it find the same.
        let taken = self.take_identity(digest);
        self.identity.get_or_init(|| Box::new(taken)).clone()
    }

    fn take_identity(&self, digest: FileDigest) -> Option<DriverIdentity> {
        let functions = self.functions();
        let objects = loaded::closure(&functions);
        if objects.is_empty() {
            return None;
        }
        let mut ingredients = Vec::new();
        for object in &objects {
            if object.path.as_os_str().is_empty() || object.name.starts_with(b"linux-vdso") {
                continue;
            }
            let name = String::from_utf8_lossy(&object.name).into_owned();
            let value = match &object.build_id {
                Some(build_id) => [b"build-id ", build_id.as_slice()].concat(),
                None if object.is_what_stands_at_its_path() => {
                    self.content(&object.path, digest)?
                }
                None => {
                    let library = crate::log::path(&object.path);
                    tracing::warn!(%library, "this library was replaced since it was loaded: nothing is cached");
                    return None;
                }
            };
            ingredients.push(Ingredient::new(Kind::Driver, name, value));
        }
        for path in self.files(&objects) {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            ingredients.push(Ingredient::new(
                Kind::Driver,
                name,
                self.content(&path, digest)?,
            ));
        }
        // The order of loading and of directory entries means nothing.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        ingredients.dedup();
        Some(ingredients.into())
    }

    fn content(&self, path: &Path, digest: FileDigest) -> Option<Vec<u8>> {
        match digest(path) {
            Ok(digest) => Some([b"sha256 ", digest.as_slice()].concat()),
            Err(error) => {
                tracing::warn!(file = %crate::log::path(path), %error, "a file of the driver cannot be read: nothing is cached");
                None
            }
        }
    }

    /// The files that the profile names, beside each library that holds functions of the table.
    fn files(&self, objects: &[loaded::Object]) -> Vec<PathBuf> {
        let functions = self.functions();
        let mut found = Vec::new();
        for object in objects
            .iter()
            .filter(|object| functions.iter().any(|function| object.contains(*function)))
        {
            let Ok(library) = std::fs::canonicalize(&object.path) else {
                continue;
            };
            let Some(beside) = library.parent() else {
                continue;
            };
            for (directory, pattern) in self.profile.files {
                let Ok(entries) = std::fs::read_dir(beside.join(directory)) else {
                    continue;
                };
                found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| {
                    path.file_name()
                        .is_some_and(|name| matches(pattern, &name.to_string_lossy()))
                        && path.is_file()
                }));
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// The part of the key for these devices, in this order. A sub-device compiles as its root device does.
    ///
    /// None: a device does not answer.
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

    /// The device itself, or that of which it is a part.
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
        for (name, query) in DEVICE_QUERIES {
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
        let kind = self.device_info(device, CL_DEVICE_TYPE).ok()?;
        let kind: cl_device_type = Number::from_value(&kind)?;
        if kind & CL_DEVICE_TYPE_CPU != 0 {
            ingredients.extend(processor()?);
        }
        Some(ingredients)
    }
}

/// The versions and names in an array of cl_name_version: a u32, and a name in 64 bytes. Behind the name's end Intel's CPU
/// runtime leaves whatever was in its memory (measured), so the array itself differs in each process.
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

/// The processor's model and features: code for a CPU device is made for them, and a home directory may be shared by
/// different hosts. The first processor stands for all.
fn processor() -> Option<Vec<Ingredient>> {
    use std::io::Read;
    let mut text = Vec::new();
    // The description of one processor is at most a few KiB; with hundreds of them the file takes milliseconds to read.
    std::fs::File::open("/proc/cpuinfo")
        .ok()?
        .take(16 << 10)
        .read_to_end(&mut text)
        .ok()?;
    let text = String::from_utf8_lossy(&text);
    let first = text.split("\n\n").next()?;
    let wanted = [
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "flags",
        "Features",
        "CPU implementer",
        "CPU part",
    ];
    let ingredients: Vec<_> = first
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| wanted.contains(&name.trim()))
        .map(|(name, value)| Ingredient::new(Kind::Processor, name.trim(), value.trim()))
        .collect();
    (!ingredients.is_empty()).then_some(ingredients)
}

/// Whether a name matches a pattern with at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((prefix, suffix)) => {
            let suffix = suffix.trim_end_matches('*');
            name.strip_prefix(prefix).is_some_and(|rest| {
                rest.ends_with(suffix) || rest.contains(suffix) && pattern.ends_with('*')
            })
        }
    }
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

    #[test]
    fn patterns_choose_the_files_that_the_profiles_mean() {
        assert!(matches("*", "anything"));
        assert!(matches("cl.cfg", "cl.cfg"));
        assert!(!matches("cl.cfg", "cl.cfg.old"));
        assert!(matches("*.rtl", "clbltfnz0.rtl"));
        assert!(!matches("*.rtl", "rtl.so"));
        assert!(matches("libnvidia-nvvm*.so*", "libnvidia-nvvm.so.4"));
        assert!(!matches("libnvidia-nvvm*.so*", "libnvidia-ml.so.1"));
    }
}
