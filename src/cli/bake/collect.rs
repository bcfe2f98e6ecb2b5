//! Collects the recipes to compile, grouped by the settings of their workers.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::headers;
use super::order::sort_by_use;
use super::replayer::BakeTask;
use crate::cli::entry_filter::{KnownNames, is_driver};
use crate::cli::failure::Failure;
use crate::cli::recipe_environment::{self, VariableMap};
use crate::cli::worker::confinement::{self, KEPT};
use crate::config::Config;
use crate::driver::device;
use crate::front::{driver_probe, vendors};
use crate::key::ingredients::{Key, Kind};
use crate::log::text;
use crate::store::entry::Meta;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store, StoreError};
use crate::trust;

/// Which recipes are compiled.
#[derive(Args)]
pub struct BakeFilter {
    /// Also retry recipes that failed, and recompile entries that lack the variants that the driver makes for each work-group size when kernels run
    #[arg(long, conflicts_with = "stale")]
    pub all: bool,
    /// Recompile entries of another version of the driver for the current one
    #[arg(long)]
    pub stale: bool,
    /// Also compile recipes that came with an archive, not only those of this user's programs
    #[arg(long)]
    imported: bool,
    /// Only for this driver, such as `pocl` or "Portable Computing Language"
    #[arg(long, value_name = "DRIVER")]
    driver: Option<String>,
}

impl BakeFilter {
    /// Lists the drivers that there are if no entry is of the one that is asked for.
    ///
    /// # Errors
    /// The store cannot be listed.
    pub fn say_unknown_driver(&self, store: &Store) -> Result<(), StoreError> {
        if self.driver.is_some() {
            KnownNames::of_all(store)?.say_unknown(None, self.driver.as_deref());
        }
        Ok(())
    }

    /// Whether an entry may match, by its metadata alone.
    fn may_take(&self, meta: &Meta) -> bool {
        let is_pending = meta.is_pending();
        let of_driver = self.driver.as_ref();
        of_driver.is_none_or(|name| is_driver(&meta.driver_family, name))
            && (self.imported || !meta.imported)
            && match (self.stale, self.all) {
                (true, _) => true,
                (false, true) => is_pending || !meta.variants,
                (false, false) => is_pending,
            }
    }
}

/// One recipe, with what progress, results and statistics need.
#[derive(Clone, Debug)]
pub struct BakeItem {
    /// The key.
    pub key: Key,
    /// The program that was built.
    pub program: String,
    /// The kernels.
    pub kernels: Vec<Vec<u8>>,
    /// How long the application took to compile it, in nanoseconds.
    pub compile_ns: u64,
    /// The driver's family, for the statistics.
    pub driver: String,
    /// The device's name, for the statistics.
    pub device: Vec<u8>,
    /// It came from elsewhere.
    pub is_imported: bool,
    /// Why it is compiled.
    pub task: BakeTask,
    /// Its place in the order in which recipes are compiled.
    pub rank: usize,
}

impl BakeItem {
    fn of(key: Key, meta: &Meta, task: BakeTask) -> BakeItem {
        BakeItem {
            key,
            program: meta.executable.clone(),
            kernels: meta.facts.kernel_names.clone(),
            compile_ns: meta.compile_ns,
            driver: meta.driver_family.clone(),
            device: device::name(&meta.ingredients).unwrap_or_default().to_vec(),
            is_imported: meta.imported,
            task,
            rank: 0,
        }
    }
}

/// What the recipes of one worker have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerSettings {
    /// The driver's library, as it is registered.
    pub library: PathBuf,
    /// All environment variables.
    pub environment: VariableMap,
    /// The file name of the program, if the driver reads it.
    pub executable: Option<OsString>,
    /// The directory of the driver's own cache.
    pub own_cache: OwnCache,
    /// For an audit, and for recipes from elsewhere: the caches of the user's drivers are not used.
    pub is_private: bool,
    /// The recipes came from elsewhere, and a process can be confined here.
    pub is_confined: bool,
}

/// The directory of a driver's own cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnCache {
    /// An empty one: that of the applications is unknown, off or not trusted.
    Empty,
    /// That of the applications.
    Theirs(PathBuf),
}

/// The recipes to compile, and those that cannot be compiled.
#[derive(Default)]
pub struct Work {
    /// Recipes by worker settings, in the order of their ranks.
    pub places: BTreeMap<WorkerSettings, Vec<BakeItem>>,
    /// Skipped recipes, with the reasons.
    pub skipped: Vec<(BakeItem, String)>,
}

impl Work {
    /// Drops what was tried before.
    pub fn retain_new(&mut self, tried: &mut BTreeSet<Key>) {
        self.skipped.retain(|(item, _)| tried.insert(item.key));
        for items in self.places.values_mut() {
            items.retain(|item| tried.insert(item.key));
        }
    }

    /// Whether there is nothing to compile.
    pub fn is_empty(&self) -> bool {
        self.places.values().all(Vec::is_empty)
    }

    /// All recipes to compile.
    pub fn items(&self) -> impl Iterator<Item = &BakeItem> {
        self.places.values().flatten()
    }

    /// Adds a recipe whose kernels never ran.
    pub fn add_unused(&mut self, place: &WorkerSettings, item: BakeItem) {
        let items = self.places.entry(place.clone()).or_default();
        let after = items.partition_point(|other| other.rank < item.rank);
        let task = BakeTask::BakeUnused;
        items.insert(after, BakeItem { task, ..item });
    }

    /// Adds recipes to compile after these.
    pub fn append(&mut self, more: Work) {
        for (place, mut items) in more.places {
            self.places.entry(place).or_default().append(&mut items);
        }
    }
}

/// Collects the recipes that match.
pub fn collect(store: &Store, config: &Config, filter: &BakeFilter) -> Result<Work, Failure> {
    let own: VariableMap = std::env::vars_os().collect();
    let registered = driver_probe::registered(config);
    let mut work = Work::default();
    let mut found: Vec<(Key, Meta)> = Vec::new();
    for (key, _) in store.entries()? {
        if let Some(meta) = store.read_meta(&key)
            && filter.may_take(&meta)
        {
            found.push((key, meta));
        }
    }
    sort_by_use(store, &mut found);
    for (rank, (key, meta)) in found.into_iter().enumerate() {
        let task = match meta.is_pending() {
            true => BakeTask::Bake,
            false => BakeTask::Again,
        };
        let item = BakeItem {
            rank,
            ..BakeItem::of(key, &meta, task)
        };
        if let Some(attempts) = store.attempts(&key).filter(|_| !filter.all)
            && attempts.given_up().is_some()
        {
            let why = match attempts.count {
                1 => attempts.reason,
                count => format!("it failed {count} times ({})", attempts.reason),
            };
            work.skipped.push((item, why));
            continue;
        }
        match place(store, &key, &meta, filter, &own, &registered) {
            Ok(Some(place)) => work.places.entry(place).or_default().push(item),
            Ok(None) => {}
            Err(why) => work.skipped.push((item, why)),
        }
    }
    Ok(work)
}

impl Work {
    /// Why recipes of archives in it are compiled in a process that is not confined; None if there are none.
    pub fn unconfined(&self) -> Option<String> {
        let is_unconfined = |place: &WorkerSettings| place.is_private && !place.is_confined;
        let any = self.places.keys().any(is_unconfined);
        any.then(confinement::refusal).flatten()
    }
}

/// Collects the entries that can be audited.
pub fn collect_audits(store: &Store, config: &Config, filter: &BakeFilter, keys: &[Key]) -> Work {
    let own: VariableMap = std::env::vars_os().collect();
    let registered = driver_probe::registered(config);
    let mut work = Work::default();
    let keys: BTreeSet<&Key> = keys.iter().collect();
    for key in keys {
        let meta = store.read_meta(key);
        let item = BakeItem::of(*key, &meta.clone().unwrap_or_default(), BakeTask::Audit);
        let place = match &meta {
            None => Err("it was removed".to_owned()),
            Some(meta) => audit_place(store, key, meta, filter, &own, &registered),
        };
        match place {
            Ok(place) => work.places.entry(place).or_default().push(item),
            Err(why) => work.skipped.push((item, why)),
        }
    }
    work
}

/// The settings for the audit of an entry.
fn audit_place(
    store: &Store,
    key: &Key,
    meta: &Meta,
    filter: &BakeFilter,
    own: &VariableMap,
    registered: &[PathBuf],
) -> Result<WorkerSettings, String> {
    if meta.is_pending() {
        return Err("it is pending".to_owned());
    }
    if meta.imported {
        return Err("it came with an archive, so its recipe is not trusted".to_owned());
    }
    let Lookup::Found(entry, _) = store.look_up(key) else {
        return Err("it was removed or is damaged".to_owned());
    };
    if entry.recipe().is_err() {
        return Err("it was stored without its source (`store_source`)".to_owned());
    }
    let library = library(meta, filter, registered)?;
    Ok(WorkerSettings {
        environment: environment(meta, own, &library)?,
        library,
        executable: executable(meta)?,
        own_cache: OwnCache::Empty,
        is_private: true,
        is_confined: false,
    })
}

/// Whether a recipe is compiled in a confined process. `refusal`: why none can be confined here.
///
/// # Errors
/// It came from the store that machines share, and no process can be confined.
fn is_confined(meta: &Meta, refusal: impl FnOnce() -> Option<String>) -> Result<bool, String> {
    if !meta.imported {
        return Ok(false);
    }
    match refusal() {
        None => Ok(true),
        Some(why) if meta.signer().is_some() => Err(format!(
            "recipes of others are only compiled in a confined process; {why}"
        )),
        // The user trusts this archive (`import --trust`, `bake --imported`), and many distributions have older kernels.
        Some(_) => Ok(false),
    }
}

/// All environment variables of the process that compiles a recipe with this driver.
fn environment(meta: &Meta, own: &VariableMap, driver: &Path) -> Result<VariableMap, String> {
    let known = recipe_environment::with_pyopencl(own, driver);
    let recorded = recipe_environment::recorded(&meta.driver_family, &meta.ingredients, &known)?;
    let mut all = recipe_environment::neutral(&meta.driver_family, own);
    if meta.imported {
        let family = &meta.driver_family;
        all.retain(|name, _| {
            KEPT.iter().any(|kept| name == kept) || recipe_environment::is_of_driver(family, name)
        });
    }
    all.extend(recorded);
    Ok(all)
}

/// The settings for baking a recipe; None if it need not be baked.
fn place(
    store: &Store,
    key: &Key,
    meta: &Meta,
    filter: &BakeFilter,
    own: &VariableMap,
    registered: &[PathBuf],
) -> Result<Option<WorkerSettings>, String> {
    let is_confined = is_confined(meta, confinement::refusal)?;
    let library = library(meta, filter, registered)?;
    let mut is_moved = false;
    let own_cache = match filter.stale {
        true => None,
        false => {
            let (Lookup::Found(entry, _) | Lookup::Pending(entry)) = store.look_up(key) else {
                return Err("it was removed or is damaged".to_owned());
            };
            let recipe = entry.recipe();
            let recipe = recipe.map_err(|_| "it was stored without its source (`store_source`)")?;
            is_moved = headers::moves_options(&recipe, &meta.ingredients, meta.imported);
            recipe.own_cache
        }
    };
    let own_cache = match own_cache {
        // With other options, the driver's cache has nothing of the program, and would keep what is compiled here.
        Some(path) if !is_moved && !meta.imported => {
            match trust::own_directory(Path::new(OsStr::from_bytes(&path))) {
                Some(real) => OwnCache::Theirs(real),
                None => OwnCache::Empty,
            }
        }
        _ => OwnCache::Empty,
    };
    let adds_something = matches!(own_cache, OwnCache::Theirs(_));
    if !(meta.is_pending() || filter.stale || adds_something) {
        return Ok(None);
    }
    Ok(Some(WorkerSettings {
        environment: environment(meta, own, &library)?,
        library,
        executable: executable(meta)?,
        own_cache,
        is_private: meta.imported,
        is_confined,
    }))
}

/// The registered library of a recipe's driver, by whatever path or name. Through a layer, a driver is known by the path that the
/// dynamic linker has found, while its `.icd` file may have a name without a directory. A newer version may be in another directory.
fn library(meta: &Meta, filter: &BakeFilter, registered: &[PathBuf]) -> Result<PathBuf, String> {
    let named = meta.driver_library.as_str();
    let is_it = |library: &&PathBuf| driver_probe::is_same_library(library, Path::new(named));
    if let Some(library) = registered.iter().find(is_it) {
        return Ok(library.clone());
    }
    // PyOpenCL's loader has drivers of its own in each environment, which no variable of the baker's names.
    let owners = trust::own_users();
    if !meta.imported && vendors::is_registered_in_wheel(Path::new(named), &owners) {
        return Ok(named.into());
    }
    let name = Path::new(named).file_name();
    let mut alike = registered.iter();
    let mut alike = alike.by_ref().filter(|library| library.file_name() == name);
    match (alike.next(), alike.next()) {
        (Some(only), None) if filter.stale && name.is_some() => Ok(only.clone()),
        _ => Err(format!(
            "its driver `{}` is not registered",
            text(named.as_bytes())
        )),
    }
}

/// The file name that the worker must have.
fn executable(meta: &Meta) -> Result<Option<OsString>, String> {
    let mut names = meta.ingredients.iter();
    let Some(name) = names.find(|one| one.kind == Kind::Executable) else {
        return Ok(None);
    };
    let name = OsStr::from_bytes(&name.value);
    let is_name = Path::new(name).file_name() == Some(name);
    is_name
        .then(|| Some(name.to_owned()))
        .ok_or_else(|| "the name of its program is unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recipes_of_archives_are_compiled_where_no_process_can_be_confined() {
        let own = Meta::default();
        let archived = Meta {
            imported: true,
            ..Meta::default()
        };
        let received = archived.clone().signed_by(Some(7));
        let old_kernel = || Some("an old kernel".to_owned());
        for (meta, new, old) in [
            (own, Ok(false), Ok(false)),
            (archived, Ok(true), Ok(false)),
            (received, Ok(true), Err(())),
        ] {
            assert_eq!(is_confined(&meta, || None), new);
            assert_eq!(is_confined(&meta, old_kernel).map_err(drop), old);
        }
    }
}
