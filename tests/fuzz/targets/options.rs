//! The parser of build options.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oclcache_fuzz::key::options::parse;
use oclcache_fuzz::{in_linear_time, is_timed};

fuzz_target!(|options: &[u8]| {
    if options.contains(&0) {
        return; // where the text ends
    }
    let parsed = parse(options);
    assert_eq!(parsed, parse(options), "the same bytes, the same judgement");
    if is_timed(options) {
        in_linear_time(options, |large| drop(parse(large)));
    }
    let Ok(parsed) = parsed else {
        return;
    };
    if parsed.include_dirs.is_empty() || parsed.debug {
        assert_eq!(parsed.normalized, options, "nothing to leave out");
    }
    // The bytes of the options are a part of the key, but for what the mark stands for.
    let marks = parsed.normalized.windows(2).filter(|pair| *pair == b"\0I");
    assert!(marks.count() <= parsed.include_dirs.len());
    let private = parsed.private();
    for definition in &parsed.definitions {
        let Some(equals) = definition.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        // A value that is long enough to be no accident, and that holds nothing of a digest as one is shown: the fuzzer learns
        // those from comparisons.
        let value = &definition[equals + 1..];
        let in_digest = |byte: &u8| b"sha256:0123456789abcdef".contains(byte);
        if value.len() < 12 || value.windows(3).any(|part| part.iter().all(in_digest)) {
            continue;
        }
        let stands = |text: &[u8]| text.windows(value.len()).filter(|w| *w == value).count();
        assert!(
            !is_written(options, definition) || stands(&private) < stands(options),
            "a value is shown"
        );
    }
});

/// Whether this definition is written as a word of its own in every reading. Elsewhere the same bytes may be a part of a
/// directory's name, and a definition with quotes has a second form that may be written nowhere.
fn is_written(options: &[u8], definition: &[u8]) -> bool {
    let word = [b"-D", definition].concat();
    let mut starts = options.windows(word.len()).enumerate();
    starts.any(|(start, written)| {
        let before = &options[..start];
        let is_uncertain = |byte: &u8| b"\"'\\".contains(byte) || byte.is_ascii_control();
        written == word
            && before.last().is_none_or(|last| *last == b' ')
            && !before.iter().any(is_uncertain)
    })
}
