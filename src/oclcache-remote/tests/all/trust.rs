//! A poisoned store: nothing that is not signed by someone trusted, for what was asked, is used.

use oclcache_remote::keys::SecretKey;
use oclcache_remote::object::{HEADER, Kind, Refusal, SIGNED};
use oclcache_remote::shared::{Fetched, SharedStore};

use crate::support::run;
use crate::support::servers::Server;
use crate::support::stores::store;

const KEY: [u8; 32] = [0x11; 32];
const OTHER: [u8; 32] = [0x22; 32];

struct Poisoned {
    server: Server,
    victim: SecretKey,
    mallory: SecretKey,
}

impl Poisoned {
    fn new() -> Poisoned {
        let made = Poisoned {
            server: Server::redis(&[]),
            victim: SecretKey::generate().expect("a key"),
            mallory: SecretKey::generate().expect("a key"),
        };
        let payload: Vec<u8> = (0..5000_u32).map(|number| (number / 7) as u8).collect();
        made.write(&made.victim, KEY, &payload);
        made
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port)
    }

    fn store(&self) -> SharedStore {
        store(&self.url(), Some(&self.victim), &[&self.victim])
    }

    fn write(&self, by: &SecretKey, key: [u8; 32], payload: &[u8]) {
        let store = store(&self.url(), Some(by), &[by]);
        run(async { store.upload(Kind::Entry, &key, payload, 1, 2).await }).expect("written");
    }

    fn raw(&self, name: &str) -> Vec<u8> {
        let store = self.store();
        let read = run(async { store.guarded.read(&[name.to_owned()], 1 << 24).await });
        read.expect("read").remove(0).expect("there")
    }

    fn set_raw(&self, name: &str, bytes: Vec<u8>) {
        let store = self.store();
        run(async { store.guarded.write(name, bytes).await }).expect("written");
    }

    fn name(&self, key: [u8; 32]) -> String {
        self.store().name(Kind::Entry, &key)
    }

    #[track_caller]
    fn refusal(&self, key: [u8; 32]) -> Refusal {
        let store = self.store();
        let found = run(async { store.fetch(&[(Kind::Entry, key)]).await })
            .expect("read")
            .remove(0);
        let refused = store
            .counters
            .refused
            .load(std::sync::atomic::Ordering::Relaxed);
        match found {
            Fetched::Refused(refusal) => {
                assert_eq!(refused, 1);
                refusal
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_object_of_an_unknown_signer_is_refused_and_replaced() {
    let poisoned = Poisoned::new();
    poisoned.write(&poisoned.mallory, KEY, b"poison");
    assert!(matches!(poisoned.refusal(KEY), Refusal::Untrusted(_)));
    let store = poisoned.store();
    run(async {
        assert_eq!(
            store.present(Kind::Entry, &[KEY]).await,
            Ok(vec![false]),
            "it would not be replaced"
        );
        store
            .upload(Kind::Entry, &KEY, b"right", 1, 2)
            .await
            .expect("written");
        assert_eq!(store.present(Kind::Entry, &[KEY]).await, Ok(vec![true]));
        let found = store
            .fetch(&[(Kind::Entry, KEY)])
            .await
            .expect("read")
            .remove(0);
        assert!(matches!(found, Fetched::Found(object) if object.payload == b"right"));
    });
}

#[test]
fn an_object_that_was_moved_to_another_name_is_refused() {
    let poisoned = Poisoned::new();
    let renamed =
        poisoned
            .server
            .redis_cli(&["RENAME", &poisoned.name(KEY), &poisoned.name(OTHER)]);
    assert_eq!(renamed, "OK");
    assert_eq!(poisoned.refusal(OTHER), Refusal::OtherKey);
}

#[test]
fn a_changed_byte_is_refused_at_each_kind_of_offset() {
    let poisoned = Poisoned::new();
    let name = poisoned.name(KEY);
    let whole = poisoned.raw(&name);
    // Magic, kind, codec, versions, key, dates, lengths, digest, signer, both signatures, payload.
    let places = [
        0,
        20,
        24,
        25,
        26,
        28,
        32,
        36,
        40,
        72,
        80,
        88,
        96,
        104,
        136,
        SIGNED,
        SIGNED + 64,
        HEADER,
        whole.len() - 1,
    ];
    for place in places {
        let mut changed = whole.clone();
        changed[place] ^= 1;
        poisoned.set_raw(&name, changed);
        poisoned.refusal(KEY);
    }
    for length in [1, HEADER - 1, HEADER, whole.len() - 1] {
        poisoned.set_raw(&name, whole[..length].to_vec());
        assert_eq!(poisoned.refusal(KEY), Refusal::Length);
    }
    poisoned.set_raw(&name, [&whole[..], b"more"].concat());
    assert_eq!(poisoned.refusal(KEY), Refusal::Length);
}

#[test]
fn a_forged_signer_is_refused() {
    let poisoned = Poisoned::new();
    let mine = poisoned.raw(&poisoned.name(KEY));
    poisoned.write(&poisoned.mallory, KEY, b"poison");
    let mut forged = poisoned.raw(&poisoned.name(KEY));
    forged[SIGNED - 8..SIGNED].copy_from_slice(&mine[SIGNED - 8..SIGNED]);
    poisoned.set_raw(&poisoned.name(KEY), forged.clone());
    assert!(matches!(poisoned.refusal(KEY), Refusal::Signature(_)));
    // With the signature of another object.
    forged[SIGNED..HEADER].copy_from_slice(&mine[SIGNED..HEADER]);
    poisoned.set_raw(&poisoned.name(KEY), forged);
    assert!(matches!(poisoned.refusal(KEY), Refusal::Signature(_)));
}

#[test]
fn an_object_that_says_that_it_has_a_gibibyte_is_refused_before_anything_is_allocated() {
    let poisoned = Poisoned::new();
    let mut large = poisoned.raw(&poisoned.name(KEY));
    for place in [88, 96] {
        large[place..place + 8].copy_from_slice(&(1_u64 << 30).to_le_bytes());
    }
    poisoned.set_raw(&poisoned.name(KEY), large);
    assert_eq!(poisoned.refusal(KEY), Refusal::TooLarge);
}

#[test]
fn a_revoked_signer_is_refused_even_if_the_settings_name_it() {
    let poisoned = Poisoned::new();
    let mut store = poisoned.store();
    let id = poisoned.victim.public().id;
    store.trusted.revoke(id);
    let found = run(async { store.fetch(&[(Kind::Entry, KEY)]).await })
        .expect("read")
        .remove(0);
    assert!(matches!(found, Fetched::Refused(Refusal::Untrusted(signer)) if signer == id));
}
