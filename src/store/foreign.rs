//! Entries that came from elsewhere: from an archive, or from the store that machines share.

use super::entry::{Entry, EntryContent, Meta};
use super::evict::{self, Limits};
use super::recipe::StoredRecipe;
use super::{Store, StoreError, file_name, shard_of};
use crate::key::ingredients::{self, Key};

/// An entry that evicts nothing is the first to be evicted: it counts as last used this long ago, in milliseconds, or half of the
/// maximum age ago if that is shorter.
const UNUSED_MS: u64 = 7 * 86_400_000;

/// Checks the bytes of an entry that came from elsewhere, beyond what each look-up checks.
///
/// # Errors
/// For people: why the entry is refused.
pub fn verified(bytes: Vec<u8>, key: &Key) -> Result<Entry, String> {
    let refused = |why: &str| Err(why.to_owned());
    let entry = Entry::parse_foreign(bytes, Some(key));
    let entry = entry.map_err(|defect| format!("damaged: {defect}"))?;
    let meta = &entry.meta;
    if ingredients::key(&meta.ingredients) != *key {
        return refused("its key is not the key of its ingredients");
    }
    if meta.built.len() != entry.binaries().len() {
        return refused("its binaries do not match its list of them");
    }
    if entry.is_pending() && entry.recipe().is_err() {
        return refused("it has neither binaries nor a recipe");
    }
    Ok(entry)
}

/// How an entry from elsewhere is stored.
#[derive(Clone, Debug, Default)]
pub struct ForeignOrigin {
    /// Who signed it, if it came from the store that machines share; None: who signed it before, if anybody did.
    pub signer: Option<u64>,
    /// The library of its driver on this machine, if that is known.
    pub library: Option<String>,
    /// Nobody has asked for it: it evicts nothing, and is evicted first.
    pub is_prefetched: bool,
}

impl Store {
    /// Stores a verified entry from elsewhere, marked as that, without directories of the other machine. Returns how many entries
    /// were removed to make room.
    ///
    /// # Errors
    /// It is not stored.
    pub fn publish_foreign(
        &self,
        key: &Key,
        entry: &Entry,
        origin: &ForeignOrigin,
    ) -> Result<u64, StoreError> {
        let recipe = entry.recipe().ok().map(|recipe| StoredRecipe {
            own_cache: None,
            ..recipe
        });
        let library = origin.library.clone();
        let meta = Meta {
            imported: true,
            driver_library: library.unwrap_or_else(|| entry.meta.driver_library.clone()),
            ..entry.meta.clone()
        };
        // One that comes back from an archive of this cache is still to be found by its signer.
        let meta = meta.signed_by(origin.signer.or(entry.meta.signer()));
        let content = EntryContent {
            meta: &meta,
            recipe: recipe.as_ref(),
            binaries: entry.binaries().collect(),
        };
        if origin.is_prefetched && !self.has_room_for(entry.size()) {
            return Err(self.not_stored(key, "it would evict others, and nobody has asked for it"));
        }
        let published = self.publish(key, &content);
        let removed = published.map_err(|failed| failed.error)?;
        if origin.is_prefetched
            && let Some(shard) = self.shard(shard_of(key))?
        {
            let (now, limits) = (self.root.now_ms(), self.limits.unwrap_or_default());
            let used = limits.within_age(now.saturating_sub(UNUSED_MS), now);
            shard.set_modified(&file_name(key), used)?;
        }
        Ok(removed)
    }

    fn not_stored(&self, key: &Key, why: &str) -> StoreError {
        StoreError {
            action: "store",
            path: self.path_of(key),
            error: std::io::Error::new(std::io::ErrorKind::StorageFull, why.to_owned()),
        }
    }

    /// Whether an entry of this size can be stored without evicting another.
    fn has_room_for(&self, bytes: u64) -> bool {
        let limits: Limits = self.limits.unwrap_or_default();
        let sizes = self.sizes();
        evict::has_room_beside(self, &limits, sizes, bytes.next_multiple_of(super::BLOCK))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Lookup;
    use super::super::entry::tests::{content, facts};
    use super::super::recipe::{RecipeBase, RecipeOperation};
    use super::super::tier::Tier;
    use super::*;

    fn entry(change: impl Fn(&mut Meta)) -> (Key, Vec<u8>) {
        let mut meta = facts();
        let key = ingredients::key(&meta.ingredients);
        change(&mut meta);
        let bytes = content(&meta, &[b"first", b"other", b"third"]).encode(&key);
        (key, bytes.expect("memory"))
    }

    #[test]
    fn an_entry_under_a_key_that_its_ingredients_do_not_have_is_refused() {
        let (key, bytes) = entry(|_| {});
        assert!(verified(bytes.clone(), &key).is_ok());
        assert!(verified(bytes, &Key([9; 32])).is_err());
        let (key, bytes) = entry(|meta| meta.ingredients.clear());
        let why = verified(bytes, &key).expect_err("refused");
        assert_eq!(why, "its key is not the key of its ingredients");
        let (key, bytes) = entry(|meta| meta.built.push(7));
        assert!(verified(bytes, &key).is_err());
        for index in [0, 20, 60, 100] {
            let (key, mut bytes) = entry(|_| {});
            bytes[index] ^= 1;
            assert!(verified(bytes, &key).is_err(), "byte {index}");
        }
    }

    #[test]
    fn a_foreign_entry_carries_its_signer_and_evicts_nothing_if_nobody_asked_for_it() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let limits = |max_size| Limits {
            max_size: Some(max_size),
            min_free: Some(0),
            ..Limits::default()
        };
        let store = Store::open(temporary.path(), limits(1 << 20)).expect("a store");
        let (key, bytes) = entry(|_| {});
        let foreign = verified(bytes, &key).expect("good");
        let origin = ForeignOrigin {
            signer: Some(0xfeed),
            is_prefetched: true,
            ..ForeignOrigin::default()
        };
        store
            .publish_foreign(&key, &foreign, &origin)
            .expect("stored");
        // Before it is used.
        let entries = store.entries().expect("listed");
        assert!(store.unused_ms(&entries[0].1) >= UNUSED_MS - 60_000);
        let Lookup::Found(stored, _) = store.look_up(&key) else {
            panic!("not found");
        };
        assert!(stored.meta.imported);
        assert_eq!(stored.meta.signer(), Some(0xfeed));
        // A cache that is full.
        let full = Store::open(temporary.path(), limits(4096)).expect("a store");
        let error = full.publish_foreign(&key, &foreign, &origin);
        assert!(error.is_err());
        assert!(matches!(full.look_up(&key), Lookup::Found(..)));
    }

    #[test]
    fn what_is_prefetched_does_not_exceed_the_age_at_once() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let limits = Limits {
            max_age: Some(Duration::from_secs(3 * 86_400)),
            ..Limits::default()
        };
        let store = Store::open(temporary.path(), limits).expect("a store");
        let (key, bytes) = entry(|_| {});
        let foreign = verified(bytes, &key).expect("good");
        let origin = ForeignOrigin {
            is_prefetched: true,
            ..ForeignOrigin::default()
        };
        store
            .publish_foreign(&key, &foreign, &origin)
            .expect("stored");
        let sizes = store.sizes().expect("sizes");
        store.count_again(sizes, shard_of(&key));
        // It is unused all the same.
        let entries = store.entries().expect("listed");
        assert!(store.unused_ms(&entries[0].1) >= 86_400_000);
        let meta = facts();
        let removed = store.publish(&Key([1; 32]), &content(&meta, &[b"binary"]));
        assert_eq!(removed.expect("stored"), 0);
        assert!(matches!(store.look_up(&key), Lookup::Found(..)));
    }

    #[test]
    fn an_entry_that_comes_back_from_an_archive_keeps_its_signer() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let store = Store::open(temporary.path(), Limits::default()).expect("a store");
        let (key, bytes) = entry(|meta| *meta = meta.clone().signed_by(Some(0xfeed)));
        let foreign = verified(bytes, &key).expect("good");
        let signer = |origin| {
            store
                .publish_foreign(&key, &foreign, &origin)
                .expect("stored");
            store.read_meta(&key).expect("stored").signer()
        };
        assert_eq!(signer(ForeignOrigin::default()), Some(0xfeed));
        let other = ForeignOrigin {
            signer: Some(7),
            ..ForeignOrigin::default()
        };
        assert_eq!(signer(other), Some(7));
    }

    #[test]
    fn an_entry_that_expands_to_far_more_than_real_ones_is_refused_before_it_takes_memory() {
        let is_good = |meta: &Meta, recipe: Option<&StoredRecipe>| {
            let key = ingredients::key(&meta.ingredients);
            let content = EntryContent {
                recipe,
                ..content(meta, &[b"first", b"other", b"third"])
            };
            let bytes = content.encode(&key).expect("memory");
            assert!(bytes.len() < 100_000, "{}", bytes.len());
            verified(bytes, &key).is_ok()
        };
        let with = |change: &dyn Fn(&mut Meta)| {
            let mut meta = facts();
            change(&mut meta);
            is_good(&meta, None)
        };
        let kernels = |count| {
            move |meta: &mut Meta| {
                meta.facts.kernels = vec![meta.facts.kernels[0].clone(); count];
                meta.facts.kernel_names = vec![b"a name of a kernel".to_vec(); count];
            }
        };
        assert!(with(&kernels(20_000)));
        assert!(!with(&kernels(200_000)));
        assert!(!with(&|meta| meta.facts.devices = vec![Vec::new(); 4 << 20]));
        assert!(!with(&|meta| meta.executable = " ".repeat(40 << 20)));
        let recipe = |base| StoredRecipe {
            base,
            operation: RecipeOperation::Build,
            options: None,
            devices: Vec::new(),
            listed: None,
            previous: None,
            files: Vec::new(),
            working_directory: None,
            own_cache: None,
        };
        let is_good = |base| is_good(&facts(), Some(&recipe(base)));
        let source = |length| RecipeBase::Source(vec![b' '; length].into());
        assert!(is_good(source(10 << 20)));
        assert!(!is_good(source(40 << 20)));
        assert!(is_good(RecipeBase::Linked(vec![Key([1; 32]); 4096])));
        assert!(!is_good(RecipeBase::Linked(vec![Key([1; 32]); 80_000])));
    }
}
