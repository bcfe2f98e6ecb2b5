//! The names that a driver's libraries look for and that objects have which are not the driver's.
//!
//! Only a slot of such a name can be bound to such an object, so in a usual process no slots but the watched ones have to be looked
//! at. A library that was opened for itself alone (RTLD_LOCAL) counts as well: if it needs a library of the driver's, it comes first where
//! that library looks for its functions.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use super::scopes::Scopes;
use super::world::World;
use crate::driver::elf_image::Symbol;
use crate::driver::imported_names::ImportedNames;
use crate::driver::interchangeable::{
    allocates, is_inert, is_of_exceptions, is_of_standard_library, is_type_of_standard_template,
};
use crate::driver::loaded::Object;
use crate::driver::watched_names::{NameHashes, WatchedNames};

/// What one object has.
#[derive(Default)]
struct ForeignNames {
    /// Names that count.
    names: Vec<CString>,
    /// Names that count unless a library that the object needs has them as well.
    shared: Vec<CString>,
    /// Whether it is an allocator. Some watch where threads begin (jemalloc), and pass that on.
    allocates: bool,
}

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
    /// `is_neutral`: whether what an object answers changes nothing. `opens_by_name`: whether the driver opens the library itself.
    ///
    /// # Errors
    /// The tables of the object of this index cannot be read.
    pub(super) fn foreign_names(
        &self,
        imports: &ImportedNames,
        is_neutral: impl Fn(&Object) -> bool,
        opens_by_name: impl Fn(&Object) -> bool,
        scopes: &mut Scopes,
    ) -> Result<Vec<CString>, usize> {
        let mut found: BTreeMap<usize, ForeignNames> = BTreeMap::new();
        self.each_image(
            |index| self.is_foreign(index),
            |index, image| {
                let is_program = self.objects[index].path.as_os_str().is_empty();
                // A copy is the library's that has the variable.
                let copied = match is_program {
                    true => image.copied(),
                    false => Default::default(),
                };
                let each = |number, symbol, name| {
                    if !copied.contains(&number) {
                        found.entry(index).or_default().add(symbol, name);
                    }
                };
                image.each_exported(|hash| imports.may_have(hash), each)
            },
        )?;
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
            names.extend(of_object.names);
        }
        if !names.is_empty() {
            tracing::debug!(
                ?names,
                "others have names that the driver's libraries look for"
            );
        }
        Ok(names)
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
        self.each_image(is_shared, |_, image| {
            let each = |_, symbol: Symbol, own: &CStr| {
                if symbol.is_weak() {
                    names.retain(|name| name.as_c_str() != own);
                }
            };
            image.each_exported(|hash| wanted.may_have(hash), each)
        })
    }
}
