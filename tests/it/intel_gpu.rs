//! Intel's GPU driver without a GPU: what is its own. What it shares with others is tested with them.

use crate::support::{Driver, Sandbox, Way, example, tree};
use crate::verify_and_must_hit::plant_for;

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";

fn misses(sandbox: &Sandbox) -> usize {
    sandbox.kernel(Way::Cached, SOURCE, "").ok().source_builds()
}

#[test]
fn an_entry_of_one_product_is_never_served_to_another() {
    let Some(mut sandbox) = Sandbox::new(Driver::IntelGpu) else {
        return;
    };
    for builds in [1, 0] {
        for product in ["skl", "icllp", "tgllp", "dg1"] {
            sandbox.set("ProductFamilyOverride", product);
            assert_eq!(misses(&sandbox), builds, "{product}");
        }
    }
}

#[test]
fn what_changes_its_code_compiles_again_and_its_own_cache_does_not() {
    let Some(mut sandbox) = Sandbox::new(Driver::IntelGpu) else {
        return;
    };
    assert_eq!(misses(&sandbox), 1);
    let own = sandbox.path("own");
    std::fs::create_dir(&own).expect("made");
    for (name, value, builds) in [
        ("IGC_ForceOCLSIMDWidth", "8", 1),
        ("OverrideDefaultFP64Settings", "1", 1),
        ("cl_cache_dir", own.to_str().expect("UTF-8"), 0),
    ] {
        sandbox.set(name, value);
        assert_eq!(misses(&sandbox), builds, "{name}");
        sandbox.variables.remove(name);
    }
}

/// The driver packs a program's binary once, also if the program is compiled again.
#[test]
fn a_program_that_is_compiled_again_gives_its_own_binary_and_is_stored_with_it() {
    let Some(mut sandbox) = Sandbox::new(Driver::IntelGpu) else {
        return;
    };
    for record in ["inline", "auto"] {
        sandbox.set("OCLCACHE_RECORD", record);
        for options in [
            &["-DNAME=first", "-DNAME=second"][..],
            &["-DNAME=second"][..],
        ] {
            let arguments = [&["compiled"], options].concat();
            let bare = sandbox.client(Way::Bare, &arguments).ok().stdout;
            assert!(bare.ends_with("first: false\nsecond: true\n"), "{bare}");
            assert_eq!(sandbox.client(Way::Cached, &arguments).ok().stdout, bare);
            sandbox.oclcache(&["bake"]).ok();
            assert_eq!(sandbox.client(Way::Cached, &arguments).ok().stdout, bare);
        }
    }
    assert!(sandbox.stat("hits") > 0);
}

/// It stands in the working directory, and the driver takes all settings from it that it would take from the environment.
#[test]
fn a_file_of_settings_compiles_again() {
    let Some(sandbox) = Sandbox::new(Driver::IntelGpu) else {
        return;
    };
    let place = sandbox.path("place");
    std::fs::create_dir(&place).expect("made");
    sandbox.write("place/kernel.cl", SOURCE);
    let settings = |product| {
        format!(
            "SetCommandStreamReceiver = 1\nProductFamilyOverride = {product}\nAUBDumpCaptureFileName = /dev/null\n"
        )
    };
    let builds = |settings: String| {
        sandbox.write("place/igdrcl.config", settings);
        let mut command = sandbox.kernel_in(&place, "");
        sandbox.run(&mut command).ok().source_builds()
    };
    assert_eq!(builds(settings("tgllp")), 1);
    assert_eq!(builds(settings("skl")), 1);
    assert_eq!(builds(settings("tgllp")), 0);
}

/// By itself it writes what a GPU would get into the working directory.
#[test]
fn the_driver_leaves_no_file_behind() {
    let Some(sandbox) = Sandbox::new(Driver::IntelGpu) else {
        return;
    };
    let place = sandbox.path("place");
    std::fs::create_dir(&place).expect("made");
    let mut command = sandbox.command(Way::Bare, example("client"));
    sandbox.run(command.arg("run").current_dir(&place)).ok();
    assert!(tree(&place).is_empty(), "{:?}", tree(&place));
}

/// The driver compiles a binary of another generation again from the intermediate representation in it. No key leads to one; if it
/// came to that, the program would still be the right one.
#[test]
fn a_binary_that_the_driver_compiles_again_is_the_same_program() {
    let Some(mut sandbox) = Sandbox::new(Driver::IntelGpu) else {
        return;
    };
    let bare = sandbox.kernel(Way::Bare, SOURCE, "").ok();
    assert_eq!(misses(&sandbox), 1);
    sandbox.set("ProductFamilyOverride", "skl");
    plant_for(&sandbox, SOURCE);
    sandbox.variables.remove("ProductFamilyOverride");
    sandbox.set("OCLCACHE_VERIFY", "100");
    let hit = sandbox.kernel(Way::Cached, SOURCE, "").ok();
    assert_eq!(hit.stdout, bare.stdout, "{}", hit.stderr);
    let counted = ["hits", "verified", "differed"].map(|name| sandbox.stat(name));
    assert_eq!(counted, [1, 1, 0], "{}", hit.stderr);
}
