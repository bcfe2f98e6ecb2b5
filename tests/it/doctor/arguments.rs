//! A program with arguments, as they follow `oclcache run`.

use std::fs;

use super::World;
use crate::support::example;

/// What is said about the program, for these arguments.
fn told(world: &World, arguments: &[&str]) -> Vec<String> {
    let ran = world.shell("", &[&["--no-build"], arguments].concat());
    assert_ne!(ran.code, Some(2), "{arguments:?}: {}", ran.stderr);
    let lines = ran.stdout.lines();
    let lines = lines.filter(|line| {
        ["program", "rule"]
            .map(Some)
            .contains(&line.split_whitespace().nth(1))
    });
    lines.map(str::to_owned).collect()
}

#[test]
fn the_arguments_of_a_program_are_its_own() {
    let world = World::new();
    let client = example("client").display().to_string();
    let expected = told(&world, &[&client]);
    assert_eq!(expected.len(), 1, "{expected:?}");
    for arguments in [
        &[&*client, "run", "--json"][..],
        &[&client, "--driver", "nvidia"],
        &["--", &client, "--help"],
        &[&client, "--", "-x"],
    ] {
        assert_eq!(told(&world, arguments), expected, "{arguments:?}");
    }
    // Options of the doctor come before the program.
    let ran = world.shell("", &["--no-build", "--json", &client, "x"]);
    assert!(ran.stdout.starts_with('{'), "{}", ran.stdout);
    let ran = world.shell("", &["--jsn", &client]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("unexpected argument '--jsn'"),
        "{}",
        ran.stderr
    );
}

#[test]
fn an_option_that_was_probably_meant_for_the_doctor_is_said_to_be_the_programs() {
    let world = World::new();
    let client = example("client").display().to_string();
    for (arguments, option) in [
        (&["--json"][..], Some("--json")),
        (&["run", "--no-build"], Some("--no-build")),
        (&["-v", "--json"], None),
        (&["--json", "run"], None),
        (&["--jsn"], None),
        (&[], None),
    ] {
        let ran = world.shell("", &[&["--no-build", &*client], arguments].concat());
        let said: Vec<&str> = ran
            .stderr
            .lines()
            .filter(|line| line.contains("went to the program"))
            .collect();
        let expected = option.map(|option| {
            format!("oclcache: `{option}` went to the program; options of `doctor` come before it")
        });
        assert_eq!(said, Vec::from_iter(expected), "{arguments:?}");
    }
}

#[test]
fn rules_of_the_script_that_an_interpreter_runs_are_told() {
    let world = World::new();
    let directory = world.sandbox.path("home/.config/oclcache");
    fs::create_dir_all(&directory).expect("made");
    let rules = "[program.\"wave.py\"]\ncache = false\n\n[program.other]\ncache = false\n";
    fs::write(directory.join("config.toml"), rules).expect("written");
    let python = world.sandbox.path("bin/python3");
    fs::copy("/bin/true", &python).expect("copied");
    let told = told(&world, &["python3", "-B", "wave.py", "other"]);
    let rules: Vec<_> = told.iter().filter(|line| line.contains(" rule ")).collect();
    assert!(
        rules.len() == 1 && rules[0].contains("wave.py: cache = false"),
        "{told:?}"
    );
}
