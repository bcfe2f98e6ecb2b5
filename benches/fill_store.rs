//! Makes a store large: copies the entries that are there, each under a key of its own, until there are so many.
//!
//! `fill_store CACHE N`: as many as are missing to N, with times of last use that lie up to 10 days back, and 1 day at least.
//! Nothing of them but the key and the checksum differs from what the library wrote, so every reader takes them for entries.
//! A hit of an entry that was copied needs a program with that key; there is none.

// Printing is what this program is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs::{self, File, FileTimes};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_128;

/// Where the key stands, by the grammar of entries.
const KEY: std::ops::Range<usize> = 12..44;
const CHECKSUM: usize = 16;
const DAY: u64 = 86400;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (cache, count) = (arguments.next(), arguments.next());
    let count = count.and_then(|text| text.parse().ok());
    let (Some(cache), Some(count)) = (cache, count) else {
        eprintln!("fill_store takes a cache directory and a number");
        return ExitCode::from(2);
    };
    match fill(&Path::new(&cache).join("v1/entries"), count) {
        Ok(made) => {
            println!("made {made} entries");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fill_store: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fill(entries: &Path, count: u64) -> io::Result<u64> {
    let mut templates = Vec::new();
    let mut present = 0;
    for shard in fs::read_dir(entries)? {
        for file in fs::read_dir(shard?.path())? {
            present += 1;
            if templates.len() < 1000 {
                let file = file?.path();
                let mode = fs::metadata(&file)?.permissions().mode();
                templates.push((mode, fs::read(file)?));
            }
        }
    }
    if templates.is_empty() {
        return Err(io::Error::other("there is no entry to copy"));
    }
    for shard in 0..=255 {
        fs::create_dir_all(entries.join(format!("{shard:02x}")))?;
    }
    let now = SystemTime::now();
    let made = count.saturating_sub(present);
    let of = templates.len();
    for number in 0..made {
        let (mode, template) = &mut templates[number as usize % of];
        let key: [u8; 32] = Sha256::digest(number.to_le_bytes()).into();
        template[KEY].copy_from_slice(&key);
        let body = template.len() - CHECKSUM;
        let checksum = xxh3_128(&template[..body]).to_le_bytes();
        template[body..].copy_from_slice(&checksum);
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(*mode)
            .open(path(entries, &key))?;
        file.write_all(template)?;
        let age = DAY + u64::from(u32::from_le_bytes([key[4], key[5], key[6], 0])) % (9 * DAY);
        let used = now - Duration::from_secs(age);
        file.set_times(FileTimes::new().set_modified(used))?;
    }
    Ok(made)
}

fn path(entries: &Path, key: &[u8; 32]) -> PathBuf {
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    entries.join(&hex[..2]).join(format!("{hex}.entry"))
}
