//! What the stub driver proves: what compiles again, what is never cached, and whose verdicts are given.

use crate::support::{Sandbox, Way, example};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = N + 1; }\n";

/// Runs the kernel through the cache and tells how often the driver compiled for it. The result must be the bare driver's.
#[track_caller]
fn compilations(sandbox: &Sandbox, source: &str, options: &str) -> usize {
    let bare = sandbox.kernel(Way::Bare, source, options).ok();
    let before = sandbox.compilations();
    let cached = sandbox.kernel(Way::Cached, source, options).ok();
    assert_eq!(cached.stdout, bare.stdout, "log:\n{}", cached.stderr);
    sandbox.compilations() - before
}

#[test]
fn an_equal_build_compiles_once() {
    let sandbox = Sandbox::stub();
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    for _ in 0..3 {
        assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 0);
    }
    assert_eq!(
        [
            sandbox.stat("hits"),
            sandbox.stat("misses"),
            sandbox.stat("entries")
        ],
        [3, 1, 1]
    );
}

#[test]
fn a_changed_option_or_source_byte_compiles_again() {
    let sandbox = Sandbox::stub();
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=2"), 1);
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1 "), 1);
    assert_eq!(
        compilations(&sandbox, &SOURCE.replace("+ 1", "+ 2"), "-DN=1"),
        1
    );
    assert_eq!(compilations(&sandbox, &format!("{SOURCE} "), "-DN=1"), 1);
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 0);
}

#[test]
fn another_device_compiles_again() {
    let mut sandbox = Sandbox::stub();
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    sandbox.set("STUB_DEVICE_NAME", "another");
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 0);
}

#[test]
fn an_environment_variable_that_changes_code_compiles_again_also_if_the_program_sets_it() {
    let mut sandbox = Sandbox::stub();
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    sandbox.set("STUB_CODE", "vectorized");
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 0);
    sandbox.variables.remove("STUB_CODE");
    let file = sandbox.write("kernel.cl", SOURCE);
    let file = file.to_str().expect("UTF-8");
    let before = sandbox.compilations();
    let arguments = [
        "--setenv",
        "STUB_CODE=vectorized",
        "run",
        "--source",
        file,
        "--kernel",
        "f",
        "--options",
        "-DN=1",
    ];
    sandbox.client(Way::Cached, &arguments).ok();
    assert_eq!(
        sandbox.compilations(),
        before,
        "the same value, set by the program itself"
    );
}

#[test]
fn another_driver_library_compiles_again_even_with_equal_size_and_time() {
    let mut sandbox = Sandbox::stub();
    let original = std::fs::read(example("libstub_driver.so")).expect("the stub");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let install = |name: &str, content: &[u8]| {
        let path = sandbox.write(name, content);
        let file = std::fs::File::options()
            .write(true)
            .open(&path)
            .expect("opened");
        file.set_modified(old).expect("dated");
        path.display().to_string()
    };
    // Another build of the same source differs in its build-id at least.
    let id = build_id_offset(&original);
    let mut updated = original.clone();
    updated[id] ^= 1;
    let (first, second) = (
        install("libfirst.so", &original),
        install("libsecond.so", &updated),
    );
    sandbox.set("SPY_DRIVER", first.clone());
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    sandbox.set("SPY_DRIVER", second);
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    sandbox.set("SPY_DRIVER", first);
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 0);
}

/// Where the bytes of the GNU build-id stand in an ELF file.
fn build_id_offset(file: &[u8]) -> usize {
    let note = b"\x03\0\0\0GNU\0";
    file.windows(note.len())
        .position(|window| window == note)
        .expect("a build-id")
        + note.len()
}

#[test]
fn a_failing_build_is_never_cached() {
    let sandbox = Sandbox::stub();
    let source = format!("{SOURCE}#error wrong\n");
    for way in [Way::Bare, Way::Cached, Way::Cached] {
        let ran = sandbox.kernel(way, &source, "-DN=1").ok();
        assert!(ran.stdout.contains("build: code -11"), "{}", ran.stdout);
        assert_eq!(ran.source_builds(), 1);
    }
    assert_eq!([sandbox.stat("failed"), sandbox.stat("entries")], [2, 0]);
}

/// All sections that change the state of a program, under one behavior of the driver, bare and cached.
#[track_caller]
fn gives_the_drivers_verdicts(variables: &[(&str, &str)]) {
    let mut sandbox = Sandbox::stub();
    for (name, value) in variables {
        sandbox.set(name, *value);
    }
    for section in [
        "rebuild",
        "failing",
        "callback",
        "compilelink",
        "lifetime",
        "two-programs",
    ] {
        let bare = sandbox.client(Way::Bare, &[section]).ok();
        for pass in ["cold", "warm"] {
            let cached = sandbox.client(Way::Cached, &[section]).ok();
            let texts = [&cached, &bare].map(|ran| without_threads(&ran.stdout));
            assert_eq!(
                texts[0], texts[1],
                "{section}, {pass}, log:\n{}",
                cached.stderr
            );
        }
    }
    assert!(sandbox.stat("hits") > 0);
}

/// A driver may call back on any thread, and a hit calls back on the caller's, so that line is left out.
fn without_threads(text: &str) -> String {
    text.lines()
        .filter(|line| !line.contains(": thread "))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_strict_driver() {
    gives_the_drivers_verdicts(&[("STUB_REBUILD", "strict")]);
}

#[test]
fn a_permissive_driver() {
    gives_the_drivers_verdicts(&[("STUB_REBUILD", "permissive")]);
}

#[test]
fn a_driver_whose_programs_never_recover_from_a_failure() {
    gives_the_drivers_verdicts(&[("STUB_STICKY", "1")]);
}

#[test]
fn a_driver_that_does_not_count_kernels() {
    gives_the_drivers_verdicts(&[("STUB_REFCOUNT_KERNELS", "0")]);
}

#[test]
fn a_driver_that_builds_on_a_thread_of_its_own() {
    gives_the_drivers_verdicts(&[("STUB_ASYNC", "1")]);
}

#[test]
fn a_driver_with_a_read_only_table() {
    gives_the_drivers_verdicts(&[("STUB_READONLY_TABLE", "1")]);
}

#[test]
fn a_driver_whose_binaries_differ_each_time() {
    gives_the_drivers_verdicts(&[("STUB_VARY", "1")]);
}

#[test]
fn a_binary_that_the_driver_refuses_is_a_miss_and_is_set_aside() {
    let mut sandbox = Sandbox::stub();
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    let entry = sandbox.entries().pop().expect("an entry");
    // Variables of the driver are in the key, so the entry is put where the refusing driver looks.
    sandbox.set("STUB_REFUSE_BINARIES", "1");
    assert_eq!(compilations(&sandbox, SOURCE, "-DN=1"), 1);
    assert!(entry.exists());
    assert_eq!(
        compilations(&sandbox, SOURCE, "-DN=1"),
        1,
        "the refused entry is not served"
    );
    assert_eq!(sandbox.stat("set_aside"), 1);
    assert_eq!(sandbox.stat("hits"), 0);
}

#[test]
fn several_devices_are_cached_together_and_a_part_of_them_is_left_to_the_driver() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_DEVICES", "2");
    sandbox.set("CLIENT_DEVICES", "2");
    for section in ["facts", "run", "lifetime"] {
        let bare = sandbox.client(Way::Bare, &[section]).ok();
        for pass in ["cold", "warm"] {
            let cached = sandbox.client(Way::Cached, &[section]).ok();
            assert_eq!(
                cached.stdout, bare.stdout,
                "{section}, {pass}, log:\n{}",
                cached.stderr
            );
        }
    }
    assert!(sandbox.stat("hits") > 0);
}

/// While it is recorded, a program counts as being built, but not for devices for which nobody builds it.
#[test]
fn a_device_for_which_a_program_was_built_keeps_its_status_while_it_is_built_for_another() {
    let mut sandbox = Sandbox::stub();
    for (variable, value) in [
        ("STUB_DEVICES", "2"),
        ("CLIENT_DEVICES", "2"),
        ("STUB_BUILD_MS", "100"),
        ("STUB_FETCH_MS", "200"),
    ] {
        sandbox.set(variable, value);
    }
    let bare = sandbox.client(Way::Bare, &["one-by-one"]).ok().stdout;
    for _ in 0..2 {
        let cached = sandbox.client(Way::Cached, &["one-by-one"]).ok();
        assert_eq!(cached.stdout, bare, "{}", cached.stderr);
    }
}
