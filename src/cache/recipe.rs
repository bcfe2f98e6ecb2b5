//! Recipes: what a miss was made from, written down so that the program can be made again without the application.
//!
//! Where the driver's binary is dear to fetch, a miss stores the recipe alone, as a pending entry; `oclcache bake` makes the
//! entry of it later.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use opencl_sys::CL_DEVICE_NAME;

use super::plan::Plan;
use super::record::kernel_names;
use super::{Cache, autobake};
use crate::cl::{Device, Program};
use crate::driver::Driver;
use crate::key::ingredients::sha256;
use crate::shadow::{self, Operation};
use crate::store::Lookup;
use crate::store::entry::{EntryContent, Facts};
use crate::store::journal::{Kept, now_ms};
use crate::store::recipe::{self, Content, DeviceName, HeaderFile, Recipe, Text};
use crate::store::stats::Counter;

/// At so many misses a pending recipe is not waited for any longer: nobody bakes here.
const MOST_MISSES: u32 = 3;

impl Cache {
    /// How the plan's program can be made again; None if sources are private, or a header has changed.
    pub(super) fn recipe(&self, driver: &Driver, plan: &Plan) -> Option<Recipe> {
        if !self.config.store_source() {
            return None;
        }
        let call = &plan.recipe;
        let base = match &call.base {
            shadow::Base::Source(source) => recipe::Base::Source(Text(source.clone())),
            shadow::Base::Il(code, constants) => {
                recipe::Base::Il(Text(code.clone()), constants.clone())
            }
            shadow::Base::Linked(inputs) => {
                recipe::Base::Linked(inputs.iter().map(|input| input.key).collect())
            }
        };
        let (operation, devices) = match &call.operation {
            Operation::Build => (recipe::Operation::Build, &plan.devices),
            Operation::Compile(headers) => {
                let header = |header: &shadow::Header| {
                    let name = Text::from(header.name.as_bytes());
                    (name, Text(header.source.clone()))
                };
                let headers = headers.iter().map(header).collect();
                (recipe::Operation::Compile(headers), &plan.devices)
            }
            Operation::Link(of_context) => (recipe::Operation::Link, of_context),
        };
        let place = |device: &Device| super::devices::index(driver, devices, *device);
        let listed = match &call.arguments.devices {
            Some(listed) => Some(
                listed
                    .iter()
                    .map(|device| Some(place(device)? as u32))
                    .collect::<Option<_>>()?,
            ),
            None => None,
        };
        let options = call.arguments.options.as_ref();
        let working_directory = call.closure.working_directory();
        Some(Recipe {
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
                .collect::<Option<_>>()?,
            listed,
            previous: call.previous.as_ref().map(|previous| previous.key),
            files: files(plan)?,
            working_directory: working_directory.map(|path| path.as_os_str().as_bytes().into()),
            own_cache: (driver.own_cache()).map(|path| path.as_os_str().as_bytes().into()),
        })
    }

    /// Leaves a miss of a driver whose binaries are dear to `oclcache bake`: stores its recipe, without binaries. None: it is to
    /// be recorded at once, since it cannot be made again, since there is an entry which does not serve, or since nobody has
    /// baked it for some time.
    pub(super) fn leave_to_baker(
        &self,
        driver: &Driver,
        program: Program,
        plan: &Plan,
        elapsed: Duration,
    ) -> Option<(Vec<Vec<u8>>, Kept)> {
        let store = self.store()?;
        let before = store.which_entry(&plan.key());
        let mut took = elapsed;
        let misses = match store.look_up(&plan.key()) {
            Lookup::Found(..) => return None,
            Lookup::Pending(pending) => {
                let (misses, last_ms) = pending.meta.misses;
                if !is_after(self.opened_ms, last_ms, now_ms()) {
                    return Some((kernel_names(driver, program), Kept::Recipe));
                }
                // The driver's own cache has it by now.
                took = took.max(Duration::from_nanos(pending.meta.compile_ns));
                misses + 1
            }
            Lookup::Absent | Lookup::Unreadable(_) | Lookup::Bad(_) => 1,
        };
        if misses >= MOST_MISSES {
            return None;
        }
        let recipe = self.recipe(driver, plan)?;
        let facts = Facts {
            kernel_names: kernel_names(driver, program),
            ..Facts::default()
        };
        let names = facts.kernel_names.clone();
        let mut meta = self.meta(driver, plan, facts, took);
        meta.misses = (misses, now_ms());
        let content = EntryContent {
            meta: &meta,
            recipe: Some(&recipe),
            binaries: Vec::new(),
        };
        // Somebody may have baked it meanwhile.
        if store.which_entry(&plan.key()) != before {
            return Some((names, Kept::Recipe));
        }
        match store.publish(&plan.key(), &content) {
            Ok(removed) => {
                let events = [Counter::Recipes.by(1), Counter::Evicted.by(removed)];
                self.count(plan.place(), &events);
                autobake::recipe_written(&self.config);
                Some((names, Kept::Recipe))
            }
            Err(error) => {
                self.not_stored(plan, &error);
                Some((names, Kept::Nothing))
            }
        }
    }
}

/// Whether a process was opened after a miss, so that whoever bakes had a chance between them. A miss of the future was noted
/// before the clock was set back.
fn is_after(opened_ms: u64, miss_ms: u64, now_ms: u64) -> bool {
    opened_ms > miss_ms || miss_ms > now_ms
}

/// The header files of a plan with their contents; None if one has another by now.
fn files(plan: &Plan) -> Option<Vec<HeaderFile>> {
    let mut files = Vec::new();
    let mut numbers = HashMap::new();
    for file in plan.recipe.closure.files() {
        let content = match file.same_as {
            Some(first) => Content::SameAs {
                file: *numbers.get(&first)?,
                in_same_directory: file.in_same_directory,
            },
            None => {
                let text = std::fs::read(file.path).ok()?;
                if sha256(&text) != *file.digest {
                    return None;
                }
                Content::Text(Text(text.into()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_of_processes_that_began_before_are_one_unless_the_clock_was_set_back() {
        assert!(is_after(20, 10, 30));
        assert!(!is_after(10, 10, 30));
        assert!(!is_after(5, 10, 30));
        assert!(is_after(5, 40, 30));
    }
}
