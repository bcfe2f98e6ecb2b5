//! Describes changes of the places where the compiler looks for headers.

use super::difference::Side;
use crate::key::ingredients::Ingredient;
use crate::key::options;
use crate::log::text;

/// What is at a place.
#[derive(PartialEq, Eq)]
enum PlaceContent<'a> {
    /// The compiler did not look there.
    NotSearched,
    Nothing,
    Directory,
    /// A file: its digest, and the other place that is the same file.
    File(&'a [u8], &'a [u8]),
}

impl PlaceContent<'_> {
    fn of(place: Option<&Ingredient>) -> PlaceContent<'_> {
        let Some(place) = place else {
            return PlaceContent::NotSearched;
        };
        match place.value.split_at_checked(32) {
            Some((digest, same)) => PlaceContent::File(digest, same),
            None if place.value.is_empty() => PlaceContent::Nothing,
            None => PlaceContent::Directory,
        }
    }
}

/// Describes the change of a place.
pub fn words(before: Option<&Ingredient>, after: Option<&Ingredient>, sides: [Side; 2]) -> String {
    let some = after.or(before).map(|place| place.name.as_str());
    let some = some.unwrap_or_default();
    if !some.contains('/') {
        let directory = text(some.as_bytes());
        return match after {
            Some(after) => format!(
                "the include directory {directory} now {}",
                text(&after.value)
            ),
            None => format!("the include directory {directory} is no longer another one"),
        };
    }
    let (header, place) = split(some, sides[usize::from(after.is_some())]);
    match (PlaceContent::of(before), PlaceContent::of(after)) {
        (PlaceContent::File(old, _), PlaceContent::File(new, same)) if old == new => {
            match same.is_empty() {
                true => format!("header {header} in {place} is now a separate file"),
                false => format!("header {header} in {place} is now the{}", text(same)),
            }
        }
        (PlaceContent::File(..), PlaceContent::File(..)) => format!("header {header} changed"),
        (PlaceContent::NotSearched, PlaceContent::File(..)) => {
            format!("header {header} in {place} is now included")
        }
        (PlaceContent::File(..), PlaceContent::NotSearched) => {
            format!("header {header} in {place} is no longer included")
        }
        (PlaceContent::NotSearched, _) => format!("header {header} is now searched for in {place}"),
        (_, PlaceContent::NotSearched) => {
            format!("header {header} is no longer searched for in {place}")
        }
        (PlaceContent::Nothing, PlaceContent::File(..)) => {
            format!("header {header} is new in {place}")
        }
        (_, PlaceContent::File(..)) => {
            format!("header {header} replaces a directory in {place}")
        }
        (_, PlaceContent::Directory) => format!("a directory replaces header {header} in {place}"),
        (_, PlaceContent::Nothing) => format!("header {header} was removed from {place}"),
    }
}

/// The header's name and the directory that was searched, from the name of an ingredient.
fn split(name: &str, side: Side) -> (String, String) {
    let shown = |name: &str| text(without_detours(name).as_bytes()).to_string();
    let (base, header) = name.split_once('/').unwrap_or(("", name));
    let place = match base {
        "" => return (shown(name), "its path".to_owned()),
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

/// The name without `dir/..`, which headers beside an including file have.
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
