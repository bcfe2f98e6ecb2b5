//! Names of headers that compilers read otherwise elsewhere.

use crate::key::source::Texts;
use crate::outcome::Bypass;

#[test]
fn a_name_that_is_not_one_where_its_directive_is_skipped_is_not_read() {
    for (name, is_read) in [
        ("<a.h>", true),
        ("<a/b.h>", true),
        ("\"a//b.h\"", true),
        ("\"it's.h\"", true),
        ("<a/*b>", false),
        ("<a//b>", false),
        ("<a'b>", false),
        ("<a\"b>", false),
        ("\"a\\\"", false),
    ] {
        for text in [
            format!("#if 0\n#include {name}\n#endif"),
            format!("#if __has_include({name})\n#endif"),
        ] {
            let judged = Texts::default().add(text.as_bytes().to_vec());
            match is_read {
                true => assert_eq!(judged.map(|names| names.len()), Ok(1), "{text}"),
                false => assert_eq!(judged, Err(Bypass::UnresolvedInclude), "{text}"),
            }
        }
    }
}

#[test]
fn a_name_that_begins_within_its_operand_is_not_computed() {
    for operand in ["F(<a  b.h>)", "E <a  b.h>", "F(<a/*b>)"] {
        for text in [
            format!("#include {operand}\n"),
            format!("#if __has_include({operand})\n#endif"),
        ] {
            let judged = Texts::default().add(text.as_bytes().to_vec());
            assert_eq!(judged, Err(Bypass::UnresolvedInclude), "{text}");
        }
    }
}
