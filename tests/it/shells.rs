//! What shells and readers of manuals get: completions and man pages, tried by the shells and the readers themselves.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::stats::build;
use crate::support::{SOURCE, Sandbox, plain_command, skipped};

fn sandbox() -> Sandbox {
    Sandbox::stub()
}

/// Whether this machine has a program; says by name if not.
pub fn has(program: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("command -v {program}")]);
    let found = command.stdout(Stdio::null()).status().expect("sh");
    if !found.success() {
        skipped(format_args!(
            "what {program} makes of it ({program} is not installed)"
        ));
    }
    found.success()
}

/// What a program says of a script that it reads from standard input.
fn said(program: &[&str], script: &str, directory: &Path) -> String {
    std::fs::write(directory.join("script"), script).expect("written");
    let script = std::fs::File::open(directory.join("script")).expect("opened");
    let mut command = plain_command(program[0]);
    command.args(&program[1..]).stdin(script);
    let output = command.current_dir(directory).output().expect(program[0]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && words.is_empty(), "{words}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What bash offers for the last of these words, after some commands.
fn bash_completes(sandbox: &Sandbox, before: &str, words: &[&str]) -> Vec<String> {
    let script = sandbox.oclcache(&["completions", "bash"]).ok().stdout;
    let installed = sandbox.installed();
    let bin = installed.parent().expect("a directory").display();
    let (last, previous) = (words.len() - 1, words[words.len() - 2]);
    let asked = format!(
        "PATH='{bin}':$PATH\n{before}\n{script}\nCOMP_WORDS=({}) COMP_CWORD={last}\n\
         _oclcache oclcache '{}' '{previous}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words.join(" "),
        words[last]
    );
    let found = said(&["bash", "--norc"], &asked, &sandbox.path(""));
    found.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_verbs_options_and_their_values() {
    if !has("bash") {
        return;
    }
    let sandbox = sandbox();
    let script = sandbox.oclcache(&["completions", "bash"]).ok().stdout;
    let completed = |words: &[&str]| bash_completes(&sandbox, "", words);
    assert_eq!(completed(&["oclcache", "sta"]), ["stats"]);
    assert_eq!(completed(&["oclcache", "gc", "--max-s"]), ["--max-size"]);
    assert_eq!(completed(&["oclcache", "completions", "f"]), ["fish"]);
    assert!(completed(&["oclcache", "bake", "--st"]).contains(&"--stale".to_owned()));
    // What is in the cache is asked for, and never evaluated.
    assert!(completed(&["oclcache", "config", "get", "max_s"]).contains(&"max_size".to_owned()));
    // What is not for people is not offered to them.
    assert!(!script.contains("bake-worker") && !script.contains("--detached"));
}

#[test]
fn bash_completes_keys_programs_and_drivers_of_the_cache() {
    if !has("bash") {
        return;
    }
    let sandbox = sandbox();
    build(&sandbox, b"wave", SOURCE, "-DN=1").ok();
    // A name that a shell would take for a command is not offered.
    build(&sandbox, b"$(touch pwned)", SOURCE, "-DN=2").ok();
    let cache = format!("export OCLCACHE_DIR='{}'", sandbox.path("cache").display());
    let completed = |words: &[&str]| bash_completes(&sandbox, &cache, words);
    let listed = sandbox.oclcache(&["list"]).ok().stdout;
    let keys: Vec<&str> = listed.lines().skip(1).map(|line| &line[..16]).collect();
    assert_eq!(keys.len(), 2, "{listed}");
    for key in keys {
        assert_eq!(completed(&["oclcache", "show", &key[..6]]), [key]);
        assert_eq!(completed(&["oclcache", "explain", &key[..6]]), [key]);
        assert_eq!(completed(&["oclcache", "clear", "--key", &key[..6]]), [key]);
    }
    assert_eq!(completed(&["oclcache", "list", "--program", ""]), ["wave"]);
    assert_eq!(
        completed(&["oclcache", "list", "--driver", "unk"]),
        ["unknown"]
    );
    assert!(!sandbox.path("pwned").exists());
}

#[test]
fn other_shells_read_their_completions() {
    let sandbox = sandbox();
    let script = |shell| sandbox.oclcache(&["completions", shell]).ok().stdout;
    for (shell, verb) in [("zsh", "'stats:"), ("fish", "-a \"stats\"")] {
        let script = script(shell);
        assert!(script.contains(verb), "{script}");
        if has(shell) {
            said(&[shell, "-n"], &script, &sandbox.path(""));
        }
    }
    if has("fish") {
        let asked = script("fish") + "\ncomplete -C 'oclcache sta'\n";
        let found = said(&["fish", "--no-config"], &asked, &sandbox.path(""));
        assert!(found.starts_with("stats\t"), "{found}");
    }
    let ran = sandbox.oclcache(&["completions", "tcsh"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("bash, zsh, fish"), "{}", ran.stderr);
}

#[test]
fn each_verb_has_a_man_page_that_says_what_its_help_says() {
    let sandbox = sandbox();
    let directory = sandbox.path("man/man1");
    let written = sandbox.oclcache(&["man", directory.to_str().expect("UTF-8")]);
    let words = written.ok().stderr;
    let pages: Vec<_> = std::fs::read_dir(&directory).expect("made").collect();
    assert!(words.contains(&format!("{} pages", pages.len())), "{words}");
    let page = |name: &str| std::fs::read_to_string(directory.join(name)).expect(name);
    assert_eq!(sandbox.oclcache(&["man"]).ok().stdout, page("oclcache.1"));
    for words in [
        "oclcache\\-stats(1)",
        "OCLCACHE_MAX_SIZE",
        "config.toml",
        "EXIT STATUS",
    ] {
        assert!(page("oclcache.1").contains(words), "{words}");
    }
    let gc = page("oclcache-gc.1");
    for words in [
        "oclcache gc \\-\\-max\\-size 500M",
        "\\-\\-evict\\-older\\-than",
        "SEE ALSO",
    ] {
        assert!(gc.contains(words), "{words} in {gc}");
    }
    assert!(!directory.join("oclcache-bake-worker.1").exists());
    assert!(!page("oclcache-bake.1").contains("detached"));
    for entry in pages {
        let path = entry.expect("listed").path();
        let path = path.to_str().expect("UTF-8");
        for reader in [
            // A page has no date: it would be another one each day.
            &["mandoc", "-T", "lint", "-W", "warning"][..],
            &["groff", "-man", "-ww", "-z", "-Tutf8"],
        ] {
            if has(reader[0]) {
                let output = plain_command(reader[0])
                    .args(&reader[1..])
                    .arg(path)
                    .output();
                let output = output.expect(reader[0]);
                let all = [output.stdout, output.stderr].concat();
                let all = String::from_utf8_lossy(&all);
                let lines = all.lines().filter(|line| !line.contains("missing date"));
                assert_eq!(lines.collect::<Vec<_>>(), Vec::<&str>::new());
            }
        }
    }
    let file = sandbox.write("file", "mine");
    let ran = sandbox.oclcache(&["man", file.to_str().expect("UTF-8")]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains(file.to_str().expect("UTF-8")),
        "{}",
        ran.stderr
    );
    assert_eq!(std::fs::read(file).expect("there"), b"mine");
}
