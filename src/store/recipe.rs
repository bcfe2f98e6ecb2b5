//! The recipe in an entry: everything that a driver needs to build the program again, in another process or with a newer driver.
//! It has no OpenCL objects: devices are indices, and programs are keys.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::fallible;
use crate::key::ingredients::{Ingredient, Key, Kind};

/// The call that made the program of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRecipe {
    /// What the program was made from.
    pub base: RecipeBase<Key>,
    /// Which function was called.
    pub operation: RecipeOperation<()>,
    /// The options as the application gave them, without the NUL; None is NULL.
    pub options: Option<Text>,
    /// The devices of the context, in the program's order.
    pub devices: Vec<DeviceName>,
    /// The devices that the call listed, as indices into `devices`; None is NULL.
    pub listed: Option<Vec<u32>>,
    /// The state before the call, if devices that it does not name keep their programs.
    pub previous: Option<Key>,
    /// The header files that were read, in the order in which they were found.
    pub files: Vec<HeaderFile>,
    /// The directory of relative paths; None if none was looked up.
    pub working_directory: Option<Text>,
    /// The directory of the driver's own cache, if it has one.
    pub own_cache: Option<Text>,
}

/// What a program is made from. A program that is linked is named by its key on disk, and by its recipe in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecipeBase<Input> {
    /// OpenCL C, without a NUL.
    Source(Text),
    /// An intermediate language, with the specialization constants that were set before the call.
    Il(Text, Constants),
    /// Programs that were linked, in their order.
    Linked(Vec<Input>),
}

/// Values of specialization constants, by their `spec_id`.
pub type Constants = BTreeMap<u32, Vec<u8>>;

impl<Input> RecipeBase<Input> {
    /// The programs that were linked.
    pub fn inputs(&self) -> &[Input] {
        match self {
            RecipeBase::Linked(inputs) => inputs,
            RecipeBase::Source(_) | RecipeBase::Il(..) => &[],
        }
    }

    /// The same with other names for the programs that were linked.
    pub fn map_inputs<Other>(&self, name: impl FnMut(&Input) -> Other) -> RecipeBase<Other> {
        match self {
            RecipeBase::Source(text) => RecipeBase::Source(text.clone()),
            RecipeBase::Il(code, constants) => RecipeBase::Il(code.clone(), constants.clone()),
            RecipeBase::Linked(inputs) => RecipeBase::Linked(inputs.iter().map(name).collect()),
        }
    }
}

/// A function that makes or changes a program. A link in memory has the devices of its context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecipeOperation<Devices> {
    /// clBuildProgram.
    Build,
    /// clCompileProgram, with its headers in their order.
    Compile(Vec<Header>),
    /// clLinkProgram.
    Link(Devices),
}

impl<Devices> RecipeOperation<Devices> {
    /// The embedded headers of clCompileProgram.
    pub fn headers(&self) -> &[Header] {
        match self {
            RecipeOperation::Compile(headers) => headers,
            RecipeOperation::Build | RecipeOperation::Link(_) => &[],
        }
    }
}

/// An embedded header of clCompileProgram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Its `header_include_names` element.
    pub name: CString,
    /// The source of its program at the time of the call.
    pub source: Text,
}

/// Identifies a device in another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceName {
    /// CL_DEVICE_NAME, as the driver answers it.
    pub name: Vec<u8>,
    /// It is a sub-device.
    pub is_part: bool,
}

/// A header file that the compiler may have read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderFile {
    /// The place where the compiler looked, as [`crate::key::include`] names places.
    pub place: Text,
    /// Its path at the time of the build.
    pub path: Text,
    /// SHA-256 of its content.
    pub digest: [u8; 32],
    /// The content.
    pub content: HeaderContent,
}

/// The content of a header file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeaderContent {
    /// This text.
    Text(Text),
    /// The same file as an earlier one of the list.
    SameAs {
        /// The index of the earlier one.
        file: u32,
        /// Its directory is the same, too.
        in_same_directory: bool,
    },
}

/// Bytes that are shared, not copied: sources can be megabytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Arc<Vec<u8>>);

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Text {
        Text(Arc::new(bytes))
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Text {
        bytes.to_vec().into()
    }
}

impl Text {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
                let bytes = fallible::copy(bytes).map_err(|_| E::custom("no memory"))?;
                Ok(bytes.into())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// The baker lays headers out below directories of this depth, so a name may have this many `..`.
const MAX_PARENTS: usize = 9;

/// Whether a place of a header ([`crate::key::include`]) could be outside the directory that it names: an absolute name, or a name
/// with more `..` than the baker's directories are deep.
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

    /// Whether the program can be compiled only in that directory.
    pub fn needs_directory(&self, ingredients: &[Ingredient]) -> bool {
        let is_keyed = |one: &Ingredient| one.kind == Kind::WorkingDirectory;
        ingredients.iter().any(is_keyed) || self.files.iter().any(|file| is_outside(&file.place))
    }

    /// Whether the program is the same in each working directory in which nothing is found: the compiler found every header by an
    /// absolute path. `include_dirs` are the directories of the options.
    pub fn has_only_absolute_paths(
        &self,
        ingredients: &[Ingredient],
        include_dirs: &[Vec<u8>],
    ) -> bool {
        let is_keyed = |one: &Ingredient| one.kind == Kind::WorkingDirectory;
        // The names of other places begin with the working directory, or with a directory of the driver, which may be below it.
        let is_of_path = |place: &[u8]| place.starts_with(b"/") || place.starts_with(b"-I");
        !ingredients.iter().any(is_keyed)
            && include_dirs.iter().all(|dir| dir.starts_with(b"/"))
            && self.files.iter().all(|file| is_of_path(&file.place))
    }

    /// The text that the program is made from: its source or intermediate language.
    pub fn text(&self) -> Option<&[u8]> {
        match &self.base {
            RecipeBase::Source(text) | RecipeBase::Il(text, _) => Some(text),
            RecipeBase::Linked(_) => None,
        }
    }

    /// The keys of the programs that this one was made from: those that were linked, and the state before the call.
    pub fn needed(&self) -> Vec<Key> {
        let linked = self.base.inputs().iter();
        linked.chain(&self.previous).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that caches have since entries hold recipes.
    #[test]
    fn operations_and_bases_keep_their_encoding() {
        fn encoded(value: &impl Serialize) -> Vec<u8> {
            crate::framing::to_postcard(value).expect("memory")
        }
        type Base = RecipeBase<Key>;
        let text = Text::from(&b"ab"[..]);
        let header = Header {
            name: c"h".to_owned(),
            source: text.clone(),
        };
        assert_eq!(encoded(&RecipeOperation::<()>::Build), [0]);
        let compile = RecipeOperation::<()>::Compile(vec![header]);
        assert_eq!(encoded(&compile), *b"\x01\x01\x01h\x02ab");
        assert_eq!(encoded(&RecipeOperation::Link(())), [2]);
        assert_eq!(encoded(&Base::Source(text.clone())), *b"\x00\x02ab");
        let module = Base::Il(text, [(7, vec![9])].into());
        assert_eq!(encoded(&module), *b"\x01\x02ab\x01\x07\x01\x09");
        let linked = Base::Linked(vec![Key([5; 32])]);
        assert_eq!(
            encoded(&linked),
            [&[2, 1][..], &encoded(&Key([5; 32]))].concat()
        );
    }

    #[test]
    fn a_relative_path_or_one_of_the_driver_depends_on_the_working_directory() {
        let recipe = |place: &str| StoredRecipe {
            base: RecipeBase::Source(Text::default()),
            operation: RecipeOperation::Build,
            options: None,
            devices: Vec::new(),
            listed: None,
            previous: None,
            files: vec![HeaderFile {
                place: place.as_bytes().into(),
                path: Text::default(),
                digest: [0; 32],
                content: HeaderContent::Text(Text::default()),
            }],
            working_directory: None,
            own_cache: None,
        };
        let directories = |names: &[&str]| -> Vec<Vec<u8>> {
            names.iter().map(|name| name.as_bytes().into()).collect()
        };
        let directory = [Ingredient::new(Kind::WorkingDirectory, "", "/work")];
        for (place, names, ingredients, expected) in [
            ("/opt/a.h", &["/opt", "/usr"][..], &[][..], true),
            ("-I0/../a.h", &["/opt"], &[], true),
            ("-I0/a.h", &["/opt", "opt"], &[], false),
            ("cwd/a.h", &["/opt"], &[], false),
            ("driver0/a.h", &[], &[], false),
            ("/opt/a.h", &[], &directory, false),
        ] {
            let found = recipe(place).has_only_absolute_paths(ingredients, &directories(names));
            assert_eq!(found, expected, "{place} {names:?}");
        }
    }

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
