//! The recipe in an entry: all that is needed to have the driver make the program again, in another process or for a newer
//! driver. It knows no OpenCL objects: devices are indices, programs are keys.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::key::ingredients::{Ingredient, Key, Kind};

/// One call that made what an entry holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRecipe {
    /// What the program was made from.
    pub base: StoredBase,
    /// Which function was called.
    pub operation: StoredOperation,
    /// The options as the application gave them, without the NUL; None is NULL.
    pub options: Option<StoredText>,
    /// The devices of the context, in the program's order.
    pub devices: Vec<DeviceName>,
    /// The devices that the call listed, by their place in `devices`; None is NULL.
    pub listed: Option<Vec<u32>>,
    /// The state before the call, where devices that it does not name keep what that left them.
    pub previous: Option<Key>,
    /// The header files that could be read, in the order in which they were found.
    pub files: Vec<HeaderFile>,
    /// Where relative paths began; None if no place was looked at.
    pub working_directory: Option<StoredText>,
    /// The directory of the cache that the driver itself keeps, if it does.
    pub own_cache: Option<StoredText>,
}

/// What a program is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredBase {
    /// OpenCL C, without a NUL.
    Source(StoredText),
    /// An intermediate language, and the values of specialization constants by their `spec_id`.
    Il(StoredText, BTreeMap<u32, Vec<u8>>),
    /// The keys of the programs that were linked, in their order.
    Linked(Vec<Key>),
}

/// A function that makes or changes a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredOperation {
    /// clBuildProgram.
    Build,
    /// clCompileProgram, with its embedded headers in their order: name and source.
    Compile(Vec<(StoredText, StoredText)>),
    /// clLinkProgram.
    Link,
}

/// By what a device is found again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceName {
    /// CL_DEVICE_NAME, as the driver answers it.
    pub name: Vec<u8>,
    /// It is a part of a device.
    pub is_part: bool,
}

/// A header file that the compiler may have read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderFile {
    /// Where it was looked for, as [`crate::key::include`] names places.
    pub place: StoredText,
    /// Its path then.
    pub path: StoredText,
    /// SHA-256 of its content.
    pub digest: [u8; 32],
    /// What it is.
    pub content: Content,
}

/// What stands in a header file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// This.
    Text(StoredText),
    /// It is the same file as an earlier one, by its place in the list.
    SameAs {
        /// The earlier one.
        file: u32,
        /// Its directory is the same as well.
        in_same_directory: bool,
    },
}

/// Bytes that are shared, not copied: sources can be megabytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredText(pub Arc<Vec<u8>>);

impl From<&[u8]> for StoredText {
    fn from(bytes: &[u8]) -> StoredText {
        StoredText(Arc::new(bytes.to_vec()))
    }
}

impl std::ops::Deref for StoredText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for StoredText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for StoredText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StoredText, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = StoredText;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<StoredText, E> {
                Ok(bytes.into())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// How many `..` the name of a header may have that the baker lays out below a directory of its own.
const MAX_PARENTS: usize = 9;

/// Whether a place of a header ([`crate::key::include`]) could be outside of the directory that it names: that of an absolute name,
/// and that of a name with more `..` than the baker's own directories are deep.
pub fn is_outside(place: &[u8]) -> bool {
    let mut parts = place.splitn(2, |byte| *byte == b'/');
    let (Some(base), Some(below)) = (parts.next(), parts.next()) else {
        return true;
    };
    let parents = below
        .split(|byte| *byte == b'/')
        .filter(|part| *part == b"..");
    // An empty component would begin an absolute path.
    base.is_empty() || below.starts_with(b"/") || parents.count() > MAX_PARENTS
}

impl StoredRecipe {
    /// The working directory of the application, if the compiler looked at it.
    pub fn directory(&self, ingredients: &[Ingredient]) -> Option<PathBuf> {
        let keyed = ingredients
            .iter()
            .find(|one| one.kind == Kind::WorkingDirectory);
        let keyed = keyed.map(|one| one.value.as_slice());
        let directory = self.working_directory.as_deref().or(keyed)?;
        Some(OsStr::from_bytes(directory).into())
    }

    /// Whether it can be compiled in that directory only.
    pub fn needs_directory(&self, ingredients: &[Ingredient]) -> bool {
        let is_keyed = |one: &Ingredient| one.kind == Kind::WorkingDirectory;
        ingredients.iter().any(is_keyed) || self.files.iter().any(|file| is_outside(&file.place))
    }

    /// The text that the program is made from: its source or intermediate language.
    pub fn text(&self) -> Option<&[u8]> {
        match &self.base {
            StoredBase::Source(text) | StoredBase::Il(text, _) => Some(text),
            StoredBase::Linked(_) => None,
        }
    }

    /// The keys of what the program was made from: the programs that were linked, and the state before the call.
    pub fn needed(&self) -> Vec<Key> {
        let linked = match &self.base {
            StoredBase::Linked(keys) => keys.as_slice(),
            StoredBase::Source(_) | StoredBase::Il(..) => &[],
        };
        linked.iter().chain(&self.previous).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_their_directory_are_told() {
        for inside in ["cwd/a.h", "-I0/sub/../a.h", "cwd/../../b.h", "driver0/a.h"] {
            assert!(!is_outside(inside.as_bytes()), "{inside}");
        }
        let deep = format!("cwd/{}a.h", "../".repeat(MAX_PARENTS + 1));
        for outside in ["/etc/a.h", "cwd//tmp/a.h", "a.h", "", deep.as_str()] {
            assert!(is_outside(outside.as_bytes()), "{outside}");
        }
    }
}
