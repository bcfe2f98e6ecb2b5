//! Checks that no untrusted user can write a path: for system directories and the configuration file of the system.
//!
//! Whoever can write a directory can replace what is in it, so all parents are checked, from the root on. Each part is opened
//! relative to the checked part before it, without following links, so the checked file is the one that is used. A sticky directory
//! such as /tmp counts as writable by everybody: somebody may take a name there before its owner does. The same holds for links and the
//! directories in which they are. An access control list that lets more users write shows in the bits of the group (acl(5), its mask).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, CWD, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

use crate::file_fingerprint::FileId;
use crate::{one_call, proc_file};

/// A directory on the way, which need not be readable.
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

/// Part of a path, or a link in it.
const PART: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The number of all users who have none in a user namespace (user_namespaces(7); overflowuid in proc(5), which is this unless root
/// changed it).
const UNKNOWN_USER: u32 = 65534;
/// The numbers of users in a namespace that has one for each: the first one here, the first one outside, and how many (all but the last,
/// which stands for none).
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
/// As many as the kernel follows in a path.
const MAX_LINKS: u32 = 40;

/// Opens a path, if nobody but these users can write it or a parent. Resolves links in the path first. None if nothing is there.
///
/// # Errors
/// For people: who can write which part, or which part cannot be opened.
pub fn open(path: &Path, flags: OFlags, owners: &[u32]) -> Result<Option<OwnedFd>, String> {
    let cannot = |path: &Path, error: io::Error| {
        format!("`{}` cannot be opened: {error}", crate::log::path(path))
    };
    // One system call: usually the system has no file here.
    if rustix::fs::access(path, Access::EXISTS) == Err(Errno::NOENT) {
        return Ok(None);
    }
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
    // Links are gone from the real path, and whoever owns one chooses where it leads.
    let through_links = || walk(path, &mut |_, stat| distrust_part(stat, owners));
    let refusal = (real != path).then(|| through_links().err()).flatten();
    let mut refusal = refusal.or_else(|| judge(&fd, &place, owners));
    let mut next = parts.next();
    while let Some(name) = next {
        next = parts.next();
        place.push(name);
        let flags = if next.is_some() { DIRECTORY } else { flags };
        fd = match rustix::fs::openat(&fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            // A missing file is not an error, whoever could create it.
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(refusal.unwrap_or_else(|| cannot(&place, error.into()))),
        };
        refusal = refusal.or_else(|| judge(&fd, &place, owners));
    }
    refusal.map_or(Ok(Some(fd)), Err)
}

/// The real path of a directory of this user, if nobody else can write or replace it.
pub fn own_directory(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    let stat = walk(&real, &mut distrust_on_the_way).ok()?;
    let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
    let is_private = is_own(stat.st_uid) && distrust(&stat, &[stat.st_uid]).is_none();
    (is_directory && is_private).then_some(real)
}

/// Why a user other than root and the effective user may have chosen the open directory that a path named: a link on the way is that
/// user's, in a directory in which others may have put it. None if there is no such link.
///
/// Others may have put what is in a directory that they can write, or that is another user's and that they may have put where it is. In
/// any other directory a link is as good as a directory. Where a user namespace has no number for root, root's own links (`/home`)
/// belong to an unknown user.
pub fn distrust_of_links(path: &Path, open: FileId) -> Option<String> {
    let owners = own_users();
    // Whether others may have put what is in them, for the root and each directory on the way.
    let mut filled_by_others: Vec<bool> = Vec::new();
    let mut judge = |place: &Path, stat: &Stat| {
        filled_by_others.truncate(place.components().count() - 1);
        let put_by_others = filled_by_others.last() == Some(&true);
        if FileType::from_raw_mode(stat.st_mode).is_symlink() {
            return put_by_others
                .then(|| distrust_part(stat, &owners))
                .flatten();
        }
        let is_foreign = !owners.contains(&stat.st_uid);
        filled_by_others.push(stat.st_mode & 0o022 != 0 || put_by_others && is_foreign);
        None
    };
    let stat = match walk(path, &mut judge) {
        Ok(stat) => stat,
        Err(why) => return Some(why),
    };
    let is_it = (stat.st_dev, stat.st_ino) == open;
    (!is_it).then(|| format!("`{}` was replaced meanwhile", crate::log::path(path)))
}

/// Why a user other than root and the effective user may have written the open file that a path named; None if nobody may.
///
/// Checks every part of the path, including links and their directories. The path must still lead to the open file, so that the
/// checked file is the one that was read.
pub fn distrust_of_own_file(path: &Path, open: FileId) -> Option<String> {
    let stat = match walk(path, &mut distrust_on_the_way) {
        Ok(stat) => stat,
        Err(why) => return Some(why),
    };
    let shown = crate::log::path(path);
    if (stat.st_dev, stat.st_ino) != open {
        return Some(format!("`{shown}` was replaced while it was read"));
    }
    let why = distrust(&stat, &own_users())?;
    Some(format!("`{shown}` {why}"))
}

/// The first part of a path that belongs to neither root nor the effective user. A missing part belongs to nobody.
pub fn foreign_part(path: &Path) -> Option<PathBuf> {
    let mut foreign = None;
    let _ = walk(path, &mut |place, stat| {
        let is_foreign = !own_users().contains(&stat.st_uid);
        foreign = is_foreign.then(|| place.to_owned());
        is_foreign.then(String::new)
    });
    foreign
}

/// Whether this user, of a file or of another process, certainly is the effective user: not if the number may be that of all whom the
/// namespace does not know.
pub fn is_own(user: u32) -> bool {
    user == one_call::effective_user() && (user != UNKNOWN_USER || knows_each_user())
}

/// Whether each user has a number in this process's namespace.
fn knows_each_user() -> bool {
    let map = proc_file::read_own("uid_map").unwrap_or_default();
    let map = String::from_utf8(map).unwrap_or_default();
    map.split_whitespace().eq(ALL_USERS)
}

/// The effective user, if its files can be told from those of others.
pub fn own_user() -> Option<u32> {
    Some(one_call::effective_user()).filter(|user| is_own(*user))
}

/// Root and the [`own_user`].
pub fn own_users() -> Vec<u32> {
    [0].into_iter().chain(own_user()).collect()
}

/// The verdict on a directory or link on the way. Links have no mode. In a sticky directory nobody can replace a file of another
/// user, and the file is checked next.
fn distrust_on_the_way(_: &Path, stat: &Stat) -> Option<String> {
    let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
    let counts_mode = is_directory && stat.st_mode & 0o1000 == 0;
    let mode = if counts_mode { stat.st_mode } else { 0 };
    distrust_parts(stat.st_uid, mode, stat.st_gid, &own_users())
}

/// The verdict on anything on the way. Links have no mode.
fn distrust_part(stat: &Stat, owners: &[u32]) -> Option<String> {
    let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
    let mode = if is_link { 0 } else { stat.st_mode };
    distrust_parts(stat.st_uid, mode, stat.st_gid, owners)
}

/// Walks an absolute path from the root on. Opens each part relative to the one before, and resolves links itself. Returns the
/// status of the last part, which is not a link.
///
/// # Errors
/// For people: the path of a part, and what `judge` says about it or why it cannot be examined.
fn walk(
    path: &Path,
    judge: &mut dyn FnMut(&Path, &Stat) -> Option<String>,
) -> Result<Stat, String> {
    let cannot = |place: &Path, error: Errno| {
        let error = io::Error::from(error);
        format!("`{}` cannot be examined: {error}", crate::log::path(place))
    };
    let mut examine = |at: BorrowedFd<'_>, name: &OsStr, place: &Path| {
        let opened = rustix::fs::openat(at, name, PART, Mode::empty());
        let stat = opened.and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd)));
        let (stat, fd) = stat.map_err(|error| cannot(place, error))?;
        match judge(place, &stat) {
            Some(why) => Err(format!("`{}` {why}", crate::log::path(place))),
            None => Ok((fd, stat)),
        }
    };
    let mut rest: Vec<OsString> = parts(path).rev().collect();
    let mut place = PathBuf::from("/");
    let (mut fd, mut stat) = examine(CWD, place.as_os_str(), &place)?;
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let next = match name == ".." {
            true => place.parent().unwrap_or(&place).to_owned(),
            false => place.join(&name),
        };
        let (opened, found) = examine(fd.as_fd(), &name, &next)?;
        if !FileType::from_raw_mode(found.st_mode).is_symlink() {
            (fd, stat, place) = (opened, found, next);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(cannot(&next, Errno::LOOP));
        }
        let target = rustix::fs::readlinkat(&opened, "", Vec::new());
        let target = target.map_err(|error| cannot(&next, error))?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            place = PathBuf::from("/");
            (fd, stat) = examine(CWD, place.as_os_str(), &place)?;
        }
        rest.extend(parts(target).rev());
    }
    Ok(stat)
}

/// The names in a path, which counts as absolute.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

/// Whether this process may work in a directory that somebody else has chosen: either it is safe, or programs and libraries are not
/// looked for there. An empty or relative part of these variables is below the working directory (execvp(3), ld.so(8)).
pub fn can_be_entered(directory: &Path) -> bool {
    let is_searched = |variable: &str| {
        let places = std::env::var_os(variable).unwrap_or_default();
        let places = places.as_encoded_bytes();
        let mut parts = places.split(|byte| matches!(byte, b':' | b';'));
        !places.is_empty() && parts.any(|part| !part.starts_with(b"/"))
    };
    !(is_searched("PATH") || is_searched("LD_LIBRARY_PATH")) || own_directory(directory).is_some()
}

fn judge(fd: &OwnedFd, place: &Path, owners: &[u32]) -> Option<String> {
    let why = match rustix::fs::fstat(fd.as_fd()) {
        Ok(stat) => distrust(&stat, owners)?,
        Err(error) => format!("cannot be examined: {}", io::Error::from(error)),
    };
    Some(format!("`{}` {why}", crate::log::path(place)))
}

/// Why a file is not trusted: it belongs to none of these users, or others can write it. None if it is trusted.
pub fn distrust(stat: &Stat, owners: &[u32]) -> Option<String> {
    distrust_parts(stat.st_uid, stat.st_mode, stat.st_gid, owners)
}

fn distrust_parts(owner: u32, mode: RawMode, group: u32, owners: &[u32]) -> Option<String> {
    if !owners.contains(&owner) {
        Some(format!("belongs to user {owner}, who is not trusted"))
    } else if mode & 0o002 != 0 {
        Some("can be written by everybody".to_owned())
    } else if mode & 0o020 != 0 {
        Some(format!("can be written by its group, {group}"))
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
        // The checked directory is used, even if somebody changes a link to it.
        let link = temporary.path().join("link");
        symlink(&own, &link).expect("linked");
        assert_eq!(own_directory(&link), own.canonicalize().ok());
    }

    fn file_id(path: &Path) -> FileId {
        let stat = rustix::fs::stat(path).expect("there");
        (stat.st_dev, stat.st_ino)
    }

    #[test]
    fn a_file_is_ones_own_if_nobody_else_can_write_it_or_anything_on_the_way() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| temporary.path().join(name);
        create_dir(at("home")).expect("made");
        create_dir(at("dotfiles")).expect("made");
        write(at("dotfiles/config"), "").expect("written");
        symlink("../dotfiles/./config", at("home/config")).expect("linked");
        symlink(at("home"), at("link")).expect("linked");
        let said = |name: &str| distrust_of_own_file(&at(name), file_id(&at(name)));
        for name in [
            "dotfiles/config",
            "home/config",
            "link/config",
            "home/../link/config",
        ] {
            assert_eq!(said(name), None, "{name}");
            assert_eq!(foreign_part(&at(name)), None, "{name}");
        }
        for (place, mode, why) in [
            ("home", 0o775, "can be written by its group"),
            ("dotfiles", 0o777, "can be written by everybody"),
            ("dotfiles/config", 0o664, "can be written by its group"),
        ] {
            let usual = at(place).metadata().expect("there").permissions();
            set_permissions(at(place), PermissionsExt::from_mode(mode)).expect("changed");
            let said = said("link/config").expect("a reason");
            let begins = at(if place == "dotfiles/config" {
                "link/config"
            } else {
                place
            });
            let begins = format!("`{}` {why}", begins.display());
            assert!(said.starts_with(&begins), "{said}");
            set_permissions(at(place), usual).expect("changed");
        }
        let replaced = distrust_of_own_file(&at("home/config"), file_id(&at("home")));
        assert!(replaced.is_some_and(|why| why.ends_with("was replaced while it was read")));
        symlink("loop", at("loop")).expect("linked");
        assert!(distrust_of_own_file(&at("loop/x"), (0, 0)).is_some());
        if rustix::process::geteuid().is_root() {
            for place in ["home", "dotfiles", "dotfiles/config"] {
                chown(at(place), Some(4242), None).expect("given away");
                let said = said("home/config").expect("a reason");
                assert!(said.contains("belongs to user 4242"), "{said}");
                assert_eq!(foreign_part(&at("home/config")), Some(at(place)));
                chown(at(place), Some(0), None).expect("taken back");
            }
            // A link is its owner's to change, whatever it leads to.
            std::os::unix::fs::lchown(at("home/config"), Some(4242), None).expect("given away");
            assert!(said("home/config").is_some());
        } else {
            skipped("files of other users (only root can give them away)");
        }
    }

    #[test]
    fn a_link_is_judged_by_where_it_leads_where_it_stands_and_whose_it_is() {
        let Some(place) = place() else {
            return skipped("links to directories that are trusted");
        };
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        let (good, bad) = (place.path().join("good"), place.path().join("bad"));
        let inner = place.path().join("inner");
        create_dir(&inner).expect("made");
        symlink(&inner, &good).expect("linked");
        assert_eq!(opened(&good), Ok(true));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(&good, Some(4242), None).expect("given away");
            let refusal = opened(&good).expect_err("refused");
            assert!(refusal.contains("belongs to user 4242"), "{refusal}");
            std::os::unix::fs::lchown(&good, Some(0), None).expect("taken back");
        }
        let outside = elsewhere.path().join("outside");
        symlink(&inner, &outside).expect("linked");
        let refusal = opened(&outside).expect_err("in a directory that is sticky, or below one");
        assert!(refusal.contains("can be written by everybody"), "{refusal}");
        symlink(elsewhere.path(), &bad).expect("linked");
        set_permissions(elsewhere.path(), PermissionsExt::from_mode(0o777)).expect("changed");
        assert!(opened(&bad).is_err());
        write(place.path().join("file"), "").expect("written");
        assert!(opened(&place.path().join("file")).is_err());
    }
}
