//! Opens files whose names come from elsewhere: from search paths, from libraries, from settings.
//!
//! A FIFO of such a name would block the application for ever, and opening a device can have an effect. So the kind of a file is
//! looked at before it is opened, and again behind the descriptor, since another file may have come meanwhile.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file to read it. None: something else is there.
///
/// # Errors
/// Nothing is there, or it cannot be opened.
pub fn open(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    match std::fs::metadata(path)?.is_file() {
        true => open_seen(path),
        false => Ok(None),
    }
}

/// The same for a path at which the caller has just seen a regular file.
///
/// # Errors
/// Nothing is there any more, or it cannot be opened.
pub fn open_seen(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some((file, metadata)))
}

/// The content of a regular file. None: something else is there.
///
/// # Errors
/// Nothing is there, or it cannot be read.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some((mut file, metadata)) = open(path)? else {
        return Ok(None);
    };
    let mut content = Vec::new();
    content.try_reserve_exact(metadata.len() as usize + 1)?;
    file.read_to_end(&mut content)?;
    Ok(Some(content))
}

/// The error of a place where a regular file was expected.
pub fn is_none() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Runs this without the rights of root to read everything.
    pub fn without_rights<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        // Capabilities belong to a thread.
        let run = || {
            let mut sets = capabilities(None).expect("capabilities");
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, sets).expect("rights can be given up");
            run()
        };
        std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
    }

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "content").expect("written");
        std::os::unix::fs::symlink("file", at("link")).expect("linked");
        std::fs::create_dir(at("directory")).expect("made");
        let fifo = rustix::fs::FileType::Fifo;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, mode, 0).expect("made");
        for name in ["file", "link"] {
            let content = read(&at(name)).expect("readable");
            assert_eq!(content.as_deref(), Some(&b"content"[..]), "{name}");
        }
        for path in [at("directory"), at("fifo"), "/dev/null".into()] {
            assert!(open(&path).expect("looked at").is_none(), "{path:?}");
            // It came after somebody had seen a file.
            assert!(open_seen(&path).expect("opened").is_none(), "{path:?}");
        }
        let error = open(&at("nothing")).expect_err("nothing is there");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
