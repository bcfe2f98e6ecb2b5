//! `oclcache export` and `import`: a cache goes elsewhere as it is, whatever an archive holds.

mod hostile;
mod made;
mod replace;
mod secrets;
mod systems;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::process::behind_filter;
use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example, some_of};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = (uint)get_global_id(0) * 3 + N; }\n";

/// Another home, cache and place for the same driver.
fn elsewhere(sandbox: &Sandbox, driver: Driver) -> Sandbox {
    let mut other = Sandbox::new(driver).expect("it was there");
    // Variables of a driver that nobody knows are in its keys.
    other.set("STUB_LOG", sandbox.path("stub.log"));
    for (name, value) in &sandbox.variables {
        other.set(name, value);
    }
    other
}

/// An archive of all that is in the cache.
#[track_caller]
fn export(sandbox: &Sandbox, arguments: &[&str]) -> PathBuf {
    let file = sandbox.path("kernels.tar.zst");
    let file_name = file.to_str().expect("UTF-8");
    let all = [&["export", "--yes"], arguments, &[file_name]].concat();
    sandbox.oclcache(&all).ok();
    file
}

fn import(sandbox: &Sandbox, arguments: &[&str], file: &Path) -> Ran {
    let file = file.to_str().expect("UTF-8");
    sandbox.oclcache(&[&["import"], arguments, &[file]].concat())
}

/// What is said at the end, of a command that may have failed.
fn last(ran: &Ran) -> &str {
    let last = ran
        .stderr
        .lines()
        .rfind(|line| line.contains(" refused"))
        .unwrap_or(&ran.stderr);
    last.strip_prefix("oclcache: ").unwrap_or(last)
}

/// The binaries of all entries, by key.
fn served(sandbox: &Sandbox) -> BTreeMap<String, Vec<Vec<u8>>> {
    let entries = sandbox.entries();
    let binaries = |path: &PathBuf| {
        let key = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let bytes = std::fs::read(path).expect("an entry");
        (key, made::Parts::of(&bytes).binaries)
    };
    entries.iter().map(binaries).collect()
}

#[test]
fn what_was_exported_here_is_a_hit_elsewhere() {
    for driver in some_of(&Driver::ALL) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let bare = sandbox.kernel(Way::Bare, SOURCE, "-DN=1").ok();
        let built =
            ["-DN=1", "-DN=2"].map(|options| sandbox.kernel(Way::Cached, SOURCE, options).ok());
        let logs = built.map(|ran| ran.stderr).join("");
        let file = export(&sandbox, &[]);
        let other = elsewhere(&sandbox, driver);
        let ran = import(&other, &["--trust"], &file).ok();
        assert_eq!(
            last(&ran),
            "2 imported, 0 refused",
            "{driver:?}, log:\n{logs}"
        );
        assert_eq!(served(&other), served(&sandbox), "{driver:?}");
        let hit = other.kernel(Way::Cached, SOURCE, "-DN=1").ok();
        assert_eq!(hit.stdout, bare.stdout, "{driver:?}");
        assert_eq!(hit.source_builds(), 0, "{driver:?}, log:\n{}", hit.stderr);
    }
}

/// Programs made in any way, and recipes.
#[test]
fn a_cache_that_was_exported_and_imported_is_the_same_and_makes_the_same_archive() {
    let mut sandbox = Sandbox::stub();
    for section in ["ways", "compilelink", "il"] {
        sandbox.client(Way::Cached, &[section]).ok();
    }
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=7").ok();
    let file = export(&sandbox, &[]);
    let first = std::fs::read(&file).expect("an archive");
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(
        std::fs::read(export(&sandbox, &[])).expect("an archive"),
        first
    );

    let other = elsewhere(&sandbox, Driver::Stub);
    import(&other, &["--trust"], &file).ok();
    assert_eq!(served(&other), served(&sandbox));
    // The seal is each cache's own, and an imported entry knows what driver it is for here: all else is the same.
    let key = |sandbox: &Sandbox| sandbox.path("cache/v1/archive-key");
    std::fs::copy(key(&sandbox), key(&other)).expect("copied");
    let again = made::Unpacked::of(&export(&other, &[]));
    let before = made::Unpacked::of(&file);
    let names = |unpacked: &made::Unpacked| -> Vec<String> {
        unpacked
            .members
            .iter()
            .map(|(name, _)| name.clone())
            .collect()
    };
    assert_eq!(names(&again), names(&before));
    // What is there already is not taken again, and that is no mistake.
    let ran = import(&other, &["--trust"], &file).ok();
    let count = sandbox.entries().len();
    assert_eq!(
        last(&ran),
        format!("0 imported, {count} already stored, 0 refused")
    );
}

#[test]
fn a_pending_recipe_that_was_imported_is_baked_only_when_that_is_asked_for() {
    let mut sandbox = Sandbox::stub();
    sandbox.without_spy();
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.set("STUB_LOG", sandbox.path("stub.log"));
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = export(&sandbox, &[]);
    let other = elsewhere(&sandbox, Driver::Stub);
    // How often a program is compiled for which the other cache is asked.
    let compiled = || {
        let before = sandbox.compilations();
        other.kernel(Way::Cached, SOURCE, "-DN=1").ok();
        sandbox.compilations() - before
    };
    let ran = import(&other, &["--trust"], &file).ok();
    assert_eq!(
        last(&ran),
        "1 imported (1 of them recipes for `oclcache bake --imported`), 0 refused"
    );
    let baked = |arguments: &[&str]| {
        let ran = other.oclcache(&[&["bake"], arguments].concat()).ok();
        let last = ran.stderr.lines().last().unwrap_or_default().to_owned();
        last.strip_prefix("oclcache: ")
            .map(str::to_owned)
            .unwrap_or(last)
    };
    for arguments in [&[][..], &["--all"], &["--stale"]] {
        assert_eq!(
            baked(arguments),
            "0 baked, 0 skipped, 0 failed",
            "{arguments:?}"
        );
    }
    assert_eq!(baked(&["--imported"]), "1 baked, 0 skipped, 0 failed");
    assert_eq!(compiled(), 0);
    // That it was baked once does not make it this user's own.
    assert_eq!(baked(&["--stale"]), "0 baked, 0 skipped, 0 failed");
    // A program of this user's that misses leaves a recipe of its own in the place of the imported one.
    other.oclcache(&["clear"]).ok();
    import(&other, &["--trust"], &file).ok();
    assert_eq!(compiled(), 1);
    assert_eq!(baked(&[]), "1 baked, 0 skipped, 0 failed");
}

/// A compiler has faults, so a source can do what the process can. The driver tries that, and lists what was possible.
#[test]
fn a_recipe_of_others_is_compiled_where_it_can_reach_nothing_else() {
    let mut sandbox = Sandbox::stub();
    sandbox.without_spy();
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.set("STUB_INTRUDE", sandbox.path("private"));
    sandbox.set("SSH_AUTH_SOCK", "/run/agent");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = export(&sandbox, &[]);
    let other = elsewhere(&sandbox, Driver::Stub);
    let private = sandbox.path("private");
    std::fs::create_dir(&private).expect("made");
    for name in ["go", "secret"] {
        std::fs::write(private.join(name), "content").expect("written");
    }
    let possible = |sandbox: &Sandbox, arguments: &[&str]| {
        let ran = sandbox
            .oclcache(&[&["bake", "-v"], arguments].concat())
            .ok();
        assert!(ran.stderr.contains(": 1 baked"), "{}", ran.stderr);
        std::fs::read_to_string(sandbox.path("cache/intruded")).expect("it tried")
    };
    import(&other, &["--trust"], &file).ok();
    assert_eq!(possible(&other, &["--imported"]), "");
    assert_eq!(
        std::fs::read_to_string(private.join("secret")).expect("there"),
        "content"
    );
    // The user's own are compiled as the user's programs are. This shows that all of it was tried.
    let own = possible(&sandbox, &[]);
    assert!(own.starts_with("read, list, write, cut, remove"), "{own}");
}

#[test]
fn a_recipe_of_an_archive_is_compiled_and_that_said_where_the_kernel_cannot_confine_a_process() {
    let mut sandbox = Sandbox::stub();
    sandbox.without_spy();
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = export(&sandbox, &[]);
    let other = elsewhere(&sandbox, Driver::Stub);
    import(&other, &["--trust"], &file).ok();
    // Landlock is asked for its version first, and answers as a kernel without it.
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let absent = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let filter = vec![
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 0, 1, libc::SYS_landlock_create_ruleset as u32),
        instruction(0x06, 0, 0, absent),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let bake = |arguments: &[&str]| {
        let mut command = other.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
        command.arg("bake").args(arguments);
        behind_filter(&mut command, filter.clone());
        other.run(&mut command).ok().stderr
    };
    let said = bake(&["--imported"]);
    let why = "in a process that is not confined: this kernel has no Landlock";
    assert_eq!(said.matches(why).count(), 1, "{said}");
    assert!(said.contains("1 baked, 0 skipped"), "{said}");
    // Of the user's own nothing is said.
    other.kernel(Way::Cached, SOURCE, "-DN=2").ok();
    let said = bake(&[]);
    assert!(said.contains("1 baked, 0 skipped"), "{said}");
    assert!(!said.contains("confined"), "{said}");
}

/// Where its headers never were; a program that has them elsewhere is served.
#[test]
fn an_imported_recipe_is_baked_with_the_headers_that_came_with_it() {
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.without_spy();
        sandbox.set("OCLCACHE_RECORD", "bake");
        sandbox.set("STUB_LOG", sandbox.path("stub.log"));
        let hits = |sandbox: &Sandbox, place: &Path| {
            std::fs::create_dir_all(place.join("inc")).expect("made");
            std::fs::write(place.join("inc/part.h"), "#define PART 4\n").expect("written");
            std::fs::write(place.join("beside.h"), "#define BESIDE 5\n").expect("written");
            let source = "#include <part.h>\n#include \"beside.h\"\n\
                __kernel void f(__global uint *out) { out[get_global_id(0)] = PART + BESIDE; }\n";
            std::fs::write(place.join("kernel.cl"), source).expect("written");
            let mut command = sandbox.kernel_in(place, "-I inc");
            sandbox.run(&mut command).ok();
            let stats = sandbox.oclcache(&["stats", "--json"]).ok().stdout;
            let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
            stats["hits"].as_u64().expect("a number")
        };
        let place = sandbox.path("place");
        assert_eq!(hits(&sandbox, &place), 0);
        let file = export(&sandbox, &[]);
        let other = elsewhere(&sandbox, driver);
        import(&other, &["--trust"], &file).ok();
        std::fs::remove_dir_all(&place).expect("removed");
        let ran = other.oclcache(&["bake", "--imported", "-v"]).ok();
        assert!(
            ran.stderr.contains(": 1 baked"),
            "{driver:?}: {}",
            ran.stderr
        );
        assert_eq!(hits(&other, &other.path("other/place")), 1, "{driver:?}");
    }
}

#[test]
fn an_archive_of_ones_own_needs_no_trust_and_any_other_does() {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = export(&sandbox, &[]);
    sandbox.oclcache(&["clear"]).ok();
    assert_eq!(
        last(&import(&sandbox, &[], &file).ok()),
        "1 imported, 0 refused"
    );
    let other = elsewhere(&sandbox, Driver::Stub);
    let ran = import(&other, &[], &file);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("--trust"), "{}", ran.stderr);
    assert!(!other.path("cache").exists());
    // To look is no trust.
    let ran = import(&other, &["--dry-run"], &file).ok();
    assert_eq!(last(&ran), "1 would be imported, 0 refused");
    assert!(!other.path("cache").exists());
    // Nor is an archive one's own that has another's entry under one's own seal.
    let mut forged = made::Unpacked::of(&file);
    forged.members[0].1.push(b' ');
    let forged = forged.pack(&sandbox, "forged.tar.zst");
    assert_eq!(import(&sandbox, &[], &forged).code, Some(1));
}

#[test]
fn entries_of_another_driver_are_taken_only_with_all() {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = export(&sandbox, &[]);
    let mut other = elsewhere(&sandbox, Driver::Stub);
    // Another version of the driver.
    other.set("STUB_DEVICE_NAME", "newer");
    let ran = import(&other, &["--trust"], &file);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(
        last(&ran),
        "0 imported, 1 fit no driver of this machine, 0 refused"
    );
    let ran = import(&other, &["--trust", "--all"], &file).ok();
    assert_eq!(last(&ran), "1 imported, 0 refused");
}

#[test]
fn with_a_linked_program_goes_what_it_was_linked_from_whoever_made_that() {
    // Of a driver that nobody knows the program's name is in the key.
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let library = sandbox.write("library.cl", "uint three() { return 3; }\n");
    let source =
        "uint three();\n__kernel void f(__global uint *out) { out[get_global_id(0)] = three(); }\n";
    let source = sandbox.write("source.cl", source);
    let alone = sandbox.write("alone.cl", SOURCE);
    let link = |sandbox: &Sandbox, program: &str, sources: &[&Path]| {
        let copy = sandbox.path(program);
        copy_program(example("client"), &copy);
        let mut command = sandbox.command(Way::Cached, copy);
        command.args(["linked", "--kernel", "f", "--options", "-DN=1"]);
        for source in sources {
            command.arg("--source").arg(source);
        }
        sandbox.run(&mut command).ok()
    };
    link(&sandbox, "first", &[&library, &alone]);
    let wanted = link(&sandbox, "second", &[&library, &source]);
    // The baker stores what PoCL links.
    sandbox.oclcache(&["bake"]).ok();
    assert_eq!(sandbox.entries().len(), 5);
    let file = export(&sandbox, &["--program", "second"]);
    let other = elsewhere(&sandbox, Driver::Pocl);
    let ran = import(&other, &["--trust"], &file).ok();
    assert_eq!(last(&ran), "3 imported, 0 refused");
    let ran = link(&other, "second", &[&library, &source]);
    assert_eq!((ran.compiler_runs(), ran.stdout), (0, wanted.stdout));
}

#[test]
fn what_is_exported_can_be_chosen() {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let count = |arguments: &[&str]| {
        let ran =
            sandbox.oclcache(&[&["export", "--dry-run", "--json"], arguments, &["-"]].concat());
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        (ran.code, json["keys"].as_array().map_or(0, Vec::len))
    };
    let family = {
        let list = sandbox.oclcache(&["list", "--json"]).ok().stdout;
        let json: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        json[0]["driver"].as_str().expect("a driver").to_owned()
    };
    for chosen in [
        &["--driver", &family][..],
        &["--device", "STUB"],
        &["--program", "client"],
        &["--since", "1h"],
    ] {
        assert_eq!(count(chosen), (Some(0), 1), "{chosen:?}");
    }
    for chosen in [
        &["--driver", "nobody"][..],
        &["--device", "nothing"],
        &["--program", "clien"],
    ] {
        assert_eq!(count(chosen), (Some(1), 0), "{chosen:?}");
    }
    assert!(!sandbox.path("-").exists());
}
