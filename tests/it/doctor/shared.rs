//! A cache directory in which others have things, too. No advice may take it from them, or remove what is theirs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::World;
use super::faults::{Fault, WARNING, WRONG, cache, examine, found};
use crate::support::{is_root, skipped};

const SOMEBODY: u32 = 64123;
/// What would change, or remove, more than the cache.
const DANGEROUS: [&str; 4] = ["chown", "chmod", "rm ", "rm -r"];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("changed");
}

/// The cache directory, with a file that is not the cache's.
fn with_a_thesis(world: &World, mode: u32) -> PathBuf {
    let cache = cache(world, mode);
    let thesis = cache.join("thesis.tex");
    fs::write(&thesis, "mine").expect("written");
    set_mode(&thesis, 0o644);
    cache
}

/// The directory of this format below it.
fn format_of(cache: &Path) -> PathBuf {
    let format = cache.join("v1");
    fs::create_dir_all(format.join("entries")).expect("made");
    for path in [&format, &format.join("entries")] {
        set_mode(path, 0o700);
    }
    format
}

/// What each command says of the directory, the doctor's steps among it.
fn told(world: &World) -> String {
    let mut told = String::new();
    let verbs = [
        &["stats"][..],
        &["run", "true"],
        &["list"],
        &["doctor", "--no-build"],
    ];
    for verb in verbs {
        let mut command = world.sandbox.command(crate::support::Way::Bare, "oclcache");
        let ran = world.sandbox.run(command.args(verb));
        told += &format!("{verb:?}\n{}{}", ran.stdout, ran.stderr);
    }
    let about = world.sandbox.path("cache").display().to_string();
    let mut lines: Vec<&str> = told.lines().collect();
    lines.retain(|line| line.contains(&about) || line.contains("->"));
    lines.join("\n")
}

fn assert_harmless(world: &World, expected: &str) {
    let told = told(world);
    assert!(told.contains(expected), "{told}");
    for dangerous in DANGEROUS {
        assert!(!told.contains(dangerous), "{told}");
    }
}

#[test]
fn a_directory_that_all_share_stays_as_it_is() {
    let mut world = World::new();
    for mode in [0o1777, 0o775] {
        with_a_thesis(&world, mode);
        assert_harmless(&world, "set OCLCACHE_DIR to a directory below it, such as");
        format_of(&world.sandbox.path("cache"));
        assert_harmless(&world, "set OCLCACHE_DIR to a directory below it, such as");
    }
    let fault = Fault {
        about: "directory",
        state: WRONG,
        says: "others may write it",
        plant: |world| drop(with_a_thesis(world, 0o1777)),
        by_hand: None,
    };
    examine(&mut world, &fault);
}

#[test]
fn a_directory_of_somebody_else_stays_his() {
    if !is_root() {
        return skipped("a directory of another user (only root can give one away)");
    }
    let world = World::new();
    let cache = with_a_thesis(&world, 0o755);
    chown(&cache, Some(SOMEBODY), None).expect("given away");
    assert_harmless(&world, "it belongs to another user");
    format_of(&cache);
    assert_harmless(&world, "it belongs to another user");
}

/// Such as `/bin/sh`, or `/dev/null`.
#[test]
fn what_is_no_directory_is_not_removed() {
    let world = World::new();
    world.sandbox.write("cache", "a file");
    assert_harmless(&world, "Not a directory");
}

#[test]
fn only_the_cache_below_is_closed_or_taken_over() {
    let mut world = World::new();
    let mut fault = Fault {
        about: "entries",
        state: WRONG,
        says: "others may write it",
        plant: |world| set_mode(&format_of(&with_a_thesis(world, 0o755)), 0o770),
        by_hand: None,
    };
    let thesis = |world: &World| {
        let found = fs::metadata(world.sandbox.path("cache/thesis.tex")).expect("the thesis");
        found.permissions().mode() & 0o7777
    };
    examine(&mut world, &fault);
    assert_eq!(thesis(&world), 0o644);
    fault = Fault {
        state: WARNING,
        says: "other users can read 1 file in `",
        plant: |world| {
            let format = format_of(&with_a_thesis(world, 0o755));
            fs::write(format.join("swept"), "").expect("written");
            set_mode(&format, 0o755);
            set_mode(&format.join("swept"), 0o644);
        },
        ..fault
    };
    examine(&mut world, &fault);
    assert_eq!(thesis(&world), 0o644);
    let findings = world.findings("");
    assert!(found(&findings, &fault).is_none(), "{findings:?}");
}

#[test]
fn an_uninstallation_names_only_the_cache_to_remove() {
    let mut world = World::new();
    let home = world.sandbox.path("home");
    world.sandbox.set("HOME", &home);
    let cache = with_a_thesis(&world, 0o755);
    let format = format_of(&cache);
    let told = || {
        let mut command = world.sandbox.command(crate::support::Way::Bare, "oclcache");
        let ran = world.sandbox.run(command.args(["uninstall", "--user"]));
        ran.stderr
    };
    let of_format = format!("remove it with `rm -r {}`", format.display());
    let said = told();
    assert!(said.contains(&of_format), "{said}");
    fs::remove_file(cache.join("thesis.tex")).expect("removed");
    let whole = format!("remove it with `rm -r {}`", cache.display());
    let said = told();
    assert!(said.contains(&whole), "{said}");
}
