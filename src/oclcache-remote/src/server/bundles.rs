//! Bundles: the keys that a process used, named by the first one that it missed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::stream::{self, StreamExt};
use tokio::sync::oneshot;

use super::{FetchEnd, Server, locked};
use crate::object::Kind;
use crate::shared::{Fetched, KeyBytes, MAX_BUNDLE_KEYS, decode_bundle};

/// Bundles that are remembered at most.
const MAX_BUNDLES: usize = 4096;
/// What one bundle may bring at most, in bytes.
const MAX_PREFETCH_BYTES: u64 = 64 << 20;
/// Objects that are asked for at once.
const BATCH: usize = 64;
/// Objects that are verified and stored at once, in the order of the bundle: the program asks for them in that order.
const AT_ONCE: usize = 2;

/// The bundles of the processes that this helper serves.
#[derive(Default)]
pub struct Bundles(HashMap<KeyBytes, Bundle>);

#[derive(Default)]
struct Bundle {
    keys: Vec<KeyBytes>,
    known: HashSet<KeyBytes>,
    /// The store was asked for it.
    was_fetched: bool,
    /// It has keys that the store's does not have.
    is_changed: bool,
}

impl Bundle {
    fn add(&mut self, key: KeyBytes) -> bool {
        let is_new = self.keys.len() < MAX_BUNDLE_KEYS && self.known.insert(key);
        if is_new {
            self.keys.push(key);
        }
        is_new
    }
}

impl Bundles {
    fn bundle(&mut self, first: KeyBytes) -> &mut Bundle {
        if self.0.len() >= MAX_BUNDLES && !self.0.contains_key(&first) {
            self.0.clear();
        }
        self.0.entry(first).or_default()
    }

    /// Notes that a process that missed `first` first has asked for a key.
    pub fn note_used(&mut self, first: KeyBytes, key: KeyBytes) {
        let bundle = self.bundle(first);
        bundle.is_changed |= bundle.add(key);
    }

    /// Whether the store is to be asked for a bundle; only the first one who asks is told so.
    pub fn is_to_fetch(&mut self, first: &KeyBytes) -> bool {
        let bundle = self.bundle(*first);
        !std::mem::replace(&mut bundle.was_fetched, true)
    }

    /// The store could not be asked.
    pub fn not_fetched(&mut self, first: &KeyBytes) {
        self.bundle(*first).was_fetched = false;
    }

    /// Adds what the store's bundle has. Returns its keys.
    pub fn fetched(&mut self, first: KeyBytes, payload: &[u8]) -> Vec<KeyBytes> {
        let keys = decode_bundle(payload);
        let bundle = self.bundle(first);
        for key in &keys {
            bundle.add(*key);
        }
        bundle.is_changed = bundle.keys.len() > keys.len();
        keys
    }

    /// The bundles that are to be sent. A bundle of one key says nothing.
    pub fn changed(&mut self) -> Vec<(KeyBytes, Vec<KeyBytes>)> {
        let changed = self
            .0
            .iter_mut()
            .filter(|(_, bundle)| bundle.is_changed && bundle.keys.len() > 1);
        let sent = changed.map(|(first, bundle)| {
            bundle.is_changed = false;
            (*first, bundle.keys.clone())
        });
        sent.collect()
    }

    /// A bundle could not be sent.
    pub fn not_sent(&mut self, first: KeyBytes) {
        self.bundle(first).is_changed = true;
    }
}

/// A key that is being prefetched. Who asks for it meanwhile waits for that, and asks the store for nothing of its own.
struct Announced {
    server: Arc<Server>,
    key: KeyBytes,
    tell: Option<oneshot::Sender<FetchEnd>>,
}

impl Drop for Announced {
    fn drop(&mut self) {
        locked(&self.server.fetches).remove(&self.key);
    }
}

impl Announced {
    /// None if the key is being fetched already. `first` names the bundle.
    fn new(server: &Arc<Server>, key: KeyBytes, first: KeyBytes) -> Option<Announced> {
        let mut fetches = locked(&server.fetches);
        let Entry::Vacant(free) = fetches.entry(key) else {
            return None;
        };
        let (tell, end) = oneshot::channel();
        let asked = server.clone();
        let end = async move {
            match end.await {
                // It was given up, or would have evicted others, which what somebody asks for may do.
                Ok(FetchEnd::Failed) | Err(_) => asked.fetch(key, first).await,
                Ok(end) => end,
            }
        };
        free.insert(end.boxed().shared());
        Some(Announced {
            server: server.clone(),
            key,
            tell: Some(tell),
        })
    }

    fn ended(mut self, end: FetchEnd) {
        let _ = self.tell.take().map(|tell| tell.send(end));
    }
}

/// Fetches the entries of a bundle that the local store lacks.
pub async fn prefetch(server: Arc<Server>, first: KeyBytes, keys: Vec<KeyBytes>) {
    let checked = {
        let server = server.clone();
        tokio::task::spawn_blocking(move || {
            let lacking = keys.into_iter().filter(|key| !server.local.has(key));
            lacking.collect::<Vec<_>>()
        })
    };
    let Ok(lacking) = checked.await else {
        return;
    };
    let mut bytes = 0;
    for batch in lacking.chunks(BATCH) {
        if bytes >= MAX_PREFETCH_BYTES || !server.local.has_room_for_prefetch() {
            return;
        }
        let announced = batch.iter();
        let announced = announced.filter_map(|key| Announced::new(&server, *key, first));
        let announced: Vec<Announced> = announced.collect();
        let wanted: Vec<_> = announced.iter().map(|one| (Kind::Entry, one.key)).collect();
        let Ok(found) = server.shared.read(&wanted).await else {
            return;
        };
        let taken = announced.into_iter().zip(found);
        let taken = taken.map(|(one, found)| take(one, found));
        let mut taken = stream::iter(taken).buffered(AT_ONCE);
        while let Some(length) = taken.next().await {
            bytes += length;
        }
    }
}

/// Verifies and stores an entry that nobody has asked for yet. Returns its length, in bytes.
async fn take(one: Announced, found: Option<Vec<u8>>) -> u64 {
    let (server, key) = (one.server.clone(), one.key);
    let verifier = server.clone();
    let verified = move || verifier.shared.verified(Kind::Entry, &key, found);
    let verified = tokio::task::spawn_blocking(verified).await;
    let (end, length) = match verified {
        _ if server.stops.load(Ordering::Relaxed) => (FetchEnd::Failed, 0),
        Ok(Fetched::Found(object)) => {
            let length = object.payload.len() as u64;
            (server.store(key, *object, true).await, length)
        }
        Ok(Fetched::Missing) => (FetchEnd::Missing, 0),
        Ok(Fetched::Refused(_)) => (FetchEnd::Refused, 0),
        Err(_) => (FetchEnd::Failed, 0),
    };
    one.ended(end);
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::encode_bundle;

    #[test]
    fn a_bundle_is_fetched_once_and_sent_if_it_has_more_than_the_stores() {
        let mut bundles = Bundles::default();
        let (first, second, third) = ([1; 32], [2; 32], [3; 32]);
        bundles.note_used(first, first);
        assert!(bundles.is_to_fetch(&first));
        assert!(!bundles.is_to_fetch(&first));
        assert_eq!(bundles.changed(), []);
        assert_eq!(
            bundles.fetched(first, &encode_bundle(&[first, second])),
            [first, second]
        );
        assert_eq!(bundles.changed(), []);
        bundles.note_used(first, second);
        assert_eq!(bundles.changed(), []);
        bundles.note_used(first, third);
        assert_eq!(bundles.changed(), [(first, vec![first, second, third])]);
        assert_eq!(bundles.changed(), []);
        bundles.not_sent(first);
        assert_eq!(bundles.changed().len(), 1);
    }

    #[test]
    fn a_hostile_bundle_is_bounded() {
        let mut bundles = Bundles::default();
        let many: Vec<KeyBytes> = (0..2000_u32)
            .map(|number| {
                let mut key = [0; 32];
                key[..4].copy_from_slice(&number.to_le_bytes());
                key
            })
            .collect();
        let payload: Vec<u8> = many.iter().flatten().copied().chain([1, 2, 3]).collect();
        assert_eq!(bundles.fetched([9; 32], &payload).len(), MAX_BUNDLE_KEYS);
        assert_eq!(encode_bundle(&many).len(), MAX_BUNDLE_KEYS * 32);
        for key in many {
            bundles.note_used([9; 32], key);
        }
        assert!(
            bundles
                .changed()
                .iter()
                .all(|(_, keys)| keys.len() <= MAX_BUNDLE_KEYS)
        );
    }
}
