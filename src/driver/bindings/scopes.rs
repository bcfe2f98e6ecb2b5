//! What the dynamic linker would answer, and which answers are not the usual ones.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_void};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LAZY};

use super::Unanswered;
use super::stand_ins::StandIns;
use super::world::{Slot, World};
use crate::driver::file_memory::FileMemory;
use crate::driver::identity::content_value;
use crate::driver::loaded::Object;
use crate::driver::mappings::Mappings;
use crate::fork_safety;
use crate::key::ingredients::{Ingredient, Kind, hex};
use crate::linker_lock;

/// Looks functions up as the dynamic linker does.
pub(super) struct Scopes<'a> {
    pub(super) world: &'a World<'a>,
    /// The scope of all libraries.
    of_all: Option<Scope>,
    /// The scope of each library.
    of_libraries: HashMap<usize, Option<Scope>>,
    pub(super) stand_ins: OnceCell<StandIns>,
}

impl<'a> Scopes<'a> {
    pub(super) fn new(world: &'a World) -> Scopes<'a> {
        Scopes {
            world,
            of_all: Scope::open(None),
            of_libraries: HashMap::new(),
            stand_ins: OnceCell::new(),
        }
    }

    /// The address of a function in the scope of a library or of all. None if it is not there.
    pub(super) fn find(&mut self, library: Option<usize>, slot: &Slot) -> Option<usize> {
        let scope = match library {
            None => self.of_all.as_ref(),
            Some(library) => {
                let open = || Scope::open(Some(&self.world.objects[library].path));
                self.of_libraries
                    .entry(library)
                    .or_insert_with(open)
                    .as_ref()
            }
        };
        scope.and_then(|scope| scope.find(&slot.name, slot.version.as_deref()))
    }

    /// Whether both libc and libm have a function (ldexp, frexp, modf). Which of them answers depends on whether the application is
    /// linked with libm, and their results are exact.
    fn is_in_both(&mut self, slot: &Slot, bound: usize) -> bool {
        let world = self.world;
        let is_of_c =
            |owner: usize| world.parts[owner].is_c_library || world.parts[owner].has_variants;
        if !world.owner(bound).is_some_and(is_of_c) {
            return false;
        }
        let name = Slot {
            name: slot.name.clone(),
            version: None,
            ..*slot
        };
        let c_libraries = (0..world.parts.len()).filter(|index| world.parts[*index].is_c_library);
        c_libraries
            .into_iter()
            .any(|library| self.find(Some(library), &name).is_some())
    }

    /// Whether a library that the driver needs has a function of this name.
    pub(super) fn has_usual(&mut self, name: &CStr) -> bool {
        let roots: BTreeSet<usize> = self.world.closure.iter().map(|(_, root)| *root).collect();
        let slot = |root| Slot {
            root,
            name: name.to_owned(),
            version: None,
            bound: None,
        };
        let mut roots = roots.into_iter();
        roots.any(|root| self.find(Some(root), &slot(root)).is_some())
    }

    /// An ingredient for each library that answers instead of the usual one.
    pub(super) fn foreign(
        &mut self,
        mut slots: Vec<Slot>,
        opens_by_name: impl Fn(&Object) -> bool,
        memory: &dyn FileMemory,
    ) -> Result<Vec<Ingredient>, Unanswered> {
        let objects = self.world.objects;
        let mut providers: BTreeMap<usize, BTreeSet<(CString, usize)>> = BTreeMap::new();
        // Several libraries have slots of one function. To ask the linker takes about 1 us.
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            // The scope of all libraries binds a slot first. An absent function is bound to the usual one.
            let Some(bound) = slot.bound.or_else(|| self.find(None, &slot)) else {
                continue;
            };
            // No library has address 0.
            let bound = self.behind_stand_in(bound, &slot).unwrap_or(0);
            let owner = self.world.owner(bound);
            let is_of_c_library = owner.is_some_and(|owner| self.world.parts[owner].is_c_library);
            if is_of_c_library {
                continue;
            }
            let usual = self.find(Some(slot.root), &slot);
            if usual == Some(bound) || self.is_in_both(&slot, bound) {
                continue;
            }
            let Some(provider) = owner else {
                let function = crate::log::text(slot.name.to_bytes());
                tracing::warn!(%function, "this function of the driver's is answered by code in no known library: nothing is cached");
                return Err(Unanswered::ForGood);
            };
            // What only a library has that the driver opens by name is usual as well.
            if usual.is_none() && opens_by_name(&objects[provider]) {
                continue;
            }
            let functions = providers.entry(provider).or_default();
            functions.insert((slot.name, bound.wrapping_sub(objects[provider].base)));
        }
        providers.retain(|provider, _| {
            !objects[*provider].is_named(|name| memory.is_neutral_library(name))
        });
        let ingredient = |(provider, functions): (usize, BTreeSet<(CString, usize)>)| {
            let provider = &objects[provider];
            let identity = identity(provider, memory)?;
            let functions = functions
                .into_iter()
                .map(|(name, offset)| format!("{} {offset:#x}", name.to_string_lossy()));
            let functions = functions.collect::<Vec<_>>().join(", ");
            let name = match provider.path.as_os_str().is_empty() {
                true => "the program".into(),
                false => String::from_utf8_lossy(&provider.name),
            };
            tracing::debug!(library = %crate::log::text(name.as_bytes()), functions, "answers for functions of the driver");
            let value = format!("{identity}: {functions}");
            Ok(Ingredient::new(Kind::Functions, name, value))
        };
        let ingredients: Result<Vec<_>, Unanswered> =
            providers.into_iter().map(ingredient).collect();
        let mut ingredients = ingredients?;
        // The order of loading has no meaning.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        Ok(ingredients)
    }
}

/// The identity of a library, at any path.
///
/// # Errors
/// Its file cannot be read, or is not what is in memory.
fn identity(object: &Object, memory: &dyn FileMemory) -> Result<String, Unanswered> {
    if let Some(build_id) = &object.build_id {
        return Ok(format!("build-id {}", hex(build_id)));
    }
    let path = match object.path.as_os_str().is_empty() {
        true => Path::new("/proc/self/exe"),
        false => object.path.as_path(),
    };
    let is_it = path.starts_with("/proc") || object.is_what_stands_at_its_path(&Mappings::now());
    let library = crate::log::path(path);
    if !is_it {
        tracing::warn!(%library, "this library answers for functions of the driver's, and was replaced: nothing is cached");
        return Err(Unanswered::ForGood);
    }
    match memory.digest(path) {
        Ok(digest) => Ok(format!("content {}", hex(&digest))),
        Err(error) => Err(Unanswered::ForNow(format!(
            "{library} answers, and cannot be read: {error}"
        ))),
    }
}

/// The digest of a library's file, if that is what is in memory.
pub(super) fn proven_content(
    object: &Object,
    mappings: &OnceCell<Mappings>,
    memory: &dyn FileMemory,
) -> Option<Vec<u8>> {
    let is_it = object.is_what_stands_at_its_path(mappings.get_or_init(Mappings::now));
    let content = is_it.then(|| memory.digest(&object.path).ok()).flatten();
    Some(content_value(&content?))
}

/// A handle of the dynamic linker, which loads nothing. It is closed when it is dropped, or stays open if the linker is busy for long then.
///
/// While the linker is busy nothing is found, as if it were not there. So what is kept must be looked up in [`linker_lock::complete`].
pub(in crate::driver) struct Scope(*mut c_void);

impl Scope {
    /// The scope of a library, or of all libraries. None: there is none, or the linker is busy for long.
    pub(in crate::driver) fn open(path: Option<&Path>) -> Option<Scope> {
        if linker_lock::is_busy_for_long() {
            return None;
        }
        // SAFETY: nothing is loaded, so nothing runs.
        let opened = fork_safety::without_forks(|| unsafe {
            Library::open(
                path.filter(|path| !path.as_os_str().is_empty()),
                RTLD_LAZY | libc::RTLD_NOLOAD,
            )
        });
        Some(Scope(opened.ok()?.into_raw()))
    }

    pub(in crate::driver) fn handle(&self) -> *mut c_void {
        self.0
    }

    /// The address behind a name. None: there is none, or the linker is busy for long.
    pub(in crate::driver) fn find(&self, name: &CStr, version: Option<&CStr>) -> Option<usize> {
        if linker_lock::is_busy_for_long() {
            return None;
        }
        // SAFETY: a handle that is open and C strings. Where the function has variants, the library's own code chooses one, as
        // it has for the driver.
        let found = fork_safety::without_forks(|| unsafe {
            match version {
                #[cfg(target_env = "gnu")]
                Some(version) => libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()),
                _ => libc::dlsym(self.0, name.as_ptr()),
            }
        });
        (!found.is_null()).then_some(found as usize)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if linker_lock::is_busy_for_long() {
            return;
        }
        // SAFETY: the handle is open, and nobody else has it. The driver's own keep the library. The message of a function
        // that was not found is not the application's.
        unsafe {
            libc::dlclose(self.0);
            libc::dlerror();
        }
    }
}
