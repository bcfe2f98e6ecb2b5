//! Programs whose process has no memory left for us get what they get bare.

use crate::support::{Driver, Ran, Sandbox, Way, example, library};

/// A source of this size, all of which the compiler reads.
fn source(sandbox: &Sandbox, size: usize) -> String {
    let text = format!(
        "#include \"h.h\"\n__constant char text[] = \"{}\";\n\
         __kernel void f(__global uint *out) {{ out[get_global_id(0)] = text[1] + NUMBER; }}\n",
        "x".repeat(size)
    );
    sandbox.write("h.h", "#define NAME \"i.h\"\n#include NAME\n");
    sandbox.write("i.h", "#define NUMBER 1\n");
    let file = sandbox.write("kernel.cl", text);
    file.to_str().expect("UTF-8").to_owned()
}

fn run(sandbox: &Sandbox, way: Way, file: &str, starving: &[(&str, usize)]) -> Ran {
    let directory = format!("-I {}", sandbox.path("").display());
    let mut command = sandbox.command(way, example("client"));
    command.args([
        "run",
        "--source",
        file,
        "--kernel",
        "f",
        "--options",
        &directory,
    ]);
    command.env("LD_PRELOAD", example("libstarving.so"));
    command.env("STARVING_LOG", sandbox.path("starving"));
    for (name, value) in starving {
        command.env(name, value.to_string());
    }
    sandbox.run(&mut command)
}

/// How many allocations of 4 KiB and more the library has made.
fn allocations(sandbox: &Sandbox) -> usize {
    let log = sandbox.path("starving");
    let count = std::fs::read(&log).map_or(0, |log| log.len());
    let _ = std::fs::remove_file(log);
    count
}

#[test]
fn whichever_large_allocation_fails_the_program_gets_what_it_gets_bare() {
    assert!(library().to_string_lossy().contains("liboclcache"));
    for (driver, size, most) in [
        (Driver::Stub, 40_000, 16),
        (Driver::Pocl, 40_000, 4),
        (Driver::Intel, 40_000, 4),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        // Nobody is told of what a starving process cannot store.
        sandbox.set("OCLCACHE_LOG", "error");
        let file = source(&sandbox, size);
        let bare = run(&sandbox, Way::Bare, &file, &[]).ok();
        allocations(&sandbox);
        for kind in ["miss", "hit"] {
            let forget = || {
                if kind == "miss" {
                    // What is remembered of the driver stays: to read it all again takes seconds.
                    let _ = std::fs::remove_dir_all(sandbox.path("cache/v1/entries"));
                }
            };
            forget();
            let full = run(&sandbox, Way::Cached, &file, &[]).ok();
            assert_eq!(full.stdout, bare.stdout, "{driver:?} {kind}");
            let count = allocations(&sandbox);
            assert!(count > 3, "{driver:?} {kind}: {count} allocations");
            let step = count.div_ceil(most).max(1);
            for variable in ["STARVING_AT", "STARVING_FROM"] {
                for number in (1..=count).step_by(step) {
                    forget();
                    let ran = run(&sandbox, Way::Cached, &file, &[(variable, number)]);
                    let what = format!("{driver:?} {kind} {variable}={number} of {count}");
                    assert_eq!(ran.code, Some(0), "{what}: {:?} {}", ran.signal, ran.stderr);
                    assert_eq!(ran.stdout, bare.stdout, "{what}: {}", ran.stderr);
                }
            }
        }
    }
}
