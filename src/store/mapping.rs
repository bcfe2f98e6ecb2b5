//! Counters in a file that is mapped: an addition is one instruction, no system call and no lock, and what was added is in the
//! file whatever becomes of the process, `_exit` and SIGKILL included.
//!
//! A write to a mapped page raises SIGBUS, in the application, where the file has no block for it. So the file is never sparse
//! and never cut: it is allocated in full before it gets its name, on file systems only that write blocks in place
//! ([`FileSystem::may_be_mapped`]), and a file that is not as it should be is replaced by another one, never made longer or
//! shorter. Whoever removes it or renames it does no harm, since the mapping keeps the file. What remains is a disk that
//! fails under it, which ends programs that are mapped from it just the same, and a user who cuts the file by hand.
//!
//! # Who may add
//!
//! A forked child inherits the mapping: what it adds is added to its parent's file. That is right for counters that processes
//! share; whoever keeps a file for each process must look whose the mapping is (`recorder` does).

#![allow(unsafe_code)] // maps a file

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::directory::Directory;
#[cfg(doc)]
use super::filesystem::FileSystem;

/// Of the magic number, and of each counter: so that counters are aligned.
const WORD: usize = size_of::<u64>();

/// How often a file is looked for that others make or replace at the same time, and how long until the next look.
const ATTEMPTS: u32 = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// A mapped file: a magic number, then counters as little-endian numbers of 64 bits.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<AtomicU64>,
    counters: usize,
}

// SAFETY: the mapping belongs to no thread, and all access to it is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the file of this name; makes it, with zeros, if there is none or another than it should be. Processes that do it
    /// at once have the same file.
    ///
    /// None where a file may not be mapped, and on machines whose own numbers are big-endian.
    ///
    /// # Errors
    /// There is no room on the disk, or what has the name is no regular file of ours with one name.
    pub fn open(
        directory: &Directory,
        name: &str,
        magic: &[u8; WORD],
        counters: usize,
    ) -> io::Result<Option<Mapping>> {
        if cfg!(target_endian = "big") || !directory.file_system().may_be_mapped() {
            return Ok(None);
        }
        let mut fresh = magic.to_vec();
        fresh.resize(WORD * (1 + counters), 0);
        for _ in 0..ATTEMPTS {
            let found = directory.open_file(name)?;
            if let Some(file) = &found
                && is_whole(file, magic, fresh.len())?
            {
                return Mapping::map(file, counters).map(Some);
            }
            if !directory.create_allocated(name, &fresh, found.as_ref())? {
                std::thread::sleep(PAUSE);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn map(file: &std::fs::File, counters: usize) -> io::Result<Mapping> {
        let length = WORD * (1 + counters);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses where, so nothing else is there. Rust knows of the memory by atomics only, which others
        // may change at any time.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, counters })
    }

    /// The counters: what they hold was added by all processes that have mapped the file.
    pub fn counters(&self) -> &[AtomicU64] {
        // SAFETY: so many words follow the magic number, page-aligned, readable and writable until `self` is dropped; any
        // bytes are a number.
        unsafe { std::slice::from_raw_parts(self.start.add(1).as_ptr(), self.counters) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let length = WORD * (1 + self.counters);
        // SAFETY: it was mapped with this length, and what was borrowed of it ended before.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), length) };
    }
}

/// Whether all bytes are there, allocated, behind the right magic number.
fn is_whole(file: &std::fs::File, magic: &[u8; WORD], size: usize) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    let size = size as u64;
    if u64::try_from(stat.st_size) != Ok(size) || allocated < size {
        return Ok(false);
    }
    let mut found = [0; WORD];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut found, 0)?;
    Ok(found == *magic)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;
    use std::sync::atomic::Ordering;

    use super::*;

    const MAGIC: &[u8; 8] = b"counters";
    const NAME: &str = "file";

    /// In memory, where files can be mapped on any machine.
    fn directory() -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
        let directory = Directory::create_all(&temporary.path().join("below")).expect("made");
        (temporary, directory)
    }

    fn open(directory: &Directory) -> Mapping {
        let opened = Mapping::open(directory, NAME, MAGIC, 3).expect("opened");
        opened.expect("mapped")
    }

    fn file(directory: &Directory) -> PathBuf {
        directory.path().join(NAME)
    }

    #[test]
    fn what_is_added_is_in_the_file_and_in_all_mappings_of_it() {
        let (_temporary, directory) = directory();
        let first = open(&directory);
        first.counters()[2].fetch_add(0x0102, Ordering::Relaxed);
        let second = open(&directory);
        assert_eq!(second.counters()[2].load(Ordering::Relaxed), 0x0102);
        assert_eq!(second.counters().len(), 3);
        let bytes = std::fs::read(file(&directory)).expect("read");
        assert_eq!(bytes[..8], *MAGIC);
        assert_eq!(bytes[8 + 16..], [2, 1, 0, 0, 0, 0, 0, 0]);
        let facts = std::fs::metadata(file(&directory)).expect("there");
        assert!(facts.blocks() * 512 >= facts.len(), "it is sparse");
        assert_eq!(directory.names().expect("listed"), [NAME]);
    }

    #[test]
    fn a_file_that_is_not_as_it_should_be_is_replaced_and_never_changed() {
        let (temporary, directory) = directory();
        let sparse = |path: &PathBuf| {
            let file = std::fs::File::create(path).expect("made");
            file.set_len(32).expect("made longer");
        };
        type Make<'a> = &'a dyn Fn(&PathBuf);
        let other: [(&str, Make); 4] = [
            ("empty", &|path| std::fs::write(path, b"").expect("made")),
            ("longer", &|path| {
                std::fs::write(path, [&MAGIC[..], &[1; 4096]].concat()).expect("made");
            }),
            ("other", &|path| {
                std::fs::write(path, [1; 32]).expect("made");
            }),
            ("sparse", &sparse),
        ];
        for (what, make) in other {
            let _ = std::fs::remove_file(file(&directory));
            make(&file(&directory));
            let before = std::fs::read(file(&directory)).expect("read");
            let kept = temporary.path().join(what);
            let old = std::fs::File::open(file(&directory)).expect("opened");
            let mapping = open(&directory);
            mapping.counters()[0].fetch_add(7, Ordering::Relaxed);
            assert_eq!(
                open(&directory).counters()[0].load(Ordering::Relaxed),
                7,
                "{what}"
            );
            std::io::copy(&mut &old, &mut std::fs::File::create(&kept).expect("made"))
                .expect("copied");
            assert_eq!(std::fs::read(&kept).expect("read"), before, "{what}");
            assert_eq!(directory.names().expect("listed"), [NAME], "{what}");
        }
    }

    #[test]
    fn who_makes_or_replaces_it_at_once_has_the_same_file() {
        let (_temporary, directory) = directory();
        for round in 0..40 {
            let _ = std::fs::remove_file(file(&directory));
            if round % 2 == 1 {
                std::fs::write(file(&directory), b"something else").expect("made");
            }
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| open(&directory).counters()[1].fetch_add(1, Ordering::Relaxed));
                }
            });
            assert_eq!(
                open(&directory).counters()[1].load(Ordering::Relaxed),
                8,
                "round {round}"
            );
        }
    }

    #[test]
    fn what_is_no_regular_file_of_ours_with_one_name_is_refused() {
        let (temporary, directory) = directory();
        let mut whole = MAGIC.to_vec();
        whole.resize(32, 0);
        let elsewhere = temporary.path().join("elsewhere");
        std::fs::write(&elsewhere, &whole).expect("made");
        for link in [
            std::os::unix::fs::symlink::<&PathBuf, PathBuf>,
            std::fs::hard_link,
        ] {
            link(&elsewhere, file(&directory)).expect("linked");
            assert!(Mapping::open(&directory, NAME, MAGIC, 3).is_err());
            std::fs::remove_file(file(&directory)).expect("removed");
        }
        assert_eq!(std::fs::read(&elsewhere).expect("read"), whole);
        std::fs::create_dir(file(&directory)).expect("made");
        assert!(Mapping::open(&directory, NAME, MAGIC, 3).is_err());
    }

    #[test]
    fn a_mapping_outlives_the_name_of_its_file() {
        let (_temporary, directory) = directory();
        let first = open(&directory);
        std::fs::remove_file(file(&directory)).expect("removed");
        first.counters()[0].fetch_add(1, Ordering::Relaxed);
        assert_eq!(open(&directory).counters()[0].load(Ordering::Relaxed), 0);
        assert_eq!(first.counters()[0].load(Ordering::Relaxed), 1);
    }
}
