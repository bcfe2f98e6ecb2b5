//! The start-up files of shells, and our line in them.
//!
//! The line is the same for every user, so that a file that several machines or users share (dotfiles) stays the same, too. It tests
//! for the file that it reads, succeeds in any case, and prints nothing.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::replace_file::{directory_of, is_writable};
use crate::log::path;
use crate::regular_file;

/// The first line of each file that is ours.
pub const HEADER: &str = "# Written by `oclcache install`; `oclcache uninstall` removes it.";
/// Our line, without its end.
pub const LINE: &str = "[ ! -r \"$HOME/.local/lib/oclcache/profile.sh\" ] || . \"$HOME/.local/lib/oclcache/profile.sh\" # by `oclcache install`";
/// Larger files are not edited.
const MAX_BYTES: u64 = 1 << 20;
const BASH_LOGIN: [&str; 3] = [".bash_profile", ".bash_login", ".profile"];

/// Where our line is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinePosition {
    /// Before commands that end the file early for shells that are not interactive.
    First,
    /// After commands that choose drivers.
    Last,
}

/// A start-up file for our line.
#[derive(Debug, PartialEq, Eq)]
pub struct StartFile {
    pub file: PathBuf,
    pub position: LinePosition,
}

/// The start-up files of a shell by which login shells and ssh set the variables; None if the shell is not known.
///
/// bash reads one file in a login shell, and `.bashrc` for `ssh HOST COMMAND` (Debian and others build it so, with `SSH_SOURCE_BASHRC`;
/// tested with OpenSSH 9.2 and Debian's bash, zsh, fish and dash). zsh reads only
/// `.zshenv` in both cases. Other shells read nothing for `ssh HOST COMMAND`.
pub fn of_shell(shell: &str, home: &Path, zdotdir: Option<&Path>) -> Option<Vec<StartFile>> {
    let one = |file: PathBuf, position| StartFile { file, position };
    let last = |name: &str| one(home.join(name), LinePosition::Last);
    match shell {
        "bash" => {
            let is_readable =
                |name: &&str| matches!(regular_file::open(&home.join(name)), Ok(Some(_)));
            let login = BASH_LOGIN.into_iter().find(is_readable);
            let login = last(login.unwrap_or(".profile"));
            Some(vec![login, one(home.join(".bashrc"), LinePosition::First)])
        }
        "zsh" => {
            let of_home = home.join(".zshenv");
            // If it exists, it is the file that sets ZDOTDIR.
            let file = match zdotdir {
                Some(directory) if !of_home.exists() => directory.join(".zshenv"),
                _ => of_home,
            };
            Some(vec![one(file, LinePosition::First)])
        }
        "sh" | "dash" | "ash" | "busybox" | "ksh" | "ksh93" | "mksh" => {
            Some(vec![last(".profile")])
        }
        _ => None,
    }
}

/// The start-up files of all shells that have our line.
pub fn with_line(home: &Path, zdotdir: Option<&Path>) -> Vec<PathBuf> {
    let names = BASH_LOGIN.into_iter().chain([".bashrc", ".zshenv"]);
    let mut files: Vec<PathBuf> = names.map(|name| home.join(name)).collect();
    files.extend(zdotdir.map(|directory| directory.join(".zshenv")));
    files.dedup();
    files.retain(|file| has_line(file));
    files
}

/// Whether a start-up file has our line.
pub fn has_line(file: &Path) -> bool {
    let is_small = std::fs::metadata(file).is_ok_and(|metadata| metadata.len() <= MAX_BYTES);
    is_small && matches!(regular_file::read(file), Ok(Some(content)) if contains_line(&content))
}

/// The name of the user's login shell; empty if it is unknown.
pub fn login_shell() -> String {
    let shell = std::env::var_os("SHELL").unwrap_or_default();
    let name = Path::new(&shell).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A start-up file of the login shell, and the line in it that sets a variable behind our line, or behind the place for it.
pub fn overridden(variable: &str, home: &Path) -> Option<(PathBuf, String)> {
    let files = of_shell(&login_shell(), home, zdotdir().as_deref())?;
    files.into_iter().find_map(|StartFile { file, position }| {
        let content = regular_file::read(&file).ok()??;
        let line = overriding_line(&content, position, variable)?;
        Some((file, String::from_utf8_lossy(line).trim().to_owned()))
    })
}

fn overriding_line<'a>(
    content: &'a [u8],
    position: LinePosition,
    variable: &str,
) -> Option<&'a [u8]> {
    let mut lines = content.split(|byte| *byte == b'\n');
    if position == LinePosition::Last || contains_line(content) {
        lines.find(|line| *line == LINE.as_bytes())?;
    }
    lines.find(|line| {
        let line = line.trim_ascii_start();
        let line = line.strip_prefix(b"export ").unwrap_or(line);
        let rest = line.trim_ascii_start().strip_prefix(variable.as_bytes());
        let value = rest.and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|value| replaces(value.trim_ascii_end(), variable))
    })
}

/// Whether what is behind `=` in a line of a shell replaces the variable's value, and not for one command only.
fn replaces(value: &[u8], variable: &str) -> bool {
    let inside = match value {
        [b'"', inside @ .., b'"'] | [b'\'', inside @ .., b'\''] => inside,
        _ if value.iter().any(|byte| b" \t;&|".contains(byte)) => return false,
        _ => value,
    };
    let has = |part: &[u8]| inside.windows(part.len()).any(|window| window == part);
    !has(variable.as_bytes()) && !has(b"oclcache/vendors") && !has(b"\"") && !has(b"'")
}

/// The directory of zsh's start-up files, if it is not the home.
pub fn zdotdir() -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os("ZDOTDIR")?);
    directory.is_absolute().then_some(directory)
}

/// The file to replace when a start-up file is edited: the one that a link leads to.
///
/// # Errors
/// Why it must not be edited, for people.
pub fn target(file: &Path) -> Result<PathBuf, String> {
    let (target, metadata) = match file.canonicalize() {
        Ok(target) => {
            let metadata = std::fs::metadata(&target).map_err(|error| error.to_string())?;
            (target, Some(metadata))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => match file.symlink_metadata() {
            Ok(_) => return Err("it is a link to nothing".to_owned()),
            Err(_) => (file.to_owned(), None),
        },
        Err(error) => return Err(error.to_string()),
    };
    if let Some(metadata) = metadata {
        if !metadata.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        if metadata.len() > MAX_BYTES {
            return Err("it is too large".to_owned());
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err("it belongs to another user".to_owned());
        }
        if metadata.nlink() > 1 {
            return Err("it has a second name, a hard link".to_owned());
        }
    }
    match is_writable(directory_of(&target)) {
        true => Ok(target),
        false => Err(format!("`{}` cannot be replaced", path(&target))),
    }
}

fn contains_line(content: &[u8]) -> bool {
    content
        .split(|byte| *byte == b'\n')
        .any(|line| line == LINE.as_bytes())
}

/// The content with our line; None for `content` if there is no file. [`without_line`] reverts it byte for byte.
pub fn insert_line(content: Option<&[u8]>, position: LinePosition) -> Vec<u8> {
    let Some(content) = content else {
        return format!("{HEADER}\n{LINE}\n").into_bytes();
    };
    if contains_line(content) {
        return content.to_owned();
    }
    let line = LINE.as_bytes();
    let is_complete = content.is_empty() || content.ends_with(b"\n");
    let text = content.strip_suffix(b"\n").unwrap_or(content);
    // Our line would continue the last one.
    let is_continued = text.ends_with(b"\\");
    match position {
        LinePosition::Last if !is_continued && is_complete => [content, line, b"\n"].concat(),
        LinePosition::Last if !is_continued => [content, b"\n", line].concat(),
        _ => [line, b"\n", content].concat(),
    }
}

/// The content without our line; None if nothing else is in a file that we made.
pub fn without_line(content: &[u8]) -> Option<Vec<u8>> {
    if content == insert_line(None, LinePosition::Last) {
        return None;
    }
    let mut kept = Vec::with_capacity(content.len());
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        if line == LINE.as_bytes() {
            // It was added to a file whose last line had no end.
            let ended = kept.strip_suffix(b"\n").map(<[u8]>::len);
            kept.truncate(ended.unwrap_or(kept.len()));
        } else if line.strip_suffix(b"\n") != Some(LINE.as_bytes()) {
            kept.extend_from_slice(line);
        }
    }
    // The header of a file that we made, and that somebody has added to.
    let header = [HEADER.as_bytes(), b"\n"].concat();
    Some(match kept.strip_prefix(header.as_slice()) {
        Some(rest) => rest.to_owned(),
        None => kept,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_comes_and_goes_and_no_other_byte_changes() {
        let contents: [&[u8]; 9] = [
            b"",
            b"\n",
            b"export A=b\n",
            b"export A=b",
            b"export A=b\n\n\n",
            b"crlf\r\nlines\r\n",
            b"not UTF-8: \xff\xfe",
            b"echo a \\\n",
            b"echo a \\",
        ];
        for content in contents {
            for position in [LinePosition::First, LinePosition::Last] {
                let with = insert_line(Some(content), position);
                assert!(contains_line(&with) && with != content);
                assert_eq!(insert_line(Some(&with), position), with, "only once");
                assert_eq!(
                    without_line(&with).as_deref(),
                    Some(content),
                    "{position:?}"
                );
            }
            assert_eq!(without_line(content).as_deref(), Some(content));
        }
        let made = insert_line(None, LinePosition::Last);
        assert_eq!(without_line(&made), None);
        let more = [made.as_slice(), b"alias a=b\n"].concat();
        assert_eq!(without_line(&more).as_deref(), Some(&b"alias a=b\n"[..]));
    }

    #[test]
    fn a_line_that_is_continued_does_not_swallow_ours() {
        let with = insert_line(Some(b"echo a \\\n"), LinePosition::Last);
        assert!(with.starts_with(LINE.as_bytes()));
    }

    #[test]
    fn what_sets_a_variable_behind_our_line_is_found() {
        let ours = LINE;
        for (content, first, last) in [
            ("export V=a\n".to_owned(), Some("export V=a"), None),
            ("  V=a\n".to_owned(), Some("  V=a"), None),
            (
                "export V=\"$HOME/a b\"\n".to_owned(),
                Some("export V=\"$HOME/a b\""),
                None,
            ),
            ("V=/a clinfo\n".to_owned(), None, None),
            ("V=\"/a\" clinfo \"b\"\n".to_owned(), None, None),
            ("export V=${V:-/a}\n".to_owned(), None, None),
            (
                "export V=$HOME/.local/share/oclcache/vendors\n".to_owned(),
                None,
                None,
            ),
            (
                format!("{ours}\nexport V=a\n"),
                Some("export V=a"),
                Some("export V=a"),
            ),
            (format!("export V=a\n{ours}\n"), None, None),
            (
                "# V=a\nexport WV=a\nexport VW=a\necho V=a\n".to_owned(),
                None,
                None,
            ),
        ] {
            let found = |position| {
                let line = overriding_line(content.as_bytes(), position, "V")?;
                std::str::from_utf8(line).ok()
            };
            let found = [LinePosition::First, LinePosition::Last].map(found);
            assert_eq!(found, [first, last], "{content}");
        }
    }

    #[test]
    fn each_shell_has_the_files_that_it_reads() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        let files = |shell: &str, zdotdir: Option<&Path>| -> Vec<PathBuf> {
            let files = of_shell(shell, home.path(), zdotdir).unwrap_or_default();
            files.into_iter().map(|one| one.file).collect()
        };
        assert_eq!(files("bash", None), [at(".profile"), at(".bashrc")]);
        for name in [".profile", ".bash_login", ".bash_profile"] {
            std::fs::write(at(name), "").expect("written");
            assert_eq!(files("bash", None), [at(name), at(".bashrc")]);
        }
        assert_eq!(files("dash", None), [at(".profile")]);
        let other = at("zsh");
        assert_eq!(files("zsh", Some(&other)), [other.join(".zshenv")]);
        std::fs::write(at(".zshenv"), "").expect("written");
        assert_eq!(files("zsh", Some(&other)), [at(".zshenv")]);
        assert_eq!(of_shell("tcsh", home.path(), None), None);
    }
}
