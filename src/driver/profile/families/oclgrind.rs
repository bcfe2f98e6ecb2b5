//! Oclgrind, an interpreter.

use super::{CLANG_IMPLICIT_INCLUDES, CLANG_INCLUDE_DIRS};
use crate::driver::profile::variables::{Environment, NONE};
use crate::driver::profile::{Behavior, DriverFiles, IncludeDir, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "oclgrind",
    recognize: |platform| contains(&platform.name, "Oclgrind"),
    platform: ["Oclgrind", "University of Bristol", "oclg"],
    behavior: Behavior {
        // Program.cpp: LLVM's bitcode is written twice, once to tell its size. Kernels are interpreted.
        record: RecordTime::Measured,
        // Measured: a program that calls an undefined function is built, clCreateKernelsInProgram gives its kernel, and a query of
        // that ends the process.
        kernel_facts: KernelFactsTime::WhenCreated,
        context_counts_programs: Some(true), // measured
        kernels_keep_program: true,
        sub_devices_are_their_root: false, // its device cannot be divided (measured)
        rebuild: Rebuild::Fresh,           // measured
        copies_builds: false,              // measured
    },
    refuses_debug: false,
    never_asked: NeverAsked::Nothing,
    confuses_headers: false,
    always_debug: true, // measured on 21.10
    options_quoted_behind: None, // measured
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // Its precompiled headers, where it puts them itself and where Debian does: it looks beside the library that has the compiler
    // (strace of 21.10), which the dynamic linker may find far from the driver's own.
    files: &[
        DriverFiles::BesideLibrary(COMPILER, "../include/oclgrind", "*"),
        DriverFiles::BesideLibrary(COMPILER, "oclgrind/*", "*"),
    ],
    tools: &[],
    configuration: &[],
    // The first one is where it puts the source and embedded headers in memory, and is looked at on the disk as well (measured on 21.10).
    include_dirs: &[
        IncludeDir::At("/remapped"),
        CLANG_INCLUDE_DIRS[0],
        CLANG_INCLUDE_DIRS[1],
        CLANG_INCLUDE_DIRS[2],
        CLANG_INCLUDE_DIRS[3],
    ],
    implicit_includes: CLANG_IMPLICIT_INCLUDES,
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    looks_at_executable: false,
};

/// The library that has the compiler.
const COMPILER: &str = "liboclgrind*";

/// Oclgrind: the variables that its command sets (src/kernel/main.cpp).
static ENVIRONMENT: Environment = Environment {
    code: &[
        "OCLGRIND_*",
        // Measured on 21.10: debug information has the working directory by this name.
        "PWD",
    ],
    neutral: &["OCLGRIND_LOG"],
    ..NONE
};
