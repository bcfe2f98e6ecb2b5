//! The files of a user's installation. Machines of several architectures may share a home, so each has its own copies:
//!
//! ```text
//! ~/.local/lib/oclcache/ARCHITECTURE/{liboclcache.so,oclcache}    the copies
//! ~/.local/lib/oclcache/ARCHITECTURE/oclcache-remote              and of the helper of the remote level, if it was beside the command
//! ~/.local/lib/oclcache/profile.sh                                what the line in a shell's start-up file reads
//! ~/.local/bin/oclcache                                           a script that starts the copy for this architecture
//! $XDG_DATA_HOME/oclcache/vendors/oclcache-ARCHITECTURE.icd       for OCL_ICD_VENDORS
//! $XDG_CONFIG_HOME/environment.d/50-oclcache.conf                 sets OCL_ICD_VENDORS in sessions of systemd
//! ```
//!
//! The vendors directory is the same for all architectures, since variables travel: a batch system passes those of the login node on.
//! Loaders skip libraries that they cannot load.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::companion::{COMMAND, REMOTE_HELPER};
use crate::log::path;

/// The file that registers us in a directory of drivers.
pub const ICD: &str = "oclcache.icd";
/// The name of each copy of our library.
pub const LIBRARY: &str = "liboclcache.so";
const VARIABLES: &str = "50-oclcache.conf";

/// The paths of a user's registration.
pub struct Home {
    pub vendors: PathBuf,
    pub variables: PathBuf,
    /// The directory of the user's configuration files.
    pub config: PathBuf,
}

impl Home {
    /// The paths by the XDG base directory specification.
    ///
    /// # Errors
    /// HOME is not set, or belongs to another user.
    pub fn find() -> Result<Home, Failure> {
        let home = absolute("HOME");
        let of =
            |xdg: &str, below: &str| absolute(xdg).or_else(|| Some(home.as_ref()?.join(below)));
        let (Some(data), Some(config)) = (
            of("XDG_DATA_HOME", ".local/share"),
            of("XDG_CONFIG_HOME", ".config"),
        ) else {
            return Err(no_home());
        };
        check_owner(&data)?;
        check_owner(&config)?;
        Ok(Home {
            vendors: data.join("oclcache/vendors"),
            variables: config.join("environment.d").join(VARIABLES),
            config,
        })
    }

    /// The registration of this architecture's copy.
    pub fn icd(&self) -> PathBuf {
        self.vendors
            .join(format!("oclcache-{}.icd", architecture()))
    }

    /// The registration that versions without copies wrote.
    pub fn old_icd(&self) -> PathBuf {
        self.vendors.join(ICD)
    }
}

/// The paths of a user's copies of the command and the library.
pub struct Copies {
    /// The user's home.
    pub home: PathBuf,
    /// The directory of all architectures.
    pub root: PathBuf,
}

impl Copies {
    /// # Errors
    /// HOME is not set, or belongs to another user.
    pub fn find() -> Result<Copies, Failure> {
        let home = absolute("HOME").ok_or_else(no_home)?;
        let root = home.join(".local/lib/oclcache");
        check_owner(&root)?;
        check_owner(&home.join(".local/bin"))?;
        Ok(Copies { home, root })
    }

    /// The directory of this architecture.
    pub fn directory(&self) -> PathBuf {
        self.root.join(architecture())
    }

    pub fn library(&self) -> PathBuf {
        self.directory().join(LIBRARY)
    }

    pub fn command(&self) -> PathBuf {
        self.directory().join(COMMAND)
    }

    /// The helper of the remote level.
    pub fn helper(&self) -> PathBuf {
        self.directory().join(REMOTE_HELPER)
    }

    /// The script that starts the command.
    pub fn launcher(&self) -> PathBuf {
        self.home.join(".local/bin/oclcache")
    }

    /// What the line in a shell's start-up file reads.
    pub fn profile(&self) -> PathBuf {
        self.root.join("profile.sh")
    }

    /// The other architectures that have a copy.
    pub fn other_architectures(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .flatten();
        let copies = entries.filter(|entry| entry.path().join(LIBRARY).is_file());
        let names = copies.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| *name != architecture()).collect()
    }
}

/// The name of this machine's architecture, as `uname -m` prints it in the scripts.
pub fn architecture() -> String {
    let system = rustix::system::uname();
    system.machine().to_string_lossy().into_owned()
}

fn absolute(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.filter(|path| path.is_absolute())
}

fn no_home() -> Failure {
    Failure::new("HOME is not set; set it, or use --system")
}

/// Fails if the path, or the first directory above it that exists, belongs to another user: under sudo, HOME may be the caller's.
fn check_owner(place: &Path) -> Result<(), Failure> {
    let known = place.ancestors().find_map(|place| {
        let metadata = std::fs::metadata(place).ok()?;
        Some((place, metadata.uid()))
    });
    match known {
        Some((known, owner)) if owner != rustix::process::geteuid().as_raw() => {
            let known = path(known);
            Err(Failure::new(format_args!(
                "`{known}` belongs to another user; set HOME to your own, or use --system"
            )))
        }
        _ => Ok(()),
    }
}

/// The directory of drivers for OCL_ICD_VENDORS, if we are installed for this user.
pub fn of_user() -> Option<PathBuf> {
    let home = Home::find().ok()?;
    home.icd().is_file().then_some(home.vendors)
}

/// Our directory in the user's data directory. None if it is unknown or belongs to another user.
pub fn data_directory() -> Option<PathBuf> {
    Some(Home::find().ok()?.vendors.parent()?.to_owned())
}
