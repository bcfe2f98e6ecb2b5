//! Programs whose process has no memory left for us get what they get bare.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::support::{Driver, Ran, Sandbox, Way, example, is_long, library, some_of};

/// The library's allocator meets smaller allocations from its reserve where the system has no memory. It has nothing for these.
const BEYOND_RESERVE: usize = (512 << 10) + 1;
/// Smaller allocations never fail here.
const LARGE: usize = 4096;

/// A program, and which of the library's allocations fail in it.
struct Case {
    name: &'static str,
    arguments: Vec<String>,
    variables: &'static [(&'static str, &'static str)],
    /// The smallest allocations that fail, in bytes.
    from_size: usize,
}

/// Letters that do not compress well.
fn noise(size: usize) -> String {
    let mut state = 1u64;
    let letter = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'a' + (state >> 59) as u8 % 26)
    };
    (0..size).map(letter).collect()
}

const KERNEL: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }\n";

/// A comment that takes the library a copy of the text, since a line of it is joined with the next.
fn comment(size: usize) -> String {
    format!("/* {} \\\n */\n", noise(size))
}

/// A text of so many bytes, all of which the compiler reads, and which includes a header by a name that a header defines.
fn included(sandbox: &Sandbox, size: usize) -> Case {
    let text = format!(
        "#include \"h.h\"\n__constant char text[] = \"{}\";\n\
         __kernel void f(__global uint *out) {{ out[get_global_id(0)] = text[1] + NUMBER; }}\n",
        "x".repeat(size)
    );
    sandbox.write("h.h", "#define NAME \"i.h\"\n#include NAME\n");
    sandbox.write("i.h", "#define NUMBER 1\n");
    let directory = format!("-I {}", sandbox.path("").display());
    let source = file(sandbox, "included.cl", &text);
    Case {
        name: "included",
        arguments: run(&[&source, "--options", &directory]),
        variables: &[],
        from_size: LARGE,
    }
}

fn file(sandbox: &Sandbox, name: &str, text: &str) -> String {
    let file = sandbox.write(name, text);
    file.to_str().expect("UTF-8").to_owned()
}

fn run(more: &[&str]) -> Vec<String> {
    let all = ["run", "--kernel", "f", "--source"].iter().chain(more);
    all.map(|one| (*one).to_owned()).collect()
}

/// Programs with texts of each kind, of at least so many bytes each.
fn cases(driver: Driver, sandbox: &Sandbox, size: usize, from_size: usize) -> Vec<Case> {
    let case = |name, arguments| Case {
        name,
        arguments,
        variables: &[],
        from_size,
    };
    let source = file(sandbox, "large.cl", &(comment(size) + KERNEL));
    let small = file(sandbox, "small.cl", KERNEL);
    let header = file(sandbox, "header.h", &comment(size));
    let including = format!("#include \"header.h\"\n{}{KERNEL}", comment(size));
    let including = file(sandbox, "including.cl", &including);
    let warning = format!("#warning {}\n{KERNEL}", noise(size));
    let warning = file(sandbox, "warning.cl", &warning);
    let random = format!("#warning tempfile_{}\n{KERNEL}", noise(size));
    let random = file(sandbox, "random.cl", &random);
    let words = format!(" -DWORD={}", noise(100));
    let options = file(sandbox, "options", &words.repeat(size / 100));
    let directory = format!("-I {}", sandbox.path("").display());
    let header = format!("header.h={header}");
    let mut linked = run(&[&including, "--header", &header]);
    linked[0] = "linked".to_owned();
    if driver != Driver::Pocl {
        // After a hit its inputs are made again. PoCL ends the process if it was asked for the binary before (measured).
        linked.push("--rebuild".to_owned());
    }
    vec![
        case("source", run(&[&source])),
        case("options", run(&[&small, "--options-file", &options])),
        case("header file", run(&[&including, "--options", &directory])),
        case("log", run(&[&warning])),
        // The entry does not have the log, so the driver builds the program after a hit.
        Case {
            variables: &[("OCLCACHE_STORE_SOURCE", "0")],
            ..case("log that is not stored", run(&[&warning]))
        },
        // The log looks as if it quoted a name that is drawn at random, so the driver is asked for it after a hit, and its answer
        // is added to the entry.
        case("log that is asked for again", run(&[&random])),
        // The entry stays a recipe, and each run misses.
        Case {
            variables: &[("OCLCACHE_RECORD", "bake")],
            ..case("recipe", run(&[&source]))
        },
        case("linked", linked),
    ]
}

fn starve(sandbox: &Sandbox, way: Way, case: &Case, starving: &[(&str, usize)]) -> Ran {
    let mut command = sandbox.command(way, example("client"));
    command.args(&case.arguments);
    command.envs(case.variables.iter().copied());
    command.env("LD_PRELOAD", example("libstarving.so"));
    command.env("STARVING_LOG", sandbox.path("starving"));
    let size = [("STARVING_SIZE", case.from_size)];
    for (name, value) in size.iter().chain(starving) {
        command.env(name, value.to_string());
    }
    sandbox.run(&mut command)
}

/// How many of the allocations that count the library has made.
fn allocations(sandbox: &Sandbox) -> usize {
    let log = sandbox.path("starving");
    let count = fs::read(&log).map_or(0, |log| log.len());
    let _ = fs::remove_file(log);
    count
}

/// The entries with their contents and inodes: one that is written again may have the same content.
fn contents(sandbox: &Sandbox) -> BTreeMap<PathBuf, (u64, Vec<u8>)> {
    let entries = sandbox.entries().into_iter();
    let read = |path: PathBuf| {
        let inode = fs::metadata(&path).expect("an entry").ino();
        let content = fs::read(&path).expect("read");
        (path, (inode, content))
    };
    entries.map(read).collect()
}

/// Each allocation fails in turn, and all from each of them on; but at most so many, evenly spread. Returns how often one failed.
fn fail_each(sandbox: &Sandbox, case: &Case, most: usize) -> usize {
    assert!(library().to_string_lossy().contains("liboclcache"));
    let bare = starve(sandbox, Way::Bare, case, &[]).ok();
    allocations(sandbox);
    let mut runs = 0;
    for kind in ["miss", "hit"] {
        let entries = sandbox.path("cache/v1/entries");
        let forget = || {
            if kind == "miss" {
                // What is remembered of the driver stays: to read it all again takes seconds.
                let _ = fs::remove_dir_all(&entries);
            }
        };
        forget();
        let what = format!("{} {kind}", case.name);
        if kind == "hit" {
            // The last miss may have stored nothing.
            starve(sandbox, Way::Cached, case, &[]).ok();
            allocations(sandbox);
        }
        let full = starve(sandbox, Way::Cached, case, &[]).ok();
        assert_eq!(full.stdout, bare.stdout, "{what}");
        let stored = contents(sandbox);
        let count = allocations(sandbox);
        let step = count.div_ceil(most).max(1);
        for variable in ["STARVING_AT", "STARVING_FROM"] {
            for number in (1..=count).step_by(step) {
                forget();
                let ran = starve(sandbox, Way::Cached, case, &[(variable, number)]);
                let what = format!("{what} {variable}={number} of {count}");
                assert_eq!(ran.code, Some(0), "{what}: {:?} {}", ran.signal, ran.stderr);
                assert_eq!(ran.stdout, bare.stdout, "{what}: {}", ran.stderr);
                if kind == "hit" {
                    // Nothing is wrong with an entry for which there is no memory.
                    assert!(contents(sandbox) == stored, "{what}: {}", ran.stderr);
                }
                runs += 1;
            }
        }
        allocations(sandbox);
    }
    runs
}

const DRIVERS: [Driver; 3] = [Driver::Stub, Driver::Pocl, Driver::Intel];

/// How many allocations fail one by one. `real`: on a real driver, which compiles each time.
fn most_of(driver: Driver, real: usize) -> usize {
    match driver {
        Driver::Stub if is_long("each allocation that can fail, of which some fail otherwise") => {
            usize::MAX
        }
        Driver::Stub => 24,
        _ => real,
    }
}

fn sandbox(driver: Driver) -> Option<Sandbox> {
    let mut sandbox = Sandbox::new(driver)?;
    // Nobody is told of what a starving process cannot store.
    sandbox.set("OCLCACHE_LOG", "error");
    Some(sandbox)
}

/// The reserve meets what fails here.
#[test]
fn whichever_large_allocation_fails_the_program_gets_what_it_gets_bare() {
    for driver in some_of(&DRIVERS) {
        let most = most_of(driver, 4);
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let runs = fail_each(&sandbox, &included(&sandbox, 40_000), most);
        assert!(runs > 12, "{driver:?}: {runs}");
    }
    let sandbox = sandbox(Driver::Stub).expect("the stub is built with the tests");
    for case in cases(Driver::Stub, &sandbox, 20_000, LARGE) {
        fail_each(&sandbox, &case, most_of(Driver::Stub, 0));
    }
}

/// Nothing meets what fails here: all that is as large as a text is allocated fallibly.
#[test]
fn each_allocation_that_the_reserve_cannot_meet_may_fail() {
    for driver in some_of(&DRIVERS) {
        let most = most_of(driver, 2);
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let mut cases = cases(driver, &sandbox, 960 << 10, BEYOND_RESERVE);
        if driver != Driver::Stub {
            cases.retain(|case| matches!(case.name, "source" | "log" | "linked"));
        }
        for case in cases {
            let runs = fail_each(&sandbox, &case, most);
            assert!(
                runs > 0 || case.name == "options",
                "{driver:?} {}",
                case.name
            );
        }
        let left = sandbox.stat("bypass_reasons/no_memory");
        assert!(left > 0, "{driver:?}: no build was left to the driver");
    }
}

/// Of a bisection, in KiB.
const STEP: usize = 8 << 10;
/// The address space of the library itself, its reserve and its small allocations, in KiB.
const OWN_SPACE: usize = 32 << 10;

/// The least address space with which a program does what it should, in KiB, rounded up to a [`STEP`].
fn least_space(lives: impl Fn(usize) -> bool) -> usize {
    let (mut least, mut most) = (0, (2 << 20) / STEP);
    while least + 1 < most {
        let middle = usize::midpoint(least, most);
        match lives(middle * STEP) {
            true => most = middle,
            false => least = middle,
        }
    }
    most * STEP
}

#[test]
fn a_program_with_little_address_space_gets_what_it_gets_bare() {
    for driver in some_of(&DRIVERS[1..]) {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        // Several copies of it do not fit into the library's own space.
        let source = file(&sandbox, "large.cl", &(comment(16 << 20) + KERNEL));
        let arguments = run(&[&source]);
        let limited = |way, kib: usize| {
            let mut command = sandbox.command(way, "sh");
            let script = format!("ulimit -v {kib} && exec \"$@\"");
            // How many arenas malloc makes, of 64 MiB each, depends on how a driver's threads meet, before any build.
            command.env("MALLOC_ARENA_MAX", "1");
            command.args(["-c", &script, "sh"]).arg(example("client"));
            command.args(&arguments);
            sandbox.run(&mut command)
        };
        let full = limited(Way::Bare, 16 << 20).ok();
        let lives = |ran: &Ran| ran.code == Some(0) && ran.stdout == full.stdout;
        let least = least_space(|kib| lives(&limited(Way::Bare, kib)));
        let entries = sandbox.path("cache/v1/entries");
        limited(Way::Cached, 16 << 20).ok();
        let mut compared = 0;
        for kind in ["hit", "miss"] {
            for more in [0, 16 << 10, 64 << 10, 192 << 10] {
                let kib = least + OWN_SPACE + more;
                // With more space allocators reserve more, and drivers may get less.
                if !lives(&limited(Way::Bare, kib - OWN_SPACE)) || !lives(&limited(Way::Bare, kib))
                {
                    continue;
                }
                if kind == "miss" {
                    let _ = fs::remove_dir_all(&entries);
                }
                let ran = limited(Way::Cached, kib);
                let what = format!("{driver:?} {kind}: {kib} KiB, bare needs {least}");
                assert_eq!(ran.code, Some(0), "{what}: {:?} {}", ran.signal, ran.stderr);
                assert_eq!(ran.stdout, full.stdout, "{what}: {}", ran.stderr);
                compared += 1;
            }
        }
        assert!(compared > 4, "{driver:?}: {compared}");
    }
}
