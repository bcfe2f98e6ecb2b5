//! Audits: what an audit compares, and what follows from one that found a difference.
//!
//! A hit is chosen for an audit in [`super::autobake::hit_served`]. The baker compiles the entry's recipe again in a worker, with all
//! that is in the key, and compares what comes out ([`differences`]) with what is stored. What two compilations give otherwise as well
//! is no difference. The entry stays as it is.
//!
//! A difference marks the driver (`store::audit`). A process looks for the mark at its first build, and then at most once a second
//! until there is one; from then on it bypasses.

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

/// How long it is taken to hold that there is no mark: to look costs some microseconds, and on a server's disk a round trip.
const HOLDS: Duration = Duration::from_secs(1);

/// What was seen of the marks of drivers.
#[derive(Default)]
pub(super) struct AuditMarks(Mutex<Vec<Seen>>);

/// What was seen of one driver's.
#[derive(Clone, Copy)]
struct Seen {
    /// The driver, by its number in this process.
    driver: usize,
    identity: Key,
    at: Instant,
    is_marked: bool,
}

/// What tells a driver from others and from other versions of it: the digest of its part of keys.
pub fn identity(driver: &Driver) -> Option<Key> {
    Some(key(driver.identity(Cache::get())?.iter()))
}

/// What of two entries of one key differs, in words.
pub fn differences(one: &Entry, other: &Entry) -> BTreeSet<String> {
    let copies = profile::named(&one.meta.driver_family).copies_builds;
    let is_for_others = one.meta.built != other.meta.built;
    let [one, other] = [one, other].map(|entry| {
        let binaries = entry.binaries().map(<[u8]>::to_vec);
        verify::ProgramAnswers::of_facts(&entry.meta.facts, binaries.collect())
    });
    let mut found = verify::compare(copies, &one, &other);
    found.extend(is_for_others.then(|| "devices that have a binary".to_owned()));
    found
}

/// Adds what the API shows of these kernels. An entry has that of the kernels that applications made, where making one is dear.
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
    /// The plan, unless an audit found an entry of its driver wrong.
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
