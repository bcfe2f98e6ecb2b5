//! `oclcache import`: takes entries from an archive, which anybody may have made.
//!
//! The archive is read twice: first it is judged, member by member, so that one that is not whole changes nothing; then what was
//! found good is stored, if it still is what was judged.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;

use super::archive::manifest::{ListedMember, key_of, member};
use super::archive::read::{ArchiveSource, Head, Member, Visitor};
use super::archive::seal::Seal;
use super::drivers::{Drivers, purpose};
use super::failure::Failure;
use super::interrupt::Interrupt;
use super::open::directory;
use super::output::say;
use super::progress::bar;
use crate::config::Config;
use crate::key::ingredients::{self, Key, hex, sha256};
use crate::store::entry::{Entry, EntryContent, Meta};
use crate::store::recipe::StoredRecipe;
use crate::store::{Limits, Lookup, MAX_ENTRY_BYTES, Store};
use crate::trust;
use report::ImportReport;

/// An archive with more members that are no entries is none, and each is remembered with its reason.
const MAX_REFUSED: usize = 10_000;

/// Take the entries of an archive into the cache, those that fit a driver of this machine
#[derive(Args)]
#[command(
    after_help = "Example: oclcache import --trust kernels.tar.zst\nExit code: 1 if something was refused, or nothing of it can be used here"
)]
pub struct ImportArgs {
    /// Take it although it does not come from this cache: entries are code that programs will run
    #[arg(long)]
    trust: bool,
    /// Also entries that no driver of this machine has made
    #[arg(long)]
    all: bool,
    /// Only tell what would be imported
    #[arg(long)]
    dry_run: bool,
    /// Into a directory for all users of this machine, otherwise the first of `system_dirs`
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    system: Option<Option<PathBuf>>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// What `oclcache export` has written; `-` is standard input
    file: PathBuf,
}

/// Where entries go.
struct Target {
    /// None: there is none yet, and nothing is to be made.
    store: Option<Store>,
    is_system: bool,
}

impl ImportArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let config = Config::read();
        let system = system_directory(&self, &config)?;
        if system.is_none() && (config.readonly() || config.disable()) {
            return Err(Failure::new(
                "nothing is imported: the cache is not to be written (OCLCACHE_READONLY, OCLCACHE_DISABLE)",
            ));
        }
        let path = match &system {
            Some(path) => path.clone(),
            None => directory(&config)?,
        };
        // Whoever waits for standard input can be ended.
        let mut source = ArchiveSource::open(&self.file)?;
        let interrupt = Interrupt::listen()?;
        let existing = match system.is_some() && !path.exists() {
            true => None,
            false => Store::open_existing(&path)?,
        };
        let own = Store::open_existing(&directory(&config).unwrap_or_default())
            .ok()
            .flatten();
        let target = Target {
            store: existing,
            is_system: system.is_some(),
        };
        let mut judge = Judge {
            arguments: &self,
            target: &target,
            seal: own.as_ref().and_then(Seal::of),
            archive: source.name().to_owned(),
            listed: BTreeMap::new(),
            seen: BTreeSet::new(),
            drivers: Drivers::new(&config, &interrupt),
            bar: bar(0, "checking"),
            report: ImportReport {
                archive: source.name().to_owned(),
                dry_run: self.dry_run,
                system,
                ..ImportReport::default()
            },
            good: Good::new(),
        };
        source.read(&interrupt, &mut judge)?;
        let (good, report) = judge.finish();
        if self.dry_run || good.is_empty() {
            return report.finish(self.json, None);
        }
        let store = match target.is_system {
            true => open_system(&path, &config)?,
            false => Store::open(&path, Limits::of(&config))?,
        };
        let mut storing = Storing {
            store: &store,
            archive: source.name().to_owned(),
            bar: bar(good.len() as u64, "storing"),
            good,
            report,
        };
        let stored = source.read(&interrupt, &mut storing);
        storing.bar.finish_and_clear();
        storing.report.finish(self.json, stored.err())
    }
}

/// The directory of the system's that is meant; None: the user's own cache.
fn system_directory(arguments: &ImportArgs, config: &Config) -> Result<Option<PathBuf>, Failure> {
    let path = match &arguments.system {
        None => return Ok(None),
        Some(Some(path)) => path.clone(),
        Some(None) => config.system_dirs().into_iter().next().ok_or_else(|| {
            Failure::new("no directory of the system is configured; name one: --system DIR")
        })?,
    };
    std::path::absolute(path).map(Some).map_err(Failure::new)
}

/// What was found good, by the number of its member.
type Good = BTreeMap<u64, Fit>;

/// How an entry is to be stored.
struct Fit {
    key: Key,
    digest: [u8; 32],
    /// The driver that it is for, as it is registered here.
    library: Option<PathBuf>,
}

/// An entry that can be believed: its key, itself, and the digest of its bytes.
type Believed = (Key, Entry, [u8; 32]);

/// Goes through the archive, and changes nothing.
struct Judge<'a> {
    arguments: &'a ImportArgs,
    target: &'a Target,
    /// By what the user's own archives are known.
    seal: Option<Seal>,
    archive: String,
    listed: BTreeMap<String, ListedMember>,
    seen: BTreeSet<Key>,
    drivers: Drivers<'a>,
    bar: ProgressBar,
    report: ImportReport,
    good: Good,
}

impl Visitor for Judge<'_> {
    fn head(&mut self, head: Head) -> Result<(), Failure> {
        if let (Some((manifest, signature)), Some(seal)) = (&head.sealed, &self.seal) {
            self.report.is_own = seal.is_of(manifest, signature);
        }
        if !(self.report.is_own || self.arguments.trust || self.arguments.dry_run) {
            return Err(Failure::new(format_args!(
                "`{}` was not exported from this cache, and its entries are code that your programs will run; if you trust who made it, use --trust (--dry-run only looks)",
                self.archive
            )));
        }
        self.bar.set_length(head.manifest.entries.len() as u64);
        let entries = head.manifest.entries.into_iter();
        self.listed
            .extend(entries.map(|one| (one.key.clone(), one)));
        Ok(())
    }

    fn member(&mut self, found: &mut Member) -> Result<(), Failure> {
        self.bar.inc(1);
        match self.examine(found)? {
            Ok((key, entry, digest)) => self.decide(found.index, key, &entry, digest),
            Err(_) if self.report.refused.len() >= MAX_REFUSED => {
                return Err(Failure::new(format_args!(
                    "`{}` is no archive of entries: {MAX_REFUSED} of its members are none; nothing was imported",
                    self.archive
                )));
            }
            Err(why) => self.report.refused.push((found.name.clone(), why)),
        }
        Ok(())
    }
}

impl Judge<'_> {
    /// What is to become of an entry that can be believed.
    fn decide(&mut self, index: u64, key: Key, entry: &Entry, digest: [u8; 32]) {
        match self.target.holds(&key, entry) {
            Some(Ok(())) => return self.report.present.push(key),
            Some(Err(why)) => return self.report.failed.push((key, why)),
            None => {}
        }
        if entry.is_pending() && self.target.is_system {
            let why = "a recipe, which nobody bakes in a directory of the system";
            return self.report.unfit.push((key, why.to_owned()));
        }
        let library = match self.arguments.all {
            true => None,
            false => match self.drivers.fitting(&entry.meta) {
                Some(library) => Some(library),
                None => return self.report.unfit.push((key, purpose(&entry.meta))),
            },
        };
        if self.arguments.dry_run {
            self.report.taken.push(key);
            self.report.recipes += usize::from(entry.is_pending());
        }
        let fit = Fit {
            key,
            digest,
            library,
        };
        self.good.insert(index, fit);
    }

    /// Whether a member is an entry that can be believed: with its digest, or why it is refused.
    fn examine(&mut self, found: &mut Member) -> Result<Result<Believed, String>, Failure> {
        let refused = |why: &str| Ok(Err(why.to_owned()));
        let Some(key) = key_of(&found.name) else {
            return refused("its name is not that of an entry");
        };
        if self.seen.contains(&key) {
            return refused("it is in the archive twice");
        }
        let bytes = match found.bytes(MAX_ENTRY_BYTES) {
            Ok(bytes) => bytes,
            Err(trouble) => return Ok(Err(trouble.of_member(&self.archive)?)),
        };
        self.seen.insert(key);
        let digest = sha256(&bytes);
        match self.listed.get(&key.hex()) {
            None => return refused("the manifest does not list it"),
            Some(listed) if listed.sha256 != hex(&digest) => {
                return refused("it is not what the manifest lists");
            }
            Some(_) => {}
        }
        let entry = match Entry::parse(bytes, Some(&key)) {
            Ok(entry) => entry,
            Err(defect) => return Ok(Err(format!("damaged: {defect}"))),
        };
        let meta = &entry.meta;
        if ingredients::key(&meta.ingredients) != key {
            return refused("its key is not that of what it says it was made of");
        }
        if meta.built.len() != entry.binaries().len() {
            return refused("its binaries are not those that it lists");
        }
        if entry.is_pending() && entry.recipe().is_none() {
            return refused("it holds neither binaries nor a recipe");
        }
        Ok(Ok((key, entry, digest)))
    }

    /// What the archive lacks is known at its end.
    fn finish(mut self) -> (Good, ImportReport) {
        self.bar.finish_and_clear();
        let listed = self.listed.into_keys();
        let listed = listed.filter_map(|digits| Key::from_hex(&digits));
        let missing = listed.filter(|key| !self.seen.contains(key));
        self.report.refused.extend(missing.map(|key| {
            let why = "the manifest lists it, and it is not there";
            (member(&key).into_bytes(), why.to_owned())
        }));
        self.report.silent = self.drivers.silent();
        (self.good, self.report)
    }
}

impl Target {
    /// Whether an entry as good as this is there; Err: that cannot be told.
    fn holds(&self, key: &Key, new: &Entry) -> Option<Result<(), String>> {
        match self.store.as_ref()?.look_up(key) {
            Lookup::Found(..) => Some(Ok(())),
            Lookup::Pending(_) if new.is_pending() => Some(Ok(())),
            Lookup::Pending(_) | Lookup::Absent | Lookup::Bad(_) => None,
            Lookup::Unreadable(error) => Some(Err(error.to_string())),
        }
    }
}

/// Goes through the archive again, and stores what was found good.
struct Storing<'a> {
    store: &'a Store,
    archive: String,
    good: Good,
    bar: ProgressBar,
    report: ImportReport,
}

impl Visitor for Storing<'_> {
    fn head(&mut self, _: Head) -> Result<(), Failure> {
        Ok(())
    }

    fn member(&mut self, found: &mut Member) -> Result<(), Failure> {
        let Some(fit) = self.good.remove(&found.index) else {
            return Ok(());
        };
        self.bar.inc(1);
        let bytes = match found.bytes(MAX_ENTRY_BYTES) {
            Ok(bytes) if sha256(&bytes) == fit.digest => bytes,
            Ok(_) => return Err(changed(&self.archive)),
            Err(trouble) => {
                trouble.of_member(&self.archive)?;
                return Err(changed(&self.archive));
            }
        };
        let entry = Entry::parse(bytes, Some(&fit.key)).map_err(|_| changed(&self.archive))?;
        let is_recipe = entry.is_pending();
        match publish(self.store, &fit, &entry) {
            Ok(removed) => {
                self.report.taken.push(fit.key);
                self.report.recipes += usize::from(is_recipe);
                self.report.removed += removed;
            }
            Err(why) => self.report.failed.push((fit.key, why)),
        }
        Ok(())
    }
}

fn changed(name: &str) -> Failure {
    Failure::new(format_args!("`{name}` changed while it was imported"))
}

/// Stores an entry as one of this machine: marked, with the name that its driver has here and nobody else's directories.
fn publish(store: &Store, fit: &Fit, entry: &Entry) -> Result<u64, String> {
    let recipe = entry.recipe().map(|recipe| StoredRecipe {
        own_cache: None,
        ..recipe
    });
    let library = fit
        .library
        .as_ref()
        .map(|path| path.to_string_lossy().into_owned());
    let meta = Meta {
        imported: true,
        driver_library: library.unwrap_or_else(|| entry.meta.driver_library.clone()),
        ..entry.meta.clone()
    };
    let content = EntryContent {
        meta: &meta,
        recipe: recipe.as_ref(),
        binaries: entry.binaries().collect(),
    };
    store
        .publish(&fit.key, &content)
        .map_err(|error| error.to_string())
}

/// Opens a directory of the system's to write, and makes it if it is missing: all users can read what is in it, and nobody else
/// can write it.
fn open_system(path: &Path, config: &Config) -> Result<Store, Failure> {
    let shown = crate::log::path(path).to_string();
    let cannot = |what: &str, error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; directories of the system are root's",
            _ => "",
        };
        Failure::new(format_args!("cannot {what} `{shown}`: {error}{hint}"))
    };
    // Others are to read what is made from here on, whatever this shell thinks.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| cannot("make", error))?;
    let mut owners = vec![0, rustix::process::geteuid().as_raw()];
    owners.extend(config.trusted_owners());
    if let Err(why) = trust::open(path, trust::DIRECTORY, &owners) {
        return Err(Failure::new(format_args!(
            "nobody would use `{shown}`: {why}"
        )));
    }
    let mode = std::fs::metadata(path)
        .map_err(|error| cannot("examine", error))?
        .mode();
    if mode & 0o055 != 0o055 {
        return Err(Failure::new(format_args!(
            "`{shown}` cannot be read by others; `chmod a+rx` it if it is meant for them"
        )));
    }
    if !rustix::process::geteuid().is_root() {
        say(&format!(
            "oclcache: `{shown}` will be yours: others use it only if the system's configuration file names you in trusted_owners"
        ));
    }
    let limits = Limits {
        min_free: config.min_free(),
        ..Limits::default()
    };
    Ok(Store::open_shared(path, limits)?)
}
