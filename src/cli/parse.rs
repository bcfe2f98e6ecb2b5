//! Parsers of option values.

use std::time::Duration;

use crate::quantity;

/// A size in bytes.
///
/// # Errors
/// The text is not a size.
pub fn parse_size(text: &str) -> Result<u64, &'static str> {
    quantity::bytes(text).ok_or("expected a size such as 500M or 5Gi")
}

/// A time, such as an age.
///
/// # Errors
/// The text is not a time.
pub fn parse_age(text: &str) -> Result<Duration, &'static str> {
    quantity::duration(text).ok_or("expected a time such as 12h or 30d")
}
