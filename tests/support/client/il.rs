//! Programs in an intermediate language, with specialization constants.

use std::ffi::c_void;
use std::{mem, ptr};

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::facts::{Asking, binaries, kernel_facts, program_facts};
use crate::queries::{ask, program_info, string};
use crate::session::Session;

/// The identifiers of the specialization constants.
const FIRST: cl_uint = 7;
const SECOND: cl_uint = 8;

fn instruction(code: u32, operands: &[u32]) -> Vec<u32> {
    let mut words = vec![(operands.len() as u32 + 1) << 16 | code];
    words.extend(operands);
    words
}

/// A literal string: its bytes and a NUL in whole words.
fn literal(text: &str) -> Vec<u32> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("exact chunks")))
        .collect()
}

/// SPIR-V 1.0 of `kernel void il(global uint *out) { size_t i = get_global_id(0); out[i] = FIRST + i + SECOND; }`, where
/// the constants are 5 and `second` if they are not set.
fn module(second: u32) -> Vec<u8> {
    const BOUND: u32 = 20;
    let [
        kernel,
        id,
        one,
        two,
        void,
        uint,
        ulong,
        vector,
        result,
        input,
    ] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let [function, out, label, ids, x, place, low, partial, sum] =
        [11, 12, 13, 14, 15, 16, 17, 18, 19];
    let decorated = [
        &[id, 41][..],
        &literal("__spirv_BuiltInGlobalInvocationId"),
        &[1],
    ]
    .concat();
    let entry = [&[6, kernel][..], &literal("il"), &[id]].concat();
    let instructions = [
        // OpCapability: Addresses, Linkage, Kernel, Int64.
        instruction(17, &[4]),
        instruction(17, &[5]),
        instruction(17, &[6]),
        instruction(17, &[11]),
        // OpMemoryModel Physical64 OpenCL; OpEntryPoint Kernel; OpSource OpenCL_C 1.2.
        instruction(14, &[2, 2]),
        instruction(15, &entry),
        instruction(3, &[3, 102_000]),
        // OpDecorate: BuiltIn GlobalInvocationId, Constant, LinkageAttributes Import; SpecId.
        instruction(71, &[id, 11, 28]),
        instruction(71, &[id, 22]),
        instruction(71, &decorated),
        instruction(71, &[one, 1, FIRST]),
        instruction(71, &[two, 1, SECOND]),
        // OpTypeVoid, OpTypeInt, OpTypeVector, OpTypePointer CrossWorkgroup and Input, OpTypeFunction.
        instruction(19, &[void]),
        instruction(21, &[uint, 32, 0]),
        instruction(21, &[ulong, 64, 0]),
        instruction(23, &[vector, ulong, 3]),
        instruction(32, &[result, 5, uint]),
        instruction(32, &[input, 1, vector]),
        instruction(33, &[function, void, result]),
        // OpSpecConstant, OpVariable.
        instruction(50, &[uint, one, 5]),
        instruction(50, &[uint, two, second]),
        instruction(59, &[input, id, 1]),
        // OpFunction, OpFunctionParameter, OpLabel, OpLoad, OpCompositeExtract, OpInBoundsPtrAccessChain.
        instruction(54, &[void, kernel, 0, function]),
        instruction(55, &[result, out]),
        instruction(248, &[label]),
        instruction(61, &[vector, ids, id, 2, 32]),
        instruction(81, &[ulong, x, ids, 0]),
        instruction(70, &[result, place, out, x]),
        // OpUConvert, OpIAdd, OpStore, OpReturn, OpFunctionEnd.
        instruction(113, &[uint, low, x]),
        instruction(128, &[uint, partial, one, low]),
        instruction(128, &[uint, sum, partial, two]),
        instruction(62, &[place, sum, 2, 4]),
        instruction(253, &[]),
        instruction(56, &[]),
    ];
    let header = vec![0x0723_0203, 0x0001_0000, 0, BOUND, 0];
    let words = [vec![header], instructions.to_vec()].concat().concat();
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

type Create = unsafe extern "C" fn(Handle, *const c_void, usize, *mut cl_int) -> Handle;
type Set = unsafe extern "C" fn(Handle, cl_uint, usize, *const c_void) -> cl_int;

/// What the driver gives for a name; the types of the functions are those of the extension.
fn extension(session: &Session, name: &str) -> *mut c_void {
    let text = cl::text(name);
    call!(clGetExtensionFunctionAddressForPlatform(
        session.platform,
        text.as_ptr()
    ))
}

fn create(session: &Session, module: &[u8]) -> Option<Handle> {
    let mut code = 1;
    let start = module.as_ptr().cast();
    let program = call!(clCreateProgramWithIL(
        session.context,
        start,
        module.len(),
        &mut code
    ));
    println!("create with IL: code {code} NULL {}", program.is_null());
    (!program.is_null()).then_some(program)
}

fn set(label: &str, program: Handle, id: cl_uint, value: u32) {
    let code = call!(clSetProgramSpecializationConstant(
        program,
        id,
        size_of::<u32>(),
        ptr::from_ref(&value).cast()
    ));
    println!("{label}: constant {id} set to {value}: code {code}");
}

fn build(session: &Session, label: &str, program: Handle, options: Option<&str>) {
    println!(
        "{label}: build {options:?} code {}",
        cl::build(program, options)
    );
    session.state(label, program);
    session.try_kernel(label, program, "il");
}

fn release(program: Handle) {
    println!("release: code {}", cl::release_program(program));
}

/// All facts, of the program and of one from its binary.
fn facts(session: &Session) -> Option<()> {
    println!("[facts]");
    let module = module(100);
    let program = create(session, &module)?;
    session.state("unbuilt", program);
    build(session, "built", program, Some("-DX=1"));
    program_facts(session, program, Asking::Known);
    let answer = program_info(program, CL_PROGRAM_IL);
    println!("the IL comes back {}", answer == Ok(module));
    let (kernel, code) = cl::kernel(program, "il");
    println!("kernel: code {code}");
    kernel_facts(session, program, kernel, "il", Asking::Known);
    cl::release_kernel(kernel);
    if let Some(binaries) = binaries(session, program) {
        let (loaded, status, code) =
            cl::program_from_binaries(session.context, &session.devices, &binaries);
        println!("from binaries {status:?} code {code}");
        build(session, "own binary", loaded, Some("-DX=1"));
        set("own binary", loaded, FIRST, 1);
        let il = program_info(loaded, CL_PROGRAM_IL);
        println!("own binary: IL {}", string(il));
        release(loaded);
    }
    release(program);
    Some(())
}

fn constants(session: &Session) -> Option<()> {
    println!("[constants]");
    let program = create(session, &module(100))?;
    set("before", program, FIRST, 1000);
    set("before", program, FIRST, 2000);
    build(session, "two thousand", program, None);
    set("after", program, FIRST, 3000);
    session.try_kernel("not built yet", program, "il");
    // Intel's CPU runtime does not build again while the options stay.
    build(session, "same options", program, None);
    build(session, "other options", program, Some("-DY"));
    set("second", program, SECOND, 1);
    build(session, "both", program, Some("-DZ"));
    let (kernel, code) = cl::kernel(program, "il");
    println!("kernel: code {code}");
    set("live kernel", program, FIRST, 4000);
    println!("live kernel: build {}", cl::build(program, Some("-DL")));
    session.print_run("live kernel", kernel);
    cl::release_kernel(kernel);
    set("unknown", program, 99, 1);
    for (label, size, value) in [
        ("two bytes too few", 2, ptr::from_ref(&7_u64).cast()),
        ("too large", 8, ptr::from_ref(&7_u64).cast::<c_void>()),
        ("NULL", 4, ptr::null()),
    ] {
        let code = call!(clSetProgramSpecializationConstant(
            program, FIRST, size, value
        ));
        println!("{label}: code {code}");
    }
    release(program);
    println!("[one module, two programs]");
    for round in 0..2 {
        let one = create(session, &module(100))?;
        let two = create(session, &module(100))?;
        let other = create(session, &module(200))?;
        set("one", one, FIRST, 10);
        set("two", two, FIRST, 20);
        for (name, program) in [("one", one), ("two", two), ("other", other)] {
            build(session, &format!("{name}, round {round}"), program, None);
        }
        for program in [one, two, other] {
            release(program);
        }
    }
    println!("[order of constants]");
    for order in [[FIRST, SECOND], [SECOND, FIRST]] {
        let program = create(session, &module(100))?;
        for id in order {
            set("order", program, id, id * 11);
        }
        build(session, "order", program, None);
        release(program);
    }
    Some(())
}

fn compiled(session: &Session) -> Option<()> {
    println!("[compile and link]");
    let program = create(session, &module(100))?;
    set("object", program, FIRST, 50);
    println!("compile: code {}", cl::compile(program, "", &[]));
    session.state("object", program);
    let (linked, code) = cl::link(session.context, "", &[program]);
    println!("link: code {code}");
    if code == 0 {
        session.state("linked", linked);
        session.try_kernel("linked", linked, "il");
    }
    if !linked.is_null() {
        release(linked);
    }
    release(program);
    Some(())
}

/// The same functions by address, as an application before OpenCL 2.1 takes them.
fn by_address(session: &Session) {
    println!("[by address]");
    for name in [
        "clCreateProgramWithIL",
        "clCompileProgram",
        "no such function",
    ] {
        let found = extension(session, name);
        println!("{name}: NULL {}", found.is_null());
    }
    let create = extension(session, "clCreateProgramWithILKHR");
    let set = extension(session, "clSetProgramSpecializationConstant");
    println!(
        "create NULL {} set NULL {}",
        create.is_null(),
        set.is_null()
    );
    if create.is_null() {
        return;
    }
    // SAFETY: the extension's function has this type.
    let create: Create = unsafe { mem::transmute(create) };
    for value in [None, Some(60_u32), Some(70)] {
        let (module, mut code) = (module(300), 1);
        // SAFETY: the module has its length; the code is written.
        let program = unsafe {
            create(
                session.context,
                module.as_ptr().cast(),
                module.len(),
                &mut code,
            )
        };
        println!("create: code {code} NULL {}", program.is_null());
        if program.is_null() {
            return;
        }
        if let Some(value) = value {
            let code = if set.is_null() {
                println!("set through the loader");
                call!(clSetProgramSpecializationConstant(
                    program,
                    FIRST,
                    4,
                    ptr::from_ref(&value).cast()
                ))
            } else {
                // SAFETY: the extension's function has this type.
                let set: Set = unsafe { mem::transmute(set) };
                // SAFETY: the value has its size.
                unsafe { set(program, FIRST, 4, ptr::from_ref(&value).cast()) }
            };
            println!("set {value}: code {code}");
        }
        build(session, "by address", program, None);
        release(program);
    }
}

fn garbage(session: &Session) {
    println!("[garbage]");
    let module = module(100);
    for (label, bytes) in [
        ("junk", &[1, 2, 3, 4].repeat(16)[..]),
        ("a header only", &module[..20]),
        ("cut short", &module[..40]),
        ("nothing", &[]),
    ] {
        println!("{label}:");
        if let Some(program) = create(session, bytes) {
            println!("{label}: build {}", cl::build(program, None));
            session.state(label, program);
            release(program);
        }
    }
    let (none, place) = (ptr::null(), ptr::null_mut());
    let program = call!(clCreateProgramWithIL(session.context, none, 4, place));
    println!("NULL: program NULL {}", program.is_null());
    println!("[a constant of a source program]");
    let program = session.program("__kernel void il(__global uint *out) { out[0] = 3; }");
    if session.sets_constants_of_sources() {
        set("source", program, FIRST, 1);
    }
    println!("build: code {}", cl::build(program, None));
    set("source", program, FIRST, 1);
    session.try_kernel("source", program, "il");
    release(program);
}

/// A program of which one constant is set before it is built.
pub fn with_constant(session: &Session) -> Option<()> {
    let program = create(session, &module(100))?;
    set("once", program, FIRST, 33);
    build(session, "once", program, Some(""));
    release(program);
    Some(())
}

pub fn section(session: &Session) -> Result<(), String> {
    let version = ask(&|size, value, size_ret| {
        call!(clGetDeviceInfo(
            session.device(),
            CL_DEVICE_IL_VERSION,
            size,
            value,
            size_ret
        ))
    });
    println!("IL version {}", string(version));
    let _ = facts(session);
    let _ = constants(session);
    let _ = compiled(session);
    by_address(session);
    garbage(session);
    Ok(())
}

/// A constant that is set MS milliseconds after a build has begun on another thread, if it is set at all.
pub fn raced(session: &Session, arguments: &[String]) -> Result<(), String> {
    let Some(program) = create(session, &module(100)) else {
        return Ok(());
    };
    let delay: Option<u64> = arguments.first().and_then(|delay| delay.parse().ok());
    let handle = program as usize;
    let building = std::thread::spawn(move || cl::build(handle as Handle, None));
    if let Some(delay) = delay {
        std::thread::sleep(std::time::Duration::from_millis(delay));
        set("meanwhile", program, FIRST, 1000);
    }
    let code = building.join().map_err(|_| "a panic")?;
    println!("build: code {code}");
    session.try_kernel("built", program, "il");
    release(program);
    Ok(())
}
