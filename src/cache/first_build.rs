//! The first build in an empty cache directory: the driver builds at once, and is identified meanwhile.
//!
//! Nothing can be found in such a directory, and the driver's files have not been read, unless it is slow (see [`super::early_reading`]).
//! That took 0.1 to 0.25 s before a build that takes 0.03 to 0.5 s. In a container or a CI job each run may be such a first run. So a
//! thread identifies the driver while that builds, from what was loaded when the build began. Measured on two processors, the build of ten
//! kernels took 1.00 times as long as bare on PoCL and rusticl, 1.02 on Intel's CPU runtime and 1.04 on Intel's GPU driver. There half of
//! that is left however little the thread does: a bare build takes 1.02 times as long in a process that has had any thread, since glibc's
//! allocator and libstdc++'s counts of references need no atomic instructions before. The key is what it would have been before the build,
//! if nothing has changed since: see [`crate::driver::moment`]. In doubt nothing is stored.
//!
//! Other processes that build the same text meanwhile wait as they would for a key, and then go the ordinary way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::plan::{Draft, Plan};
use super::single_flight::{BuildTurn, FirstWait};
use super::{BuildCall, Cache, bake, nanoseconds};
use crate::descriptors;
use crate::driver::moment::Moment;
use crate::driver::{Driver, loaded_changes, path_of, reentrancy};
use crate::key::ingredients::Key;
use crate::linker_lock;
use crate::one_call;
use crate::outcome::Bypass;
use crate::own_threads::{self, DriverAtWork, Promise};
use crate::shadow::{Origin, Ticket};
use crate::store::Store;
use crate::store::lock::{LockAttempt, LockGuard, Purpose};

/// Identifying a driver reads into buffers from the heap, and calls the dynamic linker.
pub(super) const STACK: usize = 1 << 20;
/// Memory for identifying a driver while it compiles. A generous estimate: 6 MB more than bare were resident on PoCL.
pub(super) const MEMORY: usize = 64 << 20;
/// How long the thread may take to begin. Usually it takes 0.1 ms.
const PATIENCE: Duration = Duration::from_millis(20);

/// A build that has begun before its key is known.
pub(super) struct FirstBuild {
    driver: &'static Driver,
    moment: Arc<Moment>,
    planned: Promise<Planned>,
    /// The right to build the text.
    turn: BuildTurn,
    at_work: DriverAtWork,
}

struct Planned {
    plan: Result<Box<Plan>, Bypass>,
    /// Held for those who know the key.
    guard: Option<LockGuard>,
}

/// How a build begins.
pub(super) enum Beginning {
    /// The driver builds now.
    First(Box<FirstBuild>),
    /// The cache may have the program. The turn may have the right to build its text.
    Planned(Result<Box<Plan>, Bypass>, BuildTurn),
    /// Another one builds the text of this digest first.
    Behind(Key),
}

impl Cache {
    /// Begins a first build, if this is one, or plans the build.
    #[inline(never)] // its frame is gone when the driver compiles
    pub(super) fn begin(&'static self, ticket: &Ticket, call: &BuildCall) -> Beginning {
        let started = Instant::now();
        let Some(store) = self.unused_store(ticket, call) else {
            return Beginning::Planned(self.plan_call(ticket, call), BuildTurn::default());
        };
        let planned = |plan, turn| {
            tracing::debug!(key_ns = nanoseconds(started.elapsed()), "planned");
            Beginning::Planned(plan, turn)
        };
        let draft = match self.draft(ticket, &call.arguments) {
            Ok(draft) => draft,
            Err(reason) => return planned(Err(reason), BuildTurn::default()),
        };
        let text = draft.text_key();
        let turn = match store.locks().try_lock(Purpose::Build(text)) {
            LockAttempt::Unavailable => return planned(self.plan_of(draft), BuildTurn::default()),
            LockAttempt::Taken => return Beginning::Behind(text),
            LockAttempt::Got(guard) => BuildTurn::of_text(guard),
        };
        // Another one may have ended meanwhile.
        if !store.is_unused() {
            return planned(self.plan_of(draft), turn);
        }
        match self.build_first(draft) {
            Some((moment, planned, at_work)) => {
                tracing::debug!(
                    key_ns = nanoseconds(started.elapsed()),
                    "a first build: the driver is identified meanwhile"
                );
                Beginning::First(Box::new(FirstBuild {
                    driver: ticket.driver,
                    moment,
                    planned,
                    turn,
                    at_work,
                }))
            }
            None => Beginning::Planned(self.plan_call(ticket, call), turn),
        }
    }

    /// Plans a build that another process makes first: it is waited for.
    #[inline(never)] // its frame is gone when the driver compiles
    pub(super) fn plan_behind(
        &self,
        text: &Key,
        ticket: &Ticket,
        call: &BuildCall,
        started: Instant,
    ) -> (Result<Box<Plan>, Bypass>, BuildTurn) {
        let ended = self.wait_for_first(text, ticket);
        let plan = one_call::during(|| self.plan_call(ticket, call));
        if let Ok(plan) = &plan {
            self.count_wait(
                plan,
                ended != FirstWait::Nobody,
                started,
                "for a first build",
            );
        }
        (plan, BuildTurn::after(ended))
    }

    /// The store, if this may be the first build in it.
    fn unused_store(&self, ticket: &Ticket, call: &BuildCall) -> Option<&Store> {
        let is_simple = call.headers.is_none()
            && !call.odd
            && !ticket.built
            && !ticket.driver.has_identity()
            && matches!(ticket.origin, Origin::Source(_))
            && !self.switch.look();
        if !is_simple || bake::is_baker() || !self.looks_up() || reentrancy::is_nested() {
            return None;
        }
        let store = self.written_store()?;
        let may_find =
            self.remote.is_some() || !store.is_unused() || self.tiers.used().next().is_some();
        (!may_find && own_threads::useful(1) > 0).then_some(store)
    }

    /// Begins to identify the driver on a thread.
    fn build_first(
        &'static self,
        draft: Draft,
    ) -> Option<(Arc<Moment>, Promise<Planned>, DriverAtWork)> {
        let has_room = || descriptors::has_room() && draft.has_room_and(MEMORY);
        if !has_room() {
            return None;
        }
        let driver = draft.driver();
        let moment = Arc::new(driver.moment()?);
        let at_begin = moment.clone();
        let plan = move || {
            let started = Instant::now();
            let plan = || one_call::during(|| self.plan_as_at(draft, &at_begin));
            let plan = at_begin.with_variables(plan);
            let lock = |plan: &Plan| {
                let locks = self.written_store()?.locks();
                match locks.try_lock(Purpose::Build(plan.key())) {
                    LockAttempt::Got(guard) => Some(guard),
                    LockAttempt::Taken | LockAttempt::Unavailable => None,
                }
            };
            let guard = plan.as_deref().ok().and_then(lock);
            // Last: from now on others plan as usual and find the key taken, unless this has failed for now.
            self.remember_digests_of(driver);
            let took_ns = nanoseconds(started.elapsed());
            tracing::debug!(took_ns, "looked for what identifies the driver");
            Planned { plan, guard }
        };
        let at_work = DriverAtWork::begin();
        let planned = thread(plan)?;
        Some((moment, planned, at_work))
    }
}

/// Runs on a thread what calls the dynamic linker. The program may be in a library's constructor, where that holds its locks: then the thread
/// does not begin.
fn thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Option<Promise<T>> {
    let first = || {
        loaded_changes();
        path_of(loaded_changes as *const () as usize);
    };
    Promise::new(STACK, PATIENCE, first, run)
}

impl FirstBuild {
    /// The plan of the build, when the driver has built, and the turn that ends with it.
    pub(super) fn end(self, cache: &Cache) -> (Result<Box<Plan>, Bypass>, BuildTurn) {
        let started = Instant::now();
        drop(self.at_work);
        let may_wait = || !linker_lock::is_busy_for_long();
        // In a forked child there is no thread.
        let Some(Planned { plan, guard }) = self.planned.wait(may_wait) else {
            return (Err(Bypass::UnidentifiedDriver), self.turn);
        };
        let waited_ns = nanoseconds(started.elapsed());
        tracing::debug!(waited_ns, "what identifies the driver was waited for");
        let plan = plan.map(|mut plan| {
            plan.is_settled = self.driver.is_as_at(&self.moment, cache);
            plan
        });
        (plan, self.turn.with_key(guard))
    }
}
