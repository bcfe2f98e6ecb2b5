//! The configuration file: `config get`, `set` and `unset` change one line and nothing else, rules hold for their program, and
//! what is wrong is said.

mod broken_files;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::snapshots::assert_shown;
use crate::support::{Driver, Ran, SOURCE, Sandbox, Way, example, is_root, skipped};
const NOBODY: u32 = 65534;

/// The user's file, with this text in it.
fn file(sandbox: &Sandbox, text: &str) -> PathBuf {
    fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
    sandbox.write("home/.config/oclcache/config.toml", text)
}

fn config(sandbox: &Sandbox, arguments: &[&str]) -> Ran {
    let ran = sandbox.oclcache(&[&["config"], arguments].concat());
    for output in [&ran.stdout, &ran.stderr] {
        assert_plain(output.as_bytes());
    }
    ran
}

#[test]
fn of_changes_at_once_none_is_lost() {
    let sandbox = Sandbox::stub();
    let keys = ["a", "b", "c", "d", "e", "f"].map(|name| format!("program.{name}.cache"));
    let running = keys.each_ref().map(|key| {
        let mut command = sandbox.command(Way::Bare, env!("CARGO_BIN_EXE_oclcache"));
        command.args(["config", "set", key, "false"]);
        command.stderr(std::process::Stdio::null());
        command.spawn().expect("run")
    });
    for mut one in running {
        assert!(one.wait().expect("ended").success());
    }
    for key in &keys {
        assert_eq!(
            config(&sandbox, &["get", key]).ok().stdout,
            "false\n",
            "{key}"
        );
    }
}

#[test]
fn set_changes_one_line_and_leaves_the_rest_as_it_was() {
    let sandbox = Sandbox::stub();
    let before = "# mine\nreadonly = true # always\n\nmax_age = \"30d\"\n\n# games\n\
        [program.\"a game\"]\ncache = false\n";
    let file = file(&sandbox, before);
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).expect("changed");
    config(&sandbox, &["set", "readonly", "no"]).ok();
    config(&sandbox, &["set", "max_size", "20Gi"]).ok();
    config(&sandbox, &["set", "verify", "7"]).ok();
    config(&sandbox, &["set", "program.python3.11.store_source", "off"]).ok();
    config(&sandbox, &["unset", "program.a game.cache"]).ok();
    let after = "# mine\nreadonly = false # always\n\nmax_age = \"30d\"\nmax_size = \"20Gi\"\nverify = 7\n\n\
        [program.\"python3.11\"]\nstore_source = false\n";
    assert_eq!(fs::read_to_string(&file).expect("read"), after);
    let mode = file.metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let files = fs::read_dir(file.parent().expect("a directory")).expect("listed");
    assert_eq!(files.count(), 1, "nothing else is left there");
    for (key, value) in [
        ("readonly", "false"),
        ("max_size", "20Gi"),
        ("verify", "7"),
        ("max_age", "30d"),
        ("program.python3.11.store_source", "false"),
        ("mode", "auto"),
    ] {
        let ran = config(&sandbox, &["get", key]).ok();
        assert_eq!((&*ran.stdout, &*ran.stderr), (&*format!("{value}\n"), ""));
    }
    assert_eq!(
        config(&sandbox, &["get", "program.other.cache"]).code,
        Some(3)
    );
    config(&sandbox, &["unset", "max_size"]).ok();
    assert_eq!(config(&sandbox, &["get", "max_size"]).ok().stdout, "5Gi\n");
    let again = config(&sandbox, &["unset", "max_size"]).ok();
    assert!(
        again.stderr.contains("max_size is not in `"),
        "{}",
        again.stderr
    );
}

#[test]
fn the_first_setting_makes_the_file_and_its_directory_and_the_last_one_removes_them() {
    let sandbox = Sandbox::stub();
    let ran = config(&sandbox, &["set", "program.client.cache", "true"]).ok();
    let file = sandbox.path("home/.config/oclcache/config.toml");
    assert_eq!(
        fs::read_to_string(&file).expect("read"),
        "[program.client]\ncache = true\n"
    );
    assert!(ran.stderr.contains(file.to_str().expect("UTF-8")));
    let mode = file.metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o022, 0, "nobody else can write it");
    config(&sandbox, &["unset", "program.client.cache"]).ok();
    assert!(!file.parent().expect("a directory").exists());
}

#[test]
fn what_stands_above_the_file_is_said() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_RECORD", "bake");
    let ran = config(&sandbox, &["set", "record", "off"]).ok();
    let above = "but `bake` is used here, from: environment, OCLCACHE_RECORD";
    assert!(ran.stderr.contains(above), "{}", ran.stderr);
    assert_eq!(config(&sandbox, &["get", "record"]).ok().stdout, "bake\n");
    let ran = config(&sandbox, &["set", "verify", "3"]).ok();
    assert!(!ran.stderr.contains("but"), "{}", ran.stderr);
    sandbox.set("OCLCACHE_DISABLE", "0");
    let ran = config(&sandbox, &["set", "program.client.cache", "false"]).ok();
    assert!(
        ran.stderr.contains("but OCLCACHE_DISABLE is set here"),
        "{}",
        ran.stderr
    );
}

#[test]
fn nonsense_is_refused_and_what_is_wanted_is_named() {
    let sandbox = Sandbox::stub();
    let text = "max_size = \"1Gi\"\n";
    let file = file(&sandbox, text);
    for (key, value, wanted) in [
        (
            "max_size",
            "lots",
            "expected a size with a unit, such as 500M or 5Gi",
        ),
        (
            "max_size",
            "10",
            "expected a size with a unit, such as 500M or 5Gi",
        ),
        (
            "min_free",
            "10%",
            "expected auto or a size with a unit, such as 500M or 5Gi",
        ),
        ("max_age", "7", "expected a time such as 12h or 30d, or 0"),
        ("verify", "101", "expected a whole number from 0 to 100"),
        ("readonly", "maybe", "expected true or false"),
        ("autobake", "sometimes", "expected auto, true or false"),
        ("mode", "layer", "expected one of auto, icd, beside"),
        ("dir", "cache", "expected an absolute path"),
        ("trusted_owners", "1000", "use --system"),
        ("program.x.cache", "auto", "expected true or false"),
        ("program.x.dir", "/x", "`dir` is not a setting of a program"),
        ("program.a/b.cache", "true", "`a/b` is not a file name"),
        ("max-size", "1Gi", "did you mean `max_size`?"),
        ("program", "true", "is not a setting"),
        ("", "true", "is not a setting"),
    ] {
        let ran = config(&sandbox, &["set", key, value]);
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{key}");
        assert!(ran.stderr.contains(wanted), "{key}: {}", ran.stderr);
    }
    assert_eq!(config(&sandbox, &["get", "nonsense"]).code, Some(2));
    assert_eq!(config(&sandbox, &["unset", "nonsense"]).code, Some(2));
    assert_eq!(fs::read_to_string(file).expect("read"), text);
}

#[test]
fn a_file_that_cannot_be_changed_is_named_and_left_as_it_is() {
    let sandbox = Sandbox::stub();
    let path = file(&sandbox, "");
    let refused = |words: &str| {
        let ran = config(&sandbox, &["set", "verify", "1"]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
        assert!(ran.stderr.contains("config.toml`"), "{}", ran.stderr);
    };
    let broken = "verify = 1\nthis is = not [toml";
    fs::write(&path, broken).expect("written");
    refused("is not TOML: line 2");
    assert_eq!(fs::read_to_string(&path).expect("read"), broken);
    fs::write(&path, "verify = 1\nprogram = 3\n").expect("written");
    let ran = config(&sandbox, &["set", "program.x.cache", "false"]);
    assert!(
        ran.stderr.contains("`program` is not a table"),
        "{}",
        ran.stderr
    );
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    refused("is not a regular file");
    fs::remove_dir(&path).expect("removed");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
    refused("is not a regular file");
    fs::remove_file(&path).expect("removed");
    symlink("/missing/anywhere", &path).expect("linked");
    refused("is a broken link");
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "").expect("written");
    if is_root() {
        chown(&path, Some(NOBODY), None).expect("given away");
        refused("belongs to another user");
        fs::remove_file(&path).expect("removed");
        chown(path.parent().expect("a directory"), Some(NOBODY), None).expect("given away");
        let ran = config(&sandbox, &["set", "verify", "1"]);
        assert!(
            ran.stderr.contains("oclcache` belongs to another user"),
            "{}",
            ran.stderr
        );
        assert!(!path.exists());
    } else {
        skipped("a configuration file of another user (not root)");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).expect("changed");
        refused("cannot read");
    }
}

#[test]
fn a_link_to_a_file_stays_and_the_file_is_written() {
    let sandbox = Sandbox::stub();
    fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
    fs::create_dir(sandbox.path("dotfiles")).expect("made");
    let real = sandbox.write("dotfiles/oclcache.toml", "# shared\nverify = 1\n");
    let link = sandbox.path("home/.config/oclcache/config.toml");
    symlink(&real, &link).expect("linked");
    config(&sandbox, &["set", "verify", "2"]).ok();
    assert!(link.is_symlink());
    assert_eq!(
        fs::read_to_string(&real).expect("read"),
        "# shared\nverify = 2\n"
    );
    fs::write(&real, "verify = 2\n").expect("written");
    config(&sandbox, &["unset", "verify"]).ok();
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&real).expect("read"), "");
}

#[test]
fn without_a_home_there_is_no_place_to_write_and_that_is_said() {
    let sandbox = Sandbox::stub();
    let run = |arguments: &[&str]| {
        let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
        sandbox.run(command.env_remove("HOME").arg("config").args(arguments))
    };
    let ran = run(&["set", "verify", "2"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("set HOME or XDG_CONFIG_HOME"),
        "{}",
        ran.stderr
    );
    run(&[]).ok();
    assert_eq!(run(&["get", "verify"]).ok().stdout, "0\n");
}

#[test]
fn a_rule_turns_the_cache_off_for_its_program_and_the_environment_on_again() {
    let mut sandbox = Sandbox::stub();
    let builds = |sandbox: &Sandbox| {
        let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
        ran.source_builds()
    };
    file(&sandbox, "[program.client]\ncache = false\n");
    assert_eq!([builds(&sandbox), builds(&sandbox)], [1, 1]);
    assert!(!sandbox.path("cache").exists());
    sandbox.set("OCLCACHE_DISABLE", "0");
    assert_eq!([builds(&sandbox), builds(&sandbox)], [1, 0]);
    // What a site says of all programs.
    file(&sandbox, "disable = true\n");
    assert_eq!(builds(&sandbox), 0);
    sandbox.variables.remove("OCLCACHE_DISABLE");
    assert_eq!(builds(&sandbox), 1);
    file(&sandbox, "disable = true\n[program.client]\ncache = true\n");
    assert_eq!(builds(&sandbox), 0);
    file(
        &sandbox,
        "[program.clien]\ncache = false\n[program.Client]\ncache = false\n",
    );
    assert_eq!(builds(&sandbox), 0);
}

#[test]
fn run_says_that_a_rule_has_turned_the_cache_off() {
    let sandbox = Sandbox::stub();
    let kernel = sandbox.write("kernel.cl", SOURCE);
    let client = example("client");
    let ran = |rule: &str| {
        file(&sandbox, rule);
        let mut command = sandbox.command(Way::Bare, sandbox.installed());
        command
            .env("OCLCACHE_DIR", sandbox.path("cache"))
            .arg("run");
        command
            .arg(&client)
            .args(["run", "--kernel", "f", "--options", "-DN=1", "--source"]);
        sandbox.run(command.arg(&kernel)).ok().stderr
    };
    let off = ran("[program.client]\ncache = false\n");
    assert!(
        off.contains("sets `cache = false` for the program `client`"),
        "{off}"
    );
    let off = ran("disable = true\n");
    assert!(off.contains("the cache is disabled"), "{off}");
    // A site that caches this program only.
    let on = ran("disable = true\n[program.client]\ncache = true\n");
    assert!(on.contains("1 miss"), "{on}");
    assert_eq!(sandbox.entries().len(), 1);
    file(&sandbox, "");
    assert_eq!(sandbox.stat("misses"), 1);
}

/// The baker reads the rules itself.
#[test]
fn what_only_one_program_may_cache_is_baked_behind_a_run() {
    let sandbox = Sandbox::stub();
    let kernel = sandbox.write("kernel.cl", SOURCE);
    file(&sandbox, "disable = true\n[program.client]\ncache = true\n");
    let mut command = sandbox.command(Way::Bare, sandbox.installed());
    command.env("OCLCACHE_DIR", sandbox.path("cache"));
    command.env("OCLCACHE_RECORD", "bake");
    command.args(["run", "--bake"]).arg(example("client"));
    command.args(["run", "--kernel", "f", "--options", "-DN=1", "--source"]);
    let ran = sandbox.run(command.arg(&kernel)).ok();
    assert!(ran.stderr.contains("1 baked"), "{}", ran.stderr);
}

/// In a mount namespace, with an /etc of its own.
#[test]
fn the_systems_file_is_written_for_all_users_and_a_users_stands_above_it() {
    let sandbox = Sandbox::stub();
    let etc = sandbox.path("etc");
    fs::create_dir(&etc).expect("made");
    let script = "set -e; mount -t tmpfs -o mode=755 none \"$1\"; cp -a /etc/. \"$1\"; \
        rm -rf \"$1/oclcache\"; mount --bind \"$1\" /etc; shift; \
        \"$1\" config set --system trusted_owners '7 8'; \"$1\" config set --system verify 9; \
        \"$1\" config set --system program.client.cache no; cat /etc/oclcache/config.toml; \
        \"$1\" config set verify 3; \"$1\" config get verify; \"$1\" config set --system verify 4; \
        \"$1\" config unset verify; \"$1\" config get verify; chmod 666 /etc/oclcache/config.toml; \
        \"$1\" config get verify; \"$1\" config > /dev/null; \"$1\" config set --system verify 5; \
        \"$1\" config get verify";
    let mut command = sandbox.command(Way::Bare, "unshare");
    command.args(["-m", "--", "sh", "-c"]);
    let can = Command::new("unshare")
        .args(["-m", "--", "mount", "-t", "tmpfs", "none"])
        .arg(&etc)
        .output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skipped("config set --system (no mount namespace)");
    }
    command
        .args([script, "sh"])
        .arg(&etc)
        .arg(env!("CARGO_BIN_EXE_oclcache"));
    let ran = sandbox.run(&mut command).ok();
    let written = "trusted_owners = [7, 8]\nverify = 9\n\n[program.client]\ncache = false\n";
    assert_eq!(
        ran.stdout,
        format!("{written}3\n4\n0\n5\n"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("but `3` is used here, from: "),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr
            .contains("`/etc/oclcache/config.toml` is not read: "),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_rule_keeps_the_sources_of_its_program_out_of_the_cache() {
    let sandbox = Sandbox::stub();
    let secret = "__kernel void f(__global uint *out) { out[get_global_id(0)] = N; } // secret\n";
    let is_kept = || {
        sandbox.kernel(Way::Cached, secret, "-DN=1").ok();
        let [entry] = <[PathBuf; 1]>::try_from(sandbox.entries()).expect("one entry");
        let key = entry
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let shown = sandbox.oclcache(&["show", "--source", &key]);
        sandbox.oclcache(&["clear"]).ok();
        shown.stdout.contains("secret")
    };
    assert!(is_kept());
    file(&sandbox, "[program.client]\nstore_source = false\n");
    assert!(!is_kept());
}

#[test]
fn an_unknown_key_is_said_with_the_nearest_one_by_the_log_and_the_command() {
    let sandbox = Sandbox::stub();
    file(
        &sandbox,
        "max_sise = \"1Gi\"\nunheard_of = 1\n[program.x]\nstore_sources = false\n",
    );
    let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let said = config(&sandbox, &[]).ok().stderr;
    for output in [&ran.stderr, &said] {
        for words in [
            "`max_sise` is not a setting; did you mean `max_size`?",
            "`unheard_of` is not a setting\n",
            "`program.x.store_sources` is not a setting of a program; did you mean `store_source`?",
        ] {
            assert!(output.contains(words), "{words}: {output}");
        }
    }
}

#[test]
fn hostile_names_of_programs_are_written_as_they_are_and_shown_in_plain_characters() {
    let sandbox = Sandbox::stub();
    let mut written = 0;
    for name in HOSTILE {
        let key = [b"program.", name, b".cache"].concat();
        let key = std::ffi::OsStr::from_bytes(&key);
        let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
        let ran = sandbox.run(command.args(["config", "set"]).arg(key).arg("false"));
        assert_plain(ran.stderr.as_bytes());
        let is_name = std::str::from_utf8(name).is_ok() && name != b"..";
        assert_eq!(
            ran.code,
            Some(if is_name { 0 } else { 2 }),
            "{}",
            ran.stderr
        );
        written += usize::from(is_name);
        let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
        let ran = sandbox.run(command.args(["config", "get"]).arg(key));
        assert_plain(ran.stdout.as_bytes());
        assert_plain(ran.stderr.as_bytes());
    }
    assert!(written > 10);
    let shown = config(&sandbox, &[]).ok();
    assert_eq!(shown.stdout.matches(".cache = false").count(), written);
    let json = config(&sandbox, &["--json"]).ok().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let programs = json["programs"].as_object().expect("programs");
    let text = |name: &&[u8]| std::str::from_utf8(name).ok().map(str::to_owned);
    for name in HOSTILE.iter().filter_map(text).filter(|name| name != "..") {
        assert_eq!(programs[&name]["cache"], false, "{name:?}");
    }
}

#[test]
fn what_config_shows() {
    let mut sandbox = Sandbox::stub();
    file(
        &sandbox,
        "max_sise = \"1Gi\"\nmax_size = \"1Gi\"\nmode = \"x\"\n[program.darktable]\ncache = false\n",
    );
    sandbox.set("OCLCACHE_RECACHE", "yes");
    let ran = config(&sandbox, &[]).ok();
    let is_varying = |line: &&str| !line.trim_start().starts_with("file system:");
    let lines: Vec<&str> = ran.stdout.lines().filter(is_varying).collect();
    let shown = format!("{}\n--- standard error\n{}", lines.join("\n"), ran.stderr);
    assert_shown(&sandbox, "config", &shown);
    let json = config(&sandbox, &["--json"]).ok();
    assert_shown(&sandbox, "config-json", &json.stdout);
    let said: Vec<String> = [
        &["set", "verify", "2"][..],
        &["set", "recache", "false"],
        &["set", "verify", "half"],
        &["get", "max_sise"],
        &["unset", "verify"],
        &["get", "--json", "max_size"],
    ]
    .iter()
    .map(|arguments| {
        let ran = config(&sandbox, arguments);
        let code = ran.code.expect("a code");
        format!(
            "$ oclcache config {}\n{}{}[{code}]\n",
            arguments.join(" "),
            ran.stdout,
            ran.stderr
        )
    })
    .collect();
    assert_shown(&sandbox, "config-set", &said.concat());
}

/// Under sudo, or with XDG_CONFIG_HOME set, the file may be anybody's: nothing is loaded or opened that such a one names.
#[test]
fn what_another_user_may_have_written_names_no_code_and_no_file() {
    let mut sandbox = Sandbox::stub();
    let log = sandbox.path("log");
    let file = file(
        &sandbox,
        &format!(
            "vendors = '{}'\nlog_file = '{}'\ndir = '{}'\nsystem_dirs = '/tmp'\nmax_size = '1G'\n",
            sandbox.path("spy").display(),
            log.display(),
            sandbox.path("elsewhere").display()
        ),
    );
    let [place, home] = ["home/.config/oclcache", "home"].map(|name| sandbox.path(name));
    for name in ["OCLCACHE_VENDORS", "OCLCACHE_SYSTEM_DIRS", "OCLCACHE_DIR"] {
        sandbox.set(name, "");
    }
    sandbox.set("XDG_CACHE_HOME", sandbox.path("xdg"));
    fs::create_dir(sandbox.path("xdg")).expect("made");
    let stub = Driver::Stub.library().expect("the stub");
    // What is loaded where the file names nothing.
    sandbox.set("OCL_ICD_FILENAMES", stub);
    sandbox.set("OCLCACHE_MODE", "icd");
    sandbox.set("CLIENT_PLATFORM", "Stub");
    let obeys = || {
        let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
        let obeyed = [
            !ran.spied.is_empty(),
            log.exists(),
            sandbox.path("elsewhere").exists(),
        ];
        let _ = fs::remove_file(&log);
        let _ = fs::remove_dir_all(sandbox.path("elsewhere"));
        assert_eq!(obeyed, [obeyed[0]; 3], "{}", ran.stderr);
        let warnings = ran
            .stderr
            .lines()
            .filter(|line| line.contains("ignored because"));
        assert_eq!(warnings.count(), usize::from(!obeyed[0]), "{}", ran.stderr);
        obeyed[0]
    };
    let says = |why: &str| {
        let words =
            format!("`dir`, `log_file`, `system_dirs`, `vendors` are ignored because `{why}");
        let shown = config(&sandbox, &[]).ok();
        assert!(shown.stderr.contains(&words), "{words}\n{}", shown.stderr);
        assert_eq!(config(&sandbox, &["get", "max_size"]).ok().stdout, "1G\n");
        assert_eq!(config(&sandbox, &["get", "vendors"]).ok().stdout, "\n");
        let doctor = sandbox.oclcache(&["doctor", "--no-build"]).stdout;
        let line = doctor.lines().find(|line| line.contains(&words));
        assert!(
            line.is_some_and(|line| line.starts_with("warning")),
            "{doctor}"
        );
    };
    assert!(obeys());
    for changed in [&file, &place, &home] {
        let usual = changed.metadata().expect("there").permissions();
        fs::set_permissions(changed, PermissionsExt::from_mode(usual.mode() | 0o020)).expect("set");
        assert!(!obeys(), "{}", changed.display());
        says(&format!(
            "{}` can be written by its group",
            changed.display()
        ));
        fs::set_permissions(changed, usual).expect("changed");
        assert!(obeys(), "{}", changed.display());
    }
    if !is_root() {
        return skipped("a configuration file of another user (not root)");
    }
    for changed in [&file, &place, &home] {
        chown(changed, Some(NOBODY), None).expect("given away");
        assert!(!obeys(), "{}", changed.display());
        says(&format!("{}` belongs to user {NOBODY}", changed.display()));
        chown(changed, Some(0), None).expect("taken back");
    }
    // Nor does root write a file that somebody else's directory or link leads to.
    let own = sandbox.write("own.toml", "max_size = '2G'\n");
    fs::remove_file(&file).expect("removed");
    symlink(&own, &file).expect("linked");
    chown(&place, Some(NOBODY), None).expect("given away");
    let ran = config(&sandbox, &["set", "max_size", "3G"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("belongs to another user"),
        "{}",
        ran.stderr
    );
    assert_eq!(fs::read_to_string(own).expect("read"), "max_size = '2G'\n");
}
