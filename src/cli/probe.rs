//! What the loader and the drivers of this machine are, as child processes find that out: what may crash or hang is loaded there.

pub mod prober;
pub mod worker;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::worker::root::Root;
use crate::front::vendors;
use prober::{ProbeOutput, ProbeTarget, Prober};
use worker::{OurCopy, ProbeBuilds, ProbeMessage, ProbedPlatform};

/// Where loaders that have a directory of layers look for them.
pub const LAYER_DIRECTORY: &str = "/etc/OpenCL/layers";
/// How long a driver may take for one step.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What one child tells of a library.
pub enum ProbedLibrary {
    Us(OurCopy),
    Driver {
        platforms: Vec<ProbedPlatform>,
        is_icd2: bool,
    },
    /// Why it cannot be used, and whether that ends every program that tries.
    Broken(String, bool),
}

/// What a library is, as a process of its own finds it.
pub fn ask(library: &Path, prober: &Prober, kept: &Root) -> ProbedLibrary {
    let probed = prober.probe(
        &ProbeTarget::Itself { driver: library },
        ProbeBuilds::None,
        kept,
    );
    for message in probed.messages {
        match message {
            ProbeMessage::Driver { platforms, is_icd2 } => {
                return ProbedLibrary::Driver { platforms, is_icd2 };
            }
            ProbeMessage::Copies(copies) => {
                if let Some(copy) = copies.into_iter().next() {
                    return ProbedLibrary::Us(copy);
                }
            }
            ProbeMessage::Failed(why) => return ProbedLibrary::Broken(why, false),
            _ => {}
        }
    }
    let why = probed
        .silence
        .unwrap_or_else(|| "it says nothing".to_owned());
    ProbedLibrary::Broken(why, true)
}

/// Whether a library has the name of ours.
pub fn is_named_as_us(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"liboclcache")
}

/// What the loader knows.
#[derive(Default)]
pub struct Features {
    /// OPENCL_LAYERS.
    pub layers: bool,
    /// A directory of layers for the whole system.
    pub layer_directory: bool,
    /// It takes no layer without clInitLayerWithProperties.
    pub needs_properties: bool,
    /// It calls drivers of ICD 2.0 through tables of its own.
    pub icd2: bool,
    /// OCL_ICD_VENDORS may name a file as well as a directory.
    pub takes_files: bool,
}

impl Features {
    /// Names that stand in the file of ocl-icd and of Khronos' loader exactly where they are read or asked for (ocl-icd 2.3.1 and
    /// 2.3.3, Khronos' 3.0 and 3.1).
    fn of(file: &[u8]) -> Features {
        let has = |name: &str| file.windows(name.len()).any(|part| part == name.as_bytes());
        Features {
            layers: has("OPENCL_LAYERS"),
            layer_directory: has("OPENCL_LAYER_PATH"),
            needs_properties: has("clInitLayerWithProperties"),
            icd2: has("clIcdGetFunctionAddressForPlatformKHR"),
            takes_files: has("OCL_ICD_PLATFORM_SORT"),
        }
    }

    pub fn words(&self) -> String {
        let mut words = vec![match self.icd2 {
            true => "ICD 2.0",
            false => "no ICD 2.0",
        }];
        words.push(match (self.layers, self.layer_directory) {
            (false, _) => "no layers",
            (true, false) => "layers by OPENCL_LAYERS, no directory of layers",
            (true, true) => "layers by OPENCL_LAYERS and by directory",
        });
        words.join(", ")
    }
}

/// The loader's file, and what it supports; None if there is no loader.
pub fn loader(probed: &ProbeOutput) -> Option<(Option<PathBuf>, Features)> {
    let file = probed.messages.iter().find_map(|message| match message {
        ProbeMessage::Loader(file) => Some(file),
        _ => None,
    })?;
    let real = file.as_ref().and_then(|file| file.canonicalize().ok());
    let bytes = real.as_ref().and_then(|file| std::fs::read(file).ok());
    Some((real, Features::of(&bytes.unwrap_or_default())))
}

/// What `oclcache install` has to know of this machine.
#[derive(Default)]
pub struct Machine {
    /// The loader takes layers by a variable.
    pub layers: bool,
    /// And from a directory.
    pub layer_directory: bool,
    /// It calls a driver through a table of its own.
    pub needs_layer: bool,
}

/// Looks at this machine's loader and drivers.
///
/// # Errors
/// No process can be started for that.
pub fn look(stop: &AtomicBool) -> std::io::Result<Machine> {
    let kept = Root::new()?;
    let prober = Prober { limit: LIMIT, stop };
    let probed = prober.probe(&ProbeTarget::Shell, ProbeBuilds::None, &kept);
    let Some((_, features)) = loader(&probed) else {
        return Ok(Machine::default());
    };
    let sources = vendors::loader_sources(&|name| std::env::var_os(name));
    let mut libraries = sources
        .iter()
        .flat_map(|source| vendors::listed(source))
        .filter_map(|listed| listed.library.ok());
    let is_icd2 = |library: PathBuf| {
        let told = ask(&library, &prober, &kept);
        matches!(told, ProbedLibrary::Driver { platforms, is_icd2: true } if !platforms.is_empty())
    };
    Ok(Machine {
        layers: features.layers,
        layer_directory: features.layer_directory,
        needs_layer: features.icd2 && libraries.any(is_icd2),
    })
}

/// Whether a library, by its name or path, is a copy of ours.
pub fn is_ours(library: &Path) -> bool {
    let stop = AtomicBool::new(false);
    let prober = Prober {
        limit: LIMIT,
        stop: &stop,
    };
    Root::new().is_ok_and(|kept| matches!(ask(library, &prober, &kept), ProbedLibrary::Us(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_are_told_apart_by_what_they_read() {
        let debian = Features::of(b"..OPENCL_LAYERS\0clInitLayer\0OCL_ICD_PLATFORM_SORT\0");
        assert_eq!(
            debian.words(),
            "no ICD 2.0, layers by OPENCL_LAYERS, no directory of layers"
        );
        assert!(debian.takes_files && !debian.needs_properties);
        let old = Features::of(b"clGetPlatformIDs");
        assert_eq!(old.words(), "no ICD 2.0, no layers");
    }
}
