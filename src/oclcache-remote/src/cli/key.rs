//! `oclcache remote key`.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use oclcache::remote::settings::RemoteSettings;

use super::{Done, print};
use crate::keys::SecretKey;
use crate::signers::{self, KEY_VARIABLE};

#[derive(Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// Make a key
    New {
        /// Print it as variables for a CI system, and keep nothing here
        #[arg(long)]
        ci: bool,
    },
}

impl KeyArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        match self.what {
            None => show(&settings),
            Some(What::New { ci: true }) => new_for_ci(&settings),
            Some(What::New { ci: false }) => new(&settings),
        }
    }
}

fn show(settings: &RemoteSettings) -> Done {
    let key = signers::secret_key(settings)?;
    let key = key.ok_or("there is no key; make one with `oclcache remote key new`")?;
    print(&key.public().text);
    Ok(ExitCode::SUCCESS)
}

/// Where the key is, or is to be.
fn key_file(settings: &RemoteSettings) -> Result<&Path, String> {
    let path = settings.key_file.as_deref();
    path.ok_or("there is no place for a key: set HOME or XDG_CONFIG_HOME".to_owned())
}

/// Makes a key if there is none.
pub fn new_if_missing(settings: &RemoteSettings) -> Done {
    match key_file(settings)?.exists() {
        true => Ok(ExitCode::SUCCESS),
        false => new(settings),
    }
}

fn new(settings: &RemoteSettings) -> Done {
    let path = key_file(settings)?;
    if path.exists() {
        return Err(format!(
            "there is a key already, `{}`; `oclcache remote key` shows its public half",
            path.display()
        ));
    }
    let key = SecretKey::generate()?;
    key.write(path)?;
    print(&format!("new key: `{}`", path.display()));
    print(
        "for another machine of yours:  oclcache remote invite | ssh HOST oclcache remote join -",
    );
    print(&format!(
        "for a colleague:               oclcache remote trust NAME {}",
        key.public().text
    ));
    Ok(ExitCode::SUCCESS)
}

fn new_for_ci(settings: &RemoteSettings) -> Done {
    let key = SecretKey::generate()?;
    let public = key.public();
    let url = settings.url.as_deref().unwrap_or("URL");
    print(
        "# a secret, for trusted jobs only: who has it can give code to everybody who trusts the key",
    );
    print(&format!("{KEY_VARIABLE}={}", key.line()?));
    print("# variables, for all jobs");
    print(&format!("OCLCACHE_REMOTE={url}"));
    print(&format!("OCLCACHE_REMOTE_TRUST={}", public.text));
    Ok(ExitCode::SUCCESS)
}
