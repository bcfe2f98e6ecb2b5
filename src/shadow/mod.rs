//! The state of live programs and kernels.
//!
//! The application's program P is the driver's own program, made from the application's source. On a hit an inner program P'
//! executes instead; this module knows P' and the kernels that came from it. One lock guards all of it, and is never held across a
//! call into a driver or a callback. A handle that is not here belongs to the driver alone.
//!
//! Drivers reuse the addresses of handles. So a program or kernel is forgotten *before* the driver's last release, and the state
//! under a handle that a driver returns as new is dropped.

mod attached;
mod building;
mod cached_program;
mod kernels;
mod recipe;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use crate::cl::{Context, Device, Kernel, Program};
use crate::driver::Driver;
use crate::fork_safety::{RwLock, Signal};
use crate::key::il::Module;
use crate::key::ingredients::Key;
use attached::AttachedKernels;
pub use building::{
    BuildEnd, OwnProgram, Ticket, begin, ended, held_kernels, hide_inner, is_alone, own_for_change,
    own_program, publish, set_busy,
};
pub use cached_program::{CachedProgram, Owner};
use kernels::{Kernels, may_be_known};
pub use recipe::{Base, Constants, Header, NamedDevice, Operation, Recipe, Text};

/// By address. The default hasher with fixed keys is safe, since no attacker chooses addresses.
type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

static STATE: RwLock<State> = RwLock::new(State {
    programs: Map::with_hasher(BuildHasherDefault::new()),
    kernels: Kernels::new(),
    last_id: 0,
});

struct State {
    programs: Map<Program, ProgramState>,
    kernels: Kernels,
    last_id: u64,
}

struct ProgramState {
    /// Distinguishes this program from a later one at the same address.
    id: u64,
    driver: &'static Driver,
    context: Context,
    origin: Origin,
    /// References that the application holds.
    references: u32,
    /// The application has released its last reference while kernels of P' live. The driver was not told yet, so that P lives as
    /// long as its kernels.
    kept: bool,
    /// Incremented by each build and compilation. An outcome is published only if no later build has begun.
    generation: u64,
    /// The number of running builds and compilations.
    running: u32,
    /// The number of tickets that are not dropped yet.
    tickets: u32,
    /// The application has released its last reference while there were tickets. The driver was not told yet: PoCL 3.1 and Intel's CPU
    /// runtime 2026.2 hold a reference of their own while they build (measured), but not while an entry is looked for.
    released: bool,
    /// A hit is being loaded or a miss recorded: for the application the build goes on.
    busy: bool,
    /// The devices that the last build or compilation is for. None: all.
    built_for: Option<Vec<Device>>,
    /// A query is forcing a real build of P.
    questioned: bool,
    failed: bool,
    release_callback: bool,
    /// The program was built or compiled before.
    built: bool,
    /// The P' that serves it.
    inner: Option<Arc<CachedProgram>>,
    /// Its kernels, and those of each P' that has served it.
    kernels: AttachedKernels<CachedProgram>,
    /// The number of running calls that hide P'. Meanwhile P answers for itself.
    hidden: u32,
    /// The entry in which this program, built by the driver, was recorded.
    recorded: Option<Key>,
    /// The recipe of its content, if it is known by a key.
    recipe: Option<Arc<Recipe>>,
}

impl ProgramState {
    /// Whether the program is dead to the driver, on drivers where kernels do not keep their program alive.
    fn is_dead(&self) -> bool {
        self.kept && !self.driver.behavior().kernels_keep_program
    }

    /// The P' that serves it at this moment.
    fn serving(&self) -> Option<&Arc<CachedProgram>> {
        let is_hidden = self.hidden > 0 && !self.is_dead();
        self.inner.as_ref().filter(|_| !is_hidden)
    }
}

/// What a program was made from.
#[derive(Clone)]
pub enum Origin {
    /// Source text, and its length without terminators. None if CL_PROGRAM_SOURCE may differ from what is compiled.
    Source(Option<usize>),
    /// An intermediate language, and the specialization constants that were set.
    Il(Module, Constants),
    /// Other programs, by clLinkProgram.
    Linked,
}

struct KernelState {
    program: Program,
    program_id: u64,
    references: u32,
    /// The program that it was created from. None for a kernel of P itself.
    inner: Option<Arc<CachedProgram>>,
    /// Its program is not the application's own, and does not keep P alive.
    is_inner: bool,
}

impl KernelState {
    /// The P' that it is of.
    fn of_inner(&self) -> Option<&Arc<CachedProgram>> {
        self.inner.as_ref().filter(|inner| inner.is_inner())
    }
}

impl State {
    /// The program of a kernel. None if it is known no more.
    fn program_of(&mut self, kernel: &KernelState) -> Option<&mut ProgramState> {
        let program = self.programs.get_mut(&kernel.program);
        program.filter(|program| program.id == kernel.program_id)
    }

    /// Remembers a kernel. Returns what was remembered under its handle before.
    fn attach(&mut self, kernel: Kernel, fresh: KernelState) -> Option<KernelState> {
        let stale = self.detach(kernel);
        if let Some(program) = self.program_of(&fresh) {
            program.kernels.add(fresh.is_inner, fresh.of_inner());
        }
        self.kernels.insert(kernel, fresh);
        stale
    }

    /// Forgets a kernel.
    fn detach(&mut self, kernel: Kernel) -> Option<KernelState> {
        let known = self.kernels.remove(&kernel)?;
        if let Some(program) = self.program_of(&known) {
            program.kernels.remove(known.is_inner, known.of_inner());
        }
        Some(known)
    }
}

/// Remembers a program that the driver made from the application's source or intermediate language.
pub fn program_created(
    driver: &'static Driver,
    context: Context,
    program: Program,
    origin: Origin,
) {
    remember(driver, context, program, origin, None, None, None);
}

/// Remembers the result of a link, which the driver made and we recorded if possible, or which was made from an entry's binaries.
pub fn program_linked(
    driver: &'static Driver,
    context: Context,
    program: Program,
    inner: Option<Arc<CachedProgram>>,
    recorded: Option<Key>,
    recipe: Option<Arc<Recipe>>,
) {
    remember(
        driver,
        context,
        program,
        Origin::Linked,
        inner,
        recorded,
        recipe,
    );
}

fn remember(
    driver: &'static Driver,
    context: Context,
    program: Program,
    origin: Origin,
    inner: Option<Arc<CachedProgram>>,
    recorded: Option<Key>,
    recipe: Option<Arc<Recipe>>,
) {
    let mut state = STATE.write();
    state.last_id += 1;
    let id = state.last_id;
    let fresh = ProgramState {
        id,
        driver,
        context,
        built: matches!(origin, Origin::Linked),
        origin,
        references: 1,
        kept: false,
        generation: 0,
        running: 0,
        tickets: 0,
        released: false,
        busy: false,
        built_for: None,
        questioned: false,
        failed: false,
        release_callback: false,
        inner,
        kernels: AttachedKernels::new(),
        hidden: 0,
        recorded,
        recipe,
    };
    let stale = state.programs.insert(program, fresh);
    drop(state);
    drop(stale);
}

/// Forgets the state under a handle that the driver has returned as new.
pub fn program_recycled(program: Program) {
    let stale = STATE.write().programs.remove(&program);
    drop(stale);
}

/// What to do when the application takes a reference to a program.
pub enum Retain {
    /// The driver takes it.
    Forward,
    /// It was counted. The driver has the reference already.
    Counted,
    /// The program is dead to the driver, as this P' is: see [`Release::Keep`].
    Dead(Arc<CachedProgram>),
}

/// The application takes a reference.
pub fn program_retained(program: Program) -> Retain {
    let mut state = STATE.write();
    let Some(known) = state.programs.get_mut(&program) else {
        return Retain::Forward;
    };
    if known.is_dead() {
        return known.inner.clone().map_or(Retain::Forward, Retain::Dead);
    }
    known.references += 1;
    let is_counted = std::mem::take(&mut known.kept) | std::mem::take(&mut known.released);
    if is_counted {
        Retain::Counted
    } else {
        Retain::Forward
    }
}

/// What to do with the application's release of a program.
pub enum Release {
    /// The driver releases it.
    Forward,
    /// The driver releases it, then this is dropped.
    Last(Option<Arc<CachedProgram>>),
    /// The driver is told later, when the last build has ended and the last kernel goes. On drivers where kernels do not keep their
    /// program alive, P' is released now. From then on P' answers as P would: dead but in memory, since loaders read the first word of
    /// every handle.
    Keep(Option<Arc<CachedProgram>>),
    /// The program is dead to the driver already, as this P' is.
    Dead(Arc<CachedProgram>),
}

/// The application releases a reference.
pub fn program_released(program: Program) -> Release {
    let mut state = STATE.write();
    let Some(known) = state.programs.get_mut(&program) else {
        return Release::Forward;
    };
    if known.is_dead() {
        return known.inner.clone().map_or(Release::Forward, Release::Dead);
    }
    if known.kept || known.released {
        // One release too many. Without us, the driver would also have a program without references of the application while
        // kernels live. The driver decides.
        return Release::Forward;
    }
    known.references = known.references.saturating_sub(1);
    if known.references > 0 {
        return Release::Forward;
    }
    if known.tickets > 0 {
        known.released = true;
        return Release::Keep(None);
    }
    state.give_up(program)
}

impl State {
    /// What to do with a program to which the application has no reference any more.
    fn give_up(&mut self, program: Program) -> Release {
        let Some(known) = self.programs.get_mut(&program) else {
            return Release::Forward;
        };
        if known.kernels.held().inner == 0 {
            let known = self.programs.remove(&program);
            return Release::Last(known.and_then(|known| known.inner));
        }
        let kernels_keep = known.driver.behavior().kernels_keep_program;
        known.kept = true;
        Release::Keep(known.inner.clone().filter(|_| !kernels_keep))
    }
}

/// The P' of a program that is dead to the driver: see [`Release::Keep`].
pub fn dead(program: Program) -> Option<Arc<CachedProgram>> {
    let state = STATE.read();
    let known = state.programs.get(&program)?;
    known.inner.clone().filter(|_| known.is_dead())
}

/// Remembers a kernel of a known program. `inner` is the program that it was created from, or whose twin it was created from. None
/// for P itself.
pub fn kernel_created(
    program: Program,
    kernel: Kernel,
    inner: Option<Arc<CachedProgram>>,
    is_of_twin: bool,
) {
    // On drivers where kernels keep no program alive, a kernel of a twin does not count.
    let is_inner = inner.as_ref().is_some_and(|inner| {
        inner.is_inner() || is_of_twin && inner.driver().behavior().kernels_keep_program
    });
    let mut state = STATE.write();
    let program_id = state.programs.get(&program).map(|known| known.id);
    let stale = match program_id {
        Some(program_id) => {
            let fresh = KernelState {
                program,
                program_id,
                references: 1,
                inner,
                is_inner,
            };
            state.attach(kernel, fresh)
        }
        None => state.detach(kernel),
    };
    drop(state);
    drop(stale);
}

/// Remembers a clone of a kernel as one more kernel of the same program.
pub fn kernel_cloned(source: Kernel, clone: Kernel) {
    let mut state = STATE.write();
    let fresh = state.kernels.get(&source).map(|known| KernelState {
        references: 1,
        inner: known.inner.clone(),
        ..*known
    });
    let stale = match fresh {
        Some(fresh) => state.attach(clone, fresh),
        None => state.detach(clone),
    };
    drop(state);
    drop(stale);
}

/// The application takes a reference to a kernel.
pub fn kernel_retained(kernel: Kernel) {
    if !may_be_known(kernel) {
        return;
    }
    if let Some(known) = STATE.write().kernels.get_mut(&kernel) {
        known.references += 1;
    }
}

/// What to drop after the driver's release of a kernel.
#[must_use]
pub struct KernelRelease {
    /// The P whose last kernel this was, and which the application released before: the driver is told now.
    pub program: Option<Program>,
    /// Dropped after the kernel and the program.
    pub inners: [Option<Arc<CachedProgram>>; 2],
}

/// The application releases a reference to a kernel. None if there is nothing to drop.
pub fn kernel_released(kernel: Kernel) -> Option<KernelRelease> {
    if !may_be_known(kernel) {
        return None;
    }
    let mut state = STATE.write();
    let known = state.kernels.get_mut(&kernel)?;
    known.references = known.references.saturating_sub(1);
    if known.references > 0 {
        return None;
    }
    let known = state.detach(kernel)?;
    let program = state.program_of(&known);
    let is_last = program.is_some_and(|program| program.kept && program.kernels.held().inner == 0);
    let mut release = KernelRelease {
        program: None,
        inners: [known.inner, None],
    };
    if is_last {
        release.program = Some(known.program);
        release.inners[1] = state
            .programs
            .remove(&known.program)
            .and_then(|program| program.inner);
    }
    Some(release)
}

/// The P and P' of a kernel that was created from a P'.
pub fn kernel_origin(kernel: Kernel) -> Option<(Program, Arc<CachedProgram>)> {
    let state = STATE.read();
    let known = state.kernels.get(&kernel)?;
    Some((known.program, known.inner.clone()?))
}

/// What queries need of a known program.
pub struct ProgramView {
    /// The program that executes, if not P itself.
    pub inner: Option<Arc<CachedProgram>>,
    /// A reference to P that is ours alone.
    pub kept: bool,
    /// For the application the build goes on, whatever the driver says.
    pub busy: bool,
    /// The devices that the last build or compilation is for. None: all.
    pub built_for: Option<Vec<Device>>,
    /// The entry in which P, built by the driver, was recorded.
    pub recorded: Option<Key>,
}

/// The current state of a known program.
pub fn view(program: Program) -> Option<ProgramView> {
    let state = STATE.read();
    let known = state.programs.get(&program)?;
    Some(ProgramView {
        inner: known.serving().cloned(),
        kept: known.kept,
        busy: known.busy,
        built_for: known.busy.then(|| known.built_for.clone()).flatten(),
        recorded: known.recorded,
    })
}

/// The recipe of a known program of this context. None if its content is not known by a key, or may be changing.
pub fn recipe(program: Program, context: Context) -> Option<Arc<Recipe>> {
    let state = STATE.read();
    let known = state.programs.get(&program)?;
    let is_settled = known.context == context && known.running == 0;
    known.recipe.clone().filter(|_| is_settled)
}

/// The length of the source of a known program of this context. None if CL_PROGRAM_SOURCE may differ from what is compiled.
pub fn source_length(program: Program, context: Context) -> Option<usize> {
    let state = STATE.read();
    let known = state.programs.get(&program)?;
    match known.origin {
        Origin::Source(length) if known.context == context => length,
        _ => None,
    }
}

/// Notes a specialization constant that the driver has accepted.
pub fn constant_set(program: Program, id: u32, value: Vec<u8>) {
    if let Some(known) = STATE.write().programs.get_mut(&program)
        && let Origin::Il(_, constants) = &mut known.origin
    {
        constants.insert(id, value);
        // A running build may or may not have seen it.
        known.generation += u64::from(known.running > 0);
    }
}

/// Every P' that serves P or still has kernels of an earlier build of it.
pub fn inners(program: Program) -> Vec<Arc<CachedProgram>> {
    let state = STATE.read();
    let Some(known) = state.programs.get(&program) else {
        return Vec::new();
    };
    let serving = known.inner.as_ref().filter(|inner| inner.is_inner());
    let is_other =
        |inner: &&Arc<CachedProgram>| serving.is_none_or(|serving| !Arc::ptr_eq(serving, inner));
    let others = known.kernels.inners().filter(is_other);
    serving.into_iter().chain(others).cloned().collect()
}

/// The program that executes for P: P' or P itself.
pub fn executing(program: Program) -> (Program, Option<Arc<CachedProgram>>) {
    match view(program).and_then(|view| view.inner) {
        Some(inner) => (inner.program(), Some(inner)),
        None => (program, None),
    }
}

/// The number of programs in a context that the application does not know.
pub fn inner_programs(context: Context) -> usize {
    let state = STATE.read();
    let of_programs = state
        .programs
        .values()
        .filter_map(|program| program.inner.as_ref());
    let of_kernels = state
        .kernels
        .values()
        .filter_map(|kernel| kernel.inner.as_ref());
    let mut programs: Vec<Program> = of_programs
        .chain(of_kernels)
        .filter(|inner| inner.context() == context)
        .filter_map(|inner| inner.hidden_program())
        .collect();
    programs.sort_unstable();
    programs.dedup();
    programs.len()
}

/// In a forked child: no thread ends what other threads had begun in the parent.
pub fn forked() {
    for program in STATE.write().programs.values_mut() {
        program.running = 0;
        program.tickets = 0;
        program.busy = false;
        program.questioned = false;
        if std::mem::take(&mut program.hidden) > 0 {
            // A build of P may be unfinished for ever, so P answers. The thread that hid P' holds it as well and would release it.
            std::mem::forget(program.inner.take());
        }
    }
}

/// Notes that the program has a release callback.
pub fn release_callback_set(program: Program) {
    if let Some(known) = STATE.write().programs.get_mut(&program) {
        known.release_callback = true;
    }
}
