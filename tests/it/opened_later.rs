//! Libraries that a driver opens inside a build, whatever names them: what they change compiles again.

use crate::copies::change_last_byte;
use crate::functions::program;
use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";

/// The stub with a library beside nothing of its own, which it finds as the dynamic linker does.
fn sandbox(helper: &str) -> Sandbox {
    let mut sandbox = Sandbox::stub();
    std::fs::create_dir(sandbox.path("helpers")).expect("made");
    let name = if helper == "text" { "helper" } else { helper };
    let library = sandbox.path(&format!("helpers/lib{name}.so"));
    copy_program(example("libhelper.so"), &library);
    sandbox.set("LD_LIBRARY_PATH", sandbox.path("helpers"));
    sandbox.set("STUB_HELPER", helper);
    sandbox
}

/// Builds through the cache. The result must be the bare driver's.
#[track_caller]
fn build(sandbox: &Sandbox) -> Ran {
    let bare = sandbox.kernel(Way::Bare, SOURCE, "").ok();
    let cached = sandbox.kernel(Way::Cached, SOURCE, "").ok();
    assert_eq!(cached.stdout, bare.stdout, "log:\n{}", cached.stderr);
    cached
}

#[test]
fn a_library_that_the_drivers_text_names_is_in_the_key_before_it_is_opened() {
    let mut sandbox = sandbox("text");
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    sandbox.set("HELPER_X", "7");
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    change_last_byte(&sandbox.path("helpers/libhelper.so"));
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
}

#[test]
fn what_is_compiled_while_an_unknown_library_comes_is_not_stored_and_later_keys_have_the_library() {
    let mut sandbox = sandbox("hidden");
    assert_eq!(build(&sandbox).source_builds(), 1);
    assert_eq!(sandbox.entries().len(), 0);
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    sandbox.set("HELPER_X", "7");
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    change_last_byte(&sandbox.path("helpers/libhidden.so"));
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
}

/// The dynamic linker opens no second library of a name.
#[test]
fn a_library_that_the_program_has_under_the_name_is_in_the_key() {
    let mut sandbox = sandbox("text");
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    std::fs::create_dir(sandbox.path("elsewhere")).expect("made");
    let other = sandbox.path("elsewhere/libhelper.so");
    copy_program(example("libhelper.so"), &other);
    change_last_byte(&other);
    sandbox.set("LD_PRELOAD", other);
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    let preload = sandbox.variables.remove("LD_PRELOAD");
    assert_eq!(build(&sandbox).source_builds(), 0);
    // No baker has it.
    sandbox.set("LD_PRELOAD", preload.expect("it was set"));
    sandbox.set("OCLCACHE_RECORD", "bake");
    let other_source = SOURCE.replace('3', "4");
    sandbox.kernel(Way::Cached, &other_source, "").ok();
    assert_eq!(sandbox.stat("not_stored"), 1);
}

/// The dynamic linker keeps the value with which the process was started.
#[test]
fn the_first_value_of_the_search_path_for_libraries_counts() {
    let mut sandbox = sandbox("text");
    assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    std::fs::create_dir(sandbox.path("elsewhere")).expect("made");
    let other = sandbox.path("elsewhere/libhelper.so");
    copy_program(example("libhelper.so"), &other);
    change_last_byte(&other);
    let file = sandbox.write("kernel.cl", SOURCE).display().to_string();
    let set = format!("LD_LIBRARY_PATH={}", sandbox.path("helpers").display());
    sandbox.set("LD_LIBRARY_PATH", sandbox.path("elsewhere"));
    let arguments = ["--setenv", &set, "run", "--source", &file, "--kernel", "f"];
    let times = || {
        let ran = sandbox.client(Way::Cached, &arguments).ok();
        ran.source_builds()
    };
    assert_eq!([(); 2].map(|()| times()), [1, 0]);
}

/// Runs through the cache in this directory of the sandbox, where the program before has left a file. Returns how often it compiled.
fn times_in(sandbox: &Sandbox, place: &str) -> usize {
    let place = sandbox.path(place);
    std::fs::create_dir_all(&place).expect("made");
    let left = std::fs::read_dir(&place).expect("listed").count();
    std::fs::write(place.join(format!("output {left}")), "").expect("written");
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(Way::Cached, example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    sandbox.run(command.current_dir(place)).ok().source_builds()
}

/// An empty part of the search path is the working directory.
#[test]
fn a_library_in_the_working_directory_is_in_the_key() {
    let mut sandbox = sandbox("text");
    sandbox.set("LD_LIBRARY_PATH", "/nonexistent:");
    for place in ["one", "other"] {
        std::fs::create_dir(sandbox.path(place)).expect("made");
        let library = sandbox.path(place).join("libhelper.so");
        copy_program(example("libhelper.so"), &library);
    }
    change_last_byte(&sandbox.path("other/libhelper.so"));
    for place in ["one", "other"] {
        let times = [(); 2].map(|()| times_in(&sandbox, place));
        assert_eq!(times, [1, 0], "{place}");
    }
    assert_eq!(times_in(&sandbox, "one"), 0);
}

/// RUNPATH of Intel's CPU runtime has empty parts. Programs write into the working directory, and run in many.
#[test]
fn a_hit_in_another_working_directory_keeps_nothing() {
    let Some(sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    assert_eq!(times_in(&sandbox, "one"), 1);
    let kept = || {
        let files = std::fs::read_dir(sandbox.path("cache/v1/names")).expect("listed");
        let files = files.map(|file| file.expect("a file"));
        let files = files.map(|file| {
            (
                file.file_name(),
                file.metadata().expect("a state").modified().ok(),
            )
        });
        files.collect::<std::collections::BTreeMap<_, _>>()
    };
    // What has just been changed by other programs is searched again.
    let keeps_nothing = (0..8).any(|_| {
        let before = kept();
        for place in ["one", "two", "one", "two"] {
            assert_eq!(times_in(&sandbox, place), 0, "{place}");
        }
        kept() == before
    });
    assert!(keeps_nothing, "{:?}", kept());
}

/// Both are in the key in either case.
#[test]
fn the_order_of_two_libraries_of_a_name_is_in_the_key() {
    let mut sandbox = sandbox("text");
    std::fs::create_dir(sandbox.path("elsewhere")).expect("made");
    let other = sandbox.path("elsewhere/libhelper.so");
    copy_program(example("libhelper.so"), &other);
    change_last_byte(&other);
    let [one, two] = ["helpers", "elsewhere"].map(|name| sandbox.path(name));
    for [first, second] in [[&one, &two], [&two, &one]] {
        let both = format!("{};{}", first.display(), second.display());
        sandbox.set("LD_LIBRARY_PATH", both);
        assert_eq!([(); 2].map(|()| build(&sandbox).source_builds()), [1, 0]);
    }
}

/// What setproctitle(3bsd) overwrites, the dynamic linker has read at the start.
#[test]
fn the_first_value_of_the_search_path_is_not_taken_from_where_the_program_has_written() {
    let mut sandbox = sandbox("text");
    let Some(program) = program(&sandbox, "folding", &[]) else {
        return;
    };
    std::fs::create_dir(sandbox.path("elsewhere")).expect("made");
    let other = sandbox.path("elsewhere/libhelper.so");
    copy_program(example("libhelper.so"), &other);
    change_last_byte(&other);
    let file = sandbox.write("kernel.cl", SOURCE);
    let times = |sandbox: &Sandbox| {
        let mut command = sandbox.command(Way::Cached, &program);
        [(); 2].map(|()| sandbox.run(command.arg(&file)).ok().source_builds())
    };
    assert_eq!(times(&sandbox), [1, 0]);
    let helpers = sandbox.variables["LD_LIBRARY_PATH"].clone();
    sandbox.set("LD_LIBRARY_PATH", sandbox.path("elsewhere"));
    sandbox.set("FOLDING_TITLE", helpers);
    assert_eq!(times(&sandbox), [1, 0]);
    sandbox.set("FOLDING_LATE", "1");
    assert_eq!(times(&sandbox), [0, 0]);
}

/// DT_RPATH of the program comes before everything else, also for what libraries open.
#[test]
fn a_library_that_the_program_leads_to_is_in_the_key() {
    let sandbox = sandbox("text");
    std::fs::create_dir(sandbox.path("elsewhere")).expect("made");
    let other = sandbox.path("elsewhere/libhelper.so");
    copy_program(example("libhelper.so"), &other);
    change_last_byte(&other);
    let rpath = format!("-Wl,-rpath,{}", sandbox.path("elsewhere").display());
    let options = ["-Wl,--disable-new-dtags", &rpath];
    let Some(plain) = program(&sandbox, "plain", &[]) else {
        return;
    };
    let Some(leading) = program(&sandbox, "leading", &options) else {
        return;
    };
    let file = sandbox.write("kernel.cl", SOURCE);
    let times = |program| {
        let mut command = sandbox.command(Way::Cached, program);
        sandbox.run(command.arg(&file)).source_builds()
    };
    assert_eq!(
        [&plain, &plain, &leading, &leading].map(times),
        [1, 0, 1, 0]
    );
}

#[test]
fn a_library_that_comes_in_a_build_that_is_not_cached_is_in_later_keys() {
    let sandbox = sandbox("hidden");
    let file = |name, text| sandbox.write(name, text).display().to_string();
    let bypassed = "__kernel void g(__global int *out) { out[0] = sizeof(__TIME__); }\n";
    let [first, second] = [file("first.cl", bypassed), file("second.cl", SOURCE)];
    let arguments = [
        "keys", "--times", "1", "--source", &first, "--source", &second,
    ];
    let times = || {
        let ran = sandbox.client(Way::Cached, &arguments).ok();
        ran.source_builds()
    };
    assert_eq!([(); 2].map(|()| times()), [2, 1]);
    change_last_byte(&sandbox.path("helpers/libhidden.so"));
    assert_eq!([(); 2].map(|()| times()), [2, 1]);
}

/// The first build is not cached, and has opened the library when the second one identifies the driver.
#[test]
fn a_library_that_comes_in_a_build_beside_the_one_that_identifies_the_driver_is_in_later_keys() {
    // Then the first build ends before the second one, or behind it.
    for variable in ["HELPER_MS", "HELPER_FIRST_MS"] {
        let mut sandbox = sandbox("hidden");
        sandbox.set(variable, "600");
        let file = |name, text| sandbox.write(name, text).display().to_string();
        let bypassed = "__kernel void g(__global int *out) { out[0] = sizeof(__TIME__); }\n";
        let [first, second] = [file("first.cl", bypassed), file("second.cl", SOURCE)];
        let arguments = [
            "keys", "--apart", "200", "--source", &first, "--source", &second,
        ];
        let both = sandbox.client(Way::Cached, &arguments).ok();
        assert_eq!(both.source_builds(), 2, "{variable}: {}", both.stderr);
        for entry in sandbox.entries() {
            let key = entry.file_stem().expect("a name").to_string_lossy();
            let shown = sandbox.oclcache(&["show", &key]).ok().stdout;
            assert!(shown.contains("libhidden"), "{variable}: {shown}");
        }
        change_last_byte(&sandbox.path("helpers/libhidden.so"));
        let times = [(); 2].map(|()| build(&sandbox).source_builds());
        assert_eq!(times, [1, 0], "{variable}");
    }
}

/// They say nothing of the driver.
#[test]
fn a_library_that_the_program_opens_itself_is_in_no_key() {
    let mut sandbox = Sandbox::stub();
    assert_eq!(build(&sandbox).source_builds(), 1);
    let library = sandbox.path("libopened.so");
    copy_program(example("libhelper.so"), &library);
    sandbox.set("CLIENT_OPENS", library);
    assert_eq!(build(&sandbox).source_builds(), 0);
    let libraries: Vec<String> = {
        let entry = sandbox.entries().pop().expect("an entry");
        let key = entry.file_stem().expect("a name").to_string_lossy();
        let shown = sandbox.oclcache(&["show", &key]).ok().stdout;
        shown
            .lines()
            .filter(|line| line.contains("libopened"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(libraries, [] as [String; 0]);
}
