//! What is known of the imports of a driver's libraries: the relocations that refer to watched functions, all names that they look for,
//! and the relocations that refer to names which other objects of a program have as well.
//!
//! All follow from the files of the libraries, and the last from those names, so they are kept in the cache directory. Each process reads
//! what the slots hold.
//!
//! Looking through all relocations takes 1.4 to 2.0 ms of CPU time (PoCL, Intel's CPU runtime, rusticl; release builds), as much as
//! the rest of a process's first key. To find the names as well takes 5 to 8 ms, once for a driver's files.
//!
//! Later processes read the names from a file of 115 to 150 KB, and compare them with what other objects have. All that a first key needs
//! from here took 0.42 to 0.98 ms without that, and takes 0.52 to 1.08 ms with it (PoCL, rusticl, Intel's CPU runtime and GPU driver;
//! the least of 15 runs, a program in C). It is 0.1 to 0.17 ms more in C++, and 0.2 to 0.27 ms more with PyOpenCL, whose objects have
//! 17,000 names.
//!
//! Hashes have 31 bits that count, so of 17,000 names one in six programs has one of a driver's 21,000 to 29,000 by chance: OpenSSL's
//! `ZINT32_it` on PoCL, rusticl and Intel's GPU driver. Large programs have some of their own. A PyOpenCL program that imports `ssl` needs
//! 0.6 ms from here for its first key, and needed 1.6 when it looked through all relocations.

use std::collections::HashMap;
use std::ffi::CString;

use serde::{Deserialize, Serialize};

use super::world::World;
use crate::driver::elf_image::{ElfImage, UnreadableImage, WatchedRelocations};
use crate::driver::file_memory::{FileMemory, list_identity};
use crate::driver::imported_names::ImportedNames;
use crate::driver::interchangeable::{allocates, is_of_standard_library};
use crate::driver::key_neutral::is_neutral;
use crate::driver::loaded::Object;
use crate::driver::look::FactBytes;
use crate::driver::watched_functions::OF_C_LIBRARY;
use crate::driver::watched_names::{NameHashes, WatchedNames, hash};
use crate::framing;

const MAGIC: &[u8] = b"oclcache slots 3";
const NAMES_MAGIC: &[u8] = b"oclcache names of slots 1";
const FOREIGN_MAGIC: &[u8] = b"oclcache slots of foreign names 1";

/// The facts that follow from the file of a library that a driver needs.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedSlots {
    /// Whether it exports a watched function.
    pub exports_any: bool,
    /// The relocations of watched functions.
    pub relocations: WatchedRelocations,
    /// The symbol numbers of functions with variants, if those are watched.
    pub variants: Vec<u32>,
}

/// A library and its identity.
struct Library {
    index: usize,
    layout: u64,
    /// None if what is in memory may not be what is in the file.
    identity: Option<Vec<u8>>,
    /// The number of its relocations.
    relocations: usize,
}

/// The libraries that a driver needs, in the order of their identities: the order of loading has no meaning.
pub struct Libraries(Vec<Library>);

/// What follows from the files of the libraries that a driver needs.
#[derive(Debug, PartialEq)]
pub struct ImportFacts {
    /// By the index of the library.
    pub slots: HashMap<usize, WatchedSlots>,
    /// All names that they look for.
    pub imports: ImportedNames,
}

impl Libraries {
    /// Those of a driver.
    ///
    /// # Errors
    /// The relocations of the library with this index cannot be read.
    pub fn of(
        world: &World,
        identity: impl Fn(&Object) -> Option<Vec<u8>>,
    ) -> Result<Libraries, usize> {
        let mut libraries = libraries(world, identity)?;
        libraries.sort_by(|one, other| one.identity.cmp(&other.identity));
        Ok(Libraries(libraries))
    }

    /// The facts about all of them: from the cache directory, or found now and stored there.
    ///
    /// # Errors
    /// The relocations of the library with this index cannot be read.
    pub fn facts(&self, world: &World, memory: &dyn FileMemory) -> Result<ImportFacts, usize> {
        let list = self.identity(&wanted());
        let remembered = list.and_then(|list| read(memory.part(&list).ok()??, &list));
        let (slots, imports) = match remembered.filter(|(slots, _)| self.fit(slots)) {
            Some(known) => known,
            None => {
                let imports = imports(world)?;
                let mut names = vec![NameHashes::of(
                    OF_C_LIBRARY.iter().map(|name| name.as_bytes()),
                )];
                world.each_image(
                    |index| world.parts[index].is_mathematics,
                    |_, image| {
                        names.extend(image.exported_names());
                        Ok(())
                    },
                )?;
                names.push(names_of_several(world, &imports)?);
                let slots = find(world, &self.0, names)?;
                if let Some((list, bytes)) =
                    list.and_then(|list| Some((list, write(&list, &slots, &imports)?)))
                {
                    memory.remember_part(&list, &bytes);
                }
                (slots, imports)
            }
        };
        let slots = self.by_index(slots);
        Ok(ImportFacts { slots, imports })
    }

    /// The slots of these names in all of them, by the index of the library: from the cache directory, or found now and stored there.
    /// Each program with such names has its own, and the same ones at each start.
    ///
    /// # Errors
    /// The relocations of the library with this index cannot be read.
    pub fn slots_of(
        &self,
        world: &World,
        names: &[CString],
        memory: &dyn FileMemory,
    ) -> Result<HashMap<usize, WatchedSlots>, usize> {
        let mut hashes: Vec<u32> = names.iter().map(|name| hash(name.to_bytes())).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let mut wanted = FOREIGN_MAGIC.to_vec();
        let numbers = [hashes.len() as u32]
            .into_iter()
            .chain(hashes.iter().copied());
        wanted.extend(numbers.flat_map(u32::to_le_bytes));
        let list = self.identity(&wanted);
        let remembered = list.and_then(|list| {
            let bytes = memory.part(&list).ok()??;
            let (known, slots): ([u8; 32], _) = framing::decode(FOREIGN_MAGIC, &bytes)?;
            (known == list).then_some(slots)
        });
        let slots = match remembered.filter(|slots: &Vec<WatchedSlots>| self.fit(slots)) {
            Some(known) => known,
            None => {
                let slots = find(world, &self.0, vec![NameHashes::List(hashes)])?;
                if let Some(list) = list
                    && let Ok(bytes) = framing::encode(FOREIGN_MAGIC, &(list, &slots))
                {
                    memory.remember_part(&list, &bytes);
                }
                slots
            }
        };
        Ok(self.by_index(slots))
    }

    /// The digest of a search in them; None if one of them may not be its file.
    fn identity(&self, wanted: &[u8]) -> Option<[u8; 32]> {
        let identities = self.0.iter().map(|library| library.identity.as_deref());
        let identities: Option<Vec<&[u8]>> = identities.collect();
        identities.map(|all| list_identity(wanted, all.into_iter()))
    }

    /// Whether they have all these relocations.
    fn fit(&self, slots: &[WatchedSlots]) -> bool {
        let fits = |(slots, library): (&WatchedSlots, &Library)| {
            let mut numbers = slots.relocations.numbers.iter();
            numbers.all(|number| (*number as usize) < library.relocations)
        };
        slots.len() == self.0.len() && slots.iter().zip(&self.0).all(fits)
    }

    fn by_index(&self, slots: Vec<WatchedSlots>) -> HashMap<usize, WatchedSlots> {
        let indices = self.0.iter().map(|library| library.index);
        indices.zip(slots).collect()
    }
}

/// All names that the driver's libraries look for, except the neutral libraries.
fn imports(world: &World) -> Result<ImportedNames, usize> {
    let mut hashes = Vec::new();
    world.each_image(
        |index| world.parts[index].is_importer,
        |_, image| image.each_imported(|hash| hashes.push(hash)),
    )?;
    Ok(ImportedNames::of(hashes.into_iter()))
}

/// The imported names that several of the driver's libraries have. Which of them answers depends on what the program is linked with,
/// for this comes before the order in which the driver needs them.
///
/// Not those that C++ requires to be the same: what is weak in all of them, if all of them are in the key, and what is the standard
/// library's and weak in one of them. (PoCL's library has type information of the standard library that is not weak.)
fn names_of_several(world: &World, imports: &ImportedNames) -> Result<NameHashes, usize> {
    let needed = |index: usize| world.parts[index].is_needed;
    let mut hashes: Vec<u32> = Vec::new();
    world.each_image(needed, |_, image| {
        let names = image.exported_names();
        let mut own: Vec<u32> = names.iter().flat_map(NameHashes::hashes).collect();
        own.retain(|hash| imports.may_have(*hash));
        own.sort_unstable();
        own.dedup();
        hashes.extend(own);
        Ok(())
    })?;
    hashes.sort_unstable();
    let several = hashes.chunk_by(|one, other| one == other);
    let several = several
        .filter(|equal| equal.len() > 1)
        .map(|equal| equal[0]);
    let several = NameHashes::List(several.collect());
    /// How the libraries have a name.
    struct Definitions {
        count: usize,
        all_weak: bool,
        any_weak: bool,
        all_neutral: bool,
        any_neutral: bool,
    }
    let mut found: HashMap<Vec<u8>, Definitions> = HashMap::new();
    world.each_image(needed, |index, image| {
        let is_neutral = is_neutral(&world.objects[index].name);
        image.each_exported(
            |hash| several.has(hash & !1),
            |_, symbol, name| {
                let first = Definitions {
                    count: 0,
                    all_weak: true,
                    any_weak: false,
                    all_neutral: true,
                    any_neutral: false,
                };
                let known = found.entry(name.to_bytes().to_vec()).or_insert(first);
                known.count += 1;
                known.all_weak &= symbol.is_weak();
                known.any_weak |= symbol.is_weak();
                known.all_neutral &= is_neutral;
                known.any_neutral |= is_neutral;
            },
        )
    })?;
    let counts = |(name, known): &(&Vec<u8>, &Definitions)| {
        let are_same =
            known.all_weak && !known.any_neutral || known.any_weak && is_of_standard_library(name);
        known.count > 1 && !known.all_neutral && !are_same && !allocates(name)
    };
    let names = found.iter().filter(counts);
    Ok(NameHashes::of(names.map(|(name, _)| name.as_slice())))
}

/// The digest of the watched functions: facts about another list must not be used.
fn wanted() -> Vec<u8> {
    let mut wanted = MAGIC.to_vec();
    for name in OF_C_LIBRARY {
        wanted.extend(name.as_bytes());
        wanted.push(0);
    }
    wanted
}

/// The libraries that the driver needs.
fn libraries(
    world: &World,
    identity: impl Fn(&Object) -> Option<Vec<u8>>,
) -> Result<Vec<Library>, usize> {
    let mut libraries = Vec::new();
    world.each_image(
        |index| world.parts[index].is_needed,
        |index, image| {
            let part = world.parts[index];
            let relocations = match part.is_importer {
                true => image.relocation_count()?,
                false => 0,
            };
            libraries.push((index, image.layout(), relocations));
            Ok(())
        },
    )?;
    // Not while the dynamic linker holds its lock, since a file may have to be read.
    let library = |(index, layout, relocations): (usize, u64, usize)| {
        let part = world.parts[index];
        // The watched functions of a library depend on its role, and that depends on its name.
        let roles = [part.is_mathematics, part.has_variants, part.is_importer].map(u8::from);
        let identity = identity(&world.objects[index]);
        Library {
            index,
            layout,
            identity: identity.map(|known| [&roles[..], &layout.to_le_bytes(), &known].concat()),
            relocations,
        }
    };
    Ok(libraries.into_iter().map(library).collect())
}

/// Looks through all relocations of the libraries.
fn find(
    world: &World,
    libraries: &[Library],
    names: Vec<NameHashes>,
) -> Result<Vec<WatchedSlots>, usize> {
    let names = WatchedNames::of(names);
    let layouts: HashMap<usize, u64> = libraries
        .iter()
        .map(|library| (library.index, library.layout))
        .collect();
    let slots_of = |index: usize, image: &ElfImage| -> Result<WatchedSlots, UnreadableImage> {
        let part = world.parts[index];
        // Another thread may have unloaded it, and loaded another one there. That must not be remembered of this one.
        if layouts.get(&index) != Some(&image.layout()) {
            return Err(UnreadableImage);
        }
        let own = image.watched_symbols(&names);
        let relocations = match part.is_importer {
            true => image.watched_relocations(&own, &names)?,
            false => Default::default(),
        };
        let variants = match part.has_variants {
            true => image.variants().map(u32::try_from).collect(),
            false => Ok(Vec::new()),
        };
        Ok(WatchedSlots {
            exports_any: own.any,
            relocations,
            variants: variants.map_err(|_| UnreadableImage)?,
        })
    };
    let mut found = HashMap::new();
    world.each_image(
        |index| world.parts[index].is_needed,
        |index, image| {
            found.insert(index, slots_of(index, image)?);
            Ok(())
        },
    )?;
    let slots = libraries
        .iter()
        .map(|library| found.remove(&library.index).ok_or(library.index));
    let slots: Vec<WatchedSlots> = slots.collect::<Result<_, _>>()?;
    let relocations: usize = libraries.iter().map(|library| library.relocations).sum();
    let watched: usize = slots.iter().map(|slots| slots.relocations.count()).sum();
    tracing::debug!(
        relocations,
        watched,
        "relocations of watched functions were looked for"
    );
    Ok(slots)
}

/// None if it is damaged, or of another list.
fn read(bytes: FactBytes, list: &[u8; 32]) -> Option<(Vec<WatchedSlots>, ImportedNames)> {
    let (names, slots) = framing::unframe(NAMES_MAGIC, &bytes)?;
    let (known, slots): ([u8; 32], _) = framing::decode(MAGIC, slots)?;
    let start = names.as_ptr() as usize - bytes.as_ptr() as usize;
    let place = start..start + names.len();
    (known == *list).then(|| (slots, ImportedNames::in_file(bytes, place)))
}

fn write(list: &[u8; 32], slots: &[WatchedSlots], imports: &ImportedNames) -> Option<Vec<u8>> {
    let names = framing::frame(NAMES_MAGIC, imports.bytes()).ok()?;
    let slots = framing::encode(MAGIC, &(list, slots)).ok()?;
    Some([names, slots].concat())
}

#[cfg(test)]
mod tests;
