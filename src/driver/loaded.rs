//! The shared libraries of this process as they are in memory: names, dependencies and build-ids.
//!
//! Read from the mapped image, not from the file: the file may have been replaced since it was loaded.

mod closure;

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::{
    DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME, DT_STRSZ, DT_STRTAB, DynamicTag, NT_GNU_BUILD_ID,
    NoteType, PF_R, PF_W, PT_DYNAMIC, PT_LOAD, PT_NOTE, ProgramType,
};

use super::mappings::Mappings;
use crate::cl::info::Number;
use crate::filesystem::FileSystem;
use crate::fork_safety;
use crate::linker_lock;
pub use closure::{closure, closure_by_root};

/// One loaded library.
#[derive(Debug)]
pub struct Object {
    /// The path that the dynamic linker used. Empty for the program itself.
    pub path: PathBuf,
    /// DT_SONAME, or else the file's name.
    pub name: Vec<u8>,
    needed: Vec<Vec<u8>>,
    /// DT_RPATH and DT_RUNPATH, separated by colons.
    pub run_paths: Vec<u8>,
    /// The GNU build-id.
    pub build_id: Option<Vec<u8>>,
    /// The addresses of its segments.
    pub ranges: Vec<std::ops::Range<usize>>,
    /// Its load address, which is added to the addresses in it.
    pub base: usize,
}

impl Object {
    /// Whether an address is in one of the object's segments.
    pub fn contains(&self, address: usize) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }

    /// Where it begins, which tells it from all others at a time. Those that lie where their files say have one load address, 0.
    pub fn start(&self) -> Option<usize> {
        let mut ranges = self.ranges.iter();
        Some(ranges.find(|range| !range.is_empty())?.start)
    }

    /// Whether it is a library: not the program itself, and not an object that the kernel maps into each process.
    pub fn is_in_a_file(&self) -> bool {
        !self.path.as_os_str().is_empty() && !self.name.starts_with(b"linux-vdso")
    }

    /// Whether its DT_SONAME or its file name is one of these.
    pub fn is_named(&self, is_one: impl Fn(&str) -> bool) -> bool {
        let file = self.path.file_name().map(OsStr::as_bytes);
        [Some(self.name.as_slice()), file]
            .into_iter()
            .flatten()
            .filter_map(|name| std::str::from_utf8(name).ok())
            .any(is_one)
    }

    /// Whether it is this library or a copy of it, at any path. It changes no compilation, and its data names all variables of the
    /// profiles.
    pub fn is_oclcache(&self) -> bool {
        exports(&self.path, c"oclcache_active")
    }

    /// Whether it is a loader layer, and not this library or a copy of it.
    pub fn is_layer_of_another(&self) -> bool {
        self.is_in_a_file() && !self.is_oclcache() && exports(&self.path, c"clInitLayer")
    }

    /// Whether the file at the path is the one that was loaded, so that its content tells what is in memory.
    pub fn is_what_stands_at_its_path(&self, mappings: &Mappings) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| self.is_file(metadata.ino(), mappings))
    }

    /// The same with the inode of the file at the path.
    pub fn is_file(&self, inode: u64, mappings: &Mappings) -> bool {
        let Some((start, mapping)) = self
            .start()
            .and_then(|start| Some((start, mappings.at(start)?)))
        else {
            return false;
        };
        // On overlayfs some kernels show the inode of the lower file here. A replaced file shows as deleted.
        match mapping.inode == inode {
            true => !mapping.deleted,
            false => {
                let is_there = |now: &Mappings| now.at(start).is_some_and(|one| !one.deleted);
                FileSystem::at(&self.path).is_overlay() && is_there(&Mappings::now())
            }
        }
    }

    /// The inode from which it was loaded. None if there is no such file any more, or if it is unknown.
    pub fn inode(&self, mappings: &Mappings) -> Option<u64> {
        let mapping = mappings.at(self.start()?)?;
        (!mapping.deleted).then_some(mapping.inode)
    }

    /// Whether it names another one as needed, by the other's own name.
    pub fn needs(&self, other: &Object) -> bool {
        self.needed.contains(&other.name)
    }

    /// All that the dynamic linker and its file say about it, for comparisons.
    pub fn description(&self) -> impl Iterator<Item = &[u8]> {
        let own = [
            self.path.as_os_str().as_bytes(),
            &self.name,
            &self.run_paths,
            self.build_id.as_deref().unwrap_or_default(),
        ];
        let needed = self.needed.iter().map(Vec::as_slice);
        own.into_iter().chain(needed).chain([&b"\n"[..]])
    }
}

/// The paths of all libraries, as the dynamic linker knows them.
pub fn paths() -> Vec<PathBuf> {
    let mut paths: Vec<_> = objects().into_iter().map(|object| object.path).collect();
    paths.retain(|path| !path.as_os_str().is_empty());
    paths
}

/// The path of the library that contains a function.
pub fn path_of(function: usize) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr only looks the address up, and fills `info` if it is in a library.
    let name = unsafe {
        if libc::dladdr(function as *const c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init().dli_fname
    };
    // SAFETY: the dynamic linker's name of a library that is loaded.
    (!name.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()).into())
}

/// Keeps the library that contains an address in memory for the life of the process.
pub fn pin(address: usize) {
    let Some(path) = path_of(address) else {
        return;
    };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: nothing is loaded, so nothing runs.
    drop(unsafe { libloading::os::unix::Library::open(Some(path), flags) });
}

/// Whether a function belongs to an ICD loader: a library that has a clGetPlatformIDs of its own for programs to link to.
pub fn is_in_loader(function: usize) -> bool {
    path_of(function).is_some_and(|path| exports(&path, c"clGetPlatformIDs"))
}

/// Whether the code or the constants of the library that contains an address have these bytes.
pub fn library_has(address: usize, text: &[u8]) -> bool {
    struct Search<'a> {
        address: usize,
        text: &'a [u8],
        is_found: bool,
    }
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `info` is valid during the call, and `data` is the search that was passed below.
        let (search, info) = unsafe { (&mut *data.cast::<Search>(), &*info) };
        // SAFETY: `dlpi_phnum` headers, by dl_iterate_phdr(3).
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let segments = || headers.iter().filter(|header| header.p_type == PT_LOAD.0);
        let start = |header: &libc::Elf64_Phdr| info.dlpi_addr as usize + header.p_vaddr as usize;
        let is_around = |header: &libc::Elf64_Phdr| {
            (start(header)..start(header) + header.p_memsz as usize).contains(&search.address)
        };
        if !segments().any(is_around) {
            return 0;
        }
        let constant = segments().filter(|header| header.p_flags & (PF_R.0 | PF_W.0) == PF_R.0);
        search.is_found = constant.into_iter().any(|header| {
            let (text, size) = (search.text, header.p_filesz as usize);
            // SAFETY: a segment of an object that stays mapped during the call, which can be read and which nobody writes.
            let found = unsafe {
                libc::memmem(
                    start(header) as *const c_void,
                    size,
                    text.as_ptr().cast(),
                    text.len(),
                )
            };
            !found.is_null()
        });
        1
    }
    let mut search = Search {
        address,
        text,
        is_found: false,
    };
    // SAFETY: `visit` wants a pointer to a search.
    unsafe { iterate(visit, (&raw mut search).cast()) };
    search.is_found
}

/// Whether a loaded library has a function of that name itself.
fn exports(path: &Path, name: &CStr) -> bool {
    let exported = || {
        if linker_lock::is_busy_for_long() {
            return None;
        }
        // SAFETY: nothing is loaded, so nothing runs.
        let library = unsafe {
            libloading::os::unix::Library::open(Some(path), libc::RTLD_LAZY | libc::RTLD_NOLOAD)
        };
        let library = library.ok()?;
        // SAFETY: only the address is taken. It may be that of a library that this one needs.
        let symbol = unsafe { library.get::<*const c_void>(name) }.ok()?;
        (path_of(symbol.into_raw() as usize)? == path).then_some(())
    };
    exported().is_some()
}

/// The number of libraries that this process has loaded and unloaded.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Loaded so far.
    pub loads: u64,
    /// Unloaded so far.
    pub unloads: u64,
}

/// The current numbers. Costs about 100 ns.
pub fn changes() -> Changes {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `info` is valid during the call, and the data are the counts that were passed below.
        unsafe {
            *data.cast::<Changes>() = Changes {
                loads: (*info).dlpi_adds,
                unloads: (*info).dlpi_subs,
            };
        }
        1 // each object has the same numbers, so one is enough
    }
    let mut changes = Changes::default();
    // SAFETY: `first` wants a pointer to counts.
    unsafe { iterate(first, (&raw mut changes).cast()) };
    changes
}

/// What is loaded at a moment.
pub struct LoadedObjects {
    /// All objects.
    pub objects: Vec<Object>,
    /// The numbers before these were looked at: a library that was loaded meanwhile is looked at later.
    pub changes: Changes,
}

impl LoadedObjects {
    /// Now.
    pub fn now() -> LoadedObjects {
        let changes = changes();
        let objects = objects();
        LoadedObjects { objects, changes }
    }
}

/// All loaded objects.
pub fn objects() -> Vec<Object> {
    let mut objects: Vec<Object> = Vec::new();
    // SAFETY: `visit` wants a pointer to a vector of them. The dynamic linker holds its lock meanwhile, so no object is
    // unmapped while it is read.
    unsafe { iterate(visit, (&raw mut objects).cast()) };
    objects
}

pub(super) type Visit = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// Calls the function for each loaded object, until it returns another number than 0.
///
/// # Safety
/// The data are what the function wants.
#[allow(clippy::disallowed_methods)] // the one place
pub(super) unsafe fn iterate(visit: Visit, data: *mut c_void) {
    // SAFETY: the function has the type that dl_iterate_phdr(3) wants and, by the caller, gets the data that it wants.
    fork_safety::without_forks(|| unsafe { libc::dl_iterate_phdr(Some(visit), data) });
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // A panic must not cross the dynamic linker. An object that cannot be read is left out; then the closure misses it.
    let _ = std::panic::catch_unwind(|| {
        // SAFETY: `data` is the vector that `objects` passed, used by this thread only; `info` is valid during the call.
        let (objects, info) = unsafe { (&mut *data.cast::<Vec<Object>>(), &*info) };
        // SAFETY: the dynamic linker describes a mapped object.
        objects.push(unsafe { read(info) });
    });
    0
}

/// # Safety
/// `info` describes an object that stays mapped during the call.
unsafe fn read(info: &libc::dl_phdr_info) -> Object {
    let base = info.dlpi_addr as usize;
    let path = if info.dlpi_name.is_null() {
        PathBuf::new()
    } else {
        // SAFETY: a C string, by dl_iterate_phdr(3).
        PathBuf::from(OsStr::from_bytes(
            unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
        ))
    };
    let mut object = Object {
        path,
        name: Vec::new(),
        needed: Vec::new(),
        run_paths: Vec::new(),
        build_id: None,
        ranges: Vec::new(),
        base,
    };
    // SAFETY: `dlpi_phnum` headers, by dl_iterate_phdr(3).
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    for header in headers {
        let start = base.wrapping_add(header.p_vaddr as usize);
        let size = header.p_memsz as usize;
        match ProgramType(header.p_type) {
            PT_LOAD => object.ranges.push(start..start.wrapping_add(size)),
            PT_NOTE => {
                // SAFETY: a note segment lies within a loaded segment of the object.
                let notes = unsafe { std::slice::from_raw_parts(start as *const u8, size) };
                object.build_id = object
                    .build_id
                    .take()
                    .or_else(|| build_id(notes, header.p_align as usize));
            }
            // SAFETY: the dynamic segment is loaded, and ends with DT_NULL or at its size.
            PT_DYNAMIC => unsafe { dynamic(base, start, size, &mut object) },
            _ => {}
        }
    }
    if object.name.is_empty() {
        object.name = object
            .path
            .file_name()
            .map(|name| name.as_bytes().to_vec())
            .unwrap_or_default();
    }
    object
}

/// # Safety
/// `start` and `size` are the dynamic segment of a mapped object whose load address is `base`.
unsafe fn dynamic(base: usize, start: usize, size: usize, object: &mut Object) {
    // An entry has two words, on 32 and on 64 bits.
    // SAFETY: by the contract.
    let entries = unsafe {
        std::slice::from_raw_parts(start as *const [usize; 2], size / size_of::<[usize; 2]>())
    };
    let entries = || {
        entries
            .iter()
            .take_while(|[tag, _]| *tag != 0)
            .map(|[tag, value]| (DynamicTag(*tag as i64), *value))
    };
    let find = |wanted: DynamicTag| {
        entries()
            .find(|(tag, _)| *tag == wanted)
            .map(|(_, value)| value)
    };
    let (Some(strings), Some(length)) = (find(DT_STRTAB), find(DT_STRSZ)) else {
        return;
    };
    // glibc relocates the address in place, except in objects whose dynamic segment is read-only (the vdso).
    let strings = if strings < base {
        strings.wrapping_add(base)
    } else {
        strings
    };
    // SAFETY: the string table lies in a loaded segment of the object.
    let strings = unsafe { std::slice::from_raw_parts(strings as *const u8, length) };
    let string = |offset: usize| -> Vec<u8> {
        let rest = strings.get(offset..).unwrap_or_default();
        rest.split(|byte| *byte == 0)
            .next()
            .unwrap_or_default()
            .to_vec()
    };
    object.needed = entries()
        .filter(|(tag, _)| *tag == DT_NEEDED)
        .map(|(_, offset)| string(offset))
        .collect();
    object.name = find(DT_SONAME).map(string).unwrap_or_default();
    let run_paths = [DT_RPATH, DT_RUNPATH].into_iter().filter_map(find);
    object.run_paths = run_paths.map(string).collect::<Vec<_>>().join(&b':');
}

/// The GNU build-id among the notes of a segment.
pub fn build_id(notes: &[u8], align: usize) -> Option<Vec<u8>> {
    let word = |offset: usize| u32::from_value(notes.get(offset..offset + 4)?);
    let align = if align == 8 { 8 } else { 4 };
    let mut offset = 0;
    loop {
        let (name_size, value_size, kind) = (
            word(offset)? as usize,
            word(offset + 4)? as usize,
            word(offset + 8)?,
        );
        let name = offset + 12;
        let value = (name.checked_add(name_size)?).checked_next_multiple_of(align)?;
        let end = value.checked_add(value_size)?;
        if NoteType(kind) == NT_GNU_BUILD_ID && notes.get(name..name + name_size)? == b"GNU\0" {
            return Some(notes.get(value..end)?.to_vec());
        }
        offset = end.checked_next_multiple_of(align)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closure_of_a_function_of_the_c_library_is_what_it_needs_and_nothing_else() {
        let names: Vec<_> = closure(objects(), has_getpid)
            .into_iter()
            .map(|object| object.name)
            .collect();
        assert!(names.contains(&b"libc.so.6".to_vec()), "{names:?}");
        assert!(
            !names.contains(&b"libgcc_s.so.1".to_vec()),
            "libc.so.6 does not need it"
        );
    }

    #[test]
    fn a_file_needs_what_it_needs_in_memory() {
        let objects = objects();
        let in_files = objects.iter().filter(|object| object.is_in_a_file());
        let mut needed = 0;
        for object in in_files {
            let elf = super::super::elf::Elf::open(&object.path);
            let elf = elf.expect("read").expect("a library");
            let needs = elf.needs().expect("read");
            assert_eq!(needs.libraries, object.needed, "{object:?}");
            needed += needs.libraries.len();
        }
        assert!(needed > 0);
    }

    #[test]
    fn a_library_that_was_replaced_since_it_was_loaded_is_noticed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let copy = directory.path().join("libcopy.so");
        let library = objects()
            .into_iter()
            .find(has_getpid)
            .expect("the C library");
        std::fs::copy(&library.path, &copy).expect("copied");
        // SAFETY: a copy of a library without initializers that would mind a second run; nothing is called in it.
        let opened = unsafe { libloading::Library::new(&copy) }.expect("opened");
        let find = || objects_of(&copy).expect("loaded");
        assert!(find().is_what_stands_at_its_path(&Mappings::now()));
        let other = directory.path().join("other");
        std::fs::copy(&library.path, &other).expect("copied");
        std::fs::rename(&other, &copy).expect("replaced");
        assert!(!find().is_what_stands_at_its_path(&Mappings::now()));
        drop(opened);
    }

    fn has_getpid(object: &Object) -> bool {
        object.contains(libc::getpid as *const () as usize)
    }

    fn objects_of(path: &Path) -> Option<Object> {
        objects().into_iter().find(|object| object.path == path)
    }

    #[test]
    fn a_build_id_is_found_behind_another_note() {
        let mut notes = Vec::new();
        for (kind, value) in [
            (1u32, b"abcde".as_slice()),
            (NT_GNU_BUILD_ID.0, b"\x01\x02\x03\x04"),
        ] {
            notes.extend(4u32.to_value());
            notes.extend((value.len() as u32).to_value());
            notes.extend(kind.to_value());
            notes.extend(b"GNU\0");
            notes.extend(value);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        assert_eq!(build_id(&notes, 4), Some(vec![1, 2, 3, 4]));
        assert_eq!(build_id(&notes[..20], 4), None);
    }
}
