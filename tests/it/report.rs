//! The report: what `stats --json` says, as a page in which no name means anything, in a file that harms no other.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, json};

use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::snapshots::assert_shown;
use crate::stats::{build, counted_reasons, earlier, plant, stats};
use crate::support::{Ran, SOURCE, Sandbox, Way, tree};
/// The command in a working directory of its own.
fn report(sandbox: &Sandbox, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let here = sandbox.path("here");
    fs::create_dir_all(&here).expect("made");
    let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command.envs(variables.iter().copied()).current_dir(here);
    sandbox.run(command.arg("report").args(arguments))
}

fn page(sandbox: &Sandbox) -> String {
    let printed = report(sandbox, &["-"], &[]).ok();
    assert_plain(printed.stdout.as_bytes());
    printed.stdout
}

/// As a strict parser sees it: whatever is not escaped breaks it, or is an element that is not known here.
fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(page, options).expect("well-formed");
    for node in document.descendants() {
        match node.node_type() {
            roxmltree::NodeType::Element => assert_harmless(node),
            roxmltree::NodeType::Comment => {
                assert_eq!(node.text(), Some(" a report of oclcache "));
            }
            roxmltree::NodeType::PI => panic!("{node:?}"),
            _ => {}
        }
    }
    document
}

/// The element shows something, and does or fetches nothing.
fn assert_harmless(element: Node) {
    const KNOWN: &str = "html head meta title style body main header footer section div h1 h2 h3 p b i small bdi code br \
        span data figure figcaption svg g path rect table thead tbody tr th td dl dt dd ul li details summary";
    const ATTRIBUTES: &str = "lang charset http-equiv content name class id value scope viewBox preserveAspectRatio role \
        aria-label aria-hidden d x y width height";
    let name = element.tag_name().name();
    assert!(
        KNOWN.split_whitespace().any(|known| known == name),
        "{name}"
    );
    for attribute in element.attributes() {
        let name = attribute.name();
        assert!(
            ATTRIBUTES.split_whitespace().any(|known| known == name),
            "{name}"
        );
    }
}

/// The first number of a class.
fn number(document: &Document, class: &str) -> u64 {
    numbers(document.root(), class)[0]
}

fn numbers(node: Node, class: &str) -> Vec<u64> {
    let data = node
        .descendants()
        .filter(|node| node.attribute("class") == Some(class));
    let values = data.filter_map(|node| node.attribute("value")?.parse().ok());
    values.collect()
}

fn rows<'a, 'input>(document: &'a Document<'input>, id: &str) -> Vec<Node<'a, 'input>> {
    let table = document
        .descendants()
        .find(|node| node.attribute("id") == Some(id));
    let table = table.unwrap_or_else(|| panic!("no {id}"));
    let body = table.descendants().find(|node| node.has_tag_name("tbody"));
    body.expect("a body")
        .children()
        .filter(Node::is_element)
        .collect()
}

fn text(node: Node) -> String {
    node.descendants()
        .filter(Node::is_text)
        .filter_map(|node| node.text())
        .collect()
}

#[test]
fn its_numbers_are_those_of_stats() {
    let sandbox = Sandbox::stub();
    plant(&sandbox, &earlier());
    build(&sandbox, b"one", SOURCE, "-DN=1").ok();
    build(&sandbox, b"one", SOURCE, "-DN=1").ok();
    build(&sandbox, b"one", SOURCE, "-DN=2").ok();
    let (page, told) = (page(&sandbox), stats(&sandbox, &[]));
    let document = parsed(&page);
    for name in [
        "saved_ns", "hits", "misses", "bypassed", "failed", "bytes", "entries",
    ] {
        assert_eq!(Some(number(&document, name)), told[name].as_u64(), "{name}");
    }
    let spent =
        ["compile_ns", "bypassed_ns", "failed_ns"].map(|name| told[name].as_u64().unwrap_or(0));
    assert_eq!(number(&document, "spent_ns"), spent.iter().sum::<u64>());
    assert_eq!(
        Some(number(&document, "today_saved_ns")),
        told["today"]["saved_ns"].as_u64()
    );
    for reasons in ["miss_reasons", "bypass_reasons", "materialised_queries"] {
        for (name, count) in counted_reasons(&told, reasons) {
            assert_eq!(number(&document, &name), count, "{name}");
        }
    }
    let groups = |name: &str| told[name].as_array().expect("a list").clone();
    for (table, group, field) in [
        ("programs", "by_program", "program"),
        ("devices", "by_device", "device"),
    ] {
        let rows = rows(&document, table);
        assert_eq!(rows.len(), groups(group).len());
        for one in groups(group) {
            let name = one[field].as_str().expect("a name");
            let row = rows.iter().find(|row| text(**row).starts_with(name));
            let row = row.unwrap_or_else(|| panic!("{name}"));
            for counter in ["hits", "misses", "saved_ns"] {
                assert_eq!(numbers(*row, counter), [one[counter].as_u64().unwrap_or(0)]);
            }
        }
    }
    for by in ["driver", "program", "age"] {
        let space = rows(&document, &format!("space-by-{by}"));
        let bytes: u64 = space.iter().flat_map(|row| numbers(*row, "bytes")).sum();
        assert_eq!(Some(bytes), told["bytes"].as_u64(), "{by}");
    }
    assert_eq!(rows(&document, "costliest").len(), 2);
    // A plot has a bar for each day on which something was built, and says so in words.
    let plots: Vec<Node> = document
        .descendants()
        .filter(|node| node.has_tag_name("figure"))
        .collect();
    assert_eq!(plots.len(), 4, "by day and by month");
    let today = told["date"].as_str().expect("a date");
    let of_day = |row: &Value| {
        let built = ["hits", "misses"].map(|name| row[name].as_u64().unwrap_or(0));
        format!("{} hits, {} misses, 0 bypassed", built[0], built[1])
    };
    let by_day = groups("by_day");
    let words = text(plots[1]);
    assert!(words.contains(&format!("{}: ", &today[5..])), "{words}");
    assert!(
        words.contains(&of_day(by_day.last().expect("today"))),
        "{words}"
    );
    assert!(page.contains("Content-Security-Policy"));
    assert!(text(document.root()).contains("option -DN=1 became -DN=2"));
    // What is code in a message is code on the page.
    assert!(page.contains("<code>oclcache doctor</code>"), "{page}");
    assert!(!page.contains('`'), "{page}");
}

#[test]
fn names_chosen_to_do_harm_are_text_and_nothing_else() {
    let mut sandbox = Sandbox::stub();
    for name in HOSTILE.into_iter().filter(|name| *name != b"..") {
        build(&sandbox, name, SOURCE, "-DN=1").ok();
    }
    sandbox.set("STUB_DEVICE_NAME", "<i onclick='x'>&amp; \u{202e}");
    build(&sandbox, b"one", SOURCE, "-DN=1 -DX=\"]]><script>&amp;\"").ok();
    let page = page(&sandbox);
    let document = parsed(&page);
    let all = text(document.root());
    for shown in [
        "<script>alert(1)<.script><b onload='x'>&amp;&#60;",
        "two\\u{a}lines\\u{d}\\u{a}or three",
        "]]>--><!--<?x?>",
        "<i onclick='x'>&amp; \\u{202e}0",
        "-DX=\"]]><script>&amp;\"",
        "--help",
    ] {
        assert!(all.contains(shown), "{shown}");
    }
}

#[test]
fn of_an_empty_cache_or_none_there_is_a_report_as_well() {
    let sandbox = Sandbox::stub();
    let page = page(&sandbox);
    let document = parsed(&page);
    assert_eq!(
        [number(&document, "hits"), number(&document, "entries")],
        [0, 0]
    );
    assert!(text(document.root()).contains("Nothing was built through the cache yet."));
    assert!(!sandbox.path("cache").exists());
}

/// The titles of the charts.
fn charts(sandbox: &Sandbox) -> Vec<String> {
    let page = page(sandbox);
    let document = parsed(&page);
    let figures = document
        .descendants()
        .filter(|node| node.has_tag_name("figcaption"));
    figures.map(text).collect()
}

/// One bar compares nothing. The page says the same in numbers.
#[test]
fn a_chart_that_would_have_a_single_bar_is_left_out() {
    const DAYS: [&str; 2] = ["Compile time served by day", "Hit rate by day"];
    const MONTHS: [&str; 2] = ["Compile time served by month", "Hit rate by month"];
    let none: [&str; 0] = [];
    // How many days ago something was built.
    for (days_ago, expected) in [
        (&[0][..], &none[..]),
        (&[12], &none),
        (&[300], &none),
        (&[0, 1], &DAYS),
        (&[0, 300], &MONTHS),
        (&[0, 1, 300], &[DAYS, MONTHS].concat()),
    ] {
        let sandbox = Sandbox::stub();
        let counters = json!({ "hits": 3, "misses": 1, "saved_ns": 4_000_000_000_u64 });
        let row = |ago: &u64| (*ago, "one", "pocl", "cpu", counters.clone());
        plant(&sandbox, &days_ago.iter().map(row).collect::<Vec<_>>());
        assert_eq!(charts(&sandbox), expected, "{days_ago:?}");
        let page = page(&sandbox);
        let all = 3 * days_ago.len() as u64;
        assert_eq!(number(&parsed(&page), "hits"), all, "{days_ago:?}");
    }
}

/// A build can fail before it is known for which device it was.
#[test]
fn builds_of_an_unknown_device_have_a_row_that_says_why_it_is_unknown() {
    let sandbox = Sandbox::stub();
    let bypassed = json!({ "bypassed.reads_file": 5 });
    let failed = json!({ "failed": 2, "failed_ns": 7 });
    let hits = json!({ "hits": 9 });
    plant(
        &sandbox,
        &[
            (0, "one", "pocl", "cpu", hits),
            (0, "one", "", "", bypassed),
            (0, "two", "pocl", "", failed),
        ],
    );
    let page = page(&sandbox);
    let document = parsed(&page);
    let shown: Vec<String> = rows(&document, "devices").into_iter().map(text).collect();
    let starts = ["cpupocl", "before the device was known", "unknownpocl"];
    assert_eq!(shown.len(), starts.len(), "{shown:?}");
    for (row, start) in shown.iter().zip(starts) {
        assert!(row.starts_with(start), "{start}: {shown:?}");
    }
    let bypassed = rows(&document, "devices").into_iter();
    let bypassed: Vec<u64> = bypassed.flat_map(|row| numbers(row, "bypassed")).collect();
    assert_eq!(bypassed, [0, 5, 0]);
    assert!(!text(document.root()).contains("not known"));
}

#[test]
fn the_file_is_the_users_own_and_no_other_file_is_written_over() {
    let sandbox = Sandbox::stub();
    let here = sandbox.path("here");
    let said = report(&sandbox, &[], &[]).ok();
    assert_eq!(said.stdout, "");
    assert_shown(&sandbox, "report", &said.stderr);
    let file = here.join("oclcache-report.html");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    // Its own earlier one is replaced.
    build(&sandbox, b"one", SOURCE, "-DN=1").ok();
    let before = fs::read(&file).expect("read");
    report(&sandbox, &["oclcache-report.html"], &[]).ok();
    assert_ne!(fs::read(&file).expect("read"), before);
    assert_eq!(tree(&here).len(), 1);
    let theirs = sandbox.write("here/theirs.html", "<p>theirs</p>");
    symlink(&file, here.join("link")).expect("linked");
    fs::create_dir(here.join("directory")).expect("made");
    let before = tree(&here);
    for name in [
        "theirs.html",
        "link",
        "directory",
        "directory/missing/file",
        "/dev/null",
    ] {
        let ran = report(&sandbox, &[name], &[]);
        assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{name}");
        assert!(ran.stderr.contains("name another file"), "{}", ran.stderr);
    }
    assert_eq!(tree(&here), before);
    assert_shown(
        &sandbox,
        "report-refused",
        &report(&sandbox, &["theirs.html"], &[]).stderr,
    );
    assert_eq!(fs::read(theirs).expect("read"), b"<p>theirs</p>");
}

#[test]
fn it_is_opened_in_the_browser_or_it_is_said_what_to_do() {
    let sandbox = Sandbox::stub();
    let browser = sandbox.write("browser", "#!/bin/sh\nprintf %s \"$1\" > \"$0.opened\"\n");
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).expect("set");
    let file = sandbox.path("here/oclcache-report.html");
    let list = format!("{}:other", browser.display());
    report(&sandbox, &["--open"], &[("BROWSER", &list)]).ok();
    let opened = fs::read_to_string(sandbox.path("browser.opened")).expect("opened");
    assert_eq!(Path::new(&opened), file);
    for (name, variables) in [
        ("report-without-a-display", &[][..]),
        (
            "report-without-a-browser",
            &[("BROWSER", "/nowhere/browser")],
        ),
        ("report-in-a-browser-that-fails", &[("BROWSER", "false")]),
    ] {
        let ran = report(&sandbox, &["--open"], variables);
        assert_eq!((ran.code, file.exists()), (Some(1), true), "{name}");
        assert_shown(&sandbox, name, &ran.stderr);
    }
    assert_eq!(report(&sandbox, &["--open", "-"], &[]).code, Some(1));
}
