//! `oclcache import`: imports entries from an archive, which may be hostile.
//!
//! The archive is read twice: first every member is checked, so that a damaged archive changes nothing; then the accepted members
//! are stored, if they are unchanged.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;

use super::archive::manifest::{ListedMember, key_of, member};
use super::archive::read::{ArchiveHead, ArchiveMember, ArchiveSource, ArchiveVisitor};
use super::archive::seal::Seal;
use super::failure::Failure;
use super::interrupt::Interrupt;
use super::open::{directory, refuse_readonly, refused, usable_store};
use super::output::say;
use super::progress::bar;
use super::registered_drivers::{RegisteredDrivers, purpose};
use crate::config::Config;
use crate::key::ingredients::{Key, hex, sha256};
use crate::store::entry::Entry;
use crate::store::foreign::{self, ForeignOrigin};
use crate::store::tier::Tier;
use crate::store::{Limits, Lookup, MAX_ENTRY_BYTES, Store};
use crate::trust;
use report::ImportReport;

/// An archive with more refused members is refused, since each reason is kept in memory.
const MAX_REFUSED: usize = 10_000;

/// Import the entries of an archive that fit a driver of this machine
#[derive(Args)]
#[command(
    override_usage = "oclcache import [OPTIONS] <FILE>",
    after_help = "Example: oclcache import --trust kernels.tar.zst\nExit code: 1 if something was refused, or nothing can be used here"
)]
pub struct ImportArgs {
    /// Import an archive of another cache: its entries are code that your programs will run
    #[arg(long)]
    trust: bool,
    /// Also import entries that fit no driver of this machine
    #[arg(long)]
    all: bool,
    /// Show what would be imported, and import nothing
    #[arg(long)]
    dry_run: bool,
    /// Import into this directory for all users of the machine; without DIR, into the first of `system_dirs`
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    system: Option<Option<PathBuf>>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// An archive of `oclcache export`, or `-` for standard input
    #[arg(required_unless_present = "system")]
    file: Option<PathBuf>,
}

/// Where entries go.
struct Target {
    /// None if there is none yet.
    store: Option<Store>,
    is_system: bool,
}

impl ImportArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        // `--system FILE` has taken it for a directory.
        let Some(file) = &self.file else {
            return Err(Failure::usage(
                "no archive is named; write FILE before `--system`, or write `--system=DIR`",
            ));
        };
        let config = Config::read();
        let system = system_directory(&self, &config)?;
        if system.is_none() {
            if config.disable() {
                return Err(refused("nothing is imported", "disable"));
            }
            refuse_readonly(&config, "nothing is imported")?;
        }
        let path = match &system {
            Some(path) => path.clone(),
            None => directory(&config)?,
        };
        // Before the signals are handled, so that a signal ends a wait for standard input.
        let mut source = ArchiveSource::open(file)?;
        let interrupt = Interrupt::listen()?;
        let existing = match system.is_some() && !path.exists() {
            true => None,
            false => Store::open_existing(&path)?,
        };
        let own = usable_store(&config);
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
            drivers: RegisteredDrivers::new(&config, &interrupt),
            bar: bar(0, "checking"),
            report: ImportReport {
                archive: source.name().to_owned(),
                dry_run: self.dry_run,
                system,
                ..ImportReport::default()
            },
            accepted: Accepted::new(),
        };
        source.read(&interrupt, &mut judge)?;
        let (accepted, report) = judge.finish();
        if self.dry_run || accepted.is_empty() {
            return report.finish(self.json, None);
        }
        let store = match target.is_system {
            true => open_system(&path, &config)?,
            false => Store::open(&path, Limits::of(&config))?,
        };
        let mut storing = Storing {
            store: &store,
            archive: source.name().to_owned(),
            bar: bar(accepted.len() as u64, "storing"),
            accepted,
            report,
        };
        let stored = source.read(&interrupt, &mut storing);
        storing.bar.finish_and_clear();
        storing.report.finish(self.json, stored.err())
    }
}

/// The system directory to import into; None for the user's own cache.
fn system_directory(arguments: &ImportArgs, config: &Config) -> Result<Option<PathBuf>, Failure> {
    let path = match &arguments.system {
        None => return Ok(None),
        Some(Some(path)) => path.clone(),
        Some(None) => config.system_dirs().into_iter().next().ok_or_else(|| {
            Failure::new("no system directory is configured; name one with `--system DIR`")
        })?,
    };
    std::path::absolute(path).map(Some).map_err(Failure::new)
}

/// The accepted entries, by the number of the member.
type Accepted = BTreeMap<u64, AcceptedEntry>;

/// An accepted entry.
struct AcceptedEntry {
    key: Key,
    digest: [u8; 32],
    /// The driver that it fits, as it is registered here.
    library: Option<PathBuf>,
}

/// A valid entry: its key, content, and the digest of its bytes.
type ValidEntry = (Key, Entry, [u8; 32]);

/// Checks the members of an archive, and changes nothing.
struct Judge<'a> {
    arguments: &'a ImportArgs,
    target: &'a Target,
    /// Recognizes the archives of this cache.
    seal: Option<Seal>,
    archive: String,
    listed: BTreeMap<String, ListedMember>,
    seen: BTreeSet<Key>,
    drivers: RegisteredDrivers<'a>,
    bar: ProgressBar,
    report: ImportReport,
    accepted: Accepted,
}

impl ArchiveVisitor for Judge<'_> {
    fn head(&mut self, head: ArchiveHead) -> Result<(), Failure> {
        if let (Some((manifest, signature)), Some(seal)) = (&head.sealed, &self.seal) {
            self.report.is_own = seal.is_of(manifest, signature);
        }
        if !(self.report.is_own || self.arguments.trust || self.arguments.dry_run) {
            return Err(Failure::new(format_args!(
                "`{}` was not exported from this cache, and its entries are code that your programs will run; if you trust its maker, import it with `--trust` (`--dry-run` shows what it has)",
                self.archive
            )));
        }
        self.bar.set_length(head.manifest.entries.len() as u64);
        let entries = head.manifest.entries.into_iter();
        self.listed
            .extend(entries.map(|one| (one.key.clone(), one)));
        Ok(())
    }

    fn member(&mut self, found: &mut ArchiveMember) -> Result<(), Failure> {
        self.bar.inc(1);
        match self.examine(found)? {
            Ok((key, entry, digest)) => self.decide(found.index, key, &entry, digest),
            Err(_) if self.report.refused.len() >= MAX_REFUSED => {
                return Err(Failure::new(format_args!(
                    "`{}` is not an archive of entries: {MAX_REFUSED} of its members are not entries; nothing was imported",
                    self.archive
                )));
            }
            Err(why) => self.report.refused.push((found.name.clone(), why)),
        }
        Ok(())
    }
}

impl Judge<'_> {
    /// Decides whether a valid entry is imported.
    fn decide(&mut self, index: u64, key: Key, entry: &Entry, digest: [u8; 32]) {
        match self.target.holds(&key, entry) {
            Some(Ok(())) => return self.report.present.push(key),
            Some(Err(why)) => return self.report.failed.push((key, why)),
            None => {}
        }
        if entry.is_pending() && self.target.is_system {
            let why = "a recipe, which cannot be baked in a system directory";
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
        let fit = AcceptedEntry {
            key,
            digest,
            library,
        };
        self.accepted.insert(index, fit);
    }

    /// Checks a member. The inner error is why it is refused.
    fn examine(
        &mut self,
        found: &mut ArchiveMember,
    ) -> Result<Result<ValidEntry, String>, Failure> {
        let refused = |why: &str| Ok(Err(why.to_owned()));
        let Some(key) = key_of(&found.name) else {
            return refused("its name is not the name of an entry");
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
                return refused("its digest is not the one in the manifest");
            }
            Some(_) => {}
        }
        let entry = match foreign::verified(bytes, &key) {
            Ok(entry) => entry,
            Err(why) => return Ok(Err(why)),
        };
        Ok(Ok((key, entry, digest)))
    }

    /// Adds the entries that the manifest lists and the archive lacks.
    fn finish(mut self) -> (Accepted, ImportReport) {
        self.bar.finish_and_clear();
        let listed = self.listed.into_keys();
        let listed = listed.filter_map(|digits| Key::from_hex(&digits));
        let missing = listed.filter(|key| !self.seen.contains(key));
        self.report.refused.extend(missing.map(|key| {
            let why = "the manifest lists it, but the archive lacks it";
            (member(&key).into_bytes(), why.to_owned())
        }));
        self.report.silent = self.drivers.silent();
        (self.accepted, self.report)
    }
}

impl Target {
    /// Whether the store has an equally good entry; None if not, Err if that cannot be read.
    fn holds(&self, key: &Key, new: &Entry) -> Option<Result<(), String>> {
        match self.store.as_ref()?.look_up(key) {
            Lookup::Found(..) => Some(Ok(())),
            Lookup::Pending(_) if new.is_pending() => Some(Ok(())),
            Lookup::Pending(_) | Lookup::Absent | Lookup::Bad(_) => None,
            Lookup::Unreadable(error) => Some(Err(error.to_string())),
        }
    }
}

/// Stores the accepted members of an archive.
struct Storing<'a> {
    store: &'a Store,
    archive: String,
    accepted: Accepted,
    bar: ProgressBar,
    report: ImportReport,
}

impl ArchiveVisitor for Storing<'_> {
    fn head(&mut self, _: ArchiveHead) -> Result<(), Failure> {
        Ok(())
    }

    fn member(&mut self, found: &mut ArchiveMember) -> Result<(), Failure> {
        let Some(fit) = self.accepted.remove(&found.index) else {
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
    Failure::new(format_args!("`{name}` changed during the import"))
}

/// Stores an entry, marked as imported, with the library of its driver on this machine and without directories of the other one.
fn publish(store: &Store, fit: &AcceptedEntry, entry: &Entry) -> Result<u64, String> {
    let library = fit.library.as_ref();
    let origin = ForeignOrigin {
        library: library.map(|path| path.to_string_lossy().into_owned()),
        ..ForeignOrigin::default()
    };
    let published = store.publish_foreign(&fit.key, entry, &origin);
    published.map_err(|error| error.to_string())
}

/// Opens a system directory for writing, and makes it if it is missing. All users can read it; only this one can write it.
fn open_system(path: &Path, config: &Config) -> Result<Store, Failure> {
    let shown = crate::log::path(path).to_string();
    let cannot = |what: &str, error: std::io::Error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "; run this as root",
            _ => "",
        };
        Failure::new(format_args!("cannot {what} `{shown}`: {error}{hint}"))
    };
    // Other users must be able to read what is made from here on.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| cannot("make", error))?;
    let mut owners = trust::own_users();
    owners.extend(config.trusted_owners());
    if let Err(why) = trust::open(path, trust::DIRECTORY, &owners) {
        return Err(Failure::new(format_args!(
            "programs would not use `{shown}`: {why}"
        )));
    }
    let mode = std::fs::metadata(path)
        .map_err(|error| cannot("examine", error))?
        .mode();
    if mode & 0o055 != 0o055 {
        return Err(Failure::new(format_args!(
            "other users cannot read `{shown}`; make it readable with `chmod a+rx {shown}`"
        )));
    }
    if !rustix::process::geteuid().is_root() {
        say(&format!(
            "oclcache: `{shown}` will belong to you: other users use it only if the system's configuration file lists you in `trusted_owners`"
        ));
    }
    let limits = Limits {
        min_free: config.min_free(),
        ..Limits::default()
    };
    Ok(Store::open_shared(path, limits)?)
}
