//! Writes data to standard output and messages to standard error; formats numbers, tables and colors.
//!
//! Colors are used on terminals only, and not if NO_COLOR is set or TERM is `dumb`.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use console::{Alignment, Style, Term};

use super::failure::Failure;

/// Writes data to standard output. A closed pipe is not a failure.
pub fn print(data: &[u8]) -> Result<ExitCode, Failure> {
    let mut output = io::stdout().lock();
    printed(output.write_all(data).and_then(|()| output.flush()))
}

/// Writes a text from elsewhere to standard output. On a terminal, control characters and characters that hide others are escaped;
/// otherwise the bytes are unchanged.
pub fn print_foreign(text: &[u8]) -> Result<ExitCode, Failure> {
    match io::stdout().is_terminal() {
        true => print(crate::log::lines(text).as_bytes()),
        false => print(text),
    }
}

pub fn printed(written: io::Result<()>) -> Result<ExitCode, Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(format_args!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(ExitCode::SUCCESS),
    }
}

pub fn print_json(value: &serde_json::Value) -> Result<ExitCode, Failure> {
    print(plain(value).as_bytes())
}

/// JSON in which characters that could control a terminal are escaped.
pub fn plain(json: &serde_json::Value) -> String {
    use fmt::Write;
    let mut shown = String::new();
    for character in format!("{json:#}\n").chars() {
        if character == '\n' || crate::log::is_plain(character) {
            shown.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    shown
}

/// Writes a message to standard error.
pub fn say(words: &str) {
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Formats how long ago something was.
pub fn ago(milliseconds: u64) -> String {
    match milliseconds / 1000 {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Formats a duration.
pub fn seconds(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    match seconds {
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 600.0 => format!("{seconds:.1} s"),
        _ if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Formats a size.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// A number with its noun.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", noun(number, one, many))
}

/// The singular or plural of a noun.
pub fn noun<'a>(number: u64, one: &'a str, many: &'a str) -> &'a str {
    if number == 1 { one } else { many }
}

/// The columns of standard output; None if it is not a terminal.
pub fn width() -> Option<usize> {
    let terminal = Term::stdout();
    let (_, columns) = terminal
        .features()
        .is_attended()
        .then(|| terminal.size_checked())??;
    Some(columns.into())
}

/// Styles a heading.
pub fn heading(text: impl fmt::Display) -> String {
    Style::new().bold().apply_to(text).to_string()
}

/// Styles what is as it should be.
pub fn good(text: impl fmt::Display) -> String {
    Style::new().green().apply_to(text).to_string()
}

/// Styles what may be wrong.
pub fn doubtful(text: impl fmt::Display) -> String {
    Style::new().yellow().apply_to(text).to_string()
}

/// Styles what is wrong.
pub fn bad(text: impl fmt::Display) -> String {
    Style::new().red().bold().apply_to(text).to_string()
}

/// Styles what is less important.
pub fn faint(text: impl fmt::Display) -> String {
    Style::new().dim().apply_to(text).to_string()
}

/// A path quoted for a shell; None if it has characters that cannot be shown.
pub fn quoted(path: &Path) -> Option<String> {
    let text = path.to_str().filter(|text| !text.is_empty())?;
    if !text.chars().all(crate::log::is_plain) {
        return None;
    }
    let is_safe = |letter: char| letter.is_ascii_alphanumeric() || "/._-+,:=@%".contains(letter);
    Some(match text.chars().all(is_safe) && !text.starts_with('-') {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    })
}

/// Pieces after their start, wrapped at this width and aligned with the first piece.
pub fn wrapped<'a>(start: String, pieces: impl Iterator<Item = &'a str>, width: usize) -> String {
    /// With less room than this, lines are aligned further to the left.
    const MIN_WIDTH: usize = 40;
    const LEFT: usize = 9;
    let first = console::measure_text_width(&start);
    let indent = if width < first + MIN_WIDTH {
        LEFT
    } else {
        first
    };
    let (mut text, mut column, mut is_first) = (start, first, true);
    for piece in pieces {
        let long = console::measure_text_width(piece);
        if !is_first && column + 1 + long > width {
            text += &format!("\n{:indent$}", "");
            column = indent;
        } else if !is_first {
            text.push(' ');
            column += 1;
        }
        text += piece;
        column += long;
        is_first = false;
    }
    text + "\n"
}

/// How a column of a table is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Text.
    Left,
    /// Numbers.
    Right,
    /// Text that is cut if the table is too wide.
    Cut,
}

/// A table whose columns are as wide as their widest cells.
pub struct TextTable {
    columns: &'static [Column],
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// Blanks between columns.
    const GAP: usize = 2;
    /// A cut column keeps this many characters.
    const MIN_WIDTH: usize = 8;

    pub fn new(columns: &'static [Column]) -> TextTable {
        TextTable {
            columns,
            rows: Vec::new(),
        }
    }

    /// Adds a row. Its texts must be plain (`log::text`), except for colors.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All rows, indented, for a terminal of this width.
    pub fn render(&self, indent: usize, width: Option<usize>) -> String {
        let of = |index: usize| {
            let cells = self
                .rows
                .iter()
                .map(|row| console::measure_text_width(&row[index]));
            cells.max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(of).collect();
        let all =
            indent + widths.iter().sum::<usize>() + Self::GAP * widths.len().saturating_sub(1);
        let mut excess = all.saturating_sub(width.unwrap_or(usize::MAX));
        for (width, column) in widths.iter_mut().zip(self.columns) {
            if *column == Column::Cut {
                let cut = excess.min(width.saturating_sub(Self::MIN_WIDTH));
                *width -= cut;
                excess -= cut;
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (index, cell) in row.iter().enumerate() {
                if index > 0 {
                    line.push_str(&" ".repeat(Self::GAP));
                }
                let alignment = match self.columns[index] {
                    Column::Right => Alignment::Right,
                    _ => Alignment::Left,
                };
                line += &console::pad_str(cell, widths[index], alignment, Some("…"));
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_cut_where_it_may_be_and_nowhere_else() {
        let mut table = TextTable::new(&[Column::Left, Column::Right, Column::Cut]);
        table.row([
            "hits".into(),
            "7".into(),
            "a kernel with a long name".into(),
        ]);
        table.row([
            "misses".into(),
            "1200".into(),
            "漢字漢字漢字漢字漢字".into(),
        ]);
        let whole =
            "  hits       7  a kernel with a long name\n  misses  1200  漢字漢字漢字漢字漢字\n";
        assert_eq!(table.render(2, None), whole);
        assert_eq!(table.render(2, Some(41)), whole);
        let narrow = "hits       7  a kerne…\nmisses  1200  漢字漢…\n";
        assert_eq!(table.render(0, Some(22)), narrow);
        assert_eq!(table.render(0, Some(1)), narrow, "enough stays to be read");
    }

    #[test]
    fn sizes_and_durations_are_read_at_a_glance() {
        assert_eq!(
            [size(0), size(2048), size(5 << 30)],
            ["0 B", "2.0 KiB", "5.0 GiB"]
        );
        assert_eq!(
            [
                seconds(1_500_000),
                seconds(41_200_000_000),
                seconds(1_200_000_000_000),
                seconds(9_000_000_000_000)
            ],
            ["1.5 ms", "41.2 s", "20.0 min", "2.5 h"]
        );
    }

    #[test]
    fn a_shell_gets_the_path_that_was_meant_or_none() {
        for path in ["/a/b.icd", "/it's \"so\" $HOME `x`", "-rf", "/漢字 e"] {
            let quoted = quoted(Path::new(path)).expect("it can be shown");
            let mut echo = std::process::Command::new("sh");
            let echo = echo.args(["-c", &format!("printf %s {quoted}")]).output();
            assert_eq!(echo.expect("a shell").stdout, path.as_bytes());
        }
        assert_eq!(quoted(Path::new("/two\nlines")), None);
        assert_eq!(quoted(Path::new("/\u{1b}[2J")), None);
    }

    #[test]
    fn lines_end_where_the_terminal_does_and_commands_stay_whole() {
        let pieces = || ["one", "two", "rm -r /a path"].into_iter();
        let shown = |width| wrapped("ok  ".to_owned(), pieces(), width);
        assert_eq!(shown(usize::MAX), "ok  one two rm -r /a path\n");
        assert_eq!(shown(20), "ok  one two\n         rm -r /a path\n", "narrow");
        let wide = wrapped("x ".repeat(10), "12345678 ".repeat(6).trim().split(' '), 62);
        let line = "12345678 12345678 12345678 12345678";
        assert!(
            wide.starts_with(&format!("{}{line}\n{:20}1", "x ".repeat(10), "")),
            "{wide}"
        );
    }
}
