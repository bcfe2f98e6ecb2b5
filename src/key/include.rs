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
mod closure;
mod computed;
mod place;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::macros::MAX_NAME_BYTES;
use super::options::Options;
use super::source::{self, Operand, Texts};
use super::work::Work;
use crate::fallible::{copy, push};
use crate::file_fingerprint::{FileFingerprint, FileId};
use crate::outcome::Bypass;
use base::{Base, SearchedBase};
pub use closure::Closure;
use closure::Place;
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
    let written = inputs.options.map_or(&[][..], Options::written);
    let texts = || Texts::new(work.clone()).with_options(written);
    // Before the source begins.
    let undefines = inputs.options.is_some_and(|options| options.undefines);
    if !undefines {
        let mut walk = Walk::new(inputs, work, texts().leaving_out())?;
        let followed = follow_from(inputs, &mut walk);
        if walk.texts.holds_conditions() && !walk.may_miss_definitions(inputs) {
            return followed;
        }
        work.allow_again();
    }
    follow_from(inputs, &mut Walk::new(inputs, work, texts())?)
}

fn follow_from<'a>(inputs: &Inputs<'a>, walk: &mut Walk<'a>) -> Result<FollowedIncludes, Bypass> {
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
            let length = inputs.source.len() - before.len() + source::RANDOM_NAME.len();
            let names = inputs.embedded.iter().map(|(name, _)| *name);
            let options = options.iter().map(|options| options.written());
            let words = names.chain(options);
            walk.texts
                .could_spell_random_name((source, length), words)?
        }
    };
    Ok(FollowedIncludes {
        closure: std::mem::take(&mut walk.closure),
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
    fn new(inputs: &Inputs<'a>, work: &Work, texts: Texts<'a>) -> Result<Walk<'a>, Bypass> {
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
        Ok(Walk {
            has_embedded: !inputs.embedded.is_empty(),
            below: below.filter(|below| seen.insert(*below)).collect(),
            closure: Closure {
                places: Vec::new(),
                bases: Vec::new(),
                working_directory: inputs.working_directory.to_owned(),
            },
            texts,
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

    /// Whether a header of which there is no text may undefine macros by which lines were left out. Drivers have headers in memory: that
    /// of Intel's GPU driver, `CTHeader.h`, undefines names such as `atomic_init_prototype` where a program includes it (measured).
    fn may_miss_definitions(&self, inputs: &Inputs) -> bool {
        if !self.texts.relies_on_own_macros() {
            return false;
        }
        let last = |name: &'_ [u8]| name.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
        let found = self.closure.files().map(|file| last(file.name));
        let embedded = inputs.embedded.iter().map(|(name, _)| last(name));
        let by_itself = inputs.implicit.iter().map(|name| last(name.as_bytes()));
        let known: HashSet<_> = found.chain(embedded).chain(by_itself).collect();
        !self
            .requested
            .iter()
            .all(|name| known.contains(&last(name)))
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
