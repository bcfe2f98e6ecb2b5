//! One entry: the grammar of its file, and what it holds.
//!
//! ```text
//! entry    = magic version key meta-length meta binary-count { binary-length } { binary } recipe-length recipe checksum
//! magic    = "oclcache"                      8 bytes
//! version  = 4                               u32
//! key      =                                 32 bytes
//! meta     = zstd of the postcard encoding of `Meta`, of meta-length (u32) bytes
//! binary   = one for each device that has one, of binary-length (u64) bytes; binary-count is u32
//! recipe   = zstd of the postcard encoding of `Recipe`, of recipe-length (u32) bytes; 0 if it is not stored
//! checksum = that of `framing`
//! ```
//!
//! An entry without binaries is pending: a recipe that has not been baked yet.
//!
//! All integers are little-endian. Reading verifies: in any doubt the result is a [`Defect`] and no entry. Binaries are not
//! compressed, so that a hit costs one read and one pass for the checksum. No hit needs the recipe, so it is decompressed only
//! when somebody asks for it.

use std::io;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::compressed::{self, DecodeLimits};
use super::recipe::{StoredRecipe, Text};
use crate::framing::{CHECKSUM, seal, unseal};
use crate::key::ingredients::{Ingredient, Key};

/// The first bytes of each entry.
pub const MAGIC: &[u8] = b"oclcache";
/// The version of the grammar.
pub const VERSION: u32 = 4;
/// The bytes before the metadata: magic, version, key and the length of the metadata.
const HEAD: usize = MAGIC.len() + size_of::<u32>() + 32 + size_of::<u32>();
/// More than the devices of any context.
const MAX_BINARIES: u32 = 1024;

/// Why a file is not a usable entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Defect {
    /// It is not a regular file of this user, or too large.
    Unreadable(String),
    /// It ends too early, or is longer than its header says.
    Length,
    /// It does not begin with the magic number and version of this format.
    Foreign,
    /// The checksum is wrong.
    Checksum,
    /// It is the entry of another key.
    OtherKey,
    /// The metadata cannot be decoded although the checksum is right.
    Metadata,
    /// There is no memory to decode it, so nothing is known about it.
    NoMemory,
    /// The driver refused the binary, or made another program of it.
    Refused(&'static str),
    /// More than one process died while the driver loaded it.
    Deadly,
}

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Defect::Unreadable(why) => write!(f, "unreadable: {why}"),
            Defect::Length => f.write_str("truncated or too long"),
            Defect::Foreign => f.write_str("not an entry of this version"),
            Defect::Checksum => f.write_str("wrong checksum"),
            Defect::OtherKey => f.write_str("entry of another key"),
            Defect::Metadata => f.write_str("undecodable metadata"),
            Defect::NoMemory => f.write_str("no memory to decode it"),
            Defect::Refused(why) => write!(f, "refused: {why}"),
            Defect::Deadly => f.write_str("processes died while the driver loaded it"),
        }
    }
}

/// A driver's answer to one query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The value.
    Value(Text),
    /// The error code.
    Error(i32),
    /// The application's own build options, with the NUL: the value of CL_PROGRAM_BUILD_OPTIONS, which may differ between
    /// programs that share an entry.
    OwnOptions,
    /// Not kept; the driver must be asked.
    Withheld,
    /// A text that quotes the application's own build options: the parts around them. Intel's CPU runtime writes them into
    /// each build log, and programs that share an entry may spell include directories differently.
    AroundOwnOptions(Vec<Text>),
}

/// The answers to a list of queries, by `param_name`.
pub type Answers = Vec<(u32, Answer)>;

/// Added to a `param_name`: which bytes of its value the driver did not write. 1 for such a byte, 0 for others; nothing is recorded if
/// all were written. No name has this bit, so versions of oclcache that do not know it pass over it.
pub const UNWRITTEN: u32 = 1 << 31;
/// Added to a `param_name` whose answer is an error: the size that the driver tells all the same if it is asked for the size alone, as 8
/// bytes in little-endian order. No name has this bit either.
pub const SIZE_ALONE: u32 = 1 << 30;

/// Everything that the API shows of a built program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// clGetProgramInfo, for what describes the executable, some with [`UNWRITTEN`] or [`SIZE_ALONE`].
    pub program: Answers,
    /// clGetProgramBuildInfo, for each device in the program's order, some with [`SIZE_ALONE`]; nothing for those that were not built.
    pub devices: Vec<Answers>,
    /// The kernels' names in the order of CL_PROGRAM_KERNEL_NAMES.
    pub kernel_names: Vec<Vec<u8>>,
    /// The kernels that are known, in the order in which they became known; with `creation_order`, all kernels in that order.
    pub kernels: Vec<KernelFacts>,
    /// Whether `kernels` is in the order of clCreateKernelsInProgram.
    pub creation_order: bool,
}

/// What the API shows of one kernel, and a kernel made from a binary may not show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// CL_KERNEL_FUNCTION_NAME without the NUL.
    pub name: Vec<u8>,
    /// CL_KERNEL_ATTRIBUTES.
    pub attributes: Answer,
    /// clGetKernelArgInfo: its five queries for each argument.
    pub arguments: Vec<Answers>,
    /// clGetKernelArgInfo: its five queries for the index behind the last argument.
    pub behind_last_argument: Answers,
}

impl Facts {
    /// The facts about a kernel.
    pub fn kernel(&self, name: &[u8]) -> Option<&KernelFacts> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

/// The metadata of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// What the key was made of.
    pub ingredients: Vec<Ingredient>,
    /// The build options as the application gave them, or with digests in place of values.
    pub options: Option<Vec<u8>>,
    /// The include directories, if the program shows the spelling of any: a program with another there may not use the entry. Those that
    /// are not shown are empty.
    pub include_dirs: Option<Vec<Vec<u8>>>,
    /// The driver's family by its profile.
    pub driver_family: String,
    /// The driver's library.
    pub driver_library: String,
    /// The name of the program that was running.
    pub executable: String,
    /// When it was recorded, in seconds since 1970.
    pub created: u64,
    /// How long the driver took to build it, in nanoseconds.
    pub compile_ns: u64,
    /// Which of the program's devices have a binary, by their index, ascending.
    pub built: Vec<u32>,
    /// The driver lists binaries for these devices only (measured: PoCL 3.1 after a build for some).
    pub only_built_listed: bool,
    /// Who signed it, if it came from the store that machines share: see [`Meta::signer`]. Earlier versions counted here how often a
    /// recipe was left.
    pub received: (u32, u64),
    /// Whether the binaries contain what the driver compiled when the application ran its kernels (PoCL: for work-group sizes).
    /// Without it, the driver compiles that again.
    pub variants: bool,
    /// It came from an archive, so somebody else made its recipe. No program of this user has compiled it.
    pub imported: bool,
    /// What the API shows; in a pending entry only the names of the kernels.
    pub facts: Facts,
}

/// Tells a signer from what earlier versions counted.
const SIGNED: u32 = u32::from_le_bytes(*b"sign");

impl Meta {
    /// The id of the signer of an entry that came from the store that machines share.
    pub fn signer(&self) -> Option<u64> {
        let (mark, signer) = self.received;
        (mark == SIGNED).then_some(signer)
    }

    /// The same with this signer, or with none.
    pub fn signed_by(self, signer: Option<u64>) -> Meta {
        let received = signer.map_or((0, 0), |signer| (SIGNED, signer));
        Meta { received, ..self }
    }

    /// Whether the entry is a recipe that nobody has baked yet.
    pub fn is_pending(&self) -> bool {
        self.built.is_empty()
    }
}

/// What is written into an entry.
pub struct EntryContent<'a> {
    /// Everything but the binaries.
    pub meta: &'a Meta,
    /// How to make it again, unless sources are not stored.
    pub recipe: Option<&'a StoredRecipe>,
    /// One binary for each device in `built`; none if it is pending.
    pub binaries: Vec<&'a [u8]>,
}

impl EntryContent<'_> {
    /// The bytes of the file.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn encode(&self, key: &Key) -> io::Result<Vec<u8>> {
        let meta = compressed::encode(self.meta)?;
        let recipe = match self.recipe {
            Some(recipe) => compressed::encode(recipe)?,
            None => Vec::new(),
        };
        let parts = [
            meta.len(),
            recipe.len(),
            HEAD,
            CHECKSUM,
            2 * size_of::<u32>(),
        ];
        let binaries = self.binaries.iter();
        let binaries = binaries.map(|binary| binary.len() + size_of::<u64>());
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(parts.into_iter().chain(binaries).sum())?;
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(key.0);
        bytes.extend((meta.len() as u32).to_le_bytes());
        bytes.extend(&meta);
        bytes.extend((self.binaries.len() as u32).to_le_bytes());
        for binary in &self.binaries {
            bytes.extend((binary.len() as u64).to_le_bytes());
        }
        for binary in &self.binaries {
            bytes.extend(*binary);
        }
        bytes.extend((recipe.len() as u32).to_le_bytes());
        bytes.extend(&recipe);
        seal(&mut bytes);
        Ok(bytes)
    }
}

/// A verified entry.
#[derive(Debug)]
pub struct Entry {
    bytes: Vec<u8>,
    binaries: Vec<Range<usize>>,
    recipe: Range<usize>,
    /// Everything but the binaries.
    pub meta: Meta,
    /// It came from a system directory, which is only read.
    pub is_of_system: bool,
}

impl Entry {
    /// Verifies and decodes the bytes of a file; `key` is the one that it should have.
    ///
    /// # Errors
    /// The reason why the bytes are not a usable entry.
    pub fn parse(bytes: Vec<u8>, key: Option<&Key>) -> Result<Entry, Defect> {
        Entry::parse_within(bytes, key, DecodeLimits::OWN)
    }

    /// The same of bytes that came from elsewhere.
    ///
    /// # Errors
    /// See [`Entry::parse`]; and neither its metadata nor its recipe may take much memory.
    pub fn parse_foreign(bytes: Vec<u8>, key: Option<&Key>) -> Result<Entry, Defect> {
        let entry = Entry::parse_within(bytes, key, DecodeLimits::FOREIGN)?;
        if !entry.recipe.is_empty() {
            entry.recipe_within(DecodeLimits::FOREIGN)?;
        }
        Ok(entry)
    }

    fn parse_within(
        bytes: Vec<u8>,
        key: Option<&Key>,
        limits: DecodeLimits,
    ) -> Result<Entry, Defect> {
        if bytes.len() < CHECKSUM {
            return Err(Defect::Length);
        }
        if !bytes.starts_with(MAGIC) {
            return Err(Defect::Foreign);
        }
        let body = unseal(&bytes).ok_or(Defect::Checksum)?;
        let mut cursor = Cursor {
            bytes: body,
            at: MAGIC.len(),
        };
        if cursor.u32()? != VERSION {
            return Err(Defect::Foreign);
        }
        let range = cursor.take(32)?;
        if key.is_some_and(|key| bytes[range] != key.0) {
            return Err(Defect::OtherKey);
        }
        let length = cursor.u32()? as usize;
        let meta = cursor.take(length)?;
        let count = cursor.u32()?;
        if count > MAX_BINARIES {
            return Err(Defect::Length);
        }
        let lengths: Vec<u64> = (0..count).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
        let mut binaries = Vec::with_capacity(lengths.len());
        for length in lengths {
            binaries.push(cursor.take(usize::try_from(length).map_err(|_| Defect::Length)?)?);
        }
        let length = cursor.u32()? as usize;
        let recipe = cursor.take(length)?;
        if cursor.at != body.len() {
            return Err(Defect::Length);
        }
        let meta = decode(&bytes[meta], limits)?;
        Ok(Entry {
            is_of_system: false,
            bytes,
            binaries,
            recipe,
            meta,
        })
    }

    /// The binaries, one for each device in `built`.
    pub fn binaries(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.binaries.iter().map(|range| &self.bytes[range.clone()])
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it is a recipe that nobody has baked yet.
    pub fn is_pending(&self) -> bool {
        self.binaries.is_empty()
    }

    /// How to make it again.
    ///
    /// # Errors
    /// [`Defect::NoMemory`]: nothing is known about it. Anything else: the recipe is not stored.
    pub fn recipe(&self) -> Result<StoredRecipe, Defect> {
        self.recipe_within(DecodeLimits::OWN)
    }

    fn recipe_within(&self, limits: DecodeLimits) -> Result<StoredRecipe, Defect> {
        decode(&self.bytes[self.recipe.clone()], limits)
    }

    /// The size of the file, in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// The offset at which the metadata end, from the first bytes of a file; None if it is not an entry of this version.
pub(super) fn head_length(start: &[u8]) -> Option<usize> {
    let length = start.get(HEAD - size_of::<u32>()..HEAD)?;
    let is_ours =
        start.starts_with(MAGIC) && start[MAGIC.len()..].starts_with(&VERSION.to_le_bytes());
    let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
    is_ours.then(|| HEAD + length)
}

/// The metadata of the entry of a key, from as many first bytes as [`head_length`] says. Only the key is verified.
pub(super) fn parse_head(start: &[u8], key: &Key) -> Option<Meta> {
    let meta = start.get(HEAD..head_length(start)?)?;
    if start[MAGIC.len() + size_of::<u32>()..][..key.0.len()] != key.0 {
        return None;
    }
    decode(meta, DecodeLimits::OWN).ok()
}

/// Decodes what [`compressed::encode`] made.
fn decode<T: DeserializeOwned>(bytes: &[u8], limits: DecodeLimits) -> Result<T, Defect> {
    compressed::decode(bytes, limits).map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => Defect::NoMemory,
        _ => Defect::Metadata,
    })
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, length: usize) -> Result<Range<usize>, Defect> {
        let end = self
            .at
            .checked_add(length)
            .filter(|end| *end <= self.bytes.len())
            .ok_or(Defect::Length)?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn u32(&mut self) -> Result<u32, Defect> {
        let range = self.take(4)?;
        self.bytes[range]
            .try_into()
            .map(u32::from_le_bytes)
            .map_err(|_| Defect::Length)
    }

    fn u64(&mut self) -> Result<u64, Defect> {
        let range = self.take(8)?;
        self.bytes[range]
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| Defect::Length)
    }
}

#[cfg(test)]
pub mod tests;
