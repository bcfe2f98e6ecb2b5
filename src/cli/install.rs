//! `oclcache install` and `uninstall`: register the library that belongs to this command with loaders, for one user or for all.
//!
//! For all users, this is one file beside those of the drivers, or in the loader's directory of layers. Loaders read no directory of
//! drivers in a user's home. So for one user, it is a directory of drivers with only us in it, and OCL_ICD_VENDORS set to it in new
//! sessions (`user`). The loader then sees only us, and we load the drivers that it would have loaded.

mod plan;
mod session;
mod user;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::failure::Failure;
use super::home::ICD;
use super::library;
use super::open::{bytes_taken, usable_store};
use super::output::{quoted, say, size};
use super::probe;
use crate::config::Config;
use crate::front::vendors::DEFAULT_DIRECTORY;
use crate::log::path;
use crate::store::{VERSION_DIRECTORY, is_only_a_cache, live};
use crate::trust;
use plan::{DATA, InstallPlan, registration};

const LAYER: &str = "oclcache.lay";

/// Register the library, so that programs are cached without `oclcache run`
#[derive(Args)]
#[command(
    after_help = "For you, the command and the library are copied to ~/.local, and your shell's start-up file gets a line if you agree. The settings for the current shell are printed on standard output: `eval` applies them, so that programs that you start next are cached.\n\nExample: oclcache install --dry-run\nExample: eval \"$(oclcache install --user)\""
)]
pub struct InstallArgs {
    #[command(flatten)]
    whose: InstallScope,
    /// Register as a loader layer, not as a driver
    #[arg(long)]
    layer: bool,
    /// Change the start-up file of your shell without asking
    #[arg(long, short, conflicts_with = "system")]
    yes: bool,
}

/// For whom it is installed.
#[derive(Args)]
struct InstallScope {
    /// For you only; the default, except for root
    #[arg(long, conflicts_with = "system")]
    user: bool,
    /// For all users of this machine; the default for root
    #[arg(long)]
    system: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// For packagers: the prefix of all paths that are written, such as DESTDIR; not used in the content of files
    #[arg(long, value_name = "DIR", hide = true, requires = "system")]
    root: Option<PathBuf>,
    /// For packagers: where loaders look for drivers
    #[arg(
        long,
        value_name = "DIR",
        hide = true,
        default_value = DEFAULT_DIRECTORY
    )]
    icd_dir: PathBuf,
    /// For packagers: where loaders look for layers
    #[arg(
        long,
        value_name = "DIR",
        hide = true,
        default_value = probe::LAYER_DIRECTORY
    )]
    layer_dir: PathBuf,
}

impl InstallScope {
    fn is_system(&self) -> bool {
        self.system || !self.user && rustix::process::geteuid().is_root()
    }

    fn icd(&self) -> PathBuf {
        self.icd_dir.join(ICD)
    }

    fn layer(&self) -> PathBuf {
        self.layer_dir.join(LAYER)
    }

    fn root(&self) -> Result<Option<PathBuf>, Failure> {
        for directory in [&self.icd_dir, &self.layer_dir] {
            if !directory.is_absolute() {
                let shown = path(directory);
                return Err(Failure::new(format_args!(
                    "`{shown}` is not an absolute path"
                )));
            }
        }
        let Some(root) = self.root.as_deref() else {
            return Ok(None);
        };
        let real = root
            .canonicalize()
            .map_err(|error| Failure::new(format_args!("cannot use `{}`: {error}", path(root))));
        real.map(Some)
    }

    /// What to do if something cannot be written.
    fn next(&self, verb: &str, own: &Path) -> String {
        match self.is_system() && !rustix::process::geteuid().is_root() {
            true => {
                let own = quoted(own).unwrap_or_else(|| "oclcache".to_owned());
                format!("run `sudo {own} {verb} --system`, or leave out --system")
            }
            false => "check who may write there, and whether there is room".to_owned(),
        }
    }
}

impl InstallArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let whose = &self.whose;
        let root = whose.root()?;
        let own = library::own_path()?;
        let library = library::library(&own)?;
        if whose.is_system() {
            return install_for_all(&self, root.as_deref(), &own, &library);
        }
        let registered = [whose.icd(), whose.layer()].into_iter().find(|file| {
            std::fs::read(file).is_ok_and(|content| content == registration(&library))
        });
        if let Some(registered) = registered.filter(|_| !whose.user) {
            let registered = path(&registered);
            say(&format!(
                "oclcache: already registered for all users by `{registered}`; nothing is written"
            ));
            return Ok(ExitCode::SUCCESS);
        }
        user::install(&self, &own, &library)
    }
}

fn install_for_all(
    arguments: &InstallArgs,
    root: Option<&Path>,
    own: &Path,
    library: &Path,
) -> Result<ExitCode, Failure> {
    let whose = &arguments.whose;
    let mut plan = InstallPlan::for_all(root);
    let registered = match root {
        // The path after the package is installed.
        Some(root) => match library.strip_prefix(root) {
            Ok(below) => Path::new("/").join(below),
            Err(_) => library.to_owned(),
        },
        None => {
            trusted_by_all(library)?;
            library.to_owned()
        }
    };
    let chosen = match root {
        Some(_) => Registration::of_choice(arguments.layer),
        None => Registration::find(arguments.layer, true)?,
    };
    let (file, other) = match chosen.is_layer {
        true => (whose.layer(), whose.icd()),
        false => (whose.icd(), whose.layer()),
    };
    if !(root.is_none() && is_registered_by_name(&file, library)) {
        plan.write(&file, registration(&registered), DATA)?;
    }
    // With both, we would see each call twice.
    plan.remove(&other)?;
    say_plan(&plan, whose);
    let done = carry_out(&plan, whose, "install", own)?;
    let how = match chosen.is_layer {
        true => "as a layer of the loader",
        false => "beside the drivers",
    };
    say(&format!(
        "oclcache: {done}registered for all users, {how}{}",
        chosen.why()
    ));
    if root.is_none() && !whose.dry_run {
        say("oclcache: programs that start now use the cache; run `oclcache doctor` to check");
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails if another user than root can write the library: root's programs will load it, too.
fn trusted_by_all(library: &Path) -> Result<(), Failure> {
    trust::open(library, trust::FILE, &[0]).map(drop).map_err(|why| {
        let library = path(library);
        Failure::new(format_args!(
            "`{library}` cannot be registered for all users: {why}; install the command and the library where only root can write, as `sudo icd/install` does, or use --user"
        ))
    })
}

/// Whether a file registers the library by name only, as packages do, and the dynamic linker finds it.
fn is_registered_by_name(file: &Path, library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default();
    let by_name = std::fs::read(file).is_ok_and(|content| content.trim_ascii() == name.as_bytes());
    by_name && probe::is_ours(Path::new(name))
}

/// Whether a driver or a layer suits this machine.
struct Registration {
    is_layer: bool,
    why: Option<&'static str>,
}

impl Registration {
    fn of_choice(is_layer: bool) -> Registration {
        Registration {
            is_layer,
            why: None,
        }
    }

    /// Beside drivers that the loader calls through its own tables, only a layer is called. In front of drivers, all calls reach us.
    fn find(is_layer: bool, is_system: bool) -> Result<Registration, Failure> {
        if !is_layer && !is_system {
            return Ok(Registration::of_choice(false));
        }
        let machine = probe::machine(&AtomicBool::new(false)).map_err(Failure::new)?;
        let takes_layers = match is_system {
            true => machine.layer_directory,
            false => machine.layers,
        };
        match (is_layer, takes_layers) {
            (true, true) => Ok(Registration::of_choice(true)),
            (true, false) => Err(Failure::new(
                "the loader of this machine does not read such layers; leave out --layer (`oclcache doctor` shows what the loader supports)",
            )),
            (false, true) if machine.needs_layer => Ok(Registration {
                is_layer: true,
                why: Some("since it calls a driver through its own table"),
            }),
            (false, _) => Ok(Registration::of_choice(false)),
        }
    }

    fn why(&self) -> String {
        self.why.map_or_else(String::new, |why| format!(", {why}"))
    }
}

/// Shows the plan, with the content of files if nothing else is done.
fn say_plan(plan: &InstallPlan, whose: &InstallScope) {
    let shown = plan.shown(whose.dry_run);
    if !shown.is_empty() {
        say(shown.trim_end());
    }
}

/// Carries out the plan, unless it is a dry run. Returns the beginning of the last message.
fn carry_out(
    plan: &InstallPlan,
    whose: &InstallScope,
    verb: &str,
    own: &Path,
) -> Result<&'static str, Failure> {
    if whose.dry_run {
        return Ok("nothing was done; it would be ");
    }
    plan.apply(&whose.next(verb, own))?;
    Ok(if plan.is_empty() { "already " } else { "" })
}

/// Undo `install`
#[derive(Args)]
#[command(after_help = "Example: oclcache uninstall --dry-run")]
pub struct UninstallArgs {
    #[command(flatten)]
    whose: InstallScope,
}

impl UninstallArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let whose = &self.whose;
        let root = whose.root()?;
        let own = library::own_path()?;
        if !whose.is_system() {
            return user::uninstall(whose, &own);
        }
        let mut plan = InstallPlan::for_all(root.as_deref());
        plan.remove(&whose.icd())?;
        plan.remove(&whose.layer())?;
        plan.remove_directory(&whose.layer_dir);
        say_plan(&plan, whose);
        carry_out(&plan, whose, "uninstall", &own)?;
        say_removed(&plan, whose, true);
        if root.is_none() {
            say_what_stays(whose);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `was_installed`: otherwise only `oclcache run` has made what the plan removes.
fn say_removed(plan: &InstallPlan, whose: &InstallScope, was_installed: bool) {
    let for_whom = if whose.is_system() {
        "all users"
    } else {
        "you"
    };
    say(&match (plan.is_empty(), whose.dry_run) {
        (true, _) => format!("oclcache: not registered for {for_whom}"),
        (false, true) => "oclcache: nothing was done".to_owned(),
        (false, false) if was_installed => {
            format!("oclcache: no longer registered for {for_whom}")
        }
        (false, false) => {
            format!(
                "oclcache: was not registered for {for_whom}; what `oclcache run` made is removed"
            )
        }
    });
}

/// Also removes what the cache has in memory, where nobody would look for it.
fn say_what_stays(whose: &InstallScope) {
    let files = [whose.icd(), whose.layer()];
    for file in files
        .iter()
        .filter(|file| !whose.is_system() && file.exists())
    {
        let file = path(file);
        say(&format!(
            "oclcache: `{file}` still registers it for all users; run `sudo oclcache uninstall --system`"
        ));
    }
    let config = Config::read();
    let Ok(directory) = config.directory() else {
        return;
    };
    if !directory.exists() {
        return;
    }
    let store = usable_store(&config);
    let bytes = store.as_ref().map_or(0, bytes_taken);
    if let Some(store) = store.filter(|_| !whose.dry_run && !config.readonly())
        && live::leave(&store)
    {
        say(
            "oclcache: a program still counts in memory: run this again when it has ended, to remove what is there",
        );
    }
    let shown = path(&directory);
    let to_remove = match is_only_a_cache(&directory) {
        true => directory.clone(),
        false => directory.join(VERSION_DIRECTORY),
    };
    let to_remove = quoted(&to_remove).filter(|_| to_remove.exists());
    let remove = to_remove.map_or_else(String::new, |quoted| {
        format!("; remove it with `rm -r {quoted}`")
    });
    say(&format!(
        "oclcache: the cache stays, {} in `{shown}`{remove}",
        size(bytes)
    ));
}
