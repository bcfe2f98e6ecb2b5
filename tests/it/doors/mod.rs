//! The doors: each way in, through each loader, with each kind of driver.

mod baking;
mod copies;
mod kinds;
mod listing;
mod slots;
mod tags;
mod ways;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Driver, Sandbox, example, given, python, skipped};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }\n";

/// Prints each platform of a loader's with its devices. Functions of any loader are found by `clGetPlatformIDs` of that.
pub const LIST: &str = r#"
import ctypes, sys
cl = ctypes.CDLL(sys.argv[1])
P, U = ctypes.c_void_p, ctypes.c_uint
def ids(function, *first):
    count = U()
    code = function(*first, 0, None, ctypes.byref(count))
    if code or not count.value:
        return [], code
    found = (P * count.value)()
    code = function(*first, count.value, found, None)
    return [P(each) for each in found], code
def text(function, object, name):
    value = ctypes.create_string_buffer(65536)
    code = function(object, U(name), ctypes.c_size_t(65536), value, None)
    return value.value.decode() if code == 0 else code
platforms, code = ids(cl.clGetPlatformIDs)
print("platforms", len(platforms), code)
for platform in platforms:
    print("platform", *(text(cl.clGetPlatformInfo, platform, name) for name in (0x902, 0x901, 0x904, 0x900)))
    devices, code = ids(lambda *rest: cl.clGetDeviceIDs(platform, ctypes.c_ulong(0xffffffff), *rest))
    print(" devices", len(devices), code)
    for device in devices:
        print(" device", *(text(cl.clGetDeviceInfo, device, name) for name in (0x102b, 0x102f, 0x1030)))
"#;

/// Whose loader it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// Debian's ocl-icd.
    Debian,
    /// ocl-icd in PyOpenCL's wheel.
    Wheel,
    /// Khronos' own, in the wheel of Intel's CPU runtime.
    Khronos,
    /// `tests/support/loader`.
    Own,
}

#[derive(Debug)]
struct Loader {
    name: Name,
    path: String,
}

impl Loader {
    /// Whether it calls drivers of ICD 2.0 through tables of its own.
    fn knows_icd2(&self) -> bool {
        matches!(self.name, Name::Khronos | Name::Own)
    }

    /// What it needs to be loaded.
    fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        let above = |count| Path::new(&self.path).ancestors().nth(count);
        match self.name {
            // It is patched to look for more drivers below the package's directory, and crashes if nobody says where that is;
            // `import pyopencl` does.
            Name::Wheel => vec![("PYOPENCL_HOME", above(2).expect("a package").to_owned())],
            // It needs libraries beside it, and has no search path of its own.
            Name::Khronos => vec![("LD_LIBRARY_PATH", above(1).expect("a directory").to_owned())],
            Name::Debian | Name::Own => Vec::new(),
        }
    }
}

/// All loaders that are there.
fn loaders() -> Vec<Loader> {
    let named = |name, path: &str| Loader {
        name,
        path: path.to_owned(),
    };
    let mut loaders = vec![
        named(Name::Debian, "libOpenCL.so.1"),
        named(Name::Own, &text(example("libloader.so"))),
    ];
    match Driver::Intel.library() {
        None => skipped("Khronos' loader (OCLCACHE_TEST_INTEL is not set)"),
        Some(library) => {
            let path = Path::new(&library).with_file_name("libOpenCL.so.1");
            loaders.push(named(Name::Khronos, &text(path)));
        }
    }
    if given("OCLCACHE_TEST_PYTHON").is_none() {
        skipped("the loader in PyOpenCL's wheel (OCLCACHE_TEST_PYTHON is not set)");
        return loaders;
    }
    let find = "import importlib.util, glob, os\n\
        place = importlib.util.find_spec('pyopencl').submodule_search_locations[0]\n\
        found = glob.glob(place + '/.libs/libOpenCL*') + glob.glob(place + '/../pyopencl.libs/libOpenCL*')\n\
        print(found[0])";
    let output = Command::new(python()).args(["-c", find]).output();
    let output = output.expect("Python");
    assert!(output.status.success(), "no loader in PyOpenCL's wheel");
    let path = String::from_utf8(output.stdout).expect("UTF-8");
    loaders.push(named(Name::Wheel, path.trim()));
    loaders
}

fn register(sandbox: &Sandbox, name: &str, library: impl AsRef<Path>) -> PathBuf {
    sandbox.write(name, format!("{}\n", library.as_ref().display()))
}

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().expect("UTF-8")
}
