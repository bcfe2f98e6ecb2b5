//! What became of the places where a header may stand.

use super::difference::Side;
use crate::key::ingredients::Ingredient;
use crate::key::options;
use crate::log::text;

/// What stands at a place.
#[derive(PartialEq, Eq)]
enum Found<'a> {
    /// The place was not looked at.
    Unasked,
    Nothing,
    Directory,
    /// A file: its digest, and which other place is the same file.
    File(&'a [u8], &'a [u8]),
}

impl Found<'_> {
    fn of(place: Option<&Ingredient>) -> Found<'_> {
        let Some(place) = place else {
            return Found::Unasked;
        };
        match place.value.split_at_checked(32) {
            Some((digest, same)) => Found::File(digest, same),
            None if place.value.is_empty() => Found::Nothing,
            None => Found::Directory,
        }
    }
}

/// What became of a place; `sides` are what it belongs to.
pub fn words(before: Option<&Ingredient>, after: Option<&Ingredient>, sides: [Side; 2]) -> String {
    let some = after.or(before).map(|place| place.name.as_str());
    let some = some.unwrap_or_default();
    let (header, place) = split(some, sides[usize::from(after.is_some())]);
    match (Found::of(before), Found::of(after)) {
        (Found::File(old, _), Found::File(new, same)) if old == new => match same.is_empty() {
            true => format!("header {header} in {place} is a file of its own now"),
            false => format!("header {header} in {place} is the{} now", text(same)),
        },
        (Found::File(..), Found::File(..)) => format!("header {header} changed"),
        (Found::Unasked, Found::File(..)) => format!("header {header} in {place} is included now"),
        (Found::File(..), Found::Unasked) => {
            format!("header {header} in {place} is no longer included")
        }
        (Found::Unasked, _) => format!("header {header} is now looked for in {place}"),
        (_, Found::Unasked) => format!("header {header} is no longer looked for in {place}"),
        (Found::Nothing, Found::File(..)) => {
            format!("header {header} now stands in {place}, where it was absent")
        }
        (_, Found::File(..)) => {
            format!("header {header} now stands in {place}, where a directory was")
        }
        (_, Found::Directory) => format!("a directory stands in {place} in place of {header}"),
        (_, Found::Nothing) => format!("header {header} is gone from {place}"),
    }
}

/// The header's name, and in which directory it was looked for, from the name of an ingredient.
fn split(name: &str, side: Side) -> (String, String) {
    let shown = |name: &str| text(without_detours(name).as_bytes()).to_string();
    let (base, header) = name.split_once('/').unwrap_or(("", name));
    let place = match base {
        "" => return (shown(name), "its place".to_owned()),
        "cwd" => "the working directory".to_owned(),
        _ if base.starts_with("driver") => "an include directory of the driver".to_owned(),
        _ => {
            let number = base
                .strip_prefix("-I")
                .and_then(|number| number.parse().ok());
            let parsed = side
                .options
                .and_then(|options| options::parse(options).ok());
            let directory = number.and_then(|number: usize| {
                parsed.as_ref()?.include_dirs.get(number).map(Vec::as_slice)
            });
            match directory {
                Some(directory) => format!("the include directory {}", text(directory)),
                None => format!("the include directory {}", text(base.as_bytes())),
            }
        }
    };
    (shown(header), place)
}

/// The name without directories that are left again, as headers beside an including file have them.
fn without_detours(name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match (part, parts.last()) {
            ("..", Some(last)) if !matches!(*last, "" | "..") => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}
