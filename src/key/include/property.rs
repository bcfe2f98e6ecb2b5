//! The closure against a real preprocessor, on random programs and edits.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use super::super::ingredients::{Ingredient, Kind, key};
use super::super::options;
use super::{Inputs, Work, follow};
use crate::outcome::Bypass;

#[path = "../../../tests/support/trees.rs"]
mod trees;

use trees::{Edit, Program, Tree, history};

/// How many programs are tried unless OCLCACHE_TEST_INCLUDES says.
const CASES: u32 = 150;

#[derive(Default)]
struct Counts {
    programs: AtomicUsize,
    states: AtomicUsize,
    /// States that a preprocessor accepts.
    sound: AtomicUsize,
    bypassed: Mutex<BTreeMap<&'static str, usize>>,
    changed: AtomicUsize,
    /// Steps that no preprocessor could tell, and those of them after which the key was the same.
    unchanged: AtomicUsize,
    hits: AtomicUsize,
}

/// What is left of the program, or None if the preprocessor fails. gcc fails if it has no directory for angled names at all.
fn preprocessed(root: &Path, options: &str) -> Option<String> {
    let output = Command::new("gcc")
        .args([
            "-E",
            "-P",
            "-nostdinc",
            "-w",
            "-x",
            "c",
            "-D__OPENCL_VERSION__=300",
        ])
        .args(arguments(options))
        .args(["-idirafter", "empty"])
        .arg("kernel.cl")
        .current_dir(root)
        .output()
        .expect("gcc");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

fn arguments(options: &str) -> impl Iterator<Item = &str> {
    options.split(' ').filter(|word| !word.is_empty())
}

/// The key as far as texts go.
fn key_of(root: &Path, options: &str) -> Result<[u8; 32], Bypass> {
    let options = options::parse(options.as_bytes())?;
    let source = std::fs::read(root.join("kernel.cl")).expect("the source");
    let inputs = Inputs {
        working_directory: root,
        source: &source,
        embedded: &[],
        options: Some(&options),
        driver_dirs: &[],
        implicit: &[],
    };
    let closure = follow(&inputs, &Work::default())?.closure;
    let options = Ingredient::new(Kind::Options, "", options.normalized);
    let ingredients: Vec<_> = [options].into_iter().chain(closure.ingredients()).collect();
    Ok(key(&ingredients).0)
}

fn holds(program: &Program, edits: &[Edit], counts: &Counts) -> Result<(), TestCaseError> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = directory.path().join("tree");
    let mut tree = Tree::new(&root, program);
    let mut known = HashMap::new();
    let mut before = None;
    counts.programs.fetch_add(1, Ordering::Relaxed);
    for edit in [None].into_iter().chain(edits.iter().map(Some)) {
        if let Some(edit) = edit {
            tree.edit(edit);
        }
        let options = tree.options();
        let text = preprocessed(&root, &options);
        let key = key_of(&root, &options);
        counts.states.fetch_add(1, Ordering::Relaxed);
        counts
            .sound
            .fetch_add(usize::from(text.is_some()), Ordering::Relaxed);
        if edit.is_some_and(Edit::is_harmless) {
            counts.unchanged.fetch_add(1, Ordering::Relaxed);
            let same = key.is_ok() && before.as_ref() == Some(&key);
            counts.hits.fetch_add(usize::from(same), Ordering::Relaxed);
        }
        match &key {
            Err(reason) => {
                let mut bypassed = counts.bypassed.lock().expect("no panic");
                *bypassed.entry(reason.name()).or_default() += 1;
            }
            Ok(key) => {
                // Only what was built is stored, but a key that was once free must not be served to what fails now.
                let first = known.entry(*key).or_insert_with(|| text.clone());
                proptest::prop_assert_eq!(
                    &text,
                    first,
                    "stale after {:?}, options {:?}",
                    edit,
                    options
                );
            }
        }
        if before.as_ref() != Some(&key) {
            counts.changed.fetch_add(1, Ordering::Relaxed);
        }
        before = Some(key);
    }
    Ok(())
}

#[test]
#[allow(clippy::print_stderr)]
fn equal_keys_mean_equal_texts_and_what_is_not_changed_hits() {
    if Command::new("gcc").arg("--version").output().is_err() {
        eprintln!("skipped: programs that include files, against gcc (no gcc)");
        return;
    }
    let cases = std::env::var("OCLCACHE_TEST_INCLUDES").ok();
    let cases = cases.map_or(CASES, |cases| cases.parse().expect("a number"));
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let counts = Counts::default();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let counts = &counts;
            scope.spawn(move || {
                let config = Config {
                    cases: cases.div_ceil(threads),
                    failure_persistence: None,
                    max_shrink_time: 60_000,
                    ..Config::default()
                };
                let seed = [thread as u8 + 1; 32];
                let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
                let mut runner = TestRunner::new_with_rng(config, random);
                let outcome = runner.run(&history(true), |(program, edits)| {
                    holds(&program, &edits, counts)
                });
                outcome.unwrap_or_else(|error| panic!("{error}"));
            });
        }
    });
    let bypassed = counts.bypassed.into_inner().expect("no panic");
    let counts = [
        &counts.programs,
        &counts.states,
        &counts.sound,
        &counts.changed,
        &counts.unchanged,
        &counts.hits,
    ];
    let [programs, states, sound, changed, unchanged, hits] =
        counts.map(|count| count.load(Ordering::Relaxed));
    eprintln!(
        "{programs} programs: {states} states, {sound} of them accepted by gcc, {changed} keys, bypassed {bypassed:?}; \
         {hits} hits of {unchanged} unchanged"
    );
    assert!(
        hits * 100 >= unchanged * 95,
        "{hits} hits of {unchanged} that did not change"
    );
}
