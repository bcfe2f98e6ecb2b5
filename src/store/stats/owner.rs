//! The names of the files, which identify the process and tell whether it has ended.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::host;
use crate::proc_file;

/// Whether a process will still add to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOwner {
    /// The process lives.
    Alive,
    /// The process is gone.
    Dead,
    /// The process is of another host or container, /proc hides it, or the name has another form.
    Unknown,
}

/// The host and container from which processes are examined.
pub struct StatsView {
    /// The host and the namespace of processes: processes of another container have other numbers.
    host: String,
    /// Identifies the boot of the host.
    boot: String,
    /// The number of this process.
    number: u32,
    /// This process. None if /proc does not show the processes of this namespace, but those of the host around a container, or none.
    own: Option<RunningProcess>,
    /// Where the processes are shown.
    processes: &'static str,
}

/// A process as /proc shows it.
#[derive(Clone, Copy)]
struct RunningProcess {
    number: u32,
    /// When it started, in ticks since boot.
    start: u64,
}

impl StatsView {
    /// The view of this process.
    pub fn new() -> StatsView {
        let processes = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let host = [
            host::name(),
            b"\0",
            processes.as_os_str().as_encoded_bytes(),
        ];
        let number = std::process::id();
        let own = RunningProcess::at("/proc/self/stat");
        StatsView {
            host: digits(&host.concat()),
            boot: digits(host::boot().unwrap_or_default()),
            number,
            own: own.filter(|own| own.number == number),
            processes: "/proc",
        }
    }

    /// The name of this process's file. A process keeps it when it executes another program.
    pub fn own_name(&self) -> String {
        self.name_of(self.number)
    }

    fn name_of(&self, process: u32) -> String {
        let start = self.start_time(process).unwrap_or(0);
        format!("{}-{}-{process}-{start}", self.host, self.boot)
    }

    /// Whether a name begins as those of processes of this host, container and boot do.
    pub fn is_of_this_host(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&*self.host);
        let rest = rest.and_then(|rest| rest.strip_prefix('-')?.strip_prefix(&*self.boot));
        rest.is_some_and(|rest| rest.starts_with('-'))
    }

    /// Whether the process lives that has the file of this name.
    pub fn owner(&self, name: &str) -> FileOwner {
        let parts: Vec<&str> = name.split('-').collect();
        let [host, boot, process, start] = parts[..] else {
            return FileOwner::Unknown;
        };
        let (Ok(process), Ok(start)) = (process.parse(), start.parse::<u64>()) else {
            return FileOwner::Unknown;
        };
        if host != self.host {
            FileOwner::Unknown
        } else if boot != self.boot {
            FileOwner::Dead
        } else if start == 0 || self.own.is_none() {
            FileOwner::Unknown
        } else {
            match self.start_time(process) {
                Some(running) if running == start => FileOwner::Alive,
                Some(_) => FileOwner::Dead,
                // Mounted with hidepid, /proc does not show processes of other users, nor those that forbid being dumped; and no
                // descriptor may be left to read it.
                None if exists(process) => FileOwner::Unknown,
                None => FileOwner::Dead,
            }
        }
    }

    /// The same in a directory that hosts may share: another one may have the name of this one, and the first namespaces of processes of
    /// all hosts have the same number.
    pub fn owner_among_hosts(&self, name: &str) -> FileOwner {
        match self.owner(name) {
            FileOwner::Dead if !self.is_of_this_host(name) => FileOwner::Unknown,
            owner => owner,
        }
    }

    /// When a process started, in ticks since boot. None if there is none, or if that is unknown.
    fn start_time(&self, process: u32) -> Option<u64> {
        let own = self.own?;
        if own.number == process {
            return Some(own.start);
        }
        Some(RunningProcess::at(&format!("{}/{process}/stat", self.processes))?.start)
    }
}

/// Whether there may be a process of this number, even if /proc does not show it.
fn exists(process: u32) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) != Err(Errno::SRCH))
}

/// Whether a name has the form of a process's file.
pub fn is_name(name: &str) -> bool {
    let is_number = |part: &&str| part.parse::<u64>().is_ok();
    let parts: Vec<&str> = name.split('-').collect();
    parts.len() == 4 && parts[2..].iter().all(is_number)
}

fn digits(bytes: &[u8]) -> String {
    format!("{:08x}", xxhash_rust::xxh3::xxh3_64(bytes) as u32)
}

impl RunningProcess {
    /// What a file `stat` of /proc says (proc(5)): the number first, and in field 22, counted from behind the name in parentheses, when
    /// the process started.
    fn at(path: &str) -> Option<RunningProcess> {
        let stat = proc_file::read_line(path).ok()?;
        let name_start = stat.iter().position(|byte| *byte == b'(')?;
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let number = str::from_utf8(&stat[..name_start]).ok()?;
        let rest = str::from_utf8(&stat[name_end + 1..]).ok()?;
        Some(RunningProcess {
            number: number.trim_end().parse().ok()?,
            start: rest.split_ascii_whitespace().nth(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_dead_once_it_is_gone_or_its_number_is_anothers() {
        let view = StatsView::new();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("started");
        let name = view.name_of(child.id());
        assert_eq!(view.owner(&name), FileOwner::Alive);
        let other_time = format!("{name}0");
        assert_eq!(view.owner(&other_time), FileOwner::Dead);
        child.kill().expect("killed");
        child.wait().expect("gone");
        assert_eq!(view.owner(&name), FileOwner::Dead);
    }

    #[test]
    fn a_process_that_is_not_shown_is_dead_only_if_its_number_is_nobodys() {
        let nothing = tempfile::tempdir().expect("a temporary directory");
        let nothing: &'static std::path::Path = Box::leak(nothing.path().into());
        let hidden = StatsView {
            processes: nothing.to_str().expect("UTF-8"),
            ..StatsView::new()
        };
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("started");
        let name = StatsView::new().name_of(child.id());
        assert_eq!(hidden.owner(&name), FileOwner::Unknown);
        child.kill().expect("killed");
        child.wait().expect("gone");
        assert_eq!(hidden.owner(&name), FileOwner::Dead);
        let (front, _) = name.rsplit_once('-').expect("a name");
        let (front, _) = front.rsplit_once('-').expect("a name");
        for number in ["0", "4294967295", "2147483648"] {
            let name = format!("{front}-{number}-7");
            assert_eq!(hidden.owner(&name), FileOwner::Dead, "{number}");
        }
    }

    #[test]
    fn of_another_host_or_container_nothing_is_known() {
        let view = StatsView::new();
        let name = view.name_of(std::process::id());
        let other = StatsView {
            host: "another".into(),
            boot: view.boot.clone(),
            ..view
        };
        assert_eq!(other.owner(&name), FileOwner::Unknown);
        let later = StatsView {
            host: view.host.clone(),
            boot: "later".into(),
            ..view
        };
        assert_eq!(later.owner(&name), FileOwner::Dead);
        assert_eq!(later.owner_among_hosts(&name), FileOwner::Unknown);
        let dead = later.name_of(std::process::id()) + "0";
        assert_eq!(later.owner_among_hosts(&dead), FileOwner::Dead);
        for name in ["total.json", "lock", "", "a-b-c-d", "new-12-0"] {
            assert_eq!(view.owner(name), FileOwner::Unknown, "{name}");
        }
    }
}
