//! The files of a user's installation: a directory of drivers with only us in it, and a file of variables that sessions read.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::failure::Failure;
use crate::log::path;

/// The file that registers us in a directory of drivers.
pub const ICD: &str = "oclcache.icd";
const VARIABLES: &str = "50-oclcache.conf";

/// The paths of a user's installation.
pub struct Home {
    pub vendors: PathBuf,
    pub variables: PathBuf,
}

impl Home {
    /// The paths by the XDG base directory specification.
    ///
    /// # Errors
    /// HOME is not set, or belongs to another user.
    pub fn find() -> Result<Home, Failure> {
        let variable = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let home = variable("HOME");
        let of =
            |xdg: &str, below: &str| variable(xdg).or_else(|| Some(home.as_ref()?.join(below)));
        let (Some(data), Some(config)) = (
            of("XDG_DATA_HOME", ".local/share"),
            of("XDG_CONFIG_HOME", ".config"),
        ) else {
            return Err(Failure::new("HOME is not set; set it, or use --system"));
        };
        for place in [&data, &config] {
            // Under sudo, HOME may be the caller's.
            let known = place.ancestors().find_map(|place| {
                let metadata = std::fs::metadata(place).ok()?;
                Some((place, metadata.uid()))
            });
            if let Some((known, owner)) = known
                && owner != rustix::process::geteuid().as_raw()
            {
                let known = path(known);
                return Err(Failure::new(format_args!(
                    "`{known}` belongs to another user; set HOME to your own, or use --system"
                )));
            }
        }
        Ok(Home {
            vendors: data.join("oclcache/vendors"),
            variables: config.join("environment.d").join(VARIABLES),
        })
    }

    pub fn icd(&self) -> PathBuf {
        self.vendors.join(ICD)
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
