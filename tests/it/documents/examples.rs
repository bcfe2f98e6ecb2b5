//! docs/examples: the scripts do what their pages say of them, on the stub driver.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::Reader;
use super::pages::{self, top};
use crate::support::{Driver, empty_memory};

/// Starts ranks on two nodes, each with a local disk.
const MPIRUN: &str = r#"#!/bin/sh
ranks=1
while :; do
    case $1 in
    -n) ranks=$2 && shift 2 ;;
    --map-by) shift 2 ;;
    *) break ;;
    esac
done
for rank in $(seq "$ranks"); do
    disk=$HOME/node$((rank % 2))
    mkdir -p "$disk"
    (NODE_LOCAL=$disk; export NODE_LOCAL; "$@" || echo "RANK $rank FAILED") >>"$HOME/ranks" 2>&1 &
done
wait
if grep FAILED "$HOME/ranks"; then exit 1; fi
"#;

/// Adds a script to those that the reader finds.
pub fn add_command(reader: &Reader, name: &str, script: &str) {
    let script = reader.sandbox.write("script", script);
    let path = reader.sandbox.path("bin").join(name);
    crate::support::copy_program(script, &path);
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("changed");
}

/// A machine with two nodes, in the eyes of `mpirun`.
pub fn add_mpirun(reader: &Reader) {
    add_command(reader, "mpirun", MPIRUN);
}

fn reader() -> Reader {
    let mut reader = Reader::new(Driver::Stub).expect("the stub is built with the tests");
    reader.counts = true;
    reader
}

/// The cache as another machine has it that restores it: its files may have other times, and nothing is in memory.
fn restore(reader: &Reader) {
    let reset = "find \"$(oclcache path)\" -exec touch -d @0 {} +\n";
    reader.type_in(reset).code.expect("no signal");
    empty_memory(&reader.home());
}

#[test]
fn ranks_of_a_node_compile_once_and_other_nodes_and_later_jobs_not_at_all() {
    let reader = reader();
    if !reader.is_trusted() {
        return;
    }
    add_mpirun(&reader);
    let job = |ranks: u32| format!("mpirun -n {ranks} docs/examples/rank.sh PROGRAM\n");
    reader
        .type_in("export OCLCACHE_SYSTEM_DIRS=$HOME/kernels; mkdir -p \"$OCLCACHE_SYSTEM_DIRS\"")
        .ok();
    let compilations = || reader.sandbox.compilations();
    reader.type_in(&job(8)).ok();
    assert_eq!(compilations(), 2, "once on each node");
    let publish = "mpirun -n 2 --map-by node docs/examples/publish.sh\n";
    reader.type_in(publish).ok();
    let shared = "ls \"$OCLCACHE_SYSTEM_DIRS\"/v1/entries/*/ | grep -c 'entry$'";
    assert_eq!(reader.type_in(shared).ok().stdout, "1\n");
    // The next job finds empty disks.
    reader
        .type_in(&format!("rm -rf \"$HOME\"/node*\n{}", job(8)))
        .ok();
    assert_eq!(compilations(), 2, "nothing is compiled");
    reader.type_in(publish).ok();
    // Ranks that do not write compile for themselves, as the page says.
    let alone = format!(
        "rm -rf \"$HOME\"/node* \"$OCLCACHE_SYSTEM_DIRS\"/v1\nOCLCACHE_READONLY=1 {}",
        job(4)
    );
    reader.type_in(&alone).ok();
    assert_eq!(compilations(), 6);
}

#[test]
fn a_cache_that_is_restored_with_other_times_serves_and_keeps_what_was_used() {
    let reader = reader();
    reader
        .type_in("oclcache run PROGRAM\noclcache run OTHER")
        .ok();
    assert_eq!(reader.sandbox.compilations(), 2);
    restore(&reader);
    let ran =
        reader.type_in("OCLCACHE_MUST_HIT=1 oclcache run PROGRAM\noclcache gc --max-age 14d\n");
    ran.ok();
    // What was used stays, what was not is gone.
    reader
        .type_in("OCLCACHE_MUST_HIT=1 oclcache run PROGRAM")
        .ok();
    assert_eq!(reader.sandbox.compilations(), 2);
    let ran = reader.type_in("OCLCACHE_MUST_HIT=1 oclcache run OTHER");
    assert_eq!(ran.code, Some(125), "{}", ran.stderr);
    // Removed before it is run, nothing is left.
    restore(&reader);
    reader.type_in("oclcache gc --max-age 14d").ok();
    let ran = reader.type_in("OCLCACHE_MUST_HIT=1 oclcache run PROGRAM");
    assert_eq!(ran.code, Some(125), "{}", ran.stderr);
}

/// Runs a command on a node, which has a home of its own, and notes it.
const SSH: &str = r#"#!/bin/sh
node=$1
shift
echo "$node $*" >>"$HOME/typed"
mkdir -p "$HOME/$node"
unset OCLCACHE_SYSTEM_DIRS
HOME=$HOME/$node exec sh -c "$*"
"#;

/// The page on clusters, typed on a machine whose nodes are homes. What installs and removes packages is only noted, and
/// each node's user has the settings that its system would have.
#[test]
fn a_cluster_is_installed_shared_checked_and_removed_as_its_page_says() {
    let reader = reader();
    if !reader.is_trusted() {
        return;
    }
    for (name, script) in [
        ("ssh", SSH),
        ("scp", "#!/bin/sh\necho \"$*\" >>\"$HOME/typed\"\n"),
        ("apt", "#!/bin/sh\n"),
        ("sudo", "#!/bin/sh\nexec \"$@\"\n"),
    ] {
        add_command(&reader, name, script);
    }
    let pages = pages::all();
    let page = pages.iter().find(|page| page.name == "docs/clusters.md");
    let blocks = page.expect("a page").blocks().into_iter();
    let blocks = blocks.filter(|block| block.word("run-by") == Some(file!()));
    let system = reader.home().join("kernels").display().to_string();
    let blocks = blocks.map(|block| {
        let text = block.text.replace("--system system_dirs", "system_dirs");
        text.replace("/shared/kernels", &system)
    });
    let blocks: Vec<String> = blocks.collect();
    let [install, share, check, compile, see, remove] = &blocks[..] else {
        panic!("{blocks:#?}");
    };
    let typed = |script: &str| {
        let script = format!("touch oclcache_1.deb\n{install}\n{script}");
        let _ = fs::remove_file(reader.home().join("typed"));
        reader.type_in(&script).ok().stdout
    };
    let noted = |words: &str| {
        let typed = fs::read_to_string(reader.home().join("typed")).expect("what was typed");
        typed.lines().filter(|line| line.contains(words)).count()
    };
    typed("");
    assert_eq!(noted("oclcache_1.deb node"), 8, "copied");
    assert_eq!(noted("sudo apt install -y ./oclcache_*.deb"), 8);
    typed(share);
    let checked = typed(check);
    assert_eq!(checked.matches("kernels").count(), 8, "{checked}");
    let before = reader.sandbox.compilations();
    typed(compile);
    assert_eq!(reader.sandbox.compilations(), before + 1);
    typed("each OCLCACHE_MUST_HIT=1 oclcache run PROGRAM");
    assert_eq!(reader.sandbox.compilations(), before + 1, "nobody compiles");
    let seen = typed(see);
    for node in 1..=8 {
        assert!(seen.contains(&format!("node{node}:")), "{seen}");
    }
    let hits = seen.lines().filter(|line| line.starts_with("hits  "));
    assert_eq!(
        hits.filter(|line| line.ends_with(" 1")).count(),
        8,
        "{seen}"
    );
    typed(remove);
    assert_eq!(noted("sudo apt purge -y oclcache"), 8);
    assert!(!reader.home().join("kernels").exists());
    let left = typed("each oclcache config get system_dirs");
    assert!(!left.contains("kernels"), "{left}");
}

#[test]
fn an_archive_fills_a_directory_of_the_system_as_its_page_says() {
    let pages = pages::all();
    let page = pages.iter().find(|page| page.name == "docs/ci.md");
    let blocks = page.expect("a page").blocks().into_iter();
    let blocks =
        blocks.filter(|block| block.text.contains(" import ") && block.word("run-by").is_some());
    let mut filled = 0;
    for block in blocks {
        let reader = reader();
        if !reader.is_trusted() {
            return;
        }
        let system = reader.home().join("system").display().to_string();
        let script = block
            .text
            .replace("sudo ", "")
            .replace("/var/cache/oclcache", &system);
        let export = "oclcache run --bake PROGRAM\noclcache export kernels.tar.zst\n";
        reader.type_in(&format!("{export}{script}")).ok();
        let served = format!(
            "OCLCACHE_DIR=$HOME/other OCLCACHE_SYSTEM_DIRS={system} OCLCACHE_MUST_HIT=1 oclcache run PROGRAM"
        );
        reader.type_in(&served).ok();
        assert_eq!(reader.sandbox.compilations(), 1);
        filled += 1;
    }
    assert_eq!(filled, 2, "blocks that import for all users");
}

/// The shell steps of a workflow: what follows `run:`, on its line or indented below it.
fn steps(workflow: &str) -> Vec<String> {
    let mut steps = Vec::new();
    let mut lines = workflow.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((before, step)) = line.split_once("run: ") else {
            continue;
        };
        assert!(before.trim().is_empty() || before.trim() == "-", "{line}");
        let mut script = if step == "|" {
            String::new()
        } else {
            step.to_owned()
        };
        let indent = before.len() + 2;
        while step == "|"
            && lines
                .peek()
                .is_some_and(|next| next.len() > indent && next[..indent].trim().is_empty())
        {
            script += lines.next().expect("peeked").trim_start();
            script.push('\n');
        }
        steps.push(script);
    }
    steps
}

#[test]
fn the_steps_of_the_workflow_run_and_the_second_run_compiles_nothing() {
    let workflow =
        fs::read_to_string(top().join("docs/examples/workflow.yml")).expect("a workflow");
    let steps = steps(&workflow);
    let (installing, run): (Vec<_>, Vec<_>) = steps.iter().partition(|step| step.contains("sudo"));
    assert!(installing.len() == 1 && run.len() >= 4, "{steps:?}");
    let reader = reader();
    for compiled in [1, 1] {
        // What `actions/cache` restores.
        restore(&reader);
        for step in &run {
            reader.type_in(step).ok();
        }
        assert_eq!(reader.sandbox.compilations(), compiled);
    }
}

#[test]
fn the_run_lines_of_the_dockerfile_make_an_image_that_serves_every_user() {
    let reader = reader();
    if !reader.is_trusted() {
        return;
    }
    let dockerfile =
        fs::read_to_string(top().join("docs/examples/Dockerfile")).expect("a Dockerfile");
    let lines: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("RUN "))
        .collect();
    let system = reader.home().join("system").display().to_string();
    let (installing, run): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| line.contains("apt-get"));
    assert!(installing.len() == 1 && run.len() == 3, "{lines:?}");
    for line in run {
        reader
            .type_in(&line.replace("/var/cache/oclcache", &system))
            .ok();
    }
    assert_eq!(reader.sandbox.compilations(), 1);
    // Another user's home, and a cache that is not there yet.
    let as_user = format!(
        "OCLCACHE_SYSTEM_DIRS={system} OCLCACHE_DIR=$HOME/other OCLCACHE_MUST_HIT=1 oclcache run PROGRAM"
    );
    reader.type_in(&as_user).ok();
    assert_eq!(reader.sandbox.compilations(), 1);
    let readable = reader.type_in(&format!(
        "find {system} -name '*.entry' -perm -044 | grep -c entry"
    ));
    assert_eq!(readable.ok().stdout, "1\n", "all users can read it");
    // What the page shows of it.
    let page = fs::read_to_string(top().join("docs/ci.md")).expect("a page");
    let shown = page
        .split("```dockerfile\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    for line in shown.expect("a block").lines() {
        assert!(dockerfile.lines().any(|other| other == line), "{line}");
    }
}
