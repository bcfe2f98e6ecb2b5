//! Progress of long work, shown on terminals only.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of so many steps; the message behind it says what is done.
pub fn bar(steps: u64, doing: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(steps).with_message(doing);
    styled(bar, "{pos}/{len} {wide_bar} {msg}")
}

/// A count of files where the number of steps is not known before.
pub fn counter() -> ProgressBar {
    styled(ProgressBar::new_spinner(), "{spinner} files: {pos}")
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
