//! The names that a driver's compiler may ask the environment for: all that could be a name in its libraries.
//!
//! Lists of variables that were written from documents are never complete (measured: Intel's CPU runtime adds
//! `OPENCL_PROGRAM_COMPILE_OPTIONS` to every build, which no manual names). So a variable counts if its name occurs in a library.
//!
//! Linkers merge tails, so a name may be the end of a longer text, and compilers may leave no more than its beginning: see `name_traces`.
//! This is evidence and no proof: a name that is put together at run time is not found. For that the profiles have prefixes.
//!
//! The set is made once for a list of libraries and kept in the cache directory, where processes ask for ever new names: see
//! `asked_names`. Reading the libraries takes 0.28 s of CPU time for PoCL and 0.35 s for Intel's CPU runtime and rusticl. A process
//! with 1000 more variables takes 4 to 15 ms more (measured in release builds).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64;

use super::file_memory::{FileMemory, list_identity};
use super::name_beginnings::{self, Beginning};
use super::name_bytes::is_in_a_name;
use super::name_ends::{LENGTH, MIN_LENGTH};
use super::name_traces::{Trace, read_traces};
use super::real_paths::says_what_is_there;
use super::scanned_library::ScannedLibrary;
use crate::framing;

const BLOCK: usize = 4096;
/// Blocks of a file that are kept when they were read. The usual 30 variables of a process lie in 20 of them, and each is looked for in
/// turn (measured with strace on PoCL: 60 reads without).
const KEPT_BLOCKS: usize = 32;
/// In the identity of each list of libraries, so that answers of searches end with this version as well (`asked_names`, `look`).
const MAGIC: &[u8] = b"oclcache names 5";
/// Magic number and length of the index: a frame (see `framing`) of the identity of the libraries and a row for each block. The
/// blocks follow it, since only some of them are read.
const HEADER: usize = MAGIC.len() + size_of::<u32>();
/// The first name of a block and its checksum.
const ROW: usize = LENGTH + 8;
/// A set with more names is not kept. 200,000 are usual.
const MAX_NAMES: usize = 4 << 20;
/// Names that are remembered while they are gathered, so that most frequent names are kept once.
const RECENT: usize = 1 << 14;

/// The end of `/proc/self/environ`. It is not looked for in code, where LLVM has its first letters, of `environment`.
pub(super) const FIRST_ENVIRONMENT: &[u8] = b"environ";

/// A trace of a name, last byte first, filled with zeros.
type Reversed = [u8; LENGTH];
/// The same as three big-endian numbers, in the same order: sorting a library's names by these takes a third of the time.
type Packed = [u64; LENGTH / size_of::<u64>()];

/// The identity of a list of libraries.
pub fn identity(libraries: &[ScannedLibrary]) -> [u8; 32] {
    let mut identities: Vec<&[u8]> = libraries
        .iter()
        .map(|one| one.identity.as_slice())
        .collect();
    identities.sort_unstable();
    identities.dedup();
    list_identity(MAGIC, identities.into_iter())
}

/// The names that occur in a list of libraries.
pub enum Names {
    /// In a file that [`scan`] wrote, of which some blocks were read.
    Remembered(NameIndex, File, Blocks),
    /// In the bytes that are such a file.
    Fresh(NameIndex, Vec<u8>),
    /// Unknown: each name may occur.
    All,
}

/// Blocks that were read, by their number.
type Blocks = HashMap<usize, Box<[u8; BLOCK]>>;

/// An index of a file of names, which tells the block of a name.
pub struct NameIndex {
    rows: Vec<(Reversed, u64)>,
    start: usize,
}

impl Names {
    /// Reads the names in the libraries of this identity, and stores them in the cache directory.
    ///
    /// # Errors
    /// A library cannot be read for now. One that cannot be read for good may have every name.
    pub fn gather(
        libraries: &[ScannedLibrary],
        identity: &[u8; 32],
        memory: &dyn FileMemory,
    ) -> io::Result<Names> {
        let started = Instant::now();
        match scan(libraries, memory) {
            Ok(bytes) => {
                let (ms, bytes_kept) = (started.elapsed().as_millis(), bytes.len());
                tracing::debug!(
                    libraries = libraries.len(),
                    bytes_kept,
                    ms,
                    "names of variables were gathered"
                );
                memory.remember_facts(identity, &bytes);
                // From now on read from the file as in every other process, not from memory.
                let names = Names::recall(identity, memory);
                let names = names.or_else(|| Names::fresh(bytes, identity));
                Ok(names.unwrap_or(Names::All))
            }
            Err(error) if !says_what_is_there(&error) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "names of variables cannot be looked for: every variable is in the key");
                Ok(Names::All)
            }
        }
    }

    /// The names in the libraries of this identity, if an earlier process has gathered them.
    pub fn recall(identity: &[u8; 32], memory: &dyn FileMemory) -> Option<Names> {
        let file = memory.facts(identity).ok().flatten()?;
        Names::remembered(file, identity)
    }

    /// The index of a file. None if the file is damaged, or of other libraries.
    pub fn remembered(file: File, identity: &[u8; 32]) -> Option<Names> {
        let index = NameIndex::read(identity, |buffer, at| {
            file.read_exact_at(buffer, at as u64).ok()
        })?;
        Some(Names::Remembered(index, file, Blocks::new()))
    }

    /// The names in the bytes that [`scan`] returned.
    pub fn fresh(bytes: Vec<u8>, identity: &[u8; 32]) -> Option<Names> {
        let read = |buffer: &mut [u8], at: usize| {
            buffer.copy_from_slice(bytes.get(at..at + buffer.len())?);
            Some(())
        };
        Some(Names::Fresh(NameIndex::read(identity, read)?, bytes))
    }

    /// Whether the name may be asked for. None if that is unknown, because a file is damaged: it may have every name.
    pub fn find(&mut self, name: &[u8]) -> Option<bool> {
        let Some(traces) = traces_of(name) else {
            return Some(true);
        };
        for trace in traces {
            if self.has_trace(&trace)? {
                return Some(true);
            }
        }
        Some(false)
    }

    fn has_trace(&mut self, trace: &[u8]) -> Option<bool> {
        let (wanted, length) = (reversed(trace), trace.len());
        match self {
            Names::All => None,
            Names::Remembered(index, file, blocks) => index.has(&wanted, length, |number| {
                if !blocks.contains_key(&number) {
                    if blocks.len() == KEPT_BLOCKS {
                        blocks.clear();
                    }
                    let mut block = Box::new([0; BLOCK]);
                    let at = index.start + number * BLOCK;
                    file.read_exact_at(&mut *block, at as u64).ok()?;
                    index.verify(number, &block)?;
                    blocks.insert(number, block);
                }
                blocks.get(&number).map(|block| &**block)
            }),
            Names::Fresh(index, bytes) => index.has(&wanted, length, |number| {
                let (block, _) = bytes
                    .get(index.start + number * BLOCK..)?
                    .split_first_chunk()?;
                index.verify(number, block)?;
                Some(block)
            }),
        }
    }
}

#[cfg(test)]
impl Names {
    /// The names in the libraries: from the cache directory, or gathered now.
    pub fn of(libraries: &[ScannedLibrary], memory: &dyn FileMemory) -> io::Result<Names> {
        let identity = identity(libraries);
        let recalled = Names::recall(&identity, memory);
        recalled.map_or_else(|| Names::gather(libraries, &identity, memory), Ok)
    }

    /// Whether the name may be asked for. A damaged file has every name.
    fn has(&mut self, name: &[u8]) -> bool {
        self.find(name).unwrap_or(true)
    }
}

impl NameIndex {
    fn read(
        identity: &[u8; 32],
        read: impl Fn(&mut [u8], usize) -> Option<()>,
    ) -> Option<NameIndex> {
        let mut header = [0; HEADER];
        read(&mut header, 0)?;
        let start = framing::frame_length(MAGIC, &header)?;
        if start > MAX_NAMES * ROW {
            return None;
        }
        let mut index = Vec::new();
        index.try_reserve_exact(start).ok()?;
        index.resize(start, 0);
        read(&mut index, 0)?;
        let (body, _) = framing::unframe(MAGIC, &index)?;
        let rows = body.strip_prefix(identity)?;
        let row = |row: &[u8]| {
            let (first, checksum) = row.split_first_chunk::<LENGTH>()?;
            Some((*first, u64::from_le_bytes(checksum.try_into().ok()?)))
        };
        Some(NameIndex {
            rows: rows.chunks_exact(ROW).map(row).collect::<Option<_>>()?,
            start,
        })
    }

    /// None if the block is damaged.
    fn verify(&self, number: usize, block: &[u8; BLOCK]) -> Option<()> {
        (xxh3_64(block) == self.rows[number].1).then_some(())
    }

    /// `block`: gives the block of a number; None if it is damaged or cannot be read.
    fn has<'a>(
        &self,
        wanted: &Reversed,
        length: usize,
        block: impl FnOnce(usize) -> Option<&'a [u8; BLOCK]>,
    ) -> Option<bool> {
        let begins = |known: &Reversed| known[..length] == wanted[..length];
        // If any name begins with the wanted one, the first name not before it does.
        let behind = self.rows.partition_point(|(first, _)| first <= wanted);
        if self
            .rows
            .get(behind)
            .is_some_and(|(first, _)| begins(first))
        {
            return Some(true);
        }
        let Some(number) = behind.checked_sub(1) else {
            return Some(false);
        };
        // How many bytes the last name had in common with the wanted one, which comes behind it.
        let mut common = 0;
        let mut rest = &block(number)?[..];
        while let [shared, new_length, behind @ ..] = rest {
            let (shared, new_length) = (usize::from(*shared), usize::from(*new_length));
            if new_length == 0 {
                break;
            }
            let new = behind.get(..new_length)?;
            rest = &behind[new_length..];
            if shared > common {
                continue; // it differs from the wanted name where the last one did
            }
            // A name that shares less is behind the wanted one.
            if shared == common {
                let behind_shared = wanted.get(shared..)?;
                let same = new.iter().zip(behind_shared);
                common += same.take_while(|(one, other)| one == other).count();
                let next = wanted.get(common).copied().unwrap_or_default();
                if new.get(common - shared).copied().unwrap_or_default() < next {
                    continue;
                }
            } else {
                common = shared;
            }
            return Some(common >= length);
        }
        Some(false)
    }
}

#[allow(clippy::disallowed_methods)] // in memory only, for their order
fn packed(name: &Reversed) -> Packed {
    let (numbers, _) = name.as_chunks();
    std::array::from_fn(|index| u64::from_be_bytes(numbers[index]))
}

#[allow(clippy::disallowed_methods)] // as above
fn unpacked(name: &Packed) -> Reversed {
    let mut bytes = [0; LENGTH];
    let (numbers, _) = bytes.as_chunks_mut();
    for (to, from) in numbers.iter_mut().zip(name) {
        *to = from.to_be_bytes();
    }
    bytes
}

/// Whether a name counts in every library, because it is too short to be looked for, or has bytes that no driver's name has.
pub(super) fn is_everywhere(name: &[u8]) -> bool {
    name.len() < MIN_LENGTH || !name.iter().copied().all(is_in_a_name)
}

/// What a name leaves in a library that has it, at least one of these: its end before a NUL, of at most [`LENGTH`] bytes, or one of its
/// beginnings. None: [`is_everywhere`].
pub(super) fn traces_of(name: &[u8]) -> Option<Vec<Vec<u8>>> {
    if is_everywhere(name) {
        return None;
    }
    let end = &name[name.len().saturating_sub(LENGTH)..];
    let mut traces = vec![end.to_vec()];
    let mut add = |beginning: Beginning| traces.push(beginning.as_bytes().to_vec());
    match name == FIRST_ENVIRONMENT {
        true => add(name_beginnings::of_first_environment()),
        false => name_beginnings::of_name(name).for_each(add),
    }
    Some(traces)
}

fn reversed(end: &[u8]) -> Reversed {
    let mut reversed = [0; LENGTH];
    for (to, from) in reversed.iter_mut().zip(end.iter().rev()) {
        *to = *from;
    }
    reversed
}

/// Reads the libraries and makes the file of their names.
///
/// # Errors
/// A library cannot be read, is no ELF file or was replaced, or has too many names.
pub fn scan(libraries: &[ScannedLibrary], memory: &dyn FileMemory) -> io::Result<Vec<u8>> {
    let of_each = read_traces(libraries, memory, |traces| {
        let mut gathered = Gathered::default();
        traces.each(|trace| match trace {
            Trace::Text(text) => gathered.add_end(text),
            Trace::Beginning(beginning) => gathered.add(reversed(beginning.as_bytes())),
        })?;
        gathered.remove_repeated();
        Ok(gathered.names)
    })?;
    let mut gathered = Gathered::default();
    for names in of_each {
        gathered.add_all(names)?;
    }
    gathered.finish(&identity(libraries))
}

#[derive(Default)]
struct Gathered {
    names: Vec<Packed>,
    recent: Vec<u64>,
    /// The number of names after duplicates were last removed.
    distinct: usize,
}

impl Gathered {
    /// Adds the name at the end of a text.
    fn add_end(&mut self, text: &[u8]) -> io::Result<()> {
        let text = &text[text.len().saturating_sub(LENGTH)..];
        let length = text
            .iter()
            .rev()
            .take_while(|byte| is_in_a_name(**byte))
            .count();
        self.add(reversed(&text[text.len() - length..]))
    }

    fn add(&mut self, name: Reversed) -> io::Result<()> {
        if self.recent.is_empty() {
            self.recent.try_reserve_exact(RECENT)?;
            self.recent.resize(RECENT, 0);
        }
        let hash = xxh3_64(&name);
        let recent = &mut self.recent[hash as usize % RECENT];
        if *recent == hash {
            return Ok(());
        }
        *recent = hash;
        if self.names.len() == self.names.capacity() {
            if self.names.len() > 2 * self.distinct {
                self.remove_repeated();
            }
            if self.names.len() > MAX_NAMES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.names.try_reserve(1 << 16)?;
        }
        self.names.push(packed(&name));
        Ok(())
    }

    /// Adds the names of a library.
    fn add_all(&mut self, names: Vec<Packed>) -> io::Result<()> {
        self.names.try_reserve(names.len())?;
        self.names.extend(names);
        if self.names.len() > MAX_NAMES {
            self.remove_repeated();
        }
        match self.names.len() > MAX_NAMES {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(()),
        }
    }

    fn remove_repeated(&mut self) {
        self.names.sort_unstable();
        self.names.dedup();
        self.distinct = self.names.len();
    }

    fn finish(mut self, identity: &[u8; 32]) -> io::Result<Vec<u8>> {
        self.remove_repeated();
        let (mut rows, mut blocks) = (Vec::new(), Vec::new());
        let mut block: Vec<u8> = Vec::with_capacity(BLOCK);
        let mut first = [0; LENGTH];
        let mut last = [0; LENGTH];
        let mut close = |first: &Reversed, block: &mut Vec<u8>| {
            block.resize(BLOCK, 0);
            rows.extend(first);
            rows.extend(xxh3_64(block).to_le_bytes());
            blocks.extend_from_slice(block);
            block.clear();
        };
        let mut names = self.names.iter().map(unpacked).peekable();
        while let Some(name) = names.next() {
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(LENGTH);
            // A name that is the end of another is found through that.
            if names.peek().is_some_and(|next| next[..end] == name[..end]) {
                continue;
            }
            if block.len() + 2 + LENGTH > BLOCK {
                close(&first, &mut block);
            }
            let shared = if block.is_empty() {
                first = name;
                0
            } else {
                name.iter()
                    .zip(&last)
                    .take_while(|(one, other)| one == other)
                    .count()
            };
            block.extend([shared as u8, (end - shared) as u8]);
            block.extend(&name[shared..end]);
            last = name;
        }
        if !block.is_empty() {
            close(&first, &mut block);
        }
        let mut bytes = framing::frame(MAGIC, &[identity, &rows[..]].concat())?;
        bytes.extend(blocks);
        Ok(bytes)
    }
}

#[cfg(test)]
pub(super) mod tests;
