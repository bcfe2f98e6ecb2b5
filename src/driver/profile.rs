//! What is known of each family of drivers: one table, one row a family.
//!
//! Each fact has its source in a comment: "measured" was run here on Debian 12 (PoCL 3.1, Intel CPU runtime 2026.2,
//! rusticl 22.3), a file name is of the driver's own sources, "documented" is its vendor's manual. What is only inferred from
//! these, or a habit of drivers, is "unverified".

mod table;
pub mod variables;

use opencl_sys::{CL_PLATFORM_NAME, CL_PLATFORM_VENDOR, CL_PLATFORM_VERSION, cl_platform_info};

use crate::cl::dispatch::slots_of_version;
use table::{PROFILES, UNKNOWN};
use variables::Environment;

/// By what a driver is recognized: the answers of its first platform, without the NUL.
pub struct Recognition {
    /// CL_PLATFORM_NAME.
    pub name: Vec<u8>,
    /// CL_PLATFORM_VENDOR.
    pub vendor: Vec<u8>,
    /// CL_PLATFORM_ICD_SUFFIX_KHR.
    pub suffix: Vec<u8>,
    /// The length of its dispatch table, which follows from CL_PLATFORM_VERSION: without one no slot is read.
    pub slots: usize,
}

impl Recognition {
    /// Asks a platform for its texts.
    pub fn ask(text: impl Fn(cl_platform_info) -> Vec<u8>) -> Recognition {
        const CL_PLATFORM_ICD_SUFFIX_KHR: cl_platform_info = 0x0920; // cl_khr_icd
        Recognition {
            name: text(CL_PLATFORM_NAME),
            vendor: text(CL_PLATFORM_VENDOR),
            suffix: text(CL_PLATFORM_ICD_SUFFIX_KHR),
            slots: slots_of_version(&text(CL_PLATFORM_VERSION)),
        }
    }
}

/// When the facts about a program's kernels (attributes, arguments) are asked of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFactsTime {
    /// Right after the build, from kernels made for the purpose: creating one costs next to nothing.
    AfterBuild,
    /// When the application creates the kernel itself: creating one compiles it.
    WhenCreated,
}

/// When the binary of a program that was built is fetched and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordTime {
    /// Right after the build, inside the miss: fetching it costs next to nothing.
    InMiss,
    /// Later, in another process: fetching it compiles, and the application would wait for that.
    Baked,
    /// Nobody has measured it: inside the miss at first, until what it costs on this machine says otherwise.
    Measured,
}

/// What of a processor changes the code for a device that is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorFacts {
    /// Nothing: the binary is for no processor.
    None,
    /// Its model and instruction set, as LLVM detects them (Host.cpp: getHostCPUName and getHostCPUFeatures).
    Model,
    /// These and its stepping.
    Stepping,
}

/// What a program has of its earlier build when it is built again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// Nothing: it is as a program that is built for the first time.
    Fresh,
    /// Its program-scope variables, if the options are the same.
    KeepsVariables,
    /// All its kernels, beside the new ones.
    KeepsKernels,
}

/// Files that a driver reads, or libraries that it opens itself: they change code, and are not in the closure of what it
/// needs. A pattern is the name of a file with at most one `*`, and a directory may have `*` as a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverFiles {
    /// In a directory relative to that of the driver's library.
    Beside(&'static str, &'static str),
    /// The same for libraries that are open once the driver is, so that what they need belongs to it as well.
    PlugIns(&'static str, &'static str),
    /// In this directory.
    At(&'static str, &'static str),
    /// In the directory of the GCC whose libraries clang's driver takes.
    Gcc(&'static str),
    /// A library that is opened by its name at the first build, so found where the dynamic linker looks.
    Library(&'static str),
}

/// Where a compiler looks for headers beside the working directory and the directories of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeDir {
    /// This one; relative to the working directory.
    At(&'static str),
    /// Clang's own headers, beside the library of clang that is loaded.
    ClangResources,
    /// PoCL's cache, where the source is written to before it is compiled.
    PoclCache,
}

/// One row.
pub struct Profile {
    /// The family's name, for the log and for entries.
    pub family: &'static str,
    recognize: fn(&Recognition) -> bool,
    /// When binaries are recorded.
    pub record: RecordTime,
    /// When kernel facts are recorded.
    pub kernel_facts: KernelFactsTime,
    /// Whether programs with debug information are left alone.
    pub refuses_debug: bool,
    /// Whether CL_CONTEXT_REFERENCE_COUNT counts programs; None: found out at the first inner program.
    pub context_counts_programs: Option<bool>,
    /// Whether a program lives as long as its kernels (OpenCL 3.0, 5.8.2); else its handle is dead once it is released.
    pub kernels_keep_program: bool,
    /// Whether a program of a sub-device's context has the root device instead.
    pub sub_devices_are_their_root: bool,
    /// What is left of an earlier build.
    pub rebuild: Rebuild,
    /// Whether a build may be a copy of an earlier one, out of a cache of the driver's own: then two builds that agree tell
    /// nothing of a third.
    pub copies_builds: bool,
    /// Variables that it reads.
    pub environment: &'static Environment,
    /// Whether variables that begin with the platform's ICD suffix and `_` are taken to change code.
    pub suffix_variables: bool,
    /// Files that change code, beside the libraries that it needs.
    pub files: &'static [DriverFiles],
    /// Programs that it runs, found in PATH.
    pub tools: &'static [&'static str],
    /// Configuration files that may be there: relative to the working directory, `~/` to the home directory. What stands
    /// beside the library is one of its `files`.
    pub configuration: &'static [&'static str],
    /// Where headers are looked for beside the working directory and those of the options.
    pub include_dirs: &'static [IncludeDir],
    /// Names that the compiler includes in every program, looked up like the program's own.
    pub implicit_includes: &'static [&'static str],
    /// Files that change the code of programs that are made from an intermediate language, and of no others.
    pub il_files: &'static [DriverFiles],
    /// How CL_DRIVER_VERSION begins in those versions whose code for processors was measured not to depend on the size of local memory.
    /// That is the size of a cache, which a hypervisor decides.
    pub ignores_local_memory: &'static [&'static str],
    /// What of the processor is in the key, for devices that are one.
    pub processor: ProcessorFacts,
    /// Whether the compiler looks at the name of the running program.
    pub looks_at_executable: bool,
}

impl Profile {
    /// Whether it has a cache of its own, with what it makes when kernels run.
    pub fn keeps_a_cache(&self) -> bool {
        self.include_dirs.contains(&IncludeDir::PoclCache)
    }
}

/// The row of a driver.
pub fn of(recognition: &Recognition) -> &'static Profile {
    PROFILES
        .iter()
        .find(|profile| (profile.recognize)(recognition))
        .unwrap_or(&UNKNOWN)
}

/// The variables that the drivers of each family read.
pub fn environments() -> impl Iterator<Item = &'static Environment> {
    let profiles = PROFILES.iter().chain([&UNKNOWN]);
    profiles.map(|profile| profile.environment)
}

/// The row of a family.
pub fn named(family: &str) -> &'static Profile {
    let named = |profile: &&Profile| profile.family == family;
    PROFILES.iter().find(named).unwrap_or(&UNKNOWN)
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(name: &str, vendor: &str, suffix: &str) -> Recognition {
        Recognition {
            name: name.into(),
            vendor: vendor.into(),
            suffix: suffix.into(),
            slots: 149,
        }
    }

    #[test]
    fn each_family_is_recognized_by_what_its_platform_answers() {
        for (name, vendor, suffix, family) in [
            (
                "Portable Computing Language",
                "The pocl project",
                "POCL",
                "pocl",
            ),
            (
                "Intel(R) OpenCL",
                "Intel(R) Corporation",
                "INTEL",
                "intel-cpu",
            ),
            (
                "Intel(R) OpenCL Graphics",
                "Intel(R) Corporation",
                "INTEL",
                "intel-gpu",
            ),
            (
                "AMD Accelerated Parallel Processing",
                "Advanced Micro Devices, Inc.",
                "AMD",
                "amd",
            ),
            ("NVIDIA CUDA", "NVIDIA Corporation", "NV", "nvidia"),
            ("rusticl", "Mesa/X.org", "MESA", "rusticl"),
            ("Oclgrind", "University of Bristol", "oclg", "oclgrind"),
            ("Something new", "Somebody", "NEW", "unknown"),
        ] {
            assert_eq!(of(&platform(name, vendor, suffix)).family, family);
        }
    }

    /// Oclgrind ends the process when a kernel is created that calls an undefined function, although the program was built.
    #[test]
    fn no_kernel_of_oclgrind_is_created_unasked() {
        let oclgrind = of(&platform("Oclgrind", "University of Bristol", "oclg"));
        assert_eq!(oclgrind.kernel_facts, KernelFactsTime::WhenCreated);
    }
}
