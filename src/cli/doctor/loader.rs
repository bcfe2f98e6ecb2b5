//! The loader that programs get, and what it supports: told by the names in its file, as it is not asked for what it cannot.

use std::path::PathBuf;

use super::children::Heard;
use super::report::{DoctorReport, Mend};
use super::worker::Said;
use crate::log::path;

const ABOUT: &str = "loader";

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

    fn words(&self) -> String {
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

/// The loader's features; None if there is no loader.
pub fn examine(heard: &Heard, report: &mut DoctorReport) -> Option<Features> {
    let loader = heard.said.iter().find_map(|said| match said {
        Said::Loader(file) => Some(file),
        _ => None,
    });
    let words = heard.said.iter().find_map(|said| match said {
        Said::Words(name, version) => Some((name, version)),
        _ => None,
    });
    let Some(file) = loader else {
        let why = heard.said.iter().find_map(|said| match said {
            Said::Failed(why) => Some(why.as_str()),
            _ => None,
        });
        let why = why
            .or(heard.silence.as_deref())
            .unwrap_or("nothing is known of it");
        let mend = Mend::words(
            "install a loader (ocl-icd-libopencl1 in Debian and Ubuntu), and see that LD_LIBRARY_PATH names no broken one",
        );
        report.wrong(
            ABOUT,
            format!("no program can load libOpenCL.so.1: {why}"),
            mend,
        );
        return None;
    };
    let real = file.as_ref().and_then(|file| real(file));
    let bytes = real.as_ref().and_then(|file| std::fs::read(file).ok());
    let features = Features::of(&bytes.unwrap_or_default());
    let name = match words {
        // It calls itself by the name of what it is.
        Some((_, version)) if features.takes_files => format!("ocl-icd {version}"),
        Some((name, version)) => format!("{name} {version}"),
        None => "of an unknown kind".to_owned(),
    };
    let place = real.map_or_else(|| "(no file)".to_owned(), |file| path(&file).to_string());
    report.good(ABOUT, format!("{name}, {place}: {}", features.words()));
    Some(features)
}

fn real(file: &std::path::Path) -> Option<PathBuf> {
    file.canonicalize().ok()
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
