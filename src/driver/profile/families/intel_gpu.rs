//! Intel's driver for GPUs (NEO) and its graphics compiler.

use crate::driver::profile::variables::{Environment};
use crate::driver::profile::{Behavior, DriverFiles, IncludeDir, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "intel-gpu",
    recognize: |platform| {
        contains(&platform.vendor, "Intel") && contains(&platform.name, "Graphics")
    },
    platform: ["Intel(R) OpenCL Graphics", "Intel(R) Corporation", "INTEL"],
    behavior: Behavior {
        // Measured on NEO 22.43, without a GPU: 0.1 ms of a build of 45 ms. It still decides by measurements, which alone notice a
        // binary that the driver compiles again from the intermediate representation in it. Measured: it does so with the binary of
        // another generation, and takes 40 to 75 % of the time of a build, so even such a hit gains something.
        record: RecordTime::Measured,
        kernel_facts: KernelFactsTime::AfterBuild, // measured: clCreateKernel 0.01 ms
        context_counts_programs: Some(false),      // measured
        kernels_keep_program: true, // measured: each holds a reference, which is seen
        sub_devices_are_their_root: false, // unverified: a GPU of one tile has none (measured)
        rebuild: Rebuild::Fresh,    // measured, as far as queries tell it
        copies_builds: true,        // measured: `cl_cache` in the working directory, by default
    },
    refuses_debug: false,
    never_asked: NeverAsked::Compiled, // measured on 22.43: a later compilation of the program gives the binary that was asked for
    confuses_headers: false,
    always_debug: false,
    options_quoted_behind: None, // measured
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // Measured: opened by name at the first build, except libiga64, which is not opened.
    files: &[
        DriverFiles::Library("libigc.so*"),
        DriverFiles::Library("libigdfcl.so*"),
        DriverFiles::Library("libopencl-clang*.so*"),
        DriverFiles::Library("libiga64.so*"),
    ],
    tools: &[],
    configuration: &[
        // Measured: if there is one, its settings count, and those of the environment do not.
        "igdrcl.config",
        "neo.config", // debug_settings_reader.cpp of newer versions; 22.43 does not read it (measured)
        // Measured: the graphics compiler opens it, and writes so to standard output.
        "/tmp/IntelIGC/debugFlags/Options.txt",
    ],
    // Measured, also that clang's own headers, which are in memory, are not looked for.
    include_dirs: &[
        IncludeDir::At("include"),
        IncludeDir::At("/usr/local/include"),
        IncludeDir::At("/usr/include"),
    ],
    implicit_includes: &[], // measured
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    looks_at_executable: true, // measured: it asks for the name; ail_configuration.cpp: code generation for some applications
};

/// Intel's GPU driver and its compiler: oclc_extensions.cpp, api.cpp, platform.cpp, release_variables_base.inl and
/// debug_variables_base.inl of the compute runtime; igc_regkeys.cpp and igc_flags.h of the graphics compiler. Measured on 22.43:
/// IGC_ForceOCLSIMDWidth changes code, and with NEOReadDebugKeys=1 the driver asks for 476 names LikeThis.
static ENVIRONMENT: Environment = Environment {
    code: &[
        "IGC_*",
        "NEO_*",
        "NEO_FP64_EMULATION",
        "OverrideDefaultFP64Settings",
        "ZET_ENABLE_PROGRAM_DEBUGGING",
        "ZET_ENABLE_PROGRAM_INSTRUMENTATION",
        "ONEAPI_PVC_SEND_WAR_WA",
        "NEOReadDebugKeys",
    ],
    identity: &[
        "ZE_AFFINITY_MASK",
        "ZEX_NUMBER_OF_CCS",
        "NEO_LOCAL_MEMORY_ALLOCATION_MODE",
        "EnableLEO",
    ],
    neutral: &[
        "NEO_CACHE_*",
        "cl_cache_dir",         // the same in 22.43
        "IGC_ShaderDumpEnable", // measured
        "IGC_DumpToCurrentDir",
        "PrintDebugMessages",
        "BinaryCacheTrace",
        "DumpKernels",
    ],
    // release_variables_base.inl
    defaults: &[
        ("OverrideDefaultFP64Settings", "-1"),
        ("ZE_AFFINITY_MASK", "default"),
        ("ZEX_NUMBER_OF_CCS", "default"),
        ("EnableLEO", "-1"),
        ("NEOReadDebugKeys", "0"),
    ],
    files: &["IgcLibraryName"],
    camel_case: Some("NEOReadDebugKeys"),
};
