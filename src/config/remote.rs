//! The settings of the remote level, by the rules of all others. One differs: the signers that the system's file names are added to
//! the user's, and `remote_trust_locked` there keeps the user's out.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::{Config, Name, ValueSource, of_user};
use crate::quantity;

/// The default that the table of settings shows.
const DEFAULT_WAIT: Duration = Duration::from_millis(250);
/// The default that the table of settings shows.
const DEFAULT_TTL: Duration = Duration::from_secs(30 * 86400);
/// The secret key, beside the user's configuration file.
const KEY_FILE: &str = "remote.key";
/// The password or keys for the store, beside the user's configuration file.
const CREDENTIALS_FILE: &str = "remote.credentials";

/// A URL without its password, for people.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        Some((who, host)) => {
            let (user, hidden) = match who.split_once(':') {
                Some((user, _)) => (user, ":***"),
                None => (who, ""),
            };
            format!("{scheme}://{user}{hidden}@{host}{}", &rest[end..])
        }
        None => url.to_owned(),
    }
}

/// The value of a setting, for people.
pub fn shown(name: Name, value: &OsStr) -> OsString {
    match (name, value.to_str()) {
        (Name::Remote, Some(url)) => without_password(url).into(),
        _ => value.to_owned(),
    }
}

/// What is sent to the remote store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteContent {
    /// Binaries, and texts that quote nothing private.
    Binaries,
    /// Whole entries.
    All,
}

impl Config {
    /// Adds the signers that the system's file names, or puts them in place of the user's.
    pub(super) fn add_system_trust(&mut self) {
        let is_locked = self.flag(Name::RemoteTrustLocked);
        let (value, source) = &self.values[Name::RemoteTrust as usize];
        let is_users = matches!(source, ValueSource::File(_) | ValueSource::Environment);
        if !is_users {
            return;
        }
        let mut trust = self.system_trust.to_string_lossy().into_owned();
        if is_locked {
            let complaint = "`remote_trust` is taken from the system's configuration file only, which sets `remote_trust_locked`";
            self.complaints.push(complaint.to_owned());
        } else {
            // A child gets the sum as a variable, and makes the same of it.
            for signer in value.to_string_lossy().split_whitespace() {
                if !trust.split_whitespace().any(|known| known == signer) {
                    trust = format!("{trust} {signer}");
                }
            }
        }
        self.values[Name::RemoteTrust as usize].0 = trust.trim_start().into();
    }

    /// The URL of the store that machines share, if there is one. `off` is none, in place of one that another file sets.
    pub fn remote(&self) -> Option<String> {
        let url = self.text(Name::Remote)?;
        (url != "off").then(|| url.to_string_lossy().into_owned())
    }

    /// Whether nothing is sent.
    pub fn remote_readonly(&self) -> bool {
        self.flag(Name::RemoteReadonly)
    }

    /// The signers whose entries are used, with the name of each, and those of the system's file among them.
    pub fn remote_trust(&self) -> Vec<(Option<String>, String, bool)> {
        let system = self.system_trust.to_string_lossy();
        let system: Vec<&str> = system.split_whitespace().collect();
        let all = self.value(Name::RemoteTrust).0.to_string_lossy();
        let signer = |text: &str| {
            let is_of_system = system.contains(&text);
            match text.split_once(':') {
                Some((name, key)) => (Some(name.to_owned()), key.to_owned(), is_of_system),
                None => (None, text.to_owned(), is_of_system),
            }
        };
        all.split_whitespace().map(signer).collect()
    }

    /// Whether only the system's file names signers.
    pub fn remote_trust_locked(&self) -> bool {
        self.flag(Name::RemoteTrustLocked)
    }

    /// The file of the secret key.
    pub fn remote_key_file(&self) -> Option<PathBuf> {
        let named = self.text(Name::RemoteKeyFile).map(PathBuf::from);
        named.or_else(|| self.beside_user_file(KEY_FILE))
    }

    /// The setting `remote_credentials` as it is written.
    pub fn remote_credentials(&self) -> String {
        let credentials = &self.value(Name::RemoteCredentials).0;
        credentials.to_string_lossy().into_owned()
    }

    /// The file of the password or keys for the store, if that is how the helper logs in.
    pub fn remote_credentials_file(&self) -> Option<PathBuf> {
        match self.text(Name::RemoteCredentials) {
            Some(how) if how == "aws" => None,
            Some(file) => Some(PathBuf::from(file)),
            None => self.beside_user_file(CREDENTIALS_FILE),
        }
    }

    /// The file of certificates of the server.
    pub fn remote_ca(&self) -> Option<PathBuf> {
        self.text(Name::RemoteCa).map(PathBuf::from)
    }

    /// What is sent.
    pub fn remote_content(&self) -> RemoteContent {
        match self.is(Name::RemoteContent, "all") {
            true => RemoteContent::All,
            false => RemoteContent::Binaries,
        }
    }

    /// Whether recipes of others are stored here.
    pub fn remote_bake(&self) -> bool {
        self.flag(Name::RemoteBake)
    }

    /// How long a build waits for an entry at most.
    pub fn remote_wait(&self) -> Duration {
        self.time(Name::RemoteWait).unwrap_or(DEFAULT_WAIT)
    }

    /// How long an entry that nobody uses is kept in the store; None: always.
    pub fn remote_ttl(&self) -> Option<Duration> {
        let ttl = self.time(Name::RemoteTtl).unwrap_or(DEFAULT_TTL);
        (!ttl.is_zero()).then_some(ttl)
    }

    /// The directory for what must outlive the cache and is not configuration, by the XDG base directory specification.
    pub fn state_directory(&self) -> Option<PathBuf> {
        let home = || Some(self.home.as_ref()?.join(".local/state"));
        let state = self.state_home.clone().or_else(home)?;
        Some(state.join("oclcache"))
    }

    fn time(&self, name: Name) -> Option<Duration> {
        quantity::duration(self.value(name).0.to_str()?)
    }

    /// Where the user's file of settings is, whether it exists or not.
    pub fn user_file(&self) -> Option<PathBuf> {
        of_user(self.config_home.clone(), self.home.clone())
    }

    fn beside_user_file(&self, name: &str) -> Option<PathBuf> {
        Some(self.user_file()?.parent()?.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::of_files;
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Config {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Config::read_from(&find, None)
    }

    #[test]
    fn without_a_setting_there_is_no_remote_and_nothing_but_binaries_would_be_sent() {
        let none = config(&[]);
        assert_eq!(none.remote(), None);
        assert_eq!(none.remote_content(), RemoteContent::Binaries);
        assert_eq!(none.remote_wait(), Duration::from_millis(250));
        assert_eq!(none.remote_ttl(), Some(Duration::from_secs(30 * 86400)));
        assert!(!none.remote_bake() && !none.remote_readonly());
        assert_eq!(
            (none.remote_key_file(), none.state_directory()),
            (None, None)
        );
    }

    #[test]
    fn a_wrong_word_or_time_is_a_mistake_and_the_default() {
        let wrong = config(&[
            ("OCLCACHE_REMOTE_CONTENT", "everything"),
            ("OCLCACHE_REMOTE_WAIT", "soon"),
        ]);
        assert_eq!(wrong.complaints.len(), 2, "{:?}", wrong.complaints);
        assert_eq!(wrong.remote_content(), RemoteContent::Binaries);
        assert_eq!(wrong.remote_wait(), DEFAULT_WAIT);
        let never = config(&[("OCLCACHE_REMOTE_WAIT", "0"), ("OCLCACHE_REMOTE_TTL", "0")]);
        assert_eq!(
            (never.remote_wait(), never.remote_ttl()),
            (Duration::ZERO, None)
        );
    }

    #[test]
    fn files_are_beside_the_users_configuration_and_state_where_the_user_says() {
        let home = config(&[("HOME", "/h")]);
        assert_eq!(
            home.remote_key_file(),
            Some("/h/.config/oclcache/remote.key".into())
        );
        assert_eq!(
            home.state_directory(),
            Some("/h/.local/state/oclcache".into())
        );
        let elsewhere = config(&[
            ("HOME", "/h"),
            ("XDG_CONFIG_HOME", "/c"),
            ("XDG_STATE_HOME", "/s"),
            ("OCLCACHE_REMOTE_KEY_FILE", "/k"),
        ]);
        assert_eq!(elsewhere.remote_key_file(), Some("/k".into()));
        let credentials = elsewhere.remote_credentials_file();
        assert_eq!(credentials, Some("/c/oclcache/remote.credentials".into()));
        assert_eq!(elsewhere.state_directory(), Some("/s/oclcache".into()));
        let aws = config(&[("HOME", "/h"), ("OCLCACHE_REMOTE_CREDENTIALS", "aws")]);
        assert_eq!(aws.remote_credentials_file(), None);
    }

    #[test]
    fn a_password_is_not_shown() {
        for (url, plain) in [
            ("redis://lab", "redis://lab"),
            ("redis://:geheim@lab:1/0", "redis://:***@lab:1/0"),
            ("https://me:ge@heim@lab/x@y", "https://me:***@lab/x@y"),
            ("s3://me@bucket", "s3://me@bucket"),
            ("/srv/a:b@c", "/srv/a:b@c"),
        ] {
            assert_eq!(without_password(url), plain);
        }
    }

    #[test]
    fn the_systems_signers_are_added_to_the_users_or_replace_them() {
        let users = "remote_trust = [\"alice:RWA\", \"RWB\"]\n";
        let signers = |system: &str| {
            let config = of_files(system, users)?;
            let signers = config.remote_trust().into_iter();
            let signers =
                signers.map(|(name, key, of_system)| (name.unwrap_or_default(), key, of_system));
            Some((signers.collect::<Vec<_>>(), config.complaints.len()))
        };
        let one = |name: &str, key: &str, of_system| (name.to_owned(), key.to_owned(), of_system);
        let (alice, other) = (one("alice", "RWA", false), one("", "RWB", false));
        let site = one("site", "RWS", true);
        let Some(added) = signers("remote_trust = \"site:RWS\"\n") else {
            return crate::trust::tests::skipped("a configuration file of the system");
        };
        assert_eq!(added, (vec![site.clone(), alice.clone(), other.clone()], 0));
        let locked = signers("remote_trust = \"site:RWS\"\nremote_trust_locked = true\n");
        assert_eq!(locked, Some((vec![site], 1)));
        assert_eq!(signers(""), Some((vec![alice, other], 0)));
        assert_eq!(signers("remote_trust_locked = true\n"), Some((vec![], 1)));
    }
}
