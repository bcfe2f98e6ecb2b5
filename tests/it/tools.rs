//! Programs that a driver runs: what changes them changes what is served. PoCL runs `ld` for each kernel.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::first_build::{FIRST, SETTLED};
use crate::functions::shared;
use crate::support::{Driver, Ran, Sandbox, Way, example, skipped};

/// Has a constant that is recognized in machine code.
pub const SOURCE: &str =
    "__kernel void f(__global uint *out) { out[get_global_id(0)] = 0x12345678; }\n";

/// Changes that constant in all that `ld` writes, and nothing in other programs.
pub const OTHER_LINKER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
size_t fwrite(const void *from, size_t size, size_t count, FILE *file) {
    size_t (*usual)(const void *, size_t, size_t, FILE *) = dlsym(RTLD_NEXT, "fwrite");
    static char copy[1 << 20];
    size_t length = size * count;
    if (strcmp(program_invocation_short_name, "ld") || length > sizeof copy)
        return usual(from, size, count, file);
    memcpy(copy, from, length);
    for (size_t at = 0; at + 4 <= length; at++)
        if (!memcmp(copy + at, "\x78\x56\x34\x12", 4))
            memcpy(copy + at, "\x11\x11\x11\x11", 4);
    return usual(copy, size, count, file);
}
"#;

/// Runs the program bare and behind the cache: both compute the same. Gives how often the driver compiled.
#[track_caller]
pub fn compilations(sandbox: &Sandbox) -> usize {
    let bare = sandbox.kernel(Way::Bare, SOURCE, "").ok();
    let cached = sandbox.kernel(Way::Cached, SOURCE, "").ok();
    assert_eq!(cached.stdout, bare.stdout, "{}", cached.stderr);
    cached.source_builds()
}

#[test]
fn a_library_that_is_preloaded_into_a_tool_and_answers_it_is_in_the_key() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(library) = shared(&sandbox, "linker", OTHER_LINKER, &[]) else {
        return;
    };
    let Some(silent) = shared(&sandbox, "silent", "int nobody_asks;\n", &[]) else {
        return;
    };
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    sandbox.set("LD_PRELOAD", silent.as_os_str());
    assert_eq!(compilations(&sandbox), 0);
    sandbox.set("LD_PRELOAD", library.as_os_str());
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    sandbox.variables.remove("LD_PRELOAD");
    assert_eq!(compilations(&sandbox), 0);
}

/// How often the driver compiles where the system preloads by a file, which this command writes to `$0`.
#[track_caller]
fn compilations_where_the_system_preloads(sandbox: &Sandbox, write: &str) -> usize {
    let source = sandbox.write("kernel.cl", SOURCE);
    let etc = sandbox.path("etc");
    std::fs::create_dir_all(&etc).expect("made");
    let script = format!(
        "mount -t tmpfs -o mode=755 none \"$1\" && cp -a /etc/. \"$1\" && mount --bind \"$1\" /etc && shift && \
        sh -c '{write}' /etc/ld.so.preload && exec \"$@\""
    );
    let mut command = sandbox.command(Way::Cached, "unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.arg(&etc).arg(example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    sandbox.run(&mut command).ok().source_builds()
}

/// Answers no call of PoCL's libraries and one of `ld`.
const OF_LD_ONLY: &str = "void bfd_set_error_program_name(const char *name) {}\n";

#[test]
fn a_library_that_the_systems_file_preloads_into_a_tool_and_answers_it_is_in_the_key() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let mut can = Command::new("unshare");
    let can = can.args(["--mount", "true"]).output();
    if !can.is_ok_and(|ran| ran.status.success()) {
        return skipped("/etc/ld.so.preload (no mount namespace)");
    }
    let Ok(listed) = Command::new("sh")
        .args(["-c", "ldd \"$(command -v ld)\""])
        .output()
    else {
        return skipped("/etc/ld.so.preload (no ldd)");
    };
    if !String::from_utf8_lossy(&listed.stdout).contains("libbfd") {
        return skipped("/etc/ld.so.preload (a linker without libbfd)");
    }
    let [Some(library), Some(silent)] = [("linker", OF_LD_ONLY), ("silent", "int nobody_asks;\n")]
        .map(|(name, code)| shared(&sandbox, name, code, &[]))
    else {
        return;
    };
    let runs =
        |write: &str| [(); 2].map(|()| compilations_where_the_system_preloads(&sandbox, write));
    let write = |library: &Path| {
        format!(
            "printf \"# a comment /no.so\\n\\t:%s # more\" \"{}\" >\"$0\"",
            library.display()
        )
    };
    assert_eq!(runs("true"), [1, 0], "no file");
    assert_eq!(runs("printf \"# nothing\\n\" >\"$0\""), [0, 0]);
    assert_eq!(runs(&write(&silent)), [0, 0], "it answers nothing");
    assert_eq!(runs(&write(&library)), [1, 0], "it answers ld");
    assert_eq!(runs("true"), [0, 0], "no file any more");
    let code = format!("{OF_LD_ONLY}int other = 1;\n");
    shared(&sandbox, "linker", &code, &[]).expect("compiled");
    assert_eq!(runs(&write(&library)), [1, 0], "another library");
    assert_eq!(runs("mkdir \"$0\""), [1, 1], "it cannot be read");
}

fn write_script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
}

/// As the compilers of Nix and Spack have.
#[test]
fn what_a_script_in_place_of_a_tool_runs_is_in_the_key() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(library) = shared(&sandbox, "linker", OTHER_LINKER, &[]) else {
        return;
    };
    let tools = sandbox.path("tools");
    std::fs::create_dir(&tools).expect("made");
    let path = std::env::var("PATH").expect("a search path");
    // All variables are in the key of a driver with such a tool, and each run has another one of these.
    sandbox.set("MESA_SHADER_CACHE_DIR", sandbox.path("mesa"));
    sandbox.set("PATH", format!("{}:{path}", tools.display()));
    for [name, by] in [
        ["by-path", tools.join("by-path").to_str().expect("UTF-8")],
        ["by-name", "by-name"],
    ] {
        write_script(&tools.join("ld"), &format!("exec {by} \"$@\""));
        write_script(&tools.join(name), "exec /usr/bin/ld \"$@\"");
        assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0], "{name}");
        let preloaded = library.display();
        write_script(
            &tools.join(name),
            &format!("LD_PRELOAD={preloaded} exec /usr/bin/ld \"$@\""),
        );
        assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0], "{name}");
    }
}

/// The tools of most users are older than the process, whose first build is then made while the driver is identified.
#[test]
fn the_first_build_with_a_script_in_place_of_a_tool_is_stored() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let tools = sandbox.path("tools");
    std::fs::create_dir(&tools).expect("made");
    let path = std::env::var("PATH").expect("a search path");
    write_script(&tools.join("ld"), "exec /usr/bin/ld \"$@\"");
    sandbox.set("MESA_SHADER_CACHE_DIR", sandbox.path("mesa"));
    sandbox.set("PATH", format!("{}:{path}", tools.display()));
    sandbox.set("OCLCACHE_LOG", "debug");
    std::thread::sleep(SETTLED);
    let ran = [(); 2].map(|()| sandbox.kernel(Way::Cached, SOURCE, "").ok());
    let [first, second] = &ran;
    assert!(first.stderr.contains(FIRST), "{}", first.stderr);
    assert_eq!(
        ran.each_ref().map(Ran::source_builds),
        [1, 0],
        "{}",
        first.stderr
    );
    assert_eq!(first.stdout, second.stdout);
}
