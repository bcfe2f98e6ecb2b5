use super::*;
use crate::driver::loaded;
use crate::driver::names::tests::TestMemory;
use crate::driver::watched_names::hash;

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
    ImportFacts::of(world, identity, memory).expect("readable")
}

/// The remembered file that begins with this.
fn file(memory: &TestMemory, magic: &[u8]) -> std::path::PathBuf {
    let begins = |path: &std::path::PathBuf| std::fs::read(path).expect("read").starts_with(magic);
    let mut files = memory.files().into_iter().filter(begins);
    let file = files.next().expect("a file");
    assert_eq!(files.next(), None);
    file
}

fn written(list: &ListIdentity, slots: &[WatchedSlots]) -> Vec<u8> {
    framing::encode(MAGIC, &(list, slots)).expect("a file")
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
        assert_eq!(facts(world, &memory).slots, first.slots);
        let path = file(&memory, MAGIC);
        let list = first.list.expect("known libraries");
        let mut known = read(&std::fs::read(&path).expect("read"), &list).expect("whole");
        for library in &mut known {
            library.relocations.numbers.truncate(1);
        }
        std::fs::write(&path, written(&list, &known)).expect("written");
        let second = facts(world, &memory);
        assert!(
            second
                .slots
                .values()
                .all(|slots| slots.relocations.numbers.len() <= 1)
        );
        assert_ne!(second.slots, first.slots, "what is remembered was taken");
    });
}

#[test]
fn the_names_that_libraries_look_for_are_read_from_a_file_of_their_own() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let first = facts(world, &memory);
        let imports = first.imports(world, &memory).expect("readable");
        assert!(imports.may_have(hash(b"getenv")));
        assert!(!imports.may_have(hash(b"getenv_of_nobody")));
        let path = file(&memory, NAMES_MAGIC);
        let bytes = std::fs::read(&path).expect("read");
        let found_again = |what: &str| {
            let facts = facts(world, &memory);
            let found = facts.imports(world, &memory).expect("readable");
            assert_eq!(found, imports, "{what}");
            assert_eq!(std::fs::read(&path).expect("read"), bytes, "{what}");
        };
        found_again("as it was");
        for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            std::fs::write(&path, damaged).expect("written");
            found_again(&format!("byte {at} changed"));
            std::fs::write(&path, &bytes[..at]).expect("written");
            found_again(&format!("cut at {at}"));
        }
        std::fs::remove_file(&path).expect("removed");
        found_again("removed");
    });
}

#[test]
fn a_file_that_is_damaged_or_of_others_is_not_taken_and_made_anew() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let first = facts(world, &memory);
        let path = file(&memory, MAGIC);
        let bytes = std::fs::read(&path).expect("read");
        let found_again = |content: &[u8], what: &str| {
            std::fs::write(&path, content).expect("written");
            assert_eq!(facts(world, &memory).slots, first.slots, "{what}");
            assert_eq!(std::fs::read(&path).expect("read"), bytes, "{what}");
        };
        for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            found_again(&damaged, &format!("byte {at} changed"));
            found_again(&bytes[..at], &format!("cut at {at}"));
        }
        let list = first.list.expect("known libraries");
        let known = || read(&bytes, &list).expect("whole");
        found_again(&written(&[7; 32], &known()), "of others");
        let mut fewer = known();
        fewer.pop();
        found_again(&written(&list, &fewer), "fewer");
        let mut behind = known();
        behind[0].relocations.numbers.push(u32::MAX);
        found_again(&written(&list, &behind), "no such relocation");
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
        let second = ImportFacts::of(world, replaced, &memory).expect("readable");
        assert_eq!(second.slots, first.slots);
        assert_eq!(memory.files().len(), 4);
    });
}

#[test]
fn a_library_that_may_not_be_its_file_leaves_nothing_remembered() {
    in_this_process(|world| {
        let memory = TestMemory::new();
        let unknown = |object: &Object| identity(object).filter(|_| !object.is_in_a_file());
        let found = ImportFacts::of(world, unknown, &memory).expect("readable");
        assert!(found.imports(world, &memory).is_ok());
        assert_eq!(memory.files(), [] as [std::path::PathBuf; 0]);
        assert_eq!(found.slots, facts(world, &memory).slots);
    });
}
