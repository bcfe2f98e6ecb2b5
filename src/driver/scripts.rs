//! What scripts in place of a driver's tools run and read: programs, files, and libraries that they have loaded.
//!
//! Which of these a script uses is not decided here: what its text names counts, of all variables as well. Names that it puts together
//! are not followed, and a script that puts together what the dynamic linker reads is refused. So is one of a language whose interpreter
//! reads files of its own first, and one that runs another shell or interpreter, which may.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::clang_driver::{Candidate, can_run};
use super::process_variables;
use super::real_paths::RealPaths;
use super::search_path::add_new;
use crate::regular_file;

/// A script that names more files than this is no linker's.
const MAX_FILES: usize = 128;
/// Paths in one text that are looked at.
const MAX_PATHS: usize = 1024;
/// A larger script is none that somebody wrote around a linker.
const MAX_SCRIPT_BYTES: u64 = 1 << 20;

/// The variables by which the dynamic linker finds libraries. Others take effect by their text, which is in the key.
const LINKER_VARIABLES: [&[u8]; 4] = [
    b"LD_LIBRARY_PATH",
    b"LD_PRELOAD",
    b"LD_AUDIT",
    b"LD_ORIGIN_PATH",
];
/// Options of the dynamic linker in place of these variables.
const LINKER_OPTIONS: [&[u8]; 3] = [b"--library-path", b"--preload", b"--audit"];
/// Shells that read no other files before a script than those of [`SHELL_FILES`], if they are no login shells.
const PLAIN_SHELLS: [&[u8]; 3] = [b"sh", b"bash", b"dash"];
/// Shells and other interpreters, which read files of their own for some options, or always (their manuals). Without the digits of a
/// version.
const INTERPRETERS: [&[u8]; 24] = [
    b"sh", b"bash", b"rbash", b"dash", b"ash", b"zsh", b"csh", b"tcsh", b"ksh", b"mksh", b"yash",
    b"posh", b"fish", b"busybox", b"toybox", b"python", b"pypy", b"perl", b"ruby", b"lua",
    b"tclsh", b"node", b"php", b"guile",
];
/// Variables that name a file which shells read first (bash(1), sh(1)).
pub const SHELL_FILES: [&str; 2] = ["BASH_ENV", "ENV"];

/// Tools, and what their scripts name.
pub struct ToolFiles {
    /// The files, with labels for the key.
    pub files: Vec<(String, PathBuf)>,
    /// Where libraries may be.
    pub directories: Vec<PathBuf>,
    /// The texts of the scripts.
    pub texts: Vec<Vec<u8>>,
}

/// Whether one of these scripts may read the variable: its text has the name as a word. HOME is read without its name, by `~`, by `cd`
/// and by libraries of other languages.
pub fn name_variable(texts: &[Vec<u8>], name: &[u8]) -> bool {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    texts.iter().any(|text| {
        let mut places = memmem::find_iter(text, name);
        name == b"HOME"
            || places.any(|at| {
                let (before, behind) = (text[..at].last(), text.get(at + name.len()));
                !before.is_some_and(is_of_name) && !behind.is_some_and(is_of_name)
            })
    })
}

/// These programs, and all that they name in turn if they are scripts: programs by path or by a name in the search path, files and
/// directories by path.
///
/// None: a file cannot be read, they name too many, or it is unknown which libraries they have loaded.
pub fn with_files_of_scripts(
    chosen: &[Candidate],
    variable: &dyn Fn(&str) -> Vec<u8>,
    real: &RealPaths,
) -> Option<ToolFiles> {
    let mut found = ToolFiles {
        files: (chosen
            .iter()
            .map(|one| (one.label.clone(), one.path.clone())))
        .collect(),
        directories: Vec::new(),
        texts: Vec::new(),
    };
    let mut seen: BTreeSet<PathBuf> = found.files.iter().map(|one| one.1.clone()).collect();
    let mut next = 0;
    loop {
        while let Some((_, path)) = found.files.get(next) {
            next += 1;
            let Some(text) = text_of(path)? else {
                continue;
            };
            if !is_of_plain_shell(&text) || runs_interpreter(&text) {
                tracing::warn!(
                    "a script in place of one of the driver's tools is no plain one of sh, bash or dash: nothing is cached"
                );
                return None;
            }
            if found.texts.is_empty() {
                let of_shells = shell_files(variable, real)?.into_iter();
                let of_shells = of_shells.filter(|one| seen.insert(one.1.clone()));
                found.files.extend(of_shells);
            }
            found.add_words(&text, &mut seen, real)?;
            found.texts.push(text);
        }
        let values = loaded_by(&found.texts, variable);
        let Some(values) = values else {
            tracing::warn!(
                "a script in place of one of the driver's tools puts together which libraries are loaded: nothing is cached"
            );
            return None;
        };
        let before = found.files.len();
        for value in values {
            found.add_words(&value, &mut seen, real)?;
        }
        if found.files.len() == before {
            return Some(found);
        }
    }
}

impl ToolFiles {
    /// Adds what a text names.
    fn add_words(
        &mut self,
        text: &[u8],
        seen: &mut BTreeSet<PathBuf>,
        real: &RealPaths,
    ) -> Option<()> {
        let mut paths = 0;
        for name in words(text) {
            let files = match name.is_absolute() {
                true => {
                    paths += 1;
                    if paths > MAX_PATHS {
                        return None;
                    }
                    // Also what is not there: it may come.
                    real.watch(&name);
                    let metadata = real.found(std::fs::metadata(&name));
                    if metadata.as_ref().is_some_and(std::fs::Metadata::is_dir) {
                        add_new(&mut self.directories, vec![name]);
                        continue;
                    }
                    let is_file = metadata.is_some_and(|metadata| metadata.is_file());
                    let is_used = is_file && (can_run(&name, real).is_some() || may_read(&name));
                    Vec::from_iter(is_used.then_some(name))
                }
                false => programs_in_path(&name, real),
            };
            let new = files.into_iter().filter(|path| seen.insert(path.clone()));
            self.files.extend(new.map(|path| {
                let name = path.file_name().unwrap_or_default();
                (name.to_string_lossy().into_owned(), path)
            }));
            if self.files.len() > MAX_FILES {
                return None;
            }
        }
        Some(())
    }
}

/// Whether one of [`PLAIN_SHELLS`] runs the script. A login shell reads other files first (measured: bash reads `~/.bash_profile`), and so
/// do interpreters of other languages.
fn is_of_plain_shell(text: &[u8]) -> bool {
    // The search for programs (execvp(3)) gives others to sh.
    let Some(rest) = text.strip_prefix(b"#!") else {
        return true;
    };
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or(rest);
    let words = line.split(u8::is_ascii_whitespace);
    let mut words = words.filter(|word| !word.is_empty());
    let mut shell = words.next().unwrap_or_default();
    if shell.ends_with(b"/env") {
        shell = words.next().unwrap_or_default();
    }
    PLAIN_SHELLS.contains(&file_name(shell)) && words.all(is_plain_option)
}

/// The lines of a script that are not comments, without the blanks before each; a first line with `#!` is one of them. A line that follows
/// a backslash is no comment, whatever it begins with; a comment does not go on.
fn code_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut goes_on = text.starts_with(b"#!");
    text.split(|byte| *byte == b'\n').filter_map(move |line| {
        let is_code = goes_on || !line.trim_ascii_start().starts_with(b"#");
        goes_on = is_code && line.ends_with(b"\\");
        is_code.then_some(line.trim_ascii_start())
    })
}

/// Whether a script may run another shell or interpreter. How it would run one is not looked at: options and variables make login shells.
/// `exec` with an option counts as well: `exec -l` makes a login shell of a program that is a shell under another name.
fn runs_interpreter(text: &[u8]) -> bool {
    let lines = code_lines(text).filter(|line| !line.starts_with(b"#!"));
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b";&|()<>\"'`${}=,\\".contains(byte);
    let words = lines.flat_map(|line| line.split(is_end));
    let mut before = &b""[..];
    words.filter(|word| !word.is_empty()).any(|word| {
        let name = file_name(word);
        let is_of_version = |byte: &u8| byte.is_ascii_digit() || b".-".contains(byte);
        let end = name.iter().rposition(|byte| !is_of_version(byte));
        let name = &name[..end.map_or(0, |end| end + 1)];
        let has_option = std::mem::replace(&mut before, word) == b"exec" && word[0] == b'-';
        has_option
            || name == b"SHELL"
            || INTERPRETERS
                .iter()
                .any(|one| name.eq_ignore_ascii_case(one))
    })
}

/// Whether a shell reads no other files for an option (bash(1)).
fn is_plain_option(option: &[u8]) -> bool {
    match option {
        [b'-', b'-', name @ ..] => ![&b"login"[..], b"init-file", b"rcfile"].contains(&name),
        [b'-', letters @ ..] => letters.iter().all(|letter| !b"il".contains(letter)),
        _ => false,
    }
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// A script of this user cannot read what this process may not.
fn may_read(path: &Path) -> bool {
    let opened = regular_file::open(path);
    !opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The programs of a name in the search path, up to the first that certainly runs (execvp(3)).
fn programs_in_path(name: &Path, real: &RealPaths) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let path = process_variables::value("PATH").unwrap_or_default();
    for directory in std::env::split_paths(&path) {
        real.watch(match directory.as_os_str().is_empty() {
            true => Path::new("."),
            false => &directory,
        });
        let path = directory.join(name);
        let Some(is_certain) = can_run(&path, real) else {
            continue;
        };
        found.push(path);
        if is_certain {
            break;
        }
    }
    found
}

/// The files that shells read before a script. None: a shell puts the name together.
fn shell_files(
    variable: &dyn Fn(&str) -> Vec<u8>,
    real: &RealPaths,
) -> Option<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for name in SHELL_FILES {
        let value = variable(name);
        if value.is_empty() {
            continue;
        }
        if value.iter().any(|byte| b"$`~\\".contains(byte)) {
            tracing::warn!(
                name,
                "this variable names a file that a script in place of one of the driver's tools reads, with an expansion: nothing is cached"
            );
            return None;
        }
        let path = PathBuf::from(OsStr::from_bytes(&value));
        if real.watch(&path).is_some() && may_read(&path) {
            found.push((name.to_owned(), path));
        }
    }
    Some(found)
}

/// The text of a file that a shell may read. `Some(None)`: a shell refuses it. None: it cannot be read, or is too large.
fn text_of(path: &Path) -> Option<Option<Vec<u8>>> {
    // What is no regular file has no text that stays.
    let (file, _) = regular_file::open(path).ok()??;
    let mut text = Vec::new();
    file.take(MAX_SCRIPT_BYTES + 1)
        .read_to_end(&mut text)
        .ok()?;
    // As bash tells a program from a script: by a NUL in the first line (general.c, check_binary_file).
    let start = &text[..text.len().min(80)];
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or(start);
    if line.contains(&0) || text.starts_with(b"!<arch>\n") || text.starts_with(b"\x7fELF") {
        return Some(None);
    }
    (text.len() as u64 <= MAX_SCRIPT_BYTES).then_some(Some(text))
}

/// The words of a text that could name programs, files or directories.
fn words(text: &[u8]) -> BTreeSet<PathBuf> {
    let is_of_a_name =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"._+-/".contains(byte) || *byte >= 0x80;
    let mut found = BTreeSet::new();
    for word in code_lines(text).flat_map(|line| line.split(|byte| !is_of_a_name(byte))) {
        // `-L/usr/lib` is an option with a path.
        let slash = word.iter().position(|byte| *byte == b'/');
        let name = match slash {
            Some(at) if word[0] == b'-' => &word[at..],
            Some(0) | None => word,
            Some(_) => continue,
        };
        if !name.is_empty() {
            found.insert(PathBuf::from(OsStr::from_bytes(name)));
        }
    }
    found
}

/// The values of variables by which these scripts choose the libraries that are loaded. None: they put a path together.
fn loaded_by(texts: &[Vec<u8>], variable: &dyn Fn(&str) -> Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = LINKER_VARIABLES.map(<[u8]>::to_vec).into();
    let mut values = Vec::new();
    for text in texts {
        for option in LINKER_OPTIONS {
            for at in memmem::find_iter(text, option) {
                let value = value_at(text[at + option.len()..].trim_ascii_start());
                add_references(value, &mut names)?;
            }
        }
    }
    let mut next = 0;
    while let Some(name) = names.get(next).cloned() {
        for text in texts {
            for value in assigned(text, &name)? {
                add_references(value, &mut names)?;
                if may_have_empty_part(value) {
                    let working = std::env::current_dir().ok()?;
                    values.push(working.as_os_str().as_bytes().to_vec());
                }
            }
        }
        // What the process has set is followed for these by itself.
        if next >= LINKER_VARIABLES.len() {
            let value = variable(str::from_utf8(&name).ok()?);
            if !value.is_empty() && !is_absolute_or_bare(&value) {
                return None;
            }
            values.push(value);
        }
        next += 1;
    }
    Some(values)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The values that a text gives to a variable. None: it may set the variable in another way.
fn assigned<'a>(text: &'a [u8], name: &[u8]) -> Option<Vec<&'a [u8]>> {
    let mut found = Vec::new();
    for line in code_lines(text) {
        for at in memmem::find_iter(line, name) {
            let (before, behind) = (&line[..at], &line[at + name.len()..]);
            if before.last().is_some_and(|byte| is_word(*byte))
                || behind.first().is_some_and(|byte| is_word(*byte))
            {
                continue;
            }
            let value = ["=", "+=", ":="]
                .iter()
                .find_map(|sign| behind.strip_prefix(sign.as_bytes()));
            if let Some(value) = value {
                // An array, or a comparison.
                if value.starts_with(b"(") {
                    return None;
                }
                // A value in quotes may go on behind the line.
                let rest = &text[value.as_ptr() as usize - text.as_ptr() as usize..];
                found.push(value_at(rest));
                continue;
            }
            let last = before.trim_ascii_end();
            let last = last.rsplit(u8::is_ascii_whitespace).next();
            let is_kept = before.ends_with(b"$")
                || before.ends_with(b"${")
                || [&b"export"[..], b"unset", b"-u"].contains(&last.unwrap_or_default());
            if !is_kept {
                return None;
            }
        }
    }
    Some(found)
}

/// The word with which a text begins, without the quotes around it.
fn value_at(text: &[u8]) -> &[u8] {
    let (text, end): (&[u8], &[u8]) = match text {
        [quote @ (b'"' | b'\''), rest @ ..] => (rest, std::slice::from_ref(quote)),
        _ => (text, b" \t\r\n;&|)"),
    };
    let end = text.iter().position(|byte| end.contains(byte));
    &text[..end.unwrap_or(text.len())]
}

fn parts(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| b":; \t\n".contains(byte))
}

/// Whether each part of a value is a whole path, or empty.
fn is_absolute_or_bare(value: &[u8]) -> bool {
    parts(value).all(|part| part.is_empty() || part[0] == b'/' && !part.contains(&b'$'))
}

/// A value with a separator before `${NAME:+:$NAME}`, and without those in it.
fn with_separators(value: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    let mut rest = value;
    while let [first, behind @ ..] = rest {
        let begins = rest.strip_prefix(b"${").is_some_and(|name| {
            let length = name.iter().take_while(|byte| is_word(**byte)).count();
            name[length..].starts_with(b":+:")
        });
        if begins {
            found.push(b':');
        }
        let (byte, behind) = match rest.strip_prefix(b":+:") {
            Some(behind) => (b'+', behind),
            None => (*first, behind),
        };
        found.push(byte);
        rest = behind;
    }
    found
}

/// Whether a value of LD_LIBRARY_PATH may have an empty part, which is the working directory.
fn may_have_empty_part(value: &[u8]) -> bool {
    let value = with_separators(value);
    let is_bare = |part: &[u8]| part.is_empty() || part[0] == b'$' && !part.contains(&b'+');
    let parts: Vec<&[u8]> = parts(&value).collect();
    parts.len() > 1 && parts.into_iter().any(is_bare)
}

/// Adds the variables to which a value refers. None: it is neither whole paths nor whole variables.
fn add_references(value: &[u8], names: &mut Vec<Vec<u8>>) -> Option<()> {
    let value = with_separators(value);
    for part in parts(&value) {
        // `${NAME:+:$NAME}` and the like.
        let is_sign = |byte: &u8| b"+-=?{}\"'".contains(byte);
        let start = part.iter().position(|byte| !is_sign(byte));
        let part = &part[start.unwrap_or(part.len())..];
        match part.first() {
            None => continue,
            Some(b'$') if !part.contains(&b'/') => {}
            Some(b'/') if !part.iter().any(|byte| b"$`\\*?[".contains(byte)) => continue,
            Some(_) => return None,
        }
        for reference in part.split(|byte| *byte == b'$').skip(1) {
            let name = reference.strip_prefix(b"{").unwrap_or(reference);
            let length = name.iter().take_while(|byte| is_word(**byte)).count();
            let (name, rest) = name.split_at(length);
            if name.is_empty()
                || name[0].is_ascii_digit()
                || rest.iter().any(|byte| !b"}+-=?\"'".contains(byte))
            {
                return None;
            }
            if !names.iter().any(|known| known == name) {
                names.push(name.to_vec());
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_a_script_puts_together_are_refused() {
        let values = |text: &str| {
            let variable = |name: &str| match name {
                "SET" => b"/set".to_vec(),
                "ODD" => b"odd".to_vec(),
                _ => Vec::new(),
            };
            loaded_by(&[text.as_bytes().to_vec()], &variable)
        };
        for text in [
            "exec ld \"$@\"",
            "# sets LD_PRELOAD\nexec ld",
            "export LD_LIBRARY_PATH=/a/b:/c\nexec ld",
            "export LD_LIBRARY_PATH=\"/a${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"",
            "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-/a}; export LD_LIBRARY_PATH",
            "unset LD_PRELOAD",
            "env -u LD_PRELOAD ld",
            "A=/a\nexec env LD_PRELOAD=$A ld",
            "/lib/ld.so --library-path /a:/b /bin/ld",
            "MY_LD_PRELOAD=a OLD_PATH=b",
        ] {
            assert!(values(text).is_some(), "{text}");
        }
        for text in [
            "export LD_LIBRARY_PATH=$HOME/lib",
            "LD_LIBRARY_PATH=\"$(dirname $0)/lib\" ld",
            "LD_PRELOAD=`cat /a` ld",
            "LD_PRELOAD=a.so ld",
            "LD_LIBRARY_PATH=lib ld",
            "LD_PRELOAD=\"/a.so $B/b.so\" ld",
            "A=$B/a.so\nLD_PRELOAD=$A ld",
            "read A\nLD_PRELOAD=$A ld",
            "LD_PRELOAD=$1 ld",
            "LD_PRELOAD=$ODD ld",
            "os.environ[\"LD_PRELOAD\"] = path",
            "read LD_PRELOAD",
            "/lib/ld.so --library-path $A/lib /bin/ld",
            "LD_LIBRARY_PATH=/opt/$A/lib ld",
        ] {
            assert!(values(text).is_none(), "{text}");
        }
        let set = values("LD_PRELOAD=$SET ld").expect("followed");
        assert_eq!(set, [b"/set".to_vec()]);
    }

    #[test]
    fn words_are_names_and_whole_paths() {
        let found = words(b"exec /a/b -L/c \"$D/e\" f=/g h/i");
        let expected = ["-L", "/a/b", "/c", "/e", "/g", "D", "exec", "f"];
        let mut found: Vec<_> = found
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        found.sort();
        assert!(
            found
                .iter()
                .all(|word| expected.contains(&&**word) || word == "h/i")
        );
        assert!(found.contains(&"/c".to_owned()) && !found.contains(&"h/i".to_owned()));
    }

    #[test]
    fn comments_name_and_run_nothing() {
        let text = b"#!/bin/sh\n # see /a, it\\\nexec \\\n#/b\n\t# edit\n/c # /d\n";
        let found = words(text).into_iter();
        let found: Vec<_> = found.map(|path| path.display().to_string()).collect();
        assert_eq!(found, ["/b", "/bin/sh", "/c", "/d", "exec"]);
        for (text, runs) in [
            ("#!/bin/sh\n# runs perl\nexec \\\n  ld -l\n", false),
            ("#!/bin/sh\nexec rbash -l /ld\n", true),
            ("#!/bin/sh\nX=y\\\n#z; exec bash -l /ld\n", true),
            ("#!/bin/sh\nexec -l /proc/$$/exe /ld\n", true),
        ] {
            assert_eq!(runs_interpreter(text.as_bytes()), runs, "{text}");
        }
    }

    #[test]
    fn what_a_shell_refuses_is_no_text() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let text = |content: &[u8]| {
            let path = directory.path().join("file");
            std::fs::write(&path, content).expect("written");
            text_of(&path)
        };
        assert_eq!(text(b"A=/a\n"), Some(Some(b"A=/a\n".to_vec())));
        assert_eq!(text(b"\x7fELF\x02"), Some(None));
        assert_eq!(text(b"a\0b\n"), Some(None));
        assert_eq!(text(&b"a\n".repeat(1 << 20)), None);
    }
}
