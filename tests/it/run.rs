//! `oclcache run`: the program is what it was without it, but for one line at the end and what it does not compile.

mod named;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::doors::LIST;
use crate::support::{
    Driver, Ran, SOURCE, Sandbox, Way, copy_program, example, python, skipped, tree,
};
/// A sandbox in which nothing is set up: the drivers are what the loader would find, which is the spy.
fn fresh() -> Sandbox {
    let sandbox = Sandbox::stub();
    sandbox.write("kernel.cl", SOURCE);
    sandbox
}

/// `oclcache run` with these arguments, for a user who has only set a loader's variable.
fn command(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(Way::Bare, sandbox.installed());
    command
        .arg("run")
        .args(arguments)
        .env("OCLCACHE_DIR", sandbox.path("cache"));
    command
}

fn run(sandbox: &Sandbox, arguments: &[&str]) -> Ran {
    sandbox.run(&mut command(sandbox, arguments))
}

/// The words that run the client's kernel.
fn client(sandbox: &Sandbox, options: &str) -> [String; 8] {
    let source = sandbox.path("kernel.cl").display().to_string();
    let client = example("client").display().to_string();
    let words = ["run", "--kernel", "f", "--options", options, "--source"];
    let [a, b, c, d, e, f] = words.map(str::to_owned);
    [client, a, b, c, d, e, f, source]
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn one_line_on_standard_error_tells_what_was_served_and_nothing_else_changes() {
    let sandbox = fresh();
    let client = client(&sandbox, "-DN=3");
    let mut bare = sandbox.command(Way::Bare, &client[0]);
    let bare = sandbox.run(bare.args(&client[1..])).ok();
    let lines = [
        "oclcache: 0 hits, 1 miss, 0 bypassed, 0.0 ms of compile time served\n",
        "oclcache: 1 hit, 0 misses, 0 bypassed, ",
    ];
    for (builds, line) in [(1, lines[0]), (0, lines[1])] {
        let ran = run(&sandbox, &words(&client)).ok();
        assert_eq!((&ran.stdout, ran.source_builds()), (&bare.stdout, builds));
        assert!(ran.stderr.starts_with(line), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    let quiet = run(&sandbox, &[&["-q"], &words(&client)[..]].concat()).ok();
    assert_eq!((&quiet.stdout, &*quiet.stderr), (&bare.stdout, ""));
    let separated = run(&sandbox, &[&["-q", "--"], &words(&client)[..]].concat()).ok();
    assert_eq!((&separated.stdout, &*separated.stderr), (&bare.stdout, ""));
    assert_eq!([sandbox.stat("hits"), sandbox.stat("misses")], [3, 1]);
}

#[test]
fn processes_that_the_program_starts_are_summed() {
    let sandbox = fresh();
    let [one, two] = ["-DN=1", "-DN=2"].map(|options| client(&sandbox, options).join(" "));
    let script = format!("{one} & {two} & wait; ({one}; {two}) | cat; exec {one}");
    let ran = run(&sandbox, &["sh", "-c", &script]).ok();
    let last = "oclcache: 3 hits, 2 misses, 0 bypassed, ";
    assert!(ran.stderr.starts_with(last), "{}", ran.stderr);
    // Builds of others at the same time are not this run's.
    let ran = run(&sandbox, &words(&client(&sandbox, "-DN=1"))).ok();
    assert!(
        ran.stderr.starts_with("oclcache: 1 hit, 0 misses, "),
        "{}",
        ran.stderr
    );
    assert_eq!([sandbox.stat("hits"), sandbox.stat("misses")], [4, 2]);
    let failing = client(&sandbox, "-bad");
    let ran = run(&sandbox, &words(&failing));
    assert!(
        ran.stderr.contains("0 misses, 0 bypassed, 1 failed"),
        "{}",
        ran.stderr
    );
}

/// As when a container ends, and the next one has the same cache directory.
#[test]
fn what_was_counted_stays_when_the_memory_is_gone() {
    let sandbox = fresh();
    let counted = || {
        // Where the counters in memory are.
        let _ = fs::remove_file(sandbox.path("cache/v1/live"));
        (sandbox.stat("hits"), sandbox.stat("misses"))
    };
    for expected in [(0, 1), (1, 1)] {
        run(&sandbox, &words(&client(&sandbox, "-DN=3"))).ok();
        assert_eq!(counted(), expected);
    }
    let other = client(&sandbox, "-DN=4");
    let mut command = sandbox.command(Way::Cached, &other[0]);
    sandbox.run(command.args(&other[1..])).ok();
    assert_eq!(counted(), (1, 2));
}

#[test]
fn exit_codes_are_the_programs_and_those_of_a_shell() {
    let sandbox = fresh();
    for code in [0, 1, 7, 126, 127, 255] {
        let ran = run(&sandbox, &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(ran.code, Some(code));
    }
    let file = sandbox
        .write("not-runnable", "text\n")
        .display()
        .to_string();
    let missing = sandbox.path("missing").display().to_string();
    for (program, code) in [
        (missing.as_str(), 127),
        ("no-such-program-anywhere", 127),
        (file.as_str(), 126),
        ("/tmp", 126),
    ] {
        let ran = run(&sandbox, &[program]);
        assert_eq!(ran.code, Some(code), "{program}: {}", ran.stderr);
        assert!(ran.stderr.contains(program), "{}", ran.stderr);
    }
    assert_eq!(run(&sandbox, &[]).code, Some(2), "no program: wrong usage");
}

#[test]
fn a_program_that_a_signal_ends_ends_the_command_by_the_same_signal() {
    let sandbox = fresh();
    for signal in [2, 6, 9, 11, 15] {
        let script = format!("kill -{signal} $$");
        let mut command = command(&sandbox, &["sh", "-c", &script]);
        let status = command.stderr(Stdio::null()).status().expect("run");
        assert_eq!(status.signal(), Some(signal));
        assert!(!status.core_dumped());
    }
}

#[test]
fn a_signal_that_is_sent_to_the_command_reaches_the_program() {
    let sandbox = fresh();
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("USR1", 10)] {
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; echo ready; for i in $(seq 200); do sleep 0.1; done"
        );
        let mut command = command(&sandbox, &["-q", "sh", "-c", &script]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("run");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().expect("a line").expect("read"), "ready");
        let pid = rustix::process::Pid::from_child(&child);
        let signal = rustix::process::Signal::from_named_raw(number).expect("a signal");
        rustix::process::kill_process(pid, signal).expect("sent");
        let line = lines.next().expect("a line").expect("read");
        assert_eq!(line, format!("got {name}"));
        assert_eq!(child.wait().expect("ended").code(), Some(5));
    }
}

#[test]
fn input_output_and_arguments_pass_unchanged() {
    let sandbox = fresh();
    let odd = std::ffi::OsString::from_vec(b"\xff\n 'x' --quiet".to_vec());
    let mut command = command(
        &sandbox,
        &[
            "-q",
            "sh",
            "-c",
            "cat; printf '%s|' \"$@\"; echo words >&2",
            "sh",
            "-q",
            "--help",
            "--",
        ],
    );
    command
        .arg(&odd)
        .stdin(fs::File::open(sandbox.path("kernel.cl")).expect("opened"));
    let output = command.output().expect("run");
    let expected = [SOURCE.as_bytes(), b"-q|--help|--|\xff\n 'x' --quiet|"].concat();
    assert_eq!(output.stdout, expected);
    assert_eq!(output.stderr, b"words\n");
}

#[test]
fn drivers_that_a_loaders_variable_names_are_cached_and_listed_once() {
    let sandbox = fresh();
    let stub = Driver::Stub.library().expect("the stub");
    fs::create_dir(sandbox.path("drivers")).expect("made");
    sandbox.write("drivers/stub.icd", format!("{stub}\n"));
    let spy = example("libspy.so").display().to_string();
    let directory = |name: &str| sandbox.path(name).display().to_string();
    // A variable, what it names to see the platforms, and what it names to count builds.
    for (variable, plain, spied) in [
        ("OCL_ICD_VENDORS", directory("drivers"), directory("spy")),
        ("OPENCL_VENDOR_PATH", directory("drivers"), directory("spy")),
        ("OCL_ICD_FILENAMES", stub.clone(), spy.clone()),
        ("OCLCACHE_VENDORS", directory("drivers"), directory("spy")),
        (
            "OCL_ICD_VENDORS",
            format!("{}/stub.icd", directory("drivers")),
            format!("{}/spy.icd", directory("spy")),
        ),
        ("OCL_ICD_VENDORS", stub.clone(), spy.clone()),
    ] {
        let _ = fs::remove_dir_all(sandbox.path("cache"));
        let python = python().display().to_string();
        let mut list = command(&sandbox, &["-q", &python, "-c", LIST, "libOpenCL.so.1"]);
        list.env_remove("OCL_ICD_VENDORS").env(variable, &plain);
        let listed = sandbox.run(&mut list).ok().stdout;
        let stubs = listed
            .lines()
            .filter(|line| line.starts_with("platform Stub"));
        assert_eq!(stubs.count(), 1, "{variable}={plain}:\n{listed}");
        for builds in [1, 0] {
            let client = client(&sandbox, "-DN=1");
            let mut command = command(&sandbox, &words(&client));
            command
                .env_remove("OCL_ICD_VENDORS")
                .env(variable, &spied)
                .env("CLIENT_PLATFORM", "Stub");
            let ran = sandbox.run(&mut command).ok();
            assert_eq!(
                ran.source_builds(),
                builds,
                "{variable}={spied}: {}",
                ran.stderr
            );
        }
    }
}

#[test]
fn a_vendors_path_that_does_not_exist_is_refused_by_name_and_nothing_runs() {
    let sandbox = fresh();
    for (variable, value) in [
        ("OCL_ICD_VENDORS", "/nonexistent/vendors"),
        ("OPENCL_VENDOR_PATH", "/nonexistent/vendors"),
        ("OCL_ICD_FILENAMES", "/nonexistent/vendors/libx.so"),
        ("OCLCACHE_VENDORS", "/nonexistent/vendors"),
        ("OCLCACHE_VENDORS", "/tmp:/nonexistent/vendors/x.icd"),
    ] {
        let mut command = command(&sandbox, &["echo", "started"]);
        command.env_remove("OCL_ICD_VENDORS").env(variable, value);
        let ran = sandbox.run(&mut command);
        assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{variable}");
        assert!(
            ran.stderr.contains("/nonexistent/vendors"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(variable), "{}", ran.stderr);
    }
}

#[test]
fn a_program_that_did_not_use_the_cache_is_told_why() {
    let sandbox = fresh();
    let says = |command: &mut Command, words: &str| {
        let ran = sandbox.run(command).ok();
        let line = &ran.stderr;
        assert!(
            line.starts_with("oclcache: no process used the cache: "),
            "{line}"
        );
        assert!(line.contains(words) && line.lines().count() == 1, "{line}");
    };
    says(&mut command(&sandbox, &["true"]), "used an OpenCL loader");
    let client = client(&sandbox, "-DN=1");
    let mut disabled = command(&sandbox, &words(&client));
    says(disabled.env("OCLCACHE_DISABLE", "1"), "disabled");
    let program = sandbox.path("quiet-program");
    let source = sandbox.write("program.c", "int main(void) { return 0; }\n");
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-o"]).arg(&program).arg(source);
    if matches!(compiler.stderr(Stdio::null()).status(), Ok(status) if status.success()) {
        let name = program.display().to_string();
        says(&mut command(&sandbox, &[&name]), "statically linked");
    } else {
        skipped("a statically linked program (cc -static fails)");
    }
    let raised = sandbox.path("raised-program");
    copy_program("/bin/true", &raised);
    fs::set_permissions(&raised, PermissionsExt::from_mode(0o4755)).expect("changed");
    says(
        &mut command(&sandbox, &[&raised.display().to_string()]),
        "privileges",
    );
}

/// The first program of the script uses the cache and builds nothing, the second builds and has gone to the driver by itself.
#[test]
fn a_program_that_was_built_past_the_cache_is_not_denied() {
    let sandbox = fresh();
    let python = python().display().to_string();
    let script =
        "\"$PYTHON\" -c \"$LIST\" libOpenCL.so.1 >/dev/null && OCL_ICD_VENDORS=$SPY exec \"$@\"";
    let client = client(&sandbox, "-DN=1");
    let words = [vec!["sh", "-c", script, "sh"], words(&client)].concat();
    let mut command = command(&sandbox, &words);
    command
        .env("PYTHON", python)
        .env("LIST", LIST)
        .env("SPY", sandbox.path("spy"));
    let ran = sandbox.run(&mut command).ok();
    assert_eq!(ran.source_builds(), 1, "{}", ran.stderr);
    let line = ran.stderr.lines().last();
    let expected = "oclcache: no kernel was compiled through the cache; programs that only list devices, such as clinfo, compile none; if this one compiles, run `oclcache doctor`";
    assert_eq!(line, Some(expected), "{}", ran.stderr);
}

#[test]
fn a_run_without_any_driver_says_so() {
    let sandbox = fresh();
    let empty = sandbox.path("empty");
    std::fs::create_dir(&empty).expect("made");
    let python = python().display().to_string();
    let mut command = command(&sandbox, &[&python, "-c", LIST, "libOpenCL.so.1"]);
    let ran = sandbox.run(command.env("OCLCACHE_VENDORS", &empty)).ok();
    let expected =
        "oclcache: no kernel was compiled: no OpenCL driver is registered; run `oclcache doctor`";
    assert_eq!(ran.stderr.lines().last(), Some(expected), "{}", ran.stderr);
}

#[test]
fn without_a_cache_directory_the_program_runs_all_the_same() {
    let sandbox = fresh();
    let client = client(&sandbox, "-DN=1");
    let mut bare = sandbox.command(Way::Bare, &client[0]);
    let bare = sandbox.run(bare.args(&client[1..])).ok();
    let mut command = command(&sandbox, &words(&client));
    command.env_remove("HOME").env_remove("OCLCACHE_DIR");
    let ran = sandbox.run(&mut command).ok();
    assert_eq!((ran.source_builds(), &ran.stdout), (1, &bare.stdout));
    assert!(
        ran.stderr
            .starts_with("oclcache: running without the cache: "),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("HOME"), "{}", ran.stderr);
}

#[test]
fn a_read_only_cache_is_served_and_summed_and_stays_as_it_is() {
    let sandbox = fresh();
    let client = client(&sandbox, "-DN=1");
    run(&sandbox, &words(&client)).ok();
    let before = [sandbox.path("cache"), sandbox.path("home")].map(|place| tree(&place));
    fs::create_dir(sandbox.path("tmp")).expect("made");
    let mut command = command(&sandbox, &words(&client));
    command
        .env("OCLCACHE_READONLY", "1")
        .env("TMPDIR", sandbox.path("tmp"));
    let ran = sandbox.run(&mut command).ok();
    assert!(
        ran.stderr.starts_with("oclcache: 1 hit, "),
        "{}",
        ran.stderr
    );
    let after = [sandbox.path("cache"), sandbox.path("home")].map(|place| tree(&place));
    assert_eq!(after, before);
    let left = fs::read_dir(sandbox.path("tmp")).expect("listed").count();
    assert_eq!(left, 0, "temporary files are removed");
}

#[test]
fn the_library_is_found_in_lib_beside_bin_and_its_absence_is_explained() {
    let sandbox = fresh();
    let client = client(&sandbox, "-DN=1");
    let installed = sandbox.installed();
    let beside = installed.with_file_name("liboclcache.so");
    fs::create_dir(sandbox.path("lib")).expect("made");
    fs::rename(&beside, sandbox.path("lib/liboclcache.so")).expect("moved");
    let ran = run(&sandbox, &words(&client)).ok();
    assert!(
        ran.stderr.starts_with("oclcache: 0 hits, 1 miss"),
        "{}",
        ran.stderr
    );
    fs::remove_file(sandbox.path("lib/liboclcache.so")).expect("removed");
    let ran = run(&sandbox, &["echo", "started"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""));
    let named = beside.display().to_string();
    assert!(ran.stderr.contains(&named), "{}", ran.stderr);
    assert!(Path::new(&installed).exists());
}

#[test]
fn the_program_ends_as_it_has_whatever_becomes_of_its_counters() {
    let sandbox = fresh();
    let program = "touch \"$OCLCACHE_RUN/0-0-1-1\" && mkdir \"$OCLCACHE_RUN/../0-0-1-1\" && exit 3";
    let ran = run(&sandbox, &["sh", "-c", program]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot move"), "{}", ran.stderr);
}

/// Lists are separated by colons, and paths may have any byte: those of drivers reach the program and whoever bakes behind it.
#[test]
fn a_path_of_a_driver_may_have_colons_and_backslashes() {
    let sandbox = fresh();
    let odd = sandbox.path("a:b\\:c \\");
    fs::create_dir(&odd).expect("made");
    let library = odd.join("libspy.so");
    copy_program(example("libspy.so"), &library);
    fs::write(odd.join("spy.icd"), format!("{}\n", library.display())).expect("written");
    for (record, builds) in [("inline", 1), ("bake", 2)] {
        let _ = fs::remove_dir_all(sandbox.path("cache"));
        let client = client(&sandbox, "-DN=1");
        let run = || {
            let arguments = [&["--bake"], &words(&client)[..]].concat();
            let mut command = command(&sandbox, &arguments);
            command
                .env("OCL_ICD_VENDORS", &odd)
                .env("OCLCACHE_RECORD", record);
            sandbox.run(&mut command).ok()
        };
        let first = run();
        assert_eq!(first.source_builds(), builds, "{record}: {}", first.stderr);
        let second = run();
        assert_eq!(second.source_builds(), 0, "{record}: {}", second.stderr);
        assert!(
            second.stderr.contains("oclcache: 1 hit"),
            "{}",
            second.stderr
        );
    }
}

/// `rm -rf` of a cache is always allowed.
#[test]
fn what_a_run_starts_after_its_cache_was_removed_finds_its_drivers() {
    let sandbox = fresh();
    let one = client(&sandbox, "-DN=1").join(" ");
    let cache = sandbox.path("cache").display().to_string();
    let script = format!("{one} && rm -rf '{cache}' && {one}");
    let known = "oclcache: 0 hits, 2 misses, 0 bypassed";
    for (has_memory, says) in [(true, known), (false, "what was compiled is unknown\n")] {
        if !has_memory {
            sandbox.disable_memory();
        }
        let ran = run(&sandbox, &["sh", "-c", &script]).ok();
        let results = ran
            .stdout
            .lines()
            .filter(|line| line.starts_with("run: result"));
        assert_eq!(results.count(), 2, "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
}

#[test]
fn the_vendors_directory_of_a_run_is_private_and_in_the_cache_where_the_home_is_not_written() {
    let sandbox = fresh();
    let made = |ran: Ran| {
        let place = ran.ok().stdout;
        let place = Path::new(place.trim()).to_owned();
        let mode = fs::metadata(&place).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        place
    };
    let shows = ["-q", "sh", "-c", "echo $OCL_ICD_VENDORS"];
    let usual = made(run(&sandbox, &shows));
    assert_eq!(
        usual.parent(),
        Some(&*sandbox.path("home/.local/share/oclcache"))
    );
    assert_eq!(made(run(&sandbox, &shows)), usual, "one for all runs");
    let mut elsewhere = command(&sandbox, &shows);
    elsewhere.env("XDG_DATA_HOME", "/proc/nowhere");
    let place = made(sandbox.run(&mut elsewhere));
    assert_eq!(place.parent(), Some(&*sandbox.path("cache/v1")));
    if !crate::support::is_root() {
        return skipped("`oclcache run` with the home of another user (not root)");
    }
    fs::remove_dir_all(sandbox.path("home/.local")).expect("removed");
    std::os::unix::fs::chown(sandbox.path("home"), Some(65534), None).expect("given away");
    let place = made(run(&sandbox, &shows));
    assert_eq!(place.parent(), Some(&*sandbox.path("cache/v1")));
    assert!(!sandbox.path("home/.local").exists());
}

#[test]
fn a_run_from_a_package_uses_the_vendors_directory_beside_the_library_and_writes_none_in_the_home()
{
    let sandbox = fresh();
    // Of the wheel, of a Debian package or an RPM, and of `icd/install` or a tarball.
    for (name, library, vendors, is_placed) in [
        ("wheel", "liboclcache.so", "vendors", false),
        ("package", "liboclcache.so", "vendors", true),
        (
            "tree",
            "../lib/liboclcache.so",
            "../lib/oclcache/vendors",
            false,
        ),
    ] {
        let bin = sandbox.path(name).join("bin");
        fs::create_dir_all(bin.join("../lib")).expect("made");
        fs::create_dir_all(bin.join(vendors)).expect("made");
        copy_program(env!("CARGO_BIN_EXE_oclcache"), &bin.join("oclcache"));
        copy_program(crate::support::library(), &bin.join(library));
        let library = bin.join(library).canonicalize().expect("there");
        let vendors = bin.join(vendors).canonicalize().expect("there");
        let path = format!("{}\n", library.display());
        let icd = vendors.join("oclcache.icd");
        fs::write(
            &icd,
            if is_placed {
                &*path
            } else {
                "liboclcache.so\n"
            },
        )
        .expect("written");
        let used = || {
            let mut command = sandbox.command(Way::Bare, bin.join("oclcache"));
            command.args(["run", "-q", "sh", "-c", "echo $OCL_ICD_VENDORS"]);
            let ran = sandbox.run(command.env("OCLCACHE_DIR", sandbox.path("cache")));
            Path::new(ran.ok().stdout.trim()).to_owned()
        };
        assert_eq!(used(), vendors, "{name}");
        assert_eq!(fs::read_to_string(&icd).expect("read"), path, "{name}");
        assert_eq!(used(), vendors, "{name}, again");
        assert!(!sandbox.path("home/.local").exists(), "{name}");
        // A loader would open a driver there a second time, beside us.
        fs::write(vendors.join("driver.icd"), "libdriver.so\n").expect("written");
        let in_home = used();
        assert!(in_home.starts_with(sandbox.path("home/.local")), "{name}");
        fs::remove_file(vendors.join("driver.icd")).expect("removed");
        // Seen elsewhere, the directory names a library that may not be there.
        fs::write(&icd, "/nowhere/liboclcache.so\n").expect("written");
        assert_eq!(used(), in_home, "{name}, moved");
        fs::remove_dir_all(sandbox.path("home/.local")).expect("removed");
    }
}

#[test]
fn vendors_directories_go_with_their_library_and_nothing_else_goes_with_them() {
    let sandbox = fresh();
    let home = sandbox.path("home/.local/share/oclcache");
    let libraries = ["one", "two"].map(|name| {
        let bin = sandbox.path(name);
        fs::create_dir(&bin).expect("made");
        copy_program(env!("CARGO_BIN_EXE_oclcache"), &bin.join("oclcache"));
        copy_program(crate::support::library(), &bin.join("liboclcache.so"));
        let mut command = sandbox.command(Way::Bare, bin.join("oclcache"));
        command.args(["run", "-q", "sh", "-c", "echo $OCL_ICD_VENDORS"]);
        let ran = sandbox
            .run(command.env("OCLCACHE_DIR", sandbox.path("cache")))
            .ok();
        (bin, Path::new(ran.stdout.trim()).to_owned())
    });
    let [(bin, gone), (_, kept)] = libraries;
    fs::remove_file(bin.join("liboclcache.so")).expect("removed");
    // Of a user who has things of that name.
    let registration = "/nowhere/liboclcache.so\n";
    for name in ["vendors-0123456789abcdef", "vendors-photos", "vendors"] {
        fs::create_dir(home.join(name)).expect("made");
        fs::write(home.join(name).join("oclcache.icd"), registration).expect("written");
    }
    let beside = gone.join("notes");
    fs::write(&beside, "mine").expect("written");
    let gc = || {
        sandbox.oclcache(&["gc"]).ok();
        fs::read_dir(&home).expect("listed").count()
    };
    assert_eq!(gc(), 5, "with something else in it, it is not ours alone");
    fs::remove_file(beside).expect("removed");
    assert_eq!(gc(), 4);
    assert!(!gone.exists() && kept.join("oclcache.icd").exists());
    let ran = sandbox.oclcache(&["uninstall", "--user"]).ok();
    assert!(
        !kept.exists() && home.join("vendors-photos").exists(),
        "{}",
        ran.stderr
    );
}
