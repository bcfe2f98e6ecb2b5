//! What is around a call and changes what a driver compiles: environment variables, configuration files, and programs that
//! it runs. An application may change any of them at any time, so they are looked at in each call.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Driver;
use super::identity::{FileDigest, sha256_value};
use super::profile::Profile;
use super::profile::variables::{Effect, LAYERS};
use crate::fork::Mutex;
use crate::key::ingredients::{Ingredient, Kind, sha256};

/// A file that is larger is no configuration file.
const LARGEST_CONFIGURATION: u64 = 1 << 20;

/// Variables and configuration files at one moment. None: a file is no configuration file.
pub type Surroundings = Option<Vec<Ingredient>>;

/// Those that a driver of this kind looks at, now.
pub fn surroundings(profile: &Profile, suffix: &[u8], known: &Variables) -> Surroundings {
    let mut ingredients = known.wanted(profile, suffix);
    for name in profile.configuration {
        if let Some(content) = configuration_file(name) {
            let value = sha256_value(&sha256(&content?));
            ingredients.push(Ingredient::new(Kind::Driver, *name, value));
        }
    }
    Some(ingredients)
}

/// All variables at the last call, and what followed from them: to tell that apart takes longer than to see that none has changed.
#[derive(Default)]
pub struct Variables(Mutex<Snapshot>);

#[derive(Default)]
struct Snapshot {
    /// As they stand in memory, each with its NUL.
    all: Vec<u8>,
    wanted: Vec<Ingredient>,
    /// Counts the changes.
    changes: u64,
    /// The programs that the driver runs, and when they were found.
    tools: Option<(Instant, Vec<Ingredient>)>,
}

impl Variables {
    fn wanted(&self, profile: &Profile, suffix: &[u8]) -> Vec<Ingredient> {
        let mut known = self.0.lock();
        if !is_environment(&known.all) {
            let all = environment();
            let variables = all.split(|byte| *byte == 0).filter_map(variable);
            let mut wanted: Vec<Ingredient> = variables
                .filter(|(name, value)| is_wanted(profile, suffix, name, value))
                .map(|(name, value)| {
                    Ingredient::new(Kind::Environment, name.to_string_lossy(), value.as_bytes())
                })
                .collect();
            wanted.sort_by(|one, other| one.name.cmp(&other.name));
            *known = Snapshot {
                all,
                wanted,
                changes: known.changes + 1,
                tools: None,
            };
        }
        known.wanted.clone()
    }

    /// The programs that were found not longer ago than this, or are found now, with the variables as they are.
    fn tools(
        &self,
        age: Duration,
        find: impl FnOnce() -> Option<Vec<Ingredient>>,
    ) -> Option<Vec<Ingredient>> {
        let known = self.0.lock();
        match &known.tools {
            Some((found, tools)) if found.elapsed() < age => return Some(tools.clone()),
            _ => {}
        }
        let changes = known.changes;
        drop(known);
        let now = Instant::now();
        let tools = find()?;
        let mut known = self.0.lock();
        if known.changes == changes {
            known.tools = Some((now, tools.clone()));
        }
        Some(tools)
    }
}

unsafe extern "C" {
    /// environ(7)
    static environ: *const *const c_char;
}

/// Calls the function for each variable with its NUL, until it says no. Makes no copies, unlike `std::env::vars_os`.
fn all_variables(mut each: impl FnMut(&[u8]) -> bool) {
    // SAFETY: a NULL-terminated array of C strings, or NULL (environ(7)). It must not be changed meanwhile, as for drivers and
    // everybody else who reads it.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            if !each(CStr::from_ptr(*next).to_bytes_with_nul()) {
                return;
            }
            next = next.add(1);
        }
    }
}

fn environment() -> Vec<u8> {
    let mut all = Vec::new();
    all_variables(|variable| {
        all.extend(variable);
        true
    });
    all
}

/// Whether these are the variables now.
fn is_environment(mut rest: &[u8]) -> bool {
    let mut is_same = true;
    all_variables(|variable| {
        match rest.strip_prefix(variable) {
            Some(behind) => rest = behind,
            None => is_same = false,
        }
        is_same
    });
    is_same && rest.is_empty()
}

/// Name and value. A name may begin with `=`, as for the standard library.
fn variable(text: &[u8]) -> Option<(&OsStr, &OsStr)> {
    let end = 1 + text.get(1..)?.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (&text[..end], &text[end + 1..]);
    Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
}

/// What was otherwise at an earlier moment.
fn differences(then: &[Ingredient], now: &[Ingredient]) -> Vec<Ingredient> {
    let is_there = |list: &[Ingredient], wanted: &Ingredient| {
        list.iter()
            .any(|one| (one.kind, &one.name) == (wanted.kind, &wanted.name))
    };
    let others = then.iter().filter(|one| !now.contains(one)).map(|one| {
        let name = format!("{} when the driver was opened", one.name);
        Ingredient::new(one.kind, name, one.value.as_slice())
    });
    let new = now.iter().filter(|one| !is_there(then, one)).map(|one| {
        let name = format!("{}, not there when the driver was opened", one.name);
        Ingredient::new(one.kind, name, [])
    });
    others.chain(new).collect()
}

fn is_wanted(profile: &Profile, suffix: &[u8], name: &OsStr, value: &OsStr) -> bool {
    let environment = profile.environment;
    let Some(text) = name.to_str() else {
        return false;
    };
    let by_suffix = || {
        let rest = text.as_bytes().strip_prefix(suffix);
        profile.suffix_variables
            && !suffix.is_empty()
            && rest.is_some_and(|rest| rest.starts_with(b"_"))
    };
    let by_case = || {
        is_camel_case(text)
            && environment
                .camel_case
                .and_then(std::env::var_os)
                .is_some_and(|value| value != "0")
    };
    let changes = match environment.effect(text).or_else(|| LAYERS.effect(text)) {
        Some(Effect::Code | Effect::Identity) => true,
        Some(Effect::Neutral) => false,
        None => by_suffix() || by_case(),
    };
    changes && !environment.is_default(text, value.as_bytes())
}

/// Whether a name is of the form `LikeThis`.
fn is_camel_case(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.contains(|character: char| character.is_ascii_lowercase())
        && name
            .chars()
            .all(|character| character.is_ascii_alphanumeric())
}

/// The content of a configuration file, or None if that is too large. None: it is not there, so the driver does without.
fn configuration_file(name: &str) -> Option<Option<Vec<u8>>> {
    use std::io::Read;
    let path = match name.strip_prefix("~/") {
        Some(below) => PathBuf::from(std::env::var_os("HOME")?).join(below),
        None => name.into(),
    };
    // Opening anything else could wait for ever.
    if !std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
        return None;
    }
    let mut content = Vec::new();
    std::fs::File::open(path)
        .ok()?
        .take(LARGEST_CONFIGURATION + 1)
        .read_to_end(&mut content)
        .ok()?;
    let fits = content.len() as u64 <= LARGEST_CONFIGURATION;
    Some(fits.then_some(content))
}

/// The program that a name means (execvp(3)).
fn program(name: &str) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories)
        .map(|directory| directory.join(name))
        .find(|path| {
            std::fs::metadata(path).is_ok_and(|metadata| {
                metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
            })
        })
}

impl Driver {
    /// The part of a key that the surroundings of this call are.
    ///
    /// What was different when the driver was opened is there as well: drivers read variables and files then or later
    /// (measured: Intel's CPU runtime reads its cl.cfg at both times).
    ///
    /// Programs that it runs may have been looked for so long ago.
    ///
    /// None: a file cannot be read.
    pub(super) fn surroundings_at_most(
        &self,
        age: Duration,
        digest: FileDigest,
    ) -> Option<Vec<Ingredient>> {
        let profile = self.profile;
        let mut ingredients = surroundings(profile, &self.suffix, &self.variables)?;
        let named: Vec<PathBuf> = ingredients
            .iter()
            .filter(|one| one.kind == Kind::Environment)
            .filter(|one| profile.environment.names_file(&one.name))
            .map(|one| OsStr::from_bytes(&one.value).into())
            .collect();
        ingredients.extend(differences(self.opened_in.as_ref()?, &ingredients));
        for path in named.into_iter().filter(|path| path.is_file()) {
            ingredients.push(file(&path, digest)?);
        }
        if profile.tools.is_empty() {
            return Some(ingredients);
        }
        let find = || {
            let paths = profile.tools.iter().filter_map(|tool| program(tool));
            paths.map(|path| file(&path, digest)).collect()
        };
        ingredients.extend(self.variables.tools(age, find)?);
        Some(ingredients)
    }
}

/// Whether a variable hands the compiler options which define macros, or name headers or where they are. What they would mean for
/// a program is not followed.
pub fn adds_headers(surroundings: &[Ingredient]) -> bool {
    let adds = |one: &Ingredient| {
        let name = one.name.to_ascii_uppercase();
        let mut words = one
            .value
            .split(|byte| byte.is_ascii_whitespace() || b"\"',;".contains(byte));
        let names_header = |word: &[u8]| {
            let options: [&[u8]; 6] = [b"-I", b"-i", b"-D", b"-U", b"--", b"@"];
            options.iter().any(|option| word.starts_with(option))
        };
        one.kind == Kind::Environment
            && (name.contains("OPTIONS") || name.contains("FLAGS"))
            && words.any(names_header)
    };
    surroundings.iter().any(adds)
}

fn file(path: &Path, digest: FileDigest) -> Option<Ingredient> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let value = sha256_value(&digest(path).ok()?);
    Some(Ingredient::new(Kind::Driver, name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_since_the_driver_was_opened_is_told_with_both_values() {
        let variable = |name: &str, value: &str| Ingredient::new(Kind::Environment, name, value);
        let then = [variable("A", "1"), variable("B", "2"), variable("C", "3")];
        let now = [variable("A", "1"), variable("B", "4"), variable("D", "5")];
        assert!(differences(&then, &then).is_empty());
        assert_eq!(
            differences(&then, &now),
            [
                variable("B when the driver was opened", "2"),
                variable("C when the driver was opened", "3"),
                variable("D, not there when the driver was opened", ""),
            ]
        );
    }

    #[test]
    fn options_from_outside_that_name_headers_are_told() {
        let adds = |name, value| adds_headers(&[Ingredient::new(Kind::Environment, name, value)]);
        assert!(adds("POCL_EXTRA_BUILD_FLAGS", "-w -I/opt/include"));
        assert!(adds("AMD_OCL_BUILD_OPTIONS_APPEND", "-include a.h"));
        assert!(adds("InjectInternalBuildOptions", "-DHEADER=<a.h>"));
        assert!(!adds("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable -w"));
        assert!(!adds("POCL_DEVICES", "-I"));
    }

    #[test]
    fn names_of_debug_keys_are_told_from_those_of_other_programs() {
        for name in ["InjectInternalBuildOptions", "UseBindlessMode"] {
            assert!(is_camel_case(name), "{name}");
        }
        for name in ["HOME", "Path_X", "inject", "LC_ALL", ""] {
            assert!(!is_camel_case(name), "{name}");
        }
    }
}
