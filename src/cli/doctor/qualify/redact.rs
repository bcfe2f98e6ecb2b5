//! Takes out of a text what tells of a person or a board: paths, UUIDs and serial numbers. Drivers may name them, and so may errors of
//! the system.

/// The text that replaces them.
const REMOVED: &str = "(removed)";
/// The groups of a UUID have so many digits.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];
/// A version has shorter numbers.
const MIN_SERIAL_DIGITS: usize = 10;

/// The text with each such word replaced.
pub fn redacted(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace);
    words.map(redacted_word).collect()
}

/// A word and the white space behind it.
fn redacted_word(word: &str) -> String {
    let bare = word.trim_end();
    if has_path(bare) || has_uuid(bare) || has_serial_number(bare) {
        return format!("{REMOVED}{}", &word[bare.len()..]);
    }
    word.to_owned()
}

/// Whether a slash begins a path. One between two names only lists them: `RX 6800/6800 XT`.
fn has_path(word: &str) -> bool {
    let bytes = word.as_bytes();
    let slashes = (0..bytes.len()).filter(|at| bytes[*at] == b'/');
    let mut begins = slashes.map(|at| {
        let is_behind_a_name = at > 0 && bytes[at - 1].is_ascii_alphanumeric();
        let is_before_a_name = bytes.get(at + 1).is_some_and(|next| *next != b')');
        !is_behind_a_name && is_before_a_name
    });
    begins.any(|begins| begins) || bytes.iter().filter(|byte| **byte == b'/').count() > 1
}

/// Whether groups of hexadecimal digits have the lengths of a UUID, whatever is before and behind them.
fn has_uuid(word: &str) -> bool {
    let groups: Vec<&str> = word.split('-').collect();
    groups.windows(UUID.len()).any(|groups| {
        let [first, middle @ .., last] = groups else {
            return false;
        };
        let is_digit = |character: &char| character.is_ascii_hexdigit();
        first.chars().rev().take_while(is_digit).count() >= UUID[0]
            && last.chars().take_while(is_digit).count() >= UUID[4]
            && (middle.iter().zip(&UUID[1..4])).all(|(group, length)| {
                group.len() == *length && group.chars().all(|c| is_digit(&c))
            })
    })
}

fn has_serial_number(word: &str) -> bool {
    let mut numbers = word.split(|character: char| !character.is_ascii_alphanumeric());
    numbers.any(|number| {
        let digits = number.chars().filter(char::is_ascii_digit).count();
        digits >= MIN_SERIAL_DIGITS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_uuids_and_serial_numbers_are_taken_out() {
        for (text, expected) in [
            (
                "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 1g",
                "(removed) 1g",
            ),
            ("(8932f937-d72c-4106-c12f-20bd9faed9f6)", "(removed)"),
            ("error at path \"/tmp/x\": no", "error at path (removed) no"),
            ("open `/home/me/a b`\n", "open (removed) b`\n"),
            ("~/x ../y tcp://host:1", "(removed) (removed) (removed)"),
            ("serial 0421618012345,", "serial (removed)"),
            ("sn 5CD9371KQZ0123", "sn 5CD9371KQZ0123"),
            ("sn=5CD93714320123", "(removed)"),
        ] {
            assert_eq!(redacted(text), expected, "{text}");
        }
    }

    #[test]
    fn names_and_versions_stay() {
        for text in [
            "AMD Radeon RX 6800/6800 XT / 6900 XT, driver 3649.0 (HSA1.1,LC), of AMD (amd)",
            "pthread-skylake-avx512, driver 3.1+debian, of Portable Computing Language (pocl)",
            "driver 2023.16.7.0.21_160000, 535.104.05, 23.0.0-devel (git-1a2b3c4d5e)",
            "ok       device     a - b-c-d-e-f\n",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            "",
        ] {
            assert_eq!(redacted(text), text);
        }
    }
}
