//! What a key costs: it is counted, and a text that would cost too much is left to the driver.

use crate::support::{Sandbox, Way};

const KERNEL: &str = "__kernel void f(__global int *out) { out[0] = 42; }\n";

/// What the library has logged of each build's key, in nanoseconds.
fn key_times(sandbox: &Sandbox) -> Vec<u64> {
    let log = std::fs::read_to_string(sandbox.path("key.log")).expect("a log");
    log.split("key_ns=")
        .skip(1)
        .map(|rest| {
            let digits = rest.split(|character: char| !character.is_ascii_digit());
            digits.take(1).collect::<String>().parse().expect("digits")
        })
        .collect()
}

fn builds(sandbox: &mut Sandbox, source: &str, times: usize) {
    let file = sandbox.write("f.cl", source);
    let (file, times) = (file.to_str().expect("UTF-8"), times.to_string());
    sandbox.set("OCLCACHE_LOG", "debug");
    sandbox.set("OCLCACHE_LOG_FILE", sandbox.path("key.log"));
    let arguments = ["keys", "--times", &times, "--source", file];
    sandbox.client(Way::Cached, &arguments).ok();
}

#[test]
fn what_keys_take_is_inside_the_time_that_is_counted() {
    let mut sandbox = Sandbox::stub();
    // With a header that might be there, the source is read in each build.
    let source = format!(
        "#if 0\n#include \"a.h\"\n#endif\n{}{KERNEL}",
        "int x; // 'y'\n#define A 1\n".repeat(2000)
    );
    builds(&mut sandbox, &source, 3);
    let counted = ["misses", "hits"].map(|name| sandbox.stat(name));
    assert_eq!(counted, [1, 2]);
    let times = key_times(&sandbox);
    assert_eq!(times.len(), 3);
    assert!(times[0] <= sandbox.stat("overhead_ns"), "of the miss");
    assert!(
        times[1] + times[2] <= sandbox.stat("load_ns"),
        "of the hits"
    );
}

#[test]
fn a_text_that_would_cost_too_much_is_left_to_the_driver() {
    let mut sandbox = Sandbox::stub();
    // Compilers differ in each line of it.
    let odd = "??/ x\n\\ \nfoo *\\\n/ \r bar \n 'lone\n 1'0 \n";
    let lines = "  float a = in[1] * 1'0; /* c */ 'q\n".repeat(8000);
    let source = format!("#define P(a, b) a##b\n#if 0\n{odd}{lines}#endif\n{KERNEL}");
    builds(&mut sandbox, &source, 2);
    assert_eq!(sandbox.stat("bypassed"), 2);
    assert_eq!(sandbox.stat("bypass_reasons/costly_text"), 2);
    let [first, second] = key_times(&sandbox)[..] else {
        panic!("two builds");
    };
    assert!(first + second <= sandbox.stat("overhead_ns"));
}
