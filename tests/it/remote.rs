//! The library's and the command's side of the remote level. A stand-in for the helper speaks the protocol and does what a test wants.
//!
//! Nothing here is timed: where a program shall not wait, the requests are counted, and where it shall, the setting allows a minute.

mod lab;
mod outbox;
mod starting;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use lab::Lab;
use starting::is_below_no_init;

use crate::files_opened::has_strace;
use crate::support::{Sandbox, Way, copy_program, example, is_root, skipped, tree};

const FAR_TOO_LONG: Duration = Duration::from_secs(40);
const HELPER: &str = "oclcache-remote";
const OUTBOX: &str = "home/.local/state/oclcache/outbox";

fn key_of(entry: &Path) -> String {
    let name = entry.file_stem().and_then(|name| name.to_str());
    name.expect("a key").to_owned()
}

/// The files of the outbox.
fn markers(sandbox: &Sandbox) -> Vec<PathBuf> {
    let caches = fs::read_dir(sandbox.path(OUTBOX))
        .into_iter()
        .flatten()
        .flatten();
    let files = caches.flat_map(|cache| fs::read_dir(cache.path()).expect("listed").flatten());
    files.map(|file| file.path()).collect()
}

#[test]
fn what_another_machine_has_built_is_served_without_a_compilation_and_never_sent_on() {
    let Some(mut lab) = Lab::new("an entry of another machine", "give") else {
        return;
    };
    let key = lab.give(1);
    let ran = lab.build(1).ok();
    assert_eq!(ran.source_builds(), 0, "{}", ran.stderr);
    let counted = lab.stats(&["hits", "misses", "remote_hits", "remote_errors"]);
    assert_eq!(counted, [1, 0, 1, 0]);
    assert!(markers(&lab.sandbox).is_empty());
    // The next one is a hit of this machine's, and asks nobody.
    assert_eq!(lab.build(1).ok().source_builds(), 0);
    assert_eq!(lab.stats(&["hits", "remote_hits"]), [2, 1]);
    let shown = lab.sandbox.oclcache(&["stats", "-v"]).ok().stdout;
    assert!(shown.contains("hits from other machines"), "{shown}");
    let asked = lab.asked();
    let gets: Vec<&String> = asked
        .iter()
        .filter(|line| line.starts_with("get"))
        .collect();
    assert_eq!(
        gets,
        [&format!("get {key} first {key} wait true lease true")]
    );
    assert!(asked.contains(&"hello".to_owned()), "{asked:?}");
    assert!(
        !asked.iter().any(|line| line.starts_with("put")),
        "{asked:?}"
    );
}

#[test]
fn whatever_the_helper_says_wrong_the_driver_builds_and_the_program_ends_well() {
    let Some(mut lab) = Lab::new("a helper that is wrong", "") else {
        return;
    };
    for (number, (behavior, counter)) in [
        ("miss", "remote_misses"),
        ("later", "remote_late"),
        ("close", "remote_errors"),
        ("garbage", "remote_errors"),
        ("lie", "remote_errors"),
    ]
    .into_iter()
    .enumerate()
    {
        lab.behave(behavior);
        let before = lab.sandbox.stat(counter);
        let ran = lab.build(number as u32).ok();
        assert_eq!(ran.source_builds(), 1, "{behavior}");
        assert_eq!(lab.sandbox.stat(counter), before + 1, "{behavior}");
    }
    // Nothing is counted while the store is not asked.
    lab.behave("open");
    lab.build(100).ok();
    assert_eq!(lab.stats(&["misses", "remote_hits"]), [6, 0]);
    let waits = lab.asked();
    let waits = waits.iter().filter(|line| line.contains("wait true"));
    assert_eq!(waits.count(), 6);
}

#[test]
fn damaged_and_foreign_bytes_are_not_stored() {
    let Some(mut lab) = Lab::new("damaged entries of another machine", "give") else {
        return;
    };
    let key = lab.give(1);
    let file = lab.place.path().join(format!("{key}.entry"));
    let good = fs::read(&file).expect("read");
    for index in [0, 20, 100, good.len() - 1] {
        let mut damaged = good.clone();
        damaged[index] ^= 1;
        fs::write(&file, damaged).expect("written");
        let mut command = lab.sandbox.command(Way::Cached, example("client"));
        let _ = fs::remove_dir_all(lab.sandbox.path("cache/v1/entries"));
        let ran = lab.sandbox.run(
            command
                .args(["run", "--source"])
                .arg(lab.sandbox.path("kernel.cl"))
                .args(["--kernel", "f", "--options", ""]),
        );
        assert_eq!(ran.ok().source_builds(), 1, "byte {index}");
    }
    let refused = lab.asked();
    let refused = refused
        .iter()
        .filter(|line| line.starts_with("not received"));
    assert_eq!(refused.count(), 4);
}

#[test]
fn a_process_waits_once_for_a_helper_that_hangs_and_then_one_time_in_eight() {
    let Some(mut lab) = Lab::new("a helper that hangs", "hang") else {
        return;
    };
    lab.sandbox.set("OCLCACHE_REMOTE_WAIT", "30ms");
    let mut command = lab.sandbox.command(Way::Cached, example("client"));
    command.args(["keys", "--times", "1"]);
    for number in 0..17 {
        let text = format!(
            "__kernel void f(__global uint *out) {{ out[get_global_id(0)] = {number}; }}\n"
        );
        command
            .arg("--source")
            .arg(lab.sandbox.write(&format!("{number}.cl"), text));
    }
    let ran = lab.sandbox.run(&mut command).ok();
    assert_eq!(ran.source_builds(), 17);
    let late = lab.sandbox.stat("remote_late");
    let asked = lab.asked();
    let gets: Vec<&String> = asked
        .iter()
        .filter(|line| line.starts_with("get"))
        .collect();
    let waits = gets
        .iter()
        .filter(|line| line.contains("wait true"))
        .count();
    assert_eq!((gets.len(), waits, late), (17, 3, 3), "{asked:?}");
    // All name the first key of the process.
    let first = gets[0].split(' ').nth(1).expect("a key");
    let named = format!(" first {first} ");
    assert!(gets.iter().all(|line| line.contains(&named)), "{gets:?}");
}

#[test]
fn what_the_driver_built_here_is_marked_and_the_helper_is_told() {
    let Some(mut lab) = Lab::new("the outbox", "leased") else {
        return;
    };
    lab.build(1).ok();
    let [entry] = lab.sandbox.entries().try_into().expect("one entry");
    let key = key_of(&entry);
    let [marker] = markers(&lab.sandbox).try_into().expect("one marker");
    assert_eq!(
        marker.file_name().and_then(|name| name.to_str()),
        Some(key.as_str())
    );
    lab.sandbox.set("OCLCACHE_REMOTE_READONLY", "1");
    lab.end();
    lab.serve();
    lab.build(2).ok();
    assert_eq!(markers(&lab.sandbox), [marker]);
    let asked = lab.asked();
    let told = |line: &str| asked.iter().filter(|asked| *asked == line).count();
    // Again when facts of its kernels are added.
    let puts = told(&format!("put {key}"));
    assert!(puts >= 1, "{asked:?}");
    assert_eq!(told(&format!("done {key} true")), 1, "{asked:?}");
    assert_eq!(
        asked.iter().filter(|line| line.starts_with("put")).count(),
        puts
    );
}

#[test]
fn the_marker_of_an_entry_is_there_before_the_entry() {
    let test = "the order of marker and entry";
    let Some(mut lab) = Lab::new(test, "leased").filter(|_| has_strace(test)) else {
        return;
    };
    let trace = lab.sandbox.path("trace");
    let mut command = lab.sandbox.command(Way::Cached, "strace");
    command.args([
        "-f",
        "-y",
        "-e",
        "trace=rename,renameat,renameat2,link,linkat",
    ]);
    command
        .arg("-o")
        .arg(&trace)
        .arg(example("client"))
        .args(["many", "--keys", "1"]);
    lab.sandbox.run(&mut command).ok();
    lab.end();
    let trace = fs::read_to_string(trace).expect("a trace");
    let first = |place: &str| trace.lines().position(|line| line.contains(place));
    let (marker, entry) = (first("/oclcache/storing/"), first("/v1/entries/"));
    // Otherwise who reads the entry in between takes it for another machine's, and nobody ever sends it.
    assert!(marker.is_some() && marker < entry, "{trace}");
}

#[test]
fn explain_tells_what_other_machines_get_and_what_came_from_them() {
    let Some(mut lab) = Lab::new("explain --remote", "give") else {
        return;
    };
    let key = lab.give(1);
    lab.build(1).ok();
    let explained = |lab: &Lab, key: &str| {
        let shown = lab
            .command(&["explain", "--remote", "--json", key])
            .ok()
            .stdout;
        let json: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        json["remote"]["state"]
            .as_str()
            .expect("a state")
            .to_owned()
    };
    assert_eq!(explained(&lab, &key), "received");
    lab.build(2).ok();
    let [marker] = markers(&lab.sandbox).try_into().expect("one marker");
    let built = marker
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a key");
    // Its key has values of variables.
    assert_eq!(explained(&lab, built), "unsent");
    lab.sandbox.set("OCLCACHE_REMOTE_CONTENT", "all");
    assert_eq!(explained(&lab, built), "pending");
    let shown = lab.command(&["explain", "--remote"]).ok().stdout;
    assert!(shown.contains("remote: to be sent"), "{shown}");
    let shown = marker.to_str().expect("a path");
    let [sent, storing] =
        ["sent", "storing"].map(|place| shown.replace("/outbox/", &format!("/{place}/")));
    fs::rename(&marker, &sent).expect("moved");
    assert_eq!(explained(&lab, built), "sent");
    fs::rename(&sent, &storing).expect("moved");
    assert_eq!(explained(&lab, built), "storing");
    fs::remove_file(&storing).expect("removed");
    assert_eq!(explained(&lab, built), "unsent");
    lab.sandbox.set("OCLCACHE_REMOTE", "off");
    let refused = lab.command(&["explain", "--remote"]);
    assert!(
        refused.stderr.contains("config set remote"),
        "{}",
        refused.stderr
    );
}

#[test]
fn explain_writes_nothing_about_other_machines_either() {
    let Some(mut lab) = Lab::bare("explain --remote of a cache that is only read") else {
        return;
    };
    let explain = |lab: &Lab, arguments: &[&str]| {
        let before = tree(&lab.sandbox.path("."));
        let ran = lab.command(&[&["explain", "--remote"], arguments].concat());
        // The spy's log is emptied for each command.
        let mut after = tree(&lab.sandbox.path("."));
        after.remove(&lab.sandbox.path("./spy.log"));
        let is_same = after
            .iter()
            .all(|(path, state)| before.get(path) == Some(state));
        assert!(is_same, "{before:#?}\n{after:#?}");
        ran
    };
    let empty = explain(&lab, &[]).ok();
    assert!(
        empty.stderr.contains("no program was compiled"),
        "{}",
        empty.stderr
    );
    lab.sandbox.set("OCLCACHE_REMOTE_CONTENT", "all");
    lab.build(1).ok();
    lab.sandbox.set("OCLCACHE_READONLY", "1");
    let shown = explain(&lab, &[]).ok().stdout;
    assert!(shown.contains("remote: to be sent"), "{shown}");
}

#[test]
fn a_build_that_fails_gives_its_lease_back() {
    let Some(mut lab) = Lab::new("the lease of a build that fails", "leased") else {
        return;
    };
    let ran = lab.sandbox.client(Way::Cached, &["failing"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let asked = lab.asked();
    let done = asked.iter().filter(|line| line.starts_with("done"));
    assert!(done.clone().count() > 0, "{asked:?}");
    assert!(
        done.clone().any(|line| line.ends_with("false")),
        "{asked:?}"
    );
}

#[test]
fn a_program_waits_for_the_build_of_another_host() {
    let Some(mut lab) = Lab::new("a build of another host", "elsewhere") else {
        return;
    };
    lab.give(1);
    assert_eq!(lab.build(1).ok().source_builds(), 0);
    assert_eq!(lab.stats(&["remote_hits", "remote_late"]), [1, 0]);
}

#[test]
fn a_build_in_a_callback_asks_and_does_not_wait() {
    let Some(mut lab) = Lab::new("builds in callbacks", "miss") else {
        return;
    };
    let files = [1, 2].map(|number| {
        let text = format!(
            "__kernel void f(__global uint *out) {{ out[get_global_id(0)] = {number}; }}\n"
        );
        lab.sandbox.write(&format!("{number}.cl"), text)
    });
    let mut command = lab.sandbox.command(Way::Cached, example("client"));
    command.args(["waiting", "nested"]).args(&files);
    lab.sandbox.run(command.stdin(Stdio::null())).ok();
    let asked = lab.asked();
    let gets: Vec<&String> = asked
        .iter()
        .filter(|line| line.starts_with("get"))
        .collect();
    assert_eq!(gets.len(), 2, "{asked:?}");
    assert!(gets[0].ends_with("wait true lease true"), "{asked:?}");
    assert!(gets[1].ends_with("wait false lease false"), "{asked:?}");
}

#[test]
fn forked_children_ask_for_themselves() {
    let Some(mut lab) = Lab::new("forked children", "miss") else {
        return;
    };
    let ran = lab.sandbox.client(Way::Cached, &["forks", "1", "4", "2"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let asked = lab.asked();
    assert!(
        asked.iter().any(|line| line.starts_with("get")),
        "{asked:?}"
    );
}

#[test]
fn the_helper_is_started_when_a_driver_is_loaded_and_not_by_a_read_only_cache() {
    let test = "the start of the helper";
    let Some(mut lab) = Lab::bare(test) else {
        return;
    };
    copy_program(example("stand_in"), &lab.place.path().join(HELPER));
    lab.behave("miss");
    lab.sandbox.set("OCLCACHE_READONLY", "1");
    lab.build(1).ok();
    assert_eq!(lab.asked(), [""; 0]);
    let _ = fs::remove_file(lab.place.path().join("go"));
    lab.sandbox.variables.remove("OCLCACHE_READONLY");
    if is_below_no_init(test, &lab.build(1).ok()) {
        return;
    }
    let started = Instant::now();
    while !lab.place.path().join("asked").exists() && started.elapsed() < FAR_TOO_LONG {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lab.asked()[0], "started");
}

#[test]
fn without_a_helper_everything_works_as_without_a_remote_level() {
    let Some(mut lab) = Lab::bare("a helper that is not installed") else {
        return;
    };
    let ran = lab.build(1).ok();
    assert_eq!(ran.source_builds(), 1);
    let said = "the remote store is not used";
    assert_eq!(ran.stderr.matches(said).count(), 1, "{}", ran.stderr);
    assert_eq!(lab.build(1).ok().source_builds(), 0);
    // One that others could have written is as none.
    let helper = lab.place.path().join(HELPER);
    copy_program(example("stand_in"), &helper);
    fs::set_permissions(&helper, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("set");
    let ran = lab.build(2).ok();
    assert!(
        ran.stderr.contains("can be written by everybody"),
        "{}",
        ran.stderr
    );
    assert_eq!(lab.asked(), [""; 0]);
}

#[test]
fn a_helper_of_another_user_is_not_asked() {
    if !is_root() {
        return skipped("a helper of another user (only root can be another)");
    }
    let Some(mut lab) = Lab::new("a helper of another user", "other-user") else {
        return;
    };
    lab.sandbox.set("OCLCACHE_REMOTE_WAIT", "50ms");
    assert_eq!(lab.build(1).ok().source_builds(), 1);
    let asked = lab.asked();
    assert!(
        !asked.iter().any(|line| line.starts_with("get")),
        "{asked:?}"
    );
}

#[test]
fn while_the_store_fails_no_program_asks() {
    let Some(mut lab) = Lab::new("a store that fails", "hang") else {
        return;
    };
    let [socket] = lab.sockets().try_into().expect("one socket");
    let file = fs::File::create(socket.with_extension("open")).expect("made");
    let ahead = SystemTime::now() + Duration::from_secs(200);
    file.set_modified(ahead).expect("dated");
    assert_eq!(lab.build(1).ok().source_builds(), 1);
    let asked = lab.asked();
    assert!(
        !asked.iter().any(|line| line.starts_with("get")),
        "{asked:?}"
    );
}

#[test]
fn without_a_remote_level_there_is_no_socket_no_file_and_no_process() {
    if !has_strace("a system-call trace without a remote level") {
        return;
    }
    let test = "no remote level";
    let Some(mut lab) = Lab::bare(test) else {
        return;
    };
    copy_program(example("stand_in"), &lab.place.path().join(HELPER));
    lab.sandbox.variables.remove("OCLCACHE_REMOTE");
    let trace = |sandbox: &Sandbox| {
        let file = sandbox.path("trace");
        let mut command = sandbox.command(Way::Cached, "strace");
        command.args([
            "-e",
            "trace=socket,connect,clone,clone3,vfork,mkdir,mkdirat,openat",
            "-o",
        ]);
        command.arg(&file).arg(example("client"));
        command.args(["run", "--kernel", "f", "--options", "", "--source"]);
        command.arg(sandbox.write(
            "kernel.cl",
            "__kernel void f(__global uint *out) { out[0] = 1; }\n",
        ));
        let ran = sandbox.run(command.stdin(Stdio::null())).ok();
        (ran, fs::read_to_string(file).expect("a trace"))
    };
    let (_, without) = trace(&lab.sandbox);
    for word in [
        "SEQPACKET",
        "CLONE_VFORK",
        "v1/remote",
        "\"remote\"",
        "outbox",
        "boot_id",
    ] {
        let found = without.lines().find(|line| line.contains(word));
        // Counters of processes have names of the boot as well.
        let is_counters = word == "boot_id";
        assert!(found.is_none() || is_counters, "{found:?}");
    }
    assert!(!lab.sandbox.path("home/.local").exists());
    assert!(!lab.sandbox.path("cache/v1/remote").exists());
    assert_eq!(lab.asked(), [""; 0]);
    // The same words are found where there is one.
    let _ = fs::remove_dir_all(lab.sandbox.path("cache"));
    let _ = fs::remove_file(lab.place.path().join("go"));
    lab.behave("miss");
    lab.sandbox.set("OCLCACHE_REMOTE", "redis://nowhere");
    let (ran, with) = trace(&lab.sandbox);
    if is_below_no_init(test, &ran) {
        return;
    }
    for word in ["SEQPACKET", "CLONE_VFORK", "\"remote\"", "outbox"] {
        assert!(with.contains(word), "{word}");
    }
}

#[test]
fn run_keeps_the_secret_from_its_program_and_waits_for_what_it_left() {
    let Some(mut lab) = Lab::new("the secret of a run", "miss") else {
        return;
    };
    lab.sandbox.set("OCLCACHE_REMOTE_KEY", "secret");
    let said = lab
        .command(&["run", "--", "sh", "-c", "echo key=$OCLCACHE_REMOTE_KEY."])
        .ok();
    assert_eq!(said.stdout, "key=.\n");
    lab.sandbox.variables.remove("OCLCACHE_REMOTE_KEY");
    let client = example("client");
    let client = client.to_str().expect("a path");
    let source = lab.sandbox.write(
        "kernel.cl",
        "__kernel void f(__global uint *out) { out[0] = 7; }\n",
    );
    let source = source.to_str().expect("a path");
    let run = [
        "run",
        "--",
        client,
        "run",
        "--kernel",
        "f",
        "--options",
        "",
        "--source",
        source,
    ];
    lab.end();
    lab.serve();
    let said = lab.command(&run).ok();
    assert!(
        said.stderr.contains("2 entries are not sent"),
        "{}",
        said.stderr
    );
    let asked = lab.asked();
    assert!(asked.contains(&"stop".to_owned()), "{asked:?}");
    assert!(asked.contains(&"flush".to_owned()), "{asked:?}");
}

#[test]
fn the_command_hands_its_arguments_to_the_helper_and_says_what_to_install() {
    let Some(mut lab) = Lab::bare("the verb `remote`") else {
        return;
    };
    let without = lab.command(&["remote", "status"]);
    assert_eq!(without.code, Some(1));
    assert!(
        without
            .stderr
            .contains("`oclcache-remote` is not installed"),
        "{}",
        without.stderr
    );
    copy_program(example("stand_in"), &lab.place.path().join(HELPER));
    for (arguments, told) in [
        (&["remote", "status", "--json"][..], "status --json"),
        (&["remote", "status", "--help"], "status --help"),
        (&["doctor", "--remote", "--json"], "doctor --json"),
    ] {
        let ran = lab.command(arguments).ok();
        assert_eq!(ran.stdout, format!("stand-in 0.0.1 {told} false\n"));
    }
    lab.sandbox
        .set("OCLCACHE_REMOTE", "redis://me:geheim@nowhere");
    let doctor = lab.command(&["doctor", "--no-build"]);
    let line = doctor
        .stdout
        .lines()
        .find(|line| line.contains("oclcache-remote"));
    assert!(
        line.is_some_and(|line| line.contains("me:***@nowhere")),
        "{}",
        doctor.stdout
    );
    assert!(!doctor.stdout.contains("geheim"), "{}", doctor.stdout);
    let shown = lab.command(&["config"]).ok().stdout;
    assert!(!shown.contains("geheim"), "{shown}");
}
