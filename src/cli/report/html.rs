//! HTML elements. The page is also well-formed XML, so that tests can parse it strictly.

use std::fmt::Write;

use crate::log::text;

/// Escapes any bytes: the result has no markup, and no characters that reverse, hide or move others.
pub fn escaped(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for character in text(bytes).to_string().chars() {
        match character {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            // Not allowed in XML.
            '\u{fffe}' | '\u{ffff}' => shown.push('\u{fffd}'),
            other => shown.push(other),
        }
    }
    shown
}

/// A message. What is between backticks is code.
pub fn with_code(words: &str) -> String {
    let parts: Vec<&str> = words.split('`').collect();
    // Not a pair: the words may be somebody else's.
    if parts.len().is_multiple_of(2) {
        return escaped(words.as_bytes());
    }
    let parts = parts.into_iter().enumerate().map(|(index, part)| {
        let part = escaped(part.as_bytes());
        match index % 2 {
            0 => part,
            _ => format!("<code>{part}</code>"),
        }
    });
    parts.collect()
}

/// A name from elsewhere, isolated so that its direction does not affect the text beside it.
pub fn name(name: &str) -> String {
    match name {
        "" => "<i>unknown</i>".to_owned(),
        name => format!("<bdi>{}</bdi>", escaped(name.as_bytes())),
    }
}

/// A number with its exact value, as in `stats --json`. `of` is its name there.
pub fn number(of: &str, value: u64, shown: &str) -> String {
    format!(
        "<data class=\"{}\" value=\"{value}\">{}</data>",
        escaped(of.as_bytes()),
        escaped(shown.as_bytes())
    )
}

/// How a column of a table is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A name.
    Name,
    /// A number.
    Number,
    /// A number that is hidden on phones.
    Wide,
    /// A bar that is hidden on phones.
    Plot,
}

impl Cell {
    fn class(self) -> &'static str {
        match self {
            Cell::Name => "",
            Cell::Number => " class=\"n\"",
            Cell::Wide => " class=\"n w\"",
            Cell::Plot => " class=\"plot w\"",
        }
    }
}

/// A table with these headings. The cells are HTML.
pub fn table<const N: usize>(
    id: &str,
    heads: [(&str, Cell); N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut shown = format!("<table id=\"{id}\"><thead><tr>");
    for (head, cell) in heads {
        let _ = write!(shown, "<th scope=\"col\"{}>{head}</th>", cell.class());
    }
    shown += "</tr></thead><tbody>\n";
    for row in rows {
        shown += "<tr>";
        for (value, (_, cell)) in row.into_iter().zip(heads) {
            let _ = write!(shown, "<td{}>{value}</td>", cell.class());
        }
        shown += "</tr>\n";
    }
    shown + "</tbody></table>\n"
}

/// Base64 (RFC 4648, section 4).
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut shown = String::new();
    for part in bytes.chunks(3) {
        let byte = |index: usize| u32::from(part.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            match digit <= part.len() {
                true => shown.push(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63].into()),
                false => shown.push('='),
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_escaped_is_markup() {
        assert_eq!(
            escaped(b"<b onload='x'>&amp;\"\x1b[2J\xff"),
            "&lt;b onload=&#39;x&#39;&gt;&amp;amp;&quot;\\u{1b}[2J\\xff"
        );
    }

    #[test]
    fn what_is_between_backticks_is_code() {
        assert_eq!(
            with_code("run `oclcache bake <x>` now"),
            "run <code>oclcache bake &lt;x&gt;</code> now"
        );
        assert_eq!(with_code("a ` alone"), "a ` alone");
    }

    #[test]
    fn the_examples_of_the_standard_are_encoded() {
        for (bytes, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), encoded);
        }
    }
}
