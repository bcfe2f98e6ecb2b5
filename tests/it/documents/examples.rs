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

#[test]
fn a_directory_of_the_system_is_made_as_its_page_says() {
    let reader = reader();
    if !reader.is_trusted() {
        return;
    }
    let pages = pages::all();
    let page = pages.iter().find(|page| page.name == "docs/clusters.md");
    let blocks = page.expect("a page").blocks().into_iter();
    let mut blocks = blocks.filter(|block| block.text.contains("sudo cp "));
    let (Some(block), None) = (blocks.next(), blocks.next()) else {
        panic!("another number of blocks fill the directory");
    };
    let system = reader.home().join("system").display().to_string();
    let script = block
        .text
        .replace("sudo ", "")
        .replace("/var/cache/oclcache", &system);
    reader.type_in(&script).ok();
    assert_eq!(reader.sandbox.compilations(), 1);
    let served = format!("OCLCACHE_SYSTEM_DIRS={system} OCLCACHE_MUST_HIT=1 oclcache run PROGRAM");
    reader.type_in(&served).ok();
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

#[test]
fn what_a_page_shows_of_a_script_stands_in_it() {
    let mut shown = 0;
    for page in pages::all() {
        for block in page
            .blocks()
            .into_iter()
            .filter(|block| block.language == "text")
        {
            let Some(name) = block
                .text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("# docs/examples/"))
            else {
                continue;
            };
            let script =
                fs::read_to_string(top().join("docs/examples").join(name)).expect("a script");
            for line in block.text.lines().skip(1) {
                assert!(
                    script.lines().any(|other| other == line),
                    "{}: {line}",
                    page.name
                );
            }
            shown += 1;
        }
    }
    assert!(shown > 0);
}
