//! What enters a key is what the baker has as well, or the miss says at once why nobody can bake it: one test for each kind.
//!
//! Source, options, operation, embedded headers, intermediate languages, constants, inputs and earlier calls are in the recipe:
//! `programs_that_are_made_in_any_way_are_baked`. Devices, the processor and the driver's files are the machine's: `stale`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::places::tree;
use super::{bake, in_directory, misses, sandbox, show, stub};
use crate::functions::{GETENV, program, shared};
use crate::support::{Driver, Sandbox, Way, example, library, some_of};

/// The miss has left nothing, and says why.
#[track_caller]
fn refused(sandbox: &Sandbox, reason: &str) {
    let json = sandbox.oclcache(&["explain", "--json", "--last", "1"]);
    let json = json.ok().stdout;
    let said = format!("\"not_stored\": \"{reason}\"");
    assert!(json.contains(&said), "{reason}: {json}");
    assert!(json.contains("\"kept\": \"nothing\""), "{json}");
}

const BAKED: &str = "1 baked, 0 skipped, 0 failed";

/// A program that includes a header by its path.
fn absolute(sandbox: &Sandbox) -> (std::path::PathBuf, String) {
    let header = sandbox.write("absolute.h", "#define V 7\n");
    let kernel = "__kernel void f(__global uint *out) { out[get_global_id(0)] = V; }";
    let source = format!("#include \"{}\"\n{kernel}\n", header.display());
    (header, source)
}

#[test]
fn a_header_that_is_named_by_its_path_is_read_there_while_it_is_what_it_was() {
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let (header, source) = absolute(&sandbox);
        let run = || sandbox.kernel(Way::Cached, &source, "").ok();
        let first = run();
        fs::write(&header, "#define V 8\n").expect("written");
        let said = bake(&sandbox, &[]);
        assert!(
            said.contains("has changed, so no program could hit the entry"),
            "{said}"
        );
        fs::write(&header, "#define V 7\n").expect("written");
        assert_eq!(bake(&sandbox, &[]), BAKED, "{driver:?}");
        let second = run();
        assert_eq!((second.source_builds(), second.stdout), (0, first.stdout));
    }
}

/// PoCL files what it compiles under the options, so only who has the same finds it.
#[test]
fn options_that_name_directories_are_the_applications_own() {
    let Some(mut sandbox) = sandbox(Driver::Pocl) else {
        return;
    };
    let own = sandbox.path("own");
    sandbox.set("POCL_CACHE_DIR", own.as_os_str());
    let work = tree(&sandbox);
    let options = super::places::OPTIONS;
    assert_eq!(in_directory(&sandbox, &work, options).source_builds(), 1);
    assert_eq!(bake(&sandbox, &[]), BAKED);
    assert!(show(&sandbox).contains("variants          stored for the work-group sizes"));
    assert_eq!(in_directory(&sandbox, &work, options).source_builds(), 0);
}

/// Nothing depends on the directory in which the program ran: PoCL finds elsewhere what it compiled there, if the options are the same.
#[test]
fn headers_of_absolute_paths_are_compiled_with_the_same_options_wherever_the_program_ran() {
    let Some(mut sandbox) = sandbox(Driver::Pocl) else {
        return;
    };
    let own = sandbox.path("own");
    sandbox.set("POCL_CACHE_DIR", own.as_os_str());
    let [work, include] = ["work", "include"].map(|name| sandbox.path(name));
    for directory in [&work, &include] {
        fs::create_dir(directory).expect("made");
    }
    let (header, source) = absolute(&sandbox);
    let source = format!("#include \"b.h\"\n{source}");
    fs::write(include.join("b.h"), "#define B 1\n").expect("written");
    fs::write(work.join("kernel.cl"), &source).expect("written");
    let options = format!("-I {}", include.display());
    assert_eq!(in_directory(&sandbox, &work, &options).source_builds(), 1);
    fs::remove_dir_all(&work).expect("removed");
    fs::write(&header, "#define V 8\n").expect("written");
    let said = bake(&sandbox, &[]);
    assert!(said.contains("absolute.h` has changed"), "{said}");
    fs::write(&header, "#define V 7\n").expect("written");
    assert_eq!(bake(&sandbox, &[]), BAKED);
    let shown = show(&sandbox);
    assert!(shown.contains("variants          stored for the work-group sizes"));
    assert!(shown.contains(&options), "{shown}");
    let run = sandbox.kernel(Way::Cached, &source, &options);
    assert_eq!(run.ok().source_builds(), 0);
}

/// The baker has compared the headers before it compiles.
#[test]
fn a_header_that_changes_while_the_baker_compiles_leaves_no_entry() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "2000");
    let (header, source) = absolute(&sandbox);
    assert_eq!(
        sandbox
            .kernel(Way::Cached, &source, "")
            .ok()
            .source_builds(),
        1
    );
    let before = sandbox.compilations();
    let mut baker = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    baker.arg("bake");
    let baker = baker.stderr(Stdio::piped()).spawn().expect("a baker");
    super::faults::wait_for("the driver compiles", || sandbox.compilations() > before);
    fs::write(&header, "#define V 8\n").expect("written");
    let said = baker.wait_with_output().expect("ended").stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    let skipped = "0 baked, 1 skipped (1: it is not stored: a header was changed, made or removed meanwhile), 0 failed";
    assert!(said.contains(skipped), "{said}");
    fs::write(&header, "#define V 7\n").expect("written");
    assert_eq!(bake(&sandbox, &[]), BAKED);
}

/// What a compiler says of a header names its directory.
#[test]
fn a_build_log_that_names_directories_is_stored_for_those_and_others_are_told() {
    let Some(sandbox) = sandbox(Driver::Pocl) else {
        return;
    };
    let work = tree(&sandbox);
    fs::write(work.join("other/c.h"), "#warning said\n#define C 300\n").expect("written");
    let run = |place: &Path| {
        let options = format!("-I inc -I again -I{}/other", place.display());
        in_directory(&sandbox, place, &options)
    };
    let first = run(&work);
    assert_eq!(bake(&sandbox, &[]), BAKED);
    let second = run(&work);
    assert_eq!((second.source_builds(), second.stdout), (0, first.stdout));
    let elsewhere = sandbox.path("elsewhere");
    fs::rename(&work, &elsewhere).expect("renamed");
    assert_eq!(run(&elsewhere).source_builds(), 1);
    refused(&sandbox, "other_directories");
    fs::rename(&elsewhere, &work).expect("renamed");
    assert_eq!(run(&work).source_builds(), 0);
}

#[test]
fn a_working_directory_in_the_key_is_the_bakers_as_well() {
    for driver in [Driver::Stub, Driver::Intel] {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let work = sandbox.path("work");
        fs::create_dir(&work).expect("made");
        fs::write(work.join("kernel.cl"), super::SOURCE).expect("written");
        let run = || in_directory(&sandbox, &work, "-g").source_builds();
        assert_eq!(run(), 1);
        let shown = show(&sandbox);
        assert!(shown.contains(work.to_str().expect("UTF-8")), "{shown}");
        assert_eq!(bake(&sandbox, &[]), BAKED, "{driver:?}");
        assert_eq!(run(), 0, "{driver:?}");
    }
}

/// Programs and libraries would be looked for there.
#[test]
fn nobody_works_in_a_directory_of_others_where_programs_are_looked_for_there() {
    use std::os::unix::fs::PermissionsExt;
    let mut sandbox = stub();
    let work = sandbox.path("work");
    fs::create_dir(&work).expect("made");
    // Debug information names the directory.
    fs::write(work.join("kernel.cl"), super::SOURCE).expect("written");
    let run = |sandbox: &Sandbox| in_directory(sandbox, &work, "-g").source_builds();
    let path = std::env::var("PATH").unwrap_or_default();
    sandbox.set("PATH", format!("{path}:."));
    fs::set_permissions(&work, PermissionsExt::from_mode(0o777)).expect("changed");
    assert_eq!(run(&sandbox), 1);
    refused(&sandbox, "unsafe_directory");
    // What needs no directory is compiled in another one.
    let (_header, source) = absolute(&sandbox);
    fs::write(work.join("kernel.cl"), &source).expect("written");
    assert_eq!(in_directory(&sandbox, &work, "").source_builds(), 1);
    assert_eq!(bake(&sandbox, &[]), BAKED);
    assert_eq!(in_directory(&sandbox, &work, "").source_builds(), 0);
    fs::write(work.join("kernel.cl"), super::SOURCE).expect("written");
    fs::set_permissions(&work, PermissionsExt::from_mode(0o755)).expect("changed");
    assert_eq!(run(&sandbox), 1);
    assert_eq!(bake(&sandbox, &[]), BAKED);
    assert_eq!(run(&sandbox), 0);
}

#[test]
fn a_variable_is_set_or_inherited_or_the_miss_says_that_it_is_not() {
    // Set or inherited: `a_variable_that_may_name_a_program_or_file_is_not_set_because_a_recipe_says_so`.
    let mut sandbox = stub();
    sandbox.set("OCL_ICD_OF_A_DRIVER", "1");
    assert_eq!(misses(&sandbox), 1);
    refused(&sandbox, "not_inherited");
    sandbox.variables.remove("OCL_ICD_OF_A_DRIVER");
    assert_eq!(misses(&sandbox), 1);
    assert_eq!(bake(&sandbox, &[]), BAKED);
}

/// Intel's CPU runtime reads its cl.cfg when it is opened and at each build.
#[test]
fn what_was_otherwise_when_the_driver_was_opened_cannot_be_again() {
    let Some(sandbox) = sandbox(Driver::Intel) else {
        return;
    };
    let work = sandbox.path("work");
    fs::create_dir(&work).expect("made");
    fs::write(work.join("kernel.cl"), super::SOURCE).expect("written");
    fs::write(work.join("new.cfg"), "CL_CONFIG_USE_VECTORIZER=false\n").expect("written");
    let mut run = sandbox.kernel_in(&work, "");
    let ran = sandbox.run(run.args(["--then", "cl.cfg=new.cfg"])).ok();
    assert_eq!(ran.source_builds(), 2);
    refused(&sandbox, "environment_changed");
    assert_eq!(sandbox.stat("recipes"), 1);
}

/// What is preloaded and answers for nothing is no part of the key.
#[test]
fn a_preloaded_library_that_answers_for_the_drivers_functions_is_not_the_bakers() {
    let mut sandbox = stub();
    let Some(answering) = shared(&sandbox, "getenv", GETENV, &[]) else {
        return;
    };
    sandbox.set("LD_PRELOAD", answering.as_os_str());
    assert_eq!(misses(&sandbox), 1);
    refused(&sandbox, "added_library");
    assert_eq!(sandbox.entries().len(), 0);
    sandbox.set("LD_PRELOAD", example("libother_layer.so").as_os_str());
    assert_eq!(misses(&sandbox), 1);
    sandbox.variables.remove("LD_PRELOAD");
    assert_eq!(bake(&sandbox, &[]), BAKED);
    assert_eq!(misses(&sandbox), 0);
}

#[test]
fn a_layer_of_the_loader_is_not_the_bakers() {
    let sandbox = stub();
    let source = sandbox.write("kernel.cl", super::SOURCE);
    let layers = [example("libother_layer.so"), library()];
    let mut command = sandbox.command(Way::Cached, example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(&source)
        .env("OCL_ICD_VENDORS", sandbox.path("spy"))
        .env_remove("OCLCACHE_VENDORS")
        .env(
            "OPENCL_LAYERS",
            std::env::join_paths(layers).expect("paths"),
        );
    assert_eq!(sandbox.run(&mut command).ok().source_builds(), 1);
    refused(&sandbox, "added_library");
}

/// A device compiles as its parts do. Of several it matters which are parts of which.
#[test]
fn a_part_of_a_device_is_baked_for_as_the_whole_and_several_are_a_bypass() {
    let Some(sandbox) = sandbox(Driver::Intel) else {
        return;
    };
    let first = sandbox.client(Way::Cached, &["parts"]).ok();
    if !first.stdout.contains("[one part") {
        return crate::support::skipped("baking for parts of devices (the device has none)");
    }
    let json = sandbox
        .oclcache(&["explain", "--json", "--last", "100"])
        .ok()
        .stdout;
    assert!(json.contains("\"some_devices\""), "{json}");
    let said = bake(&sandbox, &["-v"]);
    assert!(said.ends_with(" baked, 0 skipped, 0 failed"), "{said}");
    let second = sandbox.client(Way::Cached, &["parts"]).ok();
    assert_eq!(second.stdout, first.stdout);
    assert!(second.source_builds() < first.source_builds());
}

#[test]
fn a_program_that_is_made_from_what_is_not_stored_is_not_either() {
    let mut sandbox = stub();
    let of = |name: &str, text: &str| sandbox.write(name, text).display().to_string();
    let part = of("part.cl", "uint part(uint x) { return x + 7; }\n");
    let [one, other] = ["1", "2"].map(|number| {
        let kernel = "__kernel void f(__global uint *out) { out[get_global_id(0)] =";
        let text = format!("uint part(uint);\n{kernel} part({number}); }}\n");
        of(&format!("{number}.cl"), &text)
    });
    let run = |sandbox: &Sandbox, main: &str| {
        let arguments = [
            "linked", "--kernel", "f", "--source", &part, "--source", main,
        ];
        sandbox.client(Way::Cached, &arguments).ok()
    };
    sandbox.set("OCLCACHE_RECORD", "inline");
    sandbox.set("OCLCACHE_STORE_SOURCE", "0");
    run(&sandbox, &one);
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.set("OCLCACHE_STORE_SOURCE", "1");
    run(&sandbox, &other);
    refused(&sandbox, "input_not_stored");
}

/// Constants that compilers fold in the build, and where a kernel is compiled for a size of work-groups. PoCL folds the first two
/// otherwise where numbers are rounded downward (measured).
const FOLDED: &str = "__kernel void f(__global double *out) {
    out[0] = __builtin_sqrt(2.0);
    out[1] = __builtin_exp(0.7);
    out[2] = sqrt(2.0);
    out[3] = sqrt((double)get_local_size(0) + 2.0);
}\n";

#[test]
fn the_baker_rounds_as_the_miss_did_or_the_miss_says_that_it_cannot() {
    for driver in [Driver::Pocl, Driver::Intel] {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let Some(folding) = program(&sandbox, "folding", &[]) else {
            return;
        };
        let source = sandbox.write("kernel.cl", FOLDED);
        let run = |way, round: &str| {
            let mut command = sandbox.command(way, &folding);
            command.arg(&source).env("FOLDING_ROUND", round);
            sandbox.run(&mut command).ok()
        };
        let mut results = BTreeSet::new();
        for (round, is_baked) in [
            ("none", true),
            ("down", true),
            ("traps", false),
            ("opening", false),
        ] {
            let what = format!("{driver:?} {round}");
            let _ = fs::remove_dir_all(sandbox.path("cache/v1/entries"));
            let bare = run(Way::Bare, round);
            let first = run(Way::Cached, round);
            assert_eq!(first.stdout, bare.stdout, "{what}: {}", first.stderr);
            assert_eq!(first.source_builds(), 1, "{what}");
            if !is_baked {
                refused(&sandbox, "floating_point_state");
                assert_eq!(sandbox.entries().len(), 0, "{what}");
                continue;
            }
            assert_eq!(bake(&sandbox, &[]), BAKED, "{what}");
            let second = run(Way::Cached, round);
            assert_eq!(second.stdout, bare.stdout, "{what}: {}", second.stderr);
            assert_eq!(second.source_builds(), 0, "{what}: {}", second.stderr);
            results.insert(bare.stdout);
        }
        // Intel's CPU runtime folds in threads of its own.
        assert_eq!(results.len(), if driver == Driver::Pocl { 2 } else { 1 });
    }
}

/// Only the digest of its value is stored.
#[test]
fn a_variable_that_no_list_names_is_baked_where_it_has_the_same_value() {
    const NAME: &str = "LLVM_OVERRIDE_PRODUCER";
    for driver in some_of(&[Driver::Pocl, Driver::Intel]) {
        let Some(mut sandbox) = sandbox(driver) else {
            continue;
        };
        let explained = |sandbox: &Sandbox| {
            let json = sandbox.oclcache(&["explain", "--json", "--last", "1"]);
            json.ok().stdout
        };
        sandbox.set(NAME, "one");
        let bare = sandbox.kernel(Way::Bare, super::SOURCE, "").ok();
        assert_eq!(misses(&sandbox), 1, "{driver:?}");
        for other in [None, Some("other")] {
            match other {
                Some(value) => sandbox.set(NAME, value),
                None => drop(sandbox.variables.remove(NAME)),
            }
            let ran = sandbox.oclcache(&["bake"]).ok();
            let why = format!("{NAME} has another value");
            assert!(ran.stderr.contains(&why), "{driver:?}: {}", ran.stderr);
            let json = explained(&sandbox);
            assert!(json.contains(&why), "{driver:?}: {json}");
            assert!(
                json.contains("\"not_stored\": \"other_environment\""),
                "{json}"
            );
            assert!(json.contains("\"kept\": \"recipe\""), "{json}");
        }
        sandbox.set(NAME, "one");
        let json = explained(&sandbox);
        assert!(json.contains("\"not_stored\": null"), "{driver:?}: {json}");
        assert_eq!(bake(&sandbox, &[]), BAKED, "{driver:?}");
        let hit = sandbox.kernel(Way::Cached, super::SOURCE, "").ok();
        assert_eq!((hit.source_builds(), hit.stdout), (0, bare.stdout));
        sandbox.set(NAME, "other");
        assert_eq!(misses(&sandbox), 1, "{driver:?}");
    }
}
