//! `oclcache install` and `uninstall`: programs are cached as soon as it is done, nothing of others' is touched, and nothing is left.

mod helper;
mod this_shell;
mod user;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::doctor::{World, real_library};
use crate::snapshots::assert_shown;
use crate::support::{Ran, Way, copy_program, is_root, library, skipped};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }\n";

/// A machine with a driver, on which nothing of us is registered.
fn fresh() -> World {
    let world = World::new();
    fs::remove_file(world.sandbox.path("drivers/oclcache.icd")).expect("removed");
    world.sandbox.write("kernel.cl", SOURCE);
    world
}

fn shell(world: &World, script: &str) -> Ran {
    let mut command = world.sandbox.command(Way::Bare, "sh");
    command.current_dir(world.sandbox.path(""));
    world.sandbox.run(command.args(["-c", script]))
}

/// Without what differs from machine to machine.
fn plain(shown: &str) -> String {
    shown.replace(&real_library(), "[LIBRARY]")
}

/// All files and links below a directory, and what is in them.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type().expect("a type").is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.clone(), fs::read(&path).unwrap_or_default())),
        }
    }
    found
}

/// The command registers for all, below a root of its own.
fn system(world: &World, words: &str) -> Ran {
    shell(
        world,
        &format!("mkdir -p root && oclcache {words} --system --root root"),
    )
}

#[test]
fn for_all_one_file_is_written_beside_those_of_drivers_and_never_two() {
    let world = fresh();
    let root = world.sandbox.path("root");
    let vendors = root.join("etc/OpenCL/vendors");
    fs::create_dir_all(&vendors).expect("made");
    fs::write(vendors.join("pocl.icd"), "libpocl.so.2\n").expect("written");
    let others = files(&root);
    let icd = vendors.join("oclcache.icd");
    let layer = root.join("etc/OpenCL/layers/oclcache.lay");
    let library = format!("{}\n", real_library());
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let shown = system(&world, "install").ok();
    assert_shown(&world.sandbox, "install-system", &plain(&shown.stderr));
    assert_eq!((read(&icd), read(&layer)), (library.clone(), String::new()));
    let mode = fs::metadata(&icd).expect("written").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    assert!(
        system(&world, "install")
            .ok()
            .stderr
            .contains("already registered")
    );
    system(&world, "install --layer").ok();
    assert_eq!((read(&icd), read(&layer)), (String::new(), library.clone()));
    // An older place of ours is no longer right.
    fs::write(&icd, "/opt/old/liboclcache.so\n").expect("written");
    system(&world, "install").ok();
    assert_eq!((read(&icd), read(&layer)), (library, String::new()));
    system(&world, "uninstall").ok();
    assert_eq!(files(&root), others);
    assert!(!layer.parent().expect("a directory").exists());
}

#[test]
fn a_package_names_the_library_as_it_will_be_found() {
    let world = fresh();
    let script = "mkdir -p root/usr/bin root/usr/lib && cp bin/oclcache root/usr/bin && touch root/usr/lib/liboclcache.so \
        && root/usr/bin/oclcache install --system --root root --icd-dir /usr/share/OpenCL/vendors && cat root/usr/share/OpenCL/vendors/oclcache.icd";
    assert_eq!(
        shell(&world, script).ok().stdout,
        "/usr/lib/liboclcache.so\n"
    );
}

#[test]
fn what_is_not_ours_is_neither_replaced_nor_removed() {
    let world = fresh();
    let vendors = world.sandbox.path("root/etc/OpenCL/vendors");
    let icd = vendors.join("oclcache.icd");
    let plants: [(&str, &dyn Fn()); 3] = [
        ("names `/usr/lib/libother.so`", &|| {
            fs::write(&icd, "/usr/lib/libother.so\n").expect("written");
        }),
        ("is not a regular file", &|| {
            symlink("pocl.icd", &icd).expect("linked");
        }),
        ("is not a regular file", &|| {
            fs::create_dir(&icd).expect("made")
        }),
    ];
    for (why, plant) in plants {
        let _ = fs::remove_dir_all(&vendors);
        fs::create_dir_all(&vendors).expect("made");
        fs::write(vendors.join("pocl.icd"), "liboclcache.so\n").expect("written");
        plant();
        let before = files(&world.sandbox.path("root"));
        for verb in ["install", "install --layer", "uninstall"] {
            let refused = system(&world, verb);
            let words = refused.stderr.as_str();
            assert!(
                refused.code == Some(1) && words.contains(why),
                "{verb}: {words}"
            );
            assert!(words.contains("oclcache.icd`"), "{verb}: {words}");
            assert_eq!(files(&world.sandbox.path("root")), before, "{verb}");
        }
    }
}

#[test]
fn what_a_package_has_registered_is_left_to_it() {
    let world = fresh();
    let vendors = world.sandbox.path("root/etc/OpenCL/vendors");
    let icd = vendors.join("oclcache.icd");
    fs::create_dir_all(&vendors).expect("made");
    for library in ["liboclcache.so\n", "/usr/lib/oclcache/liboclcache.so\n"] {
        fs::write(&icd, library).expect("written");
        for verb in ["install --layer", "uninstall"] {
            let refused = system(&world, verb);
            let words = refused.stderr.as_str();
            assert!(words.contains("remove the package"), "{verb}: {words}");
            assert_eq!(fs::read(&icd).expect("it is left"), library.as_bytes());
        }
    }
}

#[test]
fn where_nothing_can_be_written_the_path_and_the_next_step_are_told() {
    let world = fresh();
    fs::create_dir(world.sandbox.path("root")).expect("made");
    world.sandbox.write("root/etc", "a file");
    let refused = system(&world, "install");
    let path = "root/etc/OpenCL/vendors/oclcache.icd`";
    assert!(
        refused.code == Some(1) && refused.stderr.contains(path),
        "{}",
        refused.stderr
    );
    // A library that others can write is not given to all.
    let copy = world.sandbox.path("bin/liboclcache.so");
    fs::remove_file(&copy).expect("removed");
    copy_program(library(), &copy);
    let refused = shell(
        &world,
        "chmod o+w bin && oclcache install --system --dry-run",
    );
    let words = "cannot be registered for all users: ";
    assert!(
        refused.code == Some(1) && refused.stderr.contains(words),
        "{}",
        refused.stderr
    );
    let homeless = shell(&world, "unset HOME; oclcache install --user");
    assert!(
        homeless.code == Some(1) && homeless.stderr.contains("HOME is not set"),
        "{}",
        homeless.stderr
    );
    if is_root() {
        chown(world.sandbox.path("home"), Some(64123), Some(64123)).expect("given away");
        let refused = shell(&world, "oclcache install --user");
        let words = "belongs to another user";
        assert!(
            refused.code == Some(1) && refused.stderr.contains(words),
            "{}",
            refused.stderr
        );
        assert_eq!(files(&world.sandbox.path("home")).len(), 0);
        return skipped("an installation for all by who may not (the tests run as root)");
    }
    fs::remove_file(world.sandbox.path("root/etc")).expect("removed");
    let closed = PermissionsExt::from_mode(0o500);
    fs::set_permissions(world.sandbox.path("root"), closed).expect("changed");
    let refused = system(&world, "install");
    let words = refused.stderr.as_str();
    assert!(
        words.contains("Permission denied") && words.contains("sudo "),
        "{words}"
    );
}
