//! `oclcache bake`: what a miss has left becomes an entry, whatever the driver or the recipe does.

mod faults;
mod ingredients;
pub mod never_inside;
mod order;
mod places;
mod stale;

use std::path::{Path, PathBuf};

use crate::support::{Driver, Ran, Sandbox, Way, tree};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = (uint)get_global_id(0) * 3 + 1; }\n";

/// A sandbox whose misses leave recipes.
fn sandbox(driver: Driver) -> Option<Sandbox> {
    let mut sandbox = Sandbox::new(driver)?;
    sandbox.set("OCLCACHE_RECORD", "bake");
    if driver == Driver::Intel {
        // Intel's CPU runtime computes with functions of the program's libm where there is one (measured). The baker has libm, as
        // most programs do; the client does not.
        sandbox.set("LD_PRELOAD", "libm.so.6");
    }
    Some(sandbox)
}

fn stub() -> Sandbox {
    sandbox(Driver::Stub).expect("the stub is built with the tests")
}

/// Bakes, and gives what is said at the end.
#[track_caller]
fn bake(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let arguments = ["bake"].iter().chain(arguments).copied();
    let ran = sandbox.oclcache(&arguments.collect::<Vec<_>>()).ok();
    let last = ran.stderr.lines().last().unwrap_or_default();
    last.strip_prefix("oclcache: ").unwrap_or(last).to_owned()
}

/// Builds through the cache, and tells how often the driver compiled.
#[track_caller]
fn misses(sandbox: &Sandbox) -> usize {
    sandbox.kernel(Way::Cached, SOURCE, "").ok().source_builds()
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
        let entry = show(&sandbox);
        assert!(entry.contains("client"), "{driver:?}:\n{entry}");
    }
}

/// The only entry, as it is shown.
#[track_caller]
fn show(sandbox: &Sandbox) -> String {
    let entry = sandbox.entries().pop().expect("an entry");
    let key = entry.file_stem().expect("a name").to_string_lossy();
    sandbox.oclcache(&["show", &key]).ok().stdout
}

/// The file of the only kernel in a cache of PoCL's own, as it was compiled for a work-group size.
fn variant(cache: &Path) -> PathBuf {
    let is_variant = |path: &PathBuf| {
        let text = path.to_string_lossy();
        text.ends_with("/f.so") && !text.contains("/0-0-0")
    };
    let found: Vec<PathBuf> = tree(cache).into_keys().filter(is_variant).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// PoCL compiles a kernel for each work-group size, when it is first enqueued with that, unless the binary has it.
#[test]
fn a_baked_program_has_what_the_driver_made_when_it_ran() {
    let Some(mut sandbox) = sandbox(Driver::Pocl) else {
        return;
    };
    let [first, second, third] = ["own-1", "own-2", "own-3"].map(|name| sandbox.path(name));
    let is_marked = |cache: &Path| {
        let kernel = std::fs::read(variant(cache)).expect("read");
        kernel.ends_with(b"marked")
    };
    sandbox.set("POCL_CACHE_DIR", first.as_os_str());
    assert_eq!(misses(&sandbox), 1);
    // What stands behind the end of a library is of no account, but tells it from another.
    let kernel = variant(&first);
    let marked = [&std::fs::read(&kernel).expect("read")[..], b"marked"].concat();
    std::fs::write(kernel, marked).expect("written");
    assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
    assert!(show(&sandbox).contains("variants          stored for the work-group sizes"));
    sandbox.set("POCL_CACHE_DIR", second.as_os_str());
    assert_eq!(misses(&sandbox), 0);
    assert!(is_marked(&second), "compiled again");
    // Where the cache of the driver's own is gone, there is nothing to take, and that is said.
    sandbox.oclcache(&["clear"]).ok();
    sandbox.set("POCL_CACHE_DIR", third.as_os_str());
    assert_eq!(misses(&sandbox), 1);
    std::fs::remove_dir_all(&third).expect("removed");
    std::fs::create_dir(&third).expect("made");
    assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
    assert!(show(&sandbox).contains("variants          none"));
    // That it was baked does not make any.
    assert_eq!(bake(&sandbox, &["--all"]), "1 baked, 0 skipped, 0 failed");
    assert!(show(&sandbox).contains("variants          none"));
    // Once it has run again, there is.
    assert_eq!(misses(&sandbox), 0);
    assert_eq!(bake(&sandbox, &["--all"]), "1 baked, 0 skipped, 0 failed");
    assert!(show(&sandbox).contains("variants          stored for the work-group sizes"));
}

/// Who has turned the driver's own cache off finds nothing in it because of the baker.
#[test]
fn a_cache_of_the_drivers_own_that_is_off_stays_empty() {
    let Some(mut sandbox) = sandbox(Driver::Pocl) else {
        return;
    };
    let own = sandbox.path("own");
    sandbox.set("POCL_CACHE_DIR", own.as_os_str());
    sandbox.set("POCL_KERNEL_CACHE", "0");
    assert_eq!(misses(&sandbox), 1);
    let before = tree(&own);
    assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
    assert_eq!(tree(&own), before);
    assert!(show(&sandbox).contains("variants          none"));
    assert_eq!(misses(&sandbox), 0);
}

/// Objects, libraries, links, intermediate languages, programs for several devices: what is a hit where the miss was recorded at
/// once is one after baking.
#[test]
fn programs_that_are_made_in_any_way_are_baked() {
    for (driver, sections) in [
        (Driver::Stub, &["ways", "compilelink", "il", "devices"][..]),
        (Driver::Intel, &["il"]),
    ] {
        let Some(mut inline) = Sandbox::new(driver) else {
            continue;
        };
        for section in sections {
            let mut baked = sandbox(driver).expect("it is there");
            for sandbox in [&mut inline, &mut baked] {
                sandbox.set("STUB_DEVICES", "2");
                sandbox.set("CLIENT_DEVICES", "2");
            }
            let run = |sandbox: &Sandbox| sandbox.client(Way::Cached, &[section]).ok();
            // A second process learns what the entries lack.
            let served = [0; 3]
                .map(|_| run(&inline))
                .into_iter()
                .last()
                .expect("the third");
            run(&baked);
            let said = bake(&baked, &["-v"]);
            assert!(
                said.ends_with("0 skipped, 0 failed") && !said.starts_with("0 "),
                "{driver:?} {section}: {said}"
            );
            run(&baked);
            let after = run(&baked);
            let log = &after.stderr;
            assert_eq!(after.stdout, served.stdout, "{driver:?} {section}");
            assert_eq!(
                after.compiler_runs(),
                served.compiler_runs(),
                "{driver:?} {section}, {said}, log:\n{log}"
            );
            inline.oclcache(&["clear"]).ok();
        }
    }
}

/// PoCL writes embedded headers into files of its own cache.
#[test]
fn a_link_of_compiled_objects_is_baked_with_all_that_it_is_made_from() {
    let Some(sandbox) = sandbox(Driver::Pocl) else {
        return;
    };
    let of = |name: &str, text: &str| sandbox.write(name, text).display().to_string();
    let header = format!("a.h={}", of("a.h", "#define A 7\n"));
    let one = of(
        "one.cl",
        "#include \"a.h\"\nint part(int x) { return x + A; }\n",
    );
    let other = of(
        "other.cl",
        "int part(int);\n__kernel void f(__global uint *out) { out[get_global_id(0)] = part(1); }\n",
    );
    let run = || {
        let sources = ["--source", &one, "--source", &other, "--header", &header];
        let arguments = [&["linked", "--kernel", "f"][..], &sources].concat();
        sandbox.client(Way::Cached, &arguments).ok()
    };
    let first = run();
    assert_eq!(first.compiler_runs(), 3);
    assert_eq!(bake(&sandbox, &[]), "3 baked, 0 skipped, 0 failed");
    let second = run();
    assert_eq!(second.stdout, first.stdout);
    assert_eq!(second.compiler_runs(), 0, "log:\n{}", second.stderr);
}

/// The program of a source that stands in the working directory.
#[track_caller]
fn in_directory(sandbox: &Sandbox, directory: &Path, options: &str) -> Ran {
    sandbox.run(&mut sandbox.kernel_in(directory, options)).ok()
}
