//! A lock that is an abstract Unix socket: only one socket can be bound to a name.
//!
//! Any user may bind any name, so the lock asks who listens there.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::guarded_file::{GuardedFile, beyond_streams};
use crate::peer_credentials;
use crate::trust;

/// Pending connections of a holder. Each question who listens stays pending until the lock is given back.
const BACKLOG: i32 = 4096;

/// How often to ask who holds a name, and the pause in between: a holder does not listen yet right after it has bound the name.
pub const ATTEMPTS: u32 = 20;
pub const PAUSE: Duration = Duration::from_millis(1);

/// For how long an answer is trusted, so that waiting processes ask seldom.
pub const TRUSTED: Duration = Duration::from_secs(1);

/// Who has bound a name.
pub enum Holder {
    ThisUser,
    /// Another user, or unknown because too many processes ask.
    Other,
    /// Nobody listens at the moment.
    NotYet,
}

/// The name for a byte of the locks of a directory.
pub fn address(device: u64, inode: u64, byte: u64) -> Result<SocketAddrUnix> {
    let user = rustix::process::geteuid().as_raw();
    let name = format!("oclcache-{user}-{device:x}-{inode:x}-{byte:x}");
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    socket.and_then(beyond_streams)
}

/// The lock; None: the name is bound.
pub fn bind(address: &SocketAddrUnix) -> Result<Option<GuardedFile>> {
    let socket = socket()?;
    match rustix::net::bind(&socket, address) {
        Ok(()) => {
            rustix::net::listen(&socket, BACKLOG)?;
            let guarded = GuardedFile::new(socket.into());
            let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
            guarded.map(Some).map_err(errno)
        }
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Who has bound the name.
pub fn holder(address: &SocketAddrUnix) -> Holder {
    let connected = socket().and_then(|socket| {
        rustix::net::connect(&socket, address)?;
        Ok(socket)
    });
    match connected {
        Ok(socket) if peer_credentials::of(&socket).is_ok_and(|peer| trust::is_own(peer.user)) => {
            Holder::ThisUser
        }
        Err(Errno::CONNREFUSED | Errno::INTR) => Holder::NotYet,
        Ok(_) | Err(_) => Holder::Other,
    }
}
