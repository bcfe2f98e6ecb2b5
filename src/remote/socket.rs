//! The socket of the helper: where it is, and how both sides use it.
//!
//! ```text
//! <cache directory>/v1/remote/<name>           the socket, or
//! $XDG_RUNTIME_DIR/oclcache-remote/<name>      where the file system of the cache directory can hold none (FUSE, Lustre, 9p)
//! <the same directory>/<name>.lock             locked by the helper that serves
//! ```
//!
//! The name is a hash of all that two processes must share to share a helper: the version of the protocol, the host and its boot, the
//! user, the namespaces of users, mounts and the network, the cache directory, where the user's files of settings and of state are, and
//! the settings of the remote level. A path of a socket may have 107 bytes, so the directory is reached through `/proc/self/fd`.
//!
//! Each side asks the kernel who the other one is, and hangs up unless it certainly is its own user. In a user namespace
//! one number may stand for every user outside.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::protocol::{Answer, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request, VERSION};
use crate::config::{Config, Name};
use crate::guarded_file::{GuardedFile, beyond_streams};
use crate::host;
use crate::key::ingredients::{hex, sha256};
use crate::peer_credentials;
use crate::proc_file;
use crate::store::directory::Directory;
use crate::trust;

/// The directory of the socket below the directory of this format, and of the state of the helper.
pub(super) const DIRECTORY: &str = "remote";
/// The same in the user's directory for runtime files.
const RUNTIME_DIRECTORY: &str = "oclcache-remote";
/// Added to the name of the socket.
const LOCK: &str = ".lock";
/// The bytes of the name, before they are written as hexadecimal digits.
const NAME_BYTES: usize = 16;
/// Connections that the helper has not accepted yet.
const BACKLOG: i32 = 128;

/// The settings that the name covers. The secret key is not among them: a program does not get it from `oclcache run`, and is to find the
/// helper that has it.
const COVERED: [Name; 11] = [
    Name::Remote,
    Name::RemoteReadonly,
    Name::RemoteTrust,
    Name::RemoteTrustLocked,
    Name::RemoteKeyFile,
    Name::RemoteCredentials,
    Name::RemoteCa,
    Name::RemoteContent,
    Name::RemoteBake,
    Name::RemoteTtl,
    Name::MaxSize,
];

/// The name of the socket, and of the files beside it, for this process and these settings. `root` is the cache's directory of this
/// format.
pub(super) fn name(config: &Config, root: &Directory) -> String {
    let mut parts = vec![vec![VERSION], geteuid().as_raw().to_le_bytes().to_vec()];
    parts.push(host::name().to_vec());
    parts.push(proc_file::read("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    for namespace in ["user", "mnt", "net"] {
        let link = std::fs::read_link(format!("/proc/self/ns/{namespace}"));
        parts.push(
            link.unwrap_or_default()
                .into_os_string()
                .into_encoded_bytes(),
        );
    }
    let (device, inode) = root.identity().unwrap_or_default();
    parts.push([device.to_le_bytes(), inode.to_le_bytes()].concat());
    // The outbox is below the one, and the revoked keys are beside the other.
    let places = [config.state_directory(), config.user_file()];
    parts.extend(places.map(|path| {
        path.unwrap_or_default()
            .into_os_string()
            .into_encoded_bytes()
    }));
    let values = COVERED.iter().map(|name| &config.value(*name).0);
    parts.extend(values.map(|value| value.as_encoded_bytes().to_vec()));
    let mut all = Vec::new();
    for part in parts {
        all.extend((part.len() as u64).to_le_bytes());
        all.extend(part);
    }
    hex(&sha256(&all)[..NAME_BYTES])
}

/// A directory in which the socket may be.
struct Place {
    directory: Directory,
    name: String,
}

impl Place {
    fn address(&self) -> io::Result<SocketAddrUnix> {
        let path = self.directory.short_path(&self.name);
        let path = path.ok_or(io::ErrorKind::NotFound)?;
        Ok(SocketAddrUnix::new(path)?)
    }
}

/// The user's directory for runtime files.
fn runtime_directory() -> PathBuf {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let given = given.filter(|path| path.is_absolute());
    let user = geteuid().as_raw();
    let directory = given.unwrap_or_else(|| Path::new("/run/user").join(user.to_string()));
    directory.join(RUNTIME_DIRECTORY)
}

/// The places where a helper may listen, the preferred one first. None of them is made.
fn places(name: &str, root: &Directory) -> impl Iterator<Item = Place> {
    let below = move || root.open_below(DIRECTORY).ok().flatten();
    let runtime = || Directory::open(&runtime_directory()).ok().flatten();
    let places = [0, 1].into_iter().filter_map(move |number| match number {
        0 => below(),
        _ => runtime(),
    });
    let name = name.to_owned();
    places.map(move |directory| Place {
        directory,
        name: name.clone(),
    })
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(beyond_streams(socket)?)
}

/// Whether the process at the other end of a socket is of this user.
pub fn is_own_peer(socket: BorrowedFd<'_>) -> bool {
    peer_credentials::of(socket).is_ok_and(|peer| trust::is_own(peer.user))
}

/// The number of the process at the other end of a socket; None: it has none in this process's namespace.
pub fn peer_process(socket: BorrowedFd<'_>) -> Option<u32> {
    Some(peer_credentials::of(socket).ok()?.process?.get())
}

/// A connection to the helper.
#[derive(Debug)]
pub(super) struct Connection(GuardedFile);

/// Connects to the helper. None if none listens.
pub(super) fn connect(name: &str, root: &Directory) -> Option<Connection> {
    places(name, root).find_map(|place| {
        let socket = socket().ok()?;
        // A queue that is full (EAGAIN) is that of a helper that hangs.
        rustix::net::connect(&socket, &place.address().ok()?).ok()?;
        if !is_own_peer(socket.as_fd()) {
            return None;
        }
        Some(Connection(GuardedFile::new(socket.into()).ok()?))
    })
}

impl Connection {
    /// Sends a request. Waits for nothing.
    pub fn ask(&self, request: &Request) -> io::Result<()> {
        send(self.0.descriptor()?, &request.encode())
    }

    /// The next answer; None if there is none by this time.
    ///
    /// # Errors
    /// The helper has hung up, or sent something else.
    pub fn answer(&self, until: Instant) -> io::Result<Option<Answer>> {
        if !is_readable(self.0.descriptor()?, until)? {
            return Ok(None);
        }
        let mut packet = [0; MAX_REQUEST_BYTES];
        let length = receive(self.0.descriptor()?, &mut packet)?;
        let answer = Answer::decode(&packet[..length]);
        answer.map(Some).ok_or(io::ErrorKind::InvalidData.into())
    }

    /// [`Connection::answer`] for answers that may have a text.
    fn long_answer(&self, until: Instant) -> io::Result<Option<Answer>> {
        if !is_readable(self.0.descriptor()?, until)? {
            return Ok(None);
        }
        let mut packet = vec![0; MAX_ANSWER_BYTES];
        let length = receive(self.0.descriptor()?, &mut packet)?;
        let answer = Answer::decode(&packet[..length]);
        answer.map(Some).ok_or(io::ErrorKind::InvalidData.into())
    }
}

/// Waits until there is something to read, or the other side has hung up.
fn is_readable(socket: BorrowedFd<'_>, until: Instant) -> io::Result<bool> {
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let rest = Timespec::try_from(rest).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&rest)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a packet at once.
///
/// # Errors
/// The other side has hung up, or its queue is full.
pub fn send(socket: BorrowedFd<'_>, packet: &[u8]) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| rustix::net::send(socket, packet, flags))?;
    Ok(())
}

/// Receives a packet at once. Returns its length.
///
/// # Errors
/// There is none yet ([`io::ErrorKind::WouldBlock`]); the other side has hung up ([`io::ErrorKind::UnexpectedEof`]); or the packet is
/// larger than the buffer ([`io::ErrorKind::InvalidData`]).
pub fn receive(socket: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<usize> {
    // With TRUNC the length is that of the packet, not that of what fits.
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (_, length) = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *packet, flags))?;
    match length {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length if length > packet.len() => Err(io::ErrorKind::InvalidData.into()),
        length => Ok(length),
    }
}

/// The helper's end.
pub struct Listener {
    socket: OwnedFd,
    place: Place,
    // Locked as long as the helper serves.
    _lock: std::fs::File,
}

impl Listener {
    /// Listens, unless another helper does: then the result is None.
    pub(super) fn bind(name: &str, root: &Directory) -> io::Result<Option<Listener>> {
        let below = || root.create(DIRECTORY).map_err(|error| error.error);
        let runtime = || Directory::create_all(&runtime_directory()).map_err(|error| error.error);
        let listen = |directory: io::Result<Directory>| {
            let name = name.to_owned();
            Listener::listen(Place {
                directory: directory?,
                name,
            })
        };
        listen(below()).or_else(|error| listen(runtime()).map_err(|_| error))
    }

    fn listen(place: Place) -> io::Result<Option<Listener>> {
        let lock = place
            .directory
            .open_or_create_file(&format!("{}{LOCK}", place.name))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let socket = socket()?;
        // Left by a helper that was killed.
        place
            .directory
            .remove(&place.name)
            .map_err(|error| error.error)?;
        let address = place.address()?;
        rustix::net::bind(&socket, &address)?;
        if let Some(path) = address.path() {
            rustix::fs::chmodat(
                CWD,
                path,
                Mode::RUSR | Mode::WUSR,
                rustix::fs::AtFlags::empty(),
            )?;
        }
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Some(Listener {
            socket,
            place,
            _lock: lock,
        }))
    }

    /// Accepts a connection of this user; others are closed. Both the listener and the connection do not block.
    ///
    /// # Errors
    /// There is none yet ([`io::ErrorKind::WouldBlock`]), or the system's.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let peer = rustix::io::retry_on_intr(|| rustix::net::accept_with(&self.socket, flags))?;
            if is_own_peer(peer.as_fd()) {
                return Ok(peer);
            }
        }
    }

    /// Whether the socket still has its name: the cache directory may have been removed.
    pub fn is_reachable(&self) -> bool {
        !self.place.directory.is_lost()
            && self.place.directory.modified_ms(&self.place.name).is_some()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.place.directory.remove(&self.place.name);
    }
}

/// Asks the helper, and waits for its answer. None if none listens or answers in time.
pub(super) fn ask(
    name: &str,
    root: &Directory,
    request: &Request,
    wait: Duration,
) -> Option<Answer> {
    let connection = connect(name, root)?;
    connection.ask(request).ok()?;
    connection.long_answer(Instant::now() + wait).ok()?
}
