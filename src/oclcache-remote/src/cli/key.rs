//! `oclcache remote key`.

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
        /// Do nothing if there is a key
        #[arg(long, hide = true)]
        if_missing: bool,
    },
}

impl KeyArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        match self.what {
            None => show(&settings),
            Some(What::New { ci: true, .. }) => new_for_ci(&settings),
            Some(What::New { if_missing, .. }) => new(&settings, if_missing),
        }
    }
}

fn show(settings: &RemoteSettings) -> Done {
    let key = signers::secret_key(settings)?;
    let key = key.ok_or("there is no key; make one with `oclcache remote key new`")?;
    print(&key.public().text);
    Ok(ExitCode::SUCCESS)
}

fn new(settings: &RemoteSettings, if_missing: bool) -> Done {
    let path = settings
        .key_file
        .as_ref()
        .ok_or("there is no place for a key: set HOME or XDG_CONFIG_HOME")?;
    if path.exists() {
        if if_missing {
            return Ok(ExitCode::SUCCESS);
        }
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
