//! What processes do besides calling OpenCL: they fork, they end at any moment, they use the loader from odd places.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::functions::program;
use crate::support::{Driver, Ran, SOURCE, Sandbox, Way, example, some_of, tree};

/// The lines of a run whose order says nothing, in order.
fn sorted(ran: &Ran) -> Vec<String> {
    let mut lines: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[track_caller]
fn number_in(ran: &Ran, label: &str) -> u64 {
    let line = ran.stdout.lines().find_map(|line| line.strip_prefix(label));
    let number = line.and_then(|rest| rest.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no '{label}' in:\n{}", ran.stdout))
}

/// What a child can do after a fork is measured on the bare drivers, and the same with the cache between, cold and warm:
/// it asks about a program of its parent's, makes kernels, builds what was built before and what never was, and ends by
/// exit() or _exit(). It runs no kernels: that hangs in children of PoCL and rusticl.
///
/// While other threads of the parent are in the driver, children of PoCL and of Intel's CPU runtime hang bare as well: these
/// drivers' own locks stay locked.
#[test]
fn children_of_a_fork_use_the_driver_as_they_can_without_us() {
    for driver in Driver::ALL {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        // Bare rusticl hangs in one child of some dozens, in clCreateKernel, where it wakes the thread of its disk cache.
        sandbox.set("MESA_SHADER_CACHE_DISABLE", "true");
        let run = |way| sandbox.client(way, &["forks", "0", "4", "0"]).ok();
        let bare = run(Way::Bare);
        assert!(
            bare.stdout.contains("exit 0"),
            "{driver:?}:\n{}",
            bare.stdout
        );
        // The parent's program, and in each child one that was built before and one that never was.
        for (builds, hits) in [(1 + 4, 4), (0, 1 + 4 + 4)] {
            let before = sandbox.stat("hits");
            let ran = run(Way::Cached);
            let log = &ran.stderr;
            assert_eq!(ran.stdout, bare.stdout, "{driver:?}, log:\n{log}");
            assert_eq!(ran.source_builds(), builds, "{driver:?}, log:\n{log}");
            assert_eq!(
                sandbox.stat("hits") - before,
                hits,
                "{driver:?}, log:\n{log}"
            );
        }
    }
}

#[test]
fn a_fork_while_other_threads_build_finds_no_lock_of_ours_taken_and_no_build_is_counted_twice_or_lost()
 {
    let sandbox = Sandbox::stub();
    let run = |way| {
        sandbox
            .client(way, &["forks", "4", "100", "50", "run"])
            .ok()
    };
    let bare = run(Way::Bare);
    assert_eq!(
        bare.stdout.matches("exit 0").count(),
        100,
        "{}",
        bare.stdout
    );
    let facts = |ran: &Ran| {
        let mut lines = sorted(ran);
        lines.retain(|line| !line.starts_with("old programs"));
        lines
    };
    let (mut hits, mut misses) = (0, 0);
    for warm in [false, true] {
        let ran = run(Way::Cached);
        assert_eq!(facts(&ran), facts(&bare), "log:\n{}", ran.stderr);
        let old = number_in(&ran, "old programs in threads ");
        // The parent's program, the threads' and one that is new in each child; and in each the parent's again.
        let new = 1 + 4 * 50 + 100;
        hits += old + 100 + if warm { new } else { 0 };
        misses += if warm { 0 } else { new };
        let counted = ["hits", "misses", "bypassed", "failed"].map(|name| sandbox.stat(name));
        assert_eq!(counted, [hits, misses, 0, 0], "log:\n{}", ran.stderr);
    }
}

/// A query that neither the entry nor P' can answer has the driver build P, and builds of P wait for that. In a child nobody
/// does it any more. (The driver refuses the child's build: to it, a build of P goes on, or kernels are alive.)
#[test]
fn a_child_does_not_wait_for_what_another_thread_had_begun() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_BUILD_MS", "1000");
    let bare = sandbox.client(Way::Bare, &["forks", "asked"]).ok();
    assert!(
        bare.stdout.contains("child: build -59 exit 0"),
        "{}",
        bare.stdout
    );
    for _ in ["cold", "warm"] {
        let ran = sandbox.client(Way::Cached, &["forks", "asked"]).ok();
        assert_eq!(ran.stdout, bare.stdout, "log:\n{}", ran.stderr);
    }
    // The query's in the parent, and in the child what comes before a build that the driver is to judge.
    assert_eq!(sandbox.stat("materialised"), 2);
}

#[test]
fn nothing_is_written_to_what_has_the_number_of_a_descriptor_that_a_daemon_has_closed() {
    let sandbox = Sandbox::stub();
    let theirs = sandbox.path("theirs");
    std::fs::create_dir(&theirs).expect("made");
    let theirs = theirs.to_str().expect("UTF-8");
    let ran = sandbox.client(Way::Cached, &["closing", theirs]).ok();
    assert_eq!(ran.stdout, "build: code 0\n".repeat(3), "{}", ran.stderr);
    assert_eq!(
        tree(theirs.as_ref()).len(),
        0,
        "{:?}",
        tree(theirs.as_ref())
    );
    // Of the two programs each is stored, the second one through a descriptor that was opened since.
    assert_eq!((sandbox.entries().len(), sandbox.stat("misses")), (2, 2));
}

#[test]
fn streams_that_a_program_has_closed_stay_closed() {
    let sandbox = Sandbox::stub();
    let log = sandbox.path("log");
    for way in [Way::Bare, Way::Cached] {
        let mut command = sandbox.command(way, example("client"));
        command.arg("no-streams").env("OCLCACHE_LOG_FILE", &log);
        let ran = sandbox.run(&mut command).ok();
        let expected = "build: codes [0, 0]; open: [false, false, false]\n";
        assert_eq!(ran.stdout, expected, "{way:?}");
    }
    assert_eq!(sandbox.entries().len(), 2);
}

/// How the process ends, and what its handlers did before.
fn ending(ran: &Ran) -> (&str, Option<i32>) {
    let said = ran.stdout.split_once("the end\n");
    (said.map_or("", |(_, after)| after), ran.code)
}

/// Bare drivers crash where a build follows their own teardown: in a handler of atexit that was registered before they were
/// loaded, and in the program's destructor (PoCL and rusticl by a signal of the memory, Intel's CPU runtime and sometimes
/// rusticl by abort). Through the cache such a build is the driver's alone.
#[test]
fn every_way_to_end_ends_as_on_the_bare_driver() {
    let ways = [
        ["before", "build"],
        ["after", "build"],
        ["destructor", "build"],
        ["quick", "build"],
        ["at-once", ""],
    ];
    for driver in Driver::ALL {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        for way in ways {
            let run = |kind| sandbox.client(kind, &["exit", way[0], way[1]]);
            let bare = run(Way::Bare);
            assert!(bare.stdout.contains("the end"), "{driver:?}, {way:?}");
            let crashes =
                driver != Driver::Stub && matches!(way, ["before" | "destructor", "build"]);
            assert_eq!(bare.code != Some(0), crashes, "{driver:?}, {way:?}");
            for warm in [false, true] {
                let ran = run(Way::Cached);
                let context = || format!("{driver:?}, {way:?}, warm {warm}, log:\n{}", ran.stderr);
                if crashes {
                    // What was said before the build.
                    let (said, _) = ending(&ran);
                    assert!(said.starts_with(ending(&bare).0), "{}", context());
                } else {
                    assert_eq!(ending(&ran), ending(&bare), "{}", context());
                }
            }
        }
        // None of the ends has harmed what is stored.
        let last = sandbox.client(Way::Cached, &["exit", "at-once"]).ok();
        assert_eq!(last.source_builds(), 0, "{driver:?}, log:\n{}", last.stderr);
        assert_eq!(sandbox.stat("set_aside"), 0, "{driver:?}");
    }
}

/// While threads build, exit() crashes bare: always on Intel's CPU runtime, mostly on rusticl, once in 25 runs on PoCL.
/// Through the cache it may, too; only the stub driver has no teardown to run into. quick_exit and _exit are safe with all.
#[test]
fn an_end_while_threads_build_leaves_a_good_store_and_does_not_crash_where_the_driver_does_not() {
    for driver in Driver::ALL {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        for way in [
            "return",
            "before",
            "after",
            "destructor",
            "quick",
            "at-once",
        ] {
            // To a driver that crashes these are the same as a return.
            if driver != Driver::Stub && matches!(way, "before" | "after" | "destructor") {
                continue;
            }
            let asks_only = matches!(way, "return" | "at-once");
            let build = if asks_only { "" } else { "build" };
            let ran = sandbox.client(Way::Cached, &["exit", way, build, "2"]);
            let log = &ran.stderr;
            assert!(
                ran.stdout.contains("the end\n"),
                "{driver:?}, {way}, log:\n{log}"
            );
            if driver == Driver::Stub || matches!(way, "quick" | "at-once") {
                assert_eq!(ran.code, Some(0), "{driver:?}, {way}, log:\n{log}");
                let told = ending(&ran).0.contains("last words: build 0 0 0");
                assert_eq!(told, !asks_only, "{driver:?}, {way}, log:\n{log}");
            }
        }
        let last = sandbox.client(Way::Cached, &["exit", "at-once"]).ok();
        assert_eq!(last.source_builds(), 0, "{driver:?}, log:\n{}", last.stderr);
        assert_eq!(sandbox.stat("set_aside"), 0, "{driver:?}");
    }
}

/// The constructor opens the loader, builds and closes the loader again: as a plugin that comes and goes three times, alone
/// or beside the program's own use, and preloaded, before main.
#[test]
fn a_library_may_build_in_its_constructor_and_close_the_loader_afterwards() {
    let plugin = example("libplugin.so");
    let path = plugin.to_str().expect("UTF-8");
    for driver in some_of(&Driver::ALL) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let preloaded = |way| {
            let mut command = sandbox.command(way, example("client"));
            command.env("LD_PRELOAD", &plugin).arg("two-programs");
            sandbox.run(&mut command).ok()
        };
        let opened = |way| sandbox.client(way, &["plugin", path]).ok();
        let beside = |way| sandbox.client(way, &["plugin", path, "loader"]).ok();
        let mut runs: Vec<&dyn Fn(Way) -> Ran> = vec![&opened, &beside];
        // PoCL runs a linker, which would be preloaded as well, and build in turn.
        if driver != Driver::Pocl {
            runs.push(&preloaded);
        }
        for run in runs {
            let bare = run(Way::Bare);
            assert!(
                bare.stdout.contains("plugin: build 0 kernel 0"),
                "{driver:?}:\n{}",
                bare.stdout
            );
            for _ in ["cold", "warm"] {
                let ran = run(Way::Cached);
                assert_eq!(ran.stdout, bare.stdout, "{driver:?}, log:\n{}", ran.stderr);
            }
        }
        let warm = opened(Way::Cached);
        assert_eq!(warm.source_builds(), 0, "{driver:?}, log:\n{}", warm.stderr);
    }
}

/// glibc's linker keeps its lock while the constructor runs, so the thread must not call it. PoCL, Intel's drivers and Oclgrind do, and hang
/// bare.
#[test]
fn a_constructor_may_wait_for_a_thread_that_builds_or_makes_kernels() {
    let plugin = example("libplugin.so");
    for driver in [Driver::Stub, Driver::Rusticl] {
        // The library is opened three times.
        for (does, bypassed) in [("build", 3), ("kernel", 0), ("kernels", 0)] {
            let Some(sandbox) = Sandbox::new(driver) else {
                continue;
            };
            let run = |way| {
                let mut command = sandbox.command(way, "timeout");
                command.env("PLUGIN_THREAD", does).arg("60");
                command.arg(example("client")).arg("plugin");
                sandbox.run(command.arg(&plugin)).ok()
            };
            let bare = run(Way::Bare);
            for _ in ["first build", "known driver"] {
                let before = sandbox.stat("bypassed");
                let ran = run(Way::Cached);
                let what = format!("{driver:?}, {does}, log:\n{}", ran.stderr);
                assert_eq!(ran.stdout, bare.stdout, "{what}");
                assert_eq!(sandbox.stat("bypassed"), before + bypassed, "{what}");
                sandbox.client(Way::Cached, &["two-programs"]).ok();
            }
        }
    }
}

/// It has names to be gathered by then, for which a process is to be started at the end.
#[test]
fn a_constructor_may_wait_for_a_build_that_has_begun_before() {
    for source_fails in [false, true] {
        let mut sandbox = Sandbox::stub();
        sandbox.set("OCLCACHE_AUTOBAKE", "1");
        sandbox.set("OCLCACHE_LOG", "debug");
        // No build ends before the constructor runs.
        sandbox.set("STUB_HELD", sandbox.path("held"));
        sandbox.set("PLUGIN_REMOVES", sandbox.path("held"));
        let file = sandbox.write("code", if source_fails { "#error" } else { "code" });
        sandbox.set("STUB_CODE_FILE", file);
        let run = |way| {
            sandbox.write("held", "");
            let mut command = sandbox.command(way, "timeout");
            command.arg("30").arg(example("client"));
            command.arg("plugin-behind").arg(example("libplugin.so"));
            sandbox.run(&mut command).ok()
        };
        let bare = run(Way::Bare);
        let ran = run(Way::Cached);
        let log = &ran.stderr;
        assert_eq!(ran.stdout, bare.stdout, "{source_fails}: {log}");
        assert!(log.contains("names of variables were looked for"), "{log}");
        let [failed, bypassed] = ["failed", "bypassed"].map(|name| sandbox.stat(name));
        let expected = [source_fails, !source_fails].map(u64::from);
        assert_eq!([failed, bypassed], expected, "{log}");
    }
}

/// The program is killed if it asks the kernel for one mapping, or for the filters of its system calls, as in a sandbox that lists
/// which requests it knows.
fn forbid_requests(command: &mut Command) {
    const PROCMAP_QUERY: u32 = 0xc068_6611;
    let instruction = |code: u16, k: u32, jt: u8, jf: u8| libc::sock_filter { code, jt, jf, k };
    let load = |offset: u32| instruction(0x20, offset, 0, 0);
    let is = |value: u32, jt, jf| instruction(0x15, value, jt, jf);
    // Of struct seccomp_data: the call's number and its first two arguments, on little-endian machines.
    const NUMBER: u32 = 0;
    const ARGUMENTS: [u32; 2] = [16, 24];
    let filter = [
        load(NUMBER),
        is(libc::SYS_ioctl as u32, 0, 2),
        load(ARGUMENTS[1]),
        is(PROCMAP_QUERY, 4, 3),
        is(libc::SYS_prctl as u32, 0, 2),
        load(ARGUMENTS[0]),
        is(libc::PR_GET_SECCOMP as u32, 1, 0),
        instruction(0x06, libc::SECCOMP_RET_ALLOW, 0, 0),
        instruction(0x06, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
    ];
    behind_filter(command, filter.to_vec());
}

/// Installs a filter of system calls in a program that is to be started.
pub fn behind_filter(command: &mut Command, filter: Vec<libc::sock_filter>) {
    behind_filter_with(command, filter, true);
}

/// The same. Only root can do it without giving up that the program can gain privileges.
#[allow(unsafe_code)] // filters have no safe interface
pub fn behind_filter_with(
    command: &mut Command,
    filter: Vec<libc::sock_filter>,
    no_new_privs: bool,
) {
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: a program of that many instructions (seccomp(2)).
        let installed = unsafe {
            (!no_new_privs || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        match installed {
            true => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: two system calls, and memory that was allocated before.
    unsafe { command.pre_exec(install) };
}

#[test]
fn a_sandbox_that_kills_for_unknown_requests_finds_none_of_ours() {
    for driver in Driver::ALL {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let source = sandbox.write("kernel.cl", SOURCE);
        let run = |way| {
            let mut command = sandbox.command(way, example("client"));
            command.args(["run", "--kernel", "f", "--options", "-DN=1", "--source"]);
            forbid_requests(command.arg(&source));
            sandbox.run(&mut command).ok()
        };
        let bare = run(Way::Bare);
        for builds in [1, 0] {
            let ran = run(Way::Cached);
            assert_eq!(ran.stdout, bare.stdout, "{driver:?}: {}", ran.stderr);
            assert_eq!(ran.source_builds(), builds, "{driver:?}: {}", ran.stderr);
        }
    }
}

/// Debuggers of numeric programs let floating-point exceptions trap. What only we do must not end such a program.
#[test]
fn a_program_that_lets_inexact_results_trap_goes_on() {
    for driver in [Driver::Stub, Driver::Pocl, Driver::Intel] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let Some(program) = program(&sandbox, "folding", &[]) else {
            return;
        };
        let source = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";
        let file = sandbox.write("kernel.cl", source);
        sandbox.set("FOLDING_ROUND", "inexact");
        let run = |way| sandbox.run(sandbox.command(way, &program).arg(&file)).ok();
        let bare = run(Way::Bare).stdout;
        assert!(bare.starts_with("traps: 20\n"), "{driver:?}: {bare}");
        for times in [1, 0] {
            let cached = run(Way::Cached);
            assert_eq!(cached.stdout, bare, "{driver:?}: {}", cached.stderr);
            assert_eq!(cached.source_builds(), times, "{driver:?}");
        }
    }
}
