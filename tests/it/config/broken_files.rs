//! Configuration files that cannot be read or written are told by the verbs that a user would try first.

use std::fs;

use super::{config, file};
use crate::support::{SOURCE, Sandbox, Way, example};

#[test]
fn a_file_that_cannot_be_read_is_told_by_run_and_get() {
    let sandbox = Sandbox::stub();
    let kernel = sandbox.write("kernel.cl", SOURCE);
    let path = file(&sandbox, "");
    for (content, why) in [
        (&b"max_size = \n"[..], "is not TOML: line 1: "),
        (b"dir = \"\xff\"\n", "stream did not contain valid UTF-8"),
    ] {
        fs::write(&path, content).expect("written");
        let told = |stderr: &str| stderr.lines().filter(|line| line.contains(why)).count();
        let run = |options: &[&str]| {
            let mut command = sandbox.command(Way::Bare, sandbox.installed());
            command.env("OCLCACHE_DIR", sandbox.path("cache"));
            command.arg("run").args(options).arg(example("client"));
            command.args(["run", "--kernel", "f", "--options", "-DN=1", "--source"]);
            sandbox.run(command.arg(&kernel)).ok().stderr
        };
        let shown = run(&[]);
        assert_eq!(told(&shown), 1, "{shown}");
        assert_eq!(run(&["--quiet"]), "");
        let ran = config(&sandbox, &["get", "max_size"]).ok();
        assert_eq!((told(&ran.stderr), ran.stdout.as_str()), (1, "5Gi\n"));
    }
}
