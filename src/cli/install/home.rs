//! What is of one user: a directory of drivers that has nothing but us, and a file of variables that the session reads.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::failure::Failure;
use super::super::run;
use super::plan::{HEADER, InstallPlan};
use super::{ICD, OWN_VENDORS, VENDORS};
use crate::log::path;
use crate::store::directory::Directory;

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

    /// The directories of ours go, if they are empty then.
    pub fn forget_directories(&self, plan: &mut InstallPlan) {
        plan.remove_directory(&self.vendors);
        if let Some(directory) = self.vendors.parent() {
            plan.remove_directory(directory);
        }
    }

    /// What `oclcache run` has made beside it goes.
    pub fn forget_runs(&self, plan: &mut InstallPlan) {
        let place = self.vendors.parent().unwrap_or(&self.vendors);
        let opened = Directory::open(place).ok().flatten();
        for (name, _) in opened.iter().flat_map(run::made_vendors) {
            plan.remove_known(&place.join(&name).join(ICD));
            plan.remove_directory(&place.join(name));
        }
    }
}

/// The directory that OCL_ICD_VENDORS has to name where it is registered for one user; None if it is not.
pub fn of_user() -> Option<PathBuf> {
    let home = Home::find().ok()?;
    home.icd().is_file().then_some(home.vendors)
}

/// The drivers that the loader would have seen, if those are not the registered ones.
pub fn drivers(home: &Home) -> Result<Option<OsString>, Failure> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(drivers) = variable(OWN_VENDORS) {
        return Ok(Some(drivers));
    }
    // As an earlier installation has it.
    if variable(VENDORS).is_some_and(|vendors| home.vendors == Path::new(&vendors)) {
        return Ok(None);
    }
    run::vendors()
}

/// Variables as environment.d(5) has them, where only what is plain needs no escaping.
pub fn of_session(variables: &[(&str, OsString)]) -> Result<Vec<u8>, Failure> {
    let mut content = format!("{HEADER}\n").into_bytes();
    for (name, value) in variables {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:=@%".contains(byte);
        if !value.as_bytes().iter().all(is_plain) {
            let value = path(Path::new(value));
            return Err(Failure::new(format_args!(
                "`{value}` has characters that a session's file of variables may not take as they are; use another place"
            )));
        }
        content.extend([name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat());
    }
    Ok(content)
}
