//! Does the calls of recipes again, as an application that has one driver.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use opencl_sys::{CL_DEVICE_NAME, CL_SUCCESS, cl_int};

use super::headers::{Layout, lay_out};
use crate::cache::audit;
use crate::cache::bake::{self, Call, Done};
use crate::cl::{Context, Device, Program};
use crate::driver::{Application, BuildArguments, FloatState};
use crate::key::ingredients::Key;
use crate::log::text;
use crate::store::entry::Meta;
use crate::store::recipe::{DeviceName, Header, RecipeBase, RecipeOperation, StoredRecipe};
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// How many calls one recipe may take, and how deep programs may be made from one another.
const MAX_CALLS: usize = 4096;
const MAX_DEPTH: usize = 64;

/// What has become of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayResult {
    /// There is an entry now.
    Baked,
    /// There was one.
    Known,
    /// Its driver is what it was.
    Current,
    /// It was compiled for an audit, by the driver of this identity; the result is in [`RESULT`].
    Compiled(Key),
    /// An audit found that the entry is what the driver compiles.
    Agreed,
    /// An audit found that it is not, in these respects, so that the cache is off for the driver.
    Differed(String),
    /// An audit found that the driver compiles something else each time.
    Unstable,
    /// It was not tried to the end, for this reason.
    Skipped(String),
    /// The driver has failed, or what it makes is of no use.
    Failed(String),
}

/// The file in a worker's directory that has the result of the last compilation for an audit, as an entry.
pub const RESULT: &str = "compiled";

/// What a recipe is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// An entry, unless there is one.
    Bake,
    /// An entry in place of the one that there is.
    Again,
    /// The comparison with the entry that there is.
    Audit,
}

/// What is to be done with recipes.
pub struct Player<'a> {
    /// Where they are.
    pub store: &'a Store,
    /// The driver's platforms.
    pub platforms: &'a [Application],
    /// A private directory.
    pub root: &'a Path,
    /// The directory of the driver's own cache, if it is what the applications have.
    pub own_cache: Option<PathBuf>,
    /// Whether entries are made anew of what another version of the driver has made.
    pub is_stale: bool,
    /// Numbers directories.
    pub serial: Cell<u64>,
}

/// One recipe that is being made.
struct Making<'a> {
    application: &'a Application,
    context: Context,
    devices: Vec<Device>,
    names: Vec<DeviceName>,
    /// Its own directory.
    root: PathBuf,
    calls: usize,
    task: Task,
    /// What is released at the end.
    programs: Vec<Program>,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        for program in self.programs.drain(..).rev() {
            self.application.release_program(program);
        }
        self.application.release_context(self.context);
        // Never the working directory.
        let _ = enter(Path::new("/"));
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The working directory is this process's own affair.
#[allow(clippy::disallowed_methods)]
fn enter(directory: &Path) -> std::io::Result<()> {
    std::env::set_current_dir(directory)
}

fn skip<T>(why: impl Into<String>) -> Result<T, ReplayResult> {
    Err(ReplayResult::Skipped(why.into()))
}

impl Player<'_> {
    /// Compiles a recipe.
    pub fn bake(&self, key: &Key, task: Task) -> ReplayResult {
        self.try_bake(key, task).unwrap_or_else(|verdict| verdict)
    }

    fn try_bake(&self, key: &Key, task: Task) -> Result<ReplayResult, ReplayResult> {
        let (meta, recipe) = self.read(key)?;
        let (application, devices) = self.find_devices(&recipe.devices)?;
        if self.is_stale
            && bake::is_of_driver(application.hooked(), &devices, &meta.ingredients) == Some(true)
        {
            return Ok(ReplayResult::Current);
        }
        let context = application
            .create_context(&devices)
            .map_err(|code| failed("makes no context", code))?;
        self.serial.set(self.serial.get() + 1);
        let mut making = Making {
            application,
            context,
            devices,
            names: recipe.devices.clone(),
            root: self.root.join(self.serial.get().to_string()),
            calls: 0,
            task,
            programs: Vec::new(),
        };
        let was_pending = meta.is_pending();
        let (_, done) = self.make(&mut making, key, meta, recipe, 0)?;
        let (verdict, new) = match done {
            Done::Stored(new) => (ReplayResult::Baked, new),
            Done::Known(new) => (ReplayResult::Known, new),
            Done::Compiled(bytes) => return self.keep_result(application, &bytes),
            Done::Left(why) => return skip(why),
            Done::Useless(why) => return Err(ReplayResult::Failed(why)),
        };
        // A recipe that nobody can bake any more stands in the new entry as well.
        if was_pending && new != *key {
            let _ = self.store.remove(key);
        }
        Ok(verdict)
    }

    /// Writes the result of a compilation for an audit where the baker finds it.
    fn keep_result(
        &self,
        application: &Application,
        bytes: &[u8],
    ) -> Result<ReplayResult, ReplayResult> {
        let Some(identity) = audit::identity(application.hooked()) else {
            return skip("its driver cannot be identified");
        };
        match fs::write(self.root.join(RESULT), bytes) {
            Ok(()) => Ok(ReplayResult::Compiled(identity)),
            Err(error) => skip(format!("the result cannot be written: {error}")),
        }
    }

    fn read(&self, key: &Key) -> Result<(Meta, StoredRecipe), ReplayResult> {
        let entry = match self.store.look_up(key) {
            Lookup::Found(entry, _) | Lookup::Pending(entry) => entry,
            Lookup::Absent => return skip("it, or a program that it is made from, is gone"),
            Lookup::Unreadable(error) => return skip(format!("it cannot be read: {error}")),
            Lookup::Bad(defect) => return skip(format!("its entry is damaged: {defect}")),
        };
        match entry.recipe() {
            Some(recipe) => Ok((entry.meta, recipe)),
            None => skip("it was stored without its source (store_source)"),
        }
    }

    /// The devices by their names: of several of one name, in the platform's order.
    fn find_devices(
        &self,
        names: &[DeviceName],
    ) -> Result<(&Application, Vec<Device>), ReplayResult> {
        // A device compiles as its parts do, and a key of one device does not tell them apart.
        if names.len() > 1 && names.iter().any(|device| device.is_part) {
            return skip("it is for several devices, of which some are parts");
        }
        let find = |application: &Application| {
            let mut free: Vec<(Device, Vec<u8>)> = application
                .devices()
                .unwrap_or_default()
                .into_iter()
                .map(|device| {
                    let name = application.device_info(device, CL_DEVICE_NAME);
                    (device, name.unwrap_or_default())
                })
                .collect();
            let mut take = |wanted: &DeviceName| {
                let index = free.iter().position(|(_, name)| *name == wanted.name)?;
                Some(free.remove(index).0)
            };
            let found: Option<Vec<Device>> = names.iter().map(&mut take).collect();
            found.filter(|found| !found.is_empty())
        };
        let mut platforms = self.platforms.iter();
        match platforms.find_map(|application| Some((application, find(application)?))) {
            Some(found) => Ok(found),
            None => {
                let name = names.first().map_or(&[][..], |device| &device.name);
                let name = name.strip_suffix(b"\0").unwrap_or(name);
                skip(format!("the device {} is not there", text(name)))
            }
        }
    }

    /// Makes what a recipe makes: the program, and what has become of its last call.
    fn make(
        &self,
        making: &mut Making,
        key: &Key,
        meta: Meta,
        recipe: StoredRecipe,
        depth: usize,
    ) -> Result<(Program, Done), ReplayResult> {
        making.calls += 1;
        if making.calls > MAX_CALLS || depth > MAX_DEPTH {
            return skip("it takes too many calls");
        }
        let names = |devices: &[DeviceName]| -> Vec<Vec<u8>> {
            devices.iter().map(|device| device.name.clone()).collect()
        };
        if names(&recipe.devices) != names(&making.names) {
            return skip("it is made from programs for other devices");
        }
        let mut inputs = Vec::new();
        let before = match (&recipe.base, &recipe.previous) {
            (RecipeBase::Linked(keys), _) => {
                for key in keys {
                    inputs.push(self.part(making, key, depth)?);
                }
                None
            }
            (_, Some(previous)) => Some(self.part(making, previous, depth)?),
            _ => None,
        };
        let application = making.application;
        let directories = application.hooked().include_dirs();
        let root = making.root.join(making.calls.to_string());
        let laid = lay_out(
            &root,
            &recipe,
            &meta.ingredients,
            &directories,
            meta.imported,
        );
        let Layout {
            working_directory,
            options,
            is_moved,
        } = laid.map_err(ReplayResult::Skipped)?;
        if is_moved && making.task == Task::Audit {
            return skip("its headers cannot be compiled where they were");
        }
        if let Err(error) = enter(&working_directory) {
            return skip(format!("its working directory cannot be entered: {error}"));
        }
        let device = |index: &u32| making.devices.get(*index as usize).copied();
        let listed = recipe.listed.as_ref();
        let listed = listed.map(|listed| listed.iter().map(device).collect::<Option<Vec<_>>>());
        let options = options.map(CString::new).transpose();
        let (Ok(options), None | Some(Some(_))) = (options, &listed) else {
            return skip("its arguments cannot be given again");
        };
        let arguments = BuildArguments {
            devices: listed.flatten(),
            options,
        };
        let program = match (before, &recipe.base) {
            (Some(before), _) => Some(before),
            (None, RecipeBase::Linked(_)) => None,
            (None, base) => Some(create(making, base)?),
        };
        let operation = recipe.operation.clone();
        let float_state = FloatState::enter(&meta.ingredients);
        bake::begin(Call {
            key: *key,
            meta,
            is_stale: self.is_stale,
            again: making.task != Task::Bake && depth == 0,
            is_audit: making.task == Task::Audit,
            is_part: depth > 0,
            is_moved,
            has_variants: self.has_variants(&recipe),
            recipe,
        });
        let made = match (&operation, program) {
            (RecipeOperation::Link(()), _) => {
                application.link_program(making.context, &arguments, &inputs)
            }
            (_, None) => Err(CL_SUCCESS),
            (RecipeOperation::Build, Some(program)) => {
                let code = application.build_program(program, &arguments);
                verdict(program, code)
            }
            (RecipeOperation::Compile(headers), Some(program)) => {
                compile(making, program, &arguments, headers)
            }
        };
        let done = bake::end();
        drop(float_state);
        if matches!(operation, RecipeOperation::Link(())) {
            making.programs.extend(made.iter().copied());
        }
        match (made, done) {
            (_, Some(Done::Left(why))) => skip(why),
            // Each baker would make it again.
            (_, Some(Done::Useless(why))) => Err(ReplayResult::Failed(why)),
            (Ok(program), Some(done)) => Ok((program, done)),
            // What is there already was not built again.
            (Err(_), Some(done @ Done::Known(_))) if depth == 0 => {
                Ok((Program::new(std::ptr::null_mut()), done))
            }
            (Err(code), _) => Err(failed("does not build it", code)),
            (Ok(_), None) => skip("nothing was recorded"),
        }
    }

    /// A program that another is made from.
    fn part(&self, making: &mut Making, key: &Key, depth: usize) -> Result<Program, ReplayResult> {
        let (meta, recipe) = self.read(key)?;
        Ok(self.make(making, key, meta, recipe, depth + 1)?.0)
    }

    /// Whether the driver finds in its own cache what it made when kernels of the application ran.
    fn has_variants(&self, recipe: &StoredRecipe) -> Box<dyn Fn() -> bool + Send> {
        let own = self
            .own_cache
            .clone()
            .filter(|_| recipe.own_cache.is_some());
        let before = own.as_deref().map(programs_in).unwrap_or_default();
        Box::new(move || {
            let now = own.as_deref().map(programs_in).unwrap_or_default();
            now.iter()
                .filter(|(program, used)| before.get(*program) != Some(used))
                .any(|(program, _)| has_variants(program))
        })
    }
}

fn failed(what: &str, code: cl_int) -> ReplayResult {
    ReplayResult::Failed(format!("the driver {what} ({code})"))
}

fn verdict(program: Program, code: cl_int) -> Result<Program, cl_int> {
    match code {
        CL_SUCCESS => Ok(program),
        code => Err(code),
    }
}

/// The program before the call.
fn create(making: &mut Making, base: &RecipeBase<Key>) -> Result<Program, ReplayResult> {
    let application = making.application;
    let made = match base {
        RecipeBase::Source(source) => {
            application.create_program_with_source(making.context, source)
        }
        RecipeBase::Il(code, _) => application.create_program_with_il(making.context, code),
        RecipeBase::Linked(_) => return skip("its recipe makes no sense"),
    };
    let program = made.map_err(|code| failed("does not take it", code))?;
    making.programs.push(program);
    if let RecipeBase::Il(_, constants) = base {
        for (id, value) in constants {
            let code = application.set_specialization_constant(program, *id, value);
            if code != CL_SUCCESS {
                return Err(failed("does not take a specialization constant", code));
            }
        }
    }
    Ok(program)
}

fn compile(
    making: &mut Making,
    program: Program,
    arguments: &BuildArguments,
    headers: &[Header],
) -> Result<Program, cl_int> {
    let mut named: Vec<(&CStr, Program)> = Vec::new();
    for Header { name, source } in headers {
        let made = making
            .application
            .create_program_with_source(making.context, source)?;
        making.programs.push(made);
        named.push((name, made));
    }
    let code = making
        .application
        .compile_program(program, arguments, &named);
    verdict(program, code)
}

/// The programs in the driver's own cache, and when each was used (PoCL: a directory of two letters, one for each program in it,
/// and a file in that which is touched by each build; measured on PoCL 3.1).
fn programs_in(cache: &Path) -> HashMap<PathBuf, SystemTime> {
    let short = below(cache).filter(|path| path.file_name().is_some_and(|name| name.len() == 2));
    let used = |program: PathBuf| {
        let file = fs::metadata(program.join("last_accessed"));
        Some((program, file.ok()?.modified().ok()?))
    };
    short
        .flat_map(|short| below(&short))
        .filter_map(used)
        .collect()
}

/// Whether a program has more than what each binary gets, which is for any work-group size (PoCL: a directory for each kernel,
/// and in that one for each size and kind of range; measured on PoCL 3.1).
fn has_variants(program: &Path) -> bool {
    let is_for_a_size = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.first().is_some_and(u8::is_ascii_digit) && !name.starts_with(b"0-0-0")
    };
    below(program).any(|kernel| below(&kernel).any(is_for_a_size))
}

fn below(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}
