//! `oclcache-remote`: shares the cache between machines.
//!
//! The library asks this helper over a Unix socket for an entry that the local store lacks; see `oclcache::remote`. The helper fetches
//! it from a store that several machines share, verifies it, and fills the local store. It sends what this machine's driver built.
//!
//! - `engine`: Redis, S3, WebDAV and directories behind one trait.
//! - `guarded`: an engine with deadlines and a circuit breaker.
//! - `object`: one object, its signature, and what is checked before it is used.
//! - `keys`, `credentials`: the files of secrets, and keys that are trusted.
//! - `signers`: whom the machine trusts, by its settings and the list of revoked keys.
//! - `shared`: names, batches and what is remembered of the store.
//! - `local`: the user's own store and the outbox.
//! - `session`: from the settings to all of these.
//! - `server`: the helper.
//! - `invitation`, `cli`: the verbs.
//!
//! Known gaps:
//!
//! - A check of what an S3 or WebDAV store already has reads the beginning of whole objects and ends the connection.
//! - The bound on what is fetched ahead counts from the start of the helper, not of the day.
//! - `gc` does not delete objects of older versions.
//! - Only Redis coordinates builds of several machines; waiting machines look at the lease up to 5 times a second.

pub mod cli;
pub mod credentials;
pub mod engine;
pub mod guarded;
pub mod invitation;
pub mod keys;
pub mod local;
pub mod object;
pub mod server;
pub mod session;
pub mod shared;
pub mod signers;

use std::io::Write;

/// Chooses the provider of cryptography for TLS, before anything connects.
pub fn choose_cryptography() {
    // An error says that it was chosen before.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// One line on standard error. Nobody may listen there.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "oclcache-remote: {text}");
}
