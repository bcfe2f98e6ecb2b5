use std::collections::BTreeMap;

use super::*;
use crate::driver::elf_image::{BoundSymbol, UnreadableImage};
use crate::driver::imported_names::ImportedNames;
use crate::driver::watched_names::{NameHashes, WatchedNames, hash};

/// The image of the C library that this process has.
fn of_c_library(mut each: impl FnMut(&ElfImage)) {
    let objects = loaded::objects();
    let getpid = libc::getpid as *const () as usize;
    let is_it = |index: usize| objects[index].contains(getpid);
    let mut found = 0;
    each_image_of(&objects, is_it, |_, image| {
        found += 1;
        each(image);
    });
    assert_eq!(found, 1);
}

/// The C library and the program, which stay: other tests open and close libraries meanwhile.
fn lasting(objects: &[Object]) -> (usize, usize) {
    let of = |function: usize| objects.iter().position(|object| object.contains(function));
    let of_c = of(libc::getpid as *const () as usize).expect("the C library");
    let program = of(watched as *const () as usize).expect("the program");
    (of_c, program)
}

#[test]
fn of_two_objects_with_one_base_each_has_its_own_image() {
    let mut objects = loaded::objects();
    let (of_c, program) = lasting(&objects);
    for (changed, other) in [(of_c, program), (program, of_c)] {
        let bases = (objects[changed].base, objects[other].base);
        objects[changed].base = bases.1;
        let mut seen = Vec::new();
        each_image_of(
            &objects,
            |_| true,
            |index, image| {
                let start = image.start().expect("a segment");
                assert!(objects[index].contains(start), "{:?}", objects[index]);
                seen.push(index);
            },
        );
        assert!(seen.contains(&other) && !seen.contains(&changed));
        objects[changed].base = bases.0;
    }
}

/// What a driver needs and cannot be looked at could be anything: it must not count as usual.
#[test]
fn a_needed_library_that_is_not_there_any_more_is_told_and_another_is_not_missed() {
    let mut objects = loaded::objects();
    let (of_c, program) = lasting(&objects);
    let visited = |objects: &[Object], needed: usize| {
        let closure = [(needed, needed)];
        let world = World::new(objects, &closure);
        let all = world.each_image(|_| true, |_, _| Ok(()));
        let others = world.each_image(|index| index != needed, |_, _| Ok(()));
        let fails = |index: usize, _: &ElfImage| match index == program {
            true => Err(UnreadableImage),
            false => Ok(()),
        };
        [all, others, world.each_image(|_| true, fails)]
    };
    assert_eq!(visited(&objects, of_c), [Ok(()), Ok(()), Err(program)]);
    objects[of_c].ranges.clear();
    assert_eq!(visited(&objects, of_c), [Err(of_c), Ok(()), Err(program)]);
    assert_eq!(visited(&objects, program), [Ok(()), Ok(()), Err(program)]);
}

fn watched(names: &[&str]) -> WatchedNames {
    let names = names.iter().map(|name| name.as_bytes());
    WatchedNames::of(vec![NameHashes::of(names)])
}

#[test]
fn names_of_a_library_are_found_in_a_copy_of_its_table_and_others_are_not() {
    of_c_library(|image| {
        let names = WatchedNames::of(vec![image.exported_names().expect("a table")]);
        for name in [c"getenv", c"fopen", c"strtod", c"__cxa_finalize"] {
            assert!(names.has(name), "{name:?}");
        }
        for name in [c"getenv_of_nobody", c"", c"exp_of_nobody"] {
            assert!(!names.has(name), "{name:?}");
        }
        let mut exported = 0;
        for name in image.exports() {
            exported += 1;
            assert!(names.has(name), "{name:?}");
        }
        assert!(exported > 1000, "{exported}");
    });
}

/// What a driver imports is compared with this.
#[test]
fn the_symbols_of_a_library_come_with_their_names_if_their_hashes_are_wanted() {
    of_c_library(|image| {
        let wanted = [c"getenv", c"malloc", c"a64l", c"getenv_of_nobody"];
        let hashes = wanted.iter().map(|name| hash(name.to_bytes()));
        let imports = ImportedNames::of(hashes);
        let mut found = Vec::new();
        let each = |_, _, name: &CStr| found.push(name.to_owned());
        let visited = image.each_exported(|hash| imports.may_have(hash), each);
        assert_eq!(visited, Ok(()));
        for name in wanted {
            let is_there = found.iter().any(|one| one.as_c_str() == name);
            assert_eq!(is_there, name != c"getenv_of_nobody", "{name:?}");
        }
        assert!(found.len() < 10, "{found:?}");
    });
}

#[test]
fn all_names_that_a_relocation_has_are_imported() {
    let objects = loaded::objects();
    let mut all = 0;
    each_image_of(
        &objects,
        |index| objects[index].is_in_a_file(),
        |_, image| {
            let mut hashes = Vec::new();
            image.each_imported(|hash| hashes.push(hash)).expect("read");
            let imports = ImportedNames::of(hashes.into_iter());
            for number in 0..image.relocation_count().expect("readable") {
                let each = |bound: BoundSymbol| {
                    let name = image.symbol_name(bound.symbol).ok_or(UnreadableImage)?;
                    assert!(imports.may_have(hash(name.to_bytes())), "{name:?}");
                    all += 1;
                    Ok(())
                };
                let number = u32::try_from(number).expect("few");
                assert_eq!(image.each_bound([number], each), Ok(()));
            }
        },
    );
    assert!(all > 10, "{all}");
}

/// The dynamic linker finds an import by its version where an object has it, and nowhere by another.
#[test]
#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
fn an_import_has_the_version_by_which_it_is_found() {
    let objects = loaded::objects();
    let is_program = |index: usize| objects[index].path.as_os_str().is_empty();
    // Other tests open libraries for themselves alone.
    let of_program = loaded::closure_by_root(&objects, is_program);
    let mut imports = Vec::new();
    each_image_of(
        &objects,
        |wanted| of_program.iter().any(|(index, _)| *index == wanted),
        |_, image| {
            for number in 0..image.relocation_count().expect("readable") {
                let each = |bound: BoundSymbol| {
                    let symbol = image.symbol(bound.symbol).ok_or(UnreadableImage)?;
                    // A weak one may be in no object.
                    if symbol.is_weak() {
                        return Ok(());
                    }
                    let name = image.name(&symbol).ok_or(UnreadableImage)?;
                    let version = image.version(bound.symbol);
                    imports.extend(version.map(|version| (name.to_owned(), version.to_owned())));
                    Ok(())
                };
                let number = u32::try_from(number).expect("few");
                assert_eq!(image.each_bound([number], each), Ok(()));
            }
        },
    );
    assert!(imports.len() > 10, "{imports:?}");
    let scope = Scope::open(None).expect("a scope");
    for (name, version) in &imports {
        let found = scope.find(name, Some(version));
        assert!(found.is_some(), "{name:?} {version:?}");
    }
}

#[test]
fn an_object_has_watched_symbols_if_it_exports_one_of_the_names() {
    of_c_library(|image| {
        assert!(image.watched_symbols(&watched(&["getenv"])).any);
        assert!(image.watched_symbols(&watched(&["nobody", "getenv"])).any);
        assert!(!image.watched_symbols(&watched(&["nobody"])).any);
    });
}

/// What is left out by hashes is exactly what has another name.
#[test]
fn slots_of_watched_names_are_all_found() {
    let objects = loaded::objects();
    let mut all = 0;
    each_image_of(
        &objects,
        |index| objects[index].is_in_a_file(),
        |_, image| {
            let count = image.relocation_count().expect("readable");
            let mut names = BTreeMap::new();
            for number in 0..u32::try_from(count).expect("few") {
                let each = |bound: BoundSymbol| {
                    let name = image.symbol_name(bound.symbol).ok_or(UnreadableImage)?;
                    names.entry(name).or_insert_with(Vec::new).push(number);
                    Ok(())
                };
                assert_eq!(image.each_bound([number], each), Ok(()));
            }
            for (name, numbers) in &names {
                let watched = watched(&[name.to_str().expect("a name")]);
                let own = image.watched_symbols(&watched);
                let found = image.watched_relocations(&own, &watched);
                let found = found.expect("readable");
                // As if none of them were bound to the object itself.
                let own = image.answered_by_others(&found, |_| false);
                let mut all_found = [own.expect("readable"), found.numbers].concat();
                all_found.sort_unstable();
                assert_eq!(&all_found, numbers, "{name:?}");
                all += numbers.len();
            }
            let behind = [u32::try_from(count).expect("few")];
            assert_eq!(image.each_bound(behind, |_| Ok(())), Err(UnreadableImage));
        },
    );
    assert!(all > 10, "{all}");
}
