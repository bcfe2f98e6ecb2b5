//! The macros that compilers define by themselves.

/// Whole names, in the order of their bytes.
#[rustfmt::skip] // it would write one name a line
const NAMES: [&str; 174] = [
    "ALIGN4", "ALIGN8", "CHAR_BIT", "CHAR_MAX", "CHAR_MIN", "HUGE_VAL", "HUGE_VALF", "INFINITY", "INTTYPE", "INT_MAX",
    "INT_MIN", "LONG_MAX", "LONG_MIN", "MAXFLOAT", "MAX_WORK_DIM", "NAN", "NULL", "SCHAR_MAX", "SCHAR_MIN", "SHRT_MAX",
    "SHRT_MIN", "UCHAR_MAX", "UINT_MAX", "ULONG_MAX", "USHRT_MAX", "_mips", "abs", "abs_diff", "acos", "acosh", "acospi", "add_sat",
    "all", "any", "arm", "asin", "asinh", "asinpi", "atan", "atan2", "atan2pi", "atanh", "atanpi", "barrier", "bitselect",
    "bool", "cbrt", "ceil", "clamp", "clz", "copysign", "cos", "cosh", "cospi", "cross", "ctz", "degrees", "distance", "dot",
    "double", "erf", "erfc", "event_t", "exp", "exp10", "exp2", "expm1", "fabs", "false", "fast_distance", "fast_length",
    "fast_normalize", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "fract", "frexp", "hadd", "half", "half2", "hypot",
    "i386", "ilogb", "inline", "intptr_t", "isequal", "isfinite", "isgreater", "isgreaterequal", "isinf", "isless",
    "islessequal", "islessgreater", "isnan", "isnormal", "isnotequal", "isordered", "isunordered", "kernel_exec", "ldexp",
    "length", "lgamma", "lgamma_r", "linux", "log", "log10", "log1p", "log2", "logb", "mad", "mad24", "mad_hi", "mad_sat",
    "max", "maxmag", "mem_fence", "min", "minmag", "mips", "mix", "modf", "mul24", "mul_hi", "nan", "nextafter", "normalize",
    "popcount", "pow", "pown", "powr", "prefetch", "printf", "ptrdiff_t", "radians", "remainder", "remquo", "rhadd", "rint",
    "rootn", "rotate", "round", "rsqrt", "select", "shuffle", "shuffle2", "sign", "signbit", "sin", "sincos", "sinh", "sinpi",
    "size_t", "smoothstep", "sparc", "sqrt", "step", "sub_sat", "sun", "tan", "tanh", "tanpi", "tgamma", "true", "trunc",
    "uintptr_t", "unix", "upsample", "vax", "vec_step", "wait_group_events", "work_group_barrier",
];

/// The beginnings of many names.
const PREFIXES: [&[u8]; 32] = [
    b"CL_",
    b"cl_",
    b"cles_",
    b"CLK_",
    b"M_",
    b"FLT_",
    b"DBL_",
    b"HALF_",
    b"FP_",
    b"as_",
    b"convert_",
    b"native_",
    b"half_",
    b"vload",
    b"vstore",
    b"read_",
    b"write_",
    b"async_",
    b"atomic_",
    b"atom_",
    b"get_",
    b"ATOMIC_",
    b"POCL_",
    b"SPIR_",
    b"IMG_",
    b"LLVM_",
    b"CLANG_",
    b"intel_",
    b"INTEL_",
    b"DECL_",
    b"WG_BROADCAST_",
    b"NAMED_BARRIER_",
];

/// Whether a compiler could define the name by itself: reserved names; names of systems and processors in GNU modes; in OpenCL C
/// extensions, constants and built-in functions, which are macros in PoCL's headers (measured: `_builtin_renames.h`; it also
/// defines `inline`, and `double` if there is none) or in those of Intel's GPU driver (`intel_sub_group_block_read_ui`,
/// `DECL_GROUP_REDUCE_SCAN` and others, measured on 22.43).
pub fn could_be_predefined(name: &[u8]) -> bool {
    // The C standard leaves compilers no others with an underscore (C17, 6.10.8, paragraph 4), and on Linux clang has one other, `_mips`.
    // Of 22,000 such names in the files of PoCL, rusticl, Oclgrind and Intel's runtimes none is a macro (measured on x86-64). A directory
    // on the way to a header may be called `_work`.
    let is_reserved = match name {
        [b'_', next, ..] => next.is_ascii_uppercase() || *next == b'_',
        [b'_'] => true,
        _ => false,
    };
    let begins = |prefix: &&[u8]| prefix.first() == name.first() && name.starts_with(prefix);
    is_reserved
        || PREFIXES.iter().any(begins)
        || NAMES
            .binary_search_by(|known| known.as_bytes().cmp(name))
            .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_prefix_and_as_a_whole() {
        for name in [
            "abs",
            "INTTYPE",
            "linux",
            "work_group_barrier",
            "upsample",
            "_",
            "_X",
            "__x",
            "_mips",
            "cl_khr_fp64",
            "cles_khr_int64",
            "convert_int",
            "intel_sub_group_block_read_ui",
            "DECL_SUB_GROUP_SHUFFLE",
        ] {
            assert!(could_be_predefined(name.as_bytes()), "{name}");
        }
        for name in [
            "a",
            "ab",
            "abs_",
            "x_",
            "zz",
            "A",
            "work_group",
            "_work",
            "_0",
        ] {
            assert!(!could_be_predefined(name.as_bytes()), "{name}");
        }
        assert!(NAMES.is_sorted(), "a name is searched for by halves");
    }
}
