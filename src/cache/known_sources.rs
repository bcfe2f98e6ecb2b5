//! Remembers the digests of sources, so that the next build of the same source neither scans nor hashes it.
//!
//! Only sources that name no header are remembered. Their bytes and options determine the digest, and so do the headers that the
//! driver includes in every program. Texts are compared byte by byte.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::fallible;
use crate::fork_safety::Mutex;
use crate::key::ingredients::{Ingredient, Kind, sha256};
use crate::key::source;
use crate::outcome::Bypass;
use crate::shadow::Text;

const MAX_SOURCES: usize = 256;

/// The sum of all texts and options.
const MAX_BYTES: usize = 8 << 20;

/// A source that names no header with these options, except those that are looked for anyway.
pub struct KnownSource {
    /// Its bytes, shared by all programs of it.
    pub text: Text,
    options: Option<Vec<u8>>,
    /// The headers that the driver includes in every program.
    implicit: &'static [&'static str],
    /// The key's part for this source.
    pub digest: SourceDigest,
}

/// The key's part for a source.
#[derive(Clone, Copy, Default)]
pub struct SourceDigest {
    sha256: [u8; 32],
    /// The name of the ingredient, which tells what of the text the digest leaves out.
    remark: &'static str,
}

impl SourceDigest {
    /// Whether the digest is of the whole text.
    pub fn is_of_all(&self) -> bool {
        self.remark.is_empty()
    }

    /// As it is in the key.
    pub fn ingredient(&self) -> Ingredient {
        Ingredient::new(Kind::Source, self.remark, self.sha256)
    }
}

impl KnownSource {
    fn bytes(&self) -> usize {
        self.text.len() + self.options.as_ref().map_or(0, Vec::len)
    }
}

/// The sources that were used last.
#[derive(Default)]
pub struct KnownSources(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// In the order of last use.
    sources: VecDeque<Arc<KnownSource>>,
    bytes: usize,
}

impl KnownSources {
    /// The remembered source of this text with these options. None and empty options differ.
    pub fn find(
        &self,
        text: &[u8],
        options: Option<&[u8]>,
        implicit: &[&str],
    ) -> Option<Arc<KnownSource>> {
        let known = self.0.lock();
        let is_alike = |one: &&Arc<KnownSource>| {
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
        drop(known); // comparing megabytes takes long
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
        digest: SourceDigest,
    ) -> Result<(), Bypass> {
        let source = KnownSource {
            text: text.clone(),
            options: options.map(fallible::copy).transpose()?,
            implicit,
            digest,
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

/// The digest of a source. `omits_random_name`: it leaves out the digits of PyOpenCL's variable, since nothing else in the build
/// can observe them.
pub fn digest(text: &[u8], omits_random_name: bool) -> SourceDigest {
    match source::before_digits(text).filter(|_| omits_random_name) {
        Some(before) => SourceDigest {
            sha256: sha256(before),
            remark: "but for PyOpenCL's variable",
        },
        None => SourceDigest {
            sha256: sha256(text),
            remark: "",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remember(sources: &KnownSources, text: &[u8], options: Option<&[u8]>) {
        let remembered =
            sources.remember(&Arc::new(text.to_vec()), options, &[], digest(text, true));
        remembered.expect("memory");
    }

    #[test]
    fn a_source_is_known_by_all_its_bytes_and_its_options_only() {
        let sources = KnownSources::default();
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
        let sources = KnownSources::default();
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
