//! What is different in the baker, which does an application's calls again: nothing is looked up, waited for or counted, and
//! what is recorded is an entry of the application's own call, whose files lay elsewhere.
//!
//! The baker says before each call what that is to make ([`begin`]), and asks afterwards what has become of it ([`end`]). A call
//! that would make anything else never comes to the driver.

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
use crate::store::entry::{EntryContent, Meta};
use crate::store::recipe::StoredRecipe;
use crate::store::tier::Tier;

/// Whether this process is the baker.
static BAKER: AtomicBool = AtomicBool::new(false);

static CALL: Mutex<Option<Running>> = Mutex::new(None);

/// A call that the baker is about to do again.
pub struct Call {
    /// The key that it had.
    pub key: Key,
    /// What is known of it.
    pub meta: Meta,
    /// The recipe that it left.
    pub recipe: StoredRecipe,
    /// The driver may be a newer one, so that the key is another.
    pub is_stale: bool,
    /// It is recorded also where there is an entry.
    pub again: bool,
    /// It is compiled for an audit: nothing is stored.
    pub is_audit: bool,
    /// Another call needs what it makes, also where there is an entry.
    pub is_part: bool,
    /// Directories of the options, or the working directory, are the baker's own, and must show nowhere.
    pub is_moved: bool,
    /// Whether what the driver gives holds what it has made at enqueues of the application; asked when it has built.
    pub has_variants: Box<dyn Fn() -> bool + Send>,
}

/// What has become of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// There is an entry of this key now.
    Stored(Key),
    /// There was one before, so nothing was built.
    Known(Key),
    /// It was compiled for an audit, and this would be the file of its entry.
    Compiled(Vec<u8>),
    /// It was not made, or not stored, for this reason.
    Left(String),
    /// It was made, and cannot be stored whenever it is made, for this reason.
    Useless(String),
}

struct Running {
    call: Call,
    done: Option<Done>,
}

/// This process bakes, from now on and before anything is built.
pub fn be_baker() {
    BAKER.store(true, Ordering::Relaxed);
}

/// Whether this process bakes.
pub fn is_baker() -> bool {
    BAKER.load(Ordering::Relaxed)
}

/// The next call is this one.
pub fn begin(call: Call) {
    *CALL.lock() = Some(Running { call, done: None });
}

/// What has become of it; None: the driver has not built it.
pub fn end() -> Option<Done> {
    CALL.lock().take()?.done
}

fn ended(done: Done) {
    if let Some(running) = CALL.lock().as_mut() {
        running.done.get_or_insert(done);
    }
}

/// Whether a call was made for an audit only, so that nothing of it is stored.
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

/// The kernels of which a call that is made for an audit is to tell all.
pub(super) fn audited_kernels() -> Vec<Vec<u8>> {
    let running = CALL.lock();
    let audited = running.as_ref().filter(|now| now.call.is_audit);
    let kernels = audited.iter().flat_map(|now| &now.call.meta.facts.kernels);
    kernels.map(|kernel| kernel.name.clone()).collect()
}

/// It is not stored, for this reason.
pub(super) fn left(why: String) {
    ended(Done::Left(why));
}

impl Cache {
    /// Whether the call is not to be made, as what it would make is not what the baker is to make, or is there.
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
                Some(what) => Err(format!("{what} is not what it was")),
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

    /// What the entry of a call is to say in place of what the baker's own call says; None: it would tell of the baker's files, or
    /// it is there already.
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
            variants: (call.has_variants)(),
            // What an archive brought is somebody else's recipe still.
            imported: call.meta.imported,
            ..meta
        };
        // Keys of inputs and of earlier calls are those of now.
        let recipe = recipe.map(|recipe| StoredRecipe {
            options: call.recipe.options.clone(),
            files: call.recipe.files.clone(),
            working_directory: call.recipe.working_directory.clone(),
            own_cache: call.recipe.own_cache.clone(),
            ..recipe
        });
        Some((meta, recipe))
    }

    /// The call has been recorded.
    pub(super) fn recorded_by_baker(&self, key: Key) {
        ended(Done::Stored(key));
    }
}

/// Whether the driver, what is around it and the devices are what they were when a key was made of these ingredients; None: they
/// cannot be identified.
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

/// The first ingredient that is another now, for people. With another driver that of the driver and its devices may be, and so
/// the keys of inputs.
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
    Some(named(&one))
}

/// An ingredient as people call it.
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
        assert_eq!(other.as_deref(), Some("the driver (libx.so)"));
        now[2].value = b"other".to_vec();
        let other = difference(&then, &now, true);
        assert_eq!(other.as_deref(), Some("the header -I0/a.h"));
    }
}
