//! `oclcache show`.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::entry_view::{in_reading_order, kind, value};
use super::failure::Failure;
use super::find::find_entry;
use super::output::{print, print_foreign, print_json, seconds, size};
use crate::driver::profile;
use crate::log::text;
use crate::store::entry::Entry;

/// Show one entry: the ingredients of its key, and what it holds
#[derive(Args)]
#[command(after_help = "Example: oclcache show 4f1d2a\nIn ccache: --inspect")]
pub struct ShowArgs {
    /// The key, or enough of its first digits
    key: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print only the program's source
    #[arg(long, conflicts_with = "json")]
    source: bool,
}

impl ShowArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let (key, location, entry) = find_entry(&self.key)?;
        if self.source {
            let missing = |_| {
                Failure::new(
                    "this entry was stored without its source; set OCLCACHE_STORE_SOURCE=1 to store the sources of later entries",
                )
            };
            let recipe = entry.recipe().map_err(missing)?;
            return print_foreign(recipe.text().unwrap_or_default());
        }
        if self.json {
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
}

fn as_json(entry: &Entry) -> Value {
    let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let meta = &entry.meta;
    let ingredients = in_reading_order(&meta.ingredients).map(|ingredient| {
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
        "signer": meta.signer().map(|signer| format!("{signer:016X}")),
        "variants": meta.variants,
        "source_bytes": entry.recipe().ok().map(|recipe| recipe.text().map_or(0, <[u8]>::len)),
        "binary_bytes": entry.binaries().map(<[u8]>::len).collect::<Vec<_>>(),
        "kernels": meta.facts.kernel_names.iter().map(lossy).collect::<Vec<_>>(),
        "ingredients": ingredients.collect::<Vec<_>>(),
    })
}

/// Whether the entry has the variants that the driver makes when kernels run, if the driver keeps them.
fn variants(entry: &Entry) -> Option<&'static str> {
    let keeps = profile::named(&entry.meta.driver_family).keeps_a_cache();
    match entry.meta.variants {
        _ if entry.meta.is_pending() || !keeps => None,
        true => Some("stored for the work-group sizes that the program used"),
        false => Some("none: the driver compiles for each work-group size at its first use"),
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
        entry.recipe().ok().map_or("not stored".into(), |recipe| {
            size(recipe.text().map_or(0, <[u8]>::len) as u64)
        }),
    );
    match (meta.signer(), meta.imported) {
        (Some(signer), _) => row("origin", format!("another machine, key {signer:016X}")),
        (None, true) => row("origin", "an archive".to_owned()),
        (None, false) => {}
    }
    if meta.is_pending() {
        let words = "pending: `oclcache bake` compiles this recipe";
        row("state", words.to_owned());
    }
    for ingredient in in_reading_order(&meta.ingredients) {
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
    use crate::cli::entry_view::{EntryColumns, EntryRow};
    use crate::cli::output::plain;
    use crate::key::ingredients::{Ingredient, Key, Kind};
    use crate::log::is_plain;
    use crate::store::entry::{EntryContent, Facts, Meta};
    use crate::store::heads::EntryHead;

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
        let head = EntryHead::of(meta);
        let row = EntryRow {
            key: &key,
            bytes: 1,
            used_ms: 0,
            unused_ms: 0,
            head: Some(&head),
            given_up: false,
        };
        let list = EntryColumns::new(None).row(&row);
        let show = as_text(&entry);
        assert_eq!((list.lines().count(), show.lines().count()), (1, 7 + 7));
        let json = [row.as_json(), as_json(&entry)];
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
