//! The programs of a qualification.

/// The number of kernels of [`weighty`].
const KERNELS: u32 = 3;

/// A program that takes longer to compile than to load, and that nobody has compiled: a different one for each `salt` and `number`.
pub fn weighty(salt: u64, number: u32) -> String {
    let kernel = |index: u32| {
        format!(
            "
__kernel void oclcache_times_{index}(__global float *out, int count)
{{
    size_t item = get_global_id(0);
    float4 sum = (float4)({number}.0f + {index}.0f);
    for (int i = 0; i < count; i++) {{
        float4 part = (float4)(sin((float)i), cos((float)i), sqrt((float)i), exp(-(float)i));
        sum = fma(part, (float4)(1.0f / (i + {}.0f)), sum);
        if (sum.x > {}.0f)
            sum.yzw = sum.zwx * pow(fabs(sum.y), 1.5f) + atan2(sum.x, sum.w);
    }}
    out[item] = dot(sum, (float4)(1.0f));
}}
",
            salt % 9973 + 1,
            salt / 9973 % 9973,
        )
    };
    (0..KERNELS).map(kernel).collect()
}

/// A program that compiles fast.
pub const LIGHT: &str = "__kernel void oclcache_light(__global int *out) { out[0] = 1; }\n";

/// A kernel whose name is as long as names may be (measured: PoCL 3.1 crashes when the binary is fetched).
pub fn long_name() -> String {
    let name = "n".repeat(255);
    format!("__kernel void {name}(__global int *out) {{ out[0] = 1; }}\n")
}

/// A program without kernels.
pub const NO_KERNEL: &str = "int oclcache_function(int x) { return x + 1; }\n";

/// A kernel that calls a function that is nowhere. Measured on Oclgrind 21.10: it is built, clCreateKernelsInProgram gives a kernel,
/// and a query of that crashes.
pub const UNDEFINED: &str = "int oclcache_undefined(int x);
__kernel void oclcache_caller(__global int *out) { out[0] = oclcache_undefined(out[1]); }
";

/// A program with other kernels if an option defines `OCLCACHE_FIRST`.
pub const EITHER: &str = "#ifdef OCLCACHE_FIRST
__kernel void oclcache_first(__global int *out) { out[0] = 1; }
#else
__kernel void oclcache_second(__global int *out) { out[0] = 2; }
#endif
";

/// A kernel that counts in a variable of the program, for drivers of OpenCL 2.0.
pub const COUNTER: &str = "__global uint program_state = 1;
__kernel void oclcache_count(__global uint *out)
{
    if (get_global_id(0) == 0) {
        out[0] = program_state;
        program_state = program_state * 3 + 1;
    }
}
";
/// The options with which drivers take [`COUNTER`].
pub const COUNTER_OPTIONS: [&std::ffi::CStr; 3] = [c"-cl-std=CL2.0", c"-cl-std=CL3.0", c""];

/// A program with a warning, the same for each `salt` and `number`: drivers may name a temporary file in it.
pub fn warned(salt: u64, number: u32) -> String {
    let weighty = weighty(salt, number);
    format!(
        "{weighty}__kernel void oclcache_warned(__global int *out) {{ int a = out[0]; a == {}; out[1] = a; }}\n",
        salt % 9973
    )
}

/// The program that is compared with and without oclcache.
pub const COMPARED: &str = "/* compared */
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void oclcache_b(__global uint *out)
{
    uint sum = 0;
    for (uint i = 0; i <= get_global_id(0); i++)
        sum = sum * 5 + (sum >> 3) + i + 7;
    out[get_global_id(0)] = sum;
}
__kernel void oclcache_a(__global const float4 *in, __local float *tmp, const int n, __global float *out)
{
    tmp[0] = in[n].x;
    out[get_global_id(0)] = tmp[0] + n;
}
";
