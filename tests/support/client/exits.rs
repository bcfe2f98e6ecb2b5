//! The process ends, with OpenCL in use up to the last moment.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use opencl_sys::{CL_PROGRAM_KERNEL_NAMES, CL_PROGRAM_REFERENCE_COUNT};

use crate::cl;
use crate::queries::{number, program_info, string};
use crate::session::Session;

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 5; }\n";

/// What is used at the end; never dropped.
struct Used {
    session: Session,
    program: usize,
    builds: bool,
}

// SAFETY: as for `Sync` of a session.
unsafe impl Send for Used {}

static USED: OnceLock<Used> = OnceLock::new();

/// Whether the program's own destructor uses OpenCL.
static IN_DESTRUCTOR: OnceLock<()> = OnceLock::new();

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn destructor() {
    if IN_DESTRUCTOR.get().is_some() {
        last_words();
    }
}

/// Asks about the program, and makes another one if so told.
extern "C" fn last_words() {
    let Some(used) = USED.get() else {
        return;
    };
    let program = used.program as cl::Handle;
    let names = string(program_info(program, CL_PROGRAM_KERNEL_NAMES));
    let references = number(program_info(program, CL_PROGRAM_REFERENCE_COUNT));
    println!("last words: names {names} references {references}");
    if used.builds {
        println!("last words: build {}", built(&used.session, SOURCE));
    }
}

/// What a build, a kernel and their releases say.
fn built(session: &Session, source: &str) -> String {
    let (program, code) = cl::program(session.context, source);
    let build = cl::build(program, Some("-DLAST"));
    let (kernel, made) = cl::kernel(program, "f");
    if !kernel.is_null() {
        cl::release_kernel(kernel);
    }
    cl::release_program(program);
    format!("{code} {build} {made}")
}

fn at_exit() {
    // SAFETY: a function of this program.
    assert_eq!(unsafe { libc::atexit(last_words) }, 0);
}

/// `exit HOW [build] [THREADS]`: while the threads build, main ends as told; a handler of the end asks, or builds as well.
///
/// HOW: `return`, `before` and `after` (a handler of atexit that was registered before or after the driver was loaded),
/// `destructor` (of the program), `quick` (quick_exit, with a handler), `at-once` (_exit).
pub fn section(arguments: &[String]) -> Result<(), String> {
    // A driver that is used after its own end may never return (seen on PoCL, in LLVM).
    // SAFETY: the signal ends the process.
    unsafe { libc::alarm(60) };
    unsafe extern "C" {
        fn at_quick_exit(function: extern "C" fn()) -> i32;
        fn quick_exit(code: i32) -> !;
    }
    let how = arguments.first().ok_or("exit needs to know how")?.as_str();
    let builds = arguments.iter().any(|word| word == "build");
    let threads: u32 = arguments
        .last()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    // What is torn down may hang, too.
    // SAFETY: no preconditions; SIGALRM ends the process.
    unsafe { libc::alarm(30) };
    if how == "before" {
        at_exit();
    }
    let session = Session::open()?;
    let program = session.program(SOURCE);
    println!("build: code {}", cl::build(program, None));
    match how {
        "after" => at_exit(),
        "destructor" => IN_DESTRUCTOR.get_or_init(|| ()).to_owned(),
        // SAFETY: a function of this program.
        "quick" => assert_eq!(unsafe { at_quick_exit(last_words) }, 0),
        _ => {}
    }
    let used = USED.get_or_init(|| Used {
        session,
        program: program as usize,
        builds,
    });
    static DONE: AtomicU32 = AtomicU32::new(0);
    for thread in 0..threads {
        thread::spawn(move || {
            for turn in 0.. {
                // Every other one was built before.
                let source = format!("// {thread} {}\n{SOURCE}", turn / 2);
                built(&used.session, &source);
                DONE.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while DONE.load(Ordering::Relaxed) < 2 * threads {
        thread::sleep(Duration::from_millis(1));
    }
    println!("the end");
    match how {
        // SAFETY: ends the process.
        "quick" => unsafe { quick_exit(0) },
        // SAFETY: ends the process.
        "at-once" => unsafe { libc::_exit(0) },
        // Returns from main.
        _ => Ok(()),
    }
}
