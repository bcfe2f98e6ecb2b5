//! `oclcache list`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::failure::Failure;
use super::open::store;
use super::output::{print_json, printed, say, seconds, size, width};
use crate::key::ingredients::Key;
use crate::log::text;
use crate::store::entry::Meta;

/// Digits of a key that are shown; enough to tell entries apart by.
pub(super) const SHOWN_DIGITS: usize = 16;

pub fn list(json: bool) -> Result<ExitCode, Failure> {
    let store = store()?;
    let entries = match &store {
        Some(store) => store.entries()?,
        None => Vec::new(),
    };
    let Some(store) = store.filter(|_| !entries.is_empty()) else {
        if json {
            return print_json(&json!([]));
        }
        say("oclcache: the cache is empty; `oclcache run PROGRAM` fills it");
        return Ok(ExitCode::SUCCESS);
    };
    let mut rows = entries.iter().map(|(key, file)| {
        let meta = store.read_meta(key);
        let given_up = meta.as_ref().is_some_and(Meta::is_pending) && store.given_up(key).is_some();
        (key, file.size, meta, given_up)
    });
    if json {
        return print_json(
            &rows
                .map(|(key, bytes, meta, given_up)| {
                    row_as_json(key, bytes, meta.as_ref(), given_up)
                })
                .collect(),
        );
    }
    // Row by row: there may be a million, and `head` may read them.
    let mut output = io::stdout().lock();
    let written = rows.try_for_each(|(key, bytes, meta, given_up)| {
        output.write_all(row_as_text(key, bytes, meta.as_ref(), given_up).as_bytes())
    });
    printed(written)
}

pub(super) fn row_as_json(key: &Key, bytes: u64, meta: Option<&Meta>, given_up: bool) -> Value {
    let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    match meta {
        None => json!({ "key": key.hex(), "bytes": bytes, "damaged": true }),
        Some(meta) => json!({
            "key": key.hex(),
            "bytes": bytes,
            "damaged": false,
            "pending": meta.is_pending(),
            "given_up": given_up,
            "created": meta.created,
            "compile_ns": meta.compile_ns,
            "driver": meta.driver_family,
            "program": meta.executable,
            "options": meta.options.as_ref().map(lossy),
            "kernels": meta.facts.kernel_names.iter().map(lossy).collect::<Vec<_>>(),
        }),
    }
}

pub(super) fn row_as_text(key: &Key, bytes: u64, meta: Option<&Meta>, given_up: bool) -> String {
    let key = &key.hex()[..SHOWN_DIGITS];
    let row = match meta {
        None => format!("{key}  {:>10}  damaged", size(bytes)),
        Some(meta) => format!(
            "{key}  {:>10}  {:>9}  {}{:<10} {:<20} {}",
            size(bytes),
            seconds(meta.compile_ns),
            match (given_up, meta.is_pending()) {
                (true, _) => "given up ",
                (false, true) => "pending  ",
                (false, false) => "",
            },
            text(meta.driver_family.as_bytes()).to_string(),
            text(meta.executable.as_bytes()).to_string(),
            kernels(&meta.facts.kernel_names),
        ),
    };
    // `show` has all names, so a row takes no second line of a terminal.
    let most = width().unwrap_or(usize::MAX);
    format!("{}\n", console::truncate_str(&row, most, "…"))
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
