//! Where a helper is started, and what is said where none is.

use std::process::Command;

use super::HELPER;
use super::lab::Lab;
use crate::autobake::{IN_NAMESPACE, has_process_namespaces};
use crate::support::{Ran, Way, copy_program, example, skipped};

const NO_INIT: &str = "not known to wait for others' children";

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
