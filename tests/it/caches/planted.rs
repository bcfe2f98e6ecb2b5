//! What other caches look like.

use std::fs;
use std::path::Path;

const A20: &str = "ABCDEFGHIJKLMNOPABCD";
const H32: &str = "0123456789abcdef0123456789abcdef";

/// One cache as its programs leave it: its name, its default place below the home directory, its variable and the place below
/// that, and its files.
pub struct Planted {
    pub name: &'static str,
    pub default: &'static str,
    pub variable: Option<(&'static str, &'static str)>,
    pub files: Vec<String>,
}

/// All caches, by the structure that is documented or was seen.
pub fn planted() -> Vec<Planted> {
    let of = |name, default, variable, files: &[&str]| Planted {
        name,
        default,
        variable,
        files: files.iter().map(|file| (*file).to_owned()).collect(),
    };
    let program = format!("AB/{A20}EFGHIJKLMNOPABCDE");
    let mut pocl = of(
        "pocl",
        ".cache/pocl/kcache",
        Some(("POCL_CACHE_DIR", "")),
        &[],
    );
    pocl.files = [
        format!("{program}/program.bc"),
        format!("{program}/last_accessed"),
        format!("{program}/build.log"),
        format!("{program}/f/0-0-0/f.so"),
        format!("{program}/f/64-1-1-goffs0-smallgrid/f.so"),
        format!("{program}/f/64-1-1-goffs0-smallgrid/parallel.bc"),
        "tempfile_iE8mvR".to_owned(),
    ]
    .into();
    let mut opencv = of(
        "opencv",
        ".cache/opencv/4.10/opencl_cache",
        Some(("OPENCV_OPENCL_CACHE_DIR", "")),
        &[".lock"],
    );
    opencv
        .files
        .push(format!("Vendor--Device_1--2_0/core--arithm_{H32}.bin"));
    let python = "pyopencl-compiler-cache-v2-py3.11.7.final.0";
    let pyopencl = ["binary", "info", "source.cl"].map(|file| format!("{python}/{H32}/{file}"));
    let triton = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNOPQRST";
    let shader = "0123456789abcdef0123456789abcdef012345";
    let mesa = [
        format!("0a/{shader}"),
        format!("ff/{shader}"),
        format!("ff/{shader}.tmp"),
    ];
    let with = |mut planted: Planted, files: &[String]| {
        planted.files.extend(files.iter().cloned());
        planted
    };
    let nothing = |name, default, files: &[&str]| of(name, default, None, files);
    vec![
        pocl,
        with(
            of(
                "mesa",
                ".cache/mesa_shader_cache",
                Some(("MESA_SHADER_CACHE_DIR", "mesa_shader_cache")),
                &["index", "marker"],
            ),
            &mesa,
        ),
        nothing(
            "mesa",
            ".cache/mesa_shader_cache_db",
            &[
                "part0/mesa_cache.db",
                "part0/mesa_cache.idx",
                "part49/mesa_cache.db",
            ],
        ),
        nothing(
            "mesa",
            ".cache/mesa_shader_cache_sf",
            &[
                "0123abcd/llvmpipe/foz_cache.foz",
                "0123abcd/llvmpipe/foz_cache_idx.foz",
            ],
        ),
        of(
            "nvidia",
            ".nv/ComputeCache",
            Some(("CUDA_CACHE_PATH", "")),
            &["index", "0/7/e0943aa8a566c2", "f/f/00000000000000"],
        ),
        of(
            "intel",
            ".cache/neo_compiler_cache",
            Some(("NEO_CACHE_DIR", "")),
            &[
                "config.file",
                "0123456789abcdef.cl_cache",
                "fedcba9876543210.l0_cache",
                "cl_cache.Xy12Zz",
            ],
        ),
        of(
            "comgr",
            ".cache/comgr",
            Some(("AMD_COMGR_CACHE_DIR", "")),
            &[
                "llvmcache.timestamp",
                "llvmcache-0123456789ABCDEF",
                "llvmcache-0123abcd",
            ],
        ),
        with(nothing("pyopencl", ".cache/pyopencl", &[]), &pyopencl),
        nothing(
            "pytools",
            ".cache/pytools",
            &[
                "pdict-v5-loopy-code-gen-cache-v3-nano-3.11.7.final.0.sqlite",
                "pdict-v5-loopy-code-gen-cache-v3-nano-3.11.7.final.0.sqlite-wal",
                "pdict-v4-pyopencl-invoker-py3.10.1.final.0/012/345/6789abcdef0123456789abcdef/key",
                "pdict-v4-pyopencl-invoker-py3.10.1.final.0/012/345/6789abcdef0123456789abcdef/contents",
            ],
        ),
        of(
            "miopen",
            ".cache/miopen",
            Some(("MIOPEN_CUSTOM_CACHE_DIR", "")),
            &["3.2.0.1/gfx90a_104.ukdb", "3.2.0.1/gfx90a_104.ukdb-wal"],
        ),
        with(
            of(
                "triton",
                ".triton/cache",
                Some(("TRITON_CACHE_DIR", "")),
                &[],
            ),
            &[
                format!("{triton}/add.ttir"),
                format!("{triton}/__grp__add.json"),
                format!("{triton}/tmp.pid_7_0123/add.spv"),
            ],
        ),
        nothing(
            "tilus",
            ".cache/tilus",
            &[
                "programs/0123456789ab/program.txt",
                "programs/0123456789ab/options.txt",
                "programs/0123456789ab/source.cu",
                "programs/0123456789ab/lib.so",
            ],
        ),
        nothing(
            "hashcat",
            ".cache/hashcat/kernels",
            &["m00000_a3-pure.7623ec08.kernel", "shared.f5470456.kernel"],
        ),
        nothing("hashcat", ".hashcat/kernels", &["amp_a0.01234567.kernel"]),
        opencv,
        nothing(
            "darktable",
            ".cache/darktable/cached_v1_kernels_for_NVIDIACorporationGeForce_53500",
            &["0123456789abcdef0123456789abcdef", "basic.cl.bin"],
        ),
    ]
}

/// Writes files below a directory.
pub fn plant(directory: &Path, files: &[String]) {
    for file in files {
        let file = directory.join(file);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, "what a program compiled").expect("written");
    }
}
