//! Remembers the digests of sources, so that the next build of the same source neither scans nor hashes it.
//!
//! The bytes of a source that names no header and its options determine the digest, and so do the headers that the driver includes in
//! every program. If the only headers are files of the driver's compiler, these are remembered with their states, unless they have just
//! been changed. Texts are compared byte by byte, and large ones by SHA-256: these are not kept.

use std::path::PathBuf;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::fallible;
use crate::fork_safety::Mutex;
use crate::key::include::Closure;
use crate::key::ingredients::{Ingredient, Kind, sha256};
use crate::key::source;
use crate::lru::Lru;
use crate::outcome::Bypass;
use crate::shadow::Text;

const MAX_SOURCES: usize = 256;

/// The sum of all texts that are kept, and of all options.
const MAX_BYTES: usize = 8 << 20;
/// The length of a text that is kept.
const MAX_KEPT_BYTES: usize = MAX_BYTES / 2;

/// A source with these options.
pub struct KnownSource {
    text: KnownText,
    options: Option<Vec<u8>>,
    /// The headers that the driver includes in every program.
    implicit: &'static [&'static str],
    /// The header files that were found. None: it names no header.
    pub headers: Option<KnownHeaders>,
    /// The key's part for this source.
    pub digest: SourceDigest,
}

/// The header files of a source.
pub struct KnownHeaders {
    /// A closure whose states tell whether its files have changed.
    pub closure: Closure,
    /// The driver's own directories, in which headers were looked for.
    pub driver_dirs: Vec<PathBuf>,
}

impl KnownHeaders {
    /// The files, if a compiler with these directories of its own would read the same ones.
    pub fn in_directories(&self, driver_dirs: &[PathBuf]) -> Option<Closure> {
        let is_same = self.driver_dirs == driver_dirs && self.closure.has_same_states();
        is_same.then(|| self.closure.clone())
    }
}

/// What tells a source from others.
enum KnownText {
    /// Its bytes, shared by all programs of it.
    Kept(Text),
    /// SHA-256 of its bytes.
    Digest([u8; 32]),
}

impl KnownText {
    fn is(&self, text: &[u8]) -> bool {
        match self {
            KnownText::Kept(known) => **known == *text,
            KnownText::Digest(known) => sha256(text) == *known,
        }
    }
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
    /// The bytes that all programs of it share, if they are kept.
    pub fn shared_text(&self) -> Option<&Text> {
        match &self.text {
            KnownText::Kept(text) => Some(text),
            KnownText::Digest(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        let text = self.shared_text().map_or(0, |text| text.len());
        let headers = self.headers.as_ref();
        let headers = headers.map_or(0, |headers| headers.closure.weight());
        text + headers + self.options.as_ref().map_or(0, Vec::len)
    }
}

/// The sources that were used last.
pub struct KnownSources {
    /// By [`text_digest`].
    by_digest: Mutex<Lru<u64, Arc<KnownSource>>>,
    /// The one that was found last. Programs build a source several times in a row, and to compare it takes half as long as to look it up.
    last: Mutex<Option<Arc<KnownSource>>>,
}

impl Default for KnownSources {
    fn default() -> KnownSources {
        KnownSources {
            by_digest: Mutex::new(Lru::new(MAX_BYTES, MAX_SOURCES)),
            last: Mutex::new(None),
        }
    }
}

/// The number by which a source is found. Of two sources with an equal digest, which is unlikely, one replaces the other.
fn text_digest(text: &[u8], options: Option<&[u8]>, implicit: &[&str]) -> u64 {
    let names = implicit.iter();
    let names = names.fold(0, |seed, name| xxh3_64_with_seed(name.as_bytes(), seed));
    let options = options.map_or(names, |options| xxh3_64_with_seed(options, names ^ 1));
    xxh3_64_with_seed(&options.to_le_bytes(), xxh3_64(text))
}

impl KnownSources {
    /// The remembered source of this text with these options. None and empty options differ.
    pub fn find(
        &self,
        text: &[u8],
        options: Option<&[u8]>,
        implicit: &[&str],
    ) -> Option<Arc<KnownSource>> {
        // Compared without a lock, since that takes long for megabytes.
        let is_it = |known: &Arc<KnownSource>| {
            known.options.as_deref() == options && known.implicit == implicit && known.text.is(text)
        };
        let last = self.last.lock().clone();
        let last = last.filter(|last| last.shared_text().is_some() && is_it(last));
        if last.is_some() {
            return last;
        }
        let digest = text_digest(text, options, implicit);
        let known = self.by_digest.lock().get(&digest).cloned();
        let known = known.filter(is_it)?;
        let before = self.last.lock().replace(known.clone());
        drop(before);
        Some(known)
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
        headers: Option<KnownHeaders>,
    ) -> Result<(), Bypass> {
        let known = match text.len() > MAX_KEPT_BYTES {
            false => KnownText::Kept(text.clone()),
            true if digest.is_of_all() => KnownText::Digest(digest.sha256),
            true => KnownText::Digest(sha256(text)),
        };
        let source = KnownSource {
            text: known,
            options: options.map(fallible::copy).transpose()?,
            implicit,
            headers,
            digest,
        };
        let key = text_digest(text, options, implicit);
        let bytes = source.bytes();
        let gone = self.by_digest.lock().put(key, source.into(), bytes);
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
        let remembered = sources.remember(&text.into(), options, &[], digest(text, true), None);
        remembered.expect("memory");
    }

    #[test]
    fn a_source_is_known_by_all_its_bytes_and_its_options_only() {
        let sources = KnownSources::default();
        remember(&sources, b"kernel void f() {}", None);
        let finds = |text: &[u8], options| sources.find(text, options, &[]).is_some();
        for _ in 0..2 {
            assert!(finds(b"kernel void f() {}", None));
        }
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
        }
        assert!(sources.find(&text(1), None, &[]).is_none());
    }

    #[test]
    fn a_large_text_is_known_and_not_kept() {
        let sources = KnownSources::default();
        let mut large = vec![7; MAX_KEPT_BYTES + 1];
        remember(&sources, b"kernel void f() {}", None);
        for number in 0..10 {
            large[0] = number;
            remember(&sources, &large, None);
            let known = sources.find(&large, None, &[]).expect("known");
            assert!(known.shared_text().is_none());
            assert_eq!(known.digest.sha256, sha256(&large));
        }
        large[MAX_KEPT_BYTES] = 8;
        assert!(sources.find(&large, None, &[]).is_none());
        assert!(sources.find(b"kernel void f() {}", None, &[]).is_some());
    }
}
