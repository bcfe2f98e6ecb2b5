//! What the tests share: servers, a proxy between them and the helper, and hosts.

pub mod host;
pub mod net;
pub mod proxy;
pub mod servers;
pub mod stores;

use std::time::{Duration, Instant};

/// Waits until something is true. The bound is far above what any machine needs.
#[track_caller]
pub fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a future to its end.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}
