//! Archives that fill a directory for all users.

use std::os::unix::fs::PermissionsExt;

use super::{SOURCE, elsewhere, export, import, last};
use crate::support::{Driver, Sandbox, Way, is_root, tree};
use crate::tiers::trusted_place;

#[test]
fn an_archive_fills_a_directory_of_the_system_which_serves_everybody() {
    let Some(place) = trusted_place("an archive for all users") else {
        return;
    };
    let sandbox = Sandbox::stub();
    let bare = sandbox.kernel(Way::Bare, SOURCE, "-DN=1").ok().stdout;
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = export(&sandbox, &[]);
    let tier = place.path().join("share/oclcache");
    let tier_name = tier.to_str().expect("UTF-8");
    let mut other = elsewhere(&sandbox, Driver::Stub);
    let ran = import(&other, &["--trust", "--system", tier_name], &file).ok();
    assert_eq!(last(&ran), "1 imported, 0 refused");
    for path in tree(&place.path().join("share")).into_keys() {
        let mode = path
            .metadata()
            .expect("what was listed")
            .permissions()
            .mode()
            & 0o777;
        let expected = if path.is_dir() { 0o755 } else { 0o644 };
        if path.is_dir() || path.extension().is_some_and(|it| it == "entry") {
            assert_eq!(mode, expected, "{}", path.display());
        }
        assert_eq!(mode & 0o022, 0, "{}", path.display());
    }
    other.set("OCLCACHE_SYSTEM_DIRS", tier_name);
    let hit = other.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    assert_eq!(
        (hit.stdout.as_str(), hit.source_builds()),
        (bare.as_str(), 0),
        "{}",
        hit.stderr
    );
    assert_eq!(other.stat("system_hits"), 1);
    // The default is the first that is configured.
    std::fs::remove_dir_all(&tier).expect("removed");
    let ran = other
        .oclcache(&[
            "import",
            file.to_str().expect("UTF-8"),
            "--trust",
            "--system",
        ])
        .ok();
    assert_eq!(last(&ran), "1 imported, 0 refused");
    assert!(tier.join("v1/entries").is_dir());
}

#[test]
fn a_directory_that_nobody_would_use_is_not_filled() {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let file = export(&sandbox, &[]);
    let open = sandbox.path("open");
    std::fs::create_dir(&open).expect("made");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).expect("changed");
    let place = open.join("tier");
    let ran = import(
        &sandbox,
        &["--trust", "--system", place.to_str().expect("UTF-8")],
        &file,
    );
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("can be written by everybody") || !is_root(),
        "{}",
        ran.stderr
    );
    assert!(tree(&open).into_keys().all(|path| path.is_dir()));
}
