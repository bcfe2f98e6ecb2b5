//! The local store as the helper uses it.

use std::time::Duration;

use super::outbox::{Marker, Outbox};
use super::outbox_handle::OutboxHandle;
use super::protocol::{Answer, Request};
use super::settings::{RemoteContent, RemoteSettings};
use super::socket::{self, Listener};
use super::state::{self, HelperState};
use crate::cache::private_texts::{BuildLogs, without_secrets};
use crate::config::Config;
use crate::key::ingredients::{self, Ingredient, Key, Kind, sha256};
use crate::store::entry::{self, Entry, EntryContent, Meta};
use crate::store::foreign::{self, ForeignOrigin};
use crate::store::tier::{ReadError, Tier};
use crate::store::{Limits, Store};

/// The version of keys: machines with other versions have other keys.
pub const KEY_VERSION: u32 = ingredients::VERSION;
/// The version of the format of entries.
pub const ENTRY_VERSION: u32 = entry::VERSION;
/// Larger entries are neither sent nor received, in bytes.
pub const MAX_ENTRY_BYTES: usize = 16 << 20;

/// The cache directory, its socket, and the outbox.
#[derive(Debug)]
pub struct LocalStore {
    store: Store,
    /// None: nothing was built for it yet. The error is for people.
    outbox: Result<Option<OutboxHandle>, String>,
    config: Config,
    /// The name of the socket and of the files beside it.
    name: String,
}

/// An entry in the form in which it is sent.
#[derive(Clone, Debug)]
pub struct OutgoingEntry {
    /// The bytes, which [`LocalStore::receive`] takes elsewhere.
    pub bytes: Vec<u8>,
    /// The marker by which it was found, for [`Outbox::sent`].
    pub marker: Marker,
    /// How long the driver took to build it, in nanoseconds.
    pub compile_ns: u64,
    /// When it was built, in seconds since 1970.
    pub created: u64,
    /// It is a recipe that nobody has baked yet.
    pub is_pending: bool,
}

/// Why an entry is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// There is no such entry.
    Absent,
    /// It, or its marker, cannot be read now, for this reason.
    Unreadable(String),
    /// This machine's driver did not build it, or it was changed since.
    NotBuiltHere,
    /// It fits only programs that name one include directory, or only this machine.
    OfThisMachine(&'static str),
    /// It would disclose something private, and `remote_content` is not `all`.
    Private(&'static str),
    /// It is a recipe, and those are only sent with `remote_content = all`.
    Recipe,
    /// It is larger than [`MAX_ENTRY_BYTES`].
    TooLarge,
}

impl std::fmt::Display for NotSent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NotSent::Unreadable(why) => return write!(f, "it cannot be read now: {why}"),
            NotSent::Absent => "the cache has no such entry",
            NotSent::NotBuiltHere => "the driver of this machine did not build it",
            NotSent::OfThisMachine(why) | NotSent::Private(why) => why,
            NotSent::Recipe => "recipes, which are only sent with `remote_content = all`",
            NotSent::TooLarge => "entries larger than 16 MiB",
        })
    }
}

/// How [`LocalStore::receive`] stored an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It is stored, and this many others were removed to make room.
    Stored(u64),
    /// There was an entry of this key already.
    Present,
}

/// Why [`LocalStore::receive`] stored nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReceived {
    /// The bytes are not a whole entry of this key, or its recipe is not wanted.
    Refused(String),
    /// There is no room, or the directory cannot be written.
    Failed(String),
}

impl LocalStore {
    /// Opens the cache directory as the library does, and makes it if it is missing.
    ///
    /// # Errors
    /// For people: why nothing can be stored there.
    pub fn open(settings: &RemoteSettings) -> Result<LocalStore, String> {
        if let Some(why) = settings.refusal() {
            return Err(why);
        }
        let limits = Limits::of(&settings.config);
        let store = Store::open(&settings.cache_directory()?, limits);
        let store = store.map_err(|error| error.to_string())?;
        let outbox = Outbox::open(&settings.config).map(Some);
        Ok(LocalStore::of(settings, store, outbox))
    }

    /// The same store and outbox, opened for reading only; None if there is no store yet.
    ///
    /// # Errors
    /// For people: there is no place for one, or it cannot be read.
    pub(crate) fn open_existing(settings: &RemoteSettings) -> Result<Option<LocalStore>, String> {
        let store = Store::open_existing(&settings.cache_directory()?);
        let store = store.map_err(|error| error.to_string())?;
        let outbox = Outbox::open_existing(&settings.config);
        Ok(store.map(|store| LocalStore::of(settings, store, outbox)))
    }

    fn of(
        settings: &RemoteSettings,
        store: Store,
        outbox: Result<Option<Outbox>, String>,
    ) -> LocalStore {
        LocalStore {
            name: socket::name(&settings.config, store.root()),
            outbox: outbox.map(|outbox| outbox.map(OutboxHandle::new)),
            config: settings.config.clone(),
            store,
        }
    }

    /// The outbox, as it is now.
    ///
    /// # Errors
    /// For people: there is none, so nothing is sent.
    pub fn outbox(&self) -> Result<&Outbox, String> {
        let outbox = self.outbox_if_any()?;
        outbox.ok_or_else(|| "there is no outbox yet".to_owned())
    }

    /// The same. None: there is none yet, or it was removed.
    fn outbox_if_any(&self) -> Result<Option<&Outbox>, String> {
        let outbox = match &self.outbox {
            Ok(Some(outbox)) => outbox.get(|| Outbox::open_again(&self.config)),
            Ok(None) => Ok(None),
            Err(why) => Err(why.clone()),
        };
        outbox.map_err(|why| format!("the outbox cannot be used: {why}"))
    }

    /// The keys of entries that are to be sent, in any order.
    ///
    /// # Errors
    /// For people: the outbox cannot be used.
    pub fn pending(&self) -> Result<Vec<Key>, String> {
        let pending = self.outbox_if_any()?.map(Outbox::pending).transpose();
        let pending = pending.map_err(|error| error.to_string())?;
        Ok(pending.unwrap_or_default())
    }

    /// Whether the cache directory was removed, so that the helper must end or open it again.
    pub fn is_lost(&self) -> bool {
        self.store.is_lost()
    }

    /// Whether a look-up would find a whole entry with binaries.
    pub fn has(&self, key: &Key) -> bool {
        matches!(self.store.read(key), Ok(Some((entry, _))) if !entry.is_pending())
    }

    /// How long the driver took to build this key, if the local store knows it, in nanoseconds.
    pub fn compile_ns(&self, key: &Key) -> Option<u64> {
        Some(self.store.read_meta(key)?.compile_ns)
    }

    /// The keys of all entries, ascending.
    ///
    /// # Errors
    /// For people: they cannot be listed.
    pub fn keys(&self) -> Result<Vec<Key>, String> {
        self.store.keys().map_err(|error| error.to_string())
    }

    /// Checks the bytes of an entry exactly as `oclcache import` does, and stores it, marked with its signer. `takes_recipes`: an
    /// entry without binaries is stored as well.
    ///
    /// The signature was verified before.
    ///
    /// # Errors
    /// Nothing is stored.
    pub fn receive(
        &self,
        key: &Key,
        bytes: Vec<u8>,
        signer: u64,
        is_prefetched: bool,
        takes_recipes: bool,
    ) -> Result<Received, NotReceived> {
        let refused = |why: &str| Err(NotReceived::Refused(why.to_owned()));
        if bytes.len() > MAX_ENTRY_BYTES {
            return refused("it is larger than 16 MiB");
        }
        let entry = foreign::verified(bytes, key).map_err(NotReceived::Refused)?;
        if entry.meta.include_dirs.is_some() {
            return refused("it fits only programs that name one include directory");
        }
        if entry.is_pending() && !takes_recipes {
            return refused("it is a recipe, and `remote_bake` is off");
        }
        if entry.is_pending() && !is_self_contained(&entry) {
            return refused("it is a recipe that names files or variables of a machine");
        }
        match self.store.read(key) {
            Ok(Some((present, _))) if !present.is_pending() || entry.is_pending() => {
                return Ok(Received::Present);
            }
            Err(ReadError::Unreadable(error)) => {
                return Err(NotReceived::Failed(error.to_string()));
            }
            Ok(_) | Err(ReadError::Bad(_)) => {}
        }
        let origin = ForeignOrigin {
            signer: Some(signer),
            library: None,
            is_prefetched,
        };
        let stored = self.store.publish_foreign(key, &entry, &origin);
        stored
            .map(Received::Stored)
            .map_err(|error| NotReceived::Failed(error.to_string()))
    }

    /// The entry of a key in the form in which it is sent.
    ///
    /// # Errors
    /// Why it is not sent.
    pub fn outgoing(&self, key: &Key, content: RemoteContent) -> Result<OutgoingEntry, NotSent> {
        let outbox = self.outbox_if_any().map_err(NotSent::Unreadable)?;
        let outbox = outbox.ok_or(NotSent::NotBuiltHere)?;
        let read = || match self.store.read(key) {
            Ok(Some((entry, _))) => Ok(entry),
            Ok(None) | Err(ReadError::Bad(_)) => Err(NotSent::Absent),
            Err(ReadError::Unreadable(error)) => Err(NotSent::Unreadable(error.to_string())),
        };
        let marker_of = |entry: &Entry| {
            let marker = outbox.marker_of(key, entry.bytes());
            marker.map_err(|error| NotSent::Unreadable(error.to_string()))
        };
        let (entry, marker) = settled(read, Entry::bytes, marker_of)?;
        if entry.meta.imported || entry.meta.signer().is_some() {
            return Err(NotSent::NotBuiltHere);
        }
        let bytes = encoded(key, &entry, content)?;
        if bytes.len() > MAX_ENTRY_BYTES {
            return Err(NotSent::TooLarge);
        }
        Ok(OutgoingEntry {
            bytes,
            marker,
            compile_ns: entry.meta.compile_ns,
            created: entry.meta.created,
            is_pending: entry.is_pending(),
        })
    }

    /// Puts the entry of a key into the outbox. Returns whether it is there, has binaries, and this machine's driver built it.
    ///
    /// # Errors
    /// For people: the outbox cannot be used, or the entry cannot be read now.
    pub fn send_again(&self, key: &Key) -> Result<bool, String> {
        let outbox = self.outbox()?;
        let entry = match self.store.read(key) {
            Ok(Some((entry, _))) => entry,
            Ok(None) | Err(ReadError::Bad(_)) => return Ok(false),
            Err(ReadError::Unreadable(error)) => {
                return Err(NotSent::Unreadable(error.to_string()).to_string());
            }
        };
        let again = || outbox.send_again(key, entry.bytes());
        let is_whole = !entry.is_pending();
        is_whole
            .then(again)
            .unwrap_or(Ok(false))
            .map_err(|error| error.to_string())
    }

    /// Removes all entries of a signer. Returns how many.
    ///
    /// # Errors
    /// For people: entries cannot be listed or removed.
    pub fn untrust(&self, signer: u64) -> Result<u64, String> {
        let mut removed = 0;
        for key in self.keys()? {
            removed += u64::from(self.remove_signed(&key, signer)?);
        }
        Ok(removed)
    }

    /// Removes the entry of a key if this signer has signed it. Returns whether there was one.
    ///
    /// # Errors
    /// For people: it cannot be removed.
    pub fn remove_signed(&self, key: &Key, signer: u64) -> Result<bool, String> {
        let meta = self.store.read_meta(key);
        match meta.is_some_and(|meta| meta.signer() == Some(signer)) {
            true => self.store.remove(key).map_err(|error| error.to_string()),
            false => Ok(false),
        }
    }

    /// The signers of received entries, with the number of entries of each.
    ///
    /// # Errors
    /// For people: entries cannot be listed.
    pub fn signers(&self) -> Result<Vec<(u64, u64)>, String> {
        let mut counts = std::collections::BTreeMap::new();
        for key in self.keys()? {
            if let Some(signer) = self.store.read_meta(&key).and_then(|meta| meta.signer()) {
                *counts.entry(signer).or_insert(0) += 1;
            }
        }
        Ok(counts.into_iter().collect())
    }

    /// Listens for clients. None if another helper does.
    ///
    /// # Errors
    /// No socket can be made, neither in the cache directory nor in the user's directory for runtime files.
    pub fn listen(&self) -> std::io::Result<Option<Listener>> {
        let listener = Listener::bind(&self.name, self.store.root())?;
        if listener.is_some()
            && let Ok(place) = self.store.root().create(socket::DIRECTORY)
        {
            state::sweep(&place, &self.name);
        }
        Ok(listener)
    }

    /// Asks the helper that serves. None if none does, or it does not answer in time.
    pub fn ask(&self, request: &Request, wait: Duration) -> Option<Answer> {
        socket::ask(&self.name, self.store.root(), request, wait)
    }

    /// Says that the store is not to be asked for this time (at most [`state::MAX_OPEN`]), and why; None: it may be asked.
    ///
    /// # Errors
    /// For people: it cannot be written.
    pub fn set_breaker(&self, open: Option<(Duration, &str)>) -> Result<(), String> {
        let place = self.place()?;
        state::set_open(&place, &self.name, open).map_err(|error| error.to_string())
    }

    /// For how long the store is not to be asked; None: it may be asked.
    pub fn breaker(&self) -> Option<Duration> {
        let place = self.store.root().open_below(socket::DIRECTORY).ok()??;
        state::open_for(&place, &self.name)
    }

    /// The state that this helper or its forerunner has written.
    pub fn state(&self) -> HelperState {
        let place = self.store.root().open_below(socket::DIRECTORY);
        let read = |place| state::read(&place, &self.name);
        place.ok().flatten().and_then(read).unwrap_or_default()
    }

    /// Changes the state. Meanwhile no other process does.
    ///
    /// # Errors
    /// For people: it cannot be written.
    pub fn change_state(&self, change: impl Fn(&mut HelperState)) -> Result<(), String> {
        state::change(&self.place()?, &self.name, change).map_err(|error| error.to_string())
    }

    fn place(&self) -> Result<crate::store::directory::Directory, String> {
        let place = self.store.root().create(socket::DIRECTORY);
        place.map_err(|error| error.to_string())
    }
}

/// Reads an entry that this machine's driver built, and its marker. Facts may be added to it between the two looks at the entry and at
/// its marker, so one that has no marker is read again until it has not changed meanwhile.
fn settled<T, M>(
    read: impl Fn() -> Result<T, NotSent>,
    bytes: impl Fn(&T) -> &[u8],
    marker_of: impl Fn(&T) -> Result<Option<M>, NotSent>,
) -> Result<(T, M), NotSent> {
    let mut last = None;
    loop {
        let entry = read()?;
        if let Some(marker) = marker_of(&entry)? {
            return Ok((entry, marker));
        }
        let digest = sha256(bytes(&entry));
        if last.replace(digest) == Some(digest) {
            return Err(NotSent::NotBuiltHere);
        }
    }
}

/// Whether a recipe says all that is compiled. One that hides an absolute path in its source has another key when it is planned here,
/// so the baker refuses it before any driver reads the file.
fn is_self_contained(entry: &Entry) -> bool {
    let names_a_machine = |one: &Ingredient| match one.kind {
        Kind::Environment | Kind::WorkingDirectory => true,
        Kind::Include | Kind::Header => one.name.starts_with('/'),
        _ => false,
    };
    !entry.meta.ingredients.iter().any(names_a_machine)
}

/// The state that the helper of these settings has written.
pub(crate) fn helper_state(config: &Config, store: &Store) -> HelperState {
    let place = store.root().open_below(socket::DIRECTORY).ok().flatten();
    let name = socket::name(config, store.root());
    let state = place.and_then(|place| state::read(&place, &name));
    state.unwrap_or_default()
}

/// The bytes that are sent.
fn encoded(key: &Key, entry: &Entry, content: RemoteContent) -> Result<Vec<u8>, NotSent> {
    let meta = &entry.meta;
    if meta.include_dirs.is_some() {
        return Err(NotSent::OfThisMachine(
            "entries that fit only programs that name one include directory",
        ));
    }
    let (meta, recipe) = match content {
        RemoteContent::Binaries if entry.is_pending() => return Err(NotSent::Recipe),
        RemoteContent::Binaries => {
            let meta = without_secrets(entry, BuildLogs::Harmless);
            (meta.map_err(NotSent::Private)?, None)
        }
        RemoteContent::All => (meta.clone(), entry.recipe().ok()),
    };
    let content = EntryContent {
        meta: &Meta {
            // The name of the program is nobody else's business.
            executable: match content {
                RemoteContent::Binaries => String::new(),
                RemoteContent::All => meta.executable.clone(),
            },
            ..meta
        },
        recipe: recipe.as_ref(),
        binaries: entry.binaries().collect(),
    };
    let encoded = content.encode(key);
    encoded.map_err(|error| NotSent::Unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// What `settled` makes of an entry that is this at each look; the last one stays. Only this one is marked.
    fn found(looks: &[&'static [u8]], marked: &[u8]) -> Result<&'static [u8], NotSent> {
        let looks = RefCell::new(looks.iter().copied().rev().collect::<Vec<_>>());
        let read = || {
            let mut looks = looks.borrow_mut();
            match looks.len() {
                0 | 1 => looks.last().copied(),
                _ => looks.pop(),
            }
            .ok_or(NotSent::Absent)
        };
        let marker_of = |entry: &&'static [u8]| Ok((*entry == marked).then_some(()));
        settled(read, |entry| entry, marker_of).map(|(entry, ())| entry)
    }

    #[test]
    fn an_entry_that_changes_between_two_looks_is_read_again_and_a_foreign_one_is_not_sent() {
        assert_eq!(found(&[b"new"], b"new"), Ok(b"new".as_slice()));
        assert_eq!(found(&[b"old", b"new"], b"new"), Ok(b"new".as_slice()));
        assert_eq!(found(&[b"a", b"b", b"new"], b"new"), Ok(b"new".as_slice()));
        assert_eq!(found(&[b"foreign"], b"new"), Err(NotSent::NotBuiltHere));
        assert_eq!(found(&[], b"new"), Err(NotSent::Absent));
    }
}
