//! What variables make a compiler read, beside what the text of a program names.

use crate::key::options::asks_for_debug;
use crate::key::source::could_be_cpp;

/// Files that variables make a compiler read and that the text of a program does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Nothing.
    #[default]
    Nothing,
    /// Headers that a program names, in directories that are not searched here.
    HeadersElsewhere,
    /// Headers and other files that options name, whatever the program is, or that texts may name in a language that they choose; or
    /// the names of directories, for debug information.
    Files,
    /// Code that compiles, whatever is compiled.
    Compilers,
}

/// Options that are recognized in any variable.
const OPTIONS_OF_HEADERS: &[&[u8]] = &[
    b"-I",
    b"-D",
    b"-include",
    b"-imacros",
    b"-isystem",
    b"-iquote",
    b"-idirafter",
];

impl Reads {
    /// What a variable in the key makes a compiler read: options that define macros, that name headers, directories or other files,
    /// that choose C++ for OpenCL, in which a program is judged otherwise, or that ask for debug information (measured on Intel's CPU
    /// runtime: `OPENCL_PROGRAM_COMPILE_OPTIONS=-g` puts the include directories into the binary).
    /// Their meaning for a program is not followed.
    pub(super) fn of(name: &str, value: &[u8]) -> Reads {
        let name = name.to_ascii_uppercase();
        // Measured: Intel's CPU runtime opens what OCLBACKEND_PLUGINS names, and ends the process if it is not there. Oclgrind 21.10 takes
        // a precompiled header, which may hold functions and options, from OCLGRIND_PCH_DIR.
        if (name.contains("PLUGIN") || name.contains("PCH")) && !value.is_empty() {
            return Reads::Compilers;
        }
        if name.ends_with("INCLUDE_PATH") || name.ends_with("CPATH") {
            // Clang and GCC treat an empty value as none.
            return match value {
                [] => Reads::Nothing,
                _ => Reads::HeadersElsewhere,
            };
        }
        let has_options = ["OPT", "FLAGS", "ARGS"]
            .iter()
            .any(|part| name.contains(part));
        let mut words = value
            .split(|byte| byte.is_ascii_whitespace() || b"\"',;".contains(byte))
            // CCC_OVERRIDE_OPTIONS of clang's driver has options after such a mark.
            .map(|word| {
                let signs = word.iter().take_while(|byte| b"+^".contains(byte));
                &word[signs.count()..]
            });
        let reads_file = |word: &[u8]| {
            let begins = |options: &[&[u8]]| options.iter().any(|option| word.starts_with(option));
            let names_file =
                || word.contains(&b'/') || !word.starts_with(b"-") && word.contains(&b'.');
            begins(OPTIONS_OF_HEADERS)
                || has_options
                    && (begins(&[b"-i", b"-U", b"--", b"@"])
                        || names_file()
                        || asks_for_debug(word))
        };
        // Measured on Oclgrind: quotes part no words, so that `"-"I` is an option.
        let is_quoted = has_options && value.iter().any(|byte| b"\"'\\".contains(byte));
        match is_quoted || words.any(reads_file) || could_be_cpp(value) {
            true => Reads::Files,
            false => Reads::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_from_outside_that_name_headers_or_files_are_told() {
        for (name, value) in [
            ("POCL_EXTRA_BUILD_FLAGS", "-w -I/opt/include"),
            ("POCL_EXTRA_BUILD_FLAGS", "@options"),
            ("POCL_EXTRA_BUILD_FLAGS", "-Xclang /opt/pass.so"),
            ("POCL_EXTRA_BUILD_FLAGS", "-mlink-builtin-bitcode a.bc"),
            ("POCL_ARGS_CLANG", "-fprofile-use=/tmp/a"),
            ("AMD_OCL_BUILD_OPTIONS_APPEND", "-include a.h"),
            ("InjectInternalBuildOptions", "-DHEADER=<a.h>"),
            ("OPENCL_PROGRAM_COMPILE_OPTIONS", "-I/opt/include"),
            ("CCC_OVERRIDE_OPTIONS", "+-I. ^-include"),
            ("OCLGRIND_BUILD_OPTIONS", "\"-\"Iinclude"),
            ("SOMETHING_ELSE", "-I/opt/include"),
            ("SOMETHING_ELSE", "-w,-include,a.h"),
            ("OPENCL_PROGRAM_COMPILE_OPTIONS", "-w -cl-std=CLC++2021"),
            ("OPENCL_PROGRAM_COMPILE_OPTIONS", "-g"),
            ("AMD_OCL_BUILD_OPTIONS_APPEND", "-w -cl-kernel-debug-enable"),
            ("InjectInternalBuildOptions", "-gline-tables-only"),
        ] {
            assert_eq!(
                Reads::of(name, value.as_bytes()),
                Reads::Files,
                "{name}={value}"
            );
        }
        let plug_in = Reads::of("OCLBACKEND_PLUGINS", b"/opt/plug_in.so");
        assert_eq!(plug_in, Reads::Compilers);
        assert_eq!(Reads::of("OCLBACKEND_PLUGINS", b""), Reads::Nothing);
        let precompiled = Reads::of("OCLGRIND_PCH_DIR", b"/opt/headers");
        assert_eq!(precompiled, Reads::Compilers);
        for (name, value) in [
            ("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable -w -cl-std=CL1.2"),
            ("POCL_DEVICES", "cpu"),
            ("POCL_PATH_CLANG", "/usr/bin/clang"),
            ("LESS", "-iMR --mouse -g"),
            ("CPATH", ""),
        ] {
            assert_eq!(
                Reads::of(name, value.as_bytes()),
                Reads::Nothing,
                "{name}={value}"
            );
        }
        for name in [
            "CPATH",
            "C_INCLUDE_PATH",
            "CPLUS_INCLUDE_PATH",
            "OBJC_INCLUDE_PATH",
        ] {
            assert_eq!(
                Reads::of(name, b"/opt/include"),
                Reads::HeadersElsewhere,
                "{name}"
            );
        }
    }
}
