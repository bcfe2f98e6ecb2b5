//! Compares build options word by word.

use sha2::{Digest, Sha256};

use super::difference::Difference;
use crate::key::ingredients::hex;
use crate::key::options;
use crate::log::text;

/// Replaces an include directory in the options that enter the key.
const MARK: &[u8] = b"\0I";

/// The differences of options. None is NULL.
pub fn option_differences(before: Option<&[u8]>, after: Option<&[u8]>) -> Vec<Difference> {
    let texts = [before, after].map(Option::unwrap_or_default);
    let marked = |word: &[u8]| word.windows(MARK.len()).any(|window| window == MARK);
    let mut pairs = changed_words(texts.map(keyed));
    if pairs.is_empty() || pairs.iter().flatten().flatten().any(|word| marked(word)) {
        // The number of include directories changed, or the driver's key has them: show their names.
        pairs = changed_words(texts.map(<[u8]>::to_vec));
    }
    let words = pairs
        .iter()
        .map(|[before, after]| difference(before.as_deref(), after.as_deref()));
    match pairs.is_empty() {
        true => vec![same_words(before, after)],
        false => words.collect(),
    }
}

/// The words that only one of the two texts has, paired by name.
fn changed_words(texts: [Vec<u8>; 2]) -> Vec<[Option<Vec<u8>>; 2]> {
    let [mut old, mut new] = texts.map(|text| words(&text));
    let equal = |old: &[u8], new: &[u8]| old == new || digested(old) == digested(new);
    old.retain(|word| match new.iter().position(|new| equal(word, new)) {
        Some(at) => {
            new.remove(at);
            false
        }
        None => true,
    });
    let mut pairs = Vec::new();
    for word in old {
        let successor = new.iter().position(|new| name(new) == name(&word));
        let successor = successor.map(|at| new.remove(at));
        pairs.push([Some(word), successor]);
    }
    pairs.extend(new.into_iter().map(|word| [None, Some(word)]));
    pairs
}

/// The difference if the words are the same: order, blanks, or an empty text and NULL.
fn same_words(before: Option<&[u8]>, after: Option<&[u8]>) -> Difference {
    let shown = |options: Option<&[u8]>| match options {
        Some(options) => format!("`{}`", text(options)),
        None => "NULL".to_owned(),
    };
    let what = match (before, after) {
        (Some(_), Some(_)) => "order or spacing of options:",
        _ => "options",
    };
    let [before, after] = [before, after].map(shown);
    Difference {
        kind: "options".into(),
        name: String::new(),
        words: format!("{what} {before} became {after}"),
        before: Some(before),
        after: Some(after),
    }
}

/// What enters the key, with a mark for each include directory.
fn keyed(written: &[u8]) -> Vec<u8> {
    let parsed = options::parse(written);
    parsed.map_or_else(|_| written.to_vec(), |options| options.normalized)
}

/// The words, each option together with its argument.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let blank = |byte: &u8| byte.is_ascii_whitespace();
    let words = text.split(blank).filter(|word| !word.is_empty());
    let mut joined: Vec<Vec<u8>> = Vec::new();
    for word in words {
        match joined.last_mut() {
            Some(letter) if matches!(letter.as_slice(), b"-D" | b"-U" | b"-I" | b"-x") => {
                letter.extend(word);
            }
            _ => joined.push(word.to_vec()),
        }
    }
    joined
}

/// The name of an option, without its value.
fn name(word: &[u8]) -> &[u8] {
    word.split(|byte| *byte == b'=').next().unwrap_or(word)
}

/// A definition with the digest of its value, since only one of two may be stored so (`store_source`).
fn digested(word: &[u8]) -> Vec<u8> {
    match word.iter().position(|byte| *byte == b'=') {
        Some(at) if word.starts_with(b"-D") && !word[at + 1..].starts_with(b"sha256:") => {
            let digest = hex(&Sha256::digest(&word[at + 1..])[..8]);
            [&word[..=at], b"sha256:", digest.as_bytes()].concat()
        }
        _ => word.to_vec(),
    }
}

fn difference(before: Option<&[u8]>, after: Option<&[u8]>) -> Difference {
    let shown = |word: &[u8]| text(word).to_string();
    let [was, is] = [before, after].map(|word| word.map(shown));
    let words = match (&was, &is) {
        (Some(was), Some(is)) => format!("option {was} became {is}"),
        (Some(was), None) => format!("option {was} was removed"),
        (None, is) => format!("option {} was added", is.as_deref().unwrap_or_default()),
    };
    let named = name(after.or(before).unwrap_or_default());
    Difference {
        kind: "options".into(),
        name: shown(named),
        before: was,
        after: is,
        words,
    }
}
