//! Materialization: the driver builds a served program for real. That happens for queries that nothing else answers exactly (R2),
//! before calls that change the program (R3), and for inputs of a link.
//!
//! A served P is built itself. The result of a link is already the program that the cache made, so the driver makes a *twin*: it
//! links newly made inputs.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::time::{Duration, Instant};

use opencl_sys::*;

use super::amend::add_kernel;
use super::attribution::Attribution;
use super::facts::{facts, kernel_facts};
use super::{Cache, nanoseconds};
use crate::cl::{Context, Kernel, Program};
use crate::driver::{self, Driver, variable_history};
use crate::outcome::Query;
use crate::shadow::{self, Base, CachedProgram, Operation, OwnProgram, Recipe};
use crate::store::entry::{Answer, Facts, KernelFacts};
use crate::store::stats::Counter;

/// A program that the driver has built for real.
pub struct Materialized {
    /// The program's handle.
    pub program: Program,
    /// Keeps other threads from building P meanwhile.
    _alone: Option<OwnProgram>,
}

/// Programs that are released after use.
pub(super) struct TemporaryPrograms {
    pub(super) driver: &'static Driver,
    pub(super) programs: Vec<Program>,
}

impl Drop for TemporaryPrograms {
    fn drop(&mut self) {
        for program in &self.programs {
            self.driver.release_program(*program);
        }
    }
}

/// Repeats the calls of a recipe on a program that was made from its base.
fn repeat(
    driver: &'static Driver,
    context: Context,
    program: Program,
    recipe: &Recipe,
) -> Result<(), cl_int> {
    for call in recipe.calls() {
        let _state = call.float_state.resume();
        let code = match &call.operation {
            Operation::Compile(headers) => {
                let mut made = TemporaryPrograms {
                    driver,
                    programs: Vec::new(),
                };
                for header in headers {
                    let source = driver.create_program_with_source(context, &header.source)?;
                    made.programs.push(source);
                }
                let names = headers.iter().map(|header| header.name.as_c_str());
                let headers: Vec<(&CStr, Program)> =
                    names.zip(made.programs.iter().copied()).collect();
                driver.compile_program(program, &call.arguments, &headers)
            }
            Operation::Build | Operation::Link(_) => driver.build_program(program, &call.arguments),
        };
        if code != CL_SUCCESS {
            return Err(code);
        }
    }
    Ok(())
}

/// Makes the program of a recipe. Libraries may be linked of libraries, and that is followed without recursion: the stack is the
/// application's.
pub(super) fn make(
    driver: &'static Driver,
    context: Context,
    mut recipe: &Recipe,
) -> Result<Program, cl_int> {
    // The links that wait for their inputs, each with those that are made.
    let mut links: Vec<(&Recipe, TemporaryPrograms)> = Vec::new();
    loop {
        while let Some(first) = recipe.base.inputs().first() {
            let programs = Vec::new();
            links.push((recipe, TemporaryPrograms { driver, programs }));
            recipe = first;
        }
        let mut program = make_unlinked(driver, context, recipe)?;
        recipe = loop {
            let Some((link, mut made)) = links.pop() else {
                return Ok(program);
            };
            made.programs.push(program);
            if let Some(next) = link.base.inputs().get(made.programs.len()) {
                links.push((link, made));
                break next;
            }
            let _state = link.float_state.resume();
            program = driver.link_program(context, &link.arguments, &made.programs)?;
        };
    }
}

/// Makes the program of a recipe that links nothing.
#[inline(never)] // its frame is gone when the driver links
fn make_unlinked(
    driver: &'static Driver,
    context: Context,
    recipe: &Recipe,
) -> Result<Program, cl_int> {
    let program = match &recipe.base {
        Base::Linked(_) => return Err(CL_INVALID_OPERATION),
        Base::Source(source) => driver.create_program_with_source(context, source)?,
        Base::Il(code, _) => driver.create_program_with_il(context, code)?,
    };
    let mut made = TemporaryPrograms {
        driver,
        programs: vec![program],
    };
    if let Base::Il(_, constants) = &recipe.base {
        for (id, value) in constants {
            let code = driver.set_specialization_constant(program, *id, value);
            if code != CL_SUCCESS {
                return Err(code);
            }
        }
    }
    repeat(driver, context, program, recipe)?;
    made.programs.clear();
    Ok(program)
}

impl Cache {
    /// R2: the program that the driver builds for real, for a program that `inner` serves. None if that fails, or if the inputs
    /// have changed since. The program answers queries. Kernels still come from `inner`, so that there is one set of program-scope
    /// variables.
    pub(super) fn own(
        &self,
        program: Program,
        inner: &Arc<CachedProgram>,
        query: Query,
    ) -> Option<Materialized> {
        let alone = if inner.is_inner() {
            Some(shadow::own_program(program, inner)?)
        } else {
            None
        };
        let own = |program| Materialized {
            program,
            _alone: alone,
        };
        match inner.twin() {
            Some(twin) => return Some(own(twin)),
            None if inner.is_materialized() => return Some(own(program)),
            None => {}
        }
        if driver::is_ending() {
            return None;
        }
        if !self.still_holds_for_query(inner) {
            return None;
        }
        if inner.is_inner() {
            return self.build_own(program, inner, query).then(|| own(program));
        }
        let twin = self.timed(inner, query, || {
            make(inner.driver(), inner.context(), inner.recipe())
        });
        Some(own(inner.keep_twin(twin.ok()?)))
    }

    /// R3: builds a served P for real, even if its inputs have changed.
    ///
    /// The caller holds P exclusively: by [`shadow::own_program`], or because it is building P.
    pub(super) fn build_own(&self, program: Program, inner: &CachedProgram, query: Query) -> bool {
        if inner.is_materialized() {
            return true;
        }
        if driver::is_ending() {
            return false;
        }
        let repeated = self.timed(inner, query, || {
            repeat(inner.driver(), inner.context(), program, inner.recipe())
        });
        if repeated.is_ok() {
            inner.set_materialized();
        }
        repeated.is_ok()
    }

    /// [`Cache::still_holds`], and counts if it does not.
    #[inline(never)] // its frame is gone when the driver compiles
    fn still_holds_for_query(&self, inner: &CachedProgram) -> bool {
        if self.still_holds(inner) {
            return true;
        }
        self.count(
            Attribution::inner(inner).place(),
            &[Counter::InputsChanged.by(1)],
        );
        let key = &inner.key().hex()[..16];
        tracing::warn!(
            key,
            "a query is answered from the cache although the inputs have changed"
        );
        false
    }

    fn timed<T>(
        &self,
        inner: &CachedProgram,
        query: Query,
        make: impl FnOnce() -> Result<T, cl_int>,
    ) -> Result<T, cl_int> {
        let started = Instant::now();
        variable_history::note();
        let made = make();
        let code = made.as_ref().err().copied().unwrap_or(CL_SUCCESS);
        self.count_materialized(inner, query, code, started.elapsed());
        made
    }

    #[inline(never)] // its frame is gone when the driver compiles
    fn count_materialized(
        &self,
        inner: &CachedProgram,
        query: Query,
        code: cl_int,
        elapsed: Duration,
    ) {
        let elapsed = nanoseconds(elapsed);
        let events = [
            Counter::Materialized.by(1),
            Counter::RebuiltNs.by(elapsed),
            query.into(),
        ];
        self.count(Attribution::inner(inner).place(), &events);
        tracing::info!(
            key = &inner.key().hex()[..16],
            query = query.name(),
            code,
            "built for real"
        );
    }

    /// Whether a build now would have the same key.
    pub(super) fn still_holds(&self, inner: &CachedProgram) -> bool {
        let key = self.key_again(inner.driver(), inner.devices(), inner.recipe());
        key == Ok(inner.key())
    }

    /// Builds a served P for real before it is linked. If that fails, or would give another program by now, returns the program to
    /// link instead: the one that serves P, or a changed twin. Measured on rusticl: a file that has appeared in the working
    /// directory is read instead of an embedded header.
    pub(super) fn in_place_of(&self, input: Program) -> Option<Arc<CachedProgram>> {
        let inner = shadow::view(input)?.inner?;
        if !inner.is_inner() {
            return inner.changed_twin().map(|_| inner);
        }
        if !inner.is_materialized() && self.still_holds(&inner) {
            self.make_own(input, Query::Link);
        }
        (!inner.is_materialized()).then_some(inner)
    }

    /// Builds a served P for real, unless another thread builds it now.
    pub(super) fn make_own(&self, program: Program, query: Query) {
        if let Some(inner) = shadow::view(program).and_then(|view| view.inner)
            && inner.is_inner()
            && let Some(_alone) = shadow::own_program(program, &inner)
        {
            self.build_own(program, &inner, query);
        }
    }
}

/// Called before a specialization constant is set. Builds a served program for real with the constants of its build, since later
/// that is impossible. Also one from source: PoCL ends the process if such a program is not built, and NEO 22.43 refuses it with another
/// code than one that is (measured).
pub fn before_constant(program: Program) {
    if shadow::view(program).is_some_and(|view| view.inner.is_some()) {
        Cache::get().make_own(program, Query::SpecializationConstant);
    }
}

/// Finds a recorded answer. If there is none, materializes the program and replaces its facts. None if that does not help.
pub fn answered(
    driver: &Driver,
    program: Program,
    inner: &Arc<CachedProgram>,
    query: Query,
    find: impl Fn(&Facts) -> Option<Answer>,
) -> Option<Answer> {
    if let Some(answer) = find(&inner.facts()) {
        return Some(answer);
    }
    let cache = Cache::get();
    let own = cache.own(program, inner, query)?;
    replace_facts(cache, driver, inner, own);
    find(&inner.facts())
}

/// Replaces the facts of a served program, and those of its entry, by those of the program that the driver has built for real.
#[inline(never)] // its frame is gone when the driver compiles
fn replace_facts(cache: &Cache, driver: &Driver, inner: &Arc<CachedProgram>, own: Materialized) {
    let fresh = facts(
        driver,
        own.program,
        inner.devices(),
        &inner.built(),
        &inner.recipe().arguments,
    );
    drop(own);
    inner.set_facts(Arc::new(fresh.clone()));
    let directories = Some(inner.recipe().include_dirs.as_slice());
    cache.amend(&inner.key(), directories, |facts| {
        let changed = *facts != fresh;
        *facts = fresh;
        changed
    });
}

/// Asks a kernel of the program that the driver builds for real, and adds its facts to the entry unless a twin has changed. None if
/// there is no such program; then the existing kernel answers.
pub fn ask_own_kernel(
    driver: &Driver,
    program: Program,
    inner: &Arc<CachedProgram>,
    name: &CString,
    query: Query,
    ask: &dyn Fn(Kernel) -> cl_int,
) -> Option<cl_int> {
    let cache = Cache::get();
    let own = cache.own(program, inner, query)?;
    let kernel = driver.create_kernel(own.program, name).ok()?;
    let code = ask(kernel);
    let fresh = kernel_facts(driver, kernel);
    driver.release_kernel(kernel);
    drop(own);
    if let Some(fresh) = fresh.filter(|_| inner.changed_twin().is_none()) {
        remember_kernel(cache, inner, fresh);
    }
    Some(code)
}

/// Adds the facts of a kernel to those of a served program and of its entry.
#[inline(never)] // its frame is gone when the driver compiles
fn remember_kernel(cache: &Cache, inner: &CachedProgram, fresh: KernelFacts) {
    let mut facts = (*inner.facts()).clone();
    if add_kernel(&mut facts, fresh.clone()) {
        inner.set_facts(Arc::new(facts));
    }
    cache.amend(&inner.key(), None, |facts| add_kernel(facts, fresh));
}
