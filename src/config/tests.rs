use super::*;

fn config(variables: &[(&str, &str)]) -> Config {
    let variables: Vec<(String, OsString)> = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.into()))
        .collect();
    let find = |name: &str| {
        let found = variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    Config::read_from(&find, None)
}

#[test]
fn the_table_stands_in_the_order_of_its_names() {
    for (index, setting) in SETTINGS.iter().enumerate() {
        assert_eq!(setting.name as usize, index);
    }
}

/// What a program's own rule says is taken from any file.
#[test]
fn rules_set_only_what_is_obeyed_from_any_file() {
    for rule in &RULES {
        assert_eq!(rule.setting().obeyed_from, ObeyedFrom::Any, "{}", rule.key);
    }
    for setting in &SETTINGS {
        let is_of_system = setting.obeyed_from == ObeyedFrom::System;
        assert_eq!(setting.variable.is_none(), is_of_system, "{}", setting.key);
    }
}

#[test]
fn switches_are_off_by_zero_false_no_off_and_nothing() {
    for off in ["", "0", "false", "no", "off", "OFF"] {
        assert!(!config(&[("OCLCACHE_DISABLE", off)]).disable(), "{off}");
    }
    assert!(config(&[("OCLCACHE_DISABLE", "1")]).disable());
    assert!(config(&[("OCLCACHE_STORE_SOURCE", "")]).store_source());
    assert!(!config(&[("OCLCACHE_STORE_SOURCE", "0")]).store_source());
}

#[test]
fn a_share_is_a_whole_number_of_percent_and_all_else_is_a_mistake_and_none() {
    for (value, share) in [("0", 0), ("7", 7), ("100", 100)] {
        let config = config(&[("OCLCACHE_VERIFY", value)]);
        assert_eq!((config.verify(), config.complaints.len()), (share, 0));
    }
    for mistake in ["101", "-1", "50%", "half", "1.5", "300"] {
        let config = config(&[("OCLCACHE_VERIFY", mistake)]);
        assert_eq!(config.verify(), 0, "{mistake}");
        assert!(config.complaints[0].contains("`verify`"), "{mistake}");
    }
}

#[test]
fn one_hit_in_a_thousand_is_audited_unless_another_number_is_set() {
    assert_eq!(config(&[]).audit(), Some(1000));
    for (value, count) in [("0", None), ("1", Some(1)), ("70000", Some(70000))] {
        let config = config(&[("OCLCACHE_AUDIT", value)]);
        assert_eq!((config.audit(), config.complaints.len()), (count, 0));
    }
    for mistake in ["-1", "1%", "off"] {
        let config = config(&[("OCLCACHE_AUDIT", mistake)]);
        assert_eq!(config.audit(), Some(1000), "{mistake}");
        assert!(config.complaints[0].contains("`audit`"), "{mistake}");
    }
}

#[test]
fn a_word_that_is_none_of_a_settings_is_a_mistake_and_auto() {
    for (value, record) in [
        ("auto", RecordMode::Auto),
        ("inline", RecordMode::Inline),
        ("bake", RecordMode::Bake),
        ("off", RecordMode::Off),
    ] {
        let config = config(&[("OCLCACHE_RECORD", value)]);
        assert_eq!((config.record(), config.complaints.len()), (record, 0));
    }
    let config = config(&[("OCLCACHE_RECORD", "0"), ("OCLCACHE_MODE", "layer")]);
    assert_eq!(
        (config.record(), config.mode()),
        (RecordMode::Auto, Mode::Auto)
    );
    assert!(config.complaints[0].contains("`record` is `0`"));
    assert!(config.complaints[1].contains("`mode` is `layer`"));
}

#[test]
fn a_baker_is_started_or_not_only_if_that_is_said() {
    let said = |value| config(&[("OCLCACHE_AUTOBAKE", value)]).autobake();
    assert_eq!(said(""), None);
    for (value, decided) in [("auto", None), ("0", Some(false)), ("1", Some(true))] {
        assert_eq!(said(value), decided, "{value}");
    }
}

#[test]
fn the_environment_stands_above_the_file_and_the_file_above_the_default() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::create_dir(directory.path().join("oclcache")).expect("made");
    let file = directory.path().join("oclcache/config.toml");
    std::fs::write(
        &file,
        "readonly = true\ndisable = true\nlog = \"info\"\nnonsense = 1\n",
    )
    .expect("written");
    let home = directory.path().to_str().expect("UTF-8");
    let config = config(&[("XDG_CONFIG_HOME", home), ("OCLCACHE_DISABLE", "0")]);
    assert!(config.readonly() && !config.disable() && !config.recache());
    assert_eq!(config.value(Name::ReadOnly).1, ValueSource::File(file));
    assert_eq!(config.value(Name::Disable).1, ValueSource::Environment);
    assert!(
        config.complaints[0].contains("`nonsense` is not a setting"),
        "{:?}",
        config.complaints
    );
}

/// The settings that a system's and a user's file make; None if no file can be made that only root can write.
pub(super) fn of_files(system: &str, user: &str) -> Option<Config> {
    let place = crate::trust::tests::place()?;
    let file = place.path().join("config.toml");
    std::fs::write(&file, system).expect("written");
    let home = tempfile::tempdir().expect("a temporary directory");
    let directory = home.path().join(".config/oclcache");
    std::fs::create_dir_all(&directory).expect("made");
    std::fs::write(directory.join("config.toml"), user).expect("written");
    let find = |name: &str| match name {
        "HOME" => Some(home.path().into()),
        "OCLCACHE_RECACHE" => Some("0".into()),
        _ => None,
    };
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| Config::read_from(&find, Some(&file)))
}

#[test]
fn the_users_file_stands_above_the_systems_and_only_the_systems_says_who_is_trusted() {
    let system =
        "readonly = true\nstore_source = false\nrecache = true\ntrusted_owners = [1000, 7]\n";
    let user = "store_source = true\ntrusted_owners = [4242]\n";
    let Some(config) = of_files(system, user) else {
        return crate::trust::tests::skipped("a configuration file of the system");
    };
    assert!(config.readonly() && config.store_source() && !config.recache());
    let source = |name| &config.value(name).1;
    assert!(matches!(source(Name::ReadOnly), ValueSource::SystemFile(_)));
    assert!(matches!(source(Name::StoreSource), ValueSource::File(_)));
    assert_eq!(config.trusted_owners(), [1000, 7]);
    let [complaint] = config.complaints.as_slice() else {
        panic!("{:?}", config.complaints)
    };
    assert!(complaint.ends_with("is taken from the system's configuration file only"));
    for wrong in ["\"root\"", "[\"root\"]", "[-1]", "[4294967296]", "1000"] {
        let system = format!("readonly = true\ntrusted_owners = {wrong}\n");
        let config = of_files(&system, "").expect("a file of the system");
        assert_eq!(
            (config.trusted_owners(), config.complaints.len()),
            (vec![], 1)
        );
    }
}

#[test]
fn no_variable_says_who_is_trusted() {
    let config = config(&[("OCLCACHE_TRUSTED_OWNERS", "1000"), ("", "1000")]);
    assert_eq!(config.trusted_owners(), [0; 0]);
}

#[test]
fn a_file_of_the_system_that_others_can_write_is_not_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("config.toml");
    let read = |file: &Path| Config::read_from(&|_| None, Some(file));
    assert_eq!(read(&file).complaints, [""; 0]);
    std::fs::write(&file, "readonly = true\n").expect("written");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .expect("changed");
    let config = read(&file);
    assert!(!config.readonly());
    assert!(config.complaints[0].contains("is not read: `/"));
}

#[test]
fn what_is_no_plain_text_in_a_files_place_is_said_in_one_line_and_hangs_nothing() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let file = home.path().join("oclcache/config.toml");
    std::fs::create_dir(home.path().join("oclcache")).expect("made");
    let complaints = || {
        let home = home.path().to_str().expect("UTF-8");
        config(&[("XDG_CONFIG_HOME", home)]).complaints
    };
    let fifo = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, fifo).expect("a FIFO");
    assert!(complaints()[0].ends_with("it is not a regular file"));
    std::fs::remove_file(&file).expect("removed");
    std::fs::write(&file, "log = 1\n\u{1b}[2J\"x\u{202e}\n = 2").expect("written");
    let said = complaints();
    assert!(said[0].contains("is not TOML: line 2"), "{said:?}");
    assert!(!said[0].contains(['\n', '\u{1b}', '\u{202e}']), "{said:?}");
}

#[test]
fn the_directory_is_chosen_in_the_documented_order() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let home = home.path().to_str().expect("UTF-8");
    let cache = format!("{home}/c");
    let variables = [
        ("OCLCACHE_DIR", "/x/y"),
        ("XDG_CACHE_HOME", cache.as_str()),
        ("HOME", home),
    ];
    assert_eq!(config(&variables).directory(), Ok("/x/y".into()));
    assert_eq!(
        config(&variables[1..]).directory(),
        Ok(format!("{cache}/oclcache").into())
    );
    assert_eq!(
        config(&variables[2..]).directory(),
        Ok(format!("{home}/.cache/oclcache").into())
    );
    assert!(config(&[]).directory().is_err());
    assert!(config(&[("OCLCACHE_DIR", "relative")]).directory().is_err());
}

#[test]
fn vendors_are_separated_by_colons() {
    assert_eq!(
        config(&[("OCLCACHE_VENDORS", "/a:/b/c.icd:")]).vendors(),
        Some(vec!["/a".into(), "/b/c.icd".into()])
    );
    assert_eq!(config(&[]).vendors(), None);
}

#[test]
fn a_path_of_a_list_may_have_any_byte() {
    let odd: [&[u8]; 7] = [
        b"/a:b",
        b"/a\\:b",
        b"/a\\",
        b":",
        b"\\\\",
        b"/\n \xff",
        b"/plain",
    ];
    let odd = odd.map(|path| PathBuf::from(OsStr::from_bytes(path)));
    for from in 0..odd.len() {
        assert_eq!(paths(&list(&odd[from..])), odd[from..]);
        assert_eq!(paths(&list(&odd[from..=from])), odd[from..=from]);
    }
    // As lists were before there were escapes.
    for (text, found) in [
        ("/a\\b:/c", vec!["/a\\b", "/c"]),
        ("::/a:", vec!["/a"]),
        ("", vec![]),
    ] {
        let found: Vec<PathBuf> = found.iter().map(PathBuf::from).collect();
        assert_eq!(paths(OsStr::new(text)), found, "{text}");
    }
}
