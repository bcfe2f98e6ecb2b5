//! Opens a driver's library as an ICD loader does, and asks it for its platforms.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
use opencl_sys::{CL_INVALID_PLATFORM, CL_SUCCESS, cl_int, cl_uint};

use crate::cl::dispatch::DispatchTable;
use crate::cl::{Platform, info};
use crate::driver::profile::{CL_PLATFORM_ICD_SUFFIX_KHR, Recognition};
use crate::driver::real_paths::RealPaths;
use crate::driver::search_path::{library_path_at_start, linker_directories};
use crate::fork_safety::Mutex;

/// The number of platforms of one library. A larger number is an error of the driver.
const MAX_PLATFORMS: cl_uint = 64;

type GetExtensionFunctionAddress = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type GetPlatformIds = unsafe extern "C" fn(cl_uint, *mut *mut c_void, *mut cl_uint) -> cl_int;
type GetPlatformInfo =
    unsafe extern "C" fn(*mut c_void, cl_uint, usize, *mut c_void, *mut usize) -> cl_int;

type FunctionForPlatform = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type SetDispatchData = unsafe extern "C" fn(*mut c_void, *mut c_void) -> cl_int;

/// The two functions of an ICD 2.0 driver.
#[derive(Clone, Copy)]
struct Icd2 {
    function_address: FunctionForPlatform,
    set_dispatch_data: SetDispatchData,
}

/// Why a library is left out.
#[derive(Debug)]
pub enum OpenError {
    /// The dynamic linker's message.
    Unloadable(String),
    /// It has no `clIcdGetPlatformIDsKHR`.
    NotADriver,
    /// It is this library, under whatever path.
    Ourselves,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Unloadable(words) => f.write_str(words),
            OpenError::NotADriver => {
                f.write_str("it has no clIcdGetPlatformIDsKHR, so it is no OpenCL driver")
            }
            OpenError::Ourselves => f.write_str("it is oclcache itself"),
        }
    }
}

/// An opened driver library. It is never closed: objects, background threads and our hooks point into it.
pub struct DriverLibrary {
    path: PathBuf,
    handle: usize,
    get_extension_function_address: Option<GetExtensionFunctionAddress>,
    get_platform_ids: GetPlatformIds,
    get_platform_info: GetPlatformInfo,
    icd2: Option<Icd2>,
    platforms: Vec<Platform>,
    was_open: bool,
}

/// For each path, whether the library was open already before we opened it.
static WERE_OPEN: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());

/// The platforms of a library whose objects share a dispatch table.
pub struct TableGroup {
    /// The table.
    pub table: DispatchTable,
    /// The platforms on it.
    pub platforms: Vec<Platform>,
    /// By what the driver is recognized.
    pub recognition: Recognition,
}

impl DriverLibrary {
    /// Opens the library with the text of the `.icd` file, so that the dynamic linker returns the handle that the loader has, and
    /// asks for its platforms.
    ///
    /// # Errors
    /// Why it is left out. The other drivers are not affected.
    pub fn open(path: &Path) -> Result<DriverLibrary, OpenError> {
        let was_open = Self::was_open(path);
        // SAFETY: initializers of the driver run, as they do when a loader opens it.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| OpenError::Unloadable(error_words(&error)))?;
        let library = std::mem::ManuallyDrop::new(library);
        if has_our_mark(&library) {
            return Err(OpenError::Ourselves);
        }
        // SAFETY: the types are those of the ICD interface (cl_khr_icd).
        let extension =
            unsafe { library.get::<GetExtensionFunctionAddress>(c"clGetExtensionFunctionAddress") };
        let get_extension_function_address = extension.ok().map(|symbol| *symbol);
        let function = |name: &CStr| -> Option<*mut c_void> {
            if let Some(get) = get_extension_function_address {
                // SAFETY: the driver's own function with a C string, as loaders call it.
                let address = unsafe { get(name.as_ptr()) };
                if !address.is_null() {
                    return Some(address);
                }
            }
            // SAFETY: only the address is taken here; it is used with the type of the ICD interface below.
            let symbol = unsafe { library.get::<*mut c_void>(name) }.ok()?;
            let address = symbol.into_raw();
            (!address.is_null()).then_some(address)
        };
        let icd2 = get_extension_function_address.and_then(|get| {
            // SAFETY: as above; this is how loaders ask for the two (Khronos' loader, icd.c).
            let (function_address, set_dispatch_data) = unsafe {
                (
                    get(c"clIcdGetFunctionAddressForPlatformKHR".as_ptr()),
                    get(c"clIcdSetPlatformDispatchDataKHR".as_ptr()),
                )
            };
            if function_address.is_null() || set_dispatch_data.is_null() {
                return None;
            }
            // SAFETY: functions of these names have these types (cl_khr_icd 2.0).
            Some(unsafe {
                Icd2 {
                    function_address: std::mem::transmute::<*mut c_void, FunctionForPlatform>(
                        function_address,
                    ),
                    set_dispatch_data: std::mem::transmute::<*mut c_void, SetDispatchData>(
                        set_dispatch_data,
                    ),
                }
            })
        });
        let get_platform_ids = function(c"clIcdGetPlatformIDsKHR").ok_or(OpenError::NotADriver)?;
        let get_platform_info = function(c"clGetPlatformInfo").ok_or(OpenError::NotADriver)?;
        // SAFETY: functions of these names have these types (cl_khr_icd, OpenCL 3.0 section 4.1).
        let (get_platform_ids, get_platform_info) = unsafe {
            (
                std::mem::transmute::<*mut c_void, GetPlatformIds>(get_platform_ids),
                std::mem::transmute::<*mut c_void, GetPlatformInfo>(get_platform_info),
            )
        };
        Ok(DriverLibrary {
            path: path.to_owned(),
            handle: std::mem::ManuallyDrop::into_inner(library).into_raw() as usize,
            get_extension_function_address,
            get_platform_ids,
            get_platform_info,
            icd2,
            platforms: platforms(get_platform_ids),
            was_open,
        })
    }

    /// Opens a library. `Ok(None)` if it is this one or a copy of it, since these must not load each other without end. Two names
    /// of one library have the same handle.
    ///
    /// # Errors
    /// The dynamic linker's message.
    pub fn identify(path: &Path) -> Result<Option<usize>, OpenError> {
        Self::was_open(path);
        // SAFETY: initializers run, as they do when a loader opens the library.
        let library = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) };
        let library = library.map_err(|error| OpenError::Unloadable(error_words(&error)))?;
        Ok(if has_our_mark(&library) {
            None
        } else {
            Some(library.into_raw() as usize)
        })
    }

    /// Whether the library is open in this process.
    pub fn is_open(path: &Path) -> bool {
        // SAFETY: nothing is loaded, so nothing runs.
        unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD) }.is_ok()
    }

    fn was_open(path: &Path) -> bool {
        if let Some(known) = WERE_OPEN.lock().get(path) {
            return *known;
        }
        // Without the lock: the linker is asked.
        let is_open = Self::is_open(path);
        *WERE_OPEN.lock().entry(path.to_owned()).or_insert(is_open)
    }

    /// Whether all functions of the driver were handed out through us, since the library was not open before.
    pub fn is_ours_from_the_start(&self) -> bool {
        !self.was_open
    }

    /// The path as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The dynamic linker's handle: equal for two paths of one library.
    pub fn handle(&self) -> usize {
        self.handle
    }

    /// The platforms, in the driver's order; none where the driver has no device or reports an error.
    pub fn platforms(&self) -> &[Platform] {
        &self.platforms
    }

    /// The address of its clIcdGetPlatformIDsKHR.
    pub fn platform_ids(&self) -> usize {
        self.get_platform_ids as *const () as usize
    }

    /// Calls the driver's own clGetPlatformInfo.
    pub fn platform_info(&self, platform: Platform, name: cl_uint, reply: info::Reply) -> cl_int {
        // SAFETY: `platform` came from this driver or from the application, for whom the same call without us would go
        // to this function; the other arguments are the application's or made by `info::ask`.
        unsafe {
            (self.get_platform_info)(
                platform.raw(),
                name,
                reply.size,
                reply.value,
                reply.size_ret,
            )
        }
    }

    /// The driver's answer to clGetExtensionFunctionAddress. NULL if it has none.
    pub fn extension_function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the driver's own function with a C string.
        self.get_extension_function_address
            .map_or(std::ptr::null_mut(), |get| unsafe { get(name.as_ptr()) })
    }

    /// The platform for which loaders ask for this name: its ICD suffix ends it (cl_khr_icd).
    pub fn platform_of_function(&self, name: &CStr) -> Option<Platform> {
        let ends_it = |platform: &Platform| {
            let suffix =
                text(|reply| self.platform_info(*platform, CL_PLATFORM_ICD_SUFFIX_KHR, reply));
            !suffix.is_empty() && name.to_bytes().ends_with(&suffix)
        };
        self.platforms.iter().copied().find(ends_it)
    }

    /// Whether it is a driver of ICD 2.0, so that its platforms may be given to loaders that know ICD 2.0.
    pub fn is_icd2(&self) -> bool {
        self.icd2.is_some()
    }

    /// Calls clIcdGetFunctionAddressForPlatformKHR.
    pub fn function_for_platform(&self, platform: Platform, name: &CStr) -> *mut c_void {
        self.icd2.map_or(std::ptr::null_mut(), |icd2| {
            // SAFETY: the driver's own function with its own platform and a C string.
            unsafe { (icd2.function_address)(platform.raw(), name.as_ptr()) }
        })
    }

    /// Calls clIcdSetPlatformDispatchDataKHR. The data belongs to the loader.
    pub fn set_dispatch_data(&self, platform: Platform, data: *mut c_void) -> cl_int {
        self.icd2.map_or(CL_INVALID_PLATFORM, |icd2| {
            // SAFETY: the driver's own function with its own platform, and what a loader gave for it.
            unsafe { (icd2.set_dispatch_data)(platform.raw(), data) }
        })
    }

    /// Whether a loader that knows of ICD 2.0 calls a platform through a table of the loader's own.
    pub fn is_dispatched_by_loader(&self, platform: Platform) -> bool {
        self.is_icd2() && is_tagged(platform)
    }

    /// Whether a loader that knows ICD 2.0 skips a platform: it is tagged, but the functions are missing.
    pub fn is_refused_by_loader(&self, platform: Platform) -> bool {
        !self.is_icd2() && is_tagged(platform)
    }

    /// Whether a loader has given the platform such a table already: the word after the pointer to the driver's own table.
    pub fn has_dispatch_data(&self, platform: Platform) -> bool {
        self.is_icd2() && has_dispatch_data(platform)
    }

    /// The platforms by dispatch table.
    pub fn tables(&self) -> Vec<TableGroup> {
        let mut groups: Vec<TableGroup> = Vec::new();
        for &platform in &self.platforms {
            let recognition =
                Recognition::ask(|name| text(|reply| self.platform_info(platform, name, reply)));
            // SAFETY: platforms of an ICD begin with the address of their table, which has the functions of their version.
            let table = unsafe { DispatchTable::of_object(platform.raw(), recognition.slots) };
            let Some(table) = table else {
                continue;
            };
            match groups
                .iter_mut()
                .find(|group| group.table.address() == table.address())
            {
                Some(group) => group.platforms.push(platform),
                None => groups.push(TableGroup {
                    table,
                    platforms: vec![platform],
                    recognition,
                }),
            }
        }
        groups
    }
}

/// The file that the dynamic linker opens by this path, or by this name without a directory. None: there is none.
pub fn file_of(library: &Path) -> Option<PathBuf> {
    if library.as_os_str().as_bytes().contains(&b'/') {
        return library.canonicalize().ok();
    }
    let real = RealPaths::default();
    let directories = linker_directories(&library_path_at_start(), &real);
    let mut directories = directories.into_iter().chain(real.without_libraries());
    directories.find_map(|directory| directory.join(library).canonicalize().ok())
}

/// Whether a platform is tagged and has the table of a loader, in the word behind that of the driver's own table.
pub fn has_dispatch_data(platform: Platform) -> bool {
    // SAFETY: objects of a driver that is tagged have this word (cl_khr_icd 2.0).
    is_tagged(platform) && unsafe { platform.raw().cast::<usize>().add(1).read() != 0 }
}

fn is_tagged(platform: Platform) -> bool {
    // SAFETY: platforms of an ICD begin with the address of their table, and all have slots 0 and 31.
    unsafe { DispatchTable::of_object(platform.raw(), 32) }.is_some_and(DispatchTable::is_tagged)
}

/// The answer of a text query, without the NUL. Empty for an error.
pub(super) fn text(query: impl Fn(info::Reply) -> cl_int) -> Vec<u8> {
    let answer = info::ask(|size, value, size_ret| {
        query(info::Reply {
            size,
            value,
            size_ret,
        })
    });
    let mut bytes = answer.unwrap_or_default();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

fn has_our_mark(library: &Library) -> bool {
    // SAFETY: only whether the symbol exists is asked.
    unsafe { library.get::<*const c_char>(c"oclcache_version") }.is_ok()
}

fn error_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| source.to_string())
}

fn platforms(get_platform_ids: GetPlatformIds) -> Vec<Platform> {
    let mut count = 0;
    // SAFETY: a count is asked for with a valid pointer (OpenCL 3.0, 4.1).
    let code = unsafe { get_platform_ids(0, std::ptr::null_mut(), &mut count) };
    if code != CL_SUCCESS || count == 0 || count > MAX_PLATFORMS {
        return Vec::new();
    }
    let mut raw = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: `raw` has room for `count` platforms.
    let code = unsafe { get_platform_ids(count, raw.as_mut_ptr(), std::ptr::null_mut()) };
    if code != CL_SUCCESS {
        return Vec::new();
    }
    raw.into_iter()
        .filter(|platform| !platform.is_null())
        .map(Platform::new)
        .collect()
}
