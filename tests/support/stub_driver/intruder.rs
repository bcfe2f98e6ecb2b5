//! What a source can do that takes over the compiler.

use std::ffi::CString;
use std::net::UdpSocket;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Tries what a confined process must not do, if the directory in `STUB_INTRUDE` has a file `go`, and lists in the cache directory, as
/// `intruded`, what was possible.
pub fn intrude() {
    let directory = env::var_os("STUB_INTRUDE").map(PathBuf::from);
    let Some(directory) = directory.filter(|directory| directory.join("go").exists()) else {
        return;
    };
    let is_cut = |path: &Path| {
        let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: a C string.
        unsafe { libc::truncate(path.as_ptr(), 1) == 0 }
    };
    // SAFETY: it takes nothing.
    let parent = unsafe { libc::getppid() };
    // SAFETY: signal 0 only asks whether another one could be sent.
    let can_signal = || unsafe { libc::kill(parent, 0) == 0 };
    // Spelled backwards: the cache takes a driver that has this name in its text for one that reads the file of its own process.
    let variables: String = "norivne".chars().rev().collect();
    let tried = [
        ("read", fs::read(directory.join("secret")).is_ok()),
        ("list", fs::read_dir(&directory).is_ok()),
        ("write", fs::write(directory.join("written"), "").is_ok()),
        ("cut", is_cut(&directory.join("secret"))),
        ("remove", fs::remove_file(directory.join("secret")).is_ok()),
        ("internet", UdpSocket::bind("127.0.0.1:0").is_ok()),
        ("local socket", UnixDatagram::unbound().is_ok()),
        ("variable", env::var_os("SSH_AUTH_SOCK").is_some()),
        (
            "neighbor",
            fs::read(format!("/proc/{parent}/{variables}")).is_ok(),
        ),
        ("signal", can_signal()),
    ];
    let possible = tried.iter().filter(|(_, is_possible)| *is_possible);
    let names: Vec<&str> = possible.map(|(name, _)| *name).collect();
    let cache = env::var_os("OCLCACHE_DIR").map(PathBuf::from);
    let report = cache.expect("a cache").join("intruded");
    fs::write(report, names.join(", ")).expect("the cache can be written");
}
