//! The allocator: that of the system, and a small reserve for the case that the system has no memory left.
//!
//! Rust ends the process if an ordinary allocation fails. Buffers whose size comes from an application or a file are allocated
//! fallibly (`fallible`), and on failure the driver is called as if we were not there. Many small allocations remain: lists of
//! devices, the log, paths. The reserve provides for these until the call ends.

#![allow(unsafe_code)] // an allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of the reserve, in bytes. It takes address space from the start, and memory only when it is used.
const SIZE: usize = 4 << 20;
/// The largest allocation from the reserve, in bytes.
const MAX_ALLOCATION: usize = 512 << 10;

#[repr(align(64))]
struct Bytes(UnsafeCell<[u8; SIZE]>);

// SAFETY: each byte belongs to whom it was allocated, or to nobody.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; SIZE]));

/// The number of live allocations in the reserve (the upper half), and the offset of its free part. When none is live, all of it is
/// free.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, with the reserve.
pub struct WithReserve;

fn start() -> usize {
    BYTES.0.get() as usize
}

fn is_reserved(pointer: *mut u8) -> bool {
    (start()..start() + SIZE).contains(&(pointer as usize))
}

#[cold]
fn reserved(layout: Layout) -> *mut u8 {
    let mut place = std::ptr::null_mut();
    if layout.size() > MAX_ALLOCATION || layout.align() > 64 {
        return place;
    }
    let take = |taken: u64| {
        let (count, from) = (taken >> 32, (taken & u64::from(u32::MAX)) as usize);
        let from = from.next_multiple_of(layout.align());
        let end = from + layout.size();
        place = (start() + from) as *mut u8;
        (end <= SIZE).then(|| (count + 1) << 32 | end as u64)
    };
    match TAKEN.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
        Ok(_) => place,
        Err(_) => std::ptr::null_mut(),
    }
}

#[cold]
fn give_back(pointer: *mut u8, size: usize) {
    let place = pointer as usize - start();
    let less = |taken: u64| {
        let from = (taken & u64::from(u32::MAX)) as usize;
        // The last allocation is free at once: most live shorter than those before them.
        let from = if place + size == from { place } else { from };
        match (taken >> 32) - 1 {
            0 => Some(0),
            count => Some(count << 32 | from as u64),
        }
    };
    let _ = TAKEN.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
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
        if !is_reserved(pointer) {
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

    #[test]
    fn what_lies_in_the_reserve_overlaps_nothing_and_all_is_free_when_none_lives() {
        let layout = Layout::from_size_align(100, 16).expect("a layout");
        let places: Vec<_> = (0..10).map(|_| reserved(layout)).collect();
        let address = |place: &*mut u8| *place as usize;
        for (index, place) in places.iter().enumerate() {
            assert!(is_reserved(*place) && address(place).is_multiple_of(16));
            let mut others = places[..index].iter();
            assert!(others.all(|other| address(place).abs_diff(address(other)) >= 100));
        }
        let large = Layout::from_size_align(MAX_ALLOCATION + 1, 1).expect("a layout");
        assert!(reserved(large).is_null());
        let most = Layout::from_size_align(MAX_ALLOCATION, 1).expect("a layout");
        let more: Vec<_> = (0..SIZE / MAX_ALLOCATION).map(|_| reserved(most)).collect();
        assert!(more.contains(&std::ptr::null_mut()), "it is full");
        for place in places.iter().chain(&more).filter(|place| !place.is_null()) {
            // SAFETY: it is one of the reserve's, of which only the place counts.
            unsafe { WithReserve.dealloc(*place, layout) };
        }
        let first = reserved(layout);
        assert_eq!(first as usize, start());
        let second = reserved(layout);
        give_back(second, layout.size());
        assert_eq!(
            reserved(layout),
            second,
            "what was taken last is free at once"
        );
        give_back(second, layout.size());
        give_back(first, layout.size());
    }
}
