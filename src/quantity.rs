//! Parses and formats sizes and times in settings.

use std::time::Duration;

/// Parses a size: a number with a unit as in ccache, `500M` (10^6) or `5Gi` (2^30), optionally followed by `B`; `10B` is
/// in bytes. A bare number is refused, except 0: some tools take it for bytes, others for GiB.
pub fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let unit = unit.strip_suffix(['B', 'b']).unwrap_or(unit);
    let (letter, factor) = match unit.strip_suffix('i') {
        Some(letter) => (letter, 1024.0f64),
        None => (unit, 1000.0),
    };
    let power = match letter.to_ascii_uppercase().as_str() {
        "" if unit.is_empty() && (number == 0.0 || !has_no_unit(text)) => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    Some((number * factor.powi(power)) as u64)
}

/// Whether a text is a number alone.
pub fn has_no_unit(text: &str) -> bool {
    split(text).is_some_and(|(_, unit)| unit.is_empty())
}

/// Parses a time: a number followed by `ms`, `s`, `m`, `h`, `d` or `w`; 0 needs no unit.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "" if number == 0.0 => 0.0,
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "w" => 7.0 * 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// The number, which is not negative, and the unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("0", Some(0)),
            ("123", None),
            ("0.5", None),
            ("500M", Some(500_000_000)),
            ("5Gi", Some(5 << 30)),
            ("5 GiB", Some(5 << 30)),
            ("1.5k", Some(1500)),
            ("2tb", Some(2_000_000_000_000)),
            ("10B", Some(10)),
            ("99999999999T", Some(u64::MAX)),
            ("", None),
            ("G", None),
            ("-1", None),
            ("5X", None),
            ("5i", None),
            ("1e3", None),
            ("inf", None),
            ("5 %", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(bytes(text), wanted, "{text}");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        let cases = [
            ("0", Some(0)),
            ("30d", Some(30 * 86400)),
            ("12 h", Some(12 * 3600)),
            ("1.5m", Some(90)),
            ("2w", Some(14 * 86400)),
            ("7", None),
            ("d", None),
            ("99999999999999999999w", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(duration(text), wanted.map(Duration::from_secs), "{text}");
        }
    }
}
