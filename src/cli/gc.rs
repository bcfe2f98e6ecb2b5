//! `oclcache gc`.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use object::read::elf::ElfFile64;
use object::{Endianness, Object};
use serde_json::{Value, json};

use super::failure::Failure;
use super::interrupt::Interrupt;
use super::open::{directory, refuse_readonly};
use super::output::{plural, print_json, say, size};
use super::parse::{parse_age, parse_size};
use super::progress::bar;
use super::worker::private_directory;
use super::{home, vendors};
use crate::config::Config;
use crate::content_digest;
use crate::driver::{build_id_value, content_value};
use crate::regular_file;
use crate::store::directory::Directory;
use crate::store::gc::{Collector, GcResult};
use crate::store::heads::EntryDriver;
use crate::store::recorder::Recorder;
use crate::store::stats::{Counter, Labels};
use crate::store::{Limits, Store};

/// Shrink the cache to its limits, and remove what is no longer used
#[derive(Args, Default)]
#[command(after_help = "Example: oclcache gc --max-size 500M\nIn ccache: -c, --evict-older-than")]
pub struct GcArgs {
    /// The size limit, such as 500M or 5Gi, instead of OCLCACHE_MAX_SIZE
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Remove entries unused for this time, such as 12h or 30d, instead of OCLCACHE_MAX_AGE
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    max_age: Option<Duration>,
    /// Say how many entries would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl GcArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let config = Config::read();
        let path = directory(&config)?;
        let mut limits = Limits::of(&config);
        if let Some(bytes) = self.max_size {
            limits.max_size = (bytes > 0).then_some(bytes);
        }
        if let Some(age) = self.max_age {
            limits.max_age = (!age.is_zero()).then_some(age);
        }
        if !self.dry_run {
            refuse_readonly(&config, "nothing is removed")?;
            private_directory::clear_leftovers();
            let places = home::data_directory().map(|place| Directory::open(&place));
            if let Some(Ok(Some(place))) = places {
                vendors::forget_vendors(&place);
            }
        }
        let store = match (Store::open_existing(&path)?, self.dry_run) {
            (None, _) => None,
            (store, true) => store,
            (Some(_), false) => {
                let store = Store::open(&path, limits)?.remembering(true);
                vendors::forget_vendors(store.root());
                Some(store)
            }
        };
        let interrupt = Interrupt::listen()?;
        let mut watched = Watched::new(&interrupt);
        let done = store.as_ref().map(|store| match self.dry_run {
            true => store.would_collect(&limits, &mut watched),
            false => store.collect(&limits, &mut watched),
        });
        let done = done.transpose()?;
        watched.bar.finish_and_clear();
        if let (Some(store), Some(done), false) = (&store, &done, self.dry_run) {
            count(store, done.entries);
        }
        if self.json {
            print_json(&as_json(&done.unwrap_or_default(), self.dry_run))?;
        }
        let Some(done) = done else {
            say("oclcache: the cache is empty");
            return Ok(ExitCode::SUCCESS);
        };
        let mut words = format!(
            "oclcache: {} {} ({})",
            if self.dry_run {
                "would remove"
            } else {
                "removed"
            },
            plural(done.entries, "entry", "entries"),
            size(done.bytes)
        );
        for (files, what) in [
            (done.old_formats, "of old formats"),
            (done.leftovers, "left by killed processes"),
        ] {
            if files > 0 {
                words += &format!(", {} {what}", plural(files, "file", "files"));
            }
        }
        if done.stopped {
            say(&words);
            return Err(interrupt.failure("stopped"));
        }
        let left = plural(done.left, "entry", "entries");
        say(&format!(
            "{words}; left: {left} ({})",
            size(done.left_bytes)
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Counts the entries in the statistics. A failure is ignored, as in programs.
fn count(store: &Store, entries: u64) {
    if entries > 0 {
        let recorder = Recorder::new(b"", None, Some(store.counting_places()));
        recorder.record(Labels::default(), &[Counter::Evicted.by(entries)]);
    }
}

fn as_json(done: &GcResult, is_dry: bool) -> Value {
    json!({
        "dry_run": is_dry,
        "entries": done.entries,
        "bytes": done.bytes,
        "old_format_files": done.old_formats,
        "leftover_files": done.leftovers,
        "left_entries": done.left,
        "left_bytes": done.left_bytes,
        "stopped": done.stopped,
    })
}

/// Tells the collector which drivers are still installed, and shows progress.
struct Watched<'a> {
    interrupt: &'a Interrupt,
    /// By path: the values that identify the library in keys, by build-id and by content; None if it is gone.
    libraries: HashMap<String, Option<Vec<Vec<u8>>>>,
    bar: ProgressBar,
}

impl Watched<'_> {
    fn new(interrupt: &Interrupt) -> Watched<'_> {
        Watched {
            interrupt,
            libraries: HashMap::new(),
            bar: bar(0, ""),
        }
    }
}

impl Collector for Watched<'_> {
    fn is_installed(&mut self, driver: &EntryDriver) -> bool {
        let path = driver.library.as_str();
        if !Path::new(path).is_absolute() {
            return true; // found by name: the path is not known
        }
        let known = self
            .libraries
            .entry(path.to_owned())
            .or_insert_with(|| values_of(Path::new(path)));
        known.as_ref().is_some_and(|values| {
            let mut files = driver.files.iter();
            files.any(|file| values.contains(file))
        })
    }

    fn progress(&mut self, what: &'static str, done: usize, of: usize) -> bool {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what);
        !self.interrupt.came()
    }
}

/// The values that identify a library in keys; None if it is gone.
fn values_of(library: &Path) -> Option<Vec<Vec<u8>>> {
    let content = regular_file::read(library).ok()??;
    let elf = ElfFile64::<Endianness>::parse(content.as_slice()).ok();
    let build_id = elf.and_then(|elf| elf.build_id().ok().flatten().map(build_id_value));
    Some(
        build_id
            .into_iter()
            .chain([content_value(&content_digest::of_content(&content))])
            .collect(),
    )
}
