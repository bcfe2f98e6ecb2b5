//! The first process of a system or container, with which all others end.

use std::ffi::OsStr;
use std::path::Path;

use rustix::process::{getpid, getppid};

use crate::proc_file;

/// Whether this process ends with the first one, or soon before it: it is that one, or a child of one that only waits for its child, as
/// most containers have. What somebody types in the shell of a container is a child of the first process as well, and that goes on.
pub fn is_about_to_end_with_ours() -> bool {
    let is_child = || getppid().is_some_and(|parent| parent.is_init());
    getpid().is_init() || is_child() && !is_interactive_shell()
}

/// The shells that wait for every child, also one that others have left behind. fish waits for its own alone: as the first process it
/// leaves the others as zombies, processes that have ended and still count (measured with 3.6.0).
const WAITING_SHELLS: [&str; 6] = ["ash", "bash", "dash", "ksh", "sh", "zsh"];

/// Whether somebody types in the first process. A shell is interactive if its arguments name no command and no file, and it reads from a
/// terminal (sh(1p)).
fn is_interactive_shell() -> bool {
    let [words, status] =
        ["/proc/1/cmdline", "/proc/1/stat"].map(|file| proc_file::read(file).ok());
    let (Some(words), Some(status)) = (words, status) else {
        return false;
    };
    has_terminal(&status) && is_shell_without_operands(&words)
}

/// `status`: as in proc_pid_stat(5), where the number of the terminal is the fifth field behind the name.
fn has_terminal(status: &[u8]) -> bool {
    let behind_name = status.rsplit(|byte| *byte == b')').next();
    let mut fields = behind_name
        .unwrap_or_default()
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty());
    fields.nth(4).is_some_and(|terminal| terminal != b"0")
}

/// `words`: each with its NUL.
fn is_shell_without_operands(words: &[u8]) -> bool {
    let mut words = words
        .split(|byte| *byte == 0)
        .map(|word| std::str::from_utf8(word).unwrap_or_default());
    let first = words.next().unwrap_or_default();
    let first = Path::new(first.strip_prefix('-').unwrap_or(first)).file_name();
    let first = first.and_then(OsStr::to_str);
    let is_shell = first.is_some_and(|first| WAITING_SHELLS.contains(&first));
    let names_nothing = |word: &str| {
        let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        word.is_empty()
            || word.starts_with("--")
            || letters.is_some_and(|letters| !letters.contains('c'))
    };
    is_shell && words.all(names_nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_in_which_somebody_types_is_told_from_one_that_runs_something() {
        for (words, expected) in [
            (&b"bash\0"[..], true),
            (b"-bash\0", true),
            (b"/bin/sh\0-i\0", true),
            (b"/usr/local/bin/bash\0--norc\0-l\0", true),
            (b"bash\0-c\0make\0", false),
            (b"bash\0-lc\0make\0", false),
            (b"sh\0/entrypoint\0", false),
            (b"tini\0--\0bash\0", false),
            (b"/sbin/init\0", false),
            (b"python3\0", false),
            (b"/usr/bin/fish\0", false),
            (b"", false),
        ] {
            let found = is_shell_without_operands(words);
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(words));
        }
    }

    #[test]
    fn a_terminal_is_told_from_none() {
        assert!(has_terminal(b"1 (bash) S 0 1 1 34816 7 4194560 1"));
        assert!(has_terminal(b"1 (a ) b) S 0 1 1 34816 7"));
        assert!(!has_terminal(b"1 (bash) S 0 1 1 0 -1 4194560 1"));
        assert!(!has_terminal(b"") && !has_terminal(b"1 (bash"));
    }
}
