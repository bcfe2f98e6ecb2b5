//! Remembers in the cache directory what a search in the file system found.
//!
//! A search for a driver's files makes hundreds of system calls (measured with strace: 760 for the libraries of PoCL's `ld`, 430 for
//! Intel's GPU driver), and finds the same until a package is installed. So the result is kept together with the state of everything
//! that was looked at. A later process asks for each state once.
//!
//! A result is kept only if all states are so old that every later change shows in them.

use std::io::Read;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::identity::{FileMemory, list_identity};
use super::real_paths::WatchedPaths;
use crate::framing;
use crate::key::ingredients::VERSION;

const MAGIC: &[u8] = b"oclcsrch2";
/// A driver has some dozens of files.
const MAX_BYTES: u64 = 4 << 20;

/// The identity of a search: of everything outside the file system that its result depends on.
///
/// Hosts that share a cache directory have files of their own, so the name of the host is part of it.
pub fn identity<'a>(inputs: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let host = rustix::system::uname();
    let mut wanted = MAGIC.to_vec();
    wanted.extend(VERSION.to_le_bytes());
    wanted.extend(env!("CARGO_PKG_VERSION").as_bytes());
    wanted.push(0);
    wanted.extend(host.nodename().to_bytes_with_nul());
    list_identity(&wanted, inputs)
}

/// What the same search found earlier, with the states that it depends on. None if one of them has changed.
pub fn recall<T: DeserializeOwned>(
    identity: &[u8; 32],
    memory: &dyn FileMemory,
) -> Option<(T, WatchedPaths)> {
    let file = memory.facts(identity).ok()??;
    let size = file.metadata().ok()?.len().min(MAX_BYTES);
    let mut bytes = Vec::with_capacity(size as usize + 1);
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let (of, watched, found): ([u8; 32], WatchedPaths, T) = framing::decode(MAGIC, &bytes)?;
    (of == *identity && watched.hold()).then_some((found, watched))
}

/// Keeps what a search found.
///
/// `watched`: the states of everything that it looked at, each taken before that. The search was complete: the states of a directory
/// that could not be read do not tell that it could not.
pub fn remember<T: Serialize>(
    identity: &[u8; 32],
    found: &T,
    watched: &WatchedPaths,
    memory: &dyn FileMemory,
) {
    if watched.is_empty() || !watched.are_settled() {
        return;
    }
    if let Ok(bytes) = framing::encode(MAGIC, &(identity, watched, found)) {
        memory.remember_facts(identity, &bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::driver::names::tests::TestMemory;
    use crate::driver::real_paths::RealPaths;

    #[test]
    fn a_result_is_recalled_until_something_changes_that_was_looked_at() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (wanted, other) = (identity([&b"one"[..]].into_iter()), [7; 32]);
        let settled = Path::new("/proc/self/exe").canonicalize().expect("a path");
        let look = |path: &Path| {
            let real = RealPaths::default();
            real.watch(path);
            real.into_watched()
        };
        let absent = directory.path().join("absent");
        let real = RealPaths::default();
        for path in [&absent, Path::new("/")] {
            real.watch(path);
        }
        let watched = real.into_watched();
        remember(&wanted, &settled, &watched, &memory);
        let recalled = |identity| recall::<std::path::PathBuf>(identity, &memory);
        assert_eq!(recalled(&wanted), Some((settled.clone(), watched.clone())));
        assert_eq!(recalled(&other), None);
        std::fs::write(&absent, "").expect("written");
        assert_eq!(recalled(&wanted), None);
        // What has just changed may change again within the resolution of its times.
        remember(&other, &settled, &look(&absent), &memory);
        assert_eq!(recalled(&other), None);
    }
}
