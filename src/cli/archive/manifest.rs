//! The manifest of an archive, and the names of its members.

use serde::{Deserialize, Serialize};

use crate::cli::entry_view::devices;
use crate::key::ingredients::{Key, hex, sha256};
use crate::store::entry::Meta;

/// The version of the archive format.
pub const FORMAT: u32 = 1;
/// The first member.
pub const MANIFEST: &str = "manifest.json";
/// The second member, if the cache has a key.
pub const SEAL: &str = "manifest.hmac";

const FOLDER: &str = "entries/";
const SUFFIX: &str = ".entry";

/// The manifest of an archive. Its facts about entries are for display: import trusts only the entries, whose digests it checks.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of oclcache that wrote it.
    pub oclcache: String,
    /// When the latest program was compiled, in seconds since 1970.
    pub created: u64,
    /// The entries, in the order of their keys.
    pub entries: Vec<ListedMember>,
}

/// One entry in a manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListedMember {
    /// The key, in hexadecimal digits.
    pub key: String,
    /// The size, in bytes.
    pub size: u64,
    /// SHA-256 of the entry, in hexadecimal digits.
    pub sha256: String,
    /// The driver's family.
    pub driver: String,
    /// The driver's library.
    pub driver_library: String,
    /// The names of the devices.
    pub devices: Vec<String>,
    /// The program that was built.
    pub program: String,
    /// Whether it is a pending recipe.
    pub pending: bool,
    /// Whether it has the source.
    pub source: bool,
    /// When it was compiled, in seconds since 1970.
    pub created: u64,
}

impl ListedMember {
    pub fn of(key: &Key, meta: &Meta, has_source: bool, bytes: &[u8]) -> ListedMember {
        ListedMember {
            key: key.hex(),
            size: bytes.len() as u64,
            sha256: hex(&sha256(bytes)),
            driver: meta.driver_family.clone(),
            driver_library: meta.driver_library.clone(),
            devices: devices(&meta.ingredients),
            program: meta.executable.clone(),
            pending: meta.is_pending(),
            source: has_source,
            created: meta.created,
        }
    }
}

/// The name of an entry's member.
pub fn member(key: &Key) -> String {
    format!("{FOLDER}{}{SUFFIX}", key.hex())
}

/// The key of the entry in a member of this name.
pub fn key_of(name: &[u8]) -> Option<Key> {
    let name = str::from_utf8(name).ok()?;
    Key::from_hex(name.strip_prefix(FOLDER)?.strip_suffix(SUFFIX)?)
}
