//! Which loaded libraries the dynamic linker has loaded for others.
//!
//! A library is needed by its own name (DT_SONAME) or that of its file, as a rule. But one that was linked by its path is needed by that
//! path, and for one that was loaded before, under another name of its file, the dynamic linker alone knows the second name.

use std::collections::VecDeque;
use std::ffi::{OsStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libloading::os::unix::Library;

use super::Object;
use crate::driver::search_path;
use crate::linker_lock;

/// The chosen libraries and all that they need, as loaded.
pub fn closure(objects: Vec<Object>, is_start: impl Fn(&Object) -> bool) -> Vec<Object> {
    let reached = closure_by_root(&objects, |index| is_start(&objects[index]));
    let mut objects: Vec<Option<Object>> = objects.into_iter().map(Some).collect();
    let reached = reached.into_iter();
    reached
        .filter_map(|(index, _)| objects[index].take())
        .collect()
}

/// The same by index, each with the index of the chosen library that needs it first.
pub fn closure_by_root(
    objects: &[Object],
    is_start: impl Fn(usize) -> bool,
) -> Vec<(usize, usize)> {
    let names = Names::of(objects);
    let mut is_found = vec![false; objects.len()];
    let mut found = Vec::new();
    let starts = (0..objects.len()).filter(|index| is_start(*index));
    for start in starts {
        let mut queue = VecDeque::from([start]);
        while let Some(index) = queue.pop_front() {
            if std::mem::replace(&mut is_found[index], true) {
                continue;
            }
            let object = &objects[index];
            for name in &object.needed {
                let before = queue.len();
                queue.extend(names.get(name));
                if queue.len() == before {
                    queue.extend(needed_by_another_name(objects, &names, object, name));
                }
            }
            found.push((index, start));
        }
    }
    found
}

/// The indices of objects by their own name and by that of their file.
struct Names<'a>(Vec<(&'a [u8], usize)>);

impl<'a> Names<'a> {
    fn of(objects: &'a [Object]) -> Names<'a> {
        let mut names = Vec::with_capacity(2 * objects.len());
        for (index, object) in objects.iter().enumerate() {
            let file = object.path.file_name().map(OsStr::as_bytes);
            let file = file.filter(|file| *file != object.name);
            let own = [Some(object.name.as_slice()), file].into_iter().flatten();
            names.extend(own.map(|name| (name, index)));
        }
        names.sort_unstable();
        Names(names)
    }

    fn get(&self, name: &[u8]) -> impl Iterator<Item = usize> {
        let first = self.0.partition_point(|(one, _)| *one < name);
        let same = self.0[first..]
            .iter()
            .take_while(move |(one, _)| *one == name);
        same.map(|(_, index)| *index)
    }
}

/// The objects that this name of an object's DT_NEEDED may mean, none of which has it: the one for which the dynamic linker takes it, and
/// those whose files have the last part of it, since a relative path was relative to an earlier working directory. All objects, if there
/// is none: the object needs one of them.
fn needed_by_another_name(
    objects: &[Object],
    names: &Names<'_>,
    object: &Object,
    name: &[u8],
) -> Vec<usize> {
    let mut found = Vec::new();
    if name.contains(&b'/') {
        let file = Path::new(OsStr::from_bytes(name)).file_name();
        found.extend(file.into_iter().flat_map(|file| names.get(file.as_bytes())));
    }
    let places = search_path::paths(name, search_path::directory(&object.path));
    let known = places.iter().filter_map(|place| dynamic_section(place));
    found.extend(
        known.filter_map(|address| objects.iter().position(|object| object.contains(address))),
    );
    if found.is_empty() {
        found.extend(0..objects.len());
    }
    found
}

/// Where the dynamic section of the library is in memory that the dynamic linker has under a name. None: it has none, or it is busy.
fn dynamic_section(name: &Path) -> Option<usize> {
    /// The start of glibc's and musl's `struct link_map` (link.h), which debuggers read as well.
    #[repr(C)]
    struct LinkMap {
        base: usize,
        name: *const c_void,
        dynamic: usize,
    }
    if linker_lock::is_busy_for_long() {
        return None;
    }
    // SAFETY: nothing is loaded, so nothing runs.
    let library = unsafe { Library::open(Some(name), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let handle = library.ok()?.into_raw();
    let mut map: MaybeUninit<*const LinkMap> = MaybeUninit::uninit();
    // SAFETY: the handle is of a loaded library, and the request writes a pointer to its map (dlinfo(3)), which stays while it is
    // open. Nothing is unloaded when it is closed: it was loaded before.
    unsafe {
        let asked = libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, map.as_mut_ptr().cast());
        let dynamic = (asked == 0).then(|| (*map.assume_init()).dynamic);
        drop(Library::from_raw(handle));
        dynamic
    }
}
