//! What PoCL's linker reads where it is a script or a link, and who may read it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::functions::shared;
use crate::identity::linker;
use crate::linker_search::library_of_the_linker;
use crate::support::{Driver, Ran, Sandbox, Way, example, skipped};
use crate::tools::{OTHER_LINKER, SOURCE, compilations};

fn write_program(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("set");
}

/// A sandbox with a directory `bin` in front of `PATH`, and another linker to preload.
fn with_linker() -> Option<(Sandbox, String)> {
    let mut sandbox = Sandbox::new(Driver::Pocl)?;
    let library = shared(&sandbox, "linker", OTHER_LINKER, &[])?;
    // A script may read what depends on the working directory. A first build is not stored then, and there is none in a used cache.
    std::fs::create_dir_all(sandbox.path("cache/v1/digests")).expect("made");
    let path = std::env::var("PATH").expect("a search path");
    sandbox.set("MESA_SHADER_CACHE_DIR", sandbox.path("mesa"));
    sandbox.set("PATH", format!("{}:{path}", sandbox.path("bin").display()));
    Some((sandbox, library.display().to_string()))
}

#[test]
fn what_a_script_in_place_of_a_linker_sources_is_in_the_key() {
    let Some((sandbox, library)) = with_linker() else {
        return;
    };
    let settings = sandbox.write("settings", "OTHER=\n");
    let text = format!(
        "#!/bin/sh\n. {}\nexec env LD_PRELOAD=$OTHER /usr/bin/ld \"$@\"\n",
        settings.display()
    );
    write_program(&sandbox.path("bin/ld"), &text);
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    sandbox.write("settings", format!("OTHER={library}\n"));
    assert_eq!(compilations(&sandbox), 1);
}

#[test]
fn what_a_shell_sources_before_a_script_in_place_of_a_linker_is_in_the_key() {
    let Some((mut sandbox, library)) = with_linker() else {
        return;
    };
    if !Path::new("/bin/bash").exists() {
        return skipped("a script of bash (no bash)");
    }
    let settings = sandbox.write("settings", "OTHER=\n");
    let text = "#!/bin/bash\nexec env LD_PRELOAD=$OTHER /usr/bin/ld \"$@\"\n";
    write_program(&sandbox.path("bin/ld"), text);
    sandbox.set("BASH_ENV", settings);
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    sandbox.write("settings", format!("OTHER={library}\n"));
    assert_eq!(compilations(&sandbox), 1);
}

#[test]
fn what_a_script_in_place_of_a_linker_does_with_any_variable_is_in_the_key() {
    let Some((mut sandbox, _)) = with_linker() else {
        return;
    };
    let text = "#!/bin/sh\ncd\nexec /usr/bin/ld \"$@\" $FLAGS\n";
    write_program(&sandbox.path("bin/ld"), text);
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    let home = sandbox.path("another");
    std::fs::create_dir(&home).expect("made");
    sandbox.set("OCLCACHE_DIR", sandbox.path("cache"));
    sandbox.set("HOME", home);
    for flags in ["-O1", "-O2"] {
        sandbox.set("FLAGS", flags);
        assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0], "{flags}");
        // The script does not name this one.
        sandbox.set("OPTS", flags);
        assert_eq!(compilations(&sandbox), 0, "{flags}");
    }
}

#[test]
fn nothing_is_cached_if_the_shell_of_a_script_in_place_of_a_linker_reads_files_of_its_own() {
    let Some((sandbox, _)) = with_linker() else {
        return;
    };
    let script = "exec /usr/bin/ld \"$@\"\n";
    write_program(&sandbox.path("inner"), &format!("#!/bin/bash -l\n{script}"));
    write_program(
        &sandbox.path("python"),
        "#!/usr/bin/env python3\nimport os, sys\nos.execv('/usr/bin/ld', sys.argv)\n",
    );
    let inner = sandbox.path("inner");
    let inner = inner.display();
    let in_python = sandbox.path("python");
    let in_python = in_python.display();
    for (text, expected) in [
        (format!("#!/bin/bash -l\n{script}"), [1, 1]),
        (format!("#!/usr/bin/env -S bash --login\n{script}"), [1, 1]),
        (format!("#!/bin/sh\nexec {inner} \"$@\"\n"), [1, 1]),
        (
            format!("#!/bin/sh\nexec bash -e -lc '{inner} \"$@\"' x \"$@\"\n"),
            [1, 1],
        ),
        (format!("#!/bin/sh\nexec {in_python} \"$@\"\n"), [1, 1]),
        (
            format!("#!/bin/bash\nexec -l \"$BASH\" {inner} \"$@\"\n"),
            [1, 1],
        ),
        (format!("#!/bin/bash -e\n# for sh\n{script}"), [1, 0]),
        (format!("#!/bin/bash --norc\n{script}"), [1, 0]),
    ] {
        write_program(&sandbox.path("bin/ld"), &text);
        let compiled = [(); 2].map(|()| compilations(&sandbox));
        assert_eq!(compiled, expected, "{text}");
    }
}

#[test]
fn a_library_where_a_script_in_place_of_a_linker_has_it_looked_for_is_in_the_key() {
    let Some((sandbox, _)) = with_linker() else {
        return;
    };
    let Some(library) = library_of_the_linker() else {
        return;
    };
    let own = sandbox.path("own");
    std::fs::create_dir(&own).expect("made");
    let copy = own.join(library.file_name().expect("a name"));
    let content = std::fs::read(&library).expect("read");
    std::fs::write(&copy, &content).expect("written");
    let text = format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH={}\nexec /usr/bin/ld \"$@\"\n",
        own.display()
    );
    write_program(&sandbox.path("bin/ld"), &text);
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    std::fs::write(&copy, [&content[..], b"another"].concat()).expect("written");
    assert_eq!(compilations(&sandbox), 1);
}

/// Nix's store, Conda, uv and rdfind keep one file for all that are equal.
#[test]
fn a_linker_whose_twin_elsewhere_has_other_libraries_is_told_from_it() {
    let Some((sandbox, _)) = with_linker() else {
        return;
    };
    let at = |name: &str| sandbox.path(name);
    for (version, number) in [("v1", "0x12345678"), ("v2", "0x11111111")] {
        std::fs::create_dir_all(at(version).join("bin")).expect("made");
        std::fs::create_dir_all(at(version).join("lib")).expect("made");
        let code = format!("unsigned below(void) {{ return {number}; }}\n");
        let library = shared(&sandbox, "below", &code, &[]).expect("compiled");
        std::fs::rename(library, at(version).join("lib/libbelow.so.1")).expect("moved");
    }
    // Links what it is asked for, with another constant if its library says so.
    let text = format!(
        "#include <unistd.h>\n#include <stdlib.h>\nunsigned below(void);\nint main(int count, char **words) {{ (void)count;\n\
        if (below() != 0x12345678) setenv(\"LD_PRELOAD\", \"{}\", 1);\nwords[0] = \"ld\"; return execv(\"{}\", words); }}\n",
        at("liblinker.so").display(),
        linker().display()
    );
    let source = sandbox.write("ld.c", text);
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(at("v1/bin/ld")).arg(source);
    compiler.arg("-L").arg(at("v1/lib")).arg("-l:libbelow.so.1");
    compiler.arg("-Wl,-rpath,$ORIGIN/../lib");
    assert!(compiler.status().expect("a C compiler").success());
    std::fs::hard_link(at("v1/bin/ld"), at("v2/bin/ld")).expect("linked");
    std::fs::create_dir(at("bin")).expect("made");
    symlink("v1", at("current")).expect("linked");
    symlink("../current/bin/ld", at("bin/ld")).expect("linked");
    // What has just changed is not remembered.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    std::fs::remove_file(at("current")).expect("removed");
    symlink("v2", at("current")).expect("linked");
    assert_eq!(compilations(&sandbox), 1);
}

fn client(sandbox: &Sandbox, before: &[&str]) -> Ran {
    let source = sandbox.write("kernel.cl", SOURCE);
    let program = example("client");
    let mut words = before.to_vec();
    words.push(program.to_str().expect("UTF-8"));
    let mut command = sandbox.command(Way::Cached, words[0]);
    command
        .args(&words[1..])
        .args(["run", "--kernel", "f", "--source"]);
    sandbox.run(command.arg(source)).ok()
}

/// Root in a name space of users reads only what belongs to users of it.
#[test]
fn root_in_a_name_space_of_users_is_not_taken_for_the_systems() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(library) = library_of_the_linker() else {
        return;
    };
    let inner = ["unshare", "--user", "--map-root-user"];
    let can = Command::new(inner[0])
        .args(&inner[1..])
        .arg("true")
        .output();
    if !can.is_ok_and(|ran| ran.status.success()) || !crate::support::is_root() {
        return skipped("a name space of users");
    }
    let own = sandbox.path("own");
    std::fs::create_dir(&own).expect("made");
    let copy = own.join(library.file_name().expect("a name"));
    let content = std::fs::read(&library).expect("read");
    std::fs::write(&copy, [&content[..], b"another"].concat()).expect("written");
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o600)).expect("set");
    std::os::unix::fs::chown(&copy, Some(12345), Some(12345)).expect("given");
    sandbox.set("LD_LIBRARY_PATH", &own);
    std::thread::sleep(std::time::Duration::from_secs(4));
    let misses = |before: &[&str]| client(&sandbox, before).source_builds();
    assert_eq!([(); 2].map(|()| misses(&["env"])), [1, 0]);
    // There `ld` cannot open that library, and takes the system's.
    assert_eq!(misses(&inner), 1);
}

/// A cross compiler for another C library is no GCC that clang takes.
#[test]
fn a_newer_gcc_that_clang_does_not_know_hides_none_that_it_takes() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let can = Command::new("unshare").args(["--mount", "true"]).output();
    let own = Path::new("/usr/lib/gcc/x86_64-linux-gnu");
    if !own.exists() || !can.is_ok_and(|ran| ran.status.success()) {
        return skipped("another GCC (no GCC of Debian's, or no mount namespace)");
    }
    let tree = sandbox.path("gcc");
    let copied = Command::new("cp")
        .arg("-r")
        .arg("/usr/lib/gcc")
        .arg(&tree)
        .status();
    assert!(copied.expect("cp").success());
    let other = tree.join("x86_64-linux-musl/99");
    std::fs::create_dir_all(&other).expect("made");
    std::fs::write(other.join("crtbegin.o"), "").expect("written");
    let misses = || crate::identity::mounted(&sandbox, &tree, "/usr/lib/gcc");
    assert_eq!([(); 2].map(|()| misses()), [1, 0]);
    let versions = std::fs::read_dir(tree.join("x86_64-linux-gnu")).expect("listed");
    for version in versions.flatten() {
        let archive = version.path().join("libgcc.a");
        let mut content = std::fs::read(&archive).expect("read");
        content.extend(b"another");
        std::fs::write(&archive, content).expect("written");
    }
    assert_eq!(misses(), 1);
}
