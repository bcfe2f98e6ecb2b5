//! What is different in the baker. The baker repeats an application's calls. It looks nothing up, waits for nothing and counts
//! nothing, and it records the entry of the application's own call, whose files were in other places.
//!
//! Before each call the baker sets what the call is to make ([`begin`]); afterwards it takes the outcome ([`end`]). A call that
//! would make anything else never reaches the driver.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Cache;
use super::plan::Plan;
use crate::cl::Device;
use crate::driver::Driver;
use crate::fork_safety::Mutex;
use crate::key::ingredients::{Ingredient, Key, Kind};
use crate::log::text;
use crate::outcome::Bypass;
use crate::store::Lookup;
use crate::store::bake_attempts::OTHER_LIBRARY;
use crate::store::entry::{EntryContent, Meta};
use crate::store::recipe::StoredRecipe;
use crate::store::tier::Tier;

/// Whether this process is the baker.
static BAKER: AtomicBool = AtomicBool::new(false);

static CALL: Mutex<Option<Running>> = Mutex::new(None);

/// A call that the baker repeats.
pub struct Call {
    /// The key of the application's call.
    pub key: Key,
    /// The metadata of its pending entry.
    pub meta: Meta,
    /// Its recipe.
    pub recipe: StoredRecipe,
    /// The driver may have changed, so the key may be another.
    pub is_stale: bool,
    /// Record it even if there is an entry.
    pub again: bool,
    /// Compile it for an audit: nothing is stored.
    pub is_audit: bool,
    /// Another call needs its result: build it even if there is an entry.
    pub is_part: bool,
    /// The baker replaced directories of the options or the working directory by its own; they must not show in the entry.
    pub is_moved: bool,
    /// What the driver's own cache tells of its kernels. Asked after the build.
    pub kernel_use: Box<dyn Fn() -> KernelUse + Send>,
    /// Do not ask the driver for its binary if no kernel ever ran.
    pub puts_off: bool,
}

/// What the driver's own cache tells of a program's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelUse {
    /// It has code that the driver made when a kernel was enqueued. The binary will hold it as well.
    Ran,
    /// It has the program of an earlier process, and nothing that the driver makes when a kernel is enqueued.
    NeverRan,
    /// It has nothing of the program, or there is no such cache.
    Unknown,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// There is an entry of this key now.
    Stored(Key),
    /// There was an entry before, so nothing was built.
    Known(Key),
    /// It was compiled for an audit. These would be the bytes of its entry.
    Compiled(Vec<u8>),
    /// It was built, but its kernels never ran, so the driver was not asked for its binary.
    PutOff,
    /// It was not made or not stored, for this reason.
    Left(String),
    /// It was made, but can never be stored, for this reason.
    Useless(String),
}

struct Running {
    call: Call,
    done: Option<Done>,
}

/// Makes this process the baker. Must be called before anything is built.
pub fn be_baker() {
    BAKER.store(true, Ordering::Relaxed);
}

/// Whether this process is the baker.
pub fn is_baker() -> bool {
    BAKER.load(Ordering::Relaxed)
}

/// Sets the call that the driver's next build belongs to.
pub fn begin(call: Call) {
    *CALL.lock() = Some(Running { call, done: None });
}

/// Takes the outcome of the call. None: the driver has not built it.
pub fn end() -> Option<Done> {
    CALL.lock().take()?.done
}

fn ended(done: Done) {
    if let Some(running) = CALL.lock().as_mut() {
        running.done.get_or_insert(done);
    }
}

/// Whether a call was made for an audit only; then this takes the content, and nothing is stored.
pub(super) fn is_audited(key: &Key, content: &EntryContent<'_>) -> bool {
    let is_audit = CALL.lock().as_ref().is_some_and(|now| now.call.is_audit);
    if is_audit {
        ended(match content.encode(key) {
            Ok(bytes) => Done::Compiled(bytes),
            Err(error) => Done::Left(format!("it cannot be compared: {error}")),
        });
    }
    is_audit
}

/// Whether the driver is not asked for the binary now, since no kernel of the program ever ran.
pub(super) fn is_put_off() -> bool {
    let is_put_off = CALL
        .lock()
        .as_ref()
        .is_some_and(|now| now.call.puts_off && (now.call.kernel_use)() == KernelUse::NeverRan);
    if is_put_off {
        ended(Done::PutOff);
    }
    is_put_off
}

/// The kernels whose facts a call for an audit must ask for.
pub(super) fn audited_kernels() -> Vec<Vec<u8>> {
    let running = CALL.lock();
    let audited = running.as_ref().filter(|now| now.call.is_audit);
    let kernels = audited.iter().flat_map(|now| &now.call.meta.facts.kernels);
    kernels.map(|kernel| kernel.name.clone()).collect()
}

/// Notes why the call is not stored.
pub(super) fn left(why: String) {
    ended(Done::Left(why));
}

impl Cache {
    /// Whether the baker must not make this call: it would make something else than the baker's call, or an entry exists.
    pub(super) fn is_refused_by_baker(&self, plan: Result<&Plan, Bypass>) -> bool {
        if !is_baker() {
            return false;
        }
        let plan = match plan {
            Ok(plan) => plan,
            Err(reason) => {
                left(format!("it cannot be cached here: {}", reason.name()));
                return true;
            }
        };
        let (expected, again, is_part) = {
            let running = CALL.lock();
            let Some(Running { call, .. }) = running.as_ref() else {
                return true;
            };
            let difference = difference(&call.meta.ingredients, &plan.ingredients(), call.is_stale);
            let expected = match difference {
                Some(why) => Err(why),
                None if !call.is_stale && plan.key() != call.key => {
                    Err("it has another key here".to_owned())
                }
                None => Ok(()),
            };
            (expected, call.again, call.is_part)
        };
        if let Err(why) = expected {
            left(why);
            return true;
        }
        let store = self.store();
        let found = store.map(|store| store.look_up(&plan.key()));
        match found {
            Some(Lookup::Found(..)) if !again => {
                ended(Done::Known(plan.key()));
                !is_part
            }
            _ => false,
        }
    }

    /// The metadata and recipe to store. In the baker they are those of the application's call. None: they would show the baker's
    /// files, or there is an entry already.
    pub(super) fn as_recorded(
        &self,
        key: Key,
        meta: Meta,
        recipe: Option<StoredRecipe>,
    ) -> Option<(Meta, Option<StoredRecipe>)> {
        if !is_baker() {
            return Some((meta, recipe));
        }
        let running = CALL.lock();
        let Running { call, done } = running.as_ref()?;
        if *done == Some(Done::Known(key)) {
            return None;
        }
        if call.is_moved && meta.include_dirs.is_some() {
            drop(running);
            let why = "its build log names the directories of headers".to_owned();
            ended(Done::Useless(why));
            return None;
        }
        let meta = Meta {
            options: call.meta.options.clone(),
            executable: call.meta.executable.clone(),
            compile_ns: call.meta.compile_ns.max(1),
            variants: (call.kernel_use)() == KernelUse::Ran,
            // A recipe from elsewhere remains another user's recipe, and what is made of it goes when its signer is not trusted any
            // more.
            imported: call.meta.imported,
            ..meta
        }
        .signed_by(call.meta.signer());
        // Keys of inputs and of earlier calls are the current ones.
        let recipe = recipe.map(|recipe| StoredRecipe {
            options: call.recipe.options.clone(),
            files: call.recipe.files.clone(),
            working_directory: call.recipe.working_directory.clone(),
            own_cache: call.recipe.own_cache.clone(),
            ..recipe
        });
        Some((meta, recipe))
    }

    /// Notes that the call was recorded.
    pub(super) fn recorded_by_baker(&self, key: Key) {
        ended(Done::Stored(key));
    }
}

/// Whether the driver, its surroundings and the devices are the same as when a key was made of these ingredients. None: they cannot
/// be identified.
pub fn is_of_driver(
    driver: &Driver,
    devices: &[Device],
    ingredients: &[Ingredient],
) -> Option<bool> {
    let cache = Cache::get();
    let identity = driver.identity(cache)?;
    let is_il = ingredients.iter().any(|one| one.kind == Kind::Il);
    let surroundings = driver.surroundings(is_il, cache)?.ingredients;
    let devices = driver.device_identities(devices)?;
    let is_of_driver = |one: &&Ingredient| one.kind == Kind::Driver;
    let files: Vec<&Ingredient> = identity
        .iter()
        .chain(surroundings.iter().filter(is_of_driver))
        .collect();
    let mut all = devices
        .iter()
        .flat_map(|device| device.iter())
        .chain(files.iter().copied());
    let has_all = all.all(|one| ingredients.contains(one));
    Some(
        has_all
            && ingredients
                .iter()
                .filter(is_of_driver)
                .all(|one| files.contains(&one)),
    )
}

/// What has changed first, in words. If the driver may be another (`is_stale`), its ingredients and those of
/// its devices may differ, and so may the keys of inputs.
fn difference(then: &[Ingredient], now: &[Ingredient], is_stale: bool) -> Option<String> {
    let counts = |one: &&Ingredient| {
        let is_of_driver = matches!(
            one.kind,
            Kind::Driver | Kind::Device | Kind::Processor | Kind::Input | Kind::Previous
        );
        let is_place_of_driver = one.kind == Kind::Include && one.name.starts_with("driver");
        !(is_stale && (is_of_driver || is_place_of_driver))
    };
    let other = |these: &[Ingredient], those: &[Ingredient]| {
        let mut these = these.iter().filter(counts);
        these.find(|one| !those.contains(one)).cloned()
    };
    let one = other(then, now).or_else(|| other(now, then))?;
    Some(match one.kind {
        Kind::Driver if one.name.contains(".so") => {
            let name = text(one.name.as_bytes());
            format!("{OTHER_LIBRARY} ({name})")
        }
        _ => format!("{} is not what it was", named(&one)),
    })
}

/// An ingredient in words.
fn named(one: &Ingredient) -> String {
    let name = text(one.name.as_bytes());
    match one.kind {
        Kind::Driver => format!("the driver ({name})"),
        Kind::Device | Kind::Processor => format!("the device ({name})"),
        Kind::Environment => format!("the variable {name}"),
        Kind::Executable => "the program's name".to_owned(),
        Kind::Include => format!("the header {name}"),
        Kind::WorkingDirectory => "the working directory, which is in the key,".to_owned(),
        Kind::Options => "what its options say".to_owned(),
        Kind::Input | Kind::Previous => "a program that it is made from".to_owned(),
        Kind::Functions => format!("which library answers for functions of the driver ({name})"),
        Kind::FloatingPoint => format!("the floating-point state ({name})"),
        Kind::Source | Kind::Operation | Kind::Header | Kind::Il | Kind::Constant => {
            "what it is made from".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_another_driver_only_what_is_the_drivers_may_be_another() {
        let one = |kind, name, value: &str| Ingredient::new(kind, name, value);
        let then = [
            one(Kind::Source, "", "digest"),
            one(Kind::Include, "-I0/a.h", "digest"),
            one(Kind::Driver, "libx.so", "old"),
        ];
        let mut now = then.clone();
        now[2].value = b"new".to_vec();
        now[1..].reverse();
        assert_eq!(difference(&then, &now, true), None);
        let other = difference(&then, &now, false);
        let expected = format!("{OTHER_LIBRARY} (libx.so)");
        assert_eq!(other, Some(expected));
        now[2].value = b"other".to_vec();
        let other = difference(&then, &now, true);
        assert_eq!(
            other.as_deref(),
            Some("the header -I0/a.h is not what it was")
        );
    }
}
