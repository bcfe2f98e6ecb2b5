//! A build that the driver refuses because of live kernels changes nothing, whatever other threads and callbacks do meanwhile.

use crate::inputs::{last_is_bare, same_in_all_ways};
use crate::support::{Driver, Sandbox};

#[test]
fn other_threads_and_callbacks_see_no_trace_of_a_refused_build() {
    same_in_all_ways(&Driver::ALL, &["refused"]);
}

#[test]
fn kernels_share_their_variables_while_a_kernel_of_the_drivers_own_program_is_slowly_made() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_KERNEL_MS", "5");
    for _ in 0..2 {
        last_is_bare(&sandbox, &[&["refused"]]);
    }
    assert!(sandbox.stat("hits") > 0);
}
