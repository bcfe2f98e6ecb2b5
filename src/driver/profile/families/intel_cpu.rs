//! Intel's runtime for CPUs.

use crate::driver::profile::variables::{Environment, NONE};
use crate::driver::profile::{Behavior, DriverFiles, IncludeDir, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "intel-cpu",
    // The CPU runtime calls itself "Intel(R) OpenCL", the GPU driver "Intel(R) OpenCL Graphics" or "... HD Graphics".
    recognize: |platform| {
        contains(&platform.name, "Intel(R) OpenCL") && !contains(&platform.name, "Graphics")
    },
    platform: ["Intel(R) OpenCL", "Intel(R) Corporation", "INTEL"],
    behavior: Behavior {
        record: RecordTime::InMiss, // measured: 0 ms of a build of 625 ms
        kernel_facts: KernelFactsTime::AfterBuild, // measured: about 1 ms for ten kernels
        context_counts_programs: Some(false), // measured
        kernels_keep_program: false, // measured: queries of it give CL_INVALID_PROGRAM
        sub_devices_are_their_root: false, // measured
        rebuild: Rebuild::KeepsVariables, // measured
        copies_builds: false,       // measured
    },
    refuses_debug: false,
    never_asked: NeverAsked::Nothing,
    confuses_headers: false,
    always_debug: false,
    options_quoted_behind: Some("\nOptions used by backend compiler: "), // measured
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // Measured: opened at the first build, all beside the library, except clbltfnshared.rtl, which is first looked for one
    // directory above.
    files: &[
        DriverFiles::Beside(".", "*.rtl"),
        DriverFiles::Beside("..", "*.rtl"),
        DriverFiles::Beside(".", "cllibrary*"),
        DriverFiles::Beside(".", "cl.cfg"),
        DriverFiles::Beside(".", "libocl_svml_*"),
        DriverFiles::Beside(".", "libintelocl_*"),
    ],
    tools: &[],
    // Measured: the first is read before the second, when the driver is opened and at each build. Some of the second is read before a
    // build only (USE_VECTORIZER, CPU_VECTORIZER_MODE), so it also matters what it was when the driver was opened.
    configuration: &["cl.cfg", "$ORIGIN/cl.cfg"],
    // Measured, also that `include` in the working directory is searched.
    include_dirs: &[
        IncludeDir::At("include"),
        IncludeDir::At("/usr/local/include"),
        IncludeDir::At("/usr/include"),
    ],
    implicit_includes: &[], // measured
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    looks_at_executable: false,
};

/// Intel's CPU runtime. Documented: "Performance-Related Configuration Variables", "Vectorizer Knobs" and "Targeting a
/// Different CPU Architecture" of its reference, and cl.cfg beside the library; names that only its library has are taken
/// to change code. No default is declared: cl.cfg may have others, which a variable overrides.
static ENVIRONMENT: Environment = Environment {
    code: &[
        "CL_CONFIG_USE_VECTORIZER",
        "CL_CONFIG_CPU_VECTORIZER_MODE",
        "CL_CONFIG_CPU_VECTORIZER_TYPE",
        "CL_CONFIG_USE_FAST_RELAXED_MATH",
        "CL_CONFIG_CPU_RT_LOOP_UNROLL_FACTOR",
        "CL_CONFIG_CPU_TARGET_ARCH",
        "CL_CONFIG_CPU_FORCE_WORK_GROUP_SIZE",
        "CL_CONFIG_CPU_FORCE_PRIVATE_MEM_SIZE",
        "CL_CONFIG_*",
        "VOLCANO_*",
    ],
    identity: &[
        "CL_CONFIG_CPU_FORCE_LOCAL_MEM_SIZE",
        "CL_CONFIG_CPU_FORCE_MAX_WORK_GROUP_SIZE",
    ],
    // Measured on 2026.2 with 0, 1, `true`, odd text, 2, nothing and `1GB`: logs, queries, sizes of binaries and results were the
    // same. CL_CONFIG_DUMP_ASM and CL_CONFIG_USE_VTUNE are not here: they change the log.
    neutral: &[
        // Read by libraries that are opened inside the first build: huge pages of TBB's allocator, and the processors on which its
        // threads run (documented). Measured with odd values: nothing changes.
        "TBB_MALLOC_*",
        "SYCL_CPU_PLACES",
        "CL_CONFIG_DUMP_BIN",
        "CL_CONFIG_DUMP_DISASSEMBLY",
        "CL_CONFIG_DUMP_FILE_NAME_PREFIX",
        "CL_CONFIG_DUMP_IR_AFTER_OPTIMIZER",
        "CL_CONFIG_DUMP_IR_BEFORE_OPTIMIZER",
        "CL_CONFIG_LOG_FILE",
        "CL_CONFIG_USER_LOGGER",
        "CL_CONFIG_USE_ITT_API",
        "CL_CONFIG_CPU_EMULATE_DEVICES",
        "CL_CONFIG_CPU_FORCE_GLOBAL_MEM_SIZE",
        "CL_CONFIG_CPU_FORCE_MAX_MEM_ALLOC_SIZE",
        "CL_CONFIG_CPU_TBB_NUM_WORKERS",
        "CL_CONFIG_ENABLE_PARALLEL_COPY",
    ],
    files: &[
        "CL_CONFIG_REPLACE_IR_AFTER_OPTIMIZER",
        "CL_CONFIG_REPLACE_IR_BEFORE_OPTIMIZER",
    ],
    ..NONE
};
