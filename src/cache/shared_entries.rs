//! Entries of other machines: the helper of the remote level is asked for what the local store lacks, and told what was stored.

use std::time::Duration;

use super::plan::Plan;
use super::policy::Policy;
use super::{Cache, bake, nanoseconds};
use crate::config::Config;
use crate::driver::{self, Driver, reentrancy};
use crate::key::ingredients::Key;
use crate::remote::client::{AskedEnd, Lease, Question, RemoteClient};
use crate::remote::outbox::Marker;
use crate::remote::protocol::Request;
use crate::remote::start;
use crate::store::Store;
use crate::store::entry::EntryContent;
use crate::store::stats::Counter;

/// Lets the helper connect to the remote store while the application does other things. Called when drivers were loaded. Does
/// nothing without a remote store.
pub fn hello(config: &Config) {
    let Some(client) = RemoteClient::new(config) else {
        return;
    };
    let opened = config
        .directory()
        .ok()
        .map(|path| Store::open_existing(&path));
    match opened {
        Some(Ok(Some(store))) => client.tell(config, &store, &Request::Hello),
        // The helper makes it.
        Some(Ok(None)) => {
            start::start();
        }
        Some(Err(_)) | None => {}
    }
}

/// How a question to the helper ended.
pub(super) enum Shared<T> {
    /// The entry was stored and found.
    Found(T),
    /// This thread is to build, with the lease if there is one.
    Build(Option<Lease>),
}

impl Cache {
    /// Asks the helper for the entry of a plan, after the local stores were found to lack it, and looks for it again. `compiled_in`:
    /// how long the driver took earlier. `lease_wait`: how long to wait for another host that builds it.
    #[inline(never)] // its frame is gone when the driver compiles
    pub(super) fn ask_others<T>(
        &self,
        driver: &Driver,
        plan: &Plan,
        compiled_in: Option<Duration>,
        lease_wait: &dyn Fn(Option<Duration>) -> Duration,
        goes_on: &dyn Fn() -> bool,
        find: &mut dyn FnMut() -> Option<T>,
    ) -> Shared<T> {
        let (Some(client), Some(store)) = (&self.remote, self.written_store()) else {
            return Shared::Build(None);
        };
        if self.switch.was_off() {
            return Shared::Build(None);
        }
        // Otherwise the baker makes the entry, so a lease of this build would keep nobody from baking.
        let decision = self.policy_of(driver, &plan.recipe.operation);
        let is_recorded = decision.policy == Policy::InMiss;
        let question = Question {
            key: plan.key(),
            compiled_in,
            may_wait: !reentrancy::is_nested() && !driver::is_ending(),
            patience: None,
            lease: is_recorded.then(|| lease_wait(compiled_in)),
            goes_on: &|| !driver::is_ending() && goes_on(),
        };
        let asked = client.ask(&self.config, store, &question);
        let found = asked.is_stored.then(&mut *find).flatten();
        let ended = match asked.ended {
            // The helper may be of another version, or the entry was evicted again, or the driver refuses it.
            Some(AskedEnd::Hit) if found.is_none() => {
                client.was_in_vain(asked.waited);
                Some(AskedEnd::Error)
            }
            ended => ended,
        };
        if let Some(ended) = ended {
            let counter = match ended {
                AskedEnd::Hit => Counter::RemoteHits,
                AskedEnd::Miss => Counter::RemoteMisses,
                AskedEnd::Late => Counter::RemoteLate,
                AskedEnd::Error => Counter::RemoteErrors,
            };
            let waited = nanoseconds(asked.waited);
            let wasted = if ended == AskedEnd::Hit { 0 } else { waited };
            let events = [
                counter.by(1),
                Counter::RemoteWaitNs.by(waited),
                Counter::RemoteWastedNs.by(wasted),
            ];
            self.count(plan.place(), &events);
            let us = asked.waited.as_micros();
            tracing::debug!(key = %plan.key_prefix(), us, ?ended, "asked other machines");
        }
        match found {
            Some(found) => Shared::Found(found),
            None => Shared::Build(asked.lease),
        }
    }

    /// Notes that this machine's driver built an entry, before it is stored. Other processes and the helper may read it as soon as
    /// it is, and would take it for another machine's. None: it is not to be sent to other machines.
    pub(super) fn built_here(&self, key: &Key, content: &EntryContent<'_>) -> Option<Marker> {
        let client = self.remote.as_ref()?;
        let bytes = content.encode(key).ok()?;
        client.built(&self.config, key, content.meta, &bytes)
    }

    /// Has an entry sent to other machines, after it was stored.
    pub(super) fn share(&self, store: &Store, key: &Key, marker: Option<&Marker>) {
        if let (Some(client), Some(marker)) = (&self.remote, marker) {
            client.send(&self.config, store, key, marker);
        }
    }

    /// Whether this machine's driver built the entry of a key whose file has these bytes, as far as that matters.
    pub(super) fn is_built_here(&self, key: &Key, entry: &[u8]) -> bool {
        let client = self.remote.as_ref();
        client.is_some_and(|client| client.is_built_here(&self.config, key, entry))
    }

    /// Notes how long a program took to compile.
    pub(super) fn note_compile_time(&self, time: Duration) {
        if let Some(client) = &self.remote
            && !bake::is_baker()
        {
            client.compiled(time);
        }
    }
}
