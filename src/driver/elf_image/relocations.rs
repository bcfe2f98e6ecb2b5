//! The relocations of a loaded object that name a symbol.

use std::collections::BTreeSet;

use object::elf::{
    DT_JMPREL, DT_PLTREL, DT_PLTRELSZ, DT_RELA, DT_RELACOUNT, DT_RELASZ, DynamicTag,
};
use serde::{Deserialize, Serialize};

use super::{ElfImage, UnreadableImage, WORD, WatchedSymbols};
use crate::cl::info::Number;
use crate::driver::watched_names::{WatchedNames, hash};

/// The numbers of the relocations that put the address of a symbol somewhere: absolute, GLOB_DAT, JUMP_SLOT (the processor
/// supplements of the System V ABI).
#[cfg(target_arch = "x86_64")]
pub(super) const OF_SYMBOLS: [u32; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
pub(super) const OF_SYMBOLS: [u32; 3] = [257, 1025, 1026];
/// Not read on other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const OF_SYMBOLS: [u32; 0] = [];

/// The number of the relocation by which a program with a fixed address gets a copy of a library's data.
#[cfg(target_arch = "x86_64")]
const COPY: u32 = 5;
#[cfg(not(target_arch = "x86_64"))]
const COPY: u32 = 1024;

/// The size of Elf64_Rela.
const RELA: usize = 24;

/// A value that a relocation has written.
pub struct BoundSymbol {
    /// The number of the symbol.
    pub symbol: usize,
    /// The symbol's address.
    pub value: usize,
    /// Whether it may be an address in the object itself that binds the symbol at the first call.
    pub may_be_lazy: bool,
}

/// The relocations of an object that refer to watched functions.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedRelocations {
    /// The slots of functions that the object itself has and that are bound when it is loaded, as pairs: the words between these
    /// slots and the ones before, and the number of these slots. Intel's libsvml has 38,000 of them.
    own: Vec<(u32, u32)>,
    /// The numbers of the others.
    pub numbers: Vec<u32>,
}

impl WatchedRelocations {
    /// Their number.
    pub fn count(&self) -> usize {
        let own = self.own.iter().map(|(_, count)| *count as usize);
        own.sum::<usize>() + self.numbers.len()
    }
}

/// A relocation that puts the address of a symbol somewhere.
struct Relocation {
    /// Its address, before the load address is added.
    offset: usize,
    symbol: usize,
    /// What is added to the symbol's address: where in the symbol's data it points.
    addend: usize,
    may_be_lazy: bool,
}

/// None if the relocation does something else.
fn relocation(entry: &[u8]) -> Option<Relocation> {
    let number = |at: usize| u64::from_value(entry.get(at..at + 8)?);
    let (offset, info, addend) = (number(0)?, number(8)?, number(16)?);
    let (symbol, form) = ((info >> 32) as usize, info as u32);
    let is_of_symbol = symbol != 0 && OF_SYMBOLS.contains(&form);
    is_of_symbol.then_some(Relocation {
        offset: offset as usize,
        symbol,
        addend: addend as usize,
        may_be_lazy: OF_SYMBOLS.last() == Some(&form),
    })
}

fn relocations(table: &[u8]) -> impl Iterator<Item = Option<Relocation>> {
    table.chunks_exact(RELA).map(relocation)
}

impl ElfImage {
    /// The relocations that can name a symbol: the rest of DT_RELA behind the relative ones, and DT_JMPREL. Relocations are
    /// numbered in this order.
    fn relocation_tables(&self) -> Result<[&[u8]; 2], UnreadableImage> {
        // The dynamic linkers of these processors do not use DT_REL.
        let plain = (DT_RELA, self.number(DT_RELASZ));
        let of_calls = self
            .number(DT_PLTREL)
            .filter(|form| *form == DT_RELA.0 as usize);
        let of_calls = of_calls.and_then(|_| self.number(DT_PLTRELSZ));
        // The linker sorts relative ones, which libLLVM has 360,000 of, to the front.
        let relative = self.number(DT_RELACOUNT).unwrap_or_default();
        let table = |(table, size): (DynamicTag, Option<usize>), skipped: usize| {
            let (Some(at), Some(size)) = (self.pointer(table), size.filter(|size| *size > 0))
            else {
                return Ok(Default::default());
            };
            let skipped = skipped.checked_mul(RELA).ok_or(UnreadableImage)?;
            let table = self.bytes(at, size).and_then(|table| table.get(skipped..));
            table.ok_or(UnreadableImage)
        };
        Ok([table(plain, relative)?, table((DT_JMPREL, of_calls), 0)?])
    }

    /// How many relocations have a number.
    ///
    /// # Errors
    /// A table is not in the object.
    pub fn relocation_count(&self) -> Result<usize, UnreadableImage> {
        let tables = self.relocation_tables()?;
        Ok(tables.iter().map(|table| table.len() / RELA).sum())
    }

    /// The relocations whose symbol has a watched name. `own` tells which of the object's own symbols may have one.
    ///
    /// # Errors
    /// A table is not in the object.
    pub fn watched_relocations(
        &self,
        own: &WatchedSymbols,
        names: &WatchedNames,
    ) -> Result<WatchedRelocations, UnreadableImage> {
        let mut found = WatchedRelocations::default();
        let mut words = Vec::new();
        // Thousands of slots may have one symbol: __cxa_pure_virtual.
        let mut known: Vec<Option<bool>> = Vec::new();
        let relocations = self.relocation_tables()?.into_iter().flat_map(relocations);
        for (number, relocation) in relocations.enumerate() {
            let Some(relocation) = relocation else {
                continue;
            };
            let index = relocation.symbol;
            if own.has(index) == Some(false) {
                continue;
            }
            let symbol = self.symbol(index).ok_or(UnreadableImage)?;
            let is_watched = match known.get(index) {
                Some(Some(is_watched)) => *is_watched,
                _ => {
                    let is_watched = names.has(self.name(&symbol).ok_or(UnreadableImage)?);
                    known.resize(known.len().max(index + 1), None);
                    known[index] = Some(is_watched);
                    is_watched
                }
            };
            let is_word = relocation.offset.is_multiple_of(WORD);
            if !is_watched {
                continue;
            }
            if symbol.is_defined && !relocation.may_be_lazy && is_word {
                words.push(relocation.offset / WORD);
            } else {
                let number = u32::try_from(number);
                found.numbers.push(number.map_err(|_| UnreadableImage)?);
            }
        }
        words.sort_unstable();
        let mut end = 0;
        for word in words {
            match found.own.last_mut() {
                Some((_, count)) if word == end => *count += 1,
                Some(_) if word < end => continue,
                _ => {
                    let gap = u32::try_from(word - end).map_err(|_| UnreadableImage)?;
                    found.own.push((gap, 1));
                }
            }
            end = word + 1;
        }
        Ok(found)
    }

    /// The numbers of the relocations of own symbols that another object answers.
    ///
    /// # Errors
    /// A slot is not in the object.
    pub fn answered_by_others(
        &self,
        watched: &WatchedRelocations,
        is_own: impl Fn(usize) -> bool,
    ) -> Result<Vec<u32>, UnreadableImage> {
        let mut offsets = Vec::new();
        let mut end = 0usize;
        for (gap, count) in &watched.own {
            let start = end
                .checked_add(*gap as usize * WORD)
                .ok_or(UnreadableImage)?;
            let size = *count as usize * WORD;
            let slots = self.bytes(self.base.wrapping_add(start), size);
            for (at, slot) in slots.ok_or(UnreadableImage)?.chunks_exact(WORD).enumerate() {
                let value = usize::from_value(slot).ok_or(UnreadableImage)?;
                if value != 0 && !is_own(value) {
                    offsets.push(start + at * WORD);
                }
            }
            end = start + size;
        }
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        let relocations = self.relocation_tables()?.into_iter().flat_map(relocations);
        let numbers = relocations.zip(0..).filter_map(|(relocation, number)| {
            let offset = relocation?.offset;
            offsets.binary_search(&offset).is_ok().then_some(number)
        });
        Ok(numbers.collect())
    }

    /// Calls the function with the values that these relocations have written, except those that name no symbol.
    ///
    /// # Errors
    /// A table or a slot is not in the object, or the function fails.
    pub fn each_bound(
        &self,
        numbers: impl IntoIterator<Item = u32>,
        mut each: impl FnMut(BoundSymbol) -> Result<(), UnreadableImage>,
    ) -> Result<(), UnreadableImage> {
        let [plain, of_calls] = self.relocation_tables()?;
        for number in numbers {
            let at = number as usize * RELA;
            let entry = match at.checked_sub(plain.len()) {
                None => plain.get(at..at + RELA),
                Some(at) => of_calls.get(at..at + RELA),
            };
            let Some(relocation) = relocation(entry.ok_or(UnreadableImage)?) else {
                continue;
            };
            let word = self.word(self.base.wrapping_add(relocation.offset));
            let value = match word.ok_or(UnreadableImage)? {
                0 => 0,
                word => word.wrapping_sub(relocation.addend),
            };
            each(BoundSymbol {
                symbol: relocation.symbol,
                value,
                may_be_lazy: relocation.may_be_lazy,
            })?;
        }
        Ok(())
    }

    /// Calls the function with the hash of each name that a relocation refers to. Names may come more than once.
    ///
    /// # Errors
    /// A table is not in the object.
    pub fn each_imported(&self, mut each: impl FnMut(u32)) -> Result<(), UnreadableImage> {
        let (first, chains) = match self.gnu_table() {
            Some((table, chains)) => (table.first as usize, chains),
            None => (0, Default::default()),
        };
        let mut is_known: Vec<bool> = Vec::new();
        let relocations = self.relocation_tables()?.into_iter().flat_map(relocations);
        for relocation in relocations.flatten() {
            let index = relocation.symbol;
            is_known.resize(is_known.len().max(index + 1), false);
            if std::mem::replace(&mut is_known[index], true) {
                continue;
            }
            let exported = index.checked_sub(first).and_then(|at| chains.get(at));
            each(match exported {
                Some(hash) => *hash,
                None => hash(self.symbol_name(index).ok_or(UnreadableImage)?.to_bytes()),
            });
        }
        Ok(())
    }

    /// The numbers of the symbols whose data the object has as a copy of a library's.
    pub fn copied(&self) -> BTreeSet<usize> {
        let [plain, _] = self.relocation_tables().unwrap_or_default();
        let symbol = |entry: &[u8]| {
            let info = u64::from_value(entry.get(8..16)?)?;
            (info as u32 == COPY).then_some((info >> 32) as usize)
        };
        plain.chunks_exact(RELA).filter_map(symbol).collect()
    }

    /// The symbols that have an address in the object and that another object answers for, with that address and where the answer is:
    /// for an entry of the procedure linkage table what its slot has, for a copy of data the copy itself.
    pub fn stand_ins(&self) -> Vec<(usize, usize, usize)> {
        let [_, of_calls] = self.relocation_tables().unwrap_or_default();
        let entry = |relocation: Relocation| {
            let symbol = self.symbol(relocation.symbol)?;
            let slot = self.word(self.base.wrapping_add(relocation.offset))?;
            let address = self.base.wrapping_add(symbol.value);
            let is_entry = !symbol.is_defined && symbol.value != 0;
            is_entry.then_some((relocation.symbol, address, slot))
        };
        let copy = |symbol: usize| {
            let address = self.symbol(symbol)?.address(self)?;
            Some((symbol, address, address))
        };
        let entries = relocations(of_calls).flatten().filter_map(entry);
        let copies = self.copied().into_iter().filter_map(copy);
        entries.chain(copies).collect()
    }
}
