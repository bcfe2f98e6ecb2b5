//! How long a program takes from its source, or its binary, to its kernels and to its first result.

use std::ffi::CString;
use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::cl::{self, Handle};
use crate::load::resident_kib;
use crate::queries::binary;
use crate::session::{Session, Value};

const USAGE: &str = "time takes --kernels N, --helpers N, --again N, --binary FILE, --beside source, --save FILE, --write FILE and --mark PATH";

/// Functions that every kernel could call, as programs for rendering or cryptography have them: most of what the compiler
/// reads is theirs, most of what it makes is not.
fn helper(number: usize) -> String {
    let kind = ["float", "float2", "float4"][number % 3];
    format!(
        "static {kind} helper{number}({kind} x, {kind} y) {{\n    \
         {kind} a = fma(x, ({kind})({number}.5f), y), b = mix(x, y, ({kind})(0.{number}f));\n    \
         a = clamp(a * b - x, ({kind})(-1.0f), ({kind})({number}.0f)) + fabs(y);\n    \
         return select(a, b, isless(a, b)) + smoothstep(x, y, a) * ({kind})({number}.25f);\n}}\n"
    )
}

/// A kernel that calls three of them.
fn kernel(number: usize) -> String {
    let [one, two, four] = [3 * number, 3 * number + 1, 3 * number + 2];
    format!(
        "__kernel void kernel{number}(__global uint *out) {{\n    \
         float x = (float)get_global_id(0);\n    \
         float4 v = helper{four}((float4)(x), (float4)({number}.0f));\n    \
         out[get_global_id(0)] = as_uint(helper{one}(x, v.x) + helper{two}(v.xy, v.zw).x);\n}}\n"
    )
}

struct Plan {
    kernels: usize,
    helpers: usize,
    /// How often the program is made again, once the first one is released.
    again: usize,
    /// Make it of the binary in this file.
    binary: Option<String>,
    /// Make a program of the source first, as every application does that has its program built.
    beside_source: bool,
    /// Write its binary into this file.
    save: Option<String>,
    /// Write its source into this file.
    write: Option<String>,
    /// Ask for this path before and after each build, as a mark in a trace of system calls.
    mark: Option<String>,
}

impl Plan {
    fn read(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan {
            kernels: 10,
            helpers: 600,
            again: 0,
            binary: None,
            beside_source: false,
            save: None,
            write: None,
            mark: None,
        };
        for pair in arguments.chunks(2) {
            let value = pair.get(1).ok_or(USAGE)?;
            let number = || value.parse::<usize>().map_err(|_| USAGE);
            match pair[0].as_str() {
                "--kernels" => plan.kernels = number()?,
                "--helpers" => plan.helpers = number()?,
                "--again" => plan.again = number()?,
                "--binary" => plan.binary = Some(value.clone()),
                "--beside" if value == "source" => plan.beside_source = true,
                "--save" => plan.save = Some(value.clone()),
                "--write" => plan.write = Some(value.clone()),
                "--mark" => plan.mark = Some(value.clone()),
                _ => return Err(USAGE.to_owned()),
            }
        }
        match plan.beside_source && plan.binary.is_none() {
            true => Err("--beside needs --binary".to_owned()),
            false => Ok(plan),
        }
    }

    fn source(&self) -> String {
        let helpers = self.helpers.max(3 * self.kernels);
        let helpers = (0..helpers).map(helper);
        helpers.chain((0..self.kernels).map(kernel)).collect()
    }
}

/// What a program is made of, in memory.
enum Base {
    Source(CString),
    /// The binary, and the source of which a program is made first.
    Binary(Vec<u8>, Option<CString>),
}

/// A built program.
struct Built {
    program: Handle,
    /// The program of the source beside a binary.
    beside: Option<Handle>,
    /// The time of the calls that made it.
    took: Duration,
}

impl Built {
    /// The program first, as those release it that have no other: then the driver's heap is as it is for them.
    fn release(self) {
        cl::release_program(self.program);
        if let Some(beside) = self.beside {
            cl::release_program(beside);
        }
    }
}

fn build(session: &Session, base: &Base, plan: &Plan) -> Result<Built, String> {
    let mark = || {
        plan.mark
            .as_ref()
            .is_some_and(|path| fs::exists(path).is_ok())
    };
    // The standard library asks whether there is such a call if the first one fails.
    let _ = std::fs::metadata("/");
    mark();
    let mut beside = None;
    let start = Instant::now();
    let (program, code) = match base {
        Base::Source(source) => cl::program_from_text(session.context, source),
        Base::Binary(binary, source) => {
            let made = |source: &CString| cl::program_from_text(session.context, source);
            let made = source.as_ref().map(made);
            if let Some((_, code)) = made.filter(|(_, code)| *code != 0) {
                return Err(format!("no program beside: {code}"));
            }
            beside = made.map(|(program, _)| program);
            let (program, _, code) =
                cl::program_from_binary(session.context, session.device(), binary);
            (program, code)
        }
    };
    if code != 0 {
        return Err(format!("no program: {code}"));
    }
    let code = cl::build(program, None);
    let took = start.elapsed();
    mark();
    match code {
        0 => Ok(Built {
            program,
            beside,
            took,
        }),
        code => Err(format!("clBuildProgram: {code}")),
    }
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let plan = Plan::read(arguments)?;
    let file = |path: &String| fs::read(path).map_err(|error| format!("{path}: {error}"));
    let source = || cl::text(&plan.source());
    let base = match &plan.binary {
        Some(path) => Base::Binary(file(path)?, plan.beside_source.then(source)),
        None => Base::Source(source()),
    };
    let write = |path: &Option<String>, bytes: &[u8]| match path {
        Some(path) => fs::write(path, bytes).map_err(|error| format!("{path}: {error}")),
        None => Ok(()),
    };
    if let Base::Source(source) = &base {
        write(&plan.write, source.to_bytes())?;
    }

    let first = build(session, &base, &plan)?;
    let program = first.program;
    let start = Instant::now();
    let kernels: Vec<_> = (0..plan.kernels)
        .map(|number| cl::kernel(program, &format!("kernel{number}")).0)
        .collect();
    let created = start.elapsed();
    let start = Instant::now();
    if let Some(kernel) = kernels.first() {
        let ran = session.launch(session.queue, *kernel, &[Value::Out(16)]);
        ran.map_err(|code| format!("first run: {code}"))?;
    }
    let ran = start.elapsed();
    // By a clock that whoever started this process can read, too.
    let now = clock_gettime(ClockId::Monotonic);
    let resident = resident_kib()?;

    if plan.save.is_some() {
        let bytes = binary(program).map_err(|code| format!("no binary: {code}"))?;
        write(&plan.save, &bytes)?;
    }
    for kernel in kernels {
        cl::release_kernel(kernel);
    }
    let mut builds = vec![first.took.as_nanos().to_string()];
    first.release();
    for _ in 0..plan.again {
        let built = build(session, &base, &plan)?;
        builds.push(built.took.as_nanos().to_string());
        built.release();
    }
    println!(
        "kernels={} build_ns={} kernels_ns={} first_run_ns={} first_result_at_ns={} resident_kib={resident}",
        plan.kernels,
        builds.join(","),
        created.as_nanos(),
        ran.as_nanos(),
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec),
    );
    Ok(())
}
