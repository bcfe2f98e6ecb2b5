//! What README.md and docs/ say is so: their commands run, the options that they name are there, and their links lead somewhere.
//!
//! The blocks of one page are typed one after the other into the shell of a new user, whose machine has one driver.
//! `PROGRAM` is a program that builds a kernel, `KEY` the key of an entry. What needs root, or another machine, says in its
//! first line which script runs it (`run-by=FILE`).

mod examples;
mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example};
use crate::tiers::trusted_place;
use pages::{Block, Page, top};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";

/// A new user's home, the command in PATH, one driver, and a program.
pub struct Reader {
    pub sandbox: Sandbox,
    /// A home whose directories nobody else can write, where there is a place for one.
    home: Option<tempfile::TempDir>,
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
        let key = "#!/bin/sh\noclcache list | awk 'NR == 1 { print $1 }'\n".to_owned();
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
        let script = block.text.replace(" KEY", " \"$(KEY)\"");
        let ran = self.type_in(&script);
        let code = block
            .word("exit")
            .map_or(0, |code| code.parse().expect("a number"));
        assert_eq!(
            ran.code,
            Some(code),
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
        ran += follow_all(&reader, &page);
    }
    assert!(ran >= 20, "only {ran} blocks are commands");
}

#[test]
fn the_front_page_is_so_on_a_real_driver() {
    let Some(reader) = Reader::new(Driver::Pocl) else {
        return;
    };
    let pages = pages::all();
    let page = pages
        .iter()
        .find(|page| page.name == "README.md")
        .expect("README.md");
    follow_all(&reader, page);
}

/// What the command says of itself: `--help` of a verb, or of all.
struct Help {
    reader: Reader,
    known: BTreeMap<Vec<String>, Option<String>>,
}

impl Help {
    fn new() -> Help {
        Help {
            reader: Reader::new(Driver::Stub).expect("the stub is built with the tests"),
            known: BTreeMap::new(),
        }
    }

    /// None if there is no such verb.
    fn of(&mut self, verbs: &[&str]) -> Option<&str> {
        let verbs: Vec<String> = verbs.iter().map(|&verb| verb.to_owned()).collect();
        if !self.known.contains_key(&verbs) {
            let script = format!("oclcache {} --help", verbs.join(" "));
            let ran = self.reader.sandbox.run(&mut self.reader.command(&script));
            let help = (ran.code == Some(0)).then_some(ran.stdout);
            self.known.insert(verbs.clone(), help);
        }
        self.known[&verbs].as_deref()
    }

    /// The verbs below these.
    fn verbs(&mut self, verbs: &[&str]) -> Vec<String> {
        let help = self.of(verbs).unwrap_or_default();
        let (_, listed) = help.split_once("\nCommands:\n").unwrap_or_default();
        let names = listed.lines().take_while(|line| !line.is_empty());
        let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = names.filter_map(|line| line.split_whitespace().next());
        names
            .map(str::to_owned)
            .filter(|name| name != "help")
            .collect()
    }
}

/// Whether a text has this option, and not only a longer one.
fn has_option(help: &str, option: &str) -> bool {
    let mut words =
        help.split(|character: char| !(character.is_alphanumeric() || character == '-'));
    words.any(|word| word == option)
}

/// The words of each call of the command in a line that a person could type.
fn calls(line: &str) -> Vec<Vec<&str>> {
    let calls = line.match_indices("oclcache ").filter(|&(at, _)| {
        let before = &line[..at];
        let is_command = match before.chars().next_back() {
            Some('/') => before.ends_with("bin/") || before.ends_with("release/"),
            last => {
                last.is_none_or(|character| character.is_whitespace() || "\"'(".contains(character))
            }
        };
        is_command && !line[at..].starts_with("oclcache /")
    });
    let words = calls.map(|(at, _)| {
        let ends = ['|', ';', '&', '>', '<', ')', '#'];
        let call = line[at..].split(ends).next().unwrap_or_default();
        let words = call.split_whitespace().skip(1);
        words
            .map(|word| word.trim_matches(['[', ']', '"', '\'', '.']))
            .collect()
    });
    words.collect()
}

#[test]
fn no_page_names_a_verb_or_an_option_that_the_command_does_not_have() {
    let mut help = Help::new();
    let mut checked = 0;
    for page in pages::all() {
        for (line, text) in page.commands() {
            for call in calls(&text) {
                let place = format!("{}:{line}: oclcache {}", page.name, call.join(" "));
                let mut verbs = Vec::new();
                for word in &call {
                    let is_verb = !word.starts_with('-')
                        && help.verbs(&verbs).iter().any(|verb| verb == word);
                    if !is_verb {
                        break;
                    }
                    verbs.push(*word);
                }
                let is_placeholder = call
                    .first()
                    .is_none_or(|word| word.starts_with(char::is_uppercase));
                let has_only_options = call.iter().all(|word| word.starts_with('-'));
                assert!(
                    is_placeholder || has_only_options || !verbs.is_empty(),
                    "{place}: no such verb"
                );
                let arguments = call.iter().skip(verbs.len());
                // What stands behind the program is the program's.
                let is_run = verbs.first() == Some(&"run");
                let arguments =
                    arguments.take_while(|word| word.starts_with('-') && **word != "--" || !is_run);
                let said = help.of(&verbs).expect("a verb's help").to_owned();
                for option in arguments.filter(|word| word.starts_with('-') && **word != "-") {
                    let option = option.split('=').next().unwrap_or_default();
                    assert!(has_option(&said, option), "{place}: no {option} in\n{said}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked >= 20, "only {checked} options are named");
}

#[test]
fn the_page_of_commands_has_each_verb_with_the_name_that_ccache_gives_it() {
    let mut help = Help::new();
    let page = fs::read_to_string(top().join("docs/commands.md")).expect("docs/commands.md");
    for verb in help.verbs(&[]) {
        let start = format!("| `oclcache {verb}");
        let rows = page.lines().filter(|line| {
            let rest = line.strip_prefix(&start);
            rest.is_some_and(|rest| rest.starts_with([' ', '`']))
        });
        let rows: Vec<&str> = rows.collect();
        assert!(
            !rows.is_empty(),
            "`oclcache {verb}` is not in docs/commands.md"
        );
        let said = help.of(&[&verb]).expect("a verb's help").to_owned();
        for row in &rows {
            let options = row
                .split('`')
                .skip(3)
                .step_by(2)
                .filter(|span| span.starts_with("--"));
            let options = options.filter_map(|span| span.split_whitespace().next());
            let below = help.verbs(&[&verb]);
            for option in options {
                let is_below =
                    |sub: &String| has_option(help.of(&[&verb, sub]).unwrap_or_default(), option);
                let found = has_option(&said, option) || below.iter().any(is_below);
                assert!(found, "oclcache {verb} has no {option}");
            }
        }
        let in_ccache = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("In ccache: "));
        for name in in_ccache
            .into_iter()
            .flat_map(|names| names.split([',', ' ']))
        {
            let is_named =
                name.is_empty() || rows.iter().any(|row| row.contains(&format!("`{name}")));
            assert!(
                is_named,
                "docs/commands.md does not say that ccache has {name} for {verb}"
            );
        }
    }
}

#[test]
fn every_link_leads_to_a_file_or_a_heading_that_is_there() {
    let pages = pages::all();
    let anchors: BTreeMap<&str, Vec<String>> = pages
        .iter()
        .map(|page| (page.name.as_str(), page.anchors()))
        .collect();
    let mut linked = BTreeSet::new();
    for page in &pages {
        let folder = top()
            .join(&page.name)
            .parent()
            .expect("a folder")
            .to_owned();
        for (line, target) in page.links() {
            let place = format!("{}:{line}: {target}", page.name);
            if target.starts_with("https://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let named = match file {
                "" => page.name.clone(),
                _ => {
                    let path = folder.join(file).canonicalize();
                    let path = path.unwrap_or_else(|error| panic!("{place}: {error}"));
                    let top = top().canonicalize().expect("the project");
                    let below = path.strip_prefix(&top);
                    below
                        .unwrap_or_else(|_| panic!("{place} is outside"))
                        .display()
                        .to_string()
                }
            };
            if !heading.is_empty() {
                let there = anchors.get(named.as_str());
                let there = there.is_some_and(|all| all.iter().any(|anchor| anchor == heading));
                assert!(there, "{place}: no such heading");
            }
            linked.insert(named);
        }
        // Files of the project that are named, not linked.
        for (line, span) in page.spans() {
            let path = span.split_whitespace().next().unwrap_or_default();
            let is_ours = ["ci/", "icd/", "src/", "tests/", "docs/"]
                .iter()
                .any(|folder| path.starts_with(folder));
            let path = path.trim_end_matches("/*.md");
            assert!(
                !is_ours || top().join(path).exists(),
                "{}:{line}: {path} is not there",
                page.name
            );
        }
    }
    let alone = pages
        .iter()
        .filter(|page| !linked.contains(&page.name) && page.name != "README.md");
    let alone: Vec<&str> = alone.map(|page| &*page.name).collect();
    assert!(alone.is_empty(), "no page links to {alone:?}");
}

/// The settings, by key: variable and default, as the table in the source has them.
fn settings() -> Vec<(String, Option<String>, String)> {
    let table = fs::read_to_string(top().join("src/config/table.rs")).expect("the table");
    let rows = table.split("    Setting {\n").skip(1);
    let quoted = |row: &str, name: &str| {
        let (_, rest) = row.split_once(&format!("{name}: "))?;
        let rest = rest.split('\n').next()?;
        let (_, rest) = rest.split_once('"')?;
        Some(rest.split('"').next()?.to_owned())
    };
    let rows = rows.map(|row| {
        let key = quoted(row, "key").expect("a key");
        (
            key,
            quoted(row, "variable"),
            quoted(row, "default").unwrap_or_default(),
        )
    });
    rows.collect()
}

#[test]
fn every_setting_is_explained_and_no_other_variable_is_named() {
    let settings = settings();
    assert!(settings.len() >= 18, "the table is not read: {settings:?}");
    let page = fs::read_to_string(top().join("docs/configuration.md")).expect("the page");
    for (key, variable, default) in &settings {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{key}`")));
        let Some(variable) = variable else {
            let is_named =
                page.contains(&format!("`{key}`")) || page.contains(&format!("{key} = "));
            assert!(is_named, "docs/configuration.md does not explain {key}");
            continue;
        };
        let row = row.unwrap_or_else(|| panic!("docs/configuration.md does not explain {key}"));
        assert!(
            row.contains(&format!("`{variable}`")),
            "{row}: not {variable}"
        );
        // That of the directory depends on how it was built.
        let is_said = default.is_empty() || key == "dir" || row.contains(&format!("`{default}`"));
        assert!(is_said, "{row}: the default is {default}");
    }
    let mut known: BTreeSet<&str> = settings.iter().filter_map(|row| row.1.as_deref()).collect();
    // Those that packagers set when they build.
    let built = fs::read_to_string(top().join("src/build.rs")).expect("src/build.rs");
    known.extend(
        built
            .split('"')
            .filter(|text| text.starts_with("OCLCACHE_")),
    );
    for page in pages::all() {
        for (at, _) in page.text.match_indices("OCLCACHE_") {
            let rest = &page.text[at..];
            let end =
                rest.find(|character: char| !(character.is_ascii_uppercase() || character == '_'));
            let name = &rest[..end.unwrap_or(rest.len())];
            assert!(
                known.contains(name),
                "{}: there is no variable {name}",
                page.name
            );
        }
    }
}
