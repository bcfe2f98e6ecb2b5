//! What is mapped at an address: from which file, and how it may be used.
//!
//! Since Linux 6.11 the kernel says it for one address. Before, it only lists all mappings, which takes longer than all else that is
//! asked of a library (0.2 of the 2.3 ms of a first hit of Intel's GPU driver), so the list is read once for all libraries of a driver.
//!
//! A filter of system calls may kill a process for a request that it does not know, so the kernel is only asked where no filter is on.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::MprotectFlags;

use crate::{proc_file, syscall_filters};

const FILE: &str = "/proc/self/maps";

/// The mappings of this process.
pub struct Mappings {
    /// To ask the kernel: since Linux 6.11. None: it must not be asked.
    asked: Option<OwnedFd>,
    listed: OnceCell<Vec<(Range<usize>, Mapping)>>,
}

/// What is mapped somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The inode of the file.
    pub inode: u64,
    /// Whether the file has no name any more.
    pub deleted: bool,
    /// How it may be used.
    pub protection: MprotectFlags,
}

/// The ways to use a mapping: PROCMAP_QUERY_VMA_READABLE and its like in linux/fs.h, and the letters in the list.
const WAYS: [(u64, u8, MprotectFlags); 3] = [
    (1, b'r', MprotectFlags::READ),
    (2, b'w', MprotectFlags::WRITE),
    (4, b'x', MprotectFlags::EXEC),
];

fn protection(is_allowed: impl Fn(u64, u8) -> bool) -> MprotectFlags {
    let ways = WAYS
        .into_iter()
        .filter(|(bit, letter, _)| is_allowed(*bit, *letter));
    ways.fold(MprotectFlags::empty(), |all, (_, _, way)| all | way)
}

/// What is added to the name of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

impl Mappings {
    /// The mappings as they are now, or when they are first asked for.
    pub fn now() -> Mappings {
        if syscall_filters::are_on() {
            return Mappings {
                asked: None,
                listed: OnceCell::new(),
            };
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Mappings {
            asked: retry_on_intr(|| openat(CWD, FILE, flags, Mode::empty())).ok(),
            listed: OnceCell::new(),
        }
    }

    /// The mapping around an address. None if nothing is mapped there, or if the system does not tell.
    pub fn at(&self, address: usize) -> Option<Mapping> {
        match self.asked.as_ref().map(|file| ask(file, address)) {
            Some(Ok(mapping)) => Some(mapping),
            Some(Err(Errno::NOENT)) => None,
            // The kernel cannot be asked; or an application has closed the descriptor.
            Some(Err(_)) | None => {
                let mut listed = self.listed.get_or_init(list).iter();
                let around = listed.find(|(range, _)| range.contains(&address));
                around.map(|(_, mapping)| *mapping)
            }
        }
    }
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    ways: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// PROCMAP_QUERY
const QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);

/// Asks the kernel.
fn ask(file: &OwnedFd, address: usize) -> Result<Mapping, Errno> {
    /// PATH_MAX. The kernel gives no longer ones.
    const MAX_NAME: usize = 4096;
    let mut name: Vec<u8> = Vec::new();
    name.try_reserve_exact(MAX_NAME).map_err(|_| Errno::NOMEM)?;
    name.resize(MAX_NAME, 0);
    let mut query = Query {
        size: size_of::<Query>() as u64,
        address: address as u64,
        name_size: MAX_NAME as u32,
        name: name.as_mut_ptr().cast::<c_void>() as u64,
        ..Query::default()
    };
    // SAFETY: the kernel reads and writes a query of this size, and writes a name of at most `name_size` bytes to where that many are.
    unsafe { ioctl(file, Updater::<QUERY, Query>::new(&mut query)) }?;
    // With its NUL.
    name.truncate((query.name_size as usize).saturating_sub(1));
    Ok(Mapping {
        inode: query.inode,
        deleted: name.ends_with(DELETED),
        protection: protection(|bit, _| query.ways & bit != 0),
    })
}

/// Reads the list (proc(5)). Empty if the system does not tell.
fn list() -> Vec<(Range<usize>, Mapping)> {
    let text = proc_file::read_own("maps").unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(parse).collect()
}

fn parse(line: &[u8]) -> Option<(Range<usize>, Mapping)> {
    let deleted = line.ends_with(DELETED);
    // Names of files may be no UTF-8.
    let mut fields = line
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
        .map_while(|field| str::from_utf8(field).ok());
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let letters = fields.next()?.as_bytes();
    let mapping = Mapping {
        protection: protection(|_, letter| letters.contains(&letter)),
        inode: fields.nth(2)?.parse().ok()?,
        deleted,
    };
    Some((range, mapping))
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Maps a page of a file.
    fn map(file: &std::fs::File) -> usize {
        let (read, private) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::PRIVATE);
        // SAFETY: a new mapping, which nobody reads.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, read, private, file, 0) };
        mapped.expect("mapped") as usize
    }

    #[test]
    fn what_the_kernel_says_and_what_it_lists_is_the_same() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let make = |name: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, [0; 4096]).expect("written");
            let file = std::fs::File::open(&path).expect("opened");
            (path, map(&file), file.metadata().expect("metadata").ino())
        };
        let kept = make("kept (deleted) not");
        let removed = make("removed");
        std::fs::remove_file(&removed.0).expect("removed");
        let listing = Mappings {
            asked: None,
            listed: OnceCell::new(),
        };
        for mappings in [Mappings::now(), listing] {
            for ((_, address, inode), deleted) in [(&kept, false), (&removed, true)] {
                let expected = Mapping {
                    inode: *inode,
                    deleted,
                    protection: MprotectFlags::READ,
                };
                assert_eq!(mappings.at(address + 7), Some(expected));
            }
            assert_eq!(mappings.at(1), None, "nothing is mapped at the first page");
            let on_stack = mappings.at(&raw const mappings as usize);
            let on_stack = on_stack.expect("mapped");
            assert_eq!(on_stack.inode, 0);
            let both = MprotectFlags::READ | MprotectFlags::WRITE;
            assert_eq!(on_stack.protection, both);
            let code = mappings.at(list as fn() -> Vec<_> as usize);
            let both = MprotectFlags::READ | MprotectFlags::EXEC;
            assert_eq!(code.expect("mapped").protection, both);
        }
    }

    #[test]
    fn a_closed_descriptor_is_no_answer() {
        let null = std::fs::File::open("/dev/null").expect("opened");
        let mappings = Mappings {
            asked: Some(null.into()),
            listed: OnceCell::new(),
        };
        let own = mappings
            .at(list as fn() -> Vec<_> as usize)
            .expect("mapped");
        let program = std::fs::metadata("/proc/self/exe").expect("this program");
        assert_eq!(own.inode, program.ino());
    }

    /// A filter that lets everything pass. It holds for this thread only.
    pub fn filter() {
        let pass = libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: (&raw const pass).cast_mut(),
        };
        // SAFETY: a program of one instruction (seccomp(2)).
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER;
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &program), 0);
        }
    }

    #[test]
    fn the_kernel_is_asked_for_nothing_unusual_once_a_filter_is_on() {
        drop(Mappings::now());
        let filtered = std::thread::spawn(|| {
            filter();
            let mappings = Mappings::now();
            let code = mappings.at(list as fn() -> Vec<_> as usize);
            (mappings.asked.is_some(), code.is_some())
        });
        assert_eq!(filtered.join().expect("it ends"), (false, true));
    }
}
