//! Programs that include files: what is cached, and that every change which could matter is seen.
//!
//! Drivers search for headers in different orders, so each test is a working directory with headers that is changed step by step.
//! After each step the program must give what it gives on the bare driver in the same state, whether that is a result or an error.

mod computed;
mod links;
mod nested;
mod odd;
mod places;
mod races;
mod sample;
mod shared;
mod whole;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::support::{Driver, Ran, Sandbox, Way, example, some_of};

const KERNEL: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = V; }\n";

/// Drivers with a real compiler: they read the macros that the stub does not know.
const COMPILERS: [Driver; 3] = [Driver::Pocl, Driver::Intel, Driver::Rusticl];

/// Those of them that compile quickly, for what has nothing to do with how a driver searches.
const QUICK: [Driver; 2] = [Driver::Intel, Driver::Rusticl];

/// What becomes of a program through the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Hit,
    Miss,
    Bypassed,
    Failed,
}

/// A working directory, and a program that is built there.
struct Tree {
    driver: Driver,
    sandbox: Sandbox,
    arguments: RefCell<Vec<String>>,
    /// What the bare driver gave last.
    bare: RefCell<String>,
    value: Cell<u32>,
}

impl Tree {
    /// One for each of some of these drivers: see [`some_of`].
    fn on(drivers: &[Driver]) -> impl Iterator<Item = Tree> {
        let drivers = some_of(drivers);
        drivers.into_iter().filter_map(|driver| {
            let sandbox = Sandbox::new(driver)?;
            fs::create_dir(sandbox.path("work")).expect("made");
            Some(Tree {
                driver,
                sandbox,
                arguments: Default::default(),
                bare: Default::default(),
                value: Cell::new(0),
            })
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path("work").join(name)
    }

    /// Writes a file; its directory is made if need be.
    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(&path, text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// Writes a header that defines `V` as what it never was.
    fn define(&self, name: &str) {
        self.value.set(self.value.get() + 1);
        self.write(name, format!("#define V {}\n", self.value.get()));
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).expect("removed");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).expect("renamed");
    }

    /// Writes the same bytes again, as a checkout or an installation does: another inode, another time of change.
    fn touch(&self, name: &str) {
        let (path, new) = (self.path(name), self.path("touched"));
        fs::copy(&path, &new).expect("copied");
        let file = fs::File::options().write(true).open(&new);
        let past = SystemTime::now() - Duration::from_secs(1000 + u64::from(self.value.get()));
        file.and_then(|file| file.set_modified(past))
            .expect("dated");
        fs::rename(new, path).expect("renamed");
    }

    /// The program is this source from now on.
    fn source(&self, source: &str, options: &str) {
        self.write("kernel.cl", source);
        self.section(&["run", "--source", "kernel.cl", "--kernel", "f"], options);
    }

    /// The program is this section of the client.
    fn section(&self, arguments: &[&str], options: &str) {
        // Mesa's own cache knows no header files otherwise, and such a program is a bypass.
        let options = match self.driver {
            Driver::Rusticl if !options.contains("-I") => &format!("-Inone {options}"),
            _ => options,
        };
        let arguments = arguments.iter().copied();
        let arguments = arguments.chain(["--options", options]).map(str::to_owned);
        self.arguments.replace(arguments.collect());
    }

    fn ran(&self, way: Way) -> Ran {
        let mut command = self.sandbox.command(way, example("client"));
        command.args(&*self.arguments.borrow());
        self.sandbox.run(command.current_dir(self.path("")))
    }

    /// Runs the program bare, unless that is known, and through the cache: it gives the same.
    #[track_caller]
    fn judged(&self, when: &str, bare_is_known: bool) -> (Vec<Verdict>, Ran) {
        if !bare_is_known {
            let bare = self.ran(Way::Bare);
            self.bare
                .replace(format!("{}signal {:?}", bare.stdout, bare.signal));
        }
        let ran = self.ran(Way::Cached);
        // The baker stores what PoCL links.
        if self.driver == Driver::Pocl && self.arguments.borrow()[0] == "linked" {
            self.sandbox.oclcache(&["bake"]).ok();
        }
        assert_eq!(
            format!("{}signal {:?}", ran.stdout, ran.signal),
            *self.bare.borrow(),
            "{:?}, {when}: another result than the bare driver's, log:\n{}",
            self.driver,
            ran.stderr
        );
        (verdicts(&ran.stderr), ran)
    }

    #[track_caller]
    fn expect(&self, wanted: Verdict, when: &str, bare_is_known: bool) -> Ran {
        let (verdicts, ran) = self.judged(when, bare_is_known);
        let log = &ran.stderr;
        assert!(
            verdicts.iter().all(|verdict| *verdict == wanted) && !verdicts.is_empty(),
            "{:?}, {when}: {verdicts:?}, not {wanted:?}, log:\n{log}",
            self.driver
        );
        if wanted == Verdict::Hit {
            assert_eq!(
                ran.compiler_runs(),
                0,
                "{:?}, {when}, log:\n{log}",
                self.driver
            );
        }
        ran
    }

    /// It is as it was before: served.
    #[track_caller]
    fn hits(&self, when: &str) {
        self.expect(Verdict::Hit, when, true);
    }

    /// It is as it was before the last step: served.
    #[track_caller]
    fn hits_again(&self, when: &str) {
        self.expect(Verdict::Hit, when, false);
    }

    /// Something that could matter has changed: compiled, whether the driver can or not.
    #[track_caller]
    fn misses(&self, when: &str) {
        let (verdicts, ran) = self.judged(when, false);
        let compiled = [Verdict::Miss, Verdict::Failed];
        assert!(
            verdicts.iter().all(|verdict| compiled.contains(verdict)) && !verdicts.is_empty(),
            "{:?}, {when}: {verdicts:?}, log:\n{}",
            self.driver,
            ran.stderr
        );
    }

    /// It is compiled and then served.
    #[track_caller]
    fn is_cached(&self) {
        self.expect(Verdict::Miss, "cold", false);
        self.hits("warm");
    }

    /// Nothing is served, for this reason.
    #[track_caller]
    fn is_bypassed(&self, reason: &str) {
        for when in ["cold", "warm"] {
            let ran = self.expect(Verdict::Bypassed, when, when == "warm");
            let log = &ran.stderr;
            assert!(
                log.contains(&format!("reason=\"{reason}\"")),
                "{:?}, {when}, log:\n{log}",
                self.driver
            );
        }
    }

    /// Nothing is said of the cache, but the result is the bare driver's.
    #[track_caller]
    fn is_right(&self, when: &str) {
        self.judged(when, false);
    }

    /// Whether the bare driver built the program when it was last asked.
    fn works(&self) -> bool {
        self.bare.borrow().contains("result [")
    }
}

/// Of each call that builds, compiles or links, in order, from the log.
fn verdicts(log: &str) -> Vec<Verdict> {
    log.lines()
        .filter_map(|line| line.split("outcome=\"").nth(1)?.split('"').next())
        .map(|outcome| match outcome {
            "hit" => Verdict::Hit,
            "miss" => Verdict::Miss,
            "bypassed" => Verdict::Bypassed,
            "failed" => Verdict::Failed,
            _ => panic!("outcome {outcome}"),
        })
        .collect()
}
