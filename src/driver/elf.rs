//! Executables and shared libraries as files: the data that may be text for code, and the libraries that they need.
//!
//! Everything is read with pread: if a file is truncated meanwhile, that is an error and not a signal.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use object::elf::{
    DT_AUDIT, DT_AUXILIARY, DT_DEPAUDIT, DT_FILTER, DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_STRSZ,
    DT_STRTAB, PT_DYNAMIC, PT_LOAD, PT_NOTE, SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SHT_PROGBITS,
    SHT_RELA,
};

use super::loaded;
use crate::cl::info::Number;
use crate::file_fingerprint::{FileFingerprint, FileId};
use crate::regular_file;

/// A linker writes no table with more rows.
const MAX_ROWS: u64 = 1 << 16;
/// A linker writes no longer table.
const MAX_TABLE: u64 = 64 << 20;
/// A linker writes no longer string: names and lists of directories.
const MAX_STRING: u64 = 1 << 20;
/// How much of a file is read at once.
const CHUNK: usize = 256 << 10;

/// An ELF file of this machine's word size and byte order.
pub struct Elf {
    file: Arc<File>,
    machine: u16,
    header: [u8; 64],
    segments: Vec<Segment>,
}

/// A row of its table of sections.
pub struct Section {
    name: Vec<u8>,
    kind: u32,
    flags: u64,
    bytes: Range<u64>,
}

/// Some bytes of a file.
pub struct Chunk<'a> {
    /// Those that were given before, and new ones behind them.
    pub bytes: &'a [u8],
    /// Where the new ones begin.
    pub new: usize,
    /// Where the first one is in the file.
    pub place: u64,
    /// Whether they end what is read, so that nothing that follows is given later.
    pub is_last: bool,
}

impl Section {
    fn is_loaded(&self) -> bool {
        self.flags & SHF_ALLOC.0 != 0
    }

    fn is_code(&self) -> bool {
        self.flags & SHF_EXECINSTR.0 != 0
    }
}

struct Segment {
    kind: u32,
    address: u64,
    align: u64,
    bytes: Range<u64>,
}

/// What a file tells the dynamic linker.
#[derive(Default)]
pub struct ElfNeeds {
    /// DT_NEEDED, and what else it has loaded: auditors and filters.
    pub libraries: Vec<Vec<u8>>,
    /// DT_RUNPATH.
    pub run_paths: Vec<Vec<u8>>,
    /// DT_RPATH, which also counts for what these libraries need in turn.
    pub handed_down: Vec<Vec<u8>>,
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a valid ELF file")
}

/// Fields of a row of one of ELF's tables, which have other places in files of 32 bits.
struct Row<'a>(&'a [u8]);

impl Row<'_> {
    fn half(&self, at: usize) -> io::Result<u16> {
        let bytes = self.0.get(at..at + 2);
        bytes.and_then(u16::from_value).ok_or_else(damaged)
    }

    fn word(&self, at: usize) -> io::Result<u32> {
        let bytes = self.0.get(at..at + 4);
        bytes.and_then(u32::from_value).ok_or_else(damaged)
    }

    /// An address, offset or size: as wide as a pointer.
    fn wide(&self, at: usize) -> io::Result<u64> {
        let bytes = self.0.get(at..at + size_of::<usize>());
        let value = bytes.and_then(usize::from_value).ok_or_else(damaged)?;
        Ok(value as u64)
    }
}

/// The place of a field in files of 64 and of 32 bits.
const fn at(wide: usize, narrow: usize) -> usize {
    if cfg!(target_pointer_width = "32") {
        narrow
    } else {
        wide
    }
}

fn range(start: u64, size: u64) -> io::Result<Range<u64>> {
    Ok(start..start.checked_add(size).ok_or_else(damaged)?)
}

impl Elf {
    /// Device and inode of the file that is open.
    ///
    /// # Errors
    /// They cannot be asked for.
    pub fn file_id(&self) -> io::Result<FileId> {
        Ok(FileFingerprint::of(&self.file.metadata()?).file)
    }

    /// Opens a file. None if it is no ELF file, or one of another word size or byte order, which no process of this kind loads.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn open(path: &Path) -> io::Result<Option<Elf>> {
        match regular_file::open(path)? {
            Some((file, _)) => Elf::of(Arc::new(file)),
            None => Ok(None),
        }
    }

    /// The same of a file that is open.
    ///
    /// # Errors
    /// As above.
    pub fn of(file: Arc<File>) -> io::Result<Option<Elf>> {
        let mut header = [0; 64];
        match file.read_exact_at(&mut header[..at(64, 52)], 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let class = at(2, 1) as u8;
        let order = if cfg!(target_endian = "little") { 1 } else { 2 };
        if !header.starts_with(b"\x7fELF") || header[4..6] != [class, order] {
            return Ok(None);
        }
        let mut elf = Elf {
            machine: Row(&header).half(18)?,
            header,
            segments: Vec::new(),
            file,
        };
        let header = Row(&header);
        let segments = elf.table(
            header.wide(at(32, 28))?,
            header.half(at(54, 42))?,
            header.half(at(56, 44))?.into(),
        )?;
        for row in segments.0.chunks_exact(segments.1) {
            let row = Row(row);
            elf.segments.push(Segment {
                kind: row.word(0)?,
                address: row.wide(at(16, 8))?,
                align: row.wide(at(48, 28))?,
                bytes: range(row.wide(at(8, 4))?, row.wide(at(32, 16))?)?,
            });
        }
        Ok(Some(elf))
    }

    /// The bytes of a table, and the length of its rows.
    fn table(&self, start: u64, length: u16, count: u64) -> io::Result<(Vec<u8>, usize)> {
        let row = usize::from(length).max(1);
        if start == 0 || count == 0 {
            return Ok((Vec::new(), row));
        }
        if count > MAX_ROWS {
            return Err(damaged());
        }
        Ok((self.read(&range(start, count * u64::from(length))?)?, row))
    }

    /// The sections. The dynamic linker does not need them.
    ///
    /// # Errors
    /// They cannot be read, or are damaged.
    pub fn sections(&self) -> io::Result<Vec<Section>> {
        let header = Row(&self.header);
        let (start, length) = (header.wide(at(40, 32))?, header.half(at(58, 46))?);
        let table = self.table(start, length, header.half(at(60, 48))?.into())?;
        let (mut sections, mut names) = (Vec::new(), Vec::new());
        for row in table.0.chunks_exact(table.1) {
            let row = Row(row);
            names.push(row.word(0)? as usize);
            sections.push(Section {
                name: Vec::new(),
                kind: row.word(4)?,
                flags: row.wide(8)?,
                bytes: range(row.wide(at(24, 16))?, row.wide(at(32, 20))?)?,
            });
        }
        let Some(table) = sections.get(usize::from(header.half(at(62, 50))?)) else {
            return Ok(Vec::new());
        };
        let strings = self.read(&table.bytes)?;
        for (section, name) in sections.iter_mut().zip(names) {
            section.name = string(&strings, name);
        }
        Ok(sections)
    }

    /// # Errors
    /// They are not there.
    pub fn read(&self, bytes: &Range<u64>) -> io::Result<Vec<u8>> {
        let length = bytes.end - bytes.start;
        if length > MAX_TABLE {
            return Err(damaged());
        }
        let mut read = Vec::new();
        read.try_reserve_exact(length as usize)?;
        read.resize(length as usize, 0);
        self.file.read_exact_at(&mut read, bytes.start)?;
        Ok(read)
    }

    /// Fills a buffer with the bytes at this place.
    ///
    /// # Errors
    /// They are not there.
    pub fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, place)
    }

    /// The parts of the file that code may read as text: sections of data, or all loaded bytes if there is no table of sections.
    /// Symbol names and the linker's tables are left out, since code reads no names from them, and so is machine code: see
    /// [`Elf::code`]. A file without code counts as well (the data of ICU are 30 MiB): other libraries read its data.
    pub fn data(&self, sections: &[Section]) -> Vec<Range<u64>> {
        let loaded = || sections.iter().filter(|section| section.is_loaded());
        if loaded().next().is_none() {
            return self.loaded();
        }
        let tables: [&[u8]; 5] = [
            b".eh_frame",
            b".eh_frame_hdr",
            b".gcc_except_table",
            b".interp",
            b".dynstr",
        ];
        let is_data = |section: &&Section| {
            // Sections of processor-specific kinds may hold text, too.
            let is_known_table = section.kind != SHT_PROGBITS.0 && section.kind < 0x7000_0000;
            let is_table = is_known_table || tables.contains(&section.name.as_slice());
            section.kind != SHT_NOBITS.0 && !section.is_code() && !is_table
        };
        let data = loaded().filter(is_data);
        data.map(|section| section.bytes.clone()).collect()
    }

    /// Whether the bytes at an address of the file are in a section of variables that have an initial value, and are zero when
    /// the file is loaded: zero in the file, and the place of no relocation.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn is_zero_at_load(&self, address: u64, length: u64) -> io::Result<bool> {
        let sections = self.sections()?;
        let segment = self.segments.iter().find(|segment| {
            let size = segment.bytes.end - segment.bytes.start;
            let within = address.checked_sub(segment.address);
            segment.kind == PT_LOAD.0 && within.is_some_and(|within| within + length <= size)
        });
        let Some(segment) = segment else {
            return Ok(false);
        };
        let place = range(segment.bytes.start + (address - segment.address), length)?;
        let names: [&[u8]; 2] = [b".data", b".data.rel.ro"];
        let is_variables = |section: &&Section| {
            let is_around = section.bytes.start <= place.start && place.end <= section.bytes.end;
            is_around && names.contains(&section.name.as_slice())
        };
        if !sections.iter().any(|section| is_variables(&section)) {
            return Ok(false);
        }
        if self.read(&place)?.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        let tables = sections.iter().filter(|section| section.kind == SHT_RELA.0);
        for table in tables {
            for row in self.read(&table.bytes)?.chunks_exact(at(24, 12)) {
                let relocated = Row(row).wide(0)?;
                if (address..address + length).contains(&relocated) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The parts of the file that are machine code: its sections, or all loaded bytes if there is no table of sections.
    pub fn code(&self, sections: &[Section]) -> Vec<Range<u64>> {
        let is_there = |section: &&Section| section.kind != SHT_NOBITS.0 && section.is_code();
        if !sections.iter().any(Section::is_loaded) {
            return self.loaded();
        }
        let code = sections.iter().filter(is_there);
        code.map(|section| section.bytes.clone()).collect()
    }

    /// What the dynamic linker loads.
    fn loaded(&self) -> Vec<Range<u64>> {
        let segments = self.segments.iter();
        let segments = segments.filter(|segment| segment.kind == PT_LOAD.0);
        segments.map(|segment| segment.bytes.clone()).collect()
    }

    /// Calls the function for all bytes at these places, a chunk at a time, each behind the last `overlap` bytes of the one before.
    ///
    /// # Errors
    /// They are not there, or the function fails.
    pub fn each_chunk(
        &self,
        places: &[Range<u64>],
        overlap: usize,
        mut each: impl FnMut(Chunk<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(overlap + CHUNK)?;
        for range in places {
            let mut kept = 0;
            let mut at = range.start;
            while at < range.end {
                let length = (range.end - at).min(CHUNK as u64) as usize;
                buffer.resize(kept + length, 0);
                self.read_at(&mut buffer[kept..], at)?;
                each(Chunk {
                    bytes: &buffer,
                    new: kept,
                    place: at - kept as u64,
                    is_last: at + length as u64 == range.end,
                })?;
                at += length as u64;
                let rest = buffer.len().saturating_sub(overlap);
                buffer.copy_within(rest.., 0);
                kept = buffer.len() - rest;
            }
        }
        Ok(())
    }

    /// Comments of the compilers that made it.
    pub fn comment(&self, sections: &[Section]) -> Vec<u8> {
        let mut sections = sections.iter();
        let comment = sections.find(|section| section.name == b".comment");
        comment
            .and_then(|section| self.read(&section.bytes).ok())
            .unwrap_or_default()
    }

    /// The libraries that the file needs, and where it says they are.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn needs(&self) -> io::Result<ElfNeeds> {
        let Some(dynamic) = self
            .segments
            .iter()
            .find(|segment| segment.kind == PT_DYNAMIC.0)
        else {
            return Ok(ElfNeeds::default());
        };
        let width = at(8, 4);
        let table = self.read(&dynamic.bytes)?;
        let mut rows = Vec::new();
        for row in table.chunks_exact(2 * width) {
            let row = Row(row);
            match row.wide(0)? {
                0 => break,
                tag => rows.push((tag as i64, row.wide(width)?)),
            }
        }
        let find = |wanted: i64| {
            rows.iter()
                .find(|(tag, _)| *tag == wanted)
                .map(|(_, value)| *value)
        };
        let (Some(address), Some(size)) = (find(DT_STRTAB.0), find(DT_STRSZ.0)) else {
            return Ok(ElfNeeds::default());
        };
        let holds = |segment: &&Segment| {
            let size = segment.bytes.end - segment.bytes.start;
            segment.kind == PT_LOAD.0
                && (segment.address..segment.address.saturating_add(size)).contains(&address)
        };
        let segment = self.segments.iter().find(holds).ok_or_else(damaged)?;
        let strings = range(segment.bytes.start + (address - segment.address), size)?;
        // A compiler's library has megabytes of strings but needs only a dozen libraries.
        let mut strings = Strings::new(&self.file, strings);
        let mut texts = |wanted: i64| -> io::Result<Vec<Vec<u8>>> {
            let found = rows.iter().filter(|(tag, _)| *tag == wanted);
            found.map(|(_, offset)| strings.get(*offset)).collect()
        };
        let loaded = [DT_NEEDED, DT_AUDIT, DT_DEPAUDIT, DT_FILTER, DT_AUXILIARY];
        let libraries: io::Result<Vec<_>> = loaded.iter().map(|tag| texts(tag.0)).collect();
        Ok(ElfNeeds {
            libraries: libraries?.concat(),
            run_paths: texts(DT_RUNPATH.0)?,
            handed_down: texts(DT_RPATH.0)?,
        })
    }

    /// The GNU build-id.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let notes = self
            .segments
            .iter()
            .filter(|segment| segment.kind == PT_NOTE.0);
        let mut notes =
            notes.filter_map(|segment| Some((self.read(&segment.bytes).ok()?, segment.align)));
        notes.find_map(|(notes, align)| loaded::build_id(&notes, align as usize))
    }

    /// The number of the processor that it is for.
    pub fn machine(&self) -> u16 {
        self.machine
    }
}

/// A table of strings in a file. Few of its strings are read.
struct Strings<'a> {
    file: &'a File,
    table: Range<u64>,
    /// The last chunk that was read, and its offset.
    read: Vec<u8>,
    at: u64,
}

/// The size of a chunk. The strings that are read are close together.
const STRINGS: u64 = 1024;

impl Strings<'_> {
    fn new(file: &File, table: Range<u64>) -> Strings<'_> {
        let at = table.start;
        let read = Vec::new();
        Strings {
            file,
            table,
            read,
            at,
        }
    }

    /// The string at this offset of the table. Empty beyond the end.
    fn get(&mut self, offset: u64) -> io::Result<Vec<u8>> {
        let start = self.table.start.saturating_add(offset);
        let mut wanted = STRINGS;
        loop {
            let known = start.checked_sub(self.at).unwrap_or(u64::MAX);
            let known = usize::try_from(known).unwrap_or(usize::MAX);
            let rest = self.read.get(known..).unwrap_or_default();
            if let Some(end) = rest.iter().position(|byte| *byte == 0) {
                return Ok(rest[..end].to_vec());
            }
            let there = self.table.end.saturating_sub(start);
            if rest.len() as u64 >= there {
                return Ok(rest.to_vec());
            }
            if wanted > MAX_STRING {
                return Err(damaged());
            }
            self.at = start;
            self.read.clear();
            self.read.resize(wanted.min(there) as usize, 0);
            self.file.read_exact_at(&mut self.read, start)?;
            wanted *= 4;
        }
    }
}

fn string(strings: &[u8], start: usize) -> Vec<u8> {
    let rest = strings.get(start..).unwrap_or_default();
    rest.split(|byte| *byte == 0)
        .next()
        .unwrap_or_default()
        .to_vec()
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Makes a library of C source, and says where it is.
    pub fn library_of(directory: &Path, source: &str, options: &[&str]) -> PathBuf {
        let (file, library) = (directory.join("a.c"), directory.join("liba.so"));
        std::fs::write(&file, source).expect("written");
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC"]).args(options);
        compiler.arg("-o").arg(&library).arg(&file);
        let status = compiler.status().expect("a C compiler");
        assert!(status.success(), "{source}");
        library
    }

    /// Another library may read it.
    #[test]
    fn the_data_of_a_library_without_code_are_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let source = "const char table[] = \"A_NAME\";";
        for options in [&[][..], &["-nostdlib"]] {
            let library = library_of(directory.path(), source, options);
            let elf = Elf::open(&library).expect("read").expect("a library");
            let mut text = Vec::new();
            for place in elf.data(&elf.sections().expect("sections")) {
                text.extend(elf.read(&place).expect("read"));
            }
            let name = b"A_NAME\0";
            assert!(
                text.windows(name.len()).any(|part| part == name),
                "{options:?}"
            );
        }
    }

    /// What may be behind an array of 24 bytes at an address that is a multiple of 16: nothing, a number, a pointer.
    #[test]
    fn only_padding_is_zero_at_load() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (behind, is_padding) in [
            (
                "char *other[2] __attribute__((aligned(64))) = {\"a\", \"b\"};",
                true,
            ),
            ("int number[2] = {0, 7};", false),
            ("void *pointer = &table;", false),
            (
                "struct { void *zero; char one; } __attribute__((packed)) pair = {0, 1};",
                false,
            ),
        ] {
            // One section for all, in this order.
            let source =
                format!("long table[3] __attribute__((aligned(64))) = {{1, 2, 3}};\n{behind}\n");
            let library = library_of(directory.path(), &source, &["-fno-toplevel-reorder"]);
            // SAFETY: a library without initializers; only an address is taken.
            let loaded = unsafe { libloading::Library::new(&library) }.expect("loaded");
            // SAFETY: as above.
            let table = unsafe { loaded.get::<*const u8>(b"table") }.expect("there");
            let table = *table as *const _ as usize;
            let object = loaded::objects()
                .into_iter()
                .find(|object| object.contains(table));
            let base = object.expect("loaded").base;
            let elf = Elf::open(&library).expect("read").expect("a library");
            let address = (table - base) as u64;
            assert!(!elf.is_zero_at_load(address, 16).expect("read"), "{behind}");
            let zero = elf.is_zero_at_load(address + 24, 16).expect("read");
            assert_eq!(zero, is_padding, "{behind}");
        }
    }
}
