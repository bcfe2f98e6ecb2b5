//! Which functions answer when a driver's libraries call functions of the C library and of each other.
//!
//! Another library can answer: a preloaded one, one that the application is linked with and that has its own `exp` or a function of
//! LLVM's, or one that a tool has put into the tables by which libraries call each other. Then the driver folds other constants, reads
//! other variables and files, or compiles with other functions (measured on PoCL 3.1, rusticl 22.3, Intel's CPU runtime 2026.2). The
//! values of LD_PRELOAD and its like do not suffice: names have `$LIB` in them, and a library can remove itself from the variable. So
//! the addresses to which the relocations of the driver's libraries are bound are read, and compared with those that the driver's own
//! libraries would give.
//!
//! A driver's libraries have 20,000 to 60,000 such slots. Two kinds are read:
//!
//! - Those of the mathematics and of functions that read something (`watched_functions`), always: a tool may write to slots without a
//!   function of that name. So are those of names that several of the driver's libraries have, because what the program is linked with
//!   decides which of them comes first.
//! - Those of names that an object has which is not the driver's (`foreign_names`). Usually there is none. To tell that, the names that
//!   the driver's libraries look for are kept in the cache directory, and compared with the hashes of what the objects have.
//!
//! Usually the key holds nothing of this except which variants of the mathematical functions the C library has chosen for this
//! processor: GLIBC_TUNABLES changes that, and with it the last bits of what LLVM folds (measured). If another library answers, the
//! key has its name and identity, its functions and their offsets. A preloaded library that answers nothing (a tracer) is not in the
//! key, and neither is one that answers what any may (`interchangeable`): an allocator, or instances of the C++ standard library's
//! templates.
//!
//! In most processes both have been found before, and are not looked at any more: see [`remembered`].
//!
//! If a slot is not bound yet, the dynamic linker's choice is computed: first from what is visible to all libraries, then from what
//! the driver's own library needs.
//!
//! A baker cannot reproduce a library that answers. See [`Ingredient::is_reproducible`].

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use super::elf_image::{ElfImage, IS_READ};
use super::file_memory::FileMemory;
use super::files::matches;
use super::identity::build_id_value;
use super::loaded::{self, Changes, Object};
use super::moment::Moment;
use super::profile::DriverFiles;
use super::{Driver, linker_state, process_variables};
use crate::fork_safety::Mutex;
use crate::key::ingredients::{Ingredient, Kind};
use crate::linker_lock;
use crate::outcome::Bypass;
use remembered::Remembered;
pub(super) use scopes::Scope;
use scopes::{ForeignAnswers, Scopes, proven_content};
use watched_slots::ImportFacts;
use world::World;

mod foreign_names;
mod remembered;
mod scopes;
mod stand_ins;
mod watched_slots;
mod world;

/// What the files begin with that remember what names objects have, and what answers in a state of the slots.
const OBJECTS: &[u8] = b"oclcache objects 1";
const SLOTS: &[u8] = b"oclcache answers 1";

/// The bindings at a moment.
#[derive(Default)]
pub struct Bindings(Mutex<Option<(Changes, Answer)>>);

/// The ingredients, or why the bindings cannot be told.
type Answer = Result<Arc<[Ingredient]>, Bypass>;

impl Driver {
    /// The part of a key that tells which functions answer the driver's libraries. Found again after libraries were loaded or
    /// unloaded. `moment`: of those that were loaded then.
    ///
    /// # Errors
    /// A function is in no library that is known.
    pub fn bindings(&self, moment: Option<&Moment>, memory: &dyn FileMemory) -> Answer {
        let changes = moment.map_or_else(loaded::changes, |moment| moment.loaded.changes);
        let is_first = match &*self.bindings.0.lock() {
            Some((then, answer)) if *then == changes => return answer.clone(),
            known => known.is_none(),
        };
        // Without the lock, since the dynamic linker is asked.
        let started = std::time::Instant::now();
        let answer = linker_lock::complete(|| match moment {
            Some(moment) => self.find_bindings(&moment.loaded.objects, is_first, memory),
            None => self.find_bindings(&loaded::objects(), is_first, memory),
        });
        let answer = answer.ok_or(Bypass::OpeningLibrary)?;
        tracing::debug!(
            us = started.elapsed().as_micros(),
            "looked up which functions answer the driver"
        );
        *self.bindings.0.lock() = Some((changes, answer.clone()));
        answer
    }

    /// Whether the same functions still answer: slots are bound at the first call, and tools write to them.
    pub(super) fn has_bindings(&self, ingredients: &[Ingredient], memory: &dyn FileMemory) -> bool {
        let now = || self.find_bindings(&loaded::objects(), false, memory);
        let Some(Ok(now)) = linker_lock::complete(now) else {
            return false;
        };
        let then = ingredients.iter().filter(|one| one.kind == Kind::Functions);
        then.eq(now.iter())
    }

    /// `is_first`: nothing was found in this process before.
    fn find_bindings(&self, objects: &[Object], is_first: bool, memory: &dyn FileMemory) -> Answer {
        if !IS_READ {
            return Err(Bypass::UnidentifiedFunction);
        }
        if is_audited() {
            tracing::warn!(
                "a library audits this program (LD_AUDIT), and may answer for any function: nothing is cached"
            );
            return Err(Bypass::UnidentifiedFunction);
        }
        let is_own = self.is_own_library();
        let is_start = |object: &Object| {
            let is_opened_by_it = |files: &DriverFiles| match files {
                // Modules of Python have names like those of plug-ins.
                DriverFiles::PlugIns(directory, pattern) => {
                    object
                        .path
                        .parent()
                        .is_some_and(|at| at.ends_with(directory))
                        && object.is_named(|name| matches(pattern, name))
                }
                DriverFiles::Library(pattern) => object.is_named(|name| matches(pattern, name)),
                DriverFiles::Beside(..) | DriverFiles::At(..) | DriverFiles::Gcc(_) => false,
            };
            is_own(object)
                || self.profile.files.iter().any(is_opened_by_it)
                || self.layer.is_some() && object.is_layer_of_another()
        };
        let closure = loaded::closure_by_root(objects, |index| is_start(&objects[index]));
        let world = World::new(objects, &closure);
        let proven = self.proven_libraries();
        let known = |object: &Object| {
            let build_id = object.build_id.as_deref().map(build_id_value);
            build_id.or_else(|| proven?.get(&object.base).cloned())
        };
        let mappings = OnceCell::new();
        let identity =
            |object: &Object| known(object).or_else(|| proven_content(object, &mappings, memory));
        let facts = ImportFacts::of(&world, identity, memory);
        let facts = facts.map_err(|index| world.unreadable(index))?;
        let variants = world.variants(&facts.slots);
        let mut ingredients =
            self.foreign_answers(&world, &facts, &variants, known, is_first, memory)?;
        ingredients.extend(variants);
        Ok(ingredients.into())
    }

    /// An ingredient for each library that answers instead of the usual one.
    ///
    /// `variants`: those of the mathematics that the C library has chosen. `content`: what tells an object's content from others, if that
    /// is known without reading it.
    fn foreign_answers(
        &self,
        world: &World,
        facts: &ImportFacts,
        variants: &[Ingredient],
        content: impl Fn(&Object) -> Option<Vec<u8>>,
        is_first: bool,
        memory: &dyn FileMemory,
    ) -> Result<Vec<Ingredient>, Bypass> {
        // libclang imports mostly from libLLVM. That libLLVM has no `exp` is found faster at once than name by name.
        let is_usual = |owner: usize| {
            let known = facts.slots.get(&owner);
            world.parts[owner].is_c_library || known.is_some_and(|known| !known.exports_any)
        };
        let bound = world.bound(&facts.slots, &is_usual)?;
        let unreadable = |index| world.unreadable(index);
        let is_neutral = |object: &Object| object.is_named(|name| memory.is_neutral_library(name));
        let opens_by_name = |object: &Object| self.opens_by_name(object);
        let mut scopes = Scopes::new(world);
        let imports = || facts.imports(world, memory);
        // The state of the file serves as well: what is in memory is in the digest.
        let content = |object: &Object| {
            let state = || postcard::to_stdvec(&memory.state(path_of(object))?).ok();
            content(object).or_else(state)
        };
        let of_objects = Remembered::of(OBJECTS, facts.list, is_first, memory);
        let names = world.foreign_names(
            imports,
            of_objects,
            content,
            is_neutral,
            opens_by_name,
            &mut scopes,
        );
        let names = names.map_err(unreadable)?;
        // Complete: while the dynamic linker answers nothing, all would seem to be usual.
        let found = linker_lock::complete(|| {
            let may_be_known = names.is_none();
            let bound = scopes.resolved(bound, &is_usual)?;
            let state = world.digest(&bound, &facts.identities, variants);
            let state = state.filter(|_| may_be_known).map(|state| {
                let of_slots: Remembered<Vec<ForeignAnswers>> =
                    Remembered::of(SLOTS, facts.list, is_first, memory);
                (state, of_slots)
            });
            let known = state.as_ref().and_then(|(state, all)| all.get(state));
            let is_neutral = |answers: &ForeignAnswers| answers.is_neutral(memory);
            // The same code answers as then.
            if let Some(known) = known.filter(|known| !known.iter().any(is_neutral)) {
                return Ok((known.clone(), None));
            }
            let mut slots = world.slots(&bound)?;
            if let Some(names) = names {
                let others = watched_slots::of_names(world, names).map_err(unreadable)?;
                let is_usual = |owner: usize| world.parts[owner].is_needed;
                let others = scopes.resolved(world.bound(&others, is_usual)?, is_usual)?;
                slots.extend(world.slots(&others)?);
            }
            let (foreign, are_all) = scopes.foreign(slots, opens_by_name, memory)?;
            Ok((foreign, state.filter(|_| are_all && scopes.are_open())))
        });
        let (foreign, new) = found.ok_or(Bypass::OpeningLibrary)??;
        if let Some((state, of_slots)) = new {
            of_slots.add([(state, foreign.clone())].into());
        }
        let ingredients = foreign.into_iter().map(|answers| answers.ingredient);
        Ok(ingredients.collect())
    }

    /// Whether the driver opens a library by its name, so that its identity is in the key or neutral.
    fn opens_by_name(&self, object: &Object) -> bool {
        let known = self.identity.get().and_then(Option::as_ref);
        known.is_some_and(|known| {
            let path = known.real_path(object);
            object.is_in_a_file() && path.is_some_and(|path| known.is_own(&path))
        })
    }
}

/// Whether a library audits the dynamic linker, and may change bindings (rtld-audit(7)).
///
/// Where the C library does not tell that none does, the variable is also looked for in what the process was started with: the library
/// may remove it from the environment.
fn is_audited() -> bool {
    if linker_state::has_one_namespace() {
        return false;
    }
    let at_start = process_variables::at_start().unwrap_or_default();
    let mut variables = at_start.split(|byte| *byte == 0);
    let names_one = |variable: &[u8]| {
        let value = variable.strip_prefix(b"LD_AUDIT=");
        value.is_some_and(|value| !value.is_empty())
    };
    variables.any(names_one)
        || process_variables::value("LD_AUDIT").is_some_and(|value| !value.is_empty())
        || {
            let mut is_named = false;
            each_image(
                |_, path| path.is_empty(),
                |image| is_named |= image.names_an_auditor(),
            );
            is_named
        }
}

/// Calls the function with each object that is selected by its load address or its path.
fn each_image(wanted: impl Fn(usize, &CStr) -> bool, mut each: impl FnMut(&ElfImage)) {
    unsafe extern "C" fn visit<F: FnMut(&libc::dl_phdr_info)>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // A panic must not cross the dynamic linker.
        let _ = std::panic::catch_unwind(|| {
            // SAFETY: `data` is the function that was passed below, used by this thread only; `info` is valid during the call.
            unsafe { (*data.cast::<F>())(&*info) }
        });
        0
    }
    fn visit_of<F: FnMut(&libc::dl_phdr_info)>(_: &F) -> loaded::Visit {
        visit::<F>
    }
    let mut each = |info: &libc::dl_phdr_info| {
        let path = match info.dlpi_name.is_null() {
            true => c"",
            // SAFETY: a C string, by dl_iterate_phdr(3).
            false => unsafe { CStr::from_ptr(info.dlpi_name) },
        };
        if wanted(info.dlpi_addr as usize, path) {
            // SAFETY: what is described stays mapped during the call.
            each(&unsafe { ElfImage::of(info) });
        }
    };
    let visit = visit_of(&each);
    // SAFETY: `visit` wants a pointer to the function. The dynamic linker holds its lock meanwhile.
    unsafe { loaded::iterate(visit, (&raw mut each).cast()) };
}

/// Calls the function with the selected objects, by their index.
fn each_image_of(
    objects: &[Object],
    wanted: impl Fn(usize) -> bool,
    mut each: impl FnMut(usize, &ElfImage),
) {
    // Two objects may have the same base only where one has no segments.
    let objects = objects.iter().enumerate();
    let wanted = objects.filter(|(index, object)| wanted(*index) && !object.ranges.is_empty());
    let wanted: HashMap<usize, usize> =
        wanted.map(|(index, object)| (object.base, index)).collect();
    each_image(
        |base, _| wanted.contains_key(&base),
        |image| each(wanted[&image.base], image),
    );
}

/// Where the file of an object is.
fn path_of(object: &Object) -> &Path {
    match object.path.as_os_str().is_empty() {
        true => Path::new("/proc/self/exe"),
        false => object.path.as_path(),
    }
}

fn is_named(object: &Object, patterns: &[&str]) -> bool {
    object.is_named(|name| patterns.iter().any(|pattern| matches(pattern, name)))
}

#[cfg(test)]
mod tests;
