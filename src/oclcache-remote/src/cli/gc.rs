//! `oclcache remote gc`.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use oclcache::remote::settings::RemoteSettings;

use super::{Done, print, print_hidden, run_to_end};
use crate::session;
use crate::shared::now;

/// An object that was not finished for so long was given up, in seconds.
const UNFINISHED: u64 = 86400;

#[derive(Args)]
pub struct GcArgs {
    /// Show what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
}

impl GcArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        let shared = session::open(&settings)?;
        if !shared.can_write() {
            return Err(
                "nothing is deleted: this machine has no key, or `remote_readonly` is set"
                    .to_owned(),
            );
        }
        let lifetime = settings
            .ttl
            .ok_or("nothing is deleted: `remote_ttl` is 0, so objects are kept for ever")?;
        let oldest = now().saturating_sub(lifetime.as_secs());
        let (mut count, mut bytes, mut unknown, mut hidden) = (0_u64, 0_u64, 0_u64, 0_u64);
        let (mut left, mut unfinished) = (Vec::new(), 0);
        let done = run_to_end(async {
            let mut old = Vec::new();
            let listing = shared.guarded.list(&shared.root()).await?;
            hidden = listing.hidden;
            for object in listing.objects {
                match object.modified {
                    // Others may keep files there.
                    _ if shared.parse_name(&object.name).is_none() => {}
                    None => unknown += 1,
                    Some(modified) if modified < oldest => old.push(object),
                    Some(_) => {}
                }
            }
            let names: Vec<String> = old.iter().map(|object| object.name.clone()).collect();
            let are_ours = shared.are_objects(&names).await?;
            for (object, is_ours) in old.into_iter().zip(are_ours) {
                let engine = shared.guarded.engine();
                let is_deleted = match is_ours {
                    Some(false) => continue,
                    None => None,
                    Some(true) if self.dry_run => Some(true),
                    Some(true) => {
                        let deletion = engine.delete(&object.name);
                        shared.guarded.run_if_allowed(deletion).await?
                    }
                };
                match is_deleted {
                    Some(true) => {
                        count += 1;
                        bytes += object.size;
                    }
                    // Somebody else has deleted it meanwhile.
                    Some(false) => {}
                    None => left.push(object.name),
                }
            }
            if !left.is_empty() {
                // Somebody else may have deleted these, too: what is gone cannot be read either.
                let listing = shared.guarded.list(&shared.root()).await?;
                let names = listing.objects.into_iter().map(|object| object.name);
                let names: HashSet<String> = names.collect();
                left.retain(|name| names.contains(name));
            }
            let before = now().saturating_sub(UNFINISHED);
            let deletion = shared.guarded.delete_unfinished(before, self.dry_run);
            unfinished = deletion.await?;
            Ok::<(), crate::engine::EngineError>(())
        })?;
        let days = Duration::as_secs(&lifetime) / 86400;
        let verb = if self.dry_run {
            "would delete"
        } else {
            "deleted"
        };
        if done.is_ok() || count > 0 {
            print(&format!(
                "{verb} {count} objects ({bytes} bytes) that are older than {days} days"
            ));
        }
        if unfinished > 0 {
            let objects = if unfinished == 1 { "object" } else { "objects" };
            print(&format!(
                "{verb} {unfinished} unfinished {objects} that are older than a day"
            ));
        }
        if let Some(first) = left.first() {
            let count = left.len();
            print(&format!(
                "old objects that are left, since this user may not read or delete them: {count}, such as `{first}`"
            ));
        }
        print_hidden(hidden);
        if unknown > 0 {
            print(&format!(
                "{unknown} objects have no date: this store evicts by itself"
            ));
        }
        done.map_err(|error| error.to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}
