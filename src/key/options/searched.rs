//! Options that drivers look for in the whole text of the options, also inside another word.

/// How the options of OpenCL and of drivers begin.
pub(super) const OF_DRIVERS: [&[u8]; 3] = [b"-cl-", b"-nv-", b"-ze-"];

/// How the options begin that a driver itself may look for; those of clang it hands on. Measured with 36 options in the name of a
/// directory and in the value of a macro: PoCL 3.1 obeys `-cl-std=` and `-cl-fast-relaxed-math`, Intel's GPU driver 22.43 also
/// `-cl-fp32-correctly-rounded-divide-sqrt`, `-gline-tables-only` and `-dump-opt-llvm`, rusticl 22.3 `-create-library`; Intel's CPU
/// runtime 2026.2 and Oclgrind 21.10 none, and no driver obeys `-g`, `-w`, `-O0` or `-x` there.
const SEARCHED: [&[u8]; 7] = [
    OF_DRIVERS[0],
    OF_DRIVERS[1],
    OF_DRIVERS[2],
    b"-spir-std=",
    b"-create-library",
    b"-enable-link-options",
    b"-gline-",
];

/// Intel's GPU driver 22.43 takes this option out of the options wherever it stands (measured: in the name of a directory and in the value
/// of a macro), so that its compiler reads another word.
const TAKEN_OUT: &[u8] = b"-Wno-recompiled-from-ir";

/// Intel's GPU driver writes a file for this option, wherever it stands.
const WRITES_FILE: &[u8] = b"-dump-opt-llvm";

/// Whether a driver may find an option in another word that it obeys, so that it does something else than these words say.
/// `uncertain`: whether drivers differ in how these options are split into words.
pub(super) fn has_hidden_option(options: &[u8], uncertain: bool) -> bool {
    let has = |word: &[u8], option: &[u8]| word.windows(option.len()).any(|part| part == option);
    let mut words = options.split(u8::is_ascii_whitespace);
    words.any(|word| {
        has(word, WRITES_FILE) || has(word, TAKEN_OUT) && (uncertain || word != TAKEN_OUT)
    })
}

/// What such drivers may take for options in a text: from the first of each part that has no blank and no slash to the part's end.
pub(super) fn searched(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = text.split(|byte| *byte == b'/' || byte.is_ascii_whitespace());
    parts.filter_map(|part| {
        let begins = |at: &usize| {
            SEARCHED
                .iter()
                .any(|option| part[*at..].starts_with(option))
        };
        (0..part.len()).find(begins).map(|at| &part[at..])
    })
}

/// Whether such an option may ask for debug information.
pub(super) fn says_debug(option: &[u8]) -> bool {
    let says = |text: &[u8]| option.windows(text.len()).any(|window| window == text);
    says(b"debug") || says(b"line")
}
