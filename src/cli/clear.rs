//! `oclcache clear`.

use std::process::ExitCode;

use super::keys::{find_key, no_entry};
use super::output::{say, size};
use super::{Failure, store};

pub fn clear(key: Option<&str>) -> Result<ExitCode, Failure> {
    let store = store()?;
    if let Some(digits) = key {
        let store = store.ok_or_else(|| no_entry(digits))?;
        let key = find_key(&store, digits)?;
        store.remove(&key)?;
        say(&format!("oclcache: removed {}", key.hex()));
        return Ok(ExitCode::SUCCESS);
    }
    let Some(store) = store else {
        say("oclcache: the cache is empty");
        return Ok(ExitCode::SUCCESS);
    };
    let cleared = store.clear()?;
    say(&format!(
        "oclcache: removed {}, {}",
        plural(cleared.files),
        size(cleared.bytes)
    ));
    if cleared.foreign > 0 {
        let path = crate::log::path(store.root().path()).to_string();
        return Err(Failure::new(format_args!(
            "left {} in `{path}` that the cache did not make",
            plural(cleared.foreign)
        )));
    }
    Ok(ExitCode::SUCCESS)
}

fn plural(files: u64) -> String {
    if files == 1 {
        "1 file".to_owned()
    } else {
        format!("{files} files")
    }
}
