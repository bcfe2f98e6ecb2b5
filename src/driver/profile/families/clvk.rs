//! clvk, OpenCL on Vulkan.

use super::{CLANG_IMPLICIT_INCLUDES, CLANG_INCLUDE_DIRS};
use crate::driver::profile::variables::{Environment, NONE};
use crate::driver::profile::{Behavior, DriverFiles, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "clvk",
    recognize: |platform| contains(&platform.name, "clvk"),
    platform: ["clvk", "clvk", "clvk"],
    behavior: Behavior {
        // program.cpp: the binary is SPIR-V, which is copied, and only parsed when it is loaded. Vulkan compiles each kernel when
        // it is first run, with a hit as without.
        record: RecordTime::Measured,
        kernel_facts: KernelFactsTime::WhenCreated, // unverified
        context_counts_programs: None,              // found out
        kernels_keep_program: true,                 // unverified
        sub_devices_are_their_root: false,          // unverified
        rebuild: Rebuild::Fresh,                    // unverified
        copies_builds: true,                        // CLVK_CACHE_DIR
    },
    refuses_debug: false,
    never_asked: NeverAsked::Nothing,
    confuses_headers: false,
    always_debug: false,
    options_quoted_behind: None,
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    files: &[
        DriverFiles::Beside(".", "clspv"),
        DriverFiles::Beside(".", "llvm-spirv"),
        DriverFiles::Beside(".", "clvk.conf"),
    ],
    tools: &[],
    // config.cpp
    configuration: &[
        "/etc/clvk.conf",
        "/usr/local/etc/clvk.conf",
        "~/.config/clvk.conf",
        "clvk.conf",
    ],
    include_dirs: CLANG_INCLUDE_DIRS,
    implicit_includes: CLANG_IMPLICIT_INCLUDES,
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    looks_at_executable: false,
};

/// clvk: config.def, device.cpp. No default is declared: its configuration files may have others.
static ENVIRONMENT: Environment = Environment {
    code: &[
        "CLVK_CLSPV_OPTIONS",
        "CLVK_CLSPV_NATIVE_BUILTINS",
        "CLVK_CLSPV_LIBRARY_BUILTINS",
        "CLVK_SPIRV_ARCH",
        "CLVK_PHYSICAL_ADDRESSING",
        "CLVK_CLSPV_PATH",
        "CLVK_LLVMSPIRV_BIN",
        "CLVK_PRINTF_BUFFER_SIZE",
        "CLVK_FORCE_SUBGROUP_SIZE",
        "CLVK_PREFERRED_SUBGROUP_SIZE",
        "CLVK_CONFIG_FILE",
        "CLVK_*",
    ],
    identity: &[
        "CLVK_OPENCL_VERSION",
        "CLVK_DEVICE_EXTENSIONS",
        "CLVK_DEVICE_EXTENSIONS_MASKED",
    ],
    neutral: &[
        "CLVK_CACHE_DIR",
        "CLVK_LOG*",
        "CLVK_KEEP_TEMPORARIES",
        "CLVK_COMPILER_TEMP_DIR",
        "CLVK_MAX_CMD_*",
        "CLVK_MAX_FIRST_CMD_*",
        "CLVK_PERFETTO_*",
    ],
    files: &["CLVK_CLSPV_PATH", "CLVK_LLVMSPIRV_BIN", "CLVK_CONFIG_FILE"],
    ..NONE
};
