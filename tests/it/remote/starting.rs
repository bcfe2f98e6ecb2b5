//! Where a helper is started, and what is said where none is.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use super::HELPER;
use super::lab::Lab;
use crate::autobake::{IN_NAMESPACE, has_process_namespaces};
use crate::process::behind_filter_with;
use crate::support::{Ran, Way, copy_program, example, is_root, skipped};

const NO_INIT: &str = "not known to wait for others' children";
const UNUSED: &str = "the remote store is not used: no helper can be started";

/// Adds the client, which builds a program of this number.
fn build_in<'a>(command: &'a mut Command, lab: &Lab, number: usize) -> &'a mut Command {
    let source = format!("__kernel void f(__global uint *out) {{ out[0] = {number}; }}\n");
    command.arg(example("client"));
    command.args(["run", "--kernel", "f", "--options", "", "--source"]);
    command.arg(lab.sandbox.write("kernel.cl", source))
}

/// Whether these tests run below a first process that gets no helper; says so of a test.
pub fn is_below_no_init(test: &str, ran: &Ran) -> bool {
    let is_below = ran.stderr.contains(NO_INIT);
    if is_below {
        skipped(format_args!("{test} (the first process is no init)"));
    }
    is_below
}

/// Others leave the helper as a zombie, or find a child that they do not know.
#[test]
fn a_first_process_that_waits_for_others_children_gets_a_helper() {
    let test = "helpers below a first process";
    let Some(mut lab) = Lab::bare(test).filter(|_| has_process_namespaces(test)) else {
        return;
    };
    copy_program(example("stand_in"), &lab.place.path().join(HELPER));
    lab.behave("miss");
    let command = lab.place.path().join("oclcache").display().to_string();
    for (number, (first, is_started)) in [
        (&["sh", "-c", "\"$@\"; true", "sh"][..], true),
        (&[&command, "run", "--"], true),
        (&["timeout", "60"], false),
        (&[], false),
        // There `/proc` shows another first process.
        (
            &[
                "sh",
                "-c",
                "unshare --pid --fork timeout 60 \"$@\"; true",
                "sh",
            ],
            false,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        lab.again();
        let mut run = lab.sandbox.command(Way::Cached, IN_NAMESPACE[0]);
        run.args(&IN_NAMESPACE[1..]).args(first);
        let ran = lab.sandbox.run(build_in(&mut run, &lab, number)).ok();
        let is_refused = ran.stderr.contains(NO_INIT);
        assert_eq!(is_refused, !is_started, "{first:?}: {}", ran.stderr);
        let asked = lab.asked();
        assert_eq!(!asked.is_empty(), is_started, "{first:?}: {asked:?}");
    }
}

/// Nobody waits for a helper that never comes.
#[test]
fn what_cannot_be_executed_is_no_helper() {
    let test = "helpers that cannot be executed";
    let Some(lab) = Lab::bare(test) else {
        return;
    };
    let helper = lab.place.path().join(HELPER);
    for (content, why) in [
        ("#!/no/such/interpreter\n", "No such file or directory"),
        ("neither a script nor a program\n", "Exec format error"),
    ] {
        fs::write(&helper, content).expect("written");
        fs::set_permissions(&helper, Permissions::from_mode(0o755)).expect("set");
        let ran = lab.build(1).ok();
        if is_below_no_init(test, &ran) {
            return;
        }
        assert!(ran.stderr.contains(UNUSED), "{why}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{why}: {}", ran.stderr);
    }
}

#[test]
fn what_the_system_refuses_or_does_not_tell_is_said() {
    let test = "helpers without files of the system";
    let can = Command::new("unshare").args(["--mount", "true"]).output();
    if !can.is_ok_and(|ran| ran.status.success()) {
        return skipped(format_args!("{test} (no mount namespace)"));
    }
    let Some(lab) = Lab::bare(test) else {
        return;
    };
    copy_program(example("stand_in"), &lab.place.path().join(HELPER));
    for (number, (hidden, why)) in [
        ("/dev", "No such file or directory"),
        ("/proc", "`/proc` does not tell"),
    ]
    .into_iter()
    .enumerate()
    {
        let script = "mount -t tmpfs none \"$0\" && exec \"$@\"";
        let mut run = lab.sandbox.command(Way::Cached, "unshare");
        run.args(["--mount", "sh", "-c", script, hidden]);
        let ran = lab.sandbox.run(build_in(&mut run, &lab, number)).ok();
        if is_below_no_init(test, &ran) {
            return;
        }
        assert!(ran.stderr.contains(UNUSED), "{hidden}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{hidden}: {}", ran.stderr);
    }
}

/// As some distributions wrap programs in: the script finds the program by its own path, and nothing of the start is left to either.
#[test]
fn a_script_knows_its_path() {
    let test = "helpers in scripts";
    let Some(mut lab) = Lab::bare(test) else {
        return;
    };
    lab.behave("miss");
    let wrapped = ".oclcache-remote-wrapped";
    copy_program(example("stand_in"), &lab.place.path().join(wrapped));
    let helper = lab.place.path().join(HELPER);
    let script = format!(
        "#!/bin/sh\nhere=$(dirname \"$0\")\nls /proc/self/fd >\"$here/descriptors\"\nexec \"$here/{wrapped}\" \"$@\"\n"
    );
    fs::write(&helper, script).expect("written");
    fs::set_permissions(&helper, Permissions::from_mode(0o755)).expect("set");
    let ran = lab.build(1).ok();
    if is_below_no_init(test, &ran) {
        return;
    }
    let asked = lab.asked();
    assert_eq!(
        asked.first().map_or("", |line| line),
        "started",
        "{}",
        ran.stderr
    );
    // The last one is that of the list.
    let descriptors = fs::read_to_string(lab.place.path().join("descriptors"));
    assert_eq!(descriptors.expect("read"), "0\n1\n2\n3\n");
}

/// As `docker exec` starts programs: the parent is outside. A filter is the program's own unless all processes of the container have it, also
/// where the program has given up since what it needed to add it.
#[test]
fn a_program_whose_parent_is_outside_of_its_container_gets_a_helper() {
    let test = "helpers below a filter";
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !is_root() || !has("setpriv") || !has("nsenter") {
        return skipped(format_args!(
            "{test} (not root, no `setpriv`, or no `nsenter`)"
        ));
    }
    let Some(mut lab) = Lab::bare(test).filter(|_| has_process_namespaces(test)) else {
        return;
    };
    copy_program(example("stand_in"), &lab.place.path().join(HELPER));
    lab.behave("miss");
    let pass = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    for (number, is_filtered) in [true, false].into_iter().enumerate() {
        let mut container = Command::new(IN_NAMESPACE[0]);
        container.args(&IN_NAMESPACE[1..]);
        container.args(["sh", "-c", "echo ready; read line"]);
        container.stdin(Stdio::piped()).stdout(Stdio::piped());
        if is_filtered {
            behind_filter_with(&mut container, vec![pass], false);
        }
        let mut container = container.spawn().expect("a container");
        let mut ready = [0; 6];
        let said = container.stdout.as_mut().expect("piped");
        said.read_exact(&mut ready).expect("it is ready");
        let namespaces = format!("/proc/{}/ns", container.id());
        lab.again();
        let mut run = lab.sandbox.command(Way::Cached, "nsenter");
        run.arg(format!("--pid={namespaces}/pid_for_children"));
        run.arg(format!("--mount={namespaces}/mnt"));
        run.args(["setpriv", "--bounding-set", "-sys_admin"]);
        behind_filter_with(build_in(&mut run, &lab, number), vec![pass], false);
        let ran = lab.sandbox.run(&mut run).ok();
        let is_refused = ran.stderr.contains("system calls are filtered");
        assert_eq!(is_refused, !is_filtered, "{}", ran.stderr);
        let asked = lab.asked();
        assert_eq!(!asked.is_empty(), is_filtered, "{asked:?}");
        drop(container.stdin.take());
        container.wait().expect("a child");
    }
}
