//! Judges and normalizes the build options of a program.
//!
//! The options enter the key byte for byte: drivers report them verbatim, the order of macro definitions matters, and to recognize
//! two spellings as equal is not worth the risk. Only the include directories are taken out. Programs made by some libraries always
//! name a directory of the virtual environment in which they run, and a program that includes nothing must be shared between such
//! environments. This module does not look into directories; [`Options::include_dirs`] names them. Debug information may record the
//! directories, so with `-g` they stay in. So do names in which a driver may see an option: see [`searched`].
//!
//! Drivers split options differently: some honor double quotes only, some apostrophes too; some treat a backslash as an escape,
//! others as a character (one crashes on it); some split at spaces only. So options with a quote, an apostrophe, a backslash or another
//! blank are read in each of these ways, and the findings of all readings count. Such options, and those with a control character, stay
//! verbatim.
//!
//! The safe options follow from the OpenCL specification (section 5.8.6, compiler options) and from the documented command lines of
//! clang and of the drivers. The list holds options that are known to be harmless. All others are refused, as an option may read a
//! file (`-include-pch`), write one (`-save-temps`), or pass text to another tool (`-Xclang`, `-Wp,`).

mod respelled;
mod searched;
mod words;

use std::collections::HashSet;
use std::iter::Peekable;
use std::ops::Range;

use searched::{OF_DRIVERS, has_hidden_option, says_debug, searched};
use sha2::{Digest, Sha256};
use words::{Reading, Word, Words};

use crate::fallible::{copy, push, with_capacity};
use crate::outcome::Bypass;

/// Replaces the directory of an include option. Options hold no NUL, so this is unambiguous.
const DIRECTORY: &[u8] = b"\0I";

/// The build options of a program, judged to depend on nothing but their bytes and the headers that they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The bytes for the key: the options, with each include directory replaced by a mark, unless debug information is asked for,
    /// drivers differ in how they read the options, or one may see an option in the name of a directory.
    pub normalized: Vec<u8>,
    /// The directories named by `-I`, `-isystem`, `-iquote` and `-idirafter`, as written, in order; where readings differ,
    /// those of all.
    pub include_dirs: Vec<Vec<u8>>,
    /// The headers named by `-include` and `-imacros`.
    pub forced_includes: Vec<Vec<u8>>,
    /// Whether debug information is asked for, which may hold the names of files and directories.
    pub debug: bool,
    /// The macro definitions (`NAME` or `NAME=VALUE`) as they are written; where readings differ, those of all.
    pub definitions: Vec<Vec<u8>>,
    /// Whether one undefines a macro, in any reading.
    pub undefines: bool,
    /// What some of them are with the lines that drivers join with theirs.
    joined: Vec<Vec<u8>>,
    written: Vec<u8>,
    /// The ranges of macro values in `written`; they may overlap.
    values: Vec<Range<usize>>,
}

impl Options {
    /// The options as they were given.
    pub fn written(&self) -> &[u8] {
        &self.written
    }

    /// The same where the driver always writes debug information.
    ///
    /// # Errors
    /// There is no memory.
    pub fn with_debug(self) -> Result<Options, Bypass> {
        Ok(Options {
            normalized: copy(&self.written)?,
            debug: true,
            ..self
        })
    }

    /// All that compilers may take for a macro definition, to be judged together with the source.
    pub fn judged_definitions(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.definitions.iter().chain(&self.joined)
    }

    /// The options as they may be shown if the texts of programs are private: each value of a macro is replaced by `sha256:` and
    /// the first 16 hexadecimal digits of its digest.
    pub fn private(&self) -> Vec<u8> {
        let mut values: Vec<Range<usize>> = Vec::new();
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by_key(|span| span.start);
        for span in sorted {
            match values.last_mut() {
                Some(last) if span.start < last.end => last.end = last.end.max(span.end),
                _ => values.push(span),
            }
        }
        replace(&self.written, &values, |value| {
            let digest = Sha256::digest(value);
            let digits: String = digest[..8]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("sha256:{digits}").into_bytes()
        })
        .unwrap_or_default()
    }
}

/// Parses the options of a build, without their NUL.
///
/// # Errors
///
/// Why a result built with these options must not be cached.
pub fn parse(options: &[u8]) -> Result<Options, Bypass> {
    let mut parsed = Options {
        written: copy(options)?,
        ..Options::default()
    };
    let uncertain = options.iter().any(|byte| is_uncertain(*byte));
    if has_hidden_option(options, uncertain) {
        return Err(Bypass::UnknownOption);
    }
    let mut directories = Vec::new();
    let mut known = HashSet::new();
    let is_only_reading = Reading::all(options).count() == 1;
    let mut is_clean = false;
    for reading in Reading::all(options) {
        let mut parser = Parser {
            options,
            reading,
            words: reading.words(options)?.peekable(),
            parsed: &mut parsed,
            known: &mut known,
            directories: &mut directories,
            is_only_reading,
            open: None,
            extends: false,
            is_clean: true,
        };
        parser.parse()?;
        // The next line is the driver's own.
        parser.join(b"-D", b"_")?;
        is_clean |= parser.is_clean;
    }
    if !is_clean {
        return Err(Bypass::UnknownOption);
    }
    parsed.debug |= searched(options).any(says_debug);
    let mut names = directories.iter().map(|span| &options[span.clone()]);
    let is_obeyed = names.any(|name| searched(name).next().is_some());
    parsed.normalized = if uncertain || parsed.debug || is_obeyed {
        copy(options)?
    } else {
        replace(options, &directories, |_| DIRECTORY.to_vec())?
    };
    Ok(parsed)
}

/// Whether a word may ask for debug information.
pub fn asks_for_debug(word: &[u8]) -> bool {
    matches!(classify(word), Class::Debug) || searched(word).any(says_debug)
}

/// Whether drivers differ in how this byte splits words.
fn is_uncertain(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'' | b'\\') || byte.is_ascii_control()
}

/// Reads the words of one reading.
struct Parser<'a> {
    options: &'a [u8],
    reading: Reading,
    words: Peekable<Words<'a>>,
    parsed: &'a mut Options,
    /// The names from other readings and from earlier words: the first letter of the option, and its value.
    known: &'a mut HashSet<(u8, Vec<u8>)>,
    /// The ranges of include directories.
    directories: &'a mut Vec<Range<usize>>,
    /// Whether all drivers read the options alike.
    is_only_reading: bool,
    /// A definition that goes on in the line of the next one: a backslash in its end is a character to some drivers, and joins the lines
    /// (measured on PoCL 3.1 and Oclgrind 21.10: `-DX=\"x\"`).
    open: Option<Vec<u8>>,
    /// Whether the last definition whose lines were joined is the open one.
    extends: bool,
    /// Whether all words are options. Drivers with another reading would get the name of a file to compile, which no driver
    /// accepts.
    is_clean: bool,
}

impl Parser<'_> {
    fn parse(&mut self) -> Result<(), Bypass> {
        while let Some(word) = self.words.next() {
            let word = word?;
            match classify(&word.text) {
                Class::Harmless => {}
                Class::Debug => self.parsed.debug = true,
                Class::Number => {
                    let is_number = |next: &Result<Word, _>| {
                        let next = next.as_ref();
                        next.is_ok_and(|next| next.text.iter().all(u8::is_ascii_digit))
                    };
                    self.words.next_if(is_number);
                }
                Class::Refused(_)
                    if !word.text.starts_with(b"-") && !word.text.starts_with(b"@") =>
                {
                    self.is_clean = false;
                }
                Class::Refused(Bypass::UnknownOption) if self.reading.is_odd(&word.text) => {
                    self.is_clean = false;
                }
                Class::Refused(reason) => return Err(reason),
                Class::Argument(option) => {
                    let argument = match word.text.len() > option.len() {
                        true => self.joined(word, option)?,
                        false => self.words.next().ok_or(Bypass::UnknownOption)??,
                    };
                    let is_odd = self.reading.is_odd(&argument.text);
                    if reaches_beyond(option, &argument.text, is_odd) {
                        return Err(Bypass::UnknownOption);
                    }
                    if option == b"-D"
                        && let Some(second) = second_line(&argument.text)
                    {
                        // Every compiler refuses a line that begins so.
                        if !second.starts_with(b"-") {
                            return Err(Bypass::UnknownOption);
                        }
                        self.is_clean = false;
                    }
                    self.join(option, &argument.text)?;
                    match self.argument(option, argument) {
                        Err(Bypass::UnknownOption) if is_odd => self.is_clean = false,
                        taken => taken?,
                    }
                }
            }
        }
        Ok(())
    }

    /// The argument inside the option's own word.
    fn joined(&self, word: Word, option: &[u8]) -> Result<Word, Bypass> {
        // Quotes may be anywhere before it: then the whole word is used.
        let written = &self.options[word.span.clone()];
        let start = match written.starts_with(option) {
            true => word.span.start + option.len(),
            false => word.span.start,
        };
        Ok(Word {
            span: start..word.span.end,
            text: copy(&word.text[option.len()..])?,
        })
    }

    fn argument(&mut self, option: &[u8], argument: Word) -> Result<(), Bypass> {
        let Word { span, text } = argument;
        self.parsed.undefines |= option == b"-U";
        // An option in the argument's place: some drivers would read it as the argument, some as an option.
        if text.is_empty() || text[0] == b'-' {
            return Err(Bypass::UnknownOption);
        }
        let mut add = |list: &mut Vec<Vec<u8>>, kind: u8, text: Vec<u8>, again: bool| {
            if !again {
                self.known.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
                if !self.known.insert((kind, copy(&text)?)) {
                    return Ok(());
                }
            }
            push(list, text)
        };
        let is_only_reading = self.is_only_reading;
        match option {
            b"-I" | b"-isystem" | b"-iquote" | b"-idirafter" => {
                add(&mut self.parsed.include_dirs, b'I', text, is_only_reading)?;
                push(self.directories, span)?;
            }
            b"-include" | b"-imacros" => add(&mut self.parsed.forced_includes, b'i', text, false)?,
            b"-D" => {
                let written = &self.options[span.clone()];
                if let Some(equals) = written.iter().position(|byte| *byte == b'=') {
                    push(&mut self.parsed.values, span.start + equals + 1..span.end)?;
                }
                add(&mut self.parsed.definitions, b'D', text, is_only_reading)?;
            }
            b"-x" if !matches!(text.trim_ascii(), b"cl" | b"clcpp" | b"spir" | b"spirv") => {
                return Err(Bypass::UnknownOption);
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds what an open definition is with the line of this option. That may leave it open, or be the first that is.
    fn join(&mut self, option: &[u8], argument: &[u8]) -> Result<(), Bypass> {
        let directive: &[u8] = match option {
            b"-D" => b"#define ",
            b"-U" => b"#undef ",
            _ => return Ok(()),
        };
        let extends = std::mem::take(&mut self.extends);
        let joined = match self.open.take() {
            None => copy(argument)?,
            Some(open) if open.len() > MAX_JOINED_BYTES => return Err(Bypass::UnknownOption),
            Some(open) => {
                let mut parts = argument.splitn(2, |byte| *byte == b'=');
                let (name, value) = (parts.next(), parts.next());
                let blank: &[u8] = if value.is_some() { b" " } else { b"" };
                let [name, value] = [name, value].map(Option::unwrap_or_default);
                let joined = [&*open, directive, name, blank, value].concat();
                if extends {
                    self.parsed.joined.pop();
                }
                push(&mut self.parsed.joined, copy(&joined)?)?;
                self.extends = true;
                joined
            }
        };
        if let Some(opened) = opened(&joined) {
            self.open = Some(copy(opened)?);
        }
        Ok(())
    }
}

/// The longest text that definitions come to be whose lines are joined. Each is judged with all before it, in each reading: with 64 KiB a hit
/// took 6.8 s where the driver compiles in 0.4 s.
const MAX_JOINED_BYTES: usize = 1 << 13;

/// Whether an option's argument could be more than that in the line that a driver makes of it (`#define`, `#undef`, `#include`).
fn reaches_beyond(option: &[u8], argument: &[u8], is_odd: bool) -> bool {
    let has = |text: &[u8]| argument.windows(text.len()).any(|part| part == text);
    let ends_line = || argument.iter().any(is_line_end);
    // In these lines trigraphs are replaced as in the source (measured on all drivers but NEO, whose compiler is the same).
    let has_trigraph = || {
        let mut parts = argument.windows(3);
        parts.any(|part| part.starts_with(b"??") && b"=/'()!<>-".contains(&part[2]))
    };
    match option {
        // An open comment reaches into the next line. One that ends with the line is judged with the definition: in an odd word
        // it may be the path of another option.
        b"-D" => has(b"/*") || !is_odd && has(b"//") || has_trigraph(),
        // What is undefined is not judged as a text (measured on Oclgrind 21.10: `-UX` with a line end and `#define` defines).
        b"-U" => has(b"/*") || ends_line() || has_trigraph(),
        b"-include" | b"-imacros" => has(b"\"") && ends_line() || has_trigraph(),
        _ => false,
    }
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// A definition without the backslash that joins its line with the next one. None: none does.
///
/// clang cuts the value at the end of a line. A blank may stand behind the backslash.
fn opened(definition: &[u8]) -> Option<&[u8]> {
    let line = definition.split(is_line_end).next()?;
    let opened = line.trim_ascii_end().strip_suffix(b"\\")?;
    opened.contains(&b'=').then_some(opened)
}

/// What a definition has in the line behind its name. Drivers write it before the source, as a line of its own: clang cuts only the value
/// at its end (measured on Intel's CPU runtime, rusticl 22.3 and Oclgrind 21.10: `-DX` with a line end and `#include` includes).
fn second_line(definition: &[u8]) -> Option<&[u8]> {
    let name = definition.split(|byte| *byte == b'=').next()?;
    let end = name.iter().position(is_line_end)?;
    let second = definition[end..].trim_ascii();
    (!second.is_empty()).then_some(second)
}

fn replace(
    text: &[u8],
    spans: &[Range<usize>],
    with: impl Fn(&[u8]) -> Vec<u8>,
) -> Result<Vec<u8>, Bypass> {
    let mut replaced = with_capacity(text.len())?;
    let mut from = 0;
    for span in spans {
        replaced.extend_from_slice(&text[from..span.start]);
        let replacement = with(&text[span.clone()]);
        let rest = text.len() - span.end;
        let reserved = replaced.try_reserve(replacement.len() + rest);
        reserved.map_err(|_| Bypass::NoMemory)?;
        replaced.extend(replacement);
        from = span.end;
    }
    replaced.extend_from_slice(&text[from..]);
    Ok(replaced)
}

/// The class of an option.
enum Class {
    Harmless,
    Debug,
    /// Harmless, and a number may follow in a word of its own.
    Number,
    /// The option's argument is in the same word or is the next one.
    Argument(&'static [u8]),
    Refused(Bypass),
}

fn classify(word: &[u8]) -> Class {
    let harmless = |known: bool| {
        if known {
            Class::Harmless
        } else {
            Class::Refused(Bypass::UnknownOption)
        }
    };
    const WITH_ARGUMENT: [&[u8]; 4] = [b"-D", b"-U", b"-I", b"-x"];
    // clang takes these joined to their argument, too; other options begin like that.
    const IN_TWO_WORDS: [&[u8]; 5] = [
        b"-isystem",
        b"-iquote",
        b"-idirafter",
        b"-include",
        b"-imacros",
    ];
    // A driver that does not part words at such a blank hands both on in one.
    let ends = |rest: &[u8]| rest.first().is_none_or(|byte| words::is_odd_blank(*byte));
    let is_it = |option: &&&[u8]| word.strip_prefix(**option).is_some_and(ends);
    if let Some(option) = IN_TWO_WORDS.iter().find(is_it) {
        return Class::Argument(option);
    }
    if reads_file(word) {
        return Class::Refused(Bypass::OptionReadsFile);
    }
    if let Some(option) = WITH_ARGUMENT.iter().find(|option| word.starts_with(option)) {
        // In old compilers, `-I-` changes where the directories before it are looked up.
        return match word {
            b"-I-" => Class::Refused(Bypass::UnknownOption),
            _ => Class::Argument(option),
        };
    }
    match word {
        b"-w" | b"-create-library" | b"-enable-link-options" => Class::Harmless,
        // A comma hands the rest to another tool.
        [b'-', b'W', rest @ ..] => harmless(
            rest.iter()
                .all(|b| b.is_ascii_alphanumeric() || b"-_=+".contains(b)),
        ),
        [b'-', b'O', rest @ ..] => harmless(
            matches!(rest, b"s" | b"z" | b"g" | b"fast") || rest.iter().all(u8::is_ascii_digit),
        ),
        [b'-', b'g', rest @ ..] if is_debug_level(rest) => Class::Debug,
        [b'-', b'f', rest @ ..] => harmless(is_known_flag(rest)),
        _ if word.starts_with(b"-spir-std=") => Class::Harmless,
        _ if OF_DRIVERS.iter().any(|prefix| word.starts_with(prefix)) => {
            // None of these is known to name a file.
            if word.iter().any(|byte| matches!(byte, b'/' | b'@')) {
                return Class::Refused(Bypass::UnknownOption);
            }
            if says_debug(word) {
                Class::Debug
            } else if word.starts_with(b"-cl-nv-") || !word.starts_with(b"-cl-") {
                Class::Number
            } else {
                Class::Harmless
            }
        }
        _ => Class::Refused(Bypass::UnknownOption),
    }
}

/// Whether the option is known to name a file or a directory that is not looked at here, or to hand one on to clang.
fn reads_file(word: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 13] = [
        b"@",
        b"-i",
        b"-B",
        b"-load",
        b"-fplugin",
        b"-fpass-plugin",
        b"-fmodule",
        b"-fprofile",
        b"-Xclang",
        b"--include",
        b"--imacros",
        b"--sysroot",
        b"--config",
    ];
    // `-s` names the source's file for debug information in one driver.
    word == b"-s" || PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

fn is_debug_level(level: &[u8]) -> bool {
    matches!(
        level,
        b"" | b"0"
            | b"1"
            | b"2"
            | b"3"
            | b"gdb"
            | b"dwarf"
            | b"dwarf-2"
            | b"dwarf-3"
            | b"dwarf-4"
            | b"dwarf-5"
            | b"line-tables-only"
            | b"line-directives-only"
    )
}

/// Whether `-f` with this name changes only how code is generated. An option that switches something off changes no more than that.
fn is_known_flag(name: &[u8]) -> bool {
    let plain = name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    plain && name.starts_with(b"no-")
        || matches!(
            name,
            b"fast-math"
                | b"finite-math-only"
                | b"unsafe-math-optimizations"
                | b"associative-math"
                | b"reciprocal-math"
                | b"math-errno"
                | b"signed-zeros"
                | b"trapping-math"
                | b"honor-nans"
                | b"honor-infinities"
                | b"strict-aliasing"
                | b"strict-overflow"
                | b"wrapv"
                | b"unroll-loops"
                | b"inline"
                | b"inline-functions"
                | b"vectorize"
                | b"slp-vectorize"
                | b"tree-vectorize"
                | b"omit-frame-pointer"
                | b"signed-char"
                | b"bin-source"
                | b"bin-llvmir"
                | b"bin-amdil"
                | b"bin-exe"
                | b"bin-spirv"
                | b"fp-contract=off"
                | b"fp-contract=on"
                | b"fp-contract=fast"
        )
}

#[cfg(test)]
mod tests;
