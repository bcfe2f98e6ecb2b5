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
//! If a slot is not bound yet, the dynamic linker's choice is computed: first from what is visible to all libraries, then from what
//! the driver's own library needs.
//!
//! A baker cannot reproduce a library that answers. See [`Ingredient::is_reproducible`].

use std::cell::OnceCell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::elf_image::{ElfImage, IS_READ};
use super::file_memory::FileMemory;
use super::files::matches;
use super::identity::{MAX_LOOKS, build_id_value};
use super::loaded::{self, Changes, Object};
use super::moment::Moment;
use super::profile::DriverFiles;
use super::{Driver, linker_state, process_variables};
use crate::fork_safety::Mutex;
use crate::key::ingredients::{Ingredient, Kind};
use crate::linker_lock;
use crate::outcome::Bypass;
pub(super) use scopes::Scope;
use scopes::{Scopes, proven_content};
use watched_slots::Libraries;
use world::World;

mod foreign_names;
mod scopes;
mod stand_ins;
mod watched_slots;
mod world;

/// The bindings at a moment.
#[derive(Default)]
pub struct Bindings {
    found: Mutex<Option<(Changes, Answer)>>,
    /// How often they could not be told for now.
    looks: AtomicU32,
}

/// The ingredients, or why the bindings cannot be told.
type Answer = Result<Arc<[Ingredient]>, Unanswered>;

/// Why it is not known which functions answer.
#[derive(Clone, Debug)]
enum Unanswered {
    /// Why a library cannot be looked at or read, perhaps for lack of descriptors or memory: the next call tries again.
    ForNow(String),
    /// The code that answers is not known.
    ForGood,
}

impl Driver {
    /// The part of a key that tells which functions answer the driver's libraries. Found again after libraries were loaded or
    /// unloaded. `moment`: of those that were loaded then.
    ///
    /// # Errors
    /// A function is in no library that is known.
    pub fn bindings(
        &self,
        moment: Option<&Moment>,
        memory: &dyn FileMemory,
    ) -> Result<Arc<[Ingredient]>, Bypass> {
        let changes = moment.map_or_else(loaded::changes, |moment| moment.loaded.changes);
        if let Some((then, answer)) = &*self.bindings.found.lock()
            && *then == changes
        {
            return answer.clone().map_err(|_| Bypass::UnidentifiedFunction);
        }
        // Without the lock, since the dynamic linker is asked.
        let started = std::time::Instant::now();
        let answer = linker_lock::complete(|| match moment {
            Some(moment) => self.find_bindings(&moment.loaded.objects, memory),
            None => self.bindings_now(memory),
        });
        let answer = answer.ok_or(Bypass::OpeningLibrary)?;
        tracing::debug!(
            us = started.elapsed().as_micros(),
            "looked up which functions answer the driver"
        );
        if let Err(Unanswered::ForNow(why)) = &answer {
            tracing::warn!(
                why,
                "it is not known which functions answer the driver: nothing is cached"
            );
            if self.bindings.looks.fetch_add(1, Ordering::Relaxed) < MAX_LOOKS {
                return Err(Bypass::UnidentifiedFunction);
            }
        }
        *self.bindings.found.lock() = Some((changes, answer.clone()));
        answer.map_err(|_| Bypass::UnidentifiedFunction)
    }

    /// Whether the same functions still answer: slots are bound at the first call, and tools write to them.
    pub(super) fn has_bindings(&self, ingredients: &[Ingredient], memory: &dyn FileMemory) -> bool {
        let Some(Ok(now)) = linker_lock::complete(|| self.bindings_now(memory)) else {
            return false;
        };
        let then = ingredients.iter().filter(|one| one.kind == Kind::Functions);
        then.eq(now.iter())
    }

    /// Another thread may unload a library meanwhile, and open another one at its address: then it is looked again.
    fn bindings_now(&self, memory: &dyn FileMemory) -> Answer {
        let look = || {
            let unloads = loaded::changes().unloads;
            let found = self.find_bindings(&loaded::objects(), memory);
            (loaded::changes().unloads == unloads).then_some(found)
        };
        let unloading = || Unanswered::ForNow("libraries are being unloaded".into());
        look().or_else(look).unwrap_or_else(|| Err(unloading()))
    }

    fn find_bindings(&self, objects: &[Object], memory: &dyn FileMemory) -> Answer {
        if !IS_READ {
            return Err(Unanswered::ForGood);
        }
        if is_audited() {
            tracing::warn!(
                "a library audits this program (LD_AUDIT), and may answer for any function: nothing is cached"
            );
            return Err(Unanswered::ForGood);
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
                DriverFiles::Beside(..)
                | DriverFiles::BesideLibrary(..)
                | DriverFiles::At(..)
                | DriverFiles::Gcc(_) => false,
            };
            is_own(object)
                || self.profile.files.iter().any(is_opened_by_it)
                || self.layer.is_some() && object.is_layer_of_another()
        };
        let closure = loaded::closure_by_root(objects, |index| is_start(&objects[index]));
        let world = World::new(objects, &closure);
        let proven = self.proven_libraries();
        let mappings = OnceCell::new();
        let identity = |object: &Object| {
            let known = || proven?.get(&object.start()?).cloned();
            let build_id = object.build_id.as_deref().map(build_id_value);
            let by_content = || proven_content(object, &mappings, memory);
            build_id.or_else(known).or_else(by_content)
        };
        let unreadable = |index| world.unreadable(index);
        let libraries = Libraries::of(&world, identity).map_err(unreadable)?;
        let facts = libraries.facts(&world, memory).map_err(unreadable)?;
        // libclang imports mostly from libLLVM. That libLLVM has no `exp` is found faster at once than name by name.
        let is_usual = |owner: usize| {
            let has_none = || {
                facts
                    .slots
                    .get(&owner)
                    .is_some_and(|known| !known.exports_any)
            };
            world.parts[owner].is_c_library || has_none()
        };
        let mut slots = world.slots(&facts.slots, is_usual)?;
        let is_neutral = |object: &Object| object.is_named(|name| memory.is_neutral_library(name));
        let opens_by_name = |object: &Object| self.opens_by_name(object);
        let mut scopes = Scopes::new(&world);
        let names = world.foreign_names(&facts.imports, is_neutral, opens_by_name, &mut scopes);
        let names = names.map_err(unreadable)?;
        if !names.is_empty() {
            let others = libraries.slots_of(&world, &names, memory);
            let others = others.map_err(unreadable)?;
            slots.extend(world.slots(&others, |owner| world.parts[owner].is_needed)?);
        }
        let mut ingredients = scopes.foreign(slots, opens_by_name, memory)?;
        ingredients.extend(world.variants(&facts.slots).map_err(unreadable)?);
        Ok(ingredients.into())
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
    let of_all = objects.iter().enumerate();
    let wanted = of_all.filter(|(index, object)| wanted(*index) && !object.ranges.is_empty());
    let mut wanted: Vec<(usize, usize)> =
        wanted.map(|(index, object)| (object.base, index)).collect();
    wanted.sort_unstable();
    // Several objects may have one base: all those that lie where their files say (a program that is not position-independent, and a
    // library of a system that prelinks).
    let of_base = |base: usize| {
        let first = wanted.partition_point(|(other, _)| *other < base);
        let of_base = wanted[first..].iter();
        of_base.take_while(move |(other, _)| *other == base)
    };
    each_image(
        |base, _| of_base(base).next().is_some(),
        |image| {
            let is_it = |index: usize| image.start().is_some_and(|at| objects[index].contains(at));
            if let Some((_, index)) = of_base(image.base).find(|(_, index)| is_it(*index)) {
                each(*index, image);
            }
        },
    );
}

fn is_named(object: &Object, patterns: &[&str]) -> bool {
    object.is_named(|name| patterns.iter().any(|pattern| matches(pattern, name)))
}

#[cfg(test)]
mod tests;
