//! Asks other machines for what is to be baked, and tells them what was baked: each recipe is baked once in a cluster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::collect::BakeItem;
use super::replayer::{BakeTask, ReplayResult};
use crate::config::Config;
use crate::remote::client::{Lease, Question, RemoteClient};
use crate::store::Store;
use crate::store::tier::Tier;

/// How long to wait for the answer of the remote store. No application waits for the baker.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for another host that bakes the same recipe: a multiple of the time that the application took, within limits.
const TIMES: u32 = 3;
const MIN_WAIT: Duration = Duration::from_secs(5);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The remote level as the baker uses it: nothing without a remote store.
pub struct BakeSharing<'a> {
    client: Option<RemoteClient>,
    store: &'a Store,
    config: &'a Config,
}

/// How a question ended.
pub enum Shared {
    /// The entry of another machine is stored.
    Stored,
    /// Bake it, with the lease if there is one.
    Bake(Option<Lease>),
}

impl<'a> BakeSharing<'a> {
    /// For this cache.
    pub fn new(store: &'a Store, config: &'a Config) -> BakeSharing<'a> {
        BakeSharing {
            client: RemoteClient::new(config),
            store,
            config,
        }
    }

    /// Asks for the entry of a recipe that is about to be baked.
    pub fn ask(&self, item: &BakeItem, is_stale: bool, stop: &AtomicBool) -> Shared {
        let is_pending = matches!(item.task, BakeTask::Bake | BakeTask::BakeUnused);
        let client = self.client.as_ref().filter(|_| is_pending && !is_stale);
        let Some(client) = client else {
            return Shared::Bake(None);
        };
        let took = Duration::from_nanos(item.compile_ns);
        let longest = took.saturating_mul(TIMES).clamp(MIN_WAIT, MAX_WAIT);
        let asked = client.ask(
            self.config,
            self.store,
            &Question {
                key: item.key,
                compiled_in: Some(took),
                may_wait: true,
                patience: Some(PATIENCE),
                // What is made of others' recipes is never sent, so nobody is to wait for it.
                lease: (!item.is_imported).then_some(longest),
                goes_on: &|| !stop.load(Ordering::Relaxed),
            },
        );
        let is_there =
            || matches!(self.store.read(&item.key), Ok(Some((entry, _))) if !entry.is_pending());
        match asked.is_stored && is_there() {
            true => Shared::Stored,
            false => Shared::Bake(asked.lease),
        }
    }

    /// Notes how the baking of a recipe ended.
    pub fn ended(&self, item: &BakeItem, verdict: &ReplayResult, lease: Option<Lease>) {
        let (key, is_baked) = (&item.key, *verdict == ReplayResult::Baked);
        // A worker that a hostile recipe has taken over writes any entry: what that says of itself shows nothing.
        if is_baked
            && !item.is_imported
            && let Some(client) = &self.client
            && let Ok(Some((entry, _))) = self.store.read(key)
            && let Some(marker) = client.built(self.config, key, &entry.meta, entry.bytes())
        {
            client.send(self.config, self.store, key, &marker);
        }
        if let Some(lease) = lease {
            lease.done(is_baked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ingredients::Key;
    use crate::store::Limits;
    use crate::store::entry::tests::{content, facts};

    #[test]
    fn what_was_made_of_anothers_recipe_is_not_sent_whatever_its_entry_says() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let variable = |name: &str| match name {
            "OCLCACHE_REMOTE" => Some("redis://nowhere".into()),
            "OCLCACHE_DIR" | "HOME" | "XDG_STATE_HOME" => Some(directory.path().into()),
            _ => None,
        };
        let config = Config::read_from(&variable, None);
        let cache = config.directory().expect("a directory");
        let store = Store::open(&cache, Limits::default()).expect("a store");
        let sharing = BakeSharing::new(&store, &config);
        for is_imported in [true, false] {
            let item = BakeItem {
                key: Key([is_imported.into(); 32]),
                program: String::new(),
                kernels: Vec::new(),
                compile_ns: 0,
                driver: String::new(),
                device: Vec::new(),
                is_imported,
                task: BakeTask::Bake,
                rank: 0,
            };
            let mut meta = facts();
            meta.imported = false;
            let entry = content(&meta, &[b"binary"]);
            store.publish(&item.key, &entry).expect("stored");
            sharing.ended(&item, &ReplayResult::Baked, None);
            let Ok(Some((entry, _))) = store.read(&item.key) else {
                panic!("no entry");
            };
            let client = sharing.client.as_ref().expect("a client");
            let is_sent = client.is_built_here(&config, &item.key, entry.bytes());
            assert_eq!(is_sent, !is_imported);
        }
    }
}
