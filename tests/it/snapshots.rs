//! What people see, as files beside the tests: a change of it is looked at, not overlooked. `INSTA_UPDATE=always cargo test`
//! writes them anew.

use crate::support::{Sandbox, built};

/// What differs from run to run, and how it stands in the files.
const VARYING: [(&str, &str); 10] = [
    (r"/entries/[0-9a-f]{2}/", "/entries/[KEY]/"),
    (
        r#""(bytes|created|compile_ns|used_ms)": \d+"#,
        "\"$1\": [NUMBER]",
    ),
    (r"client \(\d+\), kernels", "client ([NUMBER]), kernels"),
    (r"\b20\d\d-\d\d(-\d\d)?\b", "[DATE]"),
    (r"\b[0-9a-f]{16,64}\b", "[KEY]"),
    (r"\b\d+(\.\d+)? (µs|ms|s|min|h)\b", "[TIME]"),
    (r"\b\d+ (s|min|h|days) ago\b", "[AGO]"),
    (r"\b\d+(\.\d+)? (B|KiB|MiB|GiB)( +free)?\b", "[SIZE]"),
    // Columns are as wide as their largest number.
    (r" {2,}\[SIZE\]", "  [SIZE]"),
    (
        concat!(r"\b", env!("CARGO_PKG_VERSION"), r"\b"),
        "[VERSION]",
    ),
];

/// What was shown is what the file of this name says, but for places, times, sizes and keys.
#[track_caller]
pub fn assert_shown(sandbox: &Sandbox, name: &str, shown: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_snapshot_path("snapshots");
    let places = [(sandbox.path(""), "[SANDBOX]/"), (built(), "[BUILT]")];
    for (path, name) in places {
        let path = path.to_str().expect("UTF-8");
        settings.add_filter(&literal(path), name);
    }
    for (pattern, name) in VARYING {
        settings.add_filter(pattern, name);
    }
    settings.bind(|| insta::assert_snapshot!(name, shown));
}

/// A pattern for this text.
fn literal(text: &str) -> String {
    let mut pattern = String::new();
    for character in text.chars() {
        if !character.is_ascii_alphanumeric() && character.is_ascii() {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}
