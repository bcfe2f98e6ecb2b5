//! What a worker may do that compiles recipes of others. A compiler is large and has faults, and a source can name files.
//!
//! - Landlock: it reads the system's files and the driver's, and changes nothing but its private directory and the cache. Elsewhere it
//!   can open nothing, list nothing, run nothing, and it cannot look into other processes.
//! - A filter of system calls: it makes no socket, and reaches no keyring and no memory or queue that processes share by number.
//! - It has no capabilities, and gains no rights from programs that it runs.
//! - Of the user's variables it has those in [`KEPT`] and the driver's own.
//!
//! It can use the driver's devices, and it can write any entry into the cache. That is no more than the giver of the recipe may do
//! anyway, whose binaries are served as well.
//!
//! Where the kernel cannot do this, recipes from the store that machines share are not compiled.

#![allow(unsafe_code)] // system calls that no crate has safe functions for

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libc::{c_long, sock_filter, sock_fprog};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Variables of the user's that the worker keeps: what finds programs and libraries, and languages.
pub const KEPT: [&str; 5] = ["PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ"];

/// What the system has for everybody. Of `/etc` only what finds drivers and libraries: root can read all else there.
const READABLE: [&str; 20] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/bin",
    "/sbin",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/proc",
    "/sys",
    "/etc/OpenCL",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/nsswitch.conf",
    "/etc/os-release",
];
/// Devices, which are used by reading, writing and control calls.
const DEVICES: [&str; 9] = [
    "null", "zero", "full", "random", "urandom", "dri", "kfd", "dxg", "mali0",
];
/// The names of NVIDIA's begin with this.
const NVIDIA: &str = "nvidia";
/// No file of a driver's or of ours is as large.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Since version 3 (Linux 6.2) Landlock can refuse to cut files. Version 1 also refuses to move them between directories, which the
/// cache does.
const MIN_VERSION: c_long = 3;

// Of <linux/landlock.h>.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const TRUNCATE: u64 = 1 << 14;
/// All rights of version 3.
const ALL: u64 = (1 << 15) - 1;
/// Since version 5: control calls on devices.
const IOCTL_DEV: u64 = 1 << 15;
/// The rights that a rule for a file may have.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
/// Since version 6: abstract sockets of others, and signals to others.
const SCOPES: u64 = 0b11;
const VERSION_FLAG: c_long = 1;
const PATH_BENEATH: c_long = 1;

#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent: i32,
}

/// The kernel's name for the system calls of this program; None: the filter is not known here.
const ARCHITECTURE: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64"))
{
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};
/// Numbers from here on are those of x32, which has other ones for the same calls.
const X32: u32 = 0x4000_0000;

/// The calls that are refused. `io_uring` makes sockets of its own.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const REFUSED: &[c_long] = &[
    libc::SYS_socket,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_ptrace,
];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const REFUSED: &[c_long] = &[];

/// What a worker may use beside the system's files.
pub struct Allowed<'a> {
    /// What it reads: see [`of_driver`].
    pub readable: &'a [PathBuf],
    /// What it changes: its private directory and the cache.
    pub writable: [&'a Path; 2],
}

/// Why nothing can be confined here; None if it can.
pub fn refusal() -> Option<String> {
    match (ARCHITECTURE, version()) {
        (None, _) => Some("no filter of system calls is known for this processor".to_owned()),
        (_, Ok(MIN_VERSION..)) => None,
        (_, Ok(version)) => Some(format!(
            "this kernel has version {version} of Landlock, and Linux 6.2 has {MIN_VERSION}"
        )),
        (_, Err(error)) => Some(format!("this kernel has no Landlock: {error}")),
    }
}

/// Confines this process and all that it starts, for good. Only while it has one thread.
///
/// # Errors
/// Why it cannot be confined: then it must compile nothing.
pub fn confine(allowed: &Allowed) -> Result<(), String> {
    let failed = |error: io::Error| format!("it cannot be confined: {error}");
    if let Some(why) = refusal() {
        return Err(format!("it cannot be confined: {why}"));
    }
    // Landlock and the filter hold for the calling thread and for what it starts.
    let threads = fs::read_dir("/proc/self/task").map_err(failed)?.count();
    if threads != 1 {
        return Err(format!("it cannot be confined: it has {threads} threads"));
    }
    let most = |old: Option<u64>| Some(old.map_or(MAX_FILE_BYTES, |old| old.min(MAX_FILE_BYTES)));
    let old = getrlimit(Resource::Fsize);
    let limit = Rlimit {
        current: most(old.current),
        maximum: most(old.maximum),
    };
    setrlimit(Resource::Fsize, limit).map_err(|error| failed(error.into()))?;
    rustix::thread::set_no_new_privs(true).map_err(|error| failed(error.into()))?;
    // Root's capabilities: with them the variables of other processes can be read in spite of Landlock (CAP_PERFMON, measured on Linux
    // 6.18). Programs that root starts would have them again, but for the line above.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).map_err(|error| failed(error.into()))?;
    restrict_files(allowed).map_err(failed)?;
    filter_calls().map_err(failed)
}

/// The version of Landlock.
fn version() -> io::Result<c_long> {
    // SAFETY: with this flag the kernel reads no attributes and makes no ruleset.
    call(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<RulesetAttributes>(),
            0_usize,
            VERSION_FLAG,
        )
    })
}

fn call(result: c_long) -> io::Result<c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn restrict_files(allowed: &Allowed) -> io::Result<()> {
    let version = version()?;
    let handled = if version >= 5 { ALL | IOCTL_DEV } else { ALL };
    let attributes = RulesetAttributes {
        handled_access_fs: handled,
        handled_access_net: 0,
        scoped: if version >= 6 { SCOPES } else { 0 },
    };
    // SAFETY: the attributes live, and have this length. Older kernels take longer ones if the rest is zero.
    let ruleset = call(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<RulesetAttributes>(),
            0,
        )
    })?;
    // SAFETY: the kernel has just given this descriptor, and nobody else has it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset as i32) };
    let read = READ_FILE | READ_DIR | EXECUTE;
    let program = std::env::current_exe()?;
    let given = allowed.readable.iter().map(PathBuf::as_path);
    let readable = READABLE.iter().map(Path::new).chain([program.as_path()]);
    for path in readable.chain(given) {
        allow(&ruleset, path, read)?;
    }
    for device in devices() {
        allow(&ruleset, &device, (read | WRITE_FILE | IOCTL_DEV) & handled)?;
    }
    for path in allowed.writable {
        allow(&ruleset, path, ALL)?;
    }
    // SAFETY: a ruleset, and no flags.
    call(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })?;
    Ok(())
}

/// The directories with a driver's files that may lie outside of the system's: that of its library, and those in which the user has
/// libraries and programs looked for. A driver that runs a linker is identified by it, so these directories are listed. One that has the
/// user's own directory below it is left out: it would open all files there.
pub fn of_driver(library: &Path) -> Vec<PathBuf> {
    let real = |path: &Path| path.canonicalize().ok();
    let library = real(library).filter(|_| library.is_absolute());
    let own = library.and_then(|library| Some(library.parent()?.to_owned()));
    let listed = ["LD_LIBRARY_PATH", "PATH"].map(|name| std::env::var_os(name).unwrap_or_default());
    let searched = listed.iter().flat_map(std::env::split_paths);
    let searched = searched.filter(|path| path.is_absolute());
    let home = std::env::var_os("HOME").and_then(|home| real(Path::new(&home)));
    let is_above_home = |path: &PathBuf| home.as_ref().is_some_and(|home| home.starts_with(path));
    let directories = own
        .into_iter()
        .chain(searched.filter_map(|path| real(&path)));
    directories.filter(|path| !is_above_home(path)).collect()
}

fn devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let nvidia = entries.filter(|entry| {
        entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(NVIDIA.as_bytes())
    });
    let known = DEVICES.iter().map(|name| Path::new("/dev").join(name));
    known.chain(nvidia.map(|entry| entry.path())).collect()
}

/// Adds a rule. What is not there needs none.
fn allow(ruleset: &OwnedFd, path: &Path, rights: u64) -> io::Result<()> {
    let Ok(opened) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return Ok(());
    };
    let is_directory = FileType::from_raw_mode(fstat(&opened)?.st_mode).is_dir();
    let rights = match is_directory {
        true => rights,
        false => rights & OF_FILES,
    };
    let rule = PathBeneath {
        allowed_access: rights,
        parent: opened.as_raw_fd(),
    };
    // SAFETY: the rule and the descriptors live.
    call(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            PATH_BENEATH,
            &raw const rule,
            0,
        )
    })?;
    Ok(())
}

// Instructions of the filter (seccomp(2), <linux/bpf_common.h>).
/// Loads the word at this place of `struct seccomp_data`.
const LOAD: u16 = 0x20;
/// Compares the loaded word with a constant, and skips one number of instructions if they are equal, another if not.
const IF_EQUAL: u16 = 0x15;
/// The same if the word is at least the constant.
const IF_AT_LEAST: u16 = 0x35;
/// Ends with a verdict.
const END: u16 = 0x06;
/// The place of the number of the call.
const NUMBER: u32 = 0;
/// The place of the architecture.
const OF_ARCHITECTURE: u32 = 4;

fn filter_calls() -> io::Result<()> {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let architecture = ARCHITECTURE.unwrap_or_default();
    let mut instructions = vec![
        instruction(LOAD, 0, 0, OF_ARCHITECTURE),
        // Programs of other architectures have other numbers.
        instruction(IF_EQUAL, 1, 0, architecture),
        instruction(END, 0, 0, refused),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(IF_AT_LEAST, 0, 1, X32),
        instruction(END, 0, 0, refused),
    ];
    for number in REFUSED {
        instructions.push(instruction(IF_EQUAL, 0, 1, *number as u32));
        instructions.push(instruction(END, 0, 0, refused));
    }
    instructions.push(instruction(END, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = sock_fprog {
        len: instructions.len() as u16,
        filter: instructions.as_mut_ptr(),
    };
    // SAFETY: a program of that many instructions, which live until the kernel has copied them.
    call(c_long::from(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    }))?;
    Ok(())
}
