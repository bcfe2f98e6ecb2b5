//! Which functions answer when a driver's libraries call functions of the C library and its mathematics.
//!
//! Another library can answer: a preloaded one, one that the application is linked with and that has its own `exp`, or one that a
//! tool has put into the tables by which libraries call each other. Then the driver folds other constants, or reads other variables
//! and files (measured on PoCL 3.1, LLVM 15). The values of LD_PRELOAD and its like do not suffice: names have `$LIB` in them, and
//! a library can remove itself from the variable. So the addresses to which the relocations of the driver's libraries are bound are
//! read, and compared with those that the driver's own libraries would give.
//!
//! Usually the key holds nothing of this except which variants of the mathematical functions the C library has chosen for this
//! processor: GLIBC_TUNABLES changes that, and with it the last bits of what LLVM folds (measured). If another library answers, the
//! key has its name and identity, its functions and their offsets. A preloaded library that answers nothing (an allocator, a
//! tracer) is not in the key.
//!
//! If a slot is not bound yet, the dynamic linker's choice is computed: first from what is visible to all libraries, then from what
//! the driver's own library needs.
//!
//! A baker cannot reproduce a library that answers. See [`Ingredient::is_reproducible`].

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LAZY};

use super::Driver;
use super::elf_image::{BoundSymbol, ElfImage, IS_READ, UnreadableImage};
use super::files::matches;
use super::identity::{FileMemory, build_id_value, sha256_value};
use super::key_neutral::is_neutral;
use super::loaded::{self, Changes, Mappings, Object};
use super::profile::DriverFiles;
use super::watched_functions::{C_LIBRARY, MATHEMATICS, WITH_VARIANTS};
use crate::fork_safety::{self, Mutex};
use crate::key::ingredients::{Ingredient, Kind, hex, sha256};
use crate::outcome::Bypass;
use plt_entries::PltEntries;
use watched_slots::WatchedSlots;

mod plt_entries;
mod watched_slots;

/// The bindings at a moment.
#[derive(Default)]
pub struct Bindings(Mutex<Option<(Changes, Answer)>>);

/// The ingredients, or why the bindings cannot be told.
type Answer = Result<Arc<[Ingredient]>, Bypass>;

/// A relocation whose symbol another library could answer for.
struct Slot {
    /// The index of the library in whose scope the importing one was loaded.
    root: usize,
    name: CString,
    version: Option<CString>,
    /// The address to which it is bound. None if it is not bound yet.
    bound: Option<usize>,
}

impl Driver {
    /// The part of a key that tells which functions answer the driver's libraries. Found again after libraries were loaded or
    /// unloaded.
    ///
    /// # Errors
    /// A function is in no library that is known.
    pub fn bindings(&self, memory: &dyn FileMemory) -> Answer {
        let changes = loaded::changes();
        if let Some((then, answer)) = &*self.bindings.0.lock()
            && *then == changes
        {
            return answer.clone();
        }
        // Without the lock, since the dynamic linker is asked.
        let started = std::time::Instant::now();
        let answer = self.find_bindings(memory);
        tracing::debug!(
            us = started.elapsed().as_micros(),
            "looked up which functions answer the driver"
        );
        *self.bindings.0.lock() = Some((changes, answer.clone()));
        answer
    }

    /// Whether the same functions still answer: slots are bound at the first call, and tools write to them.
    pub(super) fn has_bindings(&self, ingredients: &[Ingredient], memory: &dyn FileMemory) -> bool {
        let Ok(now) = self.find_bindings(memory) else {
            return false;
        };
        let then = ingredients.iter().filter(|one| one.kind == Kind::Functions);
        then.eq(now.iter())
    }

    fn find_bindings(&self, memory: &dyn FileMemory) -> Answer {
        if !IS_READ {
            return Err(Bypass::UnidentifiedFunction);
        }
        if is_audited() {
            tracing::warn!(
                "a library audits this program (LD_AUDIT), and may answer for any function: nothing is cached"
            );
            return Err(Bypass::UnidentifiedFunction);
        }
        let functions = self.functions();
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
            functions.iter().any(|function| object.contains(*function))
                || self.profile.files.iter().any(is_opened_by_it)
                || self.layer.is_some() && object.is_layer_of_another()
        };
        let objects = loaded::objects();
        let closure = loaded::closure_by_root(&objects, |index| is_start(&objects[index]));
        let world = World::new(&objects, &closure);
        let proven = self.proven_libraries();
        let mappings = OnceCell::new();
        let identity = |object: &Object| {
            let known = || proven?.get(&object.base).cloned();
            let build_id = object.build_id.as_deref().map(build_id_value);
            let by_content = || proven_content(object, &mappings, memory);
            build_id.or_else(known).or_else(by_content)
        };
        let watched = WatchedSlots::of(&world, identity, memory);
        let watched = watched.map_err(|index| world.unreadable(index))?;
        let slots = world.slots(&watched)?;
        let mut ingredients = Scopes::new(&world).foreign(slots, memory)?;
        ingredients.extend(world.variants(&watched));
        Ok(ingredients.into())
    }
}

/// Whether a library audits the dynamic linker, and may change bindings (rtld-audit(7)).
///
/// The variable is also looked for in the memory where the kernel put it: the library may remove it from the environment.
fn is_audited() -> bool {
    let mut at_start = Vec::with_capacity(16 << 10);
    let read =
        File::open("/proc/self/environ").and_then(|mut file| file.read_to_end(&mut at_start));
    if read.is_err() {
        at_start.clear();
    }
    let mut variables = at_start.split(|byte| *byte == 0);
    let names_one = |variable: &[u8]| {
        let value = variable.strip_prefix(b"LD_AUDIT=");
        value.is_some_and(|value| !value.is_empty())
    };
    variables.any(names_one)
        || std::env::var_os("LD_AUDIT").is_some_and(|value| !value.is_empty())
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

fn is_named(object: &Object, patterns: &[&str]) -> bool {
    object.is_named(|name| patterns.iter().any(|pattern| matches(pattern, name)))
}

/// The role of an object for a driver.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Part {
    /// The driver needs it.
    is_needed: bool,
    /// It is the C library, without its mathematics.
    is_c_library: bool,
    /// All its functions are watched.
    is_mathematics: bool,
    /// The C library has variants of it for different processors.
    has_variants: bool,
    /// What it imports is looked at.
    is_importer: bool,
}

/// The loaded objects, and those of them that the driver needs.
struct World<'a> {
    objects: &'a [Object],
    closure: &'a [(usize, usize)],
    parts: Vec<Part>,
    /// The segments of all objects in order, with the index of their object.
    segments: Vec<(Range<usize>, usize)>,
}

impl<'a> World<'a> {
    fn new(objects: &'a [Object], closure: &'a [(usize, usize)]) -> World<'a> {
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
    fn each_image(&self, wanted: impl Fn(usize) -> bool, each: impl FnMut(usize, &ElfImage)) {
        each_image_of(self.objects, wanted, each);
    }

    /// The segment that holds an address, and the index of its object.
    fn segment(&self, address: usize) -> Option<&(Range<usize>, usize)> {
        let next = self
            .segments
            .partition_point(|(range, _)| range.start <= address);
        let segment = self.segments.get(next.checked_sub(1)?)?;
        segment.0.contains(&address).then_some(segment)
    }

    fn owner(&self, address: usize) -> Option<usize> {
        self.segment(address).map(|(_, owner)| *owner)
    }

    /// The slots of the driver's libraries that a library other than the usual one may answer.
    fn slots(&self, watched: &HashMap<usize, WatchedSlots>) -> Result<Vec<Slot>, Bypass> {
        let roots: HashMap<usize, usize> = self.closure.iter().copied().collect();
        // libclang imports mostly from libLLVM. That libLLVM has no `exp` is found faster at once than name by name.
        let is_usual = |owner: usize| {
            let has_none = || watched.get(&owner).is_some_and(|known| !known.exports_any);
            self.parts[owner].is_c_library || has_none()
        };
        let mut slots = Vec::new();
        let mut unreadable = None;
        self.each_image(
            |index| self.parts[index].is_importer,
            |importer, image| {
                let Some(known) = watched.get(&importer) else {
                    unreadable = Some(importer);
                    return;
                };
                let importing = &self.objects[importer].ranges;
                let mut last: Option<(Range<usize>, bool)> = None;
                let each = |bound: BoundSymbol| {
                    // The function does not exist, and the driver knows that.
                    if bound.value == 0 {
                        return Ok(());
                    }
                    let is_own = importing.iter().any(|range| range.contains(&bound.value));
                    if is_own && !bound.may_be_lazy {
                        return Ok(());
                    }
                    if !is_own {
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
                    slots.push(Slot {
                        root: roots[&importer],
                        name: name.to_owned(),
                        version: image.version(bound.symbol).map(CStr::to_owned),
                        // Otherwise it leads to code of the importing library that calls the dynamic linker.
                        bound: (!is_own).then_some(bound.value),
                    });
                    Ok(())
                };
                let is_own = |value: usize| importing.iter().any(|range| range.contains(&value));
                let others = image.answered_by_others(&known.relocations, is_own);
                let numbers = others.map(|mut numbers| {
                    numbers.extend(&known.relocations.numbers);
                    numbers
                });
                if numbers.and_then(|numbers| image.each_bound(numbers, each))
                    == Err(UnreadableImage)
                {
                    unreadable = Some(importer);
                }
            },
        );
        match unreadable {
            None => Ok(slots),
            Some(index) => Err(self.unreadable(index)),
        }
    }

    fn unreadable(&self, index: usize) -> Bypass {
        let library = crate::log::path(&self.objects[index].path);
        tracing::warn!(%library, "the relocations of this library cannot be read: nothing is cached");
        Bypass::UnidentifiedFunction
    }

    /// The variants of its functions that the C library has chosen.
    fn variants(&self, watched: &HashMap<usize, WatchedSlots>) -> Vec<Ingredient> {
        let is_wanted = |index: usize| self.parts[index].has_variants;
        let mut libraries: Vec<(usize, Vec<CString>)> = Vec::new();
        self.each_image(is_wanted, |index, image| {
            let symbols = watched.get(&index).into_iter();
            let symbols = symbols.flat_map(|known| &known.variants);
            let names = symbols.filter_map(|symbol| image.symbol_name(*symbol as usize));
            libraries.push((index, names.map(CStr::to_owned).collect()));
        });
        let of_library = |(index, mut names): (usize, Vec<CString>)| {
            let object = &self.objects[index];
            names.sort();
            names.dedup();
            let scope = Scope::open(Some(&object.path))?;
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
            (!names.is_empty()).then(|| Ingredient::new(Kind::Functions, name, value))
        };
        libraries.into_iter().filter_map(of_library).collect()
    }
}

/// Looks functions up as the dynamic linker does.
struct Scopes<'a> {
    world: &'a World<'a>,
    /// The scope of all libraries.
    of_all: Option<Scope>,
    /// The scope of each library.
    of_libraries: HashMap<usize, Option<Scope>>,
    known: HashMap<(Option<usize>, CString, Option<CString>), Option<usize>>,
    entries: OnceCell<PltEntries>,
}

impl<'a> Scopes<'a> {
    fn new(world: &'a World) -> Scopes<'a> {
        Scopes {
            world,
            of_all: Scope::open(None),
            of_libraries: HashMap::new(),
            known: HashMap::new(),
            entries: OnceCell::new(),
        }
    }

    /// The address of a function in the scope of a library or of all. None if it is not there.
    fn find(&mut self, library: Option<usize>, slot: &Slot) -> Option<usize> {
        let asked = (library, slot.name.clone(), slot.version.clone());
        if let Some(known) = self.known.get(&asked) {
            return *known;
        }
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
        let found = scope.and_then(|scope| scope.find(&slot.name, slot.version.as_deref()));
        self.known.insert(asked, found);
        found
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

    /// An ingredient for each library that answers instead of the usual one.
    fn foreign(
        &mut self,
        slots: Vec<Slot>,
        memory: &dyn FileMemory,
    ) -> Result<Vec<Ingredient>, Bypass> {
        let objects = self.world.objects;
        let mut providers: BTreeMap<usize, BTreeSet<(CString, usize)>> = BTreeMap::new();
        for slot in slots {
            // The scope of all libraries binds a slot first. An absent function is bound to the usual one.
            let Some(bound) = slot.bound.or_else(|| self.find(None, &slot)) else {
                continue;
            };
            // No library has address 0.
            let bound = self.behind_plt_entry(bound, &slot).unwrap_or(0);
            let owner = self.world.owner(bound);
            let is_of_c_library = owner.is_some_and(|owner| self.world.parts[owner].is_c_library);
            if is_of_c_library
                || self.find(Some(slot.root), &slot) == Some(bound)
                || self.is_in_both(&slot, bound)
            {
                continue;
            }
            let Some(provider) = owner else {
                let function = crate::log::text(slot.name.to_bytes());
                tracing::warn!(%function, "this function of the driver's is answered by code in no known library: nothing is cached");
                return Err(Bypass::UnidentifiedFunction);
            };
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
            Some(Ingredient::new(Kind::Functions, name, value))
        };
        let ingredients: Option<Vec<_>> = providers.into_iter().map(ingredient).collect();
        let mut ingredients = ingredients.ok_or(Bypass::UnidentifiedFunction)?;
        // The order of loading has no meaning.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        Ok(ingredients)
    }
}

/// The identity of a library, at any path.
fn identity(object: &Object, memory: &dyn FileMemory) -> Option<String> {
    if let Some(build_id) = &object.build_id {
        return Some(format!("build-id {}", hex(build_id)));
    }
    let path = match object.path.as_os_str().is_empty() {
        true => Path::new("/proc/self/exe"),
        false => object.path.as_path(),
    };
    let is_it = path.starts_with("/proc") || object.is_what_stands_at_its_path(&Mappings::now());
    let content = is_it.then(|| memory.digest(path).ok()).flatten();
    if content.is_none() {
        let library = crate::log::path(path);
        tracing::warn!(%library, "this library answers for functions of the driver's, and cannot be identified: nothing is cached");
    }
    Some(format!("sha256 {}", hex(&content?)))
}

/// The digest of a library's file, if that is what is in memory.
fn proven_content(
    object: &Object,
    mappings: &OnceCell<Mappings>,
    memory: &dyn FileMemory,
) -> Option<Vec<u8>> {
    let is_it = object.is_what_stands_at_its_path(mappings.get_or_init(Mappings::now));
    let content = is_it.then(|| memory.digest(&object.path).ok()).flatten();
    Some(sha256_value(&content?))
}

/// A handle of the dynamic linker. It loads nothing, and is closed when dropped.
struct Scope(*mut c_void);

impl Scope {
    /// The scope of a library, or of all libraries.
    fn open(path: Option<&Path>) -> Option<Scope> {
        // SAFETY: nothing is loaded, so nothing runs.
        let opened = fork_safety::without_forks(|| unsafe {
            Library::open(
                path.filter(|path| !path.as_os_str().is_empty()),
                RTLD_LAZY | libc::RTLD_NOLOAD,
            )
        });
        Some(Scope(opened.ok()?.into_raw()))
    }

    fn find(&self, name: &CStr, version: Option<&CStr>) -> Option<usize> {
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
        // SAFETY: the handle is open, and nobody else has it. The driver's own keep the library. The message of a function
        // that was not found is not the application's.
        unsafe {
            libc::dlclose(self.0);
            libc::dlerror();
        }
    }
}

#[cfg(test)]
mod tests;
