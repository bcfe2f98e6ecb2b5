//! The host, told from others and from itself before it was restarted.

use once_cell::race::OnceBox;

use crate::proc_file;

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
