//! Puts functions into a driver's dispatch table, in place.
//!
//! Objects of a driver all point to one table, so replacing a slot there reaches every object, and every call that is not
//! replaced costs nothing. The table may be writable (PoCL, Intel's CPU runtime) or in a page that was made read-only
//! after relocation (rusticl); other threads may be calling through it meanwhile.

use std::io;
use std::ops::Range;

use rustix::mm::{MprotectFlags, mprotect};

use super::mappings::Mappings;
use crate::cl::dispatch::{DispatchTable, Slot};

/// Replaces the slots that the driver provides; functions that it lacks stay NULL. Returns how many were replaced.
///
/// # Errors
/// See [`write`].
///
/// # Safety
/// Each slot is paired with a function of its type that is never unmapped.
pub unsafe fn install(table: DispatchTable, functions: &[(Slot, usize)]) -> io::Result<usize> {
    let provided = functions.iter().copied();
    let provided: Vec<_> = provided
        .filter(|(slot, _)| table.has(*slot) && table.load(*slot) != 0)
        .collect();
    // SAFETY: by the contract.
    unsafe { write(table, &provided) }?;
    Ok(provided.len())
}

/// Stores functions into slots that the table has, in their order. The protection of the table's pages is afterwards as before.
///
/// # Errors
/// The protection cannot be read or changed; nothing has been stored then.
///
/// # Safety
/// As for [`install`].
pub unsafe fn write(table: DispatchTable, functions: &[(Slot, usize)]) -> io::Result<()> {
    let addresses = || functions.iter().map(|(slot, _)| table.slot_address(*slot));
    let (Some(first), Some(last)) = (addresses().min(), addresses().max()) else {
        return Ok(());
    };
    let _writable = Writable::make(first..last + size_of::<usize>())?;
    for (slot, function) in functions {
        // SAFETY: the page is writable now; the rest is the contract.
        unsafe { table.store(*slot, *function) };
    }
    Ok(())
}

/// Pages that can be written while this lives, with the protection that each had.
struct Writable {
    pages: Vec<(usize, MprotectFlags)>,
}

impl Writable {
    fn make(addresses: Range<usize>) -> io::Result<Writable> {
        let page = rustix::param::page_size();
        let mappings = Mappings::now();
        let mut writable = Writable { pages: Vec::new() };
        for start in (addresses.start / page * page..addresses.end).step_by(page) {
            let before = mappings.at(start).ok_or_else(no_mapping)?.protection;
            if !before.contains(MprotectFlags::WRITE) {
                protect(start, before | MprotectFlags::WRITE)?;
                writable.pages.push((start, before));
            }
        }
        Ok(writable)
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        for (start, before) in &self.pages {
            if let Err(error) = protect(*start, *before) {
                tracing::warn!(%error, "the page of a dispatch table stays writable");
            }
        }
    }
}

fn no_mapping() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "the table is in no mapping of /proc/self/maps",
    )
}

fn protect(page: usize, flags: MprotectFlags) -> io::Result<()> {
    // SAFETY: the page belongs to a driver's table, and stays readable; writing was forbidden only to catch mistakes.
    unsafe { mprotect(page as *mut _, rustix::param::page_size(), flags) }.map_err(Into::into)
}

/// Whether a word can be read.
pub fn is_readable(address: usize) -> bool {
    let mapping = Mappings::now().at(address);
    mapping.is_some_and(|mapping| mapping.protection.contains(MprotectFlags::READ))
}
