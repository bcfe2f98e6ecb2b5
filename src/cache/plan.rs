//! The key of a call, or the reason why the call has none.

mod assembly;
mod identity;
mod shared_parts;
mod state;
mod text;

use std::borrow::Cow;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use once_cell::race::OnceBox;
use opencl_sys::*;

use super::Cache;
use super::devices::{self, previous, replace_named};
use super::headers::{are_unchanged, header, source_text};
use crate::cl::{Context, Device, Program};
use crate::driver::moment::Moment;
use crate::driver::{BuildArguments, Driver, FloatState, device};
use crate::key::ingredients::{Ingredient, Key, Kind, key, sha256};
use crate::key::options::Options;
use crate::key::source::before_digits;
use crate::outcome::{Bypass, Missed};
use crate::reserve::has_room;
use crate::shadow::{self, Base, NamedDevice, Operation, Origin, Recipe, Ticket};
use crate::store::entry::Defect;
use crate::store::stats::Labels;
use crate::store::tier::EntryOrigin;
use assembly::OwnIngredients;
use identity::CallIdentity;
pub(super) use shared_parts::SharedParts;
pub(super) use state::{check_state, has_inner_kernels, has_kernels};
use text::{CallText, check_options};

/// Peak memory of a call as a multiple of the length of its texts: the source, the key's copy with lines joined, and the entry that
/// is read or written, with the encoding and the compression of its recipe.
const PEAK_TIMES: usize = 6;
/// Memory for a driver that compiles, beside that for the texts. A generous estimate: with 1 MB of source a build needed 100 MB more
/// address space than a hit on PoCL, and 16 MB more on Intel's CPU runtime (one bisection each).
const DRIVER_BYTES: usize = 256 << 20;
/// Room for shorter texts is not checked: allocators keep that much free.
const MIN_CHECKED_BYTES: usize = 128 << 10;

/// A call that has a key.
pub struct Plan {
    /// The ingredients of the key, in parts. The parts of driver and devices are shared.
    parts: Vec<Arc<[Ingredient]>>,
    /// The driver's family.
    pub family: &'static str,
    /// The reason for a miss, as a number.
    missed: AtomicU8,
    /// The entry of the user's store that the driver has refused in this call.
    refused: OnceBox<(EntryOrigin, Defect)>,
    /// The options; None is NULL.
    pub options: Option<Options>,
    /// The program's devices, in its order.
    pub devices: Vec<Device>,
    /// The devices that the call names, by their index.
    pub targets: Vec<usize>,
    /// The key, and the inputs of the call.
    pub recipe: Arc<Recipe>,
    /// How many libraries had been loaded when the key was made.
    pub loads: u64,
    /// Whether the driver is known to have compiled as the key says; else why not. See [`super::first_build`].
    pub is_settled: Result<(), Cow<'static, str>>,
}

impl Plan {
    /// The key.
    pub fn key(&self) -> Key {
        self.recipe.key
    }

    /// The ingredients of the key.
    pub fn ingredients(&self) -> Vec<Ingredient> {
        self.parts
            .iter()
            .flat_map(|part| part.iter())
            .cloned()
            .collect()
    }

    /// See [`Draft::text_key`].
    pub(super) fn text_key(&self) -> Key {
        text_key(self.parts.iter().flat_map(|part| part.iter()))
    }

    /// The first digits of the key, for the log.
    pub fn key_prefix(&self) -> String {
        self.key().hex()[..16].to_owned()
    }

    /// The labels of its counters.
    pub fn place(&self) -> Labels<'_> {
        let device = self.parts.iter().find_map(|part| device::name(part));
        Labels {
            driver: self.family,
            device: device.unwrap_or_default(),
        }
    }

    /// Sets the reason for a miss. A later reason replaces an earlier one, except that the reason "no entry" replaces none.
    pub fn missed_by(&self, reason: Missed) {
        if reason != Missed::New {
            self.missed.store(reason as u8, Ordering::Relaxed);
        }
    }

    /// The reason for a miss.
    pub fn missed(&self) -> Missed {
        let number = usize::from(self.missed.load(Ordering::Relaxed));
        Missed::ALL.get(number).copied().unwrap_or(Missed::New)
    }

    /// Notes that the driver has refused an entry of the user's store.
    pub(super) fn refuse(&self, origin: EntryOrigin, defect: &Defect) {
        // If the entry was replaced meanwhile and that is refused as well, a later call notes it.
        let _ = self.refused.set(Box::new((origin, defect.clone())));
    }

    /// The entry of the user's store that the driver has refused, and why.
    pub(super) fn refused(&self) -> Option<&(EntryOrigin, Defect)> {
        self.refused.get()
    }

    /// Whether the driver has refused this entry.
    pub(super) fn has_refused(&self, origin: &EntryOrigin) -> bool {
        let refused = self.refused.get();
        refused.is_some_and(|(refused, _)| refused.is_same(origin))
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

    /// Gives up a plan that holds large texts if memory is short: the driver needs it, and compiles in the same process. Where it
    /// builds without us, it must build with us.
    pub fn unless_in_the_way(self: Box<Plan>) -> Result<Box<Plan>, Bypass> {
        match is_in_the_way(self.recipe.texts) {
            false => Ok(self),
            true => Err(Bypass::NoMemory),
        }
    }

    /// Whether what the driver has built is what the key says; else why not.
    ///
    /// # Errors
    /// The driver may have read a header before or after a change.
    pub fn still_holds(&self) -> Result<(), Cow<'static, str>> {
        match self.recipe.closure.is_untouched() {
            false => Err("a header was changed, made or removed meanwhile".into()),
            true => self.is_settled.clone(),
        }
    }
}

/// The inputs of a key, as the application and the driver give them.
struct CallInputs {
    driver: &'static Driver,
    /// The program's devices, in its order.
    devices: Vec<Device>,
    base: Base,
    /// SHA-256 of an intermediate language, where it is known.
    il_digest: Option<[u8; 32]>,
    operation: Operation,
    /// Their devices are the program's own.
    arguments: BuildArguments,
    /// How the application named these.
    named: Vec<NamedDevice>,
    /// The state before the call, if devices that the call does not name keep it.
    previous: Option<Arc<Recipe>>,
}

/// A call whose key lacks nothing but what identifies the driver.
pub(super) struct Draft {
    inputs: CallInputs,
    /// The devices that the call names, by their index.
    targets: Vec<usize>,
    text: CallText,
    /// The identities of the devices.
    devices: Vec<Arc<[Ingredient]>>,
    own: OwnIngredients,
    float_state: FloatState,
}

impl Draft {
    /// Its driver.
    pub(super) fn driver(&self) -> &'static Driver {
        self.inputs.driver
    }

    /// Whether there is memory for its text, for a driver that compiles, and for so many bytes more.
    pub(super) fn has_room_and(&self, more: usize) -> bool {
        let text = match &self.inputs.base {
            Base::Source(text) | Base::Il(text, _) => text.len(),
            Base::Linked(_) => 0,
        };
        has_room(room_to_compile(text).saturating_add(more))
    }

    /// Stands for the key while that is not known: all of it but what identifies the driver.
    pub(super) fn text_key(&self) -> Key {
        let devices = self.devices.iter().flat_map(|device| device.iter());
        text_key(devices.chain(self.own.all()))
    }
}

fn text_key<'a>(ingredients: impl Iterator<Item = &'a Ingredient>) -> Key {
    let is_told_later =
        |one: &&Ingredient| matches!(one.kind, Kind::Driver | Kind::Environment | Kind::Functions);
    key(ingredients.filter(|one| !is_told_later(one)))
}

/// An embedded header of a call: its name, and its program.
pub type HeaderProgram = (CString, Program);

impl Cache {
    /// Plans a build or compilation. `headers`: see [`super::BuildCall`].
    #[inline(never)] // its frame is gone when the driver compiles
    pub(super) fn plan(
        &self,
        ticket: &Ticket,
        arguments: &BuildArguments,
        headers: Option<&[HeaderProgram]>,
    ) -> Result<Box<Plan>, Bypass> {
        let inputs = self.inputs(ticket, arguments, headers)?;
        self.plan_of(self.draft_of(inputs)?)
    }

    /// Makes a plan of a draft, with what identifies the driver now.
    pub(super) fn plan_of(&self, draft: Draft) -> Result<Box<Plan>, Bypass> {
        let driver = draft.inputs.driver;
        let plan = self.keyed(draft)?;
        self.unless_marked(driver, plan)
    }

    /// All of a plan but what identifies the driver.
    pub(super) fn draft(
        &self,
        ticket: &Ticket,
        arguments: &BuildArguments,
    ) -> Result<Draft, Bypass> {
        self.draft_of(self.inputs(ticket, arguments, None)?)
    }

    /// Makes a plan of a draft, with what identified the driver at this moment.
    pub(super) fn plan_as_at(&self, draft: Draft, moment: &Moment) -> Result<Box<Plan>, Bypass> {
        let driver = draft.inputs.driver;
        let identity = self.call_identity(&draft, Some(moment))?;
        self.unless_marked(driver, self.planned(draft, identity))
    }

    /// Asks the driver for the inputs of a build or compilation.
    fn inputs(
        &self,
        ticket: &Ticket,
        arguments: &BuildArguments,
        headers: Option<&[HeaderProgram]>,
    ) -> Result<CallInputs, Bypass> {
        state::check(ticket, headers.is_some())?;
        let driver = ticket.driver;
        check_options(arguments)?;
        check_room(texts_of(ticket, headers.unwrap_or_default()), arguments)?;
        let base = base_of(ticket)?;
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
        let mut arguments = arguments.clone();
        let named = replace_named(driver, &devices, &mut arguments)?;
        let previous = previous(ticket, &devices, &arguments, &operation)?;
        let il_digest = match &ticket.origin {
            Origin::Il(module, _) => Some(module.digest),
            _ => None,
        };
        Ok(CallInputs {
            driver,
            devices,
            base,
            il_digest,
            operation,
            arguments,
            named,
            previous,
        })
    }

    /// Plans a link. Inputs of another context are left to the driver, which may refuse them (measured: Intel's CPU runtime).
    #[inline(never)] // its frame is gone when the driver compiles
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
                // Its key may leave out digits that another input can observe.
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
        check_options(arguments)?;
        // The program that a link makes is as large as what it was compiled from, roughly.
        let texts = inputs.iter().map(|input| input.texts);
        check_room(texts.fold(0, usize::saturating_add), arguments)?;
        let of_context = driver
            .context_devices(context)
            .map_err(|_| Bypass::UnidentifiedDevice)?;
        let devices = arguments.devices.clone();
        let devices = devices.unwrap_or_else(|| of_context.clone());
        // What is no device is the driver's to refuse. NVIDIA's driver 580 may crash where its name is asked for: see `Attribution`.
        // PoCL is not asked for the root of what may be a sub-device, either: it refuses executables as inputs before it reads any
        // device.
        if !devices.iter().all(|device| of_context.contains(device)) {
            return Err(Bypass::SomeDevices);
        }
        let base = Base::Linked(inputs);
        let operation = Operation::Link(of_context);
        let plan = self.key(CallInputs {
            driver,
            devices,
            base,
            il_digest: None,
            operation,
            arguments: arguments.clone(),
            named: Vec::new(),
            previous: None,
        })?;
        self.unless_marked(driver, plan)
    }

    /// The key that a call would have now. The floating-point state is that of the call, since it can be set again. Ignores the
    /// program's state.
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
        let _state = recipe.float_state.resume();
        let plan = self.key(CallInputs {
            driver,
            devices: devices.to_vec(),
            base: recipe.base.clone(),
            il_digest: None,
            operation: recipe.operation.clone(),
            arguments: recipe.arguments.clone(),
            named: Vec::new(),
            previous: recipe.previous.clone(),
        })?;
        Ok(plan.key())
    }

    /// The key of a call, from its texts, from what compiles them, and from the state before the call.
    fn key(&self, inputs: CallInputs) -> Result<Box<Plan>, Bypass> {
        self.keyed(self.draft_of(inputs)?)
    }

    fn keyed(&self, draft: Draft) -> Result<Box<Plan>, Bypass> {
        let identity = self.call_identity(&draft, None)?;
        Ok(self.planned(draft, identity))
    }

    fn draft_of(&self, mut inputs: CallInputs) -> Result<Draft, Bypass> {
        if !self.has_entries() {
            return Err(Bypass::NoCacheDirectory);
        }
        let targets = devices::targets(inputs.driver, &inputs.devices, &inputs.arguments)?;
        let text = self.call_text(&mut inputs)?;
        let devices = inputs.driver.device_identities(&inputs.devices);
        let devices = devices.ok_or(Bypass::UnidentifiedDevice)?;
        let own = OwnIngredients::of(&inputs, &targets, &text)?;
        Ok(Draft {
            inputs,
            targets,
            text,
            devices,
            own,
            float_state: FloatState::of_thread(),
        })
    }

    fn planned(&self, draft: Draft, identity: CallIdentity) -> Box<Plan> {
        let Draft {
            mut inputs,
            targets,
            text,
            devices,
            own,
            float_state,
        } = draft;
        let mut parts = devices;
        parts.extend([identity.driver, identity.bindings]);
        let own = own.with(identity.surroundings);
        let key = self.shared_parts.hash(&parts).with(&own).key();
        parts.push(own.into());
        let CallText {
            options, closure, ..
        } = text;
        Box::new(Plan {
            parts,
            family: inputs.driver.profile.family,
            missed: AtomicU8::new(Missed::New as u8),
            refused: OnceBox::new(),
            devices: std::mem::take(&mut inputs.devices),
            targets,
            recipe: Arc::new(assembly::recipe(
                key,
                inputs,
                options.as_ref(),
                closure,
                float_state,
            )),
            options,
            loads: identity.loads,
            is_settled: Ok(()),
        })
    }
}

/// The length of the texts that a build or compilation reads: of the source or intermediate language, and of embedded headers.
fn texts_of(ticket: &Ticket, headers: &[HeaderProgram]) -> usize {
    let own = match &ticket.origin {
        Origin::Source(length) => length.unwrap_or(0),
        Origin::Il(module, _) => module.length,
        Origin::Linked => 0,
    };
    let headers = headers.iter();
    let headers = headers.filter_map(|(_, header)| shadow::source_length(*header, ticket.context));
    headers.fold(own, usize::saturating_add)
}

/// Refuses a call whose texts may exhaust memory, before any work for it.
fn check_room(texts: usize, arguments: &BuildArguments) -> Result<(), Bypass> {
    let options = arguments.options.as_ref();
    let options = options.map_or(0, |options| options.as_bytes().len());
    let texts = texts.saturating_add(options);
    if texts > MIN_CHECKED_BYTES && !has_room(PEAK_TIMES.saturating_mul(texts)) {
        return Err(Bypass::NoMemory);
    }
    Ok(())
}

/// Whether memory for texts of this length and for a driver that compiles is short.
fn is_in_the_way(texts: usize) -> bool {
    texts > MIN_CHECKED_BYTES && !has_room(room_to_compile(texts))
}

fn room_to_compile(texts: usize) -> usize {
    DRIVER_BYTES.saturating_add(PEAK_TIMES.saturating_mul(texts))
}

/// What a program was made from, as the driver shows it.
fn base_of(ticket: &Ticket) -> Result<Base, Bypass> {
    let driver = ticket.driver;
    match &ticket.origin {
        Origin::Source(length) => {
            let length = length.ok_or(Bypass::UnusualArguments)?;
            let text = source_text(driver, ticket.program, length)?;
            Ok(Base::Source(text.into()))
        }
        Origin::Il(module, constants) => {
            let code = driver
                .program_info(ticket.program, CL_PROGRAM_IL)
                .map_err(|_| Bypass::UnknownIl)?;
            let hides_constants = module.has_constants && !driver.sees_constants();
            if sha256(&code) != module.digest || hides_constants {
                return Err(Bypass::UnknownIl);
            }
            Ok(Base::Il(code.into(), constants.clone()))
        }
        Origin::Linked => Err(Bypass::FromBinary),
    }
}
