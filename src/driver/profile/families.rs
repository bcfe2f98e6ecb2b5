//! The families: one file each, with all that is known about it and the sources.

use super::{IncludeDir, Profile};

/// The directories that clang searches by itself: its headers, `include` in the working directory although no option names it
/// (measured on Intel's CPU runtime), and the directories of the system.
const CLANG_INCLUDE_DIRS: &[IncludeDir] = &[
    IncludeDir::At("include"),
    IncludeDir::ClangResources,
    IncludeDir::At("/usr/local/include"),
    IncludeDir::At("/usr/include"),
];

/// The header that clang includes in every OpenCL C program if it does not use a precompiled form of it.
const CLANG_IMPLICIT_INCLUDES: &[&str] = &["opencl-c.h", "opencl-c-base.h"];

/// Lists the families in the order in which drivers are compared with them.
macro_rules! families {
    ($($family:ident)+) => {
        $(mod $family;)+

        /// All families but the unknown one.
        pub(super) static PROFILES: [&Profile; [$(stringify!($family)),+].len()] = [$(&$family::PROFILE),+];
    };
}

families! {
    pocl
    intel_cpu
    intel_gpu
    amd
    nvidia
    rusticl
    clvk
    oclgrind
}

mod unknown;
pub(super) use unknown::UNKNOWN;
