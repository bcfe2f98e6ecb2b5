//! Makes the C program that compiles an extracted program again. It needs a C compiler and an OpenCL loader, but no headers of OpenCL
//! and not oclcache.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use super::headers::Headers;
use crate::cli::recipe_environment::is_harmless;
use crate::key::ingredients::{Kind, digest_of};
use crate::store::entry::Meta;
use crate::store::recipe::{RecipeBase, RecipeOperation, StoredRecipe};

const PROGRAM: &str = include_str!("rebuild.c");

const SCRIPT_HEAD: &str = "#!/bin/sh
# Compiles this program again with the OpenCL driver of this machine, without oclcache. It needs a C compiler (cc, or what CC names)
# and an OpenCL loader (libOpenCL.so.1, or what OPENCL_LIBRARY names). With --any it uses any device.
set -eu
cd -- \"$(dirname -- \"$0\")\"
work=$(mktemp -d)
trap 'rm -rf -- \"$work\"' EXIT
\"${CC:-cc}\" -w -o \"$work/rebuild\" rebuild.c -ldl
OCLCACHE_DISABLE=1
export OCLCACHE_DISABLE
";
const SCRIPT_TAIL: &str = "\"$work/rebuild\" \"$@\"\n";

/// The script. It sets the variables that the entry was compiled with, if they are harmless; messages name the others.
pub fn script(meta: &Meta, lacking: &mut Vec<String>) -> String {
    let mut script = SCRIPT_HEAD.to_owned();
    for one in meta
        .ingredients
        .iter()
        .filter(|one| one.kind == Kind::Environment)
    {
        let value = str::from_utf8(&one.value).ok();
        if digest_of(&one.value).is_some() {
            lacking.push(format!(
                "rebuild.sh does not set the variable {}: only its digest is stored",
                crate::log::text(one.name.as_bytes())
            ));
            continue;
        }
        match value.filter(|_| is_harmless(&meta.driver_family, &one.name, &one.value)) {
            Some(value) => {
                let quoted = value.replace('\'', "'\\''");
                let _ = write!(script, "{0}='{quoted}'\nexport {0}\n", one.name);
            }
            None => lacking.push(format!(
                "rebuild.sh does not set the variable {}: environment.txt has its value",
                crate::log::text(one.name.as_bytes())
            )),
        }
    }
    script + SCRIPT_TAIL
}

/// The C program.
pub fn program(recipe: &StoredRecipe, headers: &Headers, file: &str) -> String {
    let (is_il, constants) = match &recipe.base {
        RecipeBase::Il(_, constants) => (1, Some(constants)),
        _ => (0, None),
    };
    let compiles = i32::from(matches!(recipe.operation, RecipeOperation::Compile(_)));
    let options = headers.options.as_ref();
    let options = options.map_or("NULL".to_owned(), |options| literal(options));
    let directory = literal(headers.working_directory.as_os_str().as_bytes());
    let mut text = format!(
        "#include <stddef.h>\n\n\
         static const char program_file[] = \"{file}\";\n\
         static const int is_il = {is_il}, compiles = {compiles};\n\
         static const char *const options = {options};\n\
         static const char working_directory[] = {directory};\n"
    );
    text += "static const char *const device_names[] = {";
    for device in &recipe.devices {
        let name = device.name.strip_suffix(b"\0").unwrap_or(&device.name);
        let _ = write!(text, "{}, ", literal(name));
    }
    text += "NULL};\n";
    let listed = recipe.listed.as_deref();
    let _ = writeln!(
        text,
        "static const int listed_count = {};",
        listed.map_or(-1, |it| it.len() as i64)
    );
    text += "static const unsigned listed[] = {";
    for index in listed.unwrap_or_default() {
        let _ = write!(text, "{index}, ");
    }
    text += "0};\nstatic const struct { const char *name, *file; } headers[] = {";
    for (name, file) in &headers.embedded {
        let _ = write!(
            text,
            "{{{}, {}}}, ",
            literal(name),
            literal(file.as_os_str().as_bytes())
        );
    }
    text += "{NULL, NULL}};\nstatic const struct { unsigned id, size; const char *value; } constants[] = {";
    for (id, value) in constants.into_iter().flatten() {
        let _ = write!(text, "{{{id}, {}, {}}}, ", value.len(), literal(value));
    }
    text + "{0, 0, NULL}};\n" + PROGRAM
}

/// A string literal of C with any bytes.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b' ' | b'!' | b'#'..=b'>' | b'@'..=b'[' | b']'..=b'~' => text.push(*byte as char),
            other => {
                let _ = write!(text, "\\{other:03o}");
            }
        }
    }
    text + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_any_bytes_stays_one_string_of_c() {
        assert_eq!(literal(b"-DX=1"), "\"-DX=1\"");
        assert_eq!(
            literal(b"\"; system(\"x\"); \\"),
            r#""\042; system(\042x\042); \134""#
        );
        assert_eq!(literal(b"??/\n\xff7"), r#""\077\077/\012\3777""#);
    }
}
