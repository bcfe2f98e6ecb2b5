//! The loaded objects as a driver sees them, and the slots by which its libraries call others.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ops::Range;

use super::scopes::Scope;
use super::watched_slots::WatchedSlots;
use super::{Unanswered, each_image_of, is_named};
use crate::driver::elf_image::{BoundSymbol, ElfImage, UnreadableImage};
use crate::driver::key_neutral::is_neutral;
use crate::driver::loaded::Object;
use crate::driver::watched_functions::{C_LIBRARY, MATHEMATICS, WITH_VARIANTS};
use crate::key::ingredients::{Ingredient, Kind, hex, sha256};

/// Variables that the mathematics library writes and never reads: lgamma(3) leaves the sign of its result in one. Which one it writes
/// matters only to a library that reads it, by a slot of its own. (Intel's CPU runtime has one, too, and the system's library writes
/// that in a process in which it was first loaded with the runtime.)
const WRITTEN_ONLY: [&CStr; 1] = [c"signgam"];

/// A relocation whose symbol another library could answer for.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    /// The index of the library in whose scope the importing one was loaded.
    pub(super) root: usize,
    pub(super) name: CString,
    pub(super) version: Option<CString>,
    /// The address to which it is bound. None if it is not bound yet.
    pub(super) bound: Option<usize>,
}

/// Whether the kernel has mapped an object into the process (vdso(7)). Its functions are those of the C library, only faster.
fn is_of_the_kernel(object: &Object) -> bool {
    // SAFETY: it only looks a number up.
    let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    start != 0 && object.contains(start)
}

/// Whether an address is in one of an object's segments. The last one that held one is looked at first: thousands of slots lead to the
/// code of one library.
fn is_in(ranges: &[Range<usize>]) -> impl Fn(usize) -> bool {
    let last = Cell::new((0, 0));
    move |address| {
        let (start, end) = last.get();
        if (start..end).contains(&address) {
            return true;
        }
        let range = ranges.iter().find(|range| range.contains(&address));
        range
            .inspect(|range| last.set((range.start, range.end)))
            .is_some()
    }
}

/// The role of an object for a driver.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// The driver needs it.
    pub(super) is_needed: bool,
    /// It is the C library, without its mathematics.
    pub(super) is_c_library: bool,
    /// All its functions are watched.
    pub(super) is_mathematics: bool,
    /// The C library has variants of it for different processors.
    pub(super) has_variants: bool,
    /// What it imports is looked at.
    pub(super) is_importer: bool,
}

/// The loaded objects, and those of them that the driver needs.
pub(super) struct World<'a> {
    pub(super) objects: &'a [Object],
    pub(super) closure: &'a [(usize, usize)],
    pub(super) parts: Vec<Part>,
    /// The segments of all objects in order, with the index of their object.
    segments: Vec<(Range<usize>, usize)>,
}

impl<'a> World<'a> {
    pub(super) fn new(objects: &'a [Object], closure: &'a [(usize, usize)]) -> World<'a> {
        let mut parts = vec![Part::default(); objects.len()];
        for (index, _) in closure {
            let object = &objects[*index];
            parts[*index] = Part {
                is_needed: true,
                is_c_library: is_named(object, &C_LIBRARY),
                is_mathematics: is_named(object, &MATHEMATICS),
                has_variants: is_named(object, &WITH_VARIANTS),
                is_importer: object.is_in_a_file() && !is_neutral(&object.name),
            };
        }
        let segments = objects.iter().enumerate();
        let segments = segments.flat_map(|(index, object)| {
            let ranges = object.ranges.iter();
            ranges.map(move |range| (range.clone(), index))
        });
        let mut segments: Vec<_> = segments.collect();
        segments.sort_by_key(|(range, _)| range.start);
        World {
            objects,
            closure,
            parts,
            segments,
        }
    }

    /// Calls the function with the selected objects, by their index.
    ///
    /// # Errors
    /// The index of one that cannot be read, or of one that the driver needs and that is not there any more.
    pub(super) fn each_image(
        &self,
        wanted: impl Fn(usize) -> bool,
        mut each: impl FnMut(usize, &ElfImage) -> Result<(), UnreadableImage>,
    ) -> Result<(), usize> {
        let mut is_read = vec![false; self.objects.len()];
        let mut unreadable = None;
        each_image_of(self.objects, &wanted, |index, image| {
            match each(index, image) {
                Ok(()) => is_read[index] = true,
                Err(UnreadableImage) => unreadable = Some(index),
            }
        });
        let is_gone = |index: &usize| self.parts[*index].is_needed && !is_read[*index];
        let gone = || (0..is_read.len()).find(|index| wanted(*index) && is_gone(index));
        unreadable.or_else(gone).map_or(Ok(()), Err)
    }

    /// The segment that holds an address, and the index of its object.
    fn segment(&self, address: usize) -> Option<&(Range<usize>, usize)> {
        let next = self
            .segments
            .partition_point(|(range, _)| range.start <= address);
        let segment = self.segments.get(next.checked_sub(1)?)?;
        segment.0.contains(&address).then_some(segment)
    }

    pub(super) fn owner(&self, address: usize) -> Option<usize> {
        self.segment(address).map(|(_, owner)| *owner)
    }

    /// The slots of the driver's libraries that a library other than the usual one may answer.
    ///
    /// `is_usual`: whether what a slot has in the object of this index is the usual answer.
    pub(super) fn slots(
        &self,
        watched: &HashMap<usize, WatchedSlots>,
        is_usual: impl Fn(usize) -> bool,
    ) -> Result<Vec<Slot>, Unanswered> {
        let roots: HashMap<usize, usize> = self.closure.iter().copied().collect();
        let mut slots = Vec::new();
        let visited = self.each_image(
            |index| self.parts[index].is_importer,
            |importer, image| {
                let known = watched.get(&importer).ok_or(UnreadableImage)?;
                let is_own = is_in(&self.objects[importer].ranges);
                let mut last: Option<(Range<usize>, bool)> = None;
                let each = |bound: BoundSymbol| {
                    // The function does not exist, and the driver knows that.
                    if bound.value == 0 {
                        return Ok(());
                    }
                    let is_own_code = is_own(bound.value);
                    if is_own_code && !bound.may_be_lazy {
                        return Ok(());
                    }
                    if !is_own_code {
                        if !last
                            .as_ref()
                            .is_some_and(|(range, _)| range.contains(&bound.value))
                        {
                            let segment = self.segment(bound.value);
                            last = segment.map(|(range, owner)| (range.clone(), is_usual(*owner)));
                        }
                        if last.as_ref().is_some_and(|(_, is_usual)| *is_usual) {
                            return Ok(());
                        }
                    }
                    let symbol = image.symbol(bound.symbol).ok_or(UnreadableImage)?;
                    if symbol.address(image) == Some(bound.value) {
                        return Ok(());
                    }
                    let name = image.name(&symbol).ok_or(UnreadableImage)?;
                    if self.parts[importer].is_mathematics && WRITTEN_ONLY.contains(&name) {
                        return Ok(());
                    }
                    slots.push(Slot {
                        root: roots[&importer],
                        name: name.to_owned(),
                        version: image.version(bound.symbol).map(CStr::to_owned),
                        // Otherwise it leads to code of the importing library that calls the dynamic linker.
                        bound: (!is_own_code).then_some(bound.value),
                    });
                    Ok(())
                };
                let mut numbers = image.answered_by_others(&known.relocations, &is_own)?;
                numbers.extend(&known.relocations.numbers);
                image.each_bound(numbers, each)
            },
        );
        match visited {
            Ok(()) => Ok(slots),
            Err(index) => Err(self.unreadable(index)),
        }
    }

    pub(super) fn unreadable(&self, index: usize) -> Unanswered {
        let library = crate::log::path(&self.objects[index].path);
        Unanswered::ForNow(format!("{library} cannot be read, or was unloaded"))
    }

    /// Whether an object belongs to the C library that the driver has: other parts of it know each other, and the driver need not
    /// know all of them.
    pub(super) fn is_of_c_library(&self, object: &Object) -> bool {
        let c_libraries = self.objects.iter().zip(&self.parts);
        let mut c_libraries = c_libraries.filter(|(_, part)| part.is_c_library);
        (is_named(object, &C_LIBRARY) || is_named(object, &WITH_VARIANTS))
            && c_libraries.any(|(known, _)| known.path.parent() == object.path.parent())
    }

    /// Whether an object may answer for functions of the driver's and is not its own.
    pub(super) fn is_foreign(&self, index: usize) -> bool {
        !self.parts[index].is_needed && !is_of_the_kernel(&self.objects[index])
    }

    /// The variants of its functions that the C library has chosen.
    ///
    /// # Errors
    /// The library of this index is not there any more.
    pub(super) fn variants(
        &self,
        watched: &HashMap<usize, WatchedSlots>,
    ) -> Result<Vec<Ingredient>, usize> {
        let is_wanted = |index: usize| self.parts[index].has_variants;
        let mut libraries: Vec<(usize, Vec<CString>)> = Vec::new();
        self.each_image(is_wanted, |index, image| {
            let symbols = watched.get(&index).into_iter();
            let symbols = symbols.flat_map(|known| &known.variants);
            let names = symbols.filter_map(|symbol| image.symbol_name(*symbol as usize));
            libraries.push((index, names.map(CStr::to_owned).collect()));
            Ok(())
        })?;
        let of_library = |(index, mut names): (usize, Vec<CString>)| {
            if names.is_empty() {
                return Ok(None);
            }
            let object = &self.objects[index];
            names.sort();
            names.dedup();
            let scope = Scope::open(Some(&object.path)).ok_or(index)?;
            let mut chosen = String::new();
            for name in &names {
                // A function that only old programs may use because of its version is not found.
                if let Some(address) = scope.find(name, None) {
                    let offset = address.wrapping_sub(object.base);
                    chosen += &format!("{} {offset:#x}\n", name.to_string_lossy());
                }
            }
            let library = String::from_utf8_lossy(&object.name);
            let name = format!("{}{library}", Ingredient::VARIANTS);
            let value = format!("sha256 {}", hex(&sha256(chosen.as_bytes())));
            Ok(Some(Ingredient::new(Kind::Functions, name, value)))
        };
        let libraries = libraries.into_iter().map(of_library);
        libraries.filter_map(Result::transpose).collect()
    }
}
