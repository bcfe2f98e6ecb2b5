//! Several hosts at once, each in namespaces of its own: network, host name, boot id, and a home of its own.

use std::process::{Child, Stdio};

use crate::support::host::Host;
use crate::support::net::{Network, SERVER};
use crate::support::wait_for;

/// Hosts on one network that share a key.
fn cluster(count: usize) -> (tempfile::TempDir, Network, Vec<Host>) {
    let directory = tempfile::tempdir().expect("a directory");
    let network = Network::new(directory.path(), count);
    let mut hosts: Vec<Host> = (0..count).map(|_| Host::new()).collect();
    for (number, host) in hosts.iter_mut().enumerate() {
        host.prefix = network.prefix(number);
    }
    let (first, others) = hosts.split_first().expect("hosts");
    first
        .shell(&format!("oclcache config set remote redis://{SERVER}"))
        .ok();
    first.remote(&["key", "new", "--if-missing"]).ok();
    let invitation = first.shell("oclcache remote invite").ok().stdout;
    for host in others {
        std::fs::write(host.path("invitation"), &invitation).expect("written");
        host.shell(&format!(
            "oclcache remote join - < '{}'",
            host.path("invitation").display()
        ))
        .ok();
    }
    (directory, network, hosts)
}

fn start(host: &Host, keys: u32) -> Child {
    let mut command = host.client_command(&["many", "--keys", &keys.to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("started")
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

#[test]
fn many_processes_on_many_hosts_share_the_work() {
    const KEYS: u32 = 3;
    let (_directory, network, mut hosts) = cluster(4);
    for host in &mut hosts {
        // Much longer than what it takes to start 16 processes here.
        host.set("STUB_BUILD_MS", "1500");
        host.set("OCLCACHE_REMOTE_WAIT", "10s");
    }
    // A first question waits for a short time only, in which a helper may not start on a busy machine.
    let mut helpers: Vec<Child> = hosts
        .iter()
        .map(|host| host.remote_command(&["serve"]).spawn().expect("started"))
        .collect();
    for host in &hosts {
        let is_reached = || {
            let status = host.remote(&["status"]).ok().stdout;
            status.contains("helper              runs")
        };
        wait_for("a helper that serves", is_reached);
    }
    let processes: Vec<Child> = hosts
        .iter()
        .flat_map(|host| (0..4).map(|_| start(host, KEYS)))
        .collect();
    for mut process in processes {
        assert!(process.wait().expect("a child").success());
    }
    // A process whose budget of waits is used up compiles, so a program may be compiled by a second host. Alone, each would compile.
    assert!(
        (KEYS as usize..=2 * KEYS as usize).contains(&compilations(&hosts)),
        "{} compilations, {} objects",
        compilations(&hosts),
        network.redis_cli(&["DBSIZE"])
    );
    for (host, helper) in hosts.iter().zip(&mut helpers) {
        host.stop_helper();
        helper.wait().expect("ended");
    }
}

#[test]
fn the_host_that_builds_is_killed_and_another_one_builds() {
    let (_directory, network, mut hosts) = cluster(2);
    for host in &mut hosts {
        host.set("STUB_BUILD_MS", "3000");
        host.set("OCLCACHE_REMOTE_WAIT", "10s");
    }
    let mut first = start(&hosts[0], 1);
    wait_for("the first host has the lease", || {
        network
            .redis_cli(&["--scan", "--pattern", "*/l/*"])
            .lines()
            .count()
            == 1
    });
    first.kill().expect("killed");
    first.wait().expect("ended");
    hosts[0].stop_helper();
    hosts[1].build(1).ok();
    assert_eq!(hosts[1].compilations(), 1);
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
