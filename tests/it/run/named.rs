//! What a run names: drivers that are gone, directories that are refused, and what it leaves to be removed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::{command, fresh, run};
use crate::doors::LIST;
use crate::support::{example, python};

/// As after an update that was interrupted.
#[test]
fn a_run_names_the_drivers_that_are_gone() {
    let sandbox = fresh();
    fs::create_dir(sandbox.path("drivers-of-run")).expect("made");
    let gone = sandbox.write("drivers-of-run/gone.icd", "/nonexistent/libgone.so\n");
    let python = python().display().to_string();
    let told = |vendors: &str| {
        let mut command = command(&sandbox, &[&python, "-c", LIST, "libOpenCL.so.1"]);
        let ran = sandbox.run(command.env("OCLCACHE_VENDORS", vendors));
        ran.stderr.lines().last().unwrap_or_default().to_owned()
    };
    let gone = gone.display().to_string();
    assert_eq!(
        told(&gone),
        "oclcache: no kernel was compiled: the registered OpenCL drivers do not exist: \
         `/nonexistent/libgone.so`; run `oclcache doctor`"
    );
    let stub = example("libstub_driver.so").display().to_string();
    let told = told(&format!("{gone}:{stub}"));
    let words =
        "; left out, since they do not exist: `/nonexistent/libgone.so`; programs that only";
    assert!(told.contains(words), "{told}");
}

#[test]
fn who_only_ran_it_is_not_said_to_have_been_registered() {
    let sandbox = fresh();
    run(&sandbox, &["true"]).ok();
    let ran = sandbox.oclcache(&["uninstall", "--user"]).ok();
    let said = "oclcache: was not registered for you; what `oclcache run` made is removed\n";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}

#[test]
fn a_run_names_the_system_directories_that_are_refused() {
    let sandbox = fresh();
    let shared = sandbox.path("shared");
    fs::create_dir(&shared).expect("made");
    fs::set_permissions(&shared, PermissionsExt::from_mode(0o777)).expect("changed");
    for (arguments, is_told) in [(&["true"][..], true), (&["--quiet", "true"], false)] {
        let mut command = command(&sandbox, arguments);
        let ran = sandbox
            .run(command.env("OCLCACHE_SYSTEM_DIRS", &shared))
            .ok();
        let said = ran.stderr.contains("oclcache: the system directory `");
        assert_eq!(said, is_told, "{}", ran.stderr);
    }
}
