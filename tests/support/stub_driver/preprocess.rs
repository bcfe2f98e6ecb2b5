//! A small preprocessor: comments, conditionals, `#include`, `#error`.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A header given to clCompileProgram.
pub struct Header {
    pub name: String,
    pub text: String,
}

/// What is left of a source.
#[derive(Default)]
pub struct Unit {
    /// The text in which kernels are looked for.
    pub text: String,
    /// Every file that was included, in order: part of what was compiled.
    pub included: String,
}

/// The options split at blanks outside quotes.
pub fn words(options: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in options.chars() {
        match character {
            '"' => quoted = !quoted,
            ' ' | '\t' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("never empty").push(character),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The values of an option that may be joined to its value or stand before it.
fn values(options: &[String], flag: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        if option == flag {
            found.extend(options.next().cloned());
        } else if let Some(value) = option.strip_prefix(flag) {
            found.push(value.to_owned());
        }
    }
    found
}

/// Runs the preprocessor; an error is the build log.
pub fn run(source: &str, options: &str, headers: &[Header]) -> Result<Unit, String> {
    let options = words(options);
    let name = |definition: &String| definition.split('=').next().unwrap_or("").to_owned();
    let mut state = State {
        directories: values(&options, "-I"),
        defined: values(&options, "-D")
            .iter()
            .map(name)
            .chain(["__opencl_c_program_scope_global_variables".to_owned()])
            .collect(),
        headers,
        unit: Unit::default(),
    };
    state.file(source, Path::new(""), 0)?;
    Ok(state.unit)
}

struct State<'a> {
    directories: Vec<String>,
    defined: HashSet<String>,
    headers: &'a [Header],
    unit: Unit,
}

impl State<'_> {
    /// `directory` is that of the file.
    fn file(&mut self, text: &str, directory: &Path, depth: usize) -> Result<(), String> {
        // Whether the lines of each open conditional are used.
        let mut open: Vec<bool> = Vec::new();
        for (index, line) in without_comments(text).lines().enumerate() {
            let active = open.iter().all(|used| *used);
            let Some(directive) = line.trim().strip_prefix('#') else {
                if active {
                    self.unit.text.push_str(line);
                    self.unit.text.push('\n');
                }
                continue;
            };
            let directive = directive.trim();
            let (word, rest) = directive
                .split_once(char::is_whitespace)
                .unwrap_or((directive, ""));
            let rest = rest.trim();
            match word {
                "ifdef" => open.push(self.defined.contains(rest)),
                "ifndef" => open.push(!self.defined.contains(rest)),
                "if" => open.push(rest == "1" || self.defined.contains(rest)),
                "else" => open
                    .iter_mut()
                    .last()
                    .into_iter()
                    .for_each(|used| *used = !*used),
                "endif" => drop(open.pop()),
                _ if !active => {}
                "define" => {
                    let name = rest.split(|c: char| c.is_whitespace() || c == '(').next();
                    self.defined.extend(name.map(str::to_owned));
                }
                "error" => return Err(format!("stub: line {}: {}", index + 1, line.trim())),
                "include" if depth > 32 => return Err("stub: includes are too deep".to_owned()),
                "include" => {
                    let (name, angled) =
                        (rest.trim_matches(['"', '<', '>']), rest.starts_with('<'));
                    let (text, directory) = self
                        .find(name, (!angled).then_some(directory))
                        .ok_or_else(|| format!("stub: line {}: '{name}' not found", index + 1))?;
                    self.unit.included.push_str(&text);
                    self.file(&text, &directory, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A header's text and directory: an embedded one, else a file beside the file that includes it, in an include directory, or in
    /// the working directory.
    fn find(&self, name: &str, beside: Option<&Path>) -> Option<(String, PathBuf)> {
        if let Some(header) = self.headers.iter().find(|header| header.name == name) {
            return Some((header.text.clone(), PathBuf::new()));
        }
        let directories = self.directories.iter().map(Path::new);
        let mut directories = beside.into_iter().chain(directories).chain([Path::new("")]);
        directories.find_map(|directory| {
            let path = directory.join(name);
            let text = fs::read_to_string(&path).ok()?;
            Some((text, path.parent()?.to_owned()))
        })
    }
}

fn without_comments(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        result.push_str(&rest[..start]);
        let comment = &rest[start..];
        let end = match comment.starts_with("//") {
            true => comment.find('\n'),
            false => comment.find("*/").map(|end| end + 2),
        };
        let end = end.unwrap_or(comment.len());
        // Line numbers stay right.
        result.extend(comment[..end].chars().filter(|c| *c == '\n'));
        rest = &comment[end..];
    }
    result + rest
}
