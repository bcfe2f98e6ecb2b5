use super::*;
use crate::key::ingredients::Kind;
use crate::store::recipe::{
    DeviceName, Header, HeaderContent, HeaderFile, RecipeBase, RecipeOperation, Text,
};

pub fn facts() -> Meta {
    Meta {
        ingredients: vec![Ingredient::new(Kind::Device, "device name", *b"stub")],
        options: Some(b"-DN=1".to_vec()),
        include_dirs: None,
        driver_family: "pocl".into(),
        driver_library: "libpocl.so.2".into(),
        executable: "app".into(),
        created: 1,
        compile_ns: 2,
        built: vec![0, 1, 2],
        only_built_listed: false,
        received: (0, 0),
        variants: true,
        imported: true,
        facts: Facts {
            program: vec![(0x1167, Answer::Value(vec![1, 0, 0, 0, 0, 0, 0, 0].into()))],
            devices: vec![vec![
                (0x1183, Answer::Error(-19)),
                (0x1182, Answer::OwnOptions),
            ]],
            kernel_names: vec![b"f".to_vec()],
            kernels: vec![KernelFacts {
                name: b"f".to_vec(),
                attributes: Answer::Value(vec![0].into()),
                arguments: vec![vec![(0x1196, Answer::Withheld)]],
                behind_last_argument: Vec::new(),
            }],
            creation_order: true,
        },
    }
}

pub fn content<'a>(meta: &'a Meta, binaries: &[&'a [u8]]) -> EntryContent<'a> {
    EntryContent {
        meta,
        recipe: None,
        binaries: binaries.to_vec(),
    }
}

fn recipe() -> StoredRecipe {
    let text = |text: &str| Text::from(text.as_bytes());
    StoredRecipe {
        base: RecipeBase::Il(text("code"), [(7, vec![1, 0, 0, 0])].into()),
        operation: RecipeOperation::Compile(vec![Header {
            name: c"a.h".to_owned(),
            source: text("int a;"),
        }]),
        options: Some(text("-DN=1")),
        devices: vec![DeviceName {
            name: b"cpu\0".to_vec(),
            is_part: false,
        }],
        listed: Some(vec![0]),
        previous: Some(Key([4; 32])),
        files: vec![
            HeaderFile {
                place: text("cwd/b.h"),
                path: text("/src/b.h"),
                digest: [5; 32],
                content: HeaderContent::Text(text("int b;")),
            },
            HeaderFile {
                place: text("-I0/b.h"),
                path: text("/src/./b.h"),
                digest: [5; 32],
                content: HeaderContent::SameAs {
                    file: 0,
                    in_same_directory: true,
                },
            },
        ],
        working_directory: Some(text("/src")),
        own_cache: Some(text("/cache")),
    }
}

#[test]
fn an_entry_comes_back_as_it_was_written() {
    let meta = facts();
    let key = Key([9; 32]);
    let recipe = recipe();
    let content = EntryContent {
        recipe: Some(&recipe),
        ..content(&meta, &[b"one", b"", b"three"])
    };
    let entry = Entry::parse(content.encode(&key).expect("memory"), Some(&key)).expect("valid");
    assert_eq!(entry.meta, meta);
    assert_eq!(entry.recipe(), Ok(recipe));
    assert!(!entry.is_pending());
    assert_eq!(
        entry.binaries().collect::<Vec<_>>(),
        [b"one".as_slice(), b"", b"three"]
    );
}

#[test]
fn any_changed_or_missing_byte_is_noticed() {
    let meta = facts();
    let key = Key([9; 32]);
    let bytes = content(&meta, &[b"some binary"])
        .encode(&key)
        .expect("memory");
    for index in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[index] ^= 0x10;
        assert!(Entry::parse(flipped, Some(&key)).is_err(), "byte {index}");
        assert!(
            Entry::parse(bytes[..index].to_vec(), Some(&key)).is_err(),
            "cut at {index}"
        );
    }
    let longer = [bytes.as_slice(), b"x"].concat();
    assert_eq!(
        Entry::parse(longer, Some(&key)).err(),
        Some(Defect::Checksum)
    );
}

#[test]
fn an_entry_of_another_version_or_key_is_not_taken_even_with_a_right_checksum() {
    let meta = facts();
    let key = Key([9; 32]);
    let mut bytes = content(&meta, &[b"some binary"])
        .encode(&key)
        .expect("memory");
    assert_eq!(
        Entry::parse(bytes.clone(), Some(&Key([8; 32]))).err(),
        Some(Defect::OtherKey)
    );
    bytes[MAGIC.len()] = 2;
    bytes.truncate(bytes.len() - CHECKSUM);
    seal(&mut bytes);
    assert_eq!(Entry::parse(bytes, Some(&key)).err(), Some(Defect::Foreign));
}
