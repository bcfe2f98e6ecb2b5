//! Headers that change while programs run and while drivers compile.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{KERNEL, Tree, Verdict, verdicts};
use crate::support::{Driver, Way, example};

/// A new program of the same process sees the header as it is then.
#[test]
fn between_two_builds_of_a_process() {
    // rusticl's own cache knows nothing of files and decides by its threads which one is used.
    for tree in Tree::on(&[Driver::Stub, Driver::Pocl, Driver::Intel]) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.write("old.h", "#define V 10\n");
        tree.write("new.h", "#define V 20\n");
        let section = |file: &str| {
            tree.section(
                &[
                    "run",
                    "--source",
                    "kernel.cl",
                    "--kernel",
                    "f",
                    "--then",
                    &format!("{file}=new.h"),
                ],
                "-I d1",
            );
        };
        let start = || {
            std::fs::create_dir_all(tree.path("d1")).expect("made");
            let _ = std::fs::remove_file(tree.path("h.h"));
            std::fs::copy(tree.path("old.h"), tree.path("d1/h.h")).expect("copied");
        };
        for file in ["d1/h.h", "h.h"] {
            section(file);
            start();
            let bare = tree.ran(Way::Bare).ok();
            if tree.driver != Driver::Stub {
                assert!(bare.stdout.contains("[20, "), "{:?}", tree.driver);
            }
            for wanted in [Verdict::Miss, Verdict::Hit] {
                start();
                let ran = tree.ran(Way::Cached).ok();
                assert_eq!(
                    ran.stdout, bare.stdout,
                    "{:?}, log:\n{}",
                    tree.driver, ran.stderr
                );
                // The first of the two builds is known from the second file on.
                assert_eq!(
                    verdicts(&ran.stderr).last(),
                    Some(&wanted),
                    "{:?}",
                    tree.driver
                );
            }
        }
    }
}

/// Runs the program on a slow stub and does something while it compiles.
#[track_caller]
fn meanwhile(tree: &Tree, edit: impl FnOnce()) -> Vec<Verdict> {
    let before = tree.sandbox.compilations();
    let mut command = tree.sandbox.command(Way::Cached, example("client"));
    command
        .env("STUB_BUILD_MS", "700")
        .args(&*tree.arguments.borrow())
        .current_dir(tree.path(""));
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let (begun, child) = (Instant::now(), child.expect("started"));
    while tree.sandbox.compilations() == before {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nothing is compiled"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    edit();
    let output = child.wait_with_output().expect("it ran");
    let [stdout, log] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    // The stub reads headers when its time is over, so what it made is that of the files as they are now.
    assert_eq!(stdout, tree.ran(Way::Bare).stdout, "log:\n{log}");
    verdicts(&log)
}

#[test]
fn while_the_driver_compiles() {
    for tree in Tree::on(&[Driver::Stub]) {
        let start = || {
            for place in ["h.h", "d1/h.h"] {
                let _ = std::fs::remove_file(tree.path(place));
            }
            tree.write("d1/h.h", "#define V 1\n");
        };
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        type Edit<'a> = (&'a str, Box<dyn Fn() + 'a>);
        let edits: [Edit; 3] = [
            ("edited", Box::new(|| tree.write("d1/h.h", "#define V 2\n"))),
            ("shadowed", Box::new(|| tree.write("h.h", "#define V 3\n"))),
            (
                "replaced",
                Box::new(|| {
                    tree.write("new.h", "#define V 4\n");
                    tree.rename("new.h", "d1/h.h");
                }),
            ),
        ];
        for (what, edit) in edits {
            start();
            meanwhile(&tree, &edit);
            assert_eq!(tree.sandbox.entries().len(), 0, "{what}: stored");
            assert_eq!(tree.sandbox.stat("hits"), 0, "{what}");
            // What is there now was compiled a moment ago, but as what is not known.
            start();
        }
        tree.is_cached();
    }
}

#[test]
fn nothing_happens_while_the_driver_compiles() {
    for tree in Tree::on(&[Driver::Stub]) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.write("d1/h.h", "#define V 1\n");
        let verdicts = meanwhile(&tree, || {
            tree.write("other.h", "#define V 2\n");
            tree.write("d1/other.h", "#define V 2\n");
        });
        assert_eq!(verdicts, [Verdict::Miss]);
        assert_eq!(tree.sandbox.entries().len(), 1);
    }
}
