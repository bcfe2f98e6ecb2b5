//! The switches, and what they leave untouched: by system-call traces, by the files that are there before and after, and by
//! the texts that are not.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Driver, Ran, SOURCE, Sandbox, Way, example, is_root, skipped, tree};
const NOBODY: u32 = 65534;

fn kernel(sandbox: &Sandbox, way: Way) -> Ran {
    sandbox.kernel(way, SOURCE, "-DN=3").ok()
}

/// Whether a program is there; said by name if not.
fn has(program: &str, test: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let there = command.status().is_ok();
    if !there {
        skipped(format_args!("{test} (no {program})"));
    }
    there
}

/// Runs the kernel through the cache, with a line for each call that names a file.
fn traced(sandbox: &Sandbox) -> (Ran, Vec<String>) {
    traced_as(sandbox, &[], &|_| {})
}

/// The same as an argument of another program, and in a changed environment.
fn traced_as(
    sandbox: &Sandbox,
    through: &[&OsStr],
    prepare: &dyn Fn(&mut Command),
) -> (Ran, Vec<String>) {
    let (trace, source) = (
        sandbox.path("trace"),
        sandbox.write("kernel.cl", SOURCE.as_bytes()),
    );
    let mut command = sandbox.command(Way::Cached, "strace");
    command
        .args([
            "-f",
            "-s",
            "4096",
            "-e",
            "trace=file,mkdirat,renameat,renameat2,unlinkat,connect",
            "-o",
        ])
        .arg(&trace)
        .args(through)
        .arg(example("client"))
        .args(["run", "--kernel", "f", "--options", "-DN=3", "--source"])
        .arg(source);
    prepare(&mut command);
    let ran = sandbox.run(&mut command).ok();
    let text = fs::read_to_string(trace).expect("a trace");
    (ran, text.lines().map(str::to_owned).collect())
}

#[test]
fn a_disabled_cache_touches_no_file_after_the_library_itself() {
    if !has("strace", "a system-call trace of OCLCACHE_DISABLE") {
        return;
    }
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let bare = kernel(&sandbox, Way::Bare);
        fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
        sandbox.write("home/.config/oclcache/config.toml", "log = \"trace\"\n");
        // Both filled and without a cache directory.
        for filled in [false, true] {
            if filled {
                sandbox.variables.remove("OCLCACHE_DISABLE");
                kernel(&sandbox, Way::Cached);
            }
            sandbox.set("OCLCACHE_DISABLE", "1");
            let before = tree(&sandbox.path("cache"));
            let (ran, trace) = traced(&sandbox);
            assert_eq!(ran.stdout, bare.stdout, "{driver:?}, {}", ran.stderr);
            assert_eq!(ran.source_builds(), bare.source_builds(), "{driver:?}");
            assert_eq!(tree(&sandbox.path("cache")), before);
            assert!(!ran.stderr.contains("oclcache"), "{}", ran.stderr);
            let library = |line: &String| line.contains("liboclcache.so") && !line.contains("-1 E");
            let last = trace.iter().rposition(library).expect("the library");
            let home = sandbox.path("home").display().to_string();
            let cache = sandbox.path("cache").display().to_string();
            for line in &trace[last + 1..] {
                for ours in [&cache, &format!("{home}/.c"), "\"v1", "config.toml"] {
                    assert!(!line.contains(ours), "{driver:?}: {line}");
                }
            }
        }
    }
}

#[test]
fn a_disabled_cache_hooks_nothing_also_in_the_configuration_file() {
    let sandbox = Sandbox::stub();
    kernel(&sandbox, Way::Cached);
    fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
    sandbox.write("home/.config/oclcache/config.toml", "disable = true\n");
    let before = tree(&sandbox.path("cache"));
    assert_eq!(kernel(&sandbox, Way::Cached).source_builds(), 1);
    assert_eq!(tree(&sandbox.path("cache")), before);
}

#[test]
fn a_read_only_cache_serves_and_does_not_write_a_byte() {
    let traces = has("strace", "a system-call trace of OCLCACHE_READONLY");
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let bare = kernel(&sandbox, Way::Bare);
        kernel(&sandbox, Way::Cached);
        sandbox.set("OCLCACHE_READONLY", "1");
        let before = tree(&sandbox.path("cache"));
        let hit = kernel(&sandbox, Way::Cached);
        assert_eq!(hit.stdout, bare.stdout);
        assert_eq!(hit.source_builds(), 0, "{driver:?}, {}", hit.stderr);
        assert_eq!(tree(&sandbox.path("cache")), before, "{driver:?}");
        let miss = sandbox.kernel(Way::Cached, SOURCE, "-DN=4").ok();
        assert_eq!(miss.source_builds(), 1);
        assert_eq!(tree(&sandbox.path("cache")), before, "{driver:?}, a miss");
        if !traces {
            continue;
        }
        let (ran, trace) = traced(&sandbox);
        assert_eq!((ran.source_builds(), &ran.stdout), (0, &bare.stdout));
        let cache = sandbox.path("cache").display().to_string();
        assert!(trace.iter().any(|line| line.contains(&cache)));
        let names = [
            "\"v1",
            "\"entries",
            "\"stats",
            "\"digests",
            "\"names",
            "CACHEDIR",
        ];
        let writes = [
            "O_WRONLY", "O_RDWR", "O_CREAT", "mkdir", "rename", "unlink", "chmod", "utime",
        ];
        for line in &trace {
            let ours = line.contains(&cache) || names.iter().any(|name| line.contains(name));
            let writing = writes.iter().find(|word| line.contains(*word));
            assert!(!ours || writing.is_none(), "{driver:?}: {line}");
        }
    }
}

#[test]
fn a_read_only_cache_that_is_not_there_is_not_made() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_READONLY", "1");
    let bare = kernel(&sandbox, Way::Bare);
    let ran = kernel(&sandbox, Way::Cached);
    assert_eq!((ran.source_builds(), ran.stdout), (1, bare.stdout));
    assert!(!sandbox.path("cache").exists());
    assert_eq!(warnings(&ran.stderr).len(), 1, "{}", ran.stderr);
}

#[test]
fn a_read_only_cache_leaves_a_damaged_entry_where_it_is() {
    let mut sandbox = Sandbox::stub();
    let bare = kernel(&sandbox, Way::Bare);
    kernel(&sandbox, Way::Cached);
    let entry = sandbox.entries().pop().expect("an entry");
    fs::write(&entry, "oclcache, damaged").expect("written");
    sandbox.set("OCLCACHE_READONLY", "1");
    let before = tree(&sandbox.path("cache"));
    let ran = kernel(&sandbox, Way::Cached);
    assert_eq!((ran.source_builds(), ran.stdout), (1, bare.stdout));
    assert_eq!(tree(&sandbox.path("cache")), before);
}

#[test]
fn recache_builds_again_and_replaces_the_entry() {
    let mut sandbox = Sandbox::stub();
    let bare = kernel(&sandbox, Way::Bare);
    kernel(&sandbox, Way::Cached);
    let entry = sandbox.entries().pop().expect("an entry");
    // The compile time that an entry records differs each time; its inode may not, once the old file is gone.
    let content = || fs::read(&entry).expect("the entry");
    let mut last = content();
    sandbox.set("OCLCACHE_RECACHE", "yes");
    for _ in 0..2 {
        let ran = kernel(&sandbox, Way::Cached);
        assert_eq!((ran.source_builds(), &ran.stdout), (1, &bare.stdout));
        assert_ne!(content(), last, "the entry is another");
        last = content();
    }
    assert_eq!(sandbox.entries().len(), 1);
    sandbox.set("OCLCACHE_RECACHE", "no");
    assert_eq!(kernel(&sandbox, Way::Cached).source_builds(), 0);
    assert_eq!(content(), last);
}

#[test]
fn without_stored_sources_no_text_of_the_program_is_in_the_cache() {
    let source = "// zebra comment\n#warning okapi-word\n#define HIDDEN quagga_macro\n\
        __kernel void f(__global uint *out) { uint gnu_local = SECRET; out[get_global_id(0)] = gnu_local; }\n";
    let texts = ["zebra", "okapi", "quagga", "gnu_local", "739104"];
    for driver in [Driver::Stub, Driver::Pocl, Driver::Intel] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let run = |sandbox: &Sandbox, way| sandbox.kernel(way, source, "-DSECRET=739104").ok();
        let bare = run(&sandbox, Way::Bare);
        run(&sandbox, Way::Cached);
        let shown = found_in(&sandbox.path("cache"), &texts);
        assert!(
            shown.len() >= 4,
            "the search finds what is stored: {shown:?}"
        );
        fs::remove_dir_all(sandbox.path("cache")).expect("removed");
        sandbox.set("OCLCACHE_STORE_SOURCE", "0");
        let cold = run(&sandbox, Way::Cached);
        assert_eq!(cold.stdout, bare.stdout, "{driver:?}");
        assert_eq!(
            found_in(&sandbox.path("cache"), &texts),
            [""; 0],
            "{driver:?}"
        );
        let key = sandbox.stat("entries");
        assert_eq!(key, 1);
        let listed = sandbox.oclcache(&["list", "--json"]).ok().stdout;
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let key = listed[0]["key"].as_str().expect("a key");
        for arguments in [&["show", key, "--json"][..], &["show", key], &["list"]] {
            let shown = sandbox.oclcache(arguments).ok().stdout;
            assert!(!texts.iter().any(|text| shown.contains(text)), "{shown}");
        }
        assert_eq!(sandbox.oclcache(&["show", key, "--source"]).code, Some(1));
        let warm = run(&sandbox, Way::Cached);
        assert_eq!(warm.stdout, bare.stdout, "{driver:?}");
        assert_eq!(warm.source_builds(), 0, "{driver:?}, {}", warm.stderr);
        // The build log is one of the answers; whoever asks for it gets the driver's own.
        let (bare, warm) = (Way::Bare, Way::Cached);
        let facts = |way| sandbox.client(way, &["facts"]).ok();
        let bare = facts(bare);
        for _ in 0..2 {
            assert_eq!(facts(warm).stdout, bare.stdout, "{driver:?}, facts");
        }
    }
}

/// With this each zstd frame begins.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Those of some texts that stand in a file below a directory, raw or in a zstd frame within it.
fn found_in<'a>(directory: &Path, texts: &[&'a str]) -> Vec<&'a str> {
    let mut haystack = Vec::new();
    for (path, _) in tree(directory) {
        let Ok(bytes) = fs::read(&path) else { continue };
        for (at, _) in bytes
            .windows(4)
            .enumerate()
            .filter(|(_, word)| *word == ZSTD_MAGIC)
        {
            let mut frame = zstd::stream::read::Decoder::new(&bytes[at..])
                .expect("a decoder")
                .single_frame();
            let _ = frame.read_to_end(&mut haystack); // four bytes that only look like a frame
        }
        haystack.extend(bytes);
    }
    let stands = |text: &&str| haystack.windows(text.len()).any(|w| w == text.as_bytes());
    texts.iter().copied().filter(|text| stands(text)).collect()
}

fn warnings(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains(" WARN ")).collect()
}

/// The cache is off: each run builds, prints what the bare one prints, and one warning has these words.
#[track_caller]
fn is_off(sandbox: &Sandbox, words: &str, prepare: &dyn Fn(&mut Command)) {
    let bare = kernel(sandbox, Way::Bare);
    for _ in 0..2 {
        let source = sandbox.write("kernel.cl", SOURCE);
        let mut command = sandbox.command(Way::Cached, example("client"));
        // Several builds: one warning all the same.
        command
            .args(["run", "--kernel", "f", "--options", "-DN=3", "--source"])
            .arg(source);
        prepare(&mut command);
        let ran = sandbox.run(&mut command).ok();
        assert_eq!((ran.source_builds(), &ran.stdout), (1, &bare.stdout));
        let warnings = warnings(&ran.stderr);
        assert_eq!(warnings.len(), 1, "{}", ran.stderr);
        assert!(warnings[0].contains(words), "{}", ran.stderr);
    }
}

#[test]
fn without_a_home_nothing_is_cached_and_one_warning_says_so() {
    let sandbox = Sandbox::stub();
    is_off(&sandbox, "HOME", &|command| {
        command.env_remove("HOME").env_remove("OCLCACHE_DIR");
    });
    assert!(!Path::new("/.cache/oclcache").exists());
    let before = tree(&sandbox.path("home"));
    is_off(&sandbox, "not an absolute path", &|command| {
        command
            .env("OCLCACHE_DIR", "relative")
            .current_dir(sandbox.path("home"));
    });
    assert_eq!(tree(&sandbox.path("home")), before);
}

/// Who a user is, and where the home is, is asked of the environment only: the C library would load modules for that.
#[test]
fn without_a_home_the_passwd_file_is_not_read() {
    if !has("strace", "a system-call trace without HOME") {
        return;
    }
    let sandbox = Sandbox::stub();
    let bare = kernel(&sandbox, Way::Bare);
    let installed = sandbox.installed();
    let run = [installed.as_os_str(), "run".as_ref(), "--".as_ref()];
    let cache_home = sandbox.path("xdg");
    fs::create_dir(&cache_home).expect("made");
    for through in [&[][..], &run] {
        for (has_cache, builds) in [(false, 1), (true, 1), (true, 0)] {
            let (ran, trace) = traced_as(&sandbox, through, &|command| {
                command.env_remove("HOME").env_remove("OCLCACHE_DIR");
                if has_cache {
                    command.env("XDG_CACHE_HOME", &cache_home);
                }
            });
            assert_eq!((&ran.stdout, ran.source_builds()), (&bare.stdout, builds));
            for names in ["/etc/passwd", "nsswitch", "nscd", "userdb", "libnss"] {
                let named = trace.iter().find(|line| line.contains(names));
                assert_eq!(named, None, "{through:?}");
            }
        }
        fs::remove_dir_all(cache_home.join("oclcache")).expect("a cache");
    }
}

#[test]
fn a_directory_that_others_may_write_or_own_is_refused() {
    let sandbox = Sandbox::stub();
    let cache = sandbox.path("cache");
    fs::create_dir(&cache).expect("made");
    for mode in [0o777, 0o1777, 0o720] {
        fs::set_permissions(&cache, PermissionsExt::from_mode(mode)).expect("changed");
        is_off(&sandbox, "others may write it", &|_| {});
        assert_eq!(fs::read_dir(&cache).expect("listed").count(), 0);
    }
    fs::set_permissions(&cache, PermissionsExt::from_mode(0o700)).expect("changed");
    if is_root() {
        std::os::unix::fs::chown(&cache, Some(NOBODY), None).expect("given away");
        is_off(&sandbox, "another user", &|_| {});
        assert_eq!(fs::read_dir(&cache).expect("listed").count(), 0);
    } else {
        skipped("a directory of another user (only root can give one away)");
    }
    let sandbox = Sandbox::stub();
    sandbox.write("cache", "a file");
    is_off(&sandbox, "cannot open", &|_| {});
}

/// Runs a section of the client's in a mount namespace with an /etc of its own, while the script has the administrator come: `turns N`
/// waits until the program has said N lines, and `echo >&3` has it go on. `after` runs when it has ended. None: there are no such
/// namespaces here.
fn beside_an_administrator(
    sandbox: &Sandbox,
    section: &str,
    script: &str,
    after: &str,
) -> Option<Ran> {
    let kernel = sandbox.write("kernel.cl", SOURCE);
    let etc = sandbox.path("etc");
    fs::create_dir(&etc).expect("made");
    let mut can = Command::new("unshare");
    can.args(["-m", "--", "mount", "-t", "tmpfs", "none"])
        .arg(&etc);
    if !can.output().is_ok_and(|output| output.status.success()) {
        skipped("the administrator's switch (no mount namespace)");
        return None;
    }
    let start = "set -e; etc=$1 oclcache=$2; mount -t tmpfs -o mode=755 none \"$etc\"; \
        cp -a /etc/. \"$etc\"; rm -rf \"$etc/oclcache\"; mount --bind \"$etc\" /etc; mkfifo \"$etc/in\"; \
        \"$3\" waiting \"$4\" \"$5\" < \"$etc/in\" > \"$etc/out\" & exec 3> \"$etc/in\"; \
        turns() { until [ \"$(wc -l < \"$etc/out\")\" = \"$1\" ]; do sleep 0.02; kill -0 $!; done; };";
    let end = "exec 3>&-; wait $!; cat \"$etc/out\";";
    let mut command = sandbox.command(Way::Cached, "unshare");
    command
        .args(["-m", "--", "sh", "-c"])
        .arg([start, script, end, after].concat())
        .arg("sh")
        .arg(&etc)
        .arg(env!("CARGO_BIN_EXE_oclcache"))
        .arg(example("client"))
        .arg(section)
        .arg(&kernel);
    Some(sandbox.run(&mut command).ok())
}

/// The program builds three times, and the administrator comes before the second time and before the third.
#[test]
fn a_running_program_obeys_the_administrators_switch_at_its_next_build() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "info");
    let script = "turns 1; \"$oclcache\" config set --system disable yes; echo >&3; \
        turns 2; \"$oclcache\" config unset --system disable; echo >&3; turns 3;";
    let Some(ran) = beside_an_administrator(&sandbox, "turns", script, "") else {
        return;
    };
    assert_eq!(ran.stdout, "build: code 0\n".repeat(3), "{}", ran.stderr);
    let outcomes: Vec<&str> = ["outcome=\"miss\"", "switched_off", "outcome=\"hit\""]
        .into_iter()
        .filter(|outcome| ran.stderr.contains(outcome))
        .collect();
    assert_eq!(outcomes.len(), 3, "{}", ran.stderr);
    let counts = ["hits", "misses", "bypassed"].map(|count| sandbox.stat(count));
    assert_eq!(counts, [1, 1, 0], "{}", ran.stderr);
}

/// A kernel of the stub driver's is asked for its facts when the program creates it, and they are added to the entry.
#[test]
fn what_is_switched_off_writes_nothing_also_for_what_was_built_before() {
    let sandbox = Sandbox::stub();
    let cache = sandbox.path("cache").display().to_string();
    let files = format!("find '{cache}' -type f -exec md5sum {{}} + | sort");
    let script = format!(
        "turns 1; {files} > \"$etc/before\"; \"$oclcache\" config set --system disable yes; echo >&3;"
    );
    let after = format!("{files} | diff \"$etc/before\" - || true");
    let Some(ran) = beside_an_administrator(&sandbox, "kernel-later", &script, &after) else {
        return;
    };
    let said = "build: code 0\nbuild: code 0\nkernel: code 0\n";
    assert_eq!(ran.stdout, said, "{}", ran.stderr);
    assert_eq!(sandbox.entries().len(), 1, "the first build was stored");
}
