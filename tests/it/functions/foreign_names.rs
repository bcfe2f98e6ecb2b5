//! Programs that have names which a driver's libraries look for: nearly all large ones, by chance or with their own libraries.

use super::{PASSING, client, run, shared};
use crate::support::{Driver, Sandbox, Way};

/// Looking through all relocations takes as long as the rest of a first key: OpenSSL's `ZINT32_it` has the hash of a name of LLVM's, and
/// each process of Python with `ssl` paid for that.
#[test]
fn the_slots_of_their_names_are_looked_for_once() {
    let Some(sandbox) = Sandbox::new(Driver::Stub) else {
        return;
    };
    let Some(library) = shared(&sandbox, "passing", PASSING, &[]) else {
        return;
    };
    let preloaded = [("LD_PRELOAD", library.display().to_string())];
    let of_process = |variables: &[(&str, String)]| {
        let log = ("OCLCACHE_LOG", "debug".to_owned());
        let variables = [variables, &[log]].concat();
        let source = "__kernel void f(__global uint *out) { out[0] = 1; }\n";
        let ran = run(&sandbox, Way::Cached, &client(&variables), source);
        let words = "relocations of watched functions were looked for";
        (ran.source_builds(), ran.stderr.matches(words).count())
    };
    assert_eq!(of_process(&[]), (1, 1), "without the library");
    assert_eq!(of_process(&[]), (0, 0));
    assert_eq!(of_process(&preloaded), (1, 1), "the first one with it");
    assert_eq!(of_process(&preloaded), (0, 0), "the second one with it");
    assert_eq!(of_process(&[]), (0, 0));
    assert_eq!(of_process(&preloaded), (0, 0), "the third one with it");
}
