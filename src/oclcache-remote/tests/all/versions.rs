//! Libraries, commands and helpers of different versions on one machine: they work side by side, or the helper refuses to serve and says
//! so. No program waits longer than it may, and none fails.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use oclcache::remote::protocol::{Answer, MAX_REQUEST_BYTES, Request, VERSION};
use oclcache::remote::socket;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::support::host::Host;
use crate::support::servers::Server;
use crate::support::wait_for;

const KEYS: u32 = 2;
/// Where the version is in a packet: behind four bytes that do not change.
const PLACE: usize = 4;

fn host_on(server: &Server, mut host: Host) -> Host {
    host.set("OCLCACHE_REMOTE_WAIT", "250ms");
    host.shell(&format!(
        "oclcache config set remote redis://127.0.0.1:{}",
        server.port
    ))
    .ok();
    host.remote(&["set-up"]).ok();
    host
}

/// The socket of the helper that serves.
fn socket_of(host: &Host) -> PathBuf {
    let files = std::fs::read_dir(host.sockets()).expect("a directory");
    let mut paths = files.flatten().map(|file| file.path());
    // The files beside it have an ending.
    paths
        .find(|path| path.extension().is_none())
        .expect("a socket")
}

fn endpoint(path: &std::path::Path, bind: bool) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let made = made.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short path");
    match bind {
        true => {
            rustix::net::bind(&made, &address).expect("bound");
            rustix::net::listen(&made, 16).expect("listens");
        }
        false => rustix::net::connect(&made, &address).expect("connected"),
    }
    made
}

fn of_version(mut packet: Vec<u8>, version: u8) -> Vec<u8> {
    packet[PLACE] = version;
    packet
}

#[test]
fn a_program_of_another_version_is_refused_at_once_and_the_status_says_so() {
    let server = Server::redis(&[]);
    let host = host_on(&server, Host::new());
    let mut helper = host.remote_command(&["serve"]).spawn().expect("started");
    wait_for("a helper that serves", || host.is_served());
    for version in [VERSION - 1, VERSION + 1] {
        let client = endpoint(&socket_of(&host), false);
        let packet = of_version(Request::Status.encode(), version);
        socket::send(client.as_fd(), &packet).expect("sent");
        // It hangs up: a helper that said nothing would block this test.
        let mut answer = [0; MAX_REQUEST_BYTES];
        let (_, length) =
            rustix::net::recv(&client, &mut answer, RecvFlags::empty()).expect("received");
        assert_eq!(length, 0, "an answer to version {version}");
        let wanted = format!("a program with version {version} of the protocol was not served");
        wait_for("the status says so", || {
            host.remote(&["status"]).ok().stdout.contains(&wanted)
        });
    }
    // Those of its own version it serves.
    host.build(KEYS).ok();
    host.remote(&["push"]).ok();
    assert_eq!(host.outbox(), 0);
    host.stop_helper();
    helper.wait().expect("ended");
}

#[test]
fn a_helper_that_answers_in_another_version_makes_programs_compile() {
    let server = Server::redis(&[]);
    let mut host = host_on(&server, Host::new());
    // A program that waited for more would be seen in the statistics.
    host.set("OCLCACHE_REMOTE_WAIT", "60s");
    let mut helper = host.remote_command(&["serve"]).spawn().expect("started");
    wait_for("a helper that serves", || host.is_served());
    let path = socket_of(&host);
    host.stop_helper();
    helper.wait().expect("ended");
    std::fs::remove_file(&path).expect("removed");
    let listener = endpoint(&path, true);
    std::thread::spawn(move || {
        while let Ok(client) = rustix::net::accept(&listener) {
            let mut packet = [0; MAX_REQUEST_BYTES];
            let _ = rustix::net::recv(&client, &mut packet, RecvFlags::empty());
            let packet = of_version(Answer::Hit.encode(), VERSION + 1);
            let _ = socket::send(client.as_fd(), &packet);
        }
    });
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
    assert!(host.stat("remote_errors") >= 1);
    // The first question may wait for a minute: the answer is refused as soon as it comes.
    assert!(host.stat("remote_wait_ns") < 30_000_000_000);
}

#[test]
fn a_library_that_finds_the_helper_of_another_version_compiles_and_the_status_says_so() {
    let server = Server::redis(&[]);
    let other = VERSION + 1;
    // What the library hands over is replaced, as by a library of that version.
    let script = format!(
        "case $1 in serve) exec \"$HELPER\" serve --protocol {other};; esac\nexec \"$HELPER\" \"$@\""
    );
    let host = host_on(&server, Host::with_helper(&script));
    host.build(KEYS).ok();
    assert_eq!(host.compilations(), KEYS as usize);
    // Not longer than 250 ms for each question, and nothing that has no bound: a busy machine adds to that.
    assert!(host.stat("remote_wait_ns") < 30_000_000_000);
    let status = host.shell("oclcache remote status").ok().stdout;
    let wanted = format!(
        "a program with version {other} of the protocol was not served, since this helper has version {VERSION}"
    );
    assert!(status.contains(&wanted), "{status}");
    assert!(host.helpers().is_empty());
}
