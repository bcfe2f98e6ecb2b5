//! What changes in a driver's files while a process runs that has opened it.

use crate::copies::DriverCopy;
use crate::support::{Driver, Sandbox, Way};
use crate::variables::VECTORIZED;

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 1; }\n";

/// The driver reads some of it before a build, and some in it.
#[test]
fn a_configuration_that_changes_before_the_first_build_is_noticed() {
    let Some(sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let copy = DriverCopy::new(&sandbox, Driver::Intel, "copy").expect("the driver is there");
    let library = copy.library.to_str().expect("UTF-8");
    let mut sandbox = Sandbox::of_library(library);
    sandbox.without_spy();
    let [file] = &copy.files("cl.cfg")[..] else {
        panic!("no cl.cfg, or several");
    };
    let source = sandbox
        .write("moments.cl", VECTORIZED)
        .display()
        .to_string();
    // Anew: other tests have links to the same file.
    let file = file.display();
    let change = format!(
        "{{ cat {file}; echo 'CL_CONFIG_USE_VECTORIZER = False'; }} > {file}.new; mv {file}.new {file}; sleep 2.5"
    );
    let build = ["moments", "devices", "context", "build", &source];
    let changing = [
        "moments", "devices", "context", "sh", &change, "build", &source,
    ];
    // No build below is the first in the directory, which is stored only if nobody links the files meanwhile.
    sandbox.kernel(Way::Cached, SOURCE, "").ok();
    sandbox.client(Way::Cached, &changing).ok();
    let bare = sandbox.client(Way::Bare, &build).ok().stdout;
    for hits in [0, 1] {
        let ran = sandbox.client(Way::Cached, &build).ok();
        assert_eq!(ran.stdout, bare, "{}", ran.stderr);
        assert_eq!(sandbox.stat("hits"), hits, "{}", ran.stderr);
    }
}

/// The driver looks for its files again in each build.
#[test]
fn a_file_that_comes_to_the_drivers_while_it_runs_is_noticed_and_another_is_not() {
    let Some(mut sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let copy = DriverCopy::new(&sandbox, Driver::Intel, "copy").expect("the driver is there");
    copy.use_in(&mut sandbox);
    let source = sandbox.write("moments.cl", SOURCE).display().to_string();
    let library = copy
        .files(".rtl")
        .pop()
        .expect("a file")
        .display()
        .to_string();
    let directory = copy.library.parent().expect("a directory").display();
    let other = format!("touch {directory}/other; sleep 1.2");
    let another = format!(
        "cp {library} {}; sleep 1.2",
        library.replace(".rtl", "-2.rtl")
    );
    // No build below is the first in the directory, which is stored only if nobody links the files meanwhile.
    let first = format!("{SOURCE}__constant int other = 1;\n");
    sandbox.kernel(Way::Cached, &first, "").ok();
    let counted = ["hits", "misses", "bypass_reasons/unidentified_driver"];
    let count = || counted.map(|name| sandbox.stat(name));
    let run = |change: &str| {
        let before = count();
        let steps = [
            "moments", "devices", "context", "build", &source, "sh", change, "build", &source,
        ];
        let ran = sandbox.client(Way::Cached, &steps).ok();
        let now = count();
        (
            [0, 1, 2].map(|which| now[which] - before[which]),
            ran.stderr,
        )
    };
    let (counted, log) = run(&other);
    assert_eq!(counted, [1, 1, 0], "{log}");
    let (counted, log) = run(&another);
    assert_eq!(counted, [1, 0, 1], "{log}");
}
