//! The settings of the remote level, as the helper uses them.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{Config, Name, of_system};
pub use crate::config::{RemoteContent, ValueSource};

/// How the helper logs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// With a password or keys from this file, if it exists.
    File(PathBuf),
    /// As the AWS tools find keys: from variables, profiles and the machine.
    Aws,
    /// There is no place for a file.
    Nowhere,
}

/// Someone whose entries are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    /// The name that the user or the system gave.
    pub name: Option<String>,
    /// The public key in minisign's form, as it is written: nothing was checked.
    pub key: String,
    /// The system's file names it.
    pub is_of_system: bool,
}

/// The settings of the remote level.
#[derive(Clone, Debug)]
pub struct RemoteSettings {
    /// The URL of the store that machines share; None: there is no remote level.
    pub url: Option<String>,
    /// Where the URL was set.
    pub url_source: ValueSource,
    /// Nothing is sent.
    pub is_readonly: bool,
    /// Whose entries are used, beside those of the own key.
    pub trust: Vec<Signer>,
    /// Only the system's file names signers.
    pub is_trust_locked: bool,
    /// The file of the secret key; None: there is no place for one. The variable OCLCACHE_REMOTE_KEY overrides it.
    pub key_file: Option<PathBuf>,
    /// How to log in.
    pub credentials: Credentials,
    /// A file of certificates in place of the system's.
    pub ca: Option<PathBuf>,
    /// What is sent.
    pub content: RemoteContent,
    /// Recipes of others are stored.
    pub bakes: bool,
    /// How long a build waits at most.
    pub wait: Duration,
    /// How long an entry that nobody uses is kept; None: always.
    pub ttl: Option<Duration>,
    /// The maximum size of the cache, in bytes; None: no limit.
    pub max_size: Option<u64>,
    /// The user's configuration file, whether it exists or not.
    pub user_file: Option<PathBuf>,
    /// The system's configuration file, whether it exists or not.
    pub system_file: Option<PathBuf>,
    /// Mistakes in the settings, for people.
    pub complaints: Vec<String>,
    pub(super) config: Config,
}

impl RemoteSettings {
    /// Reads the settings by the rules of all others: variables, then the user's file, then the system's.
    pub fn read() -> RemoteSettings {
        RemoteSettings::of(Config::read())
    }

    pub(crate) fn of(config: Config) -> RemoteSettings {
        let signers = config.remote_trust().into_iter();
        let credentials = match (
            config.remote_credentials(),
            config.remote_credentials_file(),
        ) {
            (how, None) if how == "aws" => Credentials::Aws,
            (_, Some(file)) => Credentials::File(file),
            _ => Credentials::Nowhere,
        };
        RemoteSettings {
            url: config.remote(),
            url_source: config.value(Name::Remote).1.clone(),
            is_readonly: config.remote_readonly(),
            trust: signers
                .map(|(name, key, is_of_system)| Signer {
                    name,
                    key,
                    is_of_system,
                })
                .collect(),
            is_trust_locked: config.remote_trust_locked(),
            key_file: config.remote_key_file(),
            credentials,
            ca: config.remote_ca(),
            content: config.remote_content(),
            bakes: config.remote_bake(),
            wait: config.remote_wait(),
            ttl: config.remote_ttl(),
            max_size: config.max_size(),
            user_file: config.user_file(),
            system_file: of_system(),
            complaints: config.complaints.clone(),
            config,
        }
    }

    /// Why nothing can be stored here; None if it can.
    pub fn refusal(&self) -> Option<String> {
        if self.config.disable() {
            return Some("the cache is off (OCLCACHE_DISABLE)".to_owned());
        }
        if self.config.readonly() {
            return Some("the cache is read-only (OCLCACHE_READONLY)".to_owned());
        }
        self.config.directory().err()
    }

    /// The cache directory.
    ///
    /// # Errors
    /// For people: why there is none.
    pub fn cache_directory(&self) -> Result<PathBuf, String> {
        self.config.directory()
    }
}
