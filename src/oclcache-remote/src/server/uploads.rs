//! Sends what the outbox names: some time after the last change, so that a program that builds is not disturbed.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use oclcache::remote::local::NotSent;
use oclcache::remote::outbox::Marker;
use tokio::time::{Instant, timeout_at};

use super::{OBSTRUCTED, Server, locked};
use crate::engine::EngineError;
use crate::local::Outgoing;
use crate::object::Kind;
use crate::shared::{Counters, KeyBytes, UploadError, encode_bundle, now};

/// How long after the last change.
const QUIET: Duration = Duration::from_secs(2);
/// How often the outbox is looked at even if nobody says that it has changed.
const LOOK: Duration = Duration::from_secs(30);
/// What compiles faster than so many round trips is not worth a question.
const MIN_ROUND_TRIPS: u32 = 5;
/// Uploads at once.
const CONCURRENT: usize = 8;

/// Sends until the helper ends.
pub async fn run(server: Arc<Server>) {
    // What an earlier helper has left.
    let mut at = Instant::now() + QUIET;
    loop {
        match timeout_at(at, server.wake_uploader.notified()).await {
            Ok(()) => at = Instant::now() + QUIET,
            Err(_) => {
                server.send_what_pays().await;
                at = Instant::now() + LOOK;
            }
        }
    }
}

/// What became of one entry of the outbox.
#[derive(PartialEq, Eq)]
enum Sent {
    /// It is in the store, or need not be.
    Done,
    /// It stays in the outbox.
    Stays,
    /// The store takes nothing more.
    Stopped,
}

/// What is sent of the entry of a marker.
fn kind_of(marker: Option<Marker>) -> Kind {
    match marker {
        Some(marker) if marker.is_pending => Kind::Recipe,
        _ => Kind::Entry,
    }
}

impl Server {
    /// As what an entry of the outbox is sent.
    pub fn kind_of(&self, key: &KeyBytes) -> Kind {
        kind_of(self.local.marker(key).ok().flatten())
    }

    /// Notes why an entry stays in the outbox. One reason may keep many.
    fn stays(&self, why: String) -> Sent {
        let before = locked(&self.stays_why).replace(why.clone());
        if before.as_ref() != Some(&why) {
            self.local.log(&format!("an entry is not sent yet: {why}"));
        }
        Sent::Stays
    }

    /// Whether the store takes nothing now.
    fn takes_nothing(&self) -> bool {
        let guarded = &self.shared.guarded;
        guarded.is_open().is_some() || guarded.refuses_writes().is_some()
    }

    /// Sends what is in the outbox within a time. Returns how many entries are left.
    pub(super) async fn flush(&self, wait: Duration) -> u32 {
        let _ = tokio::time::timeout(wait, self.send_what_pays()).await;
        self.local.pending_count()
    }

    /// Sends one entry at once, because another host waits for it.
    pub(super) async fn send_now(&self, key: &KeyBytes) {
        self.send(key, None, false).await;
    }

    /// Sends what is in the outbox, and the bundles.
    pub async fn send_all(&self) {
        self.send_outbox(false).await;
    }

    /// The same without entries that compile faster than other machines find out whether the store has them.
    async fn send_what_pays(&self) {
        self.send_outbox(true).await;
    }

    async fn send_outbox(&self, is_spared: bool) {
        if !self.shared.can_write() || self.takes_nothing() {
            return;
        }
        let _only = self.uploading.lock().await;
        locked(&self.stays_why).take();
        let keys = match self.local.pending() {
            Ok(keys) => keys,
            Err(why) => {
                *locked(&self.stays_why) = Some(why);
                return;
            }
        };
        if !keys.is_empty() {
            if self.shared.guarded.round_trip().is_none()
                && self.shared.guarded.check().await.is_err()
            {
                return;
            }
            let is_recipe = |key: &KeyBytes| self.kind_of(key) == Kind::Recipe;
            let (recipes, entries) = keys.into_iter().partition::<Vec<_>, _>(is_recipe);
            let mut sends = Vec::new();
            for (kind, keys) in [(Kind::Entry, &entries), (Kind::Recipe, &recipes)] {
                let Ok(present) = self.shared.present(kind, keys).await else {
                    return;
                };
                let keys = keys.iter().zip(present);
                sends.extend(keys.map(|(key, is_present)| {
                    self.send(key, is_present.then_some(kind), is_spared)
                }));
            }
            let mut sends = stream::iter(sends).buffer_unordered(CONCURRENT);
            while let Some(sent) = sends.next().await {
                if sent == Sent::Stopped {
                    return;
                }
            }
        }
        self.send_bundles().await;
    }

    /// `present`: what the store has of this key. `is_spared`: whether an entry that compiles fast is left out.
    async fn send(&self, key: &KeyBytes, present: Option<Kind>, is_spared: bool) -> Sent {
        let marker = match self.local.marker(key) {
            Ok(marker) => marker,
            Err(why) => return self.stays(why),
        };
        // It may have been baked since.
        let is_present = present == Some(kind_of(marker));
        let marker = marker.as_ref();
        if is_present {
            self.local.sent(key, marker);
            return Sent::Done;
        }
        let outgoing = match self.local.outgoing(key) {
            Outgoing::Entry(entry) => entry,
            Outgoing::Never(why) => {
                self.local.log(&format!("an entry is not sent: {why}"));
                // What is gone is not withheld. An entry that has changed is looked at again.
                if why != NotSent::Absent && locked(&self.withheld).insert(*key) {
                    Counters::add(&self.shared.counters.withheld, 1);
                    *locked(&self.withheld_why) = Some(why.to_string());
                    // Before it leaves the outbox: who finds that empty reads the state.
                    self.write_state();
                }
                self.local.sent(key, marker);
                return Sent::Done;
            }
            Outgoing::NotYet => return Sent::Stays,
            Outgoing::Unreadable(why) => return self.stays(why),
        };
        let trips = self.shared.guarded.round_trip().unwrap_or_default() * MIN_ROUND_TRIPS;
        if is_spared && Duration::from_nanos(outgoing.compile_ns) < trips {
            self.local.sent(key, marker);
            return Sent::Done;
        }
        let (created, time) = (outgoing.created, outgoing.compile_ns);
        let kind = match outgoing.is_pending {
            true => Kind::Recipe,
            false => Kind::Entry,
        };
        let upload = self
            .shared
            .upload(kind, key, &outgoing.bytes, created, time);
        match upload.await {
            Ok(_) => {
                self.local.sent(key, marker);
                Sent::Done
            }
            Err(UploadError::Unsigned(why)) => {
                self.local.log(&format!("an entry is not sent: {why}"));
                self.local.sent(key, marker);
                Sent::Done
            }
            Err(UploadError::Engine(error @ EngineError::Obstructed(_))) => {
                self.stays(format!("{error}; {OBSTRUCTED}"))
            }
            Err(UploadError::Engine(_)) => match self.takes_nothing() {
                true => Sent::Stopped,
                false => Sent::Stays,
            },
        }
    }

    async fn send_bundles(&self) {
        let changed = locked(&self.bundles).changed();
        for (first, keys) in changed {
            let payload = encode_bundle(&keys);
            let sent = self
                .shared
                .upload(Kind::Bundle, &first, &payload, now(), 0)
                .await;
            if matches!(sent, Err(UploadError::Engine(_))) {
                locked(&self.bundles).not_sent(first);
            }
        }
    }
}
