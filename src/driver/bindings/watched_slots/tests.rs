use std::ffi::{CStr, CString};
use std::fs::File;

use super::*;
use crate::driver::loaded;
use crate::driver::names::tests::TestMemory;

/// Calls the function with this process as the world, all libraries of which are a driver's.
fn in_this_process(each: impl FnOnce(&World)) {
    let objects = loaded::objects();
    let closure = loaded::closure_by_root(&objects, |_| true);
    let mut world = World::new(&objects, &closure);
    for part in &mut world.parts {
        part.is_importer = true;
    }
    each(&world);
}

fn identity(object: &Object) -> Option<Vec<u8>> {
    Some(object.path.as_os_str().as_encoded_bytes().to_vec())
}

fn facts(world: &World, memory: &TestMemory) -> ImportFacts {
    let libraries = Libraries::of(world, identity).expect("readable");
    libraries.facts(world, memory).expect("readable")
}

/// The only file that is remembered.
fn file(memory: &TestMemory) -> std::path::PathBuf {
    let [file] = memory.files().try_into().expect("one file");
    file
}

fn list(bytes: &[u8]) -> [u8; 32] {
    let (_, slots) = framing::unframe(NAMES_MAGIC, bytes).expect("names");
    *slots[MAGIC.len() + size_of::<u32>()..]
        .first_chunk()
        .expect("a file")
}

#[test]
fn what_was_found_by_a_process_is_not_looked_for_by_the_next() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let first = facts(world, &memory);
        let count: usize = first
            .slots
            .values()
            .map(|slots| slots.relocations.numbers.len())
            .sum();
        assert!(count > 0, "the tests read files and variables");
        assert_eq!(facts(world, &memory), first);
        let path = file(&memory);
        let bytes = std::fs::read(&path).expect("read");
        let open = || FactBytes::read(&File::open(&path).expect("opened")).expect("read");
        let (mut known, imports) = read(open(), &list(&bytes)).expect("whole");
        assert!(imports.may_have(hash(b"getenv")));
        assert!(!imports.may_have(hash(b"getenv_of_nobody")));
        for library in &mut known {
            library.relocations.numbers.truncate(1);
        }
        let fewer = write(&list(&bytes), &known, &imports);
        std::fs::write(&path, fewer.expect("a file")).expect("written");
        let second = facts(world, &memory);
        assert!(
            second
                .slots
                .values()
                .all(|slots| slots.relocations.numbers.len() <= 1)
        );
        assert_ne!(second, first, "what is remembered was taken");
    });
}

#[test]
fn a_file_that_is_damaged_or_of_others_is_not_taken_and_made_anew() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let first = facts(world, &memory);
        let path = file(&memory);
        let bytes = std::fs::read(&path).expect("read");
        let found_again = |content: &[u8], what: &str| {
            std::fs::write(&path, content).expect("written");
            assert_eq!(facts(world, &memory), first, "{what}");
            assert_eq!(std::fs::read(&path).expect("read"), bytes, "{what}");
        };
        for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            found_again(&damaged, &format!("byte {at} changed"));
            found_again(&bytes[..at], &format!("cut at {at}"));
        }
        let open = || FactBytes::read(&File::open(&path).expect("opened")).expect("read");
        let known = || read(open(), &list(&bytes)).expect("whole");
        let written = |list: &[u8; 32], (slots, imports): (Vec<WatchedSlots>, ImportedNames)| {
            write(list, &slots, &imports).expect("a file")
        };
        found_again(&written(&[7; 32], known()), "of others");
        let mut fewer = known();
        fewer.0.pop();
        found_again(&written(&list(&bytes), fewer), "fewer");
        let mut behind = known();
        behind.0[0].relocations.numbers.push(u32::MAX);
        found_again(&written(&list(&bytes), behind), "no such relocation");
    });
}

#[test]
fn what_is_remembered_of_a_library_is_not_taken_for_another_one() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let first = facts(world, &memory);
        let replaced = |object: &Object| match object.is_in_a_file() {
            true => Some(b"another build".to_vec()),
            false => identity(object),
        };
        let libraries = Libraries::of(world, replaced).expect("readable");
        let second = libraries.facts(world, &memory).expect("readable");
        assert_eq!(second, first);
        assert_eq!(memory.files().len(), 2);
    });
}

#[test]
fn a_library_that_may_not_be_its_file_leaves_nothing_remembered() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let unknown = |object: &Object| identity(object).filter(|_| !object.is_in_a_file());
        let libraries = Libraries::of(world, unknown).expect("readable");
        let found = libraries.facts(world, &memory).expect("readable");
        assert_eq!(memory.files(), [] as [std::path::PathBuf; 0]);
        assert_eq!(found, facts(world, &memory));
    });
}

#[test]
fn slots_of_foreign_names_are_looked_for_once_for_each_set_of_names() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let libraries = Libraries::of(world, identity).expect("readable");
        let slots = |libraries: &Libraries, names: &[&CStr]| {
            let names: Vec<CString> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = libraries.slots_of(world, &names, &memory);
            found.expect("readable")
        };
        let count = |slots: &HashMap<usize, WatchedSlots>| -> usize {
            slots.values().map(|slots| slots.relocations.count()).sum()
        };
        let first = slots(&libraries, &[c"getenv", c"open"]);
        assert!(count(&first) > 0, "the tests read variables");
        assert_eq!(slots(&libraries, &[c"open", c"getenv"]), first);
        let path = file(&memory);
        let bytes = std::fs::read(&path).expect("read");
        let (list, mut known): ([u8; 32], Vec<WatchedSlots>) =
            framing::decode(FOREIGN_MAGIC, &bytes).expect("whole");
        let written = |list: [u8; 32], known: &[WatchedSlots]| {
            let bytes = framing::encode(FOREIGN_MAGIC, &(list, known));
            std::fs::write(&path, bytes.expect("a file")).expect("written");
        };
        let again = || slots(&libraries, &[c"getenv", c"open"]);
        for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, damaged).expect("written");
            assert_eq!(again(), first, "byte {at} changed");
        }
        written([7; 32], &known);
        assert_eq!(again(), first, "of others");
        known[0].relocations.numbers.push(u32::MAX);
        written(list, &known);
        assert_eq!(again(), first, "no such relocation");
        known
            .iter_mut()
            .for_each(|library| *library = WatchedSlots::default());
        written(list, &known);
        assert_eq!(count(&again()), 0, "what is remembered was taken");
        assert!(count(&slots(&libraries, &[c"getenv"])) > 0);
        assert_eq!(memory.files().len(), 2, "of other names");
        let unknown = |object: &Object| identity(object).filter(|_| !object.is_in_a_file());
        let unknown = Libraries::of(world, unknown).expect("readable");
        assert_eq!(slots(&unknown, &[c"getenv", c"open"]), first);
        assert_eq!(memory.files().len(), 2, "of what may not be its file");
        let mut replaced = Libraries::of(world, identity).expect("readable");
        replaced.0[0].layout ^= 1;
        let names = [c"open".to_owned()];
        let found = replaced.slots_of(world, &names, &memory);
        assert_eq!(
            found,
            Err(replaced.0[0].index),
            "another image is there now"
        );
        assert_eq!(memory.files().len(), 2, "of another image");
    });
}
