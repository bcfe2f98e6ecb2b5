//! The parts of a key that builds share: devices, the driver, and what answers for its functions. They come first, so that each build
//! hashes only what is its own. (They are 5 KB for Intel's CPU runtime, and hashing them took a quarter of a later key.)

use std::sync::Arc;

use crate::fork_safety::Mutex;
use crate::key::ingredients::{Ingredient, KeyHash};

/// The hash of the parts that were used last.
#[derive(Default)]
pub struct SharedParts(Mutex<Option<KnownHash>>);

struct KnownHash {
    parts: Vec<Arc<[Ingredient]>>,
    hash: KeyHash,
}

impl SharedParts {
    /// The hash of these parts.
    pub fn hash(&self, parts: &[Arc<[Ingredient]>]) -> KeyHash {
        let is_same = |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        if let Some(known) = &*self.0.lock()
            && known.parts.len() == parts.len()
            && known.parts.iter().zip(parts).all(is_same)
        {
            return known.hash.clone();
        }
        let hash = KeyHash::new().with(parts.iter().flat_map(|part| part.iter()));
        let known = KnownHash {
            parts: parts.to_vec(),
            hash: hash.clone(),
        };
        let gone = self.0.lock().replace(known);
        drop(gone);
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ingredients::{Kind, key};

    #[test]
    fn the_hash_is_that_of_the_parts_whatever_came_before() {
        let part = |value: &[u8]| -> Arc<[Ingredient]> {
            [Ingredient::new(Kind::Driver, "libx.so", value)].into()
        };
        let shared = SharedParts::default();
        let (one, other) = (part(b"1"), part(b"2"));
        let lists: [&[Arc<[Ingredient]>]; 5] = [
            &[one.clone(), other.clone()],
            &[one.clone(), other.clone()],
            &[other.clone(), one.clone()],
            &[one.clone(), one.clone()],
            &[],
        ];
        for parts in lists {
            let expected = key(parts.iter().flat_map(|part| part.iter()));
            assert_eq!(shared.hash(parts).key(), expected);
        }
    }
}
