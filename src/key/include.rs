//! Follows the headers of a program to all files that could be read in their place.
//!
//! Drivers differ in where they look for a header first: in the working directory, beside the including file, in the include
//! directories of the options, in directories of their own. No specification gives an order, and measured ones differ. So the
//! closure has no order: for each name, in each directory, the file that stands there enters the key, or that none does; and
//! what such a file includes is followed in turn. Whoever would read what first, nothing that decides it goes unnoticed.
//!
//! A place is named by where it was looked for, not by its path, so that programs which find the same in different
//! directories share their entries:
//!
//! ```text
//! cwd/NAME          the working directory
//! -I0/NAME          the first include directory of the options, whatever kind of option names it
//! driver0/NAME      the first directory of the driver's own
//! /NAME             an absolute name
//! ```
//!
//! A header that stands beside an including file is named from that file's place on: `-I0/sub/../NAME`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::ingredients::{Ingredient, Kind, sha256};
use super::macros::{Definition, Macros};
use super::options::Options;
use super::source::{Operand, Texts};
use crate::outcome::Bypass;

/// How many places are looked at.
const MOST_PLACES: usize = 20_000;
/// How many files are read.
const MOST_FILES: usize = 2_000;
/// How large they may be together, in bytes.
const MOST_BYTES: u64 = 64 << 20;
/// How deep headers may include one another; clang stops at 200.
const DEEPEST: usize = 200;

/// How often names are made of what the macros are by then.
const MOST_ROUNDS: usize = 64;

/// What is compiled, and where its compiler looks for headers.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The source.
    pub source: &'a [u8],
    /// The embedded headers of clCompileProgram, by name.
    pub embedded: &'a [(&'a [u8], &'a [u8])],
    /// The options.
    pub options: Option<&'a Options>,
    /// Where relative paths begin; empty if it is gone.
    pub working_directory: &'a Path,
    /// The directories of the driver's own. Relative ones begin at the working directory.
    pub driver_dirs: &'a [PathBuf],
    /// Names that the compiler includes in each program, and looks for as for the program's own.
    pub implicit: &'a [&'a str],
}

/// All files that the compiler could read, and all places where it could find others.
#[derive(Debug, Default)]
pub struct Closure {
    places: Vec<Place>,
    /// What relative paths began at.
    working_directory: PathBuf,
}

#[derive(Debug)]
struct Place {
    name: Vec<u8>,
    path: PathBuf,
    found: Found,
    /// The earlier place that is the same file in the same directory: compilers pass over a directory that they have searched,
    /// also under another name.
    again: Option<usize>,
}

/// What stands at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Directory,
    File {
        digest: [u8; 32],
        stamp: Stamp,
        /// The earlier place that is the same file: `#pragma once` and `#import` tell a file that is included twice from a copy.
        same_as: Option<usize>,
    },
}

/// What changes when a file does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Closure {
    /// What enters the key, in the order in which it was found: by content, not by path or time.
    pub fn ingredients(&self) -> impl Iterator<Item = Ingredient> {
        self.places.iter().map(|place| {
            let value = match &place.found {
                Found::Nothing => Vec::new(),
                Found::Directory => b"directory".to_vec(),
                Found::File {
                    digest,
                    same_as: None,
                    ..
                } => digest.to_vec(),
                Found::File {
                    digest,
                    same_as: Some(first),
                    ..
                } => {
                    let name = |index: usize| self.places[index].name.as_slice();
                    let (first, directory) = match place.again {
                        Some(again) => (name(again), &b", in the same directory"[..]),
                        None => (name(*first), &b""[..]),
                    };
                    [digest.as_slice(), b" same file as ", first, directory].concat()
                }
            };
            Ingredient::new(Kind::Include, String::from_utf8_lossy(&place.name), value)
        })
    }

    /// The working directory, if anything was looked for in it.
    pub fn working_directory(&self) -> Option<&Path> {
        (!self.places.is_empty()).then_some(&self.working_directory)
    }

    /// Whether all files are as they were, and were not written meanwhile.
    pub fn is_untouched(&self) -> bool {
        self.holds(|before, now| before == now)
    }

    /// Whether all files have the content that they had.
    pub fn is_unchanged(&self) -> bool {
        self.holds(|before, now| match (before, now) {
            (
                Found::File {
                    digest: one,
                    same_as: first,
                    ..
                },
                Found::File {
                    digest: other,
                    same_as: second,
                    ..
                },
            ) => one == other && first == second,
            _ => before == now,
        })
    }

    fn holds(&self, same: impl Fn(&Found, &Found) -> bool) -> bool {
        let mut files = HashMap::new();
        let mut room = MOST_BYTES;
        let mut is_same = |(index, place): (usize, &Place)| {
            let now = look(&place.path, &mut room);
            now.is_ok_and(|(now, _)| same(&place.found, &now.known_from(index, &mut files)))
        };
        self.places.is_empty()
            || std::env::current_dir().is_ok_and(|now| now == self.working_directory)
                && self.places.iter().enumerate().all(&mut is_same)
    }
}

/// The first place of each file, by device and inode.
type Files = HashMap<(u64, u64), usize>;

impl Found {
    /// What was found at the place of this index, with the place where the same file was found before.
    fn known_from(mut self, index: usize, files: &mut Files) -> Found {
        if let Found::File { stamp, same_as, .. } = &mut self {
            let first = *files.entry(stamp.file).or_insert(index);
            *same_as = (first != index).then_some(first);
        }
        self
    }
}

/// What stands at a path, with its text; `room` is how many bytes may be read.
fn look(path: &Path, room: &mut u64) -> Result<(Found, Vec<u8>), Bypass> {
    let is_nothing = |error: &std::io::Error| {
        // ENAMETOOLONG: no file can stand there, unless a relative path is short enough.
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => true,
            ErrorKind::InvalidFilename => path.as_os_str().len() < libc::PATH_MAX as usize,
            _ => false,
        }
    };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if is_nothing(&error) => return Ok((Found::Nothing, Vec::new())),
        Err(_) => return Err(Bypass::ReadsFile),
    };
    if metadata.is_dir() {
        return Ok((Found::Directory, Vec::new()));
    }
    // To open anything else could wait for ever, or do something.
    if !metadata.is_file() {
        return Err(Bypass::ReadsFile);
    }
    let open = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = open.map_err(|_| Bypass::ReadsFile)?;
    let metadata = file.metadata().map_err(|_| Bypass::ReadsFile)?;
    if !metadata.is_file() {
        return Err(Bypass::ReadsFile);
    }
    let mut text = Vec::with_capacity(metadata.size().min(*room) as usize + 1);
    file.take(room.saturating_add(1))
        .read_to_end(&mut text)
        .map_err(|_| Bypass::ReadsFile)?;
    *room = room
        .checked_sub(text.len() as u64)
        .ok_or(Bypass::TooManyHeaders)?;
    let stamp = Stamp {
        file: (metadata.dev(), metadata.ino()),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    };
    let digest = sha256(&text);
    Ok((
        Found::File {
            digest,
            stamp,
            same_as: None,
        },
        text,
    ))
}

/// Follows the headers of a program, and judges all texts together.
///
/// # Errors
/// Why the texts and files do not say everything about what is compiled.
pub fn closure(inputs: &Inputs) -> Result<Closure, Bypass> {
    let mut walk = Walk::new(inputs);
    let mut definitions = Vec::new();
    if let Some(options) = inputs.options {
        for definition in &options.definitions {
            let operands = walk.texts.add(definition.as_slice())?;
            walk.follow(operands, None, 0)?;
            definitions.extend(Definition::of_option(definition));
        }
    }
    for text in [inputs.source]
        .into_iter()
        .chain(inputs.embedded.iter().map(|(_, text)| *text))
    {
        let operands = walk.texts.add(text)?;
        walk.follow(operands, None, 0)?;
    }
    let options = inputs.options;
    let forced = options
        .iter()
        .flat_map(|options| &options.forced_includes)
        .cloned();
    let implicit = inputs.implicit.iter().map(|name| name.as_bytes().to_vec());
    for name in forced.chain(implicit) {
        walk.request(&name, None, 0)?;
    }
    walk.read_on()?;
    // A file that is found by a computed name may define what makes others.
    let (mut rounds, mut steps) = (0, 0);
    while !walk.computed.is_empty() {
        rounds += 1;
        if rounds > MOST_ROUNDS {
            return Err(Bypass::TooManyHeaders);
        }
        let (places, texts) = (walk.closure.places.len(), walk.texts.len());
        let all = Macros::new(definitions.iter().cloned().chain(walk.texts.definitions()?));
        for (operand, beside, depth) in walk.computed.clone() {
            for name in all.names(&operand, &mut steps)? {
                walk.request(&name, beside.as_ref(), depth)?;
            }
        }
        walk.read_on()?;
        if (places, texts) == (walk.closure.places.len(), walk.texts.len()) {
            break;
        }
    }
    walk.texts.finish()?;
    Ok(walk.closure)
}

/// A directory in which headers are looked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Base {
    name: Vec<u8>,
    path: PathBuf,
}

impl Base {
    fn join(&self, name: &[u8]) -> Base {
        Base {
            name: [self.name.as_slice(), b"/", name].concat(),
            path: self.path.join(OsStr::from_bytes(name)),
        }
    }

    fn parent(&self) -> Base {
        let end = self
            .name
            .iter()
            .rposition(|byte| *byte == b'/')
            .unwrap_or(0);
        Base {
            name: self.name[..end].to_vec(),
            path: self.path.parent().unwrap_or(Path::new("/")).to_owned(),
        }
    }
}

struct Walk<'a> {
    closure: Closure,
    texts: Texts<'a>,
    bases: Vec<Base>,
    /// Directories, below each base, of the names of embedded headers.
    below: Vec<Vec<u8>>,
    requested: HashSet<Vec<u8>>,
    seen: HashSet<Vec<u8>>,
    files: Files,
    /// Files by themselves and by the directories that they were found in: what stands beside them is known.
    read: HashMap<((u64, u64), (u64, u64)), usize>,
    /// Texts of files whose headers are to be followed, with the directory of each and its depth.
    queue: VecDeque<(Base, Vec<u8>, usize)>,
    /// Operands that macros make names of, with the directory of the including file and its depth.
    computed: Vec<(Vec<u8>, Option<Base>, usize)>,
    room: u64,
}

impl<'a> Walk<'a> {
    fn new(inputs: &Inputs<'a>) -> Walk<'a> {
        let mut bases = vec![Base {
            name: b"cwd".to_vec(),
            path: PathBuf::new(),
        }];
        let include_dirs = inputs
            .options
            .map_or(&[][..], |options| &options.include_dirs);
        for (index, directory) in include_dirs.iter().enumerate() {
            let path = PathBuf::from(OsStr::from_bytes(directory));
            bases.push(Base {
                name: format!("-I{index}").into_bytes(),
                path,
            });
        }
        for (index, directory) in inputs.driver_dirs.iter().enumerate() {
            bases.push(Base {
                name: format!("driver{index}").into_bytes(),
                path: directory.clone(),
            });
        }
        let below = inputs.embedded.iter().filter_map(|(name, _)| {
            let end = name.iter().rposition(|byte| *byte == b'/')?;
            Some(name[..end].to_vec())
        });
        Walk {
            below: below.collect(),
            closure: Closure {
                places: Vec::new(),
                working_directory: inputs.working_directory.to_owned(),
            },
            texts: Texts::default(),
            bases,
            requested: HashSet::new(),
            seen: HashSet::new(),
            files: HashMap::new(),
            read: HashMap::new(),
            queue: VecDeque::new(),
            computed: Vec::new(),
            room: MOST_BYTES,
        }
    }

    /// Looks for what a text names; `beside` is the directory of the file that it was read from.
    fn follow(
        &mut self,
        operands: Vec<Operand>,
        beside: Option<&Base>,
        depth: usize,
    ) -> Result<(), Bypass> {
        for operand in operands {
            match operand {
                Operand::Name(name) => self.request(&name, beside, depth)?,
                Operand::Computed(tokens) => self.computed.push((tokens, beside.cloned(), depth)),
            }
        }
        Ok(())
    }

    fn request(&mut self, name: &[u8], beside: Option<&Base>, depth: usize) -> Result<(), Bypass> {
        // clang takes a quote behind a backslash for a part of the name (measured on PoCL); others may take it for a separator.
        if name.is_empty() || name.contains(&0) || name.contains(&b'\\') {
            return Err(Bypass::UnresolvedInclude);
        }
        if name[0] == b'/' {
            let root = Base {
                name: Vec::new(),
                path: PathBuf::from("/"),
            };
            return self.look(root.join(&name[1..]), depth);
        }
        if let Some(directory) = beside {
            self.look(directory.join(name), depth)?;
        }
        if self.requested.insert(name.to_vec()) {
            self.check_directories()?;
            for base in self.bases.clone() {
                self.look(base.join(name), depth)?;
                for below in self.below.clone() {
                    self.look(base.join(&below).join(name), depth)?;
                }
            }
        }
        Ok(())
    }

    /// A file in a directory's place may be a header map, which names files elsewhere (clang's HeaderMap; measured on PoCL,
    /// Intel's CPU runtime and rusticl).
    fn check_directories(&self) -> Result<(), Bypass> {
        let is_file = |base: &Base| {
            let path = self.closure.working_directory.join(&base.path);
            std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir())
        };
        let first = self.requested.len() == 1;
        match first && self.bases.iter().any(is_file) {
            true => Err(Bypass::ReadsFile),
            false => Ok(()),
        }
    }

    /// Looks at a place.
    fn look(&mut self, place: Base, depth: usize) -> Result<(), Bypass> {
        if !self.seen.insert(place.name.clone()) {
            return Ok(());
        }
        if self.seen.len() > MOST_PLACES || self.files.len() > MOST_FILES || depth > DEEPEST {
            return Err(Bypass::TooManyHeaders);
        }
        let path = self.closure.working_directory.join(&place.path);
        let (found, text) = look(&path, &mut self.room)?;
        let found = found.known_from(self.closure.places.len(), &mut self.files);
        let mut again = None;
        if let Found::File { stamp, .. } = &found {
            let directory = path.parent().unwrap_or(Path::new("/"));
            let directory = std::fs::metadata(directory).map_err(|_| Bypass::ReadsFile)?;
            let directory = (directory.dev(), directory.ino());
            let index = self.closure.places.len();
            let known = *self.read.entry((stamp.file, directory)).or_insert(index);
            again = (known != index).then_some(known);
            if again.is_none() {
                self.queue.push_back((place.parent(), text, depth + 1));
            }
        }
        self.closure.places.push(Place {
            name: place.name,
            path,
            found,
            again,
        });
        Ok(())
    }

    /// Follows what was found, until nothing new is.
    fn read_on(&mut self) -> Result<(), Bypass> {
        while let Some((directory, text, depth)) = self.queue.pop_front() {
            let operands = self.texts.add(Cow::Owned(text))?;
            self.follow(operands, Some(&directory), depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::options;

    /// A directory with files, in which a source is compiled.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Tree {
            let tree = Tree(tempfile::tempdir().expect("a temporary directory"));
            for (name, text) in files {
                tree.write(name, text);
            }
            tree
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.path(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        }

        fn closure(&self, source: &str, options: &str) -> Result<Closure, Bypass> {
            let options = options::parse(options.as_bytes())?;
            closure(&Inputs {
                source: source.as_bytes(),
                embedded: &[],
                options: Some(&options),
                working_directory: self.0.path(),
                driver_dirs: &[],
                implicit: &[],
            })
        }

        /// The places that were looked at; those where a file stands end in `!`.
        fn places(&self, source: &str, options: &str) -> Vec<String> {
            let closure = self.closure(source, options).expect("a closure");
            let is_there = |place: &Ingredient| if place.value.is_empty() { "" } else { "!" };
            closure
                .ingredients()
                .map(|place| format!("{}{}", place.name, is_there(&place)))
                .collect()
        }

        fn value(&self, source: &str, options: &str) -> Vec<Ingredient> {
            self.closure(source, options)
                .expect("a closure")
                .ingredients()
                .collect()
        }
    }

    #[test]
    fn each_place_where_a_header_could_stand_is_looked_at() {
        let tree = Tree::new(&[("d1/h.h", ""), ("d2/h.h", "#include \"sub/i.h\"\n")]);
        assert_eq!(
            tree.places("#include <h.h>\n", "-I d1 -I d2 -isystem /nowhere"),
            [
                "cwd/h.h",
                "-I0/h.h!",
                "-I1/h.h!",
                "-I2/h.h",
                "-I1/sub/i.h",
                "cwd/sub/i.h",
                "-I0/sub/i.h",
                "-I2/sub/i.h"
            ]
        );
        assert!(
            tree.places("int x; // #include <h.h>\n", "-I d1")
                .is_empty()
        );
    }

    #[test]
    fn what_an_included_file_includes_is_looked_for_beside_it() {
        let tree = Tree::new(&[("a/b/one.h", "#include \"../two.h\"\n"), ("a/two.h", "")]);
        let places = tree.places("#include \"a/b/one.h\"\n", "");
        assert_eq!(
            places,
            ["cwd/a/b/one.h!", "cwd/a/b/../two.h!", "cwd/../two.h"]
        );
    }

    #[test]
    fn headers_that_include_themselves_come_to_an_end() {
        let tree = Tree::new(&[("a/h.h", "#include \"../a/h.h\"\n#include \"loop/h.h\"\n")]);
        std::os::unix::fs::symlink(".", tree.path("a/loop")).expect("linked");
        assert!(tree.places("#include \"a/h.h\"\n", "").len() < 12);
    }

    #[test]
    fn computed_names_are_followed_also_when_a_header_defines_them() {
        let tree = Tree::new(&[
            ("names.h", "#define NEXT \"next.h\"\n"),
            ("next.h", "#define LAST <last.h>\n#include LAST\n"),
            ("last.h", ""),
        ]);
        let places = tree.places("#include \"names.h\"\n#include NEXT\n", "");
        assert_eq!(places, ["cwd/names.h!", "cwd/next.h!", "cwd/last.h!"]);
        let places = tree.places("#include NAME\n", "-DNAME=<last.h>");
        assert_eq!(places, ["cwd/last.h!"]);
        let unresolved = tree
            .closure("#include NAME\n", "")
            .expect_err("nobody defines it");
        assert_eq!(unresolved, Bypass::UnresolvedInclude);
    }

    #[test]
    fn what_is_found_counts_and_not_where_or_when() {
        let files = [("d/h.h", "#define V 1\n")];
        let (one, other) = (Tree::new(&files), Tree::new(&files));
        let source = "#include <h.h>\n";
        let before = one.value(source, "-I d");
        assert_eq!(
            before,
            other.value(source, &format!("-I {}", other.path("d").display()))
        );
        other.write("d/h.h", "#define V 2\n");
        assert_ne!(before, other.value(source, "-I d"));
        one.write("h.h", "#define V 1\n");
        assert_ne!(
            before,
            one.value(source, "-I d"),
            "it hides the other one on some drivers"
        );
    }

    #[test]
    fn a_link_to_a_header_is_not_a_copy_of_it() {
        let files = [
            ("a.h", "#pragma once\nint x;\n"),
            ("b.h", "#pragma once\nint x;\n"),
        ];
        let (copies, links) = (Tree::new(&files), Tree::new(&files[..1]));
        std::fs::hard_link(links.path("a.h"), links.path("b.h")).expect("linked");
        let source = "#include \"a.h\"\n#include \"b.h\"\n";
        assert_ne!(copies.value(source, ""), links.value(source, ""));
    }

    #[test]
    fn a_directory_that_is_searched_twice_is_not_two() {
        let copies = Tree::new(&[("a/h.h", "")]);
        std::fs::create_dir(copies.path("b")).expect("made");
        std::fs::hard_link(copies.path("a/h.h"), copies.path("b/h.h")).expect("linked");
        let links = Tree::new(&[("a/h.h", "")]);
        std::os::unix::fs::symlink("a", links.path("b")).expect("linked");
        let source = "#include <h.h>\n";
        assert_ne!(
            copies.value(source, "-I a -I b"),
            links.value(source, "-I a -I b")
        );
    }

    #[test]
    fn a_file_in_a_directorys_place_counts() {
        let tree = Tree::new(&[("map", "pamh")]);
        let map = tree
            .closure("#include <h.h>\n", "-I map")
            .expect_err("a map");
        assert_eq!(map, Bypass::ReadsFile);
        assert!(tree.closure("int x;\n", "-I map").is_ok());
    }

    #[test]
    fn a_backslash_in_a_name_is_the_drivers_to_read() {
        let tree = Tree::new(&[]);
        let quoted = tree
            .closure("#include \"a\\\"//b\"\n", "")
            .expect_err("unclear");
        assert_eq!(quoted, Bypass::UnresolvedInclude);
    }

    #[test]
    fn all_texts_are_judged_together() {
        let tree = Tree::new(&[
            ("h.h", "#define C(a, b) a##b\n"),
            (
                "time.h",
                "int x = __LINE__; // __TIME__\n#define T __TIME__\n",
            ),
        ]);
        assert!(tree.closure("#include \"h.h\"\nC(__LI, NE__)", "").is_ok());
        let pasted = tree
            .closure("#include \"h.h\"\nC(__FI, LE__)", "")
            .expect_err("pasted");
        assert_eq!(pasted, Bypass::UsesTimeOrFileName);
        let time = tree
            .closure("#include \"time.h\"\n", "")
            .expect_err("the time");
        assert_eq!(time, Bypass::UsesTimeOrFileName);
        let option = tree.closure("", "-DX=__FILE__").expect_err("a file's name");
        assert_eq!(option, Bypass::UsesTimeOrFileName);
    }

    #[test]
    fn what_is_no_plain_file_is_not_opened() {
        let tree = Tree::new(&[("dir/x", "")]);
        assert_eq!(tree.places("#include \"dir\"\n", ""), ["cwd/dir!"]);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            tree.path("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("made");
        let fifo = tree
            .closure("#include \"fifo\"\n", "")
            .expect_err("not read");
        assert_eq!(fifo, Bypass::ReadsFile);
    }

    #[test]
    fn there_is_an_end_to_what_is_followed() {
        let tree = Tree::new(&[]);
        for index in 0..DEEPEST + 2 {
            tree.write(
                &format!("{index}.h"),
                &format!("#include \"{}.h\"\n", index + 1),
            );
        }
        let deep = tree
            .closure("#include \"0.h\"\n", "")
            .expect_err("too deep");
        assert_eq!(deep, Bypass::TooManyHeaders);
        let many: String = (0..MOST_PLACES + 1)
            .map(|index| format!("#include <{index}>\n"))
            .collect();
        assert_eq!(
            tree.closure(&many, "").expect_err("too many"),
            Bypass::TooManyHeaders
        );
    }
}
