//! The installation of one user: copies below `~/.local`, a registration, and what sets OCL_ICD_VENDORS in new sessions.
//!
//! The copies do not change when the build that they come from is removed. A program that runs keeps the library that it has loaded,
//! since files are replaced by renaming.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::plan::{DATA, InstallPlan, PROGRAM, TEMPORARY, registration};
use super::session::{LAYERS, OWN_VENDORS, Scripts, VENDORS, drivers, layers, of_session};
use super::{
    InstallArgs, InstallScope, Registration, carry_out, say_plan, say_removed, say_what_stays,
};
use crate::cli::confirm::confirm;
use crate::cli::failure::Failure;
use crate::cli::home::{Copies, Home};
use crate::cli::library::typed;
use crate::cli::output::{print, quoted, say};
use crate::cli::start_files::{
    LINE, LinePosition, StartFile, has_line, login_shell, of_shell, overridden, target, with_line,
    zdotdir,
};
use crate::cli::vendors;
use crate::companion::REMOTE_HELPER;
use crate::log::{path, text};
use crate::store::directory::Directory;

pub fn install(arguments: &InstallArgs, own: &Path, library: &Path) -> Result<ExitCode, Failure> {
    let whose = &arguments.whose;
    refuse_sudo("install")?;
    let home = Home::find()?;
    let copies = Copies::find()?;
    let chosen = Registration::find(arguments.layer, false)?;
    let variables: Vec<(&str, OsString)> = match chosen.is_layer {
        true => vec![(LAYERS, layers(&copies))],
        false => {
            let drivers = drivers(&home)?.map(|drivers| (OWN_VENDORS, drivers));
            let vendors = (VENDORS, home.vendors.clone().into());
            [vendors].into_iter().chain(drivers).collect()
        }
    };
    let scripts = Scripts::new(&copies, &variables)?;
    let mut plan = InstallPlan::for_user();
    plan.copy(library, &copies.library(), DATA)?;
    plan.copy(own, &copies.command(), PROGRAM)?;
    let helper = own.with_file_name(REMOTE_HELPER);
    if helper.is_file() {
        plan.copy(&helper, &copies.helper(), PROGRAM)?;
    }
    plan.write(&copies.launcher(), scripts.launcher(), PROGRAM)?;
    plan.write(&copies.profile(), scripts.profile(), DATA)?;
    match chosen.is_layer {
        true => {
            plan.remove(&home.icd())?;
            plan.remove_directory(&home.vendors);
        }
        false => plan.write(&home.icd(), registration(&copies.library()), DATA)?,
    }
    plan.remove(&home.old_icd())?;
    let session = of_session(&copies.home, &variables)?;
    plan.write(&home.variables, session, DATA)?;
    // Who has this file has agreed to it.
    if fish_file(&home).exists() {
        plan.write(&fish_file(&home), scripts.fish(), DATA)?;
    }
    let start = StartUp::find(&home, &copies, &scripts)?;
    say_plan(&plan, whose);
    let is_agreed = match arguments.yes || whose.dry_run {
        true => {
            say_plan(&start.plan, whose);
            true
        }
        false => {
            start.plan.is_empty()
                || {
                    let question = "oclcache: change the start-up files of your shell like this, so that new logins use it?";
                    let question = format!("{}{question}", start.plan.shown(false));
                    confirm(&question) == Some(true)
                }
        }
    };
    let is_changed = !start.plan.is_empty() && is_agreed;
    if is_agreed {
        plan.append(start.plan);
    }
    let done = carry_out(&plan, whose, "install", own)?;
    let how = match chosen.is_layer {
        true => "as a layer of the loader",
        false => "in front of the drivers",
    };
    say(&format!(
        "oclcache: {done}registered for you, {how}{}",
        chosen.why()
    ));
    for words in &start.by_hand {
        say(words);
    }
    if whose.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if is_changed {
        say("oclcache: shells and desktop sessions that begin from now on use it");
    } else if !is_agreed {
        say(&format!(
            "oclcache: the start-up files of your shell are not changed, so shells of new logins do not use it; run `{} install --user --yes`{}",
            typed(),
            start.lines
        ));
    }
    let not_in_path = directory_not_in_path(&copies);
    if not_in_path.is_some() {
        say(&format!(
            "oclcache: the command is now `{}`; its directory is added to PATH of this shell",
            path(&copies.launcher())
        ));
    }
    say_for_shell("this shell needs the variables, too");
    for (name, value) in &variables {
        let value = quoted(Path::new(value)).unwrap_or_default();
        print(format!("export {name}={value}\n").as_bytes())?;
    }
    // Behind the others, so that no other program is replaced.
    if let Some(directory) = not_in_path.as_deref().and_then(quoted) {
        print(format!("export PATH=\"$PATH\":{directory}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails for root under sudo, who would install in root's home, or in the caller's as root.
fn refuse_sudo(verb: &str) -> Result<(), Failure> {
    let caller = std::env::var_os("SUDO_UID").filter(|user| user != "0");
    if caller.is_none() || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::usage(format_args!(
        "`{verb} --user` is for the user who runs it, and sudo makes that root; run `{} {verb} --user` without sudo, or use --system",
        typed()
    )))
}

/// The directory of the command, if the shell does not search it.
fn directory_not_in_path(copies: &Copies) -> Option<PathBuf> {
    let launcher = copies.launcher();
    let directory = launcher.parent()?;
    let path_variable = std::env::var_os("PATH").unwrap_or_default();
    let is_searched = std::env::split_paths(&path_variable).any(|one| one == directory);
    (!is_searched).then(|| directory.to_owned())
}

/// The changes of start-up files of the user's login shell.
struct StartUp {
    plan: InstallPlan,
    /// How to do it without `--yes`.
    lines: String,
    /// What this command cannot do, as messages.
    by_hand: Vec<String>,
}

impl StartUp {
    fn find(home: &Home, copies: &Copies, scripts: &Scripts) -> Result<StartUp, Failure> {
        let mut found = StartUp {
            plan: InstallPlan::for_user(),
            lines: String::new(),
            by_hand: Vec::new(),
        };
        let shell = login_shell();
        if shell == "fish" {
            if !fish_file(home).exists() {
                found.plan.write(&fish_file(home), scripts.fish(), DATA)?;
            }
            return Ok(found);
        }
        let Some(files) = of_shell(&shell, &copies.home, zdotdir().as_deref()) else {
            if !with_line(&copies.home, zdotdir().as_deref()).is_empty() {
                return Ok(found);
            }
            let which = match shell.as_str() {
                "" => "SHELL is not set".to_owned(),
                shell => format!(
                    "the start-up files of `{}` are not known",
                    text(shell.as_bytes())
                ),
            };
            let variables = "make your shell set, when you log in, the variables that `oclcache install --user` prints";
            found
                .by_hand
                .push(format!("oclcache: {which}; {variables}"));
            return Ok(found);
        };
        let missing = files.into_iter().filter(|one| !has_line(&one.file));
        for StartFile { file, position } in missing {
            let shown = path(&file).to_string();
            let place = match position {
                LinePosition::First => format!("at the top of `{shown}`"),
                LinePosition::Last => format!("at the end of `{shown}`"),
            };
            match target(&file) {
                Ok(target) => {
                    found.lines += match found.lines.is_empty() {
                        true => ", or insert the line below ",
                        false => " and ",
                    };
                    found.lines += &place;
                    found.plan.insert_line(&file, target, position);
                }
                Err(why) => found.by_hand.push(format!(
                    "oclcache: `{shown}` is not changed: {why}; insert this line {place}:\n{LINE}"
                )),
            }
        }
        if !found.lines.is_empty() {
            found.lines += &format!(":\n{LINE}");
        }
        if let Some((file, line)) = overridden(VENDORS, &copies.home) {
            found.by_hand.push(format!(
                "oclcache: shells that read `{}` do not use it, because of `{}` there: remove that line, and name its drivers by `oclcache config set vendors DRIVERS`",
                path(&file),
                text(line.as_bytes())
            ));
        }
        Ok(found)
    }
}

/// fish reads all files of this directory.
fn fish_file(home: &Home) -> PathBuf {
    home.config.join("fish/conf.d/oclcache.fish")
}

pub fn uninstall(whose: &InstallScope, own: &Path) -> Result<ExitCode, Failure> {
    refuse_sudo("uninstall")?;
    let home = Home::find()?;
    let copies = Copies::find()?;
    let others = copies.other_architectures();
    let mut plan = InstallPlan::for_user();
    if others.is_empty() {
        forget_sessions(&home, &copies, &mut plan)?;
    }
    let is_registered = home.icd().exists() || home.old_icd().exists();
    // A layer has no `.icd` file.
    let was_installed = is_registered || home.variables.exists();
    plan.remove(&home.icd())?;
    plan.remove(&home.old_icd())?;
    for file in copy_files(&copies) {
        plan.remove_copy(&file)?;
    }
    plan.remove_directory(&copies.directory());
    if others.is_empty() {
        plan.remove(&copies.launcher())?;
        plan.remove(&copies.profile())?;
    }
    forget_directories(&home, &copies, &mut plan);
    say_plan(&plan, whose);
    carry_out(&plan, whose, "uninstall", own)?;
    say_removed(&plan, whose, was_installed);
    if !others.is_empty() {
        let others = others.join(", ");
        say(&format!(
            "oclcache: it stays installed for {others}; run `oclcache uninstall --user` on such a machine"
        ));
    }
    say_what_stays(whose);
    if whose.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if is_registered {
        say("oclcache: other open sessions find no driver until they end");
    }
    let has = |name: &str, is_ours: &dyn Fn(&[u8]) -> bool| {
        std::env::var_os(name).is_some_and(|value| is_ours(value.as_bytes()))
    };
    if has(VENDORS, &|value| {
        value == home.vendors.as_os_str().as_bytes()
    }) {
        say_for_shell("this session still searches the removed directory for drivers");
        print(unset(&[VENDORS, OWN_VENDORS]).as_bytes())?;
    }
    if has(LAYERS, &|value| {
        value.windows(11).any(|part| part == b"liboclcache")
    }) {
        say_for_shell("this session still has the layer");
        print(unset(&[LAYERS]).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what the lines on standard output are for.
fn say_for_shell(why: &str) {
    say(&match std::io::stdout().is_terminal() {
        true => format!("oclcache: {why}; run this in the shell:"),
        false => {
            format!("oclcache: {why}; the command for that goes to standard output, for `eval`")
        }
    });
}

/// The command that unsets variables.
fn unset(names: &[&str]) -> String {
    let command = if login_shell() == "fish" {
        "set -e"
    } else {
        "unset"
    };
    format!("{command} {}\n", names.join(" "))
}

/// Plans to remove what sets variables in new sessions, and what `oclcache run` has made.
fn forget_sessions(home: &Home, copies: &Copies, plan: &mut InstallPlan) -> Result<(), Failure> {
    for file in with_line(&copies.home, zdotdir().as_deref()) {
        match target(&file) {
            Ok(target) => plan.remove_line(&file, target),
            // It does nothing without the file that it tests for.
            Err(why) => say(&format!(
                "oclcache: `{}` is not changed: {why}; remove this line from it:\n{LINE}",
                path(&file)
            )),
        }
    }
    plan.remove(&fish_file(home))?;
    plan.remove(&home.variables)?;
    let place = home.vendors.parent().unwrap_or(&home.vendors);
    let opened = Directory::open(place).ok().flatten();
    for made in opened.iter().flat_map(vendors::made_vendors) {
        for file in &made.files {
            plan.remove_known(&place.join(&made.name).join(file));
        }
        plan.remove_directory(&place.join(made.name));
    }
    Ok(())
}

/// The files in the directory of this architecture's copies, with those that a killed installation left.
fn copy_files(copies: &Copies) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(copies.directory()).into_iter().flatten();
    let files = entries.flatten().map(|entry| entry.path());
    let is_left = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().as_bytes();
        name.starts_with(TEMPORARY.as_bytes())
    };
    let copies = [copies.library(), copies.command(), copies.helper()];
    copies.into_iter().chain(files.filter(is_left)).collect()
}

/// Plans to remove the directories that are empty then.
fn forget_directories(home: &Home, copies: &Copies, plan: &mut InstallPlan) {
    let fish = fish_file(home);
    let launcher = copies.launcher();
    let last = [
        Some(copies.root.as_path()),
        launcher.parent(),
        Some(&home.vendors),
        home.vendors.parent(),
        home.variables.parent(),
        fish.parent(),
    ];
    for directory in last.into_iter().flatten() {
        plan.remove_directory(directory);
        plan.remove_directories(directory, &copies.home);
    }
}
