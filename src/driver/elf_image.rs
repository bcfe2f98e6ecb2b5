//! A loaded object as it is mapped: its symbols, and the relocations that name one.
//!
//! Everything is read from memory. Each address is first checked against the object's own segments. An object whose tables are
//! elsewhere gives [`UnreadableImage`]; none makes the process crash. Must be used inside dl_iterate_phdr's callback, so that the
//! object stays mapped.

use std::cell::OnceCell;
use std::ffi::CStr;
use std::ops::Range;

use super::watched_names::{NameHashes, WatchedNames, hash};
use crate::cl::info::Number;
use object::elf::{
    DT_AUDIT, DT_DEBUG, DT_DEPAUDIT, DT_GNU_HASH, DT_HASH, DT_STRSZ, DT_STRTAB, DT_SYMTAB,
    DT_VERNEED, DT_VERNEEDNUM, DT_VERSYM, DynamicTag, PF_R, PT_DYNAMIC, PT_LOAD, ProgramType,
    STB_GNU_UNIQUE, STB_WEAK, STT_GNU_IFUNC, STT_OBJECT, SymbolBind, SymbolType,
};
pub use relocations::{BoundSymbol, WatchedRelocations};
use xxhash_rust::xxh3::xxh3_64;

mod relocations;
#[cfg(test)]
mod tests;

/// Whether relocations are read on this processor.
pub const IS_READ: bool = !relocations::OF_SYMBOLS.is_empty();

/// The size of Elf64_Sym. The processors above have 64 bits.
const SYMBOL: usize = 24;
const WORD: usize = size_of::<usize>();

/// A table of the object is not in its own segments.
#[derive(Debug, PartialEq, Eq)]
pub struct UnreadableImage;

/// One object, while the dynamic linker keeps it mapped.
pub struct ElfImage {
    /// What is added to the addresses in the object.
    pub base: usize,
    segments: Vec<Range<usize>>,
    dynamic: Vec<(DynamicTag, usize)>,
    /// DT_SYMTAB.
    symbols: Option<usize>,
    /// DT_STRTAB and DT_STRSZ.
    strings: Option<(usize, usize)>,
    /// The numbers of the versions that it needs of others, and where their names are in DT_STRTAB. Found when one is first asked for: a
    /// driver has a hundred slots with versions.
    versions: OnceCell<Vec<(u16, usize)>>,
}

/// The exported symbols of an object that are watched.
pub struct WatchedSymbols {
    /// The number of the first one.
    first: usize,
    /// A bit for each, in order.
    bits: Vec<u64>,
    /// Their number.
    count: usize,
    /// Whether any is watched.
    pub any: bool,
}

impl WatchedSymbols {
    /// Whether a symbol is watched. None if it is not exported.
    fn has(&self, symbol: usize) -> Option<bool> {
        let at = symbol
            .checked_sub(self.first)
            .filter(|at| *at < self.count)?;
        Some(self.bits[at / 64] & 1 << (at % 64) != 0)
    }
}

/// DT_GNU_HASH without its chains.
struct GnuTable<'a> {
    bloom: &'a [u64],
    shift: u32,
    buckets: &'a [u32],
    /// The number of the first symbol in it.
    first: u32,
}

/// An entry of the symbol table.
#[derive(Clone, Copy)]
pub struct Symbol {
    name: usize,
    kind: SymbolType,
    binding: SymbolBind,
    is_defined: bool,
    value: usize,
}

impl Symbol {
    /// The address of its definition in this object, if it has one.
    pub fn address(&self, image: &ElfImage) -> Option<usize> {
        self.is_defined.then(|| image.base.wrapping_add(self.value))
    }

    /// Whether several objects may have it, so that one takes the place of the others (the vague linkage of C++).
    pub fn is_weak(&self) -> bool {
        [STB_WEAK, STB_GNU_UNIQUE].contains(&self.binding)
    }

    /// Whether it is a variable or a constant.
    pub fn is_data(&self) -> bool {
        self.kind == STT_OBJECT
    }

    /// Whether the object chooses a variant of this function when it is looked up.
    fn has_variants(&self) -> bool {
        self.kind == STT_GNU_IFUNC
    }
}

impl ElfImage {
    /// # Safety
    /// `info` describes an object that stays mapped during the call and for the life of the image.
    pub unsafe fn of(info: &libc::dl_phdr_info) -> ElfImage {
        let base = info.dlpi_addr as usize;
        // SAFETY: `dlpi_phnum` headers, by dl_iterate_phdr(3).
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let (mut segments, mut dynamic) = (Vec::new(), 0..0);
        for header in headers {
            let start = base.wrapping_add(header.p_vaddr as usize);
            let range = start..start.saturating_add(header.p_memsz as usize);
            match ProgramType(header.p_type) {
                PT_LOAD if header.p_flags & PF_R.0 != 0 => segments.push(range),
                PT_DYNAMIC => dynamic = range,
                _ => {}
            }
        }
        let mut image = ElfImage {
            base,
            segments,
            dynamic: Vec::new(),
            symbols: None,
            strings: None,
            versions: OnceCell::new(),
        };
        let entry = |at: usize| Some((image.word(at)?, image.word(at.checked_add(WORD)?)?));
        let entries = dynamic.step_by(2 * WORD).map_while(entry);
        let entries = entries.take_while(|(tag, _)| *tag != 0);
        let entries = entries.map(|(tag, value)| (DynamicTag(tag as i64), value));
        image.dynamic = entries.collect();
        image.symbols = image.pointer(DT_SYMTAB);
        image.strings = image.pointer(DT_STRTAB).zip(image.number(DT_STRSZ));
        image
    }

    /// The address of its first byte that can be read.
    pub fn start(&self) -> Option<usize> {
        let mut segments = self.segments.iter();
        Some(segments.find(|segment| !segment.is_empty())?.start)
    }

    fn bytes(&self, start: usize, size: usize) -> Option<&[u8]> {
        let end = start.checked_add(size)?;
        let is_in = |segment: &Range<usize>| segment.start <= start && end <= segment.end;
        if start == 0 || !self.segments.iter().any(is_in) {
            return None;
        }
        // SAFETY: within a segment that is mapped to be read. Nobody writes to the tables; of slots see `word`.
        Some(unsafe { std::slice::from_raw_parts(start as *const u8, size) })
    }

    /// A word that the dynamic linker may be writing in another thread: lazy binding stores whole addresses.
    fn word(&self, at: usize) -> Option<usize> {
        let bytes = self.bytes(at, WORD)?;
        // SAFETY: just checked. An unaligned slot is none of those that are written later.
        Some(unsafe { bytes.as_ptr().cast::<usize>().read_unaligned() })
    }

    fn half(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes(at, 2)?;
        // SAFETY: just checked.
        Some(unsafe { bytes.as_ptr().cast::<u16>().read_unaligned() })
    }

    fn quarter(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes(at, 4)?;
        // SAFETY: just checked.
        Some(unsafe { bytes.as_ptr().cast::<u32>().read_unaligned() })
    }

    /// A value of the dynamic segment.
    fn number(&self, wanted: DynamicTag) -> Option<usize> {
        let found = self.dynamic.iter().find(|(tag, _)| *tag == wanted);
        found.map(|(_, value)| *value)
    }

    /// An address of the dynamic segment. glibc relocates most of them in place, musl none.
    fn pointer(&self, wanted: DynamicTag) -> Option<usize> {
        let value = self.number(wanted)?;
        Some(match value < self.base {
            true => value.wrapping_add(self.base),
            false => value,
        })
    }

    /// A table of numbers.
    fn numbers<T: Number>(&self, start: usize, count: usize) -> Option<&[T]> {
        let bytes = self.bytes(start, count.checked_mul(size_of::<T>())?)?;
        let numbers = bytes.as_ptr().cast::<T>();
        // SAFETY: just checked; any bytes are a number.
        let table = || unsafe { std::slice::from_raw_parts(numbers, count) };
        numbers.is_aligned().then(table)
    }

    /// The symbol of this number.
    pub fn symbol(&self, index: usize) -> Option<Symbol> {
        let at = self.symbols?.checked_add(index.checked_mul(SYMBOL)?)?;
        let row = self.bytes(at, SYMBOL)?;
        Some(Symbol {
            name: u32::from_value(&row[..4])? as usize,
            kind: SymbolType(row[4] & 0xf),
            binding: SymbolBind(row[4] >> 4),
            is_defined: u16::from_value(&row[6..8])? != 0,
            value: usize::from_value(&row[8..16])?,
        })
    }

    /// The name of the symbol of this number.
    pub fn symbol_name(&self, index: usize) -> Option<&CStr> {
        self.name(&self.symbol(index)?)
    }

    /// The name of a symbol.
    pub fn name(&self, symbol: &Symbol) -> Option<&CStr> {
        self.string(symbol.name)
    }

    fn string(&self, offset: usize) -> Option<&CStr> {
        let (start, size) = self.strings?;
        let rest = self.bytes(start.checked_add(offset)?, size.checked_sub(offset)?)?;
        CStr::from_bytes_until_nul(rest).ok()
    }

    /// The version that a symbol of another object must have (DT_VERNEED); None: any.
    pub fn version(&self, index: usize) -> Option<&CStr> {
        let at = self
            .pointer(DT_VERSYM)?
            .checked_add(index.checked_mul(2)?)?;
        let wanted = self.half(at)? & 0x7fff;
        let versions = self.versions.get_or_init(|| {
            let mut versions = Vec::new();
            // What stands before damage counts. Of more versions than there are numbers, some are damage.
            let _ = self.each_needed_version(|number, name| {
                versions.push((number, name));
                (versions.len() < 1 << 15).then_some(())
            });
            versions
        });
        let (_, name) = versions.iter().find(|(number, _)| *number == wanted)?;
        self.string(*name)
    }

    /// Calls the function with the number of each version that the object needs of others, and where its name is, until it gives None.
    fn each_needed_version(&self, mut each: impl FnMut(u16, usize) -> Option<()>) -> Option<()> {
        let mut need = self.pointer(DT_VERNEED)?;
        // Elf64_Verneed and Elf64_Vernaux.
        for _ in 0..self.number(DT_VERNEEDNUM)? {
            let mut auxiliary = need.checked_add(self.quarter(need + 8)? as usize)?;
            for _ in 0..self.half(need + 2)? {
                let (number, name) = (self.half(auxiliary + 6)?, self.quarter(auxiliary + 8)?);
                each(number & 0x7fff, name as usize)?;
                match self.quarter(auxiliary + 12)? {
                    0 => break,
                    next => auxiliary = auxiliary.checked_add(next as usize)?,
                }
            }
            match self.quarter(need + 12)? {
                0 => break,
                next => need = need.checked_add(next as usize)?,
            }
        }
        Some(())
    }

    /// The names of what the object has for others. None: it has no table of them.
    pub fn exported_names(&self) -> Option<NameHashes> {
        let Some((table, chains)) = self.gnu_table() else {
            let names = self.hashed_symbols()?.filter_map(|(_, symbol)| {
                let name = symbol.is_defined.then(|| self.name(&symbol)).flatten()?;
                Some(name.to_bytes())
            });
            return Some(NameHashes::of(names));
        };
        Some(NameHashes::Table {
            bloom: table.bloom.to_vec(),
            shift: table.shift,
            buckets: table.buckets.to_vec(),
            chains: chains.to_vec(),
            first: table.first,
        })
    }

    /// Calls the function with each symbol that the object has for others, with its number and name, if the hash of the name may be
    /// one of those that are wanted.
    ///
    /// # Errors
    /// A table is not in the object.
    pub fn each_exported<'i>(
        &'i self,
        is_wanted: impl Fn(u32) -> bool,
        mut each: impl FnMut(usize, Symbol, &'i CStr),
    ) -> Result<(), UnreadableImage> {
        let mut visit = |index: usize| {
            let symbol = self.symbol(index).ok_or(UnreadableImage)?;
            let name = self.name(&symbol).ok_or(UnreadableImage)?;
            if symbol.is_defined && is_wanted(hash(name.to_bytes())) {
                each(index, symbol, name);
            }
            Ok(())
        };
        if let Some((table, chains)) = self.gnu_table() {
            let wanted = chains.iter().zip(table.first as usize..);
            let mut wanted = wanted.filter(|(hash, _)| is_wanted(**hash));
            return wanted.try_for_each(|(_, index)| visit(index));
        }
        match self.hashed_symbols() {
            Some(mut symbols) => symbols.try_for_each(|(index, _)| visit(index)),
            // The dynamic linker finds nothing in it either.
            None if self.number(DT_GNU_HASH).is_none() => Ok(()),
            None => Err(UnreadableImage),
        }
    }

    /// The names of what the object has for others.
    #[cfg(test)]
    pub fn exports(&self) -> impl Iterator<Item = &CStr> {
        let symbols = self.hashed_symbols().into_iter().flatten();
        symbols.filter_map(|(_, symbol)| self.name(&symbol))
    }

    /// The symbol numbers of the functions with variants.
    pub fn variants(&self) -> impl Iterator<Item = usize> {
        let symbols = self.hashed_symbols().into_iter().flatten();
        let symbols = symbols.filter(|(_, symbol)| symbol.is_defined && symbol.has_variants());
        symbols.map(|(index, _)| index)
    }

    /// The exported symbols and their numbers.
    fn hashed_symbols(&self) -> Option<impl Iterator<Item = (usize, Symbol)>> {
        let indices = match self.gnu_table() {
            Some((table, chains)) => {
                let first = table.first as usize;
                first..first + chains.len()
            }
            None => 1..self.quarter(self.pointer(DT_HASH)? + 4)? as usize,
        };
        Some(indices.filter_map(|index| Some((index, self.symbol(index)?))))
    }

    /// DT_GNU_HASH and its chains. It has no length: the end of its highest bucket's chain is its end.
    fn gnu_table(&self) -> Option<(GnuTable<'_>, &[u32])> {
        let at = self.pointer(DT_GNU_HASH)?;
        let [count, first, words, shift] = self.numbers::<u32>(at, 4)? else {
            return None;
        };
        let bloom = at.checked_add(16)?;
        let buckets = bloom.checked_add((*words as usize).checked_mul(8)?)?;
        let chains = buckets.checked_add((*count as usize).checked_mul(4)?)?;
        let table = GnuTable {
            bloom: self.numbers(bloom, *words as usize)?,
            shift: *shift,
            buckets: self.numbers(buckets, *count as usize)?,
            first: *first,
        };
        let highest = table.buckets.iter().max();
        let last = highest.and_then(|highest| highest.checked_sub(*first));
        let Some(mut last) = last.map(|last| last as usize) else {
            return Some((table, &[]));
        };
        while self.quarter(chains.checked_add(last.checked_mul(4)?)?)? & 1 == 0 {
            last += 1;
        }
        Some((table, self.numbers(chains, last + 1)?))
    }

    /// The exported symbols that are watched. Without DT_GNU_HASH, whose order is that of the symbols, all may be.
    pub fn watched_symbols(&self, names: &WatchedNames) -> WatchedSymbols {
        let Some((table, chains)) = self.gnu_table() else {
            return WatchedSymbols {
                first: 0,
                bits: Vec::new(),
                count: 0,
                any: true,
            };
        };
        let word = |chains: &[u32]| {
            let bits = chains.iter().enumerate();
            bits.fold(0, |bits, (at, hash)| {
                bits | u64::from(names.may_have(*hash)) << at
            })
        };
        let bits: Vec<u64> = chains.chunks(64).map(word).collect();
        WatchedSymbols {
            first: table.first as usize,
            count: chains.len(),
            any: bits.iter().any(|bits| *bits != 0),
            bits,
        }
    }

    /// A digest of the addresses of segments and tables: a tool that edits libraries may keep the build-id.
    pub fn layout(&self) -> u64 {
        let relative = |value: usize| match value < self.base {
            true => value,
            false => value - self.base,
        };
        let numbers = 2 * (self.segments.len() + self.dynamic.len());
        let mut bytes = Vec::with_capacity(numbers * size_of::<u64>());
        // Not collected from an iterator: of all that a first key needs, that was a tenth.
        let mut add = |number: usize| bytes.extend((number as u64).to_le_bytes());
        for range in &self.segments {
            add(relative(range.start));
            add(relative(range.end));
        }
        // The program's DT_DEBUG has the address of what the dynamic linker tells debuggers.
        for (tag, value) in self.dynamic.iter().filter(|(tag, _)| *tag != DT_DEBUG) {
            add(tag.0 as usize);
            add(relative(*value));
        }
        xxh3_64(&bytes)
    }

    /// Whether a library was named that audits this object (rtld-audit(7)).
    pub fn names_an_auditor(&self) -> bool {
        [DT_AUDIT, DT_DEPAUDIT]
            .into_iter()
            .any(|tag| self.number(tag).is_some())
    }
}
