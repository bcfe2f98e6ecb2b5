//! A process with a variable that no process had before reads no library of the driver's: all names were gathered behind the first one.

use std::fs;
use std::path::Path;

use crate::autobake::Behind;
use crate::support::{Driver, Ran, Sandbox, example};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 1; }\n";
/// What the log says of a search, and of gathering.
const READ: &str = "names of variables were";

/// The kernel with one more variable.
fn with(sandbox: &Sandbox, variable: &str) -> Ran {
    let mut command = sandbox.kernel_in(&sandbox.path("home"), "");
    fs::write(sandbox.path("home/kernel.cl"), SOURCE).expect("written");
    command.env(variable, "1").env("OCLCACHE_LOG", "debug");
    sandbox.run(&mut command).ok()
}

/// Whether the cache directory has all names of some libraries.
fn are_gathered(sandbox: &Sandbox) -> bool {
    let files = fs::read_dir(sandbox.path("cache/v1/names")).into_iter();
    let mut files = files.flatten().flatten();
    files.any(|file| {
        let content = fs::read(file.path()).unwrap_or_default();
        let version = content.strip_prefix(b"oclcache names ");
        version.is_some_and(|version| version[0].is_ascii_digit())
    })
}

/// The kernel with a variable that is looked for in no library.
#[track_caller]
fn is_not_searched_for(sandbox: &Sandbox, variable: &str) -> Ran {
    assert!(are_gathered(sandbox), "{variable}");
    let ran = with(sandbox, variable);
    assert!(!ran.stderr.contains(READ), "{variable}: {}", ran.stderr);
    ran
}

#[track_caller]
fn is_served_without_a_search(sandbox: &Sandbox, variable: &str) {
    let ran = is_not_searched_for(sandbox, variable);
    assert_eq!(ran.source_builds(), 0, "{variable}: {}", ran.stderr);
}

fn real_command() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_oclcache"))
}

#[test]
fn once_a_program_has_ended_a_new_variable_is_looked_for_in_no_library() {
    for driver in Driver::ALL {
        let test = "names that are gathered behind a program";
        let Some(mut behind) = Behind::on(test, real_command(), driver) else {
            continue;
        };
        behind.sandbox.set("OCLCACHE_RECORD", "inline");
        with(&behind.sandbox, "FIRST_VARIABLE");
        behind.ended();
        is_served_without_a_search(&behind.sandbox, "SECOND_VARIABLE");
        let running = behind.running();
        assert!(running.is_empty(), "{driver:?}: there is nothing to do");
    }
}

#[test]
fn where_nobody_may_gather_behind_a_program_a_bake_gathers() {
    let sandbox = Sandbox::stub();
    with(&sandbox, "FIRST_VARIABLE");
    let ran = with(&sandbox, "SECOND_VARIABLE");
    assert!(ran.stderr.contains(READ), "{}", ran.stderr);
    assert!(!are_gathered(&sandbox), "{}", ran.stderr);
    let baked = sandbox.oclcache(&["bake"]).ok();
    let said = "oclcache: 0 baked, 0 skipped, 0 failed\n";
    assert_eq!(baked.stderr, said);
    is_served_without_a_search(&sandbox, "THIRD_VARIABLE");
}

/// It starts one baker for all its processes.
#[test]
fn what_the_processes_of_a_run_searched_for_is_gathered_behind_it() {
    let Some(behind) = Behind::with("names that are gathered behind a run", real_command()) else {
        return;
    };
    let sandbox = &behind.sandbox;
    let mut command = behind.command();
    command.args(["run", "-q"]).arg(example("client"));
    command.args(["behind", "ignoring"]);
    command.env("OCLCACHE_RECORD", "inline");
    let ran = sandbox.run(&mut command).ok();
    assert_eq!(ran.stderr, "");
    behind.ended();
    assert!(are_gathered(sandbox));
    // A second run leaves nothing to do.
    sandbox.run(&mut command).ok();
    assert_eq!(behind.running().len(), 0);

    fs::remove_dir_all(sandbox.path("cache")).expect("removed");
    let mut command = behind.command();
    command.args(["run", "--bake"]).arg(example("client"));
    command.args(["behind", "ignoring"]);
    command.env("OCLCACHE_RECORD", "inline");
    sandbox.run(&mut command).ok();
    assert!(are_gathered(sandbox));
    assert_eq!(behind.running().len(), 0);
}

/// What has stopped a baker may stop each: only what its own processes leave is a reason for a run to start one.
#[test]
fn what_was_left_before_a_run_starts_nobody_behind_it() {
    let Some(behind) = Behind::with("names that were left before a run", real_command()) else {
        return;
    };
    let run = |variable, autobake| {
        let mut command = behind.command();
        command.args(["run", "-q"]).arg(example("client"));
        command.args(["behind", "ignoring"]);
        command.env("OCLCACHE_RECORD", "inline");
        command.env("OCLCACHE_AUTOBAKE", autobake);
        behind.sandbox.run(command.env(variable, "1")).ok();
        behind.ended();
        are_gathered(&behind.sandbox)
    };
    assert!(!run("FIRST_VARIABLE", "0"));
    assert!(!run("FIRST_VARIABLE", "1"));
    assert!(run("SECOND_VARIABLE", "1"), "its process has searched");
}

/// The next process with these variables does not search, so it asks for nobody.
#[test]
fn names_are_gathered_behind_a_program_that_does_not_compile() {
    let Some(mut behind) = Behind::with("names and a failing build", real_command()) else {
        return;
    };
    behind.sandbox.set("OCLCACHE_RECORD", "inline");
    let sandbox = &behind.sandbox;
    let mut command = sandbox.kernel_in(&sandbox.path("home"), "");
    fs::write(sandbox.path("home/kernel.cl"), "#error it fails\n").expect("written");
    let ran = sandbox.run(command.env("FIRST_VARIABLE", "1"));
    assert_eq!(sandbox.stat("failed"), 1, "{}", ran.stderr);
    behind.ended();
    is_not_searched_for(&behind.sandbox, "SECOND_VARIABLE");
}

/// A process that only reads what another one has found is no reason for a baker: what stops one stops the next, for ever.
#[test]
fn a_baker_that_cannot_gather_is_not_started_again_until_there_is_another_search() {
    let Some(mut behind) = Behind::new("names that a baker cannot gather") else {
        return;
    };
    behind.sandbox.set("OCLCACHE_RECORD", "inline");
    with(&behind.sandbox, "FIRST_VARIABLE");
    assert_eq!(behind.running().len(), 1);
    behind.let_go();
    let snapshot = b"oclcsnap";
    let mut removed = 0;
    for file in fs::read_dir(behind.sandbox.path("cache/v1/names")).expect("listed") {
        let path = file.expect("listed").path();
        let content = fs::read(&path).expect("read");
        if content.starts_with(snapshot) {
            fs::remove_file(path).expect("removed");
            removed += 1;
        }
    }
    assert!(removed > 0, "what the first process knew");
    let ran = with(&behind.sandbox, "FIRST_VARIABLE");
    assert!(!ran.stderr.contains(READ), "{}", ran.stderr);
    assert_eq!(behind.running().len(), 0);
    with(&behind.sandbox, "SECOND_VARIABLE");
    assert_eq!(behind.running().len(), 1);
}

/// The settings of the program count for who is started behind it, not those of the user's file.
#[test]
fn names_are_gathered_behind_a_program_that_alone_has_a_cache_or_may_write_to_it() {
    for (line, variable) in [
        ("disable = true\n", "OCLCACHE_DISABLE"),
        ("readonly = true\n", "OCLCACHE_READONLY"),
    ] {
        let Some(mut behind) = Behind::with("settings of one program", real_command()) else {
            return;
        };
        let settings = behind.sandbox.path("home/.config/oclcache");
        fs::create_dir_all(&settings).expect("made");
        fs::write(settings.join("config.toml"), line).expect("written");
        behind.sandbox.set("OCLCACHE_RECORD", "inline");
        with(&behind.sandbox, "FIRST_VARIABLE");
        assert!(!behind.sandbox.path("cache/v1").exists(), "{line}");
        behind.sandbox.set(variable, "0");
        with(&behind.sandbox, "FIRST_VARIABLE");
        behind.ended();
        is_served_without_a_search(&behind.sandbox, "SECOND_VARIABLE");
    }
}

#[test]
fn where_nothing_can_be_kept_nobody_is_started() {
    let Some(mut behind) = Behind::new("names that cannot be kept") else {
        return;
    };
    behind.sandbox.set("OCLCACHE_RECORD", "inline");
    with(&behind.sandbox, "FIRST_VARIABLE");
    assert_eq!(behind.running().len(), 1);
    behind.let_go();
    let names = behind.sandbox.path("cache/v1/names");
    fs::remove_dir_all(&names).expect("removed");
    fs::write(&names, "").expect("in the way");
    let ran = with(&behind.sandbox, "SECOND_VARIABLE");
    assert!(ran.stderr.contains(READ), "{}", ran.stderr);
    assert_eq!(behind.running().len(), 0);
}
