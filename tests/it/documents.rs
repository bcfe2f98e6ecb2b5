//! What README.md and docs/ say is so: their commands run, the options that they name are there, and their links lead somewhere.
//!
//! The blocks of one page are typed one after the other into the shell of a new user, whose machine has one driver.
//! `PROGRAM` is a program that builds a kernel, `KEY` the key of an entry. What needs root, or another machine, says in its
//! first line which script runs it (`run-by=FILE`).

mod examples;
mod names;
mod pages;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example, tree};
use crate::tiers::{TrustedPlace, trusted_place};
use pages::{Block, Page, top};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";

/// A new user's home, the command in PATH, one driver, and a program.
pub struct Reader {
    pub sandbox: Sandbox,
    /// A home whose directories nobody else can write, where there is a place for one.
    home: Option<TrustedPlace>,
    /// Whether the stub counts what it compiles. The variable that tells it to is in keys.
    pub counts: bool,
}

impl Reader {
    /// None if the driver is not there.
    pub fn new(driver: Driver) -> Option<Reader> {
        let library = driver.library()?;
        let sandbox = Sandbox::of_library(&library);
        sandbox.installed();
        for place in ["drivers", "checkout"] {
            fs::create_dir(sandbox.path(place)).expect("made");
        }
        sandbox.write("drivers/driver.icd", format!("{library}\n"));
        let source = sandbox.write("kernel.cl", SOURCE);
        // OTHER is a second program, and KEY the key of the newest entry.
        let client = example("client").display().to_string();
        let source = source.display();
        let builds = |options: &str| {
            format!(
                "#!/bin/sh\nexec '{client}' run --source '{source}' --kernel f --options '{options}'\n"
            )
        };
        let key = "#!/bin/sh\noclcache list | awk 'NR == 2 { print $1 }'\n".to_owned();
        for (name, script) in [
            ("PROGRAM", builds("")),
            ("OTHER", builds("-DOTHER")),
            ("KEY", key),
        ] {
            let script = sandbox.write("script", script);
            let path = sandbox.path("bin").join(name);
            copy_program(script, &path);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path, mode).expect("changed");
        }
        // Nothing else of the project: no page is to start its scripts here.
        symlink(top().join("docs"), sandbox.path("checkout/docs")).expect("linked");
        fs::create_dir(sandbox.path("checkout/target")).expect("made");
        symlink(sandbox.path("bin"), sandbox.path("checkout/target/release")).expect("linked");
        Some(Reader {
            home: trusted_place("documents: a home that nobody else can write"),
            sandbox,
            counts: false,
        })
    }

    /// The user's home.
    pub fn home(&self) -> PathBuf {
        let trusted = self.home.as_ref().map(|home| home.path().to_owned());
        trusted.unwrap_or_else(|| self.sandbox.path("home"))
    }

    /// Whether entries below the home may be a directory of the system's.
    pub fn is_trusted(&self) -> bool {
        self.home.is_some()
    }

    /// A shell of this user's, in a checkout of the project.
    pub fn command(&self, script: &str) -> Command {
        let mut command = self.sandbox.command(Way::Bare, "sh");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.sandbox.path("bin").display());
        command
            .args(["-e", "-c", script])
            .current_dir(self.sandbox.path("checkout"))
            .env("PATH", path)
            .env("HOME", self.home())
            .env("TMPDIR", self.sandbox.path("home"))
            .env("OCL_ICD_VENDORS", self.sandbox.path("drivers"))
            .env("OCLCACHE_VENDORS", self.sandbox.path("drivers"))
            .env("OCLCACHE_SYSTEM_DIRS", "none")
            .env_remove("OCLCACHE_RECORD");
        if !self.counts {
            command.env_remove("STUB_LOG");
        }
        command
    }

    /// Runs a script, which begins with the variables and in the directory in which the last one ended.
    pub fn type_in(&self, script: &str) -> Ran {
        let state = self.sandbox.path("state");
        let state = state.display();
        let script = format!(
            "if [ -e '{state}' ]; then . '{state}'; fi\n\
             trap '{{ export -p; printf \"cd \\\"%s\\\"\\n\" \"$PWD\"; }} >\"{state}\"' EXIT\n{script}"
        );
        self.sandbox.run(&mut self.command(&script))
    }

    /// Types in what a block shows, and compares what it prints.
    #[track_caller]
    fn follow(&self, page: &Page, block: &Block) {
        let place = format!("{}:{}", page.name, block.line);
        if block.word("home") == Some("trusted") && !self.is_trusted() {
            return;
        }
        for line in block.text.lines().filter(|line| line.contains("oclcache")) {
            assert!(stays_at_home(line), "{place}: {line}");
        }
        let script = block.text.replace(" KEY", " \"$(KEY)\"");
        let ran = self.type_in(&script);
        let wanted = match block.word("exit") {
            // What is said depends on the machine.
            Some("any") => ran.code.filter(|code| *code < 2),
            Some(code) => Some(code.parse().expect("a number")),
            None => Some(0),
        };
        assert_eq!(
            ran.code.or(Some(-1)),
            wanted,
            "{place}:\n{script}\nprints:\n{}\nand says:\n{}",
            ran.stdout,
            ran.stderr
        );
        if let Some(shown) = &block.shows {
            let home = self.home().display().to_string();
            let printed = (ran.stdout + &ran.stderr).replace(&home, "/home/you");
            has_shape(&place, shown, &printed);
        }
    }

    /// Nothing is wrong with a configuration file that a page shows.
    #[track_caller]
    fn configure(&self, page: &Page, block: &Block) {
        let place = self.sandbox.path("configuration");
        let _ = fs::create_dir_all(place.join("oclcache"));
        self.sandbox
            .write("configuration/oclcache/config.toml", &block.text);
        let mut command = self.command("oclcache config");
        let ran = self.sandbox.run(command.env("XDG_CONFIG_HOME", place)).ok();
        assert_eq!(ran.stderr, "", "{}:{}", page.name, block.line);
    }
}

/// Whether a command does nothing to this machine: the tests may run as root, and some caches are where no home says.
fn stays_at_home(line: &str) -> bool {
    let registers = line.contains("install ") || line.ends_with("install");
    let cleared = line.split_once("caches clear ").map(|(_, names)| names);
    let at_home = |name: &str| ["pyopencl", "opencv"].contains(&name) || name.starts_with('-');
    line.contains("--dry-run")
        || (!registers || line.contains("--user"))
            && cleared.is_none_or(|names| !names.contains("--all") && names.split(' ').all(at_home))
}

/// The first words of each line that is shown begin a line that was printed, in this order; numbers and keys may be others.
#[track_caller]
fn has_shape(place: &str, shown: &str, printed: &str) {
    let first_words = |line: &str| {
        let words = line.split_whitespace().take(2);
        let plain = |word: &str| {
            if word.len() >= 12 && word.chars().all(|character| character.is_ascii_hexdigit()) {
                return "a key".to_owned();
            }
            // What `doctor` finds depends on the machine.
            if ["ok", "warning", "wrong"].contains(&word) {
                return "found".to_owned();
            }
            let mut word = word.replace(|character: char| character.is_ascii_digit(), "0");
            while word.contains("00") {
                word = word.replace("00", "0");
            }
            word
        };
        words.map(plain).collect::<Vec<_>>()
    };
    let mut lines = printed.lines().map(first_words);
    for line in shown.lines() {
        let wanted = first_words(line);
        let is_left_out = wanted.is_empty() || wanted[0].starts_with("...");
        assert!(
            is_left_out || lines.any(|line| line == wanted),
            "{place}: this line, or its place, is not what was printed: {line}\n\nshown:\n{shown}\nprinted:\n{printed}"
        );
    }
}

/// Runs the blocks of a page; how many there were.
fn follow_all(reader: &Reader, page: &Page) -> usize {
    let mut ran = 0;
    for block in page.blocks() {
        match (&*block.language, block.word("run-by")) {
            ("sh", None) => {
                reader.follow(page, &block);
                ran += 1;
            }
            ("sh", Some(script)) => {
                let place = format!("{}:{}", page.name, block.line);
                assert!(
                    top().join(script).exists(),
                    "{place}: {script} is not there"
                );
            }
            // What only the administrator's file may say is not for a user's.
            ("toml", None) if block.words.is_empty() => reader.configure(page, &block),
            _ => (),
        }
    }
    ran
}

#[test]
fn every_command_of_every_page_does_what_the_page_says() {
    let mut ran = 0;
    for page in pages::all() {
        let reader = Reader::new(Driver::Stub).expect("the stub is built with the tests");
        examples::add_mpirun(&reader);
        // The page begins with a build, whose result is there.
        examples::add_command(&reader, "cargo", "#!/bin/sh\n");
        ran += follow_all(&reader, &page);
    }
    assert!(ran >= 20, "only {ran} blocks are commands");
}

#[test]
fn the_front_page_is_so_on_a_real_driver() {
    let Some(reader) = Reader::new(Driver::Pocl) else {
        return;
    };
    examples::add_command(&reader, "cargo", "#!/bin/sh\n");
    follow_all(&reader, &front_page());
}

/// The lines of the front page that install and remove it, typed by somebody who has nothing of it, leave nothing.
#[test]
fn one_line_of_the_front_page_installs_it_and_one_removes_it_without_a_trace() {
    let reader = Reader::new(Driver::Stub).expect("the stub is built with the tests");
    examples::add_command(&reader, "cargo", "#!/bin/sh\n");
    let page = front_page();
    let line = |part: &str| {
        let blocks = page.blocks();
        let found = blocks.iter().find(|block| block.text.contains(part));
        let text = found.unwrap_or_else(|| panic!("no {part}")).text.clone();
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        text
    };
    let made = || -> Vec<PathBuf> {
        let home = reader.home();
        let below = |path: PathBuf| path.strip_prefix(&home).expect("below").to_owned();
        let all = tree(&home).into_keys().map(below);
        all.filter(|path| path.to_string_lossy().contains("oclcache"))
            .collect()
    };
    assert_eq!(made(), Vec::<PathBuf>::new());
    reader.type_in(&line("oclcache install --user")).ok();
    let used = reader.type_in("PROGRAM && PROGRAM && oclcache stats --json\n");
    let counted: serde_json::Value =
        serde_json::from_str(&last_object(&used.ok().stdout)).expect("JSON");
    assert_eq!(counted["misses"], 1, "{counted}");
    assert!(made().len() > 5, "{:?}", made());
    let removal = line("oclcache uninstall --user");
    let removed = reader.type_in(&format!(
        "{removal}\necho \"drivers: ${{OCL_ICD_VENDORS-those of the system}}\"\n"
    ));
    let said = removed.ok().stdout;
    assert!(said.ends_with("drivers: those of the system\n"), "{said}");
    assert_eq!(made(), Vec::<PathBuf>::new());
}

/// The JSON object that stands at the end of what was printed.
fn last_object(printed: &str) -> String {
    let start = printed.find("\n{").map_or(0, |at| at + 1);
    printed[start..].to_owned()
}

fn front_page() -> Page {
    let mut pages = pages::all().into_iter();
    pages
        .find(|page| page.name == "README.md")
        .expect("README.md")
}
