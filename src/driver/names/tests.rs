//! What is a name and what is not, and that a damaged file never hides one.

use std::path::{Path, PathBuf};

use super::*;
use crate::driver::content_value;
use crate::key::ingredients::sha256;

/// Remembers in a directory.
pub struct TestMemory(tempfile::TempDir);

impl FileMemory for TestMemory {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        Ok(sha256(&std::fs::read(path)?))
    }

    fn facts(&self, libraries: &[u8; 32]) -> io::Result<Option<File>> {
        Ok(File::open(self.file(libraries)).ok())
    }

    fn remember_facts(&self, libraries: &[u8; 32], names: &[u8]) {
        std::fs::write(self.file(libraries), names).expect("written");
    }
}

impl TestMemory {
    pub fn new() -> TestMemory {
        TestMemory(tempfile::tempdir().expect("a temporary directory"))
    }

    /// All that is remembered.
    pub fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.0.path()).expect("listed");
        files.map(|file| file.expect("a file").path()).collect()
    }

    fn file(&self, libraries: &[u8; 32]) -> PathBuf {
        self.0.path().join(crate::key::ingredients::hex(libraries))
    }
}

fn of_texts(texts: &[&str]) -> Names {
    let mut gathered = Gathered::default();
    for text in texts {
        gathered.add_end(text.as_bytes()).expect("added");
    }
    let bytes = gathered.finish(&[7; 32]).expect("finished");
    Names::fresh(bytes, &[7; 32]).expect("a file")
}

#[test]
fn a_name_occurs_if_a_text_ends_in_it() {
    let mut names = of_texts(&[
        "xCPATH",
        "a b=%s LIBRARY_PATH",
        "Short",
        "_AN_EXTREMELY_LONG_NAME_OF_A_VARIABLE",
    ]);
    for name in ["CPATH", "PATH", "xCPATH", "LIBRARY_PATH", "Short", "hort"] {
        assert!(names.has(name.as_bytes()), "{name}");
    }
    for name in ["ACPATH", "CPAT", "LIBRARY_PATH_", "LIBRARY_PATHS", "short"] {
        assert!(!names.has(name.as_bytes()), "{name}");
    }
    // Known by its end only.
    assert!(names.has(b"ANOTHER_LONG_NAME_OF_A_VARIABLE"));
    assert!(!names.has(b"LONG_NAMES_OF_A_VARIABLE"));
    // Any data may hold a short one, and no driver's own has other bytes.
    for name in ["XY", "XYZ", "b=%s LIBRARY_PATHS", "BASH_FUNC_x%%"] {
        assert!(names.has(name.as_bytes()), "{name}");
    }
}

#[test]
fn each_of_many_names_is_found_and_no_other() {
    let texts: Vec<String> = (0..20_000u32)
        .map(|number| format!("{:X}_{number}", number.wrapping_mul(2_654_435_761)))
        .collect();
    let mut names = of_texts(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    for text in &texts {
        assert!(names.has(text.as_bytes()), "{text}");
        assert!(!names.has(format!("0x{text}").as_bytes()), "{text}");
    }
}

#[test]
fn a_damaged_file_is_not_taken_and_a_damaged_block_has_every_name() {
    let texts: Vec<String> = (0..5000u32)
        .map(|number| format!("NAME_{number}"))
        .collect();
    let mut gathered = Gathered::default();
    for text in &texts {
        gathered.add_end(text.as_bytes()).expect("added");
    }
    let bytes = gathered.finish(&[7; 32]).expect("finished");
    assert!(
        Names::fresh(bytes.clone(), &[8; 32]).is_none(),
        "of other libraries"
    );
    for cut in [0, 10, HEADER, HEADER + 8] {
        assert!(
            Names::fresh(bytes[..cut].to_vec(), &[7; 32]).is_none(),
            "{cut}"
        );
    }
    let mut whole = Names::fresh(bytes.clone(), &[7; 32]).expect("a file");
    for at in (0..bytes.len()).step_by(307) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        let Some(mut names) = Names::fresh(damaged, &[7; 32]) else {
            continue;
        };
        for name in ["NAME_0", "NAME_17", "NAME_4999"] {
            assert!(names.has(name.as_bytes()), "{name} with byte {at} changed");
        }
    }
    assert!(!whole.has(b"NAME_5000"));
    let mut truncated = Names::fresh(bytes[..bytes.len() - 1].to_vec(), &[7; 32]).expect("a file");
    assert!(
        truncated.has(b"NAME_999"),
        "what cannot be read has every name"
    );
}

/// The C library reads these, and its symbols and code hold more.
#[test]
fn the_names_that_a_library_asks_for_are_found_and_remembered() {
    let path = crate::driver::loaded_paths()
        .into_iter()
        .find(|path| path.to_string_lossy().contains("libc.so"));
    let path = path.expect("the C library");
    let memory = TestMemory::new();
    let library = ScannedLibrary {
        identity: content_value(&memory.digest(&path).expect("read")),
        path,
    };
    let libraries = [library];
    for round in 0..2 {
        let mut names = Names::of(&libraries, &memory).expect("read");
        for name in ["LANG", "LC_ALL", "TMPDIR", "POSIXLY_CORRECT", "HOSTALIASES"] {
            assert!(names.has(name.as_bytes()), "{name} in round {round}");
        }
        for name in ["getenv", "SSH_CONNECTION", "POCL_DEVICES"] {
            assert!(!names.has(name.as_bytes()), "{name} in round {round}");
        }
        assert!(matches!(names, Names::Remembered(..)));
    }
    let other = [ScannedLibrary {
        identity: content_value(&[0; 32]),
        ..libraries[0].clone()
    }];
    let mut names = Names::of(&other, &memory).expect("read");
    assert!(matches!(names, Names::All), "it is another one by now");
    assert!(names.has(b"SSH_CONNECTION"));
}

/// In this test's own program names in Rust run into each other.
#[test]
fn names_in_rust_are_found_without_a_nul_behind_them() {
    let memory = TestMemory::new();
    let path = std::env::current_exe().expect("a path");
    let library = ScannedLibrary {
        identity: content_value(&memory.digest(&path).expect("read")),
        path,
    };
    let mut names = Names::of(&[library], &memory).expect("read");
    assert!(names.has(b"RUST_BACKTRACE"));
    assert!(names.has(std::hint::black_box(b"OCLCACHE_LOG")));
}
