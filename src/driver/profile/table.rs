//! The rows: the facts about each family of drivers, and their sources.

use super::{
    Behavior, DriverFiles, IncludeDir, KernelFactsTime, ProcessorFacts, Profile, Rebuild,
    RecordTime, contains, variables,
};
use crate::driver::clang_driver::GCC_CHOICE;

/// The directories that clang searches by itself: its headers, `include` in the working directory although no option names it
/// (measured on Intel's CPU runtime), and the directories of the system.
const CLANG_INCLUDE_DIRS: &[IncludeDir] = &[
    IncludeDir::At("include"),
    IncludeDir::ClangResources,
    IncludeDir::At("/usr/local/include"),
    IncludeDir::At("/usr/include"),
];

/// The header that clang includes in every OpenCL C program if it does not use a precompiled form of it.
const CLANG_IMPLICIT_INCLUDES: &[&str] = &["opencl-c.h", "opencl-c-base.h"];

pub(super) static PROFILES: [Profile; 8] = [
    Profile {
        family: "pocl",
        recognize: |platform| {
            platform.suffix == b"POCL" || contains(&platform.name, "Portable Computing Language")
        },
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
        environment: &variables::POCL,
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
    },
    Profile {
        family: "intel-cpu",
        // The CPU runtime calls itself "Intel(R) OpenCL", the GPU driver "Intel(R) OpenCL Graphics" or "... HD Graphics".
        recognize: |platform| {
            contains(&platform.name, "Intel(R) OpenCL") && !contains(&platform.name, "Graphics")
        },
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
        environment: &variables::INTEL_CPU,
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
        // Measured: read before the file beside the library, when the driver is opened and at each build.
        configuration: &["cl.cfg"],
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
    },
    Profile {
        family: "intel-gpu",
        recognize: |platform| {
            contains(&platform.vendor, "Intel") && contains(&platform.name, "Graphics")
        },
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
        environment: &variables::INTEL_GPU,
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
    },
    Profile {
        family: "amd",
        recognize: |platform| contains(&platform.name, "AMD Accelerated Parallel Processing"),
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
        environment: &variables::AMD,
        suffix_variables: false,
        // COMGR is opened by name in newer versions (comgrctx.cpp); older ones read the device libraries.
        files: &[
            DriverFiles::Library("libamd_comgr*.so*"),
            DriverFiles::Library("libhsail-rt*.so*"),
            DriverFiles::Beside("../amdgcn/bitcode", "*.bc"),
        ],
        tools: &[],
        configuration: &[],
        include_dirs: CLANG_INCLUDE_DIRS,
        implicit_includes: CLANG_IMPLICIT_INCLUDES,
        il_files: &[],
        ignores_local_memory: &[],
        processor: ProcessorFacts::Stepping, // unverified that it does not matter
        looks_at_executable: true, // program.cpp: ParseAllOptions appends options per application
    },
    Profile {
        family: "nvidia",
        recognize: |platform| contains(&platform.vendor, "NVIDIA"),
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
        environment: &variables::NVIDIA,
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
    },
    Profile {
        family: "rusticl",
        recognize: |platform| platform.name == b"rusticl", // Clover has the same suffix, and is another compiler
        behavior: Behavior {
            // Measured: 0 ms of a build of 34 ms. The binary is SPIR-V, from which newer versions compile every kernel in
            // clCreateProgramWithBinary already (program.rs; unverified).
            record: RecordTime::InMiss,
            // Measured: 22.3 takes about 550 ms to create a kernel, again for every kernel object.
            kernel_facts: KernelFactsTime::WhenCreated,
            context_counts_programs: Some(true), // measured
            kernels_keep_program: true,
            sub_devices_are_their_root: false,
            rebuild: Rebuild::KeepsKernels, // measured: CL_PROGRAM_NUM_KERNELS grows with each build
            copies_builds: false,           // measured
        },
        refuses_debug: false,
        environment: &variables::RUSTICL,
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
        // Measured on 22.3.
        include_dirs: &[
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
    },
    Profile {
        family: "clvk",
        recognize: |platform| contains(&platform.name, "clvk"),
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
        environment: &variables::CLVK,
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
    },
    Profile {
        family: "oclgrind",
        recognize: |platform| contains(&platform.name, "Oclgrind"),
        behavior: Behavior {
            // Program.cpp: LLVM's bitcode is written twice, once to tell its size. Kernels are interpreted.
            record: RecordTime::Measured,
            // Measured: a program that calls an undefined function is built, clCreateKernelsInProgram gives its kernel, and a query of
            // that ends the process.
            kernel_facts: KernelFactsTime::WhenCreated,
            context_counts_programs: Some(true), // measured
            kernels_keep_program: true,
            sub_devices_are_their_root: false, // its device cannot be divided (measured)
            rebuild: Rebuild::Fresh,           // measured
            copies_builds: false,              // measured
        },
        refuses_debug: false,
        environment: &variables::OCLGRIND,
        suffix_variables: false,
        files: &[DriverFiles::Beside("../include/oclgrind", "*")],
        tools: &[],
        configuration: &[],
        include_dirs: CLANG_INCLUDE_DIRS,
        implicit_includes: CLANG_IMPLICIT_INCLUDES,
        il_files: &[],
        ignores_local_memory: &[],
        processor: ProcessorFacts::Stepping, // unverified that it does not matter
        looks_at_executable: false,
    },
];

pub(super) static UNKNOWN: Profile = Profile {
    family: "unknown",
    recognize: |_| true,
    behavior: Behavior {
        record: RecordTime::Measured,
        // ARM's driver for Mali compiles then (pull request 225 of viennacl/viennacl-dev).
        kernel_facts: KernelFactsTime::WhenCreated,
        context_counts_programs: None,
        kernels_keep_program: true,
        sub_devices_are_their_root: false,
        rebuild: Rebuild::Fresh,
        copies_builds: false,
    },
    refuses_debug: false,
    environment: &variables::UNKNOWN,
    suffix_variables: true,
    files: &[],
    tools: &[],
    configuration: &[],
    include_dirs: CLANG_INCLUDE_DIRS,
    implicit_includes: CLANG_IMPLICIT_INCLUDES,
    il_files: &[],
    ignores_local_memory: &[],
    processor: ProcessorFacts::Stepping, // unverified that it does not matter
    looks_at_executable: true,
};
