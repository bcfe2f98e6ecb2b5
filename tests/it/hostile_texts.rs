//! Names and texts that somebody chose to do harm, and what no output may do with them.

/// For names of programs, kernels, files, options and variables, and for sources. None has a NUL or a slash, so that each can be
/// a file's name.
pub const HOSTILE: [&[u8]; 16] = [
    b"it's \"quoted\" `twice` \\and\\ not\\",
    b"two\nlines\r\nor three",
    b"\x1b[2J\x1b[31mred\x1b]0;title\x07",
    b"<script>alert(1)<.script><b onload='x'>&amp;&#60;",
    b"]]>--><!--<?x?>",
    "\u{202e}reversed\u{202c} \u{2066}isolated\u{2069} \u{200f}".as_bytes(),
    "c1 controls \u{9b}31m \u{85} and \u{2028}separators\u{2029}".as_bytes(),
    b"not UTF-8: \xff\xfe \xc3( \xed\xa0\x80",
    b"$(touch pwned) `touch pwned` ; touch pwned & | > pwned",
    b"--help",
    b"-rf ~ *",
    b"%s%n%d {} {0}",
    b"key = \"value\" # '''",
    b" leading and trailing \t ",
    b"..",
    "wide 漢字 and combined e\u{301} and 👩‍👩‍👧".as_bytes(),
];

/// What is shown to a person or a program is UTF-8 and has no character that a terminal obeys or that hides others.
#[track_caller]
pub fn assert_plain(output: &[u8]) {
    let text = std::str::from_utf8(output).expect("UTF-8");
    let obeyed = |character: &char| match *character {
        '\n' => false,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    };
    let found: Vec<char> = text.chars().filter(obeyed).collect();
    assert!(found.is_empty(), "{found:?} in {}", text.escape_debug());
}
