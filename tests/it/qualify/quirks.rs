//! Each way in which the stub driver can behave is found.

use serde_json::Value;

use super::{qualify_stub, slow_stub};

#[test]
fn each_quirk_of_a_driver_is_found_and_the_driver_without_it_has_none() {
    let quirks: [(&str, &str, &str, Value); 13] = [
        ("", "", "record", "in_miss".into()),
        ("", "", "kernel_facts", "after_build".into()),
        ("", "", "context_counts_programs", true.into()),
        ("", "", "kernels_keep_program", true.into()),
        ("", "", "sub_devices_are_their_root", Value::Null),
        ("", "", "rebuild", "fresh".into()),
        ("", "", "copies_builds", false.into()),
        ("STUB_FETCH_MS", "60", "record", "baked".into()),
        (
            "STUB_KERNEL_MS",
            "60",
            "kernel_facts",
            "when_created".into(),
        ),
        (
            "STUB_KERNELS_KEEP",
            "0",
            "kernels_keep_program",
            false.into(),
        ),
        (
            "STUB_KERNELS_KEEP",
            "crash",
            "kernels_keep_program",
            false.into(),
        ),
        (
            "STUB_KEEPS",
            "variables",
            "rebuild",
            "keeps_variables".into(),
        ),
        ("STUB_KEEPS", "kernels", "rebuild", "keeps_kernels".into()),
    ];
    let mut known: Vec<(&str, &str, super::Qualified)> = Vec::new();
    for (variable, value, name, expected) in quirks {
        if !known
            .iter()
            .any(|(one, is, _)| (*one, *is) == (variable, value))
        {
            let mut sandbox = slow_stub();
            if !variable.is_empty() {
                sandbox.set(variable, value);
            }
            known.push((variable, value, qualify_stub(&sandbox)));
        }
        let found = known
            .iter()
            .find(|(one, is, _)| (*one, *is) == (variable, value));
        let (_, _, qualified) = found.expect("it was qualified");
        let measured = qualified.measured(name);
        // A busy machine may leave it open what something costs.
        let is_open = match name {
            "record" => *measured == "measured" || measured.is_null(),
            "kernel_facts" => measured.is_null(),
            _ => false,
        };
        let stdout = &qualified.ran.stdout;
        assert!(
            *measured == expected || is_open,
            "{variable}={value}: {name} is {measured}: {stdout}"
        );
        assert_eq!(qualified.faults(), [""; 0], "{variable}={value}");
        assert_eq!(qualified.ran.code, Some(0));
        assert!(qualified.is_kept());
    }
}

#[test]
fn contexts_sub_devices_and_caches_of_a_driver_are_watched() {
    for (variables, name, expected) in [
        (
            &[("STUB_REFCOUNT_KERNELS", "0")][..],
            "context_counts_programs",
            false,
        ),
        (
            &[("STUB_SUB_DEVICES", "root")],
            "sub_devices_are_their_root",
            true,
        ),
        (
            &[("STUB_SUB_DEVICES", "own")],
            "sub_devices_are_their_root",
            false,
        ),
        (
            &[("STUB_OWN_CACHE", "1"), ("STUB_VARY", "1")],
            "copies_builds",
            true,
        ),
        (&[("STUB_VARY", "1")], "copies_builds", false),
    ] {
        let mut sandbox = slow_stub();
        for (variable, value) in variables {
            sandbox.set(variable, *value);
        }
        let qualified = qualify_stub(&sandbox);
        let stdout = &qualified.ran.stdout;
        assert_eq!(
            *qualified.measured(name),
            expected,
            "{variables:?}: {stdout}"
        );
        assert_eq!(qualified.faults(), [""; 0], "{variables:?}");
    }
}

#[test]
fn a_driver_whose_binaries_compile_again_is_not_recorded_unmeasured() {
    let mut sandbox = slow_stub();
    sandbox.set("STUB_LOAD_MS", "200");
    let qualified = qualify_stub(&sandbox);
    assert_eq!(
        *qualified.measured("record"),
        "measured",
        "{}",
        qualified.ran.stdout
    );
    assert!(qualified.ran.stdout.contains("the driver compiles again"));
    assert_eq!(qualified.ran.code, Some(0), "nothing is wrong");
}
