//! The other caches of compiled kernels: where each is, what is in it, and which variables move it or turn it off.
//!
//! Each fact names its source or document, or says "seen" if it was observed.

use CacheRoot::{CacheHome, Home, HomeCache, PasswdCacheHome, Temporary, Variable};

use super::structure::{
    Node, any, between, common, directory, has_extension, hex, is_hex, is_random, like, link, own,
};

/// One cache.
pub struct OtherCache {
    /// The name on the command line.
    pub name: &'static str,
    /// What it contains.
    pub what: &'static str,
    /// Where it may be; the first that a variable names is used.
    pub places: &'static [CachePath],
    /// How to turn it off, as a message.
    pub off: &'static str,
    /// How to move it, as a message.
    pub moved: &'static str,
    /// The variables that it reads.
    pub variables: &'static [&'static str],
    /// How to make it cold for one program.
    pub cold: &'static [Cold],
}

/// Where a cache may be.
pub struct CachePath {
    /// The beginning of its path.
    pub base: CacheRoot,
    /// The rest of its path.
    pub below: &'static [&'static str],
    /// The layout.
    pub tree: &'static [Node],
    /// Whether other files may be there, too, which are not reported.
    pub is_shared: bool,
}

/// The beginning of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheRoot {
    /// The value of a variable.
    Variable(&'static str),
    /// $XDG_CACHE_HOME, or .cache in the home directory.
    CacheHome,
    /// $XDG_CACHE_HOME, or .cache in the home directory that the passwd file names.
    PasswdCacheHome,
    /// $HOME.
    Home,
    /// .cache in $HOME, even if XDG_CACHE_HOME is set.
    HomeCache,
    /// /tmp, if there is no home.
    Temporary,
}

/// How to make a cache cold.
#[derive(Clone, Copy, Debug)]
pub enum Cold {
    /// Set a variable to a value.
    Set(&'static str, &'static str),
    /// Set a variable to an empty directory, if nothing turns the cache off completely.
    Move(&'static str),
    /// Hide this name below the cache home, for caches that only XDG_CACHE_HOME moves.
    Hide(&'static str),
}

const fn place(
    base: CacheRoot,
    below: &'static [&'static str],
    tree: &'static [Node],
) -> CachePath {
    CachePath {
        base,
        below,
        tree,
        is_shared: false,
    }
}

const fn shared(
    base: CacheRoot,
    below: &'static [&'static str],
    tree: &'static [Node],
) -> CachePath {
    CachePath {
        base,
        below,
        tree,
        is_shared: true,
    }
}

/// The caches.
pub const CACHES: [OtherCache; 13] = [
    OtherCache {
        name: "pocl",
        what: "PoCL: programs, and kernels for each size of work-group",
        // lib/CL/pocl_cache.c, pocl_cache_init_topdir; doc/sphinx/source/env_variables.rst. /tmp without a home.
        places: &[
            place(Variable("POCL_CACHE_DIR"), &[], POCL),
            place(CacheHome, &["pocl", "kcache"], POCL),
            place(Temporary, &["pocl", "kcache"], POCL),
        ],
        // It writes to the disk nevertheless, and removes what it wrote when a program is released (using.rst).
        off: "POCL_KERNEL_CACHE=0 removes what was compiled when the program is released",
        moved: "POCL_CACHE_DIR",
        variables: &["POCL_CACHE_DIR", "POCL_KERNEL_CACHE"],
        cold: &[Cold::Move("POCL_CACHE_DIR")],
    },
    OtherCache {
        name: "mesa",
        what: "Mesa: shaders of rusticl, OpenGL and Vulkan",
        // src/util/disk_cache_os.c, disk_cache_generate_cache_dir; docs/envvars.rst. The old names are those before 22.3.
        places: &[
            place(
                Variable("MESA_SHADER_CACHE_DIR"),
                &["mesa_shader_cache"],
                MESA,
            ),
            place(
                Variable("MESA_SHADER_CACHE_DIR"),
                &["mesa_shader_cache_db"],
                MESA_DB,
            ),
            place(
                Variable("MESA_SHADER_CACHE_DIR"),
                &["mesa_shader_cache_sf"],
                MESA_SF,
            ),
            place(
                Variable("MESA_GLSL_CACHE_DIR"),
                &["mesa_shader_cache"],
                MESA,
            ),
            place(PasswdCacheHome, &["mesa_shader_cache"], MESA),
            place(PasswdCacheHome, &["mesa_shader_cache_db"], MESA_DB),
            place(PasswdCacheHome, &["mesa_shader_cache_sf"], MESA_SF),
        ],
        off: "MESA_SHADER_CACHE_DISABLE=true",
        moved: "MESA_SHADER_CACHE_DIR",
        variables: &[
            "MESA_SHADER_CACHE_DIR",
            "MESA_SHADER_CACHE_DISABLE",
            "MESA_SHADER_CACHE_MAX_SIZE",
            "MESA_GLSL_CACHE_DIR",
            "MESA_GLSL_CACHE_DISABLE",
            "MESA_DISK_CACHE_DATABASE",
            "MESA_DISK_CACHE_MULTI_FILE",
            "MESA_DISK_CACHE_SINGLE_FILE",
            "MESA_DISK_CACHE_READ_ONLY_FOZ_DBS",
        ],
        cold: &[
            Cold::Set("MESA_SHADER_CACHE_DISABLE", "true"),
            Cold::Set("MESA_GLSL_CACHE_DISABLE", "true"),
        ],
    },
    OtherCache {
        name: "nvidia",
        what: "NVIDIA: machine code of PTX, of OpenCL and CUDA",
        // CUDA C++ Programming Guide, "Environment Variables". The names of its files as strace shows them.
        places: &[
            place(Variable("CUDA_CACHE_PATH"), &[], NVIDIA),
            place(Home, &[".nv", "ComputeCache"], NVIDIA),
        ],
        off: "CUDA_CACHE_DISABLE=1",
        moved: "CUDA_CACHE_PATH",
        variables: &[
            "CUDA_CACHE_PATH",
            "CUDA_CACHE_DISABLE",
            "CUDA_CACHE_MAXSIZE",
        ],
        cold: &[Cold::Set("CUDA_CACHE_DISABLE", "1")],
    },
    OtherCache {
        name: "intel",
        what: "Intel compute-runtime (NEO): what IGC compiled, of OpenCL and Level Zero",
        // compute-runtime, programmers-guide/COMPILER_CACHE.md; os_compiler_cache_helper.cpp and compiler_cache_linux.cpp. IGC
        // has no cache of its own.
        places: &[
            place(Variable("NEO_CACHE_DIR"), &[], INTEL),
            place(CacheHome, &["neo_compiler_cache"], INTEL),
        ],
        off: "NEO_CACHE_PERSISTENT=0",
        moved: "NEO_CACHE_DIR, which must exist: otherwise there is no cache",
        variables: &[
            "NEO_CACHE_DIR",
            "NEO_CACHE_PERSISTENT",
            "NEO_CACHE_MAX_SIZE",
        ],
        cold: &[Cold::Set("NEO_CACHE_PERSISTENT", "0")],
    },
    OtherCache {
        name: "comgr",
        what: "AMD COMGR: what ROCm's OpenCL and HIP compile at run time",
        // ROCm/llvm-project, amd/comgr/README.md; the names are those of llvm::localCache and llvm::CachePruning.
        places: &[
            place(Variable("AMD_COMGR_CACHE_DIR"), &[], COMGR),
            place(CacheHome, &["comgr"], COMGR),
            place(CacheHome, &["comgr_cache"], COMGR),
        ],
        off: "AMD_COMGR_CACHE=0",
        moved: "AMD_COMGR_CACHE_DIR",
        variables: &[
            "AMD_COMGR_CACHE_DIR",
            "AMD_COMGR_CACHE",
            "AMD_COMGR_CACHE_POLICY",
        ],
        cold: &[Cold::Set("AMD_COMGR_CACHE", "0")],
    },
    OtherCache {
        name: "pyopencl",
        what: "PyOpenCL: programs, if the driver has no cache of its own",
        // pyopencl/cache.py and __init__.py (2026.1).
        places: &[shared(CacheHome, &["pyopencl"], PYOPENCL)],
        off: "PYOPENCL_NO_CACHE=1",
        moved: "XDG_CACHE_HOME, or the argument cache_dir of a program",
        variables: &["PYOPENCL_NO_CACHE"],
        cold: &[Cold::Set("PYOPENCL_NO_CACHE", "1")],
    },
    OtherCache {
        name: "pytools",
        what: "pytools: what PyOpenCL generates to call kernels, and what loopy generates",
        // pytools/persistent_dict.py (2026.1); loopy/__init__.py and loopy/codegen.
        places: &[place(CacheHome, &["pytools"], PYTOOLS)],
        off: "LOOPY_NO_CACHE=1 and CG_NO_CACHE=1 for loopy, PYOPENCL_NO_CACHE=1 for PyOpenCL",
        moved: "XDG_CACHE_HOME",
        variables: &["LOOPY_NO_CACHE", "CG_NO_CACHE", "PYOPENCL_NO_CACHE"],
        cold: &[
            Cold::Set("LOOPY_NO_CACHE", "1"),
            Cold::Set("CG_NO_CACHE", "1"),
            Cold::Hide("pytools"),
        ],
    },
    OtherCache {
        name: "miopen",
        what: "MIOpen: AMD's kernels of neural networks",
        // MIOpen, docs/conceptual/cache.rst; src/binary_cache.cpp, src/kern_db.cpp.
        places: &[
            place(Variable("MIOPEN_CUSTOM_CACHE_DIR"), &[], MIOPEN),
            place(HomeCache, &["miopen"], MIOPEN),
        ],
        off: "MIOPEN_DISABLE_CACHE=1",
        moved: "MIOPEN_CUSTOM_CACHE_DIR",
        variables: &["MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_DISABLE_CACHE"],
        cold: &[Cold::Set("MIOPEN_DISABLE_CACHE", "1")],
    },
    OtherCache {
        name: "triton",
        what: "Triton: kernels of Python programs, after each step of their compilation",
        // python/triton/knobs.py and runtime/cache.py.
        places: &[
            place(Variable("TRITON_CACHE_DIR"), &[], TRITON),
            place(Variable("TRITON_HOME"), &[".triton", "cache"], TRITON),
            place(Home, &[".triton", "cache"], TRITON),
        ],
        off: "TRITON_ALWAYS_COMPILE=1 turns reading off",
        moved: "TRITON_CACHE_DIR",
        variables: &["TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_ALWAYS_COMPILE"],
        cold: &[Cold::Move("TRITON_CACHE_DIR")],
    },
    OtherCache {
        name: "tilus",
        what: "Tilus: programs, their sources and libraries",
        // python/tilus/drivers.py.
        places: &[shared(HomeCache, &["tilus"], TILUS)],
        off: "cannot be turned off",
        moved: "the option cache_dir of a program",
        variables: &[],
        cold: &[],
    },
    OtherCache {
        name: "hashcat",
        what: "hashcat: its kernels for each device",
        // src/folder.c and src/backend.c; `~/.hashcat` is used if it is there. Seen with 6.2.6.
        places: &[
            place(CacheHome, &["hashcat", "kernels"], HASHCAT),
            place(Home, &[".hashcat", "kernels"], HASHCAT),
        ],
        off: "cannot be turned off",
        moved: "XDG_CACHE_HOME, where there is no ~/.hashcat",
        variables: &[],
        cold: &[Cold::Hide("hashcat")],
    },
    OtherCache {
        name: "opencv",
        what: "OpenCV: programs of its transparent API",
        // modules/core/src/ocl.cpp, OpenCLBinaryCacheConfigurator; utils/filesystem.cpp, getCacheDirectory. Seen with 5.0.
        places: &[
            place(Variable("OPENCV_OPENCL_CACHE_DIR"), &[], OPENCV),
            shared(CacheHome, &["opencv"], OPENCV_VERSIONS),
        ],
        off: "OPENCV_OPENCL_CACHE_ENABLE=0",
        moved: "OPENCV_OPENCL_CACHE_DIR",
        variables: &[
            "OPENCV_OPENCL_CACHE_DIR",
            "OPENCV_OPENCL_CACHE_ENABLE",
            "OPENCV_OPENCL_CACHE_WRITE",
        ],
        cold: &[Cold::Set("OPENCV_OPENCL_CACHE_ENABLE", "0")],
    },
    OtherCache {
        name: "darktable",
        what: "darktable: its kernels for each device",
        // src/common/opencl.c, dt_opencl_load_program. Its pictures are in the same directory.
        places: &[shared(CacheHome, &["darktable"], DARKTABLE)],
        off: "cannot be turned off, except with --disable-opencl",
        moved: "XDG_CACHE_HOME, or darktable --cachedir",
        variables: &[],
        cold: &[Cold::Hide("darktable")],
    },
];

/// Letters of a digest of PoCL's: each stands for some of its bits.
fn is_pocl_digest(name: &[u8]) -> bool {
    name.iter().all(|letter| matches!(letter, b'A'..=b'P'))
}

/// `32-1-1-goffs0-smallgrid`.
fn is_local_size(name: &[u8]) -> bool {
    let mut parts = name.split(|byte| *byte == b'-');
    let mut number = || {
        let part = parts.next().unwrap_or_default();
        !part.is_empty() && part.iter().all(u8::is_ascii_digit)
    };
    number() && number() && number()
}

const POCL_FILES: &[&str] = &[
    "bc", "so", "o", "ll", "cl", "spv", "log", "c", "h", "s", "ptx",
];
const POCL_KERNEL: &[Node] = &[directory(
    is_local_size,
    &[common(|name| has_extension(name, POCL_FILES))],
)];
// Seen with 3.1: AB/C...(37)/{program.bc,build.log,last_accessed}, .../KERNEL/1-1-1/{KERNEL.so,parallel.bc}, tempfile_Ab3xYz.
const POCL: &[Node] = &[
    directory(
        |name| name.len() == 2 && is_pocl_digest(name),
        &[directory(
            |name| (36..=40).contains(&name.len()) && is_pocl_digest(name),
            &[
                own(|name| name == b"last_accessed" || name == b"program.bc"),
                common(|name| has_extension(name, POCL_FILES)),
                directory(any, POCL_KERNEL),
            ],
        )],
    ),
    common(|name| {
        let rest = between(name, "tempfile_", "").or_else(|| between(name, "tempfile-", ""));
        let mut parts = rest.unwrap_or_default().split(|byte| *byte == b'.');
        let is_made = |name: &[u8]| name.len() == 6 && is_random(name);
        let is_extension = |part: &[u8]| {
            let known = POCL_FILES.iter().chain(&["preproc", "parallel"]);
            known
                .map(|known| known.as_bytes())
                .any(|known| part == known)
        };
        parts.next().is_some_and(is_made) && parts.all(is_extension)
    }),
];

// disk_cache_os.c: two digits, then the other 38 of a SHA-1; `index` is what is mapped, `marker` says when it was used. Seen with
// 22.3.
const MESA: &[Node] = &[
    directory(
        |name| hex(name, 2),
        &[
            own(|name| hex(name, 38)),
            common(|name| between(name, "", ".tmp").is_some_and(|digest| hex(digest, 38))),
        ],
    ),
    MESA_COMMON,
];
const MESA_COMMON: Node = common(|name| name == b"marker" || name == b"index");
const MESA_DB_FILE: Node = own(|name| name == b"mesa_cache.db" || name == b"mesa_cache.idx");
const MESA_DB: &[Node] = &[
    directory(
        |name| between(name, "part", "").is_some_and(|part| part.iter().all(u8::is_ascii_digit)),
        &[MESA_DB_FILE, MESA_COMMON],
    ),
    MESA_DB_FILE,
    MESA_COMMON,
];
const MESA_SF_FILE: Node = own(|name| between(name, "foz_cache", ".foz").is_some());
const MESA_SF: &[Node] = &[
    directory(is_hex, &[directory(any, &[MESA_SF_FILE, MESA_COMMON])]),
    MESA_SF_FILE,
    MESA_COMMON,
];

const NVIDIA: &[Node] = &[
    directory(
        |name| hex(name, 1),
        &[directory(
            |name| hex(name, 1),
            &[own(|name| is_hex(name) && (12..=40).contains(&name.len()))],
        )],
    ),
    common(|name| name == b"index"),
];

const INTEL: &[Node] = &[
    own(|name| {
        let digest = ["cl_cache", "l0_cache", "ocloc_cache"]
            .iter()
            .find_map(|extension| name.strip_suffix(extension.as_bytes())?.strip_suffix(b"."));
        digest.is_some_and(|digest| is_hex(digest) && digest.len() <= 16)
    }),
    common(|name| name == b"config.file"),
    // While one is being written.
    common(|name| {
        let rest = between(name, "cl_cache.", "").or_else(|| between(name, "l0_cache.", ""));
        rest.is_some_and(is_random)
    }),
];

const COMGR: &[Node] = &[
    // SHA-256 or so in capital digits (llvm::toHex).
    own(|name| {
        let digest = between(name, "llvmcache-", "").unwrap_or_default();
        digest.len() >= 8 && digest.iter().all(u8::is_ascii_hexdigit)
    }),
    common(|name| name == b"llvmcache.timestamp" || name == b"CACHEDIR.TAG"),
    common(|name| like(name, "comgr-", ".tmp.o") || like(name, "Thin-", ".tmp.o")),
];

const PYOPENCL: &[Node] = &[directory(
    |name| like(name, "pyopencl-compiler-cache-v", ""),
    &[
        directory(
            |name| hex(name, 32),
            &[
                own(|name| name == b"source.cl"),
                common(|name| name == b"info" || name == b"binary"),
            ],
        ),
        common(|name| name == b"lock"),
    ],
)];

// Version 5 is a file; in those before, digests in three parts were directories.
const PYTOOLS: &[Node] = &[
    own(|name| like(name, "pdict-v", ".sqlite")),
    common(|name| {
        let journals = [".sqlite-wal", ".sqlite-shm", ".sqlite-journal"];
        journals
            .iter()
            .any(|journal| like(name, "pdict-v", journal))
    }),
    directory(
        |name| like(name, "pdict-v", ""),
        &[
            directory(
                |name| hex(name, 3),
                &[directory(
                    |name| hex(name, 3),
                    &[directory(
                        |name| is_hex(name) && name.len() > 20,
                        &[own(|name| name == b"key" || name == b"contents")],
                    )],
                )],
            ),
            common(|name| between(name, "", ".lock").is_some_and(is_hex)),
        ],
    ),
];

const MIOPEN: &[Node] = &[
    directory(
        |name| {
            name.contains(&b'.')
                && name
                    .iter()
                    .all(|byte| byte.is_ascii_digit() || *byte == b'.')
        },
        MIOPEN_FILES,
    ),
    directory(|name| hex(name, 32), MIOPEN_OBJECTS),
    own(|name| has_extension(name, &["ukdb"])),
];
const MIOPEN_FILES: &[Node] = &[
    own(|name| has_extension(name, &["ukdb"])),
    common(|name| has_extension(name, &["ukdb-wal", "ukdb-shm", "ukdb-journal", "lock"])),
    directory(|name| hex(name, 32), MIOPEN_OBJECTS),
];
const MIOPEN_OBJECTS: &[Node] = &[common(|name| {
    has_extension(name, &["o", "hsaco", "co", "mlir"])
})];

/// A key in base 32, or in hexadecimal digits before 3.0.
fn is_triton_key(name: &[u8]) -> bool {
    let is_base_32 = || {
        let mut digits = name.iter();
        name.len() == 52 && digits.all(|digit| matches!(digit, b'A'..=b'Z' | b'2'..=b'7'))
    };
    hex(name, 64) || is_base_32()
}

/// Containers have directories of such names as well, with files as `config.v2.json`.
const TRITON_OWN: &[&str] = &["ttir", "ttgir", "llir", "cubin", "amdgcn", "hsaco"];
const TRITON_FILES: &[&str] = &[
    "json", "ttir", "ttgir", "llir", "ptx", "cubin", "amdgcn", "hsaco", "spv", "zebin", "source",
    "so", "sass", "asm",
];
const TRITON: &[Node] = &[directory(
    is_triton_key,
    &[
        own(|name| has_extension(name, TRITON_OWN) || like(name, "__grp__", ".json")),
        common(|name| has_extension(name, TRITON_FILES)),
        directory(
            |name| like(name, "tmp.pid_", ""),
            &[common(|name| has_extension(name, TRITON_FILES))],
        ),
        common(|name| name == b"lock"),
    ],
)];

const TILUS_FILES: &[&str] = &[
    "txt", "cu", "sh", "so", "ptx", "cubin", "json", "log", "lock",
];
const TILUS: &[Node] = &[directory(
    |name| name == b"programs",
    &[
        directory(
            |name| hex(name, 12),
            &[
                own(|name| name == b"program.txt" || name == b"options.txt"),
                common(|name| has_extension(name, TILUS_FILES) || name == b".lock"),
                link(any),
                directory(
                    any,
                    &[common(|name| has_extension(name, TILUS_FILES)), link(any)],
                ),
            ],
        ),
        common(|name| between(name, "", ".lock").is_some_and(|digest| hex(digest, 12))),
    ],
)];

const HASHCAT: &[Node] = &[own(|name| {
    // `m00000_a3-pure.7623ec08.kernel`
    let stem = between(name, "", ".kernel").unwrap_or_default();
    let digest = stem.rsplit(|byte| *byte == b'.').next();
    stem.contains(&b'.') && digest.is_some_and(|digest| hex(digest, 8))
})];

const OPENCV: &[Node] = &[
    // `GenuineIntel--NAME--VERSION`
    directory(
        |name| name.windows(2).any(|pair| pair == b"--"),
        &[
            own(|name| {
                // `imgproc--filterSepCol_ab96...bin`
                let stem = between(name, "", ".bin").unwrap_or_default();
                let digest = stem.rsplit(|byte| *byte == b'_').next();
                digest.is_some_and(|digest| hex(digest, 32))
            }),
            common(|name| has_extension(name, &["lock"])),
        ],
    ),
    common(|name| name == b".lock"),
];
const OPENCV_VERSIONS: &[Node] = &[directory(
    |name| name.first().is_some_and(u8::is_ascii_digit) && name.contains(&b'.'),
    &[directory(|name| name == b"opencl_cache", OPENCV)],
)];

// Each `basic.cl.bin` is a link to a file that is named by a digest, or that file itself.
const DARKTABLE: &[Node] = &[directory(
    |name| {
        name.starts_with(b"cached_")
            && name
                .windows(13)
                .any(|part| part == b"_kernels_for_" || part == b"d_kernels_for")
    },
    &[
        own(|name| hex(name, 32) || has_extension(name, &["bin"])),
        link(|name| has_extension(name, &["bin"])),
        common(|name| has_extension(name, &["md5"])),
    ],
)];
