//! Whom a machine trusts while that changes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::host::Host;
use crate::support::wait_for;

const KEYS: u32 = 2;

/// A host that uses this directory as the store, and its public key.
fn host(store: &tempfile::TempDir) -> (Host, String) {
    let host = Host::new();
    let line = format!(
        "oclcache config set remote 'file://{}'",
        store.path().display()
    );
    host.shell(&line).ok();
    let key = host.shell("oclcache remote key").ok().stdout;
    (host, key.trim().to_owned())
}

/// The list of revoked keys.
fn revoked(host: &Host) -> Vec<String> {
    let list = std::fs::read_to_string(host.path("home/.config/oclcache/remote.revoked"));
    let list = list.unwrap_or_default();
    list.lines().map(str::to_owned).collect()
}

/// The key `theirs` with the id of the key `id`, which its maker may choose.
fn with_id_of(id: &str, theirs: &str) -> String {
    let [id, mut forged] = [id, theirs].map(|key| STANDARD.decode(key).expect("base64"));
    forged[2..10].copy_from_slice(&id[2..10]);
    STANDARD.encode(forged)
}

#[test]
fn a_helper_of_other_settings_stores_nothing_of_a_signer_who_was_revoked() {
    let store = tempfile::tempdir().expect("a directory");
    let ((a, key), (mut b, _)) = (host(&store), host(&store));
    a.build(KEYS).ok();
    a.remote(&["push"]).ok();
    b.set("OCLCACHE_REMOTE_TRUST", format!("alice:{key}"));
    // A command of other settings reaches another helper.
    b.set("OCLCACHE_MAX_SIZE", "2G");
    let mut helper = b.remote_command(&["serve"]).spawn().expect("started");
    wait_for("a helper that serves", || b.is_served());
    b.variables.remove("OCLCACHE_MAX_SIZE");
    b.shell("oclcache remote untrust alice").ok();
    b.set("OCLCACHE_MAX_SIZE", "2G");
    assert!(b.is_served(), "the test needs the helper");
    b.build(KEYS).ok();
    assert_eq!(b.compilations(), KEYS as usize);
    let said = b.shell("oclcache remote pull").ok().stdout;
    assert!(said.starts_with("stored 0"), "{said}");
    b.stop_helper();
    helper.wait().expect("ended");
}

#[test]
fn keys_that_are_revoked_at_once_are_all_revoked() {
    let store = tempfile::tempdir().expect("a directory");
    let (host, key) = host(&store);
    let ids = (1..=8).map(|number| format!("{number:016X}"));
    let ids: Vec<String> = ids.collect();
    let commands = ids.iter().map(|id| {
        let mut command = host.remote_command(&["untrust", id]);
        command.stdout(std::process::Stdio::null());
        command.spawn().expect("started")
    });
    let commands: Vec<_> = commands.collect();
    for mut command in commands {
        assert!(command.wait().expect("ended").success());
    }
    let mut list = revoked(&host);
    list.sort();
    assert_eq!(list, ids);
    // Who is trusted again is on the list no more.
    host.shell(&format!("oclcache remote untrust {key}")).ok();
    assert_eq!(revoked(&host).len(), ids.len() + 1);
    host.shell(&format!("oclcache remote trust me {key}")).ok();
    assert_eq!(revoked(&host).len(), ids.len());
}

#[test]
fn a_list_of_revoked_keys_that_cannot_be_read_is_not_an_empty_one() {
    let store = tempfile::tempdir().expect("a directory");
    let ((a, key), (b, _)) = (host(&store), host(&store));
    a.build(KEYS).ok();
    a.remote(&["push"]).ok();
    b.shell(&format!("oclcache remote trust alice {key}")).ok();
    let list = b.path("home/.config/oclcache/remote.revoked");
    std::fs::write(&list, "not an id\n").expect("written");
    b.build(KEYS).ok();
    assert_eq!(b.compilations(), KEYS as usize);
    for verb in ["pull", "untrust alice"] {
        let ran = b.shell(&format!("oclcache remote {verb}"));
        assert_ne!(ran.code, Some(0), "{verb}");
        assert!(ran.stderr.contains("remote.revoked"), "{}", ran.stderr);
    }
    let status = b.shell("oclcache remote status").ok().stdout;
    assert!(status.contains("remote.revoked"), "{status}");
    assert_eq!(revoked(&b), ["not an id"]);
}

#[test]
fn a_second_key_of_a_known_id_is_not_trusted() {
    let store = tempfile::tempdir().expect("a directory");
    let ((a, own), (_, theirs), (_, others)) = (host(&store), host(&store), host(&store));
    let trusted = |host: &Host| {
        let status = host.shell("oclcache remote status").ok().stdout;
        let lines = status.lines().filter(|line| line.starts_with("trusts"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    a.shell(&format!("oclcache remote trust bob {theirs}")).ok();
    let before = trusted(&a);
    assert_eq!(before.len(), 2, "{before:?}");
    for (known, name) in [(&own, "yourself"), (&theirs, "bob")] {
        let forged = with_id_of(known, &others);
        let ran = a.shell(&format!("oclcache remote trust mallory {forged}"));
        assert_ne!(ran.code, Some(0));
        let named = format!("`{name}`");
        assert!(ran.stderr.contains(&named), "{}", ran.stderr);
        assert_eq!(trusted(&a), before);
        // Nor if the settings were changed in another way, and then its end is nobody else's.
        let both = format!("'bob:{theirs} mallory:{forged}'");
        a.shell(&format!("oclcache config set remote_trust {both}"))
            .ok();
        assert_eq!(trusted(&a), before);
        let status = a.shell("oclcache remote status").ok().stdout;
        assert!(status.contains("`mallory`"), "{status}");
        a.shell("oclcache remote untrust mallory").ok();
        assert_eq!(trusted(&a), before);
        assert!(revoked(&a).is_empty());
    }
    a.build(KEYS).ok();
    a.remote(&["push"]).ok();
}
