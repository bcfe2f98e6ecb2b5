//! The fault table: a remote that is misspelt, unreachable, slow, full, lying or hostile never makes a build fail, and never puts a
//! byte into the store that was not verified.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use oclcache_remote::engine::EngineError;
use oclcache_remote::keys::SecretKey;
use oclcache_remote::object::Kind;
use oclcache_remote::shared::{Fetched, SharedStore, UploadError};

use crate::support::host::{Host, invite};
use crate::support::proxy::{Mode, Proxy};
use crate::support::servers::{Server, free_port};
use crate::support::stores::store;
use crate::support::{run, wait_for};

const KEYS: u32 = 2;
const AT_ONCE: Mode = Mode::Forward(Duration::ZERO);

/// A host that uses this store, with a key.
fn host_on(port: u16) -> Host {
    let mut host = Host::new();
    host.set("OCLCACHE_REMOTE_WAIT", "250ms");
    host.shell(&format!(
        "oclcache config set remote redis://127.0.0.1:{port}"
    ))
    .ok();
    host.remote(&["set-up"]).ok();
    host
}

/// A server that has what a host built, and a second host of the same user, whose way to the server is a proxy.
fn behind_a_proxy(server: &Server) -> (Proxy, Host) {
    let a = host_on(server.port);
    a.build(KEYS).ok();
    a.remote(&["push"]).ok();
    let proxy = Proxy::new(server.port, AT_ONCE);
    let mut b = Host::new();
    b.set("OCLCACHE_REMOTE_WAIT", "250ms");
    let invitation = a.shell("oclcache remote invite").ok().stdout;
    let invitation = invitation.replace(&format!(":{}", server.port), &format!(":{}", proxy.port));
    b.join(&invitation);
    (proxy, b)
}

#[test]
fn a_connection_that_is_refused() {
    let host = host_on(free_port());
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
    assert_eq!(host.outbox(), KEYS as usize);
    let status = host.remote(&["status"]).ok().stdout;
    assert!(
        status.contains("cannot be reached") || status.contains("not asked"),
        "{status}"
    );
}

#[test]
fn a_connection_that_is_refused_is_tried_once_in_each_pause_and_answered_before_any_deadline() {
    const MANY: u32 = 20;
    let port = free_port();
    let mut host = host_on(port);
    host.set("STUB_BUILD_MS", "20");
    // The first question may wait for so long: the program does not know yet what it could save.
    host.set("OCLCACHE_REMOTE_WAIT", "60s");
    let trace = host.path("trace");
    let mut helper = host.traced_helper("connect", &trace);
    wait_for("a helper that serves", || host.is_served());
    host.build(MANY).ok();
    assert_eq!(host.compilations(), MANY as usize);
    assert_eq!(host.stat("misses"), u64::from(MANY));
    // An answer that came at a deadline would have taken 10 s or more.
    assert!(host.stat("remote_wait_ns") < 5_000_000_000);
    host.stop_helper();
    helper.wait().expect("ended");
    let trace = std::fs::read_to_string(&trace).expect("a trace");
    let attempts = trace.matches(&format!("htons({port})")).count();
    // Pauses double from 1 s, so five attempts take half a minute.
    assert!((1..=5).contains(&attempts), "{attempts} attempts:\n{trace}");
}

#[test]
fn a_black_hole_is_asked_once_in_a_while() {
    let server = Server::redis(&[]);
    let (proxy, host) = behind_a_proxy(&server);
    proxy.set(Mode::BlackHole);
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
    assert!(
        proxy.connections() <= 3,
        "{} connections",
        proxy.connections()
    );
}

#[test]
fn a_server_that_is_stopped_and_goes_on() {
    let server = Server::redis(&[]);
    let (_proxy, host) = behind_a_proxy(&server);
    server.signal("STOP");
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
    server.signal("CONT");
    assert_eq!(host.outbox(), KEYS as usize);
    host.stop_helper();
    let is_sent = || host.remote(&["push"]).code == Some(0) && host.outbox() == 0;
    wait_for("what was built meanwhile is sent", is_sent);
}

#[test]
fn a_slow_server_is_not_waited_for() {
    let server = Server::redis(&[]);
    let (proxy, host) = behind_a_proxy(&server);
    proxy.set(Mode::Forward(Duration::from_secs(1)));
    host.build(KEYS).ok();
    proxy.set(AT_ONCE);
    host.stop_helper();
    assert!(
        host.compilations() >= 1,
        "the client waited for a server of 2 s"
    );
}

#[test]
fn what_is_cut_or_changed_on_the_way_is_never_used() {
    let server = Server::redis(&[]);
    let key = SecretKey::generate().expect("a key");
    let payload: Vec<u8> = (0..3000_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 9) as u8)
        .collect();
    let direct = store(
        &format!("redis://127.0.0.1:{}", server.port),
        Some(&key),
        &[&key],
    );
    run(async { direct.upload(Kind::Entry, &[1; 32], &payload, 1, 2).await }).expect("written");
    let proxy = Proxy::new(server.port, AT_ONCE);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let places = (0..60).step_by(5).chain((60..3400).step_by(167));
    for mode in places.flat_map(|place| [Mode::Cut(place), Mode::Flip(place)]) {
        proxy.set(mode);
        let store = store(&url, Some(&key), &[&key]);
        let found = run(async {
            tokio::time::timeout(
                Duration::from_secs(3),
                store.fetch(&[(Kind::Entry, [1; 32])]),
            )
            .await
        });
        // An error is no object either.
        if let Ok(Ok(found)) = found {
            match &found[0] {
                // A byte that says nothing about the object.
                Fetched::Found(object) => assert_eq!(object.payload, payload, "{mode:?}"),
                Fetched::Missing => {}
                Fetched::Refused(_) => {
                    assert_eq!(store.counters.refused.load(Ordering::Relaxed), 1)
                }
            }
        }
    }
}

#[test]
fn a_host_compiles_if_all_objects_are_damaged() {
    let server = Server::redis(&[]);
    let (_proxy, host) = behind_a_proxy(&server);
    let names = server.redis_cli(&["KEYS", "*"]);
    for name in names.lines() {
        server.redis_cli(&["SETRANGE", name, "300", "damaged"]);
    }
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
    let status = host.remote(&["status"]).ok().stdout;
    assert!(status.contains("refused"), "{status}");
    // What was built here replaces it.
    host.remote(&["push", "--all"]).ok();
    let second = Host::new();
    invite(&host, &second);
    second.build(KEYS).ok();
    assert_eq!(second.compilations(), 0);
}

/// It has the same key, so it means the same: who can write to the store can only make others use what a trusted machine has built.
#[test]
fn an_old_entry_that_is_put_back_under_its_key_is_used_and_counted() {
    let server = Server::redis(&[]);
    let a = host_on(server.port);
    let push = || {
        a.build(1).ok();
        a.remote(&["push"]).ok();
    };
    let object = || {
        let names = server.redis_cli(&["--scan", "--pattern", "*/e/*"]);
        assert_eq!(names.lines().count(), 1, "{names}");
        names
    };
    push();
    let name = object();
    server.redis_cli(&["RENAME", &name, "old"]);
    // The new one says another second.
    let second = oclcache_remote::shared::now();
    wait_for("the next second", || {
        oclcache_remote::shared::now() > second
    });
    a.shell("oclcache clear").ok();
    a.stop_helper();
    push();
    assert_eq!(a.compilations(), 2);
    assert_eq!(object(), name);
    let of = |name: &str| server.redis_cli(&["GETRANGE", name, "0", "200"]);
    assert_ne!(of(&name), of("old"));
    server.redis_cli(&["RENAME", "old", &name]);
    let b = Host::new();
    invite(&a, &b);
    b.build(1).ok();
    assert_eq!(b.compilations(), 0);
    assert_eq!(b.stat("remote_hits"), 1);
    wait_for("the helper has counted it", || {
        let status = b.remote(&["status"]).ok().stdout;
        status.contains("1 received") && status.contains("0 refused")
    });
}

#[test]
fn a_full_server_is_read_and_not_written() {
    let server = Server::redis(&[]);
    let key = SecretKey::generate().expect("a key");
    let store = store(
        &format!("redis://127.0.0.1:{}", server.port),
        Some(&key),
        &[&key],
    );
    run(async {
        store
            .upload(Kind::Entry, &[1; 32], b"first", 1, 2)
            .await
            .expect("written");
        server.redis_cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        server.redis_cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let full = store.upload(Kind::Entry, &[2; 32], b"second", 1, 2).await;
        assert!(
            matches!(full, Err(UploadError::Engine(EngineError::Full(_)))),
            "{full:?}"
        );
        assert!(store.guarded.refuses_writes().is_some());
        // Also once there is room again: writes pause.
        server.redis_cli(&["CONFIG", "SET", "maxmemory", "64mb"]);
        assert!(
            store
                .upload(Kind::Entry, &[2; 32], b"second", 1, 2)
                .await
                .is_err()
        );
        let found = store
            .fetch(&[(Kind::Entry, [1; 32]), (Kind::Entry, [2; 32])])
            .await
            .expect("read");
        assert!(
            matches!(found[..], [Fetched::Found(_), Fetched::Missing]),
            "{found:?}"
        );
    });
}

#[test]
fn a_server_that_takes_no_writes_is_read() {
    let replica = |server: &Server| {
        server.redis_cli(&["REPLICAOF", "127.0.0.1", "1"]);
    };
    let disk_failed = |server: &Server| {
        server.redis_cli(&["CONFIG", "SET", "save", "3600 1000000"]);
        server.lose_directory();
        server.redis_cli(&["BGSAVE"]);
        wait_for("a server that cannot save", || {
            server.redis_cli(&["SET", "x", "1"]).contains("MISCONF")
        });
    };
    let key = SecretKey::generate().expect("a key");
    let refusals: [&dyn Fn(&Server); 2] = [&replica, &disk_failed];
    for refuse in refusals {
        let server = Server::redis(&[]);
        let url = format!("redis://127.0.0.1:{}", server.port);
        let early = store(&url, Some(&key), &[&key]);
        let upload = async |store: &SharedStore, number| {
            let key = [number; 32];
            store.upload(Kind::Entry, &key, b"payload", 1, 2).await
        };
        run(async {
            upload(&early, 1).await.expect("written");
            refuse(&server);
            let late = store(&url, Some(&key), &[&key]);
            assert_eq!(late.guarded.check().await, Ok(()));
            for store in [&early, &late] {
                for _ in 0..2 {
                    let wanted = [(Kind::Entry, [1; 32]), (Kind::Entry, [2; 32])];
                    let found = store.fetch(&wanted).await.expect("read");
                    assert!(
                        matches!(found[..], [Fetched::Found(_), Fetched::Missing]),
                        "{found:?}"
                    );
                    let refused = upload(store, 2).await;
                    assert!(
                        matches!(refused, Err(UploadError::Engine(EngineError::Full(_)))),
                        "{refused:?}"
                    );
                }
            }
        });
    }
}

#[test]
fn a_password_that_was_changed_is_named_and_a_new_one_is_taken() {
    let server = Server::redis(&["--requirepass", "old"]);
    let host = Host::new();
    host.shell(&format!(
        "oclcache config set remote redis://:old@127.0.0.1:{}",
        server.port
    ))
    .ok();
    host.remote(&["set-up"]).ok();
    host.build(1).ok();
    host.remote(&["push"]).ok();
    assert_eq!(host.outbox(), 0);
    server.redis_cli(&["-a", "old", "CONFIG", "SET", "requirepass", "new"]);
    let doctor = host.remote(&["doctor"]);
    assert_ne!(doctor.code, Some(0));
    assert!(
        doctor.stdout.contains("refuses the credentials"),
        "{}",
        doctor.stdout
    );
    host.build(2).ok();
    let pushed = host.remote(&["push"]);
    assert_ne!(pushed.code, Some(0));
    assert!(
        pushed.stderr.contains("refuses the credentials"),
        "{}",
        pushed.stderr
    );
    host.shell(&format!(
        "oclcache config set remote redis://:new@127.0.0.1:{}",
        server.port
    ))
    .ok();
    host.stop_helper();
    wait_for("the new password is taken", || {
        host.remote(&["push"]).code == Some(0)
    });
    assert_eq!(host.outbox(), 0);
}

#[test]
fn a_partition_during_an_upload() {
    let server = Server::redis(&[]);
    let (proxy, host) = behind_a_proxy(&server);
    // Cut before the helper sends by itself.
    host.build(KEYS).ok();
    proxy.set(Mode::Cut(0));
    host.build(KEYS + 3).ok();
    assert_ne!(host.remote(&["push"]).code, Some(0));
    let left = host.outbox();
    assert!(left >= 3, "{left} markers");
    proxy.set(AT_ONCE);
    wait_for("the upload goes on", || {
        host.remote(&["push"]).code == Some(0) && host.outbox() == 0
    });
}

#[test]
fn a_helper_that_was_killed_or_hangs() {
    let server = Server::redis(&[]);
    let (_proxy, host) = behind_a_proxy(&server);
    let mut helper = host.remote_command(&["serve"]).spawn().expect("started");
    wait_for("a helper", || !host.helpers().is_empty());
    let stop = |signal: &str| {
        let sent = Command::new("kill")
            .args([signal, &helper.id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    };
    stop("-STOP");
    host.build(KEYS).ok();
    stop("-KILL");
    helper.wait().expect("ended");
    host.build(KEYS + 1).ok();
}

#[test]
fn a_disk_that_is_full() {
    if !rustix::process::geteuid().is_root() {
        panic!("this test mounts a file system, so it needs root");
    }
    let server = Server::redis(&[]);
    let (_proxy, mut host) = behind_a_proxy(&server);
    let cache = host.path("home/.cache/oclcache");
    std::fs::create_dir_all(&cache).expect("made");
    let script = format!(
        "cd '{}' && mount -t tmpfs -o size=64k none . && cd . && {{ cat /dev/zero > full 2>/dev/null || true; }} && exec \"$@\"",
        cache.display()
    );
    host.prefix = ["unshare", "--mount", "sh", "-c", &script, "sh"]
        .map(str::to_owned)
        .to_vec();
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
}

#[test]
fn a_clock_that_differs_is_named_by_those_who_sign_with_the_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 8192]);
            let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the current time is too large.</Message></Error>";
            let answer = format!(
                "HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            );
            let _ = client.write_all(answer.as_bytes());
        }
    });
    let host = Host::new();
    host.shell(&format!(
        "oclcache config set remote 's3://user:password@bucket?endpoint=http://127.0.0.1:{port}'"
    ))
    .ok();
    host.remote(&["set-up"]).ok();
    let doctor = host.remote(&["doctor"]);
    assert_ne!(doctor.code, Some(0));
    assert!(
        doctor
            .stdout
            .contains("clocks of this machine and the server differ"),
        "{}",
        doctor.stdout
    );
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
    let status = host.remote(&["status"]).ok().stdout;
    assert!(status.contains("set the clock"), "{status}");
}

#[test]
fn an_address_that_is_misspelt() {
    for url in [
        "redis://no.such.host.invalid",
        "nonsense://x",
        "redis://",
        "http://127.0.0.1:1/x",
    ] {
        let mut host = Host::new();
        host.set("OCLCACHE_REMOTE", url);
        host.build(2).ok();
        assert_eq!(host.compilations(), 2, "{url}");
    }
}
