//! The messages between programs and `oclcache-remote`, the helper, and their encoding.
//!
//! They travel over a Unix socket of the kind SEQPACKET, so one packet is one message. A client opens one connection per question.
//!
//! ```text
//! packet  = magic version body
//! magic   = "oclr"                                  4 bytes
//! version = 2                                       1 byte
//! body    = the postcard encoding of [`Request`] or [`Answer`]
//! ```
//!
//! A request takes at most [`MAX_REQUEST_BYTES`], an answer at most [`MAX_ANSWER_BYTES`]. Other packets, and those of another version,
//! are refused whole: the other side hangs up at once. The version is part of the socket's name ([`super::socket`]), so helpers and
//! libraries of different versions do not meet: each version has a helper of its own. A library that was replaced while it is in use
//! finds the helper of another version beside it. It starts that with [`PROTOCOL`] and its own version, so that the helper can refuse to
//! serve it and say so ([`super::state::OtherVersion`]).
//!
//! | request | answers, in order                                                                                  |
//! | ------- | -------------------------------------------------------------------------------------------------- |
//! | HELLO   | none: the client closes the connection at once                                                     |
//! | GET     | exactly one of HIT, MISS, LEASED, LATER, OPEN; or ELSEWHERE, and later one of HIT, MISS, LEASED    |
//! | PUT     | none                                                                                               |
//! | DONE    | none; on the connection of the GET that was answered with LEASED                                   |
//! | STATUS  | TEXT                                                                                               |
//! | FLUSH   | LEFT, at the latest after the given time                                                           |
//! | STOP    | LEFT, before the helper ends                                                                       |
//!
//! A client that hangs up does not end its request: the helper still stores what arrives, for next time.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::key::ingredients::Key;

/// The version of the messages and of their encoding, and of the formats of keys and entries, which the helper reads with the library's
/// own code. No number changes its meaning.
pub const VERSION: u8 = 4;
/// The maximum size of a request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 256;
/// The maximum size of an answer, in bytes.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;
/// The maximum length of the text in [`Answer::Text`], in bytes. Longer texts are cut.
pub const MAX_TEXT_BYTES: usize = 60 << 10;

/// The option by which a library tells the helper that it starts the version of its messages.
pub const PROTOCOL: &str = "--protocol";

const MAGIC: &[u8; 4] = b"oclr";
const HEAD: usize = MAGIC.len() + 1;

/// A question of a program or of the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A driver was loaded: the helper connects to the store meanwhile.
    Hello,
    /// The local store has no entry of a key.
    Get(Get),
    /// The outbox has a new marker for this key.
    Put(Key),
    /// The build for which the client holds a lease has ended.
    Done {
        /// The key of the lease.
        key: Key,
        /// Whether the local store has its entry now, which the helper uploads before it gives the lease back. If not, the waiting
        /// hosts build for themselves.
        is_stored: bool,
    },
    /// What is the state, for people?
    Status,
    /// Send what is in the outbox now.
    Flush {
        /// How long the client waits, in milliseconds.
        wait_ms: u32,
    },
    /// End: finish what is being sent, and leave the rest in the outbox.
    Stop,
}

/// The question for an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// The key.
    pub key: Key,
    /// The first key that this process missed, which names the bundle of its keys. Equal to `key` in the first question.
    pub first_missed: Key,
    /// How long the client waits for an answer, in microseconds. 0: it has hung up already, and the question is a hint.
    pub wait_us: u32,
    /// How long the driver is expected to compile it, in microseconds. 0: unknown.
    pub estimate_us: u64,
    /// Whether the client takes a lease, and waits for another host that has it.
    pub wants_lease: bool,
}

/// An answer of the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The local store has the entry now.
    Hit,
    /// The remote store has no entry that may be used.
    Miss,
    /// The remote store has no entry, and this connection has the lease: build it, then send DONE or hang up.
    Leased,
    /// It will not arrive in time.
    Later,
    /// The store is not asked for this time, in milliseconds, because it failed.
    Open {
        /// The time.
        retry_ms: u32,
    },
    /// Another host has the lease and builds it. Another answer follows; the client waits for it as long as it wants.
    Elsewhere,
    /// The state, for people.
    Text(String),
    /// How many markers the outbox still has.
    Left(u32),
}

impl Request {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        packet(self)
    }

    /// The request of a packet. None if it is not one of this version.
    pub fn decode(packet: &[u8]) -> Option<Request> {
        body(packet, MAX_REQUEST_BYTES)
    }
}

impl Answer {
    /// The packet. A text that is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Text(text) if text.len() > MAX_TEXT_BYTES => {
                let mut end = MAX_TEXT_BYTES;
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                packet(&Answer::Text(text[..end].to_owned()))
            }
            answer => packet(answer),
        }
    }

    /// The answer of a packet. None if it is not one of this version.
    pub fn decode(packet: &[u8]) -> Option<Answer> {
        body(packet, MAX_ANSWER_BYTES)
    }
}

/// The version of a packet, if it is one of ours and of another version.
pub fn other_version(packet: &[u8]) -> Option<u8> {
    let version = *packet.strip_prefix(MAGIC)?.first()?;
    (version != VERSION).then_some(version)
}

fn packet(message: &impl Serialize) -> Vec<u8> {
    let mut packet = Vec::with_capacity(MAX_REQUEST_BYTES);
    packet.extend(MAGIC);
    packet.push(VERSION);
    // No message of ours can fail to encode.
    packet.extend(crate::framing::to_postcard(message).unwrap_or_default());
    packet
}

fn body<T: DeserializeOwned>(packet: &[u8], limit: usize) -> Option<T> {
    let (head, body) = packet.split_at_checked(HEAD)?;
    let is_ours = packet.len() <= limit && head.starts_with(MAGIC) && head[MAGIC.len()] == VERSION;
    let (message, rest) = is_ours
        .then(|| postcard::take_from_bytes(body).ok())
        .flatten()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key, store};

    #[test]
    fn the_version_stands_for_the_formats_of_keys_and_entries() {
        let formats = (key::ingredients::VERSION, store::entry::VERSION);
        assert_eq!(
            (VERSION, formats),
            (4, (11, 4)),
            "raise VERSION with a format: a helper of the former one would ask for keys that nobody has"
        );
    }

    fn requests() -> Vec<Request> {
        let (key, first_missed) = (Key([0xff; 32]), Key([7; 32]));
        let get = Get {
            key,
            first_missed,
            wait_us: u32::MAX,
            estimate_us: u64::MAX,
            wants_lease: true,
        };
        vec![
            Request::Hello,
            Request::Get(get),
            Request::Put(key),
            Request::Done {
                key,
                is_stored: true,
            },
            Request::Status,
            Request::Flush { wait_ms: u32::MAX },
            Request::Stop,
        ]
    }

    #[test]
    fn each_message_fits_its_packet_and_comes_back() {
        for request in requests() {
            let packet = request.encode();
            assert!(packet.len() <= MAX_REQUEST_BYTES, "{request:?}");
            assert_eq!(Request::decode(&packet), Some(request));
        }
        let retry_ms = u32::MAX;
        for answer in [
            Answer::Hit,
            Answer::Miss,
            Answer::Leased,
            Answer::Later,
            Answer::Open { retry_ms },
            Answer::Elsewhere,
            Answer::Text("one\ntwo".to_owned()),
            Answer::Left(3),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn a_packet_that_is_cut_longer_or_of_another_version_is_refused() {
        for request in requests() {
            let packet = request.encode();
            for end in 0..packet.len() {
                assert_eq!(Request::decode(&packet[..end]), None, "{request:?}");
            }
            assert_eq!(Request::decode(&[&packet[..], b"x"].concat()), None);
            for place in 0..HEAD {
                let mut changed = packet.clone();
                changed[place] ^= 1;
                assert_eq!(Request::decode(&changed), None, "{request:?}");
            }
        }
        let unknown = [&MAGIC[..], &[VERSION, 0x63]].concat();
        assert_eq!(Answer::decode(&unknown), None);
    }

    #[test]
    fn of_a_packet_of_another_version_the_version_is_known() {
        let mut packet = Request::Status.encode();
        assert_eq!(other_version(&packet), None);
        for version in [0, VERSION + 1, u8::MAX] {
            packet[MAGIC.len()] = version;
            assert_eq!(other_version(&packet), Some(version));
        }
        assert_eq!(other_version(b"oclr"), None);
        assert_eq!(other_version(b"GET /"), None);
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        let long = "x".to_owned() + &"é".repeat(MAX_TEXT_BYTES);
        let packet = Answer::Text(long).encode();
        assert!(packet.len() <= MAX_ANSWER_BYTES);
        let Some(Answer::Text(text)) = Answer::decode(&packet) else {
            panic!("not a text");
        };
        assert!(text.len() > MAX_TEXT_BYTES - 2 && text.ends_with('é'));
    }
}
