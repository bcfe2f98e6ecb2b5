//! `oclcache bake`: what a miss has left becomes an entry, whatever the driver or the recipe does.

use crate::support::{Driver, Ran, Sandbox, Way};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = (uint)get_global_id(0) * 3 + 1; }\n";

/// A sandbox whose misses leave recipes.
fn sandbox(driver: Driver) -> Option<Sandbox> {
    let mut sandbox = Sandbox::new(driver)?;
    sandbox.set("OCLCACHE_RECORD", "bake");
    Some(sandbox)
}

fn stub() -> Sandbox {
    sandbox(Driver::Stub).expect("the stub is built with the tests")
}

/// What the baker says at its end.
#[track_caller]
fn bake(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let ran = baking(sandbox, arguments).ok();
    let last = ran.stderr.lines().last().unwrap_or_default();
    last.strip_prefix("oclcache: ").unwrap_or(last).to_owned()
}

fn baking(sandbox: &Sandbox, arguments: &[&str]) -> Ran {
    let mut all = vec!["bake"];
    all.extend(arguments);
    sandbox.oclcache(&all)
}

#[test]
fn what_was_missed_is_there_for_the_next_process() {
    for driver in Driver::ALL {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let bare = sandbox.kernel(Way::Bare, SOURCE, "-DN=1").ok();
        let first = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
        assert_eq!(first.source_builds(), 1);
        assert_eq!(first.stdout, bare.stdout);
        assert_eq!(
            bake(&sandbox, &[]),
            "1 baked, 0 skipped, 0 failed",
            "{driver:?}"
        );
        let second = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
        let log = &second.stderr;
        assert_eq!(second.stdout, bare.stdout, "{driver:?}, log:\n{log}");
        assert_eq!(second.source_builds(), 0, "{driver:?}, log:\n{log}");
        assert_eq!(bake(&sandbox, &[]), "0 baked, 0 skipped, 0 failed");
        // The baker is no program of the user's.
        assert_eq!((sandbox.stat("misses"), sandbox.stat("hits")), (1, 1));
    }
}
