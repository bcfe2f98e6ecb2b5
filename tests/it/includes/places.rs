//! Where headers stand: the working directory and the include directories, in every spelling.

use super::{COMPILERS, KERNEL, Tree};
use crate::support::Driver;

/// A header that several directories could hold: each is tried in turn.
struct Row<'a> {
    include: &'a str,
    options: &'a str,
    /// Where the header could be, from the working directory. The last one is where any driver finds it.
    places: &'a [&'a str],
    /// Where a header of the same name is of no concern.
    elsewhere: &'a str,
}

impl Row<'_> {
    #[track_caller]
    fn holds_on(&self, drivers: &[Driver]) {
        for tree in Tree::on(drivers) {
            let (last, others) = self.places.split_last().expect("a place");
            let header = |place: &str| format!("{place}h.h");
            for place in self.places.iter().chain([&self.elsewhere]) {
                std::fs::create_dir_all(tree.path(place)).expect("made");
            }
            tree.define(&header(self.elsewhere));
            tree.source(
                &format!("#include {}\n{KERNEL}", self.include),
                self.options,
            );
            tree.define(&header(last));
            tree.is_cached();
            for place in others {
                tree.define(&header(place));
                tree.misses(&format!("new header in {place:?}"));
            }
            for place in self.places {
                tree.define(&header(place));
                tree.misses(&format!("header in {place:?} is edited"));
            }
            if tree.works() {
                for place in self.places {
                    tree.touch(&header(place));
                }
                tree.define(&header(self.elsewhere));
                tree.hits("touched, and a header edited where none looks");
            }
            for place in others {
                tree.remove(&header(place));
                tree.misses(&format!("no header in {place:?}"));
            }
            tree.rename(&header(last), &format!("{last}other.h"));
            tree.misses("renamed");
            assert!(!tree.works(), "{:?}: a header is left", tree.driver);
            tree.rename(&format!("{last}other.h"), &header(last));
            tree.hits_again("renamed back");
        }
    }
}

#[test]
fn quoted_in_the_working_directory() {
    let row = Row {
        include: "\"h.h\"",
        options: "",
        places: &[""],
        elsewhere: "d1/",
    };
    row.holds_on(&Driver::ALL);
}

#[test]
fn angled_without_a_directory() {
    // rusticl finds none there, and that is its verdict.
    let row = Row {
        include: "<h.h>",
        options: "",
        places: &[""],
        elsewhere: "d1/",
    };
    row.holds_on(&[Driver::Stub, Driver::Pocl, Driver::Intel]);
    for tree in Tree::on(&[Driver::Rusticl]) {
        tree.source(&format!("#include <h.h>\n{KERNEL}"), "");
        tree.define("h.h");
        tree.misses("cold");
        tree.misses("warm");
        assert!(!tree.works());
    }
}

#[test]
fn quoted_with_a_directory() {
    let row = Row {
        include: "\"h.h\"",
        options: "-I d1",
        places: &["", "d1/"],
        elsewhere: "d2/",
    };
    row.holds_on(&Driver::ALL);
}

#[test]
fn angled_with_two_directories() {
    let row = Row {
        include: "<h.h>",
        options: "-I d1 -Id2",
        places: &["", "d1/", "d2/"],
        elsewhere: "d3/",
    };
    row.holds_on(&Driver::ALL);
}

#[test]
fn a_directory_is_relative_to_the_working_directory() {
    let row = Row {
        include: "<h.h>",
        options: "-I ../d2",
        places: &["", "../d2/"],
        elsewhere: "d2/",
    };
    row.holds_on(&Driver::ALL);
}

#[test]
fn a_name_with_directories() {
    let row = Row {
        include: "\"sub/../sub/h.h\"",
        options: "-I d1",
        places: &["sub/", "d1/sub/"],
        elsewhere: "d1/",
    };
    row.holds_on(&Driver::ALL);
}

/// darktable writes its directory like this. PoCL refuses it.
#[test]
fn a_quoted_directory() {
    let row = Row {
        include: "\"h.h\"",
        options: "-I\"d1\"",
        places: &["", "d1/"],
        elsewhere: "d2/",
    };
    row.holds_on(&[Driver::Intel, Driver::Rusticl]);
}

#[test]
fn directories_with_blanks_are_the_drivers_own_affair_or_cached() {
    for options in [
        "-I \"with blank\"",
        "-I 'with blank'",
        "-I with\\ blank",
        "-I\"with blank\" -I d1",
    ] {
        // rusticl crashes on apostrophes and backslashes.
        let quoted = options.contains('"');
        let drivers = if quoted {
            &COMPILERS[..]
        } else {
            &COMPILERS[..2]
        };
        for tree in Tree::on(drivers) {
            tree.source(&format!("#include <h.h>\n{KERNEL}"), options);
            tree.define("with blank/h.h");
            tree.is_right("cold");
            tree.is_right("warm");
            tree.define("with blank/h.h");
            tree.is_right("edited");
            for shadow in ["d1/h.h", "with/h.h", "'with/h.h", "h.h"] {
                tree.define(shadow);
                tree.is_right("one more");
            }
            std::fs::remove_dir_all(tree.path("with blank")).expect("removed");
            tree.is_right("the first is removed");
        }
    }
}

#[test]
fn options_that_only_some_drivers_know() {
    for tree in Tree::on(&COMPILERS) {
        for (include, options) in [
            ("", "-include h.h"),
            ("", "-include ./h.h -I d1"),
            ("#include <h.h>", "-isystem d1"),
            ("#include \"h.h\"", "-iquote d1"),
            ("#include \"h.h\"", "-idirafter d1"),
        ] {
            for place in ["h.h", "d1/h.h"] {
                let _ = std::fs::remove_file(tree.path(place));
            }
            tree.source(&format!("{include}\n{KERNEL}"), options);
            tree.define(if include.is_empty() { "h.h" } else { "d1/h.h" });
            tree.is_right("cold");
            tree.is_right("warm");
            tree.define(if include.is_empty() { "h.h" } else { "d1/h.h" });
            tree.is_right("edited");
            tree.define(if include.is_empty() { "d1/h.h" } else { "h.h" });
            tree.is_right("another");
        }
    }
}

#[test]
fn an_absolute_name() {
    for tree in Tree::on(&Driver::ALL) {
        let path = tree.path("far/h.h");
        let path = path.to_str().expect("UTF-8");
        tree.source(&format!("#include \"{path}\"\n{KERNEL}"), "-I d1");
        tree.define("far/h.h");
        tree.is_cached();
        tree.define("far/h.h");
        tree.misses("edited");
        tree.touch("far/h.h");
        tree.define("h.h");
        tree.define("d1/h.h");
        tree.hits("touched, and others of its name");
        tree.remove("far/h.h");
        tree.misses("removed");
    }
}

/// The same program in another working directory: what it finds there counts, and not where it is.
#[test]
fn another_working_directory() {
    for tree in Tree::on(&Driver::ALL) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.define("h.h");
        tree.is_cached();
        let moved = tree.sandbox.path("elsewhere");
        std::fs::rename(tree.path(""), &moved).expect("renamed");
        std::fs::create_dir_all(tree.path("d1")).expect("made");
        std::fs::copy(moved.join("kernel.cl"), tree.path("kernel.cl")).expect("copied");
        tree.misses("no header here");
        tree.define("h.h");
        tree.misses("another here");
        tree.define("d1/h.h");
        tree.misses("and one more");
    }
}

/// Directories that no driver is told of, and other files, are no part of the key.
#[test]
fn other_files_do_not_matter() {
    for tree in Tree::on(&Driver::ALL) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.define("h.h");
        tree.is_cached();
        for other in ["H.H", "h.hpp", "d1/h", "d1/d1/h.h", "h.h.orig", "../h.h"] {
            tree.define(other);
        }
        tree.hits("other files");
    }
}
