//! The names of the files, which identify the process and tell whether it has ended.

use std::fs;

use crate::proc_file;

/// Whether a process will still add to its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOwner {
    /// The process lives.
    Alive,
    /// The process is gone.
    Dead,
    /// The process is of another host or container, or the name has another form.
    Unknown,
}

/// The host and container from which processes are examined.
pub struct StatsView {
    /// The host and the namespace of processes: processes of another container have other numbers.
    host: String,
    /// Identifies the boot of the host.
    boot: String,
    /// This process. None if /proc does not show the processes of this namespace, but those of the host around a container, or none.
    own: Option<RunningProcess>,
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
        let host = rustix::system::uname();
        let processes = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let boot = proc_file::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = [
            host.nodename().to_bytes(),
            b"\0",
            processes.as_os_str().as_encoded_bytes(),
        ];
        let own = RunningProcess::at("/proc/self/stat");
        StatsView {
            host: digits(&host.concat()),
            boot: digits(&boot),
            own: own.filter(|own| own.number == std::process::id()),
        }
    }

    /// The name of a process's file. A process keeps it when it executes another program.
    pub fn name_of(&self, process: u32) -> String {
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
        let (Ok(process), Ok(start)) = (process.parse(), start.parse()) else {
            return FileOwner::Unknown;
        };
        if host != self.host {
            FileOwner::Unknown
        } else if boot != self.boot {
            FileOwner::Dead
        } else if start == 0 || self.own.is_none() {
            FileOwner::Unknown
        } else if self.start_time(process) == Some(start) {
            FileOwner::Alive
        } else {
            FileOwner::Dead
        }
    }

    /// When a process started, in ticks since boot. None if there is none, or if that is unknown.
    fn start_time(&self, process: u32) -> Option<u64> {
        let own = self.own?;
        if own.number == process {
            return Some(own.start);
        }
        Some(RunningProcess::at(&format!("/proc/{process}/stat"))?.start)
    }
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
        let stat = proc_file::read(path).ok()?;
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
        for name in ["total.json", "lock", "", "a-b-c-d", "new-12-0"] {
            assert_eq!(view.owner(name), FileOwner::Unknown, "{name}");
        }
    }
}
