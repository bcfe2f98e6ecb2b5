//! Remembers in the cache directory what a search in the file system found.
//!
//! A search for a driver's files makes hundreds of system calls (measured with strace: 760 for the libraries of PoCL's `ld`, 430 for
//! Intel's GPU driver), and finds the same until a package is installed. So the result is kept together with the state of everything
//! that was looked at. A later process asks for each state once.
//!
//! A result is kept only if every later change shows in the states (see `file_fingerprint`), and only if nothing was denied to this
//! process. It is for processes with the same rights: others find other files.

use std::path::PathBuf;

use rustix::thread::CapabilitySet;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::file_memory::{FileMemory, list_identity};
use super::real_paths::{Mounts, RealPaths, WatchedPaths};
use crate::file_fingerprint::MountIdentity;
use crate::framing;
use crate::host;
use crate::key::ingredients::VERSION;
use crate::one_call;
use crate::proc_file;

const MAGIC: &[u8] = b"oclcsrch10";

/// The identity of a search: of everything outside the file system that its result depends on.
///
/// Hosts that share a cache directory have files of their own, so the host is part of it.
pub fn identity<'a>(inputs: impl Iterator<Item = &'a [u8]>, memory: &dyn FileMemory) -> [u8; 32] {
    let mut wanted = MAGIC.to_vec();
    wanted.extend(VERSION.to_le_bytes());
    wanted.extend(env!("CARGO_PKG_VERSION").as_bytes());
    wanted.push(0);
    wanted.extend(memory.reader());
    list_identity(&wanted, inputs)
}

/// The host, and what this process may read there.
pub fn reader() -> Vec<u8> {
    [host::of_files(), b"\0", &rights()].concat()
}

/// The name space of users that the kernel begins with. Its number is the kernel's USER_NS_INIT_INO, which no other one gets.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";
/// The map of users, and that of groups, in that name space (user_namespaces(7)).
const MAP_OF_ALL: &[u8] = b"         0          0 4294967295\n";

/// What this process may read: a file that it cannot open is as absent for the driver.
fn rights() -> Vec<u8> {
    let ids = [
        one_call::effective_user(),
        rustix::process::getegid().as_raw(),
    ];
    let groups = groups();
    let capabilities = rustix::thread::capabilities(None);
    let capabilities = capabilities.map_or(CapabilitySet::empty(), |sets| sets.effective);
    let capabilities =
        capabilities & (CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    let mut rights: Vec<u8> = ids
        .into_iter()
        .chain(groups)
        .flat_map(u32::to_le_bytes)
        .collect();
    rights.extend(capabilities.bits().to_le_bytes());
    // Root of a name space of users has no rights to files of users outside. In the first one, the maps are always the same.
    let namespace = std::fs::read_link("/proc/self/ns/user");
    let is_in_first_user_namespace =
        namespace.is_ok_and(|name| name.as_os_str() == FIRST_USER_NAMESPACE);
    for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
        match is_in_first_user_namespace {
            true => rights.extend(MAP_OF_ALL),
            false => rights.extend(proc_file::read(map).unwrap_or_default()),
        }
        rights.push(0);
    }
    rights
}

/// The supplementary groups of this process.
///
/// rustix asks for their number first, in a call of its own.
#[allow(unsafe_code)]
fn groups() -> Vec<u32> {
    const USUAL: usize = 64;
    let mut groups = [0; USUAL];
    // SAFETY: the system writes at most as many as there is room for.
    let count = unsafe { libc::getgroups(USUAL as libc::c_int, groups.as_mut_ptr()) };
    match usize::try_from(count) {
        Ok(count) => groups[..count].to_vec(),
        // There are more.
        Err(_) => {
            let groups = rustix::process::getgroups().unwrap_or_default();
            groups.iter().map(|group| group.as_raw()).collect()
        }
    }
}

/// What the same search found earlier, with the states that it depends on. None if one of them has changed.
pub fn recall<T: DeserializeOwned>(
    identity: &[u8; 32],
    memory: &dyn FileMemory,
) -> Option<(T, WatchedPaths)> {
    let part = memory.part(identity).ok()??;
    let changed = match decode(&part, identity, memory) {
        Ok(holding) => return Some(holding),
        Err(changed) => changed,
    };
    // A snapshot may have an older one (see `look`).
    let newer = memory.part(identity).ok()??;
    let decoded = match *newer == *part {
        true => Err(changed),
        false => decode(&newer, identity, memory),
    };
    if let Err(Some(changed)) = &decoded {
        let changed = crate::log::path(changed);
        tracing::debug!(%changed, "the driver's files are looked for again");
    }
    decoded.ok()
}

/// # Errors
/// The first path at which something has changed; None if the bytes are damaged.
fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    identity: &[u8; 32],
    memory: &dyn FileMemory,
) -> Result<(T, WatchedPaths), Option<PathBuf>> {
    let (of, mounts, watched, found): ([u8; 32], Mounts, WatchedPaths, T) =
        framing::decode(MAGIC, bytes).ok_or(None)?;
    let lasts =
        |(path, mount): &(PathBuf, MountIdentity)| MountIdentity::at(path).as_ref() == Some(mount);
    if of != *identity {
        return Err(None);
    }
    if let Some((path, _)) = mounts.iter().find(|one| !lasts(one)) {
        return Err(Some(path.clone()));
    }
    match watched.changed(|path| memory.state(path), |path| memory.target(path)) {
        Some(changed) => Err(Some(changed.to_owned())),
        None => Ok((found, watched)),
    }
}

/// Keeps what a search found, if it may. Returns the states of everything that it looked at.
pub fn remember<T: Serialize>(
    identity: &[u8; 32],
    found: &T,
    real: RealPaths,
    memory: &dyn FileMemory,
) -> WatchedPaths {
    // The state of what could not be read does not tell that it could not.
    let may_be_kept = real.may_be_kept();
    let begun = real.begun();
    let watched = real.into_watched();
    if may_be_kept
        && !watched.is_empty()
        && let (_, Some(mounts)) = watched.validity(begun)
        && let Ok(bytes) = framing::encode(MAGIC, &(identity, mounts, &watched, found))
    {
        memory.remember_part(identity, &bytes);
    }
    watched
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::driver::names::tests::TestMemory;
    use crate::regular_file::tests::without_rights;

    #[test]
    fn a_result_is_recalled_until_something_changes_that_was_looked_at() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (wanted, other) = (identity([&b"one"[..]].into_iter(), &memory), [7; 32]);
        let settled = Path::new("/proc/self/exe").canonicalize().expect("a path");
        let look = |path: &Path| {
            let real = RealPaths::default();
            real.watch(path);
            real
        };
        let absent = directory.path().join("absent");
        let real = RealPaths::default();
        for path in [&absent, Path::new("/")] {
            real.watch(path);
        }
        let watched = remember(&wanted, &settled, real, &memory);
        let recalled = |identity| recall::<std::path::PathBuf>(identity, &memory);
        assert_eq!(recalled(&wanted), Some((settled.clone(), watched.clone())));
        assert_eq!(recalled(&other), None);
        std::fs::write(&absent, "").expect("written");
        assert_eq!(recalled(&wanted), None);
        // What has just changed may change again within the resolution of its times.
        remember(&other, &settled, look(&absent), &memory);
        assert_eq!(recalled(&other), None);
        // Also if it looks settled when a slow search ends.
        let slow = look(&absent);
        std::thread::sleep(std::time::Duration::from_millis(3100));
        remember(&other, &settled, slow, &memory);
        assert_eq!(recalled(&other), None);
        remember(&other, &settled, look(&absent), &memory);
        assert!(recalled(&other).is_some());
        // Nor is it known who made the times here.
        let other = [8; 32];
        remember(&other, &settled, look(Path::new("/proc/version")), &memory);
        assert_eq!(recalled(&other), None);
    }

    #[test]
    fn the_first_name_space_of_users_has_the_maps_that_are_taken_for_its() {
        let namespace = std::fs::read_link("/proc/self/ns/user").expect("a name");
        if namespace.as_os_str() == FIRST_USER_NAMESPACE {
            for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
                assert_eq!(proc_file::read(map).expect("read"), MAP_OF_ALL, "{map}");
            }
        }
        assert!(rights().ends_with(b"\0"));
    }

    #[test]
    fn what_was_denied_to_one_process_is_not_kept_and_others_have_searches_of_their_own() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let nobodys = std::fs::Permissions::from_mode(0o000);
        std::fs::set_permissions(directory.path(), nobodys).expect("changed");
        let search = |path: &Path| {
            let real = RealPaths::default();
            real.watch(Path::new("/"));
            real.watch_place(path);
            let wanted = identity([].into_iter(), &memory);
            remember(&wanted, &(), real, &memory);
            (wanted, recall::<()>(&wanted, &memory).is_some())
        };
        let denied = directory.path().join("file");
        let (wanted, is_kept) = without_rights(|| search(&denied));
        assert!(!is_kept);
        let (same, is_kept) = without_rights(|| search(Path::new("/nothing")));
        assert!(is_kept && same == wanted);
        let may_read_all = std::fs::read_dir(directory.path()).is_ok();
        let own = identity([].into_iter(), &memory);
        assert_eq!(own != wanted, may_read_all);
        assert_eq!(recall::<()>(&own, &memory).is_none(), may_read_all);
    }
}
