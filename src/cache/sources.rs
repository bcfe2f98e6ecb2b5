//! Sources that were keyed before. Of one that names no header its bytes and the options say everything, but for the headers that
//! the driver includes in each; so what was found of it is remembered, and the next build of the same neither scans nor hashes it.
//! Texts are compared byte by byte.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::fallible;
use crate::fork_safety::Mutex;
use crate::key::source;
use crate::outcome::Bypass;
use crate::shadow::Text;

/// How many are remembered.
const MAX_SOURCES: usize = 256;

/// How many bytes they have together at most.
const MAX_BYTES: usize = 8 << 20;

/// A source that names no header with these options, or none but those that are looked for anyway.
pub struct Source {
    /// Its bytes, shared by all programs of it.
    pub text: Text,
    options: Option<Vec<u8>>,
    /// What the driver includes in each program.
    implicit: &'static [&'static str],
    /// The key's part for this source: the SHA-256 of the text, and the remark that goes with it.
    pub keyed: ([u8; 32], &'static str),
}

impl Source {
    fn bytes(&self) -> usize {
        self.text.len() + self.options.as_ref().map_or(0, Vec::len)
    }
}

/// The last of them.
#[derive(Default)]
pub struct Sources(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The one that was used last comes last.
    sources: VecDeque<Arc<Source>>,
    bytes: usize,
}

impl Sources {
    /// What is known of a text that is built with these options. No options are something else than empty ones.
    pub fn find(
        &self,
        text: &[u8],
        options: Option<&[u8]>,
        implicit: &[&str],
    ) -> Option<Arc<Source>> {
        let known = self.0.lock();
        let is_alike = |one: &&Arc<Source>| {
            one.text.len() == text.len()
                && one.options.as_deref() == options
                && one.implicit == implicit
        };
        let alike: Vec<_> = known
            .sources
            .iter()
            .rev()
            .filter(is_alike)
            .cloned()
            .collect();
        drop(known); // it takes a while to compare megabytes
        let found = alike.into_iter().find(|one| *one.text == text)?;
        let sources = &mut self.0.lock().sources;
        if let Some(place) = sources.iter().rposition(|one| Arc::ptr_eq(one, &found)) {
            sources.remove(place);
            sources.push_back(found.clone());
        }
        Some(found)
    }

    /// Remembers a source that was not found.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn remember(
        &self,
        text: &Text,
        options: Option<&[u8]>,
        implicit: &'static [&'static str],
        keyed: ([u8; 32], &'static str),
    ) -> Result<(), Bypass> {
        let source = Source {
            text: text.clone(),
            options: options.map(fallible::copy).transpose()?,
            implicit,
            keyed,
        };
        if source.bytes() > MAX_BYTES / 2 {
            return Ok(());
        }
        let mut gone = Vec::new();
        let mut known = self.0.lock();
        known.bytes += source.bytes();
        known.sources.push_back(source.into());
        while known.sources.len() > MAX_SOURCES || known.bytes > MAX_BYTES {
            let Some(first) = known.sources.pop_front() else {
                break;
            };
            known.bytes -= first.bytes();
            gone.push(first);
        }
        drop(known);
        drop(gone);
        Ok(())
    }
}

/// The key's part for a source. `random_name_is_free`: nothing else in the build can observe the digits of PyOpenCL's
/// variable.
pub fn keyed(text: &[u8], random_name_is_free: bool) -> ([u8; 32], &'static str) {
    let before = source::before_digits(text).filter(|_| random_name_is_free);
    let name = before.map_or("", |_| "but for PyOpenCL's variable");
    (
        crate::key::ingredients::sha256(before.unwrap_or(text)),
        name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remember(sources: &Sources, text: &[u8], options: Option<&[u8]>) {
        let remembered =
            sources.remember(&Arc::new(text.to_vec()), options, &[], keyed(text, true));
        remembered.expect("memory");
    }

    #[test]
    fn a_source_is_known_by_all_its_bytes_and_its_options_only() {
        let sources = Sources::default();
        remember(&sources, b"kernel void f() {}", None);
        let finds = |text: &[u8], options| sources.find(text, options, &[]).is_some();
        assert!(finds(b"kernel void f() {}", None));
        assert!(!finds(b"kernel void g() {}", None));
        assert!(!finds(b"kernel void f() {} ", None));
        assert!(!finds(b"kernel void f() {}", Some(b"")));
        assert!(!finds(b"kernel void f() {}", Some(b"-DN")));
        let of_clang = sources.find(b"kernel void f() {}", None, &["opencl-c.h"]);
        assert!(of_clang.is_none(), "there a name may be looked for anyway");
    }

    #[test]
    fn the_bytes_stay_bounded_and_what_is_used_stays() {
        let sources = Sources::default();
        let text = |number: u8| vec![number; MAX_BYTES / 10];
        for number in 0..30 {
            remember(&sources, &text(number), None);
            assert!(sources.find(&text(0), None, &[]).is_some(), "{number}");
            assert!(sources.0.lock().bytes <= MAX_BYTES);
        }
        assert!(sources.find(&text(1), None, &[]).is_none());
        remember(&sources, &vec![7; MAX_BYTES], None);
        assert!(sources.find(&text(0), None, &[]).is_some());
        for number in 0..2 * MAX_SOURCES as u64 {
            remember(&sources, &number.to_le_bytes(), None);
        }
        assert!(sources.0.lock().sources.len() <= MAX_SOURCES);
    }
}
