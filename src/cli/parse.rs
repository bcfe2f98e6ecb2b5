//! Parsers of option values.

use std::time::Duration;

use super::summary;
use crate::quantity;
use crate::store::stats::DAY_MS;

/// A size in bytes.
///
/// # Errors
/// The text is not a size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    quantity::bytes(text).ok_or_else(|| match quantity::has_no_unit(text) {
        true => {
            let number = text.trim();
            format!("a size has a unit: write {number}G or {number}M, or {number}B for bytes")
        }
        false => "expected a size such as 500M or 5Gi".to_owned(),
    })
}

/// A time, such as an age.
///
/// # Errors
/// The text is not a time.
pub fn parse_age(text: &str) -> Result<Duration, &'static str> {
    quantity::duration(text).ok_or("expected a time such as 12h or 30d")
}

/// The beginning of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// This day, in days since 1970.
    Day(u32),
    /// So long ago.
    Ago(Duration),
}

impl Since {
    /// The first day that counts, if `today` is this day.
    pub fn day(self, today: u32) -> u32 {
        match self {
            Since::Day(day) => day,
            Since::Ago(ago) => {
                let days = ago.as_millis() / u128::from(DAY_MS);
                today.saturating_sub(u32::try_from(days).unwrap_or(u32::MAX))
            }
        }
    }

    /// In milliseconds since 1970.
    pub fn in_ms(self, now_ms: u64) -> u64 {
        match self {
            Since::Day(day) => u64::from(day) * DAY_MS,
            Since::Ago(ago) => {
                now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX))
            }
        }
    }
}

/// A day, a month or a time ago.
///
/// # Errors
/// The text is none of these.
pub fn parse_since(text: &str) -> Result<Since, &'static str> {
    if let Some(ago) = quantity::duration(text) {
        return Ok(Since::Ago(ago));
    }
    // The day is found by its date.
    let first = format!("{text}-01");
    let is_it = |day: &u32| [text, &first].contains(&summary::day(*day).as_str());
    let day = (1..60_000).find(is_it);
    day.map(Since::Day).ok_or(
        "expected a day such as 2026-11-21, a month such as 2026-11, or a time ago such as 7d",
    )
}

/// The bytes of hexadecimal digits.
pub fn parse_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    digits.chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_begins_on_a_day_or_so_long_ago() {
        for (text, day) in [
            ("2026-11-21", 20_778),
            ("2026-11", 20_758),
            ("7d", 20_771),
            ("12h", 20_778),
        ] {
            let since = parse_since(text).expect(text);
            assert_eq!(since.day(20_778), day, "{text}");
        }
        let in_ms = |text: &str| parse_since(text).expect(text).in_ms(20_778 * DAY_MS);
        assert_eq!(in_ms("1d"), 20_777 * DAY_MS);
        assert_eq!(in_ms("2026-11"), 20_758 * DAY_MS);
        assert_eq!(in_ms("9999w"), 0);
        for wrong in ["", "2026-13-01", "2025-02-29", "yesterday", "7", "-1d"] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }
}
