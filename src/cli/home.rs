//! What is of one user: a directory of drivers that has nothing but us, and a file of variables that the session reads.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::failure::Failure;
use crate::log::path;

/// The registration in a directory of drivers.
pub const ICD: &str = "oclcache.icd";
const VARIABLES: &str = "50-oclcache.conf";

/// Where what is of one user stands.
pub struct Home {
    pub vendors: PathBuf,
    pub variables: PathBuf,
}

impl Home {
    /// Where they are, by the XDG base directory specification.
    ///
    /// # Errors
    /// Nobody says where, or it is another user's.
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
            return Err(Failure::new(
                "HOME is not set, so it is not known where your files are; set it, or use --system",
            ));
        };
        for place in [&data, &config] {
            // Under sudo HOME may still be the caller's.
            let known = place.ancestors().find_map(|place| {
                let metadata = std::fs::metadata(place).ok()?;
                Some((place, metadata.uid()))
            });
            if let Some((known, owner)) = known
                && owner != rustix::process::geteuid().as_raw()
            {
                let known = path(known);
                return Err(Failure::new(format_args!(
                    "`{known}` belongs to another user than the one who runs this command; set HOME to yours, or use --system"
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

/// The directory that OCL_ICD_VENDORS has to name where it is registered for one user; None if it is not.
pub fn of_user() -> Option<PathBuf> {
    let home = Home::find().ok()?;
    home.icd().is_file().then_some(home.vendors)
}

/// The directory in which `--user` makes one of drivers, and `oclcache run` others. None: it is not known, or another user's.
pub fn data_directory() -> Option<PathBuf> {
    Some(Home::find().ok()?.vendors.parent()?.to_owned())
}
