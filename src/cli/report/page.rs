//! The page of the report: the most important numbers, then the details.

use sha2::{Digest, Sha256};

use super::charts::{Bar, bars, part};
use super::content::{CostlyEntry, MissedProgram, ReportContent, Space};
use super::html::{Cell, base64, escaped, name, number, table, with_code};
use crate::cli::output::{ago, noun, seconds, size};
use crate::cli::own_caches::ServedTime;
use crate::cli::summary::{self, CacheSummary, Grouping, Reasons, day, hit_rate};
use crate::log::path;
use crate::store::stats::{Counter, Totals, date};

const STYLE: &str = include_str!("style.css");
/// How many days and months are drawn.
const DAYS: u32 = 30;
const MONTHS: u32 = 12;
/// The most rows of a table.
const ROWS: usize = 12;

/// The page without its first lines.
pub fn render(all: &CacheSummary, found: &ReportContent) -> String {
    let style = base64(&Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    );
    let directory = escaped(path(&all.directory).to_string().as_bytes());
    let sections = [
        cards(all),
        section("Audits", audits(all)),
        over_time(all),
        section("Programs", programs(all)),
        section("Costliest builds", costliest(&found.costliest)),
        section("Where the space goes", space(found)),
        section("Drivers and devices", devices(all)),
        section("Why the driver compiled", reasons(all)),
        section("Latest misses", misses(&found.misses)),
    ];
    format!(
        "<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"referrer\" content=\"no-referrer\"/>\n\
         <title>oclcache: what was served</title>\n<style>{STYLE}</style></head>\n<body><main>\n\
         <header><h1>What oclcache served</h1><p>{today}, <bdi>{directory}</bdi></p></header>\n\
         {sections}\
         <footer><p>In this page, {meaning}</p>\n<p>Days are those of UTC; older than five weeks is counted by month.</p>\n\
         <p>This page contains names of programs, kernels and options. It has no scripts and loads nothing. Written by oclcache {version}.</p></footer>\n\
         </main></body></html>\n",
        meaning = with_code(&all.own_caches.meaning(&all.counted.rows)),
        today = day(all.counted.today),
        sections = sections.concat(),
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// A section; empty if it has no content.
fn section(title: &str, content: String) -> String {
    match content.is_empty() {
        true => String::new(),
        false => format!("<section><h2>{title}</h2>\n{content}</section>\n"),
    }
}

fn percent(totals: &Totals) -> String {
    hit_rate(totals).map_or("-".to_owned(), |rate| format!("{rate:.1} %"))
}

fn time(of: &str, nanoseconds: u64) -> String {
    let shown = match nanoseconds {
        0 => "0 s".to_owned(),
        _ => seconds(nanoseconds),
    };
    number(of, nanoseconds, &shown)
}

fn count(of: &str, counter: u64) -> String {
    number(of, counter, &counter.to_string())
}

fn bytes(of: &str, bytes: u64) -> String {
    number(of, bytes, &size(bytes))
}

/// The most important numbers.
fn cards(all: &CacheSummary) -> String {
    let total = all.counted.rows.total();
    let today = all.latest(0);
    let card = |class: &str, title: &str, big: String, more: String| {
        format!(
            "<div class=\"card {class}\"><p>{title}</p><p class=\"big\">{big}</p><p>{more}</p></div>\n"
        )
    };
    let since = match all.counted.zeroed_ms {
        Some(_) => "since the counters were reset",
        None => "since the cache was made",
    };
    let taken = all.totals.allocated;
    let entries = all.totals.entries;
    let most = match all.max_size {
        Some(most) => format!(
            "of {}, {} {}{}",
            escaped(size(most).as_bytes()),
            count("entries", entries),
            noun(entries, "entry", "entries"),
            part(taken as f64, most as f64)
        ),
        None => format!(
            "{} {}",
            count("entries", entries),
            noun(entries, "entry", "entries")
        ),
    };
    let cards = [
        card(
            "saved",
            all.served_time().title(),
            time("saved_ns", total.saved_ns()),
            format!("{} today", time("today_saved_ns", today.saved_ns())),
        ),
        card(
            "hits",
            "Hit rate",
            percent(&total),
            format!(
                "{} {}, {} {}; {} today",
                count("hits", total.get(Counter::Hits)),
                noun(total.get(Counter::Hits), "hit", "hits"),
                count("misses", total.get(Counter::Misses)),
                noun(total.get(Counter::Misses), "miss", "misses"),
                percent(&today)
            ),
        ),
        card(
            "spent",
            "Compile time spent",
            time("spent_ns", total.compiled_ns()),
            format!(
                "{} bypassed, {} failed; misses took {} longer",
                count("bypassed", total.bypassed()),
                count("failed", total.get(Counter::Failed)),
                time("overhead_ns", total.get(Counter::OverheadNs))
            ),
        ),
        card("size", "Cache size", bytes("bytes", taken), most),
    ];
    format!(
        "<div class=\"cards\">\n{}</div>\n<p class=\"soft\">Counted {since}.</p>\n",
        cards.concat()
    )
}

/// The results of audits.
fn audits(all: &CacheSummary) -> String {
    let total = all.counted.rows.total();
    let [audited, differed, unstable, skipped] = [
        ("audited", Counter::Audited),
        ("audit_differed", Counter::AuditDiffered),
        ("audit_unstable", Counter::AuditUnstable),
        ("not_audited", Counter::NotAudited),
    ]
    .map(|(of, counter)| count(of, total.get(counter)));
    let marks = all
        .store
        .as_ref()
        .map(|store| store.marks().unwrap_or_default());
    let marks = marks.unwrap_or_default();
    let is_empty = [Counter::Audited, Counter::NotAudited]
        .iter()
        .all(|counter| total.get(*counter) == 0);
    if is_empty && marks.is_empty() {
        return String::new();
    }
    let found = marks.iter().map(|marked| {
        let found = with_code(&marked.to_string());
        format!("<div class=\"miss\"><p>The cache is off for a driver: {found}</p></div>\n")
    });
    format!(
        "<p>The baker compiled {audited} hits again and compared them: {differed} differed, {unstable} were not reproducible. {skipped} could not be compiled again.</p>\n{}",
        found.collect::<String>()
    )
}

/// Charts by day, and by month if there are older counters.
fn over_time(all: &CacheSummary) -> String {
    let today = all.counted.today;
    let by_day = all.counted.rows.by(|tag| tag.day);
    let days = (0..DAYS).rev().map(|age| {
        let of = today.saturating_sub(age);
        (day(of)[5..].to_owned(), by_day.get(&of).cloned())
    });
    let days: Vec<_> = days.collect();
    let served = all.served_time();
    let mut shown = pair("day", served, &days);
    if by_day
        .keys()
        .any(|day| *day > 0 && day.saturating_add(DAYS) <= today)
    {
        let by_month = all.counted.rows.by(|tag| month(tag.day));
        let (year, now, _) = date(today);
        let months = (0..MONTHS).rev().map(|age| {
            let of = year * 12 + now - 1 - age;
            let name = format!("{:04}-{:02}", of / 12, of % 12 + 1);
            let totals = by_month.get(&Some(of)).cloned();
            (name, totals)
        });
        shown += &pair("month", served, &months.collect::<Vec<_>>());
    }
    shown
}

/// Months since the year 0; None for day 0, which stands for older days.
fn month(day: u32) -> Option<u32> {
    let (year, month, _) = date(day);
    (day > 0).then(|| year * 12 + month - 1)
}

/// Charts of the compile time of the entries served and of the hit rate.
fn pair(unit: &str, served: ServedTime, of: &[(String, Option<Totals>)]) -> String {
    // One bar compares nothing.
    if of.iter().filter(|(_, totals)| totals.is_some()).count() < 2 {
        return String::new();
    }
    let saved = |totals: &Totals| totals.saved_ns() as f64;
    let most = of
        .iter()
        .filter_map(|(_, totals)| totals.as_ref().map(saved));
    let most = most.fold(0.0, f64::max);
    let draw = |value: &dyn Fn(&Totals) -> Option<f64>, words: &dyn Fn(&Totals) -> String| {
        let bar = |(name, totals): &(String, Option<Totals>)| Bar {
            name: name.clone(),
            value: totals.as_ref().and_then(value),
            words: totals
                .as_ref()
                .map_or("nothing was built".to_owned(), words),
        };
        of.iter().map(bar).collect::<Vec<Bar>>()
    };
    let saved_bars = draw(&|totals| Some(saved(totals)), &|totals| {
        format!(
            "{} of {}, {} spent on compiling",
            seconds(totals.saved_ns()),
            served.name(),
            seconds(totals.compiled_ns())
        )
    });
    let rate_bars = draw(&hit_rate, &|totals| {
        format!(
            "{} ({} hits, {} misses, {} bypassed)",
            percent(totals),
            totals.get(Counter::Hits),
            totals.get(Counter::Misses),
            totals.bypassed()
        )
    });
    format!(
        "<div class=\"two\"><section>{}</section>\n<section>{}</section></div>\n",
        bars(
            &format!("saved-by-{unit}"),
            &format!("{} by {unit}", served.title()),
            &saved_bars,
            most,
            &if most > 0.0 {
                seconds(most as u64)
            } else {
                String::new()
            },
        ),
        bars(
            &format!("rate-by-{unit}"),
            &format!("Hit rate by {unit}"),
            &rate_bars,
            100.0,
            "100 %",
        ),
    )
}

/// The programs, those with the most compile time served and spent first.
fn programs(all: &CacheSummary) -> String {
    let mut groups = Grouping::Program.groups(&all.counted);
    groups.retain(|(_, totals)| totals.builds() > 0);
    groups.sort_by_key(|(_, totals)| {
        std::cmp::Reverse(totals.saved_ns().saturating_add(totals.compiled_ns()))
    });
    if groups.is_empty() {
        return "<p>Nothing was built through the cache yet.</p>\n".to_owned();
    }
    let more = groups.len().saturating_sub(ROWS);
    groups.truncate(ROWS);
    let most = groups.iter().map(|(_, totals)| totals.saved_ns()).max();
    let most = most.unwrap_or(0) as f64;
    let rows = groups.iter().map(|(names, totals)| {
        [
            name(&names[0]),
            percent(totals),
            count("hits", totals.get(Counter::Hits)),
            count("misses", totals.get(Counter::Misses)),
            time("spent_ns", totals.compiled_ns()),
            time("saved_ns", totals.saved_ns()),
            part(totals.saved_ns() as f64, most),
        ]
    });
    let shown = table(
        "programs",
        [
            ("program", Cell::Name),
            ("hit rate", Cell::Number),
            ("hits", Cell::Wide),
            ("misses", Cell::Wide),
            ("spent", Cell::Wide),
            (all.served_time().head(), Cell::Number),
            ("", Cell::Plot),
        ],
        rows,
    );
    shown + &and_more(more, "oclcache stats --by program")
}

fn and_more(more: usize, command: &str) -> String {
    match more {
        0 => String::new(),
        more => format!("<p class=\"soft\">and {more} more: <code>{command}</code></p>\n"),
    }
}

fn devices(all: &CacheSummary) -> String {
    let mut groups = Grouping::Device.groups(&all.counted);
    groups.retain(|(_, totals)| totals.builds() > 0);
    if groups.is_empty() {
        return String::new();
    }
    let more = groups.len().saturating_sub(ROWS);
    groups.truncate(ROWS);
    let rows = groups.iter().map(|(names, totals)| {
        [
            match (&*names[1], &*names[0]) {
                ("", "") => "<i>before the device was known</i>".to_owned(),
                (device, driver) => {
                    format!("{}<br/><small>{}</small>", name(device), name(driver))
                }
            },
            percent(totals),
            count("hits", totals.get(Counter::Hits)),
            count("misses", totals.get(Counter::Misses)),
            count("bypassed", totals.bypassed()),
            time("spent_ns", totals.compiled_ns()),
            time("saved_ns", totals.saved_ns()),
        ]
    });
    let shown = table(
        "devices",
        [
            ("device and driver", Cell::Name),
            ("hit rate", Cell::Number),
            ("hits", Cell::Wide),
            ("misses", Cell::Wide),
            ("bypassed", Cell::Wide),
            ("spent", Cell::Wide),
            (all.served_time().head(), Cell::Number),
        ],
        rows,
    );
    shown + &and_more(more, "oclcache stats --by device")
}

fn costliest(entries: &[CostlyEntry]) -> String {
    let Some(first) = entries.first() else {
        return String::new();
    };
    let most = first.compile_ns as f64;
    let rows = entries.iter().map(|entry| {
        [
            format!(
                "{}<br/><small>{}, {}, <code>{}</code></small>",
                name(&entry.kernels),
                name(&entry.program),
                name(&entry.driver),
                &entry.key[..16]
            ),
            bytes("bytes", entry.bytes),
            time("compile_ns", entry.compile_ns),
            part(entry.compile_ns as f64, most),
        ]
    });
    table(
        "costliest",
        [
            ("kernels and program", Cell::Name),
            ("size", Cell::Wide),
            ("compile time", Cell::Number),
            ("", Cell::Plot),
        ],
        rows,
    )
}

/// The rows, the largest first.
fn largest(space: &Space) -> Vec<(&str, (u64, u64))> {
    let rows = space.iter().map(|(name, sum)| (name.as_str(), *sum));
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    rows
}

fn space(found: &ReportContent) -> String {
    if found.by_driver.is_empty() {
        return String::new();
    }
    let list = |id: &str, title: &str, rows: Vec<(&str, (u64, u64))>| {
        let most = rows.iter().map(|(_, (bytes, _))| *bytes).max().unwrap_or(0) as f64;
        let more = rows.len().saturating_sub(ROWS);
        let rows = rows.into_iter().take(ROWS).map(|(of, (taken, entries))| {
            let shown = format!("{}{}", name(of), part(taken as f64, most));
            [shown, count("entries", entries), bytes("bytes", taken)]
        });
        let rows = table(
            id,
            [
                (title, Cell::Name),
                ("entries", Cell::Number),
                ("size", Cell::Number),
            ],
            rows,
        );
        let more = match more {
            0 => String::new(),
            more => format!("<p class=\"soft\">and {more} more</p>"),
        };
        format!("<div>{rows}{more}</div>\n")
    };
    let ages = found.by_age.iter().filter(|(_, (_, entries))| *entries > 0);
    format!(
        "<div class=\"three\">\n{}{}{}</div>\n",
        list("space-by-driver", "by driver", largest(&found.by_driver)),
        list("space-by-program", "by program", largest(&found.by_program)),
        list("space-by-age", "by age", ages.copied().collect()),
    )
}

/// Misses, bypasses and materialized hits by reason.
fn reasons(all: &CacheSummary) -> String {
    let total = all.counted.rows.total();
    let list = |title: &str, reasons: Reasons| {
        if reasons.is_empty() {
            return String::new();
        }
        let rows = reasons.into_iter().map(|(of, times, help)| {
            let help = match help {
                "" => String::new(),
                help => format!("<small>{}</small>", with_code(help)),
            };
            format!("<dt>{of}{help}</dt><dd>{}</dd>\n", count(of, times))
        });
        format!(
            "<div><h3>{title}</h3><dl>{}</dl></div>\n",
            rows.collect::<String>()
        )
    };
    let [missed, bypassed, queries] = summary::reasons(&total);
    let lists = [
        list("Misses", missed),
        list("Bypasses", bypassed),
        list("Hits materialized", queries),
    ];
    match lists.concat() {
        lists if lists.is_empty() => lists,
        lists => format!("<div class=\"three\">\n{lists}</div>\n"),
    }
}

/// The first misses, and the others in a section to unfold.
fn misses(misses: &[MissedProgram]) -> String {
    if misses.is_empty() {
        return String::new();
    }
    let (first, others) = misses.split_at(misses.len().min(ROWS));
    let shown = listed(first);
    match others.len() {
        0 => shown,
        more => format!(
            "{shown}<details><summary>{more} more</summary>\n{}</details>\n",
            listed(others)
        ),
    }
}

fn listed(misses: &[MissedProgram]) -> String {
    let shown = misses.iter().map(|miss| {
        let words: Vec<String> = miss.words.iter().map(|words| with_code(words)).collect();
        let words = match words.is_empty() {
            true => String::new(),
            false => format!("<p>{}</p>", words.join("<br/>")),
        };
        let kernels = match &*miss.kernels {
            "" => String::new(),
            kernels => format!(": {}", name(kernels)),
        };
        format!(
            "<div class=\"miss\"><p><b>{}</b>{kernels}</p>{words}<p class=\"soft\">{}, driver {}, compiled in {}, reason: {}</p></div>\n",
            name(&miss.program),
            escaped(ago(miss.ago_ms).as_bytes()),
            name(&miss.driver),
            time("compile_ns", miss.compile_ns),
            miss.reason,
        )
    });
    format!("<div>{}</div>\n", shown.collect::<String>())
}
