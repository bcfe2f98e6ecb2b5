//! What drivers are made of, and what is around them: a change of what their compilers use compiles again, and of nothing else.

use std::path::{Path, PathBuf};

use crate::copies::{
    DriverCopy, change_last_byte, find, other_build, put_tree, replace, touch, update,
};
use crate::counting::Turns;
use crate::functions::program;
use crate::support::{
    Driver, Sandbox, Way, copy_program, example, library, skipped, some_of, tree,
};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = (uint)sin((float)get_global_id(0)) + 1; }\n";

const REAL: [Driver; 3] = [Driver::Pocl, Driver::Intel, Driver::Rusticl];

/// Builds through the cache and tells how often the driver compiled. The result must be the bare driver's.
#[track_caller]
fn compilations(sandbox: &Sandbox) -> usize {
    let bare = sandbox.kernel(Way::Bare, SOURCE, "").ok();
    let cached = sandbox.kernel(Way::Cached, SOURCE, "").ok();
    assert_eq!(cached.stdout, bare.stdout, "log:\n{}", cached.stderr);
    cached.source_builds()
}

/// The same where the bare driver need not be asked again: only the key is in question.
#[track_caller]
fn misses(sandbox: &Sandbox) -> usize {
    sandbox.kernel(Way::Cached, SOURCE, "").ok().source_builds()
}

#[test]
fn another_build_of_the_driver_compiles_again_and_the_same_at_another_path_does_not() {
    for driver in REAL {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let copies = ["first", "second"].map(|name| DriverCopy::new(&sandbox, driver, name));
        let [first, second] = copies.map(|copy| copy.expect("the driver is there"));
        first.use_in(&mut sandbox);
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        second.use_in(&mut sandbox);
        assert_eq!(compilations(&sandbox), 0, "{driver:?}");
        update(&second.library);
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        assert_eq!(misses(&sandbox), 0, "{driver:?}");
        first.use_in(&mut sandbox);
        assert_eq!(misses(&sandbox), 0, "{driver:?}");
    }
}

/// The full name of a file that the driver of the only entry needs.
pub fn needed(sandbox: &Sandbox, start: &str) -> Option<String> {
    let entry = sandbox.entries().pop().expect("an entry");
    let key = entry.file_stem().expect("a name").to_string_lossy();
    let shown = sandbox.oclcache(&["show", &key]).ok().stdout;
    let mut words = shown.split_whitespace();
    words
        .find(|word| word.starts_with(start))
        .map(str::to_owned)
}

/// They are in a directory of their own, where no library is: beside the library that has the compiler, wherever the dynamic linker
/// finds that.
#[test]
fn the_precompiled_headers_of_oclgrind_are_in_its_key() {
    let Some(mut sandbox) = Sandbox::new(Driver::Oclgrind) else {
        return;
    };
    assert_eq!(compilations(&sandbox), 1);
    assert_ne!(needed(&sandbox, "opencl-c-"), None);
    let name = needed(&sandbox, "liboclgrind-2").expect("the library that has the compiler");
    let installed = find(&name);
    let elsewhere = sandbox.path("elsewhere");
    let headers = elsewhere.join("oclgrind");
    put_tree(&installed.with_file_name("oclgrind"), &headers);
    copy_program(installed, &elsewhere.join(&name));
    sandbox.set("LD_LIBRARY_PATH", &elsewhere);
    assert_eq!(compilations(&sandbox), 0, "the same at another path");
    for file in tree(&headers).into_keys().filter(|path| path.is_file()) {
        change_last_byte(&file);
    }
    assert_eq!(misses(&sandbox), 1, "its headers have changed");
}

#[test]
fn another_build_of_a_compiler_library_compiles_again() {
    for (driver, library) in [
        (Driver::Pocl, "libclang-cpp"),
        (Driver::Rusticl, "libLLVMSPIRVLib"),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        let Some(library) = needed(&sandbox, library) else {
            skipped(format_args!(
                "{driver:?} with another {library}: it has none"
            ));
            continue;
        };
        let directory = other_build(&sandbox, &library, "updated");
        sandbox.set("LD_LIBRARY_PATH", directory);
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        sandbox.variables.remove("LD_LIBRARY_PATH");
        assert_eq!(misses(&sandbox), 0, "{driver:?}");
    }
    let Some(mut sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let copy = DriverCopy::new(&sandbox, Driver::Intel, "copy").expect("the driver is there");
    copy.use_in(&mut sandbox);
    assert_eq!(compilations(&sandbox), 1);
    for compiler in ["libcommon_clang.so", "libsvml.so", "libocl_svml_"] {
        let libraries: Vec<_> = copy
            .files("")
            .into_iter()
            .filter(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with(compiler))
            })
            .collect();
        libraries.iter().for_each(|library| update(library));
        assert_eq!(compilations(&sandbox), 1, "{compiler}");
    }
    assert_eq!(misses(&sandbox), 0);
}

#[test]
fn an_update_of_what_cannot_change_code_compiles_nothing() {
    for driver in some_of(&REAL) {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        let directory = other_build(&sandbox, "libz.so.1", "updated");
        sandbox.set("LD_LIBRARY_PATH", directory);
        assert_eq!(compilations(&sandbox), 0, "{driver:?}");
    }
}

/// It may change what is compiled, whether it has functions of its own for that or not.
#[test]
fn another_layer_of_the_loader_compiles_again() {
    let sandbox = Sandbox::stub();
    let source = sandbox.write("kernel.cl", SOURCE);
    let misses = |layers: &[PathBuf]| {
        let mut command = sandbox.command(Way::Cached, example("client"));
        command
            .args(["run", "--kernel", "f", "--source"])
            .arg(&source)
            .env("OCL_ICD_VENDORS", sandbox.path("spy"))
            .env_remove("OCLCACHE_VENDORS")
            .env(
                "OPENCL_LAYERS",
                std::env::join_paths(layers).expect("paths"),
            );
        sandbox.run(&mut command).ok().source_builds()
    };
    let (ours, other) = (library(), example("libother_layer.so"));
    assert_eq!(misses(std::slice::from_ref(&ours)), 1);
    assert_eq!(misses(&[other.clone(), ours.clone()]), 1);
    assert_eq!(misses(&[other, ours.clone()]), 0);
    assert_eq!(misses(&[ours]), 0);
}

/// The built-in library that PoCL takes for this processor, as it says itself.
fn built_ins_of_pocl(sandbox: &Sandbox) -> PathBuf {
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(Way::Bare, example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    let ran = sandbox.run(command.env("POCL_DEBUG", "all")).ok();
    let words = ran.stderr.split_whitespace();
    let path = words.into_iter().find(|word| word.ends_with(".bc"));
    path.expect("the name of a .bc file").into()
}

#[test]
fn a_changed_byte_of_the_built_in_libraries_or_of_what_is_read_beside_them_compiles_again() {
    for driver in [Driver::Pocl, Driver::Intel] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let copy = DriverCopy::new(&sandbox, driver, "copy").expect("the driver is there");
        copy.use_in(&mut sandbox);
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        let (built_ins, text) = match driver {
            Driver::Pocl => (vec![built_ins_of_pocl(&sandbox)], "/_kernel.h"),
            _ => (copy.files(".rtl"), "cl.cfg"),
        };
        for file in built_ins {
            change_last_byte(&file);
            assert_eq!(misses(&sandbox), 1, "{}", file.display());
        }
        for file in copy.files(text) {
            replace(
                &file,
                &[&std::fs::read(&file).expect("read")[..], b"\n"].concat(),
            );
            assert_eq!(misses(&sandbox), 1, "{}", file.display());
        }
        assert_eq!(compilations(&sandbox), 0, "{driver:?}");
    }
}

#[test]
fn the_same_files_with_other_times_compile_nothing() {
    for driver in some_of(&REAL) {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let copy = DriverCopy::new(&sandbox, driver, "copy").expect("the driver is there");
        copy.use_in(&mut sandbox);
        assert_eq!(compilations(&sandbox), 1, "{driver:?}");
        copy.files("").iter().for_each(|file| touch(file));
        assert_eq!(compilations(&sandbox), 0, "{driver:?}");
    }
}

/// Of what the driver has read and what it will read anew nothing is known, so nothing is stored for others.
#[test]
fn a_file_of_the_driver_that_changes_while_it_runs_is_noticed() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let copy = DriverCopy::new(&sandbox, Driver::Pocl, "copy").expect("the driver is there");
    copy.use_in(&mut sandbox);
    let header = copy.files("/_kernel.h").pop().expect("a header");
    let text = std::fs::read(&header).expect("read");
    let changed = sandbox.write("changed.h", [&text[..], b"\n"].concat());
    let source = sandbox.write("kernel.cl", SOURCE);
    // A link to the original must not be written to.
    replace(&header, &text);
    let edit = format!("{}={}", header.display(), changed.display());
    let source = source.display().to_string();
    let arguments = ["run", "--source", &source, "--kernel", "f", "--then", &edit];
    let ran = sandbox.client(Way::Cached, &arguments).ok();
    assert_eq!(ran.source_builds(), 2, "log:\n{}", ran.stderr);
    assert_eq!(sandbox.entries().len(), 1, "log:\n{}", ran.stderr);
    // The next process has the changed file from the start.
    assert_eq!(compilations(&sandbox), 1);
    assert_eq!(misses(&sandbox), 0);
}

/// The driver reads by the path that it was opened by, whatever that leads to by then.
#[test]
fn a_link_above_the_drivers_files_that_is_pointed_elsewhere_is_noticed() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let copies = ["first", "second"].map(|name| DriverCopy::new(&sandbox, Driver::Pocl, name));
    let [first, second] = copies.map(|copy| copy.expect("the driver is there"));
    let header = second.files("/_kernel.h").pop().expect("a header");
    let text = std::fs::read(&header).expect("read");
    replace(&header, &[&text[..], b"\n"].concat());
    let (current, next) = (sandbox.path("current"), sandbox.path("next"));
    std::os::unix::fs::symlink(sandbox.path("first"), &current).expect("linked");
    std::os::unix::fs::symlink(sandbox.path("second"), &next).expect("linked");
    let library = first
        .library
        .strip_prefix(sandbox.path("first"))
        .expect("below");
    sandbox.set("SPY_DRIVER", current.join(library));
    let edit = format!("{}={}", current.display(), next.display());
    let source = sandbox.write("kernel.cl", SOURCE).display().to_string();
    let arguments = ["run", "--source", &source, "--kernel", "f", "--then", &edit];
    let ran = sandbox.client(Way::Cached, &arguments).ok();
    assert_eq!(ran.source_builds(), 2, "log:\n{}", ran.stderr);
    assert_eq!(sandbox.entries().len(), 1, "log:\n{}", ran.stderr);
}

#[test]
fn a_configuration_file_of_the_working_directory_compiles_again() {
    let Some(sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let source = sandbox.write("kernel.cl", SOURCE);
    let directory = sandbox.path("work");
    std::fs::create_dir(&directory).expect("made");
    let build = || {
        let [bare, cached] = [Way::Bare, Way::Cached].map(|way| {
            let mut command = sandbox.command(way, example("client"));
            command
                .current_dir(&directory)
                .args(["run", "--kernel", "f", "--source"]);
            sandbox.run(command.arg(&source)).ok()
        });
        assert_eq!(cached.stdout, bare.stdout, "log:\n{}", cached.stderr);
        cached.source_builds()
    };
    assert_eq!(build(), 1);
    let file = directory.join("cl.cfg");
    for (value, compiled) in [("True", 1), ("False", 1), ("True", 0)] {
        std::fs::write(
            &file,
            format!("CL_CONFIG_USE_FAST_RELAXED_MATH = {value}\n"),
        )
        .expect("written");
        assert_eq!(build(), compiled, "{value}");
    }
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(build(), 0);
}

#[test]
fn another_linker_in_the_search_path_compiles_again() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    assert_eq!(compilations(&sandbox), 1);
    let path = std::env::var("PATH").expect("a path");
    let linker = linker();
    std::fs::create_dir(sandbox.path("bin")).expect("made");
    let other = sandbox.path("bin/ld");
    copy_program(&linker, &other);
    let path = |first: &Path| format!("{}:{path}", first.display());
    sandbox.set("PATH", path(&sandbox.path("bin")));
    assert_eq!(
        compilations(&sandbox),
        0,
        "the same linker at another place"
    );
    sandbox.set("PATH", path(&sandbox.path("elsewhere")));
    std::fs::create_dir(sandbox.path("elsewhere")).expect("made");
    let script = format!("#!/bin/sh\nexec {} \"$@\"\n", linker.display());
    let wrapped = sandbox.write("wrapper", script);
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&wrapped, executable).expect("changed");
    std::fs::rename(wrapped, sandbox.path("elsewhere/ld")).expect("moved");
    assert_eq!(compilations(&sandbox), 1);
}

/// What a hypervisor, a kernel or an installed tool decides, and code does not depend on, is in no key.
#[test]
fn what_differs_between_equal_hosts_and_changes_nothing_is_in_no_key() {
    for (driver, absent, present) in [
        (
            Driver::Pocl,
            &[
                "stepping",
                "hypervisor",
                "tsc_known_freq",
                "local memory size",
                "llvm-spirv",
                "libLLVMSPIRVLib",
            ][..],
            &["processor", "libgcc.a"][..],
        ),
        (Driver::Rusticl, &["processor"], &["local memory size"]),
        (
            Driver::Intel,
            &["hypervisor", "tsc_known_freq"],
            &["stepping", "local memory size"],
        ),
        (
            Driver::IntelGpu,
            &["processor"],
            // Opened by name when something is compiled, which in a process that hits nothing may be.
            &["libigc.so.1", "libigdfcl.so.1", "libopencl-clang.so.14"],
        ),
    ] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        assert_eq!(misses(&sandbox), 1, "{driver:?}");
        let entry = sandbox.entries().pop().expect("an entry");
        let key = entry.file_stem().expect("a name").to_string_lossy();
        let shown = sandbox.oclcache(&["show", &key]).ok().stdout;
        for word in absent {
            assert!(!shown.contains(word), "{driver:?}: {word}\n{shown}");
        }
        for word in present {
            assert!(shown.contains(word), "{driver:?}: {word}\n{shown}");
        }
    }
}

/// Whether the processor of a library is the machine's plays no part: its name is one that the linker does not load.
#[test]
fn a_library_of_the_linker_for_another_processor_compiles_nothing() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    assert_eq!(compilations(&sandbox), 1);
    let listed = std::process::Command::new("ldd").arg(linker()).output();
    let listed = String::from_utf8(listed.expect("ldd").stdout).expect("UTF-8");
    let library = listed
        .split_whitespace()
        .find(|word| word.starts_with("libbfd"));
    let Some(library) = library else {
        return skipped("a linker with libbfd");
    };
    let directory = other_build(&sandbox, library, "updated");
    let other = library.replace(".so", "-arm64.so");
    std::fs::rename(directory.join(library), directory.join(other)).expect("renamed");
    sandbox.set("LD_LIBRARY_PATH", directory);
    assert_eq!(misses(&sandbox), 0, "for another processor");
    sandbox.set("LD_LIBRARY_PATH", other_build(&sandbox, library, "loaded"));
    assert_eq!(misses(&sandbox), 1, "the one that is loaded");
}

/// Puts a directory in the place of another for one program.
pub fn mounted(sandbox: &Sandbox, from: &Path, to: &str) -> usize {
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(Way::Cached, "unshare");
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(from).arg(to).arg(example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    sandbox.run(&mut command).ok().source_builds()
}

/// A cross compiler or a second GCC has a `libgcc.a` as well.
#[test]
fn another_gcc_than_the_one_that_links_kernels_compiles_nothing() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let mut can = std::process::Command::new("unshare");
    let can = can.args(["--mount", "true"]).output();
    let own = Path::new("/usr/lib/gcc/x86_64-linux-gnu");
    let newest = || {
        let versions = std::fs::read_dir(own).ok()?.flatten();
        let numbers = versions.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
        numbers.max()
    };
    let (Some(newest), true) = (newest(), can.is_ok_and(|ran| ran.status.success())) else {
        return skipped("another GCC: only Debian's is known here, and only root may mount it");
    };
    let tree = sandbox.path("gcc");
    let copy = |to: &str| {
        let to = tree.join(to);
        std::fs::create_dir_all(&to).expect("made");
        for entry in std::fs::read_dir(own.join(newest.to_string()))
            .expect("listed")
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if [".a", ".o", ".so"].iter().any(|end| name.ends_with(end)) && entry.path().is_file() {
                std::fs::copy(entry.path(), to.join(name)).expect("copied");
            }
        }
        to.join("libgcc.a")
    };
    copy(&format!("x86_64-linux-gnu/{newest}"));
    let misses = || mounted(&sandbox, &tree, "/usr/lib/gcc");
    assert_eq!(misses(), 1);
    for other in [
        "avr/99".to_owned(),
        format!("x86_64-linux-gnu/{}", newest - 1),
    ] {
        change_last_byte(&copy(&other));
        assert_eq!(misses(), 0, "{other}");
    }
    change_last_byte(&copy(&format!("x86_64-linux-gnu/{}", newest + 1)));
    assert_eq!(misses(), 1, "a newer one");
}

/// The linker that PATH leads to.
pub fn linker() -> PathBuf {
    let path = std::env::var("PATH").expect("a path");
    let linkers = std::env::split_paths(&path).map(|directory| directory.join("ld"));
    let mut linkers = linkers.filter(|linker| linker.exists());
    linkers.next().expect("a linker")
}

#[test]
fn a_variable_counts_by_what_it_does_and_its_default_is_as_if_it_were_not_set() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    assert_eq!(compilations(&sandbox), 1);
    for (name, value, compiled) in [
        ("POCL_IGNORE_CL_STD", "0", 0),
        ("POCL_IGNORE_CL_STD", "1", 1),
        ("POCL_LEAVE_KERNEL_COMPILER_TEMP_FILES", "0", 0),
        ("POCL_MAX_PTHREAD_COUNT", "1", 0),
        ("POCL_WORK_GROUP_METHOD", "loops", 1),
        ("POCL_ARGS_CLANG", "-O1", 1),
        ("POCL_DEVICES", "basic", 1),
    ] {
        sandbox.set(name, value);
        assert_eq!(compilations(&sandbox), compiled, "{name}={value}");
        sandbox.variables.remove(name);
    }
    assert_eq!(misses(&sandbox), 0);
}

/// A program that a variable names is part of the compiler, whatever stays its name.
#[test]
fn the_content_of_a_file_that_a_variable_names_counts() {
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let tool = sandbox.write("tool", "#!/bin/sh\nexec true\n");
    sandbox.set("POCL_PATH_TOOL", tool.as_os_str());
    assert_eq!(misses(&sandbox), 1);
    assert_eq!(misses(&sandbox), 0);
    sandbox.write("tool", "#!/bin/sh\nexec false\n");
    assert_eq!(misses(&sandbox), 1);
}

/// Some compilers have options for programs of certain names. An update may rename a program while it runs.
#[test]
fn a_program_that_is_renamed_is_not_taken_for_another_or_itself() {
    let sandbox = Sandbox::stub();
    let [old, new] = ["old", "new"].map(|name| sandbox.path(name));
    copy_program(example("client"), &old);
    let mut renamed = Turns::of(&sandbox, &old);
    // The driver is open.
    renamed.turn("set NOTHING 1", "set");
    std::fs::rename(&old, &new).expect("renamed");
    renamed.turn("build 0 1", "built 1");
    // An update puts another file in its place, or removes it.
    copy_program(example("client"), &old);
    for gone in [&new, &old] {
        std::fs::remove_file(gone).expect("removed");
    }
    renamed.turn("build 0 1", "built 1");
    assert!(renamed.end(None).success());
    assert_eq!(sandbox.stat("bypass_reasons/unidentified_driver"), 2);
    for (program, hits, misses) in [(&old, 0, 1), (&new, 0, 2), (&old, 1, 2)] {
        copy_program(example("client"), program);
        let mut turns = Turns::of(&sandbox, program);
        turns.turn("build 0 1", "built 1");
        assert!(turns.end(None).success());
        let counted = [sandbox.stat("hits"), sandbox.stat("misses")];
        assert_eq!(counted, [hits, misses], "{}", program.display());
    }
}

/// The kernel then shows nothing of the program in /proc/self.
#[test]
fn a_program_whose_main_thread_has_ended_is_the_same() {
    let mut sandbox = Sandbox::stub();
    let Some(program) = program(&sandbox, "folding", &["-lpthread"]) else {
        return;
    };
    let file = sandbox.write("kernel.cl", SOURCE);
    let times = |sandbox: &Sandbox| {
        let mut command = sandbox.command(Way::Cached, &program);
        sandbox.run(command.arg(&file)).ok().source_builds()
    };
    assert_eq!(times(&sandbox), 1);
    sandbox.set("FOLDING_ALONE", "1");
    assert_eq!(times(&sandbox), 0);
}
