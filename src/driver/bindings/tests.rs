use super::*;

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
            let mut names = std::collections::BTreeMap::new();
            let everything = WatchedSymbols::unknown();
            let each = |bound: Bound| {
                let symbol = image.symbol_of(&bound)?;
                let name = image.name(&symbol).ok_or(Unreadable)?;
                *names.entry(name.to_owned()).or_insert(0) += 1;
                Ok(())
            };
            assert_eq!(image.each_bound(&everything, each), Ok(()));
            for (name, count) in &names {
                let text = name.to_str().expect("a name");
                let symbols = image.watched_symbols(&watched(&[text]));
                let mut found = 0;
                let each = |bound: Bound| {
                    let symbol = image.symbol_of(&bound)?;
                    found += usize::from(image.name(&symbol) == Some(name));
                    Ok(())
                };
                assert_eq!(image.each_bound(&symbols, each), Ok(()));
                assert_eq!(found, *count, "{name:?}");
                all += found;
            }
        },
    );
    assert!(all > 10, "{all}");
}
