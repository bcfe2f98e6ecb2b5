//! A loaded object as it is mapped: its symbols, and the relocations that name one.
//!
//! Everything is read from memory, with each address checked against the object's own segments first. An object whose tables
//! lie elsewhere gives [`Unreadable`]; none makes the process crash. Must be used inside dl_iterate_phdr's callback, so that
//! the object stays mapped.

use std::ffi::CStr;
use std::ops::Range;

use crate::cl::info::Number;
use object::elf::{
    DT_AUDIT, DT_DEPAUDIT, DT_GNU_HASH, DT_HASH, DT_JMPREL, DT_PLTREL, DT_PLTRELSZ, DT_RELA,
    DT_RELACOUNT, DT_RELASZ, DT_STRSZ, DT_STRTAB, DT_SYMTAB, DT_VERNEED, DT_VERNEEDNUM, DT_VERSYM,
    DynamicTag, PF_R, PT_DYNAMIC, PT_LOAD, ProgramType, STT_FUNC, STT_GNU_IFUNC, SymbolType,
};

/// The numbers of the relocations that put the address of a symbol somewhere: absolute, GLOB_DAT, JUMP_SLOT (the processor
/// supplements of the System V ABI).
#[cfg(target_arch = "x86_64")]
const OF_SYMBOLS: [u32; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const OF_SYMBOLS: [u32; 3] = [257, 1025, 1026];
/// Not read on other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OF_SYMBOLS: [u32; 0] = [];

/// The sizes of Elf64_Rela and Elf64_Sym. The processors above have 64 bits.
const RELA: usize = 24;
const SYMBOL: usize = 24;
const WORD: usize = size_of::<usize>();

/// A table of the object does not lie in its own segments.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable;

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
}

/// An entry of the symbol table.
#[derive(Clone, Copy)]
pub struct Symbol {
    name: usize,
    kind: SymbolType,
    is_defined: bool,
    value: usize,
}

impl Symbol {
    /// Where its definition in this object is, if it has one.
    pub fn address(&self, image: &ElfImage) -> Option<usize> {
        self.is_defined.then(|| image.base.wrapping_add(self.value))
    }

    /// Whether it is a function.
    pub fn is_function(&self) -> bool {
        [STT_FUNC, STT_GNU_IFUNC].contains(&self.kind)
    }

    /// Whether it is a function of which the object chooses a variant when it is looked up.
    pub fn has_variants(&self) -> bool {
        self.kind == STT_GNU_IFUNC
    }
}

/// What a relocation has put somewhere.
pub struct Bound {
    /// The number of the symbol.
    pub symbol: usize,
    /// The address.
    pub value: usize,
    /// Whether it may be an address in the object itself that binds the symbol at the first call.
    pub may_be_lazy: bool,
}

/// What DT_GNU_HASH has for a name, without the bit that ends a chain.
pub fn hash(name: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
    name.iter().fold(5381, step) & !1
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

    fn symbol(&self, index: usize) -> Option<Symbol> {
        let at = self.symbols?.checked_add(index.checked_mul(SYMBOL)?)?;
        let kind = *self.bytes(at, SYMBOL)?.get(4)?;
        Some(Symbol {
            name: self.quarter(at)? as usize,
            kind: SymbolType(kind & 0xf),
            is_defined: self.half(at + 6)? != 0,
            value: self.word(at + 8)?,
        })
    }

    /// The symbol that a relocation names.
    pub fn symbol_of(&self, bound: &Bound) -> Result<Symbol, Unreadable> {
        self.symbol(bound.symbol).ok_or(Unreadable)
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
        let mut need = self.pointer(DT_VERNEED)?;
        // Elf64_Verneed and Elf64_Vernaux.
        for _ in 0..self.number(DT_VERNEEDNUM)? {
            let mut auxiliary = need.checked_add(self.quarter(need + 8)? as usize)?;
            for _ in 0..self.half(need + 2)? {
                if self.half(auxiliary + 6)? & 0x7fff == wanted {
                    return self.string(self.quarter(auxiliary + 8)? as usize);
                }
                auxiliary = auxiliary.checked_add(self.quarter(auxiliary + 12)? as usize)?;
            }
            need = need.checked_add(self.quarter(need + 12)? as usize)?;
        }
        None
    }

    /// The functions that the object has for others, and the hash of each one's name as [`hash`] makes it.
    pub fn exports(&self) -> impl Iterator<Item = (u32, Symbol)> {
        let symbols = self.hashes().into_iter().flatten();
        let symbols = symbols.filter_map(|(hash, index)| Some((hash, self.symbol(index)?)));
        symbols.filter(|(_, symbol)| symbol.is_defined && symbol.is_function())
    }

    /// The hash of the name of each symbol that others may find here, and its number. No name is read where there is
    /// DT_GNU_HASH: of libLLVM's 30,000 that takes milliseconds.
    pub fn hashes(&self) -> Option<Box<dyn Iterator<Item = (u32, usize)> + '_>> {
        if let Some((first, chains)) = self.gnu_chains() {
            let hashes = chains.chunks_exact(4).enumerate();
            return Some(Box::new(hashes.map(move |(at, chain)| {
                let chain = u32::from_value(chain).unwrap_or_default();
                (chain & !1, first + at)
            })));
        }
        let indices = 1..self.quarter(self.pointer(DT_HASH)? + 4)? as usize;
        Some(Box::new(indices.filter_map(|index| {
            let name = self.name(&self.symbol(index)?)?;
            Some((hash(name.to_bytes()), index))
        })))
    }

    /// The hashes in DT_GNU_HASH, and the number of the first one's symbol. The table has no length: the end of the chain of
    /// its highest bucket is its end.
    fn gnu_chains(&self) -> Option<(usize, &[u8])> {
        let table = self.pointer(DT_GNU_HASH)?;
        let [buckets, first, words] = [0, 4, 8].map(|at| self.quarter(table + at));
        let (buckets, first) = (buckets? as usize, first? as usize);
        let start = table.checked_add(16 + words? as usize * 8)?;
        let chains = start.checked_add(buckets * 4)?;
        let heads = self.bytes(start, buckets * 4)?.chunks_exact(4);
        let mut last = heads.filter_map(u32::from_value).max()? as usize;
        if last < first {
            return Some((first, &[]));
        }
        while self.quarter(chains.checked_add((last - first) * 4)?)? & 1 == 0 {
            last += 1;
        }
        Some((first, self.bytes(chains, (last + 1 - first) * 4)?))
    }

    /// Calls the function with what each relocation of a symbol has put into the object.
    ///
    /// # Errors
    /// A table of relocations does not lie in the object.
    pub fn each_bound(
        &self,
        mut each: impl FnMut(Bound) -> Result<(), Unreadable>,
    ) -> Result<(), Unreadable> {
        // DT_REL, of objects for other processors, is none of a dynamic linker for these.
        let plain = (DT_RELA, self.number(DT_RELASZ));
        let of_calls = self
            .number(DT_PLTREL)
            .filter(|form| *form == DT_RELA.0 as usize);
        let of_calls = of_calls.and_then(|_| self.number(DT_PLTRELSZ));
        // The linker sorts relative ones, which libLLVM has 360,000 of, to the front.
        let relative = self.number(DT_RELACOUNT).unwrap_or_default();
        for ((table, size), skipped) in [(plain, relative), ((DT_JMPREL, of_calls), 0)] {
            let (Some(at), Some(size)) = (self.pointer(table), size.filter(|size| *size > 0))
            else {
                continue;
            };
            let skipped = skipped.checked_mul(RELA).ok_or(Unreadable)?;
            let table = self.bytes(at, size).and_then(|table| table.get(skipped..));
            for entry in table.ok_or(Unreadable)?.chunks_exact(RELA) {
                // SAFETY: the size of a chunk.
                let [offset, info, addend] =
                    unsafe { entry.as_ptr().cast::<[u64; 3]>().read_unaligned() };
                let (symbol, form) = ((info >> 32) as usize, info as u32);
                // A symbol with an addend is data.
                if symbol == 0 || addend != 0 || !OF_SYMBOLS.contains(&form) {
                    continue;
                }
                let value = self
                    .word(self.base.wrapping_add(offset as usize))
                    .ok_or(Unreadable)?;
                each(Bound {
                    symbol,
                    value,
                    may_be_lazy: OF_SYMBOLS.last() == Some(&form),
                })?;
            }
        }
        Ok(())
    }

    /// Whether a library was named that audits this object (rtld-audit(7)).
    pub fn names_an_auditor(&self) -> bool {
        [DT_AUDIT, DT_DEPAUDIT]
            .into_iter()
            .any(|tag| self.number(tag).is_some())
    }
}
