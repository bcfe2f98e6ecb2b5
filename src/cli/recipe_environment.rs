//! The environment in which a recipe is compiled: this command's own without variables that change code, and with those that the
//! recipe recorded, if they are harmless.
//!
//! An attacker who can write only to the cache must not be able to run a program through the baker. So a recipe never sets a variable
//! that names a program, a library or a path.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::driver::environment::has_changed;
use crate::driver::profile;
use crate::driver::profile::variables::{Effect, Environment, LAYERS};
use crate::key::ingredients::{Ingredient, Kind, digest_of, sha256};
use crate::log::text;

/// Variables, by name.
pub type VariableMap = BTreeMap<OsString, OsString>;

/// Parts of the names of variables whose values are paths, programs, libraries, or options of a program.
const NAMING: [&str; 14] = [
    "PATH",
    "ARGS",
    "FLAGS",
    "OPTIONS",
    "OPTS",
    "LIB",
    "FILE",
    "DIR",
    "TOOL",
    "BIN",
    "FINALIZER",
    "EXEC",
    "PLUGIN",
    "PRELOAD",
];

/// The variable that `import pyopencl` sets to the directory of the package. The PoCL 1.2 of PyPI finds its own files by it.
const PYOPENCL_HOME: &str = "PYOPENCL_HOME";

/// This command's variables, and the one that PyOpenCL sets itself, so no shell has it, if the driver is in PyOpenCL's own directory
/// of libraries. Its value follows from where the driver is, not from what a recipe says.
pub fn with_pyopencl(own: &VariableMap, driver: &Path) -> VariableMap {
    let mut known = own.clone();
    let libraries = driver.parent().filter(|at| at.ends_with("pyopencl/.libs"));
    if let Some(package) = libraries.and_then(Path::parent) {
        let home = known.entry(PYOPENCL_HOME.into());
        home.or_insert_with(|| package.into());
    }
    known
}

/// The variables of a driver family.
fn of_family(family: &str) -> &'static Environment {
    profile::named(family).environment
}

/// The variables to set for a recipe with these ingredients. `own` are this command's.
///
/// # Errors
/// Why the environment cannot be reproduced.
pub fn recorded(
    family: &str,
    ingredients: &[Ingredient],
    own: &VariableMap,
) -> Result<VariableMap, String> {
    let environment = of_family(family);
    let mut wanted = VariableMap::new();
    for one in ingredients {
        let is_of_surroundings = matches!(one.kind, Kind::Environment | Kind::Driver);
        if is_of_surroundings && has_changed(one) {
            return Err("the program changed its environment while the driver was open".to_owned());
        }
        if !one.is_reproducible() {
            let name = text(one.name.as_bytes());
            return Err(match one.kind {
                Kind::Functions => format!("{name} replaced functions of the driver"),
                _ => format!("the floating-point state differed ({name})"),
            });
        }
        if one.kind != Kind::Environment {
            continue;
        }
        let (name, value) = (OsStr::new(&one.name), OsStr::from_bytes(&one.value));
        // Of a variable that no list names only the digest is known, so it can be inherited but not set.
        if let Some(digest) = digest_of(&one.value) {
            match own.get(name) {
                Some(own) if sha256(own.as_bytes()) == digest => {
                    wanted.insert(name.to_owned(), own.clone());
                    continue;
                }
                _ => {
                    return Err(format!(
                        "{} has another value, and only the digest of the recorded one is known",
                        text(one.name.as_bytes())
                    ));
                }
            }
        }
        let is_own = own.get(name).is_some_and(|own| own == value);
        if !is_own && !may_be_set(environment, &one.name, &one.value) {
            let name = text(one.name.as_bytes());
            return Err(format!(
                "{name} has another value, and a recipe may not set variables that name programs, files or options"
            ));
        }
        wanted.insert(name.to_owned(), value.to_owned());
    }
    Ok(wanted)
}

/// Whether an entry may set a variable.
pub fn is_harmless(family: &str, name: &str, value: &[u8]) -> bool {
    may_be_set(of_family(family), name, value)
}

/// Whether a recipe may set a variable: its full name is known, and it cannot name anything to run or read.
fn may_be_set(environment: &Environment, name: &str, value: &[u8]) -> bool {
    let mut known = environment.code.iter().chain(environment.identity);
    let upper = name.to_ascii_uppercase();
    known.any(|known| *known == name)
        && !environment.names_file(name)
        && !NAMING.iter().any(|part| upper.contains(part))
        && value
            .iter()
            .all(|byte| byte.is_ascii_graphic() && *byte != b'/' || *byte == b' ')
        && !value.windows(3).any(|part| part == b".so")
}

/// This command's own variables without those that change code for any driver. A recipe has those that were set.
pub fn neutral(family: &str, own: &VariableMap) -> VariableMap {
    let of_family = of_family(family);
    let changes = |name: &str| match of_family.effect(name) {
        Some(effect) => effect != Effect::Neutral,
        None => profile::environments()
            .chain([&LAYERS])
            .filter_map(|environment| environment.effect(name))
            .any(|effect| effect != Effect::Neutral),
    };
    let is_neutral = |name: &OsString| name.to_str().is_some_and(|name| !changes(name));
    let own = own.iter().filter(|(name, _)| is_neutral(name));
    own.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Whether a variable that changes no code is meant for a driver.
pub fn is_of_driver(family: &str, name: &OsStr) -> bool {
    let effect = |name| of_family(family).effect(name);
    name.to_str().and_then(effect) == Some(Effect::Neutral)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ingredients::sha256_value;

    fn variable(name: &str, value: &str) -> Ingredient {
        Ingredient::new(Kind::Environment, name, value)
    }

    fn own(list: &[(&str, &str)]) -> VariableMap {
        list.iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    #[test]
    fn what_could_run_or_read_something_is_not_set_because_a_recipe_says_so() {
        for (family, name, value) in [
            ("pocl", "POCL_PATH_CLANG", "/tmp/evil"),
            ("pocl", "POCL_PATH_CLANG", "evil"),
            ("pocl", "POCL_ARGS_CLANG", "-fplugin=evil.so"),
            ("pocl", "POCL_BITCODE_FINALIZER", "evil"),
            ("pocl", "POCL_EXTRA_BUILD_FLAGS", "-w"),
            ("pocl", "POCL_DEBUG_LLVM_OPTS", "-load=evil.so"),
            ("pocl", "POCL_KERNELLIB_NAME", "evil"),
            ("pocl", "POCL_DEVICES", "../../tmp/evil"),
            ("pocl", "POCL_SOMETHING_NEW", "1"),
            ("pocl", "COMPILER_PATH", "/tmp"),
            ("pocl", "LD_PRELOAD", "/tmp/evil.so"),
            ("pocl", "CL_CONFIG_CPU_TARGET_ARCH", "core-avx2"),
            ("clvk", "CLVK_CLSPV_PATH", "/tmp/evil"),
            ("amd", "AMD_OCL_BUILD_OPTIONS", "-w"),
            ("intel-gpu", "IgcLibraryName", "evil"),
            ("stub", "STUB_CODE", "1"),
        ] {
            let ingredients = [variable(name, value)];
            let without = recorded(family, &ingredients, &own(&[]));
            let refusal = without.expect_err(name);
            assert!(refusal.starts_with(name), "{refusal}");
            assert!(recorded(family, &ingredients, &own(&[(name, "else")])).is_err());
            let equal = recorded(family, &ingredients, &own(&[(name, value)]));
            assert_eq!(equal, Ok(own(&[(name, value)])), "{name}");
        }
    }

    #[test]
    fn what_only_changes_code_is_set_as_it_was() {
        for (family, name, value) in [
            ("pocl", "POCL_WORK_GROUP_METHOD", "loopvec"),
            ("pocl", "POCL_DEVICES", "pthread basic"),
            ("intel-cpu", "CL_CONFIG_CPU_TARGET_ARCH", "core-avx2"),
        ] {
            let ingredients = [variable(name, value)];
            let wanted = recorded(family, &ingredients, &own(&[(name, "else")]));
            assert_eq!(wanted, Ok(own(&[(name, value)])), "{name}");
        }
        let changed = variable("POCL_DEVICES when the driver was opened", "basic");
        assert!(recorded("pocl", &[changed], &own(&[])).is_err());
    }

    #[test]
    fn what_is_known_by_its_digest_is_inherited_or_named() {
        let one = Ingredient::new(
            Kind::Environment,
            "CPATH",
            sha256_value(&sha256(b"/opt/include")),
        );
        let recorded =
            |own: &[(&str, &str)]| recorded("pocl", std::slice::from_ref(&one), &self::own(own));
        let inherited = own(&[("CPATH", "/opt/include")]);
        assert_eq!(recorded(&[("CPATH", "/opt/include")]), Ok(inherited));
        for other in [&[][..], &[("CPATH", "/tmp")]] {
            let refusal = recorded(other).expect_err("it cannot be set");
            assert!(refusal.starts_with("CPATH has another value"), "{refusal}");
        }
    }

    #[test]
    fn what_pyopencl_sets_itself_is_known_from_the_place_of_its_driver() {
        let home = "/home/u/venv/lib/python3.11/site-packages/pyopencl";
        let one = Ingredient::new(
            Kind::Environment,
            PYOPENCL_HOME,
            sha256_value(&sha256(home.as_bytes())),
        );
        let recorded = |driver: &str| {
            let known = with_pyopencl(&own(&[]), Path::new(driver));
            recorded("pocl", std::slice::from_ref(&one), &known)
        };
        let inside = format!("{home}/.libs/libpocl-1.so");
        assert_eq!(recorded(&inside), Ok(own(&[(PYOPENCL_HOME, home)])));
        for other in ["/usr/lib/libpocl.so", "/tmp/pyopencl/.libs/libpocl-1.so"] {
            let refusal = recorded(other).expect_err("it is another value");
            assert!(
                refusal.starts_with("PYOPENCL_HOME has another value"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn of_this_commands_own_environment_what_changes_code_is_left_out() {
        let own = own(&[
            ("HOME", "/home/u"),
            ("POCL_DEBUG", "all"),
            ("POCL_WORK_GROUP_METHOD", "loops"),
            ("CL_CONFIG_CPU_TARGET_ARCH", "core-avx2"),
            ("CLI_DevicePerformanceTiming", "1"),
            ("OCL_ICD_VENDORS", "/v"),
        ]);
        let kept = neutral("pocl", &own);
        let kept: Vec<&str> = kept.keys().filter_map(|name| name.to_str()).collect();
        assert_eq!(kept, ["HOME", "OCL_ICD_VENDORS", "POCL_DEBUG"]);
    }
}
