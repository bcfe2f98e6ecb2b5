//! The variables of a session for `oclcache install --user`, and the directories that `oclcache uninstall --user` removes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::plan::{HEADER, InstallPlan};
use crate::cli::failure::Failure;
use crate::cli::home::{Home, ICD};
use crate::cli::vendors;
use crate::log::path;
use crate::store::directory::Directory;

pub const VENDORS: &str = "OCL_ICD_VENDORS";
pub const OWN_VENDORS: &str = "OCLCACHE_VENDORS";

/// Removes our directories, if they are empty then.
pub fn forget_directories(home: &Home, plan: &mut InstallPlan) {
    plan.remove_directory(&home.vendors);
    if let Some(directory) = home.vendors.parent() {
        plan.remove_directory(directory);
    }
}

/// Removes what `oclcache run` has made.
pub fn forget_runs(home: &Home, plan: &mut InstallPlan) {
    let place = home.vendors.parent().unwrap_or(&home.vendors);
    let opened = Directory::open(place).ok().flatten();
    for (name, _) in opened.iter().flat_map(vendors::made_vendors) {
        plan.remove_known(&place.join(&name).join(ICD));
        plan.remove_directory(&place.join(name));
    }
}

/// The drivers that the loader would have seen; None for the registered ones.
pub fn drivers(home: &Home) -> Result<Option<OsString>, Failure> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(drivers) = variable(OWN_VENDORS) {
        return Ok(Some(drivers));
    }
    // An earlier installation has set it.
    if variable(VENDORS).is_some_and(|vendors| home.vendors == Path::new(&vendors)) {
        return Ok(None);
    }
    vendors::vendors()
}

/// A file for environment.d(5). Only plain values are accepted, since they need no escaping.
pub fn of_session(variables: &[(&str, OsString)]) -> Result<Vec<u8>, Failure> {
    let mut content = format!("{HEADER}\n").into_bytes();
    for (name, value) in variables {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:=@%".contains(byte);
        if !value.as_bytes().iter().all(is_plain) {
            let value = path(Path::new(value));
            return Err(Failure::new(format_args!(
                "`{value}` has characters that are special in a session's file of variables; use another path"
            )));
        }
        content.extend([name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat());
    }
    Ok(content)
}
