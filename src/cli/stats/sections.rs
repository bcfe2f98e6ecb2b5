//! The text of `oclcache stats`: a summary, then the details.

use crate::cli::output::{Column, TextTable, faint, good, heading, seconds, size, width, wrapped};
use crate::cli::summary::{CacheSummary, Grouping, Reasons, day, hit_rate, reasons};
use crate::log::{path, text};
use crate::remote::state::HelperState;
use crate::store::stats::{Counter, Totals};

/// Rows of a table without `--verbose`.
const PROGRAMS: usize = 8;
const DAYS: usize = 7;
/// A terminal with fewer columns shows two numbers in a row, not four.
const NARROW: usize = 66;
/// The width of the names in front of the most important numbers.
const NAME_WIDTH: usize = "compilation avoided".len();

/// The text.
pub fn render(
    all: &CacheSummary,
    by: Option<Grouping>,
    since: Option<u32>,
    verbose: bool,
) -> String {
    if let Some(by) = by {
        return table(by, all, usize::MAX).render(0, width());
    }
    let total = all.counted.rows.total();
    let mut shown = glance(all, &total, since);
    let mut section = |title: &str, table: TextTable| {
        if !table.is_empty() {
            shown += &format!("\n{}\n{}", heading(title), table.render(2, width()));
        }
    };
    let titles = [
        "Misses by reason",
        "Bypasses by reason",
        "Hits materialized, by the query that needed it",
    ];
    for (title, reasons) in titles.into_iter().zip(reasons(&total)) {
        section(title, reasons_table(reasons, verbose));
    }
    section("Also", rare(&total, verbose));
    section(
        "Other machines",
        remote(&total, all.remote.as_ref(), verbose),
    );
    let most = |most: usize| if verbose { usize::MAX } else { most };
    if total.builds() > 0 {
        section(
            "By driver and device",
            table(Grouping::Device, all, usize::MAX),
        );
        section("By program", table(Grouping::Program, all, most(PROGRAMS)));
        section("By day, in UTC", table(Grouping::Day, all, most(DAYS)));
    }
    shown.push('\n');
    shown += &places(all).render(0, width());
    if total.get(Counter::Hits) > 0 {
        shown.push('\n');
        let columns = width().unwrap_or(100).min(100);
        let meaning = all.own_caches.meaning(&all.counted.rows);
        shown += &wrapped("note:".to_owned() + " ", meaning.split(' '), columns);
    }
    shown
}

/// The most important numbers, of today and in total.
fn glance(all: &CacheSummary, total: &Totals, since: Option<u32>) -> String {
    let ever = match (since, all.counted.zeroed_ms) {
        (Some(since), _) => format!("since {}", day(since)),
        (None, Some(_)) => "since reset".to_owned(),
        (None, None) => "total".to_owned(),
    };
    let mut columns = vec![("today".to_owned(), all.latest(0))];
    // Only the first and the last fit a narrow terminal.
    if since.is_none() && width().is_none_or(|width| width >= NARROW) {
        columns.push(("7 days".to_owned(), all.latest(6)));
        columns.push(("30 days".to_owned(), all.latest(29)));
    }
    columns.push((ever, total.clone()));
    let mut table = TextTable::new(&[
        Column::Left,
        Column::Right,
        Column::Right,
        Column::Right,
        Column::Right,
    ]);
    let mut row = |name: &str, of: &dyn Fn(&str, &Totals) -> String| {
        let mut cells = [const { String::new() }; 5];
        cells[0] = name.to_owned();
        for (cell, (head, totals)) in cells[1..].iter_mut().zip(&columns) {
            *cell = of(head, totals);
        }
        table.row(cells);
    };
    row("", &|head, _| faint(head));
    row("hit rate", &|_, totals| rate(totals, true));
    for (name, counter) in [
        ("hits", Counter::Hits),
        ("misses", Counter::Misses),
        ("failed builds", Counter::Failed),
    ] {
        row(name, &|_, totals| totals.get(counter).to_string());
    }
    row("bypassed", &|_, totals| totals.bypassed().to_string());
    row(all.served_time().name(), &|_, totals| {
        time(totals.saved_ns())
    });
    row("compile time spent", &|_, totals| {
        time(totals.compiled_ns())
    });
    table.render(0, None) + &format!("{:<1$}  {2}\n", "cache size", NAME_WIDTH, taken(all))
}

/// The size of the cache and its limit.
fn taken(all: &CacheSummary) -> String {
    let (bytes, entries) = (all.totals.allocated, all.totals.entries);
    let taken = match all.max_size {
        Some(most) => {
            let part = bytes as f64 / most.max(1) as f64 * 100.0;
            format!("{} of {} ({part:.1} %)", size(bytes), size(most))
        }
        None => size(bytes),
    };
    format!(
        "{taken}, {entries} {}",
        if entries == 1 { "entry" } else { "entries" }
    )
}

/// A time, which may be zero.
fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0 => "0 s".to_owned(),
        _ => seconds(nanoseconds),
    }
}

/// The share of hits, if anything was looked up.
fn rate(totals: &Totals, is_headline: bool) -> String {
    match hit_rate(totals) {
        None => faint("-"),
        Some(rate) if is_headline && rate >= 50.0 => good(format_args!("{rate:.1} %")),
        Some(rate) => format!("{rate:.1} %"),
    }
}

fn reasons_table(reasons: Reasons, verbose: bool) -> TextTable {
    let mut table = TextTable::new(&[Column::Left, Column::Right, Column::Cut]);
    for (name, count, help) in reasons {
        let help = if verbose { faint(help) } else { String::new() };
        table.row([name.to_owned(), count.to_string(), help]);
    }
    table
}

/// Counters that are usually zero; `verbose` shows those as well.
fn rare(totals: &Totals, verbose: bool) -> TextTable {
    let mut table = TextTable::new(&[Column::Left, Column::Right]);
    let number = |counter| totals.get(counter);
    let mut row = |name: &str, count: u64, shown: String| {
        if count > 0 || verbose {
            table.row([name.to_owned(), shown]);
        }
    };
    for (name, counter) in [
        ("hits from system directories", Counter::SystemHits),
        ("recipes stored", Counter::Recipes),
        ("entries not stored", Counter::NotStored),
        ("entries set aside", Counter::SetAside),
        ("entries evicted", Counter::Evicted),
        (
            "queries answered although inputs changed",
            Counter::InputsChanged,
        ),
    ] {
        row(name, number(counter), number(counter).to_string());
    }
    let (verified, differed) = (number(Counter::Verified), number(Counter::Differed));
    row(
        "hits verified",
        verified,
        format!("{verified} ({differed} differed)"),
    );
    let (audited, differed) = (number(Counter::Audited), number(Counter::AuditDiffered));
    row(
        "hits audited",
        audited,
        format!("{audited} ({differed} differed)"),
    );
    for (name, counter) in [
        (
            "audited hits whose compilation is not reproducible",
            Counter::AuditUnstable,
        ),
        ("hits that could not be audited", Counter::NotAudited),
    ] {
        row(name, number(counter), number(counter).to_string());
    }
    let (waits, took) = (number(Counter::Waited), time(number(Counter::WaitNs)));
    row(
        "waits for a build of another process",
        waits,
        format!("{waits} ({took})"),
    );
    let overhead = number(Counter::OverheadNs);
    row("time that misses took longer", overhead, time(overhead));
    let loads = number(Counter::LoadNs);
    if verbose {
        let stored = number(Counter::Stored);
        row("entries stored by programs", stored, stored.to_string());
        row("time to load hits", loads, time(loads));
        let rebuilt = number(Counter::RebuiltNs);
        row("time to build hits for real", rebuilt, time(rebuilt));
    }
    table
}

/// What came from other machines and went there. Zeros are shown only if there is a remote store and `verbose` asks for them.
fn remote(totals: &Totals, state: Option<&HelperState>, verbose: bool) -> TextTable {
    let mut table = TextTable::new(&[Column::Left, Column::Right]);
    let helper = state.cloned().unwrap_or_default();
    let mut row = |name: &str, count: u64, shown: String| {
        if count > 0 || verbose && state.is_some() {
            table.row([name.to_owned(), shown]);
        }
    };
    for (name, counter) in [
        ("hits from other machines", Counter::RemoteHits),
        ("not on other machines", Counter::RemoteMisses),
        ("answers too late", Counter::RemoteLate),
        ("questions that failed", Counter::RemoteErrors),
    ] {
        let count = totals.get(counter);
        row(name, count, count.to_string());
    }
    for (name, counter) in [
        ("time waited for other machines", Counter::RemoteWaitNs),
        ("of that in vain", Counter::RemoteWastedNs),
    ] {
        row(name, totals.get(counter), time(totals.get(counter)));
    }
    for (name, count) in [
        ("entries received", helper.received),
        ("entries received in advance", helper.prefetched),
        ("objects refused", helper.refused),
        ("entries sent", helper.sent),
        ("failures of the store", helper.errors),
    ] {
        row(name, count, count.to_string());
    }
    row("bytes received", helper.bytes_in, size(helper.bytes_in));
    row("bytes sent", helper.bytes_out, size(helper.bytes_out));
    if !helper.trouble.is_empty() {
        let trouble = text(helper.trouble.as_bytes()).to_string();
        table.row(["trouble".to_owned(), trouble]);
    }
    table
}

/// A row for each day, program or device: the latest days, or those with the most builds.
fn table(by: Grouping, all: &CacheSummary, most: usize) -> TextTable {
    let mut groups = by.groups(&all.counted);
    // Those of `oclcache gc` have evictions only.
    groups.retain(|(_, totals)| totals.builds() > 0);
    let more = groups.len().saturating_sub(most);
    if by == Grouping::Day {
        groups.reverse();
    }
    groups.truncate(most);
    let mut table = TextTable::new(&[
        Column::Cut,
        Column::Right,
        Column::Right,
        Column::Right,
        Column::Spare,
        Column::Right,
        Column::Spare,
    ]);
    let served = all.served_time().head();
    let heads = [
        "", "hit rate", "hits", "misses", "bypassed", served, "spent",
    ];
    table.row(heads.map(faint));
    for (names, totals) in groups {
        let names = names.iter().filter(|name| !name.is_empty());
        let names: Vec<String> = names
            .map(|name| text(name.as_bytes()).to_string())
            .collect();
        let name = match (names.is_empty(), by) {
            (false, _) => names.join("  "),
            (true, Grouping::Day) => "earlier".to_owned(),
            (true, _) => "(unknown)".to_owned(),
        };
        table.row([
            name,
            rate(&totals, false),
            totals.get(Counter::Hits).to_string(),
            totals.get(Counter::Misses).to_string(),
            totals.bypassed().to_string(),
            time(totals.saved_ns()),
            time(totals.compiled_ns()),
        ]);
    }
    if more > 0 {
        let mut cells = [const { String::new() }; 7];
        cells[0] = faint(format_args!("and {more} more (--verbose)"));
        table.row(cells);
    }
    table
}

/// The directories of the cache.
fn places(all: &CacheSummary) -> TextTable {
    let mut table = TextTable::new(&[Column::Left, Column::Left]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("cache directory", path(&all.directory).to_string());
    row("file system", all.file_system().described());
    if !all.is_exact {
        let why = "inexact: no file system in memory can be used, so hits of killed processes are not counted";
        row("counters", why.to_owned());
    }
    for (directory, entries) in all.tiers() {
        let words = match entries {
            Ok(entries) => format!("{}, {entries} entries", path(directory)),
            Err(why) => format!("{}, not used: {why}", path(directory)),
        };
        row("system directory", words);
    }
    table
}
