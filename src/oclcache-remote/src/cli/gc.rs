//! `oclcache remote gc`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use oclcache::remote::settings::RemoteSettings;

use super::{Done, print, run_to_end};
use crate::session;
use crate::shared::now;

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
        let (mut count, mut bytes, mut unknown) = (0_u64, 0_u64, 0_u64);
        let done = run_to_end(async {
            let mut old = Vec::new();
            for object in shared.guarded.list(&shared.root()).await? {
                match object.modified {
                    // Others may keep files there.
                    _ if shared.parse_name(&object.name).is_none() => {}
                    None => unknown += 1,
                    Some(modified) if modified < oldest => old.push(object),
                    Some(_) => {}
                }
            }
            for object in old {
                if !shared.is_object(&object.name).await? {
                    continue;
                }
                count += 1;
                bytes += object.size;
                if !self.dry_run {
                    let engine = shared.guarded.engine();
                    shared.guarded.run(engine.delete(&object.name)).await?;
                }
            }
            Ok::<(), crate::engine::EngineError>(())
        })?;
        done.map_err(|error| error.to_string())?;
        let days = Duration::as_secs(&lifetime) / 86400;
        let verb = if self.dry_run {
            "would delete"
        } else {
            "deleted"
        };
        print(&format!(
            "{verb} {count} objects ({bytes} bytes) that are older than {days} days"
        ));
        if unknown > 0 {
            print(&format!(
                "{unknown} objects have no date: this store evicts by itself"
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}
