//! One object of the store: a signed header of fixed size, and a payload.
//!
//! ```text
//! object = magic kind codec zeros key-version entry-version zeros key created compile-ns length plain-length sha256 signer
//!          signature comment-signature payload
//! ```
//!
//! | field             | bytes | content                                                                  |
//! | ----------------- | ----- | ------------------------------------------------------------------------ |
//! | magic             | 24    | `oclcache-object-1`, zeros                                               |
//! | kind              | 1     | `e`, `b` or `l`                                                          |
//! | codec             | 1     | 0: the payload is plain; 1: zstd                                         |
//! | zeros             | 2     |                                                                          |
//! | key version       | 4     | of the library that made the key                                         |
//! | entry version     | 4     | of the library that wrote the payload                                    |
//! | zeros             | 4     |                                                                          |
//! | key               | 32    |                                                                          |
//! | created           | 8     | seconds since 1970, by the signer's clock                                |
//! | compile-ns        | 8     | how long the driver compiled                                             |
//! | length            | 8     | of the payload                                                           |
//! | plain-length      | 8     | of the payload, decompressed                                             |
//! | sha256            | 32    | of the payload                                                           |
//! | signer            | 8     | the id of a minisign key                                                 |
//! | signature         | 64    | minisign's, prehashed, of all bytes before it                            |
//! | comment-signature | 64    | minisign's second signature, of the first one and its trusted comment    |
//!
//! All integers are little-endian. What comes from a store may be hostile. [`open`] checks, in this order: the size of the header,
//! its lengths, that it is what was asked for, its signature, the digest of the payload; only then it decompresses, into at most as
//! many bytes as the header says.

use std::fmt;
use std::io::Read;

use sha2::{Digest, Sha256};

/// The first bytes of each object.
const MAGIC: &[u8; 24] = b"oclcache-object-1\0\0\0\0\0\0\0";
/// The bytes that are signed.
pub const SIGNED: usize = 144;
/// The size of a header, in bytes.
pub const HEADER: usize = SIGNED + 64 + 64;
/// Larger objects are neither written nor read, in bytes.
pub const MAX_OBJECT_BYTES: u64 = 16 << 20;
/// Larger payloads are neither compressed nor decompressed, in bytes.
pub const MAX_PLAIN_BYTES: u64 = 256 << 20;
/// Measured on 71 entries: 2.5 times smaller; higher levels take longer than they save on a fast network.
const LEVEL: i32 = 3;

/// What an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An entry with binaries.
    Entry,
    /// An entry without binaries: what is needed to bake it. Under a name of its own, so that it is in no baked entry's place.
    Recipe,
    /// The keys that one process used.
    Bundle,
}

impl Kind {
    /// The letter in headers and names.
    pub fn letter(self) -> char {
        match self {
            Kind::Entry => 'e',
            Kind::Recipe => 'r',
            Kind::Bundle => 'b',
        }
    }

    /// The kind of this letter.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            b'e' => Some(Kind::Entry),
            b'r' => Some(Kind::Recipe),
            b'b' => Some(Kind::Bundle),
            _ => None,
        }
    }
}

/// The versions of formats, which are part of names and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Of keys.
    pub key: u32,
    /// Of entries.
    pub entry: u32,
}

/// The id of a minisign key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignerId(pub [u8; 8]);

impl SignerId {
    /// From the digits that minisign shows.
    pub fn parse(text: &str) -> Option<SignerId> {
        let number = u64::from_str_radix(text, 16).ok()?;
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| SignerId(number.to_le_bytes()))
    }
}

impl fmt::Display for SignerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

impl fmt::Debug for SignerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Two signatures as minisign makes them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Of the hash of the data.
    pub of_data: [u8; 64],
    /// Of the first one and the trusted comment.
    pub of_comment: [u8; 64],
}

/// The fields of a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the payload is.
    pub kind: Kind,
    /// Whether the payload is compressed.
    pub is_compressed: bool,
    /// Of the formats.
    pub versions: Versions,
    /// The key.
    pub key: [u8; 32],
    /// Seconds since 1970, by the signer's clock.
    pub created: u64,
    /// How long the driver compiled, in nanoseconds.
    pub compile_ns: u64,
    /// Of the payload.
    pub length: u64,
    /// Of the payload, decompressed.
    pub plain_length: u64,
    /// Of the payload.
    pub sha256: [u8; 32],
    /// Who signed it.
    pub signer: SignerId,
}

/// Whether these are the first bytes of an object, of whatever version.
pub fn is_object(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The same of an object that was written in part.
pub fn is_part_of_object(bytes: &[u8]) -> bool {
    is_object(bytes) || MAGIC.starts_with(bytes)
}

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The kind.
    pub kind: Kind,
    /// The key.
    pub key: [u8; 32],
    /// The versions of this program.
    pub versions: Versions,
}

/// Why an object is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It does not begin with the header of an object of this version.
    Foreign,
    /// It ends too early, or is longer than its header says.
    Length,
    /// It says that it is larger than any object of ours.
    TooLarge,
    /// Its header names another kind, key or version.
    OtherKey,
    /// Nobody whom this machine trusts has signed it.
    Untrusted(SignerId),
    /// The signature is wrong.
    Signature(SignerId),
    /// The payload is not the one that was signed.
    Digest,
    /// It cannot be decompressed to the size that its header says.
    Compression,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Foreign => f.write_str("it is not an object of this version"),
            Refusal::Length => f.write_str("it is truncated or too long"),
            Refusal::TooLarge => f.write_str("it is too large"),
            Refusal::OtherKey => f.write_str("it is the object of another key or version"),
            Refusal::Untrusted(signer) => {
                write!(
                    f,
                    "it is signed by `{signer}`, whom this machine does not trust"
                )
            }
            Refusal::Signature(signer) => write!(f, "its signature by `{signer}` is wrong"),
            Refusal::Digest => f.write_str("its payload is not the one that was signed"),
            Refusal::Compression => f.write_str("it cannot be decompressed"),
        }
    }
}

/// Signs headers.
pub trait Signer {
    /// The id of the key.
    fn id(&self) -> SignerId;
    /// Signs bytes.
    ///
    /// # Errors
    /// For people: why they cannot be signed.
    fn sign(&self, data: &[u8]) -> Result<Signature, String>;
}

/// Verifies headers.
pub trait Verifier {
    /// Whether this signer, whom we trust, has signed the bytes. None: we do not trust the signer.
    fn verify(&self, signer: SignerId, data: &[u8], signature: &Signature) -> Option<bool>;
}

/// A verified object.
#[derive(Debug)]
pub struct Object {
    /// The header.
    pub header: Header,
    /// The payload, decompressed.
    pub payload: Vec<u8>,
}

impl Header {
    fn encode(&self) -> [u8; SIGNED] {
        let mut bytes = [0; SIGNED];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(MAGIC);
        put(&[self.kind.letter() as u8, u8::from(self.is_compressed), 0, 0]);
        put(&self.versions.key.to_le_bytes());
        put(&self.versions.entry.to_le_bytes());
        put(&[0; 4]);
        put(&self.key);
        for number in [
            self.created,
            self.compile_ns,
            self.length,
            self.plain_length,
        ] {
            put(&number.to_le_bytes());
        }
        put(&self.sha256);
        put(&self.signer.0);
        bytes
    }

    /// Reads a header and its signature from the first bytes of an object. Nothing is verified but the form.
    ///
    /// # Errors
    /// It is not the header of an object.
    pub fn parse(bytes: &[u8]) -> Result<(Header, Signature), Refusal> {
        let mut rest = bytes.get(..HEADER).ok_or(Refusal::Length)?;
        if !rest.starts_with(MAGIC) {
            return Err(Refusal::Foreign);
        }
        take::<24>(&mut rest)?;
        let [kind, codec, zeros @ ..] = take::<4>(&mut rest)?;
        let versions = Versions {
            key: u32::from_le_bytes(take(&mut rest)?),
            entry: u32::from_le_bytes(take(&mut rest)?),
        };
        let more_zeros: [u8; 4] = take(&mut rest)?;
        let kind = Kind::from_byte(kind).ok_or(Refusal::Foreign)?;
        if codec > 1 || zeros != [0; 2] || more_zeros != [0; 4] {
            return Err(Refusal::Foreign);
        }
        let header = Header {
            kind,
            is_compressed: codec == 1,
            versions,
            key: take(&mut rest)?,
            created: u64::from_le_bytes(take(&mut rest)?),
            compile_ns: u64::from_le_bytes(take(&mut rest)?),
            length: u64::from_le_bytes(take(&mut rest)?),
            plain_length: u64::from_le_bytes(take(&mut rest)?),
            sha256: take(&mut rest)?,
            signer: SignerId(take(&mut rest)?),
        };
        let signature = Signature {
            of_data: take(&mut rest)?,
            of_comment: take(&mut rest)?,
        };
        let is_small = header.length <= MAX_OBJECT_BYTES - HEADER as u64
            && header.plain_length <= MAX_PLAIN_BYTES;
        match is_small {
            true => Ok((header, signature)),
            false => Err(Refusal::TooLarge),
        }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Refusal> {
    let (part, after) = rest.split_first_chunk::<N>().ok_or(Refusal::Length)?;
    *rest = after;
    Ok(*part)
}

/// Makes a signed object. `created` is in seconds since 1970.
///
/// # Errors
/// For people: why there is none.
pub fn seal(
    asked: &Asked,
    payload: &[u8],
    created: u64,
    compile_ns: u64,
    signer: &dyn Signer,
) -> Result<Vec<u8>, String> {
    if payload.len() as u64 > MAX_PLAIN_BYTES {
        return Err("it is too large".to_owned());
    }
    let compressed = zstd::bulk::compress(payload, LEVEL).map_err(|error| error.to_string())?;
    let is_compressed = compressed.len() < payload.len();
    let stored = if is_compressed { &compressed } else { payload };
    if stored.len() as u64 > MAX_OBJECT_BYTES - HEADER as u64 {
        return Err("it is too large".to_owned());
    }
    let header = Header {
        kind: asked.kind,
        is_compressed,
        versions: asked.versions,
        key: asked.key,
        created,
        compile_ns,
        length: stored.len() as u64,
        plain_length: payload.len() as u64,
        sha256: Sha256::digest(stored).into(),
        signer: signer.id(),
    };
    let signed = header.encode();
    let signature = signer.sign(&signed)?;
    let mut bytes = Vec::with_capacity(HEADER + stored.len());
    bytes.extend(signed);
    bytes.extend(signature.of_data);
    bytes.extend(signature.of_comment);
    bytes.extend(stored);
    Ok(bytes)
}

/// Verifies an object and returns its payload.
///
/// # Errors
/// Why it is refused.
pub fn open(bytes: &[u8], asked: &Asked, verifier: &dyn Verifier) -> Result<Object, Refusal> {
    let (header, signature) = Header::parse(bytes)?;
    if (header.kind, header.key, header.versions) != (asked.kind, asked.key, asked.versions) {
        return Err(Refusal::OtherKey);
    }
    let stored = &bytes[HEADER..];
    if stored.len() as u64 != header.length {
        return Err(Refusal::Length);
    }
    match verifier.verify(header.signer, &bytes[..SIGNED], &signature) {
        None => return Err(Refusal::Untrusted(header.signer)),
        Some(false) => return Err(Refusal::Signature(header.signer)),
        Some(true) => {}
    }
    if Sha256::digest(stored)[..] != header.sha256 {
        return Err(Refusal::Digest);
    }
    let payload = match header.is_compressed {
        true => decompress(stored, header.plain_length)?,
        false if header.plain_length == header.length => stored.to_vec(),
        false => return Err(Refusal::Length),
    };
    Ok(Object { header, payload })
}

/// Decompresses to exactly so many bytes; reads no more. Memory grows with what is there, not with what the header says.
fn decompress(stored: &[u8], length: u64) -> Result<Vec<u8>, Refusal> {
    let decoder = zstd::stream::read::Decoder::with_buffer(stored);
    let mut decoder = decoder.map_err(|_| Refusal::Compression)?.take(length + 1);
    let mut plain = Vec::new();
    match decoder.read_to_end(&mut plain) {
        Ok(read) if read as u64 == length => Ok(plain),
        _ => Err(Refusal::Compression),
    }
}

// By path, since the fuzzer takes this file by its path as well.
#[cfg(test)]
#[path = "object/tests.rs"]
mod tests;
