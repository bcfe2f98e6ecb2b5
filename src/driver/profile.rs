//! What is known of each family of drivers: one table, one row a family.
//!
//! Each fact has its source in a comment: "measured" was run here on Debian 12 (PoCL 3.1, Intel CPU runtime 2026.2,
//! rusticl 22.3), a file name is of the driver's own sources, "documented" is its vendor's manual.

use opencl_sys::{CL_PLATFORM_NAME, CL_PLATFORM_VENDOR, CL_PLATFORM_VERSION, cl_platform_info};

use crate::cl::dispatch::slots_of_version;

/// By what a driver is recognised: the answers of its first platform, without the NUL.
pub struct Recognition {
    /// CL_PLATFORM_NAME.
    pub name: Vec<u8>,
    /// CL_PLATFORM_VENDOR.
    pub vendor: Vec<u8>,
    /// CL_PLATFORM_ICD_SUFFIX_KHR.
    pub suffix: Vec<u8>,
    /// The length of its dispatch table, which follows from CL_PLATFORM_VERSION: without one no slot is read.
    pub slots: usize,
}

impl Recognition {
    /// Asks a platform for its texts.
    pub fn ask(text: impl Fn(cl_platform_info) -> Vec<u8>) -> Recognition {
        const CL_PLATFORM_ICD_SUFFIX_KHR: cl_platform_info = 0x0920; // cl_khr_icd
        Recognition {
            name: text(CL_PLATFORM_NAME),
            vendor: text(CL_PLATFORM_VENDOR),
            suffix: text(CL_PLATFORM_ICD_SUFFIX_KHR),
            slots: slots_of_version(&text(CL_PLATFORM_VERSION)),
        }
    }
}

/// When the facts about a program's kernels (attributes, arguments) are asked of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFacts {
    /// Right after the build, from kernels made for the purpose: creating one costs next to nothing.
    AfterBuild,
    /// When the application creates the kernel itself: creating one compiles it.
    WhenCreated,
}

/// What a program has of its earlier build when it is built again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// Nothing: it is as a program that is built for the first time.
    Fresh,
    /// Its program-scope variables, if the options are the same.
    KeepsVariables,
    /// All its kernels, beside the new ones.
    KeepsKernels,
}

/// The environment variables that a driver or its compiler reads.
pub struct Environment {
    /// Names of variables that change the generated code or what the program is told of the device.
    pub code: &'static [&'static str],
    /// The same for whole prefixes.
    pub code_prefixes: &'static [&'static str],
    /// Exceptions from the prefixes: variables that change no code.
    pub neutral: &'static [&'static str],
}

/// Files beside the driver that change what it compiles: a directory relative to that of the library, and a pattern for
/// names with at most one `*`.
pub type Files = &'static [(&'static str, &'static str)];

/// Where a compiler looks for headers beside the working directory and the directories of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeDir {
    /// This one; relative to the working directory.
    At(&'static str),
    /// Clang's own headers, beside the library of clang that is loaded.
    ClangResources,
    /// PoCL's cache, where the source is written to before it is compiled.
    PoclCache,
}

/// What clang takes by itself: its headers, `include` in the working directory where it was not told of them (measured on
/// Intel's CPU runtime), and the directories of the system.
const CLANG_INCLUDE_DIRS: &[IncludeDir] = &[
    IncludeDir::At("include"),
    IncludeDir::ClangResources,
    IncludeDir::At("/usr/local/include"),
    IncludeDir::At("/usr/include"),
];

/// What clang includes in every program of OpenCL C if its headers are used and not a precompiled form of them.
const CLANG_IMPLICIT_INCLUDES: &[&str] = &["opencl-c.h", "opencl-c-base.h"];

/// One row.
pub struct Profile {
    /// The family's name, for the log and for entries.
    pub family: &'static str,
    recognise: fn(&Recognition) -> bool,
    /// When kernel facts are recorded.
    pub kernel_facts: KernelFacts,
    /// Whether programs with debug information are left alone.
    pub refuses_debug: bool,
    /// Whether CL_CONTEXT_REFERENCE_COUNT counts programs; None: found out at the first inner program.
    pub context_counts_programs: Option<bool>,
    /// Whether a program lives as long as its kernels (OpenCL 3.0, 5.8.2); else its handle is dead once it is released.
    pub kernels_keep_program: bool,
    /// Whether a program of a sub-device's context has the root device instead.
    pub sub_devices_are_their_root: bool,
    /// What is left of an earlier build.
    pub rebuild: Rebuild,
    /// Variables that change code.
    pub environment: Environment,
    /// Whether variables that begin with the platform's ICD suffix and `_` are taken to change code.
    pub suffix_variables: bool,
    /// Files that change code, beside the libraries that are loaded.
    pub files: Files,
    /// Where headers are looked for beside the working directory and those of the options.
    pub include_dirs: &'static [IncludeDir],
    /// Names that the compiler includes in every program, looked up like the program's own.
    pub implicit_includes: &'static [&'static str],
    /// Whether the compiler looks at the name of the running program.
    pub looks_at_executable: bool,
}

/// The row of a driver.
pub fn of(recognition: &Recognition) -> &'static Profile {
    PROFILES
        .iter()
        .find(|profile| (profile.recognise)(recognition))
        .unwrap_or(&UNKNOWN)
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len())
        .any(|window| window == part.as_bytes())
}

static PROFILES: [Profile; 8] = [
    Profile {
        family: "pocl",
        recognise: |platform| {
            platform.suffix == b"POCL" || contains(&platform.name, "Portable Computing Language")
        },
        // Measured: clCreateKernel 0 ms.
        kernel_facts: KernelFacts::AfterBuild,
        // Measured: a binary with debug information makes LLVM's verifier complain on standard error when it is loaded.
        refuses_debug: true,
        context_counts_programs: Some(true), // measured
        kernels_keep_program: true,
        sub_devices_are_their_root: true, // measured
        rebuild: Rebuild::Fresh,          // measured
        environment: Environment {
            // pocl_build.c, pocl_cache.c, pocl_llvm_utils.cc, linker.cpp, WorkitemLoops.cc, common.c and others: all
            // POCL_ variables change code or identity but the following. POCL's own key has one of them.
            code: &[],
            code_prefixes: &["POCL_"],
            neutral: &[
                "POCL_CACHE_DIR",
                "POCL_KERNEL_CACHE",
                "POCL_DEBUG",
                "POCL_DEBUG_LLVM_PASSES",
                "POCL_VECTORIZER_REMARKS",
                "POCL_LLVM_VERIFY",
                "POCL_LEAVE_KERNEL_COMPILER_TEMP_FILES",
                "POCL_TRACING",
                "POCL_TRACING_OPT",
                "POCL_TRACING_FILTER",
                "POCL_AFFINITY",
                "POCL_MAX_PTHREAD_COUNT",
                "POCL_SIGUSR2_HANDLER",
                "POCL_SIGFPE_HANDLER",
                "POCL_STARTUP_DELAY",
                "POCL_MEMORY_LIMIT",
            ],
        },
        suffix_variables: false,
        // Read, not mapped: the built-in libraries, the headers, and the device plug-ins (dlopened, not DT_NEEDED).
        files: &[
            ("../share/pocl", "*"),
            ("../share/pocl/include", "*"),
            ("../../share/pocl", "*"),
            ("../../share/pocl/include", "*"),
            ("pocl", "*.so"),
        ],
        // Measured on 3.1: beside the temporary file that the source was written to. `include` is looked at, but not searched.
        include_dirs: &[IncludeDir::PoclCache, IncludeDir::At("include")],
        // Measured: its own copies of clang's headers are included by absolute names.
        implicit_includes: &[],
        looks_at_executable: false,
    },
    Profile {
        family: "intel-cpu",
        // The CPU runtime calls itself "Intel(R) OpenCL", the GPU driver "Intel(R) OpenCL Graphics" or "... HD Graphics".
        recognise: |platform| {
            contains(&platform.name, "Intel(R) OpenCL") && !contains(&platform.name, "Graphics")
        },
        kernel_facts: KernelFacts::AfterBuild, // measured: about 1 ms for ten kernels
        refuses_debug: false,
        context_counts_programs: Some(false), // measured
        kernels_keep_program: false,          // measured: queries of it give CL_INVALID_PROGRAM
        sub_devices_are_their_root: false,    // measured
        rebuild: Rebuild::KeepsVariables,     // measured
        environment: Environment {
            code: &[],
            // Documented: "Performance-Related Configuration Variables", "Vectorizer Knobs" and "Targeting a Different CPU
            // Architecture" of the CPU runtime's reference.
            code_prefixes: &["CL_CONFIG_", "VOLCANO_"],
            neutral: &[
                "CL_CONFIG_DUMP_BIN",
                "CL_CONFIG_DUMP_DISASSEMBLY",
                "CL_CONFIG_USE_VTUNE",
            ],
        },
        suffix_variables: false,
        // Its built-ins and vector mathematics are opened at the first build, cl.cfg is read beside the library.
        files: &[
            (".", "*.rtl"),
            (".", "cllibrary*"),
            (".", "cl.cfg"),
            (".", "libocl_svml_*"),
            (".", "libintelocl_*"),
        ],
        // Measured, also that `include` in the working directory is searched.
        include_dirs: &[
            IncludeDir::At("include"),
            IncludeDir::At("/usr/local/include"),
            IncludeDir::At("/usr/include"),
        ],
        implicit_includes: &[], // measured
        looks_at_executable: false,
    },
    Profile {
        family: "intel-gpu",
        recognise: |platform| {
            contains(&platform.vendor, "Intel") && contains(&platform.name, "Graphics")
        },
        kernel_facts: KernelFacts::AfterBuild, // unverified
        refuses_debug: false,
        context_counts_programs: None,
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::Fresh,
        environment: Environment {
            // oclc_extensions.cpp, api.cpp, platform.cpp of the compute runtime; its debug keys have the NEO_ prefix or,
            // with NEOReadDebugKeys, none, so that variable alone makes the environment unknowable: it is in the key.
            code: &[
                "OverrideDefaultFP64Settings",
                "ZET_ENABLE_PROGRAM_DEBUGGING",
                "ZET_ENABLE_PROGRAM_INSTRUMENTATION",
                "ONEAPI_PVC_SEND_WAR_WA",
                "ZEX_NUMBER_OF_CCS",
                "NEOReadDebugKeys",
            ],
            code_prefixes: &["IGC_", "NEO_"],
            neutral: &[
                "NEO_CACHE_DIR",
                "NEO_CACHE_PERSISTENT",
                "NEO_CACHE_MAX_SIZE",
                "IGC_ShaderDumpEnable",
                "IGC_DumpToCurrentDir",
            ],
        },
        suffix_variables: false,
        files: &[],
        include_dirs: CLANG_INCLUDE_DIRS,
        implicit_includes: CLANG_IMPLICIT_INCLUDES,
        looks_at_executable: true, // ail_configuration.cpp: per-application code generation
    },
    Profile {
        family: "amd",
        recognise: |platform| contains(&platform.name, "AMD Accelerated Parallel Processing"),
        kernel_facts: KernelFacts::AfterBuild, // unverified
        refuses_debug: false,
        context_counts_programs: None,
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::Fresh,
        environment: Environment {
            // flags.hpp, program.cpp, rocsettings.cpp of clr; comgr-env.cpp.
            code: &[
                "AMD_GPU_FORCE_SINGLE_FP_DENORM",
                "OCL_STUB_PROGRAMS",
                "LLVM_PATH",
                "HIP_PATH",
                "HSA_COMPILER_LIBRARY",
                "OPENCL_VERSION",
                "CL_KHR_FP64",
            ],
            code_prefixes: &["AMD_OCL_", "AMD_COMGR_", "GPU_"],
            neutral: &[
                "AMD_OCL_WAIT_COMMAND",
                "AMD_COMGR_CACHE",
                "AMD_COMGR_CACHE_DIR",
                "AMD_COMGR_CACHE_POLICY",
                "AMD_COMGR_SAVE_TEMPS",
                "AMD_COMGR_REDIRECT_LOGS",
                "AMD_COMGR_TIME_STATISTICS",
                "GPU_DUMP_CODE_OBJECT",
                "GPU_DEVICE_ORDINAL",
            ],
        },
        suffix_variables: false,
        files: &[],
        include_dirs: CLANG_INCLUDE_DIRS,
        implicit_includes: CLANG_IMPLICIT_INCLUDES,
        looks_at_executable: true, // program.cpp: ParseAllOptions appends options per application
    },
    Profile {
        family: "nvidia",
        recognise: |platform| contains(&platform.vendor, "NVIDIA"),
        kernel_facts: KernelFacts::AfterBuild, // unverified
        refuses_debug: false,
        context_counts_programs: None,
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::Fresh,
        environment: Environment {
            // No variable is documented to change the PTX; those of the JIT cost nothing in the key.
            code: &["CUDA_FORCE_PTX_JIT", "CUDA_DISABLE_PTX_JIT"],
            code_prefixes: &[],
            neutral: &[],
        },
        suffix_variables: false,
        // Compiler libraries, which the driver opens at the first build (documented in its README).
        files: &[
            (".", "libnvidia-nvvm*.so*"),
            (".", "libnvidia-compiler*.so*"),
            (".", "libnvidia-ptxjitcompiler*.so*"),
        ],
        include_dirs: CLANG_INCLUDE_DIRS,
        implicit_includes: CLANG_IMPLICIT_INCLUDES,
        looks_at_executable: false,
    },
    Profile {
        family: "rusticl",
        recognise: |platform| platform.name == b"rusticl", // Clover has the same suffix, and is another compiler
        // Measured: 22.3 takes about 550 ms to create a kernel, again for every kernel object.
        kernel_facts: KernelFacts::WhenCreated,
        refuses_debug: false,
        context_counts_programs: Some(true), // measured
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::KeepsKernels, // measured: CL_PROGRAM_NUM_KERNELS grows with each build
        environment: Environment {
            // docs/envvars.rst, core/platform.rs: they change macros and features.
            code: &["CLC_DEBUG"],
            code_prefixes: &["RUSTICL_"],
            neutral: &["RUSTICL_ENABLE", "RUSTICL_MAX_WORK_GROUPS"],
        },
        suffix_variables: false,
        // libclc's SPIR-V, read at the first build.
        files: &[
            ("../share/clc", "*.spv"),
            ("../../share/clc", "*.spv"),
            ("../lib/clc", "*.spv"),
            ("../clc", "*.spv"),
        ],
        // Measured on 22.3.
        include_dirs: &[
            IncludeDir::ClangResources,
            IncludeDir::At("/usr/local/include"),
            IncludeDir::At("/usr/include"),
        ],
        // Measured: looked for in the working directory and in each directory of the options before clang's own, in every build.
        implicit_includes: &["opencl-c-base.h"],
        looks_at_executable: false,
    },
    Profile {
        family: "clvk",
        recognise: |platform| contains(&platform.name, "clvk"),
        kernel_facts: KernelFacts::WhenCreated, // unverified
        refuses_debug: false,
        context_counts_programs: None,
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::Fresh,
        environment: Environment {
            code: &[],
            code_prefixes: &["CLVK_"], // src/config.def
            neutral: &[
                "CLVK_CACHE_DIR",
                "CLVK_LOG",
                "CLVK_LOG_COLOUR",
                "CLVK_LOG_DEST",
                "CLVK_KEEP_TEMPORARIES",
            ],
        },
        suffix_variables: false,
        files: &[(".", "clspv"), (".", "llvm-spirv"), (".", "clvk.conf")],
        include_dirs: CLANG_INCLUDE_DIRS,
        implicit_includes: CLANG_IMPLICIT_INCLUDES,
        looks_at_executable: false,
    },
    Profile {
        family: "oclgrind",
        recognise: |platform| contains(&platform.name, "Oclgrind"),
        kernel_facts: KernelFacts::AfterBuild, // measured
        refuses_debug: false,
        context_counts_programs: Some(true), // measured
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::Fresh,
        environment: Environment {
            code: &[],
            code_prefixes: &["OCLGRIND_"],
            neutral: &["OCLGRIND_LOG"],
        },
        suffix_variables: false,
        files: &[("../include/oclgrind", "*")],
        include_dirs: CLANG_INCLUDE_DIRS,
        implicit_includes: CLANG_IMPLICIT_INCLUDES,
        looks_at_executable: false,
    },
];

static UNKNOWN: Profile = Profile {
    family: "unknown",
    recognise: |_| true,
    kernel_facts: KernelFacts::WhenCreated,
    refuses_debug: false,
    context_counts_programs: None,
    kernels_keep_program: true,
    sub_devices_are_their_root: false,
    rebuild: Rebuild::Fresh,
    // By habit a driver's variables begin with its suffix; all of them enter the key.
    environment: Environment {
        code: &[],
        code_prefixes: &["CL_", "OCL_"],
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
    },
    suffix_variables: true,
    files: &[],
    include_dirs: CLANG_INCLUDE_DIRS,
    implicit_includes: CLANG_IMPLICIT_INCLUDES,
    looks_at_executable: true,
};

impl Environment {
    /// Whether the variable changes code.
    pub fn changes_code(&self, name: &str) -> bool {
        !self.neutral.contains(&name)
            && (self.code.contains(&name)
                || self
                    .code_prefixes
                    .iter()
                    .any(|prefix| name.starts_with(prefix)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(name: &str, vendor: &str, suffix: &str) -> Recognition {
        Recognition {
            name: name.into(),
            vendor: vendor.into(),
            suffix: suffix.into(),
            slots: 149,
        }
    }

    #[test]
    fn each_family_is_recognised_by_what_its_platform_answers() {
        for (name, vendor, suffix, family) in [
            (
                "Portable Computing Language",
                "The pocl project",
                "POCL",
                "pocl",
            ),
            (
                "Intel(R) OpenCL",
                "Intel(R) Corporation",
                "INTEL",
                "intel-cpu",
            ),
            (
                "Intel(R) OpenCL Graphics",
                "Intel(R) Corporation",
                "INTEL",
                "intel-gpu",
            ),
            (
                "AMD Accelerated Parallel Processing",
                "Advanced Micro Devices, Inc.",
                "AMD",
                "amd",
            ),
            ("NVIDIA CUDA", "NVIDIA Corporation", "NV", "nvidia"),
            ("rusticl", "Mesa/X.org", "MESA", "rusticl"),
            ("Oclgrind", "University of Bristol", "oclg", "oclgrind"),
            ("Something new", "Somebody", "NEW", "unknown"),
        ] {
            assert_eq!(of(&platform(name, vendor, suffix)).family, family);
        }
    }

    #[test]
    fn a_variable_is_neutral_only_as_an_exception_from_a_prefix() {
        for profile in PROFILES.iter().chain([&UNKNOWN]) {
            let environment = &profile.environment;
            for name in environment.neutral {
                assert!(
                    !environment.code.contains(name),
                    "{}: {name} stands in both lists",
                    profile.family
                );
                assert!(
                    environment
                        .code_prefixes
                        .iter()
                        .any(|prefix| name.starts_with(prefix)),
                    "{}: {name} needs no exception",
                    profile.family
                );
                assert!(!environment.changes_code(name));
            }
            for name in environment.code {
                assert!(
                    !environment
                        .code_prefixes
                        .iter()
                        .any(|prefix| name.starts_with(prefix)),
                    "{}: {name} is covered by a prefix",
                    profile.family
                );
                assert!(environment.changes_code(name));
            }
        }
    }
}
