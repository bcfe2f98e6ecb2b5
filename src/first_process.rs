//! The first process of a system or container, with which all others end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{getpid, getppid, getsid};

use crate::companion::COMMAND;
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

/// Programs that wait for every process that has lost its parent, beside shells.
const INITS: [&str; 12] = [
    COMMAND, // `oclcache run`
    "catatonit",
    "dinit",
    "docker-init",
    "dumb-init",
    "init",
    "openrc-init",
    "podman-init",
    "runit",
    "s6-svscan",
    "systemd",
    "tini",
];

/// Why nothing is started where [`waits_for_orphans`] is false.
pub const NO_INIT: &str = "the first process of this container is not known to wait for others' children; start the container with an init, as `docker run --init` does";

/// Whether the first process waits for each process that has lost its parent. Others, as a server that is the first process of a container,
/// leave it as a zombie, also where the parent is none of the container's. A namespace that `/proc` does not show is as one with such.
pub fn waits_for_orphans() -> bool {
    /// That of the system itself (PROC_PID_INIT_INO in linux/proc_ns.h), which has an init.
    const FIRST_NAMESPACE: &str = "pid:[4026531836]";
    let is_first =
        proc_file::own_link("ns/pid").is_ok_and(|link| link == Path::new(FIRST_NAMESPACE));
    let words = || proc_file::read("/proc/1/cmdline");
    is_first || is_shown() && words().is_ok_and(|words| is_waiting(&words))
}

/// Whether `/proc` shows the namespace of this process: that of another one has other numbers.
fn is_shown() -> bool {
    let own = std::fs::read_link("/proc/self");
    own.is_ok_and(|own| own.as_os_str() == getpid().to_string().as_str())
}

/// `words`: each with its NUL.
fn is_waiting(words: &[u8]) -> bool {
    let program = words.split(|byte| *byte == 0).next().and_then(program);
    program.is_some_and(|program| INITS.contains(&program) || is_waiting_shell(program))
}

/// Whether the first process or that of the user's services has adopted this one, which has been started as one that nobody knows. The
/// process that did that leads the session, and ends at once. Others that adopt processes, as supervisors do, wait for the end of each. So
/// does a server which the shell of a container becomes at the end of its script (`exec`), or leaves them as zombies.
pub fn is_adopted_by_init() -> bool {
    /// Longer than it ever takes.
    const PATIENCE: Duration = Duration::from_secs(10);
    let until = Instant::now() + PATIENCE;
    let session = getsid(None).ok();
    while session.is_some() && getppid() == session && Instant::now() < until {
        sleep(Duration::from_millis(1));
    }
    getppid().is_some_and(|parent| {
        let name = || proc_file::read(&format!("/proc/{}/comm", parent.as_raw_nonzero()));
        match parent.is_init() {
            true => !proc_file::read("/proc/1/cmdline").is_ok_and(|words| runs_script(&words)),
            false => name().is_ok_and(|name| name == b"systemd\n"),
        }
    })
}

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
    let mut words = words.split(|byte| *byte == 0);
    let first = words.next().and_then(program);
    let mut words = words.map(|word| std::str::from_utf8(word).unwrap_or_default());
    let names_nothing = |word: &str| {
        let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        word.is_empty()
            || word.starts_with("--")
            || letters.is_some_and(|letters| !letters.contains('c'))
    };
    first.is_some_and(is_waiting_shell) && words.all(names_nothing)
}

/// Whether a shell runs something and may end with it. `words`: each with its NUL.
fn runs_script(words: &[u8]) -> bool {
    let first = words.split(|byte| *byte == 0).next().and_then(program);
    first.is_some_and(is_waiting_shell) && !is_shell_without_operands(words)
}

fn is_waiting_shell(program: &str) -> bool {
    WAITING_SHELLS.contains(&program)
}

/// The name of a program, by the first of its arguments. A shell has a dash in front of it if somebody has logged in.
fn program(word: &[u8]) -> Option<&str> {
    let word = word.strip_prefix(b"-").unwrap_or(word);
    Path::new(OsStr::from_bytes(word)).file_name()?.to_str()
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
        for (words, expected) in [
            (&b"/bin/sh\0-c\0./warm-up; exec server\0"[..], true),
            (b"bash\0/entrypoint\0", true),
            (b"-bash\0", false),
            (b"tini\0--\0/entrypoint\0", false),
        ] {
            let found = runs_script(words);
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(words));
        }
    }

    #[test]
    fn a_first_process_that_waits_for_all_is_known_by_its_name() {
        for (words, expected) in [
            (&b"/sbin/init\0splash\0"[..], true),
            (b"/usr/lib/systemd/systemd\0--system\0", true),
            (b"/usr/bin/tini\0--\0python3\0", true),
            (b"/bin/sh\0/entrypoint\0", true),
            (b"-bash\0", true),
            (b"sleep\0infinity\0", false),
            (b"python3\0server.py\0", false),
            (b"", false),
        ] {
            assert_eq!(
                is_waiting(words),
                expected,
                "{}",
                String::from_utf8_lossy(words)
            );
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
