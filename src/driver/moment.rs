//! Whether what identifies a driver is as it was at an earlier moment.
//!
//! To identify a driver takes a tenth of a second or more in the first process of an empty cache directory, and nothing can be served
//! there. So the driver builds at once, and it is identified meanwhile and afterwards. That is sound only if nothing which identifies
//! it has changed since the build began. Nobody has looked at its files before, so this follows from the times of their last changes,
//! which only this kernel sets (see `file_fingerprint`): they are all older than that moment. Whatever does not tell, tells of a
//! change.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::time::{ClockId, clock_gettime};

use super::Driver;
use super::environment::OpeningVariables;
use super::file_memory::FileMemory;
use super::loaded::{self, LoadedObjects};
use super::process_variables;
use super::real_paths::{WatchedPaths, holds_no_library};
use super::search_path::library_path_at_start;
use crate::file_fingerprint::{FileFingerprint, FileId, FileSystems};
use crate::guarded_file::GuardedFile;
use crate::proc_file;

/// By how much older a change must be, in nanoseconds, since the clock may be set by so much unnoticed.
const MARGIN: i128 = MAX_STEP;
/// What has changed so shortly before a build is still changing, perhaps: a driver is being installed.
const SETTLED: i128 = 2_000_000_000;
/// By how much the time of the day may move against a clock that nobody sets. It is read before and after that one, and a process may
/// be kept waiting in between.
const MAX_STEP: i128 = 10_000_000;
const ATTEMPTS: u32 = 4;
/// Where every search for libraries looks, and what leads there. They are young where a container has just been made.
const USUAL: [&str; 3] = ["/etc/ld.so.cache", "/usr/lib", "/lib"];

/// What cannot be told of a moment afterwards.
pub struct Moment {
    pub(super) loaded: Arc<LoadedObjects>,
    variables: OpeningVariables,
    mounts: Mounts,
    ways: Ways,
    clocks: Clocks,
}

/// Which directories lead to what is loaded, and to where it is searched for. Programs may make files in these at any time.
#[derive(Default)]
struct Ways(HashMap<PathBuf, FileId>);

impl Ways {
    fn to(places: &BTreeSet<PathBuf>) -> Ways {
        let above = places.iter().flat_map(|place| place.ancestors().skip(1));
        let above: BTreeSet<&Path> = above.collect();
        let found = above.into_iter().filter_map(|path| {
            let metadata = std::fs::symlink_metadata(path).ok()?;
            Some((path.to_owned(), FileFingerprint::of(&metadata).file))
        });
        Ways(found.collect())
    }
}

/// The time of the day, and how far it is from a clock that nobody sets. In nanoseconds.
#[derive(Clone, Copy)]
struct Clocks {
    /// As the kernel notes it in files: that of its last tick. A later change has no earlier time, however late the ticks come.
    day: i128,
    apart: i128,
}

fn nanoseconds(clock: ClockId) -> i128 {
    let now = clock_gettime(clock);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

impl Clocks {
    /// None: the clocks cannot be compared, since this process is kept waiting all the time.
    fn now() -> Option<Clocks> {
        let day = nanoseconds(ClockId::RealtimeCoarse);
        let apart = (0..ATTEMPTS).find_map(|_| {
            let before = nanoseconds(ClockId::Boottime);
            let now = nanoseconds(ClockId::Realtime);
            let after = nanoseconds(ClockId::Boottime);
            (after - before < MAX_STEP / 4).then_some(now - before)
        });
        Some(Clocks { day, apart: apart? })
    }

    /// Whether somebody may have set the time of the day since.
    fn are_set_since(self) -> bool {
        Clocks::now().is_none_or(|now| (now.apart - self.apart).abs() > MAX_STEP / 2)
    }
}

/// Of the calling thread, which may have other mounts or another root than the first one.
const MOUNTS: &str = "/proc/thread-self/mountinfo";

/// The mounts of this process: another file system may come to the place of one.
struct Mounts {
    listed: Vec<u8>,
    /// Tells of each change, also of one that is taken back, or that gives another file system the number of the one before it
    /// (proc_pid_mountinfo(5)).
    changes: GuardedFile,
}

impl Mounts {
    fn now() -> io::Result<Mounts> {
        Ok(Mounts {
            changes: GuardedFile::new(File::open(MOUNTS)?)?,
            listed: proc_file::read(MOUNTS)?,
        })
    }

    fn are_the_same(&self) -> bool {
        let wanted = PollFlags::PRI | PollFlags::ERR;
        let events = self.changes.events(wanted);
        events.is_ok_and(|events| !events.intersects(wanted))
            && proc_file::read(MOUNTS).is_ok_and(|now| now == self.listed)
    }
}

impl Moment {
    /// The number of libraries that had been loaded.
    pub fn loads(&self) -> u64 {
        self.loaded.changes.loads
    }

    /// Runs in another thread with the variables of this moment.
    pub fn with_variables<T>(&self, run: impl FnOnce() -> T) -> T {
        process_variables::as_at(self.variables.variables(), run)
    }

    /// Whether these were at this moment as they were when they were looked at, and still are; else what may not have been.
    fn holds_for(&self, watched: &WatchedPaths) -> Result<(), Cow<'static, str>> {
        let paths = watched.absolute();
        let [read, led] = paths.ok_or("what the driver reads depends on the working directory")?;
        if let Some(unsettled) = unsettled_at(self.clocks.day, &read, &led, &self.ways) {
            let unsettled = crate::log::path(unsettled);
            let why = "may have changed while the first build ran";
            return Err(format!("{unsettled}, which identifies the driver, {why}").into());
        }
        match watched.hold() {
            true => Ok(()),
            false => Err("a file of the driver has changed while the first build ran".into()),
        }
    }
}

impl Driver {
    /// This moment, before a build. None: what identifies the driver has just changed, or depends on files that only a variable names.
    pub fn moment(&self) -> Option<Moment> {
        let clocks = Clocks::now()?;
        let loaded = Arc::new(LoadedObjects::now());
        let variables = OpeningVariables::now(self.profile, &self.origin);
        let mut places: BTreeSet<PathBuf> = USUAL.map(PathBuf::from).into();
        places.extend(library_path_at_start());
        if !self.profile.tools.is_empty() {
            let path = process_variables::value("PATH").unwrap_or_default();
            places.extend(std::env::split_paths(&path));
        }
        for object in loaded.objects.iter().filter(|object| object.is_in_a_file()) {
            places.extend(object.path.parent().map(Path::to_owned));
            places.insert(object.path.clone());
        }
        // What is in the working directory cannot be told afterwards.
        let is_told = |place: &PathBuf| place.is_absolute() || holds_no_library(place);
        if !places.iter().all(is_told) {
            return None;
        }
        places.retain(|place| place.is_absolute());
        let ways = Ways::to(&places);
        let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
        let before = clocks.day - SETTLED;
        if variables.name_files(self.profile) {
            return None;
        }
        if let Some(unsettled) = unsettled_at(before, &places, &[], &ways) {
            let file = crate::log::path(unsettled);
            tracing::debug!(%file, "this file has just changed, or its file system does not tell when");
            return None;
        }
        Some(Moment {
            loaded,
            variables,
            mounts: Mounts::now().ok()?,
            ways,
            clocks,
        })
    }

    /// Whether what identifies the driver, and its surroundings, is as it was then; else what may not be.
    ///
    /// Directories below the working directory in which no library is may have had one then: programs write there at any time. If the
    /// driver has opened it, that is seen as with each library that nothing names (see `late`).
    ///
    /// # Errors
    /// Why it is unknown.
    pub fn is_as_at(
        &self,
        moment: &Moment,
        memory: &dyn FileMemory,
    ) -> Result<(), Cow<'static, str>> {
        let known = self.known_identity(memory);
        let known = known.ok_or("the driver is not identified any more")?;
        let tools = self.variables.tools_now();
        if tools.is_none() && !self.profile.tools.is_empty() {
            return Err("a variable has changed while the first build ran".into());
        }
        if loaded::changes().unloads != moment.loaded.changes.unloads {
            return Err("a library was unloaded while the first build ran".into());
        }
        if OpeningVariables::now(self.profile, &self.origin) != moment.variables {
            return Err(
                "a variable or a configuration file has changed while the first build ran".into(),
            );
        }
        let watched = tools.iter().map(|tools| tools.watched());
        let of_identity = known.watched();
        for watched in watched.chain([&*of_identity]) {
            moment.holds_for(watched)?;
        }
        if !moment.mounts.are_the_same() {
            return Err("something was mounted or unmounted while the first build ran".into());
        }
        match moment.clocks.are_set_since() {
            true => Err("the clock was set while the first build ran".into()),
            false => Ok(()),
        }
    }
}

/// The first of these absolute paths of which it is not known that what is there, if anything, was last changed before this time, and
/// so was what leads there, unless that is known to be what led there then. `led`: directories that were only passed.
fn unsettled_at<'a>(
    day: i128,
    read: &[&'a Path],
    led: &[&'a Path],
    ways: &Ways,
) -> Option<&'a Path> {
    let mut systems = FileSystems::default();
    let mut is_old = |path: &Path, state: FileFingerprint| {
        let changed = systems.kernels_change_time(&state, path);
        changed.is_some_and(|changed| changed + MARGIN < day)
    };
    let mut is_settled = |path: &Path, is_read: bool| {
        let metadata = match std::fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            // If the file was removed since, its directory has changed.
            Err(error) if is_read && is_absent(&error) => {
                let above = path.ancestors().skip(1);
                let mut above = above.filter_map(|path| Some((path, FileFingerprint::at(path)?)));
                return above
                    .next()
                    .is_some_and(|(path, state)| is_old(path, state));
            }
            Err(error) => return is_absent(&error),
        };
        let own = FileFingerprint::of(&metadata);
        if !is_read && ways.0.get(path) == Some(&own.file) {
            return true;
        }
        let target = metadata.is_symlink().then(|| FileFingerprint::at(path));
        is_old(path, own) && target.flatten().is_none_or(|target| is_old(path, target))
    };
    let is_read: BTreeSet<&'a Path> = read.iter().copied().collect();
    let above = read.iter().flat_map(|path| path.ancestors().skip(1));
    let above = above.chain(led.iter().flat_map(|path| path.ancestors()));
    let above: BTreeSet<&'a Path> = above.filter(|path| !is_read.contains(path)).collect();
    let all = is_read.iter().map(|path| (*path, true));
    let mut all = all.chain(above.iter().map(|path| (*path, false)));
    let unsettled = all.find(|(path, is_read)| !is_settled(path, *is_read));
    unsettled.map(|(path, _)| path)
}

/// Whether an error says that nothing is there.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long before now, and long after it.
    fn around() -> [i128; 2] {
        let now = Clocks::now().expect("clocks").day;
        [now - 3_600_000_000_000, now + 3_600_000_000_000]
    }

    #[test]
    fn a_file_and_what_leads_there_must_be_older_than_the_moment() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
        let file = directory.path().join("file");
        let link = directory.path().join("link");
        std::fs::write(&file, "").expect("written");
        std::os::unix::fs::symlink("file", &link).expect("linked");
        let [before, after] = around();
        let is_settled =
            |day, path: &Path, ways: &Ways| unsettled_at(day, &[path], &[], ways).is_none();
        let none = Ways::default();
        for path in [file.as_path(), &link, directory.path(), &file.join("none")] {
            assert!(!is_settled(before, path, &none), "{path:?}");
            assert!(is_settled(after, path, &none), "{path:?}");
        }
        assert!(!is_settled(after, Path::new("/proc/self/status"), &none));
        // A directory that led there then may get new files, but not one that is read or listed.
        let ways = Ways::to(&[file.clone()].into());
        let now = FileFingerprint::at(&file).expect("a file");
        let changed = FileSystems::default().kernels_change_time(&now, &file);
        let soon = changed.expect("a time") + MARGIN + 1;
        std::thread::sleep(std::time::Duration::from_millis(50));
        std::fs::write(directory.path().join("other"), "").expect("written");
        assert!(!is_settled(soon, &file, &none));
        assert!(is_settled(soon, &file, &ways));
        assert!(!is_settled(soon, directory.path(), &ways));
        // A file that is not there may have been there before the directory was changed.
        assert!(!is_settled(soon, &directory.path().join("gone"), &ways));
        let led = [directory.path()];
        assert_eq!(unsettled_at(soon, &[&file], &led, &ways), None);
    }

    #[test]
    fn a_clock_that_is_set_is_noticed() {
        let now = Clocks::now().expect("clocks");
        assert!(!now.are_set_since());
        for step in [-1_000_000_000, 1_000_000_000] {
            let apart = now.apart + step;
            assert!(Clocks { apart, ..now }.are_set_since());
        }
    }
}
