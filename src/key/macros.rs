//! The names that macros could make of the operand of an include directive.
//!
//! Nobody but the driver knows which of several definitions holds where a directive stands, since conditions are not
//! evaluated here. So each definition of a name is tried, and none as well, and every name that comes out counts. What a
//! driver defines by itself is not known: a name that could be such a one leaves the directive unresolved.

use std::collections::HashMap;

use crate::outcome::Bypass;

/// How many steps the expansion of one operand may take.
const MOST_STEPS: usize = 20_000;
/// How deep it may go, on a stack of the application's.
const DEEPEST: usize = 400;
/// How many different names may come out.
const MOST_NAMES: usize = 64;

/// A preprocessing token (C99 6.4).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    kind: Kind,
    text: Vec<u8>,
    /// Whether white space stands before it.
    spaced: bool,
    /// The macros that it came from, which are not expanded in it again (C99 6.10.3.4).
    hidden: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Identifier,
    Number,
    Literal,
    Punctuator,
}

/// A macro.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    name: Vec<u8>,
    /// Of a function-like macro; None: object-like.
    parameters: Option<Vec<Vec<u8>>>,
    body: Vec<Token>,
}

impl Definition {
    /// What stands behind `#define`, up to the end of the directive. None: compilers refuse it, or it takes a variable number
    /// of arguments, which no name of a header was ever seen to need; then what uses it stays unresolved.
    pub fn parse(text: &[u8]) -> Option<Definition> {
        let mut tokens = tokens(text).into_iter().peekable();
        let name = tokens
            .next()
            .filter(|token| token.kind == Kind::Identifier)?
            .text;
        let mut parameters = None;
        if tokens
            .next_if(|token| token.is(b"(") && !token.spaced)
            .is_some()
        {
            let mut names = Vec::new();
            while tokens.next_if(|token| token.is(b")")).is_none() {
                if !names.is_empty() && !tokens.next()?.is(b",") {
                    return None;
                }
                names.push(
                    tokens
                        .next()
                        .filter(|token| token.kind == Kind::Identifier)?
                        .text,
                );
            }
            parameters = Some(names);
        }
        Some(Definition {
            name,
            parameters,
            body: tokens.collect(),
        })
    }

    /// A macro definition of the build options: `NAME`, `NAME=VALUE` or `NAME(PARAMETERS)=VALUE`.
    pub fn of_option(text: &[u8]) -> Option<Definition> {
        let mut text = text.to_vec();
        match text.iter().position(|byte| *byte == b'=') {
            Some(equals) => text[equals] = b' ',
            None => text.extend(b" 1"),
        }
        Definition::parse(&text)
    }
}

impl Token {
    fn is(&self, text: &[u8]) -> bool {
        self.kind != Kind::Literal && self.text == text
    }
}

/// Macros by name.
pub struct Macros(HashMap<Vec<u8>, Vec<Definition>>);

impl Macros {
    /// All of these definitions.
    pub fn new(definitions: impl IntoIterator<Item = Definition>) -> Macros {
        let mut macros: HashMap<Vec<u8>, Vec<Definition>> = HashMap::new();
        for definition in definitions {
            let known = macros.entry(definition.name.clone()).or_default();
            if !known.contains(&definition) {
                known.push(definition);
            }
        }
        Macros(macros)
    }

    /// Every header name that an operand could come to be.
    ///
    /// # Errors
    /// [`Bypass::UnresolvedInclude`]: one of them may be a name that only the driver knows.
    pub fn names(&self, operand: &[u8]) -> Result<Vec<Vec<u8>>, Bypass> {
        let mut expansion = Expansion {
            macros: self,
            steps: 0,
        };
        let expanded = expansion.expand(&tokens(operand), 0)?;
        let mut names: Vec<_> = expanded
            .iter()
            .filter_map(|tokens| header_name(tokens))
            .collect();
        names.sort_unstable();
        names.dedup();
        match names.len() {
            1..=MOST_NAMES => Ok(names),
            _ => Err(Bypass::UnresolvedInclude),
        }
    }
}

/// The name that the tokens of an include directive spell (C99 6.10.2); None: an error in every compiler.
fn header_name(tokens: &[Token]) -> Option<Vec<u8>> {
    let (first, rest) = tokens.split_first()?;
    if first.kind == Kind::Literal {
        let inside = first.text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        return Some(inside.to_vec());
    }
    if !first.is(b"<") {
        return None;
    }
    let end = rest.iter().position(|token| token.is(b">"))?;
    Some(spelling(&rest[..end]))
}

/// The tokens with a blank wherever white space stands between two of them.
fn spelling(tokens: &[Token]) -> Vec<u8> {
    let mut text = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        if token.spaced && index > 0 {
            text.push(b' ');
        }
        text.extend(&token.text);
    }
    text
}

struct Expansion<'a> {
    macros: &'a Macros,
    steps: usize,
}

impl<'a> Expansion<'a> {
    /// All that the tokens could be after expansion (C99 6.10.3, by hide sets).
    fn expand(&mut self, tokens: &[Token], depth: usize) -> Result<Vec<Vec<Token>>, Bypass> {
        self.steps += 1;
        if self.steps > MOST_STEPS || depth > DEEPEST {
            return Err(Bypass::UnresolvedInclude);
        }
        let Some((first, rest)) = tokens.split_first() else {
            return Ok(vec![Vec::new()]);
        };
        let mut found = Vec::new();
        if first.kind == Kind::Identifier && !first.hidden.contains(&first.text) {
            if could_be_predefined(&first.text) {
                return Err(Bypass::UnresolvedInclude);
            }
            let macros: &'a Macros = self.macros;
            for definition in macros.0.get(&first.text).into_iter().flatten() {
                for (taken, mut replaced) in self.replace(first, definition, rest, depth)? {
                    replaced.extend_from_slice(&rest[taken..]);
                    found.extend(self.expand(&replaced, depth + 1)?);
                }
            }
        }
        for mut behind in self.expand(rest, depth + 1)? {
            behind.insert(0, first.clone());
            found.push(behind);
        }
        let mut different: Vec<Vec<Token>> = Vec::new();
        for tokens in found {
            if !different.contains(&tokens) {
                different.push(tokens);
            }
        }
        match different.len() > MOST_NAMES {
            true => Err(Bypass::UnresolvedInclude),
            false => Ok(different),
        }
    }

    /// What a macro could make of its name and, if it is function-like, of the arguments in `rest`, and how much of `rest`
    /// those take; nothing without arguments.
    fn replace(
        &mut self,
        name: &Token,
        definition: &Definition,
        rest: &[Token],
        depth: usize,
    ) -> Result<Vec<(usize, Vec<Token>)>, Bypass> {
        let parameters = definition.parameters.as_deref().unwrap_or_default();
        let (arguments, taken) = match definition.parameters {
            None => (Vec::new(), 0),
            Some(_) => match arguments(rest) {
                Some((arguments, taken)) if arguments.len() == parameters.len().max(1) => {
                    (arguments, taken)
                }
                _ => return Ok(Vec::new()),
            },
        };
        // Each argument is expanded by itself first, where neither `#` nor `##` takes it as it is.
        let mut combinations = vec![Vec::new()];
        for (parameter, argument) in parameters.iter().zip(&arguments) {
            let expanded = match definition.expands(parameter) {
                true => self.expand(argument, depth + 1)?,
                false => vec![Vec::new()],
            };
            let longer = combinations
                .iter()
                .flat_map(|combination: &Vec<Vec<Token>>| {
                    expanded.iter().map(|tokens| {
                        [combination.as_slice(), std::slice::from_ref(tokens)].concat()
                    })
                });
            combinations = longer.collect();
            if combinations.len() > MOST_NAMES {
                return Err(Bypass::UnresolvedInclude);
            }
        }
        let substituted = combinations.iter().map(|expanded| {
            let mut made = definition.substitute(&arguments, expanded)?;
            for token in &mut made {
                token
                    .hidden
                    .extend(name.hidden.iter().cloned().chain([name.text.clone()]));
            }
            if let Some(first) = made.first_mut() {
                first.spaced = name.spaced;
            }
            Ok((taken, made))
        });
        substituted.collect()
    }
}

impl Definition {
    fn parameter(&self, token: &Token) -> Option<usize> {
        let mut parameters = self.parameters.iter().flatten();
        let index = parameters.position(|name| *name == token.text)?;
        (token.kind == Kind::Identifier).then_some(index)
    }

    /// Whether the body has the parameter where its argument is expanded.
    fn expands(&self, parameter: &[u8]) -> bool {
        (0..self.body.len()).any(|at| self.body[at].is(parameter) && !self.is_taken_as_it_is(at))
    }

    fn is_taken_as_it_is(&self, at: usize) -> bool {
        let before = at.checked_sub(1).map(|before| &self.body[before]);
        before.is_some_and(|before| before.is(b"#") || before.is(b"##"))
            || self.body.get(at + 1).is_some_and(|next| next.is(b"##"))
    }

    /// The body with arguments in place of parameters (C99 6.10.3.1 to 6.10.3.3).
    fn substitute(
        &self,
        arguments: &[Vec<Token>],
        expanded: &[Vec<Token>],
    ) -> Result<Vec<Token>, Bypass> {
        let mut made: Vec<Token> = Vec::new();
        let mut pastes = false;
        let mut at = 0;
        while let Some(token) = self.body.get(at) {
            at += 1;
            if token.is(b"##") && !pastes && !made.is_empty() {
                pastes = true;
                continue;
            }
            let mut new = match self.parameter(token) {
                Some(index) if self.is_taken_as_it_is(at - 1) => arguments[index].clone(),
                Some(index) => expanded[index].clone(),
                None if token.is(b"#") && self.parameters.is_some() => {
                    let index = self.body.get(at).and_then(|token| self.parameter(token));
                    at += 1;
                    vec![string(&arguments[index.ok_or(Bypass::UnresolvedInclude)?])]
                }
                None => vec![token.clone()],
            };
            if let Some(first) = new.first_mut() {
                first.spaced = token.spaced;
            }
            if std::mem::take(&mut pastes)
                && let (Some(left), Some(right)) = (made.last_mut(), new.first())
            {
                let pasted = tokens(&[left.text.as_slice(), &right.text].concat());
                let [pasted] = pasted.as_slice() else {
                    return Err(Bypass::UnresolvedInclude);
                };
                (left.kind, left.text) = (pasted.kind, pasted.text.clone());
                new.remove(0);
            }
            made.append(&mut new);
        }
        Ok(made)
    }
}

/// The string that `#` makes of an argument (C99 6.10.3.2).
fn string(argument: &[Token]) -> Token {
    let mut text = b"\"".to_vec();
    for (index, token) in argument.iter().enumerate() {
        if token.spaced && index > 0 {
            text.push(b' ');
        }
        for byte in &token.text {
            if token.kind == Kind::Literal && matches!(byte, b'"' | b'\\') {
                text.push(b'\\');
            }
            text.push(*byte);
        }
    }
    text.push(b'"');
    Token {
        kind: Kind::Literal,
        text,
        spaced: false,
        hidden: Vec::new(),
    }
}

/// The arguments in parentheses at the beginning of `rest`, and how many tokens they take.
fn arguments(rest: &[Token]) -> Option<(Vec<Vec<Token>>, usize)> {
    if !rest.first()?.is(b"(") {
        return None;
    }
    let mut arguments = vec![Vec::new()];
    let mut open = 1;
    for (index, token) in rest.iter().enumerate().skip(1) {
        open += i32::from(token.is(b"(")) - i32::from(token.is(b")"));
        match open {
            0 => return Some((arguments, index + 1)),
            1 if token.is(b",") => arguments.push(Vec::new()),
            _ => arguments.last_mut()?.push(token.clone()),
        }
    }
    None
}

/// The tokens of a text whose lines are joined; comments are white space.
fn tokens(text: &[u8]) -> Vec<Token> {
    let byte = |at: usize| text.get(at).copied().unwrap_or(b'\n');
    let is_word =
        |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || !byte.is_ascii();
    let mut tokens = Vec::new();
    let (mut at, mut spaced) = (0, false);
    while at < text.len() {
        let start = at;
        let kind = match (byte(at), byte(at + 1)) {
            (b'/', b'/') => break,
            (b'/', b'*') => {
                let end = text[at + 2..].windows(2).position(|pair| pair == b"*/");
                at = end.map_or(text.len(), |end| at + 2 + end + 2);
                spaced = true;
                continue;
            }
            (blank, _) if blank.is_ascii_whitespace() || matches!(blank, 0 | 0x0B) => {
                at += 1;
                spaced = true;
                continue;
            }
            (quote @ (b'"' | b'\''), _) => {
                at += 1;
                while at < text.len() && byte(at) != quote {
                    at += 1 + usize::from(byte(at) == b'\\');
                }
                at = (at + 1).min(text.len());
                Kind::Literal
            }
            (first, next) if first.is_ascii_digit() || first == b'.' && next.is_ascii_digit() => {
                // A preprocessing number (C99 6.4.8).
                while is_word(byte(at))
                    || byte(at) == b'.'
                    || at > start && is_sign(byte(at - 1), byte(at))
                {
                    at += 1;
                }
                Kind::Number
            }
            (first, _) if is_word(first) => {
                while is_word(byte(at)) {
                    at += 1;
                }
                Kind::Identifier
            }
            (b'#', b'#') => {
                at += 2;
                Kind::Punctuator
            }
            _ => {
                at += 1;
                Kind::Punctuator
            }
        };
        let text = text[start..at].to_vec();
        tokens.push(Token {
            kind,
            text,
            spaced,
            hidden: Vec::new(),
        });
        spaced = false;
    }
    tokens
}

/// Whether a sign belongs to the number that ends in the byte before it.
fn is_sign(before: u8, sign: u8) -> bool {
    matches!(before, b'e' | b'E' | b'p' | b'P') && matches!(sign, b'+' | b'-')
}

/// Whether a compiler could define the name by itself: reserved names, those of systems and processors in GNU modes, and in
/// OpenCL C extensions, constants and built-in functions, which PoCL's headers make macros of (measured: `_builtin_renames.h`).
fn could_be_predefined(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 20] = [
        b"_",
        b"CL_",
        b"cl_",
        b"CLK_",
        b"M_",
        b"FLT_",
        b"DBL_",
        b"HALF_",
        b"FP_",
        b"as_",
        b"convert_",
        b"native_",
        b"half_",
        b"vload",
        b"vstore",
        b"read_",
        b"write_",
        b"async_",
        b"atomic_",
        b"atom_",
    ];
    const NAMES: &str = " linux unix i386 sun vax mips sparc arm NULL NAN INFINITY MAXFLOAT HUGE_VAL HUGE_VALF \
        CHAR_BIT CHAR_MAX CHAR_MIN SCHAR_MAX SCHAR_MIN UCHAR_MAX SHRT_MAX SHRT_MIN USHRT_MAX INT_MAX INT_MIN UINT_MAX \
        LONG_MAX LONG_MIN ULONG_MAX kernel_exec bool true false event_t size_t ptrdiff_t intptr_t uintptr_t printf \
        abs abs_diff acos acosh acospi add_sat all any asin asinh asinpi atan atan2 atan2pi atanh atanpi barrier \
        bitselect cbrt ceil clamp clz copysign cos cosh cospi cross ctz degrees distance dot erf erfc exp exp10 exp2 \
        expm1 fabs fast_distance fast_length fast_normalize fdim floor fma fmax fmin fmod fract frexp hadd hypot ilogb \
        isequal isfinite isgreater isgreaterequal isinf isless islessequal islessgreater isnan isnormal isnotequal \
        isordered isunordered ldexp length lgamma lgamma_r log log10 log1p log2 logb mad mad24 mad_hi mad_sat max \
        maxmag mem_fence min minmag mix modf mul24 mul_hi nan nextafter normalize popcount pow pown powr prefetch \
        radians remainder remquo rhadd rint rootn rotate round rsqrt select shuffle shuffle2 sign signbit sin sincos \
        sinh sinpi smoothstep sqrt step sub_sat tan tanh tanpi tgamma trunc upsample vec_step wait_group_events \
        work_group_barrier half half2 ";
    let is_one = |known: &str| known.as_bytes() == name;
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || NAMES.split_ascii_whitespace().any(is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(operand: &str, definitions: &[&str]) -> Result<Vec<String>, Bypass> {
        let parse = |text: &&str| Definition::parse(text.as_bytes()).expect("a definition");
        let names = Macros::new(definitions.iter().map(parse)).names(operand.as_bytes())?;
        Ok(names
            .into_iter()
            .map(|name| String::from_utf8(name).expect("UTF-8"))
            .collect())
    }

    #[track_caller]
    fn check(operand: &str, definitions: &[&str], expected: &[&str]) {
        assert_eq!(
            found(operand, definitions),
            Ok(expected.iter().map(|name| name.to_string()).collect())
        );
    }

    const UNRESOLVED: Result<Vec<String>, Bypass> = Err(Bypass::UnresolvedInclude);

    #[test]
    fn a_name_comes_from_an_object_like_macro() {
        check("NAME", &["NAME \"a.h\""], &["a.h"]);
        check("NAME", &["NAME <sub/a.h>"], &["sub/a.h"]);
        check("NAME", &["NAME OTHER", "OTHER /* why */ \"a.h\""], &["a.h"]);
        check("NAME // why", &["NAME \"a.h\""], &["a.h"]);
    }

    #[test]
    fn each_of_several_definitions_counts() {
        check("NAME", &["NAME \"a.h\"", "NAME \"b.h\""], &["a.h", "b.h"]);
        check(
            "S(DIR/a.h)",
            &["S(x) T(x)", "T(x) #x", "DIR one", "DIR two"],
            &["DIR/a.h", "one/a.h", "two/a.h"],
        );
    }

    #[test]
    fn arguments_are_made_strings_as_compilers_make_them() {
        let both = [
            "XM2S(x) #x",
            "M2S(x) XM2S(x)",
            "INCLUDE_PATH /usr/share/app",
        ];
        check(
            "M2S(INCLUDE_PATH/inc_x.h)",
            &both,
            &["/usr/share/app/inc_x.h", "INCLUDE_PATH/inc_x.h"],
        );
        check("M2S( a /* */ b.h )", &both, &["a b.h"]);
        check("XM2S(INCLUDE_PATH/x.h)", &both, &["INCLUDE_PATH/x.h"]);
        check("M2S(a-1.0e+5/x.h)", &both, &["a-1.0e+5/x.h"]);
    }

    #[test]
    fn tokens_are_pasted_and_put_between_angle_brackets() {
        check("IN(a)", &["IN(x) <x##_b.h>"], &["a_b.h"]);
        check(
            "IN(A)",
            &["IN(x) IN2(x)", "IN2(x) <x/y.h>", "A z"],
            &["A/y.h", "z/y.h"],
        );
        check("F(a, b)", &["F(x, y) <x/y.h>"], &["a/b.h"]);
        check("F()", &["F() \"a.h\""], &["a.h"]);
    }

    #[test]
    fn what_only_a_driver_may_know_stays_unresolved() {
        assert_eq!(found("NAME", &[]), UNRESOLVED);
        assert_eq!(found("__HEADER__", &["__HEADER__ \"a.h\""]), UNRESOLVED);
        assert_eq!(
            found("S(/usr/linux/a.h)", &["S(x) T(x)", "T(x) #x"]),
            UNRESOLVED
        );
        assert_eq!(
            found("S(lib/length.h)", &["S(x) T(x)", "T(x) #x"]),
            UNRESOLVED
        );
        assert_eq!(found("F(a", &["F(x) #x"]), UNRESOLVED);
        assert_eq!(found("F(a, b)", &["F(x) #x"]), UNRESOLVED);
    }

    #[test]
    fn macros_that_expand_without_end_are_given_up() {
        check("A", &["A B", "B A", "B \"b.h\""], &["b.h"]);
        let many: Vec<String> = (0..100).map(|index| format!("A \"{index}.h\"")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(found("A", &many), UNRESOLVED);
        let wide = [
            "A(x) B(x x x x x x x x)",
            "B(x) C(x x x x x x x x)",
            "C(x) A(x) B(x) D(x)",
            "D(x) #x",
            "x y",
        ];
        assert_eq!(found("A(B(C(A(B(C(x))))))", &wide), UNRESOLVED);
    }

    #[test]
    fn definitions_of_options_have_their_value_behind_the_equals_sign() {
        let of = |text: &[u8]| Definition::of_option(text);
        assert_eq!(of(b"X=<a.h>"), Definition::parse(b"X <a.h>"));
        assert_eq!(of(b"X"), Definition::parse(b"X 1"));
        assert_eq!(of(b"M(x)=#x"), Definition::parse(b"M(x) #x"));
        assert_eq!(of(b"'X=1"), None);
        assert_eq!(of(b"V(...)=x"), None);
    }
}
