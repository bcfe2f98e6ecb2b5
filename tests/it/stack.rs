//! Threads with small stacks: those on which a program lives bare, it lives on behind the cache.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::support::{Driver, Ran, Sandbox, Way, built, some_of};

/// What the section `stack` says of the thread's stack: how many bytes were used, and an address of the application's frame.
#[track_caller]
fn used(ran: &Ran) -> (usize, usize) {
    let mut lines = ran.stderr.lines();
    let line = lines.find_map(|line| line.strip_prefix("stack used "));
    let (used, frame) = line
        .and_then(|line| line.split_once(" frame 0x"))
        .expect("the stack");
    let frame = usize::from_str_radix(frame, 16).expect("an address");
    (used.parse().expect("a number"), frame)
}

/// How far below the application's frame that called OpenCL each call of the driver was entered, at most.
#[track_caller]
fn depths(sandbox: &Sandbox, ran: &Ran) -> BTreeMap<String, usize> {
    let log = std::fs::read_to_string(sandbox.path("stub.log")).expect("the stub's log");
    let _ = std::fs::remove_file(sandbox.path("stub.log"));
    let top = used(ran).1;
    let (mut application, mut depths) = (top, BTreeMap::new());
    for line in log.lines() {
        let Some((call, frame)) = line.split_once(" 0x") else {
            continue;
        };
        let Ok(frame) = usize::from_str_radix(frame, 16) else {
            continue;
        };
        // Calls of other threads are none of this one's.
        if top
            .checked_sub(frame)
            .is_none_or(|depth| depth >= MAX_STACK)
        {
            continue;
        }
        if call == "call" {
            application = frame;
        } else if let Some(call) = call.strip_prefix("frame ") {
            let depth = application.saturating_sub(frame);
            let deepest = depths.entry(call.to_owned()).or_insert(0);
            *deepest = depth.max(*deepest);
        }
    }
    depths
}

/// How much of ours may lie on the stack below a call of the driver, in bytes.
const MAX_BELOW_DRIVER: usize = 4 << 10;
/// The same where the driver compiles for the application. Exceptions pass through these frames.
const MAX_BELOW_COMPILER: usize = 2 << 10;
/// How much may ever lie there, the driver's own use included.
const MAX_STACK: usize = 64 << 10;

/// A sandbox with the release of the library: without optimization each closure of a hook has a frame of its own. It is built
/// here unless it is built already.
fn with_release(driver: Driver) -> Option<Sandbox> {
    let sandbox = Sandbox::new(driver)?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--quiet", "--release", "--lib"]);
    cargo.args(["--bin", "oclcache"]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.arg("--target-dir");
    let debug = built();
    let target = debug.parent().expect("the target directory");
    let status = cargo.arg(target).status().expect("cargo");
    assert!(status.success(), "the release is not built");
    let release = target.join("release/liboclcache.so");
    sandbox.write("oclcache/oclcache.icd", release.as_os_str().as_bytes());
    Some(sandbox)
}

#[test]
fn little_stack_is_used() {
    let mut sandbox = with_release(Driver::Stub).expect("the stub is built with the tests");
    sandbox.set("STUB_STACK", "1");
    // Where only the cache makes a call, another program tells how deep that is bare.
    let mut usual = BTreeMap::new();
    for how in ["binary", "compile", "kernel"] {
        let bare = sandbox.client(Way::Bare, &["stack", "1024", how]).ok();
        usual.extend(depths(&sandbox, &bare));
    }
    for log in ["off", "debug"] {
        sandbox.set("OCLCACHE_LOG", log);
        for how in ["build", "macros", "compile", "header", "kernel", "nested"] {
            let run = |way| sandbox.client(way, &["stack", "1024", how]).ok();
            let bare = run(Way::Bare);
            let mut bare_depths = usual.clone();
            bare_depths.extend(depths(&sandbox, &bare));
            let _ = std::fs::remove_dir_all(sandbox.path("cache"));
            for kind in ["miss", "hit"] {
                let ran = run(Way::Cached);
                assert_eq!(ran.stdout, bare.stdout, "{how}: {}", ran.stderr);
                let all = used(&ran).0;
                assert!(all <= MAX_STACK, "{how}, {kind}: {all} bytes");
                for (call, depth) in depths(&sandbox, &ran) {
                    let ours = depth - bare_depths[&call];
                    let most = match (kind, call.as_str()) {
                        ("miss", "build") => MAX_BELOW_COMPILER,
                        _ => MAX_BELOW_DRIVER,
                    };
                    assert!(ours <= most, "{how}, {kind}, {call}: {ours} bytes of ours");
                }
            }
        }
    }
}

/// How much more of a stack it may take to create a kernel of a program that was missed.
const MAX_OF_KERNEL: usize = 12 << 10;

/// Drivers need a few KiB for it, so programs do it on threads that have few.
#[test]
fn a_kernel_is_created_on_little_stack() {
    let sandbox = with_release(Driver::Stub).expect("the stub is built with the tests");
    let run = |way| sandbox.client(way, &["stack", "1024", "created"]).ok();
    let bare = run(Way::Bare);
    for kind in ["miss", "hit"] {
        let ran = run(Way::Cached);
        assert_eq!(ran.stdout, bare.stdout, "{kind}: {}", ran.stderr);
        let ours = used(&ran).0.saturating_sub(used(&bare).0);
        assert!(ours <= MAX_OF_KERNEL, "{kind}: {ours} bytes of ours");
    }
}

/// How far apart the sizes are that are tried, in KiB. The drivers' own use differs by less from run to run.
const STEP: usize = 16;
/// What our own work needs where the driver needs less, in KiB: our peak, and the frames of the application.
const MIN_SIZE: usize = 96;

/// The least stack in KiB on which a program lives bare, to the next `STEP`.
#[track_caller]
fn least_stack(sandbox: &Sandbox, how: &str) -> usize {
    let lives = |size: usize| {
        let size = (size * STEP).to_string();
        let ran = || sandbox.client(Way::Bare, &["stack", &size, how]);
        (0..2).all(|_| ran().code == Some(0))
    };
    let (mut least, mut most) = (1, (8 << 10) / STEP);
    assert!(lives(most), "{how}: 8 MiB are not enough");
    while least + 1 < most {
        let middle = usize::midpoint(least, most);
        match lives(middle) {
            true => most = middle,
            false => least = middle,
        }
    }
    most * STEP
}

#[test]
fn each_thread_on_which_a_build_lives_bare_is_large_enough() {
    let drivers = [Driver::Stub, Driver::Pocl, Driver::Intel, Driver::Rusticl];
    for driver in some_of(&drivers) {
        let Some(mut sandbox) = with_release(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_LOG", "off");
        for how in ["macros", "kernel"] {
            let least = least_stack(&sandbox, how);
            let run = |way, size: usize| sandbox.client(way, &["stack", &size.to_string(), how]);
            let size = (least + STEP).max(MIN_SIZE);
            let bare = run(Way::Bare, size).ok();
            // What is remembered of the driver stays: to read it all again takes seconds.
            let _ = std::fs::remove_dir_all(sandbox.path("cache/v1/entries"));
            for kind in ["miss", "hit"] {
                let ran = run(Way::Cached, size);
                let what = format!("{driver:?}, {how}, {kind}, {size} KiB, bare {least}");
                assert_eq!(ran.code, Some(0), "{what}: {:?}", ran.signal);
                assert_eq!(ran.stdout, bare.stdout, "{what}");
            }
        }
    }
}
