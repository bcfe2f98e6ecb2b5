//! Sources that were keyed before. Of one that names no header its bytes and the options say everything, but for the headers that
//! the driver includes in each; so what was found of it is remembered, and the next build of the same neither scans nor hashes it.
//! Texts are compared byte by byte.

use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::fallible;
use crate::fork_safety::Mutex;
use crate::key::source;
use crate::lru::Lru;
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

/// The last of them, by [`digest`].
pub struct Sources(Mutex<Lru<u64, Arc<Source>>>);

impl Default for Sources {
    fn default() -> Sources {
        Sources(Mutex::new(Lru::new(MAX_BYTES, MAX_SOURCES)))
    }
}

/// By what a source is found. Two of an equal digest, which is unlikely, take each other's place.
fn digest(text: &[u8], options: Option<&[u8]>, implicit: &[&str]) -> u64 {
    let names = implicit.iter();
    let names = names.fold(0, |seed, name| xxh3_64_with_seed(name.as_bytes(), seed));
    let options = options.map_or(names, |options| xxh3_64_with_seed(options, names ^ 1));
    xxh3_64_with_seed(&options.to_le_bytes(), xxh3_64(text))
}

impl Sources {
    /// What is known of a text that is built with these options. No options are something else than empty ones.
    pub fn find(
        &self,
        text: &[u8],
        options: Option<&[u8]>,
        implicit: &[&str],
    ) -> Option<Arc<Source>> {
        let digest = digest(text, options, implicit);
        let known = self.0.lock().get(&digest).cloned()?;
        // Without the lock: it takes a while to compare megabytes.
        let is_it = known.options.as_deref() == options
            && known.implicit == implicit
            && *known.text == *text;
        is_it.then_some(known)
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
        let digest = digest(&source.text, options, implicit);
        let bytes = source.bytes();
        let gone = self.0.lock().put(digest, source.into(), bytes);
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
        let remembered = sources.remember(&text.into(), options, &[], keyed(text, true));
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
        }
        assert!(sources.find(&text(1), None, &[]).is_none());
        remember(&sources, &vec![7; MAX_BYTES], None);
        assert!(sources.find(&text(0), None, &[]).is_some());
    }
}
