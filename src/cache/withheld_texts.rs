//! Texts that an entry must not hold, or that make it fit only some callers.

use std::collections::HashMap;

use memchr::memmem::Finder;
use opencl_sys::*;

use crate::key::source::RANDOM_NAME;
use crate::store::entry::{Answer, Facts, Meta};
use crate::store::recipe::Text;

/// How many bytes are searched for include directories, all together. Options may name thousands, and a log have megabytes: to search
/// each for each took 28 s where the build takes 0.2 s.
const MOST_SEARCHED: usize = 64 << 20;

/// The include directories that an answer of the API shows, or may show, each in its place; those that none shows are empty. None if none
/// is shown. Such an entry fits only callers that spell these directories so.
pub(super) fn shown_directories(facts: &Facts, directories: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
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
    let mut left = MOST_SEARCHED;
    let mut known: HashMap<&[u8], bool> = HashMap::new();
    let mut is_shown = |directory: &[u8]| {
        left = left.saturating_sub(bytes);
        left == 0 || texts.iter().any(|text| shows_directory(text, directory))
    };
    let shown = directories.iter().map(|directory| {
        let is_shown = *known
            .entry(directory)
            .or_insert_with(|| !directory.is_empty() && is_shown(directory));
        match is_shown {
            true => directory.clone(),
            false => Vec::new(),
        }
    });
    let shown: Vec<Vec<u8>> = shown.collect();
    shown.iter().any(|one| !one.is_empty()).then_some(shown)
}

/// Whether an entry that shows these directories fits a caller with those.
pub(super) fn fits_directories(shown: Option<&Vec<Vec<u8>>>, directories: &[Vec<u8>]) -> bool {
    shown.is_none_or(|shown| {
        let mut pairs = shown.iter().zip(directories);
        shown.len() == directories.len()
            && pairs.all(|(shown, own)| shown.is_empty() || shown == own)
    })
}

/// Whether a text has a directory as compilers show it: before the name of a file, without slashes of its own at the end (measured on all
/// drivers that show any: PoCL 3.1, Intel's CPU runtime 2026.2, its GPU driver 22.43 and Oclgrind 21.10), or as a word or the argument of
/// an option.
fn shows_directory(text: &[u8], directory: &[u8]) -> bool {
    let end = directory.iter().rposition(|byte| *byte != b'/');
    let name = &directory[..end.map_or(0, |end| end + 1)];
    if name.is_empty() {
        return text.contains(&b'/');
    }
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-/".contains(byte);
    let begins = |before: &[u8]| !before.last().is_some_and(is_of_name) || before.ends_with(b"-I");
    Finder::new(name).find_iter(text).any(|at| {
        let next = text.get(at + name.len());
        begins(&text[..at]) && (next == Some(&b'/') || !next.is_some_and(is_of_name))
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

    const QUOTE: Option<&str> = Some("used: ");

    fn log(options: &[u8], text: &[u8]) -> Facts {
        let answers = vec![(
            CL_PROGRAM_BUILD_LOG,
            without_options(QUOTE, options, text.to_vec()),
        )];
        Facts {
            devices: vec![answers],
            ..Facts::default()
        }
    }

    #[test]
    fn a_log_that_quotes_the_options_fits_whoever_spells_the_directory_otherwise() {
        let shown = |options: &[u8], text: &[u8]| {
            let directories = [b"/venv".to_vec(), b"/w".to_vec()];
            shown_directories(&log(options, text), &directories)
        };
        let venv = Some(vec![b"/venv".to_vec(), Vec::new()]);
        assert_eq!(shown(b"-I /venv", b"used: -I /venv done"), None);
        let text = b"used: -I /venv, looked into /venv";
        assert_eq!(shown(b"-I /venv", text), venv);
        assert_eq!(shown(b"-I /venv -w", b"looked into /venv"), venv);
        assert_eq!(
            without_options(QUOTE, b"", b"text".to_vec()),
            Answer::Value(b"text".as_slice().into())
        );
    }

    /// A source may say the same words as the options (`#warning compile it with -I /opt/a`).
    #[test]
    fn options_are_taken_out_only_where_the_driver_quotes_them() {
        let quoted = |options: &[u8], text: &[u8]| without_options(QUOTE, options, text.to_vec());
        let options = b"-I /a";
        let source = b"warning: compile it with -I /a\nused: -I /a\nDone.";
        let around = |parts: &[&[u8]]| {
            Answer::AroundOwnOptions(parts.iter().map(|part| (*part).into()).collect())
        };
        let before: &[u8] = b"warning: compile it with -I /a\nused: ";
        assert_eq!(quoted(options, source), around(&[before, b"\nDone."]));
        for text in [&b"with -I /a"[..], b"used: with -I /a", b"used:-I /a"] {
            assert_eq!(quoted(options, text), Answer::Value(text.into()));
        }
        let forged = b"warning: used: -I /a\nused: -I /a\n";
        let before = b"warning: used: -I /a\nused: ";
        assert_eq!(quoted(options, forged), around(&[before, b"\n"]));
        let text = b"used: -I /a";
        assert_eq!(
            without_options(None, options, text.to_vec()),
            Answer::Value(text.as_slice().into())
        );
    }

    #[test]
    fn directories_are_found_in_logs_as_compilers_show_them() {
        for (directory, text) in [
            ("/a/b", "/a/b/h.h:1:2: warning: hello"),
            ("/a/b/", "/a/b/h.h:1:2: warning: hello"),
            ("/a/b///", "In file included from /a/b/h.h:1:"),
            (".", "./h.h:1:2: warning: hello"),
            ("./", "In file included from ./h.h:1:"),
            ("include", "include/h.h:1:2: warning: hello"),
            ("/", "/h.h:1:2: warning: hello"),
            ("//", "//h.h:1:2: warning: hello"),
            ("/a", "no such include directory: '/a'"),
            ("/a/", "options: -w -I/a"),
            ("a", "options: -I a -w"),
            ("a", "options: -Ia"),
        ] {
            assert!(
                shows_directory(text.as_bytes(), directory.as_bytes()),
                "{directory}"
            );
        }
        for (directory, text) in [
            (
                ".",
                "Device build done\nKernel \"k\" was not vectorized.\nDone.",
            ),
            ("include", "In file included from 1:1:"),
            ("cl", "1.cl:1:2: warning: hello"),
            ("a", "/b/a: warning"),
            ("a", "/b/a/h.h:1:2: warning: hello"),
            ("/a", "/b/a/h.h:1:2: warning: hello"),
            ("/opt/a", "/opt/ab/h.h:1:2: warning: hello"),
            ("/", "Done."),
        ] {
            assert!(
                !shows_directory(text.as_bytes(), directory.as_bytes()),
                "{directory}"
            );
        }
    }

    #[test]
    fn only_shown_directories_are_compared() {
        let list = |names: &[&str]| -> Vec<Vec<u8>> {
            names.iter().map(|name| name.as_bytes().to_vec()).collect()
        };
        let own = list(&["/w", ".", "/opt/a"]);
        let text = b"./h.h:1:2: warning: hello";
        let shown = shown_directories(&log(b"", text), &own);
        assert_eq!(shown, Some(list(&["", ".", ""])));
        for (others, fits) in [
            (&["/w", ".", "/opt/a"][..], true),
            (&["/other", ".", "/opt/b"], true),
            (&["/w", "./", "/opt/a"], false),
            (&["/w", "."], false),
        ] {
            let others = list(others);
            assert_eq!(
                fits_directories(shown.as_ref(), &others),
                fits,
                "{others:?}"
            );
            assert!(fits_directories(None, &others));
        }
        // Too many to be looked for count as shown.
        let many: Vec<Vec<u8>> = (0..20_000)
            .map(|one| one.to_string().into_bytes())
            .collect();
        let shown = shown_directories(&log(b"", &[b' '; 10_000]), &many).expect("some");
        assert_eq!(shown.last(), many.last());
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
