//! The name of the script that an interpreter runs, from its arguments.
//!
//! `python3.11` tells nobody which program it is. The name is for people and for rules of the configuration file; no key has it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::proc_file;

/// Longer names are cut. No file name is longer.
const MAX_BYTES: usize = 255;

/// How an interpreter reads the options before its script.
struct Interpreter {
    /// The file name is this, with a version or without.
    name: &'static str,
    /// Letters behind which the rest of the argument, or else the next argument, is a value.
    with_value: &'static [u8],
    /// Letters behind which the rest of the argument is a value, but never the next argument.
    with_attached_value: &'static [u8],
    /// Letters of a program in the arguments, which has no name.
    inline: &'static [u8],
    /// Letters whose value is the name of a module to run.
    module: &'static [u8],
    /// Long options whose value is the next argument, unless it follows a `=`.
    long_with_value: &'static [&'static str],
    /// Long options of a program in the arguments.
    long_inline: &'static [&'static str],
}

const PLAIN: Interpreter = Interpreter {
    name: "",
    with_value: b"",
    with_attached_value: b"",
    inline: b"",
    module: b"",
    long_with_value: &[],
    long_inline: &[],
};

const PYTHON: Interpreter = Interpreter {
    name: "python",
    with_value: b"WX",
    inline: b"c",
    module: b"m",
    long_with_value: &["--check-hash-based-pycs"],
    ..PLAIN
};

const SHELL: Interpreter = Interpreter {
    name: "sh",
    with_value: b"oO",
    inline: b"cs",
    long_with_value: &["--rcfile", "--init-file"],
    ..PLAIN
};

/// The options of python 3.13, perl 5.40, ruby 3.3, julia 1.11 and bash 5.2, by their manuals.
const INTERPRETERS: [Interpreter; 8] = [
    PYTHON,
    Interpreter {
        name: "pypy",
        ..PYTHON
    },
    Interpreter {
        name: "perl",
        with_value: b"I",
        with_attached_value: b"CDFMVdimx",
        inline: b"eE",
        ..PLAIN
    },
    Interpreter {
        name: "ruby",
        with_value: b"CEIr",
        with_attached_value: b"FKTWix",
        inline: b"e",
        long_with_value: &[
            "--disable",
            "--enable",
            "--encoding",
            "--external-encoding",
            "--internal-encoding",
        ],
        ..PLAIN
    },
    Interpreter {
        name: "julia",
        with_value: b"CHJLpt",
        with_attached_value: b"Og",
        inline: b"eE",
        module: b"m",
        long_with_value: &[
            "--cpu-target",
            "--gcthreads",
            "--home",
            "--load",
            "--machine-file",
            "--procs",
            "--sysimage",
            "--threads",
        ],
        long_inline: &["--eval", "--print"],
    },
    Interpreter {
        name: "bash",
        ..SHELL
    },
    Interpreter {
        name: "dash",
        ..SHELL
    },
    SHELL,
];

/// The interpreter with this file name: `python`, `python3` and `python3.11` are one.
fn interpreter(executable: &[u8]) -> Option<&'static Interpreter> {
    INTERPRETERS.iter().find(|known| {
        let version = executable.strip_prefix(known.name.as_bytes());
        // `python3.13t` is the one without a global lock.
        let version = version.map(|version| version.strip_suffix(b"t").unwrap_or(version));
        let is_version = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
        version.is_some_and(|version| version.iter().all(is_version))
    })
}

/// The name of the script that this process runs. See [`script_name`].
pub(super) fn own_script(executable: &[u8]) -> Option<Vec<u8>> {
    // Most programs are no interpreters, and their arguments are not read.
    interpreter(executable)?;
    let line = proc_file::read_own("cmdline").ok()?;
    let arguments = line
        .strip_suffix(b"\0")
        .unwrap_or(&line)
        .split(|byte| *byte == 0);
    script_name(executable, arguments.skip(1))
}

/// The name of the script or module that a program runs: its file name, or that of the module. None if the program is no interpreter
/// that is known, or runs no file. `arguments` are those behind the program's own name.
pub fn script_name<'a>(
    executable: &[u8],
    arguments: impl IntoIterator<Item = &'a [u8]>,
) -> Option<Vec<u8>> {
    let named = interpreter(executable)?.named(&mut arguments.into_iter())?;
    let name = shown(Path::new(OsStr::from_bytes(named)).file_name()?.as_bytes());
    (!name.is_empty()).then_some(name)
}

impl Interpreter {
    /// The argument that names the script or module.
    fn named<'a>(&self, arguments: &mut dyn Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
        while let Some(argument) = arguments.next() {
            match argument {
                b"--" => return arguments.next(),
                [b'-', b'-', ..] => {
                    let text = str::from_utf8(argument).ok()?;
                    let name = text.split_once('=').map_or(text, |(name, _)| name);
                    if self.long_inline.contains(&name) {
                        return None;
                    }
                    if self.long_with_value.contains(&text) {
                        arguments.next();
                    }
                }
                // Standard input.
                b"-" => return None,
                [b'-', letters @ ..] => match self.module(letters, arguments) {
                    Letters::Module(module) => return module,
                    Letters::Inline => return None,
                    Letters::Other => {}
                },
                script => return Some(script),
            }
        }
        None
    }

    /// Reads an argument of letters.
    fn module<'a>(
        &self,
        letters: &'a [u8],
        arguments: &mut dyn Iterator<Item = &'a [u8]>,
    ) -> Letters<'a> {
        for (index, letter) in letters.iter().enumerate() {
            let rest = &letters[index + 1..];
            let mut value = || match rest {
                [] => arguments.next(),
                rest => Some(rest),
            };
            if self.inline.contains(letter) {
                return Letters::Inline;
            }
            if self.module.contains(letter) {
                return Letters::Module(value());
            }
            if self.with_value.contains(letter) {
                value();
                return Letters::Other;
            }
            if self.with_attached_value.contains(letter) {
                return Letters::Other;
            }
        }
        Letters::Other
    }
}

/// What an argument of letters says about the script.
enum Letters<'a> {
    Module(Option<&'a [u8]>),
    Inline,
    Other,
}

/// The name without characters that could control a terminal, and not too long.
fn shown(name: &[u8]) -> Vec<u8> {
    let name = String::from_utf8_lossy(name);
    let mut shown = String::new();
    for character in name
        .chars()
        .filter(|character| crate::log::is_plain(*character))
    {
        if shown.len() + character.len_utf8() > MAX_BYTES {
            break;
        }
        shown.push(character);
    }
    shown.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(line: &str) -> Option<String> {
        let mut words = line.split(' ').map(str::as_bytes);
        let executable = words.next().expect("a program");
        script_name(executable, words).map(|name| String::from_utf8(name).expect("UTF-8"))
    }

    #[test]
    fn the_script_or_the_module_is_named() {
        for (line, expected) in [
            ("python3.11 wave.py 1000", Some("wave.py")),
            ("python3 -B -W ignore /home/me/wave.py", Some("wave.py")),
            (
                "python -Wignore -X dev -u ./wave.py -m other",
                Some("wave.py"),
            ),
            ("python3 -BXdev wave.py", Some("wave.py")),
            ("python3 -m pkg.mod --verbose", Some("pkg.mod")),
            ("python3 -Im pkg.mod", Some("pkg.mod")),
            ("python3 -mpkg.mod", Some("pkg.mod")),
            ("python3 --check-hash-based-pycs never a.py", Some("a.py")),
            ("python3 -- -odd.py", Some("-odd.py")),
            ("pypy3 wave.py", Some("wave.py")),
            ("perl -w -I lib -Mstrict wave.pl", Some("wave.pl")),
            ("ruby -W0 -r cl wave.rb", Some("wave.rb")),
            ("julia --project=. -t 4 -O3 wave.jl", Some("wave.jl")),
            ("julia --threads 4 wave.jl", Some("wave.jl")),
            ("bash -e -o pipefail run.sh", Some("run.sh")),
            ("python3", None),
            ("python3 -", None),
            ("python3 -c import_pyopencl wave.py", None),
            ("python3 -Bc import_pyopencl", None),
            ("python3 -m", None),
            ("python3 /", None),
            ("python3.13t wave.py", Some("wave.py")),
            ("perl -ne print wave.txt", None),
            ("perl -lne print wave.txt", None),
            ("julia --eval=1 wave.jl", None),
            ("bash -c ./wave", None),
            ("darktable photo.raw", None),
            ("python3-config --libs", None),
            ("pythonic wave.py", None),
        ] {
            assert_eq!(name(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_name_controls_no_terminal_and_is_not_too_long() {
        assert_eq!(name("python3 \u{1b}[2Ja\n.py").as_deref(), Some("[2Ja.py"));
        assert_eq!(name("python3 \u{7}"), None);
        let long = "ä".repeat(400);
        let shown = name(&format!("python3 -m {long}")).expect("a name");
        assert!(
            shown.len() <= MAX_BYTES && long.starts_with(&shown),
            "{shown}"
        );
    }
}
