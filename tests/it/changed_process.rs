//! What a program does to its process after its first build: at its end, nothing of ours kills it or starts anything else than what was
//! checked.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::autobake::{BUILT, Behind, IN_NAMESPACE, has_process_namespaces};
use crate::process::behind_filter_with;
use crate::support::{Ran, SOURCE, Sandbox, Way, copy_program, example, is_root, skipped};

/// Whether this user can have a new namespace of this kind.
fn has_namespace(kind: &str) -> bool {
    let can = Command::new("unshare").args([kind, "true"]).output();
    can.is_ok_and(|ran| ran.status.success())
}

#[test]
fn a_program_that_confines_itself_after_its_build_ends_as_bare() {
    let Some(behind) = Behind::new("programs that confine themselves") else {
        return;
    };
    for how in ["filtered-later", "creating"] {
        let bare = behind.sandbox.client(Way::Bare, &["behind", how]).ok();
        // With nothing to bake, too.
        for record in ["bake", "inline"] {
            let mut command = behind.client(&["behind", how]);
            let (ran, running) = behind.run(command.env("OCLCACHE_RECORD", record));
            let what = format!("{how}, {record}: {:?} {}", ran.signal, ran.stderr);
            assert_eq!((ran.code, &ran.stdout), (Some(0), &bare.stdout), "{what}");
            assert_eq!(running, 0, "{what}");
        }
    }
}

/// As in a container: a filter is on, which lets everything pass.
#[test]
fn a_program_that_confines_itself_further_ends_as_bare() {
    let test = "programs that confine themselves further";
    let Some(behind) = Behind::new(test) else {
        return;
    };
    let run = |how, no_new_privs| {
        let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
        let mut command = behind.sandbox.command(Way::Cached, "sh");
        let script = format!("\"$0\" behind {how}; exit $?");
        command.args(["-c", &script]).arg(example("client"));
        let pass = libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        };
        behind_filter_with(&mut command, vec![pass], no_new_privs);
        behind.run(&mut command)
    };
    if !is_root() {
        return skipped(format_args!("{test} (not root)"));
    }
    for (how, no_new_privs, expected) in [
        ("ignoring", false, 1),
        ("filtered-later", false, 0),
        ("ignoring", true, 1),
        ("filtered-later", true, 0),
    ] {
        let (ran, running) = run(how, no_new_privs);
        let found = (ran.code, &*ran.stdout, running);
        assert_eq!(found, (Some(0), BUILT, expected), "{how}: {}", ran.stderr);
    }
}

/// There the counters of hits are on the disk, and written when the process ends.
#[test]
fn a_confined_program_ends_as_bare_where_nothing_is_in_memory() {
    let test = "confined programs without a file system in memory";
    if !has_namespace("--mount") {
        return skipped(format_args!("{test} (no mount namespace)"));
    }
    let sandbox = Sandbox::stub();
    fs::create_dir(sandbox.path("disk")).expect("made");
    let script = "mount --bind \"$0\" /dev/shm; exec \"$@\"";
    let run = |how| {
        let mut command = sandbox.command(Way::Cached, "unshare");
        command.args(["--mount", "sh", "-c", script]);
        command.arg(sandbox.path("disk")).arg(example("client"));
        sandbox.run(command.args(["behind", how]))
    };
    run("ignoring").ok();
    let ran = run("filtered-later");
    let found = (ran.code, &*ran.stdout);
    assert_eq!(found, (Some(0), BUILT), "{:?} {}", ran.signal, ran.stderr);
}

#[test]
fn only_the_command_that_was_checked_is_started() {
    let Some(behind) = Behind::new("commands that are replaced meanwhile") else {
        return;
    };
    let command = behind.place.path().join("oclcache");
    let other = behind.place.path().join("other");
    copy_program(example("client"), &other);
    let [old, new] = [&command, &other].map(|path| path.display().to_string());
    for (arguments, expected) in [
        (vec!["behind", "ignoring"], 1),
        (vec!["behind", "replaced", &old, &new], 0),
    ] {
        let (ran, running) = behind.run(&mut behind.client(&arguments));
        assert_eq!(running, expected, "{arguments:?}: {}", ran.ok().stderr);
    }
}

/// The same files are there, and the dynamic linker might be another one.
#[test]
fn nothing_is_started_below_another_root() {
    let test = "programs that change their root";
    let Some(behind) = Behind::new(test) else {
        return;
    };
    if !has_namespace("--mount") {
        return skipped(format_args!("{test} (no mount namespace)"));
    }
    let script = "mount -t tmpfs none \"$0\" && for each in /*; do name=$0$each; \
        if [ -L \"$each\" ]; then cp -P \"$each\" \"$0/\"; \
        elif [ -d \"$each\" ]; then mkdir \"$name\" && mount --rbind \"$each\" \"$name\"; fi; done; exec \"$@\"";
    let jail = behind.sandbox.path("jail");
    fs::create_dir(&jail).expect("made");
    let root = Path::new("/");
    for (directory, expected) in [(root, 1), (&jail, 0)] {
        let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
        let mut command = behind.sandbox.command(Way::Cached, "unshare");
        command.args(["--mount", "sh", "-c", script]).arg(&jail);
        command.arg(example("client")).args(["behind", "jailed"]);
        let (ran, running) = behind.run(command.arg(directory));
        let ran = ran.ok();
        let what = format!("{}: {}", directory.display(), ran.stderr);
        assert_eq!((&*ran.stdout, running), (BUILT, expected), "{what}");
    }
}

#[test]
fn nothing_is_started_behind_a_program_that_adopts_processes() {
    let Some(behind) = Behind::new("programs that adopt processes") else {
        return;
    };
    let (ran, running) = behind.run(&mut behind.client(&["behind", "adopting"]));
    let ran = ran.ok();
    assert_eq!((&*ran.stdout, running), (BUILT, 0), "{}", ran.stderr);
}

/// The first process in the new namespace would be ours, and the kernel allows none after its end.
#[test]
fn the_first_process_of_a_new_namespace_is_the_programs() {
    let test = "programs that ask for a process namespace";
    if !has_namespace("--pid") {
        return skipped(format_args!("{test} (no process namespace)"));
    }
    let Some(behind) = Behind::new(test) else {
        return;
    };
    copy_program(
        example("client"),
        &behind.place.path().join("oclcache-remote"),
    );
    let run = |remote| {
        let mut command = behind.client(&["behind", "forking"]);
        let Ran {
            code,
            stdout,
            stderr,
            ..
        } = behind.sandbox.run(command.env("OCLCACHE_REMOTE", remote));
        assert_eq!(
            (code, &*stdout),
            (Some(0), &*format!("{BUILT}a child: true\n")),
            "{stderr}"
        );
    };
    run("");
    run("redis://127.0.0.1:1");
}

/// What has lost its parent is its child, and stays in the table of processes until somebody waits for it.
#[test]
fn run_waits_for_others_children_as_the_first_process() {
    let test = "`oclcache run` as the first process";
    if !has_process_namespaces(test) {
        return;
    }
    let sandbox = Sandbox::stub();
    // Each orphan has ended by the time that its parent has, or soon.
    let script = "for i in 1 2 3; do sh -c 'true &'; done; left=1000; \
        while [ $left -gt 0 ] && grep -l '^State:.Z' /proc/[0-9]*/status; do left=$((left - 1)); sleep 0.02; done; \
        [ $left -gt 0 ] && exit 7";
    let mut command = sandbox.command(Way::Cached, IN_NAMESPACE[0]);
    command.args(&IN_NAMESPACE[1..]);
    command.arg(env!("CARGO_BIN_EXE_oclcache"));
    let ran = sandbox.run(command.args(["run", "-q", "--", "sh", "-c", script]));
    assert_eq!(ran.code, Some(7), "{}{}", ran.stdout, ran.stderr);
}

/// The system ignores a signal by which that process would end itself: its code tells which one it was, as that of a shell.
#[test]
fn the_command_as_the_first_process_ends_with_the_code_of_a_signal() {
    let test = "a signal as the end of the first process";
    if !has_process_namespaces(test) {
        return;
    }
    let sandbox = Sandbox::stub();
    let command = env!("CARGO_BIN_EXE_oclcache");
    let run = |script: &str| {
        let mut container = sandbox.command(Way::Cached, IN_NAMESPACE[0]);
        container.args(&IN_NAMESPACE[1..]);
        let ran = sandbox.run(container.args(["sh", "-c", script, command]));
        assert_eq!(ran.signal, None, "{script}: {}", ran.stderr);
        ran.code
    };
    for signal in [1, 2, 6, 9, 10, 11, 15, 34] {
        let script = format!("exec \"$0\" run -q -- sh -c 'kill -{signal} $$'");
        assert_eq!(run(&script), Some(128 + signal), "{signal}");
    }
    // It stops at the first one that comes after it has begun to listen, and the next may come before it has ended.
    for pause in ["0.5", "0.01"] {
        let script = format!(
            "while sleep {pause}; do kill -TERM 1; done & exec \"$0\" stats --watch 1h >/dev/null"
        );
        assert_eq!(run(&script), Some(143), "{pause}");
    }
}

/// What it is told goes nowhere, and raises no signal.
#[test]
fn a_log_that_cannot_be_written_ends_no_program() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    let file = sandbox.path("log").display().to_string();
    for arguments in [vec!["behind", "unread"], vec!["behind", "cut", &file]] {
        for kind in ["miss", "another"] {
            let ran = sandbox.client(Way::Cached, &arguments);
            let what = format!("{arguments:?}, {kind}: {:?}", ran.signal);
            assert_eq!((ran.code, &*ran.stdout), (Some(0), BUILT), "{what}");
        }
    }
}

/// A supervisor that adopts processes waits for the end of each.
#[test]
#[allow(unsafe_code)] // the attribute has no safe interface
fn a_baker_that_a_supervisor_adopts_ends_at_once() {
    let real = Path::new(env!("CARGO_BIN_EXE_oclcache"));
    let Some(behind) = Behind::with("bakers that a supervisor adopts", real) else {
        return;
    };
    // It goes on until no baker is left, since who comes after it would adopt that.
    let script = "\"$0\" behind ignoring; left=1; while [ $left = 1 ]; do left=0; \
        for process in /proc/[0-9]*; do [ $process/exe -ef \"$1\" ] && left=1; done; done; true";
    for (setting, builds) in [("auto", 1), ("1", 0)] {
        let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
        let run = || {
            let mut command = behind.sandbox.command(Way::Cached, "sh");
            command.args(["-c", script]).arg(example("client"));
            command.arg(behind.place.path().join("oclcache"));
            command.env("OCLCACHE_AUTOBAKE", setting);
            let adopt = || {
                // SAFETY: of the new process.
                match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            };
            // SAFETY: one system call.
            unsafe { command.pre_exec(adopt) };
            behind.sandbox.run(&mut command).ok()
        };
        run();
        let again = run();
        assert_eq!(again.source_builds(), builds, "{setting}: {}", again.stderr);
        behind.ended();
    }
}

/// Nothing of the environment is read for them at the first build, when another thread may change it.
#[test]
fn the_settings_are_those_of_the_first_call() {
    let sandbox = Sandbox::stub();
    let source = sandbox.write("kernel.cl", SOURCE).display().to_string();
    let steps = ["set", "OCLCACHE_READONLY", "1", "build", &source];
    let arguments = [&["moments", "devices", "context"][..], &steps].concat();
    let ran = sandbox.client(Way::Cached, &arguments).ok();
    assert_eq!(sandbox.entries().len(), 1, "{}", ran.stderr);
}
