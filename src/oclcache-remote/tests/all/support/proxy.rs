//! A proxy that delays, cuts, changes or swallows what a server sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// What the proxy does to what the server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forwards, with this time in each direction.
    Forward(Duration),
    /// Accepts, and forwards nothing.
    BlackHole,
    /// Closes the connection after so many bytes of the server's.
    Cut(usize),
    /// Changes the byte at this place of all that the server sends on one connection.
    Flip(usize),
}

pub struct Proxy {
    pub port: u16,
    mode: Arc<Mutex<Mode>>,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    pub fn new(server: u16, mode: Mode) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let mode = Arc::new(Mutex::new(mode));
        let connections = Arc::new(AtomicUsize::new(0));
        let (shared, count) = (mode.clone(), connections.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
                let shared = shared.clone();
                std::thread::spawn(move || serve(client, server, shared));
            }
        });
        Proxy {
            port,
            mode,
            connections,
        }
    }

    pub fn set(&self, mode: Mode) {
        *self.mode.lock().expect("no panic") = mode;
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

fn serve(client: TcpStream, server: u16, mode: Arc<Mutex<Mode>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let pairs = [
        (client.try_clone(), server.try_clone(), false),
        (server.try_clone(), client.try_clone(), true),
    ];
    for (from, to, is_of_server) in pairs {
        let (Ok(from), Ok(to)) = (from, to) else {
            return;
        };
        let mode = mode.clone();
        std::thread::spawn(move || pump(from, to, is_of_server, &mode));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, is_of_server: bool, mode: &Mutex<Mode>) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    let writer = std::thread::spawn(move || {
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut buffer, mut seen) = (vec![0; 64 << 10], 0);
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..length].to_vec();
        let mut delay = Duration::ZERO;
        let mut is_last = false;
        match *mode.lock().expect("no panic") {
            Mode::Forward(time) => delay = time,
            Mode::BlackHole => continue,
            Mode::Cut(limit) if is_of_server => {
                bytes.truncate(limit.saturating_sub(seen));
                is_last = seen + length >= limit;
            }
            Mode::Flip(place) if is_of_server => {
                if let Some(byte) = place
                    .checked_sub(seen)
                    .and_then(|place| bytes.get_mut(place))
                {
                    *byte ^= 0x40;
                }
            }
            Mode::Cut(_) | Mode::Flip(_) => {}
        }
        seen += length;
        if sender.send((Instant::now() + delay, bytes)).is_err() || is_last {
            break;
        }
    }
    drop(sender);
    let _ = writer.join();
    let _ = from.shutdown(Shutdown::Both);
}
