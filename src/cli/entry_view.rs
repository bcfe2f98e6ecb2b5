//! Formats entries and the ingredients of their keys for `list`, `show`, `explain` and others.

use serde_json::{Value, json};

use super::output::{ago, faint, seconds, size};
use crate::cl::info::Number;
use crate::key::ingredients::{Ingredient, Key, Kind, digest_of, hex};
use crate::log::text;
use crate::store::heads::EntryHead;
use crate::store::journal::now_ms;

/// How many digits of a key are shown; enough to tell entries apart.
pub const SHOWN_DIGITS: usize = 16;

/// An entry as lists show it.
pub struct EntryRow<'a> {
    pub key: &'a Key,
    /// Its size.
    pub bytes: u64,
    /// When it was last used, in milliseconds since 1970.
    pub used_ms: u64,
    /// How long ago that was.
    pub unused_ms: u64,
    /// None: it is damaged.
    pub head: Option<&'a EntryHead>,
    /// Whether the baker has given up.
    pub given_up: bool,
}

impl EntryRow<'_> {
    /// The row as JSON.
    pub fn as_json(&self) -> Value {
        let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        let mut row = json!({
            "key": self.key.hex(),
            "bytes": self.bytes,
            "used_ms": self.used_ms,
            "damaged": self.head.is_none(),
        });
        if let Some(head) = self.head {
            let more: [(&str, Value); 8] = [
                ("pending", head.is_pending.into()),
                ("given_up", self.given_up.into()),
                ("created", head.created.into()),
                ("compile_ns", head.compile_ns.into()),
                ("driver", head.driver_family.clone().into()),
                ("program", head.executable.clone().into()),
                ("options", head.options.as_ref().map(lossy).into()),
                ("kernels", head.kernel_names.iter().map(lossy).collect()),
            ];
            for (name, value) in more {
                row[name] = value;
            }
        }
        row
    }
}

/// Which columns of a list of entries fit a terminal: names come first.
#[derive(Clone, Copy)]
pub struct EntryColumns {
    width: Option<usize>,
    driver: bool,
    compile_time: bool,
    size: bool,
    age: bool,
}

impl EntryColumns {
    /// The columns for a terminal of this width; all of them where there is none.
    pub fn new(width: Option<usize>) -> EntryColumns {
        let fits = |columns: usize| width.is_none_or(|width| width >= columns);
        EntryColumns {
            width,
            driver: fits(76),
            compile_time: fits(90),
            size: fits(102),
            age: fits(112),
        }
    }

    /// The names of the columns.
    pub fn header(self) -> String {
        let digits = SHOWN_DIGITS;
        faint(self.line([
            format!("{:<digits$}", "key"),
            format!("{:>8}", "unused"),
            format!("{:>8}", "age"),
            format!("{:>10}", "size"),
            format!("{:>9}", "compiled"),
            format!("{:<10}", "driver"),
            format!("{:<20}", "program"),
            "kernels".to_owned(),
        ])) + "\n"
    }

    /// A row in one line: `show` has all names.
    pub fn row(self, row: &EntryRow) -> String {
        let (head, key) = (row.head, &row.key.hex()[..SHOWN_DIGITS]);
        let shown = |name: &str| text(name.as_bytes()).to_string();
        let state = match head.map(|head| head.is_pending) {
            None => "damaged",
            Some(_) if row.given_up => "given up  ",
            Some(true) => "pending  ",
            Some(false) => "",
        };
        let created_ms = head.map(|head| head.created.saturating_mul(1000));
        let line = self.line([
            key.to_owned(),
            format!("{:>8}", short_age(row.unused_ms)),
            format!(
                "{:>8}",
                created_ms.map_or_else(String::new, |created| short_age(
                    now_ms().saturating_sub(created)
                ))
            ),
            format!("{:>10}", size(row.bytes)),
            format!(
                "{:>9}",
                head.map_or_else(String::new, |head| seconds(head.compile_ns))
            ),
            format!(
                "{:<10}",
                head.map_or_else(String::new, |head| shown(&head.driver_family))
            ),
            format!(
                "{:<20}",
                head.map_or_else(String::new, |head| shown(&head.executable))
            ),
            format!(
                "{state}{}",
                head.map_or_else(String::new, |head| kernels(&head.kernel_names))
            ),
        ]);
        line + "\n"
    }

    fn line(self, cells: [String; 8]) -> String {
        let shown = [
            true,
            true,
            self.age,
            self.size,
            self.compile_time,
            self.driver,
            true,
            true,
        ];
        let cells = cells.into_iter().zip(shown);
        let cells = cells.filter_map(|(cell, is_shown)| is_shown.then_some(cell));
        let line = cells.collect::<Vec<_>>().join("  ");
        match self.width {
            Some(width) => console::truncate_str(line.trim_end(), width, "…").into_owned(),
            None => line.trim_end().to_owned(),
        }
    }
}

/// A time in few characters.
fn short_age(milliseconds: u64) -> String {
    let age = ago(milliseconds);
    age.strip_suffix(" ago").unwrap_or(&age).to_owned()
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
        // "build-id ", "content " or "sha256 " and the digest.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::entry::{Facts, Meta};

    #[test]
    fn names_are_readable_in_60_columns_and_all_is_shown_in_wide_ones() {
        let head = EntryHead::of(Meta {
            driver_family: "intel-gpu".to_owned(),
            executable: "a_long_simulation.py".to_owned(),
            created: 1,
            compile_ns: 1_500_000_000,
            built: vec![0],
            facts: Facts {
                kernel_names: vec![b"integrate".to_vec(), b"forces".to_vec()],
                ..Facts::default()
            },
            ..Meta::default()
        });
        let key = Key([0xab; 32]);
        let row = EntryRow {
            key: &key,
            bytes: 70_000,
            used_ms: 0,
            unused_ms: 3 * 86_400_000,
            head: Some(&head),
            given_up: false,
        };
        let narrow = EntryColumns::new(Some(60)).row(&row);
        assert_eq!(
            narrow,
            "abababababababab    3 days  a_long_simulation.py  integrate…\n"
        );
        let wide = EntryColumns::new(None).row(&row);
        for cell in [
            "3 days",
            "68.4 KiB",
            "1.5 s",
            "intel-gpu",
            "integrate forces",
        ] {
            assert!(wide.contains(cell), "{wide}");
        }
        for width in [20, 60, 80, 100, 120] {
            let columns = EntryColumns::new(Some(width));
            for line in [columns.header(), columns.row(&row)] {
                assert!(
                    console::measure_text_width(line.trim_end()) <= width,
                    "{line}"
                );
            }
        }
    }
}
