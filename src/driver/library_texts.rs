//! What is looked for in a driver's libraries when they are read for the first time: names of variables, and of libraries to be opened.
//!
//! The first process of an empty cache directory needs these, and the digests of libraries without a build-id, and most of a file's
//! reading is copying it from the system's memory. Intel's CPU runtime, whose libraries have no build-ids, is identified in 160 ms of
//! processor time. It took 230 ms, of which 139 were copying, while they were read for each of the three.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::asked_names;
use super::elf::{Chunk, Elf};
use super::file_memory::FileMemory;
use super::identity::content_value;
use super::name_search::{FoundTraces, WantedNames, search};
use super::name_traces::{self, OfRust, Trace, each_in_code, each_in_data};
use super::opened_by_name::{self, FileNames, add_names};
use super::scanned_library::{ScannedLibrary, read_parts};
use crate::content_digest::{OVERLAP, ReadAlong, ReadFileAlong};
use crate::fork_safety::Mutex;

const _: () = assert!(OVERLAP >= name_traces::OVERLAP && OVERLAP >= opened_by_name::OVERLAP);

/// Libraries with more are read by themselves: each chunk is compared with each section.
const MAX_SECTIONS: usize = 1 << 10;

/// What was found in libraries that were read. By default nothing is looked for.
#[derive(Default)]
pub(super) struct LibraryTexts {
    wanted: Option<Wanted>,
    /// By the identity of the library.
    found: Mutex<HashMap<Vec<u8>, Found>>,
}

/// What is looked for.
struct Wanted {
    names: WantedNames,
    of_rust: OfRust,
}

/// What was found in a library, or a part of it.
#[derive(Clone, PartialEq, Eq)]
struct Found {
    files: FileNames,
    names: FoundTraces,
    /// In a library with Rust code, names are not only where they were looked for.
    is_of_rust: bool,
}

impl Wanted {
    fn nothing_found(&self, is_of_rust: bool) -> Found {
        Found {
            files: FileNames::new(),
            names: self.names.none_found(),
            is_of_rust,
        }
    }

    fn look_in_data(&self, chunk: &Chunk<'_>, found: &mut Found) -> io::Result<()> {
        add_names(chunk, &mut found.files);
        found.is_of_rust = found.is_of_rust || self.of_rust.is_in(chunk.bytes);
        match found.is_of_rust {
            true => Ok(()),
            false => each_in_data(chunk, |trace| self.note(&trace, found)),
        }
    }

    fn look_in_code(&self, chunk: &Chunk<'_>, found: &mut Found) -> io::Result<()> {
        match found.is_of_rust {
            true => Ok(()),
            false => each_in_code(chunk, |trace| self.note(&trace, found)),
        }
    }

    #[inline]
    fn note(&self, trace: &Trace<'_>, found: &mut Found) -> io::Result<()> {
        self.names.note(trace, &mut found.names);
        Ok(())
    }
}

impl Found {
    fn add(&mut self, other: Found) {
        self.files.extend(other.files);
        self.names.add(&other.names);
        self.is_of_rust |= other.is_of_rust;
    }
}

impl LibraryTexts {
    /// Looks for these names of variables, unless there are so many that all are gathered.
    pub fn looking_for(mut names: Vec<Vec<u8>>) -> LibraryTexts {
        if names.len() > asked_names::MAX_NAMES {
            names.clear();
        }
        LibraryTexts {
            wanted: Some(Wanted {
                names: WantedNames::of(&names),
                of_rust: OfRust::new(),
            }),
            found: Mutex::default(),
        }
    }

    /// Reads those of these libraries that were not read along, if anything is looked for.
    ///
    /// # Errors
    /// One cannot be read, is no ELF file or was replaced.
    pub fn read(&self, libraries: &[ScannedLibrary], memory: &dyn FileMemory) -> io::Result<()> {
        let Some(wanted) = &self.wanted else {
            return Ok(());
        };
        let mut unread = libraries.to_vec();
        let known = self.found.lock();
        unread.retain(|library| !known.contains_key(&library.identity));
        drop(known);
        let of_parts = read_parts(&unread, memory, |part| {
            let is_of_rust = OfRust::is_said_by(&part.elf, &part.elf.sections()?);
            let mut found = wanted.nothing_found(is_of_rust);
            part.each_chunk_of_data(OVERLAP, |chunk| wanted.look_in_data(&chunk, &mut found))?;
            part.each_chunk_of_code(OVERLAP, |chunk| wanted.look_in_code(&chunk, &mut found))?;
            Ok(found)
        })?;
        let mut known = self.found.lock();
        for (library, found) in of_parts {
            match known.get_mut(&library.identity) {
                Some(other) => other.add(found),
                None => drop(known.insert(library.identity.clone(), found)),
            }
        }
        Ok(())
    }

    /// The names of libraries that occur in this one; None: it was not read.
    pub fn files_in(&self, library: &ScannedLibrary) -> Option<FileNames> {
        let found = self.found.lock();
        Some(found.get(&library.identity)?.files.clone())
    }

    /// Whether each of these names may be asked for by one of the libraries. Those that were not read are read now.
    ///
    /// # Errors
    /// One cannot be read, is no ELF file or was replaced.
    pub fn search(
        &self,
        libraries: &[ScannedLibrary],
        names: &[Vec<u8>],
        memory: &dyn FileMemory,
    ) -> io::Result<Vec<bool>> {
        let mut occur = vec![false; names.len()];
        let mut add = |found: &[bool]| {
            for (one, found) in occur.iter_mut().zip(found) {
                *one |= found;
            }
        };
        let mut unread = Vec::new();
        for library in libraries {
            match self.names_in(library, names) {
                Some(found) => add(&found),
                None => unread.push(library.clone()),
            }
        }
        add(&search(&unread, names, memory)?);
        Ok(occur)
    }

    /// Which of these names occur in a library; None: not all of them were looked for in it.
    fn names_in(&self, library: &ScannedLibrary, names: &[Vec<u8>]) -> Option<Vec<bool>> {
        let wanted = &self.wanted.as_ref()?.names;
        let found = self.found.lock();
        let found = found.get(&library.identity)?;
        let occurs = |name: &Vec<u8>| wanted.occurs(name, &found.names);
        let names = names.iter().map(occurs);
        (!found.is_of_rust).then(|| names.collect()).flatten()
    }
}

impl ReadAlong for LibraryTexts {
    fn begin<'a>(&'a self, file: &Arc<File>) -> Option<Box<dyn ReadFileAlong + 'a>> {
        let wanted = self.wanted.as_ref()?;
        let size = file.metadata().ok()?.len();
        // What cannot be read by itself either is noticed when that is tried.
        let elf = Elf::of(file.clone()).ok()??;
        let sections = elf.sections().ok()?;
        let (data, code) = (elf.data(&sections), elf.code(&sections));
        let is_complete = data.iter().chain(&code).all(|section| section.end <= size);
        (is_complete && data.len() + code.len() <= MAX_SECTIONS).then(|| {
            Box::new(Library {
                texts: self,
                wanted,
                data,
                code,
                found: Mutex::new(wanted.nothing_found(OfRust::is_said_by(&elf, &sections))),
            }) as Box<dyn ReadFileAlong>
        })
    }
}

/// A library that is read along.
struct Library<'a> {
    texts: &'a LibraryTexts,
    wanted: &'a Wanted,
    /// Where its data and its code are in the file.
    data: Vec<Range<u64>>,
    code: Vec<Range<u64>>,
    found: Mutex<Found>,
}

impl ReadFileAlong for Library<'_> {
    fn read(&self, bytes: &[u8], new: usize, place: u64) {
        let part_of = |section: &Range<u64>| part_of(section, bytes, new, place);
        let is_of_rust = self.found.lock().is_of_rust;
        let mut found = self.wanted.nothing_found(is_of_rust);
        // No error is possible: nothing is read here.
        for data in self.data.iter().filter_map(part_of) {
            let _ = self.wanted.look_in_data(&data, &mut found);
        }
        for code in self.code.iter().filter_map(part_of) {
            let _ = self.wanted.look_in_code(&code, &mut found);
        }
        self.found.lock().add(found);
    }

    fn end(&self, digest: &[u8; 32]) {
        let found = self.found.lock().clone();
        let mut all = self.texts.found.lock();
        all.insert(content_value(digest), found);
    }
}

/// The part of these bytes that belongs to a section, if there are new ones.
fn part_of<'b>(section: &Range<u64>, bytes: &'b [u8], new: usize, place: u64) -> Option<Chunk<'b>> {
    let (first_new, end) = (place + new as u64, place + bytes.len() as u64);
    let part = section.start.max(place)..section.end.min(end);
    (part.end > first_new && part.start < part.end).then(|| Chunk {
        bytes: &bytes[(part.start - place) as usize..(part.end - place) as usize],
        new: first_new.saturating_sub(part.start) as usize,
        place: part.start,
        is_last: part.end == section.end,
    })
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::content_digest::{self, Alone, SeenFile};
    use crate::driver::elf::tests::library_of;
    use crate::driver::file_recorder::FileRecorder;
    use crate::driver::loaded_paths;
    use crate::driver::name_ends::tests::data_of;
    use crate::driver::names::tests::TestMemory;
    use crate::driver::opened_by_name::names;
    use crate::driver::real_paths::RealPaths;
    use crate::file_fingerprint::FileFingerprint;
    use crate::stop::Stop;

    /// Computes digests as the cache does.
    struct Reading(TestMemory);

    impl Reading {
        fn new() -> Reading {
            Reading(TestMemory::new())
        }
    }

    impl FileMemory for Reading {
        fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
            let state = FileFingerprint::at(path).ok_or(io::ErrorKind::NotFound)?;
            let seen = SeenFile {
                path,
                state,
                is_settled: true,
            };
            content_digest::of_files(&[seen], &Alone, &Stop::default()).remove(0)
        }

        fn identities(&self, paths: &[&Path], along: &dyn ReadAlong) -> Vec<io::Result<Vec<u8>>> {
            let seen: Vec<_> = paths
                .iter()
                .map(|path| SeenFile {
                    path,
                    state: FileFingerprint::at(path).expect("a file"),
                    is_settled: true,
                })
                .collect();
            let digests = content_digest::of_files(&seen, along, &Stop::default());
            let identity = |digest: io::Result<_>| Ok(content_value(&digest?));
            digests.into_iter().map(identity).collect()
        }

        fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>> {
            self.0.facts(identity)
        }

        fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
            self.0.remember_facts(identity, facts);
        }
    }

    /// Reads these files along, and returns them as libraries with what was found.
    fn read_along(
        paths: &[PathBuf],
        wanted: &[Vec<u8>],
        memory: &dyn FileMemory,
    ) -> (Vec<ScannedLibrary>, LibraryTexts) {
        let real = RealPaths::default();
        let texts = LibraryTexts::looking_for(wanted.to_vec());
        let recorder = FileRecorder::new(memory, &real, texts);
        recorder.read_ahead(&paths.iter().map(PathBuf::as_path).collect::<Vec<_>>());
        let library = |path: &PathBuf| {
            let identity = |path: &Path| recorder.identity(path);
            ScannedLibrary::of_file(path, identity).expect("read")
        };
        let libraries = paths.iter().map(library).collect();
        (libraries, recorder.end().1)
    }

    fn wanted() -> Vec<Vec<u8>> {
        let names = [
            "TMPDIR",
            "LANG",
            "environ",
            "NO_SUCH_NAME_1",
            "XY",
            "Q9_PLACED_IN_CODE",
        ];
        let names = names.map(|name| name.as_bytes().to_vec()).into_iter();
        let others = (0..200u32).map(|number| format!("N{}", number * number).into_bytes());
        names.chain(others).collect()
    }

    #[test]
    fn a_driver_that_names_too_many_libraries_is_known_to_nobody() {
        let memory = Reading::new();
        for (count, are_too_many) in [(4096, false), (4097, true)] {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let text: String = (0..count)
                .map(|number| format!("\\0lib{number}.so"))
                .collect();
            let source = format!("const char names[] = \"{text}\";\n");
            let path = library_of(directory.path(), &source, &["-nostdlib"]);
            let moved = directory.path().join("moved");
            let (libraries, texts) = read_along(std::slice::from_ref(&path), &wanted(), &memory);
            for texts in [texts, LibraryTexts::default()] {
                // What is remembered would answer for the second.
                let memory = Reading::new();
                let names_too_many = |texts| {
                    let real = RealPaths::default();
                    let recorder = FileRecorder::new(&memory, &real, texts);
                    opened_by_name::all(&libraries, &[], &[], Vec::new(), |_| false, &recorder);
                    real.is_incomplete_for_good()
                };
                assert_eq!(names_too_many(texts), are_too_many, "{count}");
                // Later processes read no file for that.
                std::fs::rename(&path, &moved).expect("moved");
                let of_memory = names_too_many(LibraryTexts::default());
                assert_eq!(of_memory, are_too_many, "{count}");
                std::fs::rename(&moved, &path).expect("moved back");
            }
        }
    }

    #[test]
    fn what_is_found_along_is_what_a_search_finds() {
        let memory = Reading::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let source = "char *getenv(const char *);\nconst char *other = \"libother.so.2\";\n\
            const char *ask(void) { char name[18]; __builtin_memcpy(name, \"Q9_PLACED_IN_CODE\", 17); name[17] = 0; \
            return getenv(name); }\n";
        let own = std::env::current_exe().expect("a path");
        let of_c = library_of(directory.path(), source, &["-O3"]);
        let loaded = loaded_paths().into_iter().filter(|path| path.is_file());
        let paths: Vec<PathBuf> = loaded.chain([own.clone(), of_c]).collect();
        let wanted = wanted();
        let (libraries, texts) = read_along(&paths, &wanted, &memory);
        assert!(libraries.len() > 3);
        let by_themselves = LibraryTexts::looking_for(wanted.clone());
        by_themselves.read(&libraries, &memory).expect("read");
        let real = RealPaths::default();
        let alone = FileRecorder::new(&memory, &real, LibraryTexts::default());
        for library in &libraries {
            let one = std::slice::from_ref(library);
            let path = library.path.display();
            let files = names(one, &alone).expect("read").expect("few names");
            let found = texts.names_in(library, &wanted);
            assert_eq!(by_themselves.names_in(library, &wanted), found, "{path}");
            for texts in [&texts, &by_themselves] {
                assert_eq!(texts.files_in(library).as_ref(), Some(&files), "{path}");
            }
            match library.path == own {
                // This test is of Rust.
                true => assert_eq!(found, None),
                false => {
                    let expected = search(one, &wanted, &memory).expect("read");
                    assert_eq!(found, Some(expected), "{path}");
                }
            }
        }
        let [.., of_c] = &libraries[..] else {
            unreachable!();
        };
        let of_c = texts.names_in(of_c, &wanted).expect("found");
        assert!(of_c[5] && !of_c[3]);
        let expected = search(&libraries, &wanted, &memory).expect("read");
        assert_eq!(
            texts.search(&libraries, &wanted, &memory).expect("read"),
            expected
        );
    }

    #[test]
    fn a_library_that_was_read_along_is_not_read_again() {
        let memory = Reading::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = library_of(directory.path(), "const char table[] = \"A_NAME\";", &[]);
        let wanted = ["A_NAME", "ANOTHER_NAME"].map(|name| name.as_bytes().to_vec());
        let (libraries, texts) = read_along(std::slice::from_ref(&path), &wanted, &memory);
        std::fs::remove_file(&path).expect("removed");
        let found = texts.search(&libraries, &wanted, &memory).expect("known");
        assert_eq!(found, [true, false]);
        // But for what nobody has looked for in it.
        let others = [b"A_THIRD_NAME".to_vec()];
        assert!(texts.search(&libraries, &others, &memory).is_err());
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn what_is_no_whole_library_is_not_read_along() {
        let memory = Reading::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let library = library_of(directory.path(), "const char table[] = \"A_NAME\";", &[]);
        let mut content = std::fs::read(&library).expect("read");
        let write = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).expect("written");
            path
        };
        let whole = write("whole", &content);
        let text = write("text", b"A_NAME");
        let half = write("half", &content[..content.len() / 2]);
        // Each section of data is said to end behind the file.
        let start = u64::from_le_bytes(content[40..48].try_into().expect("a header")) as usize;
        for section in content[start..].chunks_exact_mut(64) {
            if section[4] == 1 {
                section[32..40].copy_from_slice(&(1u64 << 20).to_le_bytes());
            }
        }
        let longer = write("longer", &content);
        let wanted = [b"A_NAME".to_vec()];
        let (libraries, texts) = read_along(&[whole, text, half, longer], &wanted, &memory);
        let found = libraries
            .iter()
            .map(|library| texts.names_in(library, &wanted));
        let found: Vec<_> = found.collect();
        assert_eq!(found, [Some(vec![true]), None, None, None]);
        assert!(texts.search(&libraries[3..], &wanted, &memory).is_err());
    }

    /// Sections that begin and end at any place, one after another, behind gaps, and over each other.
    #[test]
    fn what_is_found_is_the_same_in_whatever_pieces_a_file_comes() {
        const LETTERS: &[u8] = b"\0\0\0AB=/.so.1libso";
        let names: Vec<Vec<u8>> = (0..256_u32)
            .map(|number| {
                (0..4)
                    .map(|at| b"ABls"[(number >> (2 * at)) as usize % 4])
                    .collect()
            })
            .collect();
        let texts = LibraryTexts::looking_for(names.clone());
        let wanted = texts.wanted.as_ref().expect("looking");
        let file = data_of(LETTERS, 7, 3000);
        for seed in 0..20 {
            let borders = data_of(&(0..=255).collect::<Vec<u8>>(), seed, 16);
            let borders = borders.iter().map(|byte| u64::from(*byte) * 11);
            let borders: Vec<u64> = borders.collect();
            let (data, code) = borders.split_at(10);
            let sections = |borders: &[u64]| -> Vec<Range<u64>> {
                let pairs = borders.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
                let pairs = pairs.chain([[borders[0], 1500], [1500, 1600], [1600, 3000]]);
                pairs.map(|[one, two]| one.min(two)..one.max(two)).collect()
            };
            let (data, code) = (sections(data), sections(code));
            let found = |size: usize| {
                let library = Library {
                    texts: &texts,
                    wanted,
                    data: data.clone(),
                    code: code.clone(),
                    found: Mutex::new(wanted.nothing_found(false)),
                };
                for new in (0..file.len()).step_by(size) {
                    let first = new.saturating_sub(OVERLAP);
                    let bytes = &file[first..file.len().min(new + size)];
                    library.read(bytes, new - first, first as u64);
                }
                library.found.lock().clone()
            };
            let whole = found(file.len());
            let mut expected = FileNames::new();
            for section in &data {
                let chunk = Chunk {
                    bytes: &file[section.start as usize..section.end as usize],
                    new: 0,
                    place: section.start,
                    is_last: true,
                };
                add_names(&chunk, &mut expected);
            }
            assert!(!expected.is_empty() && whole.files == expected, "{seed}");
            let occurs = |name: &&Vec<u8>| wanted.names.occurs(name, &whole.names) == Some(true);
            let occurring = names.iter().filter(occurs).count();
            assert!((1..names.len()).contains(&occurring), "{seed}: {occurring}");
            for size in [1, 2, 63, 64, 100, 255, 257, 1499, 1500] {
                let found = found(size);
                assert!(found == whole, "{seed} {size}");
            }
        }
    }
}
