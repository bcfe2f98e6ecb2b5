//! Random programs and edits, on real drivers: what is served is what the bare driver makes.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::{Verdict, verdicts};
use crate::support::{Driver, Sandbox, Way, example, given};

#[path = "../../support/trees.rs"]
mod trees;

use trees::{Edit, Tree, history};

/// How many programs are tried on each driver unless OCLCACHE_TEST_INCLUDES says.
const CASES: u32 = 4;

/// What happens to programs on a driver: nothing is served that the bare driver would not have made, and what is not changed is.
fn judge(driver: Driver, cases: u32) {
    let Some(sandbox) = Sandbox::new(driver) else {
        return;
    };
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(config, random);
    let (mut unchanged, mut hits) = (0, 0);
    for case in 0..cases {
        let (program, edits) = history(false)
            .new_tree(&mut runner)
            .expect("a program")
            .current();
        let root = sandbox.path(&format!("{case}/tree"));
        let mut tree = Tree::new(&root, &program);
        let mut bare = String::new();
        // The harmless step at the end is one that each program has.
        for edit in [None]
            .into_iter()
            .chain(edits.iter().chain([&Edit::Touch]).map(Some))
        {
            let run = |way, tree: &Tree| {
                let mut command = sandbox.command(way, example("client"));
                command.current_dir(&root);
                command.args(["run", "--source", "kernel.cl", "--kernel", "f"]);
                sandbox.run(command.args(["--options", &tree.options()]))
            };
            if let Some(edit) = edit {
                tree.edit(edit);
            }
            let is_harmless = edit.is_some_and(Edit::is_harmless);
            let sound = |text: &str| text.contains("result [");
            if !is_harmless {
                bare = run(Way::Bare, &tree).stdout;
            }
            let cached = run(Way::Cached, &tree);
            assert_eq!(
                cached.stdout,
                bare,
                "{driver:?}, program {case}, after {edit:?}, options {}, log:\n{}",
                tree.options(),
                cached.stderr
            );
            if is_harmless && sound(&bare) {
                unchanged += 1;
                hits += usize::from(verdicts(&cached.stderr) == [Verdict::Hit]);
            }
        }
    }
    assert!(
        unchanged > 0 && hits * 100 >= unchanged * 95,
        "{driver:?}: {hits} hits of {unchanged}"
    );
}

fn cases() -> u32 {
    let cases = given("OCLCACHE_TEST_INCLUDES");
    // Each takes a hundred times as long as with a preprocessor alone.
    cases.map_or(CASES, |cases| {
        let cases: u32 = cases
            .to_str()
            .and_then(|cases| cases.parse().ok())
            .expect("a number");
        cases.div_ceil(100)
    })
}

#[test]
fn on_pocl() {
    judge(Driver::Pocl, cases());
}

#[test]
fn on_intel() {
    judge(Driver::Intel, cases() * 2);
}
