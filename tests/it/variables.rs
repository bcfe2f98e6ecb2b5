//! Variables that no list names: a driver that reads one compiles again, and all others leave the cache as it is.

use std::collections::BTreeSet;
use std::path::Path;

use crate::counting::Turns;
use crate::support::{Driver, Sandbox, Way, example, some_of};

const SOURCE: &str = "#ifndef V\n#define V 1\n#endif\n__kernel void f(__global uint *out) { out[get_global_id(0)] = V; }\n";

const REAL: [Driver; 4] = [
    Driver::Pocl,
    Driver::Intel,
    Driver::Rusticl,
    Driver::IntelGpu,
];

/// Builds through the cache and tells how often the driver compiled. The result must be the bare driver's.
#[track_caller]
fn compilations(sandbox: &Sandbox) -> usize {
    let bare = sandbox.kernel(Way::Bare, SOURCE, "").ok();
    let cached = sandbox.kernel(Way::Cached, SOURCE, "").ok();
    assert_eq!(cached.stdout, bare.stdout, "log:\n{}", cached.stderr);
    cached.source_builds()
}

#[track_caller]
fn misses(sandbox: &Sandbox) -> usize {
    sandbox.kernel(Way::Cached, SOURCE, "").ok().source_builds()
}

/// What `show` says of all entries.
fn shown(sandbox: &Sandbox) -> String {
    let keys = sandbox.entries().into_iter();
    let keys = keys.map(|entry| {
        entry
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    });
    keys.map(|key| sandbox.oclcache(&["show", &key]).ok().stdout)
        .collect()
}

#[test]
fn a_variable_that_only_the_drivers_own_text_names_compiles_again() {
    for (driver, name, value) in [
        // Added to every build.
        (
            Driver::Intel,
            "OPENCL_PROGRAM_COMPILE_OPTIONS",
            "-cl-opt-disable",
        ),
        (Driver::Intel, "NO_OVERRIDE_CLANG_VERSION", "1"),
        // In what the binary says of its compiler.
        (Driver::Intel, "LLVM_OVERRIDE_PRODUCER", "another"),
        (Driver::Pocl, "LLVM_OVERRIDE_PRODUCER", "another"),
        (Driver::Pocl, "CPATH", "/tmp"),
        (Driver::Rusticl, "LLVM_OVERRIDE_PRODUCER", "another"),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        sandbox.set(name, value);
        assert_eq!(compilations(&sandbox), 1, "{driver:?}: {name}={value}");
        assert_eq!(misses(&sandbox), 0, "{driver:?}: {name}={value}");
        sandbox.variables.remove(name);
        assert_eq!(misses(&sandbox), 0, "{driver:?}: without {name}");
    }
}

/// Three libraries of Intel's CPU runtime read the environment that the process was started with, from `/proc/self/environ`.
#[test]
fn the_first_value_of_a_variable_counts_for_a_driver_that_may_read_it() {
    for (driver, name, builds) in [
        (Driver::Intel, "INTEL_ISA_DISABLE", [1, 0, 1]),
        (Driver::Pocl, "LLVM_OVERRIDE_PRODUCER", [1, 0, 0]),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let file = sandbox.write("kernel.cl", SOURCE).display().to_string();
        let set = format!("{name}=second");
        let arguments = ["run", "--source", &file, "--kernel", "f", "--options", ""];
        let changing = [&["--setenv", &set][..], &arguments].concat();
        let times = |sandbox: &Sandbox, arguments: &[&str]| {
            let ran = sandbox.client(Way::Cached, arguments).ok();
            ran.source_builds()
        };
        sandbox.set(name, "first");
        let changed = [(); 2].map(|()| times(&sandbox, &changing));
        sandbox.set(name, "second");
        let [first, again] = changed;
        assert_eq!(
            [first, again, times(&sandbox, &arguments)],
            builds,
            "{driver:?}"
        );
    }
}

/// PoCL remembers the first value of each variable that it reads, and nobody knows which build made it read one.
#[test]
fn a_program_that_changes_variables_between_builds_is_served_no_more() {
    for (driver, name) in [(Driver::Stub, "CL_LEVEL"), (Driver::Pocl, "POCL_LEVEL")] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let set = format!("set {name} 1");
        let unset = format!("unset {name}");
        for run in 0..2 {
            let mut client = Turns::begin(&sandbox);
            for (line, answer) in [
                ("build 0 1", "built 1"),
                ("set OMP_NUM_THREADS 1", "set"),
                ("build 1 2", "built 1"),
                (&*set, "set"),
                ("build 0 1", "built 1"),
                (&*unset, "unset"),
                ("build 1 2", "built 1"),
            ] {
                client.turn(line, answer);
            }
            assert!(client.end(None).success());
            if run == 0 {
                sandbox.oclcache(&["bake"]).ok();
            }
        }
        let counted = ["misses", "hits", "bypass_reasons/changed_variables"];
        let counted = counted.map(|name| sandbox.stat(name));
        assert_eq!(
            counted,
            [2, 2, 4],
            "{driver:?}: {}",
            sandbox.oclcache(&["stats"]).stdout
        );
    }
}

/// Intel's CPU runtime makes other code of it without its vectorizer.
pub const VECTORIZED: &str = "__kernel void f(__global float *a) {
    float s = 0;
    for (int k = 0; k < 64; k++)
        s += native_sin(a[get_global_id(0) * 64 + k]);
    a[get_global_id(0)] = s;
}
";

/// Intel's CPU runtime reads this variable when a context is made; a build that is not cached is one in which a driver may read it first.
#[test]
fn a_variable_that_was_another_one_when_the_driver_may_have_read_it_is_noticed() {
    let cases = [
        (Driver::Stub, "CL_LEVEL", "1"),
        (Driver::Intel, "CL_CONFIG_USE_VECTORIZER", "False"),
    ];
    for (driver, name, value) in cases {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let cached = sandbox.write("cached.cl", VECTORIZED).display().to_string();
        let bypassed =
            format!("{VECTORIZED}// __TIME__\n__constant int size = sizeof(__TIME__);\n");
        let bypassed = sandbox.write("bypassed.cl", bypassed).display().to_string();
        let set = ["set", name, value];
        let unset = ["unset", name];
        let [devices, context] = [["devices"], ["context"]];
        let build = ["build", &cached];
        let other = ["build", &bypassed];
        let is_seen = 0;
        let is_noticed = 1;
        let runs: [(&[&[&str]], u64); 7] = [
            (&[&set, &devices, &context, &build], is_seen),
            (&[&devices, &context, &set, &build], is_noticed),
            (&[&devices, &set, &context, &build], is_noticed),
            (&[&devices, &set, &context, &unset, &build], is_noticed),
            (&[&devices, &context, &build], is_seen),
            (
                &[&devices, &context, &set, &other, &unset, &build],
                is_noticed,
            ),
            (&[&devices, &context, &build], is_seen),
        ];
        for (steps, noticed) in runs {
            let steps = [&[&["moments"][..]], steps].concat().concat();
            let before = sandbox.stat("bypass_reasons/changed_variables");
            let bare = sandbox.client(Way::Bare, &steps).ok();
            let ran = sandbox.client(Way::Cached, &steps).ok();
            assert_eq!(
                ran.stdout, bare.stdout,
                "{driver:?} {steps:?}: {}",
                ran.stderr
            );
            let named = format!("changed after the driver may have read it variable={name}");
            assert_eq!(
                ran.stderr.contains(&named),
                noticed > 0,
                "{driver:?} {steps:?}: {}",
                ran.stderr
            );
            let now = sandbox.stat("bypass_reasons/changed_variables");
            assert_eq!(
                now - before,
                noticed,
                "{driver:?} {steps:?}: {}",
                ran.stderr
            );
        }
        assert_eq!(sandbox.stat("hits"), 1, "{driver:?}");
    }
}

/// Some drivers set variables for libraries of their own.
#[test]
fn what_the_driver_itself_sets_is_no_change_of_the_programs() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_SETS", "CL_LEVEL");
    assert_eq!([(); 2].map(|()| compilations(&sandbox)), [1, 0]);
    assert_eq!(sandbox.stat("bypass_reasons/changed_variables"), 0);
}

/// The driver reads what such a variable names, and nobody here does.
#[test]
fn a_program_is_not_stored_where_a_variable_names_headers() {
    let Some(mut sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let header = sandbox.write("v.h", "#define V 5\n");
    let header = header.to_str().expect("UTF-8").to_owned();
    let directory = sandbox.path("").display().to_string();
    let body = "__kernel void f(__global uint *out) { out[get_global_id(0)] = V; }\n";
    for (value, source) in [
        (format!("-I{directory}"), format!("#include <v.h>\n{body}")),
        (format!("-w -include {header}"), body.to_owned()),
        (format!("-DH=\"{header}\""), format!("#include H\n{body}")),
    ] {
        sandbox.set("OPENCL_PROGRAM_COMPILE_OPTIONS", value.as_str());
        for text in ["#define V 5\n", "#define V 6\n"] {
            sandbox.write("v.h", text);
            let bare = sandbox.kernel(Way::Bare, &source, "").ok();
            let cached = sandbox.kernel(Way::Cached, &source, "").ok();
            assert_eq!(cached.stdout, bare.stdout, "{value}: {text}");
        }
    }
    assert_eq!(sandbox.entries(), [] as [std::path::PathBuf; 0]);
}

/// Only the compiler would look into these directories, for headers only.
#[test]
fn a_variable_that_names_directories_of_headers_concerns_programs_that_name_some() {
    for driver in some_of(&[Driver::Pocl, Driver::Intel]) {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let directory = sandbox.path("");
        let including = format!("#include \"some.h\"\n{SOURCE}");
        let options = format!("-I{}", directory.display());
        sandbox.write("some.h", "#define V 5\n");
        sandbox.set("CPATH", "/tmp");
        sandbox.set("C_INCLUDE_PATH", "/tmp");
        let times = |source: &str| {
            let ran = sandbox.kernel(Way::Cached, source, &options).ok();
            ran.source_builds()
        };
        assert_eq!([times(SOURCE), times(SOURCE)], [1, 0], "{driver:?}");
        assert_eq!([times(&including), times(&including)], [1, 1], "{driver:?}");
        let reasons = sandbox.kernel(Way::Cached, &including, &options).stderr;
        assert!(
            reasons.contains("option_reads_file"),
            "{driver:?}: {reasons}"
        );
    }
}

/// It may be a password, so an entry has a digest of it.
#[test]
fn the_value_of_a_variable_that_no_list_names_is_not_stored() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    sandbox.set("CPATH", "/the-secret-of-the-sandbox");
    assert_eq!(misses(&sandbox), 1);
    assert!(
        shown(&sandbox).contains("CPATH sha256 "),
        "{}",
        shown(&sandbox)
    );
    for entry in sandbox.entries() {
        let bytes = std::fs::read(&entry).expect("read");
        let secret = b"the-secret-of-the-sandbox";
        assert!(!bytes.windows(secret.len()).any(|part| part == secret));
    }
}

/// The names of a driver's libraries are in files of the cache: with all of them, without any, and with damaged ones, keys are what they
/// were.
#[test]
fn keys_are_the_same_whether_the_names_were_remembered_or_not() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    sandbox.set("CPATH", "/tmp");
    sandbox.set("NOTHING_THAT_ANYBODY_READS", "1");
    assert_eq!(misses(&sandbox), 1);
    let names = sandbox.path("cache/v1/names");
    let files = || -> Vec<_> {
        let files = std::fs::read_dir(&names).expect("remembered");
        files.map(|file| file.expect("a file").path()).collect()
    };
    assert!(!files().is_empty());
    // A process whose names nobody has looked for searches for these. Where there are ever new ones, one gathers all.
    let has_all_names = |file: &std::path::PathBuf| {
        let content = std::fs::read(file).expect("read");
        let version = content.strip_prefix(b"oclcache names ");
        version.is_some_and(|version| version[0].is_ascii_digit())
    };
    let are_gathered = || files().iter().any(has_all_names);
    let mut processes = 0;
    while !are_gathered() {
        processes += 1;
        sandbox.set(&format!("NOBODY_READS_THE_VARIABLE_{processes}"), "1");
        assert_eq!(misses(&sandbox), 0, "with a name that is new");
        assert!(processes < 10);
    }
    assert!(
        processes > 2,
        "{processes}: gathering takes as long as three searches"
    );
    for file in files() {
        let mut bytes = std::fs::read(&file).expect("read");
        let place = bytes.len().min(61) - 1;
        bytes[place] ^= 1;
        std::fs::remove_file(&file).expect("removed");
        std::fs::write(&file, bytes).expect("damaged");
    }
    assert_eq!(misses(&sandbox), 0, "with damaged files");
    for file in files() {
        std::fs::remove_file(file).expect("removed");
    }
    assert_eq!(misses(&sandbox), 0, "without the files");
    std::fs::remove_dir_all(&names).expect("removed");
    std::fs::write(&names, "").expect("in the way");
    assert_eq!(misses(&sandbox), 0, "where they cannot be written");
}

/// Terminals, batch systems and desktops set dozens of variables, anew in each session.
#[test]
fn two_different_shells_share_their_entries() {
    let sessions: [&[(&str, &str)]; 2] = [
        &[
            ("_", "/usr/bin/env"),
            ("SHLVL", "1"),
            ("PWD", "/"),
            ("TERM", "xterm-256color"),
            ("COLUMNS", "80"),
            ("LANG", "en_US.UTF-8"),
            ("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22"),
            ("SSH_TTY", "/dev/pts/1"),
            ("XDG_SESSION_ID", "1"),
            ("DISPLAY", ":0"),
            ("USER", "one"),
            ("EDITOR", "ed"),
            ("OMP_NUM_THREADS", "2"),
            ("OCL_ICD_DEBUG", "0"),
        ],
        &[
            ("_", "./program"),
            ("SHLVL", "4"),
            ("OLDPWD", "/tmp"),
            ("PWD", "/tmp"),
            ("TERM", "dumb"),
            ("LINES", "24"),
            ("LC_NUMERIC", "de_DE.UTF-8"),
            ("NO_COLOR", "1"),
            ("CI", "true"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_PROCID", "3"),
            ("PMI_RANK", "3"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("HOSTNAME", "node17"),
            ("INVOCATION_ID", "0123"),
            ("WINDOWID", "1"),
            ("TZ", "Asia/Tokyo"),
            ("BASH_FUNC_module%%", "() { :; }"),
            ("PYTHONPATH", "/x"),
            ("OCLCACHE_MAX_SIZE", "1G"),
        ],
    ];
    for driver in REAL {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        for (session, expected) in sessions.iter().zip([1, 0]) {
            let before = sandbox.variables.clone();
            for (name, value) in *session {
                sandbox.set(name, *value);
            }
            assert_eq!(compilations(&sandbox), expected, "{driver:?}");
            sandbox.variables = before;
        }
    }
}

/// Of shells, batch systems, desktops, compilers' surroundings and continuous integration.
const USUAL: &str = "BASH_ENV BROWSER BUILD_ID CARGO_HOME CI_COMMIT_SHA CLICOLOR COLORFGBG COMPOSE_PROJECT_NAME CONDA_PREFIX \
    CUDA_HOME DEBUG DEBIAN_FRONTEND DESKTOP_SESSION DOCKER_HOST EMAIL ENV FC GDMSESSION GITHUB_ACTIONS GITHUB_SHA GITHUB_TOKEN \
    GIT_AUTHOR_NAME GLIBC_TUNABLES GOPATH GPG_AGENT_INFO GTK_MODULES HISTCONTROL HISTSIZE HOSTTYPE HTTP_PROXY ID IFS INFOPATH \
    JAVA_HOME JOB_ID JUPYTER_TOKEN KEY KUBERNETES_PORT LESS LESSOPEN LOADEDMODULES LSB_JOBID MACHTYPE MAKEFLAGS MALLOC_ARENA_MAX \
    MANPATH MODE MODULEPATH MPLBACKEND NODE NODE_ENV NVM_DIR NO_PROXY OMPI_COMM_WORLD_RANK OMP_PROC_BIND OSTYPE PAGER PBS_JOBID \
    PERL5LIB PKG_CONFIG_PATH PMI_RANK PORT PROMPT_COMMAND PS2 PYENV_ROOT PYTHONPATH PYTHONUNBUFFERED QT_QPA_PLATFORM RUSTUP_HOME \
    SESSION_MANAGER SGE_TASK_ID SIZE SSH_AUTH_SOCK SUDO_USER TERM_PROGRAM TMUX USERNAME VERSION VIRTUAL_ENV VTE_VERSION \
    WAYLAND_DISPLAY XAUTHORITY XMODIFIERS ZDOTDIR http_proxy";

/// A name of few letters may be the end of a text or be in code by chance, so some of these are in keys that change nothing. More than now
/// shall not be.
#[test]
fn few_usual_variables_are_in_keys() {
    for (driver, most) in [
        (Driver::Pocl, 12),
        (Driver::Intel, 13),
        (Driver::Rusticl, 12),
        (Driver::IntelGpu, 12),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let names: Vec<&str> = USUAL.split_whitespace().collect();
        for name in &names {
            sandbox.set(name, "1");
        }
        assert_eq!(misses(&sandbox), 1, "{driver:?}");
        let shown = shown(&sandbox);
        let words = shown
            .lines()
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
        let keyed: Vec<&str> = words
            .filter(|words| words[..] == ["environment", words.last().copied().unwrap_or_default()])
            .map(|words| words[1])
            .filter(|name| names.contains(name))
            .collect();
        assert!(
            keyed.len() <= most,
            "{driver:?}: {} of {}: {keyed:?}",
            keyed.len(),
            names.len()
        );
    }
}

/// What our list and those of the profiles call neutral, of what these drivers ask for.
const NEUTRAL: [&str; 10] = [
    "cl_cache_dir",
    "HWLOC_PLUGINS_PATH",
    "HOME",
    "PATH",
    "PWD",
    "TMPDIR",
    "XDG_*",
    "OCL_ICD_*",
    "OPENCL_LAYERS",
    "TERM",
];

/// Asked for by the loader, the client or this library.
const OF_OTHERS: [&str; 8] = [
    "CLIENT_*",
    "OCLCACHE_*",
    "SPY_*",
    "STUB_*",
    "ASKED_LOG",
    "OPENCL_VENDOR_PATH",
    "AS_SECURE_LOG_FILE",
    "RUST_*",
];

fn is_one_of(list: &[&str], name: &str) -> bool {
    list.iter().any(|known| match known.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => *known == name,
    })
}

/// From the creation of the platform to the end of a kernel.
#[test]
fn each_variable_that_a_driver_asks_for_is_in_the_key_or_neutral() {
    // Lists of their own decide about what begins so.
    let lists = [
        "OCLGRIND_*",
        "POCL_*",
        "CL_CONFIG_*",
        "MESA_*",
        "RUSTICL_*",
        "GALLIUM_*",
        "GALLIVM_*",
        "LP_*",
        "CLC_DEBUG",
        "TBB_MALLOC_*",
        "SYCL_CPU_PLACES",
    ];
    for driver in REAL.into_iter().chain([Driver::Oclgrind]) {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let log = sandbox.path("asked");
        sandbox.set("LD_PRELOAD", example("libasked.so"));
        sandbox.set("ASKED_LOG", log.as_os_str());
        sandbox.kernel(Way::Bare, SOURCE, "").ok();
        let names = read_names(&log);
        sandbox.variables.clear();
        // Hundreds of names LikeThis are in the key of Intel's GPU driver if it is told to read them.
        let is_camel_case =
            |name: &str| !name.contains('_') && name.contains(|c: char| c.is_ascii_lowercase());
        let others = |name: &String| {
            !is_one_of(&OF_OTHERS, name) && !is_one_of(&lists, name) && !is_camel_case(name)
        };
        let asked: Vec<&String> = names.iter().filter(|name| others(name)).collect();
        assert!(asked.len() > 3, "{driver:?}: {names:?}");
        // All at once, with a value that means nothing to any of them.
        for name in asked.iter().filter(|name| !is_one_of(&NEUTRAL, name)) {
            // These make the driver fail.
            if ![
                "OCLBACKEND_PLUGINS",
                "GNUTARGET",
                "LDEMULATION",
                "HWLOC_XMLFILE",
                "HWLOC_SYNTHETIC",
                "HWLOC_FSROOT",
                "HWLOC_CPUID_PATH",
            ]
            .contains(&name.as_str())
            {
                sandbox.set(name, "");
            }
        }
        assert_eq!(misses(&sandbox), 1, "{driver:?}");
        let shown = shown(&sandbox);
        let missing: Vec<&String> = sandbox
            .variables
            .keys()
            .filter(|name| {
                !shown.lines().any(|line| {
                    line.split_whitespace()
                        .take(2)
                        .eq(["environment", name.as_str()])
                })
            })
            .collect();
        assert!(missing.is_empty(), "{driver:?}: {missing:?} of\n{shown}");
    }
}

fn read_names(log: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(log).expect("the log");
    text.lines().map(str::to_owned).collect()
}
