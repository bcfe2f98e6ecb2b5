//! `oclcache stats --watch`: what happens in the cache, shown again and again until it is interrupted.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::open::existing_store;
use crate::cli::output::{Column, TextTable, ago, faint, heading, seconds, width};
use crate::cli::summary::{CacheSummary, Grouping, hit_rate};
use crate::config::Config;
use crate::log::text;
use crate::store::journal::{self, BuildResult, JournalRecord, Kept, now_ms};
use crate::store::stats::{Counter, Totals};

/// How many rows each part has: all fits a terminal of 24 lines.
const ROWS: usize = 8;
/// How often the signal is looked for.
const STEP: Duration = Duration::from_millis(50);
/// Each view reads the cache.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Clears a terminal, and moves to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Shows the view at this interval until SIGINT, or until nobody reads it.
pub fn run(interval: Duration) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::listen()?;
    let is_terminal = io::stdout().is_terminal();
    let began_ms = now_ms();
    let first = CacheSummary::read()?.by_program();
    loop {
        let all = CacheSummary::read()?;
        let view = view(&all, &first, began_ms)?;
        let view = match is_terminal {
            true => format!("{CLEAR}{view}"),
            false => format!("{view}\n"),
        };
        let mut output = io::stdout().lock();
        let written = output.write_all(view.as_bytes());
        if written.and_then(|()| output.flush()).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
        drop(output);
        let until = Instant::now() + interval.max(MIN_INTERVAL);
        while Instant::now() < until {
            if interrupt.came() {
                return Err(interrupt.failure("stopped"));
            }
            std::thread::sleep(STEP);
        }
    }
}

impl CacheSummary {
    fn by_program(&self) -> Vec<(Vec<String>, Totals)> {
        Grouping::Program.groups(&self.counted)
    }
}

fn view(
    all: &CacheSummary,
    first: &[(Vec<String>, Totals)],
    began_ms: u64,
) -> Result<String, Failure> {
    let age = ago(now_ms().saturating_sub(began_ms));
    let mut shown = format!("{}\n", heading(format_args!("since {age}, by program")));
    let mut table = TextTable::new(&[
        Column::Cut,
        Column::Right,
        Column::Right,
        Column::Right,
        Column::Spare,
        Column::Right,
    ]);
    let served = all.served_time().head();
    table.row(["", "hit rate", "hits", "misses", "bypassed", served].map(faint));
    let mut rows = 0;
    for (name, now) in all.by_program() {
        let before = first.iter().find(|(known, _)| *known == name);
        let mut since = now;
        if let Some((_, before)) = before {
            since.subtract(before);
        }
        if since.builds() == 0 || rows == ROWS {
            continue;
        }
        rows += 1;
        table.row([
            text(name.concat().as_bytes()).to_string(),
            hit_rate(&since).map_or("-".to_owned(), |rate| format!("{rate:.1} %")),
            since.get(Counter::Hits).to_string(),
            since.get(Counter::Misses).to_string(),
            since.bypassed().to_string(),
            seconds(since.saved_ns()),
        ]);
    }
    shown += &match rows {
        0 => "  nothing was built since then\n".to_owned(),
        _ => table.render(2, width()),
    };
    let Some(store) = existing_store(&Config::read())? else {
        return Ok(shown);
    };
    shown += &format!("\n{}\n", heading("compiled last"));
    let records = journal::read(store.root())?;
    let mut table = TextTable::new(&[Column::Right, Column::Right, Column::Left, Column::Cut]);
    for record in records.iter().rev().take(ROWS) {
        table.row(row(record));
    }
    shown += &match table.is_empty() {
        true => "  nothing\n".to_owned(),
        false => table.render(2, width()),
    };
    let is_pending = |record: &&JournalRecord| {
        matches!(
            record.ended,
            BuildResult::Miss {
                kept: Kept::Recipe,
                ..
            }
        ) && record.build.as_ref().is_some_and(|build| {
            let meta = store.read_meta(&build.key);
            meta.is_some_and(|meta| meta.is_pending())
        })
    };
    let pending = records.iter().rev().take(MAX_PENDING).filter(is_pending);
    let mut table = TextTable::new(&[Column::Left, Column::Cut]);
    for record in pending.take(ROWS) {
        let [_, _, program, kernels] = row(record);
        table.row([program, kernels]);
    }
    if !table.is_empty() {
        shown += &format!("\n{}\n", heading("waiting for the baker"));
        shown += &table.render(2, width());
    }
    Ok(shown)
}

/// How many builds are looked at to find those that the baker has left.
const MAX_PENDING: usize = 200;

fn row(record: &JournalRecord) -> [String; 4] {
    [
        ago(now_ms().saturating_sub(record.time_ms)),
        seconds(record.compile_ns),
        text(record.executable.as_bytes()).to_string(),
        text(&record.kernel_names.join(&b' ')).to_string(),
    ]
}
