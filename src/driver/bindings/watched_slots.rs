//! The relocations of a driver's libraries that refer to watched functions.
//!
//! They follow from the files of the libraries alone, so they are kept in the cache directory. Each process reads what the slots
//! hold.
//!
//! Looking through all relocations takes 1.4 to 2.0 ms of CPU time (PoCL, Intel's CPU runtime, rusticl; release builds), as much as
//! the rest of a process's first key.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::super::elf_image::{ElfImage, UnreadableImage, WatchedRelocations};
use super::super::watched_functions::OF_C_LIBRARY;
use super::super::watched_names::{NameHashes, WatchedNames};
use super::{FileMemory, Object, World};
use crate::driver::identity::list_identity;

const MAGIC: &[u8] = b"oclcache slots 1";
/// A driver has some hundred slots.
const MAX_SIZE: u64 = 1 << 20;

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

impl WatchedSlots {
    /// The slots of all libraries that the driver needs, by index: from the cache directory, or found now and stored there.
    ///
    /// # Errors
    /// The relocations of the library with this index cannot be read.
    pub fn of(
        world: &World,
        identity: impl Fn(&Object) -> Option<Vec<u8>>,
        memory: &dyn FileMemory,
    ) -> Result<HashMap<usize, WatchedSlots>, usize> {
        let mut libraries = libraries(world, identity)?;
        // The order of loading has no meaning.
        libraries.sort_by(|one, other| one.identity.cmp(&other.identity));
        let identities = libraries.iter().map(|library| library.identity.as_deref());
        let identities: Option<Vec<&[u8]>> = identities.collect();
        let list = identities.map(|all| list_identity(&wanted(), all.into_iter()));
        let remembered = list.and_then(|list| read(memory.facts(&list)?, &list));
        let fits = |slots: &Vec<WatchedSlots>| {
            let fits = |(slots, library): (&WatchedSlots, &Library)| {
                let mut numbers = slots.relocations.numbers.iter();
                numbers.all(|number| (*number as usize) < library.relocations)
            };
            slots.len() == libraries.len() && slots.iter().zip(&libraries).all(fits)
        };
        let slots = match remembered.filter(fits) {
            Some(slots) => slots,
            None => {
                let slots = find(world, &libraries)?;
                if let Some((list, bytes)) =
                    list.and_then(|list| Some((list, write(&list, &slots)?)))
                {
                    memory.remember_facts(&list, &bytes);
                }
                slots
            }
        };
        let indices = libraries.iter().map(|library| library.index);
        Ok(indices.zip(slots).collect())
    }
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
fn find(world: &World, libraries: &[Library]) -> Result<Vec<WatchedSlots>, usize> {
    let mut names = vec![NameHashes::of(
        OF_C_LIBRARY.iter().map(|name| name.as_bytes()),
    )];
    world.each_image(
        |index| world.parts[index].is_mathematics,
        |_, image| names.extend(image.exported_names()),
    );
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
fn read(file: File, list: &[u8; 32]) -> Option<Vec<WatchedSlots>> {
    let mut bytes = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut bytes).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(list)?;
    let (checksum, body) = rest.split_first_chunk()?;
    let is_whole = xxh3_64(body) == u64::from_le_bytes(*checksum);
    is_whole.then(|| postcard::from_bytes(body).ok()).flatten()
}

fn write(list: &[u8; 32], slots: &[WatchedSlots]) -> Option<Vec<u8>> {
    let body = postcard::to_stdvec(slots).ok()?;
    let checksum = xxh3_64(&body).to_le_bytes();
    Some([MAGIC, list, &checksum, &body].concat())
}

#[cfg(test)]
mod tests;
