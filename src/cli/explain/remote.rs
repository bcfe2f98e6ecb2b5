//! `oclcache explain --remote`: where the entry of a key is from, and whether other machines get it.
//!
//! It asks nobody. It shows what the entry, the outbox and the helper's state say; what the store answered to a miss is only counted.

use serde_json::{Value, json};

use super::super::failure::Failure;
use crate::config::{Config, without_password};
use crate::key::ingredients::Key;
use crate::log::text;
use crate::remote::local::{LocalStore, NotSent};
use crate::remote::settings::{RemoteContent, RemoteSettings};
use crate::store::entry::Meta;

/// What is known here of the store that machines share.
pub struct RemoteFacts {
    /// None: there is no cache directory yet.
    store: Option<LocalStore>,
    content: RemoteContent,
    is_readonly: bool,
    url: String,
}

/// What is known of one key.
struct KeyFacts {
    /// For machines.
    state: &'static str,
    /// For people.
    words: String,
}

impl RemoteFacts {
    /// Reads the settings, and opens the cache and the outbox for reading.
    pub fn read() -> Result<RemoteFacts, Failure> {
        let settings = RemoteSettings::of(Config::read());
        let Some(url) = &settings.url else {
            return Err(Failure::new(
                "no store is set that machines share: `oclcache config set remote URL`",
            ));
        };
        Ok(RemoteFacts {
            store: LocalStore::open_existing(&settings).map_err(Failure::new)?,
            content: settings.content,
            is_readonly: settings.is_readonly,
            url: text(without_password(url).as_bytes()).to_string(),
        })
    }

    /// What is wrong with the store, in one line; None: nothing, as far as the helper has said.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.store.as_ref()?.state().trouble;
        let why = Some(trouble).filter(|trouble| !trouble.is_empty())?;
        Some(format!("{}: {}", self.url, text(why.as_bytes())))
    }

    /// One line about a key. `meta`: its entry, if there is one.
    pub fn words(&self, key: &Key, meta: Option<&Meta>) -> String {
        self.of_key(key, meta).words
    }

    /// The same as JSON.
    pub fn as_json(&self, key: &Key, meta: Option<&Meta>) -> Value {
        let facts = self.of_key(key, meta);
        let signer = meta.and_then(Meta::signer);
        json!({
            "state": facts.state,
            "words": facts.words,
            "signer": signer.map(|signer| format!("{signer:016X}")),
        })
    }

    fn of_key(&self, key: &Key, meta: Option<&Meta>) -> KeyFacts {
        let facts = |state, words: String| KeyFacts { state, words };
        let (Some(store), Some(meta)) = (&self.store, meta) else {
            return facts("absent", "no entry here: nothing to send".to_owned());
        };
        if let Some(signer) = meta.signer() {
            let words = format!("from another machine, key {signer:016X}");
            return facts("received", words);
        }
        let is_pending = || {
            let outbox = store.outbox().ok()?;
            outbox.pending().ok().map(|keys| keys.contains(key))
        };
        let is_being_stored = || Some(store.outbox().ok()?.is_being_stored(key));
        match store.outgoing(key, self.content) {
            Ok(_) if self.is_readonly => {
                facts("unsent", "not sent: `remote_readonly` is set".to_owned())
            }
            Ok(_) if is_pending() == Some(true) => facts("pending", "to be sent".to_owned()),
            Ok(_) if is_being_stored() == Some(true) => facts(
                "storing",
                "being stored, or its process was killed meanwhile; `oclcache remote push --all` sends it".to_owned(),
            ),
            Ok(_) => facts(
                "sent",
                "sent, or left out because it compiles fast; `oclcache remote push --all` sends it again".to_owned(),
            ),
            Err(NotSent::NotBuiltHere) if meta.imported => {
                facts("unsent", "never sent: it was imported".to_owned())
            }
            Err(NotSent::NotBuiltHere) => facts(
                "unsent",
                "never sent: it was stored while `remote` was not set, or was restored from a copy".to_owned(),
            ),
            Err(why @ NotSent::Unreadable(_)) => facts("unsent", format!("not sent yet: {why}")),
            Err(why) => facts("unsent", format!("never sent: {why}")),
        }
    }
}
