//! Any other driver: what drivers usually do, and in doubt the more careful assumption.

use super::{CLANG_IMPLICIT_INCLUDES, CLANG_INCLUDE_DIRS};
use crate::driver::profile::variables::{Environment, NONE};
use crate::driver::profile::{
    Behavior, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime,
};

pub(in crate::driver::profile) static UNKNOWN: Profile = Profile {
    family: "unknown",
    recognize: |_| true,
    platform: ["Something new", "Somebody", "NEW"],
    behavior: Behavior {
        record: RecordTime::Measured,
        // ARM's driver for Mali compiles then (pull request 225 of viennacl/viennacl-dev).
        kernel_facts: KernelFactsTime::WhenCreated,
        context_counts_programs: None,
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::Fresh,
        copies_builds: false,
    },
    refuses_debug: false,
    never_asked: NeverAsked::Nothing,
    confuses_headers: false,
    always_debug: false,
    options_quoted_behind: None,
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: true,
    files: &[],
    tools: &[],
    configuration: &[],
    include_dirs: CLANG_INCLUDE_DIRS,
    implicit_includes: CLANG_IMPLICIT_INCLUDES,
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    looks_at_executable: true,
};

/// An unknown driver. Usually a driver's variables begin with its suffix. These are assumed as well.
static ENVIRONMENT: Environment = Environment {
    code: &["CL_*", "OCL_*", "CPATH", "C_INCLUDE_PATH"],
    // The loaders' own.
    neutral: &[
        "OCL_ICD_ASSUME_ICD_EXTENSION",
        "OCL_ICD_DEBUG",
        "OCL_ICD_DEFAULT_PLATFORM",
        "OCL_ICD_ENABLE_TRACE",
        "OCL_ICD_FILENAMES",
        "OCL_ICD_PLATFORM_SORT",
        "OCL_ICD_VENDORS",
    ],
    ..NONE
};
