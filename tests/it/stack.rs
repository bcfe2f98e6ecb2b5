//! Threads with small stacks: those on which a program lives bare, it lives on behind the cache.

use crate::support::{Driver, Ran, Sandbox, Way};

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

/// How far below the application's frame the driver was called.
#[track_caller]
fn depth(sandbox: &Sandbox, ran: &Ran) -> usize {
    let log = std::fs::read_to_string(sandbox.path("stub.log")).expect("the stub's log");
    let mut lines = log.lines().rev();
    let driver = lines
        .find_map(|line| line.strip_prefix("frame 0x"))
        .expect("a build");
    used(ran).1 - usize::from_str_radix(driver, 16).expect("an address")
}

/// How much of ours may lie on the stack below a call of the driver, in bytes. Measured without optimization, where each closure of
/// a hook has a frame of its own: 6096 on a hit.
const MAX_BELOW_DRIVER: usize = if cfg!(debug_assertions) {
    6 << 10
} else {
    4 << 10
};
/// The same where the driver compiles for the application, measured alike: 1168. Exceptions pass through these frames.
const MAX_BELOW_COMPILER: usize = 2 << 10;
/// How much may ever lie there, the driver's own use included.
const MAX_STACK: usize = 64 << 10;

#[test]
fn little_stack_is_used() {
    let mut sandbox = Sandbox::new(Driver::Stub).expect("the stub is built with the tests");
    sandbox.set("STUB_STACK", "1");
    for log in ["off", "debug"] {
        sandbox.set("OCLCACHE_LOG", log);
        for how in ["build", "macros", "compile", "header"] {
            let run = |way| sandbox.client(way, &["stack", "1024", how]).ok();
            let bare = run(Way::Bare);
            let bare_depth = (how == "build").then(|| depth(&sandbox, &bare));
            let _ = std::fs::remove_dir_all(sandbox.path("cache"));
            for kind in ["miss", "hit"] {
                let ran = run(Way::Cached);
                assert_eq!(ran.stdout, bare.stdout, "{how}: {}", ran.stderr);
                let all = used(&ran).0;
                assert!(all <= MAX_STACK, "{how}, {kind}: {all} bytes");
                if let Some(bare) = bare_depth {
                    let ours = depth(&sandbox, &ran) - bare;

                    let most = match kind {
                        "miss" => MAX_BELOW_COMPILER,
                        _ => MAX_BELOW_DRIVER,
                    };
                    assert!(ours <= most, "{kind}: {ours} bytes of ours");
                }
            }
        }
    }
}

/// As far as one can tell: the drivers' own use differs from run to run, so a size counts if a build lives bare on a stack that is
/// smaller by what may lie below the driver.
#[test]
fn each_thread_on_which_a_build_lives_bare_is_large_enough() {
    for driver in [Driver::Stub, Driver::Pocl, Driver::Intel] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_LOG", "off");
        for how in ["build", "macros"] {
            for size in [96, 160] {
                let run =
                    |way, size: usize| sandbox.client(way, &["stack", &size.to_string(), how]);
                let bare = run(Way::Bare, size - (MAX_BELOW_DRIVER >> 10));
                if bare.code != Some(0) || run(Way::Bare, size - 8).code != Some(0) {
                    continue;
                }
                // What is remembered of the driver stays: to read it all again takes seconds.
                let _ = std::fs::remove_dir_all(sandbox.path("cache/v1/entries"));
                for kind in ["miss", "hit"] {
                    let ran = run(Way::Cached, size);
                    let what = format!("{driver:?}, {how}, {kind}, {size} KiB");
                    assert_eq!(ran.code, Some(0), "{what}: {:?}", ran.signal);
                    assert_eq!(ran.stdout, bare.stdout, "{what}");
                }
            }
        }
    }
}
