//! Faults that machines have. Each is planted, found, and mended as the doctor says.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::World;
use crate::snapshots::assert_shown;
use crate::support::library;

pub struct Fault {
    /// What of the machine it is.
    pub about: &'static str,
    /// How bad it is.
    pub state: &'static str,
    /// What is said of it.
    pub says: &'static str,
    pub plant: fn(&mut World),
    /// What a person does who is told in words; none where a command is told.
    pub by_hand: Option<fn(&World) -> String>,
}

pub const WRONG: &str = "wrong";
pub const WARNING: &str = "warning";
/// What a program is that was built without a dynamic linker.
const BARE_PROGRAM: &str = "void _start(void) { for (;;); }\n";
const PROGRAM: &str = "int main(void) { return 0; }\n";
pub const SHARED: [&str; 2] = ["-shared", "-fPIC"];

/// Done as the words say, before the doctor looks again.
fn remove(world: &World, name: &str) -> String {
    format!("rm {}", world.sandbox.path(name).display())
}

fn configure(world: &World, content: &str) {
    let directory = world.sandbox.path("home/.config/oclcache");
    fs::create_dir_all(&directory).expect("made");
    fs::write(directory.join("config.toml"), content).expect("written");
}

fn driver(world: &World, name: &str, source: &str) {
    let library = world.compile(&format!("lib{name}.so"), source, &SHARED);
    world.register(name, &library.display().to_string());
}

/// A cache with this file in a directory of entries, as something else than the cache has left it.
fn content(world: &World, leave: fn(&Path)) {
    let shard = cache(world, 0o700).join("v1/entries/4f");
    fs::create_dir_all(&shard).expect("made");
    let below = [".", "v1", "v1/entries", "v1/entries/4f"];
    for directory in below.map(|name| world.sandbox.path("cache").join(name)) {
        fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).expect("changed");
    }
    let entry = shard.join("one.entry");
    fs::write(&entry, "").expect("written");
    fs::set_permissions(&entry, PermissionsExt::from_mode(0o600)).expect("changed");
    leave(&entry);
}

fn change(path: Option<&Path>, mode: u32) {
    let path = path.expect("a path");
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("changed");
}

/// What programs are given for a loader.
fn loader(world: &mut World, source: &str) {
    let directory = world.sandbox.path("loader");
    fs::create_dir_all(&directory).expect("made");
    world.compile("loader/libOpenCL.so.1", source, &SHARED);
    world.sandbox.set("LD_LIBRARY_PATH", directory);
}

pub fn cache(world: &World, mode: u32) -> PathBuf {
    let cache = world.sandbox.path("cache");
    fs::create_dir_all(&cache).expect("made");
    fs::set_permissions(&cache, PermissionsExt::from_mode(mode)).expect("changed");
    cache
}

const FAULTS: [Fault; 47] = [
    Fault {
        about: "loader",
        state: WRONG,
        says: "no program can load libOpenCL.so.1",
        plant: |world| {
            loader(world, "int unused;\n");
            fs::write(
                world.sandbox.path("loader/libOpenCL.so.1"),
                "a text that is no library, and long enough to be looked at as one",
            )
            .expect("written");
        },
        by_hand: Some(|world| remove(world, "loader/libOpenCL.so.1")),
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "cannot open shared object file",
        plant: |world| drop(world.register("gone", "/nowhere/libgone.so")),
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "this .icd file names no library",
        plant: |world| drop(world.sandbox.write("drivers/empty.icd", "")),
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "not a regular file",
        plant: |world| fs::create_dir(world.sandbox.path("drivers/it's one.icd")).expect("made"),
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "names \\u{7f}\\u{0}\\u{1} garbage",
        plant: |world| {
            drop(
                world
                    .sandbox
                    .write("drivers/garbage.icd", b"\x7f\x00\x01 garbage"),
            )
        },
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "invalid ELF header",
        plant: |world| {
            let text = world.sandbox.write(
                "libtext.so",
                "no ELF file, but a text that is long enough to be looked at as one",
            );
            world.register("text", &text.display().to_string());
        },
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "wrong ELF class",
        plant: |world| {
            let library = world.compile("libother.so", "int unused;\n", &SHARED);
            let mut bytes = fs::read(&library).expect("read");
            bytes[4] = 3 - bytes[4]; // EI_CLASS
            fs::write(&library, bytes).expect("written");
            world.register("other", &library.display().to_string());
        },
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "has no clIcdGetPlatformIDsKHR",
        plant: |world| {
            driver(
                world,
                "symbol",
                "int clGetPlatformInfo(void) { return 0; }\n",
            )
        },
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WRONG,
        says: "the driver crashed (signal 6)",
        plant: |world| {
            let abort = "#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { abort(); }\n";
            driver(world, "crash", abort);
        },
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WRONG,
        says: "no answer: it took longer than",
        plant: |world| {
            let wait = "#include <unistd.h>\n__attribute__((constructor)) static void wait_for_ever(void) { for (;;) pause(); }\n";
            driver(world, "hang", wait);
            world.arguments = vec!["--timeout".into(), "3s".into()];
        },
        by_hand: Some(|world| remove(world, "drivers/hang.icd")),
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "names the same driver as",
        plant: |world| {
            let stub = fs::read_to_string(world.sandbox.path("drivers/stub.icd")).expect("read");
            world.register("stub-again", stub.trim());
        },
        by_hand: None,
    },
    Fault {
        about: "driver",
        state: WARNING,
        says: "it claims ICD 2.0 but lacks a part of it",
        plant: |world| world.sandbox.set("STUB_ICD2", "tag"),
        by_hand: Some(|_| "unset STUB_ICD2".into()),
    },
    Fault {
        about: "directory",
        state: WRONG,
        says: "others may write it",
        plant: |world| {
            content(world, |_| {});
            cache(world, 0o777);
        },
        by_hand: None,
    },
    Fault {
        about: "directory",
        state: WRONG,
        says: "its owner may not write it",
        plant: |world| drop(cache(world, 0o500)),
        by_hand: None,
    },
    Fault {
        about: "directory",
        state: WRONG,
        says: "has mode 0000: its owner may not read it",
        plant: |world| drop(cache(world, 0)),
        by_hand: None,
    },
    Fault {
        about: "directory",
        state: WRONG,
        says: "Not a directory",
        plant: |world| drop(world.sandbox.write("cache", "a file")),
        by_hand: Some(|world| remove(world, "cache")),
    },
    Fault {
        about: "directory",
        state: WRONG,
        says: "file/cache cannot be examined",
        plant: |world| {
            let file = world.sandbox.write("file", "no directory");
            world.sandbox.set("OCLCACHE_DIR", file.join("cache"));
        },
        by_hand: Some(|world| {
            format!(
                "export OCLCACHE_DIR={}",
                world.sandbox.path("cache").display()
            )
        }),
    },
    Fault {
        about: "entries",
        state: WRONG,
        says: "v1/entries/4f`: others may write it",
        plant: |world| content(world, |entry| change(entry.parent(), 0o775)),
        by_hand: None,
    },
    Fault {
        about: "entries",
        state: WRONG,
        says: "one.entry`: others may write it",
        plant: |world| content(world, |entry| change(Some(entry), 0o666)),
        by_hand: None,
    },
    Fault {
        about: "entries",
        state: WRONG,
        says: "one.entry`: you may not read or write it",
        plant: |world| content(world, |entry| change(Some(entry), 0)),
        by_hand: None,
    },
    Fault {
        about: "entries",
        state: WRONG,
        says: "v1/entries/4f`: you may not read or write it",
        plant: |world| content(world, |entry| change(entry.parent(), 0o500)),
        by_hand: None,
    },
    Fault {
        about: "entries",
        state: WRONG,
        says: "it is a link",
        plant: |world| {
            content(world, |entry| {
                let shard = entry.parent().expect("a shard");
                fs::rename(shard, shard.with_extension("moved")).expect("moved");
                symlink("4f.moved", shard).expect("linked");
            });
        },
        by_hand: None,
    },
    Fault {
        about: "directory",
        state: WRONG,
        says: "neither OCLCACHE_DIR nor XDG_CACHE_HOME nor HOME is set to an absolute path",
        plant: |world| {
            world.sandbox.set("OCLCACHE_DIR", "");
            world.sandbox.set("HOME", "relative");
        },
        by_hand: Some(|world| {
            format!(
                "export OCLCACHE_DIR={}",
                world.sandbox.path("cache").display()
            )
        }),
    },
    Fault {
        about: "room",
        state: WRONG,
        says: "so nothing is stored",
        plant: |world| world.sandbox.set("OCLCACHE_MIN_FREE", "900000T"),
        by_hand: None,
    },
    Fault {
        about: "setting",
        state: WARNING,
        says: "readonly = 1 (from OCLCACHE_READONLY): nothing new is stored",
        plant: |world| world.sandbox.set("OCLCACHE_READONLY", "1"),
        by_hand: None,
    },
    Fault {
        about: "setting",
        state: WRONG,
        says: "disable = 1 (from OCLCACHE_DISABLE): the cache does nothing",
        plant: |world| world.sandbox.set("OCLCACHE_DISABLE", "1"),
        by_hand: None,
    },
    Fault {
        about: "setting",
        state: WRONG,
        says: "config.toml): the cache does nothing",
        plant: |world| configure(world, "log = \"off\"\ndisable = true\n"),
        by_hand: None,
    },
    Fault {
        about: "setting",
        state: WARNING,
        says: "max_size = 5B (from OCLCACHE_MAX_SIZE): hardly any entry fits",
        plant: |world| world.sandbox.set("OCLCACHE_MAX_SIZE", "5B"),
        by_hand: None,
    },
    Fault {
        about: "setting",
        state: WARNING,
        says: "max_age = 30m (from OCLCACHE_MAX_AGE): entries in use are removed as well",
        plant: |world| world.sandbox.set("OCLCACHE_MAX_AGE", "30m"),
        by_hand: None,
    },
    Fault {
        about: "configuration",
        state: WARNING,
        says: "`OCLCACHE_VERIFY`: `verify` is `all`",
        plant: |world| world.sandbox.set("OCLCACHE_VERIFY", "all"),
        by_hand: Some(|_| "unset OCLCACHE_VERIFY".into()),
    },
    Fault {
        about: "variable",
        state: WARNING,
        says: "`OCLCACHE_DISABEL` is not a setting; did you mean `OCLCACHE_DISABLE`?",
        plant: |world| world.sandbox.set("OCLCACHE_DISABEL", "1"),
        by_hand: None,
    },
    Fault {
        about: "configuration",
        state: WARNING,
        says: "`disabel`",
        plant: |world| configure(world, "disabel = true\n"),
        by_hand: Some(|world| remove(world, "home/.config/oclcache/config.toml")),
    },
    Fault {
        about: "configuration",
        state: WARNING,
        says: "is not TOML: line 2",
        plant: |world| configure(world, "readonly = false\n]damaged[\n"),
        by_hand: Some(|world| remove(world, "home/.config/oclcache/config.toml")),
    },
    Fault {
        about: "programs",
        state: WARNING,
        says: "registers oclcache again",
        plant: |world| drop(world.register("us", &library().display().to_string())),
        by_hand: None,
    },
    Fault {
        about: "programs",
        state: WARNING,
        says: "it sees each call twice",
        plant: |world| {
            world
                .sandbox
                .set("OPENCL_LAYERS", world.sandbox.path("bin/liboclcache.so"))
        },
        by_hand: None,
    },
    Fault {
        about: "programs",
        state: WRONG,
        says: "which this loader refuses as a layer",
        plant: |world| {
            // What Khronos' loader since 3.1 reads and asks for, and a copy of ours from before that.
            let source = "int clGetPlatformIDs(unsigned n, void **p, unsigned *c) { if (c) *c = 0; return -1001; }\n\
                const char *const names[] = {\"OPENCL_LAYERS\", \"OPENCL_LAYER_PATH\", \"clInitLayerWithProperties\"};\n";
            loader(world, source);
            let old = "const char *oclcache_version(void) { return \"0.0.1\"; }\nint clInitLayer(void) { return 0; }\n";
            let old = world.compile("liboclcache-old.so", old, &SHARED);
            world.sandbox.set("OPENCL_LAYERS", old);
        },
        by_hand: None,
    },
    Fault {
        about: "programs",
        state: WARNING,
        says: "it is not installed for this shell",
        plant: |world| {
            fs::remove_file(world.sandbox.path("drivers/oclcache.icd")).expect("removed")
        },
        by_hand: Some(|_| "eval \"$(oclcache install --user 2> said)\"".into()),
    },
    Fault {
        about: "programs",
        state: WRONG,
        says: "it is registered for you, but OCL_ICD_VENDORS is not",
        plant: |world| {
            fs::remove_file(world.sandbox.path("drivers/oclcache.icd")).expect("removed");
            world.shell("oclcache install --user >&2", &["--no-build"]);
        },
        by_hand: None,
    },
    Fault {
        about: "installed",
        state: WRONG,
        says: "registers oclcache as /nowhere/liboclcache.so, which does not exist",
        plant: |world| drop(world.register("oclcache", "/nowhere/liboclcache.so")),
        by_hand: None,
    },
    Fault {
        about: "platforms",
        state: WRONG,
        says: "`Stub` is listed twice",
        plant: |world| world.sandbox.set("OCLCACHE_MODE", "icd"),
        by_hand: None,
    },
    Fault {
        about: "platforms",
        state: WARNING,
        says: "`mode = beside` counts as `auto`",
        plant: |world| {
            let registration = world.sandbox.path("drivers/stub.icd");
            let library = fs::read_to_string(&registration).expect("read");
            fs::remove_file(registration).expect("removed");
            world.sandbox.set("OCLCACHE_VENDORS", library.trim());
            world.sandbox.set("OCLCACHE_MODE", "beside");
        },
        by_hand: None,
    },
    Fault {
        about: "variable",
        state: WRONG,
        says: "this vendors path does not exist",
        plant: |world| {
            world
                .sandbox
                .set("OCL_ICD_VENDORS", world.sandbox.path("nowhere"))
        },
        by_hand: None,
    },
    Fault {
        about: "rule",
        state: WRONG,
        says: "sh: cache = false",
        plant: |world| {
            configure(world, "[program.sh]\ncache = false\n");
            world.arguments = vec!["sh".into()];
        },
        by_hand: None,
    },
    Fault {
        about: "program",
        state: WRONG,
        says: "is statically linked",
        plant: |world| {
            let program = world.compile("program", BARE_PROGRAM, &["-static", "-nostdlib"]);
            world.arguments = vec![program.display().to_string()];
        },
        by_hand: Some(|world| {
            let rebuilt = world.compile("rebuilt", PROGRAM, &[]);
            format!(
                "cp {} {}",
                rebuilt.display(),
                world.sandbox.path("program").display()
            )
        }),
    },
    Fault {
        about: "program",
        state: WRONG,
        says: "is not executable",
        plant: |world| {
            let program = world.compile("program", PROGRAM, &[]);
            fs::set_permissions(&program, PermissionsExt::from_mode(0o644)).expect("changed");
            world.arguments = vec![program.display().to_string()];
        },
        by_hand: None,
    },
    Fault {
        about: "program",
        state: WRONG,
        says: "a script of `/nowhere/sh`, which does not exist",
        plant: |world| {
            let script = world.sandbox.write("script", "#!/nowhere/sh\n");
            world.arguments = vec![script.display().to_string()];
        },
        by_hand: Some(|world| {
            let script = world.sandbox.path("script");
            format!("echo '#!/bin/sh' > {}", script.display())
        }),
    },
    Fault {
        about: "program",
        state: WRONG,
        says: "runs with raised privileges",
        plant: |world| {
            let program = world.compile("program", PROGRAM, &[]);
            fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).expect("changed");
            world.arguments = vec![program.display().to_string()];
        },
        by_hand: None,
    },
];

/// What is said of this fault.
pub fn found<'f>(findings: &'f [Value], fault: &Fault) -> Option<&'f Value> {
    findings.iter().find(|found| {
        let says = found["text"].as_str().expect("a text").contains(fault.says);
        found["about"] == fault.about && found["state"] == fault.state && says
    })
}

/// Plants a fault, finds it, and mends it as is said.
pub fn examine(world: &mut World, fault: &Fault) {
    let says = fault.says;
    (fault.plant)(world);
    let findings = world.findings("");
    let Some(fault_found) = found(&findings, fault) else {
        panic!("`{says}` is not found in {findings:#?}");
    };
    let mend = &fault_found["mend"];
    let before = match (fault.by_hand, mend["command"].as_str()) {
        (Some(by_hand), command) => {
            let words = mend["words"].as_str();
            assert!(words.or(command).is_some(), "`{says}` has no mend");
            by_hand(world)
        }
        (None, Some(command)) => format!("{command} || exit 99"),
        (None, None) => panic!("`{says}` has no command: {mend}"),
    };
    let findings = world.findings(&before);
    if let Some(still) = found(&findings, fault) {
        panic!("`{says}` is not mended by `{before}`: {still}");
    }
}

#[test]
fn each_fault_is_found_and_what_is_said_mends_it() {
    for fault in &FAULTS {
        examine(&mut World::new(), fault);
    }
}

#[test]
fn faults_are_shown_with_their_mends() {
    let mut world = World::new();
    for says in [
        "names no library",
        "others may write it",
        "OCLCACHE_DISABLE",
        "oclcache again",
    ] {
        let fault = FAULTS.iter().find(|fault| fault.says.contains(says));
        (fault.expect("one of them").plant)(&mut world);
    }
    let ran = world.shell("", &["--no-build"]);
    assert_eq!(ran.code, Some(1));
    let shown = super::without(&ran.stdout, &["loader", "baker", "python"]);
    // Directories are listed in the order of the file system.
    let mut lines: Vec<&str> = shown.lines().collect();
    lines.retain(|line| {
        !line.contains("oclcache again") && !line.contains("one registration is enough")
    });
    let shown = format!("{}\n\n{}", lines.join("\n"), ran.stderr);
    assert_shown(&world.sandbox, "doctor-faults", &shown);
}
