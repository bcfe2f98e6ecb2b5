//! The scanner of sources, which follows their headers.
//!
//! The parts of an input, between bytes that stand in no text: the source, build options, and files beside it.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use oclcache_fuzz::key::include::{FollowedIncludes, Inputs, follow};
use oclcache_fuzz::key::options::{self, Options};
use oclcache_fuzz::key::source::before_digits;
use oclcache_fuzz::key::work::Work;
use oclcache_fuzz::outcome::Bypass;
use oclcache_fuzz::{in_linear_time, is_timed};

const BETWEEN: u8 = 0xff;
const FILES: [&str; 3] = ["a.h", "b.h", "sub/c.h"];

/// Where the files stand; the caller has given it a place by TMPDIR that is removed in the end.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("oclcache-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("sub")).expect("a directory of our own");
    // Where the process is, too: whether a closure still holds depends on it.
    std::env::set_current_dir(&directory).expect("entered");
    std::env::current_dir().expect("where we are")
});

fn scan(
    source: &[u8],
    options: Option<&Options>,
    directory: &Path,
) -> Result<FollowedIncludes, Bypass> {
    let inputs = Inputs {
        source,
        embedded: &[],
        options,
        working_directory: directory,
        driver_dirs: &[],
        implicit: &[],
    };
    follow(&inputs, &Work::default())
}

fuzz_target!(|input: &[u8]| {
    let mut parts = input.split(|byte| *byte == BETWEEN);
    let source = parts.next().unwrap_or_default();
    let options = parts.next().filter(|options| !options.contains(&0));
    let options = options.and_then(|options| options::parse(options).ok());
    for name in FILES {
        let file = DIRECTORY.join(name);
        match parts.next() {
            Some(content) => std::fs::write(file, content).expect("written"),
            None => drop(std::fs::remove_file(file)),
        }
    }
    let once = scan(source, options.as_ref(), &DIRECTORY);
    let again = scan(source, options.as_ref(), &DIRECTORY);
    match (once, again) {
        (Ok(once), Ok(again)) => {
            let digits = [once.spells_random_name, again.spells_random_name];
            assert_eq!(digits[0], digits[1], "the same texts");
            let (once, again) = (once.closure, again.closure);
            assert!(once.ingredients().eq(again.ingredients()), "the same files");
            assert!(once.is_unchanged(), "nobody has changed a file");
            // PyOpenCL's variable changes nothing of what is read.
            assert!(before_digits(source).is_none_or(|known| source.starts_with(known)));
        }
        (Err(reason), Err(again)) => assert_eq!(reason, again),
        _ => panic!("the same bytes, another judgement"),
    }
    if is_timed(input) {
        in_linear_time(source, |large| {
            let _ = scan(large, options.as_ref(), &DIRECTORY);
        });
    }
});
