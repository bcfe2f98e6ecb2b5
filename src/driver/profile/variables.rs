//! The environment variables that drivers and their compilers read, by family: those that change code, those that change what the
//! application sees as features and macros, and those that change nothing that is cached.
//!
//! A name that ends in `*` matches all names that begin so: names that are composed at run time, and names that newer versions may
//! have. Variables that decide which libraries are loaded are not listed: LD_LIBRARY_PATH, LD_PRELOAD, and OPENCL_LAYERS and
//! OPENCL_LAYER_PATH for layers between us and the driver. They act through libraries, which are in the key.

/// The effect of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It changes generated code or the driver's binary.
    Code,
    /// It changes features and macros, and with them the result of the preprocessor. The device's answers do not tell all of it, so
    /// the variable is in the key as well.
    Identity,
    /// It changes nothing that is cached.
    Neutral,
}

/// The variables of one family.
pub struct Environment {
    /// See [`Effect::Code`].
    pub code: &'static [&'static str],
    /// See [`Effect::Identity`].
    pub identity: &'static [&'static str],
    /// See [`Effect::Neutral`].
    pub neutral: &'static [&'static str],
    /// Variables and the value that has the same effect as an unset variable.
    pub defaults: &'static [(&'static str, &'static str)],
    /// Variables that name a file which is read or run: the file's content is in the key as well.
    pub files: &'static [&'static str],
    /// A variable that makes the driver read hundreds of names of the form `LikeThis`, if set to anything but `0`.
    pub camel_case: Option<&'static str>,
}

const NONE: Environment = Environment {
    code: &[],
    identity: &[],
    neutral: &[],
    defaults: &[],
    files: &[],
    camel_case: None,
};

impl Environment {
    /// The effect of a variable. None if it is not one of the driver's. The longest matching name decides.
    pub fn effect(&self, name: &str) -> Option<Effect> {
        [
            (Effect::Code, self.code),
            (Effect::Identity, self.identity),
            (Effect::Neutral, self.neutral),
        ]
        .into_iter()
        .flat_map(|(effect, names)| names.iter().map(move |known| (effect, *known)))
        .filter(|(_, known)| fits(known, name))
        .max_by_key(|(_, known)| (*known == name, known.len()))
        .map(|(effect, _)| effect)
    }

    /// Whether the variable has the value that it has when it is not set.
    pub fn is_default(&self, name: &str, value: &[u8]) -> bool {
        self.defaults
            .iter()
            .any(|(known, default)| *known == name && default.as_bytes() == value)
    }

    /// Whether the variable names a file.
    pub fn names_file(&self, name: &str) -> bool {
        self.files.iter().any(|known| fits(known, name))
    }
}

fn fits(known: &str, name: &str) -> bool {
    match known.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => known == name,
    }
}

/// PoCL: lib/CL and lib/llvmopencl of its sources. PoCL's own cache has only one variable of the first list in its key,
/// POCL_WORK_GROUP_METHOD.
pub static POCL: Environment = Environment {
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

/// Intel's CPU runtime. Documented: "Performance-Related Configuration Variables", "Vectorizer Knobs" and "Targeting a
/// Different CPU Architecture" of its reference, and cl.cfg beside the library; names that only its library has are taken
/// to change code. No default is declared: cl.cfg may have others, which a variable overrides.
pub static INTEL_CPU: Environment = Environment {
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

/// Intel's GPU driver and its compiler: oclc_extensions.cpp, api.cpp, platform.cpp, release_variables_base.inl and
/// debug_variables_base.inl of the compute runtime; igc_regkeys.cpp and igc_flags.h of the graphics compiler. Measured on 22.43:
/// IGC_ForceOCLSIMDWidth changes code, and with NEOReadDebugKeys=1 the driver asks for 476 names LikeThis.
pub static INTEL_GPU: Environment = Environment {
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

/// AMD: rocclr/utils/flags.hpp, program.cpp and rocsettings.cpp of clr, comgr-env.cpp of COMGR.
pub static AMD: Environment = Environment {
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
        // COMGR calls clang's driver, which reads them.
        "CPATH",
        "C_INCLUDE_PATH",
    ],
    identity: &["OPENCL_VERSION", "CL_KHR_FP64"],
    neutral: &[
        "AMD_LOG_*",
        "AMD_OCL_WAIT_COMMAND",
        "AMD_COMGR_CACHE*",
        "AMD_COMGR_SAVE_TEMPS",
        "AMD_COMGR_REDIRECT_LOGS",
        "AMD_COMGR_TIME_STATISTICS",
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
    ],
    camel_case: None,
};

/// NVIDIA: no variable is documented to change the PTX; those of the JIT cost nothing in the key.
pub static NVIDIA: Environment = Environment {
    code: &["CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT"],
    neutral: &["CUDA_CACHE_*", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"],
    ..NONE
};

/// rusticl: docs/envvars.rst, core/platform.rs. Its binary is SPIR-V, so variables of the stages behind it act on a hit as they
/// do on a miss.
pub static RUSTICL: Environment = Environment {
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

/// clvk: config.def, device.cpp. No default is declared: its configuration files may have others.
pub static CLVK: Environment = Environment {
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

/// Oclgrind: the variables that its command sets (src/kernel/main.cpp).
pub static OCLGRIND: Environment = Environment {
    code: &[
        "OCLGRIND_*",
        // Measured on 21.10: debug information is always in the binary, with the working directory by this name.
        "PWD",
    ],
    neutral: &["OCLGRIND_LOG"],
    ..NONE
};

/// An unknown driver. Usually a driver's variables begin with its suffix. These are assumed as well.
pub static UNKNOWN: Environment = Environment {
    code: &["CL_*", "OCL_*", "CPATH", "C_INCLUDE_PATH"],
    // The loaders' own.
    neutral: &[
        "OCL_ICD_ASSUME_ICD_EXTENSION",
        "OCL_ICD_DEBUG",
        "OCL_ICD_DEFAULT_PLATFORM",
        "OCL_ICD_ENABLE_TRACE",
        "OCL_ICD_FILENAMES",
        "OCL_ICD_PLATFORM_SORT",
        "OCL_ICD_VENDORS",
    ],
    ..NONE
};

/// Layers between us and a driver. The intercept layer edits options (docs/controls.md).
pub static LAYERS: Environment = Environment {
    code: &["CLI_*"],
    ..NONE
};

/// Variables that change nothing for any driver, although their names occur in libraries, or may occur in unreadable ones.
///
/// Unless a comment says otherwise, measured without a cache on PoCL 3.1, Intel's CPU runtime 2026.2, rusticl 22.3 and Oclgrind
/// 21.10, with a program that builds with a warning and one that is refused. With odd values of the variable, binary, log, all
/// answers of the device and the results of a kernel were the same, except for paths in PoCL's log. Of Oclgrind's refused program,
/// half of the variables were tried. On Intel's GPU driver 22.43, binary and logs were the same with those that were measured.
static NEUTRAL: &[&str] = &[
    // Set by each shell, terminal or session.
    "_",
    "SHLVL",
    "OLDPWD",
    // LLVM's name of the working directory. Also measured with `-g` and a link as working directory: only Oclgrind's binary
    // differs.
    "PWD",
    "SHELL",
    "TERM",
    "COLORTERM",
    "STY",
    "PS1",
    "DISPLAY",
    "INVOCATION_ID",
    "USER",
    "LOGNAME",
    "HOST",
    "HOSTNAME",
    "UID",
    "MAIL",
    "NAME",
    // Logs are not wrapped or colored: drivers have the compiler write into memory.
    "LINES",
    "COLUMNS",
    "NO_COLOR",
    // Directories of programs' own files. Those that a driver reads are in the key.
    "HOME",
    "XDG_*",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TZ",
    "EDITOR",
    "VISUAL",
    "LESS",
    "PS2",
    "IFS",
    // Of libraries that fetch files by HTTP, which libxml2 names.
    "HTTP_PROXY",
    "http_proxy",
    "CI",
    // What they name is not run: PoCL's linker and libraries are in the key by what PATH and LD_LIBRARY_PATH lead to.
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    // The dynamic linker reports what it does, and binds the same (ld.so(8)). The bindings are in the key.
    "LD_DEBUG",
    "LD_DEBUG_OUTPUT",
    "CC",
    "CXX",
    // Of the C library: arenas and thresholds of its allocator. See also `is_neutral_value`.
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    // The number of threads. Where a program can see it, the device's answers tell it.
    "OMP_NUM_THREADS",
    // Messages of compilers are not translated, and they read and write numbers without the locale.
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LOCPATH",
    // Not measured: these names occur in no library of these drivers. They are listed for unreadable libraries, since each session
    // has other values.
    "SSH_*",
    "SLURM_*",
    "WINDOWID",
    "BASH_FUNC_*",
    "LS_COLORS",
    "DBUS_SESSION_BUS_ADDRESS",
    "OCLCACHE_*",
    // Variables of the loader: they choose drivers and layers, which are in the key.
    "OCL_ICD_*",
    "OPENCL_LAYERS",
    "OPENCL_LAYER_PATH",
];

/// Whether a variable that no driver's list names changes nothing for any driver.
fn is_neutral(name: &str) -> bool {
    NEUTRAL.iter().any(|known| fits(known, name))
}

/// Whether a variable with this value changes nothing for any driver.
///
/// GLIBC_TUNABLES acts through the variants of functions that the C library chooses, which are in the key; other values were measured
/// as [`NEUTRAL`] was. What fills memory that nobody has written shows it to a compiler that reads it.
///
/// PoCL 3.1 sets HWLOC_PLUGINS_PATH when a program first asks for its devices (measured), so that hwloc opens no plug-ins in PoCL and
/// in each driver of the process that comes later. Without them hwloc only counts processors and memory, which the device's answers
/// tell.
pub fn is_neutral_value(name: &str, value: &[u8]) -> bool {
    const FILLS: &[u8] = b"perturb";
    is_neutral(name)
        || (name, value) == ("HWLOC_PLUGINS_PATH", b"/dev/null")
        || name == "GLIBC_TUNABLES" && !value.windows(FILLS.len()).any(|part| part == FILLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, &Environment); 10] = [
        ("pocl", &POCL),
        ("intel-cpu", &INTEL_CPU),
        ("intel-gpu", &INTEL_GPU),
        ("amd", &AMD),
        ("nvidia", &NVIDIA),
        ("rusticl", &RUSTICL),
        ("clvk", &CLVK),
        ("oclgrind", &OCLGRIND),
        ("unknown", &UNKNOWN),
        ("layers", &LAYERS),
    ];

    #[test]
    fn no_variable_stands_in_two_lists() {
        for (family, environment) in ALL {
            let mut seen = std::collections::HashSet::new();
            for name in [environment.code, environment.identity, environment.neutral].concat() {
                assert!(seen.insert(name), "{family}: {name} stands there twice");
            }
        }
    }

    #[test]
    fn defaults_and_files_are_of_variables_that_change_something() {
        for (family, environment) in ALL {
            let defaults = environment.defaults.iter().map(|(name, _)| name);
            for name in defaults.chain(environment.files) {
                let name = name.trim_end_matches('*');
                let effect = environment.effect(name);
                let camel_case = environment.camel_case.is_some() && !name.contains('_');
                assert!(
                    camel_case || effect.is_some_and(|effect| effect != Effect::Neutral),
                    "{family}: {name} is {effect:?}"
                );
            }
        }
    }

    #[test]
    fn the_longest_name_that_fits_decides() {
        for (environment, name, effect) in [
            (&POCL, "POCL_WORK_GROUP_METHOD", Some(Effect::Code)),
            (&POCL, "POCL_PATH_CLANG", Some(Effect::Code)),
            (&POCL, "POCL_SOMETHING_NEW", Some(Effect::Code)),
            (&POCL, "POCL_PTHREAD0_PARAMETERS", Some(Effect::Code)),
            (&POCL, "POCL_DEVICES", Some(Effect::Identity)),
            (&POCL, "POCL_DEBUG", Some(Effect::Neutral)),
            (&POCL, "POCL_DEBUG_LLVM_OPTS", Some(Effect::Code)),
            (&POCL, "POCL_TRACING_FILTER", Some(Effect::Neutral)),
            (&POCL, "HOME", None),
            (&INTEL_GPU, "NEO_CACHE_DIR", Some(Effect::Neutral)),
            (&INTEL_GPU, "IGC_ForceOCLSIMDWidth", Some(Effect::Code)),
            (&AMD, "AMD_COMGR_CACHE_DIR", Some(Effect::Neutral)),
            (&AMD, "AMD_OCL_BUILD_OPTIONS_APPEND", Some(Effect::Code)),
            (&RUSTICL, "RUSTICL_FEATURES", Some(Effect::Identity)),
        ] {
            assert_eq!(environment.effect(name), effect, "{name}");
        }
    }

    #[test]
    fn a_default_is_the_default_of_its_own_variable_only() {
        assert!(POCL.is_default("POCL_IGNORE_CL_STD", b"0"));
        assert!(!POCL.is_default("POCL_IGNORE_CL_STD", b"1"));
        assert!(!POCL.is_default("POCL_CPU_JIT", b"0"));
    }
}
