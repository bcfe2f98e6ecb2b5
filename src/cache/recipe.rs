//! Writes recipes: the inputs of a miss, from which the program can be made again without the application.
//!
//! On drivers where fetching a binary is expensive, a miss stores its recipe alone, as a pending entry. `oclcache bake` makes the
//! entry later.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use opencl_sys::CL_DEVICE_NAME;

use super::facts::kernel_names;
use super::plan::Plan;
use super::{Cache, autobake, bakeable};
use crate::cl::{Device, Program};
use crate::driver::Driver;
use crate::key::ingredients::sha256;
use crate::outcome::{Missed, NotBakeable};
use crate::regular_file;
use crate::shadow::Operation;
use crate::store::entry::{Defect, EntryContent, Facts};
use crate::store::journal::Kept;
use crate::store::recipe::{DeviceName, HeaderContent, HeaderFile, RecipeOperation, StoredRecipe};
use crate::store::stats::Counter;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

impl Cache {
    /// The recipe of a plan.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn recipe(&self, driver: &Driver, plan: &Plan) -> Result<StoredRecipe, NotBakeable> {
        if !self.config.store_source() {
            return Err(NotBakeable::NoSources);
        }
        let call = &plan.recipe;
        let base = call.base.map_inputs(|input| input.key);
        let (operation, devices) = match &call.operation {
            Operation::Build => (RecipeOperation::Build, &plan.devices),
            Operation::Compile(headers) => {
                (RecipeOperation::Compile(headers.clone()), &plan.devices)
            }
            Operation::Link(of_context) => (RecipeOperation::Link(()), of_context),
        };
        let place = |device: &Device| super::devices::index(driver, devices, *device);
        let listed = match &call.arguments.devices {
            Some(listed) => Some(
                listed
                    .iter()
                    .map(|device| Some(place(device)? as u32))
                    .collect::<Option<_>>()
                    .ok_or(NotBakeable::UnknownDevice)?,
            ),
            None => None,
        };
        let options = call.arguments.options.as_ref();
        let working_directory = call.closure.working_directory();
        Ok(StoredRecipe {
            base,
            operation,
            options: options.map(|options| options.as_bytes().into()),
            devices: devices
                .iter()
                .map(|device| {
                    let name = driver.device_info(*device, CL_DEVICE_NAME).ok()?;
                    let is_part = driver.root_device(*device) != *device;
                    Some(DeviceName { name, is_part })
                })
                .collect::<Option<_>>()
                .ok_or(NotBakeable::UnknownDevice)?,
            listed,
            previous: call.previous.as_ref().map(|previous| previous.key),
            files: files(plan).ok_or(NotBakeable::HeaderChanged)?,
            working_directory: working_directory.map(|path| path.as_os_str().as_bytes().into()),
            own_cache: (driver.own_cache()).map(|path| path.as_os_str().as_bytes().into()),
        })
    }

    /// Leaves a miss to `oclcache bake`: stores its recipe without binaries. A miss that no baker can repeat is not stored and
    /// reports why. Nothing is fetched from the driver.
    pub(super) fn leave_to_baker(
        &self,
        store: &Store,
        driver: &Driver,
        program: Program,
        plan: &Plan,
        elapsed: Duration,
    ) -> (Vec<Vec<u8>>, Kept) {
        let names = kernel_names(driver, program);
        let kept = match self.leave(store, driver, plan, &names, elapsed) {
            Ok(kept) => kept,
            Err(reason) => {
                self.not_stored(plan, &reason.help());
                Kept::not_bakeable(reason)
            }
        };
        (names, kept)
    }

    fn leave(
        &self,
        store: &Store,
        driver: &Driver,
        plan: &Plan,
        names: &[Vec<u8>],
        elapsed: Duration,
    ) -> Result<Kept, NotBakeable> {
        let key = plan.key();
        let before = store.which_entry(&key);
        let pending = match store.look_up(&key) {
            // The setting asks for a new entry.
            Lookup::Found(..) if self.config.recache() => None,
            Lookup::Found(..) if plan.missed() == Missed::OtherDirectories => {
                return Err(NotBakeable::OtherDirectories);
            }
            // The entry serves other processes, or this one later.
            Lookup::Found(..) => return Ok(Kept::Entry),
            Lookup::Pending(pending) => Some(pending),
            // Nothing is wrong with an entry for which there is no memory.
            Lookup::Unreadable(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                self.not_stored(plan, &error);
                return Ok(Kept::Nothing);
            }
            Lookup::Absent | Lookup::Unreadable(_) | Lookup::Bad(_) => None,
        };
        if let Some(reason) = bakeable::refusal(driver, plan) {
            return Err(reason);
        }
        let recipe = self.recipe(driver, plan)?;
        if let Some(reason) = bakeable::of_recipe(store, &recipe, plan) {
            return Err(reason);
        }
        if let Some(reason) = store.given_up(&key) {
            return Err(reason);
        }
        if let Some(pending) = &pending
            && !pending.meta.imported
            && match pending.recipe() {
                Ok(stored) => stored == recipe,
                Err(defect) => defect == Defect::NoMemory,
            }
        {
            self.count(plan.place(), &[Counter::Recipes.by(1)]);
            autobake::request(&self.config);
            return Ok(Kept::Recipe);
        }
        // This build may have been served by the driver's own cache.
        let took = pending.map_or(elapsed, |pending| {
            elapsed.max(Duration::from_nanos(pending.meta.compile_ns))
        });
        let facts = Facts {
            kernel_names: names.to_vec(),
            ..Facts::default()
        };
        let meta = self.meta(driver, plan, facts, took);
        let content = EntryContent {
            meta: &meta,
            recipe: Some(&recipe),
            binaries: Vec::new(),
        };
        // Another process may have baked it meanwhile.
        if store.which_entry(&key) != before {
            return Ok(Kept::Recipe);
        }
        let marker = self.built_here(&key, &content);
        Ok(match store.publish(&key, &content) {
            Ok(removed) => {
                let events = [Counter::Recipes.by(1), Counter::Evicted.by(removed)];
                self.count(plan.place(), &events);
                autobake::request(&self.config);
                self.share(store, &key, marker.as_ref());
                Kept::Recipe
            }
            Err(error) => {
                self.count(plan.place(), &[Counter::Evicted.by(error.removed)]);
                self.not_stored(plan, &error);
                Kept::unwritten(&error.error)
            }
        })
    }
}

/// The header files of a plan with their contents. None if one has changed.
fn files(plan: &Plan) -> Option<Vec<HeaderFile>> {
    let mut files = Vec::new();
    let mut numbers = HashMap::new();
    for file in plan.recipe.closure.files() {
        let content = match file.same_as {
            Some(first) => HeaderContent::SameAs {
                file: *numbers.get(&first)?,
                in_same_directory: file.in_same_directory,
            },
            None => {
                let text = regular_file::read(file.path).ok()??;
                if sha256(&text) != *file.digest {
                    return None;
                }
                HeaderContent::Text(text.into())
            }
        };
        numbers.insert(file.index, files.len() as u32);
        files.push(HeaderFile {
            place: file.name.into(),
            path: file.path.as_os_str().as_bytes().into(),
            digest: *file.digest,
            content,
        });
    }
    Some(files)
}
