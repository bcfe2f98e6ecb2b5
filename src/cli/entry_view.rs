//! Formats entries and the ingredients of their keys for `list`, `show`, `explain` and others.

use serde_json::{Value, json};

use super::output::{seconds, size};
use crate::cl::info::Number;
use crate::key::ingredients::{Ingredient, Key, Kind, digest_of, hex};
use crate::log::text;
use crate::store::heads::EntryHead;

/// How many digits of a key are shown; enough to tell entries apart.
pub const SHOWN_DIGITS: usize = 16;

pub fn row_as_json(key: &Key, bytes: u64, head: Option<&EntryHead>, given_up: bool) -> Value {
    let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    match head {
        None => json!({ "key": key.hex(), "bytes": bytes, "damaged": true }),
        Some(head) => json!({
            "key": key.hex(),
            "bytes": bytes,
            "damaged": false,
            "pending": head.is_pending,
            "given_up": given_up,
            "created": head.created,
            "compile_ns": head.compile_ns,
            "driver": head.driver_family,
            "program": head.executable,
            "options": head.options.as_ref().map(lossy),
            "kernels": head.kernel_names.iter().map(lossy).collect::<Vec<_>>(),
        }),
    }
}

/// A line for an entry, cut to so many columns.
pub fn row_as_text(
    key: &Key,
    bytes: u64,
    head: Option<&EntryHead>,
    given_up: bool,
    columns: Option<usize>,
) -> String {
    let key = &key.hex()[..SHOWN_DIGITS];
    let row = match head {
        None => format!("{key}  {:>10}  damaged", size(bytes)),
        Some(head) => format!(
            "{key}  {:>10}  {:>9}  {}{:<10} {:<20} {}",
            size(bytes),
            seconds(head.compile_ns),
            match (given_up, head.is_pending) {
                (true, _) => "given up ",
                (false, true) => "pending  ",
                (false, false) => "",
            },
            text(head.driver_family.as_bytes()).to_string(),
            text(head.executable.as_bytes()).to_string(),
            kernels(&head.kernel_names),
        ),
    };
    // One line of a terminal: `show` has all names.
    match columns {
        Some(columns) => format!("{}\n", console::truncate_str(&row, columns, "…")),
        None => row + "\n",
    }
}

/// The first names, and the number of the others.
pub fn kernels(names: &[Vec<u8>]) -> String {
    const SHOWN: usize = 5;
    let shown = text(&names[..names.len().min(SHOWN)].join(&b' ')).to_string();
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The ingredients of a key in the order in which they are read: first those of the call itself, which are the last ones in the key.
pub fn in_reading_order(ingredients: &[Ingredient]) -> impl Iterator<Item = &Ingredient> {
    let is_first = |one: &Ingredient| matches!(one.kind, Kind::Source | Kind::Il | Kind::Input);
    let first = ingredients.iter().position(is_first).unwrap_or(0);
    let (shared, own) = ingredients.split_at(first);
    own.iter().chain(shared)
}

/// The name of its kind.
pub fn kind(ingredient: &Ingredient) -> String {
    format!("{:?}", ingredient.kind).to_lowercase()
}

/// Its value as text.
pub fn value(ingredient: &Ingredient) -> String {
    let bytes = &ingredient.value;
    match ingredient.kind {
        Kind::Source | Kind::Options | Kind::Header | Kind::Il => format!("sha256 {}", hex(bytes)),
        Kind::Input | Kind::Previous | Kind::Constant => hex(bytes),
        // The digest of the content, and the other place that is the same file.
        Kind::Include => match bytes.split_at_checked(32) {
            Some((digest, same)) => format!("sha256 {}{}", hex(digest), text(same)),
            None if bytes.is_empty() => "absent".to_owned(),
            None => text(bytes).to_string(),
        },
        // "build-id ", "blake3 " or "sha256 " and the digest.
        Kind::Driver => match bytes.iter().position(|byte| *byte == b' ') {
            Some(blank) => format!("{} {}", text(&bytes[..blank]), hex(&bytes[blank + 1..])),
            None => hex(bytes),
        },
        // The value may be a password.
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

/// The names of features. Each is preceded by a version of 32 bits and followed by NULs.
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

/// A number that a device answered, or its error code.
fn number(bytes: &[u8]) -> Option<String> {
    if let Some(long) = u64::from_value(bytes) {
        return Some(long.to_string());
    }
    Some(match i32::from_value(bytes)? {
        code @ -100..0 => format!("error {code}"),
        _ => u32::from_value(bytes)?.to_string(),
    })
}

/// The names of the devices that an entry is for.
pub fn devices(ingredients: &[Ingredient]) -> Vec<String> {
    let names = ingredients
        .iter()
        .filter(|one| one.kind == Kind::Device && one.name == "device name");
    names
        .map(|one| {
            let name = one.value.strip_suffix(b"\0").unwrap_or(&one.value);
            String::from_utf8_lossy(name).trim().to_owned()
        })
        .collect()
}
