//! The framing of everything on disk that has a checksum.
//!
//! ```text
//! frame    = magic length body checksum
//! magic    = the kind of file and the version of its format; it begins with "oclc"
//! length   = of the body: u32, little-endian
//! body     = bytes; in most files the postcard encoding of a value
//! checksum = XXH3-128 of all bytes before it: 16 bytes, little-endian
//! ```
//!
//! A file is one frame, or a row of them (`store::journal`). An entry has a longer head (`store::entry`) and ends in the same
//! checksum. Files whose counters are changed in place have no checksum.

use std::io;

use postcard::ser_flavors::Flavor;
use postcard::serialize_with_flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_128;

/// The length of a checksum, in bytes.
pub const CHECKSUM: usize = 16;
const LENGTH: usize = size_of::<u32>();

/// Appends the checksum of what is there. The caller has reserved [`CHECKSUM`] bytes.
pub fn seal(bytes: &mut Vec<u8>) {
    let checksum = xxh3_128(bytes);
    bytes.extend(checksum.to_le_bytes());
}

/// The bytes before the checksum at the end; None if it is wrong.
pub fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM>()?;
    (xxh3_128(body) == u128::from_le_bytes(*checksum)).then_some(body)
}

/// A frame of these bytes.
///
/// # Errors
/// There is no memory for it, or the body has 4 GiB or more.
pub fn frame(magic: &[u8], body: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(magic.len() + LENGTH + body.len() + CHECKSUM)?;
    bytes.extend(magic);
    bytes.extend(length.to_le_bytes());
    bytes.extend(body);
    seal(&mut bytes);
    Ok(bytes)
}

/// The length of the frame that these bytes begin. None if they begin none, or are too few to say.
pub fn frame_length(magic: &[u8], start: &[u8]) -> Option<usize> {
    let (length, _) = start.strip_prefix(magic)?.split_first_chunk()?;
    let body = u32::from_le_bytes(*length) as usize;
    (magic.len() + LENGTH + CHECKSUM).checked_add(body)
}

/// The body of the frame that these bytes begin with, and what is behind the frame. None if it is cut or damaged.
pub fn unframe<'a>(magic: &[u8], bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (frame, rest) = bytes.split_at_checked(frame_length(magic, bytes)?)?;
    Some((&unseal(frame)?[magic.len() + LENGTH..], rest))
}

/// A frame of a value.
///
/// # Errors
/// As for [`frame`].
pub fn encode(magic: &[u8], value: &impl Serialize) -> io::Result<Vec<u8>> {
    frame(magic, &to_postcard(value)?)
}

/// The value of a file that is one frame. None if it is damaged, or a file of another kind or version.
pub fn decode<T: DeserializeOwned>(magic: &[u8], bytes: &[u8]) -> Option<T> {
    let (body, rest) = unframe(magic, bytes)?;
    let value = postcard::from_bytes(body).ok()?;
    rest.is_empty().then_some(value)
}

/// The postcard encoding of a value.
///
/// # Errors
/// There is no memory for it.
pub fn to_postcard(value: &impl Serialize) -> io::Result<Vec<u8>> {
    /// Bytes that report when there is no memory for more.
    struct Bytes(Vec<u8>);

    impl Flavor for Bytes {
        type Output = Vec<u8>;

        fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
            let reserved = self.0.try_reserve(bytes.len());
            reserved.map_err(|_| postcard::Error::SerializeBufferFull)?;
            self.0.extend_from_slice(bytes);
            Ok(())
        }

        fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
            self.try_extend(&[byte])
        }

        fn finalize(self) -> postcard::Result<Vec<u8>> {
            Ok(self.0)
        }
    }
    // No type of ours can fail to encode for any other reason.
    serialize_with_flavor(value, Bytes(Vec::new())).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8] = b"oclctst1";

    #[test]
    fn a_value_comes_back_and_any_changed_cut_or_added_byte_is_noticed() {
        let value = (7_u64, "text".to_owned());
        let bytes = encode(MAGIC, &value).expect("memory");
        let read = |bytes: &[u8]| decode::<(u64, String)>(MAGIC, bytes);
        assert_eq!(read(&bytes), Some(value));
        for index in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[index] ^= 0x10;
            assert_eq!(read(&flipped), None, "byte {index}");
            assert_eq!(read(&bytes[..index]), None, "cut at {index}");
        }
        assert_eq!(read(&[&bytes[..], b"x"].concat()), None);
        assert!(decode::<(u64, String)>(b"oclctst2", &bytes).is_none());
    }

    #[test]
    fn frames_follow_each_other() {
        let [one, two] = [b"one".as_slice(), b""].map(|body| frame(MAGIC, body).expect("memory"));
        let both = [one, two].concat();
        let (first, rest) = unframe(MAGIC, &both).expect("a frame");
        assert_eq!(first, b"one");
        assert_eq!(unframe(MAGIC, rest), Some((&b""[..], &b""[..])));
    }
}
