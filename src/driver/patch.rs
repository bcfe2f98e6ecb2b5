//! Puts functions into a driver's dispatch table, in place.
//!
//! Objects of a driver all point to one table, so replacing a slot there reaches every object, and every call that is not
//! replaced costs nothing. The table may be writable (PoCL, Intel's CPU runtime) or in a page that was made read-only
//! after relocation (rusticl); other threads may be calling through it meanwhile.

use std::io;

use rustix::mm::{MprotectFlags, mprotect};

use crate::cl::dispatch::{DispatchTable, Slot};

/// Replaces the slots that the driver provides; functions that it lacks stay NULL. Returns how many were replaced.
///
/// # Errors
/// The page protection cannot be read or changed; nothing has been replaced then.
pub fn install(table: DispatchTable, functions: &[(Slot, usize)]) -> io::Result<usize> {
    let wanted: Vec<_> = functions
        .iter()
        .filter(|(slot, _)| table.has(*slot) && table.load(*slot) != 0)
        .collect();
    let Some(first) = wanted
        .iter()
        .map(|(slot, _)| table.slot_address(*slot))
        .min()
    else {
        return Ok(0);
    };
    let last = wanted
        .iter()
        .map(|(slot, _)| table.slot_address(*slot))
        .max()
        .unwrap_or(first);
    let page = rustix::param::page_size();
    let mut locked = Vec::new();
    for start in (first / page * page..=last).step_by(page) {
        if !mapping_is_writable(start)? {
            locked.push(start);
        }
    }
    for &start in &locked {
        // SAFETY: the page belongs to the driver's table and stays readable; writing was forbidden only to catch mistakes.
        unsafe {
            mprotect(
                start as *mut _,
                page,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )
        }?;
    }
    for (slot, function) in &wanted {
        // SAFETY: the page is writable now; `hook::table` pairs each slot with a function of its type, and this library is
        // linked with -z nodelete, so it is never unmapped.
        unsafe { table.store(*slot, *function) };
    }
    for &start in &locked {
        // SAFETY: as before; the protection that the page had is restored.
        unsafe { mprotect(start as *mut _, page, MprotectFlags::READ) }?;
    }
    Ok(wanted.len())
}

fn mapping_is_writable(address: usize) -> io::Result<bool> {
    let maps = std::fs::read("/proc/self/maps")?;
    for line in maps.split(|byte| *byte == b'\n') {
        let Ok(line) = str::from_utf8(&line[..line.len().min(64)]) else {
            continue;
        };
        let mut fields = line.split([' ', '-']);
        let (Some(start), Some(end), Some(flags)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let bounds = (
            usize::from_str_radix(start, 16),
            usize::from_str_radix(end, 16),
        );
        if let (Ok(start), Ok(end)) = bounds
            && (start..end).contains(&address)
        {
            return Ok(flags.as_bytes().get(1) == Some(&b'w'));
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "the table is in no mapping of /proc/self/maps",
    ))
}
