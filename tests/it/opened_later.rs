//! Libraries that a driver opens inside a build, whatever names them: what they change compiles again.

use crate::copies::change_last_byte;
use crate::support::{Ran, Sandbox, Way, copy_program, example};

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
