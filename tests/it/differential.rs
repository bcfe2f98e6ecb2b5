//! Nobody can tell: each section of the client prints the same bytes bare, cold and warm, on each driver.
//!
//! Each section runs in a process of its own: bare, cold and warm; where these differ once more bare, so that what a driver does not
//! repeat by itself is recognized and not taken for the cache's doing. The hits must be real: below the cache the spy counts how often the
//! driver's compiler and linker work, and [`expected`] says how often they must, and why.
//!
//! What could show, and the sections of the client that would show it:
//!
//! | what an application sees | sections |
//! |---|---|
//! | a program lives until it is released and its kernels are gone; CL_KERNEL_PROGRAM after its release | `lifetime`, `link` |
//! | a program that is built when its context was released; calls on one that died before its kernels | `outlived` |
//! | reference counts of programs, with kernels and their clones | `lifetime`, `facts`, `recycled` |
//! | references of contexts | `facts`, `lifetime`, `link`, `contexts`, `unload` |
//! | addresses that are used again, at once | `lifetime`, `recycled`, `threads` |
//! | too many releases, NULL, what is no program or device | `odd`, `fatal` |
//! | variables of program scope belong to one program | `two-programs`, `run` |
//! | odd arguments of clBuildProgram are the driver's to judge | `odd`, `fatal`, `devices` |
//! | a build over live kernels, of a program that is served or not | `rebuild`, `callback`, `il`, `devices`, `alive` |
//! | builds, compiles and links of programs and link results over kernels, clones, and kernels that only commands hold | `alive` |
//! | clCompileProgram over an executable, with and without live kernels | `compilelink`, `link` |
//! | state, kernels and binaries after a failed build, and after the next good one | `rebuild`, `failing` |
//! | builds for all devices, for some, for one after another; for a list in another order | `devices` |
//! | binaries, status and type of a device that was not built | `devices`, `parts` |
//! | sub-devices: alone, several, with their root, outside of the context | `parts` |
//! | a sub-device that is released while a program lives that was built for it | `released-parts` |
//! | a device that is not the program's | `odd`, `parts` |
//! | several builds of one program, several programs of one source, by several threads | `rebuild`, `threads` |
//! | callbacks: thread, program, user data, status, what may be called inside; none with user data | `callback`, `link-callback` |
//! | a callback of a failing build, and its return code | `callback`, `link-callback` |
//! | a program released in its callback | `callback` |
//! | objects and libraries: type, status, kernels of what is none; the same from binaries | `link` |
//! | links of what was compiled, served, built, linked, loaded, or never compiled | `link`, `compilelink`, `link-failing` |
//! | links that fail: with a program or without one, with a place for the code or without | `link-failing`, `link-callback` |
//! | facts of a link's result, of a library, of their own binaries | `link` |
//! | a link's result that is built, compiled, linked once more | `link` |
//! | an input that is compiled again or released before the result is used | `link` |
//! | queries before a build, after a compile, after a failure | `facts`, `link`, `failing`, `il` |
//! | invalid options of builds, compiles and links | `failing`, `link-failing`, `callback` |
//! | a program without kernels | `link`, `headers` |
//! | two builds of one source, in a process and in two | `rebuild`, each section run warm |
//! | CL_PROGRAM_SOURCE and CL_PROGRAM_IL, also of what has none | `facts`, `link`, `il` |
//! | names and order of kernels, in queries and from clCreateKernelsInProgram | `facts`, `link` |
//! | CL_PROGRAM_BUILD_OPTIONS to the byte, none and empty ones | `facts`, `rebuild`, `link` |
//! | CL_PROGRAM_BUILD_LOG of a build that went well | `facts`, `link`, `devices` |
//! | attributes of kernels, and all facts of their arguments, present or refused | `facts`, `link`, `il` |
//! | type, status, size of global variables, constructors and destructors | `facts`, `link`, `il` |
//! | work-group queries of kernels; sub-group queries | `facts`; `odd` |
//! | results: tables of constants, local memory, program scope | `run`, `two-programs` |
//! | options that were NULL | `rebuild`, `link` |
//! | sizes of all answers, and a buffer one byte too small, or of no bytes | `facts`, `link`; `odd` |
//! | queries that nobody knows, and arguments past the last | `facts`, `odd` |
//! | binaries are there after a hit and make a program again | `facts`, `link`, `devices`, `il`, `recycled` |
//! | binaries that are garbage | `odd`, `fatal` |
//! | programs that the application makes from its own binaries | `facts`, `link`, `recycled` |
//! | macros on the command line that change from build to build | `rebuild`, `unload` |
//! | embedded headers: their names, order, nesting and content; files of the same name | `headers`, `compilelink` |
//! | one program compiled again while its header changed; headers that are built, compiled or gone | `headers` |
//! | a program that is built again while a header file changes, also to what does not compile | `changed-file` |
//! | an include directory that wins or loses; a file that changes between compiles | `headers` |
//! | CL_KERNEL_PROGRAM and CL_KERNEL_CONTEXT are the application's own handles | `facts`, `lifetime` |
//! | specialization constants: set, set again, after a build, by address, wrong ones | `il` |
//! | clSetProgramReleaseCallback | `odd` |
//! | unloaded compilers, between and after builds | `unload` |
//! | several contexts, with the same program in each | `contexts` |
//! | nothing: every way to make a program, where a hit must need no compiler | `ways` |
//! | calls that end the process bare | `fatal`, `parts` |

use crate::support::{Driver, Ran, Sandbox, Way, is_long};

/// A driver and how many devices of it a context has.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    driver: Driver,
    pub devices: u32,
}

pub const SETUPS: [Setup; 7] = [
    Setup {
        driver: Driver::Stub,
        devices: 1,
    },
    Setup {
        driver: Driver::Stub,
        devices: 2,
    },
    Setup {
        driver: Driver::Pocl,
        devices: 1,
    },
    Setup {
        driver: Driver::Pocl,
        devices: 2,
    },
    Setup {
        driver: Driver::Intel,
        devices: 1,
    },
    Setup {
        driver: Driver::Rusticl,
        devices: 1,
    },
    Setup {
        driver: Driver::IntelGpu,
        devices: 1,
    },
];

impl Setup {
    /// None if the driver is not there.
    pub fn sandbox(self) -> Option<Sandbox> {
        let mut sandbox = Sandbox::new(self.driver)?;
        sandbox.set("CLIENT_DEVICES", self.devices.to_string());
        match self.driver {
            Driver::Stub => sandbox.set("STUB_DEVICES", self.devices.to_string()),
            Driver::Pocl if self.devices == 2 => sandbox.set("POCL_DEVICES", "pthread basic"),
            _ => {}
        }
        Some(sandbox)
    }

    /// Whether all sections run on it in every test run.
    fn is_quick(self) -> bool {
        match self.driver {
            Driver::Stub => true,
            Driver::Pocl => self.devices == 1,
            _ => false,
        }
    }
}

/// How often the driver's compiler or linker works in a warm run of a section: in what only the driver can judge.
fn expected(setup: Setup, section: &[&str]) -> usize {
    use Driver::{Intel, IntelGpu, Pocl, Rusticl, Stub};
    match (setup.driver, setup.devices, section[0]) {
        // An unknown query of an argument (clGetKernelArgInfo with param_name 0).
        (_, _, "facts") => 1,
        // Failing builds and what follows one, builds with live kernels, and real builds before them. Intel's CPU runtime
        // and rusticl keep something of earlier builds, so more of these are theirs.
        (Rusticl, _, "rebuild") => 16,
        (Intel, _, "rebuild") => 14,
        (_, _, "rebuild") => 7,
        // Builds with live kernels, which are refused or, by rusticl, over clones not; links of what they are of; and real builds.
        (Pocl, 1, "alive") => 165,
        (Stub, _, "alive") => 147,
        (Rusticl, _, "alive") => 150,
        (IntelGpu, _, "alive") => 108,
        (_, _, "alive") => 110,
        (Intel | Rusticl, _, "failing") => 10,
        (_, _, "failing") => 9,
        (Rusticl, _, "callback") => 9,
        (Intel, _, "callback") => 8,
        (_, _, "callback") => 5,
        // Kernels asked of objects and libraries, programs that were built, compiled or linked before, and links of these.
        (Intel | Rusticl, _, "compilelink") => 11,
        (IntelGpu, _, "compilelink") => 8,
        (_, _, "compilelink") => 10,
        // Also of a link that is changed in vain, and of a library that is built.
        (Intel, _, "link") => 61,
        (Rusticl, _, "link") => 57,
        (Pocl, _, "link") => 45,
        (Stub, _, "link") => 47,
        (IntelGpu, _, "link") => 46,
        // All but the last link fails, or follows a failure.
        (Rusticl, _, "link-failing") => 23,
        (_, _, "link-failing") => 25,
        // The same, and kernels asked of objects inside of the callback.
        (_, _, "link-callback") => 12,
        // Files beside embedded headers, failing compiles, and programs that are compiled again; where a baker compiles, also what has
        // changed before. On rusticl also what is found without `-I`.
        (Rusticl, _, "headers") => 27,
        (Intel, _, "headers") => 16,
        (IntelGpu | Stub, _, "headers") => 8,
        (Pocl, _, "headers") => 11,
        // What does not compile, and what follows that on drivers that do not keep what was compiled. rusticl's cache knows no files.
        (Stub | Pocl, _, "changed-file") => 6,
        (IntelGpu, _, "changed-file") => 3,
        (Intel, _, "changed-file") => 6,
        // Constants set after a build, builds with a live kernel, modules that are none. On PoCL and rusticl there is only
        // a source program, of which a constant is set.
        (Intel, _, "il") => 8,
        (Stub, _, "il") => 5,
        (IntelGpu, _, "il") => 6,
        (_, _, "il") => 1,
        // Some devices only, live kernels, failures.
        (Pocl, 2, "devices") => 33,
        (Stub, 2, "devices") => 22,
        (Rusticl, _, "devices") => 20,
        (Intel, _, "devices") => 14,
        (_, _, "devices") => 8,
        // The object in the end is linked in another context.
        (_, _, "contexts") => 4,
        // Builds for some devices, which are Intel's CPU runtime's own. PoCL's programs have the root device of a part, of which it answers
        // all the same: what it says of a part that no build has named is asked of a real build.
        (Intel, _, "parts") => 14,
        (Pocl, 1, "parts") => 14,
        // An unknown query, a build over a kernel and the real build before it. Intel's CPU runtime builds for no part of a device that is
        // not in the context.
        (Pocl, 1, "released-parts") | (Intel, _, "released-parts") => 3,
        // No program can be made in a context that was released; calls on programs that are dead.
        (Intel, _, "outlived") => 4,
        // A failing build and what follows it.
        (Rusticl, _, "unload") => 4,
        (Intel, _, "unload") => 3,
        (_, _, "unload") => 1,
        // The failing builds.
        (_, _, "recycled") => 10,
        // Calls that fail, and unknown queries. On PoCL also what it answers to buffers that are too small.
        (Intel, _, "odd") => 88,
        (Pocl, _, "odd") => 52,
        (IntelGpu, _, "odd") => 88,
        (Rusticl, _, "odd") => 92,
        (_, _, "odd") => 90,
        (driver, devices, "fatal") => match (driver, devices, section[1]) {
            (Pocl, _, "wrong-device") => 0,
            (_, _, "wrong-device") => 2,
            (Pocl, _, "link-for-wrong-device") => 1,
            (_, _, "link-for-wrong-device" | "link-of-executable-for-wrong-device") => 2,
            (Pocl, _, "absent-headers") => 1,
            (_, _, "absent-headers") => 6,
            (_, _, "kernels-nowhere") => 1,
            (Pocl | Intel, _, "header-from-binary") => 0,
            (_, _, "header-from-binary") => 1,
            (Pocl | Stub | IntelGpu, 1, "other-device") => 0,
            (_, _, "other-device") => 2,
            _ => 0,
        },
        // Every way to make a program, as programs use them.
        (_, _, "ways") => 0,
        (Rusticl, _, "two-programs") => 2,
        _ => 0,
    }
}

/// The signal that ends the process bare, and so behind the cache.
fn fatal(setup: Setup, section: &[&str]) -> Option<i32> {
    let call = section.get(1).copied().unwrap_or_default();
    match (setup.driver, section[0], call) {
        // A device list that holds something else; a number of headers without lists of them; a header without source.
        (
            Driver::Pocl,
            "fatal",
            "wrong-device" | "link-for-wrong-device" | "absent-headers" | "header-from-binary",
        ) => Some(libc::SIGSEGV),
        // A constant of a program that is not built; a kernel enqueued on a device that was not built for.
        (Driver::Pocl, "fatal", "constant") => Some(libc::SIGABRT),
        (Driver::Pocl, "fatal", "other-device") if setup.devices == 2 => Some(libc::SIGABRT),
        // A count of the kernels of what is only compiled, without a place for it; a header without source.
        (Driver::Intel, "fatal", "kernels-nowhere" | "header-from-binary") => Some(libc::SIGSEGV),
        // A binary that is none.
        (Driver::Rusticl, "fatal", "garbage") => Some(libc::SIGABRT),
        // clCreateSubDevices, which is missing in the driver's table.
        (Driver::Rusticl, "parts" | "released-parts", _) => Some(libc::SIGSEGV),
        _ => None,
    }
}

/// The first line in which two texts differ, or how one ends otherwise. A driver that looks into what is no object of its own
/// dies of what it happens to find there (measured: Intel's CPU runtime by SIGSEGV or abort), so which signal ends it is no
/// difference.
fn difference(bare: &Ran, other: &Ran) -> Option<String> {
    let end = |ran: &Ran| (ran.code, ran.signal.is_some());
    if bare.stdout == other.stdout && end(bare) == end(other) {
        return None;
    }
    let (mut lines, mut others) = (bare.stdout.lines(), other.stdout.lines());
    let mut number = 0;
    loop {
        number += 1;
        let (line, other_line) = (lines.next(), others.next());
        if line != other_line {
            return Some(format!("line {number}: {line:?}, not {other_line:?}"));
        }
        if line.is_none() {
            return Some(format!(
                "ended by {:?}, not {:?}",
                other.signal, bare.signal
            ));
        }
    }
}

/// What is wrong with a section on a driver.
fn faults(setup: Setup, sandbox: &Sandbox, section: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    let run = |way| sandbox.client(way, section);
    let bare = run(Way::Bare);
    if bare.signal != fatal(setup, section) || bare.code.is_some_and(|code| code != 0) {
        let (code, signal) = (bare.code, bare.signal);
        faults.push(format!(
            "bare: code {code:?} signal {signal:?}:\n{}",
            bare.stderr
        ));
    }
    for label in ["cold", "warm"] {
        let cached = run(Way::Cached);
        if let Some(difference) = difference(&bare, &cached) {
            let log = cached.stderr.lines().rev().take(20).collect::<Vec<_>>();
            let log = log.into_iter().rev().collect::<Vec<_>>().join("\n");
            faults.push(format!("{label}: {difference}; log:\n{log}"));
        }
        // The baker stores compilations on the one and links on the other.
        if matches!(setup.driver, Driver::IntelGpu | Driver::Pocl) {
            sandbox.oclcache(&["bake"]).ok();
        }
        let (runs, most) = (cached.compiler_runs(), bare.compiler_runs());
        if label == "warm" && runs != expected(setup, section) {
            faults.push(format!("warm: the compiler ran {runs} times, bare {most}"));
        }
    }
    if !faults.is_empty()
        && let Some(difference) = difference(&bare, &run(Way::Bare))
    {
        faults.push(format!(
            "bare: the driver does not repeat itself: {difference}"
        ));
    }
    faults
}

/// Sections that run on every driver in every test run. The others build hundreds of times. On all drivers they take 17 minutes of two
/// idle processors, with the replayed cases of `ci/differ`: without `ci/test --long` they run on the stub driver and on PoCL.
const ON_ALL_DRIVERS: [&str; 5] = ["changed-file", "facts", "il", "run", "ways"];

/// The drivers on which a section runs.
fn setups(section: &str) -> impl Iterator<Item = Setup> {
    // One line for all sections, since a test run ends with a list of what was skipped.
    let is_all = ON_ALL_DRIVERS.contains(&section)
        || is_long(format_args!(
            "all differential tests but {} on drivers other than the stub and PoCL",
            ON_ALL_DRIVERS.join(", ")
        ));
    SETUPS.into_iter().filter(move |setup| {
        // Two devices add nothing to threads but time.
        let is_needless = setup.devices > 1 && section == "threads";
        !is_needless && (is_all || setup.is_quick())
    })
}

#[track_caller]
fn same_in_all_ways(section: &[&str]) {
    same_in_all_ways_with(section, &[]);
}

#[track_caller]
fn same_in_all_ways_with(section: &[&str], variables: &[(&str, &str)]) {
    let mut all = Vec::new();
    for setup in setups(section[0]) {
        if let Some(mut sandbox) = setup.sandbox() {
            for (name, value) in variables {
                sandbox.set(name, *value);
            }
            let faults = faults(setup, &sandbox, section);
            all.extend(
                faults
                    .into_iter()
                    .map(|fault| format!("{setup:?}, {fault}")),
            );
        }
    }
    assert!(all.is_empty(), "{section:?}:\n{}", all.join("\n"));
}

/// As NVIDIA's driver 580 is thought to do, which crashed behind the cache in these sections.
#[test]
fn a_driver_that_crashes_when_asked_about_what_is_not_there_is_asked_nothing_of_that() {
    let setup = SETUPS[0];
    let mut sandbox = setup.sandbox().expect("the stub is always there");
    sandbox.set("STUB_UNCHECKED", "1");
    for section in [
        &["fatal", "wrong-device"][..],
        &["fatal", "link-for-wrong-device"],
        &["fatal", "link-of-executable-for-wrong-device"],
        &["headers"],
    ] {
        let faults = faults(setup, &sandbox, section);
        assert!(faults.is_empty(), "{section:?}:\n{}", faults.join("\n"));
    }
}

#[test]
fn facts() {
    same_in_all_ways(&["facts"]);
}

#[test]
fn facts_with_options() {
    same_in_all_ways(&["facts", " -cl-kernel-arg-info  -DX=1 "]);
}

#[test]
fn run() {
    same_in_all_ways(&["run"]);
}

#[test]
fn lifetime() {
    same_in_all_ways(&["lifetime"]);
}

#[test]
fn outlived() {
    same_in_all_ways(&["outlived"]);
}

#[test]
fn no_entry_is_set_aside_for_a_context_that_was_released() {
    for setup in SETUPS {
        if let Some(sandbox) = setup.sandbox() {
            for _ in 0..2 {
                sandbox.client(Way::Cached, &["outlived"]).ok();
            }
            assert_eq!(sandbox.stat("set_aside"), 0, "{setup:?}");
        }
    }
}

#[test]
fn rebuild() {
    same_in_all_ways(&["rebuild"]);
}

#[test]
fn alive() {
    same_in_all_ways(&["alive"]);
}

#[test]
fn failing() {
    same_in_all_ways(&["failing"]);
}

#[test]
fn callback() {
    same_in_all_ways(&["callback"]);
}

#[test]
fn compile_and_link() {
    same_in_all_ways(&["compilelink"]);
}

#[test]
fn link() {
    same_in_all_ways(&["link"]);
}

#[test]
fn link_failing() {
    same_in_all_ways(&["link-failing"]);
}

#[test]
fn link_callback() {
    same_in_all_ways(&["link-callback"]);
}

#[test]
fn headers() {
    same_in_all_ways(&["headers"]);
}

#[test]
fn il() {
    same_in_all_ways(&["il"]);
}

#[test]
fn devices() {
    same_in_all_ways(&["devices"]);
}

#[test]
fn contexts() {
    same_in_all_ways(&["contexts"]);
}

#[test]
fn parts() {
    same_in_all_ways(&["parts"]);
}

#[test]
fn changed_file() {
    same_in_all_ways(&["changed-file"]);
}

#[test]
fn released_parts() {
    // Whoever reads a device that is gone finds no pointers there.
    same_in_all_ways_with(&["released-parts"], &[("MALLOC_PERTURB_", "165")]);
}

#[test]
fn unload() {
    same_in_all_ways(&["unload"]);
}

#[test]
fn recycled() {
    same_in_all_ways(&["recycled"]);
}

#[test]
fn odd() {
    same_in_all_ways(&["odd"]);
}

#[test]
fn ways() {
    same_in_all_ways(&["ways"]);
}

#[test]
fn two_programs() {
    same_in_all_ways(&["two-programs"]);
}

#[test]
fn threads() {
    same_in_all_ways(&["threads", "4", "6"]);
}

/// Most of these end the process on one driver only, and are an ordinary error on the others.
#[test]
fn fatal_calls() {
    for call in [
        "wrong-device",
        "link-for-wrong-device",
        "link-of-executable-for-wrong-device",
        "absent-headers",
        "kernels-nowhere",
        "header-from-binary",
        "constant",
        "garbage",
        "other-device",
    ] {
        same_in_all_ways(&["fatal", call]);
    }
}

/// What the stub driver does wrong on request; how many hits there are is not the point.
#[test]
fn odd_drivers() {
    for variant in [
        "STUB_VARY",
        "STUB_REFUSE_BINARIES",
        "STUB_ASYNC",
        "STUB_GARBAGE",
        "STUB_STICKY",
        "STUB_READONLY_TABLE",
        "STUB_SPOIL",
    ] {
        odd_driver(variant, "1");
    }
    odd_driver("STUB_REBUILD", "permissive");
    odd_driver("STUB_REFCOUNT_KERNELS", "0");
}

#[track_caller]
fn odd_driver(variable: &str, value: &str) {
    let setup = SETUPS[1];
    for section in [
        "alive",
        "link",
        "link-callback",
        "callback",
        "devices",
        "il",
        "odd",
        "recycled",
        "rebuild",
    ] {
        let mut sandbox = setup.sandbox().expect("the stub driver is always there");
        sandbox.set(variable, value);
        // Which thread calls back is a driver's own choice, and the cache calls on the caller's.
        let run = |way| {
            let mut ran = sandbox.client(way, &[section]).ok();
            ran.stdout = ran.stdout.replace("another thread", "the caller's thread");
            ran.stdout = ran.stdout.replace("thread another", "thread the caller's");
            ran
        };
        let bare = run(Way::Bare);
        for label in ["cold", "warm"] {
            let cached = run(Way::Cached);
            if let Some(difference) = difference(&bare, &cached) {
                panic!(
                    "{variable}, {section}, {label}: {difference}; log:\n{}",
                    cached.stderr
                );
            }
        }
    }
}
