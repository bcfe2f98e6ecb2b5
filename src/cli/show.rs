//! `oclcache show`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::failure::Failure;
use super::keys::{choose_key, no_entry};
use super::open::{store, tiers};
use super::output::{print, print_foreign, print_json, seconds, size};
use crate::cl::info::Number;
use crate::config::Config;
use crate::driver::profile;
use crate::key::ingredients::{Ingredient, Key, Kind, digest_of, hex};
use crate::log::text;
use crate::store::Lookup;
use crate::store::entry::Entry;
use crate::store::tier::Tier;

pub fn show(digits: &str, json: bool, source: bool) -> Result<ExitCode, Failure> {
    let (key, location, entry) = find_entry(digits)?;
    if source {
        let missing = || {
            Failure::new(
                "this entry was stored without its source; with OCLCACHE_STORE_SOURCE=1 the next ones have it",
            )
        };
        let recipe = entry.recipe().ok_or_else(missing)?;
        return print_foreign(recipe.text().unwrap_or_default());
    }
    if json {
        let mut object = as_json(&entry);
        object["key"] = key.hex().into();
        object["path"] = location.into();
        return print_json(&object);
    }
    let head = format!(
        "key               {}\nfile              {}\n",
        key.hex(),
        crate::log::text(location.as_bytes())
    );
    print((head + &as_text(&entry)).as_bytes())
}

/// The entry that some first digits name, verified, and where it is.
pub(super) fn find_entry(digits: &str) -> Result<(Key, String, Entry), Failure> {
    let (own, tiers) = (store()?, tiers(&Config::read()));
    let own = own.iter().map(|store| store as &dyn Tier);
    let (key, tier) = find(own.chain(tiers.used()), digits)?;
    let entry = match tier.look_up(&key) {
        Lookup::Found(entry, _) | Lookup::Pending(entry) => entry,
        Lookup::Absent => return Err(no_entry(digits)),
        Lookup::Unreadable(error) => {
            let location = tier.location(&key);
            let words = format!(
                "cannot read `{}`: {error}; `oclcache doctor` looks at the directory",
                crate::log::text(location.as_bytes())
            );
            return Err(Failure::new(words));
        }
        Lookup::Bad(defect) => {
            let location = tier.location(&key);
            let words = format!(
                "`{}` is damaged ({defect}); the next build replaces it",
                crate::log::text(location.as_bytes())
            );
            return Err(Failure::new(words));
        }
    };
    Ok((key, tier.location(&key), *entry))
}

/// The first of the tiers that has the key that some first digits name.
fn find<'a>(
    tiers: impl Iterator<Item = &'a dyn Tier>,
    digits: &str,
) -> Result<(Key, &'a dyn Tier), Failure> {
    let mut found = BTreeMap::new();
    for tier in tiers {
        for key in tier.keys()? {
            found.entry(key).or_insert(tier);
        }
    }
    let key = choose_key(found.keys().copied(), digits, "list")?;
    Ok((key, found[&key]))
}

/// What it is, as JSON and people have it.
pub(super) fn kind(ingredient: &Ingredient) -> String {
    format!("{:?}", ingredient.kind).to_lowercase()
}

/// Its value, as people read it.
pub(super) fn value(ingredient: &Ingredient) -> String {
    let bytes = &ingredient.value;
    match ingredient.kind {
        Kind::Source | Kind::Options | Kind::Header | Kind::Il => format!("sha256 {}", hex(bytes)),
        Kind::Input | Kind::Previous | Kind::Constant => hex(bytes),
        // The digest of the content, and which other place is the same file.
        Kind::Include => match bytes.split_at_checked(32) {
            Some((digest, same)) => format!("sha256 {}{}", hex(digest), text(same)),
            None if bytes.is_empty() => "absent".to_owned(),
            None => text(bytes).to_string(),
        },
        // "build-id " or "sha256 " and the digest.
        Kind::Driver => match bytes.iter().position(|byte| *byte == b' ') {
            Some(blank) => format!("{} {}", text(&bytes[..blank]), hex(&bytes[blank + 1..])),
            None => hex(bytes),
        },
        // What the value is may be a password.
        Kind::Environment if digest_of(bytes).is_some() => {
            format!("sha256 {}", hex(&digest_of(bytes).unwrap_or_default()))
        }
        Kind::Device if ingredient.name.ends_with("features") => features(bytes),
        _ => match str::from_utf8(bytes.strip_suffix(b"\0").unwrap_or(bytes)) {
            Ok(words) if words.chars().all(|character| !character.is_control()) => {
                text(words.as_bytes()).to_string()
            }
            _ => number(bytes).unwrap_or_else(|| hex(bytes)),
        },
    }
}

/// The names of features, each of which stands behind a version of 32 bits and before a NUL.
fn features(bytes: &[u8]) -> String {
    let mut names = Vec::new();
    let mut rest = bytes;
    while let Some((_, name)) = rest.split_at_checked(4) {
        let end = name.iter().position(|byte| *byte == 0);
        let end = end.unwrap_or(name.len());
        names.push(text(&name[..end]).to_string());
        rest = name.get(end + 1..).unwrap_or_default();
    }
    names.join(" ")
}

/// A number of a device, or the error code that it gave instead.
fn number(bytes: &[u8]) -> Option<String> {
    if let Some(long) = u64::from_value(bytes) {
        return Some(long.to_string());
    }
    Some(match i32::from_value(bytes)? {
        code @ -100..0 => format!("error {code}"),
        _ => u32::from_value(bytes)?.to_string(),
    })
}

fn as_json(entry: &Entry) -> Value {
    let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let meta = &entry.meta;
    let ingredients = meta.ingredients.iter().map(|ingredient| {
        json!({ "kind": kind(ingredient), "name": ingredient.name, "value": value(ingredient) })
    });
    json!({
        "bytes": entry.size(),
        "created": meta.created,
        "compile_ns": meta.compile_ns,
        "driver": meta.driver_family,
        "driver_library": meta.driver_library,
        "program": meta.executable,
        "options": meta.options.as_ref().map(lossy),
        "pending": meta.is_pending(),
        "imported": meta.imported,
        "variants": meta.variants,
        "source_bytes": entry.recipe().map(|recipe| recipe.text().map_or(0, <[u8]>::len)),
        "binary_bytes": entry.binaries().map(<[u8]>::len).collect::<Vec<_>>(),
        "kernels": meta.facts.kernel_names.iter().map(lossy).collect::<Vec<_>>(),
        "ingredients": ingredients.collect::<Vec<_>>(),
    })
}

/// Whether there is what the driver makes when kernels run, if it keeps that.
fn variants(entry: &Entry) -> Option<&'static str> {
    let keeps = profile::named(&entry.meta.driver_family).keeps_a_cache();
    match entry.meta.variants {
        _ if entry.meta.is_pending() || !keeps => None,
        true => Some("for the work-group sizes that the program used"),
        false => Some("none: the driver compiles for each work-group size when that is used first"),
    }
}

fn as_text(entry: &Entry) -> String {
    let meta = &entry.meta;
    let mut shown = String::new();
    let mut row = |name: &str, words: String| {
        let _ = writeln!(shown, "{name:<18}{words}");
    };
    row("size", size(entry.size()));
    row("program", text(meta.executable.as_bytes()).to_string());
    row(
        "driver",
        format!(
            "{} ({})",
            text(meta.driver_family.as_bytes()),
            text(meta.driver_library.as_bytes())
        ),
    );
    row("compilation took", seconds(meta.compile_ns));
    if let Some(words) = variants(entry) {
        row("variants", words.to_owned());
    }
    row(
        "kernels",
        text(&meta.facts.kernel_names.join(&b' ')).to_string(),
    );
    row(
        "build options",
        meta.options
            .as_ref()
            .map_or("NULL".into(), |options| format!("`{}`", text(options))),
    );
    row(
        "source text",
        entry.recipe().map_or("not stored".into(), |recipe| {
            size(recipe.text().map_or(0, <[u8]>::len) as u64)
        }),
    );
    if meta.imported {
        row("origin", "an archive".to_owned());
    }
    if meta.is_pending() {
        let words = "pending: a recipe, which `oclcache bake` makes an entry of";
        row("state", words.to_owned());
    }
    for ingredient in &meta.ingredients {
        row(
            &kind(ingredient),
            format!("{} {}", text(ingredient.name.as_bytes()), value(ingredient)),
        );
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::list::{row_as_json, row_as_text};
    use crate::cli::output::plain;
    use crate::log::is_plain;
    use crate::store::entry::{EntryContent, Facts, Meta};

    /// An application's C strings need not be UTF-8.
    #[test]
    fn no_byte_of_an_entry_begins_a_line_or_a_terminal_sequence() {
        let mut all: Vec<u8> = (0..=255).collect();
        all.extend("\u{9b}2J\u{202e}\u{200b}\r\nforged".bytes());
        let name = String::from_utf8_lossy(&all).into_owned();
        let kinds = [
            Kind::Source,
            Kind::Device,
            Kind::Driver,
            Kind::Environment,
            Kind::Include,
        ];
        let values = kinds.map(|kind| Ingredient::new(kind, name.clone(), all.clone()));
        let features = Ingredient::new(Kind::Device, "features", all.clone());
        let text = Ingredient::new(Kind::Environment, "NAME", *b"\x1b]0;title\x07\n");
        let meta = Meta {
            ingredients: values.into_iter().chain([features, text]).collect(),
            options: Some(all.clone()),
            driver_family: name.clone(),
            driver_library: name.clone(),
            executable: name,
            built: vec![0],
            facts: Facts {
                kernel_names: vec![all],
                ..Facts::default()
            },
            ..Meta::default()
        };
        let key = Key([7; 32]);
        let content = EntryContent {
            meta: &meta,
            recipe: None,
            binaries: vec![b"binary"],
        };
        let entry =
            Entry::parse(content.encode(&key).expect("memory"), Some(&key)).expect("an entry");
        let list = row_as_text(&key, 1, Some(&meta), false);
        let show = as_text(&entry);
        assert_eq!((list.lines().count(), show.lines().count()), (1, 7 + 7));
        let json = [row_as_json(&key, 1, Some(&meta), false), as_json(&entry)];
        for (value, shown) in json.iter().map(|value| (value, plain(value))) {
            assert_eq!(
                serde_json::from_str::<Value>(&shown).ok().as_ref(),
                Some(value)
            );
            assert!(shown.chars().all(|c| c == '\n' || is_plain(c)), "{shown:?}");
        }
        for shown in [list, show] {
            assert!(shown.chars().all(|c| c == '\n' || is_plain(c)), "{shown:?}");
        }
    }
}
