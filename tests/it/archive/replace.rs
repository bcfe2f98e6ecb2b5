//! `oclcache export` over a file that exists: only an archive is replaced, and only if the user says so.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use super::SOURCE;
use crate::support::{Ran, Sandbox, Way, plain_command, skipped};

/// A cache with an archive of its entry, and then another entry, so that a second archive differs.
fn exported() -> (Sandbox, String, Vec<u8>) {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = sandbox.path("kernels.tar.zst");
    let name = file.to_str().expect("UTF-8").to_owned();
    sandbox.oclcache(&["export", &name]).ok();
    let before = fs::read(&file).expect("an archive");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=2").ok();
    (sandbox, name, before)
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).expect("listed").count()
}

#[test]
fn without_a_terminal_an_archive_is_replaced_with_yes_only() {
    let (sandbox, name, before) = exported();
    let count = files(&sandbox.path(""));
    let refused = sandbox.oclcache(&["export", &name]);
    assert_eq!((refused.code, &*refused.stdout), (Some(1), ""));
    let words = format!("`{name}` exists; use `--yes` to replace it, or name another file");
    assert!(refused.stderr.contains(&words), "{}", refused.stderr);
    assert_eq!(fs::read(&name).expect("read"), before);
    // A question that nobody can answer is not asked, and nothing is left beside the archive.
    assert!(!refused.stderr.contains("[y/N]"), "{}", refused.stderr);
    assert_eq!(files(&sandbox.path("")), count);
    // Nothing is written, so nothing needs an answer.
    sandbox.oclcache(&["export", "--dry-run", &name]).ok();
    assert_eq!(fs::read(&name).expect("read"), before);

    sandbox.oclcache(&["export", "--yes", &name]).ok();
    assert_ne!(fs::read(&name).expect("read"), before);
}

#[test]
fn a_file_that_is_no_archive_is_never_replaced() {
    let (sandbox, _, _) = exported();
    let theirs = sandbox.write("theirs.txt", "theirs");
    let name = theirs.to_str().expect("UTF-8");
    for arguments in [&["export", name][..], &["export", "--yes", name]] {
        let refused = sandbox.oclcache(arguments);
        assert_eq!(refused.code, Some(1), "{arguments:?}");
        let words = format!("`{name}` exists and is not an archive, so it is not replaced");
        assert!(refused.stderr.contains(&words), "{}", refused.stderr);
        assert_eq!(fs::read(&theirs).expect("read"), b"theirs");
    }
}

#[test]
fn on_a_terminal_it_is_asked_before_an_archive_is_replaced() {
    if Command::new("script").arg("--version").output().is_err() {
        return skipped("the question before an archive is replaced (no `script`)");
    }
    let (sandbox, name, before) = exported();
    let export = |answer: &str| -> Ran {
        let own = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
        let mut script = plain_command("script");
        let line = format!("{} export {name}", env!("CARGO_BIN_EXE_oclcache"));
        script.args(["-qec", &line, "/dev/null"]);
        for (name, value) in own.get_envs() {
            value.map(|value| script.env(name, value));
        }
        let answer = sandbox.write("answer", answer);
        script.stdin(File::open(answer).expect("opened"));
        sandbox.run(&mut script)
    };
    let question = format!("`{name}` exists. Replace it? [y/N]");
    for no in ["\n", "n\n", "no\n", "maybe\n"] {
        let ran = export(no);
        assert!(ran.stdout.contains(&question), "{}", ran.stdout);
        let words = format!("`{name}` is not replaced");
        assert!(ran.stdout.contains(&words), "{no:?}: {}", ran.stdout);
        assert_eq!(ran.code, Some(1), "{no:?}: {}", ran.stdout);
        assert_eq!(fs::read(&name).expect("read"), before, "{no:?}");
    }
    let ran = export("y\n");
    assert!(ran.stdout.contains(&question), "{}", ran.stdout);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    assert_ne!(fs::read(&name).expect("read"), before);
}
