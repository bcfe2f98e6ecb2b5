//! The user's own store and the outbox, as the server uses them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oclcache::remote::Key;
use oclcache::remote::local::{self, LocalStore, NotReceived, NotSent};
use oclcache::remote::outbox::Marker;
use oclcache::remote::settings::{RemoteContent, RemoteSettings};
use oclcache::remote::socket::Listener;
use oclcache::remote::state::OtherVersion;

use crate::guarded::BreakerFile;
use crate::keys::TrustedKeys;
use crate::object::{Object, SignerId, Versions};
use crate::shared::KeyBytes;
use crate::signers;

/// What prefetching may bring in one day, as a divisor of the cache's limit.
const PREFETCH_SHARE: u64 = 10;
/// The same if the cache has no limit, in bytes.
const PREFETCH_BYTES: u64 = 512 << 20;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// The local store.
pub struct Local {
    store: LocalStore,
    content: RemoteContent,
    bakes: bool,
    prefetch_limit: u64,
    /// What was prefetched today, in bytes, and the day. A new helper begins anew.
    prefetched: AtomicU64,
    day: AtomicU64,
}

/// What became of an entry that was received.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// It is stored.
    Stored,
    /// There was one.
    Present,
    /// It must not be used.
    Refused(String),
    /// It could not be stored.
    Failed(String),
}

/// An entry of the outbox.
#[derive(Debug)]
pub enum Outgoing {
    /// It is to be sent.
    Entry(local::OutgoingEntry),
    /// It is never sent.
    Never(NotSent),
    /// It is sent after it was baked.
    NotYet,
    /// It stays in the outbox, since it cannot be read now, for this reason.
    Unreadable(String),
}

/// What has happened since the state was written.
#[derive(Default)]
pub struct StateChange {
    /// What is wrong, for people; empty: nothing.
    pub trouble: String,
    /// Objects that were refused.
    pub refused: u64,
    /// Failed operations.
    pub errors: u64,
    /// Entries that somebody asked for.
    pub received: u64,
    /// Entries that nobody has asked for yet.
    pub prefetched: u64,
    /// Entries that were sent.
    pub sent: u64,
    /// Entries that are never sent.
    pub withheld: u64,
    /// Why the last of them is not.
    pub withheld_why: Option<String>,
    /// Bytes that came.
    pub bytes_in: u64,
    /// Bytes that went.
    pub bytes_out: u64,
    /// A program of another version.
    pub other_version: Option<OtherVersion>,
}

impl StateChange {
    /// Adds what has happened since.
    pub fn add(&mut self, since: StateChange) {
        *self = StateChange {
            trouble: since.trouble,
            refused: self.refused + since.refused,
            errors: self.errors + since.errors,
            received: self.received + since.received,
            prefetched: self.prefetched + since.prefetched,
            sent: self.sent + since.sent,
            withheld: self.withheld + since.withheld,
            withheld_why: since.withheld_why.or(self.withheld_why.take()),
            bytes_in: self.bytes_in + since.bytes_in,
            bytes_out: self.bytes_out + since.bytes_out,
            other_version: since.other_version.or(self.other_version),
        };
    }
}

impl Local {
    /// Opens the cache directory.
    ///
    /// # Errors
    /// For people: why it cannot be used.
    pub fn open(settings: &RemoteSettings) -> Result<Local, String> {
        Ok(Local {
            store: LocalStore::open(settings)?,
            content: settings.content,
            bakes: settings.bakes,
            prefetch_limit: settings
                .max_size
                .map_or(PREFETCH_BYTES, |size| size / PREFETCH_SHARE),
            prefetched: AtomicU64::new(0),
            day: AtomicU64::new(0),
        })
    }

    /// The versions of keys and entries that this program knows.
    pub fn versions() -> Versions {
        Versions {
            key: local::KEY_VERSION,
            entry: local::ENTRY_VERSION,
        }
    }

    /// Whether recipes are stored.
    pub fn takes_recipes(&self) -> bool {
        self.bakes
    }

    /// The store itself.
    pub fn store(&self) -> &LocalStore {
        &self.store
    }

    /// Listens for clients. None if another helper does.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self) -> std::io::Result<Option<Listener>> {
        self.store.listen()
    }

    /// Whether a look-up would find an entry.
    pub fn has(&self, key: &KeyBytes) -> bool {
        self.store.has(&Key(*key))
    }

    /// Checks an object that was verified with these keys as an import does, and stores it if its signer is still trusted.
    pub fn receive(
        &self,
        key: &KeyBytes,
        object: Object,
        verified_with: &TrustedKeys,
        is_prefetched: bool,
    ) -> Received {
        let signer = object.header.signer;
        if let Err(received) = check_trust(signer, verified_with) {
            return received;
        }
        let (key, payload) = (Key(*key), object.payload);
        let (length, id) = (payload.len() as u64, u64::from_le_bytes(signer.0));
        let received = self
            .store
            .receive(&key, payload, id, is_prefetched, self.bakes);
        match received {
            Ok(local::Received::Stored(_)) => {
                // `untrust` first revokes the key and then deletes its entries. So if the key was revoked meanwhile, either the
                // deletion finds this entry, or this check finds the key revoked.
                if let Err(received) = check_trust(signer, verified_with) {
                    let removed = self.store.remove_signed(&key, id);
                    return removed.map_or_else(Received::Failed, |_| received);
                }
                if is_prefetched {
                    self.prefetched.fetch_add(length, Ordering::Relaxed);
                }
                Received::Stored
            }
            Ok(local::Received::Present) => Received::Present,
            Err(NotReceived::Refused(why)) => Received::Refused(why),
            Err(NotReceived::Failed(why)) => Received::Failed(why),
        }
    }

    /// Whether more may be prefetched today.
    pub fn has_room_for_prefetch(&self) -> bool {
        let day = crate::guarded::now_ms() / DAY_MS;
        if self.day.swap(day, Ordering::Relaxed) != day {
            self.prefetched.store(0, Ordering::Relaxed);
        }
        self.prefetched.load(Ordering::Relaxed) < self.prefetch_limit
    }

    /// The keys in the outbox.
    ///
    /// # Errors
    /// For people: the outbox cannot be used.
    pub fn pending(&self) -> Result<Vec<KeyBytes>, String> {
        let keys = self.store.pending()?.into_iter();
        Ok(keys.map(|key| key.0).collect())
    }

    /// How many there are; 0 if the outbox cannot be used.
    pub fn pending_count(&self) -> u32 {
        let count = self.pending().map_or(0, |keys| keys.len());
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The same for people, or what is wrong with the outbox.
    pub fn pending_text(&self) -> String {
        self.pending()
            .map_or_else(|why| why, |keys| keys.len().to_string())
    }

    /// The marker of an entry, to be read before the entry itself.
    ///
    /// # Errors
    /// For people: it cannot be read now.
    pub fn marker(&self, key: &KeyBytes) -> Result<Option<Marker>, String> {
        let marker = self.store.outbox()?.marker(&Key(*key));
        marker.map_err(|error| error.to_string())
    }

    /// Notes that the entry of a marker was sent, or need not be. A marker that was written meanwhile stays, and a damaged one is removed.
    pub fn sent(&self, key: &KeyBytes, marker: Option<&Marker>) {
        if let Ok(outbox) = self.store.outbox()
            && let Err(error) = outbox.sent(&Key(*key), marker)
        {
            self.log(&error.to_string());
        }
    }

    /// Puts all entries that this machine's driver built, and that are still there, into the outbox. Returns why one of them could not be
    /// put there, if there is such a one.
    ///
    /// # Errors
    /// For people: the outbox cannot be used.
    pub fn send_all_again(&self) -> Result<Option<String>, String> {
        let keys = self
            .store
            .outbox()?
            .all()
            .map_err(|error| error.to_string())?;
        let again = keys.iter().map(|key| self.store.send_again(key));
        Ok(again.filter_map(Result::err).last())
    }

    /// Counts the entries that are never sent from none: all of them are looked at again.
    ///
    /// # Errors
    /// For people: the state cannot be written.
    pub fn forget_withheld(&self) -> Result<(), String> {
        self.store.change_state(|state| {
            state.withheld = 0;
            state.withheld_why.clear();
        })
    }

    /// An entry of the outbox in the form in which it is sent.
    pub fn outgoing(&self, key: &KeyBytes) -> Outgoing {
        match self.store.outgoing(&Key(*key), self.content) {
            Ok(entry) => Outgoing::Entry(entry),
            // It is baked later, and then it has a new marker.
            Err(NotSent::Recipe) => Outgoing::NotYet,
            Err(why @ NotSent::Unreadable(_)) => Outgoing::Unreadable(why.to_string()),
            Err(why) => Outgoing::Never(why),
        }
    }

    /// Adds to the state that others read. Returns whether it could be written.
    #[must_use]
    pub fn add_state(&self, change: &StateChange) -> bool {
        let changed = self.store.change_state(|new| {
            new.trouble.clone_from(&change.trouble);
            new.refused += change.refused;
            new.errors += change.errors;
            new.received += change.received;
            new.prefetched += change.prefetched;
            new.sent += change.sent;
            new.withheld += change.withheld;
            if let Some(why) = &change.withheld_why {
                new.withheld_why.clone_from(why);
            }
            new.bytes_in += change.bytes_in;
            new.bytes_out += change.bytes_out;
            new.other_version = change.other_version.or(new.other_version);
        });
        changed.is_ok()
    }

    /// One line for people. The helper's standard error is closed if the library has started it.
    pub fn log(&self, text: &str) {
        crate::say(text);
    }
}

/// Checks again that the signer of a received object is trusted, and gives the outcome of receiving it if not.
fn check_trust(signer: SignerId, verified_with: &TrustedKeys) -> Result<(), Received> {
    match signers::trusted_now() {
        Ok(now) if now.agrees_with(verified_with, signer) => Ok(()),
        Ok(_) => Err(Received::Refused(format!("`{signer}` is trusted no more"))),
        Err(why) => Err(Received::Failed(why)),
    }
}

/// The file of the breaker beside the socket.
pub struct LocalBreaker(LocalStore);

impl LocalBreaker {
    /// Opens the cache directory for it.
    ///
    /// # Errors
    /// For people: why it cannot be used.
    pub fn open(settings: &RemoteSettings) -> Result<LocalBreaker, String> {
        LocalStore::open(settings).map(LocalBreaker)
    }
}

impl BreakerFile for LocalBreaker {
    fn load(&self) -> Option<Duration> {
        self.0.breaker()
    }

    fn store(&self, open: Option<(Duration, &str)>) {
        let _ = self.0.set_breaker(open);
    }
}
