//! `oclcache stats`.

mod sections;

use std::process::ExitCode;

use clap::Args;

use super::failure::Failure;
use super::open::store;
use super::output::{print, print_json, say};
use super::summary::{self, CacheSummary, Grouping};
use crate::quantity;
use crate::store::stats::DAY_MS;

/// Show hits, misses and the time saved
#[derive(Args, Default)]
#[command(after_help = "Example: oclcache stats --by program --since 7d\nIn ccache: -s, -sv, -z")]
pub struct StatsArgs {
    /// Also show rare counters, all rows of each table, and what each reason means
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    /// Show one table, grouped by this
    #[arg(long, value_enum, conflicts_with = "json")]
    pub by: Option<Grouping>,
    /// Count only since this day (2026-11-21), month (2026-11) or time ago (7d); days are in UTC
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<Since>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Reset all counters
    #[arg(long, conflicts_with_all = ["verbose", "by", "since", "json"])]
    pub zero: bool,
}

/// The first day that counts.
#[derive(Clone, Copy)]
pub enum Since {
    /// This day.
    Day(u32),
    /// This many days before today.
    DaysAgo(u32),
}

fn parse_since(text: &str) -> Result<Since, &'static str> {
    if let Some(ago) = quantity::duration(text) {
        let days = ago.as_millis() / u128::from(DAY_MS);
        return Ok(Since::DaysAgo(u32::try_from(days).unwrap_or(u32::MAX)));
    }
    // The day is found by its date.
    let first = format!("{text}-01");
    let is_it = |day: &u32| [text, &first].contains(&summary::day(*day).as_str());
    let day = (1..60_000).find(is_it);
    day.map(Since::Day).ok_or(
        "expected a day such as 2026-11-21, a month such as 2026-11, or a time ago such as 7d",
    )
}

impl StatsArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if self.zero {
            return zero();
        }
        let mut all = CacheSummary::read()?;
        let since = self.since.map(|since| match since {
            Since::Day(day) => day,
            Since::DaysAgo(days) => all.counted.today.saturating_sub(days),
        });
        if let Some(day) = since {
            all.since(day);
        }
        if self.json {
            let mut json = all.to_json();
            json["since"] = since.map(summary::day).into();
            return print_json(&json);
        }
        if all.counted.rows.total().builds() == 0 {
            let when = if since.is_some() { "since then" } else { "yet" };
            say(&format!(
                "oclcache: no build was counted {when}; run a program through the cache with `oclcache run PROGRAM`, \
             or check the setup with `oclcache doctor`"
            ));
        }
        print(sections::render(&all, self.by, since, self.verbose).as_bytes())
    }
}

fn zero() -> Result<ExitCode, Failure> {
    if let Some(store) = store()?
        && let Some(statistics) = store.statistics()?
    {
        statistics.zero()?;
    }
    say("oclcache: all counters are reset");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_day_or_so_long_ago() {
        assert!(matches!(parse_since("2026-11-21"), Ok(Since::Day(20_778))));
        assert!(matches!(parse_since("2026-11"), Ok(Since::Day(20_758))));
        assert!(matches!(parse_since("7d"), Ok(Since::DaysAgo(7))));
        assert!(matches!(parse_since("12h"), Ok(Since::DaysAgo(0))));
        for wrong in ["", "2026-13-01", "2025-02-29", "yesterday", "7", "-1d"] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
    }
}
