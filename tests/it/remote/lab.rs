//! A sandbox whose library asks a stand-in for the helper.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::{FAR_TOO_LONG, HELPER, key_of};
use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example, library};
use crate::tiers::{TrustedPlace, trusted_place};

/// A sandbox, and a place of the library, the command and the helper that nobody untrusted can write.
pub struct Lab {
    pub sandbox: Sandbox,
    pub place: TrustedPlace,
    pub helper: Option<Child>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.end();
    }
}

impl Lab {
    /// Without a helper.
    pub fn bare(test: &str) -> Option<Lab> {
        let place = trusted_place(test)?;
        let mut sandbox = Sandbox::new(Driver::Stub)?;
        let beside = place.path().join("liboclcache.so");
        copy_program(library(), &beside);
        copy_program(
            env!("CARGO_BIN_EXE_oclcache"),
            &place.path().join("oclcache"),
        );
        sandbox.write("oclcache/oclcache.icd", format!("{}\n", beside.display()));
        sandbox.set("OCLCACHE_REMOTE", "redis://nowhere");
        sandbox.set("OCLCACHE_REMOTE_WAIT", "60s");
        Some(Lab {
            sandbox,
            place,
            helper: None,
        })
    }

    /// With a helper that runs and does this.
    pub fn new(test: &str, behavior: &str) -> Option<Lab> {
        let mut lab = Lab::bare(test)?;
        copy_program(example("stand_in"), &lab.place.path().join(HELPER));
        lab.behave(behavior);
        lab.serve();
        Some(lab)
    }

    pub fn behave(&self, behavior: &str) {
        fs::write(self.place.path().join("behavior"), behavior).expect("written");
    }

    /// Forgets what helpers were asked, and lets others run.
    pub fn again(&self) {
        for file in ["go", "asked"] {
            let _ = fs::remove_file(self.place.path().join(file));
        }
    }

    /// Starts the helper, and waits until it listens.
    pub fn serve(&mut self) {
        let _ = fs::remove_file(self.place.path().join("go"));
        let mut command = self
            .sandbox
            .command(Way::Cached, self.place.path().join(HELPER));
        command
            .arg("serve")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.helper = Some(command.spawn().expect("the stand-in"));
        let started = Instant::now();
        while self.sockets().is_empty() {
            assert!(started.elapsed() < FAR_TOO_LONG, "no socket");
            std::thread::sleep(Duration::from_millis(2));
        }
        // It is bound before it listens.
        std::thread::sleep(Duration::from_millis(20));
    }

    pub fn sockets(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.sandbox.path("cache/v1/remote"));
        let paths = files
            .into_iter()
            .flatten()
            .flatten()
            .map(|file| file.path());
        paths.filter(|path| path.extension().is_none()).collect()
    }

    /// Ends all helpers of this place.
    pub fn end(&mut self) {
        let own = self.place.path().join(HELPER);
        let _ = fs::write(self.place.path().join("go"), "");
        if let Some(mut helper) = self.helper.take() {
            let _ = helper.wait();
        }
        let started = Instant::now();
        let is_own = |process: &fs::DirEntry| {
            fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == own)
        };
        let is_running = || {
            fs::read_dir("/proc")
                .expect("processes")
                .flatten()
                .any(|one| is_own(&one))
        };
        while is_running() && started.elapsed() < FAR_TOO_LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the helpers were asked, once they have ended.
    pub fn asked(&mut self) -> Vec<String> {
        self.end();
        let asked = fs::read_to_string(self.place.path().join("asked")).unwrap_or_default();
        asked.lines().map(str::to_owned).collect()
    }

    /// Builds a program of this number.
    pub fn build(&self, number: u32) -> Ran {
        let source = format!(
            "__kernel void f(__global uint *out) {{ out[get_global_id(0)] = {number}; }}\n"
        );
        self.sandbox.kernel(Way::Cached, &source, "")
    }

    /// Builds a program without a remote level, and gives its entry to the helper. Returns the key.
    pub fn give(&mut self, number: u32) -> String {
        let remote = self
            .sandbox
            .variables
            .insert("OCLCACHE_REMOTE".to_owned(), "off".into());
        self.build(number).ok();
        self.sandbox
            .variables
            .extend(remote.map(|url| ("OCLCACHE_REMOTE".to_owned(), url)));
        let [entry] = self.sandbox.entries().try_into().expect("one entry");
        let key = key_of(&entry);
        let there = self.place.path().join(format!("{key}.entry"));
        fs::copy(&entry, there).expect("copied");
        fs::remove_file(entry).expect("removed");
        self.sandbox.oclcache(&["stats", "--zero"]).ok();
        key
    }

    pub fn stats(&self, names: &[&str]) -> Vec<u64> {
        names.iter().map(|name| self.sandbox.stat(name)).collect()
    }

    pub fn command(&self, arguments: &[&str]) -> Ran {
        let mut command = self
            .sandbox
            .command(Way::Cached, self.place.path().join("oclcache"));
        self.sandbox.run(command.args(arguments))
    }
}
