//! The socket, as Tokio waits for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use oclcache::remote::protocol::{self, Answer, MAX_REQUEST_BYTES, Request};
use oclcache::remote::socket::{self, Listener};
use tokio::io::unix::AsyncFd;

/// Accepts clients.
pub struct Acceptor {
    listener: Listener,
    /// Another descriptor of the same socket.
    ready: AsyncFd<OwnedFd>,
}

impl Acceptor {
    /// Waits at a listener. Only inside of a runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn new(listener: Listener) -> io::Result<Acceptor> {
        let ready = watch(listener.as_fd().try_clone_to_owned()?)?;
        Ok(Acceptor { listener, ready })
    }

    /// The next client.
    ///
    /// # Errors
    /// The system's.
    pub async fn accept(&self) -> io::Result<Connection> {
        loop {
            let mut guard = self.ready.readable().await?;
            match guard.try_io(|_| self.listener.accept()) {
                Ok(Ok(socket)) => return Ok(Connection(watch(socket)?)),
                Ok(Err(error)) if is_of_client(&error) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    /// Whether the socket still has its name.
    pub fn is_reachable(&self) -> bool {
        self.listener.is_reachable()
    }
}

/// Lets the runtime wait for a descriptor.
fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Tokio deprecates it for types whose descriptor may change. That of an `OwnedFd` does not, and the
    // replacement is unsafe.
    #[expect(deprecated, reason = "sound with an OwnedFd")]
    AsyncFd::new(socket)
}

/// Whether the client has gone before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
    )
}

/// A client.
pub struct Connection(AsyncFd<OwnedFd>);

/// Why there is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRequest {
    /// The client has hung up, or has sent something else.
    Gone,
    /// It has sent a message of this version of the protocol.
    OtherVersion(u8),
}

impl Connection {
    /// The next request.
    ///
    /// # Errors
    /// There is none that this helper understands: the connection is to be closed.
    pub async fn request(&self) -> Result<Request, NoRequest> {
        let mut packet = [0; MAX_REQUEST_BYTES];
        loop {
            let mut guard = self.0.readable().await.map_err(|_| NoRequest::Gone)?;
            match guard.try_io(|socket| socket::receive(socket.as_fd(), &mut packet)) {
                Ok(Ok(length)) => {
                    let packet = &packet[..length];
                    let other = protocol::other_version(packet);
                    let why = other.map_or(NoRequest::Gone, NoRequest::OtherVersion);
                    return Request::decode(packet).ok_or(why);
                }
                Ok(Err(_)) => return Err(NoRequest::Gone),
                Err(_would_block) => {}
            }
        }
    }

    /// Answers. A client that has gone is no error.
    pub fn answer(&self, answer: &Answer) {
        let _ = socket::send(self.0.get_ref().as_fd(), &answer.encode());
    }

    /// The process of the client; None: it has no number here.
    pub fn peer(&self) -> Option<u32> {
        socket::peer_process(self.0.get_ref().as_fd())
    }
}
