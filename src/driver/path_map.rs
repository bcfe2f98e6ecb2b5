//! Values by path, as a list in the order of the paths' bytes.
//!
//! A first key decodes some hundred paths and looks few of them up. A map of paths compares and hashes their components, which took a
//! tenth of the time of a first hit (Intel's GPU driver).

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Values by path. A path that is spelled otherwise is another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMap<T>(Vec<(PathBuf, T)>);

impl<T> Default for PathMap<T> {
    fn default() -> PathMap<T> {
        PathMap(Vec::new())
    }
}

impl<T> FromIterator<(PathBuf, T)> for PathMap<T> {
    fn from_iter<I: IntoIterator<Item = (PathBuf, T)>>(values: I) -> PathMap<T> {
        let mut values: Vec<(PathBuf, T)> = values.into_iter().collect();
        values.sort_by(|(one, _), (other, _)| bytes(one).cmp(bytes(other)));
        values.dedup_by(|(other, _), (one, _)| bytes(one) == bytes(other));
        PathMap(values)
    }
}

impl<T> PathMap<T> {
    /// The value of a path.
    pub fn get(&self, path: &Path) -> Option<&T> {
        let place = self
            .0
            .binary_search_by(|(one, _)| bytes(one).cmp(bytes(path)));
        Some(&self.0[place.ok()?].1)
    }

    /// All paths with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&PathBuf, &T)> {
        self.0.iter().map(|(path, value)| (path, value))
    }

    /// Whether there is no path.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_the_spelling_of_their_paths() {
        // Components and bytes have another order here.
        let paths = ["/a/b", "/a-", "/a", "/a/b/", "/a//b", "", "/"];
        let values = paths.iter().zip(0..).map(|(path, n)| (path.into(), n));
        let map: PathMap<i32> = values.chain([("/a".into(), 9)]).collect();
        assert_eq!(map.iter().count(), paths.len());
        for (path, value) in paths.iter().zip(0..) {
            assert_eq!(map.get(path.as_ref()), Some(&value), "{path}");
        }
        assert_eq!(map.get("/a/c".as_ref()), None);
        let bytes = postcard::to_stdvec(&map).expect("encoded");
        assert_eq!(postcard::from_bytes::<PathMap<i32>>(&bytes), Ok(map));
    }
}
