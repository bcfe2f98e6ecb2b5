//! Stands in for `oclcache-remote`: it speaks the protocol with the library's own code, and does what a test wants.
//!
//! Beside its own file are `behavior`, which is read for each question, `asked`, to which each request is appended, and the entries
//! that it has, `<key>.entry`. It ends once `go` is there, or its directory is gone.

#![allow(clippy::print_stdout)]

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use oclcache::remote::Key;
use oclcache::remote::local::LocalStore;
use oclcache::remote::protocol::{Answer, Get, MAX_REQUEST_BYTES, Request};
use oclcache::remote::settings::RemoteSettings;
use oclcache::remote::socket;

const SIGNER: u64 = 0xfeed;
const PAUSE: Duration = Duration::from_millis(1);
/// Nothing waits so long for it.
const LONGEST: Duration = Duration::from_secs(120);
const SOMEBODY: u32 = 64_123;

fn main() -> ExitCode {
    let own = std::env::current_exe().expect("a path");
    let place = own.parent().expect("a directory").to_owned();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.last().is_none_or(|word| word != "serve") {
        // As the command calls it: the test reads what it was told.
        let key = std::env::var_os("OCLCACHE_REMOTE_KEY").is_some();
        println!("stand-in 0.0.1 {} {key}", words.join(" "));
        return ExitCode::SUCCESS;
    }
    note(&place, "started");
    let settings = RemoteSettings::read();
    let store = LocalStore::open(&settings).expect("a store");
    let Some(listener) = store.listen().expect("a socket") else {
        note(&place, "another serves");
        return ExitCode::SUCCESS;
    };
    if behavior(&place) == "other-user" {
        // From now on the kernel tells clients of this user.
        rustix::thread::set_thread_res_uid(
            rustix::process::getuid(),
            rustix::process::Uid::from_raw(SOMEBODY),
            rustix::process::getuid(),
        )
        .expect("another user");
        rustix::net::listen(listener.as_fd(), 8).expect("a socket");
    }
    let started = Instant::now();
    let mut held: Vec<OwnedFd> = Vec::new();
    while started.elapsed() < LONGEST && place.exists() && !place.join("go").exists() {
        let Ok(peer) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let Some(request) = received(&peer) else {
            continue;
        };
        note(&place, &line(&request));
        match request {
            Request::Get(get) if answer(&place, &store, &get, &peer) => held.push(peer),
            Request::Flush { .. } => say(&peer, &Answer::Left(2)),
            Request::Stop => {
                say(&peer, &Answer::Left(0));
                break;
            }
            Request::Status => say(&peer, &Answer::Text("well".to_owned())),
            _ => {}
        }
        held.retain(|peer| {
            let mut packet = [0; MAX_REQUEST_BYTES];
            match socket::receive(peer.as_fd(), &mut packet) {
                Ok(length) => {
                    if let Some(request) = Request::decode(&packet[..length]) {
                        note(&place, &line(&request));
                    }
                    true
                }
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            }
        });
    }
    // What holders of leases have said last.
    for peer in held {
        let mut packet = [0; MAX_REQUEST_BYTES];
        if let Ok(length) = socket::receive(peer.as_fd(), &mut packet)
            && let Some(request) = Request::decode(&packet[..length])
        {
            note(&place, &line(&request));
        }
    }
    ExitCode::SUCCESS
}

/// Answers a question. Returns whether the connection is kept.
fn answer(place: &Path, store: &LocalStore, get: &Get, peer: &OwnedFd) -> bool {
    match behavior(place).as_str() {
        "close" => return false,
        "hang" => return true,
        "garbage" => {
            let _ = socket::send(peer.as_fd(), b"oclr\x63\x00");
            return true;
        }
        "lie" => say(peer, &Answer::Hit),
        "later" => say(peer, &Answer::Later),
        "open" => say(peer, &Answer::Open { retry_ms: 1000 }),
        "leased" => say(peer, &Answer::Leased),
        "elsewhere" => {
            say(peer, &Answer::Elsewhere);
            // Longer than a wait for the store may be.
            std::thread::sleep(Duration::from_millis(400));
            say(peer, &give(place, store, get));
        }
        _ => say(peer, &give(place, store, get)),
    }
    true
}

fn give(place: &Path, store: &LocalStore, get: &Get) -> Answer {
    let file = place.join(format!("{}.entry", get.key.hex()));
    let Ok(bytes) = fs::read(file) else {
        return Answer::Miss;
    };
    match store.receive(&get.key, bytes, SIGNER, false, true) {
        Ok(_) => Answer::Hit,
        Err(why) => {
            note(place, &format!("not received: {why:?}"));
            Answer::Miss
        }
    }
}

fn received(peer: &OwnedFd) -> Option<Request> {
    let started = Instant::now();
    let mut packet = [0; MAX_REQUEST_BYTES];
    loop {
        match socket::receive(peer.as_fd(), &mut packet) {
            Ok(length) => return Request::decode(&packet[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if started.elapsed() > Duration::from_secs(10) {
                    return None;
                }
                std::thread::sleep(PAUSE);
            }
            Err(_) => return None,
        }
    }
}

fn say(peer: &OwnedFd, answer: &Answer) {
    let _ = socket::send(peer.as_fd(), &answer.encode());
}

fn behavior(place: &Path) -> String {
    let text = fs::read_to_string(place.join("behavior"));
    text.unwrap_or_default().trim().to_owned()
}

fn line(request: &Request) -> String {
    let hex = |key: &Key| key.hex();
    match request {
        Request::Hello => "hello".to_owned(),
        Request::Get(get) => format!(
            "get {} first {} wait {} lease {}",
            hex(&get.key),
            hex(&get.first_missed),
            get.wait_us > 0,
            get.wants_lease
        ),
        Request::Put(key) => format!("put {}", hex(key)),
        Request::Done { key, is_stored } => format!("done {} {is_stored}", hex(key)),
        Request::Status => "status".to_owned(),
        Request::Flush { .. } => "flush".to_owned(),
        Request::Stop => "stop".to_owned(),
    }
}

fn note(place: &Path, line: &str) {
    let path: PathBuf = place.join("asked");
    let opened = fs::File::options().append(true).create(true).open(path);
    if let Ok(mut file) = opened {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
