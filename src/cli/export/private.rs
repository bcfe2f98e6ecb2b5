//! Entries without texts that authors or users of programs may want to keep private (`--no-source`).

use std::collections::BTreeSet;
use std::path::Path;

use memchr::memmem;

use crate::cache::without_texts;
use crate::key::ingredients::Kind;
use crate::key::options;
use crate::store::entry::{Entry, Meta};
use crate::store::recipe::{HeaderContent, StoredRecipe};

/// How many of the longest lines of a text are searched for.
const MAX_LINES: usize = 32;
/// Shorter lines occur anywhere.
const MIN_LINE_BYTES: usize = 20;
/// Directories in which a path tells nothing about a user.
const SHARED: [&[u8]; 4] = [b"/tmp/", b"/var/tmp/", b"/var/cache/", b"/dev/shm/"];

/// The metadata without private texts.
///
/// # Errors
/// Why the entry cannot be exported: what its key or binaries would disclose.
pub fn without_secrets(entry: &Entry) -> Result<Meta, &'static str> {
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
    let meta = Meta {
        driver_library: library.unwrap_or_default().to_string_lossy().into_owned(),
        ..without_texts(entry.meta.clone())
    };
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
            "entries whose binaries name the driver's own cache in a directory of yours; move it below /tmp (PoCL: POCL_CACHE_DIR) and compile them again",
        );
    }
    Ok(meta)
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
    let Ok(parsed) = options::parse(options) else {
        return BTreeSet::new();
    };
    let definitions = parsed.definitions.iter();
    let values = definitions.filter_map(|one| one.splitn(2, |byte| *byte == b'=').nth(1));
    let is_quote = |byte: &u8| matches!(byte, b'"' | b'\'' | b'\\');
    let bare = values.map(|value| {
        let start = value.iter().position(|byte| !is_quote(byte)).unwrap_or(0);
        let end = value.iter().rposition(|byte| !is_quote(byte));
        &value[start..end.map_or(start, |end| end + 1)]
    });
    let told = bare.filter(|value| value.len() >= MIN_LINE_BYTES || path(value).is_some());
    told.map(<[u8]>::to_vec).collect()
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
}
