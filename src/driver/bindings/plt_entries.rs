//! What answers where a function's address is that of an entry of the program's procedure linkage table.
//!
//! A program with a fixed address (without PIE: Debian's Python) that takes the address of `acos` has an undefined symbol `acos` with
//! the address of such an entry, and all libraries get this address for the function (System V ABI, "Function Addresses"). The entry
//! is no function of the program: it calls what the dynamic linker binds the program's own slot to, now or at the first call.

use std::collections::HashMap;
use std::ffi::CString;

use super::{Scopes, Slot, World};
use crate::driver::elf_image::ElfImage;
use crate::driver::loaded;

/// The entries of the program, by their address.
#[derive(Default)]
pub(super) struct PltEntries {
    of_program: HashMap<usize, Entry>,
    /// The index of the program.
    program: usize,
    /// How many objects are loaded at the start: the program, preloaded libraries and all that they need. They come first, and in the
    /// order in which the dynamic linker searches them.
    started: usize,
}

struct Entry {
    /// What the program's slot has. It is in the program itself if it is not bound yet.
    slot: usize,
    version: Option<CString>,
}

impl PltEntries {
    pub(super) fn of(world: &World) -> PltEntries {
        let is_program = |index: usize| world.objects[index].path.as_os_str().is_empty();
        let Some(program) = (0..world.objects.len()).find(|index| is_program(*index)) else {
            return PltEntries::default();
        };
        let mut of_program = HashMap::new();
        let each = |_, image: &ElfImage| {
            for (symbol, address, slot) in image.plt_entries() {
                let version = image.version(symbol).map(ToOwned::to_owned);
                of_program.insert(address, Entry { slot, version });
            }
        };
        world.each_image(|index| index == program, each);
        let needed = loaded::closure_by_root(world.objects, |index| index == program);
        let last = needed.iter().map(|(index, _)| *index).max();
        PltEntries {
            of_program,
            program,
            started: last.map_or(0, |last| last + 1),
        }
    }
}

impl Scopes<'_> {
    /// The address of the function that answers at an address. None: it is not known which one does.
    pub(super) fn behind_plt_entry(&mut self, address: usize, slot: &Slot) -> Option<usize> {
        let world = self.world;
        let entries = self.entries.get_or_init(|| PltEntries::of(world));
        let (program, started) = (entries.program, entries.started);
        let Some(entry) = entries.of_program.get(&address) else {
            return Some(address);
        };
        if !world.objects[program].contains(entry.slot) {
            return Some(entry.slot);
        }
        let wanted = Slot {
            root: slot.root,
            name: slot.name.clone(),
            version: entry.version.clone(),
            bound: None,
        };
        let mut others = (0..started).filter(|index| *index != program);
        others.find_map(|index| {
            let found = self.find(Some(index), &wanted)?;
            world.objects[index].contains(found).then_some(found)
        })
    }
}
