//! A host: a home, a cache, a configuration and a state of its own, with oclcache installed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::TempDir;

/// Where `ci/remote` has built the library, the command and the programs of the tests.
fn built() -> PathBuf {
    let built = std::env::var_os("OCLCACHE_TEST_BUILT");
    built
        .expect("OCLCACHE_TEST_BUILT is not set: run ci/remote")
        .into()
}

/// The directory in which oclcache is installed: all hosts share the files, as from one package. It is removed with the last host.
fn installed() -> Arc<TempDir> {
    static INSTALLED: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(directory) = installed.upgrade() {
        return directory;
    }
    let directory = Arc::new(install(Path::new(env!("CARGO_BIN_EXE_oclcache-remote"))));
    *installed = Arc::downgrade(&directory);
    directory
}

/// A directory with oclcache and this helper.
fn install(helper: &Path) -> TempDir {
    // Not below /tmp, where others could replace it: the library starts no such helper.
    let directory = tempfile::Builder::new()
        .prefix("remote-installed-")
        .tempdir_in(built())
        .expect("a directory");
    let files = [
        (built().join("oclcache"), "oclcache"),
        (built().join("liboclcache.so"), "liboclcache.so"),
        (helper.to_owned(), "oclcache-remote"),
    ];
    for (from, to) in files {
        // A hard link keeps what was built if cargo builds again.
        let to = directory.path().join(to);
        if std::fs::hard_link(&from, &to).is_err() {
            std::fs::copy(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        }
    }
    directory
}

pub struct Host {
    directory: TempDir,
    installed: Arc<TempDir>,
    /// Keeps the real helper where another one is installed.
    real: Option<Arc<TempDir>>,
    /// Set for each program.
    pub variables: BTreeMap<String, OsString>,
    /// Put before each program.
    pub prefix: Vec<String>,
}

/// What became of a program.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self
    }
}

/// As `oclcache remote invite | ssh b oclcache remote join -`.
pub fn invite(a: &Host, b: &Host) {
    let invitation = a.shell("oclcache remote invite").ok().stdout;
    b.join(&invitation);
}

/// Has a host's programs run as a user whom modes of files bind.
pub fn bind_by_modes(host: &mut Host) {
    if rustix::process::geteuid().is_root() {
        let without = "--bounding-set=-dac_override,-dac_read_search,-fowner";
        host.prefix = ["setpriv", without].map(str::to_owned).to_vec();
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    let mode = Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("changed");
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop_helper();
    }
}

impl Host {
    /// A host on which the stub driver compiles for 2 s.
    pub fn new() -> Host {
        let directory = tempfile::Builder::new()
            .prefix("oclcache-host-")
            .tempdir()
            .expect("a directory");
        let host = Host {
            directory,
            installed: installed(),
            real: None,
            variables: BTreeMap::new(),
            prefix: Vec::new(),
        };
        for name in ["home", "icd", "run"] {
            std::fs::create_dir(host.path(name)).expect("made");
        }
        let stub = built().join("examples/libstub_driver.so");
        let icd = |name: &str, library: &Path| {
            let directory = host.path(name);
            std::fs::create_dir_all(&directory).expect("made");
            std::fs::write(directory.join("x.icd"), format!("{}\n", library.display()))
                .expect("written");
        };
        icd("icd", &host.installed("liboclcache.so"));
        icd("vendors", &stub);
        host
    }

    /// A host whose helper this script starts, with the path of the real one in `$HELPER`.
    pub fn with_helper(script: &str) -> Host {
        let mut host = Host::new();
        let helper = host.installed("oclcache-remote");
        let path = host.path("helper");
        let text = format!("#!/bin/sh\nHELPER='{}'\n{script}\n", helper.display());
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("set");
        // The real one is to stay as long as the script.
        host.real = Some(std::mem::replace(
            &mut host.installed,
            Arc::new(install(&path)),
        ));
        let library = format!("{}\n", host.installed("liboclcache.so").display());
        std::fs::write(host.path("icd/x.icd"), library).expect("written");
        host
    }

    /// A host with PoCL, if this machine has it.
    pub fn on_pocl() -> Option<Host> {
        let registered = std::env::var_os("OCLCACHE_TEST_POCL")?;
        let host = Host::new();
        std::fs::copy(registered, host.path("vendors/x.icd")).expect("copied");
        Some(host)
    }

    /// Uses an invitation.
    pub fn join(&self, invitation: &str) {
        let file = self.path("invitation");
        std::fs::write(&file, invitation).expect("written");
        self.shell(&format!("oclcache remote join - < '{}'", file.display()))
            .ok();
    }

    /// A file of oclcache.
    fn installed(&self, name: &str) -> PathBuf {
        self.installed.path().join(name)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.insert(name.to_owned(), value.into());
    }

    /// A program with nothing of this machine's environment.
    pub fn command(&self, program: &Path) -> Command {
        let mut words = self.prefix.iter();
        let mut command = match words.next() {
            None => Command::new(program),
            Some(first) => {
                let mut command = Command::new(first);
                // Another mount namespace begins at its root.
                let here = self.directory.path();
                command
                    .args(words)
                    .args(["env", "-C"])
                    .arg(here)
                    .arg(program);
                command
            }
        };
        command
            .env_clear()
            .stdin(Stdio::null())
            .current_dir(self.directory.path());
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env(
                "PATH",
                format!("{}:{path}", self.installed.path().display()),
            )
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("OCL_ICD_VENDORS", self.path("icd"))
            .env("OCLCACHE_VENDORS", self.path("vendors"))
            .env("OCLCACHE_SYSTEM_DIRS", "none")
            .env("OCLCACHE_AUTOBAKE", "0")
            .env("OCLCACHE_AUDIT", "0")
            .env("OCLCACHE_RECORD", "inline")
            // A program waits for a quarter of the compile time: long enough on a busy machine.
            .env("STUB_BUILD_MS", "2000")
            .env("OCLCACHE_REMOTE_WAIT", "10s")
            // The stub's variables are in its keys, so they must be equal on all hosts, and without `all` nothing would be sent.
            .env("STUB_LOG", "stub.log")
            .env("OCLCACHE_REMOTE_CONTENT", "all")
            .envs(&self.variables);
        command
    }

    pub fn run(&self, command: &mut Command) -> Ran {
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let Output {
            status,
            stdout,
            stderr,
        } = output;
        Ran {
            code: status.code(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    pub fn remote_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.installed("oclcache-remote"));
        command.args(arguments);
        command
    }

    /// A verb of the helper.
    pub fn remote(&self, arguments: &[&str]) -> Ran {
        self.run(&mut self.remote_command(arguments))
    }

    /// Starts the helper, and has a file list these system calls of it.
    pub fn traced_helper(&self, calls: &str, trace: &Path) -> Child {
        let mut command = self.command(Path::new("strace"));
        command.args(["-f", "-e", &format!("trace={calls}"), "-o"]);
        command.arg(trace).arg(self.installed("oclcache-remote"));
        command.arg("serve").spawn().expect("strace")
    }

    /// Starts the helper with a clock that differs by this from the system's.
    pub fn helper_at(&self, offset: &str) -> Child {
        let mut command = self.command(Path::new("faketime"));
        command.args(["-m", "--exclude-monotonic", "-f", offset]);
        command.arg(self.installed("oclcache-remote")).arg("serve");
        command.spawn().expect("faketime")
    }

    /// Whether a helper answers.
    pub fn is_served(&self) -> bool {
        let status = self.remote(&["status"]).ok().stdout;
        status.contains("helper              runs")
    }

    /// A counter of oclcache's.
    pub fn stat(&self, name: &str) -> u64 {
        let mut command = self.command(&self.installed("oclcache"));
        let text = self.run(command.args(["stats", "--json"])).ok().stdout;
        let stats: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        // Those of the remote level are left out while they are zero.
        stats
            .get(name)
            .map_or(0, |value| value.as_u64().expect("a number"))
    }

    /// The client with these arguments, ready to run.
    pub fn client_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&built().join("examples/client"));
        command.args(arguments);
        command
    }

    /// Builds and runs so many programs. Each computes what it should, or the client fails.
    pub fn build(&self, keys: u32) -> Ran {
        self.run(&mut self.client_command(&["many", "--keys", &keys.to_string()]))
    }

    /// The command that bakes, which prints JSON.
    pub fn baker(&self) -> Command {
        let mut command = self.command(&self.installed("oclcache"));
        command.args(["bake", "--json"]).stdout(Stdio::piped());
        command
    }

    /// A shell command line, as a user types it.
    pub fn shell(&self, line: &str) -> Ran {
        self.run(self.command(Path::new("/bin/sh")).args(["-c", line]))
    }

    /// What the driver has compiled so far.
    pub fn compilations(&self) -> usize {
        let log = std::fs::read_to_string(self.path("stub.log")).unwrap_or_default();
        log.lines()
            .filter(|line| line.starts_with("compile"))
            .count()
    }

    /// The number of entries in the cache.
    pub fn entries(&self) -> usize {
        let shards = std::fs::read_dir(self.path("home/.cache/oclcache/v1/entries"));
        let shards = shards.into_iter().flatten().flatten();
        let files = shards.flat_map(|shard| std::fs::read_dir(shard.path()).into_iter().flatten());
        files.count()
    }

    /// How often the store has failed.
    pub fn errors(&self) -> u64 {
        let status = self.remote(&["status"]).ok().stdout;
        let counted = status.split(", ").find_map(|one| one.split_once(" errors"));
        counted.expect("a row").0.parse().expect("a number")
    }

    /// The directory of the helper's socket, lock and state.
    pub fn sockets(&self) -> PathBuf {
        self.path("home/.cache/oclcache/v1/remote")
    }

    /// The markers in the outbox.
    pub fn outbox(&self) -> usize {
        let caches = std::fs::read_dir(self.path("home/.local/state/oclcache/outbox"));
        let caches = caches.into_iter().flatten().flatten();
        caches
            .flat_map(|cache| std::fs::read_dir(cache.path()).into_iter().flatten())
            .count()
    }

    /// The processes of this host's helpers.
    pub fn helpers(&self) -> Vec<u32> {
        let home = format!("HOME={}", self.path("home").display());
        let processes = std::fs::read_dir("/proc").expect("listed").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_helper = |pid: &u32| {
            let read =
                |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let is_remote = read("comm").starts_with(b"oclcache-remote");
            is_remote
                && read("environ")
                    .split(|byte| *byte == 0)
                    .any(|one| one == home.as_bytes())
        };
        pids.filter(is_helper).collect()
    }

    /// Ends the helpers of this host, as kill -9 does.
    pub fn stop_helper(&self) {
        for pid in self.helpers() {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}
