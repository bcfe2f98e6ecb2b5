//! The host, told from others and from itself before it was restarted.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use once_cell::race::OnceBox;
use rustix::fs::major;

use crate::filesystem::FileSystem;
use crate::proc_file;

/// The name space of host names that the kernel begins with. Its number is the kernel's PROC_UTS_INIT_INO, which no other one gets.
const FIRST_NAMES: &[u8] = b"uts:[4026531838]";

/// The name of the host. Read once.
pub fn name() -> &'static [u8] {
    static NAME: OnceBox<Vec<u8>> = OnceBox::new();
    NAME.get_or_init(|| Box::new(rustix::system::uname().nodename().to_bytes().to_vec()))
}

/// The random number of this start of the system, as text; None if it cannot be read. Read once.
pub fn boot() -> Option<&'static [u8]> {
    static BOOT: OnceBox<Option<Vec<u8>>> = OnceBox::new();
    let read = || Box::new(proc_file::read_line("/proc/sys/kernel/random/boot_id").ok());
    BOOT.get_or_init(read).as_deref()
}

/// Tells hosts apart by what devices and inodes are of. Read once.
///
/// That is the name, but of a container with overlays the start of the kernel and the device of its root. Its name is one that nobody has
/// again, as Docker makes them. The device is that of the containers before it (measured: the kernel gives the lowest number that is free,
/// and files have the inodes and times of the image's), and those that run beside it have others.
pub fn of_files() -> &'static [u8] {
    static HOST: OnceBox<Vec<u8>> = OnceBox::new();
    HOST.get_or_init(|| Box::new(of_container().unwrap_or_else(|| name().to_vec())))
}

/// None: it is no container, or its root is no overlay. Those of LXC keep their names and devices, and have random numbers for the start
/// of the kernel.
fn of_container() -> Option<Vec<u8>> {
    let root = Path::new("/");
    let device = metadata(root).ok()?.dev();
    // An overlay is on no disk, as are Btrfs, tmpfs and file systems of networks. On a disk this is the only call.
    if major(device) != 0 {
        return None;
    }
    let names = proc_file::own_link("ns/uts").ok()?;
    if names.as_os_str().as_encoded_bytes() == FIRST_NAMES || !FileSystem::at(root).is_overlay() {
        return None;
    }
    let device = device.to_string();
    Some([b"boot ", boot()?, b" root ", device.as_bytes()].concat())
}
