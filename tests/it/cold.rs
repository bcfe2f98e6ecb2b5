//! `oclcache run --cold`: the program compiles all that it would on a new machine, and no cache of anybody changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::snapshots::assert_shown;
use crate::support::{
    Driver, Ran, SOURCE, Sandbox, Way, example, given, plain_command, skipped, tree,
};
/// A sandbox whose caches are below its home directory, and stay from run to run.
fn sandbox(driver: Driver) -> Option<Sandbox> {
    let mut sandbox = Sandbox::new(driver)?;
    for (variable, place) in [
        ("XDG_CACHE_HOME", "home/.cache"),
        ("POCL_CACHE_DIR", "home/pocl"),
        ("MESA_SHADER_CACHE_DIR", "home/mesa"),
        ("TMPDIR", "tmp"),
    ] {
        fs::create_dir_all(sandbox.path(place)).expect("made");
        sandbox.set(variable, sandbox.path(place));
    }
    sandbox.write("kernel.cl", SOURCE);
    Some(sandbox)
}

fn cold(sandbox: &Sandbox, program: &[&str]) -> Ran {
    let mut command = sandbox.command(Way::Bare, sandbox.installed());
    command.env("OCLCACHE_DIR", sandbox.path("cache"));
    let ran = sandbox.run(command.args(["run", "--cold"]).args(program));
    let left = tree(&sandbox.path("tmp"));
    assert!(
        left.is_empty(),
        "what was made for the run is left: {left:?}"
    );
    ran
}

fn bare(sandbox: &Sandbox, program: &[&str]) -> Ran {
    let mut command = sandbox.command(Way::Bare, program[0]);
    sandbox.run(command.args(&program[1..])).ok()
}

fn state(sandbox: &Sandbox) -> BTreeMap<PathBuf, String> {
    let mut state = tree(&sandbox.path("home"));
    state.extend(tree(&sandbox.path("cache")));
    state
}

/// The words that run the client's kernel.
fn client(sandbox: &Sandbox) -> Vec<String> {
    let client = example("client").display().to_string();
    let source = sandbox.path("kernel.cl").display().to_string();
    let words = ["run", "--kernel", "f", "--options", "-DN=7", "--source"];
    let words = words.map(str::to_owned);
    [client].into_iter().chain(words).chain([source]).collect()
}

#[test]
fn a_cold_run_compiles_each_time_and_changes_no_cache() {
    for driver in Driver::ALL {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let client = client(&sandbox);
        let client: Vec<&str> = client.iter().map(String::as_str).collect();
        // What is warm is of the driver, and ours.
        let wanted = bare(&sandbox, &client);
        sandbox
            .run(sandbox.command(Way::Cached, client[0]).args(&client[1..]))
            .ok();
        let warm = sandbox
            .run(sandbox.command(Way::Cached, client[0]).args(&client[1..]))
            .ok();
        assert_eq!(
            (warm.source_builds(), warm.stdout == wanted.stdout),
            (0, true)
        );
        if driver == Driver::Pocl {
            // Its cache notes when it serves, so it shows that it did not.
            let before = state(&sandbox);
            bare(&sandbox, &client);
            assert_ne!(state(&sandbox), before);
        }
        let before = state(&sandbox);
        for _ in 0..2 {
            let ran = cold(&sandbox, &client).ok();
            assert_eq!(
                (ran.source_builds(), ran.stdout == wanted.stdout),
                (1, true)
            );
            assert_eq!(state(&sandbox), before, "{driver:?}");
        }
    }
}

#[test]
fn pyopencl_compiles_in_a_cold_run_what_it_has_itself() {
    const PROGRAM: &str = "import pyopencl as cl, pyopencl.array as array, numpy\n\
        context = cl.Context([cl.get_platforms()[0].get_devices()[0]])\n\
        queue = cl.CommandQueue(context)\n\
        print((3 * array.to_device(queue, numpy.arange(9, dtype=numpy.float32))).get())\n";
    let Some(python) = given("OCLCACHE_TEST_PYTHON") else {
        return skipped("PyOpenCL in a cold run (OCLCACHE_TEST_PYTHON is not set)");
    };
    // On PoCL it leaves caching to the driver.
    let Some(sandbox) = sandbox(Driver::Rusticl) else {
        return;
    };
    let program = [python.to_str().expect("UTF-8"), "-c", PROGRAM];
    let wanted = bare(&sandbox, &program);
    let warm = bare(&sandbox, &program);
    assert_eq!(warm.source_builds(), 0, "its own cache serves");
    let before = state(&sandbox);
    for _ in 0..2 {
        let ran = cold(&sandbox, &program).ok();
        assert_eq!(ran.stdout, wanted.stdout);
        assert!(ran.source_builds() > 0, "{:?}", ran.spied);
        assert_eq!(state(&sandbox), before);
    }
}

#[test]
fn what_is_no_cache_of_kernels_is_where_it_was() {
    let sandbox = sandbox(Driver::Stub).expect("the stub is built with the tests");
    for file in [
        "home/.cache/huggingface/model",
        "home/.cache/hashcat/kernels/shared.f5470456.kernel",
        "home/.cache/pytools/pdict-v5-x.sqlite",
    ] {
        let file = sandbox.path(file);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, "text").expect("written");
    }
    let script = "cat $XDG_CACHE_HOME/huggingface/model; ls $XDG_CACHE_HOME; ls -A $POCL_CACHE_DIR; \
        echo new > $XDG_CACHE_HOME/new; env | grep -c =true; exit 7";
    let before = state(&sandbox);
    let ran = cold(&sandbox, &["sh", "-c", script]);
    assert_eq!(
        (ran.code, &*ran.stdout),
        (Some(7), "texthuggingface\n2\n"),
        "{}",
        ran.stderr
    );
    assert_eq!(state(&sandbox), before);
    let quiet = ["run", "--quiet", "--cold", "true"];
    let mut command = sandbox.command(Way::Bare, sandbox.installed());
    assert_eq!(sandbox.run(command.args(quiet)).ok().stderr, "");
    // What nothing moves is not said to be empty.
    let own = sandbox.path("home/.hashcat/kernels");
    fs::create_dir_all(own).expect("made");
    let told = cold(&sandbox, &["true"]).ok().stderr;
    assert!(told.contains("cannot turn off hashcat"), "{told}");
    let wrong = ["run", "--bake", "--cold", "true"];
    let mut command = sandbox.command(Way::Bare, sandbox.installed());
    assert_eq!(sandbox.run(command.args(wrong)).code, Some(2));
    assert_eq!(cold(&sandbox, &["/missing"]).code, Some(127));
    assert_shown(&sandbox, "run-cold", &ran.stderr);
}

#[test]
fn a_cold_run_that_must_hit_is_refused_before_the_program_starts() {
    let mut sandbox = sandbox(Driver::Stub).expect("the stub is built with the tests");
    let settings = sandbox.path("home/.config/oclcache");
    fs::create_dir_all(&settings).expect("made");
    for (variable, file, code) in [
        ("1", "", 2),
        ("", "must_hit = true\n", 2),
        ("0", "must_hit = true\n", 0),
    ] {
        sandbox.set("OCLCACHE_MUST_HIT", variable);
        fs::write(settings.join("config.toml"), file).expect("written");
        let ran = cold(&sandbox, &["echo", "started"]);
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert_eq!(ran.stdout.contains("started"), code == 0);
        let says_what_to_do = ran.stderr.contains("set OCLCACHE_MUST_HIT=0");
        assert_eq!(says_what_to_do, code == 2, "{}", ran.stderr);
    }
}

#[test]
fn a_cold_run_that_is_ended_leaves_nothing() {
    let sandbox = sandbox(Driver::Stub).expect("the stub is built with the tests");
    let mut command = sandbox.command(Way::Bare, sandbox.installed());
    command.args(["run", "--cold", "sh", "-c", "echo $$; exec sleep 600"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut running = command.spawn().expect("run");
    let mut line = String::new();
    let output = running.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("read");
    assert!(!tree(&sandbox.path("tmp")).is_empty());
    let pid = i32::try_from(running.id()).expect("a number");
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("sent");
    let status = running.wait().expect("ended");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(15)
    );
    assert!(tree(&sandbox.path("tmp")).is_empty());
}

/// What is at its default place, which drivers and programs have really made, is all recognized and goes.
#[test]
fn what_drivers_and_programs_leave_is_known_to_the_last_file() {
    let made = |driver, cache: &str, moved: Option<&str>, program: &[&str]| {
        let Some(sandbox) = sandbox(driver) else {
            return;
        };
        let mut list = sandbox.command(Way::Bare, env!("CARGO_BIN_EXE_oclcache"));
        let mut clear = sandbox.command(Way::Bare, env!("CARGO_BIN_EXE_oclcache"));
        let client = client(&sandbox);
        let mut run = match program {
            [] => {
                let mut run = sandbox.command(Way::Bare, &client[0]);
                run.args(&client[1..]);
                run
            }
            [program, arguments @ ..] => {
                let mut run = sandbox.command(Way::Bare, program);
                run.args(arguments);
                run
            }
        };
        for command in [&mut run, &mut list, &mut clear] {
            let variables = ["POCL_CACHE_DIR", "MESA_SHADER_CACHE_DIR"];
            for variable in variables.iter().filter(|name| Some(**name) != moved) {
                command.env_remove(variable);
            }
        }
        let places = |sandbox: &Sandbox| {
            let output = sandbox
                .run(list_again(&list).args(["caches", "--json"]))
                .ok()
                .stdout;
            let all: serde_json::Value = serde_json::from_str(&output).expect("JSON");
            let mut all = all.as_array().expect("a list").iter();
            let found = all
                .find(|found| found["name"] == cache)
                .expect("it is known");
            found["places"].as_array().expect("places").clone()
        };
        // Mesa begins with an index, and writes the rest in a thread of its own, which the end of the process ends.
        let least = if cache == "mesa" { 2 } else { 1 };
        let left = (0..20).find_map(|_| {
            sandbox.run(&mut run).ok();
            let places = <[serde_json::Value; 1]>::try_from(places(&sandbox));
            let [place] = places.expect("one place");
            (place["files"].as_u64() >= Some(least)).then_some(place)
        });
        let place = left.expect(cache);
        assert_eq!(place["foreign"], 0, "{cache}: {place:#}");
        assert_eq!(place["variable"].as_str(), moved);
        sandbox
            .run(clear.args(["caches", "clear", "--yes", cache]))
            .ok();
        let path = Path::new(place["path"].as_str().expect("a path"));
        assert!(!path.exists(), "{}", path.display());
        assert_eq!(places(&sandbox), Vec::<serde_json::Value>::new());
    };
    made(Driver::Pocl, "pocl", None, &[]);
    made(Driver::Pocl, "pocl", Some("POCL_CACHE_DIR"), &[]);
    made(Driver::Rusticl, "mesa", None, &[]);
    made(Driver::Rusticl, "mesa", Some("MESA_SHADER_CACHE_DIR"), &[]);
    let Some(python) = given("OCLCACHE_TEST_PYTHON") else {
        return skipped("what PyOpenCL and OpenCV leave (OCLCACHE_TEST_PYTHON is not set)");
    };
    let python = python.to_str().expect("UTF-8");
    let program = "import pyopencl as cl, pyopencl.array as array, numpy\n\
        context = cl.Context([cl.get_platforms()[0].get_devices()[0]])\n\
        queue = cl.CommandQueue(context)\n\
        print((3 * array.to_device(queue, numpy.arange(9, dtype=numpy.float32))).get())\n";
    for cache in ["pyopencl", "pytools"] {
        made(Driver::Rusticl, cache, None, &[python, "-c", program]);
    }
}

/// A command with the same environment and no arguments.
fn list_again(command: &Command) -> Command {
    let mut again = plain_command(command.get_program());
    for (name, value) in command.get_envs() {
        value.map(|value| again.env(name, value));
    }
    again
}
