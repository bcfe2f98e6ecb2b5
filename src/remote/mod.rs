//! The remote level: what the library, the command and the helper `oclcache-remote` share.
//!
//! The library never receives the bytes of an entry. It asks the helper for a key ([`protocol`]), waits for a bounded time, and then
//! looks the key up in the local store as always. The helper fills that store and sends what the outbox names.
//!
//! # What the helper uses
//!
//! - [`protocol`]: the messages.
//! - `socket`: `Socket::candidates(&settings, &directory)`: the paths of the socket, in the order in which both sides try them. The
//!   helper binds the first one that can be bound, `Listener::bind(&settings)`, and accepts only peers of its own user,
//!   `Listener::accept()`. `socket::ask(&settings, &request, wait)` is for the verbs that talk to a running helper.
//! - `settings`: `RemoteSettings::read()`, by the rules of all other settings.
//! - `outbox`: `Outbox::open(&settings)`: `$XDG_STATE_HOME/oclcache/outbox/<cache>/<key>`, a marker for each entry that this machine's
//!   driver built: `pending()` lists them, `sent(key)` moves a marker to the directory `sent` beside it, and `built_here(key, bytes)`
//!   is whether a marker of either kind has the SHA-256 of these bytes.
//! - `local`: `LocalStore::open(&settings)` opens the cache directory as the library does.
//!   - `has(&key)`: whether a look-up would find it.
//!   - `receive(&key, bytes, signer)`: checks the bytes exactly as `oclcache import` does, and stores them, marked with the signer and
//!     as received.
//!   - `outgoing(&key, content)`: the bytes to send, with compile time and creation time; or why the entry is not sent (not built
//!     here, includes by absolute path, environment in the key, ...).
//!   - `untrust(signer)`: deletes the entries that this signer signed, and returns how many.
//!   - `estimate(&key)`: the compile time that the local store knows of this key.
//! - `state`: the small file of the circuit breaker and of the helper's counters in the cache directory, which the library reads before
//!   it connects, and `oclcache stats` shows.

pub mod protocol;

pub use crate::key::ingredients::Key;
