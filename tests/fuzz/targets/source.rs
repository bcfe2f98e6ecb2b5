//! The scanner of sources and headers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oclcache_fuzz::key::source::{obstacle, obstacle_beside_headers};
use oclcache_fuzz::{in_linear_time, is_timed};

fuzz_target!(|source: &[u8]| {
    let found = obstacle(&[source]);
    assert_eq!(found, obstacle(&[source]), "the same bytes, the same judgement");
    // A header that is known can only take an obstacle away, and an obstacle stays one beside any text.
    if found.is_none() {
        assert_eq!(obstacle_beside_headers(&[source], &|_| true), None);
    } else {
        assert!(obstacle(&[source, b"int a;\n"]).is_some());
    }
    if is_timed(source) {
        in_linear_time(source, |large| { obstacle(&[large]); });
    }
});
