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

/// The version of the forms of JSON. It rises when a field is removed or changes its meaning, not when one is added.
const JSON_VERSION: u32 = 1;

/// Prints a value with the version of its form: an object has it, or each object of a list.
pub fn print_json(value: &serde_json::Value) -> Result<ExitCode, Failure> {
    let mut value = value.clone();
    match &mut value {
        serde_json::Value::Array(all) => all.iter_mut().for_each(add_version),
        other => add_version(other),
    }
    print(plain(&value).as_bytes())
}

/// Adds the version of the form to an object.
pub fn add_version(value: &mut serde_json::Value) {
    if let Some(object) = value.as_object_mut() {
        object.insert("version".to_owned(), JSON_VERSION.into());
    }
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
    /// Numbers that are left out if there would be too little room for the texts.
    Spare,
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
    /// Spare columns give way before a cut column has fewer characters than this: enough for most names of programs.
    const READABLE: usize = 20;

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
        let limit = width.unwrap_or(usize::MAX);
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let all = |shown: &[usize], of: &dyn Fn(usize) -> usize| {
            let gaps = Self::GAP * shown.len().saturating_sub(1);
            indent + gaps + shown.iter().map(|index| of(*index)).sum::<usize>()
        };
        let readable = |index: usize| match self.columns[index] {
            Column::Cut => widths[index].min(Self::READABLE),
            _ => widths[index],
        };
        while all(&shown, &readable) > limit
            && let Some(last) = shown
                .iter()
                .rposition(|index| self.columns[*index] == Column::Spare)
        {
            shown.remove(last);
        }
        let mut excess = all(&shown, &|index| widths[index]).saturating_sub(limit);
        for index in &shown {
            if self.columns[*index] == Column::Cut {
                let width = &mut widths[*index];
                let cut = excess.min(width.saturating_sub(Self::MIN_WIDTH));
                *width -= cut;
                excess -= cut;
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (place, index) in shown.iter().enumerate() {
                if place > 0 {
                    line.push_str(&" ".repeat(Self::GAP));
                }
                let alignment = match self.columns[*index] {
                    Column::Right | Column::Spare => Alignment::Right,
                    Column::Left | Column::Cut => Alignment::Left,
                };
                line += &console::pad_str(&row[*index], widths[*index], alignment, Some("…"));
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
    fn numbers_give_way_to_names_where_there_is_little_room() {
        let mut table = TextTable::new(&[
            Column::Cut,
            Column::Right,
            Column::Spare,
            Column::Right,
            Column::Spare,
        ]);
        table.row(["", "hits", "bypassed", "saved", "spent"].map(str::to_owned));
        let cells = [
            "a_long_simulation_of_waves.py",
            "123456",
            "12",
            "1.5 s",
            "3.2 min",
        ];
        table.row(cells.map(str::to_owned));
        let rendered = |width| table.render(2, Some(width));
        for (width, heads) in [(60, "bypassed spent"), (50, "bypassed"), (40, "")] {
            let shown = rendered(width);
            for head in ["bypassed", "spent"] {
                assert_eq!(
                    shown.contains(head),
                    heads.contains(head),
                    "{width}: {shown}"
                );
            }
            assert!(shown.contains("a_long_simulation"), "{width}: {shown}");
            assert!(
                shown
                    .lines()
                    .all(|line| console::measure_text_width(line) <= width)
            );
        }
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
