use super::*;

fn found(operand: &str, definitions: &[&str]) -> Result<Vec<String>, Bypass> {
    let mut macros = Macros::default();
    for definition in definitions {
        macros.add(definition.as_bytes())?;
    }
    let operand = macros.operand(operand.as_bytes())?;
    let names = macros.names(&operand)?;
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
    let long = format!("N \"{}\"", "x".repeat(MAX_TEXT_BYTES));
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
    let of = |option: &[u8], operand: &[u8]| {
        let mut macros = Macros::default();
        macros.add_option(option).expect("memory");
        let operand = macros.operand(operand).expect("short");
        macros.names(&operand)
    };
    assert_eq!(of(b"X=<a.h>", b"X"), Ok(vec![b"a.h".to_vec()]));
    assert_eq!(of(b"M(x)=#x", b"M(a.h)"), Ok(vec![b"a.h".to_vec()]));
    let with_one = Ok(vec![b"1.h".to_vec(), b"X.h".to_vec()]);
    assert_eq!(of(b"X", b"<X.h>"), with_one);
    let undefined = Ok(vec![b"X.h".to_vec()]);
    assert_eq!(of(b"'X=1", b"<X.h>"), undefined);
    assert_eq!(of(b"V(...)=x", b"<V.h>"), Err(Bypass::UnresolvedInclude));
}

/// The stack is the application's.
#[test]
fn macros_that_stand_deep_in_one_another_are_expanded_on_a_small_stack() {
    let expand = || {
        for (length, is_found) in [(60, true), (390, false)] {
            let chain = (1..=length).map(|index| format!("A{index} A{}", index - 1));
            let chain: Vec<_> = chain.chain(["A0 <a.h>".to_owned()]).collect();
            let chain: Vec<_> = chain.iter().map(String::as_str).collect();
            let expected = is_found.then(|| vec!["a.h".to_owned()]);
            let found = found(&format!("A{length}"), &chain);
            assert_eq!(found, expected.ok_or(Bypass::UnresolvedInclude));
        }
        let nested = format!("{}a{}", "F(".repeat(90), ")".repeat(90));
        let open = format!("<{nested}.h>");
        assert_eq!(
            found(&open, &["F(x) x"]),
            UNRESOLVED,
            "some stay as they are"
        );
        let chain = ["G(x) #x"];
        check(&format!("G({nested})"), &chain, &[nested.as_str()]);
    };
    let small = std::thread::Builder::new().stack_size(48 << 10);
    small.spawn(expand).expect("a thread").join().expect("room");
}

/// What the expansion of one operand costs is bounded by a constant, and definitions cost as much as they are long.
#[test]
fn no_macros_cost_more_than_linear_time() {
    let cost = |count: usize| {
        let definitions: Vec<_> = (0..count)
            .map(|index| format!("D{index:06}(x, y) x y D{:06}(x y) x x x", index + 1))
            .collect();
        let work = Work::default();
        work.allow_for(definitions.iter().map(String::len).sum());
        let mut macros = Macros::new(work.clone());
        for definition in &definitions {
            macros.add(definition.as_bytes()).expect("memory");
        }
        for operand in ["D000000(a, b)", "D000001(D000001(a, b), c)"] {
            let operand = macros.operand(operand.as_bytes()).expect("short");
            assert_eq!(macros.names(&operand), Err(Bypass::UnresolvedInclude));
        }
        work.spent()
    };
    let (once, twice) = (cost(20_000), cost(40_000));
    assert!(twice <= 2 * once, "{once}, then {twice}");
    let nested = format!("{}\"{}", "T(".repeat(60), ")".repeat(60));
    let work = Work::default();
    let mut macros = Macros::new(work.clone());
    for definition in ["S(x) #x", "T(x) S(x)"] {
        macros.add(definition.as_bytes()).expect("memory");
    }
    let operand = macros.operand(nested.as_bytes()).expect("short");
    assert!(macros.names(&operand).is_err());
    let most = 2 * (STEPS_OF_TOKEN * MAX_WORK + STEPS_OF_ADVANCE * MAX_STEPS);
    assert!(work.spent() < most, "{}", work.spent());
}

#[test]
fn a_name_far_behind_its_directive_counts() {
    let far = format!("/*{}*/ N \"b.h\"", "x".repeat(MAX_TEXT_BYTES));
    assert_eq!(found("N", &["N \"a.h\"", &far]), UNRESOLVED);
}

#[test]
fn definitions_that_come_later_count() {
    let mut macros = Macros::default();
    let operand = macros.operand(b"N").expect("short");
    for (number, added) in ["N \"0.h\"", "M x", "N \"1.h\"", "N  \"1.h\""]
        .iter()
        .enumerate()
    {
        macros.add(added.as_bytes()).expect("memory");
        let names = macros.names(&operand).expect("resolved");
        assert_eq!(names.len(), 1 + usize::from(number >= 2), "{added}");
    }
    macros.add(b"N(...) x").expect("memory");
    assert_eq!(macros.names(&operand), Err(Bypass::UnresolvedInclude));
}

/// clang takes a no-break space for a blank (measured on Intel's CPU runtime).
#[test]
fn a_definition_with_an_odd_blank_hides_no_other() {
    for definition in ["\u{a0}NAME \"b.h\"", "\u{a0}"] {
        let found = found("NAME", &["NAME \"a.h\"", definition]);
        assert_eq!(found, UNRESOLVED, "{definition}");
    }
    for definition in ["F(a\u{a0}) a", "F(/*)*/a\u{a0}) a", "F(a, b\u{2003}) a"] {
        let found = found("F(<b.h>)", &["F(x) \"a.h\"", definition]);
        assert_eq!(found, UNRESOLVED, "{definition}");
    }
}
