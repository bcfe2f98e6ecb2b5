//! A worker of the baker: an application of one driver that repeats the calls of recipes.
//!
//! Each line of its standard input is a request: a key, followed by `unused` if its kernels may never have run, by `again` if there may
//! be an entry, or by `audit` if the result is only compared. Each answer is a line: first `ready` or `closed WHY`, then for each
//! request `baked`, `known`, `current`, `put-off`, `compiled IDENTITY`, `skipped WHY` or `failed WHY`. A request that ends the worker gets no answer.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::super::failure::Failure;
use super::super::open::directory;
use super::super::worker::confinement::{self, Allowed};
use super::super::worker::{CLOSED, READY, streams};
use super::replayer::{BakeTask, ReplayResult, Replayer};
use crate::cache::bake;
use crate::config::Config;
use crate::front::driver_probe;
use crate::key::ingredients::Key;
use crate::store::Store;

/// What follows the key in a request.
const UNUSED: &str = " unused";
const AGAIN: &str = " again";
const AUDIT: &str = " audit";

impl BakeTask {
    /// The request for this task.
    pub fn line(self, key: &Key) -> String {
        let words = match self {
            BakeTask::Bake => "",
            BakeTask::BakeUnused => UNUSED,
            BakeTask::Again => AGAIN,
            BakeTask::Audit => AUDIT,
        };
        format!("{}{words}", key.hex())
    }

    fn parse(line: &str) -> Option<(Key, BakeTask)> {
        let named = [
            (UNUSED, BakeTask::BakeUnused),
            (AGAIN, BakeTask::Again),
            (AUDIT, BakeTask::Audit),
        ];
        let of = |(words, task)| Some((line.strip_suffix(words)?, task));
        let (digits, task) = named
            .into_iter()
            .find_map(of)
            .unwrap_or((line, BakeTask::Bake));
        Some((Key::from_hex(digits)?, task))
    }
}

impl ReplayResult {
    /// The answer for this result. A worker does not give the results of audits, and `parse` does not accept them.
    fn line(&self) -> String {
        let (word, why) = match self {
            ReplayResult::Baked => ("baked", String::new()),
            ReplayResult::Known => ("known", String::new()),
            ReplayResult::Compiled(identity) => ("compiled ", identity.hex()),
            ReplayResult::Skipped(why) => ("skipped ", why.replace('\n', " ")),
            ReplayResult::Failed(why) => ("failed ", why.replace('\n', " ")),
            ReplayResult::Current => ("current", String::new()),
            ReplayResult::PutOff => ("put-off", String::new()),
            ReplayResult::Agreed => ("agreed", String::new()),
            ReplayResult::Differed(what) => ("differed ", what.replace('\n', " ")),
            ReplayResult::Unstable => ("unstable", String::new()),
        };
        format!("{word}{why}")
    }

    pub fn parse(line: &str) -> Option<ReplayResult> {
        let (word, why) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "baked" => ReplayResult::Baked,
            "known" => ReplayResult::Known,
            "current" => ReplayResult::Current,
            "put-off" => ReplayResult::PutOff,
            "compiled" => ReplayResult::Compiled(Key::from_hex(why)?),
            "skipped" => ReplayResult::Skipped(why.to_owned()),
            "failed" => ReplayResult::Failed(why.to_owned()),
            _ => return None,
        })
    }
}

/// Handles requests until the end of standard input. `root` is a private directory. `readable`: the worker is confined, and may read
/// these.
pub fn work(
    library: &Path,
    root: &Path,
    own_cache: Option<PathBuf>,
    is_stale: bool,
    readable: Option<&[PathBuf]>,
) -> Result<ExitCode, Failure> {
    let (keys, mut answers) = streams().map_err(Failure::new)?;
    let mut answer = |line: &str| writeln!(answers, "{line}").map_err(Failure::new);
    bake::be_baker();
    let config = Config::read();
    let path = directory(&config)?;
    let store = Store::open_existing(&path)?;
    let Some(store) = store else {
        answer(&format!("{CLOSED}the cache is empty"))?;
        return Ok(ExitCode::SUCCESS);
    };
    // Before the driver is opened, which starts threads.
    let writable = [root, path.as_path()];
    let confined = readable.map(|readable| confinement::confine(&Allowed { readable, writable }));
    if let Some(Err(why)) = confined {
        answer(&format!("{CLOSED}{why}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let platforms = match driver_probe::open(library) {
        Ok(platforms) => platforms,
        Err(why) => {
            answer(&format!("{CLOSED}{}", why.replace('\n', " ")))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    answer(READY)?;
    let player = Replayer {
        store: &store,
        platforms: &platforms,
        root,
        own_cache,
        is_stale,
        serial: Default::default(),
    };
    for line in BufReader::new(keys).lines() {
        let line = line.map_err(Failure::new)?;
        let asked = BakeTask::parse(&line);
        let (key, task) = asked.ok_or_else(|| Failure::new("a request is not a key"))?;
        answer(&player.bake(&key, task).line())?;
    }
    Ok(ExitCode::SUCCESS)
}
