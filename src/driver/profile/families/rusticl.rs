//! rusticl, Mesa's driver.

use crate::driver::profile::variables::{Environment, NONE};
use crate::driver::profile::{Behavior, DriverFiles, IncludeDir, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "rusticl",
    recognize: |platform| platform.name == b"rusticl", // Clover has the same suffix, and is another compiler
    platform: ["rusticl", "Mesa/X.org", "MESA"],
    behavior: Behavior {
        // Measured: 0 ms of a build of 34 ms. The binary is SPIR-V, from which newer versions compile every kernel in
        // clCreateProgramWithBinary already (program.rs; unverified).
        record: RecordTime::InMiss,
        // Measured: 22.3 takes 43 to 83 ms to create a small kernel, again for every kernel object.
        kernel_facts: KernelFactsTime::WhenCreated,
        context_counts_programs: Some(true), // measured
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::KeepsKernels, // measured: CL_PROGRAM_NUM_KERNELS grows with each build
        copies_builds: false,           // measured
    },
    refuses_debug: false,
    never_asked: NeverAsked::Nothing,
    confuses_headers: true, // measured on 22.3: Mesa's cache has the source, the options and embedded headers
    always_debug: false,
    options_quoted_behind: None, // measured: its log is empty
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // libclc's SPIR-V, read when the driver is opened, from a directory that is set at compile time (measured: /usr/lib/clc).
    // The headers of clang belong to the closure of headers.
    files: &[
        DriverFiles::Beside("../share/clc", "*.spv"),
        DriverFiles::Beside("../../share/clc", "*.spv"),
        DriverFiles::Beside("../lib/clc", "*.spv"),
        DriverFiles::Beside("../clc", "*.spv"),
        DriverFiles::At("/usr/lib/clc", "*.spv"),
        DriverFiles::At("/usr/lib64/clc", "*.spv"),
        DriverFiles::At("/usr/libexec/clc", "*.spv"),
        DriverFiles::At("/usr/share/clc", "*.spv"),
    ],
    tools: &[],
    configuration: &[],
    // Measured on 22.3. It puts embedded headers into the first one in memory, and looks there on the disk as well.
    include_dirs: &[
        IncludeDir::At("/tmp/openclon12"),
        IncludeDir::ClangResources,
        IncludeDir::At("/usr/local/include"),
        IncludeDir::At("/usr/include"),
    ],
    // Measured: looked for in the working directory and in each directory of the options before clang's own, in every build.
    implicit_includes: &["opencl-c-base.h"],
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::None, // measured: the binary is SPIR-V
    looks_at_executable: false,
};

/// rusticl: docs/envvars.rst, core/platform.rs. Its binary is SPIR-V, so variables of the stages behind it act on a hit as they
/// do on a miss.
static ENVIRONMENT: Environment = Environment {
    code: &["CLC_DEBUG", "RUSTICL_*"],
    identity: &[
        "RUSTICL_FEATURES",
        "RUSTICL_CL_VERSION",
        "RUSTICL_DEVICE_TYPE",
    ],
    neutral: &[
        "RUSTICL_ENABLE", // the list of devices
        "RUSTICL_MAX_WORK_GROUPS",
        "RUSTICL_DEBUG", // how kernels are compiled and checked, not programs
        "MESA_SHADER_CACHE_*",
        "MESA_DISK_CACHE_*",
        "MESA_GLSL_CACHE_*", // what they were called before
        // The stages behind SPIR-V.
        "MESA_SPIRV_*",
        "GALLIUM_OVERRIDE_CPU_CAPS",
        "GALLIVM_*",
        "LP_*",
        "RADV_*",
        "ACO_DEBUG",
        "AMD_DEBUG",
        "INTEL_DEBUG",
        "INTEL_SIMD_DEBUG",
        // It makes its compiler's options itself. Measured on 22.3: not asked for, and a header there is not found.
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "OBJC_INCLUDE_PATH",
    ],
    defaults: &[("CLC_DEBUG", ""), ("RUSTICL_FEATURES", "")],
    ..NONE
};
