//! Makes names of files from names that programs chose.

use std::path::PathBuf;

use crate::log::is_plain;

/// The length of a name, in bytes; file systems allow 255.
const MAX_BYTES: usize = 200;

/// A name for a file or directory: the given one if it is harmless, otherwise with `%` and two hexadecimal digits for each other byte.
pub fn safe(name: &[u8]) -> String {
    let is_special = matches!(name, b"" | b"." | b"..");
    let text = String::from_utf8_lossy(name);
    let is_harmless = |character: char| {
        is_plain(character)
            && !character.is_control()
            && !matches!(character, '/' | '%' | '\u{fffd}')
    };
    let mut safe = String::new();
    if is_special
        || name.len() > MAX_BYTES
        || !text.chars().all(is_harmless)
        || name.starts_with(b"-")
    {
        let plain = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b' ' | b'+' | b',' | b'=')
        };
        for (index, byte) in name.iter().enumerate() {
            let is_kept =
                plain(*byte) || *byte == b'-' && index > 0 || *byte == b'.' && !is_special;
            match is_kept {
                true => safe.push(*byte as char),
                false => safe += &format!("%{byte:02x}"),
            }
        }
        safe.truncate(MAX_BYTES);
        if safe.is_empty() {
            safe.push('%');
        }
        return safe;
    }
    text.into_owned()
}

/// A path of another machine as a path below a directory. It never leads out.
pub fn below(path: &[u8]) -> PathBuf {
    let mut parts: Vec<String> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(safe(part)),
        }
    }
    parts.iter().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_are_kept_where_they_are_harmless_and_lead_nowhere_else() {
        assert_eq!(safe(b"part.h"), "part.h");
        assert_eq!(safe("\u{6f22} e.h".as_bytes()), "\u{6f22} e.h");
        assert_eq!(safe(b".."), "%2e%2e");
        assert_eq!(safe(b"-rf"), "%2drf");
        assert_eq!(safe(b"a\nb/c"), "a%0ab%2fc");
        assert_eq!(safe(b"\xff.h"), "%ff.h");
        assert_eq!(safe(b""), "%");
        assert!(safe(&[b'x'; 4096]).len() <= MAX_BYTES);
        assert_ne!(safe(b"a%0a"), safe(b"a\n"));
        assert_eq!(
            below(b"/home/u/../v/./inc/a.h"),
            Path::new("home/v/inc/a.h")
        );
        assert_eq!(below(b"../../../etc/passwd"), Path::new("etc/passwd"));
        assert_eq!(below(b"/"), Path::new(""));
    }
}
