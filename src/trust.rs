//! Whether nobody untrusted can write what stands at a path: for what is taken from others, entries of the system's and its
//! settings.
//!
//! Whoever can write a directory can put something else into its place, so all parents are judged, from the root on. Each is
//! opened relative to the one before, after it was judged and without following a link: what is judged is what is used. A
//! sticky directory as /tmp is written by everybody like any other: there the right name may be taken before its owner comes.
//! An access control list that lets more users write shows in the bits of the group (acl(5), its mask).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

/// A directory to find others in. Nobody needs to read it for that.
pub const DIRECTORY: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// A file to read. Without O_NONBLOCK, a FIFO would block the application.
pub const FILE: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Opens what stands at a path, if neither it nor a parent can be written by anyone but these users. Links in the path are
/// resolved first; None if there is nothing.
///
/// # Errors
/// What can be written by whom, or cannot be opened, for people.
pub fn open(path: &Path, flags: OFlags, owners: &[u32]) -> Result<Option<OwnedFd>, String> {
    let cannot = |path: &Path, error: io::Error| {
        format!("`{}` cannot be opened: {error}", crate::log::path(path))
    };
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(path, error)),
    };
    let mut parts = real.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let mut place = PathBuf::from("/");
    let opened = rustix::fs::open(&place, DIRECTORY, Mode::empty());
    let mut fd = opened.map_err(|error| cannot(&place, error.into()))?;
    let mut refusal = judge(&fd, &place, owners);
    let mut next = parts.next();
    while let Some(name) = next {
        next = parts.next();
        place.push(name);
        let flags = if next.is_some() { DIRECTORY } else { flags };
        fd = match rustix::fs::openat(&fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            // What is not there needs no excuse, whoever could make it.
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(refusal.unwrap_or_else(|| cannot(&place, error.into()))),
        };
        refusal = refusal.or_else(|| judge(&fd, &place, owners));
    }
    refusal.map_or(Ok(Some(fd)), Err)
}

/// The real path of a directory that belongs to this user, if nobody else can write it or put another in its place: parents are
/// root's or the user's, and what others may write of them is sticky.
pub fn own_directory(path: &Path) -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let real = path.canonicalize().ok()?;
    let is_own = real.ancestors().enumerate().all(|(index, place)| {
        let Ok(stat) = rustix::fs::lstat(place) else {
            return false;
        };
        let is_directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        let is_trusted = match index {
            0 => distrust(&stat, &[user]).is_none(),
            _ => {
                let is_sticky = stat.st_mode & 0o1000 != 0;
                [0, user].contains(&stat.st_uid)
                    && (is_sticky || distrust(&stat, &[0, user]).is_none())
            }
        };
        is_directory && is_trusted
    });
    is_own.then_some(real)
}

fn judge(fd: &OwnedFd, place: &Path, owners: &[u32]) -> Option<String> {
    let why = match rustix::fs::fstat(fd.as_fd()) {
        Ok(stat) => distrust(&stat, owners)?,
        Err(error) => format!("cannot be examined: {}", io::Error::from(error)),
    };
    Some(format!("`{}` {why}", crate::log::path(place)))
}

/// Why something is not trusted, if it is not: it belongs to none of these users, or others can write it.
pub fn distrust(stat: &Stat, owners: &[u32]) -> Option<String> {
    if !owners.contains(&stat.st_uid) {
        let owner = stat.st_uid;
        Some(format!("belongs to user {owner}, who is not trusted"))
    } else if stat.st_mode & 0o002 != 0 {
        Some("can be written by everybody".to_owned())
    } else if stat.st_mode & 0o020 != 0 {
        Some(format!("can be written by its group, {}", stat.st_gid))
    } else {
        None
    }
}

#[cfg(test)]
pub mod tests {
    use std::fs::{create_dir, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// A directory that only root, or who runs the tests, can write, as all its parents; None if there is no place for one.
    pub fn place() -> Option<tempfile::TempDir> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let places = ["/var/cache", "/run", "/root"].map(PathBuf::from);
        let mut places = places.into_iter().chain(home);
        places.find_map(|place| {
            let made = tempfile::Builder::new()
                .prefix("oclcache-test-")
                .tempdir_in(place)
                .ok()?;
            open(made.path(), DIRECTORY, &owners()).ok()??;
            Some(made)
        })
    }

    #[allow(clippy::print_stderr)]
    pub fn skipped(what: &str) {
        eprintln!("skipped: {what} (no place that only root can write)");
    }

    fn owners() -> [u32; 2] {
        [0, rustix::process::geteuid().as_raw()]
    }

    fn opened(path: &Path) -> Result<bool, String> {
        Ok(open(path, DIRECTORY, &owners())?.is_some())
    }

    #[test]
    fn what_others_can_write_or_own_is_refused_wherever_it_stands_in_the_path() {
        let Some(place) = place() else {
            return skipped("directories that are trusted");
        };
        let inner = place.path().join("middle/inner");
        assert_eq!(opened(&inner), Ok(false));
        create_dir(place.path().join("middle")).expect("made");
        create_dir(&inner).expect("made");
        assert_eq!(opened(&inner), Ok(true));
        for (mode, why) in [
            (0o777, "by everybody"),
            (0o1777, "by everybody"),
            (0o770, "by its group"),
            (0o2775, "by its group"),
            (0o722, "by everybody"),
        ] {
            for of in [&inner, inner.parent().expect("a parent")] {
                set_permissions(of, PermissionsExt::from_mode(mode)).expect("changed");
                let refusal = opened(&inner).expect_err("refused");
                let begins = format!("`{}` can be written {why}", of.display());
                assert!(refusal.starts_with(&begins), "{mode:o}: {refusal}");
                // What is not there is not worth a word.
                assert_eq!(opened(&inner.join("missing")), Ok(false));
                set_permissions(of, PermissionsExt::from_mode(0o755)).expect("changed");
                assert_eq!(opened(&inner), Ok(true));
            }
        }
        if rustix::process::geteuid().is_root() {
            for of in [&inner, inner.parent().expect("a parent")] {
                chown(of, Some(4242), None).expect("given away");
                let refusal = opened(&inner).expect_err("refused");
                assert!(refusal.contains("belongs to user 4242"), "{refusal}");
                assert!(open(&inner, DIRECTORY, &[0, 4242]).is_ok_and(|fd| fd.is_some()));
                chown(of, Some(0), None).expect("taken back");
            }
        }
    }

    #[test]
    fn a_directory_of_ones_own_may_lie_in_a_sticky_one_but_be_written_by_nobody_else() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let own = temporary.path().join("own");
        create_dir(&own).expect("made");
        let mode = |path: &Path, mode| {
            set_permissions(path, PermissionsExt::from_mode(mode)).expect("changed");
            own_directory(&own).is_some()
        };
        assert!(mode(&own, 0o755));
        assert!(!mode(&own, 0o775));
        assert!(!mode(&own, 0o1777));
        assert!(mode(&own, 0o700));
        assert!(!mode(temporary.path(), 0o777));
        assert!(mode(temporary.path(), 0o1777));
        assert_eq!(own_directory(&own.join("missing")), None);
        // What is used is what was judged, whoever may change a link to it.
        let link = temporary.path().join("link");
        symlink(&own, &link).expect("linked");
        assert_eq!(own_directory(&link), own.canonicalize().ok());
    }

    #[test]
    fn a_link_is_judged_by_where_it_leads() {
        let Some(place) = place() else {
            return skipped("links to directories that are trusted");
        };
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        let (good, bad) = (elsewhere.path().join("good"), place.path().join("bad"));
        symlink(place.path(), &good).expect("linked");
        assert_eq!(opened(&good), Ok(true));
        symlink(elsewhere.path(), &bad).expect("linked");
        set_permissions(elsewhere.path(), PermissionsExt::from_mode(0o777)).expect("changed");
        assert!(opened(&bad).is_err());
        write(place.path().join("file"), "").expect("written");
        assert!(opened(&place.path().join("file")).is_err());
    }
}
