//! `clear` removes the entries that all of what was said is true of, and no others.

use std::time::Duration;

use crate::snapshots::assert_shown;
use crate::support::{Ran, SOURCE, Sandbox, Way, copy_program, example};
/// Two entries of `client`, of which the second was not used for ten days, and one of `other`.
fn filled() -> Sandbox {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=0").ok();
    for entry in sandbox.entries() {
        sandbox.was_used(&entry, Duration::from_secs(10 * 86_400));
    }
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let other = sandbox.path("other");
    copy_program(example("client"), &other);
    let source = sandbox.path("kernel.cl");
    let mut command = sandbox.command(Way::Cached, &other);
    command.args(["run", "--kernel", "f", "--options", "-DN=2", "--source"]);
    sandbox.run(command.arg(source)).ok();
    sandbox
}

fn left(sandbox: &Sandbox) -> usize {
    sandbox.entries().len()
}

fn clear(sandbox: &Sandbox, arguments: &[&str]) -> Ran {
    sandbox.oclcache(&[&["clear"], arguments].concat())
}

#[test]
fn an_entry_goes_that_all_of_what_was_said_is_true_of() {
    let sandbox = filled();
    for arguments in [
        &["--program", "other", "--older-than", "5d"][..],
        &["--program", "nobody"],
        &["--program", "Client"],
        &["--driver", "pocl"],
        &["--older-than", "11d"],
        &[
            "--driver",
            "unknown",
            "--program",
            "client",
            "--older-than",
            "20d",
        ],
        &["--dry-run"],
        &["--dry-run", "--program", "client"],
    ] {
        clear(&sandbox, arguments).ok();
        assert_eq!(left(&sandbox), 3, "{arguments:?}");
    }
    let ran = clear(&sandbox, &["--older-than", "5d", "--program", "client"]).ok();
    assert!(ran.stderr.contains("removed 1 entry ("), "{}", ran.stderr);
    assert_eq!(left(&sandbox), 2);
    let builds = |options: &str| {
        let ran = sandbox.kernel(Way::Cached, SOURCE, options).ok();
        ran.source_builds()
    };
    assert_eq!([builds("-DN=1"), builds("-DN=0")], [0, 1]);
    clear(&sandbox, &["--program", "client"]).ok();
    assert_eq!(left(&sandbox), 1);
    clear(&sandbox, &["--older-than", "0"]).ok();
    assert_eq!(clear(&sandbox, &["--older-than", "soon"]).code, Some(2));
}

#[test]
fn what_clear_shows() {
    let sandbox = filled();
    let driver: String = {
        let list = sandbox.oclcache(&["list", "--json"]).ok().stdout;
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        list[0]["driver"].as_str().expect("a driver").to_owned()
    };
    let said: Vec<String> = [
        &["--program", "client", "--dry-run"][..],
        &["--older-than", "5d", "--dry-run"],
        &["--program", "darktable"],
        &["--driver", "pocl"],
        &["--driver", &driver.to_uppercase(), "--program", "other"],
        &["--key", "zz"],
        &["--older-than", "0"],
        &[],
        &["--program", "client"],
    ]
    .iter()
    .map(|arguments| {
        let ran = clear(&sandbox, arguments);
        let code = ran.code.expect("a code");
        let mut rows: Vec<&str> = ran.stdout.split_inclusive('\n').collect();
        // They are listed by key, which is another in each run.
        rows.sort_by_key(|row| (row.rsplit(' ').next().map(str::len), !row.contains("days")));
        // Ages are as wide as they are old.
        let rows = rows.into_iter().map(|row| {
            let cells = row.split("  ").map(str::trim);
            let cells: Vec<&str> = cells.filter(|cell| !cell.is_empty()).collect();
            cells.join("  ") + "\n"
        });
        let rows: Vec<String> = rows.collect();
        let shown = arguments
            .join(" ")
            .replace(&driver.to_uppercase(), "DRIVER");
        format!(
            "$ oclcache clear {shown}\n{}{}[{code}]\n",
            rows.concat(),
            ran.stderr
        )
    })
    .collect();
    assert_shown(&sandbox, "clear", &said.concat());
}
