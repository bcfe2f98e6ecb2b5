//! Reads archives, which may be hostile: names of members are never used as paths, and memory and output are bounded.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;

use tar::{Archive, EntryType};
use zstd::stream::read::Decoder;

use super::manifest::{FORMAT, MANIFEST, Manifest, SEAL};
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::log::text;
use crate::store::MAX_ENTRY_BYTES;

/// The first bytes of a zstd frame (RFC 8878, 3.1.1).
pub const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The most that is decompressed: this many bytes, and this many for each byte of the archive. Sources shrink to a tenth, binaries
/// with many zeros to a hundredth.
const MAX_BYTES: u64 = 64 << 20;
const MAX_RATIO: u64 = 400;
/// The largest manifest, in bytes.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;
const MAX_SEAL_BYTES: u64 = 1024;
/// The most between two members, in bytes: headers, and long names. The tar crate keeps these in memory, whatever their length.
const MAX_HEADER_BYTES: u64 = 64 << 10;
/// Longer names of members are cut.
const MAX_NAME_BYTES: usize = 256;

/// An archive that can be read more than once.
pub struct ArchiveSource {
    /// Its name in messages.
    name: String,
    file: File,
}

/// The head of an archive.
pub struct ArchiveHead {
    pub manifest: Manifest,
    /// The bytes of the manifest and the seal.
    pub sealed: Option<(Vec<u8>, Vec<u8>)>,
}

/// Receives the members of an archive.
pub trait ArchiveVisitor {
    /// The head, first.
    ///
    /// # Errors
    /// Reading stops.
    fn head(&mut self, head: ArchiveHead) -> Result<(), Failure>;

    /// The other members, in order.
    ///
    /// # Errors
    /// Reading stops.
    fn member(&mut self, member: &mut ArchiveMember) -> Result<(), Failure>;
}

/// One member after the head.
pub struct ArchiveMember<'a> {
    /// The number of the member.
    pub index: u64,
    /// The name. It is never used as a path.
    pub name: Vec<u8>,
    kind: EntryType,
    size: u64,
    content: &'a mut dyn Read,
    /// The most that is left of the content.
    unread: &'a mut u64,
}

impl ArchiveSource {
    /// Opens a file, or for `-` standard input, which is copied to a file without a name.
    pub fn open(path: &Path) -> Result<ArchiveSource, Failure> {
        if path == OsStr::new("-") {
            return ArchiveSource::of_standard_input();
        }
        let shown = crate::log::path(path).to_string();
        let cannot =
            |error: io::Error| Failure::new(format_args!("cannot read `{shown}`: {error}"));
        let kind = std::fs::metadata(path).map_err(cannot)?.file_type();
        if kind.is_fifo() || kind.is_char_device() {
            let words = "is not a regular file; use standard input: oclcache import - <";
            return Err(Failure::new(format_args!("`{shown}` {words} {shown}")));
        }
        let file = File::open(path).map_err(cannot)?;
        ArchiveSource::checked(shown, file)
    }

    fn of_standard_input() -> Result<ArchiveSource, Failure> {
        let name = "standard input".to_owned();
        let mut input = io::stdin().lock();
        let mut start = Vec::new();
        let cannot = |error: io::Error| Failure::new(format_args!("cannot read {name}: {error}"));
        let first = (&mut input)
            .take(MAGIC.len() as u64)
            .read_to_end(&mut start);
        first.map_err(cannot)?;
        if start != MAGIC {
            return Err(no_archive(&name));
        }
        let kept = tempfile::tempfile().and_then(|mut file| {
            file.write_all(&start)?;
            io::copy(&mut input, &mut file)?;
            Ok(file)
        });
        #[allow(clippy::disallowed_methods)] // only for the message
        let temporary = std::env::temp_dir();
        let file = kept.map_err(|error| {
            let place = crate::log::path(&temporary).to_string();
            Failure::new(format_args!(
                "cannot store {name} in `{place}`: {error}; set TMPDIR to another directory"
            ))
        })?;
        ArchiveSource::checked(name, file)
    }

    fn checked(name: String, mut file: File) -> Result<ArchiveSource, Failure> {
        let mut start = Vec::new();
        let read = file
            .rewind()
            .and_then(|()| (&mut file).take(MAGIC.len() as u64).read_to_end(&mut start));
        read.map_err(|error| Failure::new(format_args!("cannot read `{name}`: {error}")))?;
        match start == MAGIC {
            true => Ok(ArchiveSource { name, file }),
            false => Err(no_archive(&name)),
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the whole archive.
    ///
    /// # Errors
    /// It is not an archive or is damaged, or the visitor fails.
    pub fn read(
        &mut self,
        interrupt: &Interrupt,
        visitor: &mut dyn ArchiveVisitor,
    ) -> Result<(), Failure> {
        let name = self.name.clone();
        let broken = |error| broken(&name, &error);
        self.file.seek(SeekFrom::Start(0)).map_err(broken)?;
        let read = Rc::new(Cell::new(0));
        let counted = Counted {
            inner: BufReader::with_capacity(1 << 16, &self.file),
            count: read.clone(),
        };
        let between = Rc::new(Cell::new(None));
        let capped = Capped {
            inner: Decoder::with_buffer(BufReader::new(counted)).map_err(broken)?,
            read,
            made: 0,
            between: between.clone(),
        };
        let mut archive = Archive::new(capped);
        let mut pending = None;
        let mut is_begun = false;
        let mut members = archive.entries().map_err(broken)?.enumerate();
        let mut unread = 0_u64;
        loop {
            between.set(Some(unread.saturating_add(MAX_HEADER_BYTES)));
            let next = members.next();
            between.set(None);
            let Some((index, member)) = next else { break };
            interrupt.go_on()?;
            let mut content = member.map_err(|error| match is_begun {
                // Not even the beginning of a tar.
                false if too_much(&error).is_none() && !is_cut(&error) => no_archive(&name),
                _ => broken(error),
            })?;
            let kind = content.header().entry_type();
            let size = content.size();
            // A sparse file takes less in the archive than its size.
            unread = match kind {
                EntryType::GNUSparse => content.header().entry_size().map_err(broken)?,
                _ => size,
            };
            let mut path = content.path_bytes().into_owned();
            path.truncate(MAX_NAME_BYTES);
            let mut member = ArchiveMember {
                index: index as u64,
                name: path,
                kind,
                size,
                content: &mut content,
                unread: &mut unread,
            };
            if !is_begun {
                is_begun = true;
                if member.name != MANIFEST.as_bytes() {
                    return Err(no_archive(&name));
                }
                let bytes = match member.bytes(MAX_MANIFEST_BYTES) {
                    Ok(bytes) => bytes,
                    Err(trouble) => {
                        let why = trouble.of_member(&name)?;
                        let words = format!("the manifest of `{name}` {why}");
                        return Err(Failure::new(words));
                    }
                };
                pending = Some((manifest(&name, &bytes)?, bytes));
                continue;
            }
            if let Some((manifest, bytes)) = pending.take() {
                let is_seal = member.name == SEAL.as_bytes();
                let seal = is_seal.then(|| member.bytes(MAX_SEAL_BYTES).unwrap_or_default());
                visitor.head(ArchiveHead {
                    manifest,
                    sealed: seal.map(|seal| (bytes, seal)),
                })?;
                if is_seal {
                    continue;
                }
            }
            visitor.member(&mut member)?;
        }
        match pending {
            Some((manifest, _)) => visitor.head(ArchiveHead {
                manifest,
                sealed: None,
            })?,
            None if !is_begun => return Err(no_archive(&name)),
            None => {}
        }
        // The end of the frame has a checksum.
        io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(broken)?;
        Ok(())
    }
}

/// A failure to read an archive to its end.
fn broken(name: &str, error: &io::Error) -> Failure {
    match too_much(error) {
        Some(TooMuch { read, made }) => Failure::new(format_args!(
            "`{name}` expands from {read} to more than {made} bytes, so `oclcache export` did not write it; nothing was imported"
        )),
        None => Failure::new(format_args!(
            "`{name}` is truncated or damaged ({}); copy it again from where it was exported",
            text(error.to_string().as_bytes())
        )),
    }
}

fn no_archive(name: &str) -> Failure {
    Failure::new(format_args!(
        "`{name}` is not an archive of `oclcache export`"
    ))
}

fn manifest(name: &str, bytes: &[u8]) -> Result<Manifest, Failure> {
    #[derive(serde::Deserialize)]
    struct Version {
        format: u32,
    }
    let version: Version = serde_json::from_slice(bytes).map_err(|_| no_archive(name))?;
    if version.format != FORMAT {
        return Err(Failure::new(format_args!(
            "`{name}` has format {}, but this oclcache reads format {FORMAT}; use the same version of oclcache for export and import",
            version.format
        )));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        let why = error.to_string();
        Failure::new(format_args!(
            "the manifest of `{name}` is damaged: {}",
            text(why.as_bytes())
        ))
    })
}

/// Why the content of a member is not used.
pub enum MemberError {
    /// An archive of ours has no such member.
    Unfit(String),
    /// The archive cannot be read.
    Broken(io::Error),
}

impl MemberError {
    /// The reason, if only this member is affected.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn of_member(self, archive: &str) -> Result<String, Failure> {
        match self {
            MemberError::Unfit(why) => Ok(why),
            MemberError::Broken(error) => Err(broken(archive, &error)),
        }
    }
}

impl ArchiveMember<'_> {
    /// The content of a regular member below this size.
    pub fn bytes(&mut self, limit: u64) -> Result<Vec<u8>, MemberError> {
        let unfit = |why: &str| Err(MemberError::Unfit(why.to_owned()));
        match self.kind {
            EntryType::Regular => {}
            EntryType::Symlink | EntryType::Link => return unfit("is a link"),
            EntryType::Char | EntryType::Block => return unfit("is a device"),
            EntryType::Fifo => return unfit("is a FIFO"),
            EntryType::Directory => return unfit("is a directory"),
            EntryType::GNUSparse => return unfit("is a sparse file"),
            _ => return unfit("is not a regular file"),
        }
        if self.size >= limit.min(MAX_ENTRY_BYTES) {
            return unfit("is too large");
        }
        // No allocation by the claimed size: the bytes that are read are limited.
        let mut bytes = Vec::new();
        self.content
            .read_to_end(&mut bytes)
            .map_err(MemberError::Broken)?;
        *self.unread = 0;
        match bytes.len() as u64 == self.size {
            true => Ok(bytes),
            false => Err(MemberError::Broken(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.count.set(self.count.get() + length as u64);
        Ok(length)
    }
}

/// More came out of an archive than its size allows.
#[derive(Debug)]
struct TooMuch {
    read: u64,
    made: u64,
}

impl std::fmt::Display for TooMuch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes become {}", self.read, self.made)
    }
}

impl std::error::Error for TooMuch {}

fn is_cut(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// Finds the error below those of other readers.
fn too_much(error: &io::Error) -> Option<&TooMuch> {
    let mut next: Option<&(dyn std::error::Error + 'static)> =
        error.get_ref().map(|inner| inner as _);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error.downcast_ref::<io::Error>() {
            Some(inner) => inner.get_ref().map(|inner| inner as _),
            None => error.source(),
        };
    }
    None
}

struct Capped<R> {
    inner: R,
    read: Rc<Cell<u64>>,
    made: u64,
    /// The most to read before the next member; None within a member, which has its own limits.
    between: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.made += length as u64;
        let read = self.read.get();
        if self.made > MAX_BYTES + MAX_RATIO * read {
            let made = self.made;
            return Err(io::Error::other(TooMuch { read, made }));
        }
        if let Some(left) = self.between.get() {
            let Some(left) = left.checked_sub(length as u64) else {
                return Err(io::Error::other("the name of a member is too long"));
            };
            self.between.set(Some(left));
        }
        Ok(length)
    }
}
