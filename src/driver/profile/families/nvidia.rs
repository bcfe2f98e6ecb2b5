//! NVIDIA's driver.

use super::{CLANG_IMPLICIT_INCLUDES, CLANG_INCLUDE_DIRS};
use crate::driver::profile::variables::{Environment, NONE};
use crate::driver::profile::{Behavior, DriverFiles, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "nvidia",
    recognize: |platform| contains(&platform.vendor, "NVIDIA"),
    platform: ["NVIDIA CUDA", "NVIDIA Corporation", "NV"],
    behavior: Behavior {
        // Closed source, measured on an H200 with driver 580.159.04. The binary is PTX text, which the driver compiles when it is
        // loaded, unless its own cache has it (CUDA_CACHE_PATH): ten kernels take 410 to 500 ms from source, 65 to 79 ms from the
        // binary, and 8 ms from source if that cache has them. A binary is fetched at once.
        record: RecordTime::Measured,
        kernel_facts: KernelFactsTime::AfterBuild,
        context_counts_programs: None,     // found out; 580 does not
        kernels_keep_program: true,
        sub_devices_are_their_root: false, // unverified: an H200 cannot be divided
        rebuild: Rebuild::Fresh,
        copies_builds: true,
    },
    refuses_debug: false,
    never_asked: NeverAsked::Nothing,
    confuses_headers: false,
    always_debug: false,
    options_quoted_behind: None,
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // Compiler libraries, which the driver opens at the first build (documented in its README, "Installed Components"). 580 was seen to
    // open those of NVVM and of the JIT, and libcuda when it is loaded.
    files: &[
        DriverFiles::Library("libnvidia-nvvm*.so*"),
        DriverFiles::Library("libnvidia-compiler*.so*"),
        DriverFiles::Library("libnvidia-gpucomp*.so*"),
        DriverFiles::Library("libnvidia-ptxjitcompiler*.so*"),
        DriverFiles::Library("libcuda.so*"),
    ],
    tools: &[],
    configuration: &[],
    include_dirs: CLANG_INCLUDE_DIRS,
    implicit_includes: CLANG_IMPLICIT_INCLUDES,
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    looks_at_executable: false,
};

/// NVIDIA: CUDA Programming Guide 13.4, 5.2.1 "Device Enumeration" and 5.2.2 "JIT Compilation". No variable is documented to change
/// the PTX; those that choose between it and machine code cost nothing in the key.
static ENVIRONMENT: Environment = Environment {
    code: &[
        "CUDA_FORCE_JIT",
        "CUDA_FORCE_PTX_JIT",
        "CUDA_DISABLE_JIT",
        "CUDA_DISABLE_PTX_JIT",
    ],
    neutral: &[
        "CUDA_CACHE_*",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_FORCE_PRELOAD_LIBRARIES", // when the libraries of the JIT are opened
    ],
    ..NONE
};
