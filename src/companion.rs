//! The programs that belong to this library, which it may start: the command, and the helper of the remote level.
//!
//! They are looked for beside the library only, never on the application's PATH, and used only if nobody else can write them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use once_cell::race::OnceBox;
use rustix::fs::{FileType, OFlags, Stat, fstat};

use crate::driver::path_of;
use crate::spawn_detached::{Program, Surroundings};
use crate::{log, trust};

/// The path of the command, if the package sets one at build time.
const BUILT_COMMAND: Option<&str> = option_env!("OCLCACHE_DEFAULT_COMMAND");
/// The command.
pub const COMMAND: &str = "oclcache";
/// The helper of the remote level.
pub const REMOTE_HELPER: &str = "oclcache-remote";

/// Variables that are meant for the application: those of the ICD loaders, and those that load libraries. Some variables of drivers
/// begin with `OPENCL_` as well (Intel's CPU runtime: OPENCL_PROGRAM_COMPILE_OPTIONS).
const OF_APPLICATION: [&str; 4] = ["OCL_ICD_*", "OPENCL_LAYER*", "LD_PRELOAD", "LD_AUDIT"];

static OWN_LIBRARY: OnceBox<Option<PathBuf>> = OnceBox::new();

/// The path of this library; None: the dynamic linker does not know it.
///
/// It is asked once, when the library is loaded: later the linker may be busy with a library whose constructor waits for a build (see
/// `linker_lock`).
pub fn own_library() -> Option<&'static Path> {
    let own = own_library as fn() -> Option<&'static Path>;
    let path = OWN_LIBRARY.get_or_init(|| Box::new(path_of(own as usize)));
    path.as_deref()
}

/// Whether a variable is meant for the application, and passed to none of our programs.
pub fn is_for_application(name: &OsStr) -> bool {
    let name = name.as_bytes();
    OF_APPLICATION
        .iter()
        .any(|removed| match removed.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix.as_bytes()),
            None => name == removed.as_bytes(),
        })
}

/// The program of this name that belongs to a library or command: beside it, in `../bin`, or where the build put the command.
/// Ignores who may write it.
pub fn beside(library: &Path, name: &str) -> Option<PathBuf> {
    let mut places = Vec::new();
    // The loader's path may be relative to the working directory of that time.
    if let Some(real) = library
        .is_absolute()
        .then(|| library.canonicalize().ok())
        .flatten()
        && let Some(directory) = real.parent()
    {
        places.push(directory.join(name));
        places.push(directory.join("../bin").join(name));
    }
    let built = BUILT_COMMAND.map(|command| Path::new(command).with_file_name(name));
    places.extend(built.filter(|built| built.is_absolute()));
    let mut found = places.iter().filter_map(|place| place.canonicalize().ok());
    // A library in PREFIX/lib has the directory PREFIX/lib/oclcache beside it.
    found.find(|place| !place.is_dir())
}

/// The program of this name that belongs to a library, if no untrusted user can write it.
///
/// # Errors
/// Why there is none, as a message.
pub fn trusted(library: &Path, name: &str) -> Result<Program, String> {
    // Before it is checked: from then on it is told if the file system is another one.
    let surroundings = Surroundings::now();
    let program = beside(library, name);
    let program = program.ok_or_else(|| match name {
        COMMAND => "there is no command beside the library".to_owned(),
        name => format!("there is no `{name}` beside the library"),
    })?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let owners = trust::own_users();
    let shown = log::path(&program).to_string();
    let opened = trust::open(&program, flags, &owners)?;
    let opened = opened.ok_or_else(|| format!("`{shown}` is gone"))?;
    let is_program =
        |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mode & 0o111 != 0;
    let stat = fstat(&opened).ok().filter(is_program);
    let stat = stat.ok_or_else(|| format!("`{shown}` is no program"))?;
    Ok(Program {
        path: program,
        file: (stat.st_dev, stat.st_ino),
        surroundings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_beside_the_library_is_not_taken_for_the_command() {
        let prefix = tempfile::tempdir().expect("a temporary directory");
        let prefix = prefix.path().canonicalize().expect("there");
        std::fs::create_dir_all(prefix.join("lib/oclcache/vendors")).expect("made");
        std::fs::create_dir(prefix.join("bin")).expect("made");
        for file in ["lib/liboclcache.so", "bin/oclcache"] {
            std::fs::write(prefix.join(file), "").expect("written");
        }
        let found = beside(&prefix.join("lib/liboclcache.so"), COMMAND);
        assert_eq!(found, Some(prefix.join("bin/oclcache")));
    }
}
