//! The environment variables that drivers and their compilers read, by family: those that change code, those that change what the
//! application sees as features and macros, and those that change nothing that is cached.
//!
//! A name that ends in `*` matches all names that begin so: names that are composed at run time, and names that newer versions may
//! have. Variables that decide which libraries are loaded are not listed: LD_LIBRARY_PATH, LD_PRELOAD, and OPENCL_LAYERS and
//! OPENCL_LAYER_PATH for layers between us and the driver. They act through libraries, which are in the key.

/// The effect of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It changes generated code or the driver's binary.
    Code,
    /// It changes features and macros, and with them the result of the preprocessor. The device's answers do not tell all of it, so
    /// the variable is in the key as well.
    Identity,
    /// It changes nothing that is cached.
    Neutral,
}

/// The variables of one family.
pub struct Environment {
    /// See [`Effect::Code`].
    pub code: &'static [&'static str],
    /// See [`Effect::Identity`].
    pub identity: &'static [&'static str],
    /// See [`Effect::Neutral`].
    pub neutral: &'static [&'static str],
    /// Variables and the value that has the same effect as an unset variable.
    pub defaults: &'static [(&'static str, &'static str)],
    /// Variables that name a file which is read or run: the file's content is in the key as well.
    pub files: &'static [&'static str],
    /// A variable that makes the driver read hundreds of names of the form `LikeThis`, if set to anything but `0`.
    pub camel_case: Option<&'static str>,
}

/// No variable at all, for families that have few.
pub(super) const NONE: Environment = Environment {
    code: &[],
    identity: &[],
    neutral: &[],
    defaults: &[],
    files: &[],
    camel_case: None,
};

impl Environment {
    /// The effect of a variable. None if it is not one of the driver's. The longest matching name decides.
    pub fn effect(&self, name: &str) -> Option<Effect> {
        [
            (Effect::Code, self.code),
            (Effect::Identity, self.identity),
            (Effect::Neutral, self.neutral),
        ]
        .into_iter()
        .flat_map(|(effect, names)| names.iter().map(move |known| (effect, *known)))
        .filter(|(_, known)| fits(known, name))
        .max_by_key(|(_, known)| (*known == name, known.len()))
        .map(|(effect, _)| effect)
    }

    /// Whether the variable has the value that it has when it is not set.
    pub fn is_default(&self, name: &str, value: &[u8]) -> bool {
        self.defaults
            .iter()
            .any(|(known, default)| *known == name && default.as_bytes() == value)
    }

    /// Whether the variable names a file.
    pub fn names_file(&self, name: &str) -> bool {
        self.files.iter().any(|known| fits(known, name))
    }
}

fn fits(known: &str, name: &str) -> bool {
    match known.as_bytes() {
        [prefix @ .., b'*'] => name.as_bytes().starts_with(prefix),
        known => known == name.as_bytes(),
    }
}

/// Layers between us and a driver. The intercept layer edits options (docs/controls.md).
pub static LAYERS: Environment = Environment {
    code: &["CLI_*"],
    ..NONE
};

/// Variables that change nothing for any driver, although their names occur in libraries, or may occur in unreadable ones.
///
/// Unless a comment says otherwise, measured without a cache on PoCL 3.1, Intel's CPU runtime 2026.2, rusticl 22.3 and Oclgrind
/// 21.10, with a program that builds with a warning and one that is refused. With odd values of the variable, binary, log, all
/// answers of the device and the results of a kernel were the same, except for paths in PoCL's log. Of Oclgrind's refused program,
/// half of the variables were tried. On Intel's GPU driver 22.43, binary and logs were the same with those that were measured.
static NEUTRAL: &[&str] = &[
    // Set by each shell, terminal or session.
    "_",
    "SHLVL",
    "OLDPWD",
    // LLVM's name of the working directory. Also measured with `-g` and a link as working directory: only Oclgrind's binary
    // differs.
    "PWD",
    "SHELL",
    "TERM",
    "COLORTERM",
    "STY",
    "PS1",
    "DISPLAY",
    "INVOCATION_ID",
    "USER",
    "LOGNAME",
    "HOST",
    "HOSTNAME",
    "UID",
    "MAIL",
    "NAME",
    // Logs are not wrapped or colored: drivers have the compiler write into memory.
    "LINES",
    "COLUMNS",
    "NO_COLOR",
    // Directories of programs' own files. Those that a driver reads are in the key.
    "HOME",
    "XDG_*",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TZ",
    "EDITOR",
    "VISUAL",
    "LESS",
    "PS2",
    "IFS",
    // Of libraries that fetch files by HTTP, which libxml2 names.
    "HTTP_PROXY",
    "http_proxy",
    "CI",
    // Jenkins and others set it to another value for each run. On PoCL the compiled kernels were compared: its binaries contain the
    // name of a temporary file.
    "BUILD_ID",
    // What they name is not run: PoCL's linker and libraries are in the key by what PATH and LD_LIBRARY_PATH lead to.
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    // The dynamic linker reports what it does, and binds the same (ld.so(8)). The bindings are in the key.
    "LD_DEBUG",
    "LD_DEBUG_OUTPUT",
    "CC",
    "CXX",
    // Of the C library: arenas and thresholds of its allocator. See also `is_neutral_value`.
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    // The allocator of memkind. Intel's OpenMP sets it in the process when it starts, and counts as a library of Intel's CPU runtime where
    // it lies beside that: oneMKL had started it, and nothing more was cached (measured with dpnp 0.20, which calls both). The name occurs
    // in no other of these libraries.
    "MEMKIND_HEAP_MANAGER",
    // `make` exports these, and those that its command line sets (`make run ARGS=-g`). LLVM names MAKEFLAGS, for its client of `make -j`,
    // and the others are the ends of texts in libraries. Measured with options of clang in each on Intel's runtimes, rusticl and Oclgrind
    // (binary and log) and PoCL (result and log).
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "ARGS",
    "FLAGS",
    "OPTIONS",
    "OPTS",
    // The number of threads. Where a program can see it, the device's answers tell it.
    "OMP_NUM_THREADS",
    // Messages of compilers are not translated, and they read and write numbers without the locale.
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LOCPATH",
    // Not measured: these names occur in no library of these drivers. They are listed for unreadable libraries, since each session
    // has other values.
    "SSH_*",
    "SLURM_*",
    "WINDOWID",
    "BASH_FUNC_*",
    "LS_COLORS",
    "DBUS_SESSION_BUS_ADDRESS",
    "OCLCACHE_*",
    // Variables of the loader: they choose drivers and layers, which are in the key.
    "OCL_ICD_*",
    "OPENCL_LAYERS",
    "OPENCL_LAYER_PATH",
];

/// Whether a name is of the form `LikeThis`.
pub fn is_camel_case(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.contains(|character: char| character.is_ascii_lowercase())
        && name
            .chars()
            .all(|character| character.is_ascii_alphanumeric())
}

/// Whether a variable that no driver's list names changes nothing for any driver.
fn is_neutral(name: &str) -> bool {
    NEUTRAL.iter().any(|known| fits(known, name))
}

/// Whether a variable with this value changes nothing for any driver.
///
/// GLIBC_TUNABLES acts through the variants of functions that the C library chooses, which are in the key; other values were measured
/// as [`NEUTRAL`] was. What fills memory that nobody has written shows it to a compiler that reads it.
///
/// PoCL 3.1 sets HWLOC_PLUGINS_PATH when a program first asks for its devices (measured), so that hwloc opens no plug-ins in PoCL and
/// in each driver of the process that comes later. Without them hwloc only counts processors and memory, which the device's answers
/// tell.
pub fn is_neutral_value(name: &str, value: &[u8]) -> bool {
    const FILLS: &[u8] = b"perturb";
    is_neutral(name)
        || (name, value) == ("HWLOC_PLUGINS_PATH", b"/dev/null")
        || name == "GLIBC_TUNABLES" && !value.windows(FILLS.len()).any(|part| part == FILLS)
}

#[cfg(test)]
mod tests {
    use super::super::families::{PROFILES, UNKNOWN};
    use super::super::named;
    use super::*;

    /// The variables of each family, and of layers.
    fn all() -> impl Iterator<Item = (&'static str, &'static Environment)> {
        let families = PROFILES.into_iter().chain([&UNKNOWN]);
        let families = families.map(|profile| (profile.family, profile.environment));
        families.chain([("layers", &LAYERS)])
    }

    #[test]
    fn no_variable_stands_in_two_lists() {
        for (family, environment) in all() {
            let mut seen = std::collections::HashSet::new();
            for name in [environment.code, environment.identity, environment.neutral].concat() {
                assert!(seen.insert(name), "{family}: {name} stands there twice");
            }
        }
    }

    #[test]
    fn defaults_and_files_are_of_variables_that_change_something() {
        for (family, environment) in all() {
            let defaults = environment.defaults.iter().map(|(name, _)| name);
            for name in defaults.chain(environment.files) {
                let name = name.trim_end_matches('*');
                let effect = environment.effect(name);
                let camel_case = environment.camel_case.is_some() && !name.contains('_');
                assert!(
                    camel_case || effect.is_some_and(|effect| effect != Effect::Neutral),
                    "{family}: {name} is {effect:?}"
                );
            }
        }
    }

    #[test]
    fn what_a_library_sets_by_itself_is_neutral() {
        assert!(is_neutral_value("MEMKIND_HEAP_MANAGER", b"TBB"));
        assert!(is_neutral_value("HWLOC_PLUGINS_PATH", b"/dev/null"));
        assert!(!is_neutral_value("HWLOC_PLUGINS_PATH", b"/plugins"));
    }

    #[test]
    fn the_longest_name_that_fits_decides() {
        for (family, name, effect) in [
            ("pocl", "POCL_WORK_GROUP_METHOD", Some(Effect::Code)),
            ("pocl", "POCL_PATH_CLANG", Some(Effect::Code)),
            ("pocl", "POCL_SOMETHING_NEW", Some(Effect::Code)),
            ("pocl", "POCL_PTHREAD0_PARAMETERS", Some(Effect::Code)),
            ("pocl", "POCL_DEVICES", Some(Effect::Identity)),
            ("pocl", "POCL_DEBUG", Some(Effect::Neutral)),
            ("pocl", "POCL_DEBUG_LLVM_OPTS", Some(Effect::Code)),
            ("pocl", "POCL_TRACING_FILTER", Some(Effect::Neutral)),
            ("pocl", "HOME", None),
            ("intel-gpu", "NEO_CACHE_DIR", Some(Effect::Neutral)),
            ("intel-gpu", "IGC_ForceOCLSIMDWidth", Some(Effect::Code)),
            ("amd", "AMD_COMGR_CACHE_DIR", Some(Effect::Neutral)),
            ("amd", "AMD_OCL_BUILD_OPTIONS_APPEND", Some(Effect::Code)),
            ("amd", "AMD_COMGR_REDIRECT_LOGS", Some(Effect::Code)),
            ("amd", "AMD_COMGR_SAVE_TEMPS", Some(Effect::Code)),
            ("nvidia", "CUDA_FORCE_JIT", Some(Effect::Code)),
            ("rusticl", "RUSTICL_FEATURES", Some(Effect::Identity)),
        ] {
            assert_eq!(named(family).environment.effect(name), effect, "{name}");
        }
    }

    #[test]
    fn a_default_is_the_default_of_its_own_variable_only() {
        let pocl = named("pocl").environment;
        assert!(pocl.is_default("POCL_IGNORE_CL_STD", b"0"));
        assert!(!pocl.is_default("POCL_IGNORE_CL_STD", b"1"));
        assert!(!pocl.is_default("POCL_CPU_JIT", b"0"));
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
