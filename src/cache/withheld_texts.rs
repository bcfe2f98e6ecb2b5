//! Texts that an entry must not hold, or that make it fit only some callers.

use std::collections::HashSet;

use memchr::memmem::Finder;
use opencl_sys::*;

use crate::key::source::RANDOM_NAME;
use crate::store::entry::{Answer, Facts, Meta};
use crate::store::recipe::Text;

/// How many bytes are searched for include directories, all together. Options may name thousands, and a log have megabytes: to search
/// each for each took 28 s where the build takes 0.2 s.
const MOST_SEARCHED: usize = 64 << 20;

/// Whether an answer of the API quotes an include directory, or may do so. Such an entry fits only callers that spell the directory so.
pub(super) fn shows_directories(facts: &Facts, directories: &[Vec<u8>]) -> bool {
    let texts = facts
        .devices
        .iter()
        .flatten()
        .flat_map(|(_, answer)| match answer {
            Answer::Value(value) => std::slice::from_ref(value),
            Answer::AroundOwnOptions(parts) => parts.as_slice(),
            _ => &[],
        });
    let texts: Vec<&Text> = texts.collect();
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    let directories: HashSet<&[u8]> = directories.iter().map(Vec::as_slice).collect();
    let mut directories = directories
        .into_iter()
        .filter(|directory| !directory.is_empty());
    let mut left = MOST_SEARCHED;
    directories.any(|directory| {
        left = left.saturating_sub(bytes);
        let find = Finder::new(directory);
        left == 0 || texts.iter().any(|text| find.find(text).is_some())
    })
}

/// Removes texts that could show a private source, and texts that quote a random name, which differs in each program. If an
/// application asks for such a text, the driver builds the program for real.
pub(super) fn withhold_texts(facts: &mut Facts, private: bool) {
    for (name, answer) in facts.devices.iter_mut().flatten() {
        let is_text = matches!(*name, CL_PROGRAM_BUILD_LOG | CL_PROGRAM_BUILD_OPTIONS);
        let (has_words, texts) = match &*answer {
            Answer::Value(value) => (value.len() > 1, std::slice::from_ref(value)),
            Answer::AroundOwnOptions(parts) => (true, parts.as_slice()),
            _ => (false, &[][..]),
        };
        let is_random = texts.iter().any(|text| {
            let mut windows = text.windows(RANDOM_NAME.len());
            windows.any(|window| window == RANDOM_NAME)
        });
        if is_text && (private && has_words || is_random) {
            *answer = Answer::Withheld;
        }
    }
}

/// The metadata of an entry as if it was recorded with private texts, and without its include directories: logs that could show
/// those are removed.
pub(super) fn without_texts(mut meta: Meta) -> Meta {
    withhold_texts(&mut meta.facts, true);
    let own = |options: Vec<u8>| match crate::key::options::parse(&options) {
        Ok(parsed) => {
            let numbers =
                (0..parsed.include_dirs.len()).map(|index| format!("I{index}").into_bytes());
            let respelled = parsed.respelled(&numbers.collect::<Vec<_>>());
            let respelled = respelled.and_then(|text| crate::key::options::parse(&text).ok());
            respelled.map(|options| options.private())
        }
        Err(_) => None,
    };
    meta.options = meta
        .options
        .map(|options| own(options).unwrap_or_else(|| b"not stored".to_vec()));
    meta.include_dirs = None;
    meta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::facts::without_options;

    fn log(options: &[u8], text: &[u8]) -> Facts {
        let answers = vec![(
            CL_PROGRAM_BUILD_LOG,
            without_options(options, text.to_vec()),
        )];
        Facts {
            devices: vec![answers],
            ..Facts::default()
        }
    }

    #[test]
    fn a_log_that_quotes_the_options_fits_whoever_spells_the_directory_otherwise() {
        let directories = [b"/venv".to_vec()];
        assert!(!shows_directories(
            &log(b"-I /venv", b"used: -I /venv done"),
            &directories
        ));
        assert!(shows_directories(
            &log(b"-I /venv", b"used: -I /venv, looked into /venv"),
            &directories
        ));
        assert!(shows_directories(
            &log(b"-I /venv -w", b"looked into /venv"),
            &directories
        ));
        assert_eq!(
            without_options(b"", b"text".to_vec()),
            Answer::Value(b"text".as_slice().into())
        );
    }

    #[test]
    fn no_word_of_a_log_is_kept_where_texts_are_private() {
        let mut facts = log(b"-DX=secret", b"used: -DX=secret, warning: about secret");
        withhold_texts(&mut facts, true);
        assert_eq!(facts.devices[0][0].1, Answer::Withheld);
    }

    #[test]
    fn a_log_that_quotes_a_random_name_is_not_kept() {
        let kept = |text: &[u8]| {
            let mut facts = log(b"", text);
            withhold_texts(&mut facts, false);
            facts.devices[0][0].1 != Answer::Withheld
        };
        assert!(kept(b"warning: unused variable 'x'"));
        assert!(!kept(
            b"warning: unused variable 'pyopencl_defeat_cache_00'"
        ));
    }
}
