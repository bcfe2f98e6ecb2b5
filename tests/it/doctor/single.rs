//! Faults that not every machine can have planted, or that are seen only where something is built.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use serde_json::Value;

use super::World;
use super::faults::{Fault, SHARED, WARNING, WRONG, cache, examine, found};
use crate::support::{Way, built, copy_program, example, is_root, library, skipped};

#[test]
fn files_that_others_can_read_are_told() {
    let readable = Fault {
        about: "entries",
        state: WARNING,
        says: "other users can read 1 file in `",
        plant: |world| {
            let below = cache(world, 0o755).join("v1");
            fs::create_dir(&below).expect("made");
            fs::write(below.join("swept"), "").expect("written");
            for (path, mode) in [(&below, 0o755), (&below.join("swept"), 0o644)] {
                fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("changed");
            }
        },
        by_hand: None,
    };
    examine(&mut World::new(), &readable);
}

/// As the library takes it: what the setting names takes the place of what is registered.
#[test]
fn a_setting_that_names_no_driver_is_told() {
    let fault = Fault {
        about: "vendors",
        state: WRONG,
        says: "the setting names no driver with a device",
        plant: |world| {
            let empty = world.sandbox.path("empty");
            fs::create_dir(&empty).expect("made");
            world.sandbox.set("OCLCACHE_VENDORS", empty);
        },
        by_hand: None,
    };
    examine(&mut World::new(), &fault);
    let missing = Fault {
        plant: |world| world.sandbox.set("OCLCACHE_VENDORS", "/nowhere/none.icd"),
        ..fault
    };
    examine(&mut World::new(), &missing);
}

#[test]
fn a_cache_that_belongs_to_another_is_told_and_taken_over() {
    if !is_root() {
        return skipped("a cache directory of another user (root can give one away)");
    }
    let whole = Fault {
        about: "directory",
        state: WRONG,
        says: "it belongs to another user",
        plant: |world| {
            let cache = cache(world, 0o700);
            fs::create_dir_all(cache.join("v1/entries")).expect("made");
            chown(cache, Some(64123), Some(64123)).expect("given away");
        },
        by_hand: None,
    };
    examine(&mut World::new(), &whole);
    let part = Fault {
        about: "entries",
        plant: |world| {
            let below = cache(world, 0o700).join("v1");
            fs::create_dir(&below).expect("made");
            chown(below, Some(64123), Some(64123)).expect("given away");
        },
        ..whole
    };
    examine(&mut World::new(), &part);
    let one = Fault {
        about: "entries",
        plant: |world| {
            let statistics = cache(world, 0o700).join("v1/stats");
            fs::create_dir_all(&statistics).expect("made");
            let below = statistics.parent().expect("a directory");
            fs::set_permissions(below, PermissionsExt::from_mode(0o700)).expect("changed");
            chown(&statistics, Some(64123), Some(64123)).expect("given away");
        },
        ..whole
    };
    examine(&mut World::new(), &one);
    let home = Fault {
        says: "nowhere` is not there, and `",
        about: "directory",
        plant: |world| {
            let other = world.sandbox.path("other");
            fs::create_dir(&other).expect("made");
            chown(&other, Some(64123), Some(64123)).expect("given away");
            world.sandbox.set("HOME", other.join("nowhere"));
            world.sandbox.set("OCLCACHE_DIR", "");
        },
        by_hand: Some(|world| {
            let cache = world.sandbox.path("cache");
            format!("export OCLCACHE_DIR={}", cache.display())
        }),
        ..whole
    };
    examine(&mut World::new(), &home);
}

#[test]
fn a_read_only_cache_that_is_not_there_is_told() {
    let fault = Fault {
        about: "directory",
        state: WRONG,
        says: "does not exist, and `readonly` forbids to make it, so nothing is cached",
        plant: |world| world.sandbox.set("OCLCACHE_READONLY", "1"),
        by_hand: Some(|_| "unset OCLCACHE_READONLY".into()),
    };
    examine(&mut World::new(), &fault);
}

#[test]
fn a_library_that_is_not_there_or_of_another_version_is_told() {
    let missing = Fault {
        about: "library",
        state: WRONG,
        says: "install it beside this command",
        plant: |world| fs::remove_file(world.sandbox.path("bin/liboclcache.so")).expect("removed"),
        by_hand: Some(|world| {
            let beside = world.sandbox.path("bin/liboclcache.so");
            format!("ln -sf {} {}", library().display(), beside.display())
        }),
    };
    examine(&mut World::new(), &missing);
    let other = Fault {
        says: "is version 0.0.1, but this command is",
        plant: |world| {
            let beside = world.sandbox.path("bin/liboclcache.so");
            fs::remove_file(&beside).expect("removed");
            let old = "const char *oclcache_version(void) { return \"0.0.1\"; }\n";
            world.compile("bin/liboclcache.so", old, &SHARED);
        },
        ..missing
    };
    examine(&mut World::new(), &other);
}

/// A place that nobody else can write, as installed programs have.
fn place() -> Option<tempfile::TempDir> {
    let own = rustix::process::geteuid().as_raw();
    let is_good = |place: &Path| {
        let metadata = place.metadata().expect("a directory");
        [0, own].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0
    };
    let is_private = built().ancestors().all(is_good);
    is_private.then(|| tempfile::tempdir_in(built()).expect("a directory"))
}

#[test]
fn a_command_that_others_can_write_is_told_and_mended() {
    let Some(place) = place() else {
        return skipped(
            "a baker whose command others can write (there is no place that they cannot)",
        );
    };
    let mut world = World::new();
    let bin = place.path();
    copy_program(env!("CARGO_BIN_EXE_oclcache"), &bin.join("oclcache"));
    fs::hard_link(library(), bin.join("liboclcache.so")).expect("linked");
    symlink("/bin/false", bin.join("sudo")).expect("linked");
    fs::set_permissions(bin.join("oclcache"), PermissionsExt::from_mode(0o775)).expect("changed");
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").expect("a path")
    );
    world.sandbox.set("PATH", path);
    let fault = Fault {
        about: "baker",
        state: WARNING,
        says: "can be written by its group",
        plant: |_| (),
        by_hand: None,
    };
    examine(&mut world, &fault);
}

const NO_PLATFORM: &str = "finds no platform, although there are drivers";

/// The command that mends the finding about platforms that says this.
fn platforms_step(world: &World, state: &'static str, says: &'static str) -> Value {
    let fault = Fault {
        about: "platforms",
        state,
        says,
        plant: |_| (),
        by_hand: None,
    };
    let findings = world.findings("");
    let found = found(&findings, &fault).unwrap_or_else(|| panic!("{findings:#?}"));
    found["mend"]["command"].clone()
}

/// The only driver that the loader opens is oclcache.
#[test]
fn a_mode_that_does_not_count_is_told_where_it_is_set() {
    let mut world = World::new();
    let config = world.sandbox.path("home/.config/oclcache");
    fs::create_dir_all(&config).expect("made");
    fs::write(config.join("config.toml"), "mode = \"beside\"\n").expect("written");
    let registration = world.sandbox.path("drivers/stub.icd");
    let library = fs::read_to_string(&registration).expect("read");
    let fault = Fault {
        about: "platforms",
        state: WARNING,
        says: "`mode = beside` counts as `auto`",
        plant: |_| (),
        by_hand: None,
    };
    let findings = world.findings("");
    assert!(found(&findings, &fault).is_none(), "{findings:#?}");
    fs::remove_file(registration).expect("removed");
    world.sandbox.set("OCLCACHE_VENDORS", library.trim());
    let findings = world.findings("");
    let found = found(&findings, &fault).unwrap_or_else(|| panic!("{findings:#?}"));
    assert_eq!(found["mend"]["command"], "oclcache config unset mode");
}

/// No platform is listed because of a variable of the loader.
#[test]
fn a_directory_without_drivers_is_told() {
    let mut world = World::new();
    let library = fs::read_to_string(world.sandbox.path("drivers/stub.icd")).expect("read");
    fs::create_dir(world.sandbox.path("empty")).expect("made");
    let empty = world.sandbox.path("empty");
    world.sandbox.set("OCLCACHE_VENDORS", library.trim());
    world.sandbox.set("OCL_ICD_VENDORS", empty);
    let step = platforms_step(&world, WRONG, NO_PLATFORM);
    assert_eq!(step, "unset OCL_ICD_VENDORS");
}

#[test]
fn a_temporary_directory_that_is_none_is_told() {
    let mut world = World::new();
    world.sandbox.set("TMPDIR", world.sandbox.path("nowhere"));
    let fault = Fault {
        about: "temporary",
        state: WRONG,
        says: "no temporary directory can be made",
        plant: |_| (),
        by_hand: None,
    };
    examine(&mut world, &fault);
}

/// Where the default is what cannot be written, nothing is there to unset.
#[test]
fn a_default_temporary_directory_that_cannot_be_written_is_told() {
    let read_only = "unset TMPDIR\nmount --bind /tmp /tmp && mount -o remount,bind,ro /tmp";
    let Some(findings) = in_a_mount_namespace(&World::new(), read_only) else {
        return skipped("a /tmp that is only read (it needs to mount it)");
    };
    let fault = Fault {
        about: "temporary",
        state: WRONG,
        says: "no temporary directory can be made",
        plant: |_| (),
        by_hand: None,
    };
    let found = found(&findings, &fault).unwrap_or_else(|| panic!("{findings:#?}"));
    let mend = &found["mend"];
    assert_eq!(
        mend["words"],
        "set TMPDIR to a directory that you can write"
    );
    assert_eq!(mend["command"], "export TMPDIR=/path/to/a/directory");
}

/// Who has configured a directory wants it to be used.
#[test]
fn a_directory_for_all_users_that_others_can_write_is_told() {
    let mut world = World::new();
    let fault = Fault {
        about: "system_dirs",
        state: WRONG,
        says: "is not used: ",
        plant: |world| {
            let shared = world.sandbox.path("shared");
            fs::create_dir(&shared).expect("made");
            fs::set_permissions(&shared, PermissionsExt::from_mode(0o777)).expect("changed");
            world.sandbox.set("OCLCACHE_SYSTEM_DIRS", shared);
        },
        by_hand: Some(|_| "unset OCLCACHE_SYSTEM_DIRS".into()),
    };
    examine(&mut world, &fault);
}

/// In a mount namespace of its own the cache directory is a small file system, with this done to it.
fn on_a_file_system(script: &str) -> Option<Vec<Value>> {
    let world = World::new();
    let cache = cache(&world, 0o700);
    let script = format!(
        "mount -t tmpfs -o size=4m,mode=700 none {cache} && cd {cache} && {{ {script}; }} > /dev/null 2>&1",
        cache = cache.display()
    );
    in_a_mount_namespace(&world, &script)
}

/// What the doctor finds behind this script; None if it cannot mount.
fn in_a_mount_namespace(world: &World, script: &str) -> Option<Vec<Value>> {
    let script = format!("{script}\nexec oclcache doctor --json --no-build");
    let mut command = world.sandbox.command(Way::Bare, "unshare");
    let output = command.args(["-m", "sh", "-c", &script]).output().ok()?;
    let json: Value = serde_json::from_slice(&output.stdout).ok()?;
    let is_mounted = !String::from_utf8_lossy(&output.stderr).contains("mount: ");
    is_mounted.then(|| json["findings"].as_array().expect("a list").clone())
}

#[test]
fn a_full_file_system_and_one_that_is_only_read_are_told() {
    for (script, says) in [
        ("cat /dev/zero > filler", "No space left on device"),
        (
            "mount -o remount,ro,size=4m none .",
            "Read-only file system",
        ),
    ] {
        let Some(findings) = on_a_file_system(script) else {
            return skipped("a cache directory on a full disk (it needs to mount one)");
        };
        let fault = Fault {
            about: "directory",
            state: WRONG,
            says,
            plant: |_| (),
            by_hand: None,
        };
        let found = found(&findings, &fault);
        let found = found.unwrap_or_else(|| panic!("`{says}` is not found in {findings:#?}"));
        assert!(found["mend"]["words"].is_string(), "{found}");
    }
    // What there is of entries is what can go.
    let entry = format!("v1/entries/4f/{}.entry", "4f".repeat(32));
    let full = format!(
        "mkdir -p v1/entries/4f && head -c 3M /dev/zero > {entry} && cat /dev/zero > filler"
    );
    let findings = on_a_file_system(&full).expect("mounted");
    let gc = "oclcache gc --max-size 1Mi";
    assert!(
        findings.iter().any(|found| found["mend"]["command"] == gc),
        "{findings:#?}"
    );
    let findings = on_a_file_system("true").expect("mounted");
    let is_well = |found: &&Value| found["about"] == "directory" && found["state"] == "ok";
    assert!(
        findings.iter().any(|found| is_well(&found)),
        "{findings:#?}"
    );
}

/// A world whose loader has ICD 2.0, and the words about a driver that it calls through its own table.
fn with_loaders_table() -> (World, &'static str) {
    let mut world = World::new();
    let directory = world.sandbox.path("loader");
    fs::create_dir(&directory).expect("made");
    symlink(example("libloader.so"), directory.join("libOpenCL.so.1")).expect("linked");
    world.sandbox.set("LD_LIBRARY_PATH", directory);
    world.sandbox.set("STUB_ICD2", "1");
    (world, "the loader calls its driver through its own table")
}

#[test]
fn a_driver_of_icd_2_is_told_to_be_cached_beside_us() {
    let (world, says) = with_loaders_table();
    let told = world.shell("", &[]).ok();
    assert!(!told.stdout.contains(says), "{}", told.stdout);
    assert!(told.stdout.contains("ICD 2.0, "), "{}", told.stdout);
}

/// The driver's table has no tag any more, so that only a build tells.
#[test]
fn a_build_tells_of_a_loader_that_uses_its_own_table_without_a_tag() {
    let (mut world, _) = with_loaders_table();
    world.sandbox.set("LOADER_KEEPS_TABLES", "1");
    let told = world.shell("", &[]);
    let says = "do not reach oclcache: the loader calls its driver through its own table";
    assert!(
        told.code == Some(1) && told.stdout.contains(says),
        "{}",
        told.stdout
    );
    assert!(
        told.stdout.contains("oclcache install --user\n"),
        "{}",
        told.stdout
    );
    let mended = world.shell("eval \"$(oclcache install --user)\"", &[]).ok();
    assert!(!mended.stdout.contains(says), "{}", mended.stdout);
}

#[test]
fn a_driver_that_the_loader_calls_through_a_table_of_its_own_is_told_and_reached() {
    let (mut world, says) = with_loaders_table();
    world.sandbox.set("STUB_SHORT_TABLE", "1");
    for arguments in [&[][..], &["--no-build"]] {
        let told = world.shell("", arguments);
        assert!(
            told.code == Some(1) && told.stdout.contains(says),
            "{arguments:?}: {}",
            told.stdout
        );
        assert!(
            told.stdout.contains("oclcache install --user\n"),
            "{}",
            told.stdout
        );
    }
    let mended = world.shell("eval \"$(oclcache install --user)\"", &[]).ok();
    assert!(!mended.stdout.contains(says), "{}", mended.stdout);
}
