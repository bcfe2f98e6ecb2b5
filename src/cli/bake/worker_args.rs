//! The hidden arguments by which a program starts `oclcache bake` in the background (see `cache::autobake`).
//!
//! The process keeps nothing of the program: it leads no session, works in `/`, and has /dev/null for all streams.

use std::ffi::OsString;

use clap::Args;

use crate::cache::autobake::HANDED;
use crate::config::{Config, SETTINGS};

/// Internal.
#[derive(Args)]
pub struct WorkerArgs {
    /// No process waits for this one or reads its messages
    #[arg(long, hide = true)]
    pub detached: bool,
    /// Bakes also where a supervisor would wait for it
    #[arg(long, hide = true)]
    pub anywhere: bool,
    #[arg(long, hide = true)]
    dir: Option<OsString>,
    #[arg(long, hide = true)]
    disable: Option<OsString>,
    #[arg(long, hide = true)]
    readonly: Option<OsString>,
    #[arg(long, hide = true)]
    vendors: Option<OsString>,
    #[arg(long, hide = true)]
    max_size: Option<OsString>,
    #[arg(long, hide = true)]
    min_free: Option<OsString>,
    #[arg(long, hide = true)]
    max_age: Option<OsString>,
}

impl WorkerArgs {
    /// The settings of this process. Those in its arguments override the environment.
    pub fn config(&self) -> Config {
        let values = [
            &self.dir,
            &self.disable,
            &self.readonly,
            &self.vendors,
            &self.max_size,
            &self.min_free,
            &self.max_age,
        ];
        Config::read_with(&|variable| {
            let named = |(_, name)| SETTINGS[name as usize].variable == Some(variable);
            let index = HANDED.into_iter().position(named)?;
            values[index].clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cache::autobake::{self, DETACHED};
    use crate::config;

    #[derive(Parser)]
    struct Bake {
        #[command(flatten)]
        handed: WorkerArgs,
    }

    #[test]
    fn what_is_handed_over_arrives() {
        let given = |name: &str| match name {
            "OCLCACHE_DIR" => Some("/some where/cache".into()),
            "OCLCACHE_READONLY" => Some("1".into()),
            "OCLCACHE_MAX_SIZE" => Some("7M".into()),
            "OCLCACHE_MIN_FREE" => Some("3M".into()),
            "OCLCACHE_MAX_AGE" => Some("9d".into()),
            _ => None,
        };
        let config = Config::read_with(&given);
        let arguments =
            autobake::handed(&config, &config::list(&["/a.icd", "/b:c"])).expect("a cache");
        let own = ["bake".into(), DETACHED.into()];
        let parsed = Bake::parse_from(own.into_iter().chain(arguments));
        let arrived = parsed.handed.config();
        assert!(parsed.handed.detached);
        assert_eq!(arrived.directory(), config.directory());
        assert_eq!([arrived.disable(), arrived.readonly()], [false, true]);
        assert_eq!(
            arrived.vendors(),
            Some(vec!["/a.icd".into(), "/b:c".into()])
        );
        let limits = |config: &Config| (config.max_size(), config.min_free(), config.max_age());
        assert_eq!(limits(&arrived), limits(&config));
        assert_eq!(limits(&arrived).0, Some(7_000_000));
    }
}
