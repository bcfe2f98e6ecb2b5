//! `oclcache install --user`: what new shells get, what stays if the build goes, and that no byte of others' files changes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{SOURCE, files, fresh, shell};
use crate::doctor::World;
use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::shells::has;
use crate::snapshots::assert_shown;
use crate::support::{Ran, Way, example, is_root, plain_command, skipped};

const LINE: &str = "[ ! -r \"$HOME/.local/lib/oclcache/profile.sh\" ] || . \"$HOME/.local/lib/oclcache/profile.sh\" # by `oclcache install`";

/// A machine with a build of ours in `bin`, of which nothing is registered. The files are smaller than those of a debug build.
pub(super) fn build() -> World {
    let world = fresh();
    for (name, mode) in [("liboclcache.so", 0o644), ("oclcache", 0o755)] {
        let file = world.sandbox.path("bin").join(name);
        let real = file.canonicalize().expect("it is built");
        let small = world.sandbox.path(name).with_extension("small");
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(&small).arg(real);
        assert!(strip.status().expect("strip").success());
        fs::rename(small, &file).expect("renamed");
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("changed");
    }
    world
}

pub(super) fn home(world: &World) -> PathBuf {
    world.sandbox.path("home")
}

pub(super) fn architecture() -> String {
    let system = rustix::system::uname();
    system.machine().to_string_lossy().into_owned()
}

/// What a program prints in a new session, in which only HOME and the machine's own PATH are set.
#[track_caller]
fn session(world: &World, home: &Path, program: &[&str], ssh: bool) -> String {
    let mut command = plain_command(program[0]);
    command.args(&program[1..]).env("HOME", home);
    if ssh {
        command.env("SSH_CLIENT", "127.0.0.1 1 22");
    }
    let ran = world.sandbox.run(&mut command).ok();
    assert_eq!(ran.stderr, "", "{program:?}");
    ran.stdout
}

/// The drivers that a new login shell has.
#[track_caller]
fn login(world: &World, shell: &str) -> String {
    let home = home(world);
    let script = ["-l", "-c", "echo \"$OCL_ICD_VENDORS\""];
    session(world, &home, &[&[shell], &script[..]].concat(), false)
}

fn vendors(world: &World) -> String {
    let vendors = home(world).join(".local/share/oclcache/vendors");
    format!("{}\n", vendors.display())
}

#[test]
fn for_one_user_a_shell_that_does_what_it_prints_is_cached_until_it_is_undone() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/bash");
    let home = home(&world);
    let client = format!(
        "{} run --kernel f --source kernel.cl",
        example("client").display()
    );
    let plain = |shown: &str| shown.replace(&architecture(), "[ARCHITECTURE]");
    let dry = shell(&world, "oclcache install --user --dry-run").ok();
    assert_eq!((dry.stdout.as_str(), files(&home).len()), ("", 0));
    assert_shown(&world.sandbox, "install-dry-run", &plain(&dry.stderr));
    let installed = shell(&world, "oclcache install --user").ok();
    let shown = format!("{}{}", installed.stderr, installed.stdout);
    assert_shown(&world.sandbox, "install", &plain(&shown));
    let registered = files(&home);
    assert_eq!(registered.len(), 6, "{:?}", registered.keys());
    let evaluated = "eval \"$(oclcache install --user)\"; oclcache uninstall --user --dry-run";
    assert_eq!(shell(&world, evaluated).ok().stdout, "");
    let again = shell(&world, "oclcache install --user").ok();
    assert!(
        again.stderr.contains("already registered for you"),
        "{}",
        again.stderr
    );
    assert_eq!(
        (files(&home), &again.stdout),
        (registered, &installed.stdout)
    );
    let cached = format!("eval \"$(oclcache install --user)\"; {client} && {client}");
    shell(&world, &cached).ok();
    assert_eq!(
        [world.sandbox.compilations(), world.sandbox.entries().len()],
        [1, 1]
    );
    let agreed = shell(&world, "oclcache install --user --yes").ok();
    assert_shown(&world.sandbox, "install-yes", &plain(&agreed.stderr));
    let undone = shell(
        &world,
        "eval \"$(oclcache install --user)\"; oclcache uninstall --user",
    )
    .ok();
    let shown = format!("{}{}", undone.stderr, undone.stdout);
    assert_shown(&world.sandbox, "uninstall", &plain(&shown));
    assert_eq!(fs::read_dir(&home).expect("listed").count(), 0);
    assert!(world.sandbox.path("cache").exists() && world.sandbox.entries().len() == 1);
    let nothing = shell(&world, "oclcache uninstall --user").ok();
    assert!(
        nothing.stderr.contains("not registered for you"),
        "{}",
        nothing.stderr
    );
    assert_eq!(nothing.stdout, "");
}

#[test]
fn a_build_that_is_removed_breaks_nothing() {
    let world = build();
    let client = example("client").display().to_string();
    let run = format!("{client} run --kernel f --source kernel.cl");
    let script = format!(
        "eval \"$(bin/oclcache install --user)\"; rm bin/oclcache bin/liboclcache.so; {run} && {run}"
    );
    shell(&world, &script).ok();
    assert_eq!(world.sandbox.compilations(), 1);
    // The command stays, too, and installs itself again over what it has installed.
    let own = "export PATH=$HOME/.local/bin:$PATH; oclcache install --user";
    let ran = shell(&world, &format!("{own}; oclcache path")).ok();
    assert!(ran.stdout.contains("cache"), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("already registered for you"),
        "{}",
        ran.stderr
    );
    // Another build over it is an upgrade or a downgrade. Who runs keeps the old file.
    let other = build();
    let copy = home(&world).join(format!(".local/lib/oclcache/{}", architecture()));
    let old = fs::File::open(copy.join("liboclcache.so")).expect("opened");
    let bin = other.sandbox.path("bin");
    let library = bin.join("liboclcache.so");
    let mut newer = fs::read(&library).expect("read");
    newer.extend(b"newer");
    fs::write(&library, &newer).expect("written");
    shell(
        &world,
        &format!("{}/oclcache install --user", bin.display()),
    )
    .ok();
    assert!(fs::read(copy.join("liboclcache.so")).expect("read") == newer);
    assert_eq!(
        old.metadata().expect("its size").len() + 5,
        newer.len() as u64
    );
}

/// Our line is at the top of that file.
#[test]
fn a_start_up_file_that_chooses_drivers_itself_is_named() {
    let mut world = build();
    world.sandbox.set("SHELL", "/usr/bin/bash");
    let line = "export OCL_ICD_VENDORS=/own/vendors";
    fs::write(home(&world).join(".bashrc"), format!("{line}\n")).expect("written");
    let bashrc = home(&world).join(".bashrc").display().to_string();
    let said = shell(&world, "oclcache install --user -y > /dev/null")
        .ok()
        .stderr;
    let words = format!("shells that read `{bashrc}` do not use it, because of `{line}` there");
    assert!(said.contains(&words), "{said}");
    let doctor = shell(&world, &format!("{line}; oclcache doctor --no-build")).stdout;
    let words = format!("remove `{line}` from `{bashrc}`");
    assert!(doctor.contains(&words), "{doctor}");
}

#[test]
fn new_login_shells_use_it_and_nothing_is_printed() {
    let mut world = build();
    world.sandbox.set("ZDOTDIR", "");
    for name in ["bash", "dash", "sh", "zsh", "fish"] {
        if !has(name) {
            continue;
        }
        world.sandbox.set("SHELL", format!("/usr/bin/{name}"));
        // As Debian's: what is not interactive leaves early.
        let early = "case $- in *i*) ;; *) return;; esac\n";
        fs::write(home(&world).join(".bashrc"), early).expect("written");
        // The last line has no end.
        fs::write(home(&world).join(".profile"), "A=b").expect("written");
        let before = files(&home(&world));
        assert_eq!(login(&world, name), "\n", "{name}");
        shell(&world, "unset OCL_ICD_VENDORS; oclcache install --user -y").ok();
        assert_eq!(login(&world, name), vendors(&world), "{name}");
        if ["bash", "zsh", "fish"].contains(&name) {
            let command = [name, "-c", "echo \"$OCL_ICD_VENDORS\""];
            let shown = session(&world, &home(&world), &command, true);
            assert_eq!(shown, vendors(&world), "ssh HOST COMMAND with {name}");
        }
        if name == "bash" {
            let other = "OCL_ICD_VENDORS=/own bash -ic 'echo $OCL_ICD_VENDORS' 2>/dev/null";
            let shown = session(&world, &home(&world), &["sh", "-c", other], false);
            assert_eq!(shown, "/own\n", "another choice is kept");
        }
        // A library that is gone breaks no session that begins afterwards, nor one that sources the file again.
        let library = format!(".local/lib/oclcache/{}/liboclcache.so", architecture());
        let library = home(&world).join(library);
        let kept = fs::read(&library).expect("read");
        fs::remove_file(&library).expect("removed");
        assert_eq!(login(&world, name), "\n", "{name}");
        if name != "fish" {
            let again = format!("OCL_ICD_VENDORS={} sh -lc env", vendors(&world).trim());
            fs::write(home(&world).join(".profile"), format!("{LINE}\n")).expect("written");
            let shown = session(&world, &home(&world), &["sh", "-c", &again], false);
            assert!(!shown.contains("OCL_ICD_VENDORS"), "{shown}");
            fs::write(
                home(&world).join(".profile"),
                before.values().last().expect("one"),
            )
            .expect("written");
        }
        fs::write(&library, kept).expect("written");
        shell(&world, "oclcache uninstall --user").ok();
        assert_eq!(files(&home(&world)), before, "{name}");
    }
}

#[test]
fn drivers_that_the_login_chooses_stay_behind_it() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/sh");
    let drivers = world.sandbox.path("drivers").canonicalize().expect("made");
    let drivers = drivers.display();
    let profile = format!("export OCL_ICD_VENDORS={drivers}\n");
    fs::write(home(&world).join(".profile"), profile).expect("written");
    shell(&world, "oclcache install --user --yes").ok();
    assert_eq!(login(&world, "sh"), vendors(&world));
    let script = ["sh", "-lc", "echo $OCLCACHE_VENDORS"];
    let shown = session(&world, &home(&world), &script, false);
    assert_eq!(shown, format!("{drivers}\n"));
}

#[test]
fn new_login_shells_put_a_layer_before_others_once() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/sh");
    let ran = shell(&world, "oclcache install --user --layer --yes");
    if ran.stderr.contains("does not read such layers") {
        return skipped("a layer in new login shells (the loader reads none)");
    }
    ran.ok();
    let library = format!(".local/lib/oclcache/{}/liboclcache.so", architecture());
    let library = home(&world).join(library).display().to_string();
    for (before, after) in [
        ("", library.clone()),
        ("/a.so:/b.so", format!("{library}:/a.so:/b.so")),
        (library.as_str(), library.clone()),
    ] {
        let script = "export OPENCL_LAYERS=$0; exec sh -lc 'echo $OPENCL_LAYERS'";
        let shown = session(&world, &home(&world), &["sh", "-c", script, before], false);
        assert_eq!(shown, format!("{after}\n"), "{before}");
    }
    // Then as a driver, which takes the layer away.
    shell(&world, "oclcache install --user").ok();
    assert_eq!(login(&world, "sh"), vendors(&world));
    let script = ["sh", "-lc", "echo $OPENCL_LAYERS"];
    assert_eq!(session(&world, &home(&world), &script, false), "\n");
}

#[test]
fn a_start_up_file_behind_a_link_is_edited_where_it_is() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/sh");
    let dotfiles = world.sandbox.path("dotfiles");
    fs::create_dir(&dotfiles).expect("made");
    let real = dotfiles.join("profile");
    fs::write(&real, "A=b\n").expect("written");
    fs::set_permissions(&real, PermissionsExt::from_mode(0o600)).expect("changed");
    let link = home(&world).join(".profile");
    symlink("../dotfiles/profile", &link).expect("linked");
    shell(&world, "oclcache install --user --yes").ok();
    let read = || fs::read_to_string(&real).expect("read");
    assert_eq!(read(), format!("A=b\n{LINE}\n"));
    assert_eq!(login(&world, "sh"), vendors(&world));
    shell(&world, "oclcache uninstall --user").ok();
    assert_eq!(read(), "A=b\n");
    assert_eq!(fs::read_dir(&dotfiles).expect("listed").count(), 1);
    let mode = real.metadata().expect("a file").permissions().mode();
    assert!(link.is_symlink() && mode & 0o777 == 0o600);
    // What cannot be edited is left alone, and the line is told.
    let plants: [(&str, &dyn Fn()); 4] = [
        ("it is a link to nothing", &|| {
            symlink("nowhere", &link).expect("linked");
        }),
        ("it is not a regular file", &|| {
            symlink("/dev/null", &link).expect("linked");
        }),
        ("it is not a regular file", &|| {
            fs::create_dir(&link).expect("made");
        }),
        ("a hard link", &|| {
            fs::hard_link(&real, &link).expect("linked");
        }),
    ];
    for (why, plant) in plants {
        let _ = fs::remove_file(&link);
        plant();
        let ran = shell(&world, "oclcache install --user --yes").ok();
        let words = format!(
            "{why}; insert this line at the end of `{}`:",
            link.display()
        );
        assert!(
            ran.stderr.contains(&words) && ran.stderr.contains(LINE),
            "{}",
            ran.stderr
        );
        assert_eq!(read(), "A=b\n");
        shell(&world, "oclcache uninstall --user").ok();
        let _ = fs::remove_dir(&link);
    }
}

/// The command on a terminal, with an answer to its question.
fn on_terminal(world: &World, line: &str, answer: &str) -> Ran {
    let mut script = plain_command("script");
    let own = world.sandbox.command(Way::Bare, "script");
    for (name, value) in own.get_envs() {
        value.map(|value| script.env(name, value));
    }
    let answer = world.sandbox.write("answer", answer);
    script.args(["-qec", line, "/dev/null"]);
    script.stdin(fs::File::open(answer).expect("opened"));
    world.sandbox.run(&mut script)
}

#[test]
fn start_up_files_are_changed_by_agreement_only() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/sh");
    let profile = home(&world).join(".profile");
    // Without a terminal nobody can be asked, and the line is told.
    let ran = shell(&world, "oclcache install --user").ok();
    assert!(!profile.exists() && ran.stderr.contains(LINE) && ran.stderr.contains("--yes"));
    if !has("script") {
        return;
    }
    for (answer, agrees) in [("\n", false), ("n\n", false), ("", false), ("y\n", true)] {
        let ran = on_terminal(&world, "oclcache install --user", answer).ok();
        let asked = ran.stdout.find("use it? [y/N]");
        let shown = ran.stdout.find("profile.sh\" ] ||");
        assert!(shown.is_some() && shown < asked, "{}", ran.stdout);
        assert_eq!(profile.exists(), agrees, "{answer:?}");
    }
    let again = on_terminal(&world, "oclcache install --user", "").ok();
    assert!(!again.stdout.contains("[y/N]"), "{}", again.stdout);
}

#[test]
fn a_home_of_any_name_is_served_or_refused_in_plain_words() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/sh");
    for name in HOSTILE {
        let home = world
            .sandbox
            .path("homes")
            .join(std::ffi::OsStr::from_bytes(name));
        fs::create_dir_all(&home).expect("made");
        let before = files(&world.sandbox.path("homes"));
        let mut command = world
            .sandbox
            .command(Way::Bare, world.sandbox.path("bin/oclcache"));
        command
            .args(["install", "--user", "--yes"])
            .env("HOME", &home);
        let output = command.output().expect("it runs");
        assert_plain(&output.stdout);
        assert_plain(&output.stderr);
        let hides =
            |letter: char| letter.is_control() || ('\u{200b}'..'\u{206a}').contains(&letter);
        let is_shown = std::str::from_utf8(name)
            .is_ok_and(|name| !name.contains(hides) && !name.contains('\u{301}'));
        assert_eq!(output.status.success(), is_shown, "{name:?}");
        if is_shown {
            let vendors = home.join(".local/share/oclcache/vendors");
            let script = [
                "sh",
                "-lc",
                "printf '%s\\n' \"$OCL_ICD_VENDORS\"; $HOME/.local/bin/oclcache path",
            ];
            let script = [
                script[0],
                script[1],
                &script[2].replace("$HOME", "\"$HOME\""),
            ];
            let shown = session(&world, &home, &script, false);
            let cache = home.join(".cache/oclcache");
            assert_eq!(
                shown,
                format!("{}\n{}\n", vendors.display(), cache.display())
            );
            let mut command = world
                .sandbox
                .command(Way::Bare, home.join(".local/bin/oclcache"));
            command.args(["uninstall", "--user"]).env("HOME", &home);
            world.sandbox.run(&mut command).ok();
        }
        assert_eq!(files(&world.sandbox.path("homes")), before, "{name:?}");
    }
    assert!(!world.sandbox.path("pwned").exists());
}

#[test]
fn systemd_reads_the_variables_whatever_the_home_is_called() {
    let generator =
        "/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator";
    if !Path::new(generator).exists() {
        return skipped("the file of variables, read by systemd (it is not installed)");
    }
    let world = build();
    let home = world.sandbox.path("h o'm\"e");
    fs::create_dir(&home).expect("made");
    let mut command = world
        .sandbox
        .command(Way::Bare, world.sandbox.path("bin/oclcache"));
    command.args(["install", "--user"]).env("HOME", &home);
    world.sandbox.run(&mut command).ok();
    let shown = session(
        &world,
        &home,
        &[
            "sh",
            "-c",
            &format!("set -a; eval \"$({generator})\"; echo \"$OCL_ICD_VENDORS\""),
        ],
        false,
    );
    let vendors = home.join(".local/share/oclcache/vendors");
    assert_eq!(shown, format!("{}\n", vendors.display()));
}

/// All files and directories below a directory.
fn names(directory: &Path) -> Vec<PathBuf> {
    crate::support::tree(directory).into_keys().collect()
}

#[test]
fn if_one_file_cannot_be_written_nothing_is_changed() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/sh");
    let bin = home(&world).join(".local/bin");
    fs::create_dir(home(&world).join(".local")).expect("made");
    fs::write(&bin, "not a directory").expect("written");
    let before = names(&home(&world));
    let refused = shell(&world, "oclcache install --user --yes");
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .stderr
            .contains("so nothing was done; check who may write there, and whether there is room"),
        "{}",
        refused.stderr
    );
    assert_eq!(names(&home(&world)), before);
    fs::remove_file(&bin).expect("removed");
    // No room: a limit that the library exceeds, which the shell makes an error.
    let before = names(&home(&world));
    let refused = shell(
        &world,
        "trap '' XFSZ; ulimit -f 1000; oclcache install --user --yes",
    );
    let words = "File too large (os error 27), so nothing was done";
    assert!(
        refused.code == Some(1) && refused.stderr.contains(words),
        "{}",
        refused.stderr
    );
    assert_eq!(names(&home(&world)), before);
    // What is not ours is not replaced.
    fs::create_dir(&bin).expect("made");
    fs::write(bin.join("oclcache"), "#!/bin/sh\necho mine\n").expect("written");
    let before = names(&home(&world));
    let refused = shell(&world, "oclcache install --user --yes");
    let words = "so it is not from `oclcache install` and is not changed";
    assert!(
        refused.code == Some(1) && refused.stderr.contains(words),
        "{}",
        refused.stderr
    );
    assert_eq!(names(&home(&world)), before);
}

#[test]
fn nobody_else_can_write_what_is_installed_whatever_the_umask() {
    for (umask, closed) in [("000", false), ("077", true)] {
        let world = build();
        let script = format!("umask {umask}; SHELL=/bin/sh oclcache install --user --yes");
        shell(&world, &script).ok();
        let mut places = vec![home(&world).join(".local"), home(&world).join(".config")];
        while let Some(place) = places.pop() {
            let mode = place.metadata().expect("a file").permissions().mode();
            assert_eq!(mode & 0o022, 0, "{}", place.display());
            if place.is_dir() {
                assert_eq!(mode & 0o055 == 0, closed, "{}", place.display());
                let entries = fs::read_dir(&place).expect("listed");
                places.extend(entries.flatten().map(|entry| entry.path()));
            }
        }
    }
}

#[test]
fn under_sudo_it_is_refused() {
    if !is_root() {
        return skipped("an installation for root under sudo (the tests do not run as root)");
    }
    let world = build();
    for verb in ["install", "uninstall"] {
        let ran = shell(&world, &format!("SUDO_UID=1000 oclcache {verb} --user"));
        let words = format!("run `oclcache {verb} --user` without sudo");
        assert!(
            ran.code == Some(2) && ran.stderr.contains(&words),
            "{}",
            ran.stderr
        );
    }
    assert_eq!(files(&home(&world)).len(), 0);
}

#[test]
fn machines_of_several_architectures_share_a_home() {
    let mut world = build();
    world.sandbox.set("SHELL", "/bin/sh");
    // Installed on the other machine.
    let root = home(&world).join(".local/lib/oclcache");
    let other = root.join("pdp11/liboclcache.so");
    fs::create_dir_all(root.join("pdp11")).expect("made");
    let mut library = fs::read(world.sandbox.path("bin/liboclcache.so")).expect("read");
    // The kind of machine in the header of an ELF file.
    library[18..20].copy_from_slice(&1u16.to_le_bytes());
    fs::write(&other, library).expect("written");
    let vendors_directory = home(&world).join(".local/share/oclcache/vendors");
    fs::create_dir_all(&vendors_directory).expect("made");
    let registration = format!("{}\n", other.display());
    fs::write(vendors_directory.join("oclcache-pdp11.icd"), registration).expect("written");
    let client = example("client").display().to_string();
    let run = format!("{client} run --kernel f --source kernel.cl");
    let script = format!(
        "eval \"$(oclcache install --user --yes)\"; {run} && {run} && oclcache doctor --no-build --json"
    );
    world.sandbox.write("kernel.cl", SOURCE);
    let ran = shell(&world, &script);
    assert!(!ran.stdout.contains("pdp11"), "{}", ran.stdout);
    assert_eq!(world.sandbox.compilations(), 1, "{}", ran.stderr);
    // Both machines begin sessions, and start the command.
    let on = |machine: &str, script: &str| {
        let place = world.sandbox.path(machine);
        fs::create_dir_all(&place).expect("made");
        let uname = place.join("uname");
        fs::write(&uname, format!("#!/bin/sh\necho {machine}\n")).expect("written");
        fs::set_permissions(&uname, PermissionsExt::from_mode(0o755)).expect("changed");
        let script = format!(". $HOME/.profile; {script}",);
        let script = format!("PATH={}:$PATH; {script}", place.display());
        session(&world, &home(&world), &["sh", "-c", &script], false)
    };
    let show = "echo \"$OCL_ICD_VENDORS\"";
    for (machine, shown) in [
        (architecture().as_str(), vendors(&world)),
        ("pdp11", vendors(&world)),
        ("s390x", "\n".to_owned()),
    ] {
        assert_eq!(on(machine, show), shown, "{machine}");
    }
    let missing = on("s390x", "$HOME/.local/bin/oclcache path 2>&1 || echo $?");
    assert!(
        missing.starts_with("oclcache: not installed for s390x") && missing.ends_with("127\n"),
        "{missing}"
    );
    // What the other machine needs stays.
    let ran = shell(&world, "oclcache uninstall --user").ok();
    assert!(
        ran.stderr.contains("it stays installed for pdp11"),
        "{}",
        ran.stderr
    );
    assert!(other.exists() && !root.join(architecture()).exists());
    assert_eq!(on("pdp11", show), vendors(&world));
    assert_eq!(on(&architecture(), show), "\n");
}
