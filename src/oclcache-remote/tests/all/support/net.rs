//! Hosts with network namespaces, host names and boot ids of their own, on one bridge with a server.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::wait_for;

/// The address of the server.
pub const SERVER: &str = "10.77.0.1";

/// A process that keeps namespaces alive; they end with it.
struct Namespaces(Child);

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Namespaces {
    fn new(script: &str) -> Namespaces {
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--mount", "sh", "-ec"]);
        command.arg(format!(
            "ip link set lo up; {script}; echo ready; exec sleep 3600"
        ));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("read");
        assert_eq!(line, "ready\n", "namespaces can be made by root only");
        Namespaces(child)
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// What makes a program run there.
    fn prefix(&self) -> Vec<String> {
        ["nsenter", "-t", &self.id(), "-m", "-u", "-n"]
            .map(str::to_owned)
            .to_vec()
    }
}

/// A Redis server and hosts.
pub struct Network {
    server: Namespaces,
    redis: Child,
    hosts: Vec<Namespaces>,
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.redis.kill();
        let _ = self.redis.wait();
    }
}

fn sh(inside: &Namespaces, line: &str) {
    let mut words = inside.prefix();
    let program = words.remove(0);
    let done = Command::new(program)
        .args(words)
        .args(["sh", "-ec", line])
        .status();
    assert!(done.expect("nsenter").success(), "{line}");
}

impl Network {
    /// So many hosts. `directory` is the test's own.
    pub fn new(directory: &Path, hosts: usize) -> Network {
        let server = Namespaces::new(&format!(
            "ip link add br0 type bridge; ip addr add {SERVER}/24 dev br0; ip link set br0 up"
        ));
        let mut words = server.prefix();
        let mut redis = Command::new(words.remove(0));
        redis.args(words).args([
            "redis-server",
            "--bind",
            SERVER,
            "--protected-mode",
            "no",
            "--save",
            "",
            "--port",
            "6379",
        ]);
        redis
            .args(["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"])
            .arg("--dir")
            .arg(directory);
        let redis = redis
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server");
        let made = (0..hosts).map(|number| {
            let boot = directory.join(format!("boot-{number}"));
            std::fs::write(&boot, format!("00000000-0000-0000-0000-{number:012}\n")).expect("written");
            let host = Namespaces::new(&format!(
                "hostname node{number}; mount --bind '{}' /proc/sys/kernel/random/boot_id",
                boot.display()
            ));
            sh(&server, &format!("ip link add v{number} type veth peer name eth0 netns {}; ip link set v{number} master br0 up", host.id()));
            sh(&host, &format!("ip addr add 10.77.0.{}/24 dev eth0; ip link set eth0 up", number + 2));
            host
        });
        let network = Network {
            hosts: made.collect(),
            server,
            redis,
        };
        wait_for("Redis listens", || network.redis_cli(&["PING"]) == "PONG");
        network
    }

    /// What makes a program run on a host.
    pub fn prefix(&self, host: usize) -> Vec<String> {
        self.hosts[host].prefix()
    }

    /// Cuts the link of a host, or mends it.
    pub fn set_link(&self, host: usize, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        sh(&self.server, &format!("ip link set v{host} {state}"));
    }

    pub fn redis_cli(&self, arguments: &[&str]) -> String {
        let mut words = self.server.prefix();
        let mut command = Command::new(words.remove(0));
        let output = command
            .args(words)
            .args(["redis-cli", "-h", SERVER])
            .args(arguments)
            .output();
        String::from_utf8_lossy(&output.expect("redis-cli").stdout)
            .trim()
            .to_owned()
    }

    /// Kills the server.
    pub fn kill_server(&mut self) {
        let _ = self.redis.kill();
        let _ = self.redis.wait();
    }
}
