//! What is known of the imports of a driver's libraries: the relocations that refer to watched functions, and all names that they look
//! for.
//!
//! Both follow from the files of the libraries alone, so they are kept in the cache directory. Each process reads what the slots
//! hold.
//!
//! Looking through all relocations takes 1.4 to 2.0 ms of CPU time (PoCL, Intel's CPU runtime, rusticl; release builds), as much as
//! the rest of a process's first key. To find the names as well takes 5 to 8 ms, once for a driver's files.
//!
//! Later processes compare the names, 115 to 150 KB, with what other objects have, unless they know these objects: see [`super::remembered`].

use std::cell::OnceCell;
use std::collections::HashMap;

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
use crate::driver::watched_names::{NameHashes, WatchedNames};
use crate::framing;

const MAGIC: &[u8] = b"oclcache slots 4";
const NAMES_MAGIC: &[u8] = b"oclcache names of slots 2";

/// Of the libraries that a driver needs, with what is looked for in them.
pub type ListIdentity = [u8; 32];

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
    /// None if what is in memory may not be what is in the file.
    identity: Option<Vec<u8>>,
    /// The number of its relocations.
    relocations: usize,
}

/// What follows from the files of the libraries that a driver needs.
#[derive(Debug)]
pub struct ImportFacts {
    /// By the index of the library.
    pub slots: HashMap<usize, WatchedSlots>,
    /// What tells the libraries from others, by their index. Those of which that is known.
    pub identities: HashMap<usize, Vec<u8>>,
    /// None if one of the libraries is not known.
    pub list: Option<ListIdentity>,
    /// All names that they look for, once they were asked for.
    imports: OnceCell<ImportedNames>,
}

impl ImportFacts {
    /// The facts about all libraries that the driver needs: from the cache directory, or found now and stored there.
    ///
    /// # Errors
    /// The relocations of the library with this index cannot be read.
    pub fn of(
        world: &World,
        identity: impl Fn(&Object) -> Option<Vec<u8>>,
        memory: &dyn FileMemory,
    ) -> Result<ImportFacts, usize> {
        let mut libraries = libraries(world, identity)?;
        // The order of loading has no meaning.
        libraries.sort_by(|one, other| one.identity.cmp(&other.identity));
        let identities = libraries.iter().map(|library| library.identity.as_deref());
        let identities: Option<Vec<&[u8]>> = identities.collect();
        let list = identities.map(|all| list_identity(&wanted(), all.into_iter()));
        let remembered = list.and_then(|list| read(&memory.part(&list).ok()??, &list));
        let fits = |slots: &Vec<WatchedSlots>| {
            let fits = |(slots, library): (&WatchedSlots, &Library)| {
                let mut numbers = slots.relocations.numbers.iter();
                numbers.all(|number| (*number as usize) < library.relocations)
            };
            slots.len() == libraries.len() && slots.iter().zip(&libraries).all(fits)
        };
        let (slots, imports) = match remembered.filter(fits) {
            Some(known) => (known, OnceCell::new()),
            None => {
                let imports = imports(world)?;
                let mut names = vec![NameHashes::of(
                    OF_C_LIBRARY.iter().map(|name| name.as_bytes()),
                )];
                world.each_image(
                    |index| world.parts[index].is_mathematics,
                    |_, image| names.extend(image.exported_names()),
                );
                names.push(names_of_several(world, &imports)?);
                let slots = find(world, &libraries, names)?;
                if let Some(list) = &list {
                    if let Ok(bytes) = framing::encode(MAGIC, &(list, &slots)) {
                        memory.remember_part(list, &bytes);
                    }
                    remember_imports(list, &imports, memory);
                }
                (slots, imports.into())
            }
        };
        let indices = libraries.iter().map(|library| library.index);
        let slots = indices.zip(slots).collect();
        let known = libraries.into_iter();
        let known = known.filter_map(|library| Some((library.index, library.identity?)));
        Ok(ImportFacts {
            slots,
            identities: known.collect(),
            list,
            imports,
        })
    }

    /// All names that the libraries look for. They have a file of their own, which most processes need not read: see
    /// [`super::remembered`].
    ///
    /// # Errors
    /// The relocations of the library with this index cannot be read.
    pub fn imports(&self, world: &World, memory: &dyn FileMemory) -> Result<&ImportedNames, usize> {
        if let Some(known) = self.imports.get() {
            return Ok(known);
        }
        let recalled = self.list.and_then(|list| recall_imports(&list, memory));
        let found = match recalled {
            Some(recalled) => recalled,
            None => {
                let found = imports(world)?;
                if let Some(list) = &self.list {
                    remember_imports(list, &found, memory);
                }
                found
            }
        };
        Ok(self.imports.get_or_init(|| found))
    }
}

/// The slots of these names in all libraries that the driver needs, by the index of the library. They are not kept: few processes have
/// names that others have as well, and each of those its own.
///
/// # Errors
/// The relocations of the library with this index cannot be read.
pub fn of_names(world: &World, names: NameHashes) -> Result<HashMap<usize, WatchedSlots>, usize> {
    let libraries = libraries(world, |_| None)?;
    let slots = find(world, &libraries, vec![names])?;
    let indices = libraries.iter().map(|library| library.index);
    Ok(indices.zip(slots).collect())
}

/// All names that the driver's libraries look for, except the neutral libraries.
fn imports(world: &World) -> Result<ImportedNames, usize> {
    let mut hashes = Vec::new();
    let mut unreadable = None;
    world.each_image(
        |index| world.parts[index].is_importer,
        |index, image| {
            if image.each_imported(|hash| hashes.push(hash)) == Err(UnreadableImage) {
                unreadable = Some(index);
            }
        },
    );
    let hashes = hashes.into_iter();
    unreadable.map_or_else(|| Ok(ImportedNames::of(hashes)), Err)
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
    });
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
    let mut unreadable = None;
    world.each_image(needed, |index, image| {
        let is_neutral = is_neutral(&world.objects[index].name);
        let visited = image.each_exported(
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
        );
        if visited == Err(UnreadableImage) {
            unreadable = Some(index);
        }
    });
    if let Some(index) = unreadable {
        return Err(index);
    }
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
    let mut unreadable = None;
    world.each_image(
        |index| world.parts[index].is_needed,
        |index, image| {
            let part = world.parts[index];
            let relocations = match part.is_importer {
                true => image.relocation_count(),
                false => Ok(0),
            };
            match relocations {
                Ok(relocations) => libraries.push((index, image.layout(), relocations)),
                Err(UnreadableImage) => unreadable = Some(index),
            }
        },
    );
    if let Some(index) = unreadable {
        return Err(index);
    }
    // Not while the dynamic linker holds its lock, since a file may have to be read.
    let library = |(index, layout, relocations): (usize, u64, usize)| {
        let part = world.parts[index];
        // The watched functions of a library depend on its role, and that depends on its name.
        let roles = [part.is_mathematics, part.has_variants, part.is_importer].map(u8::from);
        let identity = identity(&world.objects[index]);
        Library {
            index,
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
    let slots_of = |index: usize, image: &ElfImage| -> Result<WatchedSlots, UnreadableImage> {
        let part = world.parts[index];
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
            found.insert(index, slots_of(index, image));
        },
    );
    let slots = libraries.iter().map(|library| {
        let slots = found.remove(&library.index);
        slots.and_then(Result::ok).ok_or(library.index)
    });
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
fn read(file: &[u8], list: &ListIdentity) -> Option<Vec<WatchedSlots>> {
    let (known, slots): (ListIdentity, _) = framing::decode(MAGIC, file)?;
    (known == *list).then_some(slots)
}

/// The identity of the file of the names that the libraries of a list look for.
fn of_names_file(list: &ListIdentity) -> [u8; 32] {
    list_identity(NAMES_MAGIC, [&list[..]].into_iter())
}

/// None if nobody has found them, or the file is damaged.
fn recall_imports(list: &ListIdentity, memory: &dyn FileMemory) -> Option<ImportedNames> {
    let file = memory.facts(&of_names_file(list)).ok()??;
    let file = FactBytes::read(&file).ok()?;
    let (body, _) = framing::unframe(NAMES_MAGIC, &file)?;
    let names = body.strip_prefix(list)?;
    let start = names.as_ptr() as usize - file.as_ptr() as usize;
    let place = start..start + names.len();
    Some(ImportedNames::in_file(file, place))
}

fn remember_imports(list: &ListIdentity, imports: &ImportedNames, memory: &dyn FileMemory) {
    let body = [&list[..], imports.bytes()].concat();
    if let Ok(bytes) = framing::frame(NAMES_MAGIC, &body) {
        memory.remember_facts(&of_names_file(list), &bytes);
    }
}

#[cfg(test)]
mod tests;
