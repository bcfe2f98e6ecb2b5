//! After an update of the driver.

use super::{bake, misses, sandbox, show};
use crate::copies::{DriverCopy, update};
use crate::support::Driver;

#[test]
fn after_an_update_of_the_driver_everything_is_there_once_it_was_baked_again() {
    for driver in [Driver::Pocl] {
        let Some(mut sandbox) = sandbox(driver) else {
            continue;
        };
        let copy = DriverCopy::new(&sandbox, driver, "copy").expect("the driver is there");
        copy.use_in(&mut sandbox);
        assert_eq!(misses(&sandbox), 1);
        assert_eq!(
            bake(&sandbox, &[]),
            "1 baked, 0 skipped, 0 failed",
            "{driver:?}"
        );
        assert_eq!(bake(&sandbox, &["--stale"]), "0 baked, 0 skipped, 0 failed");
        update(&copy.library);
        let before = sandbox.entries();
        assert_eq!(bake(&sandbox, &[]), "0 baked, 0 skipped, 0 failed");
        assert_eq!(
            bake(&sandbox, &["--stale"]),
            "1 baked, 0 skipped, 0 failed",
            "{driver:?}"
        );
        let again = "0 baked, 1 were there, 0 skipped, 0 failed";
        assert_eq!(bake(&sandbox, &["--stale"]), again, "{driver:?}");
        assert_eq!(misses(&sandbox), 0, "{driver:?}");
        if driver == Driver::Pocl {
            before
                .iter()
                .for_each(|entry| std::fs::remove_file(entry).expect("removed"));
            assert!(show(&sandbox).contains("variants          none"));
        }
    }
}

/// What was missed before the update is of no use to anybody but as a recipe.
#[test]
fn what_was_pending_before_an_update_is_baked_for_the_new_driver() {
    let Some(mut sandbox) = sandbox(Driver::Intel) else {
        return;
    };
    let copy = DriverCopy::new(&sandbox, Driver::Intel, "copy").expect("the driver is there");
    copy.use_in(&mut sandbox);
    assert_eq!(misses(&sandbox), 1);
    update(&copy.library);
    let said = bake(&sandbox, &[]);
    assert!(
        said.starts_with("0 baked, 1 skipped (1: the driver ("),
        "{said}"
    );
    assert_eq!(bake(&sandbox, &["--stale"]), "1 baked, 0 skipped, 0 failed");
    assert_eq!(misses(&sandbox), 0);
}
