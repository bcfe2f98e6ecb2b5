//! After an update of the driver.

use super::{bake, misses, sandbox, show};
use crate::copies::{DriverCopy, update};
use crate::support::Driver;

#[test]
fn after_an_update_of_the_driver_everything_is_there_once_it_was_baked_again() {
    let Some(mut sandbox) = sandbox(Driver::Pocl) else {
        return;
    };
    let copy = DriverCopy::new(&sandbox, Driver::Pocl, "copy").expect("the driver is there");
    copy.use_in(&mut sandbox);
    assert_eq!(misses(&sandbox), 1);
    // What was pending before is of no use to anybody but as a recipe, and then goes.
    update(&copy.library);
    let said = bake(&sandbox, &[]);
    let skipped = "0 baked, 1 skipped (1: the driver had another library in the program";
    assert!(said.starts_with(skipped), "{said}");
    assert_eq!(bake(&sandbox, &["--stale"]), "1 baked, 0 skipped, 0 failed");
    assert_eq!(sandbox.entries().len(), 1);
    assert!(show(&sandbox).contains("variants          none"));
    assert_eq!(misses(&sandbox), 0);
    let current = "0 baked, 1 current, 0 skipped, 0 failed";
    assert_eq!(bake(&sandbox, &["--stale"]), current);
    let ran = sandbox.oclcache(&["bake", "--stale"]).ok();
    assert!(
        ran.stderr.starts_with("oclcache: checking 1 entry\n"),
        "{}",
        ran.stderr
    );
    let json = sandbox.oclcache(&["bake", "--stale", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json["current"].as_array().map(Vec::len), Some(1), "{json}");
    // So does what was baked, which stays for who has the old one.
    update(&copy.library);
    assert_eq!(bake(&sandbox, &[]), "0 baked, 0 skipped, 0 failed");
    assert_eq!(bake(&sandbox, &["--stale"]), "1 baked, 0 skipped, 0 failed");
    assert_eq!(sandbox.entries().len(), 2);
    assert_eq!(misses(&sandbox), 0);
    let again = "0 baked, 1 already stored, 1 current, 0 skipped, 0 failed";
    assert_eq!(bake(&sandbox, &["--stale"]), again);
}
