//! Finds out what the loader and the drivers of this machine are. They are loaded in child processes, since they may crash or hang.

pub mod prober;
pub mod worker;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::worker::private_directory::PrivateDirectory;
use crate::front::vendors;
use crate::regular_file;
use prober::{ProbeOutput, ProbeTarget, Prober};
use worker::{OurCopy, ProbeBuilds, ProbeMessage, ProbedPlatform};

/// Where loaders look for layers, if they read a directory of layers.
pub const LAYER_DIRECTORY: &str = "/etc/OpenCL/layers";
/// How long a driver may take for one step.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What a library is, as a probe found.
pub enum ProbedLibrary {
    Us(OurCopy),
    Driver {
        platforms: Vec<ProbedPlatform>,
        is_icd2: bool,
        /// Loaders with ICD 2.0 call it through their own tables.
        stays_tagged: bool,
    },
    /// Why it cannot be used, and how bad that is.
    Broken(String, Harm),
}

/// What a library that cannot be used does to programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Loaders go on without it.
    Left,
    /// It ends every program that loads it, or keeps it waiting.
    Fatal,
    /// Nobody knows: it has not answered within the time that the user has chosen.
    Unknown,
}

/// Finds out what a library is.
pub fn library(library: &Path, prober: &Prober, kept: &PrivateDirectory) -> ProbedLibrary {
    let probed = prober.probe(
        &ProbeTarget::Itself { driver: library },
        ProbeBuilds::None,
        kept,
    );
    for message in probed.messages {
        match message {
            ProbeMessage::Driver {
                platforms,
                is_icd2,
                stays_tagged,
            } => {
                return ProbedLibrary::Driver {
                    platforms,
                    is_icd2,
                    stays_tagged,
                };
            }
            ProbeMessage::Copies(copies) => {
                if let Some(copy) = copies.into_iter().next() {
                    return ProbedLibrary::Us(copy);
                }
            }
            ProbeMessage::Failed(why) => return ProbedLibrary::Broken(why, Harm::Left),
            _ => {}
        }
    }
    let why = probed
        .silence
        .unwrap_or_else(|| "it gives no answer".to_owned());
    let harm = match probed.is_cut_short {
        true => Harm::Unknown,
        false => Harm::Fatal,
    };
    ProbedLibrary::Broken(why, harm)
}

/// What the loader supports.
#[derive(Default)]
pub struct Features {
    /// OPENCL_LAYERS.
    pub layers: bool,
    /// A directory of layers.
    pub layer_directory: bool,
    /// It refuses layers without clInitLayerWithProperties.
    pub needs_properties: bool,
    /// It calls drivers of ICD 2.0 through its own tables.
    pub icd2: bool,
    /// OCL_ICD_VENDORS may name a file.
    pub takes_files: bool,
}

impl Features {
    /// The features by names in the loader's file. The files of ocl-icd (2.3.1, 2.3.3) and of Khronos' loader (3.0, 3.1) have a name
    /// exactly if they read that variable or look for that function.
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

/// The loader's file and features; None if there is no loader.
pub fn loader(probed: &ProbeOutput) -> Option<(Option<PathBuf>, Features)> {
    let file = probed.messages.iter().find_map(|message| match message {
        ProbeMessage::Loader(file) => Some(file),
        _ => None,
    })?;
    let real = file.as_ref().and_then(|file| file.canonicalize().ok());
    let bytes = real.as_ref().and_then(|file| regular_file::read(file).ok());
    let bytes = bytes.flatten().unwrap_or_default();
    Some((real, Features::of(&bytes)))
}

/// What `oclcache install` needs to know about this machine.
#[derive(Default)]
pub struct Machine {
    /// The loader reads layers from a variable.
    pub layers: bool,
    /// The loader reads layers from a directory.
    pub layer_directory: bool,
    /// The loader calls a driver through the loader's own table, in which nothing can be hooked.
    pub needs_layer: bool,
}

/// Probes the loader and the drivers.
///
/// # Errors
/// The private directory cannot be made.
pub fn machine(stop: &AtomicBool) -> std::io::Result<Machine> {
    let kept = PrivateDirectory::new()?;
    let prober = Prober::new(None, stop);
    let probed = prober.probe(&ProbeTarget::Shell, ProbeBuilds::None, &kept);
    let Some((_, features)) = loader(&probed) else {
        return Ok(Machine::default());
    };
    let sources = vendors::loader_sources(&|name| std::env::var_os(name));
    let mut libraries = sources
        .iter()
        .flat_map(|source| vendors::listed(source))
        .filter_map(|listed| listed.library.ok());
    let stays_tagged = |library: PathBuf| {
        let told = self::library(&library, &prober, &kept);
        matches!(told, ProbedLibrary::Driver { platforms, stays_tagged: true, .. } if !platforms.is_empty())
    };
    Ok(Machine {
        layers: features.layers,
        layer_directory: features.layer_directory,
        needs_layer: features.icd2 && libraries.any(stays_tagged),
    })
}

/// Whether a library is a copy of ours.
pub fn is_ours(library: &Path) -> bool {
    let stop = AtomicBool::new(false);
    let prober = Prober::new(None, &stop);
    PrivateDirectory::new()
        .is_ok_and(|kept| matches!(self::library(library, &prober, &kept), ProbedLibrary::Us(_)))
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
