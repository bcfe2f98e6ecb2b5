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
fn a_read_only_cache_is_neither_emptied_nor_shrunk_nor_are_its_counters_reset() {
    let mut sandbox = filled();
    sandbox.set("OCLCACHE_READONLY", "1");
    for (arguments, undone) in [
        (&["clear"][..], "nothing is removed"),
        (&["clear", "--program", "client"], "nothing is removed"),
        (&["gc", "--max-size", "1B"], "nothing is removed"),
        (&["stats", "--zero"], "no counter is reset"),
        (&["bake"], "nothing is baked"),
        (&["import", "-"], "nothing is imported"),
    ] {
        let ran = sandbox.oclcache(arguments);
        let words =
            format!("oclcache: {undone}: `readonly` is set; run `oclcache config` to see where\n");
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), words.as_str()));
        assert_eq!((left(&sandbox), sandbox.stat("misses")), (3, 3));
    }
    for arguments in [&["clear", "--dry-run"][..], &["gc", "--dry-run"]] {
        sandbox.oclcache(arguments).ok();
    }
}

#[test]
fn names_that_no_entry_has_are_told_by_each_verb_and_keys_have_no_case() {
    let sandbox = filled();
    let ran = |arguments: &[&str]| sandbox.oclcache(arguments);
    let list = ran(&["list"]).ok().stdout;
    let key = keys(&list)[0].to_uppercase();
    ran(&["show", &key]).ok();
    for (arguments, code, words) in [
        (
            &["list", "--program", "CLIENT"][..],
            0,
            "no entry is of the program `CLIENT`; there are entries of client (2), other (1)",
        ),
        (
            &["bake", "--driver", "nosuch"],
            0,
            "no entry is of the driver `nosuch`; there are entries of unknown (3)",
        ),
        (
            &["export", "--driver", "nosuch", "-", "--dry-run"],
            1,
            "no entry is of the driver `nosuch`; there are entries of unknown (3)",
        ),
        (
            &["import", "--trust", "--system", "kernels.tar.zst"],
            2,
            "no archive is named; write FILE before `--system`, or write `--system=DIR`",
        ),
    ] {
        let ran = ran(arguments);
        let is_told = ran.stderr.contains(words);
        assert_eq!((ran.code, is_told), (Some(code), true), "{}", ran.stderr);
    }
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
        // Ages are as wide as they are old.
        let rows = ran.stdout.split_inclusive('\n').map(|row| {
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

/// The first digits of the keys in a list.
fn keys(list: &str) -> Vec<&str> {
    let rows = list.lines().skip(1);
    rows.filter_map(|row| row.split_whitespace().next())
        .collect()
}

#[test]
fn what_would_go_is_listed_as_list_lists_it() {
    let sandbox = Sandbox::stub();
    for number in 0..6 {
        let options = format!("-DN={number}");
        sandbox.kernel(Way::Cached, SOURCE, &options).ok();
    }
    for (days, entry) in sandbox.entries().iter().enumerate() {
        sandbox.was_used(entry, Duration::from_secs(days as u64 * 86_400));
    }
    for reversed in [false, true] {
        if reversed {
            let entries = sandbox.entries();
            for (days, entry) in entries.iter().rev().enumerate() {
                sandbox.was_used(entry, Duration::from_secs(days as u64 * 86_400));
            }
        }
        let listed = sandbox.oclcache(&["list"]).ok().stdout;
        let cleared = clear(&sandbox, &["--dry-run"]).ok().stdout;
        assert_eq!(keys(&listed).len(), 6, "{listed}");
        assert_eq!(keys(&cleared), keys(&listed));
        let listed = sandbox.oclcache(&["list", "--json"]).ok().stdout;
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        let rows = listed.as_array().expect("a list").iter();
        let listed: Vec<_> = rows.map(|row| row["key"].clone()).collect();
        let cleared = clear(&sandbox, &["--dry-run", "--json"]).ok().stdout;
        let cleared: serde_json::Value = serde_json::from_str(&cleared).expect("JSON");
        assert_eq!(cleared["keys"], serde_json::json!(listed));
    }
}
