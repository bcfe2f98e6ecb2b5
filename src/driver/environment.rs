//! The surroundings of a call that change what a driver compiles: environment variables, configuration files, and programs that it
//! runs. An application may change any of them at any time, so they are checked in each call.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Driver;
use super::driver_names::DriverNames;
use super::file_memory::FileMemory;
use super::identity::sha256_value;
use super::known_identity::KnownIdentity;
use super::loaded::path_of;
use super::names::FIRST_ENVIRONMENT;
use super::process_variables;
use super::profile::Profile;
use super::profile::variables::{Effect, LAYERS, is_camel_case, is_neutral_value};
use super::real_paths::says_what_is_there;
use super::scripts::name_variable;
use super::tools::{Tools, file};
use super::variable_history::{self, Varied};
use super::variable_reads::Reads;
use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
use crate::key::ingredients::{Ingredient, Kind, sha256};
use crate::regular_file;

/// How often names are looked for. Twice is enough.
const MAX_ROUNDS: u32 = 4;
/// A larger file is no configuration file.
const MAX_CONFIGURATION_BYTES: u64 = 1 << 20;

/// Variables and configuration files at one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct OpeningVariables {
    /// Copied from memory, each with its NUL.
    variables: Vec<u8>,
    /// None if a file is no configuration file, or cannot be looked at for now.
    configuration: Option<Vec<Ingredient>>,
    /// The states of those of these files that are beside the library.
    beside: Vec<(PathBuf, FileFingerprint)>,
}

impl OpeningVariables {
    /// Reads the variables and files that a driver of this kind reads.
    ///
    /// `origin`: see [`origin`].
    pub fn now(profile: &Profile, origin: &[PathBuf]) -> OpeningVariables {
        let beside = beside(profile, origin);
        let states = beside.filter_map(|(path, _)| Some((FileFingerprint::at(&path)?, path)));
        OpeningVariables {
            variables: process_variables::current(),
            beside: states.map(|(state, path)| (path, state)).collect(),
            configuration: configuration(profile, origin),
        }
    }

    /// The variables, each with its NUL.
    pub(super) fn variables(&self) -> &[u8] {
        &self.variables
    }

    /// Whether one of the variables names a file that is in the key.
    pub(super) fn name_files(&self, profile: &Profile) -> bool {
        let variables = self.variables.split(|byte| *byte == 0);
        let mut named = variables.filter_map(process_variables::parse);
        named.any(|(name, _)| profile.environment.names_file(&name.to_string_lossy()))
    }
}

/// Begins the name of a configuration file that is beside the library.
const ORIGIN: &str = "$ORIGIN/";

/// The directories of the library that has this function, by its path and by its real path, if configuration files of this kind of driver
/// may be there.
pub(super) fn origin(profile: &Profile, function: usize) -> Vec<PathBuf> {
    let is_there = |name: &&str| name.starts_with(ORIGIN);
    let library = (profile.configuration.iter().any(is_there)).then(|| path_of(function));
    let library = library.flatten().unwrap_or_default();
    let real = library.canonicalize().ok();
    let mut found: Vec<PathBuf> = (real.iter().chain([&library]))
        .filter_map(|library| Some(library.parent()?.to_owned()))
        .collect();
    found.dedup();
    found
}

/// The paths of configuration files beside the library, with their names in a profile.
fn beside(profile: &Profile, origin: &[PathBuf]) -> impl Iterator<Item = (PathBuf, &'static str)> {
    let names = profile.configuration.iter();
    let names = names.filter_map(|name| Some((*name, name.strip_prefix(ORIGIN)?)));
    names.flat_map(move |(name, file)| {
        let paths = origin.iter().map(move |directory| directory.join(file));
        paths.map(move |path| (path, name))
    })
}

/// All configuration files.
fn configuration(profile: &Profile, origin: &[PathBuf]) -> Option<Vec<Ingredient>> {
    let elsewhere = profile.configuration.iter();
    let elsewhere = elsewhere.filter(|name| !name.starts_with(ORIGIN));
    let elsewhere = elsewhere.map(|name| (PathBuf::from(name), *name));
    let mut ingredients = Vec::new();
    for (path, name) in elsewhere.chain(beside(profile, origin)) {
        if let Some(content) = configuration_file(&path).ok()? {
            let value = sha256_value(&sha256(&content?));
            ingredients.push(Ingredient::new(Kind::Driver, name, value));
        }
    }
    Some(ingredients)
}

/// All variables at the last call, and the ingredients that followed from them. A comparison is faster than finding the ingredients
/// again.
#[derive(Default)]
pub struct KnownVariables(Mutex<Snapshot>);

#[derive(Default)]
struct Snapshot {
    /// Copied from memory, each with its NUL.
    all: Vec<u8>,
    /// Incremented at each change.
    changes: u64,
    /// The programs that the driver runs, as they were found last.
    tools: Tools,
    /// When that was. None: with other variables.
    found: Option<Instant>,
    chosen: Option<Chosen>,
}

/// The variables that are in the key.
struct Chosen {
    /// How often names of the driver's libraries had been added.
    names: usize,
    /// The names in its tools.
    tools: Arc<DriverNames>,
    /// How often variables had varied, see [`Varied::changes`].
    variations: u64,
    now: Arc<DriverSurroundings>,
    /// The part of the variables when the driver was opened.
    opened: Arc<DriverSurroundings>,
    /// The part of the variables with which the process was started, for a driver that may read them.
    started: Arc<DriverSurroundings>,
}

/// The part of a key that tells the surroundings of a call.
#[derive(Clone, Default)]
pub struct DriverSurroundings {
    /// The ingredients of the key.
    pub ingredients: Vec<Ingredient>,
    /// Files that a compiler would read as well. This follows from values, and a key may hold only digests of them.
    pub reads: Reads,
    /// Whether variables of the key were others in an earlier call in which drivers read them: see `variable_history`.
    pub has_changed: bool,
}

/// The facts that decide whether a variable is in the key.
struct Choice<'a> {
    profile: &'a Profile,
    suffix: &'a [u8],
    libraries: &'a DriverNames,
    tools: &'a Tools,
    /// Whether names occur in libraries or tools. Most variables are the same at all moments.
    occurring: RefCell<HashMap<String, bool>>,
    /// The names that must be looked for first, see [`DriverNames::has`].
    unknown: RefCell<Vec<Vec<u8>>>,
    memory: &'a dyn FileMemory,
}

impl KnownVariables {
    /// The programs that were found last, with the current variables.
    pub(super) fn tools_now(&self) -> Option<Tools> {
        let known = self.0.lock();
        known.found?;
        process_variables::is_current(&known.all).then(|| known.tools.clone())
    }

    /// The programs that were found within this time, or are found now, with the current variables.
    fn tools(&self, age: Duration, find: impl FnOnce(&Tools) -> Option<Tools>) -> Option<Tools> {
        let mut known = self.0.lock();
        if !process_variables::is_current(&known.all) {
            *known = Snapshot {
                all: process_variables::current(),
                changes: known.changes + 1,
                tools: known.tools.for_other_variables(),
                ..Snapshot::default()
            };
        }
        let before = known.tools.clone();
        if known.found.is_some_and(|found| found.elapsed() < age) {
            return Some(before);
        }
        let changes = known.changes;
        drop(known);
        let now = Instant::now();
        let tools = find(&before)?;
        let mut known = self.0.lock();
        if known.changes == changes {
            known.tools = tools.clone();
            known.found = Some(now);
        }
        Some(tools)
    }

    /// The variables that are in the key: now, when the driver was opened, and when the process was started.
    /// None if the driver may read the last, and they cannot be read, or if names must be looked for first.
    fn chosen(
        &self,
        opened: &OpeningVariables,
        choice: &Choice,
    ) -> Option<[Arc<DriverSurroundings>; 3]> {
        let first = process_variables::at_start();
        if first.is_none() && choice.reads_first_environment() {
            return None;
        }
        let names = choice.libraries.changes();
        let mut known = self.0.lock();
        let variations = known.chosen.as_ref().map(|chosen| chosen.variations);
        let varied = variable_history::varied_since(variations);
        match &known.chosen {
            Some(chosen)
                if chosen.names == names
                    && varied.is_none()
                    && Arc::ptr_eq(&chosen.tools, &choice.tools.names) => {}
            _ => {
                let varied = varied.or_else(|| variable_history::varied_since(None));
                let varied = varied.unwrap_or_default();
                let mut now = choice.of(&known.all);
                now.has_changed = choice.varies(&varied, &known.all);
                let now = Arc::new(now);
                let at = |variables: &[u8]| match variables == known.all {
                    true => now.clone(),
                    false => Arc::new(choice.of(variables)),
                };
                let opened = at(&opened.variables);
                let started = match first {
                    Some(first) if choice.reads_first_environment() => at(first),
                    _ => now.clone(),
                };
                if !choice.unknown.borrow().is_empty() {
                    return None;
                }
                let tools = choice.tools.names.clone();
                known.chosen = Some(Chosen {
                    names,
                    tools,
                    variations: varied.changes,
                    now,
                    opened,
                    started,
                });
            }
        }
        let chosen = known.chosen.as_ref();
        chosen.map(|chosen| [&chosen.now, &chosen.opened, &chosen.started].map(Arc::clone))
    }
}

/// The names and values of variables that each end with a NUL.
fn parsed(all: &[u8]) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    let variables = all.split(|byte| *byte == 0);
    variables.filter_map(process_variables::parse)
}

impl Choice<'_> {
    /// Whether a library may read `/proc/self/environ`. It has the variables with which the process was started, whatever the
    /// program has changed since (measured: Intel's libintlc, libtbb and libtbbmalloc look for INTEL_ISA_DISABLE there).
    fn reads_first_environment(&self) -> bool {
        self.has(self.libraries, FIRST_ENVIRONMENT)
    }

    /// Whether a name occurs in these libraries.
    fn has(&self, libraries: &DriverNames, name: &[u8]) -> bool {
        let occurs = libraries.has(name, self.memory);
        if occurs.is_none() {
            self.unknown.borrow_mut().push(name.to_vec());
        }
        occurs.unwrap_or(true)
    }

    /// The part of these variables that is in the key, by name.
    fn of(&self, all: &[u8]) -> DriverSurroundings {
        let mut chosen = DriverSurroundings::default();
        for (name, value) in parsed(all) {
            if let Some(one) = self.ingredient(name, value, all) {
                chosen.reads = chosen.reads.max(Reads::of(&one.name, value.as_bytes()));
                chosen.ingredients.push(one);
            }
        }
        let ingredients = &mut chosen.ingredients;
        ingredients.sort_by(|one, other| one.name.cmp(&other.name));
        chosen
    }

    /// Whether the values that a variable has had differ in the key, where these are all variables.
    fn varies(&self, varied: &Varied, all: &[u8]) -> bool {
        let differ = |(name, values): (&OsString, &Vec<Option<OsString>>)| {
            let of = |value: &Option<OsString>| self.ingredient(name, value.as_ref()?, all);
            let mut values = values.iter().map(of);
            let first = values.next();
            // All are asked for: names that are not known are looked for at once.
            values.filter(|one| Some(one) != first.as_ref()).count() > 0
        };
        let changed = varied.values.iter().filter(|one| differ(*one));
        let changed = changed.inspect(|(name, _)| {
            tracing::info!(variable = %name.display(), "changed after the driver may have read it");
        });
        varied.is_full || changed.count() > 0
    }

    /// A variable of these as it is in the key. None if it is not.
    fn ingredient(&self, name: &OsStr, value: &OsStr, all: &[u8]) -> Option<Ingredient> {
        let (name, value) = (name.to_string_lossy(), value.as_bytes());
        let value = match self.enters(&name, value, || parsed(all))? {
            Enters::AsText => value.to_vec(),
            Enters::AsDigest => sha256_value(&sha256(value)),
        };
        Some(Ingredient::new(Kind::Environment, name, value))
    }

    /// How a variable is in the key. None if it is not.
    fn enters<'v, All>(
        &self,
        name: &str,
        value: &[u8],
        variables: impl Fn() -> All,
    ) -> Option<Enters>
    where
        All: Iterator<Item = (&'v OsStr, &'v OsStr)>,
    {
        let environment = self.profile.environment;
        let by_suffix = || {
            let rest = name.as_bytes().strip_prefix(self.suffix);
            self.profile.suffix_variables
                && !self.suffix.is_empty()
                && rest.is_some_and(|rest| rest.starts_with(b"_"))
        };
        let by_case = || {
            let is_read =
                |switch: &str| variables().any(|(name, value)| name == switch && value != "0");
            is_camel_case(name) && environment.camel_case.is_some_and(is_read)
        };
        let is_known = match environment.effect(name).or_else(|| LAYERS.effect(name)) {
            Some(Effect::Code | Effect::Identity) => true,
            // A script in place of a tool does with a variable what nobody knows.
            _ if name_variable(&self.tools.scripts, name.as_bytes()) => {
                return Some(Enters::AsDigest);
            }
            Some(Effect::Neutral) => return None,
            None => by_suffix() || by_case(),
        };
        if is_known {
            return (!environment.is_default(name, value)).then_some(Enters::AsText);
        }
        let occurs = || {
            let mut known = self.occurring.borrow_mut();
            if let Some(occurs) = known.get(name) {
                return *occurs;
            }
            let mut lists = [self.libraries, &*self.tools.names].into_iter();
            let occurs = lists.any(|list| self.has(list, name.as_bytes()));
            known.insert(name.to_owned(), occurs);
            occurs
        };
        (!is_neutral_value(name, value) && occurs()).then_some(Enters::AsDigest)
    }
}

/// How a variable is in the key.
enum Enters {
    AsText,
    /// As a digest: the purpose of the variable is unknown, so its value may be a password.
    AsDigest,
}

/// The suffixes of ingredients that tell a difference between now and an earlier moment.
const OPENED: &str = "when the driver was opened";
const STARTED: &str = "when the process was started";

/// Whether this ingredient tells a difference at an earlier moment.
pub fn has_changed(one: &Ingredient) -> bool {
    [OPENED, STARTED].iter().any(|end| one.name.ends_with(end))
}

/// The differences at an earlier moment.
fn differences(then: &[Ingredient], now: &[Ingredient], moment: &str) -> Vec<Ingredient> {
    let is_there = |list: &[Ingredient], wanted: &Ingredient| {
        list.iter()
            .any(|one| (one.kind, &one.name) == (wanted.kind, &wanted.name))
    };
    let others = then.iter().filter(|one| !now.contains(one)).map(|one| {
        let name = format!("{} {moment}", one.name);
        Ingredient::new(one.kind, name, one.value.as_slice())
    });
    let new = now.iter().filter(|one| !is_there(then, one)).map(|one| {
        let name = format!("{}, not there {moment}", one.name);
        Ingredient::new(one.kind, name, [])
    });
    others.chain(new).collect()
}

/// The content of a configuration file, Some(None) if it is too large. None if there is no such file, or none that this user may
/// read, so that the driver works without.
///
/// # Errors
/// It cannot be looked at for now, and the driver may be luckier.
fn configuration_file(path: &Path) -> io::Result<Option<Option<Vec<u8>>>> {
    let path = match (path.strip_prefix("~"), process_variables::value("HOME")) {
        (Ok(below), Some(home)) => PathBuf::from(home).join(below),
        (Ok(_), None) => return Ok(None),
        (Err(_), _) => path.to_owned(),
    };
    let file = match regular_file::open(&path) {
        Ok(Some((file, _))) => file,
        Ok(None) => return Ok(None),
        Err(error) if says_what_is_there(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(MAX_CONFIGURATION_BYTES + 1)
        .read_to_end(&mut content)?;
    let fits = content.len() as u64 <= MAX_CONFIGURATION_BYTES;
    Ok(Some(fits.then_some(content)))
}

impl Driver {
    /// The configuration files beside the library, which are among the files of the identity and are watched with them. They are read only
    /// if they are not what they were when the driver was opened.
    fn configuration_beside(&self, known: &KnownIdentity) -> Option<&[Ingredient]> {
        let found = self.beside.get_or_try_init(|| {
            let then = self.opened_in.beside.iter();
            let then: Vec<_> = then
                .map(|(path, state)| (path.as_path(), Some(*state)))
                .collect();
            let now = beside(self.profile, &self.origin).filter_map(|(path, _)| known.state(&path));
            let all = match now.eq(then) {
                true => self.opened_in.configuration.clone(),
                false => configuration(self.profile, &self.origin),
            };
            let all = all.ok_or(())?.into_iter();
            let beside = all.filter(|one| one.name.starts_with(ORIGIN));
            Ok::<_, ()>(Box::new(beside.collect()))
        });
        found.ok().map(Vec::as_slice)
    }

    /// The names that a first key asks for in these libraries of the driver, as far as nothing is known of them. Those that it asks for in
    /// the driver's programs are not among them.
    pub(super) fn names_to_be_asked(
        &self,
        libraries: &DriverNames,
        memory: &dyn FileMemory,
    ) -> Vec<Vec<u8>> {
        let choice = Choice {
            profile: self.profile,
            suffix: &self.suffix,
            libraries,
            tools: &Tools::default(),
            occurring: RefCell::default(),
            unknown: RefCell::default(),
            memory,
        };
        let first = process_variables::at_start().filter(|_| choice.reads_first_environment());
        let all = [&process_variables::current(), &self.opened_in.variables];
        for variables in all.map(Vec::as_slice).into_iter().chain(first) {
            choice.of(variables);
        }
        choice.unknown.take()
    }

    /// The names of all variables that a first key may ask for.
    pub(super) fn names_of_variables(&self) -> Vec<Vec<u8>> {
        let current = process_variables::current();
        let first = process_variables::at_start().unwrap_or_default();
        let all = [&current, &self.opened_in.variables, first];
        let all = all.into_iter().flat_map(|all| all.split(|byte| *byte == 0));
        let names = all.filter_map(process_variables::parse);
        let names = names.map(|(name, _)| name.to_string_lossy().into_owned().into_bytes());
        let names: BTreeSet<Vec<u8>> = names.chain([FIRST_ENVIRONMENT.to_vec()]).collect();
        names.into_iter().collect()
    }

    /// The part of a key that tells the surroundings of this call.
    ///
    /// Differences since the driver was opened are in it as well: drivers read variables and files at either time (measured:
    /// Intel's CPU runtime reads its cl.cfg at both). So are differences since the process was started, if the driver may read
    /// those variables.
    ///
    /// `age`: how old the look-up of the driver's programs may be.
    ///
    /// None if a file or the first variables cannot be read.
    pub(super) fn surroundings_at_most(
        &self,
        age: Duration,
        is_il: bool,
        memory: &dyn FileMemory,
    ) -> Option<DriverSurroundings> {
        let profile = self.profile;
        let compilers = &self.known_identity(memory)?.compilers;
        let find = |before: &Tools| Tools::find(profile.tools, compilers, before, memory);
        let tools = self.variables.tools(age, find)?;
        let choice = Choice {
            profile,
            suffix: &self.suffix,
            libraries: self.names(memory)?,
            tools: &tools,
            occurring: RefCell::default(),
            unknown: RefCell::default(),
            memory,
        };
        let mut chosen = self.variables.chosen(&self.opened_in, &choice);
        // Which names matter may depend on whether another one occurs.
        for _ in 0..MAX_ROUNDS {
            let unknown = choice.unknown.take();
            if unknown.is_empty() {
                break;
            }
            for names in [choice.libraries, &*choice.tools.names] {
                names.look_for(&unknown, memory).ok()?;
            }
            choice.occurring.take();
            chosen = self.variables.chosen(&self.opened_in, &choice);
        }
        let [now, opened, started] = chosen?;
        let reads = now.reads.max(opened.reads).max(started.reads);
        let mut ingredients = now.ingredients.clone();
        let changed = differences(&started.ingredients, &ingredients, STARTED);
        let mut opened = opened.ingredients.clone();
        ingredients.extend(configuration(profile, &[])?);
        ingredients.extend_from_slice(self.configuration_beside(self.known_identity(memory)?)?);
        opened.extend(self.opened_in.configuration.clone()?);
        let named: Vec<PathBuf> = ingredients
            .iter()
            .filter(|one| one.kind == Kind::Environment)
            .filter(|one| profile.environment.names_file(&one.name))
            .map(|one| OsStr::from_bytes(&one.value).into())
            .collect();
        ingredients.extend(differences(&opened, &ingredients, OPENED));
        ingredients.extend(changed);
        for path in named.into_iter().filter(|path| path.is_file()) {
            ingredients.push(file(&path, memory)?);
        }
        ingredients.extend(tools.ingredients);
        if is_il {
            ingredients.extend(self.il_files(memory)?);
        }
        Some(DriverSurroundings {
            ingredients,
            reads,
            has_changed: now.has_changed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::names::tests::TestMemory;

    #[test]
    fn what_has_changed_since_the_driver_was_opened_is_told_with_both_values() {
        let variable = |name: &str, value: &str| Ingredient::new(Kind::Environment, name, value);
        let then = [variable("A", "1"), variable("B", "2"), variable("C", "3")];
        let now = [variable("A", "1"), variable("B", "4"), variable("D", "5")];
        assert!(differences(&then, &then, OPENED).is_empty());
        assert_eq!(
            differences(&then, &now, OPENED),
            [
                variable("B when the driver was opened", "2"),
                variable("C when the driver was opened", "3"),
                variable("D, not there when the driver was opened", ""),
            ]
        );
    }

    #[test]
    fn names_in_programs_stay_known_where_other_variables_lead_to_the_same_ones() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = "a-program-of-nobody";
        std::fs::copy("/bin/sh", directory.path().join(program)).expect("copied");
        let memory = TestMemory::new();
        let known = KnownVariables::default();
        let find = |before: &Tools| Tools::find(&[program], &[], before, &memory);
        let names = |path: &str, other: u32| {
            let variables = format!("PATH={path}\0A={other}\0");
            let find = || known.tools(Duration::ZERO, find);
            let tools = process_variables::as_at(variables.as_bytes(), find);
            tools.expect("found").names
        };
        let path = directory.path().to_str().expect("UTF-8");
        let first = names(path, 1);
        assert!(Arc::ptr_eq(&first, &names(path, 2)));
        assert!(!Arc::ptr_eq(&first, &names("/nowhere", 2)));
    }
}
