//! What an archive discloses is told before, and `--no-source` leaves it out.

use std::path::Path;

use super::made::{Parts, Unpacked};
use super::{elsewhere, export, import, last};
use crate::snapshots::assert_shown;
use crate::support::{Driver, Ran, Sandbox, Way, example, skipped};

/// Stand in the source, in headers, options, paths and the build log, and nowhere else.
const SECRETS: [&str; 7] = [
    "secret_of_the_source",
    "secret_of_a_header",
    "secret_value_of_a_macro",
    "secret_directory",
    "secret_of_the_log",
    "secret_user",
    "secret_value_of_a_variable",
];

const SOURCE: &str = "#include \"part.h\"\n#ifdef SPEAK\n#warning secret_of_the_log\n#endif\n\
    __kernel void f(__global uint *out) { out[get_global_id(0)] = 3 + PART; /* secret_of_the_source */ }\n";

/// A cache in which all of them stand.
fn sandbox(driver: Driver) -> Option<Sandbox> {
    let sandbox = Sandbox::new(driver)?;
    let place = sandbox.path("home/secret_user/secret_directory");
    std::fs::create_dir_all(place.join("inc")).expect("made");
    std::fs::write(
        place.join("inc/part.h"),
        "#define PART /* secret_of_a_header, a long line */ 4\n",
    )
    .expect("written");
    std::fs::write(place.join("kernel.cl"), SOURCE).expect("written");
    run(&sandbox, &place, "-DSPEAK -DNOTE=secret_value_of_a_macro");
    Some(sandbox)
}

/// Runs the kernel of a directory.
#[track_caller]
fn run(sandbox: &Sandbox, place: &Path, options: &str) -> Ran {
    let options = format!("{options} -I {}/inc", place.display());
    let mut command = sandbox.kernel_in(place, &options);
    // It would be in the key.
    sandbox.run(command.env_remove("STUB_LOG")).ok()
}

/// All that is in an archive, texts decompressed.
fn contents(file: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, bytes) in Unpacked::of(file).members {
        all.extend(name.bytes());
        all.extend(&bytes);
        if name.ends_with(".entry") {
            let parts = Parts::of(&bytes);
            all.extend([parts.meta, parts.recipe, parts.binaries.concat()].concat());
        }
    }
    all
}

fn found(contents: &[u8]) -> Vec<&'static str> {
    let is_there = |secret: &&str| {
        let mut windows = contents.windows(secret.len());
        windows.any(|window| window == secret.as_bytes())
    };
    SECRETS.into_iter().filter(is_there).collect()
}

#[test]
fn without_sources_nothing_of_them_is_anywhere_in_the_archive() {
    for driver in Driver::ALL {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        if !driver.variables().is_empty() {
            skipped(format_args!(
                "{driver:?} without sources (it needs variables, whose values are in keys)"
            ));
            continue;
        }
        let with = found(&contents(&export(&sandbox, &[])));
        for secret in &SECRETS[..4] {
            assert!(
                with.contains(secret),
                "{driver:?}: {secret} is not where it is looked for"
            );
        }
        let file = sandbox.path("kernels.tar.zst");
        let ran = sandbox.oclcache(&[
            "export",
            "--yes",
            "--no-source",
            file.to_str().expect("UTF-8"),
        ]);
        if ran.code == Some(1) {
            // What the driver itself writes into its binaries cannot be taken out of them. PoCL writes where its cache is, which may be
            // anywhere if TMPDIR is not below /tmp.
            let of_source = "binaries quote their source or name its directories";
            let of_cache = "binaries name the driver's own cache in a directory of yours";
            let is_of_cache = driver == Driver::Pocl && !sandbox.path("").starts_with("/tmp");
            assert!(
                ran.stderr.contains(of_source) || is_of_cache && ran.stderr.contains(of_cache),
                "{driver:?}: {}",
                ran.stderr
            );
            skipped(format_args!(
                "{driver:?} without sources (its binaries have them)"
            ));
            continue;
        }
        assert_eq!(found(&contents(&file)), [""; 0], "{driver:?}");
        // And it serves.
        let other = elsewhere(&sandbox, driver);
        assert_eq!(
            last(&import(&other, &["--trust"], &file).ok()),
            "1 imported, 0 refused",
            "{driver:?}"
        );
        let place = sandbox.path("home/secret_user/secret_directory");
        let hit = run(&other, &place, "-DSPEAK -DNOTE=secret_value_of_a_macro");
        assert_eq!(hit.source_builds(), 0, "{driver:?}: {}", hit.stderr);
    }
}

#[test]
fn what_cannot_be_without_stays_out_and_is_counted() {
    let mut sandbox = sandbox(Driver::Stub).expect("the stub");
    // A recipe, and entries whose key has a value of a variable, a directory.
    sandbox.set("OCLCACHE_RECORD", "bake");
    let place = sandbox.path("home/secret_user/secret_directory");
    run(&sandbox, &place, "-DN=1");
    sandbox.set("OCLCACHE_RECORD", "inline");
    run(&sandbox, &place, "-g");
    sandbox.kernel(Way::Cached, super::SOURCE, "-DN=2").ok();
    sandbox.set("OCLCACHE_STORE_SOURCE", "0");
    run(&sandbox, &place, "-DN=3");
    let ran = sandbox
        .oclcache(&["export", "--no-source", "--dry-run", "--json", "-"])
        .ok();
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(json["keys"].as_array().map(Vec::len), Some(1));
    let left = json["left_out"].as_array().expect("a list");
    let mut left: Vec<String> = left.iter().map(|one| one["what"].to_string()).collect();
    left.sort();
    assert_eq!(
        left,
        [
            "\"entries that were stored without their source: their binaries may quote it\"",
            "\"entries whose keys contain a directory (option `-g`)\"",
            "\"entries whose keys contain the value of a variable\"",
            "\"recipes, which need their source\""
        ]
    );
    assert_eq!(json["discloses"]["sources"]["count"], 0);
}

#[test]
fn what_will_be_disclosed_is_said_first() {
    let sandbox = sandbox(Driver::Stub).expect("the stub");
    let ran = sandbox
        .oclcache(&["export", "--dry-run", "kernels.tar.zst"])
        .ok();
    for secret in ["secret_value_of_a_macro", "secret_directory"] {
        assert!(ran.stderr.contains(secret), "{secret}: {}", ran.stderr);
    }
    // Paths stand in their order, which depends on where the tests are built.
    let driver = example("libspy.so").display().to_string();
    assert!(ran.stderr.contains(&driver), "{}", ran.stderr);
    let shown = ran.stderr.replace(&format!("{driver}, "), "");
    let shown = shown.replace(&format!(", {driver}"), "");
    assert_shown(&sandbox, "export-dry-run", &shown);
    let ran = sandbox
        .oclcache(&["export", "--no-source", "--dry-run", "kernels.tar.zst"])
        .ok();
    assert_shown(&sandbox, "export-no-source", &ran.stderr);
}
