//! Writes the headers of an entry as a tree in which a compiler finds them.
//!
//! ```text
//! headers/files/home/u/src/a.h    a file, by its original path
//! headers/embedded/a.h            a header for clCompileProgram, by the name in #include
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::names::{below, safe};
use crate::key::options;
use crate::log::text;
use crate::store::recipe::{Header, HeaderContent, StoredRecipe};

const FILES: &str = "headers/files";
const EMBEDDED: &str = "headers/embedded";

/// How a program is compiled in the tree.
pub struct Headers {
    /// The working directory, relative to the top of the tree.
    pub working_directory: PathBuf,
    /// The options; None is NULL.
    pub options: Option<Vec<u8>>,
    /// Embedded headers: name, and file relative to the top of the tree.
    pub embedded: Vec<(Vec<u8>, PathBuf)>,
    /// Messages about what differs.
    pub lacking: Vec<String>,
}

/// Writes all headers of a recipe.
///
/// # Errors
/// A file cannot be written.
pub fn write(top: &Path, recipe: &StoredRecipe) -> io::Result<Headers> {
    let mut headers = Headers {
        working_directory: PathBuf::from("."),
        options: recipe.options.as_ref().map(|options| options.to_vec()),
        embedded: Vec::new(),
        lacking: Vec::new(),
    };
    for Header { name, source } in recipe.operation.headers() {
        let name = name.to_bytes();
        let file = Path::new(EMBEDDED).join(below(name));
        write_file(top, &file, source, &mut headers.lacking)?;
        headers.embedded.push((name.to_vec(), file));
    }
    let Some(theirs) = &recipe.working_directory else {
        return Ok(headers);
    };
    headers.working_directory = Path::new(FILES).join(below(theirs));
    fs::create_dir_all(top.join(&headers.working_directory))?;
    for (index, file) in recipe.files.iter().enumerate() {
        if file.place.starts_with(b"/") {
            let words = format!(
                "`{}` is included by its absolute path, so the file of this machine is read",
                text(&file.place)
            );
            headers.lacking.push(words);
        }
        let changed = file
            .path
            .split(|byte| *byte == b'/')
            .find(|part| !matches!(*part, b"" | b"." | b"..") && safe(part).as_bytes() != *part);
        if let Some(part) = changed {
            let words = format!("`{}` is called `{}` here", text(part), safe(part));
            headers.lacking.push(words);
        }
        if let Some(content) = content(recipe, index) {
            let place = Path::new(FILES).join(below(&file.path));
            write_file(top, &place, content, &mut headers.lacking)?;
        }
    }
    let Some(written) = &headers.options else {
        return Ok(headers);
    };
    let Ok(parsed) = options::parse(written) else {
        return Ok(headers);
    };
    if parsed.include_dirs.is_empty() {
        return Ok(headers);
    }
    // Relative to the working directory, so that the tree can be moved.
    let depth = below(theirs).components().count();
    let up = "../".repeat(depth);
    let mut ours = Vec::new();
    for directory in &parsed.include_dirs {
        let theirs = Path::new(OsStr::from_bytes(theirs)).join(OsStr::from_bytes(directory));
        let place = below(theirs.as_os_str().as_bytes());
        fs::create_dir_all(top.join(FILES).join(&place))?;
        ours.push([up.as_bytes(), place.as_os_str().as_bytes()].concat());
    }
    let has_blanks = ours.iter().any(|directory| directory.contains(&b' '));
    match parsed.respelled(&ours).filter(|_| !has_blanks) {
        Some(options) => headers.options = Some(options),
        None => headers.lacking.push(
            "the include directories in the options cannot be replaced, so those of this machine are read".to_owned(),
        ),
    }
    Ok(headers)
}

/// The content of a header.
fn content(recipe: &StoredRecipe, index: usize) -> Option<&[u8]> {
    match &recipe.files.get(index)?.content {
        HeaderContent::Text(text) => Some(text),
        HeaderContent::SameAs { file, .. } if (*file as usize) < index => {
            content(recipe, *file as usize)
        }
        HeaderContent::SameAs { .. } => None,
    }
}

/// Writes a file, unless its name is in use.
fn write_file(
    top: &Path,
    file: &Path,
    content: &[u8],
    lacking: &mut Vec<String>,
) -> io::Result<()> {
    let path = top.join(file);
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = made.and_then(|()| fs::write(&path, content));
    match written {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::IsADirectory
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::AlreadyExists
            ) =>
        {
            lacking.push(format!(
                "`{}` is missing, since another file has its name",
                crate::log::path(file)
            ));
            Ok(())
        }
        written => written,
    }
}
