//! `oclcache stats`.

mod openmetrics;
mod sections;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use super::open::{existing_store, refuse_readonly};
use super::output::{print, print_json, say};
use super::parse::{Since, parse_age, parse_since};
use super::summary::{self, CacheSummary, Grouping};
use crate::config::Config;

/// Show hits, misses and compile times
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
    /// Print the counters of all time as OpenMetrics, for the textfile directory of a node exporter
    #[arg(long, conflicts_with_all = ["verbose", "by", "since", "json"])]
    pub openmetrics: bool,
    /// Show what happens, again at this interval (`--watch 5s`), until Ctrl-C
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = parse_age,
        conflicts_with_all = ["verbose", "by", "since", "json", "openmetrics"])]
    pub watch: Option<Duration>,
    /// Reset all counters; entries, and the journal that `explain` reads, are kept
    #[arg(long, conflicts_with_all = ["verbose", "by", "since", "json", "openmetrics", "watch"])]
    pub zero: bool,
}

impl StatsArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if self.zero {
            return zero();
        }
        if let Some(interval) = self.watch {
            return watch::run(interval);
        }
        if self.openmetrics {
            return print(openmetrics::render(CacheSummary::read_as_counted()?).as_bytes());
        }
        let mut all = CacheSummary::read()?;
        let since = self.since.map(|since| since.day(all.counted.today));
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
    let config = Config::read();
    refuse_readonly(&config, "no counter is reset")?;
    if let Some(store) = existing_store(&config)?
        && let Some(statistics) = store.statistics()?
    {
        statistics.zero().map_err(|error| {
            let Failure { message, code } = error.into();
            let message = format!("cannot reset the counters: {message}");
            Failure { message, code }
        })?;
    }
    say(
        "oclcache: all counters are reset; entries, and the journal that `oclcache explain` reads, are kept",
    );
    Ok(ExitCode::SUCCESS)
}
