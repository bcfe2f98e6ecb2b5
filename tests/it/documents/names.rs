//! What pages name: the verbs and options of the command, settings, files and headings.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::Reader;
use super::pages::{self, top};
use crate::support::Driver;

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

    /// The verbs below these: they stand before the options, each on a line with what it does.
    fn verbs(&mut self, verbs: &[&str]) -> Vec<String> {
        let help = self.of(verbs).unwrap_or_default();
        let listed = help.split("\nOptions:").next().unwrap_or_default();
        let names = listed.lines().filter_map(|line| {
            let (name, words) = line.strip_prefix("  ")?.split_once("  ")?;
            let is_name = name.starts_with(|character: char| character.is_ascii_lowercase());
            (is_name && !words.trim().is_empty()).then(|| name.to_owned())
        });
        names.collect()
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
    let verbs = help.verbs(&[]);
    assert!(verbs.len() > 5, "{verbs:?}");
    for verb in verbs {
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
                !name.starts_with('-') || rows.iter().any(|row| row.contains(&format!("`{name}")));
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

/// The site has the pages of docs/, without docs/internals/ and what is outside.
#[test]
fn the_summary_and_the_readme_list_each_page_of_the_site_and_links_stay_inside_it() {
    let pages = pages::all();
    let targets = |name: &str, folder: &str| -> BTreeSet<String> {
        let page = pages.iter().find(|page| page.name == name).expect("a page");
        let links = page.links().into_iter();
        let files = links.map(|(_, target)| target.split('#').next().unwrap_or_default());
        files.map(|file| format!("{folder}{file}")).collect()
    };
    let is_of_the_site =
        |name: &str| name.starts_with("docs/") && !name.starts_with("docs/internals/");
    let site = pages
        .iter()
        .map(|page| page.name.clone())
        .filter(|name| is_of_the_site(name) && name != "docs/SUMMARY.md");
    let site: BTreeSet<String> = site.collect();
    assert_eq!(targets("docs/SUMMARY.md", "docs/"), site);
    let listed = targets("README.md", "");
    let missing: Vec<&String> = site.difference(&listed).collect();
    assert!(missing.is_empty(), "README.md does not list {missing:?}");
    for page in pages.iter().filter(|page| site.contains(&page.name)) {
        for (line, target) in page.links() {
            let leads_out = target.starts_with("..") || target.starts_with("internals/");
            assert!(
                !leads_out,
                "{}:{line}: {target} is not in the site",
                page.name
            );
        }
    }
}

#[test]
fn no_page_asks_for_reports_while_there_is_no_address_for_them() {
    let manifest = fs::read_to_string(top().join("Cargo.toml")).expect("the manifest");
    if manifest.lines().any(|line| line.starts_with("repository")) {
        return;
    }
    for page in pages::all() {
        let asks = page.text.to_lowercase().contains("report it");
        assert!(!asks, "{} asks for a report", page.name);
    }
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
    let page = fs::read_to_string(top().join("docs/commands.md")).expect("the page");
    for (key, variable, default) in &settings {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{key}`")));
        let Some(variable) = variable else {
            let is_named =
                page.contains(&format!("`{key}`")) || page.contains(&format!("{key} = "));
            assert!(is_named, "docs/commands.md does not explain {key}");
            continue;
        };
        let row = row.unwrap_or_else(|| panic!("docs/commands.md does not explain {key}"));
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
    // The secret of the remote level, which is no setting.
    let secret = fs::read_to_string(top().join("src/cache/autobake.rs")).expect("the source");
    let quoted = secret
        .split('"')
        .filter(|text| *text == "OCLCACHE_REMOTE_KEY");
    known.extend(quoted);
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

/// The names behind `start` in the lines of a source file, up to `end`.
fn declared(file: &str, start: &str, end: char) -> Vec<String> {
    let text = fs::read_to_string(top().join(file)).expect("a source file");
    let names = text.lines().filter_map(|line| {
        let (name, _) = line.trim().strip_prefix(start)?.split_once(end)?;
        Some(name.to_owned())
    });
    names.collect()
}

#[test]
fn every_driver_profile_is_described() {
    let page = fs::read_to_string(top().join("docs/drivers.md")).expect("docs/drivers.md");
    let directory = "src/driver/profile/families";
    let files = fs::read_dir(top().join(directory)).expect("the families' directory");
    let files = files.map(|file| file.expect("a file").file_name());
    let families = files.flat_map(|file| {
        let file = format!("{directory}/{}", file.to_string_lossy());
        declared(&file, "family: \"", '"')
    });
    let families: Vec<String> = families.collect();
    assert!(
        families.len() >= 9,
        "the profiles are not read: {families:?}"
    );
    for family in families {
        let is_named = page.contains(&format!("(`{family}`)"));
        assert!(
            is_named,
            "docs/drivers.md does not name the family `{family}`"
        );
    }
}

#[test]
fn every_ingredient_of_the_key_is_explained() {
    let page =
        fs::read_to_string(top().join("docs/internals/key.md")).expect("docs/internals/key.md");
    let text = fs::read_to_string(top().join("src/key/ingredients.rs")).expect("the source");
    let (_, kinds) = text.split_once("pub enum Kind {").expect("the kinds");
    let kinds = kinds.split('}').next().unwrap_or_default();
    let kinds: Vec<String> = kinds
        .lines()
        .filter_map(|line| Some(line.trim().split_once(" = ")?.0.to_lowercase()))
        .collect();
    assert!(kinds.len() >= 17, "the kinds are not read: {kinds:?}");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let explained: Vec<&str> = rows
        .filter_map(|row| row.split('|').next())
        .flat_map(|names| names.split(", ").map(str::trim))
        .collect();
    for kind in kinds {
        let is_explained = explained.contains(&kind.as_str());
        assert!(
            is_explained,
            "docs/internals/key.md has no row for `{kind}`"
        );
    }
}

/// The page whose end is the glossary.
const GLOSSARY: &str = "docs/how-it-works.md";

/// The terms of the glossary that no other project uses so, with the words that mean them.
const TERMS: [(&str, &[&str]); 7] = [
    ("bake", &["bake", "bakes", "baked", "baker", "baking"]),
    ("bypass", &["bypass", "bypasses", "bypassed"]),
    ("recipe", &["recipe", "recipes"]),
    (
        "materialize",
        &["materialize", "materializes", "materialized"],
    ),
    ("tier", &["tier", "tiers"]),
    ("shadow", &["shadow", "shadows"]),
    ("p-and-p", &["P"]),
];

#[test]
fn a_page_links_the_projects_own_terms_where_it_first_uses_them() {
    for page in pages::all() {
        // They list pages by their titles, and define the terms.
        if ["README.md", "docs/SUMMARY.md", GLOSSARY].contains(&&*page.name) {
            continue;
        }
        let prose = page.prose();
        // Headings and captions hold no links.
        let lines = prose
            .iter()
            .filter(|(_, line)| !line.starts_with(['#', '!']));
        for (term, forms) in TERMS {
            let uses = lines.clone().find(|(_, line)| {
                let words = line.split('`').step_by(2).flat_map(|part| {
                    let texts = part.split("](").enumerate();
                    texts.map(|(index, text)| match index {
                        0 => text,
                        _ => text.split_once(')').map_or("", |(_, text)| text),
                    })
                });
                let mut words = words.flat_map(|text| {
                    text.split(|character: char| !(character.is_alphanumeric() || character == '_'))
                });
                words.any(|word| forms.contains(&word) || forms.contains(&&*word.to_lowercase()))
            });
            let Some((number, line)) = uses else {
                continue;
            };
            let is_linked = line.contains(&format!("how-it-works.md#{term})"));
            assert!(is_linked, "{}:{number} does not link `{term}`", page.name);
        }
    }
}
