//! Embedded headers: programs given to clCompileProgram by name.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, ptr};

use opencl_sys::cl_int;

use crate::cl::{self, Handle};
use crate::facts::binaries;
use crate::queries::{context_references, program_references};
use crate::session::Session;

const USING: &str = "
__kernel void value(__global uint *out) { out[get_global_id(0)] = VALUE; }
";

fn header(session: &Session, value: u32) -> Handle {
    cl::program(session.context, &format!("#define VALUE {value}\n")).0
}

fn including(session: &Session, name: &str) -> Handle {
    cl::program(session.context, &format!("#include {name}\n{USING}")).0
}

/// Links one object and runs its kernel.
fn linked(session: &Session, label: &str, program: Handle) {
    let (result, code) = cl::link(session.context, "", &[program]);
    println!("{label}: link code {code}");
    if code == 0 && !result.is_null() {
        session.try_kernel(label, result, "value");
    }
    if !result.is_null() {
        cl::release_program(result);
    }
}

fn compile(
    session: &Session,
    label: &str,
    program: Handle,
    options: &str,
    headers: &[(&str, Handle)],
) -> cl_int {
    let code = cl::compile(program, options, headers);
    println!("{label}: compile code {code}");
    session.state(label, program);
    if code == 0 {
        linked(session, label, program);
    }
    code
}

/// A new program that includes `include`, with these headers.
fn case(session: &Session, label: &str, include: &str, headers: &[(&str, Handle)]) {
    let program = including(session, include);
    compile(session, label, program, "", headers);
    cl::release_program(program);
}

fn names(session: &Session) {
    println!("[names]");
    let (five, six) = (header(session, 5), header(session, 6));
    let nested = session.program("#include \"five.h\"\n");
    let below = session.program("#include \"deep/five.h\"\n");
    case(session, "quoted", "\"five.h\"", &[("five.h", five)]);
    case(session, "angled", "<five.h>", &[("five.h", five)]);
    case(session, "other content", "\"five.h\"", &[("five.h", six)]);
    case(session, "other name", "\"six.h\"", &[("six.h", five)]);
    case(
        session,
        "unused",
        "\"five.h\"",
        &[("five.h", five), ("six.h", six)],
    );
    case(
        session,
        "two of one name",
        "\"five.h\"",
        &[("five.h", five), ("five.h", six)],
    );
    case(
        session,
        "turned round",
        "\"five.h\"",
        &[("five.h", six), ("five.h", five)],
    );
    case(
        session,
        "directory",
        "\"deep/five.h\"",
        &[("deep/five.h", five)],
    );
    case(
        session,
        "wrong directory",
        "\"deep/five.h\"",
        &[("five.h", five)],
    );
    let headers = [("nested.h", nested), ("five.h", five)];
    case(session, "nested", "\"nested.h\"", &headers);
    let headers = [("nested.h", nested), ("five.h", six)];
    case(session, "nested, other content", "\"nested.h\"", &headers);
    let headers = [("deep/nested.h", nested), ("deep/five.h", five)];
    case(
        session,
        "nested in directory",
        "\"deep/nested.h\"",
        &headers,
    );
    let headers = [("nested.h", below), ("deep/five.h", five)];
    case(session, "directory from above", "\"nested.h\"", &headers);
    case(session, "missing", "\"missing.h\"", &[("five.h", five)]);
    println!("header references {}", program_references(five));
    for program in [five, six, nested, below] {
        println!("release: code {}", cl::release_program(program));
    }
}

/// Files and embedded headers of one name. The section's directory is below HOME.
fn files(session: &Session) -> Result<(), String> {
    println!("[files of the same name]");
    let home = env::var_os("HOME").ok_or("HOME is not set")?;
    let directory = std::path::Path::new(&home).join("headers");
    let write = |name: &str, value: u32| {
        let text = format!("#define VALUE {value}\n");
        fs::write(directory.join(name), text).map_err(|error| error.to_string())
    };
    fs::create_dir_all(directory.join("below")).map_err(|error| error.to_string())?;
    env::set_current_dir(&directory).map_err(|error| error.to_string())?;
    write("both.h", 91)?;
    write("below/file.h", 92)?;
    write("changing.h", 93)?;
    let five = header(session, 5);
    case(session, "both", "\"both.h\"", &[("both.h", five)]);
    case(session, "both, angled", "<both.h>", &[("both.h", five)]);
    case(
        session,
        "file in directory",
        "\"below/file.h\"",
        &[("below/file.h", five)],
    );
    case(session, "file only", "\"changing.h\"", &[("other.h", five)]);
    if session.sees_changed_files() {
        write("changing.h", 94)?;
        case(
            session,
            "file changed",
            "\"changing.h\"",
            &[("other.h", five)],
        );
        write("both.h", 95)?;
        case(
            session,
            "both, file changed",
            "\"both.h\"",
            &[("both.h", five)],
        );
    }
    let program = including(session, "\"file.h\"");
    compile(session, "-I", program, "-I below", &[("file.h", five)]);
    compile(session, "-I, no header", program, "-I below -DX", &[]);
    for program in [program, five] {
        println!("release: code {}", cl::release_program(program));
    }
    Ok(())
}

/// One program compiled with headers that change.
fn changing(session: &Session) {
    println!("[the header changes]");
    let (five, six) = (header(session, 5), header(session, 6));
    let program = including(session, "\"number.h\"");
    // Intel's CPU runtime fails to compile a program again with headers and the options it was compiled with.
    for (label, options, header) in [
        ("five", "", five),
        ("six", "", six),
        ("five with options", "-DA", five),
        ("six with options", "-DB", six),
        ("five again", "", five),
    ] {
        compile(session, label, program, options, &[("number.h", header)]);
    }
    println!(
        "build with no header: code {}",
        cl::build(program, Some("-DC"))
    );
    println!("references {}", program_references(program));
    cl::release_program(program);
    println!("[the header goes first]");
    let program = including(session, "\"number.h\"");
    println!(
        "compile: code {}",
        cl::compile(program, "", &[("number.h", five)])
    );
    println!("release: code {}", cl::release_program(five));
    linked(session, "header is gone", program);
    for program in [program, six] {
        println!("release: code {}", cl::release_program(program));
    }
}

/// Header programs that were themselves built, compiled or made from a binary.
fn states(session: &Session) {
    println!("[headers in all states]");
    for round in 0..2 {
        let built = header(session, 7);
        println!("build: code {}", cl::build(built, Some("")));
        case(
            session,
            &format!("built, round {round}"),
            "\"b.h\"",
            &[("b.h", built)],
        );
        session.state("the header", built);
        let compiled = header(session, 8);
        println!("compile: code {}", cl::compile(compiled, "", &[]));
        case(
            session,
            &format!("compiled, round {round}"),
            "\"c.h\"",
            &[("c.h", compiled)],
        );
        let failed = session.program("#define VALUE 9\n#ifdef FAIL\n#error told to fail\n#endif\n");
        println!("build: code {}", cl::build(failed, Some("-DFAIL")));
        case(
            session,
            &format!("failed, round {round}"),
            "\"f.h\"",
            &[("f.h", failed)],
        );
        if session.reads_headers_from_binaries()
            && let Some(binaries) = binaries(session, built)
        {
            let (loaded, status, code) =
                cl::program_from_binaries(session.context, &session.devices, &binaries);
            println!("from binaries {status:?} code {code}");
            case(session, "from binary", "\"l.h\"", &[("l.h", loaded)]);
            cl::release_program(loaded);
        }
        for program in [built, compiled, failed] {
            println!("release: code {}", cl::release_program(program));
        }
    }
}

pub fn section(session: &Session) -> Result<(), String> {
    names(session);
    files(session)?;
    changing(session);
    states(session);
    println!("context {}", context_references(session.context));
    Ok(())
}

/// Counts in its data.
unsafe extern "C" fn count(_program: Handle, data: *mut c_void) {
    // SAFETY: `changed_file` gives a number that outlives the calls of all drivers, which call back before they return.
    let called = unsafe { &*data.cast::<AtomicUsize>() };
    called.fetch_add(1, Ordering::Relaxed);
}

/// One program that is built again and again while a file changes that it includes.
pub fn changed_file(session: &Session) -> Result<(), String> {
    if !session.sees_changed_files() {
        return Ok(());
    }
    let home = env::var_os("HOME").ok_or("HOME is not set")?;
    env::set_current_dir(home).map_err(|error| error.to_string())?;
    let write = |text: &str| fs::write("file.h", text).map_err(|error| error.to_string());
    let build = |label: &str, program: Handle, options: &str| {
        println!("{label}: code {}", cl::build(program, Some(options)));
        session.state(label, program);
        session.try_kernel(label, program, "value");
    };
    println!("[built]");
    write("#define VALUE 1\n")?;
    let program = including(session, "\"file.h\"");
    build("first", program, "-I .");
    write("#define VALUE 2\n")?;
    build("changed", program, "-I .");
    write("#error told to fail\n")?;
    build("bad", program, "-I .");
    write("#define VALUE 3\n")?;
    build("other options", program, "-I . -DA");
    cl::release_program(program);
    println!("[with no options]");
    fs::create_dir_all("include").map_err(|error| error.to_string())?;
    let write = |text: &str| fs::write("include/own.h", text).map_err(|error| error.to_string());
    write("#define VALUE 4\n")?;
    // Intel's CPU runtime looks there, the others find nothing.
    let program = including(session, "\"own.h\"");
    for (value, options) in [(5, None), (6, Some("")), (7, None)] {
        println!("{options:?}: code {}", cl::build(program, options));
        session.try_kernel("no options", program, "value");
        write(&format!("#define VALUE {value}\n"))?;
    }
    cl::release_program(program);
    println!("[a directory that is gone]");
    let remove = |directory| fs::remove_dir_all(directory).map_err(|error| error.to_string());
    let program = including(session, "\"moved.h\"");
    for (directory, value) in [("one", 8), ("two", 9)] {
        fs::create_dir_all(directory).map_err(|error| error.to_string())?;
        let text = format!("#define VALUE {value}\n");
        fs::write(format!("{directory}/moved.h"), text).map_err(|error| error.to_string())?;
        build(directory, program, &format!("-I {directory} -DV{value}"));
        remove(directory)?;
    }
    let (kernel, code) = cl::kernel(program, "value");
    println!("kernel: code {code}");
    build("over a kernel", program, "-I two");
    // All drivers refuse data for no function.
    let data = ptr::dangling_mut();
    let refused = || cl::build_notify(program, Some("-I two"), None, data);
    println!("refused over a kernel: code {}", refused());
    // Some call back although they refuse the build.
    let called = AtomicUsize::new(0);
    let data = ptr::from_ref(&called).cast_mut().cast();
    let code = cl::build_notify(program, Some("-I two"), Some(count), data);
    println!("over a kernel, called back: code {code}");
    println!("called {} times", called.load(Ordering::Relaxed));
    cl::release_kernel(kernel);
    println!("refused: code {}", refused());
    session.state("refused", program);
    session.try_kernel("refused", program, "value");
    cl::release_program(program);
    Ok(())
}
