//! What a person types, on two hosts.

use std::time::{Duration, Instant};

use oclcache_remote::server::IDLE;

use crate::support::host::{Host, invite};
use crate::support::proxy::{Mode, Proxy};
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
fn a_lab_on_another_s3() {
    let Some(server) = Server::s3s() else {
        return;
    };
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
    b.join(&invitation);
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

/// The stub's variables are in its keys, and their values are sent with `remote_content = all` only.
#[test]
fn what_is_never_sent_is_told() {
    let (_server, url) = redis();
    let mut a = Host::new();
    a.set("OCLCACHE_REMOTE_CONTENT", "binaries");
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    let why = "entries whose keys contain the value of a variable";
    let program = a.client_command(&["many", "--keys", &KEYS.to_string()]);
    let program = program.get_program().display().to_string();
    let ran = a.shell(&format!("oclcache run '{program}' many --keys {KEYS}"));
    let told = format!("oclcache: {KEYS} entries are never sent to `remote`: {why}\n");
    assert!(ran.stderr.ends_with(&told), "{}", ran.stderr);
    let again = a.shell(&format!("oclcache run '{program}' many --keys {KEYS}"));
    assert!(!again.ok().stderr.contains("never"));
    // Each look at all of them counts them once.
    for arguments in [&["push"][..], &["push", "--all"], &["push", "--all"]] {
        let pushed = a.remote(arguments).ok().stdout;
        let told = format!("never sent: {KEYS} (the last: {why})\n");
        assert!(pushed.ends_with(&told), "{arguments:?}: {pushed}");
    }
    let status = a.remote(&["status"]).ok().stdout;
    let told = format!("never sent          {KEYS} (the last: {why})\n");
    assert!(status.contains(&told), "{status}");
}

/// On PoCL: the stub's variables are in its keys, so its recipes fit one machine only.
#[test]
fn recipes_of_others_are_baked_by_those_who_want_them_in_a_process_that_reaches_nothing() {
    let (server, url) = redis();
    let Some(mut a) = Host::on_pocl() else {
        return;
    };
    a.set("OCLCACHE_RECORD", "bake");
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    a.build(KEYS).ok();
    a.remote(&["push"]).ok();
    let recipes = server.redis_cli(&["--scan", "--pattern", "*/r/*"]);
    assert_eq!(recipes.lines().count(), KEYS as usize);
    let invitation = a
        .shell("oclcache remote invite --public --name alice")
        .ok()
        .stdout;
    let host = |bakes: bool| {
        let mut host = Host::on_pocl().expect("it was there");
        if bakes {
            host.set("OCLCACHE_REMOTE_BAKE", "1");
        }
        host.join(&invitation);
        host.shell("oclcache remote pull").ok();
        host
    };
    let (without, b) = (host(false), host(true));
    assert_eq!((without.entries(), b.entries()), (0, KEYS as usize));
    // Those of this user's own programs only.
    let baked = |line: &str| {
        let said = b.shell(line).ok().stderr;
        said.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(
        baked("oclcache bake"),
        "oclcache: 0 baked, 0 skipped, 0 failed"
    );
    // Otherwise the baker would start it, and strace would follow it.
    let mut helper = b.remote_command(&["serve"]).spawn().expect("started");
    wait_for("a helper that serves", || b.is_served());
    // The worker that compiles opens the driver after it is confined, or not at all.
    let trace = b.path("trace");
    let traced = format!(
        "strace -f -e trace=landlock_restrict_self,socket,openat -o '{}' oclcache bake --imported --jobs 1 -v",
        trace.display()
    );
    assert_eq!(
        baked(&traced),
        format!("oclcache: {KEYS} baked, 0 skipped, 0 failed")
    );
    let trace = std::fs::read_to_string(&trace).expect("a trace");
    let (before, after) = trace
        .split_once("landlock_restrict_self(")
        .expect("a confined process");
    assert!(!before.contains("libpocl.so") && after.contains("libpocl.so"));
    b.build(KEYS).ok();
    assert_eq!(b.stat("hits"), u64::from(KEYS));
    // They are not this machine's own: it sends none of them.
    server.redis_cli(&["FLUSHALL"]);
    b.remote(&["push", "--all"]).ok();
    assert_eq!(server.redis_cli(&["DBSIZE"]), "0");
    // What was baked is removed when its host no longer trusts the signer of the recipes.
    b.shell("oclcache remote untrust alice").ok();
    assert_eq!(b.entries(), 0);
    b.stop_helper();
    helper.wait().expect("ended");
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

/// It adopts the helper, and waits for the end of each child.
#[test]
fn below_a_supervisor_the_helper_ends_with_its_clients() {
    const SUPERVISOR: &str = "import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)
if os.fork() == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
";
    let (server, url) = redis();
    let mut host = Host::new();
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    host.shell("oclcache remote set-up").ok();
    host.prefix = ["python3", "-c", SUPERVISOR].map(str::to_owned).to_vec();
    let mut command = host.client_command(&["many", "--keys", &KEYS.to_string()]);
    let mut supervisor = command.spawn().expect("started");
    wait_for("the supervisor ends", || {
        supervisor.try_wait().expect("a child").is_some()
    });
    let sent = server.redis_cli(&["DBSIZE"]).parse::<u32>();
    assert!(sent.expect("a number") >= KEYS);
    assert_eq!(host.outbox(), 0);
}

#[test]
fn who_traces_a_program_does_not_wait_for_the_helper() {
    let (_server, url) = redis();
    let mut host = Host::new();
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    let tracer = "strace -f -qq -o /dev/null -e trace=none";
    host.prefix = tracer.split(' ').map(str::to_owned).collect();
    let started = Instant::now();
    host.build(1).ok();
    let took = started.elapsed();
    assert!(took < IDLE / 2, "{took:?}");
    assert!(!host.helpers().is_empty());
    wait_for("the outbox is sent", || host.outbox() == 0);
}

#[test]
fn a_helper_has_no_priority_over_usual_programs() {
    let through = ["chrt", "-f", "5", "nice", "-n", "-5"].map(str::to_owned);
    let mut host = Host::new();
    host.prefix = through.to_vec();
    if host.run(&mut host.command("true".as_ref())).code != Some(0) {
        eprintln!("SKIPPED: real-time priorities (not allowed)");
        return;
    }
    let (_server, url) = redis();
    host.set("OCLCACHE_REMOTE", url);
    host.build(1).ok();
    let helpers = host.helpers();
    assert!(!helpers.is_empty());
    for helper in helpers {
        let stat = std::fs::read_to_string(format!("/proc/{helper}/stat")).expect("read");
        let behind_name = stat.rsplit(") ").next().expect("fields");
        let fields: Vec<&str> = behind_name.split(' ').collect();
        // The third field comes first: nice is the 19th, the policy the 41st (proc_pid_stat(5)).
        assert_eq!((fields[16], fields[38]), ("0", "0"), "{stat}");
    }
}

#[test]
fn in_a_job_the_helper_ends_although_nobody_has_waited_for_its_client() {
    let (_server, url) = redis();
    let mut host = Host::new();
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    host.set("SLURM_JOB_ID", "1");
    let mut client = host
        .client_command(&["many", "--keys", "1"])
        .spawn()
        .expect("started");
    wait_for("the outbox is sent", || {
        host.compilations() == 1 && host.outbox() == 0
    });
    assert!(!host.helpers().is_empty());
    // The client has its number until the end of the test.
    wait_for("the helper ends", || host.helpers().is_empty());
    client.wait().expect("a child");
}

#[test]
fn what_is_fetched_ahead_is_not_fetched_again_by_who_asks_for_it_meanwhile() {
    let (server, url) = redis();
    let a = Host::new();
    a.shell(&format!("oclcache config set remote '{url}'")).ok();
    let mut helper = a.remote_command(&["serve"]).spawn().expect("started");
    wait_for("a helper that serves", || a.is_served());
    a.build(KEYS).ok();
    // The list of the keys of a process.
    wait_for("the bundle", || {
        !server
            .redis_cli(&["--scan", "--pattern", "*/b/*"])
            .is_empty()
    });
    a.stop_helper();
    helper.wait().expect("ended");
    // Far enough away that the program asks for the second one while it is on its way.
    let proxy = Proxy::new(server.port, Mode::Forward(Duration::from_millis(50)));
    let b = Host::new();
    let invitation = a.shell("oclcache remote invite").ok().stdout;
    b.join(&invitation.replace(&format!(":{}", server.port), &format!(":{}", proxy.port)));
    server.redis_cli(&["CONFIG", "RESETSTAT"]);
    b.build(KEYS).ok();
    let stats = server.redis_cli(&["INFO", "commandstats"]);
    // Each entry and the bundle, once.
    let wanted = format!("cmdstat_getrange:calls={},", KEYS + 1);
    assert!(stats.contains(&wanted), "{stats}");
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
