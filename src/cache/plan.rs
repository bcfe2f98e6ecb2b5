//! What a call would be keyed by, or why it cannot be.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use opencl_sys::*;

use super::Cache;
use super::devices::{self, chosen, previous};
use super::headers::{are_unchanged, around, header, source_text, texts};
use super::sources;
use crate::cl::{Context, Device, Program};
pub(super) use crate::config::executable;
use crate::driver::environment::Reads;
use crate::driver::profile::Rebuild;
use crate::driver::{BuildArguments, Driver, device, loaded_changes};
use crate::key::include::Closure;
use crate::key::ingredients::{Ingredient, Key, Kind, key, sha256};
use crate::key::options::{self, Options};
use crate::key::source::{before_digits, is_spelled_by_environment};
use crate::outcome::{Bypass, Missed};
use crate::reserve::has_room;
use crate::shadow::{self, Base, CachedProgram, Constants, Operation, Origin, Recipe, Ticket};
use crate::store::stats::Labels;

/// Sources, intermediate languages and options beyond this are left to the driver, in bytes.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// How many times the length of its texts a call may need at once: the source and its key, with lines joined, as an entry that is
/// read or written.
const PEAK_TIMES: usize = 6;
/// Shorter texts find room in what allocators keep.
const SMALL: usize = 128 << 10;

/// A call whose result is known by its key.
pub struct Plan {
    /// What the key was made of, in parts: those of driver and devices are shared.
    parts: Vec<Arc<[Ingredient]>>,
    /// The driver's family.
    pub family: &'static str,
    /// Why it was no hit, if it was none.
    missed: AtomicU8,
    /// The options; None is NULL.
    pub options: Option<Options>,
    /// The program's devices, in its order.
    pub devices: Vec<Device>,
    /// Those that the call names, by their index.
    pub targets: Vec<usize>,
    /// The key, and what the call does.
    pub recipe: Arc<Recipe>,
    /// How many libraries had been loaded when the key was made.
    pub loads: u64,
}

impl Plan {
    /// The key.
    pub fn key(&self) -> Key {
        self.recipe.key
    }

    /// What the key was made of.
    pub fn ingredients(&self) -> Vec<Ingredient> {
        self.parts
            .iter()
            .flat_map(|part| part.iter())
            .cloned()
            .collect()
    }

    /// The first digits of the key, for the log.
    pub fn key_prefix(&self) -> String {
        self.key().hex()[..16].to_owned()
    }

    /// What its events are counted for.
    pub fn place(&self) -> Labels<'_> {
        let device = self.parts.iter().find_map(|part| device::name(part));
        Labels {
            driver: self.family,
            device: device.unwrap_or_default(),
        }
    }

    /// Remembers why it is no hit. Of two reasons the later one holds, unless that is that there is no entry any more.
    pub fn missed_by(&self, reason: Missed) {
        if reason != Missed::Absent {
            self.missed.store(reason as u8, Ordering::Relaxed);
        }
    }

    /// Why it was no hit.
    pub fn missed(&self) -> Missed {
        let number = usize::from(self.missed.load(Ordering::Relaxed));
        Missed::ALL.get(number).copied().unwrap_or(Missed::Absent)
    }

    /// Whether these programs of this context still hold what the plan links.
    pub fn is_of(&self, inputs: &[Program], context: Context) -> bool {
        let Base::Linked(planned) = &self.recipe.base else {
            return false;
        };
        planned.iter().zip(inputs).all(|(planned, input)| {
            shadow::recipe(*input, context).is_some_and(|now| Arc::ptr_eq(&now, planned))
        })
    }

    /// Whether no header has changed meanwhile, appeared or gone.
    pub fn still_holds(&self) -> bool {
        self.recipe.closure.is_untouched()
    }
}

/// An embedded header of a call: its name, and its program.
pub type HeaderProgram = (CString, Program);

impl Cache {
    /// Plans a build or compilation of a program that is not being built otherwise. `headers`: see [`super::BuildCall`].
    #[inline(never)] // what it keeps on the stack is not below the driver's compiler
    pub(super) fn plan(
        &self,
        ticket: &Ticket,
        arguments: &BuildArguments,
        headers: Option<&[HeaderProgram]>,
    ) -> Result<Box<Plan>, Bypass> {
        if ticket.concurrent {
            return Err(Bypass::ConcurrentBuild);
        }
        if ticket.release_callback {
            return Err(Bypass::ReleaseCallback);
        }
        if ticket.failed {
            return Err(Bypass::AfterFailedBuild);
        }
        if ticket.built && has_kernels(ticket) {
            return Err(Bypass::LiveKernels);
        }
        if ticket.built && !forgets(ticket, headers.is_some()) {
            return Err(Bypass::BuiltBefore);
        }
        let driver = ticket.driver;
        let length = match &ticket.origin {
            Origin::Source(length) => length.unwrap_or(0),
            _ => 0,
        };
        let options = arguments.options.as_ref();
        let options = options.map_or(0, |options| options.as_bytes().len());
        let texts = length + options;
        if texts > SMALL && !has_room(PEAK_TIMES.saturating_mul(texts)) {
            return Err(Bypass::NoMemory);
        }
        let base = match &ticket.origin {
            Origin::Source(length) => {
                let length = length.ok_or(Bypass::UnusualArguments)?;
                Base::Source(source_text(driver, ticket.program, length)?.into())
            }
            Origin::Il(module, constants) => {
                let code = driver
                    .program_info(ticket.program, CL_PROGRAM_IL)
                    .map_err(|_| Bypass::UnknownIl)?;
                if sha256(&code) != module.digest
                    || module.has_constants && !driver.sees_constants()
                {
                    return Err(Bypass::UnknownIl);
                }
                Base::Il(code.into(), constants.clone())
            }
            Origin::Linked => return Err(Bypass::NotFromSource),
        };
        let operation = match headers {
            None => Operation::Build,
            Some(headers) => Operation::Compile(
                headers
                    .iter()
                    .map(|(name, program)| header(ticket, name, *program))
                    .collect::<Result<_, _>>()?,
            ),
        };
        let devices = driver
            .program_devices(ticket.program)
            .map_err(|_| Bypass::UnidentifiedDevice)?;
        let previous = previous(ticket, &devices, arguments, &operation)?;
        let plan = self.key(driver, devices, base, operation, arguments, previous)?;
        self.unless_marked(driver, plan)
    }

    /// Plans a link. Inputs of another context are left to the driver, which may refuse them (measured: Intel's CPU runtime).
    #[inline(never)] // as above
    pub(super) fn plan_link(
        &self,
        driver: &'static Driver,
        context: Context,
        arguments: &BuildArguments,
        inputs: &[Program],
    ) -> Result<Box<Plan>, Bypass> {
        let inputs: Vec<Arc<Recipe>> = inputs
            .iter()
            .map(|input| {
                let recipe = shadow::recipe(*input, context).ok_or(Bypass::UnknownInput)?;
                // Its key may leave out digits that what it is linked with can tell.
                match (&recipe.base, &recipe.operation) {
                    (Base::Source(text), Operation::Build) if before_digits(text).is_some() => {
                        Err(Bypass::UnknownInput)
                    }
                    _ => Ok(recipe),
                }
            })
            .collect::<Result<_, _>>()?;
        if inputs.iter().map(|input| input.weight).sum::<usize>() >= Recipe::MAX_WEIGHT
            || inputs.iter().any(|input| input.depth >= Recipe::MAX_DEPTH)
        {
            return Err(Bypass::TooLarge);
        }
        let of_context = driver
            .context_devices(context)
            .map_err(|_| Bypass::UnidentifiedDevice)?;
        let devices = arguments.devices.clone();
        let devices = devices.unwrap_or_else(|| of_context.clone());
        let base = Base::Linked(inputs);
        let operation = Operation::Link(of_context);
        let plan = self.key(driver, devices, base, operation, arguments, None)?;
        self.unless_marked(driver, plan)
    }

    /// The key that a call would have now, without regard to the program's state.
    pub(super) fn key_again(
        &self,
        driver: &'static Driver,
        devices: &[Device],
        recipe: &Recipe,
    ) -> Result<Key, Bypass> {
        let mut earlier = recipe.base.inputs().iter().chain(&recipe.previous);
        if !earlier.all(|recipe| are_unchanged(recipe)) {
            return Err(Bypass::UnknownInput);
        }
        let plan = self.key(
            driver,
            devices.to_vec(),
            recipe.base.clone(),
            recipe.operation.clone(),
            &recipe.arguments,
            recipe.previous.clone(),
        )?;
        Ok(plan.key())
    }

    fn key(
        &self,
        driver: &'static Driver,
        devices: Vec<Device>,
        mut base: Base,
        operation: Operation,
        arguments: &BuildArguments,
        previous: Option<Arc<Recipe>>,
    ) -> Result<Box<Plan>, Bypass> {
        if !self.has_entries() {
            return Err(Bypass::NoCacheDirectory);
        }
        let targets = devices::targets(driver, &devices, arguments)?;
        let options_bytes = arguments.options.as_ref().map(|options| options.as_bytes());
        let headers = match &operation {
            Operation::Compile(headers) => headers.as_slice(),
            _ => &[],
        };
        let text = match &base {
            Base::Source(text) | Base::Il(text, _) => text.as_slice(),
            Base::Linked(_) => &[],
        };
        let lengths = [text.len(), options_bytes.map_or(0, <[u8]>::len)];
        let header_lengths = headers.iter().map(|header| header.source.len());
        if lengths
            .into_iter()
            .chain(header_lengths)
            .any(|length| length > MAX_TEXT_BYTES)
        {
            return Err(Bypass::TooLarge);
        }
        let options = options_bytes.map(options::parse).transpose()?;
        if driver.profile.refuses_debug && options.as_ref().is_some_and(|options| options.debug) {
            return Err(Bypass::RefusedByProfile);
        }
        // Of a source that was found to name no header, nothing is to be looked for on its behalf.
        let implicit = driver.profile.implicit_includes;
        let known = match &base {
            Base::Source(text) if headers.is_empty() => {
                self.sources.find(text, options_bytes, implicit)
            }
            _ => None,
        };
        let is_random = matches!(&base, Base::Source(text) if before_digits(text).is_some());
        // Another program that is linked with this one may know the name.
        let is_alone = matches!(operation, Operation::Build);
        let is_free = is_random && is_alone && !is_spelled_by_environment();
        let known = known.filter(|known| is_free || known.keyed.1.is_empty());
        let known = known.and_then(|known| Some((known, around(driver, options.as_ref())?)));
        let (closure, keyed) = match (&mut base, known) {
            (Base::Source(text), Some((known, closure))) => {
                *text = known.text.clone();
                (closure, known.keyed)
            }
            (Base::Source(text), None) => {
                let followed = texts(driver, text, headers, options.as_ref())?;
                let closure = followed.closure;
                let is_free = is_free
                    && !followed.spells_random_name
                    && options.as_ref().is_none_or(|options| !options.debug);
                let keyed = sources::keyed(text, is_free);
                let is_alone = |around: Closure| headers.is_empty() && around.is_like(&closure);
                if around(driver, options.as_ref()).is_some_and(is_alone) {
                    self.sources
                        .remember(text, options_bytes, implicit, keyed)?;
                }
                (closure, keyed)
            }
            _ => Default::default(),
        };
        let device_identities = driver
            .device_identities(&devices)
            .ok_or(Bypass::UnidentifiedDevice)?;
        let loads = loaded_changes().loads;
        let driver_identity = driver.identity(self).ok_or(Bypass::UnidentifiedDriver)?;
        let surroundings = driver
            .surroundings(matches!(base, Base::Il(..)), self)
            .ok_or(Bypass::UnidentifiedDriver)?;
        let bindings = driver.bindings(self)?;
        self.remember_digests();
        let reads_unknown = match surroundings.reads {
            Reads::Nothing => false,
            Reads::HeadersElsewhere => !headers.is_empty() || closure.names_any(),
            Reads::Files | Reads::Compilers => true,
        };
        let is_compiled = matches!(base, Base::Source(_)) || surroundings.reads == Reads::Compilers;
        if is_compiled && reads_unknown {
            return Err(Bypass::OptionReadsFile);
        }

        let mut ingredients = match &base {
            Base::Source(_) => vec![Ingredient::new(Kind::Source, keyed.1, keyed.0)],
            Base::Il(code, constants) => il_ingredients(code, constants),
            Base::Linked(inputs) => input_ingredients(inputs),
        };
        ingredients.push(match &options {
            Some(options) => Ingredient::new(Kind::Options, "given", sha256(&options.normalized)),
            None => Ingredient::new(Kind::Options, "NULL", []),
        });
        match &operation {
            Operation::Build => {}
            Operation::Compile(_) => {
                ingredients.push(Ingredient::new(Kind::Operation, "", *b"compile"));
            }
            Operation::Link(of_context) => {
                ingredients.push(Ingredient::new(Kind::Operation, "", *b"link"));
                // An input may have been compiled for another of several devices that are alike.
                let targets = devices::targets(driver, of_context, arguments)?;
                if targets.len() < of_context.len() {
                    ingredients.extend(chosen(driver, of_context, &targets));
                }
            }
        }
        ingredients.extend(headers.iter().map(|header| {
            let name = String::from_utf8_lossy(header.name.as_bytes());
            Ingredient::new(Kind::Header, name, sha256(&header.source))
        }));
        ingredients.extend(closure.ingredients());
        if options.as_ref().is_some_and(|options| options.debug) {
            let directory = std::env::current_dir().map_err(|_| Bypass::ReadsFile)?;
            let directory = directory.as_os_str().as_bytes();
            ingredients.push(Ingredient::new(Kind::WorkingDirectory, "", directory));
        }
        if targets.len() < devices.len() {
            ingredients.extend(chosen(driver, &devices, &targets));
        }
        ingredients.extend(
            previous
                .iter()
                .map(|previous| Ingredient::new(Kind::Previous, "", previous.key.0)),
        );
        ingredients.extend(surroundings.ingredients);
        ingredients.extend(driver.float_state()?);
        if driver.profile.looks_at_executable {
            ingredients.push(Ingredient::new(Kind::Executable, "", executable()));
        }
        let devices_and_driver = device_identities
            .into_iter()
            .chain([driver_identity, bindings]);
        let parts: Vec<_> = [ingredients.into()]
            .into_iter()
            .chain(devices_and_driver)
            .collect();
        let earlier = || base.inputs().iter().chain(&previous);
        let recipe = Recipe {
            key: key(parts.iter().flat_map(|part| part.iter())),
            weight: 1 + earlier().map(|recipe| recipe.weight).sum::<usize>(),
            depth: 1 + earlier().map(|recipe| recipe.depth).max().unwrap_or(0),
            include_dirs: include_dirs(options.as_ref(), &closure, earlier()),
            closure,
            base,
            operation,
            arguments: arguments.clone(),
            previous,
        };
        Ok(Box::new(Plan {
            parts,
            family: driver.profile.family,
            missed: AtomicU8::new(Missed::Absent as u8),
            options,
            devices,
            targets,
            recipe: Arc::new(recipe),
            loads,
        }))
    }
}

/// Whether the driver makes of a program that was built or compiled before what it would make of a new one.
fn forgets(ticket: &Ticket, compiles: bool) -> bool {
    match ticket.driver.profile.rebuild {
        Rebuild::Fresh => true,
        Rebuild::KeepsKernels => false,
        // It keeps the compiled object and the log as well, and of an intermediate language the values of specialization
        // constants (measured), so only builds of what is served from source are as new.
        Rebuild::KeepsVariables => {
            let was_built = |recipe: &Recipe| matches!(recipe.operation, Operation::Build);
            let served = ticket.inner.as_ref().map(|inner| inner.recipe());
            let from_source = matches!(ticket.origin, Origin::Source(_));
            from_source && !compiles && served.is_some_and(|recipe| was_built(recipe))
        }
    }
}

fn il_ingredients(code: &[u8], constants: &Constants) -> Vec<Ingredient> {
    let code = Ingredient::new(Kind::Il, "", sha256(code));
    let constants = constants
        .iter()
        .map(|(id, value)| Ingredient::new(Kind::Constant, id.to_string(), value.as_slice()));
    [code].into_iter().chain(constants).collect()
}

fn input_ingredients(inputs: &[Arc<Recipe>]) -> Vec<Ingredient> {
    let inputs = inputs.iter().enumerate();
    inputs
        .map(|(index, input)| Ingredient::new(Kind::Input, index.to_string(), input.key.0))
        .collect()
}

/// All directories in which headers were looked for, whose spelling is not in the key.
fn include_dirs<'a>(
    options: Option<&Options>,
    closure: &Closure,
    earlier: impl Iterator<Item = &'a Arc<Recipe>>,
) -> Vec<Vec<u8>> {
    let working = closure.working_directory();
    let working = working.map(|directory| directory.as_os_str().as_bytes().to_vec());
    let own = options.iter().flat_map(|options| &options.include_dirs);
    let earlier = earlier.flat_map(|recipe| &recipe.include_dirs);
    working
        .into_iter()
        .chain(own.chain(earlier).cloned())
        .collect()
}

/// Whether kernels are attached to the program, so that only the driver can say whether it may be built again. Kernels
/// that the application has released may still be executing: drivers that count them in the program's references tell.
pub(super) fn has_kernels(ticket: &Ticket) -> bool {
    ticket.kernels > 0
        || has_more_references(ticket.driver, ticket.program, ticket.references)
        || ticket
            .inner
            .as_ref()
            .is_some_and(|inner| has_inner_kernels(ticket, inner))
}

/// Whether some of them are kernels of the program that was made from binaries: of P', or of a link's result, which is the
/// application's own.
pub(super) fn has_inner_kernels(ticket: &Ticket, inner: &CachedProgram) -> bool {
    let (kernels, ours) = match inner.is_apart() {
        true => (ticket.inner_kernels, 1),
        false => (ticket.kernels, ticket.references),
    };
    kernels > 0 || has_more_references(ticket.driver, inner.program(), ours)
}

fn has_more_references(driver: &Driver, program: Program, ours: cl_uint) -> bool {
    driver
        .program_references(program)
        .is_ok_and(|references| references > ours)
}
