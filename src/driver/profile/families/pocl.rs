//! PoCL.

use crate::driver::clang_driver::GCC_CHOICE;
use crate::driver::profile::variables::{Environment};
use crate::driver::profile::{Behavior, DriverFiles, IncludeDir, KernelFactsTime, NeverAsked, OwnCache, ProcessorFacts, Profile, Rebuild, RecordTime, contains};

pub(in crate::driver::profile) static PROFILE: Profile = Profile {
    family: "pocl",
    recognize: |platform| {
        platform.suffix == b"POCL" || contains(&platform.name, "Portable Computing Language")
    },
    platform: ["Portable Computing Language", "The pocl project", "POCL"],
    behavior: Behavior {
        // Measured: CL_PROGRAM_BINARY_SIZES compiles every kernel for any work-group size. It takes three times as long as the
        // build, and holds the program's lock meanwhile (clGetProgramInfo.c, pocl_build.c). Newer versions do it in the build for
        // devices that run all work-items alike, as GPUs do (pocl_build.c; unverified).
        record: RecordTime::Baked,
        // Measured: clCreateKernel 0 ms.
        kernel_facts: KernelFactsTime::AfterBuild,
        context_counts_programs: Some(true), // measured
        kernels_keep_program: true,
        sub_devices_are_their_root: true, // measured
        rebuild: Rebuild::Fresh,          // measured
        copies_builds: true, // measured: names of temporary files in binaries and logs change with its cache directory
    },
    // Measured: LLVM's verifier complains on standard error when a binary with debug information is loaded.
    refuses_debug: true,
    // Measured on 3.1: clBuildProgram of such a program ends the process in an assertion (pocl_cache.c).
    never_asked: NeverAsked::Linked,
    confuses_headers: false,
    always_debug: false,
    options_quoted_behind: None, // measured
    // pocl_cache.c
    own_cache: Some(OwnCache {
        directory: "POCL_CACHE_DIR",
        switch: "POCL_KERNEL_CACHE",
    }),
    environment: &ENVIRONMENT,
    suffix_variables: false,
    // Read, not mapped: the built-in libraries, the headers, and the device plug-ins (dlopened, not DT_NEEDED).
    files: &[
        DriverFiles::Beside("../share/pocl", "*"),
        DriverFiles::Beside("../share/pocl/include", "*"),
        DriverFiles::Beside("../../share/pocl", "*"),
        DriverFiles::Beside("../../share/pocl/include", "*"),
        DriverFiles::PlugIns("pocl", "*.so"),
        // Measured: kernels are linked with `ld` and the archive of GCC, which has arithmetic of its own. `ld` takes the `.so` of a
        // library before its archive, and looks for libm and libc there before it does so in the system's directories.
        DriverFiles::Gcc("libgcc.*"),
        DriverFiles::Gcc("libm.*"),
        DriverFiles::Gcc("libc.*"),
        // Gnu.cpp of clang: Gentoo's choice of a GCC.
        DriverFiles::At(GCC_CHOICE, "*"),
    ],
    tools: &["ld"], // measured
    configuration: &[],
    // Measured on 3.1: the directory of the temporary file that holds the source. `include` is looked at, but not searched.
    include_dirs: &[IncludeDir::PoclCache, IncludeDir::At("include")],
    // Measured: it includes its own copies of clang's headers by absolute names.
    implicit_includes: &[],
    il_files: &[
        // pocl_llvm_build.cc, pocl_util.c: the tool or the library translates SPIR-V programs. Programs from source need
        // neither (measured with strace on 3.1).
        DriverFiles::At("/usr/bin", "llvm-spirv*"),
        DriverFiles::Library("libLLVMSPIRVLib.so*"),
    ],
    // Measured with 0.5, 1 and 2 MiB by HWLOC_SYNTHETIC: machine code, logs and queries of kernels are the same, also with 640 KiB
    // of local memory.
    ignores_local_memory: &["3.1"],
    processor: ProcessorFacts::Model, // LLVM builds for the host
    looks_at_executable: false,
};

/// PoCL: lib/CL and lib/llvmopencl of its sources. PoCL's own cache has only one variable of the first list in its key,
/// POCL_WORK_GROUP_METHOD.
static ENVIRONMENT: Environment = Environment {
    code: &[
        "POCL_WORK_GROUP_METHOD",          // pocl_cache.c, WorkitemHandlerChooser.cc
        "POCL_FULL_REPLICATION_THRESHOLD", // WorkitemHandlerChooser.cc
        "POCL_EXTRA_BUILD_FLAGS",          // pocl_build.c
        "POCL_IGNORE_CL_STD",              // pocl_build.c
        "POCL_LLVM_CPU_NAME",              // pocl_llvm_utils.cc
        "POCL_KERNELLIB_NAME",             // pocl_llvm_utils.cc: one of the .bc files
        "POCL_VECTORIZER_FORCE_VECTOR_WIDTH", // pocl_llvm_utils.cc
        "POCL_VECTORIZER_PREFER_VECTOR_WIDTH", // LLVMUtils.cc
        "POCL_DEBUG_LLVM_OPTS",            // pocl_llvm_utils.cc
        "POCL_LLVM_ALWAYS_INLINE",         // linker.cpp
        "POCL_LLVM_MOVE_NONKERNELS",       // linker.cpp
        "POCL_PREGION_VALUE_REMAT",        // WorkitemLoops.cc
        "POCL_WILOOPS_MAX_UNROLL_COUNT",   // WorkitemLoops.cc
        "POCL_FORCE_PARALLEL_OUTER_LOOP",  // ImplicitLoopBarriers.cc
        "POCL_BITCODE_FINALIZER",          // pocl_llvm_wg.cc: a program that is run on the code
        "POCL_WORK_GROUP_SPECIALIZATION",  // devices/common.c
        "POCL_CPU_JIT",                    // devices/common_utils.c
        "POCL_BINARY_SPECIALIZE_WG",       // devices/common_driver.c: what the binary holds
        "POCL_LEVEL0_JIT",                 // level0-driver.cc
        "POCL_LEVEL0_LINK_OPT",            // pocl-level0.cc
        "POCL_ARGS_*",                     // pocl_runtime_config.c: names of tools follow
        "POCL_PATH_*",                     // pocl_runtime_config.c
        "POCL_CUDA_TOOLKIT_PATH",          // pocl-ptx-gen.cc
        "POCL_CUDA_GPU_ARCH",              // pocl-cuda.c
        "POCL_TCECC_EXTRA_FLAGS",          // devices/almaif/openasip
        "POCL_BUILDING",                   // takes headers and built-ins of the build directory
        "POCL_*",                          // whatever other versions read
        // clang's driver links kernels, and finds its linker and libraries by these.
        "COMPILER_PATH",
        "LIBRARY_PATH",
    ],
    identity: &[
        "POCL_DEVICES",
        "POCL_CPU_LOCAL_MEM_SIZE",
        "POCL_MAX_WORK_GROUP_SIZE",
        // These make the driver report other facts about itself.
        "POCL_DRIVER_VERSION_OVERRIDE",
        "POCL_PLATFORM_NAME_OVERRIDE",
        "POCL_CPU_VENDOR_ID_OVERRIDE",
    ],
    neutral: &[
        "POCL_CACHE_DIR", // where headers are looked for: the closure of headers has the directory
        "POCL_KERNEL_CACHE",
        "POCL_DEBUG",
        "POCL_DEBUG_LLVM_PASSES",
        "POCL_VECTORIZER_REMARKS",
        "POCL_LLVM_VERIFY",
        "POCL_LEAVE_KERNEL_COMPILER_TEMP_FILES",
        "POCL_TRACING*",
        "POCL_AFFINITY",
        "POCL_MAX_PTHREAD_COUNT",
        "POCL_MAX_COMPUTE_UNITS",
        "POCL_CPU_MAX_CU_COUNT",
        "POCL_MEMORY_LIMIT",
        "POCL_SIGUSR2_HANDLER",
        "POCL_SIGFPE_HANDLER",
        "POCL_STARTUP_DELAY",
        "POCL_ENABLE_UNINIT",
        "POCL_TBB_*",
        "POCL_REMOTE_*",
        "POCL_DISCOVERY*",
    ],
    // The second arguments of pocl_get_bool_option and pocl_get_string_option. POCL_WORK_GROUP_METHOD is not among them:
    // `loopvec` is what its manual calls the default, but WorkitemHandlerChooser.cc takes `auto` if nothing is set.
    defaults: &[
        ("POCL_IGNORE_CL_STD", "0"),
        ("POCL_LLVM_ALWAYS_INLINE", "0"),
        ("POCL_BINARY_SPECIALIZE_WG", ""),
        ("POCL_BUILDING", "0"),
    ],
    files: &[
        "POCL_BITCODE_FINALIZER",
        "POCL_PATH_*",
        "POCL_TTASIM*",
        "POCL_ALMAIF*",
    ],
    camel_case: None,
};
