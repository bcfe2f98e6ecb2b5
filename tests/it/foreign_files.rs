//! A user may use a directory of his own as the cache directory. What he has there stays as it is.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{SOURCE, Sandbox, Way};

/// The paths of all regular files of a directory, relative to it.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut all = vec![directory.to_owned()];
    while let Some(next) = all.pop() {
        for entry in fs::read_dir(next).into_iter().flatten() {
            let entry = entry.expect("an entry");
            match entry.file_type().expect("a type").is_dir() {
                true => all.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    let mut found: Vec<_> = found
        .iter()
        .map(|path| path.strip_prefix(directory).expect("below").to_owned())
        .collect();
    found.sort();
    found
}

/// Does what programs and users do with a cache. Programs compute what they compute bare.
fn use_all(sandbox: &mut Sandbox) {
    for record in ["inline", "bake"] {
        sandbox.set("OCLCACHE_RECORD", record);
        for options in ["", "-DN=1", "", "-DN=2"] {
            let options = format!("{options} -DRECORD={}", record.len());
            let [bare, cached] =
                [Way::Bare, Way::Cached].map(|way| sandbox.kernel(way, SOURCE, &options).ok());
            assert_eq!(cached.stdout, bare.stdout, "{options}");
        }
        sandbox.oclcache(&["bake"]);
    }
    let archive = sandbox.path("archive");
    let archive = archive.to_str().expect("UTF-8");
    for command in [
        &["stats"][..],
        &["stats", "--zero"],
        &["doctor"],
        &["explain"],
        &["export", "--yes", archive],
        &["gc", "--max-age", "0s"],
        &["clear"],
    ] {
        let ran = sandbox.oclcache(command);
        assert_eq!(ran.signal, None, "{command:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("usage"), "{command:?}: {}", ran.stderr);
    }
}

/// Each file that the cache has written elsewhere is here another file of the user, before the cache is used.
#[test]
fn files_of_the_user_stay_wherever_the_cache_would_have_its_own() {
    let mut sandbox = Sandbox::stub();
    let mut names: Vec<PathBuf> = Vec::new();
    let mut collect = |sandbox: &Sandbox| names.extend(files(&sandbox.path("cache")));
    for record in ["inline", "bake"] {
        sandbox.set("OCLCACHE_RECORD", record);
        for options in ["", "-DN=1", "-DN=2"] {
            let options = format!("{options} -DRECORD={}", record.len());
            sandbox.kernel(Way::Cached, SOURCE, &options).ok();
            collect(&sandbox);
        }
    }
    let archive = sandbox.path("archive");
    let archive = archive.to_str().expect("UTF-8");
    sandbox.oclcache(&["export", archive]).ok();
    sandbox.oclcache(&["stats"]).ok();
    collect(&sandbox);
    names.push("v1/journal.old".into());
    names.push("CACHEDIR.TAG".into());
    // No program looks it up, but it is the first that is removed where the cache is full.
    let key = "ab".repeat(32);
    names.push(format!("v1/entries/ab/{key}.entry").into());
    names.sort();
    names.dedup();
    for name in [
        "sizes",
        "locks",
        "journal",
        "driver_costs",
        "archive-key",
        "stats/total.json",
    ] {
        let name = Path::new("v1").join(name);
        assert!(names.contains(&name), "{name:?} is not among {names:?}");
    }
    let is_entry = |name: &PathBuf| name.extension().is_some_and(|last| last == "entry");
    assert!(names.iter().any(is_entry), "{names:?}");
    for content in [
        b"precious\n".to_vec(),
        vec![b'x'; 2 << 20],
        vec![0xff; 1 << 16],
    ] {
        fs::remove_dir_all(sandbox.path("cache")).expect("removed");
        for name in &names {
            let path = sandbox.path("cache").join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(&path, &content).expect("written");
        }
        // With a maximum that makes programs remove entries, and without.
        for size in ["8192B", "1G"] {
            sandbox.set("OCLCACHE_MAX_SIZE", size);
            use_all(&mut sandbox);
        }
        let cache = sandbox.path("cache");
        let aside = files(&cache.join("v1/aside"));
        assert!(!aside.is_empty(), "{names:?} {:?}", files(&cache));
        for name in &names {
            // An entry that is not whole is moved.
            let moved = name.file_name().map(Path::new);
            let moved =
                moved.filter(|moved| is_entry(name) && aside.contains(&(*moved).to_owned()));
            let there = match moved {
                Some(moved) => cache.join("v1/aside").join(moved),
                None => cache.join(name),
            };
            let found = fs::read(&there).ok();
            let length = found.as_ref().map(Vec::len);
            assert!(
                found.as_ref() == Some(&content),
                "{name:?}: {length:?} bytes"
            );
        }
    }
}
