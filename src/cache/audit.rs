//! Audits: what an audit compares, and how a difference stops the use of a driver's entries.
//!
//! [`super::autobake::hit_served`] chooses a hit for an audit. The baker compiles the entry's recipe again in a worker, with
//! everything that is in the key, and compares the result with the entry ([`differences`]). Differences between two compilations do
//! not count. The entry stays as it is.
//!
//! A difference marks the driver (`store::audit`). A process looks for the mark at its first build, then at most once a second.
//! Once it finds the mark, it bypasses every build of that driver.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::time::{Duration, Instant};

use super::facts::kernel_facts;
use super::plan::Plan;
use super::{Cache, verify};
use crate::cl::Program;
use crate::driver::{Driver, profile};
use crate::fork_safety::Mutex;
use crate::key::ingredients::{Key, key};
use crate::outcome::Bypass;
use crate::store::entry::{Entry, Facts};

/// How long the absence of a mark is trusted. A look costs microseconds, or a round trip on a network file system.
const HOLDS: Duration = Duration::from_secs(1);

/// The marks of drivers as this process last saw them.
#[derive(Default)]
pub(super) struct AuditMarks(Mutex<Vec<Seen>>);

/// The mark of one driver.
#[derive(Clone, Copy)]
struct Seen {
    /// The driver, by its number in this process.
    driver: usize,
    identity: Key,
    at: Instant,
    is_marked: bool,
}

/// The digest of a driver's part of keys: it differs for another driver and for another version.
pub fn identity(driver: &Driver) -> Option<Key> {
    Some(key(driver.identity(Cache::get())?.iter()))
}

/// The differences between two entries of one key, for messages.
pub fn differences(one: &Entry, other: &Entry) -> BTreeSet<String> {
    let copies = profile::named(&one.meta.driver_family)
        .behavior()
        .copies_builds;
    let is_for_others = one.meta.built != other.meta.built;
    let [one, other] = [one, other].map(|entry| {
        let binaries = entry.binaries().map(<[u8]>::to_vec);
        verify::ProgramAnswers::of_facts(&entry.meta.facts, binaries.collect())
    });
    let mut found = verify::compare(copies, &one, &other);
    found.extend(is_for_others.then(|| "devices that have a binary".to_owned()));
    found
}

/// Adds the facts of these kernels. On drivers where creating a kernel is expensive, an entry has the facts of the kernels that
/// applications created.
pub(super) fn add_kernels(
    driver: &Driver,
    program: Program,
    names: Vec<Vec<u8>>,
    facts: &mut Facts,
) {
    for name in names {
        if facts.kernel(&name).is_some() {
            continue;
        }
        let name = CString::new(name).ok();
        let kernel = name.and_then(|name| driver.create_kernel(program, &name).ok());
        if let Some(kernel) = kernel {
            facts.kernels.extend(kernel_facts(driver, kernel));
            driver.release_kernel(kernel);
        }
    }
}

impl Cache {
    /// Returns the plan, unless an audit found a wrong entry of its driver.
    pub(super) fn unless_marked(
        &self,
        driver: &Driver,
        plan: Box<Plan>,
    ) -> Result<Box<Plan>, Bypass> {
        match self.is_marked(driver) {
            true => Err(Bypass::AuditDiffered),
            false => Ok(plan),
        }
    }

    fn is_marked(&self, driver: &Driver) -> bool {
        let Some(store) = self.store() else {
            return false;
        };
        let number = driver.index();
        let known = {
            let all = self.marks.0.lock();
            all.iter().find(|seen| seen.driver == number).copied()
        };
        if let Some(seen) = known
            && (seen.is_marked || seen.at.elapsed() < HOLDS)
        {
            return seen.is_marked;
        }
        // The identity of a driver does not change while it is loaded.
        let identity = match known {
            Some(seen) => seen.identity,
            None => match driver.identity(self) {
                Some(identity) => key(identity.iter()),
                None => return false,
            },
        };
        let seen = Seen {
            driver: number,
            identity,
            at: Instant::now(),
            is_marked: store.is_marked(&identity),
        };
        if seen.is_marked {
            tracing::warn!(
                driver = driver.profile.family,
                "an audit found an entry of this driver wrong: nothing is cached"
            );
        }
        let mut all = self.marks.0.lock();
        all.retain(|seen| seen.driver != number);
        all.push(seen);
        seen.is_marked
    }
}
