//! What the states of files and directories do not tell: files that a look misses and the driver finds are never overlooked in a key.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::copies::{DriverCopy, change_last_byte};
use crate::support::{
    Driver, Ran, Sandbox, Way, copy_program, example, is_root, plain_command, skipped, tree,
};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";

/// Only states that are older than two seconds are trusted in later processes.
const SETTLED: Duration = Duration::from_secs(3);

/// Without the right of root to read everything.
const WITHOUT_RIGHTS: [&str; 4] = ["--bounding-set", "-all", "--inh-caps", "-all"];

/// The client's kernel, behind a program that runs it. The result must be the bare driver's.
#[track_caller]
fn build_behind(sandbox: &Sandbox, before: &[&str]) -> Ran {
    let source = sandbox.write("kernel.cl", SOURCE);
    let ran = |way| {
        let client = example("client");
        let mut command = match before.split_first() {
            Some((program, arguments)) => {
                let mut command = sandbox.command(way, program);
                command.args(arguments).arg(client);
                command
            }
            None => sandbox.command(way, client),
        };
        command.args(["run", "--kernel", "f", "--source"]);
        sandbox.run(command.arg(&source)).ok()
    };
    let (bare, cached) = (ran(Way::Bare), ran(Way::Cached));
    assert_eq!(cached.stdout, bare.stdout, "log:\n{}", cached.stderr);
    cached
}

/// How often the driver compiled in the first and in a second process.
#[track_caller]
fn builds(sandbox: &Sandbox, before: &[&str]) -> [usize; 2] {
    [(); 2].map(|()| build_behind(sandbox, before).source_builds())
}

/// What runs the client without rights. None, said by name, if nothing can.
fn without_rights(test: &str) -> Option<Vec<&'static str>> {
    if !is_root() {
        return Some(Vec::new());
    }
    let mut can = plain_command("setpriv");
    if can
        .args(WITHOUT_RIGHTS)
        .arg("true")
        .output()
        .is_ok_and(|ran| ran.status.success())
    {
        return Some([&["setpriv"], &WITHOUT_RIGHTS[..]].concat());
    }
    skipped(format_args!("{test} (no setpriv)"));
    None
}

fn set_mode(directory: &Path, mode: u32) {
    std::fs::set_permissions(directory, Permissions::from_mode(mode)).expect("changed");
}

/// A copy of the stub's helper in a directory of the sandbox.
fn put_helper(sandbox: &Sandbox, directory: &str) {
    std::fs::create_dir_all(sandbox.path(directory)).expect("made");
    let library = sandbox.path(directory).join("libhelper.so");
    copy_program(example("libhelper.so"), &library);
}

/// The stub, which opens the helper by name in these directories.
fn with_helper(directories: &[&str]) -> Sandbox {
    let mut sandbox = Sandbox::stub();
    let paths = directories.iter().map(|name| sandbox.path(name));
    let paths = std::env::join_paths(paths).expect("no colons");
    sandbox.set("LD_LIBRARY_PATH", paths);
    sandbox.set("STUB_HELPER", "text");
    sandbox
}

#[test]
fn headers_in_a_directory_that_may_be_entered_but_not_listed_bypass_the_cache() {
    let Some(without_rights) = without_rights("a directory that may not be listed") else {
        return;
    };
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let copy = DriverCopy::new(&sandbox, Driver::Pocl, "copy").expect("the driver is there");
    copy.use_in(&mut sandbox);
    let header = &copy.files("/include/_kernel.h")[0];
    let include = header.parent().expect("a directory");
    for directory in [include, include.parent().expect("a directory")] {
        set_mode(directory, 0o311);
        for _ in 0..2 {
            let ran = build_behind(&sandbox, &without_rights);
            assert_eq!(ran.source_builds(), 1, "{}", ran.stderr);
            assert!(ran.stderr.contains("unidentified_driver"), "{}", ran.stderr);
            let why = "may be entered but not listed";
            assert!(ran.stderr.contains(why), "{}", ran.stderr);
        }
        set_mode(directory, 0o755);
    }
    assert_eq!(builds(&sandbox, &without_rights), [1, 0]);
    // A copy may be a link to the file of the system.
    let content = std::fs::read(header).expect("read");
    std::fs::remove_file(header).expect("removed");
    std::fs::write(header, [&content[..], b"\n"].concat()).expect("written");
    assert_eq!(builds(&sandbox, &without_rights), [1, 0]);
}

#[test]
fn directories_of_libraries_that_may_not_be_read_bypass_nothing() {
    let Some(without_rights) = without_rights("directories that may not be read") else {
        return;
    };
    let sandbox = with_helper(&["locked", "helpers"]);
    std::fs::create_dir(sandbox.path("locked")).expect("made");
    put_helper(&sandbox, "helpers");
    for mode in [0o000, 0o300, 0o400] {
        set_mode(&sandbox.path("locked"), mode);
        assert_eq!(
            build_behind(&sandbox, &without_rights).source_builds(),
            usize::from(mode == 0)
        );
    }
    // Libraries are opened by name, and looked for by name.
    set_mode(&sandbox.path("helpers"), 0o300);
    assert_eq!(builds(&sandbox, &without_rights), [0, 0]);
    change_last_byte(&sandbox.path("helpers/libhelper.so"));
    assert_eq!(builds(&sandbox, &without_rights), [1, 0]);
    for name in ["locked", "helpers"] {
        set_mode(&sandbox.path(name), 0o700);
    }
}

#[test]
fn what_is_denied_to_one_process_is_found_by_another() {
    let Some(without_rights) = without_rights("a process with fewer rights") else {
        return;
    };
    if !is_root() {
        return skipped("a process with more rights (this is not root)");
    }
    let sandbox = with_helper(&["locked", "helpers"]);
    for directory in ["locked", "helpers"] {
        put_helper(&sandbox, directory);
    }
    change_last_byte(&sandbox.path("locked/libhelper.so"));
    set_mode(&sandbox.path("locked"), 0o000);
    std::thread::sleep(SETTLED);
    assert_eq!(builds(&sandbox, &without_rights), [1, 0]);
    assert_eq!(builds(&sandbox, &[]), [1, 0], "with all rights");
    assert_eq!(builds(&sandbox, &without_rights), [0, 0]);
}

#[test]
fn the_target_of_a_dangling_link_that_comes_later_is_noticed() {
    let sandbox = with_helper(&["links", "helpers"]);
    put_helper(&sandbox, "helpers");
    std::fs::create_dir(sandbox.path("links")).expect("made");
    let target = sandbox.path("targets/libhelper.so");
    symlink(target, sandbox.path("links/libhelper.so")).expect("linked");
    std::thread::sleep(SETTLED);
    assert_eq!(builds(&sandbox, &[]), [1, 0]);
    put_helper(&sandbox, "targets");
    change_last_byte(&sandbox.path("targets/libhelper.so"));
    assert_eq!(builds(&sandbox, &[]), [1, 0]);
}

#[test]
fn a_fifo_among_the_libraries_is_not_waited_for() {
    let mut sandbox = with_helper(&["fifos"]);
    sandbox.variables.remove("STUB_HELPER");
    std::fs::create_dir(sandbox.path("fifos")).expect("made");
    let made = plain_command("mkfifo")
        .arg(sandbox.path("fifos/libhelper.so"))
        .status();
    assert!(made.expect("mkfifo runs").success());
    assert_eq!(builds(&sandbox, &["timeout", "600"]), [1, 0]);
}

/// A reproducible image has one time for all files, and the next one has the inodes of the former.
#[test]
fn another_image_with_the_times_of_the_former_is_noticed() {
    let sandbox = with_helper(&["mount"]);
    std::fs::create_dir(sandbox.path("mount")).expect("made");
    for (name, is_other) in [("one", false), ("two", true)] {
        put_helper(&sandbox, name);
        if is_other {
            change_last_byte(&sandbox.path("two/libhelper.so"));
        }
        let mut make = Command::new("mksquashfs");
        make.arg(sandbox.path(name))
            .arg(sandbox.path(&format!("{name}.image")));
        make.args([
            "-all-time",
            "1",
            "-mkfs-time",
            "1",
            "-quiet",
            "-no-progress",
        ]);
        if !make.output().is_ok_and(|made| made.status.success()) {
            return skipped("images (no mksquashfs)");
        }
    }
    let script = "mount -t squashfs -o loop,ro \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let mount = sandbox.path("mount");
    let mount = mount.to_str().expect("UTF-8");
    let behind = |image: &str| -> Vec<String> {
        let image = sandbox.path(image).display().to_string();
        let words = [
            "unshare", "--mount", "sh", "-c", script, "sh", &image, mount,
        ];
        words.map(str::to_owned).to_vec()
    };
    let [one, two] = ["one.image", "two.image"].map(behind);
    let can = plain_command(&one[0]).args(&one[1..]).arg("true").output();
    if !can.is_ok_and(|ran| ran.status.success()) {
        return skipped("images (they cannot be mounted here)");
    }
    let builds = |words: &[String]| {
        builds(
            &sandbox,
            &words.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    };
    assert_eq!(builds(&one), [1, 0]);
    assert_eq!(builds(&two), [1, 0]);
    assert_eq!(builds(&one), [0, 0]);
}

/// Runs a program six times in a root that is an overlay over an image of the libraries that it needs, each time on a host of another name,
/// and notes what is known of drivers after each run. The root has just been made, as that of a container is.
const IN_CONTAINERS: &str = r#"
box=$1 built=$2 client=$3
cannot() { echo "no $*"; exit 77; }
cd "$box" && mkdir image upper work all && cd image || exit
mkdir -p proc dev etc usr/lib "./$built" "./$box" || exit
needed=$(ldd "$client" "$built"/examples/*.so; /sbin/ldconfig -p | grep libOpenCL)
cp /etc/ld.so.cache etc || cannot cache of the dynamic linker
for library in $(echo "$needed" | grep -o '/[^ :]*' | sort -u); do
    case $library in
    "$built"/*) ;;
    *) mkdir -p ".${library%/*}" && cp -L "$library" ".$library" || exit ;;
    esac
done
sleep 3
cd "$box" || exit
overlay=lowerdir=$box/image,upperdir=$box/upper,workdir=$box/work
mount -t overlay -o "$overlay" overlay all || cannot overlays
for directory in /proc /dev "$built" "$box"; do
    mount --rbind "$directory" "all/$directory" || cannot mounts
done
mkdir all/made
sleep 0.1
for name in one two three four five six; do
    hostname "$name" || cannot names
    run=$((run + 1))
    chroot all "${@:3}" || exit
    ls -lR --full-time "$box/cache/v1/names" "$box/cache/v1/digests" > "$box/known.$run"
done
"#;

/// As Docker gives each container a name, below a directory that they share. Their files are those of one kernel.
#[test]
fn what_is_known_of_the_drivers_files_holds_in_a_container_of_another_name() {
    let sandbox = with_helper(&["libraries"]);
    put_helper(&sandbox, "libraries");
    let mut can = plain_command("unshare");
    can.args(["--mount", "--uts", "bash", "-c", "true"]);
    if !can.output().is_ok_and(|ran| ran.status.success()) {
        return skipped("containers (unshare)");
    }
    let source = sandbox.write("kernel.cl", SOURCE);
    let client = example("client");
    let mut command = sandbox.command(Way::Cached, "unshare");
    command.args(["--mount", "--uts", "bash", "-c", IN_CONTAINERS, "bash"]);
    let built = client.ancestors().nth(2).expect("a directory");
    command.arg(sandbox.path("")).arg(built).arg(&client);
    command.args(["run", "--kernel", "f", "--source"]);
    let ran = sandbox.run(command.arg(&source));
    if ran.code == Some(77) {
        return skipped(format_args!("containers ({})", ran.stdout.trim()));
    }
    let ran = ran.ok();
    assert_eq!(ran.source_builds(), 1, "{}", ran.stderr);
    let facts = tree(&sandbox.path("cache/v1/names"));
    let is_list = |file: &PathBuf| {
        let content = std::fs::read(file).expect("read");
        content.starts_with(b"oclcsrch")
    };
    assert!(facts.keys().any(is_list), "no list was kept: {facts:?}");
    let known = |run: u32| std::fs::read_to_string(sandbox.path(&format!("known.{run}")));
    let known: Vec<String> = (1..=6).map(|run| known(run).expect("listed")).collect();
    // Other tests link the files of the driver at any time, which changes their states.
    let nothing_is_new = known.windows(2).any(|pair| pair[0] == pair[1]);
    assert!(nothing_is_new, "the files were looked for again: {known:?}");
}
