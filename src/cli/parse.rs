//! Parsers of option values.

use std::time::Duration;

use crate::quantity;

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

/// The bytes of hexadecimal digits.
pub fn parse_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    digits.chunks(2).map(byte).collect()
}
