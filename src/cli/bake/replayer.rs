//! Repeats the API calls of recipes, as an application of one driver.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use opencl_sys::{CL_DEVICE_NAME, CL_SUCCESS, cl_int};

use super::headers::{Layout, lay_out};
use crate::cache::audit;
use crate::cache::bake::{self, Call, Done, KernelUse};
use crate::cl::{Context, Device, Program};
use crate::driver::{Application, BuildArguments, FloatState};
use crate::key::ingredients::Key;
use crate::log::text;
use crate::store::entry::{Defect, Meta};
use crate::store::recipe::{DeviceName, Header, RecipeBase, RecipeOperation, StoredRecipe};
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// Limits of calls in one recipe, and of the depth of programs that are made from programs.
const MAX_CALLS: usize = 4096;
const MAX_DEPTH: usize = 64;

/// The result for a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayResult {
    /// An entry was stored.
    Baked,
    /// An entry was stored already.
    Known,
    /// Its driver has not changed.
    Current,
    /// Its kernels never ran, so it is left for [`BakeTask::BakeUnused`].
    PutOff,
    /// It was compiled for an audit, by the driver of this identity; the result is in [`RESULT`].
    Compiled(Key),
    /// Audit: the entry is what the driver compiles.
    Agreed,
    /// Audit: the entry differs in these respects, so the cache is now off for the driver.
    Differed(String),
    /// Audit: the driver's compilations differ from each other.
    Unstable,
    /// It was not completed, for this reason.
    Skipped(String),
    /// The driver failed, or its result cannot be used.
    Failed(String),
}

/// The file in a worker's directory with the result of the last compilation for an audit, as an entry.
pub const RESULT: &str = "compiled";

/// Why a recipe is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BakeTask {
    /// To store an entry, unless there is one, or no kernel of the program ever ran.
    Bake,
    /// To store an entry, unless there is one. No kernel of the program ever ran.
    BakeUnused,
    /// To replace an entry.
    Again,
    /// To compare with an entry.
    Audit,
}

/// Repeats the calls of recipes.
pub struct Replayer<'a> {
    /// The recipes.
    pub store: &'a Store,
    /// The driver's platforms.
    pub platforms: &'a [Application],
    /// A private directory.
    pub root: &'a Path,
    /// The directory of the driver's own cache, if it is that of the applications.
    pub own_cache: Option<PathBuf>,
    /// Whether entries of another version of the driver are recompiled.
    pub is_stale: bool,
    /// The number of the next directory.
    pub serial: Cell<u64>,
}

/// One recipe that is being compiled.
struct Replay<'a> {
    application: &'a Application,
    context: Context,
    devices: Vec<Device>,
    names: Vec<DeviceName>,
    /// A directory for this recipe.
    root: PathBuf,
    calls: usize,
    task: BakeTask,
    /// Programs to release at the end.
    programs: Vec<Program>,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        for program in self.programs.drain(..).rev() {
            self.application.release_program(program);
        }
        self.application.release_context(self.context);
        // The directory is removed, so it must not be the working directory.
        let _ = enter(Path::new("/"));
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[allow(clippy::disallowed_methods)] // this process is no application
fn enter(directory: &Path) -> std::io::Result<()> {
    std::env::set_current_dir(directory)
}

fn skip<T>(why: impl Into<String>) -> Result<T, ReplayResult> {
    Err(ReplayResult::Skipped(why.into()))
}

impl Replayer<'_> {
    /// Compiles a recipe.
    pub fn bake(&self, key: &Key, task: BakeTask) -> ReplayResult {
        self.try_bake(key, task).unwrap_or_else(|verdict| verdict)
    }

    fn try_bake(&self, key: &Key, task: BakeTask) -> Result<ReplayResult, ReplayResult> {
        let (meta, recipe) = self.read(key)?;
        let (application, devices) = self.find_devices(&recipe.devices)?;
        if self.is_stale
            && bake::is_of_driver(application.hooked(), &devices, &meta.ingredients) == Some(true)
        {
            return Ok(ReplayResult::Current);
        }
        let context = application
            .create_context(&devices)
            .map_err(|code| failed("creates no context", code))?;
        self.serial.set(self.serial.get() + 1);
        let mut replay = Replay {
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
        let (_, done) = self.make(&mut replay, key, meta, recipe, 0)?;
        let (verdict, new) = match done {
            Done::Stored(new) => (ReplayResult::Baked, new),
            Done::Known(new) => (ReplayResult::Known, new),
            Done::Compiled(bytes) => return self.keep_result(application, &bytes),
            Done::PutOff => return Ok(ReplayResult::PutOff),
            Done::Left(why) => return skip(why),
            Done::Useless(why) => return Err(ReplayResult::Failed(why)),
        };
        // The recipe is also in the new entry, and nobody can bake it under the old key.
        if was_pending && new != *key {
            let _ = self.store.remove(key);
        }
        Ok(verdict)
    }

    /// Writes the result of a compilation for an audit to a file for the baker.
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
            Lookup::Absent => return skip("it, or a program that it is made from, was removed"),
            Lookup::Unreadable(error) => return skip(format!("it cannot be read: {error}")),
            Lookup::Bad(defect) => return skip(format!("its entry is damaged: {defect}")),
        };
        match entry.recipe() {
            Ok(recipe) => Ok((entry.meta, recipe)),
            Err(defect @ Defect::NoMemory) => skip(format!("it cannot be read: {defect}")),
            Err(_) => skip("it was stored without its source (`store_source`)"),
        }
    }

    /// Finds the devices by name; those with equal names in the platform's order.
    fn find_devices(
        &self,
        names: &[DeviceName],
    ) -> Result<(&Application, Vec<Device>), ReplayResult> {
        // A single part compiles as the whole device does, and has the same key.
        if names.len() > 1 && names.iter().any(|device| device.is_part) {
            return skip("it is for several devices, some of which are sub-devices");
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
                skip(format!("the device `{}` does not exist", text(name)))
            }
        }
    }

    /// Repeats the calls of a recipe. Returns the program and the result of the last call.
    fn make(
        &self,
        replay: &mut Replay,
        key: &Key,
        meta: Meta,
        recipe: StoredRecipe,
        depth: usize,
    ) -> Result<(Program, Done), ReplayResult> {
        replay.calls += 1;
        if replay.calls > MAX_CALLS || depth > MAX_DEPTH {
            return skip("it needs too many calls");
        }
        let names = |devices: &[DeviceName]| -> Vec<Vec<u8>> {
            devices.iter().map(|device| device.name.clone()).collect()
        };
        if names(&recipe.devices) != names(&replay.names) {
            return skip("it is made from programs for other devices");
        }
        let mut inputs = Vec::new();
        let before = match (&recipe.base, &recipe.previous) {
            (RecipeBase::Linked(keys), _) => {
                for key in keys {
                    inputs.push(self.part(replay, key, depth)?);
                }
                None
            }
            (_, Some(previous)) => Some(self.part(replay, previous, depth)?),
            _ => None,
        };
        let application = replay.application;
        let Some(directories) = application.hooked().include_dirs() else {
            return skip("directories of the driver's headers cannot be listed");
        };
        let root = replay.root.join(replay.calls.to_string());
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
        if is_moved && replay.task == BakeTask::Audit {
            return skip("its headers cannot be compiled in their own directory");
        }
        if let Err(error) = enter(&working_directory) {
            return skip(format!("its working directory cannot be entered: {error}"));
        }
        let device = |index: &u32| replay.devices.get(*index as usize).copied();
        let listed = recipe.listed.as_ref();
        let listed = listed.map(|listed| listed.iter().map(device).collect::<Option<Vec<_>>>());
        let options = options.map(CString::new).transpose();
        let (Ok(options), None | Some(Some(_))) = (options, &listed) else {
            return skip("its arguments cannot be repeated");
        };
        let arguments = BuildArguments {
            devices: listed.flatten(),
            options,
        };
        let program = match (before, &recipe.base) {
            (Some(before), _) => Some(before),
            (None, RecipeBase::Linked(_)) => None,
            (None, base) => Some(create(replay, base)?),
        };
        let operation = recipe.operation.clone();
        let float_state = FloatState::enter(&meta.ingredients);
        let is_asked_for = depth == 0;
        bake::begin(Call {
            key: *key,
            // Objects and libraries have no kernels. What is linked of them may run.
            puts_off: replay.task == BakeTask::Bake
                && is_asked_for
                && !matches!(operation, RecipeOperation::Compile(_))
                && !meta.facts.kernel_names.is_empty(),
            meta,
            is_stale: self.is_stale,
            again: matches!(replay.task, BakeTask::Again | BakeTask::Audit) && is_asked_for,
            is_audit: replay.task == BakeTask::Audit,
            is_part: depth > 0,
            is_moved,
            kernel_use: self.kernel_use(&recipe),
            recipe,
        });
        let made = match (&operation, program) {
            (RecipeOperation::Link(()), _) => {
                application.link_program(replay.context, &arguments, &inputs)
            }
            (_, None) => Err(CL_SUCCESS),
            (RecipeOperation::Build, Some(program)) => {
                let code = application.build_program(program, &arguments);
                verdict(program, code)
            }
            (RecipeOperation::Compile(headers), Some(program)) => {
                compile(replay, program, &arguments, headers)
            }
        };
        let done = bake::end();
        drop(float_state);
        if matches!(operation, RecipeOperation::Link(())) {
            replay.programs.extend(made.iter().copied());
        }
        match (made, done) {
            (_, Some(Done::Left(why))) => skip(why),
            // Otherwise each baker would compile it again.
            (_, Some(Done::Useless(why))) => Err(ReplayResult::Failed(why)),
            (Ok(program), Some(done)) => Ok((program, done)),
            // An entry that exists was not built again.
            (Err(_), Some(done @ Done::Known(_))) if depth == 0 => {
                Ok((Program::new(std::ptr::null_mut()), done))
            }
            (Err(code), _) => Err(failed("does not build it", code)),
            (Ok(_), None) => skip("nothing was recorded"),
        }
    }

    /// Makes a program that another one is made from.
    fn part(&self, replay: &mut Replay, key: &Key, depth: usize) -> Result<Program, ReplayResult> {
        let (meta, recipe) = self.read(key)?;
        Ok(self.make(replay, key, meta, recipe, depth + 1)?.0)
    }

    /// What the driver's own cache tells of the kernels of the program that is built next. The program is the one that the build
    /// uses.
    fn kernel_use(&self, recipe: &StoredRecipe) -> Box<dyn Fn() -> KernelUse + Send> {
        let own = self
            .own_cache
            .clone()
            .filter(|_| recipe.own_cache.is_some());
        let before = own.as_deref().map(programs_in).unwrap_or_default();
        Box::new(move || {
            let now = own.as_deref().map(programs_in).unwrap_or_default();
            let used =
                |(program, used): &(&PathBuf, &SystemTime)| before.get(*program) != Some(*used);
            let built: Vec<&PathBuf> = now
                .iter()
                .filter(used)
                .map(|(program, _)| program)
                .collect();
            if built.iter().any(|program| has_variants(program)) {
                KernelUse::Ran
            } else if built.iter().any(|program| before.contains_key(*program)) {
                KernelUse::NeverRan
            } else {
                KernelUse::Unknown
            }
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

/// Creates the program of the recipe.
fn create(replay: &mut Replay, base: &RecipeBase<Key>) -> Result<Program, ReplayResult> {
    let application = replay.application;
    let made = match base {
        RecipeBase::Source(source) => {
            application.create_program_with_source(replay.context, source)
        }
        RecipeBase::Il(code, _) => application.create_program_with_il(replay.context, code),
        RecipeBase::Linked(_) => return skip("its recipe is invalid"),
    };
    let program = made.map_err(|code| failed("does not accept it", code))?;
    replay.programs.push(program);
    if let RecipeBase::Il(_, constants) = base {
        for (id, value) in constants {
            let code = application.set_specialization_constant(program, *id, value);
            if code != CL_SUCCESS {
                return Err(failed("does not accept a specialization constant", code));
            }
        }
    }
    Ok(program)
}

fn compile(
    replay: &mut Replay,
    program: Program,
    arguments: &BuildArguments,
    headers: &[Header],
) -> Result<Program, cl_int> {
    let mut named: Vec<(&CStr, Program)> = Vec::new();
    for Header { name, source } in headers {
        let made = replay
            .application
            .create_program_with_source(replay.context, source)?;
        replay.programs.push(made);
        named.push((name, made));
    }
    let code = replay
        .application
        .compile_program(program, arguments, &named);
    verdict(program, code)
}

/// The programs in the driver's own cache, and when each was last used. PoCL 3.1 (measured) has a directory of two letters, in that one
/// for each program, and in that a file which each build touches.
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

/// Whether a program has variants for work-group sizes, in addition to the one for any size. PoCL 3.1 (measured) has a directory for
/// each kernel, and in that one for each size and kind of range.
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
