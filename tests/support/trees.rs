//! Random programs that include files: directories of headers, options, and what is done to them step by step.
//!
//! Every program sums up numbers, so whatever is included in another order or from another file gives another result; it is C for
//! a preprocessor and OpenCL C for a driver. A header that includes others is guarded, so no program grows without end.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// Where headers are, from the working directory.
const DIRECTORIES: [&str; 4] = ["", "d1/", "sub/", "d1/sub/"];
/// How they are included.
const NAMES: [&str; 7] = [
    "a.h",
    "sub/a.h",
    "sub/a.h",
    "b.h",
    "d.h",
    "./d.h",
    "sub/../b.h",
];
/// What files are called.
const FILES: [&str; 3] = ["a.h", "b.h", "d.h"];

const OPTIONS: [&str; 14] = [
    "-I d1",
    "-I ./d1",
    "-Isub",
    "-I .",
    "-Id1/sub",
    "-I ../tree/sub",
    "-I ABSOLUTE/d1",
    "-DM0=5",
    "-D M1=7",
    "-DH1=<d.h>",
    "-D INCLUDE_PATH=d1 -D XM2S(x)=#x -D M2S(x)=XM2S(x)",
    "-D INCLUDE_PATH=ABSOLUTE/sub -D XM2S(x)=#x -D M2S(x)=XM2S(x)",
    "-I nowhere",
    "-DNOTHING",
];

/// Options that PoCL and Intel's runtime refuse.
const RARE_OPTIONS: [&str; 4] = [
    "-isystem d1",
    "-iquote d1",
    "-include b.h",
    "-include d1/a.h",
];

/// A part of a source or a header.
#[derive(Clone, Debug)]
pub enum Part {
    /// A macro gets another value.
    Define(u8, u8),
    /// A number that depends on a macro.
    Use(u8),
    Include {
        name: u8,
        angled: bool,
        import: bool,
        /// Only if it is there.
        optional: bool,
    },
    /// The name of a header as a macro.
    DefineName {
        macro_: u8,
        name: u8,
        angled: bool,
    },
    IncludeMacro(u8),
    /// As hashcat does.
    IncludePath(u8),
    If(u8, Vec<Part>, Vec<Part>),
    IfHas {
        name: u8,
        angled: bool,
        parts: Vec<Part>,
    },
    /// Defines or undefines a macro of the program's own that depends on what all compilers for OpenCL define.
    Device(u8, u8),
    /// Lines for the device and lines for the host.
    IfDevice(u8, Vec<Part>, Vec<Part>),
    Noise(u8),
}

#[derive(Clone, Debug)]
pub struct Header {
    parts: Vec<Part>,
    /// `#pragma once` in place of a guard.
    once: bool,
}

#[derive(Clone, Debug)]
pub struct Program {
    source: Vec<Part>,
    headers: BTreeMap<(u8, u8), Header>,
    options: Vec<u8>,
}

/// What happens between two builds.
#[derive(Clone, Debug)]
pub enum Edit {
    Change((u8, u8), Header),
    /// Adds or replaces: where the name was free, it may shadow others.
    Add((u8, u8), Header),
    Remove((u8, u8)),
    Rename((u8, u8), (u8, u8)),
    Symlink((u8, u8), (u8, u8)),
    HardLink((u8, u8), (u8, u8)),
    /// Every link becomes a copy, which `#pragma once` tells from it.
    Separate,
    RenameDirectory(u8, u8),
    /// The same bytes in another file, with another time.
    Touch,
    /// A file that nothing includes.
    AddOther(u8),
    Options(Vec<u8>),
}

impl Edit {
    /// Whether no preprocessor could tell.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Edit::Touch | Edit::AddOther(_))
    }
}

fn leaf() -> impl Strategy<Value = Part> {
    let name = 0..NAMES.len() as u8;
    prop_oneof![
        2 => (0..3_u8, any::<u8>()).prop_map(|(name, value)| Part::Define(name, value)),
        3 => (0..3_u8).prop_map(Part::Use),
        5 => (name.clone(), prop::bool::weighted(0.4), prop::bool::weighted(0.1), prop::bool::weighted(0.7))
            .prop_map(|(name, angled, import, optional)| Part::Include { name, angled, import, optional }),
        1 => (0..2_u8, name.clone(), any::<bool>())
            .prop_map(|(macro_, name, angled)| Part::DefineName { macro_, name, angled }),
        1 => (0..2_u8).prop_map(Part::IncludeMacro),
        1 => (0..FILES.len() as u8).prop_map(Part::IncludePath),
        1 => (0..2_u8, any::<u8>()).prop_map(|(name, way)| Part::Device(name, way)),
        1 => any::<u8>().prop_map(Part::Noise),
    ]
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let nested = leaf().prop_recursive(2, 6, 3, |inner| {
        let parts = || vec(inner.clone(), 0..3);
        prop_oneof![
            (0..3_u8, parts(), parts()).prop_map(|(name, yes, no)| Part::If(name, yes, no)),
            (any::<u8>(), parts(), parts())
                .prop_map(|(way, device, host)| Part::IfDevice(way, device, host)),
            (0..NAMES.len() as u8, any::<bool>(), parts()).prop_map(|(name, angled, parts)| {
                Part::IfHas {
                    name,
                    angled,
                    parts,
                }
            }),
        ]
    });
    vec(nested, 0..5)
}

fn header() -> impl Strategy<Value = Header> {
    (parts(), any::<bool>()).prop_map(|(parts, once)| Header { parts, once })
}

/// Most are where names lead to.
fn place() -> impl Strategy<Value = (u8, u8)> {
    let directory = prop::sample::select(vec![0, 1, 2, 2, 3, 3_u8]);
    (directory, 0..FILES.len() as u8)
}

/// Indices of options, by [`OPTIONS`] and then [`RARE_OPTIONS`]. Most programs have a directory that angled names are found in.
fn options(rare: bool) -> impl Strategy<Value = Vec<u8>> {
    let count = OPTIONS.len() + if rare { RARE_OPTIONS.len() } else { 0 };
    let more = vec(0..count as u8, 0..3);
    (prop::option::weighted(0.9, 0..7_u8), more)
        .prop_map(|(first, more)| first.into_iter().chain(more).collect())
}

/// A program and what happens to it; `rare`: with options that some drivers refuse.
pub fn history(rare: bool) -> impl Strategy<Value = (Program, Vec<Edit>)> {
    let source = vec(leaf(), 1..3)
        .prop_flat_map(|first| parts().prop_map(move |rest| [first.clone(), rest].concat()));
    let program = (source, btree_map(place(), header(), 5..11), options(rare));
    let program = program.prop_map(|(source, headers, options)| Program {
        source,
        headers,
        options,
    });
    let edit = prop_oneof![
        3 => (place(), header()).prop_map(|(place, header)| Edit::Change(place, header)),
        3 => (place(), header()).prop_map(|(place, header)| Edit::Add(place, header)),
        3 => place().prop_map(Edit::Remove),
        2 => (place(), place()).prop_map(|(from, to)| Edit::Rename(from, to)),
        2 => (place(), place()).prop_map(|(from, to)| Edit::Symlink(from, to)),
        1 => (place(), place()).prop_map(|(from, to)| Edit::HardLink(from, to)),
        2 => Just(Edit::Separate),
        1 => (1..DIRECTORIES.len() as u8, 1..DIRECTORIES.len() as u8)
            .prop_map(|(from, to)| Edit::RenameDirectory(from, to)),
        4 => Just(Edit::Touch),
        2 => any::<u8>().prop_map(Edit::AddOther),
        2 => options(rare).prop_map(Edit::Options),
    ];
    (program, vec(edit, 2..8))
}

fn quoted(name: &str, angled: bool) -> String {
    if angled {
        format!("<{name}>")
    } else {
        format!("\"{name}\"")
    }
}

fn render(parts: &[Part], text: &mut String) {
    for part in parts {
        let _ = match part {
            Part::Define(name, value) => writeln!(text, "#undef M{name}\n#define M{name} {value}"),
            Part::Use(name) => writeln!(text, "M{name},"),
            Part::Include {
                name,
                angled,
                import,
                optional,
            } => {
                let name = quoted(NAMES[*name as usize], *angled);
                let directive = if *import { "import" } else { "include" };
                match optional {
                    true => writeln!(
                        text,
                        "#if __has_include({name})\n#{directive} {name}\n#endif"
                    ),
                    false => writeln!(text, "#{directive} {name}"),
                }
            }
            Part::DefineName {
                macro_,
                name,
                angled,
            } => {
                let name = quoted(NAMES[*name as usize], *angled);
                writeln!(text, "#undef H{macro_}\n#define H{macro_} {name}")
            }
            Part::IncludeMacro(name) => writeln!(text, "#include H{name}"),
            Part::IncludePath(name) => {
                writeln!(text, "#include M2S(INCLUDE_PATH/{})", FILES[*name as usize])
            }
            Part::If(name, yes, no) => {
                let _ = writeln!(text, "#if M{name} > 100");
                render(yes, text);
                text.push_str("#else\n");
                render(no, text);
                writeln!(text, "#endif")
            }
            Part::IfHas {
                name,
                angled,
                parts,
            } => {
                let name = quoted(NAMES[*name as usize], *angled);
                let _ = writeln!(text, "#if __has_include({name})\n11,");
                render(parts, text);
                writeln!(text, "#endif")
            }
            Part::Device(name, way) => match way % 8 {
                0 => writeln!(text, "#undef D{name} // __OPENCL_VERSION__"),
                1 => writeln!(text, "#ifndef __OPENCL_VERSION__\n#define D{name}\n#endif"),
                2 => writeln!(text, "#if M0 > 100\n#define D{name}\n#endif"),
                _ => writeln!(
                    text,
                    "#ifdef __OPENCL_VERSION__\n# define D{name}\n#elif 1\n#endif"
                ),
            },
            Part::IfDevice(way, device, host) => {
                let (condition, host_first) = [
                    ("ifdef __OPENCL_VERSION__", false),
                    ("ifndef __OPENCL_VERSION__", true),
                    ("ifdef D0", false),
                    ("ifndef D1", true),
                    ("if defined(D0) && !defined D1", false),
                    ("if !(defined __OPENCL_VERSION__ || M1)", true),
                    ("if M1 || defined(D1)", false),
                    ("if defined(M5)\n#elif defined(D0)", false),
                ][usize::from(way % 8)];
                let (first, second) = if host_first {
                    (host, device)
                } else {
                    (device, host)
                };
                let _ = writeln!(text, "#{condition}");
                render(first, text);
                text.push_str("#else // __OPENCL_VERSION__\n");
                render(second, text);
                writeln!(text, "#endif")
            }
            Part::Noise(which) => match which % 4 {
                0 => writeln!(text, "/* #include \"none.h\" */ 21,"),
                1 => writeln!(text, "// #include \"none.h\" \\\n#include \"none.h\"\n22,"),
                2 => writeln!(text, "  /**/ # /**/ inc\\\nlude /* */ \"a\\\n.h\" // end"),
                _ => writeln!(text, "sizeof(\"#include <none.h>\"),"),
            },
        };
    }
}

/// A program on disk. Each text that is written is a new one, and so is each time of change.
pub struct Tree<'a> {
    root: &'a Path,
    written: u64,
    options: Vec<u8>,
}

impl<'a> Tree<'a> {
    /// Writes the program into an empty directory, which must be called `work`.
    pub fn new(root: &'a Path, program: &Program) -> Tree<'a> {
        let mut tree = Tree {
            root,
            written: 0,
            options: program.options.clone(),
        };
        for directory in DIRECTORIES.into_iter().chain(["empty"]) {
            fs::create_dir_all(root.join(directory)).expect("made");
        }
        let mut text = String::from(
            "#define M2 3\n#ifndef M1\n#define M1 2\n#endif\n#ifndef M0\n#define M0 1\n#endif\n\
             #define H0 \"a.h\"\n#ifndef H1\n#define H1 <b.h>\n#endif\n\
             #ifndef M2S\n#define XM2S(x) #x\n#define M2S(x) XM2S(x)\n#define INCLUDE_PATH d1\n#endif\n__constant uint values[] = {\n",
        );
        render(&program.source, &mut text);
        text.push_str(
            "0 };\n__kernel void f(__global uint *out) {\n    uint sum = 0;\n    \
             for (uint i = 0; i < sizeof(values) / sizeof(uint); i++) sum = sum * 31 + values[i];\n    \
             out[get_global_id(0)] = sum;\n}\n",
        );
        fs::write(root.join("kernel.cl"), text).expect("written");
        for (place, header) in &program.headers {
            tree.write(*place, header);
        }
        tree
    }

    /// The options, as an application gives them.
    pub fn options(&self) -> String {
        let all = OPTIONS.iter().chain(&RARE_OPTIONS);
        let all: Vec<&str> = all.copied().collect();
        let chosen: Vec<&str> = self
            .options
            .iter()
            .map(|index| all[*index as usize])
            .collect();
        let root = self.root.to_str().expect("UTF-8");
        chosen.join(" ").replace("ABSOLUTE", root)
    }

    fn path(&self, (directory, file): (u8, u8)) -> std::path::PathBuf {
        let directory = DIRECTORIES[directory as usize];
        self.root.join(directory).join(FILES[file as usize])
    }

    fn date(&mut self, path: &Path) {
        self.written += 1;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + self.written);
        let file = fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_modified(time))
            .expect("dated");
    }

    fn write(&mut self, place: (u8, u8), header: &Header) {
        let path = self.path(place);
        if fs::create_dir_all(path.parent().expect("a directory")).is_err() {
            return;
        }
        // Not through a link.
        let _ = fs::remove_file(&path);
        let number = self.written;
        let mut text = format!("// {number}\n");
        let _ = match header.once {
            true => writeln!(text, "#pragma once"),
            false => writeln!(text, "#ifndef GUARD_{number}\n#define GUARD_{number}"),
        };
        let _ = writeln!(text, "{},", 1000 + number);
        render(&header.parts, &mut text);
        if !header.once {
            text.push_str("#endif\n");
        }
        if fs::write(&path, text).is_ok() {
            self.date(&path);
        }
    }

    /// Does it, as far as it is possible.
    pub fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Change(place, header) => {
                if self.path(*place).exists() {
                    self.write(*place, header);
                }
            }
            Edit::Add(place, header) => self.write(*place, header),
            Edit::Remove(place) => drop(fs::remove_file(self.path(*place))),
            Edit::Rename(from, to) => drop(fs::rename(self.path(*from), self.path(*to))),
            Edit::Symlink(from, to) => {
                let (from, to) = (self.path(*from), self.path(*to));
                if from != to && to.is_file() {
                    let _ = fs::remove_file(&from);
                    let _ = symlink(&to, &from);
                }
            }
            Edit::HardLink(from, to) => {
                let (from, to) = (self.path(*from), self.path(*to));
                if from != to && to.is_file() {
                    let _ = fs::remove_file(&from);
                    let _ = fs::hard_link(&to, &from);
                }
            }
            Edit::Separate => self.renew(|metadata| metadata.is_symlink() || metadata.nlink() > 1),
            Edit::RenameDirectory(from, to) => {
                let path = |index: u8| {
                    self.root
                        .join(DIRECTORIES[index as usize].trim_end_matches('/'))
                };
                let (from, to) = (path(*from), path(*to));
                if from.is_dir() && !to.starts_with(&from) && !from.starts_with(&to) {
                    let _ = fs::remove_dir_all(&to);
                    let _ = fs::rename(from, to);
                }
            }
            Edit::Touch => self.renew(|metadata| metadata.is_file() && metadata.nlink() == 1),
            Edit::AddOther(which) => {
                let directory = self
                    .root
                    .join(DIRECTORIES[*which as usize % DIRECTORIES.len()]);
                let _ = fs::write(directory.join("other.h"), [*which]);
            }
            Edit::Options(options) => self.options = options.clone(),
        }
    }

    /// Puts a copy in the place of each header of this kind: another file, with another time.
    fn renew(&mut self, is_wanted: impl Fn(&fs::Metadata) -> bool) {
        for directory in 0..DIRECTORIES.len() as u8 {
            for file in 0..FILES.len() as u8 {
                let path = self.path((directory, file));
                let metadata = path.symlink_metadata();
                if metadata.is_ok_and(|metadata| is_wanted(&metadata)) && path.is_file() {
                    self.replace(&path);
                }
            }
        }
    }

    fn replace(&mut self, path: &Path) {
        let new = self.root.join("touched");
        fs::copy(path, &new).expect("copied");
        fs::rename(&new, path).expect("renamed");
        self.date(path);
    }
}
