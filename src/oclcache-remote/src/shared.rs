//! The store that machines share: names of objects, and what is verified before it is used.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::engine::{Leases, Outcome};
use crate::guarded::Guarded;
use crate::keys::{SecretKey, TrustedKeys};
use crate::object::{
    self, Asked, HEADER, Header, Kind, MAX_OBJECT_BYTES, Object, Refusal, SIGNED, Verifier,
    Versions,
};

/// How long it is remembered that the store lacks an object.
const MISSING: Duration = Duration::from_secs(30);
/// The keys that a bundle lists at most.
pub const MAX_BUNDLE_KEYS: usize = 512;
/// Objects that one round trip reads at most, so that an answer stays small.
const MAX_BATCH: usize = 64;
/// Keys that are remembered as missing or refused at most.
const MAX_REMEMBERED: usize = 100_000;

/// A key.
pub type KeyBytes = [u8; 32];

/// What became of a question for one object.
#[derive(Debug)]
pub enum Fetched {
    /// It is there, and verified.
    Found(Box<Object>),
    /// It is not there.
    Missing,
    /// It is there and must not be used.
    Refused(Refusal),
}

/// What became of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uploaded {
    /// It was written.
    Written,
    /// An object of a trusted signer was there already.
    Present,
}

/// What the helper counts.
#[derive(Default, Debug)]
pub struct Counters {
    /// Entries that were fetched.
    pub hits: AtomicU64,
    /// Entries that the store lacked.
    pub misses: AtomicU64,
    /// Objects that were refused.
    pub refused: AtomicU64,
    /// Failed operations.
    pub errors: AtomicU64,
    /// Objects that were written.
    pub uploads: AtomicU64,
    /// Entries that are never sent.
    pub withheld: AtomicU64,
    /// Bytes of objects that were read.
    pub bytes_in: AtomicU64,
    /// Bytes of objects that were written.
    pub bytes_out: AtomicU64,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// The store, with whom this machine trusts and the key by which it signs.
pub struct SharedStore {
    /// The engine.
    pub guarded: Guarded,
    /// Whom this machine trusts.
    pub trusted: TrustedKeys,
    /// Signs what is uploaded. None: nothing is uploaded.
    pub key: Option<SecretKey>,
    /// What is counted.
    pub counters: Counters,
    versions: Versions,
    prefix: String,
    missing: Mutex<HashMap<String, Instant>>,
    /// Names of objects that must not be used: an upload replaces them.
    refused: Mutex<HashSet<String>>,
    /// The last refusal, for people.
    last_refusal: Mutex<Option<String>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Now, in seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The digits of a key.
pub fn hex(key: &KeyBytes) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key of these digits.
fn parse_hex(digits: &str) -> Option<KeyBytes> {
    let byte = |index: usize| u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
    bytes?.try_into().ok()
}

impl SharedStore {
    /// A store. `prefix` has no slash at either end.
    pub fn new(
        guarded: Guarded,
        trusted: TrustedKeys,
        key: Option<SecretKey>,
        versions: Versions,
        prefix: &str,
    ) -> SharedStore {
        let format = format!("o1-k{}-e{}", versions.key, versions.entry);
        let parts = [prefix, format.as_str()];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        SharedStore {
            guarded,
            trusted,
            key,
            counters: Counters::default(),
            versions,
            prefix: parts.collect::<Vec<_>>().join("/"),
            missing: Mutex::default(),
            refused: Mutex::default(),
            last_refusal: Mutex::default(),
        }
    }

    /// The name of an object.
    pub fn name(&self, kind: Kind, key: &KeyBytes) -> String {
        self.name_of(kind.letter(), key)
    }

    /// The name of the lease for a key.
    pub fn lease_name(&self, key: &KeyBytes) -> String {
        self.name_of('l', key)
    }

    fn name_of(&self, letter: char, key: &KeyBytes) -> String {
        let digits = hex(key);
        format!("{}/{letter}/{}/{digits}", self.prefix, &digits[..2])
    }

    /// What the names of all objects begin with.
    pub fn root(&self) -> String {
        format!("{}/", self.prefix)
    }

    /// The kind and key in the name of an object. None: no object of ours has this name.
    pub fn parse_name(&self, name: &str) -> Option<(Kind, KeyBytes)> {
        let rest = name.strip_prefix(&self.prefix)?.strip_prefix('/')?;
        let mut parts = rest.split('/');
        let kind = Kind::from_byte(*parts.next()?.as_bytes().first()?)?;
        let key = parse_hex(parts.next_back()?)?;
        (self.name(kind, &key) == name).then_some((kind, key))
    }

    /// Whether the objects of these names begin as objects do; None for those that this user may not read. Only headers are read.
    ///
    /// # Errors
    /// The engine's, but not that some may not be read.
    pub async fn are_objects(&self, names: &[String]) -> Outcome<Vec<Option<bool>>> {
        let engine = self.guarded.engine();
        let read = async |names: &[String]| {
            let heads = engine.read(names, HEADER as u64);
            self.guarded.run_if_allowed(heads).await
        };
        let mut all = Vec::with_capacity(names.len());
        for batch in names.chunks(MAX_BATCH) {
            if let Some(heads) = read(batch).await? {
                all.extend(heads);
                continue;
            }
            for name in batch {
                let head = read(std::slice::from_ref(name)).await?;
                all.push(head.into_iter().flatten().next().flatten());
            }
        }
        let is_object = |head: Option<Vec<u8>>| Some(object::is_object(&head?));
        Ok(all.into_iter().map(is_object).collect())
    }

    /// The last refusal, for people.
    pub fn last_refusal(&self) -> Option<String> {
        locked(&self.last_refusal).clone()
    }

    /// Whether the store lacked an object a moment ago.
    pub fn was_missing(&self, kind: Kind, key: &KeyBytes) -> bool {
        let mut missing = locked(&self.missing);
        let name = self.name(kind, key);
        match missing.get(&name) {
            Some(when) if when.elapsed() < MISSING => true,
            Some(_) => {
                missing.remove(&name);
                false
            }
            None => false,
        }
    }

    fn note_missing(&self, name: &str) {
        let mut missing = locked(&self.missing);
        if missing.len() >= MAX_REMEMBERED {
            missing.clear();
        }
        missing.insert(name.to_owned(), Instant::now());
    }

    /// Reads and verifies objects, in few round trips.
    ///
    /// # Errors
    /// The engine's.
    pub async fn fetch(&self, wanted: &[(Kind, KeyBytes)]) -> Outcome<Vec<Fetched>> {
        let read = self.read(wanted).await?;
        let verified = |((kind, key), bytes): (&(Kind, KeyBytes), Option<Vec<u8>>)| {
            self.verified(*kind, key, bytes)
        };
        Ok(wanted.iter().zip(read).map(verified).collect())
    }

    /// Reads objects, in few round trips. Nothing of them may be used before it was verified.
    ///
    /// # Errors
    /// The engine's.
    pub async fn read(&self, wanted: &[(Kind, KeyBytes)]) -> Outcome<Vec<Option<Vec<u8>>>> {
        let mut all = Vec::with_capacity(wanted.len());
        for batch in wanted.chunks(MAX_BATCH) {
            let names = batch.iter().map(|(kind, key)| self.name(*kind, key));
            let names: Vec<String> = names.collect();
            let found = self.guarded.read(&names, MAX_OBJECT_BYTES).await;
            all.extend(found.inspect_err(|_| Counters::add(&self.counters.errors, 1))?);
        }
        Ok(all)
    }

    /// Takes the lease of an entry unless somebody holds it, and reads and verifies the entry, in one round trip. Returns whether
    /// the lease was taken.
    ///
    /// # Errors
    /// The engine's.
    pub async fn acquire(
        &self,
        leases: &dyn Leases,
        key: &KeyBytes,
        token: &str,
        lifetime: Duration,
    ) -> Outcome<(bool, Fetched)> {
        let (lease, name) = (self.lease_name(key), self.name(Kind::Entry, key));
        let acquired = leases.acquire(&lease, token, lifetime, &name, MAX_OBJECT_BYTES);
        let acquired = self.guarded.run(acquired).await;
        let acquired = acquired.inspect_err(|_| Counters::add(&self.counters.errors, 1))?;
        let entry = match acquired.object {
            None => Fetched::Missing,
            bytes => {
                locked(&self.missing).remove(&name);
                self.verified(Kind::Entry, key, bytes)
            }
        };
        Ok((acquired.is_ours, entry))
    }

    fn asked(&self, kind: Kind, key: &KeyBytes) -> Asked {
        Asked {
            kind,
            key: *key,
            versions: self.versions,
        }
    }

    /// What the bytes of an object are; None: the store has none.
    pub fn verified(&self, kind: Kind, key: &KeyBytes, bytes: Option<Vec<u8>>) -> Fetched {
        let name = self.name(kind, key);
        let Some(bytes) = bytes else {
            self.note_missing(&name);
            return Fetched::Missing;
        };
        Counters::add(&self.counters.bytes_in, bytes.len() as u64);
        match object::open(&bytes, &self.asked(kind, key), &self.trusted) {
            Ok(object) => {
                locked(&self.refused).remove(&name);
                Fetched::Found(Box::new(object))
            }
            Err(refusal) => {
                self.note_refused(&name, &refusal.to_string());
                Fetched::Refused(refusal)
            }
        }
    }

    /// Remembers that an object must not be used, so that an upload replaces it.
    pub fn note_refused(&self, name: &str, why: &str) {
        Counters::add(&self.counters.refused, 1);
        let mut refused = locked(&self.refused);
        if refused.len() >= MAX_REMEMBERED {
            refused.clear();
        }
        refused.insert(name.to_owned());
        *locked(&self.last_refusal) = Some(format!("`{name}`: {why}"));
    }

    /// Which of these objects are there and of trusted signers. Only headers are read.
    ///
    /// # Errors
    /// The engine's.
    pub async fn present(&self, kind: Kind, keys: &[KeyBytes]) -> Outcome<Vec<bool>> {
        let mut all = Vec::with_capacity(keys.len());
        for batch in keys.chunks(MAX_BATCH) {
            let names: Vec<String> = batch.iter().map(|key| self.name(kind, key)).collect();
            let found = self.guarded.read(&names, HEADER as u64).await?;
            for ((key, name), bytes) in batch.iter().zip(&names).zip(found) {
                let is_good =
                    bytes.is_some_and(|bytes| self.is_trusted_head(&self.asked(kind, key), &bytes));
                all.push(is_good && !locked(&self.refused).contains(name));
            }
        }
        Ok(all)
    }

    fn is_trusted_head(&self, asked: &Asked, bytes: &[u8]) -> bool {
        let Ok((header, signature)) = Header::parse(bytes) else {
            return false;
        };
        (header.kind, header.key, header.versions) == (asked.kind, asked.key, asked.versions)
            && self
                .trusted
                .verify(header.signer, &bytes[..SIGNED], &signature)
                == Some(true)
    }

    /// Whether this machine may write objects.
    pub fn can_write(&self) -> bool {
        self.key.is_some()
    }

    /// Signs and writes an object, verified by the same code that others will use.
    ///
    /// # Errors
    /// The engine's, or why it cannot be signed.
    pub async fn upload(
        &self,
        kind: Kind,
        key: &KeyBytes,
        payload: &[u8],
        created: u64,
        compile_ns: u64,
    ) -> Result<Uploaded, UploadError> {
        let Some(signer) = &self.key else {
            return Err(UploadError::Unsigned("this machine has no key".to_owned()));
        };
        let asked = self.asked(kind, key);
        let bytes = object::seal(&asked, payload, created, compile_ns, signer);
        let bytes = bytes.map_err(UploadError::Unsigned)?;
        let mut own = TrustedKeys::default();
        own.add("", signer.public())
            .map_err(UploadError::Unsigned)?;
        if let Err(refusal) = object::open(&bytes, &asked, &own) {
            return Err(UploadError::Unsigned(refusal.to_string()));
        }
        let name = self.name(kind, key);
        let length = bytes.len() as u64;
        let written = self.guarded.write(&name, bytes).await;
        written.map_err(|error| {
            Counters::add(&self.counters.errors, 1);
            UploadError::Engine(error)
        })?;
        locked(&self.refused).remove(&name);
        locked(&self.missing).remove(&name);
        Counters::add(&self.counters.bytes_out, length);
        if kind != Kind::Bundle {
            Counters::add(&self.counters.uploads, 1);
        }
        Ok(Uploaded::Written)
    }
}

/// Why an object was not uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadError {
    /// It cannot be an object.
    Unsigned(String),
    /// The store did not take it.
    Engine(crate::engine::EngineError),
}

impl std::fmt::Display for UploadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UploadError::Unsigned(why) => f.write_str(why),
            UploadError::Engine(error) => error.fmt(f),
        }
    }
}

/// The payload of a bundle: keys, one after the other.
pub fn encode_bundle(keys: &[KeyBytes]) -> Vec<u8> {
    keys.iter()
        .take(MAX_BUNDLE_KEYS)
        .flatten()
        .copied()
        .collect()
}

/// The keys of a bundle.
pub fn decode_bundle(payload: &[u8]) -> Vec<KeyBytes> {
    let (keys, _) = payload.as_chunks::<32>();
    keys.iter().take(MAX_BUNDLE_KEYS).copied().collect()
}
