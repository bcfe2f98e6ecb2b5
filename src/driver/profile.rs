//! The facts about each family of drivers: one file for each family, in `families`.
//!
//! Each fact has its source in a comment. "Measured" was run on Debian 12 (PoCL 3.1, Intel CPU runtime 2026.2, rusticl 22.3, Intel GPU driver 22.43). A
//! file name is one of the driver's own sources. "Documented" is its vendor's manual. "Unverified" facts are inferred from these,
//! or from what drivers usually do.

mod families;
pub mod measured;
pub mod variables;

use opencl_sys::{CL_PLATFORM_NAME, CL_PLATFORM_VENDOR, CL_PLATFORM_VERSION, cl_platform_info};
use serde::{Deserialize, Serialize};

use crate::cl::dispatch::slots_of_version;
use families::{PROFILES, UNKNOWN};
use variables::Environment;

/// cl_khr_icd
pub const CL_PLATFORM_ICD_SUFFIX_KHR: cl_platform_info = 0x0920;

/// The answers by which a driver is recognized, of its first platform and without the NUL.
pub struct Recognition {
    /// CL_PLATFORM_NAME.
    pub name: Vec<u8>,
    /// CL_PLATFORM_VENDOR.
    pub vendor: Vec<u8>,
    /// CL_PLATFORM_ICD_SUFFIX_KHR.
    pub suffix: Vec<u8>,
    /// The length of its dispatch table, which follows from CL_PLATFORM_VERSION. Without a version no slot is read.
    pub slots: usize,
}

impl Recognition {
    /// Asks a platform for its texts.
    pub fn ask(text: impl Fn(cl_platform_info) -> Vec<u8>) -> Recognition {
        Recognition {
            name: text(CL_PLATFORM_NAME),
            vendor: text(CL_PLATFORM_VENDOR),
            suffix: text(CL_PLATFORM_ICD_SUFFIX_KHR),
            slots: slots_of_version(&text(CL_PLATFORM_VERSION)),
        }
    }
}

/// When the driver is asked for the facts of a program's kernels (attributes, arguments).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelFactsTime {
    /// After the build, from kernels that are created for this: creating one costs next to nothing.
    AfterBuild,
    /// When the application creates the kernel itself: creating one compiles it.
    WhenCreated,
}

/// When the binary of a program that was built is fetched and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordTime {
    /// After the build, inside the miss: fetching it costs next to nothing.
    InMiss,
    /// Later, in another process: fetching it compiles, and the application would wait for that.
    Baked,
    /// Unknown: inside the miss at first, until the measured cost on this machine says otherwise.
    Measured,
}

/// The facts of a processor that change the code for a CPU device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorFacts {
    /// Nothing: the binary is for no processor.
    None,
    /// Its model and instruction set, as LLVM detects them (Host.cpp: getHostCPUName and getHostCPUFeatures).
    Model,
    /// Model, instruction set and stepping.
    Stepping,
}

/// What a program keeps of its earlier build when it is built again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rebuild {
    /// Nothing, as if it was built for the first time.
    Fresh,
    /// All of it, program-scope variables included, if the options are the same: then nothing is compiled.
    KeepsVariables,
    /// All its kernels, in addition to the new ones.
    KeepsKernels,
}

/// The programs that behave otherwise in a later call if they were asked for their binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeverAsked {
    /// None.
    Nothing,
    /// Those of clCompileProgram.
    Compiled,
    /// Those of clLinkProgram.
    Linked,
}

/// Files that a driver reads, or libraries that it opens itself. They change code and are not among the libraries that it needs. A
/// pattern is a file name with at most one `*`; a directory may have `*` as a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverFiles {
    /// In a directory relative to that of the driver's library.
    Beside(&'static str, &'static str),
    /// The same for a library of this name, a pattern too, which is among those that the driver needs.
    BesideLibrary(&'static str, &'static str, &'static str),
    /// The same for libraries that are open when the driver is, so that the libraries they need belong to the driver as well.
    PlugIns(&'static str, &'static str),
    /// In this directory.
    At(&'static str, &'static str),
    /// In the directories of the GCCs whose libraries clang's driver may take.
    Gcc(&'static str),
    /// A library that is opened by name at the first build, and found where the dynamic linker looks.
    Library(&'static str),
}

/// A directory in which a compiler looks for headers, apart from the working directory and those of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeDir {
    /// This directory, relative to the working directory.
    At(&'static str),
    /// Clang's own headers, beside the library of clang that is loaded.
    ClangResources,
    /// PoCL's cache, into which it writes the source before it compiles.
    PoclCache,
}

/// The facts that can be measured on a driver (`oclcache doctor --qualify`). They tell when it is asked for something, and how its
/// objects live. None of them is part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behavior {
    /// When binaries are recorded.
    pub record: RecordTime,
    /// When kernel facts are recorded.
    pub kernel_facts: KernelFactsTime,
    /// Whether CL_CONTEXT_REFERENCE_COUNT counts programs. None: found out at the first inner program.
    pub context_counts_programs: Option<bool>,
    /// Whether a program lives as long as its kernels (OpenCL 3.0, 5.8.2). Otherwise its handle is dead once it is released.
    pub kernels_keep_program: bool,
    /// Whether a program of a sub-device's context has the root device instead.
    pub sub_devices_are_their_root: bool,
    /// What a program keeps of an earlier build.
    pub rebuild: Rebuild,
    /// Whether a build may be a copy of an earlier one from the driver's own cache. Then two equal builds prove nothing about a
    /// third.
    pub copies_builds: bool,
}

/// The variables of a driver's own cache. They change nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnCache {
    /// Its directory.
    pub directory: &'static str,
    /// Whether it is kept.
    pub switch: &'static str,
}

/// The facts about one family.
pub struct Profile {
    /// The family's name, for the log and for entries.
    pub family: &'static str,
    recognize: fn(&Recognition) -> bool,
    /// What a platform of the family answers: name, vendor and suffix.
    platform: [&'static str; 3],
    behavior: Behavior,
    /// Whether programs with debug information are bypassed.
    pub refuses_debug: bool,
    /// The programs of applications that are never asked for their binary.
    pub never_asked: NeverAsked,
    /// Whether the driver's own cache gives a program of header files as they were before, unless an option begins with `-I`.
    pub confuses_headers: bool,
    /// Whether programs have debug information whatever the options are. It names directories.
    pub always_debug: bool,
    /// The words behind which a build log quotes the options. An entry serves programs that spell include directories otherwise, so these
    /// get their own options there. Elsewhere the same text may be the source's.
    pub options_quoted_behind: Option<&'static str>,
    /// The variables of the driver's own cache, if that has code that it makes when kernels run.
    pub own_cache: Option<OwnCache>,
    /// Variables that it reads.
    pub environment: &'static Environment,
    /// Whether variables that begin with the platform's ICD suffix and `_` are taken to change code.
    pub suffix_variables: bool,
    /// Files that change code, in addition to the libraries that it needs.
    pub files: &'static [DriverFiles],
    /// Programs that it has clang's driver run.
    pub tools: &'static [&'static str],
    /// Configuration files of which it also matters what they were when the driver was opened: relative to the working directory, or
    /// `~/` for the home directory, or `$ORIGIN/` for the library's.
    pub configuration: &'static [&'static str],
    /// Directories of headers apart from the working directory and those of the options.
    pub include_dirs: &'static [IncludeDir],
    /// Headers that the compiler includes in every program, looked up like the program's own.
    pub implicit_includes: &'static [&'static str],
    /// Files that change the code of programs that are made from an intermediate language, and of no others.
    pub il_files: &'static [DriverFiles],
    /// How CL_DRIVER_VERSION begins in those versions whose code for processors was measured not to depend on the size of local memory.
    /// That is the size of a cache, which a hypervisor decides.
    pub ignores_local_memory: &'static [&'static str],
    /// The facts of the processor in the key of CPU devices.
    pub processor: ProcessorFacts,
    /// Whether the compiler looks at the name of the running program.
    pub looks_at_executable: bool,
}

impl Profile {
    /// How drivers of the family behave, if nothing was measured on this one.
    pub fn behavior(&self) -> Behavior {
        self.behavior
    }

    /// Whether people may mean the family by this name: the family's, or that of its platform, in any case and without punctuation.
    pub fn is_called(&self, name: &str) -> bool {
        let plain = |name: &str| -> String {
            let letters = name.chars().filter(|letter| letter.is_alphanumeric());
            letters.flat_map(char::to_lowercase).collect()
        };
        let [platform, ..] = self.platform;
        let is_same = |known: &str| plain(known) == plain(name);
        !plain(name).is_empty() && [self.family, platform].into_iter().any(is_same)
    }

    /// Whether its own cache has code that it makes when kernels run.
    pub fn keeps_a_cache(&self) -> bool {
        self.own_cache.is_some()
    }
}

/// The profile of a driver.
pub fn of(recognition: &Recognition) -> &'static Profile {
    let mut profiles = PROFILES.into_iter();
    profiles
        .find(|profile| (profile.recognize)(recognition))
        .unwrap_or(&UNKNOWN)
}

/// The variables of the drivers' own caches.
pub fn own_caches() -> impl Iterator<Item = OwnCache> {
    PROFILES.iter().filter_map(|profile| profile.own_cache)
}

/// The variables that the drivers of each family read.
pub fn environments() -> impl Iterator<Item = &'static Environment> {
    let profiles = PROFILES.iter().copied().chain([&UNKNOWN]);
    profiles.map(|profile| profile.environment)
}

/// The profile of a family.
pub fn named(family: &str) -> &'static Profile {
    let mut profiles = PROFILES.into_iter();
    profiles
        .find(|profile| profile.family == family)
        .unwrap_or(&UNKNOWN)
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::real_paths;

    fn answers([name, vendor, suffix]: [&str; 3]) -> Recognition {
        Recognition {
            name: name.into(),
            vendor: vendor.into(),
            suffix: suffix.into(),
            slots: 149,
        }
    }

    #[test]
    fn each_family_is_recognized_by_what_its_platform_answers_and_no_other_is() {
        for profile in PROFILES {
            let answers = answers(profile.platform);
            let recognized = PROFILES.iter().filter(|one| (one.recognize)(&answers));
            let recognized: Vec<&str> = recognized.map(|one| one.family).collect();
            assert_eq!(recognized, [profile.family]);
            assert_eq!(of(&answers).family, profile.family);
        }
        assert_eq!(of(&answers(UNKNOWN.platform)).family, UNKNOWN.family);
    }

    /// A library of another name is not looked for in the working directory (`RealPaths::holds_no_library`).
    #[test]
    fn patterns_of_libraries_have_names_of_libraries() {
        for profile in PROFILES {
            for files in profile.files {
                if let DriverFiles::Library(pattern) = files {
                    assert!(
                        real_paths::may_be_of_library(pattern.as_bytes()),
                        "{pattern}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_two_families_share_a_name_and_the_files_are_named_after_them() {
        let mut names: Vec<&str> = PROFILES.iter().map(|profile| profile.family).collect();
        names.push(UNKNOWN.family);
        names.sort_unstable();
        let files = concat!(env!("CARGO_MANIFEST_DIR"), "/src/driver/profile/families");
        let files = std::fs::read_dir(files).expect("a directory");
        let files = files.map(|file| file.expect("a file").file_name());
        let stems = files.map(|name| {
            name.to_string_lossy()
                .trim_end_matches(".rs")
                .replace('_', "-")
        });
        let mut files: Vec<String> = stems.collect();
        files.sort_unstable();
        assert_eq!(names, files, "each file is listed in `families!`");
    }

    #[test]
    fn a_family_is_found_by_each_name_that_is_on_the_screen() {
        for (name, family) in [
            ("pocl", "pocl"),
            ("PoCL", "pocl"),
            ("portable computing language", "pocl"),
            ("Intel CPU", "intel-cpu"),
            ("Intel(R) OpenCL", "intel-cpu"),
            ("Intel(R) OpenCL Graphics", "intel-gpu"),
            ("RUSTICL", "rusticl"),
        ] {
            let called = PROFILES.iter().filter(|profile| profile.is_called(name));
            let called: Vec<&str> = called.map(|profile| profile.family).collect();
            assert_eq!(called, [family], "{name}");
        }
        assert!(
            !PROFILES
                .iter()
                .any(|profile| profile.is_called("intel") || profile.is_called(""))
        );
    }

    /// Oclgrind ends the process when a kernel is asked that calls an undefined function, although the program was built.
    #[test]
    fn no_kernel_of_oclgrind_is_created_unasked() {
        let oclgrind = named("oclgrind");
        assert_eq!(oclgrind.behavior.kernel_facts, KernelFactsTime::WhenCreated);
    }
}
