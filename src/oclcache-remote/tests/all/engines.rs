//! Each engine does the same.

use std::time::Duration;

use oclcache_remote::engine::{Engine, EngineError};
use oclcache_remote::keys::SecretKey;
use oclcache_remote::object::Kind;
use oclcache_remote::shared::{Fetched, SharedStore, Uploaded};

use crate::support::run;
use crate::support::servers::Server;
use crate::support::stores::{settings, store};

const KEY: [u8; 32] = [0xab; 32];
const OTHER: [u8; 32] = [0xcd; 32];

fn payload() -> Vec<u8> {
    (0..200_000_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// All that the helper asks of an engine.
fn exercise(url: &str) {
    let key = SecretKey::generate().expect("a key");
    let mine = store(url, Some(&key), &[&key]);
    run(async {
        mine.guarded.check().await.expect("reached");
        let wanted = [
            (Kind::Entry, KEY),
            (Kind::Bundle, KEY),
            (Kind::Entry, OTHER),
        ];
        let found = mine.fetch(&wanted).await.expect("read");
        assert!(
            found.iter().all(|one| matches!(one, Fetched::Missing)),
            "{found:?}"
        );
        assert_eq!(mine.present(Kind::Entry, &[KEY]).await, Ok(vec![false]));
        let sent = mine.upload(Kind::Entry, &KEY, &payload(), 1, 2).await;
        assert_eq!(sent, Ok(Uploaded::Written));
        let found = mine.fetch(&wanted).await.expect("read");
        let Fetched::Found(object) = &found[0] else {
            panic!("{found:?}")
        };
        assert_eq!(object.payload, payload());
        assert!(matches!(found[2], Fetched::Missing));
        assert_eq!(
            mine.present(Kind::Entry, &[KEY, OTHER]).await,
            Ok(vec![true, false])
        );
        // Written again, shorter.
        mine.upload(Kind::Entry, &KEY, b"short", 1, 2)
            .await
            .expect("written");
        let found = mine.fetch(&wanted[..1]).await.expect("read");
        assert!(matches!(&found[0], Fetched::Found(object) if object.payload == b"short"));
        let listed = mine.guarded.list(&mine.root()).await.expect("listed");
        let names: Vec<&str> = listed
            .objects
            .iter()
            .map(|object| object.name.as_str())
            .collect();
        assert_eq!(names, [mine.name(Kind::Entry, &KEY)], "{listed:?}");
        let engine = mine.guarded.engine();
        engine.delete(names[0]).await.expect("deleted");
        engine
            .delete(names[0])
            .await
            .expect("what is not there is deleted");
        let found = mine.fetch(&wanted[..1]).await.expect("read");
        assert!(matches!(found[0], Fetched::Missing));
        large(&mine, &*engine).await;
    });
}

/// An object that is larger than any of ours is cut while it is read.
async fn large(mine: &SharedStore, engine: &dyn Engine) {
    let name = mine.name(Kind::Entry, &OTHER);
    engine
        .write(&name, vec![7; 3 << 20])
        .await
        .expect("written");
    let read = engine
        .read(&[name], 1000)
        .await
        .expect("read")
        .remove(0)
        .expect("there");
    assert_eq!(read.len(), 1001);
}

#[test]
fn redis() {
    let server = Server::redis(&[]);
    exercise(&format!("redis://127.0.0.1:{}", server.port));
}

#[test]
fn webdav() {
    let server = Server::webdav();
    exercise(&format!("http://127.0.0.1:{}/deep/down", server.port));
}

#[test]
fn s3() {
    let server = Server::s3();
    exercise(&format!(
        "s3://id:secret@bucket/some/prefix?endpoint=http://127.0.0.1:{}",
        server.port
    ));
}

#[test]
fn another_s3() {
    let Some(server) = Server::s3s() else {
        return;
    };
    let url = |password: &str| {
        let port = server.port;
        format!("s3://id:{password}@bucket/some/prefix?endpoint=http://127.0.0.1:{port}")
    };
    exercise(&url("secret"));
    let wrong = url("wrong");
    let check = run(async { store(&wrong, None, &[]).guarded.check().await });
    assert!(matches!(check, Err(EngineError::Denied(_))), "{check:?}");
}

#[test]
fn a_directory() {
    let folder = tempfile::tempdir().expect("a directory");
    exercise(&format!("file://{}", folder.path().display()));
}

#[test]
fn a_wrong_password_is_named() {
    let server = Server::redis(&["--requirepass", "right"]);
    let address = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    let check = |url: &str| run(async { store(url, None, &[]).guarded.check().await });
    assert_eq!(check(&address("right")), Ok(()));
    for url in [
        address("wrong"),
        format!("redis://127.0.0.1:{}", server.port),
    ] {
        let error = check(&url).expect_err("refused");
        assert!(matches!(error, EngineError::Denied(_)), "{error:?}");
    }
}

#[test]
fn nobody_who_listens_is_named() {
    let port = crate::support::servers::free_port();
    for url in [
        format!("redis://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{port}/x"),
        format!("s3://b?endpoint=http://127.0.0.1:{port}"),
    ] {
        let error =
            run(async { store(&url, None, &[]).guarded.check().await }).expect_err("nobody");
        assert!(
            matches!(error, EngineError::Unreachable(_)),
            "{url}: {error:?}"
        );
    }
}

#[test]
fn a_user_who_may_only_read_reads() {
    let server = Server::redis(&[]);
    let url = format!("redis://127.0.0.1:{}", server.port);
    let key = SecretKey::generate().expect("a key");
    run(async {
        store(&url, Some(&key), &[&key])
            .upload(Kind::Entry, &KEY, b"x", 1, 2)
            .await
    })
    .expect("written");
    server.redis_cli(&[
        "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+ping",
    ]);
    let mut settings = settings(&format!("redis://reader:pw@127.0.0.1:{}", server.port));
    let name = store(&url, None, &[]).name(Kind::Entry, &KEY);
    // Also one who has a key and does not know.
    for is_readonly in [true, false] {
        settings.is_readonly = is_readonly;
        let engine = oclcache_remote::engine::open(&settings).expect("an engine");
        let found = run(async { engine.read(std::slice::from_ref(&name), 1 << 20).await });
        assert!(found.expect("read")[0].is_some());
    }
}

#[test]
fn one_host_at_a_time_holds_a_lease() {
    let server = Server::redis(&[]);
    let settings = settings(&format!("redis://127.0.0.1:{}", server.port));
    let engine = oclcache_remote::engine::open(&settings).expect("an engine");
    let leases = engine.leases().expect("Redis has leases");
    let acquire = async |token, lifetime| {
        let acquired = leases.acquire("l", token, lifetime, "e", 100).await;
        acquired.expect("asked")
    };
    run(async {
        let long = Duration::from_secs(60);
        assert!(acquire("a", long).await.is_ours);
        assert!(!acquire("b", long).await.is_ours);
        assert_eq!(leases.renew("l", "b", long).await, Ok(false));
        assert_eq!(leases.renew("l", "a", long).await, Ok(true));
        leases.release("l", "b").await.expect("nothing is released");
        assert_eq!(leases.holder("l").await, Ok(Some("a".to_owned())));
        assert_eq!(acquire("b", long).await.object, None);
        let written = engine.write("e", b"entry".to_vec()).await;
        written.expect("written");
        leases.release("l", "a").await.expect("released");
        assert_eq!(leases.holder("l").await, Ok(None));
        // The next one finds what the last one wrote.
        let acquired = acquire("b", Duration::from_millis(1)).await;
        assert_eq!(
            (acquired.is_ours, acquired.object),
            (true, Some(b"entry".to_vec()))
        );
        let holder = async || leases.holder("l").await.expect("asked");
        while holder().await.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(acquire("c", long).await.is_ours);
    });
}

#[test]
fn a_redirect_is_not_followed() {
    use std::io::{Read, Write};
    let target = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let target_port = target.local_addr().expect("an address").port();
    target.set_nonblocking(true).expect("set");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let answer = format!(
                "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{target_port}/x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let _ = client.write_all(answer.as_bytes());
        }
    });
    for url in [
        format!("http://user:pw@127.0.0.1:{port}/x"),
        format!("s3://id:secret@b?endpoint=http://127.0.0.1:{port}"),
    ] {
        let done = run(async { store(&url, None, &[]).guarded.check().await });
        assert!(done.is_err(), "{url}");
    }
    assert!(target.accept().is_err(), "the client followed the redirect");
}
