//! The decoder of entries: whatever stands under a right checksum, it neither panics nor takes what it could not write.
//!
//! The first byte of an input says how the rest becomes an entry, since no mutation would find its way through a checksum or
//! a compressed frame.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oclcache_fuzz::key::ingredients::Key;
use oclcache_fuzz::store::entry::{Entry, EntryContent, MAGIC, Meta};
use oclcache_fuzz::store::recipe::{RecipeBase, RecipeOperation, StoredRecipe};
use xxhash_rust::xxh3::xxh3_128;

const KEY: Key = Key([7; 32]);

/// Magic, version and key stand before the rest, the checksum behind it.
fn framed(rest: &[u8]) -> Vec<u8> {
    // Those of an entry that is written now.
    let good = EntryContent {
        meta: &Meta::default(),
        recipe: None,
        binaries: Vec::new(),
    };
    let head = MAGIC.len() + 4 + KEY.0.len();
    let mut bytes = good.encode(&KEY).expect("memory")[..head].to_vec();
    bytes.extend(rest);
    let checksum = xxh3_128(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// The rest of an entry with these encoded metadata and one binary, which is its encoded recipe as well.
fn with_meta(meta: &[u8], binary: &[u8]) -> Vec<u8> {
    let compressed = |bytes| zstd::bulk::compress(bytes, 1).expect("compressed");
    let (meta, recipe) = (compressed(meta), compressed(binary));
    let lengths = [(meta.len() as u32).to_le_bytes(), 1u32.to_le_bytes()];
    [
        &lengths[0][..],
        &meta,
        &lengths[1],
        &(binary.len() as u64).to_le_bytes(),
        binary,
        &(recipe.len() as u32).to_le_bytes(),
        &recipe,
    ]
    .concat()
}

/// What was decoded is encoded to what decodes to the same.
fn comes_back(entry: &Entry) {
    let recipe = entry.recipe();
    let content = EntryContent {
        meta: &entry.meta,
        recipe: recipe.as_ref().ok(),
        binaries: entry.binaries().collect(),
    };
    let again =
        Entry::parse(content.encode(&KEY).expect("memory"), Some(&KEY)).expect("what was encoded");
    assert_eq!(again.meta, entry.meta);
    assert_eq!(again.recipe().ok(), recipe.ok());
    assert!(again.binaries().eq(entry.binaries()));
}

fuzz_target!(|input: &[u8]| {
    let Some((how, rest)) = input.split_first() else {
        return;
    };
    let bytes = match how % 4 {
        0 => input.to_vec(),
        1 => framed(rest),
        2 => {
            let (meta, binary) = rest.split_at(rest.len() / 2);
            framed(&with_meta(meta, binary))
        }
        _ => {
            let meta = Meta {
                options: Some(rest[..rest.len() / 2].to_vec()),
                ..Meta::default()
            };
            let recipe = StoredRecipe {
                base: RecipeBase::Source(rest.into()),
                operation: RecipeOperation::Build,
                options: Some(rest.into()),
                devices: Vec::new(),
                listed: None,
                previous: None,
                files: Vec::new(),
                working_directory: None,
                own_cache: None,
            };
            let content = EntryContent {
                meta: &meta,
                recipe: Some(&recipe),
                binaries: vec![rest, &[], rest],
            };
            let entry = Entry::parse(content.encode(&KEY).expect("memory"), Some(&KEY))
                .expect("what was encoded");
            assert_eq!(entry.recipe(), Ok(recipe));
            return comes_back(&entry);
        }
    };
    let parsed = Entry::parse(bytes.clone(), Some(&KEY));
    let again = Entry::parse(bytes, Some(&KEY));
    match (parsed, again) {
        (Ok(entry), Ok(again)) => {
            assert_eq!(entry.meta, again.meta);
            comes_back(&entry);
        }
        (Err(defect), Err(again)) => assert_eq!(defect, again),
        _ => panic!("the same bytes, another verdict"),
    }
});
