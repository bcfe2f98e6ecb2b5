//! Each cache has a key with which it authenticates the manifests of its own archives.
//!
//! A user who can read the key can also read and write the cache. `oclcache clear` keeps the key.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::cli::parse::parse_hex;
use crate::key::ingredients::hex;
use crate::store::{ARCHIVE_KEY, Store, StoreError};

const LENGTH: usize = 32;

/// The key of a cache.
pub struct Seal([u8; LENGTH]);

impl Seal {
    /// The key of a cache; None if it has none.
    pub fn of(store: &Store) -> Option<Seal> {
        let bytes = store.root().read(ARCHIVE_KEY, LENGTH as u64 + 1).ok()??;
        Some(Seal(bytes.try_into().ok()?))
    }

    /// The key of a cache, made if there is none.
    ///
    /// # Errors
    /// The key cannot be written, or random numbers cannot be read.
    pub fn make(store: &Store) -> Result<Option<Seal>, StoreError> {
        if let Some(seal) = Seal::of(store) {
            return Ok(Some(seal));
        }
        let mut key = [0; LENGTH];
        let path = std::path::PathBuf::from("/dev/urandom");
        let read = std::fs::File::open(&path)
            .and_then(|mut random| std::io::Read::read_exact(&mut random, &mut key));
        read.map_err(|error| StoreError {
            action: "read",
            path,
            error,
        })?;
        store.write_archive_key(&key)?;
        // Another process may have written its key first or last: the stored one counts.
        Ok(Seal::of(store))
    }

    /// The signature in hexadecimal digits.
    pub fn sign(&self, manifest: &[u8]) -> String {
        hex(&self.mac(manifest).finalize().into_bytes())
    }

    /// Whether a signature is that of a manifest. Compares in constant time.
    pub fn is_of(&self, manifest: &[u8], signature: &[u8]) -> bool {
        let bytes = parse_hex(signature.trim_ascii());
        bytes.is_some_and(|bytes| self.mac(manifest).verify_slice(&bytes).is_ok())
    }

    fn mac(&self, manifest: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        mac.expect("a key may have any length")
            .chain_update(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_ones_own_if_nothing_of_it_or_of_its_seal_was_changed() {
        let own = Seal([7; LENGTH]);
        let signature = own.sign(b"manifest");
        let verdict = |manifest: &[u8], signature: &str| own.is_of(manifest, signature.as_bytes());
        assert!(verdict(b"manifest", &signature));
        assert!(verdict(b"manifest", &format!("{signature}\n")));
        assert!(!verdict(b"manifest.", &signature));
        assert!(!verdict(b"manifest", &signature[2..]));
        assert!(!verdict(b"manifest", ""));
        assert!(!verdict(b"manifest", "x"));
        assert!(!verdict(b"manifest", &Seal([8; LENGTH]).sign(b"manifest")));
    }
}
