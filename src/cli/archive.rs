//! Archives of entries, which `export` writes and `import` reads: a tar in a zstd frame.
//!
//! ```text
//! manifest.json        what the archive holds: see `Manifest`
//! manifest.hmac        HMAC-SHA-256 of that in hexadecimal digits, with the key of the cache that it was exported from
//! entries/KEY.entry    the entries, in the order of their keys, each as it stands in a cache (`store::entry`)
//! ```
//!
//! Equal entries make equal archives: the order is given, and times are those at which programs were compiled.

pub mod manifest;
pub mod read;
pub mod seal;
