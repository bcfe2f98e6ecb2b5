//! Runs programs in a sandbox of their own: bare, or through the cache, with the spy between it and the driver.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// A kernel whose result is what the option `-DN=NUMBER` says.
pub const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = N; }\n";

/// A driver to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Stub,
    Pocl,
    Intel,
    Rusticl,
    /// Intel's GPU driver without a GPU. It compiles for a product that is not there, and executes nothing: memory keeps what it had.
    IntelGpu,
    /// Not among [`Driver::ALL`]: an interpreter, whose variables alone are in question.
    Oclgrind,
}

impl Driver {
    pub const ALL: [Driver; 5] = [
        Driver::Stub,
        Driver::Pocl,
        Driver::Intel,
        Driver::Rusticl,
        Driver::IntelGpu,
    ];

    /// Its `.icd` file; None, said by name, if the driver is not there.
    fn icd(self) -> Option<PathBuf> {
        let variable = match self {
            Driver::Stub => return None,
            Driver::Pocl => "OCLCACHE_TEST_POCL",
            Driver::Intel => "OCLCACHE_TEST_INTEL",
            Driver::Rusticl => "OCLCACHE_TEST_RUSTICL",
            Driver::IntelGpu => "OCLCACHE_TEST_INTEL_GPU",
            Driver::Oclgrind => "OCLCACHE_TEST_OCLGRIND",
        };
        let icd = given(variable);
        if icd.is_none() {
            skipped(format_args!("{self:?} ({variable} is not set)"));
        }
        icd
    }

    /// The library, as its `.icd` file names it; None, said by name, if the driver is not there.
    pub fn library(self) -> Option<String> {
        if self == Driver::Stub {
            return Some(example("libstub_driver.so").display().to_string());
        }
        let text = std::fs::read_to_string(self.icd()?).expect("the .icd file that was named");
        Some(text.lines().next().expect("a library in it").to_owned())
    }

    /// Whether kernels do what their source says.
    pub fn executes(self) -> bool {
        self != Driver::IntelGpu
    }

    /// The variables without which it finds no library of its own or no device, if a file beside its `.icd` file has any.
    pub fn variables(self) -> BTreeMap<String, OsString> {
        let file = self.icd().map(|icd| icd.with_extension("env"));
        let text = file.and_then(|file| std::fs::read_to_string(file).ok());
        let variable = |line: &str| {
            let (name, value) = line.split_once('=').expect("NAME=VALUE");
            let mut value = OsString::from(value);
            if let Some(inherited) = std::env::var_os(name).filter(|_| name == "LD_LIBRARY_PATH") {
                value.push(":");
                value.push(inherited);
            }
            (name.to_owned(), value)
        };
        let text = text.unwrap_or_default();
        text.lines().map(variable).collect()
    }
}

/// A program with nothing of this machine's environment but where commands and temporary files are, and with no signal ignored. All
/// else would make a test say something else on another machine: a `CI=true`, say, turns background baking off, and shells have
/// what they start in the background ignore SIGINT.
#[allow(unsafe_code)] // signals have no safe interface
pub fn plain_command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    let heed = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: async-signal-safe, and a disposition that any process may have.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: what runs in the child allocates nothing and takes no lock.
    unsafe { command.pre_exec(heed) };
    command.env_clear().env("LC_ALL", "C.UTF-8");
    for name in ["PATH", "TMPDIR", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Says what is not tested, and why.
#[allow(clippy::print_stderr)]
pub fn skipped(what: impl std::fmt::Display) {
    eprintln!("skipped: {what}");
    // Cargo hides what a passing test prints; `ci/test` names these at its end.
    if let Some(list) = given("OCLCACHE_TEST_SKIPPED") {
        let opened = std::fs::File::options()
            .append(true)
            .create(true)
            .open(list);
        let written = opened.and_then(|mut file| file.write_all(format!("{what}\n").as_bytes()));
        written.expect("the list of what was skipped");
    }
}

/// Whether this is a test run with everything that takes long (`ci/test --long`). If not, names what is skipped.
pub fn is_long(what: impl std::fmt::Display) -> bool {
    let is_long = given("OCLCACHE_TEST_LONG").is_some();
    if !is_long {
        skipped(format_args!("{what} (without `ci/test --long`)"));
    }
    is_long
}

/// The stub, if it is among these drivers, and one of the others that are there, which the test's name chooses: so each driver has its
/// part of many tests. All of them in a test run with everything that takes long. For tests of what drivers do not differ in.
pub fn some_of(drivers: &[Driver]) -> Vec<Driver> {
    let (stub, real): (Vec<Driver>, Vec<Driver>) =
        drivers.iter().partition(|driver| **driver == Driver::Stub);
    // One line for all tests, since a test run ends with a list of what was skipped.
    if real.len() < 2 || is_long("many tests on all drivers but the stub and one each") {
        return drivers.to_vec();
    }
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    let first = xxh3_64(name.as_bytes()) as usize % real.len();
    let mut in_turn = real.iter().cycle().skip(first).take(real.len());
    let chosen = in_turn.find(|driver| driver.library().is_some());
    stub.into_iter().chain(chosen.copied()).collect()
}

/// A path that `ci/test` passes on.
pub fn given(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The Python that has PyOpenCL if there is one, else the system's.
pub fn python() -> PathBuf {
    given("OCLCACHE_TEST_PYTHON").unwrap_or_else(|| "python3".into())
}

/// Whether the tests run as root, who may do more and reads everything.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The directory that cargo builds into.
pub fn built() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_oclcache"))
        .parent()
        .expect("a directory")
        .to_owned()
}

/// The library under test: one that is given, as linked for another glibc, or that of this test run, which Cargo leaves beside the
/// test's own binary.
pub fn library() -> PathBuf {
    if let Some(given) = given("OCLCACHE_TEST_LIBRARY") {
        return given;
    }
    let library = built().join("deps/liboclcache.so");
    if library.exists() {
        library
    } else {
        built().join("liboclcache.so")
    }
}

/// A program, under the tool that `ci/sanitize` names.
pub fn under_tool(program: &Path) -> Command {
    let tool = std::env::var("OCLCACHE_TEST_UNDER").unwrap_or_default();
    let mut words = tool.split_whitespace();
    match words.next() {
        None => plain_command(program),
        Some(first) => {
            let mut command = plain_command(first);
            command.args(words).arg(program);
            command
        }
    }
}

pub fn example(name: &str) -> PathBuf {
    built().join("examples").join(name)
}

/// Copies a program that is going to be run. A copy that this process wrote itself could be open for writing in a child that
/// another test has just forked, and would be "busy".
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to).status();
    assert!(
        copied.expect("cp").success(),
        "{} is not copied",
        to.display()
    );
}

/// All that is below a directory, by path, with kind, size, time of change and inode.
pub fn tree(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let metadata = path.symlink_metadata().expect("what was listed");
        let state = format!(
            "{:o} {} {}.{} {}",
            metadata.mode(),
            metadata.size(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ino()
        );
        if metadata.is_dir() {
            found.extend(tree(&path));
        }
        found.insert(path, state);
    }
    found
}

/// A home, a cache and drivers of one test.
pub struct Sandbox {
    directory: TempDir,
    runs: std::cell::Cell<u32>,
    library: String,
    /// What its drivers need; a test that clears `variables` keeps these.
    needed: BTreeMap<String, OsString>,
    /// Set for each program.
    pub variables: BTreeMap<String, OsString>,
}

/// How a program comes to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Loader, spy, driver.
    Bare,
    /// Loader, cache, spy, driver.
    Cached,
}

/// What became of a program.
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
    /// What ended it, if that was a signal.
    pub signal: Option<i32>,
    /// What the spy saw, a line each.
    pub spied: Vec<String>,
}

impl Ran {
    /// How often the driver built a program from its source, whatever the cache says of it.
    pub fn source_builds(&self) -> usize {
        self.spied
            .iter()
            .filter(|line| line.starts_with("source-build"))
            .count()
    }

    /// How often the driver's compiler or linker worked: builds of source and of IL, compiles and links.
    pub fn compiler_runs(&self) -> usize {
        let kinds = ["source-build ", "il-build ", "compile ", "link "];
        self.spied
            .iter()
            .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)))
            .count()
    }

    /// The program ended well.
    #[track_caller]
    pub fn ok(self) -> Ran {
        assert_eq!(
            self.code,
            Some(0),
            "standard output:\n{}\nstandard error:\n{}",
            self.stdout,
            self.stderr
        );
        self
    }
}

/// The directories in memory of the caches below a directory. A cache that was removed may have left one.
pub fn live_directories(below: &Path) -> Vec<PathBuf> {
    let is_of_it = |live: &PathBuf| {
        let name = live.file_name().unwrap_or_default().as_bytes();
        let of = std::fs::read(live.join("cache")).unwrap_or_default();
        let of = of.strip_prefix(b"oclclive").map(OsStr::from_bytes);
        name.starts_with(b"oclcache-") && of.is_some_and(|of| Path::new(of).starts_with(below))
    };
    let listed = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let listed = listed.flatten().map(|entry| entry.path());
    listed.filter(is_of_it).collect()
}

/// Removes what the caches below a directory have in memory, as a restart of the system does.
pub fn empty_memory(below: &Path) {
    for live in live_directories(below) {
        let _ = std::fs::remove_dir_all(live);
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        empty_memory(self.directory.path());
    }
}

impl Sandbox {
    /// None if the driver is not there.
    pub fn new(driver: Driver) -> Option<Sandbox> {
        let mut sandbox = Sandbox::of_library(&driver.library()?);
        sandbox.prepare_for(driver);
        Some(sandbox)
    }

    /// On the stub driver, which is built with the tests.
    pub fn stub() -> Sandbox {
        Sandbox::of_library(&example("libstub_driver.so").display().to_string())
    }

    /// For a driver's library of the test's own.
    pub fn of_library(library: &str) -> Sandbox {
        let directory = tempfile::Builder::new()
            .prefix("oclcache-test-")
            .tempdir()
            .expect("a temporary directory");
        let sandbox = Sandbox {
            directory,
            runs: Default::default(),
            library: library.to_owned(),
            needed: BTreeMap::new(),
            variables: BTreeMap::new(),
        };
        std::fs::create_dir(sandbox.path("home")).expect("made");
        for (name, library) in [("spy", example("libspy.so")), ("oclcache", self::library())] {
            std::fs::create_dir(sandbox.path(name)).expect("made");
            sandbox.write(
                &format!("{name}/{name}.icd"),
                format!("{}\n", library.display()),
            );
        }
        sandbox
    }

    /// Registers the driver itself in place of the spy. A process that is confined does not get the spy's variables.
    pub fn without_spy(&mut self) {
        std::fs::create_dir(self.path("driver")).expect("made");
        let vendors = self.write("driver/driver.icd", format!("{}\n", self.library));
        let vendors = vendors.parent().expect("a directory").to_owned();
        self.set("OCLCACHE_VENDORS", vendors);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("written");
        path
    }

    /// Makes a cache directory whose live directory nobody can name, as where no file system is in memory.
    pub fn disable_memory(&self) {
        let _ = std::fs::remove_dir_all(self.path("cache"));
        std::fs::create_dir_all(self.path("cache/v1/live")).expect("made");
    }

    /// Says of the file of an entry that the entry was last used so long ago.
    pub fn was_used(&self, entry: &Path, ago: Duration) {
        let file = std::fs::File::open(entry).expect("opened");
        let then = SystemTime::now() - ago;
        file.set_modified(then).expect("dated");
        // Later uses that are noted in memory.
        for live in live_directories(self.directory.path()) {
            let _ = std::fs::remove_file(live.join("uses"));
        }
    }

    /// Lets programs use this driver as well.
    pub fn prepare_for(&mut self, driver: Driver) {
        self.needed.extend(driver.variables());
    }

    /// Sets a variable for all later programs.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.insert(name.to_owned(), value.into());
    }

    /// A program in this sandbox, ready to run: nothing of the caller's set-up or home, an empty PoCL cache.
    pub fn command(&self, way: Way, program: impl AsRef<Path>) -> Command {
        let run = self.runs.replace(self.runs.get() + 1);
        let mut command = match program.as_ref() == example("client") {
            true => under_tool(program.as_ref()),
            false => plain_command(program),
        };
        command
            .env("HOME", self.path("home"))
            .env("POCL_CACHE_DIR", self.path(&format!("pocl-{run}")))
            .env("MESA_SHADER_CACHE_DIR", self.path(&format!("mesa-{run}")))
            .env("RUSTICL_ENABLE", "llvmpipe")
            .envs(&self.needed)
            .env("STUB_LOG", self.path("stub.log"))
            .env("SPY_DRIVER", &self.library)
            .env("SPY_LOG", self.path("spy.log"))
            // What a first process missed the second one finds, on all drivers, and nothing goes on behind a test's back. Tests
            // of baking and audits say otherwise.
            .env("OCLCACHE_RECORD", "inline")
            .env("OCLCACHE_AUTOBAKE", "0")
            .env("OCLCACHE_AUDIT", "0");
        match way {
            Way::Bare => command.env("OCL_ICD_VENDORS", self.path("spy")),
            Way::Cached => command
                .env("OCL_ICD_VENDORS", self.path("oclcache"))
                .env("OCLCACHE_VENDORS", self.path("spy"))
                .env("OCLCACHE_DIR", self.path("cache"))
                // Those of this machine are nobody's business here.
                .env("OCLCACHE_SYSTEM_DIRS", "none")
                .env("OCLCACHE_LOG", "info"),
        };
        command.envs(&self.variables);
        command
    }

    /// Runs it, and tells what the spy saw meanwhile.
    pub fn run(&self, command: &mut Command) -> Ran {
        std::fs::write(self.path("spy.log"), "").expect("emptied");
        let output = command
            .output()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let spied = std::fs::read_to_string(self.path("spy.log")).expect("the spy's log");
        let Output {
            status,
            stdout,
            stderr,
        } = output;
        Ran {
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            code: status.code(),
            signal: status.signal(),
            spied: spied.lines().map(str::to_owned).collect(),
        }
    }

    /// Runs a section of the client.
    pub fn client(&self, way: Way, arguments: &[&str]) -> Ran {
        self.run(self.command(way, example("client")).args(arguments))
    }

    /// Runs a kernel `f(global uint *)` of a source of the test's own.
    pub fn kernel(&self, way: Way, source: &str, options: &str) -> Ran {
        let file = self.write("kernel.cl", source);
        let file = file.to_str().expect("UTF-8");
        self.client(
            way,
            &[
                "run",
                "--source",
                file,
                "--kernel",
                "f",
                "--options",
                options,
            ],
        )
    }

    /// A client, ready to run, that runs the kernel `f` of the file `kernel.cl` of a directory, there and through the cache.
    pub fn kernel_in(&self, place: &Path, options: &str) -> Command {
        let mut command = self.command(Way::Cached, example("client"));
        command.args([
            "run",
            "--source",
            "kernel.cl",
            "--kernel",
            "f",
            "--options",
            options,
        ]);
        command.current_dir(place);
        command
    }

    /// What the stub driver compiled so far.
    pub fn compilations(&self) -> usize {
        let log = std::fs::read_to_string(self.path("stub.log")).unwrap_or_default();
        log.lines()
            .filter(|line| line.starts_with("compile"))
            .count()
    }

    /// Runs the command on this sandbox's cache.
    pub fn oclcache(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
        self.run(command.args(arguments))
    }

    /// The command in a directory of its own with the library under test beside it, as it is installed.
    pub fn installed(&self) -> PathBuf {
        let command = self.path("bin/oclcache");
        if !command.exists() {
            std::fs::create_dir(self.path("bin")).expect("made");
            copy_program(env!("CARGO_BIN_EXE_oclcache"), &command);
            let beside = self.path("bin/liboclcache.so");
            std::os::unix::fs::symlink(library(), beside).expect("linked");
        }
        command
    }

    /// One number of `stats --json`.
    #[track_caller]
    pub fn stat(&self, name: &str) -> u64 {
        let ran = self.oclcache(&["stats", "--json"]).ok();
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let found = name
            .split('/')
            .try_fold(&json, |value, part| value.get(part));
        found.map_or(0, |value| value.as_u64().expect("a number"))
    }

    /// The files of all entries.
    pub fn entries(&self) -> Vec<PathBuf> {
        let shards = self.path("cache/v1/entries");
        let Ok(shards) = std::fs::read_dir(shards) else {
            return Vec::new();
        };
        let files = shards
            .flatten()
            .filter_map(|shard| std::fs::read_dir(shard.path()).ok());
        files
            .flat_map(|files| files.flatten().map(|file| file.path()))
            .collect()
    }
}
