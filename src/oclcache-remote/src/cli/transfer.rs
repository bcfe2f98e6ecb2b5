//! `oclcache remote push` and `pull`.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::Args;
use oclcache::remote::settings::RemoteSettings;

use super::{Done, print, print_hidden, run_to_end};
use crate::engine::ListedObject;
use crate::local::{Local, Received};
use crate::object::Kind;
use crate::server::Server;
use crate::session;
use crate::shared::Fetched;

/// Objects that are asked for at once.
const BATCH: usize = 64;

#[derive(Args)]
pub struct PushArgs {
    /// Also what was sent before, or left out since it compiles fast; objects that are damaged there are replaced
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
pub struct PullArgs {}

impl PushArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        let local = Local::open(&settings)?;
        let shared = session::open(&settings)?;
        if !shared.can_write() {
            return Err(match settings.is_readonly {
                true => "nothing is sent: `remote_readonly` is set".to_owned(),
                false => {
                    "nothing is sent: there is no key; make one with `oclcache remote key new`"
                        .to_owned()
                }
            });
        }
        let mut not_again = None;
        if self.all {
            not_again = local.send_all_again()?;
            local.forget_withheld()?;
        }
        let keys = local.pending()?;
        let server = Server::new(shared, local);
        run_to_end(async {
            server.shared.guarded.check().await?;
            if self.all {
                // Objects are verified whole, so that damaged ones are replaced: an upload looks at heads only.
                let objects = keys.into_iter().map(|key| (server.kind_of(&key), key));
                server.shared.fetch(&objects.collect::<Vec<_>>()).await?;
            }
            server.send_all().await;
            Ok::<(), crate::engine::EngineError>(())
        })?
        .map_err(|error| error.to_string())?;
        let sent = server.shared.counters.uploads.load(Ordering::Relaxed);
        server.write_state();
        let left = server.local.pending()?.len();
        let entries = |count: usize| {
            if count == 1 {
                "1 entry".to_owned()
            } else {
                format!("{count} entries")
            }
        };
        print(&format!(
            "sent {}; the outbox has {} left",
            entries(sent as usize),
            entries(left)
        ));
        if let Some(withheld) = server.local.store().state().never_sent() {
            print(&format!("never sent: {withheld}"));
        }
        let trouble = server.trouble().filter(|_| left > 0);
        if let Some(trouble) = trouble.or(not_again) {
            return Err(trouble);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl PullArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        let local = Local::open(&settings)?;
        let shared = session::open(&settings)?;
        let (mut stored, mut refused, mut hidden) = (0_u64, 0_u64, 0_u64);
        let pulled = run_to_end(async {
            let mut wanted = Vec::new();
            let kinds = [Kind::Entry, Kind::Recipe];
            for kind in &kinds[..if local.takes_recipes() { 2 } else { 1 }] {
                let prefix = format!("{}{}/", shared.root(), kind.letter());
                let listing = shared.guarded.list(&prefix).await?;
                hidden += listing.hidden;
                let named = |object: &ListedObject| shared.parse_name(&object.name);
                let keys = listing.objects.iter().filter_map(named).map(|(_, key)| key);
                let lacking = keys.filter(|key| !local.has(key));
                wanted.extend(lacking.map(|key| (*kind, key)));
            }
            for batch in wanted.chunks(BATCH) {
                for ((_, key), found) in batch.iter().zip(shared.fetch(batch).await?) {
                    match found {
                        Fetched::Found(object) => {
                            match local.receive(key, *object, &shared.trusted, true) {
                                Received::Stored => stored += 1,
                                Received::Present => {}
                                Received::Refused(_) => refused += 1,
                                Received::Failed(why) => return Ok(Err(why)),
                            }
                        }
                        Fetched::Refused(_) => refused += 1,
                        Fetched::Missing => {}
                    }
                }
            }
            Ok::<_, crate::engine::EngineError>(Ok(()))
        })?;
        pulled.map_err(|error| error.to_string())??;
        print(&format!("stored {stored}, refused {refused}"));
        print_hidden(hidden);
        Ok(ExitCode::SUCCESS)
    }
}
