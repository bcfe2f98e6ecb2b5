//! Real servers on free ports of 127.0.0.1, each with a directory of its own.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::wait_for;

/// A server that ends with the test.
pub struct Server {
    child: Option<Child>,
    pub port: u16,
    directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens at now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn spawn(command: &mut Command) -> Child {
    // It ends with the tests even if they are killed.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.process_group(0);
    command.spawn().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; run ci/remote, which installs what is missing")
    })
}

impl Server {
    fn start(make: impl Fn(u16, &Path) -> Command) -> Server {
        let directory = tempfile::Builder::new()
            .prefix("oclcache-server-")
            .tempdir()
            .expect("a directory");
        // Another program may take the port in between.
        for _ in 0..5 {
            let port = free_port();
            let mut child = spawn(&mut make(port, directory.path()));
            let mut is_dead = false;
            wait_for("a server that listens", || {
                is_dead = child.try_wait().expect("a child").is_some();
                is_dead || TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            if !is_dead {
                return Server {
                    child: Some(child),
                    port,
                    directory,
                };
            }
        }
        panic!("no server: {:?}", make(0, directory.path()));
    }

    /// Redis with these options added.
    pub fn redis(options: &[&str]) -> Server {
        Server::start(|port, directory| {
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
            command
                .args(["--port", &port.to_string()])
                .arg("--dir")
                .arg(directory);
            command
                .args(["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"])
                .args(options);
            command
        })
    }

    /// lighttpd with WebDAV.
    pub fn webdav() -> Server {
        Server::start(|port, directory| {
            std::fs::create_dir_all(directory.join("root")).expect("made");
            let text = format!(
                "server.modules = (\"mod_webdav\")\nserver.document-root = \"{0}/root\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\nserver.upload-dirs = (\"{0}\")\nwebdav.activate = \"enable\"\n",
                directory.display()
            );
            std::fs::write(directory.join("conf"), text).expect("written");
            let mut command = Command::new("lighttpd");
            command.arg("-D").arg("-f").arg(directory.join("conf"));
            command
        })
    }

    /// moto, a mock of S3, with one bucket.
    pub fn s3() -> Server {
        let moto = std::env::var("OCLCACHE_TEST_MOTO")
            .expect("OCLCACHE_TEST_MOTO is not set: run ci/remote");
        let server = Server::start(|port, _| {
            let mut command = Command::new(&moto);
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            command
        });
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("connected");
        let request = format!(
            "PUT /bucket HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            server.port
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        server
    }

    /// s3s-fs, another S3, over a directory, with one bucket. Unlike moto it checks signatures. None if it could not be installed.
    pub fn s3s() -> Option<Server> {
        let program = std::env::var_os("OCLCACHE_TEST_S3S")?;
        Some(Server::start(|port, directory| {
            std::fs::create_dir_all(directory.join("bucket")).expect("made");
            let mut command = Command::new(&program);
            command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
            command.args(["--access-key", "id", "--secret-key", "secret"]);
            command.arg(directory);
            command
        }))
    }

    /// Takes its directory away, so that it can store nothing on the disk.
    pub fn lose_directory(&self) {
        std::fs::remove_dir_all(self.directory.path()).expect("removed");
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("a server").id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &pid])
            .status();
        assert!(sent.expect("kill").success());
    }

    /// One command of Redis. The answer as text.
    pub fn redis_cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(arguments)
            .output();
        let output = output.expect("redis-cli");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}
