//! Concurrent builds, compilations and materializations of one program.
//!
//! A build takes a ticket with a generation number. Its result is published only if no later build has begun. A query that needs P
//! built for real holds P exclusively: builds of P wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::attached::HeldKernels;
use super::{CachedProgram, Origin, ProgramState, Recipe, Release, STATE, Signal, State};
use crate::cl::{Context, Device, Program};
use crate::driver::{Driver, reentrancy};
use crate::key::ingredients::Key;

/// Notified when a query releases a program, see [`own_program`].
static ANSWERED: Signal = Signal::new();

/// How long a build waits for a query that is forcing a real build of the same program. The query calls nothing of the application,
/// so it ends; if a driver hangs, the build goes on.
const MAX_QUERY_WAIT: Duration = Duration::from_secs(60);

/// A build or compilation of a known program that has begun. It ends by [`publish`] or [`ended`]. A ticket that is dropped without
/// either, because of a bug, counts as a failed build.
pub struct Ticket {
    /// P.
    pub program: Program,
    id: u64,
    generation: u64,
    /// Its driver.
    pub driver: &'static Driver,
    /// Its context.
    pub context: Context,
    /// What it was made from.
    pub origin: Origin,
    /// The recipe of the program's content, if it is known by a key.
    pub recipe: Option<Arc<Recipe>>,
    /// References that the application holds.
    pub references: u32,
    /// The P' that serves it, also while it is hidden: see [`hide_inner`].
    pub inner: Option<Arc<CachedProgram>>,
    /// Another build or compilation of it was running.
    pub concurrent: bool,
    /// An earlier build failed.
    pub failed: bool,
    /// It was built or compiled before.
    pub built: bool,
    /// It has a release callback.
    pub release_callback: bool,
    /// It hides P'.
    hides_inner: AtomicBool,
    ended: AtomicBool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Relaxed) {
            ended(self, BuildEnd::Failed, None, None);
        }
        let release = STATE.write().give_back(self);
        match release {
            Some(Release::Last(inner)) => {
                reentrancy::outside(|| self.driver.release_program(self.program));
                drop(inner);
            }
            Some(Release::Keep(Some(inner))) => inner.release(),
            _ => {}
        }
    }
}

/// Begins a build or compilation for these devices, or for all. Waits for a query that is forcing a real build. None if the program is not
/// known.
pub fn begin(program: Program, devices: Option<&[Device]>) -> Option<Ticket> {
    let until = Instant::now() + MAX_QUERY_WAIT;
    let mut state = STATE.write();
    while state.programs.get(&program)?.questioned && Instant::now() < until {
        let seen = ANSWERED.now();
        drop(state);
        ANSWERED.wait(seen, until);
        state = STATE.write();
    }
    let known = state.programs.get_mut(&program)?;
    known.generation += 1;
    known.running += 1;
    known.tickets += 1;
    known.busy = false;
    known.built_for = devices.map(<[Device]>::to_vec);
    Some(Ticket {
        program,
        id: known.id,
        generation: known.generation,
        driver: known.driver,
        context: known.context,
        origin: known.origin.clone(),
        recipe: known.recipe.clone(),
        references: known.references,
        inner: known.inner.clone(),
        concurrent: known.running > 1,
        failed: known.failed,
        built: known.built,
        release_callback: known.release_callback,
        hides_inner: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    })
}

impl State {
    /// The ticket's program, unless a later build has begun or the handle has been recycled.
    fn current(&mut self, ticket: &Ticket) -> Option<&mut ProgramState> {
        let known = self.programs.get_mut(&ticket.program)?;
        (known.id == ticket.id && known.generation == ticket.generation).then_some(known)
    }

    /// What to do with the program if the application has released it meanwhile, and this was its last ticket.
    fn give_back(&mut self, ticket: &Ticket) -> Option<Release> {
        let known = self.programs.get_mut(&ticket.program)?;
        if known.id != ticket.id {
            return None;
        }
        known.tickets = known.tickets.saturating_sub(1);
        let is_over = known.tickets == 0 && std::mem::take(&mut known.released);
        is_over.then(|| self.give_up(ticket.program))
    }

    fn finish(&mut self, ticket: &Ticket) {
        ticket.ended.store(true, Ordering::Relaxed);
        if let Some(known) = self.programs.get_mut(&ticket.program)
            && known.id == ticket.id
        {
            known.running = known.running.saturating_sub(1);
            known.busy = false;
            if ticket.hides_inner.swap(false, Ordering::Relaxed) {
                known.hidden = known.hidden.saturating_sub(1);
            }
        }
    }
}

/// Sets whether the build goes on although the driver may have finished. CL_PROGRAM_BUILD_STATUS then reports it as in progress, so
/// that no application has a reason to begin another. False if a later build has begun.
pub fn set_busy(ticket: &Ticket, busy: bool) -> bool {
    STATE
        .write()
        .current(ticket)
        .map(|known| known.busy = busy)
        .is_some()
}

/// Lets P answer for itself while the driver judges a call. P was built for real, or is being built anew. P' must not be hidden if the
/// driver will refuse the call because kernels of P' are alive: other threads would get kernels of P meanwhile, which have program-scope
/// variables of their own.
pub fn hide_inner(ticket: &Ticket) {
    let mut state = STATE.write();
    if let Some(known) = state.programs.get_mut(&ticket.program)
        && known.id == ticket.id
        && !ticket.hides_inner.swap(true, Ordering::Relaxed)
    {
        known.hidden += 1;
    }
}

/// The kernels of the ticket's program at this moment.
pub fn held_kernels(ticket: &Ticket) -> HeldKernels {
    let state = STATE.read();
    let known = state.programs.get(&ticket.program);
    let known = known.filter(|known| known.id == ticket.id);
    known.map_or_else(HeldKernels::default, |known| known.kernels.held())
}

/// Whether no other build of the program ran at the same time, so that the driver holds the result of this one.
pub fn is_alone(ticket: &Ticket) -> bool {
    !ticket.concurrent && STATE.write().current(ticket).is_some()
}

/// Ends a build with a P' that serves from now on. If a later build has begun, returns P', and the build has not ended.
pub fn publish(ticket: &Ticket, inner: Arc<CachedProgram>) -> Result<(), Arc<CachedProgram>> {
    let mut state = STATE.write();
    let Some(known) = state.current(ticket) else {
        return Err(inner);
    };
    known.built = true;
    known.recorded = None;
    let old_recipe = known.recipe.replace(inner.recipe().clone());
    let old = known.inner.replace(inner);
    state.finish(ticket);
    drop(state);
    drop((old, old_recipe));
    Ok(())
}

/// How the driver's own build or compilation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildEnd {
    /// P has changed: it answers for itself from now on.
    Built,
    /// P has changed, and has no executable.
    Failed,
    /// The call was refused before it changed anything.
    Refused,
    /// The twin of a link's result has changed. The result is still served.
    Twin,
}

/// Ends a build or compilation by the driver. `recorded`: the entry in which it was recorded. `recipe`: the recipe of P's content,
/// used only if no other build has begun since.
pub fn ended(ticket: &Ticket, how: BuildEnd, recorded: Option<Key>, recipe: Option<Arc<Recipe>>) {
    let mut state = STATE.write();
    let mut old = None;
    let is_current = state.current(ticket).is_some();
    let mut old_recipe = recipe.filter(|_| is_current);
    let known = state.programs.get_mut(&ticket.program);
    if let Some(known) = known.filter(|known| known.id == ticket.id) {
        match how {
            BuildEnd::Refused => {}
            BuildEnd::Twin => old_recipe = known.recipe.take(),
            BuildEnd::Built | BuildEnd::Failed => {
                known.built = true;
                known.failed |= how == BuildEnd::Failed;
                known.recorded = recorded.filter(|_| is_current);
                std::mem::swap(&mut known.recipe, &mut old_recipe);
                old = known.inner.take();
            }
        }
    }
    state.finish(ticket);
    drop(state);
    drop((old, old_recipe));
}

/// The exclusive right to force a real build of P and to query it, see [`own_program`] and [`own_for_change`].
pub struct OwnProgram {
    program: Program,
    id: u64,
}

/// Holds P, which `inner` serves, exclusively. None if another P' serves it by now, or if it is being built. Builds and other
/// queries of P wait until the result is dropped.
pub fn own_program(program: Program, inner: &Arc<CachedProgram>) -> Option<OwnProgram> {
    own(program, |known| {
        let serves = known
            .inner
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, inner));
        serves && known.running == 0
    })
}

/// Holds P, which the call of this ticket may change, exclusively: other such calls, and queries, wait until the result is dropped.
pub fn own_for_change(ticket: &Ticket) -> Option<OwnProgram> {
    own(ticket.program, |known| known.id == ticket.id)
}

/// None after [`MAX_QUERY_WAIT`], or if P does not permit it or is gone.
fn own(program: Program, permits: impl Fn(&ProgramState) -> bool) -> Option<OwnProgram> {
    let until = Instant::now() + MAX_QUERY_WAIT;
    loop {
        let mut state = STATE.write();
        let known = state.programs.get_mut(&program)?;
        if !permits(known) {
            return None;
        }
        if !known.questioned {
            known.questioned = true;
            return Some(OwnProgram {
                program,
                id: known.id,
            });
        }
        if Instant::now() >= until {
            return None;
        }
        let seen = ANSWERED.now();
        drop(state);
        ANSWERED.wait(seen, until);
    }
}

impl Drop for OwnProgram {
    fn drop(&mut self) {
        if let Some(known) = STATE.write().programs.get_mut(&self.program)
            && known.id == self.id
        {
            known.questioned = false;
        }
        ANSWERED.notify();
    }
}
