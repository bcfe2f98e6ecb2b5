//! Follows the includes of a program to all files that the compiler could read.
//!
//! Drivers differ in where they look for a header first: in the working directory, beside the including file, in the include
//! directories of the options, in directories of their own. No specification gives an order, and measured ones differ. So the
//! closure has no order: for each name and each directory, the file that is there enters the key, or that there is none; and the
//! includes of that file are followed in turn. So every change that could decide which file is read changes the key.
//!
//! A place is named by the directory's role, not by its path, so that programs that find the same files in different directories
//! share their entries:
//!
//! ```text
//! cwd/NAME          the working directory
//! -I0/NAME          the first include directory of the options, whatever kind of option names it
//! driver0/NAME      the first directory of the driver's own
//! /NAME             an absolute name
//! ```
//!
//! A header beside an including file is named from that file's place: `-I0/sub/../NAME`.

mod base;
mod computed;
mod place;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::ingredients::{Ingredient, Kind};
use super::macros::MAX_NAME_BYTES;
use super::options::Options;
use super::source::{self, Operand, Texts};
use super::work::Work;
use crate::fallible::{copy, push};
use crate::file_fingerprint::{FileFingerprint, FileId, Validity};
use crate::filesystem::ChangeTime;
use crate::outcome::Bypass;
use base::{Base, SearchedBase};
use computed::ComputedName;
use place::{Directories, FileNumbers, PlaceContent, look};

/// Places that are looked at.
const MAX_PLACES: usize = 20_000;
/// Files that are read.
const MAX_FILES: usize = 2_000;
/// The sum of all files.
const MAX_BYTES: u64 = 64 << 20;
/// The nesting of includes. Clang stops at 200.
const MAX_DEPTH: usize = 200;

/// Steps of a look at a place.
const STEPS_OF_PLACE: usize = 2000;
/// Steps of a request for a header.
const STEPS_OF_REQUEST: usize = 100;

/// The texts of a compilation, and the directories in which the compiler looks for headers.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The source.
    pub source: &'a [u8],
    /// The embedded headers of clCompileProgram, by name.
    pub embedded: &'a [(&'a [u8], &'a [u8])],
    /// The options.
    pub options: Option<&'a Options>,
    /// The working directory. Empty if it was removed.
    pub working_directory: &'a Path,
    /// The driver's own directories. Relative ones begin at the working directory.
    pub driver_dirs: &'a [PathBuf],
    /// Headers that the compiler includes in each program, looked up like the program's own.
    pub implicit: &'a [&'a str],
}

/// All files that the compiler could read, and all places where it could find others.
#[derive(Clone, Debug, Default)]
pub struct Closure {
    places: Vec<Place>,
    /// The directories in which headers were looked for.
    bases: Vec<SearchedBase>,
    /// The working directory at that time.
    working_directory: PathBuf,
}

/// A file of a closure.
pub struct FoundFile<'a> {
    /// The index of its place.
    pub index: usize,
    /// The name of the place.
    pub name: &'a [u8],
    /// Its path.
    pub path: &'a Path,
    /// SHA-256 of its content.
    pub digest: &'a [u8; 32],
    /// The earlier place that is the same file.
    pub same_as: Option<usize>,
    /// Whether that place is in the same directory.
    pub in_same_directory: bool,
}

#[derive(Clone, Debug)]
struct Place {
    name: Vec<u8>,
    path: PathBuf,
    found: PlaceContent,
    /// The directory of a file.
    directory: Option<FileId>,
    /// The earlier place that is the same file in the same directory: compilers skip a directory that they have searched, also
    /// under another name.
    again: Option<usize>,
}

impl Closure {
    /// Whether the program, or the compiler by itself, names a header.
    pub fn names_any(&self) -> bool {
        !self.places.is_empty()
    }

    /// The ingredients of the key, in the order in which files were found: by content, not by path or time.
    pub fn ingredients(&self) -> impl Iterator<Item = Ingredient> {
        let places = self.places.iter().map(|place| {
            let value = match &place.found {
                PlaceContent::Nothing => Vec::new(),
                PlaceContent::Directory => b"directory".to_vec(),
                PlaceContent::File {
                    digest,
                    same_as: None,
                    ..
                } => digest.to_vec(),
                PlaceContent::File {
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
        });
        places.chain(base::ingredients(self.counted_bases()))
    }

    /// The directories of which it matters that one is another: where only one file was found, none comes before another.
    fn counted_bases(&self) -> &[SearchedBase] {
        match self.files().nth(1) {
            Some(_) => &self.bases,
            None => &[],
        }
    }

    /// The working directory, if anything was looked for there.
    pub fn working_directory(&self) -> Option<&Path> {
        (!self.places.is_empty()).then_some(&self.working_directory)
    }

    /// Whether both looked for and found the same in the same places.
    pub fn is_like(&self, other: &Closure) -> bool {
        self.ingredients().eq(other.ingredients())
    }

    /// The files, in the order in which they were found.
    pub fn files(&self) -> impl Iterator<Item = FoundFile<'_>> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let PlaceContent::File {
                digest, same_as, ..
            } = &place.found
            else {
                return None;
            };
            Some(FoundFile {
                index,
                name: &place.name,
                path: &place.path,
                digest,
                same_as: place.again.or(*same_as).filter(|_| same_as.is_some()),
                in_same_directory: place.again.is_some(),
            })
        })
    }

    /// Whether all files are unchanged and were not written since.
    pub fn is_untouched(&self) -> bool {
        self.holds(|before, now| before == now)
    }

    /// Whether all files have the same content.
    pub fn is_unchanged(&self) -> bool {
        self.holds(|before, now| match (before, now) {
            (
                PlaceContent::File {
                    digest: one,
                    same_as: first,
                    ..
                },
                PlaceContent::File {
                    digest: other,
                    same_as: second,
                    ..
                },
            ) => one == other && first == second,
            _ => before == now,
        })
    }

    /// Whether its files had been left alone for so long that each later change shows in their states. A closure of many places is
    /// none: to look at these again costs as much as to follow it.
    ///
    /// `begun`: a time before they were looked at.
    pub fn is_settled(&self, begun: SystemTime) -> bool {
        const MAX_PLACES_AGAIN: usize = 64;
        let now = begun.duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs() as i64);
        let is_settled = |place: &Place| match &place.found {
            PlaceContent::File { stamp, .. } => {
                stamp.validity_at(now, ChangeTime::Foreign) > Validity::Moment
            }
            _ => true,
        };
        self.places.len() <= MAX_PLACES_AGAIN && self.places.iter().all(is_settled)
    }

    /// Whether all its files are below these directories.
    pub fn is_below(&self, directories: &[PathBuf]) -> bool {
        let is_below = |path: &Path| {
            let mut parts = path.components();
            parts.all(|part| part != Component::ParentDir)
                && directories.iter().any(|below| path.starts_with(below))
        };
        self.files().all(|file| is_below(file.path))
    }

    /// How many bytes it takes in memory, roughly.
    pub fn weight(&self) -> usize {
        let place = |place: &Place| {
            let texts = place.name.len() + place.path.as_os_str().len();
            size_of::<Place>() + texts
        };
        let base = |base: &SearchedBase| {
            size_of::<SearchedBase>() + base.base.name.len() + base.base.path.as_os_str().len()
        };
        let bases = self.bases.iter().map(base);
        self.places.iter().map(place).chain(bases).sum()
    }

    /// Whether what a settled closure has is still there, by the states of its files. They are not read.
    pub fn has_same_states(&self) -> bool {
        let is_same = |place: &Place| match &place.found {
            PlaceContent::File { stamp, .. } => {
                let directory = place.path.parent().unwrap_or(Path::new("/"));
                FileFingerprint::at(&place.path) == Some(*stamp)
                    && FileFingerprint::at(directory).map(|state| state.file) == place.directory
                    // This process may have fewer rights by now.
                    && accessat(CWD, &place.path, Access::READ_OK, AtFlags::EACCESS).is_ok()
            }
            _ => look(&place.path, &mut 0, |_| None).is_ok_and(|(now, _)| now == place.found),
        };
        self.places.is_empty()
            || std::env::current_dir().is_ok_and(|now| now == self.working_directory)
                && self.bases.iter().all(SearchedBase::is_same)
                && self.places.iter().all(is_same)
    }

    fn holds(&self, same: impl Fn(&PlaceContent, &PlaceContent) -> bool) -> bool {
        let mut files = HashMap::new();
        let mut room = MAX_BYTES;
        let mut is_same = |(index, place): (usize, &Place)| {
            let now = look(&place.path, &mut room, |_| None);
            now.is_ok_and(|(now, _)| same(&place.found, &now.known_from(index, &mut files)))
        };
        self.places.is_empty()
            || std::env::current_dir().is_ok_and(|now| now == self.working_directory)
                && base::repeat_alike(self.counted_bases())
                && self.places.iter().enumerate().all(&mut is_same)
    }
}

/// The result of following a program's includes.
#[derive(Debug, Default)]
pub struct FollowedIncludes {
    /// The files.
    pub closure: Closure,
    /// Whether other text that is compiled could observe the digits of the random name at the end of the source.
    pub spells_random_name: bool,
}

/// Follows the headers of a program, and judges all texts together. Counts its steps.
///
/// # Errors
/// Why the texts and files do not say everything about what is compiled, or that it costs too much to find out.
pub fn follow(inputs: &Inputs, work: &Work) -> Result<FollowedIncludes, Bypass> {
    let mut walk = Walk::new(inputs, work)?;
    if let Some(options) = inputs.options {
        for definition in options.judged_definitions() {
            let operands = walk.texts.add_definition(definition)?;
            walk.follow(operands, None, 0)?;
        }
    }
    let source = walk.texts.len();
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
        .map(Vec::as_slice);
    let implicit = inputs.implicit.iter().map(|name| name.as_bytes());
    for name in forced.chain(implicit) {
        walk.request(name, None, 0)?;
    }
    walk.read_on()?;
    walk.compute_names(options)?;
    walk.texts.finish()?;
    let spells_random_name = match source::before_digits(inputs.source) {
        None => false,
        Some(before) => {
            let before = before.len() - source::RANDOM_NAME.len();
            let names = inputs.embedded.iter().map(|(name, _)| *name);
            let options = options.iter().map(|options| options.written());
            let words = names.chain(options);
            walk.texts
                .could_spell_random_name((source, before), words)?
        }
    };
    Ok(FollowedIncludes {
        closure: walk.closure,
        spells_random_name,
    })
}

/// A file that was found.
struct Queued {
    /// Its directory.
    directory: Base,
    depth: usize,
    /// Its first place.
    file: usize,
    /// Its text; None: it was read at its first place.
    text: Option<Vec<u8>>,
}

struct Walk<'a> {
    closure: Closure,
    texts: Texts<'a>,
    bases: Vec<Base>,
    has_embedded: bool,
    /// Directories, below each base, of the names of embedded headers.
    below: Vec<&'a [u8]>,
    requested: HashSet<Vec<u8>>,
    /// The places that were looked at, by name: the number of each, and how many directories an inclusion of it has named.
    seen: HashMap<Vec<u8>, (usize, usize)>,
    files: FileNumbers,
    directories: Directories,
    /// Files, and the directories in which they were found: headers beside these are followed already.
    read: HashMap<(FileId, FileId), usize>,
    /// The headers that files name, each file by its first place.
    named: HashMap<usize, Rc<[Operand]>>,
    /// Files whose headers are to be followed.
    queue: VecDeque<Queued>,
    /// Operands from which macros compute names, each once.
    computed: Vec<ComputedName>,
    /// Their numbers.
    computed_numbers: HashMap<Vec<u8>, usize>,
    room: u64,
    work: Work,
}

impl<'a> Walk<'a> {
    fn new(inputs: &Inputs<'a>, work: &Work) -> Result<Walk<'a>, Bypass> {
        let mut bases = vec![Base {
            name: b"cwd".to_vec(),
            path: PathBuf::new(),
        }];
        let include_dirs = inputs
            .options
            .map_or(&[][..], |options| &options.include_dirs);
        for (index, directory) in include_dirs.iter().enumerate() {
            let path = PathBuf::from(OsStr::from_bytes(directory));
            let name = format!("-I{index}").into_bytes();
            push(&mut bases, Base { name, path })?;
        }
        for (index, directory) in inputs.driver_dirs.iter().enumerate() {
            bases.push(Base {
                name: format!("driver{index}").into_bytes(),
                path: directory.clone(),
            });
        }
        let below = inputs.embedded.iter().filter_map(|(name, _)| {
            let end = name.iter().rposition(|byte| *byte == b'/')?;
            Some(&name[..end])
        });
        let mut seen = HashSet::new();
        let written = inputs.options.map_or(&[][..], Options::written);
        Ok(Walk {
            has_embedded: !inputs.embedded.is_empty(),
            below: below.filter(|below| seen.insert(*below)).collect(),
            closure: Closure {
                places: Vec::new(),
                bases: Vec::new(),
                working_directory: inputs.working_directory.to_owned(),
            },
            texts: Texts::new(work.clone()).with_options(written),
            bases,
            requested: HashSet::new(),
            seen: HashMap::new(),
            files: HashMap::new(),
            directories: Directories::default(),
            read: HashMap::new(),
            named: HashMap::new(),
            queue: VecDeque::new(),
            computed: Vec::new(),
            computed_numbers: HashMap::new(),
            room: MAX_BYTES,
            work: work.clone(),
        })
    }

    /// Looks for the headers that a text names. `beside` is the directory of the file that the text is from.
    fn follow(
        &mut self,
        operands: impl IntoIterator<Item = Operand>,
        beside: Option<&Rc<Base>>,
        depth: usize,
    ) -> Result<(), Bypass> {
        for operand in operands {
            match operand {
                Operand::Name(name) => self.request(&name, beside.map(Rc::as_ref), depth)?,
                Operand::Computed(operand) => {
                    self.compute_later(operand, beside.cloned(), depth)?
                }
            }
        }
        Ok(())
    }

    fn request(&mut self, name: &[u8], beside: Option<&Base>, depth: usize) -> Result<(), Bypass> {
        self.work.spend(STEPS_OF_REQUEST + name.len())?;
        // Each place would have a copy of it.
        if name.len() > MAX_NAME_BYTES {
            return Err(Bypass::TooManyHeaders);
        }
        // Clang treats a quote after a backslash as part of the name (measured on PoCL). Others may treat the backslash as a
        // separator.
        if name.is_empty() || name.contains(&0) || name.contains(&b'\\') {
            return Err(Bypass::UnresolvedInclude);
        }
        // PoCL writes embedded headers into a new directory below its cache. The files above that directory are unknown.
        let mut parts = name.split(|byte| *byte == b'/');
        if self.has_embedded && parts.any(|part| part == b"..") {
            return Err(Bypass::UnresolvedInclude);
        }
        let named = Path::new(OsStr::from_bytes(name)).components().count();
        let named = named.saturating_sub(1);
        if name[0] == b'/' {
            let root = Base {
                name: Vec::new(),
                path: PathBuf::from("/"),
            };
            return self.look(root.join(&name[1..]), named, depth);
        }
        if let Some(directory) = beside {
            self.look(directory.join(name), named, depth)?;
        }
        if !self.requested.contains(name) {
            self.requested
                .try_reserve(1)
                .map_err(|_| Bypass::NoMemory)?;
            self.requested.insert(copy(name)?);
            if self.requested.len() == 1 {
                self.check_directories()?;
            }
            for base in 0..self.bases.len() {
                self.look(self.bases[base].join(name), named, depth)?;
                for below in 0..self.below.len() {
                    let directory = self.bases[base].join(self.below[below]);
                    self.look(directory.join(name), named, depth)?;
                }
            }
        }
        Ok(())
    }

    /// A file in place of a directory may be a header map, which names files elsewhere (clang's HeaderMap; measured on PoCL,
    /// Intel's CPU runtime and rusticl).
    fn check_directories(&mut self) -> Result<(), Bypass> {
        let spent = self.work.spend(STEPS_OF_PLACE * self.bases.len());
        spent.map_err(|_| Bypass::TooManyHeaders)?;
        for base in &self.bases {
            let path = self.closure.working_directory.join(&base.path);
            let id = self.directories.check(&path)?;
            let name = copy(&base.name)?;
            let base = Base { name, path };
            push(&mut self.closure.bases, SearchedBase { base, id })?;
        }
        Ok(())
    }

    /// Looks at a place. `named`: how many directories the name has by which it is included.
    fn look(&mut self, place: Base, named: usize, depth: usize) -> Result<(), Bypass> {
        self.work.count_search(place.name.len());
        if let Some((index, judged)) = self.seen.get_mut(&place.name) {
            let before = std::mem::replace(judged, named.max(*judged));
            let known = &self.closure.places[*index];
            if before < named && known.directory.is_some() {
                self.directories.around(&known.path, named)?;
            }
            return Ok(());
        }
        let steps = STEPS_OF_PLACE + place.name.len() + place.path.as_os_str().len();
        let spent = self.work.spend(steps);
        spent.map_err(|_| Bypass::TooManyHeaders)?;
        let reserved = self.seen.try_reserve(1);
        let reserved = reserved.and_then(|()| self.queue.try_reserve(1));
        let reserved = reserved.and_then(|()| self.read.try_reserve(1));
        let reserved = reserved.and_then(|()| self.files.try_reserve(1));
        let reserved = reserved.and_then(|()| self.named.try_reserve(1));
        reserved.map_err(|_| Bypass::NoMemory)?;
        let index = self.closure.places.len();
        self.seen.insert(copy(&place.name)?, (index, named));
        if self.seen.len() > MAX_PLACES || self.files.len() > MAX_FILES || depth > MAX_DEPTH {
            return Err(Bypass::TooManyHeaders);
        }
        let path = self.closure.working_directory.join(&place.path);
        let known = |stamp: &FileFingerprint| {
            let first = *self.files.get(&stamp.file)?;
            match &self.closure.places[first].found {
                PlaceContent::File {
                    digest,
                    stamp: then,
                    ..
                } if then == stamp => Some(*digest),
                _ => None,
            }
        };
        let (found, text) = look(&path, &mut self.room, known)?;
        let found = found.known_from(index, &mut self.files);
        let (mut again, mut of_file) = (None, None);
        if let PlaceContent::File { stamp, same_as, .. } = &found {
            let directory = self.directories.around(&path, named)?;
            of_file = Some(directory);
            let first = *self.read.entry((stamp.file, directory)).or_insert(index);
            again = (first != index).then_some(first);
            if again.is_none() {
                self.queue.push_back(Queued {
                    directory: place.parent(),
                    depth: depth + 1,
                    file: same_as.unwrap_or(index),
                    text,
                });
            }
        }
        let place = Place {
            name: place.name,
            path,
            found,
            directory: of_file,
            again,
        };
        push(&mut self.closure.places, place)
    }

    /// Follows the files that were found, until there are no new ones.
    fn read_on(&mut self) -> Result<(), Bypass> {
        while let Some(queued) = self.queue.pop_front() {
            if let Some(text) = queued.text {
                let operands = self.texts.add(Cow::Owned(text))?;
                self.named.insert(queued.file, operands.into());
            }
            // A file that is written meanwhile is read again at its other place, and found changed in the final check.
            let operands = self.named.get(&queued.file).cloned();
            let operands = operands.ok_or(Bypass::ReadsFile)?;
            let directory = Rc::new(queued.directory);
            self.follow(operands.iter().cloned(), Some(&directory), queued.depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
