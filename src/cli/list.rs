//! `oclcache list`.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::{Failure, print, print_json, seconds, size, store};
use crate::key::ingredients::Key;
use crate::log::text;
use crate::store::entry::Meta;
use crate::store::{Lookup, Store};

/// Digits of a key that are shown; enough to tell entries apart by.
pub(super) const SHOWN_DIGITS: usize = 16;

pub fn list(json: bool) -> Result<ExitCode, Failure> {
    let mut rows: Vec<Value> = Vec::new();
    let mut table = String::new();
    if let Some(store) = store()? {
        for (key, bytes) in store.entries()? {
            let meta = meta_of(&store, &key);
            if json {
                rows.push(row_as_json(&key, bytes, meta.as_ref()));
            } else {
                row_as_text(&mut table, &key, bytes, meta.as_ref());
            }
        }
    }
    if json {
        print_json(&rows.into())
    } else {
        print(table.as_bytes())
    }
}

fn meta_of(store: &Store, key: &Key) -> Option<Meta> {
    match store.look_up(key) {
        Lookup::Found(entry) => Some(entry.meta),
        Lookup::Absent | Lookup::Bad(_) => None,
    }
}

pub(super) fn row_as_json(key: &Key, bytes: u64, meta: Option<&Meta>) -> Value {
    let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    match meta {
        None => json!({ "key": key.hex(), "bytes": bytes, "damaged": true }),
        Some(meta) => json!({
            "key": key.hex(),
            "bytes": bytes,
            "damaged": false,
            "created": meta.created,
            "compile_ns": meta.compile_ns,
            "driver": meta.driver_family,
            "program": meta.executable,
            "options": meta.options.as_ref().map(lossy),
            "kernels": meta.facts.kernel_names.iter().map(lossy).collect::<Vec<_>>(),
        }),
    }
}

pub(super) fn row_as_text(table: &mut String, key: &Key, bytes: u64, meta: Option<&Meta>) {
    let key = &key.hex()[..SHOWN_DIGITS];
    let _ = match meta {
        None => writeln!(table, "{key}  {:>10}  damaged", size(bytes)),
        Some(meta) => writeln!(
            table,
            "{key}  {:>10}  {:>9}  {:<10} {:<20} {}",
            size(bytes),
            seconds(meta.compile_ns),
            text(meta.driver_family.as_bytes()).to_string(),
            text(meta.executable.as_bytes()).to_string(),
            kernels(&meta.facts.kernel_names),
        ),
    };
}

/// The first names, and how many more there are.
pub(super) fn kernels(names: &[Vec<u8>]) -> String {
    const SHOWN: usize = 5;
    let shown = text(&names[..names.len().min(SHOWN)].join(&b' ')).to_string();
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
