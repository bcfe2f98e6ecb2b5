//! Computes digests of the contents of a driver's files, large ones in parts, on several threads.
//!
//! The digest of a file of up to 1 MiB is the SHA-256 of its content. That of a larger one is the SHA-256 of the values of its parts of
//! 1 MiB, and the value of a part is its XXH3 of 128 bits. Intel's CPU runtime has 330 MB in such files without a build-id, and each first
//! run reads them: 192 MB took 20 to 25 ms, of which reading took 12 to 18. With BLAKE3 they took 45 to 57 ms, with SHA-256 120 ms where
//! the processor has instructions for it.
//!
//! XXH3 tells apart whatever was not made to be mistaken for something else, and does not resist who makes that. What is so large in a
//! driver is code: who can replace it runs code in the program without us. (A build-id, by which other libraries are identified, is any
//! bytes that their maker puts there.) Configuration that users write is smaller and has SHA-256. Texts of programs and their headers are
//! digested elsewhere, by SHA-256 as well. What is left is data of more than 1 MiB that a script in place of a linker names.
//!
//! To copy a file from the system's memory takes longer than to look at it, so who looks for something in the same files may read along.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
use crate::parallel_files;
use crate::regular_file;
use crate::stop::Stop;

/// How many bytes a part has, but for a file's last one. Reading and hashing it takes 0.1 ms, with SHA-256 0.6 ms.
const PART: u64 = 1 << 20;
/// The largest file that is read in parts.
const MAX_SIZE: u64 = 64 << 30;
/// Small enough for the reserve (see `reserve`) if the system has no memory left.
const BUFFER: usize = 64 << 10;

/// How many bytes before the new ones a reader along gets, as far as the file has them.
pub const OVERLAP: usize = 256;

/// What is digested begins with one of these, so that no file is taken for the values of another's parts.
const OF_CONTENT: &[u8] = &[0];
const OF_PARTS: &[u8] = &[1];

/// A regular file in the state in which it is to be read.
pub struct SeenFile<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// Its state.
    pub state: FileFingerprint,
    /// Whether a change since it was opened would show in its state. Else it is not read along: what is known of it when it is opened
    /// may be of another content than its digest.
    pub is_settled: bool,
}

/// Reads files along while their digests are computed.
pub trait ReadAlong: Sync {
    /// Begins with a file that is open in the state in which it was seen, perhaps twice with one file. None: its content does not matter.
    fn begin<'a>(&'a self, file: &Arc<File>) -> Option<Box<dyn ReadFileAlong + 'a>>;
}

/// Reads one file along.
pub trait ReadFileAlong: Send + Sync {
    /// Takes some bytes, which lie at this place in the file. The new ones begin at `new`, behind [`OVERLAP`] others, as far as the file
    /// has them. Called on several threads, in any order, and again with the same ones if it panics.
    fn read(&self, bytes: &[u8], new: usize, place: u64);

    /// All bytes that the file says it has were given, and have this digest.
    fn end(&self, digest: &[u8; 32]);
}

/// Nobody reads along.
pub struct Alone;

impl ReadAlong for Alone {
    fn begin<'a>(&'a self, _file: &Arc<File>) -> Option<Box<dyn ReadFileAlong + 'a>> {
        None
    }
}

/// A file that is being read. It is opened by who reads a part first, and closed by who reads the last one: where opening asks a
/// server, or makes the system forget what it has read, it is done once, and all parts are of one file.
struct ReadFile<'a> {
    seen: &'a SeenFile<'a>,
    opened: Mutex<Option<Arc<File>>>,
    /// The number of parts that nobody has read.
    left: AtomicU64,
    along: &'a dyn ReadAlong,
    /// Set when the file was opened.
    reads_along: OnceLock<Option<Box<dyn ReadFileAlong + 'a>>>,
    /// Whether it has fewer bytes than it says.
    is_short: AtomicBool,
    stop: &'a Stop,
}

/// A part of a file, or all of a small one.
struct Part<'f, 'a> {
    file: &'f ReadFile<'a>,
    start: u64,
    length: u64,
}

/// What a part adds to the digest of its file.
enum Value {
    /// It is the whole file.
    Digest([u8; 32]),
    /// The file has others.
    Part(u128),
}

/// The digest of each file.
///
/// # Errors
/// For a file that cannot be read, or that is or gets into another state, and for those that are not read when the work is stopped.
pub fn of_files<'a>(
    files: &'a [SeenFile<'a>],
    along: &'a dyn ReadAlong,
    stop: &'a Stop,
) -> Vec<io::Result<[u8; 32]>> {
    let read_file = |seen: &'a SeenFile<'a>| ReadFile {
        seen,
        opened: Mutex::default(),
        left: AtomicU64::new(SeenFile::part_count(seen)),
        along: if seen.is_settled { along } else { &Alone },
        reads_along: OnceLock::new(),
        is_short: AtomicBool::new(false),
        stop,
    };
    let read_files: Vec<ReadFile<'_>> = files.iter().map(read_file).collect();
    let parts: Vec<Part<'_, '_>> = read_files
        .iter()
        .flat_map(|file| {
            let (size, parts) = (file.seen.state.size(), file.seen.part_count());
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
    let of_file = |file: &ReadFile<'_>| {
        let count = file.seen.part_count() as usize;
        let values: Vec<io::Result<Value>> = values.by_ref().take(count).collect();
        let values: io::Result<Vec<Value>> = values.into_iter().collect();
        let digest = digest_of(values?);
        let is_short = file.is_short.load(Ordering::Relaxed);
        if let (Some(Some(reads_along)), false) = (file.reads_along.get(), is_short) {
            reads_along.end(&digest);
        }
        Ok(digest)
    };
    read_files.iter().map(of_file).collect()
}

/// The digest of a regular file that has this content and says its true size, of up to [`MAX_SIZE`].
pub fn of_content(content: &[u8]) -> [u8; 32] {
    match content.len() as u64 {
        0..=PART => Sha256::new()
            .chain_update(OF_CONTENT)
            .chain_update(content)
            .finalize()
            .into(),
        _ => {
            let parts = content.chunks(PART as usize);
            digest_of(parts.map(|part| Value::Part(xxh3_128(part))))
        }
    }
}

impl SeenFile<'_> {
    /// How many parts the file has. No driver has a larger file than [`MAX_SIZE`]; one that only says so is read as one.
    fn part_count(&self) -> u64 {
        match self.state.size() {
            size if size > MAX_SIZE => 1,
            size => size.div_ceil(PART).max(1),
        }
    }
}

impl ReadFile<'_> {
    fn open(&self) -> io::Result<Arc<File>> {
        let file = self.opened()?;
        // Without a lock, since something is read: of two who open it at once, one has looked in vain.
        if self.reads_along.get().is_none() {
            let _ = self.reads_along.set(self.along.begin(&file));
        }
        Ok(file)
    }

    fn opened(&self) -> io::Result<Arc<File>> {
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

impl Part<'_, '_> {
    fn value(&self) -> io::Result<Value> {
        let opened = self.file.stop.check().and_then(|()| self.file.open());
        let value = opened.and_then(|file| self.value_in(&file));
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
            false => Value::Part(self.part(file)?),
        };
        check()?;
        Ok(value)
    }

    /// To the end of the file, wherever that is: some systems say that files which they make when they are read have no bytes, or 4096.
    fn whole(&self, file: &File) -> io::Result<[u8; 32]> {
        let mut hash = Sha256::new();
        hash.update(OF_CONTENT);
        let mut length = 0;
        self.read(file, None, |bytes| {
            hash.update(bytes);
            length += bytes.len() as u64;
        })?;
        let is_short = length < self.length;
        self.file.is_short.fetch_or(is_short, Ordering::Relaxed);
        Ok(hash.finalize().into())
    }

    /// The value of one of several parts.
    ///
    /// # Errors
    /// Also if the file has fewer bytes than its state says.
    fn part(&self, file: &File) -> io::Result<u128> {
        let mut hash = Xxh3::new();
        let end = self.start + self.length;
        self.read(file, Some(end), |bytes| hash.update(bytes))?;
        Ok(hash.digest128())
    }

    /// Calls the function with all bytes up to this place, or to the end of the file.
    fn read(&self, file: &File, end: Option<u64>, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let along = self.file.reads_along.get().and_then(Option::as_deref);
        let mut buffer = vec![0; OVERLAP + BUFFER];
        let mut at = self.start;
        // How many bytes of the buffer lie before the new ones.
        let mut known = match along {
            Some(_) => (OVERLAP as u64).min(at) as usize,
            None => 0,
        };
        file.read_exact_at(&mut buffer[..known], at - known as u64)?;
        while end.is_none_or(|end| at < end) {
            self.file.stop.check()?;
            let most = end.map_or(BUFFER as u64, |end| (end - at).min(BUFFER as u64));
            let room = &mut buffer[known..][..most as usize];
            let length = match file.read_at(room, at) {
                Ok(0) if end.is_none() => break,
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            each(&room[..length]);
            if let Some(along) = along {
                let filled = known + length;
                along.read(&buffer[..filled], known, at - known as u64);
                known = OVERLAP.min(filled);
                buffer.copy_within(filled - known..filled, 0);
            }
            at += length as u64;
        }
        Ok(())
    }
}

/// The digest of a file from the values of its parts.
fn digest_of(values: impl IntoIterator<Item = Value>) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(OF_PARTS);
    for value in values {
        match value {
            Value::Digest(digest) => return digest,
            Value::Part(value) => hash.update(value.to_le_bytes()),
        }
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &Path) -> SeenFile<'_> {
        SeenFile {
            path,
            state: FileFingerprint::at(path).expect("a file"),
            is_settled: true,
        }
    }

    #[test]
    fn the_digest_of_a_file_is_that_of_its_content() {
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
        for (length, digest) in lengths
            .iter()
            .zip(of_files(&files, &Alone, &Stop::default()))
        {
            let expected = of_content(&content[..*length]);
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
        let digests = of_files(&files, &Alone, &Stop::default());
        assert!(digests[0].is_err() && digests[2].is_err());
        let expected = of_content(&vec![0; 2 * PART as usize]);
        assert_eq!(digests[1].as_ref().expect("read"), &expected);
    }

    #[test]
    fn work_that_is_stopped_has_no_digests() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let paths = [1, 3 * PART].map(|length| {
            let path = directory.path().join(length.to_string());
            std::fs::write(&path, vec![1; length as usize]).expect("written");
            path
        });
        let files = paths.each_ref().map(|path| seen(path));
        let stop = Stop::within(std::time::Duration::from_secs(60));
        assert!(of_files(&files, &Alone, &stop).iter().all(Result::is_ok));
        stop.set();
        assert!(of_files(&files, &Alone, &stop).iter().all(Result::is_err));
    }

    #[test]
    fn each_byte_and_the_length_change_the_digest() {
        let part = PART as usize;
        let zeros = vec![0; 2 * part + 1];
        let mut digests = vec![of_content(&zeros)];
        for length in [0, 1, part - 1, part, part + 1, 2 * part] {
            digests.push(of_content(&zeros[..length]));
        }
        for index in [0, 7, part - 1, part, 2 * part] {
            let mut changed = zeros.clone();
            changed[index] = 1;
            digests.push(of_content(&changed));
        }
        // Parts that have changed places.
        for halves in [[1, 2], [2, 1]] {
            digests.push(of_content(&halves.map(|byte| vec![byte; part]).concat()));
        }
        // A file that is like what is digested of the parts of another.
        let values = zeros.chunks(part).map(|part| xxh3_128(part).to_le_bytes());
        let values = values.collect::<Vec<_>>().concat();
        digests.extend([
            of_content(&values),
            of_content(&[OF_PARTS, &values].concat()),
        ]);
        let different: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(different.len(), digests.len());
    }

    /// Keeps what it reads along, of files that are not empty.
    #[derive(Default)]
    struct Keeper {
        pieces: Mutex<Vec<(u64, Vec<u8>)>>,
        digests: Mutex<Vec<[u8; 32]>>,
    }

    impl ReadAlong for Keeper {
        fn begin<'a>(&'a self, file: &Arc<File>) -> Option<Box<dyn ReadFileAlong + 'a>> {
            let length = file.metadata().expect("a file").len();
            (length > 0).then(|| Box::new(self) as Box<dyn ReadFileAlong>)
        }
    }

    impl ReadFileAlong for &Keeper {
        fn read(&self, bytes: &[u8], new: usize, place: u64) {
            assert_eq!(new, OVERLAP.min(place as usize + new));
            let new_place = place + new as u64;
            let mut pieces = self.pieces.lock();
            pieces.push((new_place, bytes[new..].to_vec()));
            pieces.push((place, bytes[..new].to_vec()));
        }

        fn end(&self, digest: &[u8; 32]) {
            self.digests.lock().push(*digest);
        }
    }

    #[test]
    fn who_reads_along_gets_all_bytes_once_with_those_before_and_the_digest() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        let part = PART as usize;
        for length in [0, 1, BUFFER, BUFFER + 7, part, part + 1, 20 * part + 5] {
            let content: Vec<u8> = (0..length as u32)
                .map(|at| (at.wrapping_mul(at) >> 5) as u8)
                .collect();
            std::fs::write(&path, &content).expect("written");
            let keeper = Keeper::default();
            let digests = of_files(&[seen(&path)], &keeper, &Stop::default());
            let digest = of_content(&content);
            assert!(matches!(&digests[..], [Ok(found)] if *found == digest));
            let (pieces, digests) = (keeper.pieces.lock(), keeper.digests.lock());
            assert_eq!(*digests, [digest].repeat((length > 0).into()), "{length}");
            let mut bytes = 0;
            for (index, (place, piece)) in pieces.iter().enumerate() {
                let place = *place as usize;
                assert!(content[place..].starts_with(piece), "{length} {place}");
                bytes += if index % 2 == 0 { piece.len() } else { 0 };
            }
            assert_eq!(bytes, length);
        }
    }

    #[test]
    fn who_reads_along_gets_no_digest_of_a_file_that_has_changed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 2 * PART as usize]).expect("written");
        let files = [seen(&path)];
        File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| io::Write::write_all(&mut file, b"more"))
            .expect("written");
        let keeper = Keeper::default();
        assert!(of_files(&files, &keeper, &Stop::default())[0].is_err());
        assert!(keeper.digests.lock().is_empty());
    }

    #[test]
    fn who_reads_along_gets_no_digest_of_a_file_that_is_shorter_than_it_says_or_may_change_unseen()
    {
        let path = Path::new("/sys/devices/system/cpu/online");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fresh = directory.path().join("file");
        std::fs::write(&fresh, "content").expect("written");
        let mut files = [seen(path), seen(&fresh)];
        files[1].is_settled = false;
        assert!(std::fs::read(path).expect("read").len() < files[0].state.size() as usize);
        let keeper = Keeper::default();
        let digests = of_files(&files, &keeper, &Stop::default());
        assert!(digests.iter().all(Result::is_ok));
        assert_eq!(keeper.pieces.lock().len(), 2);
        assert!(keeper.digests.lock().is_empty());
    }

    #[test]
    fn a_file_that_says_that_it_is_empty_is_read() {
        let path = Path::new("/proc/self/cmdline");
        let content = std::fs::read(path).expect("read");
        let digest = of_files(&[seen(path)], &Alone, &Stop::default())
            .pop()
            .expect("one");
        assert!(!content.is_empty());
        assert_eq!(digest.expect("read"), of_content(&content));
    }

    /// As on file systems that say another size than they have, or have nothing to read where a server is gone. Of a small file what there
    /// is counts.
    #[test]
    fn a_part_that_has_fewer_bytes_than_the_file_says_is_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; PART as usize + 5]).expect("written");
        let seen = seen(&path);
        let file = ReadFile {
            seen: &seen,
            opened: Mutex::default(),
            left: AtomicU64::new(1),
            along: &Alone,
            reads_along: OnceLock::new(),
            is_short: AtomicBool::new(false),
            stop: &Stop::default(),
        };
        let part = |start, length| {
            let file = &file;
            let part = Part {
                file,
                start,
                length,
            };
            part.part(&File::open(&path).expect("opened"))
        };
        assert!(part(PART, 5).is_ok() && part(0, PART).is_ok());
        for (start, length) in [(PART, 6), (1, PART + 5), (2 * PART, PART)] {
            let error = part(start, length).expect_err("too short");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
