//! Damaged entries: whatever stands in an entry's place, the program computes what it would without a cache, and the next run
//! is served again.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use xxhash_rust::xxh3::xxh3_128;

use crate::support::{Driver, Sandbox, Way, is_root, skipped};

/// The compiler's words about it are the log that is recorded.
const SOURCE: &str = "#ifdef SPEAK\n#warning a-word-of-the-log\n#endif\n\
    __kernel void f(__global uint *out) { out[get_global_id(0)] = N + 40; }\n";
const OPTIONS: &str = "-DN=2 -DSPEAK";

/// What stands where in an entry file, as the grammar in `store::entry` has it.
struct Layout {
    meta: Range<usize>,
    count: Range<usize>,
    lengths: Range<usize>,
    binary: Range<usize>,
    recipe_length: Range<usize>,
    recipe: Range<usize>,
    checksum: Range<usize>,
}

const MAGIC: Range<usize> = 0..8;
const VERSION: Range<usize> = 8..12;
const KEY: Range<usize> = 12..44;
const META_LENGTH: Range<usize> = 44..48;

impl Layout {
    fn of(entry: &[u8]) -> Layout {
        let number = |range: Range<usize>| {
            let mut bytes = [0; 8];
            bytes[..range.len()].copy_from_slice(&entry[range]);
            usize::try_from(u64::from_le_bytes(bytes)).expect("a length")
        };
        let meta = 48..48 + number(META_LENGTH);
        let count = meta.end..meta.end + 4;
        assert_eq!(number(count.clone()), 1, "one device");
        let lengths = count.end..count.end + 8;
        let binary = lengths.end..lengths.end + number(lengths.clone());
        let recipe_length = binary.end..binary.end + 4;
        let recipe = recipe_length.end..recipe_length.end + number(recipe_length.clone());
        let checksum = recipe.end..recipe.end + 16;
        assert_eq!(checksum.end, entry.len());
        Layout {
            meta,
            count,
            lengths,
            binary,
            recipe_length,
            recipe,
            checksum,
        }
    }

    /// A byte of each class, by name. The last byte of a number is the one that makes it large.
    fn positions(&self, entry: &[u8]) -> Vec<(&'static str, usize)> {
        vec![
            ("magic", MAGIC.start),
            ("version", VERSION.start),
            ("key", KEY.end - 1),
            ("metadata's length", META_LENGTH.start),
            ("metadata's length, large", META_LENGTH.end - 1),
            ("metadata, frame", self.meta.start),
            (
                "metadata, middle",
                self.meta.start + self.meta.len().div_ceil(2),
            ),
            ("recorded log", log_position(entry, &self.meta)),
            ("metadata, last", self.meta.end - 1),
            ("number of binaries", self.count.start),
            ("binary's length", self.lengths.start),
            ("binary's length, large", self.lengths.end - 1),
            ("binary, first", self.binary.start),
            (
                "binary, middle",
                self.binary.start + self.binary.len().div_ceil(2),
            ),
            ("binary, last", self.binary.end - 1),
            ("recipe's length", self.recipe_length.start),
            ("recipe's length, large", self.recipe_length.end - 1),
            ("recipe", self.recipe.start),
            ("checksum, first", self.checksum.start),
            ("checksum, last", self.checksum.end - 1),
        ]
    }

    /// Where each part begins.
    fn boundaries(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("magic", MAGIC.start),
            ("version", VERSION.start),
            ("key", KEY.start),
            ("metadata's length", META_LENGTH.start),
            ("metadata", self.meta.start),
            ("number of binaries", self.count.start),
            ("binary's length", self.lengths.start),
            ("binary", self.binary.start),
            ("recipe's length", self.recipe_length.start),
            ("recipe", self.recipe.start),
            ("checksum", self.checksum.start),
            ("last byte", self.checksum.end - 1),
        ]
    }
}

/// An entry with a right checksum and zeros within its binary.
pub fn with_garbage_for_the_driver(entry: &[u8]) -> Vec<u8> {
    let layout = Layout::of(entry);
    let binary = layout.binary.clone();
    let mut garbage = entry.to_vec();
    garbage[binary.start + binary.len() / 4..][..binary.len() / 40].fill(0);
    let checksum = xxh3_128(&garbage[..layout.checksum.start]).to_le_bytes();
    garbage[layout.checksum].copy_from_slice(&checksum);
    garbage
}

/// A byte of the compressed metadata that decompresses to a part of the recorded log: one whose change changes that first.
fn log_position(entry: &[u8], meta: &Range<usize>) -> usize {
    let decompress = |bytes: &[u8]| zstd::bulk::decompress(bytes, 1 << 20).ok();
    let text = decompress(&entry[meta.clone()]).expect("metadata");
    // Words that the source has not: those of PoCL's compiler and of the stub.
    let begins = ["warning: ", "stub: built"]
        .into_iter()
        .find_map(|words| {
            text.windows(words.len())
                .position(|w| w == words.as_bytes())
        })
        .expect("a recorded log");
    let changes_the_log = |index: &usize| {
        (0..8).any(|bit| {
            let mut changed = entry[meta.clone()].to_vec();
            changed[index - meta.start] ^= 1 << bit;
            let changed = decompress(&changed).filter(|changed| changed.len() == text.len());
            changed.is_some_and(|changed| {
                let first = (0..text.len()).find(|index| changed[*index] != text[*index]);
                first.is_some_and(|first| first >= begins)
            })
        })
    };
    meta.clone()
        .rev()
        .find(changes_the_log)
        .expect("a byte of the log")
}

/// One cache with one good entry, and what the program prints without a cache.
struct Patient {
    sandbox: Sandbox,
    bare: String,
    path: PathBuf,
    good: Vec<u8>,
    driver: Driver,
}

impl Patient {
    fn new(driver: Driver) -> Option<Patient> {
        let sandbox = Sandbox::new(driver)?;
        let bare = sandbox.kernel(Way::Bare, SOURCE, OPTIONS).ok().stdout;
        let cold = sandbox.kernel(Way::Cached, SOURCE, OPTIONS).ok();
        assert_eq!(cold.stdout, bare);
        let [path] = <[PathBuf; 1]>::try_from(sandbox.entries()).expect("one entry");
        let good = fs::read(&path).expect("read");
        Some(Patient {
            sandbox,
            bare,
            path,
            good,
            driver,
        })
    }

    /// Puts something in the entry's place: one build by the driver and the right result, then a hit.
    #[track_caller]
    fn is_healed_after(&self, what: &str, damage: impl FnOnce(&Path)) {
        self.is_healed(what, damage, 1);
    }

    /// The same, with so many entries set aside.
    #[track_caller]
    fn is_healed(&self, what: &str, damage: impl FnOnce(&Path), set_aside: u64) {
        let what = format!("{:?}: {what}", self.driver);
        let before = self.sandbox.stat("set_aside");
        fs::remove_file(&self.path).unwrap_or_else(|error| panic!("before {what}: {error}"));
        damage(&self.path);
        let ran = self.sandbox.kernel(Way::Cached, SOURCE, OPTIONS).ok();
        let log = &ran.stderr;
        assert_eq!(ran.stdout, self.bare, "{what}, log:\n{log}");
        assert_eq!(ran.source_builds(), 1, "{what}, log:\n{log}");
        assert!(
            !ran.spied.iter().any(|line| line == "create-binary"),
            "{what}: the driver saw it"
        );
        let counted = self.sandbox.stat("set_aside") - before;
        assert_eq!(counted, set_aside, "set aside after {what}, log:\n{log}");
        let healed = self.sandbox.kernel(Way::Cached, SOURCE, OPTIONS).ok();
        let log = &healed.stderr;
        assert_eq!(healed.stdout, self.bare, "healed after {what}, log:\n{log}");
        assert_eq!(
            healed.source_builds(),
            0,
            "healed after {what}, log:\n{log}"
        );
    }

    /// All of them on the stub. On a real driver each takes seconds, so every fifth: the store refuses damage before a driver sees it.
    fn sample<T>(&self, all: Vec<T>) -> impl Iterator<Item = T> {
        let step = match self.driver {
            Driver::Stub => 1,
            _ => 5,
        };
        all.into_iter().rev().step_by(step)
    }

    fn is_healed_after_content(&self, what: &str, content: &[u8]) {
        self.is_healed_after(what, |path| fs::write(path, content).expect("written"));
    }
}

fn patients() -> impl Iterator<Item = Patient> {
    [Driver::Stub, Driver::Pocl]
        .into_iter()
        .filter_map(Patient::new)
}

fn stub() -> Patient {
    Patient::new(Driver::Stub).expect("the stub is built with the tests")
}

#[test]
fn a_flipped_byte_of_any_part_is_a_miss_and_is_healed() {
    for patient in patients() {
        let positions = Layout::of(&patient.good).positions(&patient.good);
        for (part, position) in patient.sample(positions) {
            let mut flipped = patient.good.clone();
            flipped[position] ^= 0x10;
            patient.is_healed_after_content(&format!("flipped in {part}"), &flipped);
        }
    }
}

#[test]
fn a_file_cut_before_any_part_is_a_miss_and_is_healed() {
    for patient in patients() {
        let boundaries = Layout::of(&patient.good).boundaries();
        for (part, position) in patient.sample(boundaries) {
            let cut = &patient.good[..position];
            patient.is_healed_after_content(&format!("cut before {part}"), cut);
        }
    }
}

#[test]
fn a_file_of_something_else_is_a_miss_and_is_healed() {
    for patient in patients() {
        let longer = [&patient.good[..], b"x"].concat();
        patient.is_healed_after_content("a longer file", &longer);
        patient.is_healed_after_content("a foreign file", b"some notes of mine\n");
        let zeros = vec![0; patient.good.len()];
        patient.is_healed_after_content("zeros of the same length", &zeros);
        let other = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 1; }\n";
        patient.sandbox.kernel(Way::Cached, other, "").ok();
        let other = patient.sandbox.entries();
        let other = other.iter().find(|path| **path != patient.path);
        let other = fs::read(other.expect("another entry")).expect("read");
        patient.is_healed_after_content("another key's entry", &other);
    }
}

/// Numbers that lead astray whoever believes them, in a file whose checksum is right.
#[test]
fn an_entry_that_lies_under_a_right_checksum_is_a_miss_and_never_a_crash() {
    let patient = stub();
    let layout = Layout::of(&patient.good);
    let mut lies: Vec<(&str, usize, Vec<u8>)> = vec![("version 5", 8, vec![5])];
    for number in [0, 1, 0x7fff_ffff, u32::MAX] {
        let bytes = number.to_le_bytes().to_vec();
        lies.push(("metadata's length", META_LENGTH.start, bytes));
    }
    for number in [0, 2, 1024, 1025, u32::MAX] {
        let bytes = number.to_le_bytes().to_vec();
        lies.push(("number of binaries", layout.count.start, bytes));
    }
    let length = layout.binary.len() as u64;
    for number in [0, length - 1, length + 1, 1 << 40, u64::MAX] {
        let bytes = number.to_le_bytes().to_vec();
        lies.push(("binary's length", layout.lengths.start, bytes));
    }
    let huge = [
        0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ];
    lies.push(("metadata of 2^64 bytes", layout.meta.start, huge.to_vec()));
    lies.push((
        "metadata that is not compressed",
        layout.meta.start,
        vec![7; layout.meta.len()],
    ));
    for (what, position, bytes) in lies {
        let mut lying = patient.good.clone();
        lying[position..position + bytes.len()].copy_from_slice(&bytes);
        let checksum = xxh3_128(&lying[..layout.checksum.start]).to_le_bytes();
        lying[layout.checksum.clone()].copy_from_slice(&checksum);
        patient.is_healed_after_content(&format!("{what}: {bytes:?}"), &lying);
    }
}

#[test]
fn what_is_no_plain_file_in_an_entrys_place_is_a_miss_and_is_healed() {
    let patient = stub();
    let elsewhere = patient.sandbox.write("elsewhere", &patient.good);
    patient.is_healed_after("a link to a good entry", |path| {
        symlink(&elsewhere, path).expect("linked");
    });
    assert_eq!(
        fs::read(&elsewhere).expect("read"),
        patient.good,
        "the link's target is left alone"
    );
    patient.is_healed_after("a link that leads nowhere", |path| {
        symlink("/nonexistent/entry", path).expect("linked");
    });
    patient.is_healed_after("a link to itself", |path| {
        symlink(path, path).expect("linked");
    });
    // Opened in the usual way it would block the application for ever.
    patient.is_healed_after("a FIFO", |path| {
        let made = Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo").success());
    });
    patient.is_healed_after("a socket", |path| {
        // A socket's path is short, so it is made elsewhere.
        let short = tempfile::Builder::new()
            .prefix("s")
            .tempdir_in("/tmp")
            .expect("a temporary directory");
        let socket = short.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
        fs::rename(&socket, path).expect("moved");
    });
    patient.is_healed_after("a directory", |path| {
        fs::create_dir(path).expect("made");
    });
    patient.is_healed_after("a directory that is not empty", |path| {
        fs::create_dir(path).expect("made");
        fs::write(path.join("file"), "mine").expect("written");
    });
    patient.is_healed_after_content("an empty file, after a directory was set aside", b"");
}

#[test]
fn an_entry_that_cannot_be_read_or_belongs_to_another_user_is_a_miss_and_is_healed() {
    let patient = stub();
    if is_root() {
        patient.is_healed_after("another user's good entry", |path| {
            fs::write(path, &patient.good).expect("written");
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("given away");
        });
        skipped("an entry that cannot be read (root can read all)");
        return;
    }
    skipped("another user's good entry (only root can give files away)");
    // It may be that the system does not let us now, so it is replaced and not set aside.
    let forbid = |path: &Path| {
        fs::write(path, &patient.good).expect("written");
        fs::set_permissions(path, PermissionsExt::from_mode(0o0)).expect("changed");
    };
    patient.is_healed("a good entry without permissions", forbid, 0);
}
