//! Leads the calls of loaders with ICD 2.0 through a driver's own dispatch table.
//!
//! A driver with ICD 2.0 has a tag in slot 0 of its table. A loader with ICD 2.0 calls such a driver's objects through the loader's
//! own table. It fills that table by asking the driver for each function by name, so none of our functions can be in it. The loader
//! looks for the tag at each call (`KHR_ICD2_DISPATCH` of Khronos' loader, `icd_dispatch.h`, and of ocl-icd, `ocl_icd_loader.h`).
//! So once a function replaces the tag, all calls of all objects go through the driver's own table, where the hooks are. Measured on
//! PoCL 7.1 and rusticl 26.2 with ocl-icd 2.3.4, Khronos' loader of 2025 and that of Intel's wheel, both with oclcache opened before
//! the driver and with it opened after.
//!
//! Where the driver gives no function by name, the loader's table has one that always fails. In the driver's own table, that slot is
//! usually NULL (23 of PoCL's). Before the tag is replaced, each NULL slot gets a function that fails in the same way. Two of PoCL's
//! slots have functions that the driver does not give by name: they stay, because older loaders of the same process call them.
//! Loaders call slots by index, so the driver's table must be proven to have every slot that any loader may call, including a loader
//! that is opened later.

use std::ffi::CStr;
use std::io;

use rustix::thread::{MembarrierCommand, membarrier};

use super::elf::Elf;
use super::mappings::Mappings;
use super::{loaded, patch};
use crate::cl::dispatch::{DispatchTable, SLOTS, Slot};
use crate::cl::unsupported;

/// Why the calls of some loaders do not come through the driver's own table.
#[derive(Debug)]
pub enum StaysTagged {
    /// The driver's table has this many slots for certain, and loaders call more.
    Short(usize),
    /// A function that would have to be hooked is not in the driver's table: it gives it by name only.
    OnlyByName(&'static CStr),
    /// The table cannot be written.
    Protected(io::Error),
    /// Stores cannot be ordered for all threads (membarrier(2)).
    Unordered(io::Error),
}

impl std::fmt::Display for StaysTagged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StaysTagged::Short(slots) => write!(
                f,
                "the driver's table has {slots} functions for certain, and loaders call {SLOTS}"
            ),
            StaysTagged::OnlyByName(name) => {
                write!(f, "the driver's table lacks {}", name.to_string_lossy())
            }
            StaysTagged::Protected(error) => {
                write!(f, "the driver's table cannot be written: {error}")
            }
            StaysTagged::Unordered(error) => write!(f, "membarrier is not permitted: {error}"),
        }
    }
}

/// What a table gets in place of its gaps and of its tag.
pub struct Untagging {
    table: DispatchTable,
    gaps: Vec<(Slot, usize)>,
    platform_ids: usize,
}

impl Untagging {
    /// Plans it for a tagged table. `by_name` is the driver's clIcdGetFunctionAddressForPlatformKHR, which gives 0 for what the
    /// driver lacks; `platform_ids` its clIcdGetPlatformIDsKHR, which has the type of clGetPlatformIDs; `hooks` are the slots that
    /// are hooked where the table has a function.
    ///
    /// # Errors
    /// The table may be too short, or calls would come past a hook.
    pub fn plan(
        table: DispatchTable,
        by_name: &dyn Fn(&CStr) -> usize,
        platform_ids: usize,
        hooks: &[(Slot, usize)],
    ) -> Result<Untagging, StaysTagged> {
        let table = with_newest_slot(table, by_name);
        if table.slots() < SLOTS {
            return Err(StaysTagged::Short(table.slots()));
        }
        let failing = unsupported::functions();
        let slots = Slot::all().filter(|slot| table.has(*slot) && !slot.is_for_tag());
        let mut gaps = Vec::new();
        for slot in slots {
            if table.load(slot) != 0 {
                continue; // the driver's own function, a hook of ours, or that of another tool
            }
            match by_name(slot.name()) {
                0 => gaps.push((slot, failing[slot.index()])),
                _ if hooks.iter().any(|(hooked, _)| *hooked == slot) => {
                    return Err(StaysTagged::OnlyByName(slot.name()));
                }
                named => gaps.push((slot, named)),
            }
        }
        Ok(Untagging {
            table,
            gaps,
            platform_ids,
        })
    }

    /// Fills the gaps, and only then replaces the tag. Other threads may be calling the driver.
    ///
    /// # Errors
    /// Why it is still tagged. The gaps may be filled then.
    pub fn carry_out(&self) -> Result<(), StaysTagged> {
        if !IS_ORDERED {
            let register = MembarrierCommand::RegisterPrivateExpedited;
            membarrier(register).map_err(|error| StaysTagged::Unordered(error.into()))?;
        }
        // SAFETY: the functions are the driver's own by the names of the slots, or of `unsupported`, by type; the library of
        // neither is ever unmapped.
        unsafe { patch::write(self.table, &self.gaps) }.map_err(StaysTagged::Protected)?;
        order_stores().map_err(StaysTagged::Unordered)?;
        // SAFETY: clIcdGetPlatformIDsKHR has the type of clGetPlatformIDs (cl_khr_icd).
        unsafe { patch::write(self.table, &[(Slot::clGetPlatformIDs, self.platform_ids)]) }
            .map_err(StaysTagged::Protected)
    }
}

/// Whether the processor keeps loads in order. Elsewhere a thread may load another slot before slot 0, whatever the order of stores is.
const IS_ORDERED: bool = cfg!(target_arch = "x86_64");

/// From here on, a thread that sees slot 0 without the tag also sees the gaps filled.
fn order_stores() -> io::Result<()> {
    if !IS_ORDERED {
        membarrier(MembarrierCommand::PrivateExpedited)?;
    }
    Ok(())
}

/// The table with the slot that OpenCL 3.1 has added, if that is certain to be the driver's or nobody's. rusticl 26.2 has it, PoCL
/// 7.1 has not (measured).
fn with_newest_slot(table: DispatchTable, by_name: &dyn Fn(&CStr) -> usize) -> DispatchTable {
    let newest = Slot::clGetKernelSuggestedLocalWorkSize;
    let address = table.address() + newest.index() * size_of::<usize>();
    let is_usable = || {
        if !patch::is_readable(address) {
            return false;
        }
        // SAFETY: the word is aligned and can be read. It is only compared.
        match (by_name(newest.name()), unsafe {
            (address as *const usize).read()
        }) {
            (0, 0) => is_padding(table.address(), address),
            (named, word) => named == word,
        }
    };
    match table.slots() == newest.index() && is_usable() {
        // SAFETY: the driver's own function of that slot is there, or no variable is.
        true => unsafe { table.with_one_more() },
        false => table,
    }
}

/// Whether no variable of a library is at `end`, behind a table: the bytes up to the next multiple of 32 are padding or slots.
///
/// gcc for x86-64 aligns variables of 32 bytes and more to 32, smaller ones of 16 and more to 16 (`ix86_data_alignment`), and
/// so PoCL's table is aligned. All these bytes are zero in the file, among the variables that have an initial value. A variable there
/// has a byte other than zero, or a relocation, since compilers put all others into `.bss` or `.rodata`. LLVM aligns only arrays so,
/// and other processors do not, so a library must not tell of another compiler. Debian's libraries tell of none.
fn is_padding(table: usize, end: usize) -> bool {
    const ALIGNMENT: usize = 32;
    let length = end.next_multiple_of(ALIGNMENT) - end;
    let mut objects = loaded::objects().into_iter();
    let Some(object) = objects.find(|object| object.contains(end)) else {
        return false;
    };
    if !cfg!(target_arch = "x86_64")
        || !table.is_multiple_of(ALIGNMENT)
        || length == 0
        || !object.is_what_stands_at_its_path(&Mappings::now())
    {
        return false;
    }
    let in_file = end.wrapping_sub(object.base) as u64;
    let is_padding = || -> io::Result<bool> {
        let Some(elf) = Elf::open(&object.path)? else {
            return Ok(false);
        };
        Ok(!tells_of_other_compilers(&elf.comment(&elf.sections()?))
            && elf.is_zero_at_load(in_file, length as u64)?)
    };
    is_padding().unwrap_or(false)
}

/// Whether the comments that compilers leave in a library are of others than gcc.
fn tells_of_other_compilers(comments: &[u8]) -> bool {
    let mut comments = comments.split(|byte| *byte == 0);
    comments.any(|one| !one.is_empty() && !one.starts_with(b"GCC: "))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    const TAG: usize = 0x4F50_454E_434C_3331;

    /// A table in which each third slot is NULL, and which has the tags.
    fn tagged() -> &'static [AtomicUsize; SLOTS] {
        let words: Vec<_> = (0..SLOTS)
            .map(|index| AtomicUsize::new(if index % 3 == 1 { 0 } else { 0x1000 + index }))
            .collect();
        words[0].store(TAG, Ordering::Relaxed);
        words[31].store(TAG, Ordering::Relaxed);
        let words: Box<[AtomicUsize; SLOTS]> = words.try_into().expect("as many");
        Box::leak(words)
    }

    fn table(words: &'static [AtomicUsize; SLOTS], slots: usize) -> DispatchTable {
        // SAFETY: the words are never freed.
        let table = unsafe { DispatchTable::of_loader(words.as_ptr().cast(), slots) };
        table.expect("not null")
    }

    fn by_name(name: &CStr) -> usize {
        let slot = Slot::all().find(|slot| slot.name() == name);
        let slot = slot.expect("the name of a slot");
        // Each fifth function is missing.
        if slot.index() % 5 == 0 {
            0
        } else {
            0x1000 + slot.index()
        }
    }

    #[test]
    fn who_sees_no_tag_sees_no_gap() {
        for _ in 0..20 {
            let words = tagged();
            let stop = AtomicBool::new(false);
            let gaps = || (1..SLOTS).filter(|index| words[*index].load(Ordering::Acquire) == 0);
            assert!(gaps().next().is_some());
            std::thread::scope(|scope| {
                let seen = scope.spawn(|| {
                    while words[0].load(Ordering::Acquire) == TAG {
                        if stop.load(Ordering::Relaxed) {
                            return None;
                        }
                        std::hint::spin_loop();
                    }
                    Some(gaps().count())
                });
                let plan = Untagging::plan(table(words, SLOTS), &by_name, 0x7777, &[]);
                plan.expect("long enough").carry_out().expect("writable");
                let seen = seen.join().expect("no panic");
                stop.store(true, Ordering::Relaxed);
                assert_eq!(seen, Some(0));
            });
            assert_eq!(words[0].load(Ordering::Relaxed), 0x7777);
            assert_eq!(words[31].load(Ordering::Relaxed), TAG);
        }
    }

    #[test]
    fn a_slot_that_may_be_other_data_is_neither_relied_on_nor_written() {
        let words = tagged();
        words[149].store(0x1234, Ordering::Relaxed);
        let short = with_newest_slot(table(words, 149), &|_| 0x5678);
        assert_eq!(short.slots(), 149, "the word is not the driver's function");
        assert_eq!(with_newest_slot(table(words, 149), &|_| 0).slots(), 149);
        assert_eq!(
            with_newest_slot(table(words, 149), &|_| 0x1234).slots(),
            150
        );
        assert_eq!(with_newest_slot(table(words, 93), &|_| 0x1234).slots(), 93);
        let refused = Untagging::plan(table(words, 149), &by_name, 1, &[]);
        assert!(matches!(refused, Err(StaysTagged::Short(149))));
        assert_eq!(words[149].load(Ordering::Relaxed), 0x1234);
    }

    #[test]
    fn a_library_of_another_compiler_is_told_by_its_comments() {
        for gcc in [
            &b"GCC: (Debian 15.2.0) 15.2.0\0GCC: (GNU) 12\0"[..],
            b"\0",
            b"",
        ] {
            assert!(!tells_of_other_compilers(gcc));
        }
        for other in [
            &b"GCC: 12\0clang version 19\0"[..],
            b"rustc version 1.95.0\0",
        ] {
            assert!(tells_of_other_compilers(other));
        }
    }

    #[test]
    fn a_driver_that_gives_a_function_of_ours_by_name_only_stays_as_it_is() {
        let words = tagged();
        let hook = |slot: Slot| [(slot, 1)];
        let refused = Untagging::plan(
            table(words, SLOTS),
            &by_name,
            1,
            &hook(Slot::clReleaseProgram),
        );
        assert_eq!(Slot::clReleaseProgram.index() % 3, 2);
        assert!(refused.is_ok());
        let refused = Untagging::plan(
            table(words, SLOTS),
            &by_name,
            1,
            &hook(Slot::clCreateKernel),
        );
        assert_eq!(Slot::clCreateKernel.index() % 3, 1);
        assert!(matches!(
            refused,
            Err(StaysTagged::OnlyByName(name)) if name == c"clCreateKernel"
        ));
    }
}
