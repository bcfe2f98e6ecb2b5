//! NVIDIA's driver.

use super::{CLANG_IMPLICIT_INCLUDES, CLANG_INCLUDE_DIRS};
use crate::driver::profile::variables::{Environment, NONE};
use crate::driver::profile::{Behavior, DriverFiles, KernelFactsTime, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "nvidia",
    recognize: |platform| contains(&platform.vendor, "NVIDIA"),
    platform: ["NVIDIA CUDA", "NVIDIA Corporation", "NV"],
    behavior: Behavior {
        // Closed source, not measured. The binary is PTX text (pull request 672 of inducer/pyopencl), which the driver compiles
        // when it is loaded, unless its own cache has it (documented: CUDA_CACHE_PATH): a hit may gain little.
        record: RecordTime::Measured,
        // clBuildProgram compiles everything (pull request 225 of viennacl/viennacl-dev); unverified.
        kernel_facts: KernelFactsTime::AfterBuild,
        context_counts_programs: None,     // found out
        kernels_keep_program: true,        // unverified
        sub_devices_are_their_root: false, // unverified
        rebuild: Rebuild::Fresh,           // unverified
        copies_builds: true,               // documented: CUDA_CACHE_PATH
    },
    refuses_debug: false,
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // Compiler libraries, which the driver opens at the first build (documented in its README, "Installed Components").
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
