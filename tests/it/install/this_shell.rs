//! What the shell gets in which `oclcache install --user` is evaluated.

use std::fs;
use std::path::Path;

use super::shell;
use super::user::{build, home};

#[test]
fn a_session_that_has_the_variables_already_keeps_its_drivers() {
    let world = build();
    let twice = "eval \"$(oclcache install --user)\"; oclcache install --user";
    // PATH is set once.
    let drivers = |stdout: &str| -> Vec<String> {
        let lines = stdout.lines().map(str::to_owned);
        lines.filter(|line| !line.contains("PATH")).collect()
    };
    let once = shell(&world, "oclcache install --user").ok().stdout;
    assert!(once.contains("export OCLCACHE_VENDORS="), "{once}");
    let again = shell(&world, twice).ok().stdout;
    assert_eq!(drivers(&again), drivers(&once));
}

/// So that the next line that a new user types is found.
#[test]
fn the_shell_that_installs_it_finds_the_command_at_once() {
    let world = build();
    let home = home(&world);
    fs::rename(world.sandbox.path("bin"), world.sandbox.path("built")).expect("renamed");
    let install = format!(
        "eval \"$({}/oclcache install --user)\"",
        world.sandbox.path("built").display()
    );
    let found = shell(&world, &format!("{install}; command -v oclcache")).ok();
    let launcher = home.join(".local/bin/oclcache");
    assert_eq!(Path::new(found.stdout.trim_end()), launcher);
    // It is the last place, and it is added once.
    let again = format!("{install}; {install}; echo \"$PATH\"");
    let path = shell(&world, &again).ok().stdout;
    let directory = launcher.parent().expect("a parent").display().to_string();
    let places: Vec<&str> = path.trim_end().split(':').collect();
    let ours = places.iter().filter(|place| **place == directory).count();
    assert_eq!(
        (ours, places.last().copied()),
        (1, Some(&*directory)),
        "{path}"
    );
}
