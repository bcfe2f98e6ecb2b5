//! `oclcache extract`: an entry as files that a person can read and compile again.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::snapshots::assert_shown;
use crate::support::{Driver, Ran, Sandbox, Way, skipped, some_of, tree};

const SOURCE: &str = "#include <part.h>\n#include \"../beside.h\"\n\
    __kernel void f(__global uint *out) { out[get_global_id(0)] = PART + BESIDE + N; }\n";

/// A cache with one entry, whose source needs its option and two headers; and where it was compiled.
fn compiled(sandbox: &Sandbox, directory: &str) -> PathBuf {
    let place = sandbox.path("home").join(directory).join("work");
    fs::create_dir_all(place.join("inc")).expect("made");
    fs::write(place.join("inc/part.h"), "#define PART 4\n").expect("written");
    fs::write(place.join("../beside.h"), "#define BESIDE 5\n").expect("written");
    fs::write(place.join("kernel.cl"), SOURCE).expect("written");
    let mut command = sandbox.kernel_in(&place, "-DN=1 -I inc");
    sandbox.run(&mut command).ok();
    place
}

/// The only entry's key.
fn key(sandbox: &Sandbox) -> String {
    let entry = sandbox.entries().pop().expect("an entry");
    entry
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned()
}

#[track_caller]
fn extract(sandbox: &Sandbox, key: &str, to: &Path) -> Ran {
    sandbox.oclcache(&["extract", key, to.to_str().expect("UTF-8")])
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn has_compiler() -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok();
    if !found {
        skipped("rebuild.sh (there is no cc)");
    }
    found
}

#[test]
fn an_entry_is_compiled_again_with_its_options_and_headers_where_those_are_gone() {
    for driver in some_of(&Driver::ALL) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let place = compiled(&sandbox, "project");
        let to = sandbox.path("tree");
        let ran = extract(&sandbox, &key(&sandbox), &to).ok();
        fs::remove_dir_all(place.parent().expect("a parent")).expect("removed");
        assert_eq!(read(&to.join("source.cl")), SOURCE);
        assert_eq!(read(&to.join("options.txt")), "-DN=1 -I inc");
        assert!(read(&to.join("kernels.txt")).starts_with('f'), "{driver:?}");
        assert!(to.join("build.log").is_file());
        assert!(read(&to.join("environment.txt")).contains("# driver"));
        let binaries = tree(&to.join("binaries"));
        assert_eq!(binaries.len(), 1, "{driver:?}");
        assert_plain(ran.stderr.as_bytes());
        if driver == Driver::Stub {
            assert_shown(&sandbox, "extract", &ran.stderr);
        }
        if !has_compiler() {
            return;
        }
        // Somewhere else, and from any directory.
        let moved = sandbox.path("moved here");
        fs::rename(&to, &moved).expect("moved");
        let mut command = sandbox.command(Way::Bare, moved.join("rebuild.sh"));
        let rebuilt = sandbox.run(command.current_dir("/")).ok();
        assert_eq!(
            rebuilt.source_builds(),
            1,
            "{driver:?}: {:?}",
            rebuilt.spied
        );
        assert!(
            rebuilt.spied.contains(&"source-build 0".to_owned()),
            "{driver:?}"
        );
        assert!(
            moved
                .join("rebuilt-0.bin")
                .metadata()
                .is_ok_and(|it| it.len() > 0)
        );
    }
}

#[test]
fn compiled_objects_and_intermediate_languages_are_compiled_again_and_links_name_their_inputs() {
    let sandbox = Sandbox::new(Driver::Stub).expect("the stub");
    for section in ["ways", "compilelink", "il"] {
        sandbox.client(Way::Cached, &[section]).ok();
    }
    let (mut rebuilt, mut linked) = (0, 0);
    for (index, entry) in sandbox.entries().iter().enumerate() {
        let key = entry
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let to = sandbox.path(&format!("tree-{index}"));
        let ran = extract(&sandbox, &key, &to).ok();
        if to.join("inputs.txt").is_file() {
            assert!(
                ran.stderr.contains("linked from the programs"),
                "{}",
                ran.stderr
            );
            assert!(!to.join("rebuild.sh").exists());
            linked += 1;
        } else if has_compiler() && rebuilt < 12 {
            let ran = sandbox
                .run(&mut sandbox.command(Way::Bare, to.join("rebuild.sh")))
                .ok();
            assert_eq!(ran.compiler_runs(), 1, "{:?}", ran.spied);
            rebuilt += 1;
        }
    }
    assert!(linked > 0 && (rebuilt > 0 || !has_compiler()));
}

#[test]
fn what_lacks_is_said() {
    let mut sandbox = Sandbox::new(Driver::Stub).expect("the stub");
    sandbox.set("OCLCACHE_STORE_SOURCE", "0");
    compiled(&sandbox, "project");
    let to = sandbox.path("tree");
    let ran = extract(&sandbox, &key(&sandbox), &to).ok();
    assert!(ran.stderr.contains("there is no source"), "{}", ran.stderr);
    assert!(!to.join("source.cl").exists() && !to.join("rebuild.sh").exists());
    assert!(read(&to.join("options.txt")).contains("sha256:"));
    assert_shown(&sandbox, "extract-without-source", &ran.stderr);
}

#[test]
fn only_a_new_or_empty_directory_is_filled() {
    let sandbox = Sandbox::new(Driver::Stub).expect("the stub");
    compiled(&sandbox, "project");
    let key = key(&sandbox);
    let full = sandbox.path("full");
    fs::create_dir(&full).expect("made");
    fs::write(full.join("mine"), "of somebody's").expect("written");
    let file = sandbox.write("file", "of somebody's");
    let empty = sandbox.path("empty");
    fs::create_dir(&empty).expect("made");
    let link = sandbox.path("link");
    symlink(&empty, &link).expect("linked");
    let missing = sandbox.path("missing/tree");
    let before = tree(&sandbox.path(""));
    for (to, why) in [
        (&full, "is not empty"),
        (&file, "is not a directory"),
        (&link, "is a link"),
        (&missing, "No such file"),
    ] {
        let ran = extract(&sandbox, &key, to);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(why), "{why}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(to.to_str().expect("UTF-8")),
            "{}",
            ran.stderr
        );
    }
    let ran = extract(&sandbox, "0123", &sandbox.path("new"));
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let after = tree(&sandbox.path(""));
    let changed =
        |path: &&PathBuf| before.get(*path) != after.get(*path) && !path.ends_with("spy.log");
    let changed: Vec<_> = after
        .keys()
        .filter(changed)
        .filter(|path| !path.starts_with(sandbox.path("cache")))
        .collect();
    assert_eq!(changed, Vec::<&PathBuf>::new());
    extract(&sandbox, &key, &empty).ok();
    assert_eq!(
        fs::metadata(&empty).expect("there").permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn names_that_do_harm_become_names_that_do_not() {
    for text in HOSTILE {
        let sandbox = Sandbox::new(Driver::Stub).expect("the stub");
        let name = OsStr::from_bytes(text);
        let place = sandbox.path("home").join(name).join("x");
        fs::create_dir_all(&place).expect("made");
        // As a header's name, where a source can name it.
        let header = [text, b".h"].concat();
        fs::write(place.join(OsStr::from_bytes(&header)), "#define PART 4\n").expect("written");
        let include = [
            b"#include \"".as_slice(),
            &header,
            b"\"\n#ifndef PART\n#define PART 5\n#endif\n",
        ]
        .concat();
        let is_quotable = !text.contains(&b'"') && !text.contains(&b'\n') && !text.contains(&b'\\');
        let kernel = b"__kernel void f(__global uint *out) { out[get_global_id(0)] = PART; }\n";
        let source = match is_quotable {
            true => [&include[..], kernel].concat(),
            false => [b"#define PART 6\n", &kernel[..]].concat(),
        };
        fs::write(place.join("kernel.cl"), source).expect("written");
        let ran = sandbox.run(&mut sandbox.kernel_in(&place, "-I ."));
        let Some(entry) = sandbox.entries().pop() else {
            assert!(!ran.stderr.is_empty());
            continue;
        };
        let key = entry
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let to = sandbox.path("tree");
        let before: Vec<PathBuf> = tree(&sandbox.path("")).into_keys().collect();
        let ran = extract(&sandbox, &key, &to).ok();
        assert_plain(ran.stderr.as_bytes());
        assert_plain(&fs::read(to.join("environment.txt")).expect("read"));
        assert_plain(&fs::read(to.join("rebuild.sh")).expect("read"));
        assert_plain(&fs::read(to.join("rebuild.c")).expect("read"));
        for path in tree(&sandbox.path("")).into_keys() {
            assert!(
                path.starts_with(&to)
                    || before.contains(&path)
                    || path.starts_with(sandbox.path("cache")),
                "{path:?}"
            );
            if let Ok(inside) = path.strip_prefix(&to) {
                assert_plain(inside.as_os_str().as_bytes());
            }
        }
    }
}
