//! Where a recipe is baked: its headers, its environment, its driver.

use std::fs;
use std::os::unix::fs::symlink;

use super::{bake, in_directory, misses, sandbox, stub};
use crate::support::{Driver, Sandbox, Way, example};

const INCLUDING: &str = "#include \"a.h\"\n#include \"sub/b.h\"\n\
    __kernel void f(__global uint *out) { out[get_global_id(0)] = A + B + C; }\n";

/// A working directory whose program includes files by options and by one another.
pub(super) fn tree(sandbox: &Sandbox) -> std::path::PathBuf {
    let work = sandbox.path("work");
    for (name, text) in [
        ("kernel.cl", INCLUDING),
        ("inc/a.h", "#pragma once\n#define A 1\n"),
        ("other/sub/b.h", "#include \"../c.h\"\n#define B 20\n"),
        ("other/c.h", "#define C 300\n"),
    ] {
        let path = work.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }
    // The same directory twice, and the same file by another name.
    symlink("inc", work.join("again")).expect("linked");
    fs::hard_link(work.join("inc/a.h"), work.join("other/a.h")).expect("linked");
    work
}

pub(super) const OPTIONS: &str = "-I inc -I again -Iother";

#[test]
fn headers_are_found_where_the_application_had_them_and_are_the_recipes_own() {
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let work = tree(&sandbox);
        let first = in_directory(&sandbox, &work, OPTIONS);
        assert_eq!(first.source_builds(), 1);
        assert_eq!(
            bake(&sandbox, &[]),
            "1 baked, 0 skipped, 0 failed",
            "{driver:?}"
        );
        let second = in_directory(&sandbox, &work, OPTIONS);
        assert_eq!(
            second.source_builds(),
            0,
            "{driver:?}, log:\n{}",
            second.stderr
        );
        // What the stub computes depends on the spelling of options.
        if driver != Driver::Stub {
            assert_eq!(second.stdout, first.stdout, "{driver:?}");
        }
        // Who has it elsewhere shares it, and its recipe tells of the application's files.
        let elsewhere = sandbox.path("elsewhere");
        fs::rename(&work, &elsewhere).expect("renamed");
        let options = "-I ./inc -I again -I./other";
        assert_eq!(
            in_directory(&sandbox, &elsewhere, options).source_builds(),
            0
        );
        assert!(super::show(&sandbox).contains(OPTIONS));
    }
}

#[test]
fn what_nobody_could_hit_is_not_baked() {
    let sandbox = stub();
    let work = tree(&sandbox);
    assert_eq!(in_directory(&sandbox, &work, OPTIONS).source_builds(), 1);
    fs::write(work.join("other/c.h"), "#define C 4\n").expect("written");
    let changed = "the header `-I2/sub/../c.h` has changed, so no program could hit the entry";
    let skipped = |why: &str| format!("0 baked, 1 skipped (1: {why}), 0 failed");
    assert_eq!(bake(&sandbox, &[]), skipped(changed));
    fs::write(work.join("other/c.h"), "#define C 300\n").expect("written");
    // One that would be found first.
    fs::create_dir(work.join("sub")).expect("made");
    fs::write(work.join("sub/b.h"), "#define B 5\n").expect("written");
    let new = "the header `cwd/sub/b.h` has changed, so no program could hit the entry";
    assert_eq!(bake(&sandbox, &[]), skipped(new));
    fs::remove_dir_all(work.join("sub")).expect("removed");
    assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
}

#[test]
fn a_variable_that_may_name_a_program_or_file_is_not_set_because_a_recipe_says_so() {
    let mut sandbox = stub();
    sandbox.set("STUB_CODE", "other");
    assert_eq!(misses(&sandbox), 1);
    sandbox.variables.remove("STUB_CODE");
    let said = bake(&sandbox, &[]);
    assert!(
        said.starts_with("0 baked, 1 skipped (1: STUB_CODE has another value"),
        "{said}"
    );
    sandbox.set("STUB_CODE", "other");
    assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
    assert_eq!(misses(&sandbox), 0);

    let Some(mut sandbox) = super::sandbox(Driver::Pocl) else {
        return;
    };
    sandbox.set("POCL_WORK_GROUP_METHOD", "loops");
    assert_eq!(misses(&sandbox), 1);
    sandbox.variables.remove("POCL_WORK_GROUP_METHOD");
    assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
    sandbox.set("POCL_WORK_GROUP_METHOD", "loops");
    assert_eq!(misses(&sandbox), 0);
}

#[test]
fn a_driver_that_is_not_registered_is_not_opened() {
    let mut sandbox = stub();
    assert_eq!(misses(&sandbox), 1);
    fs::create_dir(sandbox.path("none")).expect("made");
    let vendors = sandbox.path("none");
    sandbox.set("OCLCACHE_VENDORS", vendors.as_os_str());
    sandbox.set("OCL_ICD_VENDORS", vendors.as_os_str());
    let said = bake(&sandbox, &[]);
    assert!(said.contains("libspy.so` is not registered"), "{said}");
    for name in ["OCLCACHE_VENDORS", "OCL_ICD_VENDORS"] {
        sandbox.variables.remove(name);
    }
    let unknown = ["--driver", "pocl"];
    assert_eq!(bake(&sandbox, &unknown), "0 baked, 0 skipped, 0 failed");
    assert_eq!(
        bake(&sandbox, &["--driver", "unknown"]),
        "1 baked, 0 skipped, 0 failed"
    );
}

/// The stub's profile is that of drivers which nobody knows: these may look at it.
#[test]
fn the_worker_has_the_name_of_the_program_where_the_driver_may_look_at_it() {
    let sandbox = stub();
    let other = sandbox.path("other-name");
    crate::support::copy_program(example("client"), &other);
    let source = sandbox.write("kernel.cl", super::SOURCE);
    let run = || {
        let mut command = sandbox.command(Way::Cached, &other);
        command
            .args(["run", "--kernel", "f", "--source"])
            .arg(&source);
        sandbox.run(&mut command).ok().source_builds()
    };
    assert_eq!((run(), misses(&sandbox)), (1, 1));
    assert_eq!(bake(&sandbox, &[]), "2 baked, 0 skipped, 0 failed");
    assert_eq!((run(), misses(&sandbox)), (0, 0));
}
