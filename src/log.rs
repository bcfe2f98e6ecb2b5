//! Messages to people: the log, silent by default, and safe forms of foreign text.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use tracing::Metadata;
use tracing::subscriber::Interest;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::guarded_file::GuardedFile;
use crate::{linker_lock, own_threads, standard_error};

/// Whether a text is a filter of the log: a level, a list of targets, or nothing.
pub fn is_filter(filter: &str) -> bool {
    // A word that is not a level would count as the name of a target, and nothing would be logged.
    let is_known = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    filter.is_empty() || filter.parse::<Targets>().is_ok() && filter.split(',').all(is_known)
}

/// Starts the log if the settings ask for one. `filter` is a level (`info`) or a list of targets (`oclcache::store=debug,warn`).
/// With `file`, the log is appended to that file instead of standard error. Warns about an invalid filter and a file that cannot be
/// opened.
///
/// Only the first call in a process has an effect.
pub fn start(filter: &str, file: Option<&Path>) {
    let (targets, bad_filter) = match filter.parse::<Targets>() {
        Ok(targets) if is_filter(filter) => (targets, None),
        Ok(_) => (
            Targets::new().with_default(tracing::Level::WARN),
            Some("there is no such level".to_owned()),
        ),
        Err(error) => (
            Targets::new().with_default(tracing::Level::WARN),
            Some(error.to_string()),
        ),
    };
    let opened = file.map(|path| {
        File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
            .and_then(GuardedFile::new)
    });
    let (writer, bad_file) = match opened {
        Some(Ok(file)) => (BoxMakeWriter::new(Arc::new(file)), None),
        Some(Err(error)) => (BoxMakeWriter::new(|| StandardError), Some(error)),
        None => (BoxMakeWriter::new(|| StandardError), None),
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(writer);
    if tracing::subscriber::set_global_default(
        tracing_subscriber::registry()
            .with(targets)
            .with(layer)
            .with(WhileThreadLives),
    )
    .is_err()
    {
        return;
    }
    if let Some(error) = bad_filter {
        tracing::warn!(variable = "OCLCACHE_LOG", value = %text(filter.as_bytes()), %error, "expected a level such as `info`, or targets such as `oclcache::store=debug`; logging at `warn`");
    }
    if let Some(error) = bad_file {
        tracing::warn!(file = %path(file.unwrap_or(Path::new(""))), %error, "the log file cannot be opened; logging to standard error");
    }
}

/// Drops events of a thread whose thread-local variables are gone, because the layer above would panic: handlers of atexit run on
/// such a thread, and may build. Drops those of a thread that would have to wait for the dynamic linker, and those of work that nobody has
/// asked for, too.
struct WhileThreadLives;

/// Has a destructor, so that it can be gone.
struct Local;

impl Drop for Local {
    fn drop(&mut self) {}
}

thread_local! {
    static LOCAL: Local = const { Local };
    /// Whether the dynamic linker knows the destructors of this thread's variables, that of [`LOCAL`] and those of the layer above.
    static IS_KNOWN: Cell<bool> = const { Cell::new(false) };
}

impl<S: tracing::Subscriber> Layer<S> for WhileThreadLives {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        if own_threads::is_unasked() {
            return false;
        }
        if !IS_KNOWN.get() && linker_lock::is_busy_for_long() {
            return false;
        }
        IS_KNOWN.set(true);
        LOCAL.try_with(|_| ()).is_ok()
    }
}

/// Writes a line to standard error at once.
struct StandardError;

impl io::Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        standard_error::write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line to standard error, also without a log: for messages that the user has asked for.
pub fn say(line: &str) {
    use io::Write;
    let _ = StandardError.write_all(format!("oclcache: {line}\n").as_bytes());
}

/// Foreign bytes in a safe form: one line without control characters, invisible characters and terminal sequences.
pub struct Printable<'a>(&'a [u8]);

/// Shows foreign bytes.
pub fn text(bytes: &[u8]) -> Printable<'_> {
    Printable(bytes)
}

/// Shows foreign bytes with their line breaks and tabs.
pub fn lines(bytes: &[u8]) -> String {
    let lines = bytes.split(|byte| *byte == b'\n').map(|line| {
        let parts = line.split(|byte| *byte == b'\t');
        let parts: Vec<String> = parts.map(|part| text(part).to_string()).collect();
        parts.join("\t")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Shows a path.
pub fn path(path: &Path) -> Printable<'_> {
    Printable(path.as_os_str().as_bytes())
}

/// Shows text of the operating system.
pub fn os(text: &OsStr) -> Printable<'_> {
    Printable(text.as_bytes())
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                if is_plain(character) {
                    f.write_char(character)?;
                } else {
                    write!(f, "{}", character.escape_unicode())?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Whether a character is visible and moves no other.
pub fn is_plain(character: char) -> bool {
    match character {
        '\u{20}'..='\u{7e}' => true,
        // Control characters, the soft hyphen, everything that joins, reorders or hides, and the private use areas.
        '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{61c}' | '\u{180e}' => false,
        '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => false,
        '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'.. => false,
        _ => !character.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_can_forge_a_line_or_a_terminal_sequence() {
        let all: Vec<u8> = (0..=255).collect();
        let shown = text(&all).to_string();
        assert!(shown.chars().all(is_plain), "{shown}");
        assert_eq!(
            text("\x1b[2J\n\u{202e}\u{200b}".as_bytes()).to_string(),
            r"\u{1b}[2J\u{a}\u{202e}\u{200b}"
        );
        assert_eq!(text(b"\xff\xfe").to_string(), r"\xff\xfe");
        assert_eq!(text("grün 雪".as_bytes()).to_string(), "grün 雪");
        assert_eq!(
            lines(b"\tint a;\r\n\n\x1b[2J"),
            "\tint a;\\u{d}\n\n\\u{1b}[2J"
        );
    }
}
