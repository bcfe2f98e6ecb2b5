//! The names that a driver's libraries look for and that objects have which are not the driver's.
//!
//! Only a slot of such a name can be bound to such an object, so in a usual process no slots but the watched ones have to be looked
//! at. A library that was opened for itself alone (RTLD_LOCAL) counts as well: if it needs a library of the driver's, it comes first where
//! that library looks for its functions.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::remembered::{Digest, Remembered};
use super::scopes::Scopes;
use super::world::World;
use crate::driver::elf_image::{ElfImage, Symbol, UnreadableImage};
use crate::driver::imported_names::ImportedNames;
use crate::driver::interchangeable::{
    RULES, allocates, is_inert, is_of_exceptions, is_of_standard_library,
    is_type_of_standard_template,
};
use crate::driver::loaded::Object;
use crate::driver::watched_names::{NameHashes, WatchedNames};

/// What one object has.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct ForeignNames {
    /// Names that count.
    names: Vec<CString>,
    /// Names that count unless a library that the object needs has them as well.
    shared: Vec<CString>,
    /// Whether it is an allocator. Some watch where threads begin (jemalloc), and pass that on.
    allocates: bool,
}

/// An object with more names is looked at by each process.
const MAX_REMEMBERED: usize = 64;

impl ForeignNames {
    fn add(&mut self, symbol: Symbol, name: &CStr) {
        let text = name.to_bytes();
        self.allocates |= text == b"malloc";
        let is_interchangeable = allocates(text)
            || is_of_exceptions(text)
            || (symbol.is_weak() || symbol.is_data() && is_inert(text))
                && is_of_standard_library(text);
        if is_interchangeable {
            return;
        }
        match symbol.is_weak() && is_type_of_standard_template(text) {
            true => self.shared.push(name.to_owned()),
            false => self.names.push(name.to_owned()),
        }
    }
}

impl World<'_> {
    /// The names that the driver's libraries look for and foreign objects have, except those for which any definition will do.
    ///
    /// `imports`: all names that they look for. `remembered`: what is known of objects. `content`: what tells an object's content from
    /// others. `is_neutral`: whether what an object answers changes nothing. `opens_by_name`: whether the driver opens the library itself.
    ///
    /// # Errors
    /// The tables of the object of this index cannot be read.
    pub(super) fn foreign_names<'i>(
        &self,
        imports: impl FnOnce() -> Result<&'i ImportedNames, usize>,
        remembered: Remembered<ForeignNames>,
        content: impl Fn(&Object) -> Option<Vec<u8>>,
        is_neutral: impl Fn(&Object) -> bool,
        opens_by_name: impl Fn(&Object) -> bool,
        scopes: &mut Scopes,
    ) -> Result<Option<NameHashes>, usize> {
        // Not while the dynamic linker holds its lock, since files may be asked.
        let foreign = (0..self.objects.len()).filter(|index| self.is_foreign(*index));
        let contents = foreign.map(|index| (index, content(&self.objects[index])));
        let contents: BTreeMap<usize, Option<Vec<u8>>> = contents.collect();
        let mut digests: BTreeMap<usize, Option<Digest>> = BTreeMap::new();
        self.each_image(
            |index| contents.contains_key(&index),
            |index, image| {
                let content = contents[&index].as_ref();
                let digest = content.map(|content| self.digest_of(index, image, content));
                // Of two objects with one base it is not known which one has the content.
                let first = digests.entry(index).and_modify(|digest| *digest = None);
                first.or_insert(digest);
            },
        );
        let mut found: BTreeMap<usize, ForeignNames> = BTreeMap::new();
        let mut unknown: BTreeMap<usize, Option<Digest>> = BTreeMap::new();
        for (index, digest) in digests {
            match digest.and_then(|digest| remembered.get(&digest)) {
                Some(known) => found.insert(index, known.clone()).map(drop),
                None => unknown.insert(index, digest).map(drop),
            };
        }
        if !unknown.is_empty() {
            let paths = unknown.keys().map(|index| &self.objects[*index].path);
            let objects: Vec<_> = paths.collect();
            tracing::debug!(?objects, "names of objects that are not known are compared");
            let new = self.compared_names(imports()?, |index| unknown.contains_key(&index))?;
            let digest = |(index, names): (&usize, &ForeignNames)| {
                let count = names.names.len() + names.shared.len();
                let digest = unknown.get(index).copied().flatten();
                Some((digest.filter(|_| count <= MAX_REMEMBERED)?, names.clone()))
            };
            remembered.add(new.iter().filter_map(digest).collect());
            found.extend(new);
        }
        let mut names = Vec::new();
        for (index, mut of_object) in found {
            if of_object.allocates {
                of_object
                    .names
                    .retain(|name| name.as_c_str() != c"pthread_create");
            }
            let object = &self.objects[index];
            self.remove_shared(object, &mut of_object.shared)?;
            of_object.names.append(&mut of_object.shared);
            let is_empty = of_object.names.is_empty();
            if is_empty || is_neutral(object) || self.is_of_c_library(object) {
                continue;
            }
            // Not while the dynamic linker holds its lock, since it is asked and paths are looked up.
            if opens_by_name(object) {
                of_object.names.retain(|name| scopes.has_usual(name));
            }
            names.append(&mut of_object.names);
        }
        if names.is_empty() {
            return Ok(None);
        }
        tracing::debug!(
            ?names,
            "others have names that the driver's libraries look for"
        );
        let hashes = names.iter().map(|name| name.to_bytes());
        Ok(Some(NameHashes::of(hashes)))
    }

    /// The names that these objects have and the driver's libraries look for.
    ///
    /// # Errors
    /// The tables of the object of this index cannot be read.
    fn compared_names(
        &self,
        imports: &ImportedNames,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<BTreeMap<usize, ForeignNames>, usize> {
        let mut found: BTreeMap<usize, ForeignNames> = BTreeMap::new();
        let mut unreadable = None;
        self.each_image(wanted, |index, image| {
            // A copy is the library's that has the variable.
            let copied = match self.is_program(index) {
                true => image.copied(),
                false => Default::default(),
            };
            let names = found.entry(index).or_default();
            let each = |number, symbol, name| {
                if !copied.contains(&number) {
                    names.add(symbol, name);
                }
            };
            let visited = image.each_exported(|hash| imports.may_have(hash), each);
            if visited == Err(UnreadableImage) {
                unreadable = Some(index);
            }
        });
        unreadable.map_or(Ok(found), Err)
    }

    fn is_program(&self, index: usize) -> bool {
        self.objects[index].path.as_os_str().is_empty()
    }

    /// What tells an object from all others, as far as its names go.
    ///
    /// The hashes of the names are in it as well: who edits a library may keep its build-id and its layout.
    fn digest_of(&self, index: usize, image: &ElfImage, content: &[u8]) -> Digest {
        let mut text = vec![RULES, u8::from(self.is_program(index))];
        text.extend(image.layout().to_le_bytes());
        text.extend(image.digest_of_exported().to_le_bytes());
        text.extend(content);
        xxh3_128(&text).to_le_bytes()
    }

    /// Removes the names that libraries of the driver's have which the object needs, so that it was made from their headers.
    ///
    /// # Errors
    /// The tables of the object of this index cannot be read.
    fn remove_shared(&self, object: &Object, names: &mut Vec<CString>) -> Result<(), usize> {
        if names.is_empty() {
            return Ok(());
        }
        let hashes = NameHashes::of(names.iter().map(|name| name.to_bytes()));
        let wanted = WatchedNames::of(vec![hashes]);
        let is_shared =
            |index: usize| self.parts[index].is_needed && object.needs(&self.objects[index]);
        let mut unreadable = None;
        self.each_image(is_shared, |index, image| {
            let each = |_, symbol: Symbol, own: &CStr| {
                if symbol.is_weak() {
                    names.retain(|name| name.as_c_str() != own);
                }
            };
            if image.each_exported(|hash| wanted.may_have(hash), each) == Err(UnreadableImage) {
                unreadable = Some(index);
            }
        });
        unreadable.map_or(Ok(()), Err)
    }
}
