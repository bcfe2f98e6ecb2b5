//! Archives of entries, which `export` writes and `import` reads: a tar in a zstd frame.
//!
//! ```text
//! manifest.json        what the archive holds: see `Manifest`
//! manifest.hmac        HMAC-SHA-256 of the manifest in hexadecimal digits, with the key of the exporting cache
//! entries/KEY.entry    the entries, in the order of their keys, each as in a cache (`store::entry`)
//! ```
//!
//! Equal entries make equal archives: the order is fixed, and times are those of compilations.

pub mod manifest;
pub mod read;
pub mod seal;
