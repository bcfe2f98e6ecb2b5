//! What is linked is what the application gave, whatever other threads, contexts and devices do with it.

use std::process::Command;

use crate::support::{Driver, Sandbox, Way, example, some_of};

/// One run of each in turn; the last must give what the bare driver gives. Each process came to the cache.
#[track_caller]
pub fn last_is_bare(sandbox: &Sandbox, runs: &[&[&str]]) {
    for arguments in runs {
        let ran = sandbox.client(Way::Cached, arguments).ok();
        if Some(arguments) == runs.last() {
            let bare = sandbox.client(Way::Bare, arguments).ok();
            assert_eq!(ran.stdout, bare.stdout, "log:\n{}", ran.stderr);
        }
        assert!(ran.stderr.contains("outcome="), "log:\n{}", ran.stderr);
    }
}

/// A stub whose compiler is slow enough for others to come between.
fn slow_stub() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_BUILD_MS", "300");
    sandbox
}

#[test]
fn an_object_is_not_taken_for_what_it_was_before_calls_that_ran_at_once() {
    last_is_bare(
        &slow_stub(),
        &[&["input-threads", "refused"], &["input-threads", "alone"]],
    );
}

#[test]
fn what_is_built_while_a_constant_is_set_is_not_taken_for_what_has_none() {
    if let Some(sandbox) = Sandbox::new(Driver::Intel) {
        last_is_bare(&sandbox, &[&["il-raced", "5"], &["il-raced"]]);
    }
}

/// Cold and warm, on each of these drivers.
#[track_caller]
pub fn same_in_all_ways(drivers: &[Driver], arguments: &[&str]) {
    for sandbox in drivers.iter().filter_map(|driver| Sandbox::new(*driver)) {
        for _ in 0..2 {
            last_is_bare(&sandbox, &[arguments]);
        }
        assert!(sandbox.stat("hits") > 0, "{arguments:?}");
    }
}

#[test]
fn programs_of_another_context_are_judged_by_the_driver() {
    same_in_all_ways(&Driver::ALL, &["input-contexts"]);
}

#[test]
fn an_input_that_is_compiled_anew_meanwhile_is_not_taken_for_what_it_was() {
    last_is_bare(
        &slow_stub(),
        &[
            &["input-threads", "both"],
            &["input-threads", "meanwhile"],
            &["input-threads", "two"],
        ],
    );
}

#[test]
fn an_object_for_one_device_is_not_linked_for_another_that_is_alike() {
    // PoCL ends the process in such a link, rusticl has no parts of devices.
    let Some(sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    last_is_bare(&sandbox, &[&["input-parts"], &["input-parts"]]);
    assert!(sandbox.stat("bypass_reasons/some_devices") > 0);
}

/// Intel's CPU runtime tells the size of a value of compiled objects that it then refuses.
#[test]
fn an_object_tells_the_size_of_what_the_driver_refuses() {
    same_in_all_ways(&[Driver::Intel], &["link"]);
}

/// Whether the process ends well on a stack of this many KiB.
#[track_caller]
fn runs_on_a_stack(sandbox: &Sandbox, size: u32, arguments: &[&str]) {
    let shell = format!("ulimit -s {size} && exec \"$0\" \"$@\"");
    let mut command: Command = sandbox.command(Way::Cached, "sh");
    command.args(["-c", &shell]).arg(example("client"));
    sandbox.run(command.args(arguments)).ok();
}

#[test]
fn libraries_of_libraries_need_no_more_stack_than_there_is() {
    let sandbox = Sandbox::stub();
    for count in ["60", "5000"] {
        runs_on_a_stack(&sandbox, 512, &["input-nested", count]);
    }
    assert!(sandbox.stat("hits") > 0);
}

#[test]
fn an_object_from_the_cache_is_linked_as_it_was_although_a_file_would_be_read_now() {
    // What was linked shows in what the kernel computes.
    let executing = Driver::ALL.into_iter().filter(|driver| driver.executes());
    for driver in some_of(&executing.collect::<Vec<_>>()) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let run = |way, how| {
            let _ = std::fs::remove_file(sandbox.path("home/inputs.h"));
            let mut command = sandbox.command(way, example("client"));
            let command = command.current_dir(sandbox.path("home"));
            sandbox.run(command.args(["input-moved", how])).ok()
        };
        run(Way::Cached, "compiled");
        let bare = run(Way::Bare, "linked");
        for _ in 0..2 {
            let ran = run(Way::Cached, "linked");
            assert_eq!(ran.stdout, bare.stdout, "{driver:?}, log:\n{}", ran.stderr);
        }
        assert!(sandbox.stat("hits") > 0, "{driver:?}");
    }
}
