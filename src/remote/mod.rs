//! The remote level: what the library, the command and the helper `oclcache-remote` share.
//!
//! The library never receives the bytes of an entry. It asks the helper for a key ([`protocol`]), waits for a bounded time, and then
//! looks the key up in the local store as always. The helper fills that store and sends what the outbox names.
//!
//! # What the helper uses
//!
//! - [`settings::RemoteSettings::read`]: the settings, by the rules of all others.
//! - [`local::LocalStore::open`]: the cache directory, opened and checked as the library does. It stores what was received
//!   (`receive`), gives what is sent (`outgoing`), removes what a signer signed (`untrust`), listens (`listen`), asks a running helper
//!   (`ask`), and writes the files by which the helper tells others of its state (`set_breaker`, `change_state`).
//! - [`outbox::Outbox`], by `LocalStore::outbox`: which entries this machine's driver built, and which are to be sent (`pending`).
//! - [`protocol`], and [`socket`]: the messages, and how packets of them are sent and received.
//!
//! # A helper in short
//!
//! ```text
//! settings = RemoteSettings::read()              no url: end
//! store    = LocalStore::open(&settings)         Err(why): say why, end
//! listener = store.listen()                      Ok(None): another helper serves, end
//! loop: when the listener is readable: peer = listener.accept()
//!       when the peer is readable:     socket::receive(peer, packet), Request::decode(packet)
//!       Get:  fetch, verify the signature, store.receive(key, bytes, signer, ..), then socket::send(peer, Answer::Hit.encode())
//!       Put:  2 s after the last one:  for key in store.pending(): store.outgoing(key, settings.content), sign, send,
//!             outbox.sent(key, marker)
//! ```

mod budget;
pub(crate) mod client;
pub mod local;
pub mod outbox;
mod outbox_handle;
pub mod protocol;
pub mod settings;
pub mod socket;
pub(crate) mod start;
pub mod state;

pub use crate::first_process::{NO_INIT, is_adopted_by_init, waits_for_orphans};
pub use crate::key::ingredients::Key;
pub use crate::priority::leave_raised;
