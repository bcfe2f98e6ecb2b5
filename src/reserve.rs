//! The allocator: that of the system, and a small reserve for the case that the system has no memory left.
//!
//! Rust ends the process if an ordinary allocation fails. Buffers whose size comes from an application or a file are allocated
//! fallibly (`fallible`), and on failure the driver is called as if we were not there. Many small allocations remain: lists of
//! devices, the log, paths. The reserve provides for these until the call ends.

#![allow(unsafe_code)] // an allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The size of the reserve, in bytes. It takes address space from the start, and memory only when it is used.
const SIZE: usize = 4 << 20;
/// The largest allocation from the reserve, in bytes.
const MAX_ALLOCATION: usize = 512 << 10;
/// The smallest block, and the alignment of all, in bytes. The size of a block is a power of two.
const MIN_BLOCK: usize = 64;
/// How many sizes of blocks there are.
const CLASSES: usize = (MAX_ALLOCATION / MIN_BLOCK).ilog2() as usize + 1;

#[repr(align(64))]
struct Bytes(UnsafeCell<[u8; SIZE]>);

// SAFETY: each byte belongs to whom it was allocated, or to nobody.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; SIZE]));

/// The offset of the part that was never used.
static UNUSED: AtomicUsize = AtomicUsize::new(0);

/// For each size a list of free blocks: the first one, and above it the number of changes of the list, so that a thread whose view of
/// the list is old never changes the list. Without locks, since signal handlers and forked children allocate as well.
static FREE: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];
/// For each place of a block the free block behind it.
static NEXT: [AtomicU32; SIZE / MIN_BLOCK] = [const { AtomicU32::new(0) }; SIZE / MIN_BLOCK];

/// The system's allocator, with the reserve.
pub struct WithReserve;

fn start() -> usize {
    BYTES.0.get() as usize
}

fn is_reserved(pointer: *mut u8) -> bool {
    (start()..start() + SIZE).contains(&(pointer as usize))
}

/// The number of the size of a block for so many bytes.
fn class_of(size: usize) -> usize {
    size.div_ceil(MIN_BLOCK).next_power_of_two().ilog2() as usize
}

/// A place in the reserve. NULL if it has none for this.
#[cold]
fn reserved(layout: Layout) -> *mut u8 {
    if layout.size() > MAX_ALLOCATION || layout.align() > MIN_BLOCK {
        return std::ptr::null_mut();
    }
    let class = class_of(layout.size());
    // A list holds the numbers of its blocks, counted from 1.
    let taken = FREE[class].fetch_update(Ordering::AcqRel, Ordering::Acquire, |list| {
        let index = (list as u32).checked_sub(1)?;
        let next = NEXT[index as usize].load(Ordering::Relaxed);
        Some(changed(list, next))
    });
    let block = MIN_BLOCK << class;
    let fits = |unused: usize| Some(unused + block).filter(|end| *end <= SIZE);
    let offset = match taken {
        Ok(list) => Ok((list as u32 - 1) as usize * MIN_BLOCK),
        Err(_) => UNUSED.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits),
    };
    offset.map_or(std::ptr::null_mut(), |offset| (start() + offset) as *mut u8)
}

/// A list that begins with this block, after one more change.
fn changed(list: u64, first: u32) -> u64 {
    ((list >> 32) + 1) << 32 | u64::from(first)
}

#[cold]
fn give_back(pointer: *mut u8, size: usize) {
    let index = (pointer as usize - start()) / MIN_BLOCK;
    let add = |list: u64| {
        NEXT[index].store(list as u32, Ordering::Relaxed);
        Some(changed(list, index as u32 + 1))
    };
    let _ = FREE[class_of(size)].fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
}

/// Whether the process can allocate so many more bytes. Keeps none of them: the check comes before any work, and the work allocates
/// fallibly anyway. It does not use the allocator, which would keep more freed memory from then on.
pub fn has_room(bytes: usize) -> bool {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let (access, flags) = (ProtFlags::READ.union(ProtFlags::WRITE), MapFlags::PRIVATE);
    // SAFETY: a new mapping, which nothing is ever written to or read from.
    unsafe {
        let mapped = mmap_anonymous(std::ptr::null_mut(), bytes, access, flags);
        mapped.is_ok_and(|mapped| munmap(mapped, bytes).is_ok())
    }
}

// SAFETY: what the system's allocator gives goes back to it, and what lies in the reserve overlaps nothing else that lives.
unsafe impl GlobalAlloc for WithReserve {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let pointer = unsafe { System.alloc(layout) };
        match pointer.is_null() {
            true => reserved(layout),
            false => pointer,
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            return pointer;
        }
        let pointer = reserved(layout);
        if !pointer.is_null() {
            // SAFETY: it has this size, and may have been used before.
            unsafe { pointer.write_bytes(0, layout.size()) };
        }
        pointer
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match is_reserved(pointer) {
            true => give_back(pointer, layout.size()),
            // SAFETY: it is the system's, by the caller's contract.
            false => unsafe { System.dealloc(pointer, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_reserved(pointer) {
            if size <= MAX_ALLOCATION && class_of(size) == class_of(layout.size()) {
                return pointer;
            }
        } else {
            // SAFETY: it is the system's, by the caller's contract.
            let moved = unsafe { System.realloc(pointer, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        let Ok(layout_after) = Layout::from_size_align(size, layout.align()) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the layouts are those of the two places, which do not overlap; a failed realloc leaves the first as it is.
        unsafe {
            let moved = self.alloc(layout_after);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(pointer, moved, size.min(layout.size()));
                self.dealloc(pointer, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since others of this process do not use the reserve.
    fn by_threads() {
        const SIZE_OF_THREADS: usize = 2000;
        let layout = Layout::from_size_align(SIZE_OF_THREADS, 1).expect("a layout");
        std::thread::scope(|scope| {
            for thread in 1..=4_u8 {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let place = reserved(layout);
                        assert!(is_reserved(place));
                        // SAFETY: it is this thread's, and has this size.
                        let bytes = unsafe {
                            place.write_bytes(thread, SIZE_OF_THREADS);
                            std::slice::from_raw_parts(place, SIZE_OF_THREADS)
                        };
                        assert!(bytes.iter().all(|byte| *byte == thread));
                        give_back(place, SIZE_OF_THREADS);
                    }
                });
            }
        });
    }

    #[test]
    fn blocks_overlap_nothing_and_are_used_again() {
        by_threads();
        let layout = |size| Layout::from_size_align(size, 16).expect("a layout");
        let address = |place: &*mut u8| *place as usize;
        let places: Vec<_> = (0..10).map(|_| reserved(layout(100))).collect();
        for (index, place) in places.iter().enumerate() {
            assert!(is_reserved(*place) && address(place).is_multiple_of(64));
            let mut others = places[..index].iter();
            assert!(others.all(|other| address(place).abs_diff(address(other)) >= 100));
        }
        assert!(reserved(layout(MAX_ALLOCATION + 1)).is_null());
        // More in all than the reserve has, as long as little is used at once.
        for number in 0..1000 {
            let size = [1, 64, 65, 4096, 100_000, MAX_ALLOCATION][number % 6];
            let place = reserved(layout(size));
            assert!(is_reserved(place) && !places.contains(&place), "{number}");
            // SAFETY: it has this size.
            unsafe { place.write_bytes(0xff, size) };
            give_back(place, size);
        }
        let most = layout(MAX_ALLOCATION);
        let more: Vec<_> = (0..SIZE / MAX_ALLOCATION).map(|_| reserved(most)).collect();
        assert!(more.contains(&std::ptr::null_mut()), "it is full");
        let more = more.into_iter().filter(|place| !place.is_null());
        for place in more {
            // SAFETY: it is one of the reserve's, of this layout.
            unsafe { WithReserve.dealloc(place, most) };
        }
        // SAFETY: as above.
        unsafe {
            let place = WithReserve.realloc(places[0], layout(100), 128);
            assert_eq!(place, places[0], "the block has room");
            place.write_bytes(7, 128);
            let moved = WithReserve.realloc(place, layout(128), 1000);
            assert!(!is_reserved(moved), "the system has memory again");
            assert!(
                std::slice::from_raw_parts(moved, 128)
                    .iter()
                    .all(|byte| *byte == 7)
            );
            WithReserve.dealloc(moved, layout(1000));
        }
        assert_eq!(reserved(layout(100)), places[0], "it is free again");
        for place in places {
            give_back(place, 100);
        }
    }
}
