//! The macros that compilers define by themselves.

/// Whether a compiler could define the name by itself: reserved names; names of systems and processors in GNU modes; in OpenCL C
/// extensions, constants and built-in functions, which are macros in PoCL's headers (measured: `_builtin_renames.h`; it also
/// defines `inline`, and `double` if there is none).
pub(super) fn could_be_predefined(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 27] = [
        b"_",
        b"CL_",
        b"cl_",
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
    ];
    const NAMES: &str = " linux unix i386 sun vax mips sparc arm NULL NAN INFINITY MAXFLOAT HUGE_VAL HUGE_VALF \
        CHAR_BIT CHAR_MAX CHAR_MIN SCHAR_MAX SCHAR_MIN UCHAR_MAX SHRT_MAX SHRT_MIN USHRT_MAX INT_MAX INT_MIN UINT_MAX \
        LONG_MAX LONG_MIN ULONG_MAX kernel_exec bool true false event_t size_t ptrdiff_t intptr_t uintptr_t printf \
        abs abs_diff acos acosh acospi add_sat all any asin asinh asinpi atan atan2 atan2pi atanh atanpi barrier \
        bitselect cbrt ceil clamp clz copysign cos cosh cospi cross ctz degrees distance dot erf erfc exp exp10 exp2 \
        expm1 fabs fast_distance fast_length fast_normalize fdim floor fma fmax fmin fmod fract frexp hadd hypot ilogb \
        isequal isfinite isgreater isgreaterequal isinf isless islessequal islessgreater isnan isnormal isnotequal \
        isordered isunordered ldexp length lgamma lgamma_r log log10 log1p log2 logb mad mad24 mad_hi mad_sat max \
        maxmag mem_fence min minmag mix modf mul24 mul_hi nan nextafter normalize popcount pow pown powr prefetch \
        radians remainder remquo rhadd rint rootn rotate round rsqrt select shuffle shuffle2 sign signbit sin sincos \
        sinh sinpi smoothstep sqrt step sub_sat tan tanh tanpi tgamma trunc upsample vec_step wait_group_events \
        work_group_barrier half half2 double inline MAX_WORK_DIM ALIGN4 ALIGN8 INTTYPE ";
    let is_one = |known: &str| known.as_bytes() == name;
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || NAMES.split_ascii_whitespace().any(is_one)
}
