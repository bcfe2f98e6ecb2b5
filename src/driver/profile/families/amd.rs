//! AMD's driver: ROCm's clr and COMGR.
//!
//! Sources: ROCm/clr f9f995c, `projects/clr` of ROCm/rocm-systems 01d42af and 0e5ba3e, `amd/comgr` of ROCm/llvm-project 032e177.

use super::{CLANG_IMPLICIT_INCLUDES, CLANG_INCLUDE_DIRS};
use crate::driver::profile::variables::{Environment};
use crate::driver::profile::{Behavior, DriverFiles, KernelFactsTime, NeverAsked, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "amd",
    recognize: |platform| contains(&platform.name, "AMD Accelerated Parallel Processing"),
    platform: ["AMD Accelerated Parallel Processing", "Advanced Micro Devices, Inc.", "AMD"],
    behavior: Behavior {
        // cl_program.cpp: the binary is a copy of what the build left in memory. devprogram.cpp: it is loaded as it is, if it has
        // code.
        record: RecordTime::Measured,
        // program.cpp: the first one loads the program's code onto the devices and runs the kernels that initialize program-scope
        // variables. A build alone does neither, so no kernel is created unasked.
        kernel_facts: KernelFactsTime::WhenCreated,
        context_counts_programs: None, // found out, though by program.hpp each program holds a reference
        kernels_keep_program: true,    // kernel.hpp: each holds a reference
        sub_devices_are_their_root: false, // cl_device.cpp: there are none
        rebuild: Rebuild::Fresh,       // program.hpp: it is cleared before it is built again
        copies_builds: true,           // documented: AMD_COMGR_CACHE
    },
    refuses_debug: false,
    never_asked: NeverAsked::Nothing,
    confuses_headers: false,
    always_debug: false,
    options_quoted_behind: None,
    own_cache: None,
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // COMGR is opened by name in newer versions (comgrctx.cpp); older ones read the device libraries. isa_loader.cpp: a table of
    // processors that may stand beside the library or below /opt/rocm takes the place of the one that is compiled in. hotswap.hpp: a
    // tool that translates code for another processor.
    files: &[
        DriverFiles::Library("libamd_comgr*.so*"),
        DriverFiles::Library("libhsail-rt*.so*"),
        DriverFiles::Library("libhsa-hotswap.so*"),
        DriverFiles::Beside("../amdgcn/bitcode", "*.bc"),
        DriverFiles::Beside("../share/rocclr", "*.json"),
        DriverFiles::At("/opt/rocm/share/rocclr", "*.json"),
    ],
    tools: &[],
    configuration: &[],
    include_dirs: CLANG_INCLUDE_DIRS,
    implicit_includes: CLANG_IMPLICIT_INCLUDES,
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    // program.cpp: ParseAllOptions appends options per application. devprogram.cpp: other options for three programs by name.
    looks_at_executable: true,
};

/// AMD: rocclr/utils/flags.hpp, program.cpp, rocsettings.cpp, isa_loader.cpp and hotswap.hpp of clr, comgr-env.cpp of COMGR.
static ENVIRONMENT: Environment = Environment {
    code: &[
        "AMD_OCL_BUILD_OPTIONS", // instead of the application's
        "AMD_OCL_BUILD_OPTIONS_APPEND",
        "AMD_OCL_LINK_OPTIONS",
        "AMD_OCL_LINK_OPTIONS_APPEND",
        "AMD_OCL_SUBST_OBJFILE",
        "AMD_OCL_SC_LIB",
        "AMD_OCL_*",
        "AMD_COMGR_DRIVER_OPTIONS_APPEND",
        "AMD_COMGR_EMIT_VERBOSE_LOGS", // the build log
        // comgr.cpp, amd_comgr_do_action: up to 2025, logs went there and not to the program.
        "AMD_COMGR_REDIRECT_LOGS",
        // comgr-env.cpp, shouldUseVFS: then sources are files in a directory of their own, which logs name.
        "AMD_COMGR_SAVE_TEMPS",
        "AMD_COMGR_*",
        "AMD_GPU_FORCE_SINGLE_FP_DENORM",
        "GPU_MAX_WORKGROUP_SIZE*",
        "GPU_*",
        "GPU_ENABLE_WAVE32_MODE",
        "GPU_ENABLE_WGP_MODE",
        "GPU_ENABLE_LC",
        "OCL_STUB_PROGRAMS",
        "OCL_CODE_CACHE_*", // old versions
        "LLVM_PATH",
        "HIP_PATH",
        "HSA_COMPILER_LIBRARY",
        "HSA_TOOLS_LIB",
        "ROCCLR_ISA_CONFIG_FILE",
        "ROCM_PATH",
        // COMGR calls clang's driver, which reads them.
        "CPATH",
        "C_INCLUDE_PATH",
    ],
    identity: &["OPENCL_VERSION", "CL_KHR_FP64"],
    neutral: &[
        "AMD_LOG_*",
        "AMD_OCL_WAIT_COMMAND",
        "AMD_COMGR_CACHE*",
        "AMD_COMGR_TIME_STATISTICS*",
        "GPU_DUMP_CODE_OBJECT",
        "GPU_DEVICE_ORDINAL",
        "ROCR_VISIBLE_DEVICES",
    ],
    // flags.hpp
    defaults: &[
        ("AMD_GPU_FORCE_SINGLE_FP_DENORM", "-1"),
        ("GPU_MAX_WORKGROUP_SIZE", "0"),
        ("GPU_ENABLE_WAVE32_MODE", "1"),
        ("GPU_ENABLE_WGP_MODE", "1"),
        ("GPU_ENABLE_LC", "1"),
        ("OCL_STUB_PROGRAMS", "0"),
        ("OCL_CODE_CACHE_ENABLE", "0"),
        ("CL_KHR_FP64", "1"),
    ],
    files: &[
        "AMD_OCL_SC_LIB",
        "AMD_OCL_SUBST_OBJFILE",
        "HSA_COMPILER_LIBRARY",
        "ROCCLR_ISA_CONFIG_FILE",
    ],
    camel_case: None,
};
