//! Computes the BLAKE3 of files, large ones in parts, on several threads.
//!
//! Most of Intel's CPU runtime is in one file of 200 MB. Beside a build, one thread took 0.15 s for it and the rest, however many
//! processors there were. BLAKE3 is the root of a tree (section 2.1 of its paper), so parts that are whole subtrees can be read by
//! themselves.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{CHUNK_LEN, Hasher};

use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
use crate::parallel_files;
use crate::regular_file;

/// How many bytes a part has, but for a file's last one: a whole subtree. Reading and hashing it takes 1.4 ms.
const PART: u64 = 4 << 20;
const _: () = assert!((PART / CHUNK_LEN as u64).is_power_of_two());
/// The largest file that is parted.
const MAX_SIZE: u64 = 64 << 30;
/// Small enough for the reserve (see `reserve`) if the system has no memory left.
const BUFFER: usize = 64 << 10;

/// A regular file in the state in which it is to be read.
pub struct SeenFile<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// Its state.
    pub state: FileFingerprint,
}

/// A file that is being read. It is opened by who reads a part first, and closed by who reads the last one: where opening asks a
/// server, or makes the system forget what it has read, it is done once, and all parts are of one file.
struct ReadFile<'a> {
    seen: &'a SeenFile<'a>,
    opened: Mutex<Option<Arc<File>>>,
    /// The number of parts that nobody has read.
    left: AtomicU64,
}

/// A part of a file, or all of a small one.
struct Part<'a> {
    file: &'a ReadFile<'a>,
    start: u64,
    length: u64,
}

/// What a part adds to the digest of its file.
enum Value {
    /// It is the whole file.
    Digest([u8; 32]),
    /// The value of its subtree.
    Subtree(ChainingValue),
}

/// The digest of each file.
///
/// # Errors
/// For a file that cannot be read, or that is or gets into another state.
pub fn of_files(files: &[SeenFile<'_>]) -> Vec<io::Result<[u8; 32]>> {
    let read_file = |seen| ReadFile {
        seen,
        opened: Mutex::default(),
        left: AtomicU64::new(SeenFile::parts(seen)),
    };
    let read_files: Vec<ReadFile<'_>> = files.iter().map(read_file).collect();
    let parts: Vec<Part<'_>> = read_files
        .iter()
        .flat_map(|file| {
            let (size, parts) = (file.seen.state.size(), file.seen.parts());
            (0..parts).map(move |number| Part {
                file,
                start: number * PART,
                length: match parts {
                    1 => size,
                    _ => PART.min(size - number * PART),
                },
            })
        })
        .collect();
    let mut values = parallel_files::map(&parts, |part| part.length, Part::value).into_iter();
    let digest_of = |file| {
        let values: Vec<io::Result<Value>> = values
            .by_ref()
            .take(SeenFile::parts(file) as usize)
            .collect();
        digest_of_parts(values.into_iter().collect::<io::Result<Vec<_>>>()?)
    };
    files.iter().map(digest_of).collect()
}

impl SeenFile<'_> {
    /// How many parts the file has. No driver has a larger file than [`MAX_SIZE`]; one that only says so is read as one.
    fn parts(&self) -> u64 {
        match self.state.size() {
            size if size > MAX_SIZE => 1,
            size => size.div_ceil(PART).max(1),
        }
    }
}

impl ReadFile<'_> {
    fn open(&self) -> io::Result<Arc<File>> {
        let mut opened = self.opened.lock();
        if let Some(file) = &*opened {
            return Ok(file.clone());
        }
        let file = regular_file::open_seen(self.seen.path)?;
        let (file, _) = file.ok_or_else(regular_file::is_none)?;
        Ok(opened.insert(Arc::new(file)).clone())
    }

    /// Another part was read.
    fn note_read(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.opened.lock().take();
        }
    }
}

impl Part<'_> {
    fn value(&self) -> io::Result<Value> {
        let value = self.file.open().and_then(|file| self.value_in(&file));
        self.file.note_read();
        value
    }

    fn value_in(&self, file: &File) -> io::Result<Value> {
        let state = &self.file.seen.state;
        let check = || match FileFingerprint::of(&file.metadata()?) == *state {
            true => Ok(()),
            false => Err(io::Error::other("it changed while it was read")),
        };
        check()?;
        let value = match self.length == state.size() {
            true => Value::Digest(self.whole(file)?),
            false => Value::Subtree(self.subtree(file)?),
        };
        check()?;
        Ok(value)
    }

    /// To the end of the file: some systems say that files which they make when they are read have no bytes.
    fn whole(&self, file: &File) -> io::Result<[u8; 32]> {
        let mut hash = Hasher::new();
        let mut buffer = vec![0; BUFFER];
        let mut at = 0;
        loop {
            match file.read_at(&mut buffer, at) {
                Ok(0) => return Ok(hash.finalize().into()),
                Ok(length) => {
                    hash.update(&buffer[..length]);
                    at += length as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn subtree(&self, file: &File) -> io::Result<ChainingValue> {
        let mut hash = Hasher::new();
        hash.set_input_offset(self.start);
        let mut buffer = vec![0; BUFFER];
        let (mut at, end) = (self.start, self.start + self.length);
        while at < end {
            let length = (end - at).min(BUFFER as u64) as usize;
            file.read_exact_at(&mut buffer[..length], at)?;
            hash.update(&buffer[..length]);
            at += length as u64;
        }
        Ok(hash.finalize_non_root())
    }
}

/// The digest of a file from the values of its parts.
fn digest_of_parts(values: Vec<Value>) -> io::Result<[u8; 32]> {
    let mut subtrees = Vec::with_capacity(values.len());
    for value in values {
        match value {
            Value::Digest(digest) => return Ok(digest),
            Value::Subtree(value) => subtrees.push(value),
        }
    }
    let (left, right) = halves(&subtrees).ok_or(io::ErrorKind::InvalidData)?;
    let root = merge_subtrees_root(&value_of(left)?, &value_of(right)?, Mode::Hash);
    Ok(root.into())
}

/// The value of the subtree that has these below it.
fn value_of(subtrees: &[ChainingValue]) -> io::Result<ChainingValue> {
    match (subtrees, halves(subtrees)) {
        ([one], _) => Ok(*one),
        (_, Some((left, right))) => Ok(merge_subtrees_non_root(
            &value_of(left)?,
            &value_of(right)?,
            Mode::Hash,
        )),
        (_, None) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Those below the left child of a node and those below the right one: on the left is the largest power of two that leaves something on
/// the right. None: there are fewer than two.
fn halves(subtrees: &[ChainingValue]) -> Option<(&[ChainingValue], &[ChainingValue])> {
    let left = subtrees.len().checked_next_power_of_two()? / 2;
    match left {
        0 => None,
        _ => subtrees.split_at_checked(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &Path) -> SeenFile<'_> {
        let state = FileFingerprint::at(path).expect("a file");
        SeenFile { path, state }
    }

    #[test]
    fn the_digest_of_parts_is_that_of_the_whole() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut content = Vec::new();
        let mut next = 1_u64;
        // No part is like another.
        while content.len() < 9 * PART as usize + 5 {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            content.extend(next.to_le_bytes());
        }
        let part = PART as usize;
        let lengths = [
            0,
            1,
            1024,
            part - 1,
            part,
            part + 1,
            2 * part,
            2 * part + 1024,
            3 * part - 1,
            5 * part,
            7 * part + 64,
            8 * part,
            9 * part + 5,
        ];
        let paths = lengths.map(|length| {
            let path = directory.path().join(length.to_string());
            std::fs::write(&path, &content[..length]).expect("written");
            path
        });
        let files = paths.each_ref().map(|path| seen(path));
        for (length, digest) in lengths.iter().zip(of_files(&files)) {
            let expected: [u8; 32] = blake3::hash(&content[..*length]).into();
            assert_eq!(digest.expect("read"), expected, "{length}");
        }
    }

    #[test]
    fn a_file_that_changed_since_it_was_seen_has_no_digest_and_the_others_have_theirs() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let paths = ["one", "other", "gone"].map(|name| directory.path().join(name));
        for path in &paths {
            File::create(path)
                .and_then(|file| file.set_len(2 * PART))
                .expect("written");
        }
        let files = paths.each_ref().map(|path| seen(path));
        let shorter = File::options().write(true).open(&paths[0]);
        shorter
            .and_then(|file| file.set_len(PART))
            .expect("truncated");
        std::fs::remove_file(&paths[2]).expect("removed");
        let digests = of_files(&files);
        assert!(digests[0].is_err() && digests[2].is_err());
        let expected: [u8; 32] = blake3::hash(&vec![0; 2 * PART as usize]).into();
        assert_eq!(digests[1].as_ref().expect("read"), &expected);
    }
}
