//! Tells a forked child from its parent without a system call.
//!
//! The number of the process is not enough: asking for it is a system call, and a grandchild may have the number of a grandparent
//! that has ended. So there is a page that the kernel wipes in each child, whichever call forks (MADV_WIPEONFORK, Linux 4.14;
//! measured on Linux 6.18: also after a plain clone, which runs no handlers). A child of vfork shares its parent's memory and this
//! number; it may only execute another program.

#![allow(unsafe_code)] // maps the page

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The last number that was used. A child continues from its parent's.
static LAST: AtomicU64 = AtomicU64::new(0);

static WIPED: OnceBox<Option<Wiped>> = OnceBox::new();

/// On systems that wipe no page: the number of the process in the upper half, and its generation in the lower half.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// A number that differs from those of all processes from which this one was forked.
pub fn generation() -> u64 {
    match WIPED.get_or_init(|| Box::new(Wiped::new())) {
        Some(page) => given(page.word(), |found| found > 0, |number| number),
        None => {
            let process = u64::from(std::process::id()) << 32;
            let half = u64::from(u32::MAX);
            given(
                &ASKED,
                |found| found & !half == process,
                |number| process | number & half,
            ) & half
        }
    }
}

/// The generation in the word, or a new one if that is not of this process.
fn given(word: &AtomicU64, is_ours: impl Fn(u64) -> bool, make: impl Fn(u64) -> u64) -> u64 {
    let found = word.load(Ordering::Acquire);
    if is_ours(found) {
        return found;
    }
    let number = make(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    match word.compare_exchange(found, number, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => number,
        Err(other_threads) => other_threads,
    }
}

/// A page that children find zeroed.
struct Wiped(NonNull<AtomicU64>);

// SAFETY: the page belongs to no thread, and all access to it is atomic.
unsafe impl Send for Wiped {}
// SAFETY: as above.
unsafe impl Sync for Wiped {}

impl Wiped {
    const SIZE: usize = size_of::<AtomicU64>();

    fn new() -> Option<Wiped> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses where, so nothing else is there.
        let page =
            unsafe { mmap_anonymous(std::ptr::null_mut(), Self::SIZE, access, MapFlags::PRIVATE) };
        let page = Wiped(NonNull::new(page.ok()?.cast())?);
        // SAFETY: it changes nothing in this process.
        let wiped = unsafe { madvise(page.0.as_ptr().cast(), Self::SIZE, Advice::LinuxWipeOnFork) };
        wiped.ok().map(|()| page)
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: it is mapped until `self` is dropped, page-aligned, and any bytes are a number.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nothing is borrowed of it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), Self::SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child of a plain clone says, for which the C library runs no handlers.
    fn in_a_child(body: impl FnOnce() -> u64) -> u64 {
        let mut ends = [0; 2];
        // SAFETY: an array for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child calls what is tested, which takes no lock, writes and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let said = body().to_le_bytes();
            // SAFETY: of a buffer of this size; and the end of the child.
            unsafe {
                libc::write(ends[1], said.as_ptr().cast(), said.len());
                libc::_exit(0);
            }
        }
        let mut said = [0; 8];
        // SAFETY: into a buffer of this size; the child is this process's own.
        unsafe {
            assert_eq!(libc::read(ends[0], said.as_mut_ptr().cast(), 8), 8);
            libc::close(ends[0]);
            libc::close(ends[1]);
            libc::waitpid(child as i32, std::ptr::null_mut(), 0);
        }
        u64::from_le_bytes(said)
    }

    #[test]
    fn each_descendant_has_another_number_than_its_ancestors() {
        let own = generation();
        assert_eq!(std::thread::spawn(generation).join().expect("told"), own);
        let childs = in_a_child(|| {
            let childs = generation();
            if childs != generation() {
                return 0;
            }
            let grandchilds = in_a_child(generation);
            if grandchilds > childs { childs } else { 0 }
        });
        assert!(childs > own, "{own}, then {childs}");
        assert_eq!(generation(), own);
    }
}
