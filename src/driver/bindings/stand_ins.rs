//! What answers where a function's or variable's address is one that only stands for it in the program.
//!
//! A program with a fixed address (without PIE: Debian's Python) that takes the address of `acos` has an undefined symbol `acos` with
//! the address of an entry of its procedure linkage table, and all libraries get this address for the function (System V ABI,
//! "Function Addresses"). The entry is no function of the program: it calls what the dynamic linker binds the program's own slot to, now
//! or at the first call. A variable of a library, such as `std::cout`, has a copy in such a program, which all libraries use instead
//! (COPY relocations). The copy is that of the library that has the variable.

use std::collections::HashMap;
use std::ffi::CString;

use super::scopes::Scopes;
use super::world::{Slot, World};
use crate::driver::elf_image::ElfImage;
use crate::driver::loaded;

/// The entries and copies of the program, by their address.
#[derive(Default)]
pub(super) struct StandIns {
    of_program: HashMap<usize, StandIn>,
    /// The index of the program.
    program: usize,
    /// How many objects are loaded at the start: the program, preloaded libraries and all that they need. They come first, and in the
    /// order in which the dynamic linker searches them.
    started: usize,
}

struct StandIn {
    /// What the program's slot has. It is in the program itself if it is not bound yet, and of a copy.
    slot: usize,
    version: Option<CString>,
}

impl StandIns {
    pub(super) fn of(world: &World) -> StandIns {
        let is_program = |index: usize| world.objects[index].path.as_os_str().is_empty();
        let Some(program) = (0..world.objects.len()).find(|index| is_program(*index)) else {
            return StandIns::default();
        };
        let mut of_program = HashMap::new();
        let each = |_, image: &ElfImage| {
            for (symbol, address, slot) in image.stand_ins() {
                let version = image.version(symbol).map(ToOwned::to_owned);
                of_program.insert(address, StandIn { slot, version });
            }
            Ok(())
        };
        // The program is always there.
        let _ = world.each_image(|index| index == program, each);
        let needed = loaded::closure_by_root(world.objects, |index| index == program);
        let last = needed.iter().map(|(index, _)| *index).max();
        StandIns {
            of_program,
            program,
            started: last.map_or(0, |last| last + 1),
        }
    }
}

impl Scopes<'_> {
    /// The address of the function that answers at an address. None: it is not known which one does.
    pub(super) fn behind_stand_in(&mut self, address: usize, slot: &Slot) -> Option<usize> {
        let world = self.world;
        let stand_ins = self.stand_ins.get_or_init(|| StandIns::of(world));
        let (program, started) = (stand_ins.program, stand_ins.started);
        let Some(stand_in) = stand_ins.of_program.get(&address) else {
            return Some(address);
        };
        if !world.objects[program].contains(stand_in.slot) {
            return Some(stand_in.slot);
        }
        let wanted = Slot {
            root: slot.root,
            name: slot.name.clone(),
            version: stand_in.version.clone(),
            bound: None,
        };
        let mut others = (0..started).filter(|index| *index != program);
        others.find_map(|index| {
            let found = self.find(Some(index), &wanted)?;
            world.objects[index].contains(found).then_some(found)
        })
    }
}
