//! The names of the macros that texts define, and the words that calls of these macros get.

use std::collections::HashSet;

use super::lexer::{JOINED_APOSTROPHES, LONE_QUOTES, is_word};
use crate::fallible::copy;
use crate::key::macros::could_be_predefined;
use crate::outcome::Bypass;

/// Reserved names that no driver makes macros: what begins inline assembly.
const KEYWORDS: [&[u8]; 5] = [
    b"__asm__",
    b"__asm",
    b"_asm",
    b"__volatile__",
    b"__volatile",
];

/// The macros of all texts.
#[derive(Default)]
pub(super) struct MacroNames {
    names: HashSet<Vec<u8>>,
    /// There are definitions that are not understood.
    is_unclear: bool,
    /// There are definitions that do not close each parenthesis that they open, and so may begin or end a call.
    is_unbalanced: bool,
}

/// The parts of a definition.
pub(super) struct Definition<'a> {
    name: &'a [u8],
    /// The text between the parentheses behind the name.
    parameters: &'a [u8],
    is_clear: bool,
}

impl<'a> Definition<'a> {
    /// `text`: what stands behind `#define`, or in the option.
    pub(super) fn new(text: &'a [u8]) -> Self {
        let text = text.trim_ascii_start();
        let (name, rest) = text.split_at(word_length(text));
        let (parameters, is_clear) = match rest {
            [b'(', rest @ ..] => match rest.iter().position(|byte| *byte == b')') {
                Some(end) => (&rest[..end], rest[..end].iter().all(may_be_in_parameters)),
                None => (rest, false),
            },
            // A name with other characters in it has an end that is not known here. A quote before the name defines nothing.
            [first, ..] => {
                let ends = first.is_ascii_whitespace() || b"=\"'".contains(first);
                (&[][..], ends)
            }
            [] => (&[][..], true),
        };
        Definition {
            name,
            parameters,
            is_clear,
        }
    }

    /// The name of the macro, if it is understood.
    pub(super) fn clear_name(&self) -> Option<&'a [u8]> {
        (self.is_clear && !self.name.is_empty()).then_some(self.name)
    }

    /// The words that stand for arguments wherever they are in the definition, so that none of them is an operand of `##` itself.
    /// `text`: that of the definition. None: they are not known.
    pub(super) fn replaced(&self, text: &[u8]) -> Option<HashSet<&'a [u8]>> {
        // Behind a line end is other text, in the options of some drivers.
        if !self.is_clear || text.contains(&b'\n') {
            return None;
        }
        let words = self.parameters.split(|byte| !is_word(*byte));
        Some(words.filter(|word| !word.is_empty()).collect())
    }
}

impl MacroNames {
    pub(super) fn add(&mut self, definition: &Definition, is_balanced: bool) -> Result<(), Bypass> {
        self.is_unclear |= !definition.is_clear;
        self.is_unbalanced |= !is_balanced;
        if !self.names.contains(definition.name) {
            self.names.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
            self.names.insert(copy(definition.name)?);
        }
        Ok(())
    }

    /// Whether all definitions are understood, and each call ends where its parenthesis is closed.
    pub(super) fn are_clear(&self) -> bool {
        !self.is_unclear && !self.is_unbalanced
    }

    /// Whether the word may be a macro of the texts or of the driver, which may use those of the texts: `as_int` calls
    /// `__builtin_astype`.
    pub(super) fn may_contain(&self, word: &[u8]) -> bool {
        let is_of_driver = || word.starts_with(b"_") || could_be_predefined(word);
        self.is_unclear || self.names.contains(word) || is_of_driver() && !KEYWORDS.contains(&word)
    }

    /// Whether `##` may make the name of a macro of another word and this one, behind it. The empty macros of drivers end with
    /// capitals or an underscore, but for one (measured: `__REGISTER_PREFIX__`, `POCL_DEVICE_TYPES_H`, `cl_khr_depth_images`; PoCL 3.1,
    /// Intel's CPU runtime, rusticl, Oclgrind, clang 15).
    pub(super) fn may_end_with(&self, word: &[u8]) -> bool {
        let is_of_driver = word.iter().any(u8::is_ascii_uppercase)
            || word.ends_with(b"_")
            || b"cl_khr_depth_images".ends_with(word);
        is_of_driver || self.names.iter().any(|name| name.ends_with(word))
    }

    /// How many names there are.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}

/// Finds the words in a text, and which of them a call of a macro may get. No others outside of definitions can be operands
/// of `##` or `#`.
pub(super) struct CallWords<'n> {
    names: &'n MacroNames,
    /// The open parentheses, from that of the call on.
    open: usize,
    /// A parenthesis that comes next may be a call's.
    may_call: bool,
    is_line_start: bool,
    in_directive: bool,
    /// A directive in a call can hold a parenthesis that is not the call's.
    gets_all: bool,
    /// Definitions end where [`Lexer::rest_of_directive`] ends them.
    knows_definitions: bool,
    in_definition: bool,
}

impl<'n> CallWords<'n> {
    /// The text may stand behind the name of a macro, in a file that includes it.
    pub(super) fn new(names: &'n MacroNames, gets_all: bool, reading: u8) -> Self {
        CallWords {
            names,
            open: 0,
            may_call: true,
            is_line_start: true,
            in_directive: false,
            gets_all,
            knows_definitions: reading & (LONE_QUOTES | JOINED_APOSTROPHES) == 0,
            in_definition: false,
        }
    }

    /// Whether a call may not have ended.
    pub(super) fn are_open(&self) -> bool {
        self.open > 0 || self.gets_all
    }

    /// Gives `each` the words in the next span of code that a call may get. Those of definitions come by themselves, unless all may be in
    /// calls.
    pub(super) fn find(&mut self, code: &[u8], mut each: impl FnMut(&[u8])) {
        // The last word, if only blanks stood behind it so far. It is looked up only where it matters.
        let mut last: Option<&[u8]> = None;
        let mut at = 0;
        while at < code.len() {
            let rest = &code[at..];
            let length = word_length(rest).max(1);
            at += length;
            match rest[0] {
                b'\n' => {
                    if self.in_directive {
                        // Behind a directive stands what stands behind the token before it.
                        (self.may_call, last) = (true, None);
                    }
                    (self.is_line_start, self.in_directive) = (true, false);
                    self.in_definition = false;
                    continue;
                }
                _ if self.in_definition => continue,
                b' ' | b'\t' | 0x0B | 0x0C | 0 | 0x80.. => continue,
                b'#' | b'%' if self.is_line_start => {
                    self.in_directive = true;
                    self.gets_all |= self.open > 0;
                    (self.may_call, last) = (false, None);
                    self.in_definition =
                        self.knows_definitions && !self.gets_all && begins_definition(rest);
                }
                b'(' => {
                    let begins = self.open > 0 || self.may_call_behind(last);
                    self.open += usize::from(begins);
                    (self.may_call, last) = (false, None);
                }
                // A call can give the name of another macro.
                b')' => {
                    (self.may_call, last) = (self.open == 1, None);
                    self.open = self.open.saturating_sub(1);
                }
                first if is_word(first) => {
                    let word = &rest[..length];
                    if self.open > 0 || self.gets_all {
                        each(word);
                    }
                    (self.may_call, last) = (false, Some(word));
                }
                _ => (self.may_call, last) = (false, None),
            }
            self.is_line_start = false;
        }
        self.may_call = self.may_call_behind(last);
    }

    /// Whether a parenthesis that comes next may be a call's. `last`: the word before it.
    fn may_call_behind(&self, last: Option<&[u8]>) -> bool {
        self.may_call || last.is_some_and(|word| self.names.may_contain(word))
    }
}

/// Whether a parameter list may have the byte. With others, as in `a$b`, the names are not known here.
fn may_be_in_parameters(byte: &u8) -> bool {
    is_word(*byte) || matches!(byte, b',' | b'.' | b' ' | b'\t')
}

/// Whether code at the beginning of a line is that of a definition.
fn begins_definition(code: &[u8]) -> bool {
    let rest = code.strip_prefix(b"#").or(code.strip_prefix(b"%:"));
    let rest = rest.map(<[u8]>::trim_ascii_start);
    rest.is_some_and(|rest| &rest[..word_length(rest)] == b"define")
}

fn word_length(text: &[u8]) -> usize {
    text.iter().take_while(|byte| is_word(**byte)).count()
}

#[cfg(test)]
mod tests {
    use crate::key::source::Texts;
    use crate::outcome::Bypass;

    fn names_the_file(definitions: &[&str], text: &str) -> bool {
        let mut texts = Texts::default();
        for definition in definitions {
            texts.add_definition(definition.as_bytes()).expect("judged");
        }
        let judged = texts.add(text.as_bytes()).and_then(|_| texts.finish());
        judged == Err(Bypass::UsesTimeOrFileName)
    }

    #[test]
    fn words_that_a_call_may_get_can_be_pasted() {
        for text in [
            "C(__FI, LE__)",
            "C\n(\n__FI,\n(LE__))",
            "C /* ( */ (x /* ) */, __FI, LE__)",
            "#define D C\nD(__FI, LE__)",
            "#define D __FI\n#define E LE__\nint x;",
            "#define D(x) C\nD(1)(__FI, LE__)",
            "#define O C(\nO __FI, LE__)",
            "C(\n#if 0\n)\n#endif\n__FI, LE__)",
            "C\n#if 1\n(__FI, LE__)\n#endif",
            "C/**/(__FI, LE__)",
            "(__FI, LE__)",
            "#define a$b(x, y) x##y\na$b(__FI, LE__)",
            "#define/**/D(x, y) x##y\nD(__FI, LE__)",
            "#if C(__FI, LE__)\n#endif",
            "_id(C)(__FI, LE__)",
            "#define G(x) C(x, LE__)\n#define __builtin_astype(a, b) G a\nas_int(__FI)",
            "#define _cl_exp(x) C(x, LE__)\nexp(__FI)",
            "#define D(__FI, LE__)\n#define E __FI\nC(x, LE__)",
            "#define D(__FI$, LE__) C(__FI, LE__)",
            "#define D(a,/*)*/__FI)\n__FI C(__FI, LE__)",
            "'#define D ' /*\n*/ C(__FI, LE__) /*'*/",
            "#define D ' /*\n*/ C(__FI, LE__)",
            "#define D 1'0 /* '\n*/ C(__FI, LE__)",
            "#define work_group_size_hint(a, b, c) C(a, LE__)\nkernel_exec(__FI, int) void f() {}",
        ] {
            let text = format!("#define C(a, b) a##b\n{text}");
            assert!(names_the_file(&[], &text), "{text}");
        }
        assert!(names_the_file(&["P(a,b)=a##b"], "P(__FI, LE__)"));
        assert!(names_the_file(&["P(a,b)=a##b", "X=__FI", "Y=LE__"], ""));
        assert!(names_the_file(
            &["P(__FI)=0\n#define X(LE__) __FI##LE__"],
            "X(__)"
        ));
    }

    #[test]
    fn a_call_may_begin_in_a_header_and_end_behind_it() {
        for (header, rest) in [
            ("C(", "__FI, LE__)"),
            ("C", "(__FI, LE__)"),
            ("C(\n#if 0\n)\n#endif", "__FI, LE__)"),
        ] {
            let mut texts = Texts::default();
            let rest = format!("#include <a.h>\n{rest}");
            for text in ["#define C(a, b) a##b\n", header, &rest] {
                texts.add(text.as_bytes().to_vec()).expect("judged");
            }
            let judged = texts.finish();
            assert_eq!(judged, Err(Bypass::UsesTimeOrFileName), "{header}");
        }
    }

    #[test]
    fn words_of_functions_and_variables_are_not_pasted() {
        for text in [
            "int __FI, LE__; f(__FI, LE__);",
            "C(x, y); f(__FI, LE__); int z = (x) + g((LE__));",
            "C((x), y) __FI LE__",
            "#define D(__FI, LE__) __FI + f(LE__) + as_int(__FI)\nD(C(1, 2), x)",
            "#define D 1\n#ifdef __FI\n#endif\nint LE__;",
        ] {
            let text = format!("#define C(a, b) a##b\n{text}");
            assert!(!names_the_file(&["\"X=1\"", "Y"], &text), "{text}");
        }
    }
}
