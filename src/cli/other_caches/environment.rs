//! The directories of other caches for this user and environment.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::table::{CachePath, CacheRoot};

/// Opens a directory and follows no link.
pub const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The environment that caches read.
pub struct CacheEnvironment {
    /// A variable's value.
    pub variable: fn(&str) -> Option<OsString>,
    passwd_home: Option<PathBuf>,
}

impl CacheEnvironment {
    /// The environment of this process.
    pub fn read() -> CacheEnvironment {
        CacheEnvironment {
            variable: |name| std::env::var_os(name).filter(|value| !value.is_empty()),
            passwd_home: passwd_home(),
        }
    }

    fn directory(&self, name: &str) -> Option<PathBuf> {
        let value = (self.variable)(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    }

    /// $HOME.
    pub fn home(&self) -> Option<PathBuf> {
        self.directory("HOME")
    }

    /// $XDG_CACHE_HOME, or `.cache` in the home.
    pub fn cache_home(&self) -> Option<PathBuf> {
        let below_home = || Some(self.home()?.join(".cache"));
        self.directory("XDG_CACHE_HOME").or_else(below_home)
    }

    /// The beginning of a path; None if it does not exist in this environment.
    pub fn base(&self, base: CacheRoot) -> Option<PathBuf> {
        match base {
            CacheRoot::Variable(name) => self.directory(name),
            CacheRoot::CacheHome => self.cache_home(),
            CacheRoot::PasswdCacheHome => {
                let below_home = || Some(self.passwd_home.as_ref()?.join(".cache"));
                self.directory("XDG_CACHE_HOME").or_else(below_home)
            }
            CacheRoot::Home => self.home(),
            CacheRoot::HomeCache => Some(self.home()?.join(".cache")),
            CacheRoot::Temporary => self.cache_home().is_none().then(|| "/tmp".into()),
        }
    }

    /// The whole path.
    pub fn path(&self, place: &CachePath) -> Option<PathBuf> {
        let mut path = self.base(place.base)?;
        path.extend(place.below);
        Some(path)
    }

    /// Directories that hold more than a cache, whatever a variable says.
    pub fn precious(&self) -> Vec<PathBuf> {
        let home = self.home();
        let homes = home.iter().chain(&self.passwd_home);
        let mut precious: Vec<PathBuf> = homes
            .flat_map(|home| {
                let below = [".cache", ".config", ".local", ".local/share"];
                let below = below.map(|name| home.join(name));
                home.ancestors()
                    .map(PathBuf::from)
                    .chain(below)
                    .collect::<Vec<_>>()
            })
            .collect();
        for name in [
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
            "XDG_STATE_HOME",
            "XDG_RUNTIME_DIR",
            "TMPDIR",
        ] {
            precious.extend(self.directory(name));
        }
        precious.extend(["/", "/tmp", "/var/tmp", "/dev/shm", "/usr", "/etc"].map(PathBuf::from));
        precious
    }
}

/// The home directory in the passwd file, which getpwuid returns if no other service is configured.
fn passwd_home() -> Option<PathBuf> {
    let passwd = std::fs::read("/etc/passwd").ok()?;
    let user = rustix::process::getuid().as_raw().to_string();
    let mut lines = passwd.split(|byte| *byte == b'\n');
    let home = lines.find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':').skip(2);
        (fields.next()? == user.as_bytes()).then(|| fields.nth(2))?
    })?;
    let home = PathBuf::from(std::ffi::OsStr::from_bytes(home));
    home.is_absolute().then_some(home)
}

/// An open directory of a cache, with those above it that belong to the cache.
pub struct OpenedCache {
    /// The directory.
    pub fd: OwnedFd,
    /// The directories above, from the base on, each with the name of the next one.
    pub above: Vec<(OwnedFd, OsString)>,
}

/// Opens a cache's directory; None if there is none. The path to the base may contain links, since `~/.cache` may be one; the path below
/// may not.
///
/// # Errors
/// Why the directory cannot be opened.
pub fn open(base: &Path, below: &[&str]) -> Result<Option<OpenedCache>, String> {
    // The last part of a variable's value belongs to the cache.
    let (base, first) = match (below, base.parent(), base.file_name()) {
        ([], Some(parent), Some(name)) => (parent, Some(name.to_owned())),
        ([], ..) => return Err("it is not the directory of a cache".to_owned()),
        _ => (base, None),
    };
    let names = first.into_iter().chain(below.iter().map(OsString::from));
    let follow = DIRECTORY.difference(OFlags::NOFOLLOW);
    let cannot = |error: Errno| format!("it cannot be opened: {}", std::io::Error::from(error));
    let mut fd = match rustix::fs::openat(CWD, base, follow, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(cannot(error)),
    };
    let mut above = Vec::new();
    for name in names {
        match rustix::fs::openat(&fd, &name, DIRECTORY, Mode::empty()) {
            Ok(next) => above.push((std::mem::replace(&mut fd, next), name)),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(format!(
                    "`{}` is a link or not a directory",
                    crate::log::os(&name)
                ));
            }
            Err(error) => return Err(cannot(error)),
        }
    }
    Ok(Some(OpenedCache { fd, above }))
}
