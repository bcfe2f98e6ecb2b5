use super::*;

fn found(operand: &str, definitions: &[&str]) -> Result<Vec<String>, Bypass> {
    let parse = |text: &&str| Definition::parse(text.as_bytes()).expect("a definition");
    let names = Macros::new(definitions.iter().map(parse)).names(operand.as_bytes(), &mut 0)?;
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
fn white_space_belongs_to_a_name_between_angle_brackets() {
    check("< a.h>", &[], &[" a.h"]);
    check("<a.h >", &[], &["a.h "]);
    check("N", &["N  <a  b/*c*/c.h>"], &["a b c.h"]);
    check("<E/b.h>", &["E"], &["/b.h", "E/b.h"]);
    assert_eq!(found("<a E/b.h>", &["E"]), UNRESOLVED);
    assert_eq!(found("F(,b)", &["F(x, y) <a x/y>"]), UNRESOLVED);
    assert_eq!(found("F(,b)", &["F(x, y) <a x##y>"]), UNRESOLVED);
}

#[test]
fn what_compilers_take_for_other_tokens_stays_unresolved() {
    for operand in ["<a->b.h>", "<a:>b.h>", "<a>>", "S(x\u{2013}y)", "S(x$y)"] {
        assert_eq!(found(operand, &["S(x) #x", "x z"]), UNRESOLVED, "{operand}");
    }
    assert_eq!(found("N", &["N \"a.h\"", "N\u{2013} \"b.h\""]), UNRESOLVED);
}

#[test]
fn a_definition_that_is_not_understood_counts() {
    assert_eq!(
        found("N(1)", &["N(x) \"a.h\"", "N(...) \"b.h\""]),
        UNRESOLVED
    );
    assert_eq!(
        found("N(1)", &["N(x) \"a.h\"", "N(x...) \"b.h\""]),
        UNRESOLVED
    );
    let long = format!("N \"{}\"", "x".repeat(LONGEST));
    assert_eq!(found("N", &["N \"a.h\"", &long]), UNRESOLVED);
    // C99 6.10.3.4: unspecified whether the second F is expanded.
    let nested = ["F(x) <x/G", "G(x) F(x)>"];
    assert_eq!(found("F(2)(9)", &nested), UNRESOLVED);
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
    assert!(of(b"V(...)=x").is_some_and(|definition| definition.opaque));
}
