//! Which functions are ours: those of devices, contexts and programs, in a driver's own table, in the answers by name and in a layer's table. The hot
//! ones, clSetKernelArg and all enqueue functions, are the driver's own everywhere.

use super::{register, text};
use crate::support::{Driver, Sandbox, Way, copy_program, example, library, python};

/// The functions that list devices or make contexts, those that take or make programs and kernels, and those that look functions up.
const PROGRAMS: [usize; 26] = [
    2, 4, 5, 8, 26, 27, 28, 29, 30, 32, 33, 34, 35, 36, 37, 39, 65, 97, 98, 99, 101, 107, 137, 138,
    144, 145,
];

/// Finds a library's platform, and tells which slots of its table are changed.
const PLATFORM: &str = r#"
import ctypes, sys
P, U = ctypes.c_void_p, ctypes.c_uint
def named(path, name, result, *types):
    library = ctypes.CDLL(path)
    find = library.clGetExtensionFunctionAddress
    find.restype = P
    found = find(name)
    return ctypes.CFUNCTYPE(result, *types)(found) if found else None
def platform(path):
    function = named(path, b"clIcdGetPlatformIDsKHR", ctypes.c_int, U, P, P)
    found = (P * 4)()
    assert function(4, found, None) == 0, path
    return found[0]
def slots(platform, count):
    table = ctypes.cast(platform, ctypes.POINTER(P))[0]
    return ctypes.cast(table, ctypes.POINTER(P))[:count]
"#;

/// Reads a driver's dispatch table before and after it comes through our door.
const IN_PLACE: &str = r#"
driver = platform(sys.argv[1])
before = slots(driver, 108)
ours = platform(sys.argv[2])
assert ours == driver, "another handle than the driver's"
print(*(index for index in range(108) if slots(driver, 108)[index] != before[index]))
"#;

/// Asks the driver and us for each function by name, as a loader of ICD 2.0 does, where the driver's table stays tagged.
const BY_NAME: &str = r#"
TAG = 0x4F50454E434C3331
driver = platform(sys.argv[1])
tags = [index for index, word in enumerate(slots(driver, 93)) if word == TAG]
assert tags == [0, 31], tags
asked = b"clIcdGetFunctionAddressForPlatformKHR"
theirs = named(sys.argv[1], asked, P, P, ctypes.c_char_p)
platform(sys.argv[2])
ours = named(sys.argv[2], asked, P, P, ctypes.c_char_p)
assert not ours(ours, b"clBuildProgram"), "an answer for a platform of somebody else's"
assert not ours(driver, b"clUnheardOf")
names = sys.argv[3].split()
print(*(index for index, name in enumerate(names) if ours(driver, name.encode()) != theirs(driver, name.encode())))
tags = [index for index, word in enumerate(slots(driver, 93)) if word == TAG]
assert tags == [0, 31], tags
"#;

/// Asks us for a function of ICD 2.0, and tells which slots of the driver's table are changed by that and by our hooks.
const UNTAGGED: &str = r#"
TAG = 0x4F50454E434C3331
driver = platform(sys.argv[1])
def protection():
    table = ctypes.cast(driver, ctypes.POINTER(P))[0]
    for line in open("/proc/self/maps"):
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if start <= table < end:
            return line.split()[1]
before, pages = slots(driver, 150), protection()
assert [index for index, word in enumerate(before) if word == TAG] == [0, 31]
platform(sys.argv[2])
print(*(index for index in range(150) if slots(driver, 150)[index] != before[index]))
asked = b"clIcdGetFunctionAddressForPlatformKHR"
assert not named(sys.argv[2], asked, P, P, ctypes.c_char_p), "answered for a driver whose table has no tag"
after = slots(driver, 150)
print(*(index for index in range(150) if after[index] != before[index]))
assert all(after), "a slot is NULL"
print(*(index for index, word in enumerate(after) if word == TAG))
ids = ctypes.CFUNCTYPE(ctypes.c_int, U, P, P)(after[0])
found = (P * 4)()
assert ids(4, found, None) == 0 and found[0] == driver
assert protection() == pages, protection()
"#;

/// Asks for the table of a layer, over a table of so many functions.
const LAYER: &str = r#"
import ctypes, sys
P, U = ctypes.c_void_p, ctypes.c_uint
library = ctypes.CDLL(sys.argv[1])
version, size = U(), ctypes.c_size_t()
assert library.clGetLayerInfo(0x4240, ctypes.c_size_t(4), ctypes.byref(version), ctypes.byref(size)) == 0
assert (version.value, size.value) == (100, 4)
assert library.clGetLayerInfo(0x4240, ctypes.c_size_t(2), ctypes.byref(version), None) == -30
assert library.clGetLayerInfo(0x9999, ctypes.c_size_t(4), ctypes.byref(version), None) == -30
for init in library.clInitLayer, library.clInitLayerWithProperties:
    count, table = U(), P()
    target = (P * int(sys.argv[2]))(*range(4096, 4096 + int(sys.argv[2])))
    rest = [None] if init is library.clInitLayerWithProperties else []
    assert init(U(0), None, None, None, *rest) == -30
    assert init(len(target), target, ctypes.byref(count), ctypes.byref(table), *rest) == 0
    assert 0 < count.value <= len(target), count.value
    words = ctypes.cast(table, ctypes.POINTER(P))[:count.value]
    print(*(index for index, word in enumerate(words) if word))
unknown = (ctypes.c_size_t * 3)(1, 2, 0)
assert library.clInitLayerWithProperties(len(target), target, ctypes.byref(count), ctypes.byref(table), unknown) == -64
assert library.clDeinitLayer() == 0
"#;

/// Asks us for functions of extensions without a platform, and tells of which library each is.
const EXTENSIONS: &str = r#"
drivers = [ctypes.CDLL(path) for path in sys.argv[2].split()]
platform(sys.argv[1])
def address(library, name):
    find = library.clGetExtensionFunctionAddress
    find.restype = P
    return find(name.encode())
ours = ctypes.CDLL(sys.argv[1])
for name in sys.argv[3].split():
    print(*(index for index, driver in enumerate(drivers) if address(driver, name) == address(ours, name)))
"#;

fn numbers(line: &str) -> Vec<usize> {
    let numbers = line.split_whitespace();
    numbers.map(|slot| slot.parse().expect("a slot")).collect()
}

fn run(sandbox: &Sandbox, script: &[&str], arguments: &[&str]) -> Vec<Vec<usize>> {
    let mut command = sandbox.command(Way::Cached, python());
    command.args(["-c", &script.concat()]).args(arguments);
    command.env("OCLCACHE_VENDORS", sandbox.path("real.icd"));
    let ran = sandbox.run(&mut command).ok();
    ran.stdout.lines().map(numbers).collect()
}

#[test]
fn handles_and_all_functions_but_those_of_programs_stay_the_drivers_own() {
    for driver in Driver::ALL {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let name = driver.library().expect("found before");
        register(&sandbox, "real.icd", &name);
        let changed = run(&sandbox, &[PLATFORM, IN_PLACE], &[&name, &text(library())]);
        for slot in &changed[0] {
            assert!(PROGRAMS.contains(slot), "{driver:?}: slot {slot}");
        }
        for slot in [26, 29, 30, 32, 33, 36, 98, 99] {
            assert!(changed[0].contains(&slot), "{driver:?}: slot {slot}");
        }
    }
}

fn names() -> Vec<&'static str> {
    let list = include_str!("../../support/slots.rs");
    let list = list.split('"').nth(1).expect("the list");
    let names = list.split_whitespace().filter(|word| *word != "\\");
    names.collect()
}

#[test]
fn a_loader_of_icd_2_is_answered_with_the_drivers_functions_but_for_those_of_programs() {
    let stub = text(example("libstub_driver.so"));
    let mut sandbox = Sandbox::of_library(&stub);
    sandbox.set("STUB_ICD2", "1");
    sandbox.set("STUB_SHORT_TABLE", "1");
    register(&sandbox, "real.icd", &stub);
    let names = names();
    assert_eq!(names.len(), 150);
    let arguments = [stub.as_str(), &text(library()), &names.join(" ")];
    let changed = run(&sandbox, &[PLATFORM, BY_NAME], &arguments);
    let hooked: Vec<usize> = PROGRAMS.into_iter().filter(|slot| *slot < 93).collect();
    assert_eq!(changed, [hooked]);
    for slot in PROGRAMS {
        let hot = ["clSetKernelArg", "clSetKernelExecInfo", "clEnqueue"];
        assert!(!hot.iter().any(|hot| names[slot].starts_with(hot)));
    }
}

/// NULL slots get what a loader's own table has there. Functions that the driver does not give by name stay, since older loaders
/// call them. Slot 31 keeps its tag, since no loader calls it.
#[test]
fn a_table_without_its_tag_has_a_function_in_each_slot_and_the_pages_their_protection() {
    for protection in ["0", "1"] {
        let stub = text(example("libstub_driver.so"));
        let mut sandbox = Sandbox::of_library(&stub);
        sandbox.set("STUB_ICD2", "1");
        sandbox.set("STUB_READONLY_TABLE", protection);
        sandbox.set("STUB_NULL_SLOTS", "clFinish clGetHostTimer");
        sandbox.set("STUB_UNNAMED", "clFlush clCompileProgram");
        sandbox.set("STUB_ABSENT", "clSVMFree clCreateImage");
        register(&sandbox, "real.icd", &stub);
        let told = run(&sandbox, &[PLATFORM, UNTAGGED], &[&stub, &text(library())]);
        let names = names();
        let slot = |name: &str| names.iter().position(|known| *known == name);
        let slot = |name| slot(name).expect("a function");
        let mut hooked = PROGRAMS.to_vec();
        assert_eq!(told[0], hooked, "before a loader of ICD 2.0 is known");
        let more = [
            "clGetPlatformIDs",
            "clFinish",
            "clGetHostTimer",
            "clSVMFree",
            "clCreateImage",
        ];
        hooked.extend(more.map(slot));
        hooked.sort_unstable();
        assert_eq!(told[1], hooked);
        assert_eq!(told[2], [31]);
    }
}

/// A table of any length is taken, and no more of it is read.
#[test]
fn a_layers_table_has_the_functions_of_programs_and_leaves_the_others_to_those_below() {
    let sandbox = Sandbox::stub();
    for entries in [0, 65, 93, 149, 150, 200] {
        let tables = run(
            &sandbox,
            &[LAYER],
            &[&text(library()), &entries.max(1).to_string()],
        );
        let expected: Vec<usize> = PROGRAMS
            .into_iter()
            .filter(|slot| *slot < entries)
            .collect();
        assert_eq!(tables, [expected.clone(), expected], "{entries}");
    }
}

/// A loader asks for a function of an extension by the suffix of a driver, and has only us to ask.
#[test]
fn a_function_of_an_extension_is_that_of_the_driver_whose_suffix_ends_its_name() {
    let sandbox = Sandbox::stub();
    let drivers = ["ONE", "TWO"].map(|suffix| {
        let library = sandbox.path(&format!("libstub-{suffix}.so"));
        copy_program(example("libstub_driver.so"), &library);
        text(library)
    });
    let mut command = sandbox.command(Way::Cached, python());
    command.args(["-c", &[PLATFORM, EXTENSIONS].concat(), &text(library())]);
    command.arg(drivers.join(" "));
    command.arg("clStubExtensionTWO clStubExtensionONE clStubExtensionX clStubExtension");
    command.env("OCLCACHE_VENDORS", drivers.join(":"));
    let ran = sandbox.run(&mut command).ok();
    let found: Vec<Vec<usize>> = ran.stdout.lines().map(numbers).collect();
    assert_eq!(found, [[1], [0], [0], [0]]);
}
