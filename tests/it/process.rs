//! What processes do besides calling OpenCL: they fork, they end at any moment, they use the loader from odd places.

use crate::support::{Driver, Ran, Sandbox, Way};

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
    let sandbox = Sandbox::new(Driver::Stub).expect("the stub is built with the tests");
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
