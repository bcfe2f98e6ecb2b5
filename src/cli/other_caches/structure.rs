//! The layout of a cache's directory: patterns of names for each level. Only what matches is ever removed.

/// A file or directory in a cache.
pub struct Node {
    /// Whether a name matches.
    pub name: fn(&[u8]) -> bool,
    /// What such a name is.
    pub kind: FileKind,
}

/// What a name is.
#[derive(Clone, Copy)]
pub enum FileKind {
    /// A file whose name identifies the cache: no other program uses it.
    Own,
    /// A file whose name other programs may use, such as `index`.
    Common,
    /// A link that the cache makes itself. It is removed, never followed.
    Link,
    /// A directory with these nodes.
    Directory(&'static [Node]),
}

/// A file whose name identifies the cache.
pub const fn own(name: fn(&[u8]) -> bool) -> Node {
    let kind = FileKind::Own;
    Node { name, kind }
}

/// A file whose name other programs may use.
pub const fn common(name: fn(&[u8]) -> bool) -> Node {
    let kind = FileKind::Common;
    Node { name, kind }
}

/// A link that the cache makes itself.
pub const fn link(name: fn(&[u8]) -> bool) -> Node {
    let kind = FileKind::Link;
    Node { name, kind }
}

/// A directory.
pub const fn directory(name: fn(&[u8]) -> bool, below: &'static [Node]) -> Node {
    let kind = FileKind::Directory(below);
    Node { name, kind }
}

/// Any name.
pub fn any(_: &[u8]) -> bool {
    true
}

/// A digest of this many hexadecimal digits.
pub fn hex(name: &[u8], length: usize) -> bool {
    name.len() == length && is_hex(name)
}

/// Hexadecimal digits, at least one.
pub fn is_hex(name: &[u8]) -> bool {
    !name.is_empty()
        && name
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// The part of a name between a beginning and an end.
pub fn between<'a>(name: &'a [u8], before: &str, after: &str) -> Option<&'a [u8]> {
    name.strip_prefix(before.as_bytes())?
        .strip_suffix(after.as_bytes())
}

/// Whether a name has this beginning and end, with something in between.
pub fn like(name: &[u8], before: &str, after: &str) -> bool {
    between(name, before, after).is_some_and(|middle| !middle.is_empty())
}

/// Whether a name has one of these extensions.
pub fn has_extension(name: &[u8], extensions: &[&str]) -> bool {
    let dot = name.iter().rposition(|byte| *byte == b'.');
    dot.is_some_and(|dot| {
        dot > 0
            && extensions
                .iter()
                .any(|extension| &name[dot + 1..] == extension.as_bytes())
    })
}

/// Whether a name is one that mkstemp makes of `XXXXXX`.
pub fn is_random(name: &[u8]) -> bool {
    name.len() >= 6 && name.iter().all(u8::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_by_all_of_them() {
        assert!(hex(b"00ff", 4) && !hex(b"00fF", 4) && !hex(b"00ff0", 4) && !hex(b"", 0));
        assert!(like(b"a-x.bin", "a-", ".bin") && !like(b"a-.bin", "a-", ".bin"));
        assert!(has_extension(b"k.tar.so", &["so"]) && !has_extension(b".so", &["so"]));
        assert!(!has_extension(b"so", &["so"]) && !has_extension(b"k.so.old", &["so"]));
        assert!(is_random(b"iE8mvR") && !is_random(b"iE8mv") && !is_random(b"iE8-mvR"));
    }
}
