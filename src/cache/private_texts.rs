//! Entries without texts that authors or users of programs may want to keep private: for `oclcache export --no-source`, and for the
//! store that machines share unless `remote_content` is `all`.

use std::collections::BTreeSet;
use std::path::Path;

use memchr::memmem;
use opencl_sys::CL_PROGRAM_BUILD_LOG;

use super::withheld_texts::without_texts;
use crate::key::ingredients::Kind;
use crate::key::options;
use crate::store::entry::{Answer, Entry, Facts, Meta};
use crate::store::recipe::{HeaderContent, StoredRecipe};

/// How many of the longest lines of a text are searched for.
const MAX_LINES: usize = 32;
/// Shorter lines occur anywhere.
const MIN_LINE_BYTES: usize = 20;
/// Directories in which a path tells nothing about a user.
const SHARED: [&[u8]; 4] = [b"/tmp/", b"/var/tmp/", b"/var/cache/", b"/dev/shm/"];

/// Shorter lines and values occur in any build log.
const MIN_QUOTED_BYTES: usize = 3;

/// Which build logs stay in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildLogs {
    /// Only those without any text stay.
    Withheld,
    /// Those stay that quote no source line, path or value of a macro. Without its log, an entry gains nothing for a program that
    /// asks for the log after each build, as OpenMM does.
    Harmless,
}

/// The metadata without private texts.
///
/// # Errors
/// Why the entry cannot be exported: what its key or binaries would disclose.
pub fn without_secrets(entry: &Entry, logs: BuildLogs) -> Result<Meta, &'static str> {
    if entry.is_pending() {
        return Err("recipes, which need their source");
    }
    let ingredients = &entry.meta.ingredients;
    for one in ingredients {
        match one.kind {
            Kind::Environment => return Err("entries whose keys contain the value of a variable"),
            Kind::WorkingDirectory => {
                return Err("entries whose keys contain a directory (option `-g`)");
            }
            // A place in an include directory begins with the number of the directory.
            Kind::Include | Kind::Header if one.name.starts_with('/') => {
                return Err("entries that include a file by its absolute path");
            }
            _ => {}
        }
    }
    let Ok(recipe) = entry.recipe() else {
        return Err("entries that were stored without their source: their binaries may quote it");
    };
    let secrets = secrets(&entry.meta, &recipe);
    let library = Path::new(&entry.meta.driver_library).file_name();
    let mut meta = Meta {
        driver_library: library.unwrap_or_default().to_string_lossy().into_owned(),
        ..without_texts(entry.meta.clone())
    };
    if logs == BuildLogs::Harmless {
        let quotable = quotable(&recipe);
        keep_logs(&mut meta.facts, &entry.meta.facts, |text| {
            !names_a_path(text) && !quotes(text, &secrets) && !quotes(text, &quotable)
        });
    }
    let encoded = postcard::to_stdvec(&meta).unwrap_or_default();
    let texts = || entry.binaries().chain([encoded.as_slice()]);
    let is_quoted = |secret: &[u8]| {
        let finder = memmem::Finder::new(secret);
        texts().any(|text| finder.find(text).is_some())
    };
    if secrets.iter().any(|secret| is_quoted(secret)) {
        return Err("entries whose binaries quote their source or name its directories");
    }
    // PoCL's binaries contain the path of a file in its own cache.
    let own = recipe.own_cache.as_deref();
    let is_anybodys = |own: &[u8]| SHARED.iter().any(|place| own.starts_with(place));
    if own.is_some_and(|own| !is_anybodys(own) && is_quoted(own)) {
        return Err(
            "entries whose binaries name the driver's own cache in a directory of yours; move it to one whose name others may know, such as /var/tmp/pocl-cache (POCL_CACHE_DIR), and compile them again",
        );
    }
    Ok(meta)
}

/// Puts build logs back that are harmless.
fn keep_logs(facts: &mut Facts, from: &Facts, is_harmless: impl Fn(&[u8]) -> bool) {
    for (answers, original) in facts.devices.iter_mut().zip(&from.devices) {
        for ((name, answer), (_, before)) in answers.iter_mut().zip(original) {
            let texts = match before {
                Answer::Value(text) => std::slice::from_ref(text),
                Answer::AroundOwnOptions(parts) => parts.as_slice(),
                _ => continue,
            };
            if *name == CL_PROGRAM_BUILD_LOG && texts.iter().all(|text| is_harmless(text)) {
                answer.clone_from(before);
            }
        }
    }
}

fn quotes(text: &[u8], secrets: &BTreeSet<Vec<u8>>) -> bool {
    secrets
        .iter()
        .any(|secret| memmem::find(text, secret).is_some())
}

/// Whether a text seems to have an absolute path.
fn names_a_path(text: &[u8]) -> bool {
    let starts = |at: usize| {
        let before = at.checked_sub(1).map(|before| text[before]);
        let is_inside = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'/');
        let next = text.get(at + 1);
        !is_inside && next.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._".contains(byte))
    };
    memchr::memchr_iter(b'/', text).any(starts)
}

/// What a build log may quote of a recipe: each line of its texts, and each value of a macro.
fn quotable(recipe: &StoredRecipe) -> BTreeSet<Vec<u8>> {
    let mut texts: Vec<&[u8]> = recipe.text().into_iter().collect();
    texts.extend(recipe.files.iter().filter_map(|file| match &file.content {
        HeaderContent::Text(text) => Some(&text[..]),
        HeaderContent::SameAs { .. } => None,
    }));
    let headers = recipe.operation.headers().iter();
    texts.extend(headers.map(|header| &header.source[..]));
    let lines = texts.into_iter().flat_map(|text| {
        let lines = text.split(|byte| *byte == b'\n');
        lines.map(<[u8]>::trim_ascii)
    });
    let options = recipe.options.as_deref().unwrap_or_default();
    let values = all_values(options);
    let all = lines.map(<[u8]>::to_vec).chain(values);
    let tells = |text: &Vec<u8>| {
        text.len() >= MIN_QUOTED_BYTES && text.iter().any(u8::is_ascii_alphanumeric)
    };
    all.filter(tells).collect()
}

/// Texts that must not occur in what is exported.
fn secrets(meta: &Meta, recipe: &StoredRecipe) -> BTreeSet<Vec<u8>> {
    let mut secrets = BTreeSet::new();
    for directory in meta.include_dirs.iter().flatten() {
        secrets.extend(path(directory));
    }
    secrets.extend(recipe.options.as_deref().into_iter().flat_map(values));
    let working_directory = recipe.working_directory.iter();
    secrets.extend(working_directory.filter_map(|text| path(text)));
    secrets.extend(recipe.text().into_iter().flat_map(lines));
    for file in recipe
        .files
        .iter()
        .filter(|file| !file.place.starts_with(b"driver"))
    {
        secrets.extend(path(&file.path));
        if let HeaderContent::Text(text) = &file.content {
            secrets.extend(lines(text));
        }
    }
    let headers = recipe.operation.headers().iter();
    secrets.extend(headers.flat_map(|header| lines(&header.source)));
    secrets
}

/// A path that tells something about a user.
fn path(bytes: &[u8]) -> Option<Vec<u8>> {
    let parts = bytes
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty());
    (bytes.starts_with(b"/") && !bytes.starts_with(b"/usr/") && parts.count() > 1)
        .then(|| bytes.to_vec())
}

/// The values of macros that would disclose options. Short ones, such as names of types, occur anywhere.
fn values(options: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut values = all_values(options);
    values.retain(|value| value.len() >= MIN_LINE_BYTES || path(value).is_some());
    values
}

/// The values of all macros, without quotes.
fn all_values(options: &[u8]) -> BTreeSet<Vec<u8>> {
    let Ok(parsed) = options::parse(options) else {
        return BTreeSet::new();
    };
    let definitions = parsed.definitions.iter();
    let values = definitions.filter_map(|one| one.splitn(2, |byte| *byte == b'=').nth(1));
    let is_quote = |byte: &u8| matches!(byte, b'"' | b'\'' | b'\\');
    let bare = values.map(|value| {
        let start = value.iter().position(|byte| !is_quote(byte)).unwrap_or(0);
        let end = value.iter().rposition(|byte| !is_quote(byte));
        value[start..end.map_or(start, |end| end + 1)].to_vec()
    });
    bare.collect()
}

/// The longest lines of a text, which would disclose it.
fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut lines: Vec<&[u8]> = lines.filter(|line| line.len() >= MIN_LINE_BYTES).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.len()));
    lines.truncate(MAX_LINES);
    lines.into_iter().map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_macros_the_paths_and_what_is_long_are_known_again() {
        let told = values(
            b"-DN=42 -DT=float4 -D DATA=/home/u/data -DNAME=\\\"/srv/x/y\\\" -DNOTE=a_note_that_is_rather_long -w",
        );
        let told: Vec<&[u8]> = told.iter().map(Vec::as_slice).collect();
        assert_eq!(
            told,
            [
                &b"/home/u/data"[..],
                b"/srv/x/y",
                b"a_note_that_is_rather_long"
            ]
        );
    }

    #[test]
    fn a_log_stays_only_if_it_quotes_no_line_value_or_path() {
        let quotable: BTreeSet<Vec<u8>> = [&b"float x = secret;"[..], b"eight"]
            .map(<[u8]>::to_vec)
            .into();
        let facts = |log: &str| Facts {
            devices: vec![vec![(
                CL_PROGRAM_BUILD_LOG,
                Answer::Value(log.as_bytes().into()),
            )]],
            ..Facts::default()
        };
        let withheld = Facts {
            devices: vec![vec![(CL_PROGRAM_BUILD_LOG, Answer::Withheld)]],
            ..Facts::default()
        };
        let kept = |log: &str| {
            let mut meta = withheld.clone();
            let is_harmless = |text: &[u8]| !names_a_path(text) && !quotes(text, &quotable);
            keep_logs(&mut meta, &facts(log), is_harmless);
            meta != withheld
        };
        assert!(kept(
            "Device build started\nKernel <k> was vectorized (8) and/or n/a\n"
        ));
        for told in [
            "warning:\n    float x = secret;\n",
            "N is eight",
            "in /home/u/a.cl",
            "<built>:1:/x",
            "/tmp",
            "file=/_x",
        ] {
            assert!(!kept(told), "{told}");
        }
    }
}
