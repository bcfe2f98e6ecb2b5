//! Where we may not write, and where we may not trust: directories without permission, full disks, and programs with
//! privileges that their caller has not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::functions::shared;
use crate::support::{
    Driver, Ran, SOURCE, Sandbox, Way, copy_program, example, is_root, library, skipped, tree,
};
const NOBODY: u32 = 65534;

/// A sandbox whose programs run without privileges: as another user if this is root. None, said by name, if they cannot.
fn unprivileged(test: &str) -> Option<Sandbox> {
    let sandbox = Sandbox::stub();
    for name in ["", "home"] {
        fs::set_permissions(sandbox.path(name), PermissionsExt::from_mode(0o755)).expect("changed");
    }
    for name in ["spy.log", "stub.log"] {
        let log = sandbox.write(name, "");
        fs::set_permissions(log, PermissionsExt::from_mode(0o666)).expect("changed");
    }
    if !is_root() {
        return Some(sandbox);
    }
    for file in [example("client"), library(), example("libspy.so")] {
        let mut command = sandbox.command(Way::Bare, "setpriv");
        command.args(AS_NOBODY).args(["test", "-r"]).arg(&file);
        match command.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => {}
            _ => {
                skipped(format_args!(
                    "{test} (no setpriv, or the build's files cannot be read by nobody)"
                ));
                return None;
            }
        }
    }
    Some(sandbox)
}

/// Runs a command without privileges, as a user that owns nothing.
pub const AS_NOBODY: [&str; 6] = [
    "--reuid",
    "65534",
    "--regid",
    "65534",
    "--clear-groups",
    "--",
];

/// The client's kernel, run without privileges.
fn client(sandbox: &Sandbox, way: Way, program: &Path, options: &str) -> Command {
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = if is_root() {
        let mut command = sandbox.command(way, "setpriv");
        command.args(AS_NOBODY).arg(program);
        command
    } else {
        sandbox.command(way, program)
    };
    command
        .args(["run", "--kernel", "f", "--options", options, "--source"])
        .arg(source);
    command
}

fn run(sandbox: &Sandbox, way: Way, options: &str) -> Ran {
    let mut command = client(sandbox, way, &example("client"), options);
    sandbox.run(&mut command).ok()
}

/// A directory for whoever runs the programs.
fn directory(sandbox: &Sandbox, name: &str) -> PathBuf {
    let path = sandbox.path(name);
    fs::create_dir(&path).expect("made");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("changed");
    if is_root() {
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    path
}

/// Changes what the owner may do with all directories below and with this one.
fn set_mode(path: &Path, mode: u32) {
    let directories = tree(path).into_keys().filter(|path| path.is_dir());
    for directory in directories.chain([path.to_owned()]) {
        fs::set_permissions(directory, PermissionsExt::from_mode(mode)).expect("changed");
    }
}

fn warnings(ran: &Ran) -> usize {
    ran.stderr
        .lines()
        .filter(|line| line.contains(" WARN "))
        .count()
}

#[test]
fn a_directory_that_cannot_be_made_leaves_the_program_alone_and_is_named_once() {
    let Some(mut sandbox) = unprivileged("a directory that cannot be made") else {
        return;
    };
    let locked = directory(&sandbox, "locked");
    set_mode(&locked, 0o500);
    let bare = run(&sandbox, Way::Bare, "-DN=1");
    for place in ["locked/cache", "locked/deep/er/cache"] {
        let place = sandbox.path(place);
        sandbox.set("OCLCACHE_DIR", &place);
        let ran = run(&sandbox, Way::Cached, "-DN=1");
        assert_eq!((ran.source_builds(), &ran.stdout), (1, &bare.stdout));
        assert_eq!(warnings(&ran), 1, "{}", ran.stderr);
        assert!(ran.stderr.contains(place.to_str().expect("UTF-8")));
    }
    assert_eq!(fs::read_dir(&locked).expect("listed").count(), 0);
    set_mode(&locked, 0o700);
}

#[test]
fn a_filled_cache_that_cannot_be_written_any_more_still_serves() {
    let Some(sandbox) = unprivileged("a filled cache that cannot be written") else {
        return;
    };
    let cache = directory(&sandbox, "cache");
    let bare = run(&sandbox, Way::Bare, "-DN=1");
    run(&sandbox, Way::Cached, "-DN=1");
    set_mode(&cache, 0o500);
    let before = tree(&cache);
    let hit = run(&sandbox, Way::Cached, "-DN=1");
    assert_eq!((hit.source_builds(), &hit.stdout), (0, &bare.stdout));
    let bare = run(&sandbox, Way::Bare, "-DN=2");
    let miss = run(&sandbox, Way::Cached, "-DN=2");
    assert_eq!((miss.source_builds(), &miss.stdout), (1, &bare.stdout));
    assert!(warnings(&miss) >= 1, "{}", miss.stderr);
    assert_eq!(tree(&cache), before);
    set_mode(&cache, 0o700);
    run(&sandbox, Way::Cached, "-DN=2");
    let healed = run(&sandbox, Way::Cached, "-DN=2");
    assert_eq!(healed.source_builds(), 0, "{}", healed.stderr);
}

/// A small file system of its own; it goes with this value. Only this thread and what it starts see it: each mount that others see
/// makes their first builds doubtful (see `moment` of the library).
pub struct Disk(PathBuf);

impl Disk {
    #[allow(unsafe_code)] // namespaces of threads have no safe interface
    pub fn mount(path: PathBuf) -> Option<Disk> {
        fs::create_dir(&path).expect("made");
        // SAFETY: descriptors stay shared, so no other thread misses one.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.ok()?;
        let mount = |arguments: &[&str]| {
            let mut mount = Command::new("mount");
            let mounted = mount.args(arguments).stderr(Stdio::null()).status();
            matches!(mounted, Ok(status) if status.success())
        };
        let kind = ["-t", "tmpfs", "-o", "size=256k,mode=0700", "none"];
        let at = [path.to_str().expect("UTF-8")];
        let is_mounted = mount(&["--make-rprivate", "/"]) && mount(&[&kind[..], &at].concat());
        is_mounted.then_some(Disk(path))
    }

    pub fn fill(&self, name: &str) {
        use std::io::Write;
        let mut file = fs::File::create(self.0.join(name)).expect("made");
        while file.write_all(&[7; 512]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_leaves_the_program_alone_and_no_half_written_file() {
    let mut sandbox = Sandbox::stub();
    // Else entries would go while the disk is full.
    sandbox.set("OCLCACHE_MIN_FREE", "0");
    let disk = is_root()
        .then(|| Disk::mount(sandbox.path("cache")))
        .flatten();
    let Some(disk) = disk else {
        skipped("a full disk (only root can mount one, and not everywhere)");
        return;
    };
    let run = |way, options| sandbox.kernel(way, SOURCE, options).ok();
    // Full from the start: not even the directories' own files can be written.
    disk.fill("ballast");
    let bare = run(Way::Bare, "-DN=1");
    for _ in 0..2 {
        let ran = run(Way::Cached, "-DN=1");
        assert_eq!((ran.source_builds(), &ran.stdout), (1, &bare.stdout));
        assert!(warnings(&ran) >= 1, "{}", ran.stderr);
    }
    fs::remove_file(sandbox.path("cache/ballast")).expect("removed");
    run(Way::Cached, "-DN=1");
    let healed = run(Way::Cached, "-DN=1");
    assert_eq!(healed.source_builds(), 0, "{}", healed.stderr);
    let tag = fs::read(sandbox.path("cache/CACHEDIR.TAG")).expect("a tag");
    assert!(
        tag.starts_with(b"Signature: "),
        "the tag was never completed"
    );
    // Full while it is in use: what is there is served, what is new is not stored.
    disk.fill("ballast");
    let bare = run(Way::Bare, "-DN=2");
    for _ in 0..2 {
        let ran = run(Way::Cached, "-DN=2");
        assert_eq!((ran.source_builds(), &ran.stdout), (1, &bare.stdout));
        assert_eq!(warnings(&ran), 1, "{}", ran.stderr);
    }
    assert_eq!(run(Way::Cached, "-DN=1").source_builds(), 0);
    assert_eq!(sandbox.entries().len(), 1);
    let unfinished = fs::read_dir(sandbox.path("cache/v1/tmp")).expect("listed");
    assert_eq!(unfinished.count(), 0);
    fs::remove_file(sandbox.path("cache/ballast")).expect("removed");
    run(Way::Cached, "-DN=2");
    assert_eq!(run(Way::Cached, "-DN=2").source_builds(), 0);
}

/// PoCL as it is registered in /etc, since nothing else may be taken.
#[test]
fn a_program_with_a_capability_is_forwarded_and_its_environment_is_not_read() {
    let test = "a program with a file capability";
    if crate::support::given("OCLCACHE_TEST_POCL").as_deref()
        != Some(Path::new("/etc/OpenCL/vendors/pocl.icd"))
    {
        skipped(format_args!(
            "{test} (PoCL is not registered in /etc/OpenCL/vendors)"
        ));
        return;
    }
    if !is_root() {
        skipped(format_args!("{test} (only root can give capabilities)"));
        return;
    }
    let Some(mut sandbox) = unprivileged(test) else {
        return;
    };
    let home = sandbox.path("home");
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).expect("given away");
    let privileged = sandbox.path("privileged-client");
    copy_program(example("client"), &privileged);
    let set = Command::new("setcap")
        .arg("cap_net_raw+ep")
        .arg(&privileged)
        .status();
    if !matches!(set, Ok(status) if status.success()) {
        skipped(format_args!(
            "{test} (setcap, of libcap2-bin, is missing or fails)"
        ));
        return;
    }
    let open = directory(&sandbox, "open");
    for (name, place) in [
        ("OCLCACHE_DIR", "cache"),
        ("OCLCACHE_LOG_FILE", "log"),
        ("XDG_CACHE_HOME", "xdg-cache"),
        ("XDG_CONFIG_HOME", "xdg-config"),
        ("OCLCACHE_RUN", "run"),
        ("POCL_CACHE_DIR", "pocl"),
        ("MESA_SHADER_CACHE_DIR", "mesa"),
    ] {
        sandbox.set(name, open.join(place));
    }
    sandbox.set("OCLCACHE_LOG", "trace");
    sandbox.set("CLIENT_PLATFORM", "Portable");
    sandbox.set("SPY_DRIVER", Driver::Pocl.library().expect("PoCL"));
    // The dynamic linker reads this variable, except in a program with privileges.
    let mut shows = sandbox.command(Way::Cached, "setpriv");
    shows.args(AS_NOBODY).args(["env", "LD_SHOW_AUXV=1"]);
    let shown = sandbox.run(shows.arg(&privileged));
    if shown.stdout.contains("AT_SECURE") {
        skipped(format_args!(
            "{test} (capabilities have no effect in this file system)"
        ));
        return;
    }
    let made = |name: &str| open.join(name).exists();
    for vendors in ["oclcache", "spy"] {
        let mut command = client(&sandbox, Way::Cached, &privileged, "-DN=1");
        // ocl-icd reads this one and OPENCL_LAYERS also in privileged programs. A log or a filter of ours would show.
        command.env("OCL_ICD_VENDORS", sandbox.path("oclcache"));
        command.env("OCLCACHE_VENDORS", sandbox.path(vendors));
        command.env("OPENCL_LAYERS", library());
        let ran = sandbox.run(&mut command).ok();
        assert!(ran.stdout.contains("result [1, 1,"), "{}", ran.stdout);
        assert!(!ran.stderr.contains("oclcache::"), "{}", ran.stderr);
        assert!(ran.spied.is_empty(), "its OCLCACHE_VENDORS was read");
    }
    let names = ["cache", "log", "xdg-cache", "xdg-config", "run"];
    assert_eq!(names.map(made), [false; 5]);
    assert!(!home.join(".cache/oclcache").exists());
    // The same program without the capability does all of that.
    let mut command = client(&sandbox, Way::Cached, &example("client"), "-DN=1");
    let ran = sandbox.run(&mut command).ok();
    assert_eq!(ran.source_builds(), 1);
    assert!(made("cache") && made("log"));
}

/// A process that forbids being dumped is hidden from others of its user.
const UNDUMPABLE: &str = "#include <sys/prctl.h>
__attribute__((constructor)) static void forbid(void) { prctl(PR_SET_DUMPABLE, 0); }
";

/// Builds and is served while others read and merge the counters.
const HIDDEN: &str = r#"
mount -t proc -o hidepid=2 none /proc || exit 1
cd "$1" && client=$2 command=$3 && shift 3 && mkfifo said answered && chmod 666 said answered || exit 1
"$@" env LD_PRELOAD=./libundumpable.so "$client" turns <said >answered & process=$!
exec 3>said 4<answered
turn() { echo "$1" >&3 && read -r answer <&4 && [ "$answer" = "built 1" ]; }
for number in 1 1 1 1; do
    turn "build $number 2" && "$@" test ! -e /proc/$process && "$@" "$command" stats >/dev/null && "$@" "$command" gc || exit 1
done
exec 3>&- && wait $process && "$@" "$command" stats --json
"#;

#[test]
fn what_a_process_counts_that_proc_hides_is_neither_lost_nor_counted_twice() {
    let test = "counters of hidden processes";
    let Some(mut sandbox) = unprivileged(test) else {
        return;
    };
    let mut can = Command::new("unshare");
    can.args(["--mount", "mount", "-t", "proc", "-o", "hidepid=2", "none"]);
    let can = can.arg("/proc").output();
    if !is_root() || !can.is_ok_and(|ran| ran.status.success()) {
        return skipped(format_args!("{test} (no /proc with hidepid)"));
    }
    if shared(&sandbox, "undumpable", UNDUMPABLE, &[]).is_none() {
        return;
    }
    sandbox.set("OCLCACHE_DIR", directory(&sandbox, "counted"));
    let mut command = sandbox.command(Way::Cached, "unshare");
    command.args(["--mount", "sh", "-c", HIDDEN, "sh"]);
    command
        .arg(sandbox.path(""))
        .arg(example("client"))
        .arg(env!("CARGO_BIN_EXE_oclcache"));
    command.arg("setpriv").args(AS_NOBODY);
    let ran = sandbox.run(&mut command).ok();
    let counts: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(
        [&counts["misses"], &counts["hits"]],
        [1, 3],
        "{}",
        ran.stderr
    );
}
