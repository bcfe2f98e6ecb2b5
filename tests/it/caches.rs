//! The caches of others: each is found under its default place and under its variable, all of it goes, and nothing else does.

mod planted;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::snapshots::assert_shown;
use crate::support::{Ran, Sandbox, Way, is_root, plain_command, skipped, tree};
use planted::{plant, planted};

const NOBODY: u32 = 65534;
fn stub() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    // Mesa asks the passwd file for the home directory, which is nobody's business here.
    sandbox.set("XDG_CACHE_HOME", sandbox.path("home/.cache"));
    sandbox.set("PYOPENCL_NO_CACHE", "");
    sandbox
}

/// The command without the variables that the sandbox sets for its own sake.
fn command(sandbox: &Sandbox) -> Command {
    let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    for variable in ["POCL_CACHE_DIR", "MESA_SHADER_CACHE_DIR"] {
        if !sandbox.variables.contains_key(variable) {
            command.env_remove(variable);
        }
    }
    command.arg("caches");
    command
}

fn caches(sandbox: &Sandbox, arguments: &[&str]) -> Ran {
    let ran = sandbox.run(command(sandbox).args(arguments));
    assert_plain(ran.stdout.as_bytes());
    assert_plain(ran.stderr.as_bytes());
    ran
}

/// All caches at their default places and under their variables. Returns the directories, with the variables set.
fn plant_all(sandbox: &mut Sandbox) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for one in planted() {
        directories.push(sandbox.path("home").join(one.default));
        if let Some((variable, below)) = one.variable {
            let base = sandbox.path("moved").join(one.name);
            // Without a slash at its end.
            directories.push(base.join(below).components().collect());
            sandbox.set(variable, base);
        }
        for directory in directories
            .iter()
            .rev()
            .take(1 + usize::from(one.variable.is_some()))
        {
            plant(directory, &one.files);
        }
    }
    directories
}

/// Names and contents of what is below a directory.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = tree(directory).into_keys();
    files
        .map(|path| (path.clone(), fs::read(&path).unwrap_or_default()))
        .collect()
}

#[test]
fn every_cache_is_listed_with_its_size_and_goes_and_what_is_foreign_stays() {
    let mut sandbox = stub();
    let directories = plant_all(&mut sandbox);
    let listed = caches(&sandbox, &["--json"]).ok().stdout;
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    for one in planted() {
        let cache = listed.as_array().expect("a list").iter();
        let cache = cache
            .clone()
            .find(|cache| cache["name"] == one.name)
            .expect("it is known");
        let places = cache["places"].as_array().expect("places");
        let files = one.files.len() as u64;
        let default = sandbox.path("home").join(one.default);
        let is_there = |directory: &Path, variable: Option<&str>| {
            places.iter().any(|place| {
                let path = Path::new(place["path"].as_str().expect("a path"));
                directory.starts_with(path)
                    && place["files"] == files
                    && place["bytes"].as_u64() >= Some(files)
                    && place["newest_ms"].is_u64()
                    && place["not_cleared"].is_null()
                    && place["variable"].as_str() == variable
            })
        };
        assert!(is_there(&default, None), "{}: {cache:#}", one.name);
        if let Some((variable, below)) = one.variable {
            let moved = sandbox.path("moved").join(one.name).join(below);
            assert!(is_there(&moved, Some(variable)), "{}: {cache:#}", one.name);
            let value = cache["set"][variable].as_str().expect("it is set");
            assert_eq!(Path::new(value), sandbox.path("moved").join(one.name));
        }
    }
    // A user's files, at the top and as deep as can be.
    let mut foreign = Vec::new();
    for (index, directory) in directories.iter().enumerate().step_by(3) {
        foreign.push(directory.join("my notes.txt"));
        if index % 2 == 0 {
            let deepest = tree(directory)
                .into_keys()
                .max_by_key(|path| path.components().count());
            foreign.push(deepest.expect("a file").with_file_name("mine.xcf"));
        }
    }
    for file in &foreign {
        fs::write(file, "mine").expect("written");
    }
    let before = tree(&sandbox.path(""));
    caches(&sandbox, &["clear", "--all", "--dry-run"]).ok();
    assert_eq!(
        caches(&sandbox, &["clear", "--all"]).code,
        Some(2),
        "nobody can be asked"
    );
    assert_eq!(without_log(tree(&sandbox.path(""))), without_log(before));
    let ran = caches(&sandbox, &["clear", "--all", "--yes"]).ok();
    for directory in &directories {
        let left: Vec<PathBuf> = tree(directory)
            .into_keys()
            .filter(|path| !path.is_dir())
            .collect();
        let is_mine = |path: &PathBuf| foreign.contains(path);
        assert!(left.iter().all(is_mine), "{left:?}");
        assert_eq!(
            directory.exists(),
            !left.is_empty(),
            "{}",
            directory.display()
        );
    }
    for file in &foreign {
        assert_eq!(fs::read(file).expect("it is still there"), b"mine");
        // What is beside a cache by right is not named.
        let is_named = ran.stderr.contains(file.to_str().expect("UTF-8"));
        let is_beside = file.parent().is_some_and(|parent| {
            ["pyopencl", "tilus"]
                .iter()
                .any(|name| parent.ends_with(name))
        });
        assert_eq!(is_named, !is_beside, "{}: {}", file.display(), ran.stderr);
    }
    for file in foreign {
        fs::remove_file(file).expect("removed");
    }
    caches(&sandbox, &["clear", "--all", "--yes"]).ok();
}

fn without_log(mut tree: BTreeMap<PathBuf, String>) -> BTreeMap<PathBuf, String> {
    tree.retain(|path, _| !path.ends_with("spy.log"));
    tree
}

#[test]
fn only_the_caches_that_are_named_are_cleared() {
    let mut sandbox = stub();
    let directories = plant_all(&mut sandbox);
    caches(&sandbox, &["clear", "--yes", "pocl", "triton"]).ok();
    for directory in directories {
        let path = directory.to_str().expect("UTF-8");
        let is_gone = path.contains("pocl") || path.contains("triton");
        assert_eq!(directory.exists(), !is_gone, "{path}");
    }
    let ran = caches(&sandbox, &["clear", "--yes", "mesa", "photos"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr
            .contains("`photos` is not a known cache; the known ones are pocl, mesa")
    );
    assert!(sandbox.path("home/.cache/mesa_shader_cache/index").exists());
    assert_eq!(caches(&sandbox, &["clear", "--yes"]).code, Some(2));
    assert_eq!(caches(&sandbox, &["clear", "--all", "mesa"]).code, Some(2));
}

#[test]
fn on_a_terminal_it_is_asked_first() {
    let sandbox = stub();
    let kernels = sandbox.path("home/.cache/hashcat/kernels");
    plant(&kernels, &["shared.f5470456.kernel".to_owned()]);
    let answer = |answer: &str| {
        let own = command(&sandbox);
        let mut script = plain_command("script");
        let line = format!("{} caches clear hashcat", env!("CARGO_BIN_EXE_oclcache"));
        script.args(["-qec", &line, "/dev/null"]);
        for (name, value) in own.get_envs() {
            value.map(|value| script.env(name, value));
        }
        let answer = sandbox.write("answer", answer);
        script.stdin(fs::File::open(answer).expect("opened"));
        sandbox.run(&mut script)
    };
    if Command::new("script").arg("--version").output().is_err() {
        return skipped("the question before caches are cleared (no `script`)");
    }
    for no in ["\n", "n\n", "no\n"] {
        let ran = answer(no);
        assert!(ran.stdout.contains("Remove 1 file ("), "{}", ran.stdout);
        assert!(ran.stdout.contains("nothing was removed"), "{}", ran.stdout);
        assert_eq!((ran.code, kernels.exists()), (Some(1), true));
    }
    let ran = answer("y\n");
    assert_eq!(
        (ran.code, kernels.exists()),
        (Some(0), false),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_variable_that_names_what_is_no_cache_loses_nothing() {
    let mut sandbox = stub();
    // A home that has of all caches' files of the names that others have as well, and the caches of each driver.
    let home = sandbox.path("home");
    let common = [
        "index",
        "marker",
        "config.file",
        "lock",
        ".lock",
        "CACHEDIR.TAG",
        "tempfile_iE8mvR",
        "notes.txt",
        "llvmcache.timestamp",
        "ab/cd/notes.txt",
        "0/1/notes.txt",
        "AB/CD/program.bc",
        "programs/list.txt",
        "3.2.0.1/notes.txt",
        "kernels/my.kernel",
        "a--b/notes.txt",
        "part0/notes.db",
        ".ssh/id",
    ];
    let common = common.map(str::to_owned);
    plant(&home, &common);
    let photos = sandbox.path("photos");
    plant(&photos, &common);
    for one in planted() {
        let Some((variable, "")) = one.variable else {
            continue;
        };
        plant(&home, &one.files);
        for (directory, why) in [
            (&home, "holds more than a cache"),
            (&sandbox.path(""), "holds more than a cache"),
            (&PathBuf::from("/"), "it is not the directory of a cache"),
            (&sandbox.path("home/.cache"), "holds more than a cache"),
            (&photos, "but no file in it has a name of"),
        ] {
            fs::create_dir_all(directory).expect("there");
            sandbox.set(variable, directory);
            let before = contents(&sandbox.path("home"));
            let ran = caches(&sandbox, &["clear", one.name, "--yes"]);
            let said = format!("{}: {}: {}", one.name, directory.display(), ran.stderr);
            assert_eq!(ran.code, Some(1), "{said}");
            assert!(ran.stderr.contains(why), "{said}");
            assert_eq!(contents(&home), before, "{said}");
        }
        let below = |path: &Path| {
            contents(path)
                .into_values()
                .filter(|text| !text.is_empty())
                .count()
        };
        assert_eq!(below(&photos), common.len());
        sandbox.variables.remove(variable);
    }
    // Of a cache that is there, no more is removed than it has made.
    let work = sandbox.path("work");
    let theirs = [
        "tempfile_results.csv",
        "tempfile_2024run.txt",
        "tempfile_iE8mvR.csv",
    ];
    plant(&work, &theirs.map(str::to_owned));
    let program = format!("AB/{}", "CDEFGHIJKLMNO".repeat(3)[..37].to_owned());
    let ours = [
        format!("{program}/program.bc"),
        "tempfile_iE8mvR.preproc.cl".to_owned(),
    ];
    plant(&work, &ours);
    sandbox.set("POCL_CACHE_DIR", &work);
    caches(&sandbox, &["clear", "pocl", "--yes"]).ok();
    for (names, is_there) in [
        (&theirs[..], true),
        (&ours.each_ref().map(String::as_str)[..], false),
    ] {
        for name in names {
            assert_eq!(work.join(name).exists(), is_there, "{name}");
        }
    }
    // A relative path and an empty directory are nothing either.
    sandbox.set("POCL_CACHE_DIR", "photos");
    caches(&sandbox, &["clear", "pocl", "--yes"]).ok();
    fs::create_dir(sandbox.path("empty")).expect("made");
    sandbox.set("POCL_CACHE_DIR", sandbox.path("empty"));
    caches(&sandbox, &["clear", "pocl", "--yes"]).ok();
    assert!(sandbox.path("empty").exists());
}

#[test]
fn nothing_foreign_is_followed_or_removed_whatever_its_name() {
    let sandbox = stub();
    let mine = sandbox.path("mine");
    plant(&mine, &["index".to_owned(), "ab/0123".to_owned()]);
    let shader = "0123456789abcdef0123456789abcdef012345";
    let mesa = sandbox.path("home/.cache/mesa_shader_cache");
    plant(&mesa, &[format!("00/{shader}"), "index".to_owned()]);
    plant(&mine, &[format!("00/{shader}")]);
    let before = contents(&mine);
    symlink(
        mine.join("index"),
        mesa.join("00/1123456789abcdef0123456789abcdef012345"),
    )
    .expect("linked");
    symlink(&mine, mesa.join("11")).expect("linked");
    fs::create_dir(mesa.join("22")).expect("made");
    let odd = mesa.join("22");
    fs::create_dir(odd.join(shader)).expect("made");
    fs::write(odd.join(shader).join("notes"), "mine").expect("written");
    let fifo = odd.join("2223456789abcdef0123456789abcdef012345");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    fs::create_dir(mesa.join("33")).expect("made");
    let locked = mesa.join("44");
    fs::create_dir(&locked).expect("made");
    fs::write(locked.join(shader), "text").expect("written");
    if is_root() {
        let given = mesa.join("33").join(shader);
        fs::write(&given, "of another").expect("written");
        chown(&given, Some(NOBODY), None).expect("given away");
        chown(&locked, Some(NOBODY), None).expect("given away");
    } else {
        skipped("files of another user in another's cache (not root)");
        fs::set_permissions(&locked, PermissionsExt::from_mode(0o500)).expect("changed");
    }
    let ran = caches(&sandbox, &["clear", "mesa", "--yes"]);
    // Who is not root could not remove what is in a directory of his own that he cannot write.
    assert_eq!(
        ran.code,
        Some(if is_root() { 0 } else { 1 }),
        "{}",
        ran.stderr
    );
    assert_eq!(contents(&mine), before);
    for left in [
        "11",
        "22",
        "44",
        "00/1123456789abcdef0123456789abcdef012345",
    ] {
        let left = mesa.join(left);
        assert!(left.symlink_metadata().is_ok(), "{}", left.display());
    }
    assert!(
        locked.join(shader).exists() && fifo.exists() && odd.join(shader).join("notes").exists()
    );
    assert_eq!(mesa.join("33").exists(), is_root());
    assert!(!mesa.join("00").join(shader).exists() && !mesa.join("index").exists());
    fs::set_permissions(&locked, PermissionsExt::from_mode(0o700)).expect("changed");
    // The cache's own directory.
    for (put, words) in [
        ("a link", "is a link or not a directory"),
        ("a file", "is a link or not a directory"),
        ("a FIFO", "is a link or not a directory"),
    ] {
        fs::rename(&mesa, sandbox.path("away")).ok();
        match put {
            "a link" => symlink(&mine, &mesa).expect("linked"),
            "a file" => fs::write(&mesa, "mine").expect("written"),
            _ => {
                mknodat(CWD, &mesa, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO")
            }
        }
        caches(&sandbox, &[]).ok();
        let ran = caches(&sandbox, &["clear", "mesa", "--yes"]);
        assert_eq!(ran.code, Some(1), "{put}");
        assert!(ran.stderr.contains(words), "{put}: {}", ran.stderr);
        assert_eq!(contents(&mine), before);
        fs::remove_file(&mesa).expect("it is still there");
    }
    if is_root() {
        plant(&mesa, &[format!("00/{shader}")]);
        chown(&mesa, Some(NOBODY), None).expect("given away");
        let ran = caches(&sandbox, &["clear", "mesa", "--yes"]);
        assert_eq!(ran.code, Some(1));
        assert!(
            ran.stderr.contains("belongs to another user, 65534"),
            "{}",
            ran.stderr
        );
        assert!(mesa.join("00").join(shader).exists());
    }
}

#[test]
fn what_is_mounted_in_a_cache_stays() {
    let sandbox = stub();
    let shader = "0123456789abcdef0123456789abcdef012345";
    let mesa = sandbox.path("home/.cache/mesa_shader_cache");
    let mine = sandbox.path("mine");
    plant(&mesa, &[format!("00/{shader}"), format!("11/{shader}")]);
    plant(&mine, &[shader.to_owned()]);
    // Another directory of the same file system, so that its number tells nothing.
    let script = "set -e; mount --bind \"$1\" \"$2/11\"; mount --bind \"$1\" \"$2/00\"; shift 2; exec \"$@\"";
    let mut mounted = Command::new("unshare");
    mounted
        .args(["-m", "--", "sh", "-c", script, "sh"])
        .args([&mine, &mesa]);
    let can = mounted.arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skipped("what is mounted in another's cache (no mount namespace)");
    }
    let own = command(&sandbox);
    let mut mounted = plain_command("unshare");
    mounted
        .args(["-m", "--", "sh", "-c", script, "sh"])
        .args([&mine, &mesa]);
    mounted
        .arg(own.get_program())
        .args(["caches", "clear", "mesa", "--yes"]);
    for (name, value) in own.get_envs() {
        value.map(|value| mounted.env(name, value));
    }
    let ran = sandbox.run(&mut mounted).ok();
    assert!(mine.join(shader).exists(), "{}", ran.stderr);
    assert!(
        ran.stderr
            .contains("mesa_shader_cache/11`: it does not belong to mesa"),
        "{}",
        ran.stderr
    );
    assert!(mesa.join("11").join(shader).exists() && mesa.join("00").join(shader).exists());
}

#[test]
fn hostile_names_and_values_are_shown_in_plain_characters() {
    let mut sandbox = stub();
    let pytools = sandbox.path("home/.cache/pytools");
    fs::create_dir_all(&pytools).expect("made");
    for name in HOSTILE.iter().filter(|name| **name != b"..") {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(name);
        fs::write(pytools.join(name), "mine").expect("written");
        let directory = sandbox.path("home").join(name);
        plant(
            &directory,
            &["index".to_owned(), "0/7/e0943aa8a566c2".to_owned()],
        );
        sandbox.set("CUDA_CACHE_PATH", directory);
        caches(&sandbox, &[]).ok();
        let json = caches(&sandbox, &["--json"]).ok().stdout;
        serde_json::from_str::<Value>(&json).expect("JSON");
        caches(&sandbox, &["clear", "nvidia", "--yes"]).ok();
    }
    caches(&sandbox, &["clear", "pytools", "--yes"]).ok();
    assert_eq!(
        fs::read_dir(&pytools).expect("listed").count(),
        HOSTILE.len() - 1
    );
}

#[test]
fn without_a_home_only_what_variables_name_is_looked_at() {
    let mut sandbox = stub();
    let directories = plant_all(&mut sandbox);
    let mut command = command(&sandbox);
    command.env_remove("HOME").env_remove("XDG_CACHE_HOME");
    // What the passwd file says stays out of it.
    let ran = sandbox
        .run(command.args(["clear", "--dry-run", "pocl", "nvidia", "triton"]))
        .ok();
    for directory in directories {
        let is_of_these = ["pocl", "nvidia", "triton"]
            .iter()
            .any(|name| directory.starts_with(sandbox.path("moved").join(name)));
        let is_named = ran.stdout.contains(directory.to_str().expect("UTF-8"));
        assert_eq!(is_named, is_of_these, "{}", ran.stdout);
    }
}

#[test]
fn what_caches_shows() {
    let mut sandbox = stub();
    let empty = caches(&sandbox, &[]).ok();
    plant_all(&mut sandbox);
    fs::write(sandbox.path("home/.nv/ComputeCache/notes.txt"), "mine").expect("written");
    sandbox.set("POCL_CACHE_DIR", sandbox.path("home"));
    let all = caches(&sandbox, &[]).ok();
    let plan = caches(&sandbox, &["clear", "--dry-run", "nvidia", "intel"]).ok();
    let unasked = caches(&sandbox, &["clear", "nvidia", "pocl"]);
    let done = caches(&sandbox, &["clear", "--yes", "nvidia", "pocl", "intel"]);
    let shown: Vec<String> = [
        ("", &empty),
        (" (full)", &all),
        (" clear --dry-run nvidia intel", &plan),
        (" clear nvidia pocl", &unasked),
        (" clear --yes nvidia pocl intel", &done),
    ]
    .iter()
    .map(|(words, ran)| {
        let code = ran.code.expect("a code");
        format!(
            "$ oclcache caches{words}\n{}{}[{code}]\n",
            ran.stdout, ran.stderr
        )
    })
    .collect();
    assert_shown(&sandbox, "caches", &shown.concat());
}
