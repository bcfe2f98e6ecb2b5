//! Drivers that crash, hang or are killed in a section, or refuse their own binaries: a finding, and the other sections still run.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::{qualify_library, qualify_stub, slow_stub};
use crate::support::{Sandbox, Way, example};

fn stub() -> String {
    example("libstub_driver.so").display().to_string()
}

#[test]
fn a_crash_in_a_section_is_a_finding_and_the_other_sections_run() {
    for (word, section, unmeasured, measured) in [
        ("oclcache_times_1", "times", "record", "rebuild"),
        ("oclcache_undefined", "undefined-function", "", "record"),
        ("oclcache_first", "rebuild", "rebuild", "record"),
        ("compared", "bare", "", "rebuild"),
    ] {
        let mut sandbox = slow_stub();
        let file = sandbox.write("word", word);
        sandbox.set("STUB_CRASH", file);
        let qualified = qualify_stub(&sandbox);
        let stdout = &qualified.ran.stdout;
        assert_eq!(qualified.ran.code, Some(1), "{word}: {stdout}");
        let faults = qualified.faults();
        let text = format!("section `{section}`: the driver crashed (signal 6)");
        assert!(faults.contains(&text), "{word}: {faults:?}");
        if !unmeasured.is_empty() {
            assert!(qualified.measured(unmeasured).is_null(), "{word}: {stdout}");
        }
        assert!(!qualified.measured(measured).is_null(), "{word}: {stdout}");
        // What was not compared is not believed.
        assert_eq!(qualified.is_kept(), section != "bare", "{word}: {stdout}");
    }
}

#[test]
fn a_hanging_section_is_given_up_and_the_other_sections_run() {
    let mut sandbox = slow_stub();
    // The first compilation never ends.
    let file = sandbox.write("stuck", "");
    sandbox.set("STUB_STUCK", file);
    let qualified = qualify_library(&sandbox, &stub(), &["--timeout", "2s"]);
    let faults = qualified.faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    let is_told = faults[0].contains("section `identity`: it hangs: it took longer than 2.0 s");
    assert!(is_told, "{faults:?}");
    assert_eq!(qualified.ran.code, Some(1));
    assert_eq!(*qualified.measured("rebuild"), "fresh");
    // Without its identity nobody could say for which driver it is.
    assert!(!qualified.is_kept());
    assert!(!sandbox.path("cache/v1/profiles").exists());
}

/// Compiles a driver from C, next to the cache.
fn of_c(sandbox: &Sandbox, source: &str) -> Option<String> {
    let source = sandbox.write("driver.c", source);
    let library = sandbox.path("libdriver.so");
    crate::functions::compile(&library, &source, &["-shared", "-fPIC"])?;
    Some(library.display().to_string())
}

/// A driver that never comes as far as a section.
#[test]
fn a_driver_that_crashes_or_hangs_when_it_is_opened_ends_in_a_report() {
    let constructor = "__attribute__((constructor)) static void begin(void)";
    for body in [
        "abort();",
        "for (;;) pause();",
        "raise(SIGKILL);",
        "_exit(0);",
    ] {
        let sandbox = slow_stub();
        let source = format!(
            "#include <signal.h>\n#include <stdlib.h>\n#include <unistd.h>\n{constructor} {{ {body} }}\n"
        );
        let Some(library) = of_c(&sandbox, &source) else {
            return crate::support::skipped("drivers that crash when they are opened (no cc)");
        };
        let report = sandbox.path("report").display().to_string();
        let options = ["--timeout", "1s", "--report", &report];
        let qualified = qualify_library(&sandbox, &library, &options);
        assert_eq!(qualified.ran.code, Some(1), "{body}");
        let said = "libdriver.so cannot be used as a driver";
        assert_eq!(qualified.faults(), [said], "{body}");
        let report = std::fs::read_to_string(report).expect("written");
        assert!(report.contains(said), "{body}: {report}");
    }
}

/// The place of the build-id in a library: behind the head of its note.
fn build_id(library: &[u8]) -> usize {
    let head = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let place = library.windows(head.len()).position(|part| part == head);
    place.expect("a build-id") + head.len()
}

/// The driver is updated while a section hangs: what was measured is of both, and kept for neither.
#[test]
fn what_was_measured_while_the_driver_was_updated_is_not_kept() {
    let mut sandbox = slow_stub();
    let library = sandbox.path("libcopy.so");
    let mut content = std::fs::read(example("libstub_driver.so")).expect("read");
    std::fs::write(&library, &content).expect("written");
    let id = build_id(&content);
    content[id] ^= 1;
    let next = sandbox.write("next", content);
    let stuck = sandbox.write("stuck", "oclcache_times_0");
    sandbox.set("STUB_STUCK", &stuck);
    let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command.args(["doctor", "--qualify", "--json", "--timeout", "3s"]);
    command.arg("--library").arg(&library);
    let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let started = started.expect("started");
    wait_for("the section", || !stuck.exists());
    std::fs::rename(&next, &library).expect("replaced");
    let output = started.wait_with_output().expect("ended");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("section `times`: it hangs"), "{stdout}");
    assert!(stdout.contains("nothing is kept"), "{stdout}");
    assert!(stdout.contains("\"kept\": false"), "{stdout}");
    assert!(!sandbox.path("cache/v1/profiles").exists());
}

/// The processes that a process has started.
fn children(parent: u32) -> Vec<i32> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited for {what}");
}

#[test]
fn a_killed_section_is_a_finding() {
    if !Path::new("/proc/self/task").exists() || !Path::new("/proc/thread-self/children").exists() {
        return crate::support::skipped("a killed section (no list of children)");
    }
    let mut sandbox = slow_stub();
    let file = sandbox.write("stuck", "");
    sandbox.set("STUB_STUCK", &file);
    let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command.args(["doctor", "--qualify", "--json", "--library", &stub()]);
    let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let started = started.expect("started");
    wait_for("the section", || !file.exists());
    let [worker] = children(started.id())[..] else {
        panic!("one section runs at a time");
    };
    let pid = rustix::process::Pid::from_raw(worker).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    let output = started.wait_with_output().expect("ended");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        stdout.contains("section `identity`: the driver crashed (signal 9)"),
        "{stdout}"
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout.contains("\"rebuild\": \"fresh\""), "{stdout}");
}

#[test]
fn a_driver_that_refuses_its_own_binaries_is_found() {
    let mut sandbox = slow_stub();
    sandbox.set("STUB_REFUSE_BINARIES", "1");
    let qualified = qualify_stub(&sandbox);
    let faults = qualified.faults().join("\n");
    assert!(
        faults.contains("section `loads`: clCreateProgramWithBinary fails with -42"),
        "{faults}"
    );
    assert!(
        faults.contains("no build of a program was a hit"),
        "{faults}"
    );
    assert_eq!(*qualified.measured("record"), "measured");
}

#[test]
fn no_accelerator_is_used_without_consent() {
    let mut sandbox = slow_stub();
    sandbox.set("STUB_ACCELERATOR", "1");
    let file = sandbox.path("driver.txt").display().to_string();
    let qualified = qualify_library(&sandbox, &stub(), &["--report", &file]);
    assert_eq!(qualified.json["devices"], serde_json::json!([]));
    assert_eq!(qualified.ran.code, Some(1), "nothing was measured");
    assert!(!Path::new(&file).exists());
    assert!(
        qualified
            .ran
            .stdout
            .contains("an accelerator is not used without consent")
    );
    assert_eq!(sandbox.compilations(), 0);
    let qualified = qualify_library(&sandbox, &stub(), &["--yes"]);
    assert!(qualified.is_kept(), "{}", qualified.ran.stdout);
}

#[test]
fn registered_drivers_are_selected_by_name() {
    let sandbox = slow_stub();
    for (name, is_there) in [("stub", true), ("unknown", true), ("another", false)] {
        let ran = sandbox.oclcache(&["doctor", "--qualify", name, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let devices = json["devices"].as_array().expect("a list");
        assert_eq!(!devices.is_empty(), is_there, "{name}: {}", ran.stdout);
        assert_eq!(ran.code, Some(i32::from(!is_there)), "{name}");
        assert_eq!(json["well"], is_there);
    }
}

#[test]
fn what_is_no_driver_and_what_cannot_be_kept_is_said_before_any_work() {
    let mut sandbox = Sandbox::stub();
    let text = sandbox.write("libtext.so", "no library");
    let qualified = qualify_library(&sandbox, &text.display().to_string(), &[]);
    assert_eq!(
        qualified.faults(),
        ["libtext.so cannot be used as a driver"]
    );
    sandbox.set("OCLCACHE_READONLY", "1");
    let ran = sandbox.oclcache(&["doctor", "--qualify", "--library", &stub()]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("unset OCLCACHE_READONLY"),
        "{}",
        ran.stderr
    );
    assert_eq!(sandbox.compilations(), 0);
}
