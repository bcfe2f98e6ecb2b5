//! Whether limits on tasks, which are processes and threads, leave room for threads of ours: what the program or its driver starts next
//! must not fail because of them.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::proc_file;

/// So many are left to the program and its driver.
const LEAST: u64 = 64;
/// The limit of a user counts what all programs of the user have, which no file tells. A lower one was set for this program; those of
/// systems are thousands. Root is exempt, but not the root of a user namespace, whose capabilities look the same.
const LEAST_OF_USER: u64 = 256;
/// Where the groups of processes are (cgroups(7)): of the second version, and of the first one's controller.
const GROUPS: &str = "/sys/fs/cgroup";
const GROUPS_OF_FIRST_VERSION: &str = "/sys/fs/cgroup/pids";

/// Whether there is room for some more threads.
pub fn has_room() -> bool {
    let limit = getrlimit(Resource::Nproc).current;
    let is_low = limit.is_some_and(|limit| limit < LEAST_OF_USER);
    !is_low && {
        let groups = proc_file::read_own("cgroup").unwrap_or_default();
        left_in_groups(&groups, |file| proc_file::read_line(file.to_str()?).ok())
            .is_none_or(|left| left >= LEAST)
    }
}

/// How many tasks the groups of this process and those around them leave. None: they have no limit that is seen from here.
///
/// `groups`: as in `/proc/self/cgroup`. `read`: the content of a file.
fn left_in_groups(groups: &[u8], read: impl Fn(&Path) -> Option<Vec<u8>>) -> Option<u64> {
    let number = |file: &Path| -> Option<u64> {
        let content = read(file)?;
        std::str::from_utf8(&content).ok()?.trim().parse().ok() // "max" is none
    };
    let left_in = |directory: &Path| {
        let most = number(&directory.join("pids.max"))?;
        Some(most.saturating_sub(number(&directory.join("pids.current"))?))
    };
    let lines = std::str::from_utf8(groups).unwrap_or_default().lines();
    let places = lines.filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let root = match controllers {
            "" => GROUPS,
            "pids" => GROUPS_OF_FIRST_VERSION,
            _ => return None,
        };
        Some((Path::new(root), Path::new(path.trim_start_matches('/'))))
    });
    let left = places.filter_map(|(root, path)| {
        let groups = path.ancestors().map(|group| root.join(group));
        groups.filter_map(|group| left_in(&group)).min()
    });
    left.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_room_of_the_groups_around_a_process_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/pids.max", "max\n"),
            ("/sys/fs/cgroup/a/b/pids.current", "7\n"),
            ("/sys/fs/cgroup/a/pids.max", "100\n"),
            ("/sys/fs/cgroup/a/pids.current", "40\n"),
            ("/sys/fs/cgroup/pids.max", "1000\n"),
            ("/sys/fs/cgroup/pids.current", "40\n"),
            ("/sys/fs/cgroup/pids/c/pids.max", "8\n"),
            ("/sys/fs/cgroup/pids/c/pids.current", "9\n"),
        ];
        let read = |file: &Path| {
            let found = files.iter().find(|(path, _)| Path::new(path) == file);
            found.map(|(_, content)| content.as_bytes().to_vec())
        };
        for (groups, expected) in [
            ("0::/a/b\n", Some(60)),
            ("0::/\n", Some(960)),
            // That of a container, as it is outside.
            ("0::/system.slice/unseen\n", Some(960)),
            ("5:cpu,cpuacct:/c\n4:pids:/c\n0::/a\n", Some(0)),
            ("5:cpu,cpuacct:/c\n", None),
            ("", None),
        ] {
            let left = left_in_groups(groups.as_bytes(), read);
            assert_eq!(left, expected, "{groups}");
        }
        assert_eq!(left_in_groups(b"0::/a\n", |_| None), None);
    }
}
