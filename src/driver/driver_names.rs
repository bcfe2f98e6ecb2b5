//! The names that occur in a driver's libraries, and in libraries that it opened later.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::asked_names::{self, AskedNames, MAX_SEARCHES};
use super::file_memory::FileMemory;
use super::library_texts::LibraryTexts;
use super::names::{self, Names};
use super::real_paths::says_what_is_there;
use super::scanned_library::ScannedLibrary;
use crate::fork_safety::Mutex;

/// The names of each list of libraries that was added.
#[derive(Default)]
pub struct DriverNames(Mutex<Vec<NamesOfList>>);

/// The names of a list of libraries.
struct NamesOfList {
    libraries: Vec<ScannedLibrary>,
    identity: [u8; 32],
    /// What was found in them until this process searches.
    texts: Arc<LibraryTexts>,
    /// Whether names occur that this process has looked for.
    answers: HashMap<Vec<u8>, bool>,
    /// How often this process has searched: where nothing can be kept, no file counts.
    searches: u32,
    /// None until this process needs them.
    names: Option<Names>,
}

impl DriverNames {
    /// The names in these libraries.
    pub(super) fn of(libraries: Vec<ScannedLibrary>) -> DriverNames {
        DriverNames::after_reading(libraries, LibraryTexts::default())
    }

    /// The same. `texts`: what was found in some of them.
    pub(super) fn after_reading(
        libraries: Vec<ScannedLibrary>,
        texts: LibraryTexts,
    ) -> DriverNames {
        let names = DriverNames::default();
        names.add_with(libraries, texts);
        names
    }

    /// Whether these are the names in just these libraries, at the same places.
    pub(super) fn are_of(&self, libraries: &[ScannedLibrary]) -> bool {
        let libraries: BTreeSet<&ScannedLibrary> = libraries.iter().collect();
        let known = self.0.lock();
        libraries
            .into_iter()
            .eq(known.iter().flat_map(|list| &list.libraries))
    }

    /// Adds the names in libraries that are not known yet.
    pub(super) fn add(&self, libraries: Vec<ScannedLibrary>) {
        self.add_with(libraries, LibraryTexts::default());
    }

    fn add_with(&self, mut libraries: Vec<ScannedLibrary>, texts: LibraryTexts) {
        libraries.retain(|library| !self.has_library(library));
        libraries.sort();
        libraries.dedup();
        if !libraries.is_empty() {
            let identity = names::identity(&libraries);
            self.0.lock().push(NamesOfList {
                libraries,
                identity,
                texts: Arc::new(texts),
                answers: HashMap::new(),
                searches: 0,
                names: None,
            });
        }
    }

    fn has_library(&self, library: &ScannedLibrary) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|list| &list.libraries);
        known.any(|one| one.identity == library.identity)
    }

    /// Whether the library at this path is among them.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|list| &list.libraries);
        known.any(|one| one.path == path)
    }

    /// Whether the driver may ask for the name. None: [`DriverNames::look_for`] must be called first.
    pub fn has(&self, name: &[u8], memory: &dyn FileMemory) -> Option<bool> {
        let mut lists = self.0.lock();
        if names::is_everywhere(name) {
            return Some(!lists.is_empty());
        }
        for list in lists.iter_mut() {
            let occurs = match (list.answers.get(name), &mut list.names) {
                (Some(known), _) => Some(*known),
                (None, Some(names)) => names.find(name),
                (None, None) => Some(memory.occurs(&list.identity, name)?),
            };
            if let Some(occurs) = occurs {
                memory.note_name(&list.identity, name, occurs);
            }
            if occurs.unwrap_or(true) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Looks for these names, so that each one can be asked for.
    ///
    /// # Errors
    /// A library cannot be read for now.
    pub fn look_for(&self, wanted: &[Vec<u8>], memory: &dyn FileMemory) -> io::Result<()> {
        for index in 0..self.changes() {
            let (libraries, identity, texts, wanted, may_search) = {
                let list = &self.0.lock()[index];
                let is_new = |name: &&Vec<u8>| !list.answers.contains_key(*name);
                let wanted: Vec<Vec<u8>> = wanted.iter().filter(is_new).cloned().collect();
                if list.names.is_some() || wanted.is_empty() {
                    continue;
                }
                let may_search = list.searches < MAX_SEARCHES;
                let libraries = list.libraries.clone();
                let texts = list.texts.clone();
                (libraries, list.identity, texts, wanted, may_search)
            };
            let libraries = ReadLibraries {
                libraries: &libraries,
                identity: &identity,
                texts: &texts,
            };
            // Without the lock: the libraries may have to be read.
            let found = libraries.find(&wanted, may_search, memory)?;
            let list = &mut self.0.lock()[index];
            list.texts = Arc::default();
            match found {
                Found::All(names) => {
                    list.names.get_or_insert(names);
                }
                Found::Wanted(answers, is_searched) => {
                    list.answers.extend(answers);
                    list.searches += u32::from(is_searched);
                }
            }
        }
        Ok(())
    }

    /// How often libraries were added.
    pub fn changes(&self) -> usize {
        self.0.lock().len()
    }
}

/// What is known after names were looked for.
enum Found {
    /// All names.
    All(Names),
    /// Whether those that are wanted occur, and whether that was searched for now.
    Wanted(HashMap<Vec<u8>, bool>, bool),
}

/// Libraries of this identity, and what was found in some of them.
struct ReadLibraries<'a> {
    libraries: &'a [ScannedLibrary],
    identity: &'a [u8; 32],
    texts: &'a LibraryTexts,
}

impl ReadLibraries<'_> {
    /// Finds out whether these names occur in them: from what earlier processes have found, or by searching or
    /// gathering. What is found is left to later processes.
    ///
    /// `may_search`: this process has not searched too often already.
    ///
    /// # Errors
    /// A library cannot be read for now.
    fn find(
        &self,
        wanted: &[Vec<u8>],
        may_search: bool,
        memory: &dyn FileMemory,
    ) -> io::Result<Found> {
        let ReadLibraries {
            libraries,
            identity,
            texts,
        } = *self;
        if let Some(names) = Names::recall(identity, memory) {
            return Ok(Found::All(names));
        }
        let mut asked = AskedNames::recall(identity, memory);
        // What is wanted of one list may be known of another.
        let is_new = |name: &&Vec<u8>| {
            asked.occurs(name).is_none() && memory.occurs(identity, name).is_none()
        };
        let new: Vec<Vec<u8>> = wanted.iter().filter(is_new).cloned().collect();
        if !new.is_empty() {
            if !may_search || asked.are_too_many_with(new.len()) {
                return Names::gather(libraries, identity, memory).map(Found::All);
            }
            let places = asked_names::places(libraries, memory);
            let started = Instant::now();
            match texts.search(libraries, &new, memory) {
                Ok(occur) => {
                    let ms = started.elapsed().as_millis();
                    tracing::debug!(
                        libraries = libraries.len(),
                        names = new.len(),
                        ms,
                        "names of variables were looked for"
                    );
                    asked.add(new.iter().zip(occur), places.clone(), memory);
                    // Where nothing can be kept, nobody can gather. Each search asks once, so that a baker which fails is not started for
                    // ever.
                    let kept = AskedNames::recall(identity, memory);
                    if kept.are_left_at(&places) && kept.occurs(&new[0]).is_some() {
                        memory.lacks_names();
                    }
                }
                Err(error) if says_what_is_there(&error) => return Ok(Found::All(Names::All)),
                Err(error) => return Err(error),
            }
        }
        let answer = |name: &Vec<u8>| Some((name.clone(), asked.occurs(name)?));
        let answers = wanted.iter().filter_map(answer).collect();
        Ok(Found::Wanted(answers, !new.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;

    use super::*;
    use crate::driver::content_value;
    use crate::driver::look::Look;
    use crate::driver::names::tests::TestMemory;

    const SEARCH: [u8; 32] = [1; 32];

    fn c_library(memory: &dyn FileMemory) -> ScannedLibrary {
        let mut paths = crate::driver::loaded_paths().into_iter();
        let path = paths.find(|path| path.to_string_lossy().contains("libc.so"));
        let path = path.expect("the C library");
        ScannedLibrary {
            identity: content_value(&memory.digest(&path).expect("read")),
            path,
        }
    }

    fn asked(names: &DriverNames, wanted: &[&str], look: &Look<'_>) -> Vec<Option<bool>> {
        let has = |name: &&str| names.has(name.as_bytes(), look);
        let answers = || wanted.iter().map(has).collect::<Vec<_>>();
        if answers().contains(&None) {
            let wanted: Vec<_> = wanted.iter().map(|name| name.as_bytes().to_vec()).collect();
            names.look_for(&wanted, look).expect("read");
        }
        answers()
    }

    #[test]
    fn processes_search_for_names_that_nobody_has_asked_for_until_one_gathers_all() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [copy, moved] = ["copy", "moved"].map(|name| directory.path().join(name));
        let c_library = c_library(&memory);
        std::fs::copy(&c_library.path, &copy).expect("copied");
        let library = ScannedLibrary {
            path: copy,
            ..c_library
        };
        let begin = || {
            let look = Look::new(&memory);
            look.begin(&SEARCH);
            look
        };
        let list = names::identity(std::slice::from_ref(&library));
        let is_gathered = || Names::recall(&list, &memory).is_some();
        let own = ["TMPDIR", "POCL_DEVICES"];
        let look = begin();
        let names = DriverNames::of(vec![library.clone()]);
        assert_eq!(names.has(b"TMPDIR", &look), None, "nobody has asked");
        assert_eq!(asked(&names, &own, &look), [Some(true), Some(false)]);
        look.keep();
        assert!(!is_gathered());

        let look = begin();
        let names = DriverNames::of(vec![library.clone()]);
        assert_eq!(names.has(b"TMPDIR", &look), Some(true));
        assert_eq!(names.has(b"POCL_DEVICES", &look), Some(false));
        assert_eq!(names.has(b"LANG", &look), None, "nobody has asked");
        let others = ["LANG", "SSH_CONNECTION"];
        assert_eq!(asked(&names, &others, &look), [Some(true), Some(false)]);
        assert!(!is_gathered());

        // A process whose search has no snapshot knows the answers as well.
        let look = Look::new(&memory);
        let names = DriverNames::of(vec![library.clone()]);
        std::fs::rename(&library.path, &moved).expect("moved");
        let all = [own, others].concat();
        let found = asked(&names, &all, &look);
        std::fs::rename(&moved, &library.path).expect("moved back");
        let expected = [true, false, true, false].map(Some);
        assert_eq!(found, expected);

        let mut searches = 0;
        while !is_gathered() {
            let names = DriverNames::of(vec![library.clone()]);
            let name = format!("NOBODY_READS_THE_VARIABLE_{searches}");
            assert_eq!(asked(&names, &[&name], &begin()), [Some(false)]);
            searches += 1;
            assert!(searches < 10);
        }
        assert!(searches > 1);
        let look = begin();
        let names = DriverNames::of(vec![library]);
        assert_eq!(asked(&names, &["HOME"], &look), [Some(true)]);
        assert_eq!(names.has(b"SHELL_OF_NOBODY", &look), Some(false));
    }

    /// Keeps nothing, as where there is no directory, or one that may only be read. Counts what it is given.
    struct Forgetful(TestMemory, Cell<u32>);

    impl FileMemory for Forgetful {
        fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
            self.0.digest(path)
        }

        fn facts(&self, _identity: &[u8; 32]) -> io::Result<Option<File>> {
            Ok(None)
        }

        fn remember_facts(&self, _identity: &[u8; 32], _facts: &[u8]) {
            self.1.set(self.1.get() + 1);
        }
    }

    #[test]
    fn a_process_whose_answers_nobody_keeps_gathers_all_once_as_well() {
        let memory = Forgetful(TestMemory::new(), Cell::new(0));
        let names = DriverNames::of(vec![c_library(&memory)]);
        for number in 0..20 {
            let name = format!("NOBODY_READS_THE_VARIABLE_{number}").into_bytes();
            if names.has(&name, &memory).is_none() {
                let wanted = std::slice::from_ref(&name);
                names.look_for(wanted, &memory).expect("read");
            }
            assert_eq!(names.has(&name, &memory), Some(false));
        }
        // Each search, and the names that were gathered.
        assert_eq!(memory.1.get(), MAX_SEARCHES + 1);
    }

    #[test]
    fn what_a_process_has_searched_for_it_does_not_search_again() {
        let memory = Forgetful(TestMemory::new(), Cell::new(0));
        let names = DriverNames::of(vec![c_library(&memory)]);
        let wanted = [b"TMPDIR".to_vec(), b"POCL_DEVICES".to_vec()];
        for _ in 0..2 {
            names.look_for(&wanted, &memory).expect("read");
        }
        assert_eq!(memory.1.get(), 1);
    }

    #[test]
    fn a_name_that_counts_in_every_library_needs_no_search() {
        let memory = TestMemory::new();
        let [short, odd] = [&b"CC"[..], b"BASH_FUNC_module%%"];
        let library = ScannedLibrary {
            identity: vec![1],
            path: "/no such library".into(),
        };
        let names = DriverNames::of(vec![library]);
        assert_eq!(
            [short, odd].map(|name| names.has(name, &memory)),
            [Some(true); 2]
        );
        assert_eq!(names.has(b"LANG", &memory), None);
        let none = DriverNames::default();
        assert_eq!(
            [short, odd].map(|name| none.has(name, &memory)),
            [Some(false); 2]
        );
    }

    #[test]
    fn names_are_those_of_just_their_libraries() {
        let [one, other, moved] =
            [("1", "/a"), ("2", "/b"), ("1", "/c")].map(|(identity, path)| {
                let (identity, path) = (identity.into(), path.into());
                ScannedLibrary { identity, path }
            });
        let names = DriverNames::of(vec![other.clone(), one.clone()]);
        assert!(names.are_of(&[one.clone(), other.clone(), one.clone()]));
        for others in [&[one][..], &[moved, other], &[]] {
            assert!(!names.are_of(others), "{others:?}");
        }
        assert!(DriverNames::default().are_of(&[]));
    }

    #[test]
    fn what_cannot_be_searched_leaves_no_answer() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("library");
        std::fs::write(&path, "no library").expect("written");
        let names = DriverNames::of(vec![ScannedLibrary {
            identity: content_value(&memory.digest(&path).expect("read")),
            path,
        }]);
        names
            .look_for(&[b"SOME_NAME".to_vec()], &memory)
            .expect("read");
        assert_eq!(names.has(b"SOME_NAME", &memory), Some(true));
        assert!(memory.files().is_empty());
    }
}
