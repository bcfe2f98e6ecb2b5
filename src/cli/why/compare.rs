//! Compares the ingredients of two keys and describes the differences.

use std::collections::HashMap;

use super::difference::{Difference, Side};
use super::options::option_differences;
use crate::cli::entry_view::{kind, value};
use crate::key::ingredients::{Ingredient, Kind};
use crate::log::text;

/// Longer values are cut.
const MAX_VALUE_CHARS: usize = 160;
/// Values of this many words are lists, of which only added and removed words are shown.
const LIST: usize = 6;

/// An ingredient that differs or is missing on one side.
struct Pair<'a> {
    before: Option<&'a Ingredient>,
    after: Option<&'a Ingredient>,
}

impl<'a> Pair<'a> {
    /// The ingredient of either side.
    fn some(&self) -> &'a Ingredient {
        let either = self.after.or(self.before);
        either.expect("a pair has one ingredient at least")
    }

    fn kind(&self) -> Kind {
        self.some().kind
    }

    fn differs(self, words: String) -> Difference {
        Difference {
            kind: kind(self.some()),
            name: text(self.some().name.as_bytes()).to_string(),
            before: self.before.map(value),
            after: self.after.map(value),
            words,
        }
    }
}

/// All differences, those that the application made first.
pub fn differences(before: Side, after: Side) -> Vec<Difference> {
    let mut pairs = pairs(before.ingredients, after.ingredients);
    let mut found = Vec::new();
    if before.family != after.family {
        // Then all ingredients of the driver differ, which explains nothing more.
        pairs.retain(|pair| !is_drivers(pair.kind()));
        let [was, is] = [before.family, after.family].map(|name| text(name.as_bytes()).to_string());
        found.push(Difference {
            kind: "driver".into(),
            name: "family".into(),
            words: format!("compiled by another driver ({is}, was {was})"),
            before: Some(was),
            after: Some(is),
        });
    }
    if pairs.iter().any(|pair| pair.kind() == Kind::Options) {
        found.extend(option_differences(before.options, after.options));
        pairs.retain(|pair| pair.kind() != Kind::Options);
    }
    rename_libraries(&mut pairs);
    forget_consequences(&mut pairs);
    let same_kernels = !after.kernel_names.is_empty() && before.kernel_names == after.kernel_names;
    pairs.sort_by_key(|pair| rank(pair.kind()));
    for pair in pairs {
        let words = words(&pair, same_kernels, [before, after]);
        found.push(pair.differs(words));
    }
    found
}

/// Whether an ingredient belongs to the driver, not to the program.
fn is_drivers(kind: Kind) -> bool {
    use Kind::{Device, Driver, Environment, Executable, Functions, Processor};
    matches!(
        kind,
        Device | Driver | Environment | Executable | Functions | Processor
    )
}

/// The order of differences: what the application asks for comes first.
fn rank(kind: Kind) -> usize {
    match kind {
        Kind::Source | Kind::Il | Kind::Input => 0,
        Kind::Options | Kind::Operation | Kind::Constant => 1,
        Kind::Header | Kind::Include => 2,
        Kind::Environment
        | Kind::Executable
        | Kind::WorkingDirectory
        | Kind::Functions
        | Kind::FloatingPoint => 3,
        Kind::Driver => 4,
        Kind::Device | Kind::Previous => 5,
        Kind::Processor => 6,
    }
}

/// Pairs ingredients of equal kind and name that differ.
fn pairs<'a>(before: &'a [Ingredient], after: &'a [Ingredient]) -> Vec<Pair<'a>> {
    let mut old: HashMap<(u8, &str), Vec<&Ingredient>> = HashMap::new();
    for ingredient in before {
        let place = (ingredient.kind as u8, ingredient.name.as_str());
        old.entry(place).or_default().push(ingredient);
    }
    let mut changed: Vec<&Ingredient> = Vec::new();
    for ingredient in after {
        let place = (ingredient.kind as u8, ingredient.name.as_str());
        let equals = old.get_mut(&place);
        let equal = equals.and_then(|old| {
            let at = old.iter().position(|old| *old == ingredient)?;
            Some(old.remove(at))
        });
        if equal.is_none() {
            changed.push(ingredient);
        }
    }
    let mut pairs = Vec::new();
    for after in changed {
        let old = old.get_mut(&(after.kind as u8, after.name.as_str()));
        let before = old.and_then(|old| (!old.is_empty()).then(|| old.remove(0)));
        pairs.push(Pair {
            before,
            after: Some(after),
        });
    }
    let gone = |ingredient: &&Ingredient| {
        let place = (ingredient.kind as u8, ingredient.name.as_str());
        let left = old.get(&place);
        left.is_some_and(|left| left.iter().any(|left| std::ptr::eq(*left, *ingredient)))
    };
    pairs.extend(before.iter().filter(gone).map(|before| Pair {
        before: Some(before),
        after: None,
    }));
    pairs
}

/// Pairs libraries that differ in the version in their names.
fn rename_libraries(pairs: &mut Vec<Pair>) {
    let mut at = 0;
    while at < pairs.len() {
        let old = match &pairs[at] {
            Pair {
                before: Some(old),
                after: None,
            } if old.kind == Kind::Driver => *old,
            _ => {
                at += 1;
                continue;
            }
        };
        let successor = pairs.iter().position(|pair| {
            let named_alike = |new: &Ingredient| stem(&new.name) == stem(&old.name);
            pair.before.is_none()
                && pair.kind() == Kind::Driver
                && pair.after.is_some_and(named_alike)
        });
        match successor {
            Some(successor) => {
                pairs[successor].before = Some(old);
                pairs.remove(at);
            }
            None => at += 1,
        }
    }
}

/// The name of a file without its version.
fn stem(name: &str) -> &str {
    let end = name.find(|character: char| character.is_ascii_digit());
    let end = end.or_else(|| name.find(".so")).unwrap_or(name.len());
    name[..end].trim_end_matches(['-', '_', '.'])
}

/// Drops changes of places without a header, unless these are the only changes: they follow from a changed text.
fn forget_consequences(pairs: &mut Vec<Pair>) {
    let is_absence = |pair: &Pair| {
        let sides = [pair.before, pair.after];
        let is_absent = |side: &Option<&Ingredient>| side.is_none_or(|side| side.value.is_empty());
        pair.kind() == Kind::Include && sides.iter().all(is_absent)
    };
    if !pairs.iter().all(is_absence) {
        pairs.retain(|pair| !is_absence(pair));
    }
}

fn words(pair: &Pair, same_kernels: bool, sides: [Side; 2]) -> String {
    let some = pair.some();
    let name = text(some.name.as_bytes()).to_string();
    let kernels = if same_kernels { " (same kernels)" } else { "" };
    let [before, after] = [pair.before, pair.after].map(|side| side.map(value));
    // The name of variables and files that the process made after the driver was opened.
    if let Some(name) = name.strip_suffix(", not there when the driver was opened") {
        let what = match some.kind {
            Kind::Environment => "environment",
            _ => "driver file",
        };
        return match pair.after {
            Some(_) => format!("{what} {name} was not there yet when the driver was opened"),
            None => format!("{what} {name} no longer appears after the driver was opened"),
        };
    }
    match some.kind {
        Kind::Source => format!("source changed{kernels}"),
        Kind::Il => format!("intermediate language changed{kernels}"),
        Kind::Operation => {
            let [was, is] = [pair.before, pair.after].map(operation);
            format!("{is}, was {was}")
        }
        Kind::Driver => driver(pair, &name),
        Kind::Header => came_or_went("embedded header", &name, pair, ""),
        Kind::Include => super::include::words(pair.before, pair.after, sides),
        Kind::Environment => {
            let state = |value: &Option<String>| match value.as_deref() {
                None => "not set".to_owned(),
                Some("") => "empty".to_owned(),
                Some(value) => cut(value),
            };
            format!(
                "environment {name}: was {}, is {}",
                state(&before),
                state(&after)
            )
        }
        Kind::Constant => format!(
            "specialization constant {name}: {}",
            became(before.as_deref(), after.as_deref())
        ),
        Kind::Input => {
            let digits = |key: Option<String>| {
                key.map_or("none".to_owned(), |key| key.chars().take(16).collect())
            };
            let [was, is] = [before, after].map(digits);
            format!("linked program {name} changed ({is}, was {was}; run `oclcache explain {is}`)")
        }
        Kind::Previous => "an earlier build for other devices differs".to_owned(),
        Kind::Processor | Kind::Device => {
            let whose = match some.kind {
                Kind::Processor => format!("processor {name}"),
                _ => name,
            };
            format!("{whose}: {}", became(before.as_deref(), after.as_deref()))
        }
        Kind::Executable => format!(
            "name of the program: {}",
            became(before.as_deref(), after.as_deref())
        ),
        Kind::WorkingDirectory => format!(
            "working directory: {}",
            became(before.as_deref(), after.as_deref())
        ),
        Kind::Options => "options changed".to_owned(),
        Kind::Functions => match name.strip_prefix(Ingredient::VARIANTS) {
            Some(library) => format!(
                "{library}: the C library chose other variants of its functions (processor, GLIBC_TUNABLES)"
            ),
            None => functions(pair, &name),
        },
        Kind::FloatingPoint => {
            let state = |value: &Option<String>| value.clone().unwrap_or("the default".to_owned());
            format!(
                "floating-point state, {name}: was {}, is {}",
                state(&before),
                state(&after)
            )
        }
    }
}

/// A library that replaces functions of the driver: a preloaded one, or one that the program is linked with.
fn functions(pair: &Pair, name: &str) -> String {
    let listed = |value: String| match value.split_once(": ") {
        Some((_, functions)) => {
            let names = functions
                .split(", ")
                .filter_map(|one| one.split(' ').next());
            cut(&names.collect::<Vec<_>>().join(" "))
        }
        None => cut(&value),
    };
    match (pair.before, pair.after) {
        (None, Some(after)) => format!(
            "{name} replaces functions of the driver: {}",
            listed(value(after))
        ),
        (Some(before), None) => format!(
            "{name} no longer replaces functions of the driver: {}",
            listed(value(before))
        ),
        _ => format!("{name}, which replaces functions of the driver, changed"),
    }
}

fn operation(ingredient: Option<&Ingredient>) -> &'static str {
    match ingredient.map(|ingredient| ingredient.value.as_slice()) {
        Some(b"compile") => "clCompileProgram",
        Some(b"link") => "clLinkProgram",
        _ => "clBuildProgram",
    }
}

fn driver(pair: &Pair, name: &str) -> String {
    let what = if name.contains(".so") {
        "driver library"
    } else {
        "driver file"
    };
    match (pair.before, pair.after) {
        (Some(before), Some(after)) if before.name != after.name => {
            format!("{what} {} became {name}", text(before.name.as_bytes()))
        }
        (Some(before), Some(after)) => {
            let [was, is] = [before, after].map(|side| digest(&value(side)));
            let is = match (was.split_once(' '), is.split_once(' ')) {
                (Some((was, _)), Some((kind, digits))) if was == kind => digits,
                _ => &is,
            };
            came_or_went(what, name, pair, &format!(" ({was} became {is})"))
        }
        _ => came_or_went(what, name, pair, ""),
    }
}

/// The kind of a digest, and its first digits.
fn digest(value: &str) -> String {
    match value.split_once(' ') {
        Some((kind, digits)) if digits.len() > 8 && digits.is_char_boundary(8) => {
            format!("{kind} {}...", &digits[..8])
        }
        _ => value.to_owned(),
    }
}

fn came_or_went(what: &str, name: &str, pair: &Pair, how: &str) -> String {
    match (pair.before, pair.after) {
        (None, _) => format!("{what} {name} is new"),
        (_, None) => format!("{what} {name} is gone"),
        _ => format!("{what} {name} changed{how}"),
    }
}

/// The change of a value; of a list, the words added and removed.
fn became(before: Option<&str>, after: Option<&str>) -> String {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, after) => return format!("was missing, is {}", cut(after.unwrap_or_default())),
        (Some(before), None) => return format!("was {}, is missing", cut(before)),
    };
    let lists = [before, after].map(|value| value.split_whitespace().collect::<Vec<_>>());
    let [old, new] = &lists;
    if old.len().max(new.len()) >= LIST {
        let added = new.iter().filter(|word| !old.contains(word));
        let taken = old.iter().filter(|word| !new.contains(word));
        let words = added.map(|word| format!("+{word}"));
        let words = words.chain(taken.map(|word| format!("-{word}")));
        let words: Vec<String> = words.collect();
        if !words.is_empty() && words.len() < old.len() {
            return cut(&words.join(" "));
        }
    }
    format!("{} became {}", cut(before), cut(after))
}

/// The beginning of a long value.
fn cut(value: &str) -> String {
    match value.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}
