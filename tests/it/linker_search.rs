//! Where clang's driver looks for PoCL's linker, and the dynamic linker for the libraries of that: what comes into any of these places
//! compiles again. Where that cannot be told, nothing is cached.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::copies::find;
use crate::functions::shared;
use crate::identity::{linker, mounted, needed};
use crate::privilege::AS_NOBODY;
use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example, is_root, skipped};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 5; }\n";

fn client(sandbox: &Sandbox, before: &[&str], options: &[&str]) -> Ran {
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut words = before.to_vec();
    let program = example("client");
    words.push(program.to_str().expect("UTF-8"));
    let mut command = sandbox.command(Way::Cached, words[0]);
    command.args(&words[1..]).args(options);
    command.args(["run", "--kernel", "f", "--source"]);
    std::fs::create_dir_all(sandbox.path("cwd")).expect("made");
    sandbox
        .run(command.arg(source).current_dir(sandbox.path("cwd")))
        .ok()
}

fn misses(sandbox: &Sandbox) -> usize {
    client(sandbox, &[], &[]).source_builds()
}

/// A library that the linker needs. None: it needs none but the C library.
pub fn library_of_the_linker() -> Option<PathBuf> {
    let listed = Command::new("ldd").arg(linker()).output().ok()?;
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    let mut words = listed.split_whitespace();
    let found = words.find(|word| word.starts_with("/") && word.contains("/libbfd"));
    if found.is_none() {
        skipped("a linker with libbfd");
    }
    found.map(PathBuf::from)
}

#[test]
fn another_library_of_the_linker_is_noticed_wherever_the_search_path_leads() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(library) = library_of_the_linker() else {
        return;
    };
    let content = std::fs::read(&library).expect("read");
    let name = library.file_name().expect("a name");
    let system = library.parent().expect("a directory");
    let system = system
        .strip_prefix("/usr")
        .unwrap_or(system.strip_prefix("/").expect("a root"));
    let at = |name: &str| sandbox.path(name).to_str().expect("UTF-8").to_owned();
    let cases = [
        (at("plain"), sandbox.path("plain")),
        ("/nonexistent:".to_owned(), sandbox.path("cwd")),
        (
            format!("/nonexistent;{}", at("behind")),
            sandbox.path("behind"),
        ),
        (at("token/$LIB"), sandbox.path("token").join(system)),
        (at("levels"), sandbox.path("levels/glibc-hwcaps/x86-64-v2")),
        (at("old"), sandbox.path("old/tls")),
    ];
    assert_eq!(misses(&sandbox), 1);
    for (number, (value, place)) in cases.into_iter().enumerate() {
        sandbox.set("LD_LIBRARY_PATH", &value);
        assert_eq!(misses(&sandbox), 0, "{value}: nothing is there");
        std::fs::create_dir_all(&place).expect("made");
        let library = place.join(name);
        // Other bytes in each case, which nobody reads.
        let other = [&content[..], &[number as u8]].concat();
        std::fs::write(&library, other).expect("written");
        assert_eq!([(); 2].map(|()| misses(&sandbox)), [1, 0], "{value}");
        std::fs::remove_file(&library).expect("removed");
        assert_eq!(misses(&sandbox), 0, "{value}: it is gone");
    }
}

/// A linker of Conda or Spack says where its libraries are.
#[test]
fn a_library_that_is_found_by_what_the_linker_says_for_all_is_in_the_key() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let directory = sandbox.path("").display().to_string();
    let below =
        |number: usize| format!("int below(void) {{ return 0; }}\nint number = {number};\n");
    let own = ["-L", &directory, "-lbelow"];
    if shared(&sandbox, "below", &below(0), &[]).is_none()
        || shared(
            &sandbox,
            "between",
            "int below(void); int between(void) { return below(); }",
            &own,
        )
        .is_none()
    {
        return;
    }
    for name in ["below", "between"] {
        // By the name that those who need it look for.
        let link = sandbox.path(&format!("lib{name}.so.1"));
        symlink(format!("lib{name}.so"), link).expect("linked");
    }
    let text = format!(
        "#include <unistd.h>\nint between(void);\nint main(int count, char **words) {{ (void)count; words[0] = \"{ld}\";\n\
        return between() || execv(words[0], words); }}\n",
        ld = linker().display()
    );
    let source = sandbox.write("ld.c", text);
    std::fs::create_dir(sandbox.path("bin")).expect("made");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(sandbox.path("bin/ld")).arg(source);
    compiler.args(["-L", &directory, "-lbetween", "-Wl,--disable-new-dtags"]);
    compiler.args([
        format!("-Wl,-rpath-link,{directory}"),
        format!("-Wl,-rpath,{directory}"),
    ]);
    assert!(compiler.status().expect("a C compiler").success());
    let path = std::env::var("PATH").expect("a path");
    sandbox.set("PATH", format!("{}:{path}", sandbox.path("bin").display()));
    assert_eq!([(); 2].map(|()| misses(&sandbox)), [1, 0]);
    shared(&sandbox, "below", &below(1), &[]).expect("compiled");
    assert_eq!([(); 2].map(|()| misses(&sandbox)), [1, 0]);
}

fn write_linker(path: &Path, comment: &str) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    let text = format!(
        "#!/bin/sh\n# {comment}\nexec {} \"$@\"\n",
        linker().display()
    );
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("set");
}

#[test]
fn another_linker_is_noticed_wherever_clang_looks() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    // All variables are in the key of a driver with a script for a tool, and each run has another one of these.
    sandbox.set("MESA_SHADER_CACHE_DIR", sandbox.path("mesa"));
    let path = std::env::var("PATH").expect("a path");
    let [first, second, compilers] =
        ["first", "second", "compilers"].map(|name| sandbox.path(name));
    sandbox.set(
        "PATH",
        format!("{}:{}:{path}", first.display(), second.display()),
    );
    sandbox.set("COMPILER_PATH", &compilers);
    assert_eq!([(); 2].map(|()| misses(&sandbox)), [1, 0]);
    let triple = format!("{}-pc-linux-gnu-ld", std::env::consts::ARCH);
    for (number, place) in [
        second.join("ld"),
        first.join("ld"),
        second.join(&triple),
        first.join(&triple),
        compilers.join("ld"),
    ]
    .iter()
    .enumerate()
    {
        write_linker(place, &number.to_string());
        assert_eq!(
            [(); 2].map(|()| misses(&sandbox)),
            [1, 0],
            "{}",
            place.display()
        );
    }
    // The same two in the other order.
    sandbox.set(
        "PATH",
        format!("{}:{}:{path}", second.display(), first.display()),
    );
    assert_eq!([(); 2].map(|()| misses(&sandbox)), [1, 0]);
}

#[test]
fn a_linker_that_comes_beside_clang_is_noticed() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    assert_eq!(misses(&sandbox), 1);
    let library = needed(&sandbox, "libclang").map(|name| find(&name));
    let home = library.and_then(|library| library.canonicalize().ok());
    let home = home.map(|library| library.with_file_name("../bin"));
    let can = Command::new("unshare").args(["--mount", "true"]).output();
    let (Some(home), true) = (home, can.is_ok_and(|ran| ran.status.success())) else {
        return skipped("a linker beside clang (clang in PoCL itself, or no mount namespace)");
    };
    // In a build, PoCL only looks whether clang is there.
    let tree = sandbox.path("bin");
    std::fs::create_dir(&tree).expect("made");
    for entry in std::fs::read_dir(&home).expect("listed").flatten() {
        std::fs::write(tree.join(entry.file_name()), "").expect("written");
    }
    let misses = || mounted(&sandbox, &tree, home.to_str().expect("UTF-8"));
    assert_eq!([(); 2].map(|()| misses()), [1, 0]);
    write_linker(&tree.join("ld"), "beside clang");
    assert_eq!(misses(), 1);
}

#[test]
fn a_linker_that_this_user_may_not_run_is_not_taken_for_the_one_that_runs() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    sandbox.set("MESA_SHADER_CACHE_DIR", sandbox.path("mesa"));
    sandbox.set("POCL_CACHE_DIR", sandbox.path("pocl"));
    let [first, second] = ["first", "second"].map(|name| sandbox.path(name));
    std::fs::create_dir(&first).expect("made");
    copy_program(linker(), &first.join("ld"));
    write_linker(&second.join("ld"), "one");
    let path = std::env::var("PATH").expect("a path");
    sandbox.set(
        "PATH",
        format!("{}:{}:{path}", first.display(), second.display()),
    );
    let as_another: &[&str] = match is_root() {
        true => &[&["setpriv"], &AS_NOBODY[..]].concat(),
        false => &[],
    };
    for name in ["kernel.cl", "spy.log"] {
        sandbox.write(name, "");
    }
    std::fs::create_dir_all(sandbox.path("cwd")).expect("made");
    if is_root() {
        let mut owner = Command::new("chown");
        owner.args(["-R", "65534"]).arg(sandbox.path(""));
        assert!(owner.status().expect("chown").success());
        let mut can = Command::new("setpriv");
        let can = can
            .args(AS_NOBODY)
            .args(["test", "-r"])
            .arg(example("client"))
            .status();
        if !can.is_ok_and(|status| status.success()) {
            return skipped(
                "another user (no setpriv, or the build's files cannot be read by nobody)",
            );
        }
        std::os::unix::fs::chown(first.join("ld"), Some(0), None).expect("changed");
    }
    // Of root's, others may only read it; one's own, only others may run.
    let mode = if is_root() { 0o744 } else { 0o611 };
    std::fs::set_permissions(first.join("ld"), PermissionsExt::from_mode(mode)).expect("set");
    let misses = || client(&sandbox, as_another, &[]).source_builds();
    assert_eq!([(); 2].map(|()| misses()), [1, 0]);
    write_linker(&second.join("ld"), "another");
    assert_eq!([(); 2].map(|()| misses()), [1, 0]);
}

#[test]
fn what_the_program_has_preloaded_into_the_linker_is_in_the_key_or_nothing_is_cached() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let code = |number: usize| {
        format!("void bfd_set_error_program_name(const char *name) {{}}\nint number = {number};\n")
    };
    if library_of_the_linker().is_none() || shared(&sandbox, "preloaded", &code(0), &[]).is_none() {
        return;
    }
    sandbox.set("LD_LIBRARY_PATH", sandbox.path(""));
    let library = sandbox.path("libpreloaded.so").display().to_string();
    let with =
        |set: &str| [(); 2].map(|()| client(&sandbox, &[], &["--setenv", set]).source_builds());
    assert_eq!(misses(&sandbox), 1);
    assert_eq!(with(&format!("LD_AUDIT={library}")), [1, 1]);
    assert_eq!(with("LD_PRELOAD=libpreloaded.so"), [1, 0], "by name");
    assert_eq!(with(&format!("LD_PRELOAD={library}")), [0, 0], "by path");
    shared(&sandbox, "preloaded", &code(1), &[]).expect("compiled");
    assert_eq!(with("LD_PRELOAD=libpreloaded.so"), [1, 0], "another one");
    assert_eq!(
        with("LD_PRELOAD=libnowhere.so"),
        [1, 1],
        "nobody knows which"
    );
    assert_eq!(with("LD_PRELOAD=/nowhere/libx.so"), [0, 0], "there is none");
}
