//! Several hosts at once, each in namespaces of its own: network, host name, boot id, and a home of its own.

use std::process::{Child, Stdio};
use std::time::Instant;

use crate::support::host::Host;
use crate::support::net::{Network, SERVER};
use crate::support::wait_for;

/// Hosts on one network that share a key.
fn cluster(count: usize) -> (tempfile::TempDir, Network, Vec<Host>) {
    cluster_of((0..count).map(|_| Host::new()).collect())
}

/// The same with these hosts.
fn cluster_of(mut hosts: Vec<Host>) -> (tempfile::TempDir, Network, Vec<Host>) {
    let directory = tempfile::tempdir().expect("a directory");
    let network = Network::new(directory.path(), hosts.len());
    for (number, host) in hosts.iter_mut().enumerate() {
        host.prefix = network.prefix(number);
    }
    let (first, others) = hosts.split_first().expect("hosts");
    first
        .shell(&format!("oclcache config set remote redis://{SERVER}"))
        .ok();
    first.remote(&["set-up"]).ok();
    let invitation = first.shell("oclcache remote invite").ok().stdout;
    for host in others {
        host.join(&invitation);
    }
    (directory, network, hosts)
}

/// Starts a helper on each host, before any program does. A first question waits for a short time only, in which a helper may not
/// start on a busy machine.
fn start_helpers(hosts: &[Host]) -> Vec<Child> {
    let helpers = hosts
        .iter()
        .map(|host| host.remote_command(&["serve"]).spawn().expect("started"))
        .collect();
    for host in hosts {
        wait_for("a helper that serves", || host.is_served());
    }
    helpers
}

fn stop_helpers(hosts: &[Host], helpers: Vec<Child>) {
    for (host, mut helper) in hosts.iter().zip(helpers) {
        host.stop_helper();
        helper.wait().expect("ended");
    }
}

/// Starts so many processes on each host at once, and waits for all of them.
fn run_on_all(hosts: &[Host], per_host: usize, keys: u32) {
    let processes: Vec<Child> = hosts
        .iter()
        .flat_map(|host| (0..per_host).map(|_| start(host, keys)))
        .collect();
    for mut process in processes {
        assert!(process.wait().expect("a child").success());
    }
}

fn start(host: &Host, keys: u32) -> Child {
    let mut command = host.client_command(&["many", "--keys", &keys.to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("started")
}

fn leases(network: &Network) -> usize {
    let names = network.redis_cli(&["--scan", "--pattern", "*/l/*"]);
    names.lines().count()
}

fn compilations(hosts: &[Host]) -> usize {
    hosts.iter().map(Host::compilations).sum()
}

#[test]
fn a_second_host_compiles_nothing() {
    let (_directory, _network, hosts) = cluster(2);
    hosts[0].build(5).ok();
    hosts[0].remote(&["push"]).ok();
    hosts[1].build(5).ok();
    assert_eq!(
        hosts[1].compilations(),
        0,
        "{}",
        hosts[1].remote(&["status"]).stdout
    );
}

/// What became of processes that build the same programs on all hosts at once.
struct Outcome {
    compilations: usize,
    seconds: f64,
    objects: String,
}

/// Starts so many processes on each of so many hosts at once, with empty caches. A compilation takes much longer than it takes to
/// start all of them.
fn build_at_once(host_count: usize, per_host: usize, keys: u32) -> Outcome {
    let (_directory, network, mut hosts) = cluster(host_count);
    for host in &mut hosts {
        host.set("STUB_BUILD_MS", "1500");
        host.set("OCLCACHE_REMOTE_WAIT", "10s");
    }
    let helpers = start_helpers(&hosts);
    let started = Instant::now();
    run_on_all(&hosts, per_host, keys);
    let outcome = Outcome {
        compilations: compilations(&hosts),
        seconds: started.elapsed().as_secs_f64(),
        objects: network.redis_cli(&["DBSIZE"]),
    };
    stop_helpers(&hosts, helpers);
    outcome
}

#[test]
fn many_processes_on_many_hosts_share_the_work() {
    const KEYS: usize = 3;
    let outcome = build_at_once(4, 4, KEYS as u32);
    // A process whose budget of waits is used up compiles, so a program may be compiled by a second host. Alone, each would compile.
    assert!(
        (KEYS..=2 * KEYS).contains(&outcome.compilations),
        "{} compilations, {} objects",
        outcome.compilations,
        outcome.objects
    );
}

/// `ci/remote cluster` and `ci/bench N remote` run it on a machine that does nothing else. They read what it prints.
#[test]
#[ignore = "takes minutes, and a busy machine makes hosts compile for themselves"]
fn sixty_four_processes_on_eight_hosts_compile_each_program_once() {
    const KEYS: usize = 3;
    let runs =
        std::env::var("OCLCACHE_TEST_RUNS").map_or(10, |runs| runs.parse().expect("a number"));
    let mut twice = Vec::new();
    for run in 1..=runs {
        // Without a remote store.
        let mut single = Host::new();
        single.set("STUB_BUILD_MS", "1500");
        let started = Instant::now();
        single.build(KEYS as u32).ok();
        let alone = started.elapsed().as_secs_f64();
        let outcome = build_at_once(8, 8, KEYS as u32);
        println!(
            "cluster: {} compilations, {:.3} s, alone {alone:.3} s",
            outcome.compilations, outcome.seconds
        );
        if outcome.compilations != KEYS {
            twice.push((run, outcome.compilations));
        }
    }
    assert!(
        twice.is_empty(),
        "runs with other counts of compilations: {twice:?}"
    );
}

/// The same on PoCL, whose entries are not recorded in a miss, but baked later: what hosts share is the baking. Each process compiles
/// for itself the first time.
#[test]
#[ignore = "takes minutes"]
fn sixty_four_processes_on_eight_hosts_with_pocl_bake_each_program_once() {
    const KEYS: u32 = 3;
    const HOSTS: usize = 8;
    let hosts: Option<Vec<Host>> = (0..HOSTS).map(|_| Host::on_pocl()).collect();
    let Some(mut hosts) = hosts else {
        return;
    };
    for host in &mut hosts {
        host.set("OCLCACHE_RECORD", "bake");
    }
    let (_directory, network, hosts) = cluster_of(hosts);
    let helpers = start_helpers(&hosts);
    let seconds = |started: Instant| started.elapsed().as_secs_f64();
    let started = Instant::now();
    run_on_all(&hosts, 8, KEYS);
    let cold = seconds(started);
    let started = Instant::now();
    let bakers: Vec<Child> = hosts
        .iter()
        .map(|host| host.baker().spawn().expect("started"))
        .collect();
    let mut counts = std::collections::BTreeMap::new();
    for baker in bakers {
        let output = baker.wait_with_output().expect("a child");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        for what in ["baked", "known", "skipped", "failed"] {
            let found = said[what].as_array().expect("a list").len();
            *counts.entry(what).or_insert(0) += found;
        }
    }
    let baking = seconds(started);
    let before: u64 = hosts.iter().map(|host| host.stat("hits")).sum();
    let started = Instant::now();
    run_on_all(&hosts, 8, KEYS);
    let warm = seconds(started);
    let hits: u64 = hosts.iter().map(|host| host.stat("hits")).sum::<u64>() - before;
    println!(
        "cluster on PoCL: {counts:?}, {hits} hits of {}, {} objects; {cold:.3} s cold, {baking:.3} s to bake, {warm:.3} s warm",
        HOSTS as u32 * 8 * KEYS,
        network.redis_cli(&["DBSIZE"])
    );
    stop_helpers(&hosts, helpers);
    // What another host has baked is stored before the baker begins.
    let all = HOSTS * KEYS as usize;
    let expected = [
        ("baked", KEYS as usize),
        ("failed", 0),
        ("known", all - KEYS as usize),
        ("skipped", 0),
    ];
    assert_eq!(counts, expected.into());
    assert_eq!(hits, HOSTS as u64 * 8 * u64::from(KEYS));
}

#[test]
fn the_host_that_builds_is_killed_and_another_one_builds() {
    let (_directory, network, mut hosts) = cluster(2);
    for host in &mut hosts {
        host.set("STUB_BUILD_MS", "3000");
        host.set("OCLCACHE_REMOTE_WAIT", "10s");
    }
    let mut first = start(&hosts[0], 1);
    wait_for("the first host has the lease", || leases(&network) == 1);
    first.kill().expect("killed");
    first.wait().expect("ended");
    hosts[0].stop_helper();
    hosts[1].build(1).ok();
    assert_eq!(hosts[1].compilations(), 1);
}

#[test]
fn what_another_host_has_built_meanwhile_is_not_compiled_again() {
    let (_directory, network, mut hosts) = cluster(2);
    for host in &mut hosts {
        host.set("STUB_BUILD_MS", "3000");
        host.set("OCLCACHE_REMOTE_WAIT", "10s");
    }
    // The helper of this host remembers for half a minute that the store lacks the entry.
    let mut killed = start(&hosts[0], 1);
    wait_for("the first host has the lease", || leases(&network) == 1);
    killed.kill().expect("killed");
    killed.wait().expect("ended");
    wait_for("the lease is given back", || leases(&network) == 0);
    hosts[1].build(1).ok();
    hosts[1].remote(&["push"]).ok();
    assert_eq!(hosts[1].compilations(), 1);
    let before = hosts[0].compilations();
    hosts[0].build(1).ok();
    assert_eq!(hosts[0].compilations(), before);
}

#[test]
fn a_clock_that_is_wrong_by_an_hour_changes_nothing() {
    for offset in ["+1h", "-1h"] {
        let (_directory, network, mut hosts) = cluster(2);
        for host in &mut hosts {
            host.set("STUB_BUILD_MS", "3000");
            host.set("OCLCACHE_REMOTE_WAIT", "10s");
        }
        let mut helper = hosts[1].helper_at(offset);
        wait_for("a helper that serves", || hosts[1].is_served());
        let is_preloaded = |pid: &u32| {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
            maps.unwrap_or_default().contains("libfaketime")
        };
        assert!(hosts[1].helpers().iter().all(is_preloaded));
        // It waits for the lease of the other host, and uses its entry.
        let mut first = start(&hosts[0], 1);
        wait_for("the first host has the lease", || leases(&network) == 1);
        hosts[1].build(1).ok();
        assert!(first.wait().expect("a child").success());
        assert_eq!(hosts[1].compilations(), 0, "{offset}");
        // What it sends is used.
        hosts[1].build(2).ok();
        assert_eq!(hosts[1].compilations(), 1, "{offset}");
        hosts[1].remote(&["push"]).ok();
        hosts[0].build(2).ok();
        assert_eq!(hosts[0].compilations(), 1, "{offset}");
        hosts[1].stop_helper();
        helper.wait().expect("ended");
    }
}

#[test]
fn a_link_that_is_cut_and_a_server_that_is_killed_in_the_middle() {
    let (_directory, mut network, mut hosts) = cluster(2);
    for host in &mut hosts {
        host.set("STUB_BUILD_MS", "300");
        // Also in a batch job.
        host.set("SLURM_JOB_ID", "1");
    }
    let mut running: Vec<Child> = hosts.iter().map(|host| start(host, 8)).collect();
    wait_for("a build", || compilations(&hosts) > 1);
    network.set_link(1, false);
    wait_for("more builds", || compilations(&hosts) > 4);
    network.kill_server();
    for process in &mut running {
        assert!(process.wait().expect("a child").success());
    }
    wait_for("the helpers end with the job", || {
        hosts.iter().all(|host| host.helpers().is_empty())
    });
}
