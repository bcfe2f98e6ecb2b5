//! The library behaves as measured: for the driver that was measured, if the file is sound, and in the user's own cache.

use std::path::PathBuf;

use super::{qualify_library, qualify_stub};
use crate::support::{Sandbox, Way, example};

/// A driver whose binaries are expensive to fetch, behind the spy.
fn dear_stub() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    for (name, value) in [("STUB_BUILD_MS", "20"), ("STUB_FETCH_MS", "200")] {
        sandbox.set(name, value);
    }
    sandbox.set("OCLCACHE_RECORD", "auto");
    sandbox
}

fn qualify_spied(sandbox: &Sandbox) {
    let spy = example("libspy.so");
    let qualified = qualify_library(sandbox, spy.to_str().expect("UTF-8"), &[]);
    assert_eq!(
        *qualified.measured("record"),
        "baked",
        "{}",
        qualified.ran.stdout
    );
    assert!(qualified.is_kept());
}

/// Whether a program that misses waits until its binary is fetched.
fn fetches_in_miss(sandbox: &Sandbox, number: u32) -> bool {
    let options = format!("-DN={number}");
    let ran = sandbox
        .kernel(Way::Cached, crate::support::SOURCE, &options)
        .ok();
    assert_eq!(ran.source_builds(), 1, "a miss");
    ran.spied.iter().any(|line| line == "binaries-fetched")
}

fn profiles(sandbox: &Sandbox) -> Vec<PathBuf> {
    let files = std::fs::read_dir(sandbox.path("cache/v1/profiles"));
    files
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .collect()
}

#[test]
fn the_library_behaves_as_measured_until_the_file_is_damaged_or_gone() {
    let sandbox = dear_stub();
    assert!(fetches_in_miss(&sandbox, 1), "nothing is known of it");
    qualify_spied(&sandbox);
    assert!(!fetches_in_miss(&sandbox, 2), "it compiles for that");
    let shown = sandbox.oclcache(&["config"]).ok().stdout;
    assert!(
        shown.contains("baked: fetching a binary compiles every kernel"),
        "{shown}"
    );
    let [profile] = &profiles(&sandbox)[..] else {
        panic!("one driver was measured");
    };
    let sound = std::fs::read(profile).expect("read");
    let mut damaged = sound.clone();
    damaged[sound.len() / 2] ^= 1;
    std::fs::write(profile, damaged).expect("written");
    assert!(fetches_in_miss(&sandbox, 3), "a damaged file");
    std::fs::write(profile, sound).expect("written");
    assert!(!fetches_in_miss(&sandbox, 4));
    std::fs::remove_file(profile).expect("removed");
    assert!(fetches_in_miss(&sandbox, 5), "no file");
}

#[test]
fn a_profile_of_another_driver_is_not_used() {
    let sandbox = dear_stub();
    // Without the spy, which is a part of the driver that the program below uses.
    let qualified = qualify_stub(&sandbox);
    assert_eq!(*qualified.measured("record"), "baked");
    assert!(fetches_in_miss(&sandbox, 1));
    let [profile] = &profiles(&sandbox)[..] else {
        panic!("one driver was measured");
    };
    let of_other = std::fs::read(profile).expect("read");
    std::fs::remove_file(profile).expect("removed");
    qualify_spied(&sandbox);
    let [profile] = &profiles(&sandbox)[..] else {
        panic!("one driver was measured");
    };
    std::fs::write(profile, of_other).expect("written");
    assert!(
        fetches_in_miss(&sandbox, 2),
        "under the name of this driver"
    );
}

#[test]
fn a_profile_changes_no_key_and_is_not_exported_or_taken_from_a_system_directory() {
    let mut sandbox = dear_stub();
    sandbox.set("OCLCACHE_RECORD", "inline");
    assert!(fetches_in_miss(&sandbox, 1));
    qualify_spied(&sandbox);
    let ran = sandbox
        .kernel(Way::Cached, crate::support::SOURCE, "-DN=1")
        .ok();
    assert_eq!(ran.source_builds(), 0, "a hit: the key is the same");
    let archive = sandbox.path("archive").display().to_string();
    sandbox.oclcache(&["export", &archive]).ok();
    sandbox.set("OCLCACHE_DIR", sandbox.path("other"));
    sandbox.oclcache(&["import", "--trust", &archive]).ok();
    assert!(!sandbox.path("other/v1/profiles").exists());
    let system = sandbox.path("cache");
    sandbox.set("OCLCACHE_SYSTEM_DIRS", system);
    sandbox.set("OCLCACHE_RECORD", "auto");
    assert!(fetches_in_miss(&sandbox, 2), "only what this cache has");
}

#[test]
fn a_second_qualification_replaces_the_profile() {
    let sandbox = dear_stub();
    qualify_spied(&sandbox);
    let names: Vec<String> = profiles(&sandbox)
        .iter()
        .map(|path| {
            path.file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    assert!(names.iter().all(|name| name.len() == 64), "{names:?}");
    qualify_spied(&sandbox);
    assert_eq!(profiles(&sandbox).len(), 1);
}
