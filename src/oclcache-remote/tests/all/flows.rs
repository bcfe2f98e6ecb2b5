//! What a person types, on two hosts.

use crate::support::host::Host;
use crate::support::servers::Server;
use crate::support::wait_for;

const KEYS: u32 = 3;

fn redis() -> (Server, String) {
    let server = Server::redis(&[]);
    let url = format!("redis://127.0.0.1:{}", server.port);
    (server, url)
}

/// Host a builds, and its helper sends what it built.
fn build_and_send(a: &Host) {
    a.build(KEYS).ok();
    assert_eq!(a.compilations(), KEYS as usize);
    a.remote(&["push"]).ok();
    assert_eq!(a.outbox(), 0);
}

/// Host b compiles nothing, and computes the same.
#[track_caller]
fn finds_all(b: &Host) {
    b.build(KEYS).ok();
    assert_eq!(b.compilations(), 0, "{}", b.remote(&["status"]).stdout);
}

/// As `oclcache remote invite | ssh b oclcache remote join -`.
fn invite(a: &Host, b: &Host) {
    let invitation = a.shell("oclcache remote invite").ok().stdout;
    std::fs::write(b.path("invitation"), invitation).expect("written");
    b.shell(&format!(
        "oclcache remote join - < '{}'",
        b.path("invitation").display()
    ))
    .ok();
}

fn lab(url: &str) {
    let (a, b) = (Host::new(), Host::new());
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    build_and_send(&a);
    invite(&a, &b);
    finds_all(&b);
    // And what b builds, a finds.
    b.build(KEYS + 2).ok();
    assert_eq!(b.compilations(), 2);
    b.remote(&["push"]).ok();
    a.build(KEYS + 2).ok();
    assert_eq!(a.compilations(), KEYS as usize);
}

#[test]
fn a_helper_of_another_version_says_so_and_does_nothing() {
    let host = Host::new();
    let url = format!("file://{}", host.path("store").display());
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    let own = env!("CARGO_PKG_VERSION");
    for verb in [&["serve"][..], &["status"], &["verb", "--of-tomorrow"]] {
        let ran = host.remote(&[&["--caller", "9.8.7"], verb].concat());
        assert_eq!(ran.code, Some(1));
        let wanted = format!(
            "oclcache-remote: error: `oclcache-remote` {own} does not work for oclcache 9.8.7; install both of one version\n"
        );
        assert_eq!(ran.stderr, wanted);
    }
    host.remote(&["--caller", own, "status"]).ok();
    assert!(!host.path("store").exists());
}

#[test]
fn a_lab_on_redis() {
    let (_server, url) = redis();
    lab(&url);
}

#[test]
fn a_lab_on_webdav() {
    let server = Server::webdav();
    lab(&format!("http://127.0.0.1:{}/cache", server.port));
}

#[test]
fn a_lab_on_s3() {
    let server = Server::s3();
    lab(&format!(
        "s3://id:secret@bucket/cache?endpoint=http://127.0.0.1:{}",
        server.port
    ));
}

#[test]
fn a_lab_on_a_directory() {
    let folder = tempfile::tempdir().expect("a directory");
    lab(&format!("file://{}", folder.path().display()));
}

#[test]
fn a_lab_with_a_password() {
    let server = Server::redis(&["--requirepass", "pass word"]);
    lab(&format!("redis://:pass%20word@127.0.0.1:{}", server.port));
}

#[test]
fn a_colleague_reads_at_once_and_is_read_once_trusted() {
    let (_server, url) = redis();
    let (a, b) = (Host::new(), Host::new());
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    build_and_send(&a);
    let invitation = a
        .shell("oclcache remote invite --public --name alice")
        .ok()
        .stdout;
    assert!(
        !invitation.contains("key RWQA") && !invitation.contains("credential"),
        "{invitation}"
    );
    std::fs::write(b.path("invitation"), invitation).expect("written");
    b.shell(&format!(
        "oclcache remote join - < '{}'",
        b.path("invitation").display()
    ))
    .ok();
    finds_all(&b);
    b.build(KEYS + 2).ok();
    b.remote(&["push"]).ok();
    let key = b.shell("oclcache remote key").ok().stdout;
    // A host that compiles a program replaces an object of an unknown signer, so these hosts come last.
    let d = Host::new();
    d.shell(&format!("oclcache config set remote '{url}'")).ok();
    d.shell(&format!("oclcache remote trust bob {key}")).ok();
    d.build(KEYS + 2).ok();
    assert_eq!(d.compilations(), KEYS as usize, "d trusts b, and not a");
    // Trust ends: what b has signed is deleted.
    let before = d.entries();
    d.shell("oclcache remote untrust bob").ok();
    assert!(d.entries() < before);
    let status = d.shell("oclcache remote status").ok().stdout;
    assert!(status.contains("revoked"), "{status}");
    let c = Host::new();
    c.shell(&format!("oclcache config set remote '{url}'")).ok();
    c.build(KEYS + 2).ok();
    assert_eq!(c.compilations(), KEYS as usize + 2, "c trusts nobody");
    a.build(KEYS + 2).ok();
    assert_eq!(
        a.compilations(),
        KEYS as usize + 2,
        "a does not trust b yet"
    );
}

#[test]
fn a_baked_entry_is_sent_although_its_recipe_was() {
    let (server, url) = redis();
    let objects = |kind: &str| {
        let names = server.redis_cli(&["--scan", "--pattern", &format!("*/{kind}/*")]);
        names.lines().count()
    };
    let hosts = [Host::new(), Host::new()].map(|mut host| {
        host.set("OCLCACHE_RECORD", "bake");
        host
    });
    let [a, b] = hosts;
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    a.build(KEYS).ok();
    a.remote(&["push"]).ok();
    assert_eq!((objects("r"), objects("e")), (KEYS as usize, 0));
    a.shell("oclcache bake").ok();
    a.remote(&["push"]).ok();
    assert_eq!(objects("e"), KEYS as usize);
    invite(&a, &b);
    finds_all(&b);
}

#[test]
fn the_help_of_the_command_names_all_verbs_of_the_helper() {
    let host = Host::new();
    let verbs = host.remote(&["--help"]).ok().stdout;
    let (_, verbs) = verbs.split_once("Commands:\n").expect("verbs");
    let help = host.shell("oclcache remote --help").ok().stdout;
    let verbs = verbs.lines().take_while(|line| !line.is_empty());
    let verbs: Vec<&str> = verbs
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(verbs.len() > 5, "{verbs:?}");
    for verb in verbs {
        let is_named = help
            .split(|char: char| !char.is_alphanumeric())
            .any(|word| word == verb);
        assert!(is_named, "`{verb}` is missing: {help}");
    }
}

#[test]
fn an_invitation_is_not_shown_on_a_terminal() {
    let (_server, url) = redis();
    let a = Host::new();
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    let ran = a.shell("script -qec 'oclcache remote invite' /dev/null");
    assert!(
        ran.stdout.contains("secret key") && !ran.stdout.contains("oclcache-invitation"),
        "{}",
        ran.stdout
    );
}

#[test]
fn continuous_integration_starts_warm_in_an_empty_container() {
    let (_server, url) = redis();
    let maker = Host::new();
    let made = maker
        .shell(&format!(
            "OCLCACHE_REMOTE='{url}' oclcache remote key new --ci"
        ))
        .ok()
        .stdout;
    let value = |name: &str| {
        let line = made
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{made}")).to_owned()
    };
    let job = |with_key: bool| {
        let mut host = Host::new();
        for name in ["OCLCACHE_REMOTE", "OCLCACHE_REMOTE_TRUST"] {
            host.set(name, value(name));
        }
        if with_key {
            host.set("OCLCACHE_REMOTE_KEY", value("OCLCACHE_REMOTE_KEY"));
        }
        host
    };
    let trusted = job(true);
    build_and_send(&trusted);
    finds_all(&job(true));
    // A pull request of a stranger has no secret: it reads, and writes nothing.
    let stranger = job(false);
    finds_all(&stranger);
    stranger.build(KEYS + 1).ok();
    assert_eq!(stranger.compilations(), 1);
    assert_ne!(stranger.remote(&["push"]).code, Some(0));
    let next = job(false);
    next.build(KEYS + 1).ok();
    assert_eq!(next.compilations(), 1);
}

#[test]
fn what_a_machine_received_it_never_sends() {
    let (server, url) = redis();
    let (a, b) = (Host::new(), Host::new());
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    build_and_send(&a);
    invite(&a, &b);
    finds_all(&b);
    server.redis_cli(&["FLUSHALL"]);
    b.remote(&["push", "--all"]).ok();
    assert_eq!(server.redis_cli(&["DBSIZE"]), "0");
    a.remote(&["push", "--all"]).ok();
    assert_eq!(server.redis_cli(&["DBSIZE"]), KEYS.to_string());
}

#[test]
fn the_helper_sends_by_itself_and_ends_by_itself() {
    let (server, url) = redis();
    let a = Host::new();
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    let mut helper = a
        .remote_command(&["serve", "--idle", "4"])
        .spawn()
        .expect("started");
    a.build(KEYS).ok();
    wait_for("the outbox is sent", || a.outbox() == 0);
    assert!(
        server
            .redis_cli(&["DBSIZE"])
            .parse::<u32>()
            .expect("a number")
            >= KEYS
    );
    wait_for("the helper ends", || {
        helper.try_wait().expect("a child").is_some()
    });
}

#[test]
fn pull_fetches_for_work_without_a_network() {
    let (mut server, url) = redis();
    let (a, b) = (Host::new(), Host::new());
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    build_and_send(&a);
    invite(&a, &b);
    b.shell("oclcache remote pull").ok();
    assert_eq!(b.entries(), KEYS as usize);
    server.kill();
    finds_all(&b);
}

#[test]
fn doctor_says_what_is_in_order_and_what_is_not() {
    let (mut server, url) = redis();
    let a = Host::new();
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    let said = a.shell("oclcache remote doctor").ok().stdout;
    for what in [
        "connection",
        "round trip",
        "signature",
        "eviction",
        "leases",
    ] {
        assert!(said.contains(&format!("ok      {what}")), "{what}: {said}");
    }
    server.kill();
    let ran = a.shell("oclcache remote doctor");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("FAILED  connection"), "{}", ran.stdout);
}
