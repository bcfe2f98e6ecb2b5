//! The variables of a session for `oclcache install --user`: as a file for systemd, and as scripts for shells.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::cli::failure::Failure;
use crate::cli::home::{Copies, Home};
use crate::cli::output::quoted;
use crate::cli::start_files::HEADER;
use crate::cli::vendors;
use crate::log::path;

pub const VENDORS: &str = "OCL_ICD_VENDORS";
pub const OWN_VENDORS: &str = "OCLCACHE_VENDORS";
pub const LAYERS: &str = "OPENCL_LAYERS";

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

/// The layers of this session, with a library first.
pub fn layers(copies: &Copies) -> OsString {
    let library = copies.library();
    let others = std::env::var_os(LAYERS).unwrap_or_default();
    let is_other = |one: &&[u8]| !one.is_empty() && *one != library.as_os_str().as_bytes();
    let others = others.as_bytes().split(|byte| *byte == b':');
    let all: Vec<&[u8]> = [library.as_os_str().as_bytes()]
        .into_iter()
        .chain(others.filter(is_other))
        .collect();
    OsString::from_vec(all.join(&b':'))
}

/// A file for environment.d(5). Only plain values are accepted, since they need no escaping; the home may have any name.
pub fn of_session(home: &Path, variables: &[(&str, OsString)]) -> Result<Vec<u8>, Failure> {
    let mut content = format!("{HEADER}\n").into_bytes();
    for (name, value) in variables {
        let below = Path::new(value).strip_prefix(home).ok();
        let plain = below.map_or(value.as_bytes(), |below| below.as_os_str().as_bytes());
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:=@%".contains(byte);
        if !plain.iter().all(is_plain) {
            let value = path(Path::new(value));
            return Err(Failure::new(format_args!(
                "`{value}` has characters that are special in a session's file of variables; use another path"
            )));
        }
        let start: &[u8] = if below.is_some() { b"${HOME}/" } else { b"" };
        content.extend([name.as_bytes(), b"=", start, plain, b"\n"].concat());
    }
    Ok(content)
}

/// The scripts of an installation. They pick the copy for the architecture of the machine on which they run, and do nothing on a
/// machine that has no copy.
pub struct Scripts {
    /// The directory of all architectures, quoted for POSIX shells.
    root: String,
    /// The same for fish.
    fish_root: String,
    /// None for a layer.
    vendors: Option<QuotedVendors>,
}

struct QuotedVendors {
    own: [String; 2],
    drivers: Option<[String; 2]>,
}

impl Scripts {
    /// # Errors
    /// A path has characters that cannot be shown.
    pub fn new(copies: &Copies, variables: &[(&str, OsString)]) -> Result<Scripts, Failure> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let both = |(_, value): &(&str, OsString)| both(Path::new(value));
        let [root, fish_root] = self::both(&copies.root)?;
        let own = value(VENDORS).map(both).transpose()?;
        let drivers = value(OWN_VENDORS).map(both).transpose()?;
        Ok(Scripts {
            root,
            fish_root,
            vendors: own.map(|own| QuotedVendors { own, drivers }),
        })
    }

    /// Starts the command.
    pub fn launcher(&self) -> Vec<u8> {
        let root = &self.root;
        format!(
            "#!/bin/sh\n\
             {HEADER}\n\
             # Starts the copy for this machine's architecture: several machines may share a home.\n\
             copy={root}/$(uname -m)/oclcache\n\
             if [ ! -x \"$copy\" ]; then\n\
             \x20   echo \"oclcache: not installed for $(uname -m); run \\`oclcache install --user\\` of a build for it\" >&2\n\
             \x20   exit 127\n\
             fi\n\
             exec \"$copy\" \"$@\"\n"
        )
        .into_bytes()
    }

    /// For POSIX shells, which read it by our line in their start-up files.
    pub fn profile(&self) -> Vec<u8> {
        let library = format!("{}/\"$(uname -m 2>/dev/null)\"/liboclcache.so", self.root);
        let Some(vendors) = &self.vendors else {
            let root = &self.root;
            return format!(
                "{HEADER}\n\
                 case :${{{LAYERS}-}}: in\n\
                 *:{root}/*) ;;\n\
                 *)\n\
                 \x20   if [ -r {library} ]; then\n\
                 \x20       export {LAYERS}={library}\"${{{LAYERS}:+:${LAYERS}}}\"\n\
                 \x20   fi\n\
                 \x20   ;;\n\
                 esac\n"
            )
            .into_bytes();
        };
        let own = &vendors.own[0];
        let drivers = vendors.drivers.as_ref().map(|drivers| &drivers[0]);
        let replaced = drivers.map_or_else(String::new, |drivers| format!(" | {drivers}"));
        let more = drivers.map_or_else(String::new, |drivers| {
            format!("\n        export {OWN_VENDORS}={drivers}")
        });
        format!(
            "{HEADER}\n\
             # Another choice of drivers is kept. Without a copy for this machine's architecture, programs use the drivers without oclcache.\n\
             case ${{{VENDORS}-}} in\n\
             '' | {own}{replaced})\n\
             \x20   if [ -r {library} ]; then\n\
             \x20       export {VENDORS}={own}{more}\n\
             \x20   elif [ \"${{{VENDORS}-}}\" = {own} ]; then\n\
             \x20       unset {VENDORS} {OWN_VENDORS}\n\
             \x20   fi\n\
             \x20   ;;\n\
             esac\n"
        )
        .into_bytes()
    }

    /// For fish, which reads all files of a directory.
    pub fn fish(&self) -> Vec<u8> {
        let library = format!("{}/(uname -m)/liboclcache.so", self.fish_root);
        let Some(vendors) = &self.vendors else {
            return format!(
                "{HEADER}\n\
                 if test -r {library}; and not contains -- {library} (string split : -- \"${LAYERS}\")\n\
                 \x20   set -gx {LAYERS} (string join : -- {library} (string split -n : -- \"${LAYERS}\"))\n\
                 end\n"
            )
            .into_bytes();
        };
        let own = &vendors.own[1];
        let drivers = vendors.drivers.as_ref().map(|drivers| &drivers[1]);
        let replaced = drivers.map_or_else(String::new, |drivers| format!(" {drivers}"));
        let more = drivers.map_or_else(String::new, |drivers| {
            format!("\n        set -gx {OWN_VENDORS} {drivers}")
        });
        format!(
            "{HEADER}\n\
             # Another choice of drivers is kept. Without a copy for this machine's architecture, programs use the drivers without oclcache.\n\
             if contains -- \"${VENDORS}\" '' {own}{replaced}\n\
             \x20   if test -r {library}\n\
             \x20       set -gx {VENDORS} {own}{more}\n\
             \x20   else if test \"${VENDORS}\" = {own}\n\
             \x20       set -e {VENDORS}\n\
             \x20       set -e {OWN_VENDORS}\n\
             \x20   end\n\
             end\n"
        )
        .into_bytes()
    }
}

/// A path, quoted for POSIX shells and for fish.
fn both(value: &Path) -> Result<[String; 2], Failure> {
    let quoted = quoted(value).ok_or_else(|| {
        Failure::new(format_args!(
            "`{}` has characters that cannot be written to scripts; use another path",
            path(value)
        ))
    })?;
    let text = value.to_string_lossy();
    let fish = text.replace('\\', r"\\").replace('\'', r"\'");
    Ok([quoted, format!("'{fish}'")])
}
