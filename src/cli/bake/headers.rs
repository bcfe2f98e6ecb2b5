//! Finds the directory in which a recipe is compiled. It is the application's own, with the application's own options, if the headers
//! there are unchanged: then the driver finds what the application left in the driver's own cache, and logs name the same
//! directories. That directory may be gone or unsafe to work in ([`trust::can_be_entered`]). If all headers have absolute paths, the
//! recipe is then compiled in an empty directory, still with the application's own options. The headers are compared before, here, and
//! after the compilation, by the hooks: a header that changed meanwhile leaves no entry.
//!
//! A recipe from an archive was compiled on another machine, and its paths are not trusted. For such a recipe, and for one with
//! relative paths whose directory is gone or unsafe, the headers are written to a private directory, in which a compiler finds what it
//! found for the application. Then nothing is written at the paths in the recipe, and for an archive nothing is read there. Whatever the
//! recipe says, nothing is written outside of the private directory: each path is made part by part ([`Tree::make`]).
//!
//! Each directory of the options becomes a directory of its own, deep enough for names that begin with `..`. A directory that is the
//! same as an earlier one becomes a link to that: compilers skip a directory that they have searched, and so does the key. The
//! resulting key proves that the layout is right: it must be that of the application.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};

use crate::key::ingredients::{Ingredient, Kind, sha256};
use crate::key::options;
use crate::log::text;
use crate::regular_file;
use crate::store::recipe::{HeaderContent, HeaderFile, StoredRecipe, is_outside};
use crate::trust;

/// The path above each directory. It is deeper than the number of `..` in names that are not [`is_outside`], so that no name leads out.
const DEPTH: &str = "0/1/2/3/4/5/6/7/8/9";

/// Where a recipe is to be compiled.
pub struct Layout {
    /// The working directory.
    pub working_directory: PathBuf,
    /// The options; None is NULL.
    pub options: Option<Vec<u8>>,
    /// Whether the options are not the application's own.
    pub is_moved: bool,
}

/// A directory in which the compiler looked for headers.
struct HeaderDirectory {
    /// The beginning of places in it.
    name: Vec<u8>,
    /// Its path for the application.
    theirs: PathBuf,
    /// Its path here; None if it belongs to the driver and is the same.
    ours: Option<PathBuf>,
}

/// Whether a recipe is compiled in the directory of its application. `from_elsewhere`: it came with an archive.
pub fn is_in_place(
    recipe: &StoredRecipe,
    ingredients: &[Ingredient],
    from_elsewhere: bool,
) -> bool {
    let directory = recipe.directory(ingredients).filter(|_| !from_elsewhere);
    directory.is_some_and(|directory| directory.is_dir() && trust::can_be_entered(&directory))
}

/// Whether a recipe is compiled with the application's own options in an empty directory, since the application's is gone or unsafe
/// and no path depends on it. Never for a recipe `from_elsewhere`.
fn keeps_options_elsewhere(
    recipe: &StoredRecipe,
    ingredients: &[Ingredient],
    from_elsewhere: bool,
    include_dirs: &[Vec<u8>],
) -> bool {
    !from_elsewhere && recipe.has_only_absolute_paths(ingredients, include_dirs)
}

/// Whether a recipe is compiled with other options than the application's, since they name include directories that are moved.
pub fn moves_options(
    recipe: &StoredRecipe,
    ingredients: &[Ingredient],
    from_elsewhere: bool,
) -> bool {
    let options = recipe.options.as_ref();
    let include_dirs = options
        .and_then(|options| options::parse(options).ok())
        .map_or_else(Vec::new, |options| options.include_dirs);
    recipe.working_directory.is_some()
        && !include_dirs.is_empty()
        && !is_in_place(recipe, ingredients, from_elsewhere)
        && !keeps_options_elsewhere(recipe, ingredients, from_elsewhere, &include_dirs)
}

/// The application's directory, or a new one with the headers. For a recipe `from_elsewhere`, headers are taken from the recipe
/// only.
///
/// # Errors
/// Why it cannot be compiled as it was.
pub fn lay_out(
    root: &Path,
    recipe: &StoredRecipe,
    ingredients: &[Ingredient],
    driver_dirs: &[PathBuf],
    from_elsewhere: bool,
) -> Result<Layout, String> {
    let failed = |error: io::Error| format!("its headers cannot be written: {error}");
    fs::create_dir_all(root).map_err(failed)?;
    let root = &root.canonicalize().map_err(failed)?;
    let working_directory = root.join("cwd").join(DEPTH);
    fs::create_dir_all(&working_directory).map_err(failed)?;
    let options = recipe.options.as_ref().map(|options| options.to_vec());
    let Some(theirs) = recipe.directory(ingredients) else {
        return Ok(Layout {
            working_directory,
            options,
            is_moved: false,
        });
    };
    let parsed = options.as_deref().map(options::parse).transpose();
    let parsed =
        parsed.map_err(|reason| format!("its options cannot be parsed: {}", reason.name()))?;
    let include_dirs = parsed
        .as_ref()
        .map_or(&[][..], |parsed| &parsed.include_dirs);
    let dirs = include_dirs.iter().enumerate();
    let mut bases = vec![HeaderDirectory {
        name: b"cwd".to_vec(),
        theirs: theirs.clone(),
        ours: Some(working_directory.clone()),
    }];
    bases.extend(dirs.map(|(index, directory)| HeaderDirectory {
        name: format!("-I{index}").into_bytes(),
        theirs: theirs.join(OsStr::from_bytes(directory)),
        ours: Some(root.join(format!("I{index}")).join(DEPTH)),
    }));
    let own: Vec<Vec<u8>> = bases[1..]
        .iter()
        .flat_map(|base| &base.ours)
        .map(|ours| ours.as_os_str().as_bytes().to_vec())
        .collect();
    bases.extend(driver_dirs.iter().enumerate().map(|(index, directory)| {
        let ours = directory
            .is_relative()
            .then(|| working_directory.join(directory));
        HeaderDirectory {
            name: format!("driver{index}").into_bytes(),
            theirs: theirs.join(directory),
            ours,
        }
    }));
    if !from_elsewhere {
        check_disk(recipe, ingredients, &bases)?;
    }
    if is_in_place(recipe, ingredients, from_elsewhere) {
        return Ok(Layout {
            working_directory: theirs,
            options,
            is_moved: false,
        });
    }
    if keeps_options_elsewhere(recipe, ingredients, from_elsewhere, include_dirs) {
        return Ok(Layout {
            working_directory,
            options,
            is_moved: false,
        });
    }
    let options = match &parsed {
        Some(parsed) => Some(
            parsed
                .respelled(&own)
                .ok_or("the names of its include directories are in the key")?,
        ),
        None => None,
    };
    let mut tree = Tree {
        root,
        from_elsewhere,
        directories: HashMap::new(),
    };
    for (index, base) in bases.iter().enumerate() {
        let Some(ours) = &base.ours else {
            continue;
        };
        match from_elsewhere
            .then(|| first_of(base, ingredients, &bases[..index]))
            .flatten()
        {
            Some(first) if !ours.exists() => tree.link(first, ours).map_err(failed)?,
            _ => tree.directory(&base.theirs, ours).map_err(failed)?,
        }
    }
    let mut laid: Vec<Option<PathBuf>> = Vec::new();
    for file in &recipe.files {
        laid.push(tree.file(file, &bases, &laid)?);
    }
    for place in places(ingredients).filter(|(_, value)| *value == b"directory") {
        if let Some(theirs) = their_path(place.0, &bases)
            && let Some(Some(ours)) = our_path(place.0, &bases)
        {
            tree.directory(&theirs, &ours).map_err(failed)?;
        }
    }
    Ok(Layout {
        working_directory,
        options,
        is_moved: true,
    })
}

/// The places where the compiler looked, and what it found.
fn places(ingredients: &[Ingredient]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let places = ingredients.iter().filter(|one| one.kind == Kind::Include);
    places.map(|one| (one.name.as_bytes(), one.value.as_slice()))
}

/// The private directory for one before this one that was the same directory; None also if that is the driver's own.
fn first_of<'a>(
    base: &HeaderDirectory,
    ingredients: &[Ingredient],
    before: &'a [HeaderDirectory],
) -> Option<&'a Path> {
    let (_, value) = places(ingredients).find(|(place, _)| *place == base.name)?;
    let first = value.strip_prefix(b"is ")?;
    let first = before.iter().find(|other| other.name == first)?;
    first.ours.as_deref()
}

fn is_parent(part: &Component) -> bool {
    *part == Component::ParentDir
}

/// The path of a place for the application; None if its directory is unknown.
fn their_path(place: &[u8], bases: &[HeaderDirectory]) -> Option<PathBuf> {
    if place.starts_with(b"/") {
        return Some(OsStr::from_bytes(place).into());
    }
    let (base, below) = split(place, bases)?;
    Some(base.theirs.join(below))
}

/// The path of a place here: Some(None) if the driver's own is used, None if the place could be outside our directory.
fn our_path(place: &[u8], bases: &[HeaderDirectory]) -> Option<Option<PathBuf>> {
    let (base, below) = split(place, bases).filter(|_| !is_outside(place))?;
    Some(base.ours.as_ref().map(|ours| ours.join(below)))
}

fn split<'a, 'b>(
    place: &'a [u8],
    bases: &'b [HeaderDirectory],
) -> Option<(&'b HeaderDirectory, &'a Path)> {
    let slash = place.iter().position(|byte| *byte == b'/')?;
    let base = bases.iter().find(|base| base.name == place[..slash])?;
    Some((base, Path::new(OsStr::from_bytes(&place[slash + 1..]))))
}

/// Fails if a header has changed: no program could hit the entry. The files are only compared.
fn check_disk(
    recipe: &StoredRecipe,
    ingredients: &[Ingredient],
    bases: &[HeaderDirectory],
) -> Result<(), String> {
    let changed = |place: &[u8]| {
        let place = text(place);
        Err(format!(
            "the header `{place}` has changed, so no program could hit the entry"
        ))
    };
    for file in &recipe.files {
        let theirs = their_path(&file.place, bases);
        if theirs.and_then(|theirs| digest(&theirs)) != Some(file.digest) {
            return changed(&file.place);
        }
    }
    for (place, _) in places(ingredients).filter(|(_, value)| value.is_empty()) {
        if their_path(place, bases).is_some_and(|theirs| theirs.exists()) {
            return changed(place);
        }
    }
    Ok(())
}

/// SHA-256 of a file; None if it is not a file or is too large for a header.
fn digest(path: &Path) -> Option<[u8; 32]> {
    const MAX_BYTES: u64 = 64 << 20;
    let (file, _) = regular_file::open(path).ok()??;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(sha256(&bytes))
}

/// The private directories.
struct Tree<'a> {
    /// The real path of the directory in which all of them are.
    root: &'a Path,
    /// The recipe came with an archive, so directories of this machine do not matter.
    from_elsewhere: bool,
    /// The private directory for each of the application's, by device and inode.
    directories: HashMap<(u64, u64), PathBuf>,
}

impl Tree<'_> {
    /// Makes a directory in the root, with its parents, and returns its real path. Makes nothing outside of the root: a path of a recipe
    /// may lead out by `..` and links.
    fn make(&self, path: &Path) -> io::Result<PathBuf> {
        let leads_out = || io::Error::other("they would be outside of the private directory");
        let below = path.strip_prefix(self.root).map_err(|_| leads_out())?;
        let mut real = self.root.to_owned();
        for part in below.components() {
            if is_parent(&part) {
                real.pop();
            } else {
                real.push(part);
                match fs::create_dir(&real) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        real = real.canonicalize()?;
                    }
                    made => made?,
                }
            }
            if !real.starts_with(self.root) {
                return Err(leads_out());
            }
        }
        Ok(real)
    }

    /// The real path at which a name can be made in the root, with its parents.
    fn place(&self, path: &Path) -> io::Result<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        Ok(self.make(parent)?.join(name))
    }

    /// Makes one private directory a link to another one.
    fn link(&self, first: &Path, ours: &Path) -> io::Result<()> {
        symlink(first, self.place(ours)?)
    }

    /// Makes the private directory for one of the application's, unless that does not exist.
    fn directory(&mut self, theirs: &Path, ours: &Path) -> io::Result<()> {
        if self.from_elsewhere {
            return self.make(ours).map(drop);
        }
        let Ok(metadata) = fs::metadata(theirs) else {
            return Ok(());
        };
        let id = (metadata.dev(), metadata.ino());
        if !metadata.is_dir() || ours.is_dir() {
            self.directories
                .entry(id)
                .or_insert_with(|| ours.to_owned());
            return Ok(());
        }
        if let Some(known) = self.directories.get(&id) {
            return self.link(known, ours);
        }
        self.make(ours)?;
        self.directories.insert(id, ours.to_owned());
        Ok(())
    }

    /// Writes a header. Returns its path, or None if the driver's own is used.
    fn file(
        &mut self,
        file: &HeaderFile,
        bases: &[HeaderDirectory],
        laid: &[Option<PathBuf>],
    ) -> Result<Option<PathBuf>, String> {
        let place = text(&file.place);
        let failed = |error: io::Error| format!("the header `{place}` cannot be written: {error}");
        let (Some(theirs), Some(ours)) =
            (their_path(&file.place, bases), our_path(&file.place, bases))
        else {
            return Err(format!(
                "it includes `{place}`, which is in no known directory"
            ));
        };
        let Some(ours) = ours else {
            return Ok(None);
        };
        let (Some(their_parent), Some(parent)) = (theirs.parent(), ours.parent()) else {
            return Err(format!("it includes `{place}`, which is not a file name"));
        };
        // `..` in the name needs the directories before it.
        if !parent.components().any(|part| is_parent(&part)) {
            self.directory(their_parent, parent).map_err(failed)?;
        }
        let ours = self.place(&ours).map_err(failed)?;
        if ours.exists() {
            return match digest(&ours) == Some(file.digest) {
                true => Ok(Some(ours)),
                false => Err(format!(
                    "the header `{place}` conflicts with another header"
                )),
            };
        }
        match &file.content {
            HeaderContent::Text(content) if sha256(content) == file.digest => {
                // A link in its place is not followed.
                let mut made = fs::File::create_new(&ours).map_err(failed)?;
                made.write_all(content).map_err(failed)?;
            }
            HeaderContent::Text(_) => return Err(format!("the header `{place}` is damaged")),
            HeaderContent::SameAs { file, .. } => {
                let first = laid.get(*file as usize).and_then(Option::as_ref);
                let first = first.ok_or(format!(
                    "the header `{place}` is the same file as one of the driver's own"
                ))?;
                fs::hard_link(first, &ours).map_err(failed)?;
            }
        }
        Ok(Some(ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::recipe::{RecipeBase, RecipeOperation, Text};

    /// Lays out a recipe with these headers as if it came with an archive.
    fn laid_out(places: &[&str]) -> (tempfile::TempDir, Result<Layout, String>) {
        laid_out_with(places, &[], &[])
    }

    /// The same with these ingredients and directories of the driver.
    fn laid_out_with(
        places: &[&str],
        ingredients: &[Ingredient],
        driver_dirs: &[PathBuf],
    ) -> (tempfile::TempDir, Result<Layout, String>) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (work, root) = (
            directory.path().join("a/b/c/work"),
            directory.path().join("root"),
        );
        fs::create_dir_all(work.join("inc")).expect("made");
        let inside = directory.path().canonicalize().expect("a path");
        let text = |text: &str| Text::from(text.as_bytes());
        let mut files = Vec::new();
        for place in places {
            let below = place.split_once('/').map_or(*place, |(_, below)| below);
            let path = match place.starts_with("-I0") {
                true => work.join("inc").join(below),
                false => work.join(below),
            };
            let is_below = |above: &Path| {
                above
                    .canonicalize()
                    .is_ok_and(|above| above.starts_with(&inside))
            };
            if path.parent().is_some_and(is_below) {
                // A place without a name is a directory.
                let _ = fs::write(&path, place);
            }
            files.push(HeaderFile {
                place: text(place),
                path: path.as_os_str().as_bytes().into(),
                digest: sha256(place.as_bytes()),
                content: HeaderContent::Text(text(place)),
            });
        }
        let recipe = StoredRecipe {
            base: RecipeBase::Source(text("")),
            operation: RecipeOperation::Build,
            options: Some(text("-w -I inc")),
            devices: Vec::new(),
            listed: None,
            previous: None,
            files,
            working_directory: Some(work.as_os_str().as_bytes().into()),
            own_cache: None,
        };
        let layout = lay_out(&root, &recipe, ingredients, driver_dirs, true);
        (directory, layout)
    }

    #[test]
    fn each_header_stands_in_its_own_directory_and_the_options_name_that() {
        let (_directory, layout) = laid_out(&["cwd/a.h", "-I0/a.h", "cwd/../b.h"]);
        let layout = layout.expect("laid out");
        let read = |path: &str| fs::read_to_string(layout.working_directory.join(path));
        assert_eq!(read("a.h").expect("a header"), "cwd/a.h");
        assert_eq!(read("../b.h").expect("a header"), "cwd/../b.h");
        let options = layout.options.expect("options");
        let include = options.strip_prefix(b"-w -I ").expect("a directory");
        let include = Path::new(OsStr::from_bytes(include));
        assert_eq!(fs::read(include.join("a.h")).expect("a header"), b"-I0/a.h");
    }

    #[test]
    fn a_directory_that_was_another_one_is_that_one_here() {
        let is_it = Ingredient::new(Kind::Include, "-I0", "is cwd");
        let (_directory, layout) = laid_out_with(&["cwd/a.h"], &[is_it], &[]);
        let layout = layout.expect("laid out");
        let options = layout.options.expect("options");
        let include = options.strip_prefix(b"-w -I ").expect("a directory");
        let include = Path::new(OsStr::from_bytes(include)).canonicalize();
        let working_directory = layout.working_directory.canonicalize();
        assert_eq!(include.expect("there"), working_directory.expect("there"));
    }

    #[test]
    fn nothing_is_written_outside_of_the_private_directory() {
        for place in [
            "/etc/a.h",
            "cwd//tmp/a.h",
            "cwd/../../../../../../../../../../../../../a.h",
            "cwd/x/../x/../x/../x/../x/../../../../../../../a.h",
            "elsewhere/a.h",
            "-I7/a.h",
            "a.h",
            "",
        ] {
            let (_directory, layout) = laid_out(&[place]);
            assert!(layout.is_err(), "{place}");
        }
    }

    #[test]
    fn nothing_is_written_where_the_driver_has_headers_whatever_an_archive_says_is_the_same() {
        let outside = tempfile::tempdir().expect("a temporary directory");
        let outside = outside.path().canonicalize().expect("a path");
        let is_it = |name: &str, first: &str| {
            Ingredient::new(Kind::Include, name, format!("is {first}").into_bytes())
        };
        let up: PathBuf = "../".repeat(40).into();
        let below = outside.strip_prefix("/").expect("an absolute path");
        let climbing = up.join(below);
        let to_root = format!("-I0/{}{}/b.h", "../".repeat(9), "x");
        for driver in [&outside, &climbing] {
            for (place, ingredient) in [
                ("-I0/a.h", is_it("-I0", "driver0")),
                ("-I0/new/a.h", is_it("-I0", "driver0")),
                (to_root.as_str(), is_it("-I0", "driver0")),
                ("cwd/a.h", is_it("cwd", "driver0")),
                ("driver0/a.h", is_it("driver0", "driver0")),
                ("driver0/../a.h", is_it("-I0", "cwd")),
            ] {
                let (_directory, layout) =
                    laid_out_with(&[place], &[ingredient], std::slice::from_ref(driver));
                let written: Vec<_> = fs::read_dir(&outside).expect("listed").collect();
                assert!(written.is_empty(), "{place} {driver:?}: {written:?}");
                assert!(!outside.with_file_name("a.h").exists(), "{place}");
                let climbs = driver.is_relative();
                assert_eq!(layout.is_err(), climbs, "{place} {driver:?}");
            }
        }
    }
}
