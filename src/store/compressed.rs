//! Compressed postcard encodings: the metadata and the recipe of an entry, and the records of the journal.
//!
//! A recipe holds the text of a program, which can have megabytes, and a miss waits until it is written. So no whole copy of a text is
//! made: with one, 4 MiB took 1800 page faults more.

use std::io;

use postcard::{Deserializer, de_flavors, ser_flavors, serialize_with_flavor};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, InBuffer, OutBuffer, compress_bound, get_frame_content_size,
};

use crate::fork_safety::Mutex;

/// What decoding may take.
#[derive(Clone, Copy)]
pub(super) struct DecodeLimits {
    /// Of what is decompressed, in bytes.
    bytes: usize,
    /// How many of these are decoded one by one. Each element of a list takes one or more, and up to 55 bytes of memory for each; a text
    /// takes only those of its length.
    single_bytes: usize,
}

impl DecodeLimits {
    /// What the cache has encoded itself.
    pub(super) const OWN: DecodeLimits = DecodeLimits {
        bytes: 256 << 20,
        single_bytes: usize::MAX,
    };
    /// What anybody may have encoded: 32 MiB of text, and 110 MiB of elements. Without this limit, an archive of 477 bytes took 6.5 GB. The
    /// metadata of real programs have up to 40 KB (measured, 171 entries), those of 20 000 kernels 1.3 MB.
    pub(super) const FOREIGN: DecodeLimits = DecodeLimits {
        bytes: 32 << 20,
        single_bytes: 2 << 20,
    };
}

/// So many bytes are gathered before they are compressed. What is not longer is compressed at once, and copied into no buffer of zstd's.
const GATHERED: usize = 64 << 10;
/// The fastest that still halves a text of random names: a miss waits for it.
const LEVEL: i32 = 1;

/// Encodes a value with postcard, and compresses it with zstd.
///
/// # Errors
/// There is no memory for it.
pub(super) fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    // No type of ours can fail to encode, and zstd fails only for memory: the output is large enough.
    let no_memory = |_| io::Error::from(io::ErrorKind::OutOfMemory);
    let size = serialize_with_flavor(value, ser_flavors::Size::default()).map_err(no_memory)?;
    let compressor = Compressor::new(size)?;
    serialize_with_flavor(value, compressor).map_err(no_memory)
}

/// Decodes what [`encode`] made.
///
/// # Errors
/// `OutOfMemory`: nothing is known about it. Anything else: it is damaged.
pub(super) fn decode<T: DeserializeOwned>(
    compressed: &[u8],
    limits: DecodeLimits,
) -> io::Result<T> {
    let bytes = decompress(compressed, limits.bytes)?;
    let mut decoder = Deserializer::from_flavor(Decompressed {
        rest: &bytes,
        single_bytes: limits.single_bytes,
    });
    T::deserialize(&mut decoder).map_err(|error| match error {
        // A text of ours says so where there is no memory for it, and nothing else does.
        postcard::Error::SerdeDeCustom => io::ErrorKind::OutOfMemory.into(),
        _ => io::ErrorKind::InvalidData.into(),
    })
}

/// Gives postcard what it reads.
struct Decompressed<'de> {
    rest: &'de [u8],
    /// How many bytes may still be read one by one.
    single_bytes: usize,
}

/// There are no more bytes, or no more may be read.
const ENDED: postcard::Error = postcard::Error::DeserializeUnexpectedEnd;

impl<'de> de_flavors::Flavor<'de> for Decompressed<'de> {
    type Remainder = ();
    type Source = ();

    fn pop(&mut self) -> postcard::Result<u8> {
        let (first, rest) = self.rest.split_first().ok_or(ENDED)?;
        self.single_bytes = self.single_bytes.checked_sub(1).ok_or(ENDED)?;
        self.rest = rest;
        Ok(*first)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        let taken = self.rest.split_at_checked(count);
        let (taken, rest) = taken.ok_or(ENDED)?;
        self.rest = rest;
        Ok(taken)
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Compresses what postcard writes.
struct Compressor {
    context: CCtx<'static>,
    /// Not compressed yet; its capacity is not exceeded.
    gathered: Vec<u8>,
    output: Vec<u8>,
}

impl Compressor {
    /// For so many bytes.
    fn new(size: usize) -> io::Result<Compressor> {
        let mut output = Vec::new();
        output.try_reserve_exact(compress_bound(size))?;
        let mut gathered = Vec::new();
        gathered.try_reserve_exact(size.min(GATHERED))?;
        // `zstd::bulk` panics if there is no memory for a context.
        let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        let level = CParameter::CompressionLevel(LEVEL);
        // A reader reserves as much memory as the frame says.
        let size = u64::try_from(size).ok();
        let set = context.set_parameter(level);
        set.and_then(|_| context.set_pledged_src_size(size))
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Compressor {
            context,
            gathered,
            output,
        })
    }

    /// Compresses bytes behind those that were compressed, up to the last of them or to the end of the frame.
    fn compress(&mut self, bytes: &[u8], until: ZSTD_EndDirective) -> postcard::Result<()> {
        let mut input = InBuffer::around(bytes);
        loop {
            let written = self.output.len();
            let mut output = OutBuffer::around_pos(&mut self.output, written);
            let read = input.pos();
            let left = self
                .context
                .compress_stream2(&mut output, &mut input, until)
                .map_err(|_| postcard::Error::SerializeBufferFull)?;
            let is_at_end = match until {
                ZSTD_EndDirective::ZSTD_e_end => left == 0,
                _ => input.pos() == bytes.len(),
            };
            if is_at_end {
                return Ok(());
            }
            if input.pos() == read && self.output.len() == written {
                return Err(postcard::Error::SerializeBufferFull);
            }
        }
    }

    fn compress_gathered(&mut self, until: ZSTD_EndDirective) -> postcard::Result<()> {
        let mut gathered = std::mem::take(&mut self.gathered);
        self.compress(&gathered, until)?;
        gathered.clear();
        self.gathered = gathered;
        Ok(())
    }
}

impl ser_flavors::Flavor for Compressor {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() > self.gathered.capacity() - self.gathered.len() {
            self.compress_gathered(ZSTD_EndDirective::ZSTD_e_continue)?;
        }
        match bytes.len() > self.gathered.capacity() {
            true => self.compress(bytes, ZSTD_EndDirective::ZSTD_e_continue),
            false => {
                self.gathered.extend_from_slice(bytes);
                Ok(())
            }
        }
    }

    fn finalize(mut self) -> postcard::Result<Vec<u8>> {
        self.compress_gathered(ZSTD_EndDirective::ZSTD_e_end)?;
        // Not shrunk: that allocates, and ends the process if there is no memory.
        Ok(self.output)
    }
}

/// Kept for the next: creating one takes longer than decompressing the metadata of most entries. One for each thread would have a
/// destructor, which the dynamic linker notes (see `linker_lock`).
static DECOMPRESSOR: Mutex<Option<DCtx<'static>>> = Mutex::new(None);

/// The postcard encoding of what [`encode`] made, of so many bytes at most.
///
/// # Errors
/// There is no memory for it, or it is damaged.
fn decompress(compressed: &[u8], most: usize) -> io::Result<Vec<u8>> {
    let size = get_frame_content_size(compressed).ok().flatten();
    let size = size.and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|size| *size <= most);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size.ok_or(io::ErrorKind::InvalidData)?)?;
    // Another thread may have it, or a handler of a signal may have interrupted this one here.
    let kept = DECOMPRESSOR.try_lock().and_then(|mut kept| kept.take());
    let mut decompressor = match kept.or_else(DCtx::try_create) {
        Some(decompressor) => decompressor,
        None => return Err(io::ErrorKind::OutOfMemory.into()),
    };
    let written = decompressor.decompress(&mut bytes, compressed);
    if let Some(mut kept) = DECOMPRESSOR.try_lock() {
        *kept = Some(decompressor);
    }
    written.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::recipe::Text;

    fn decode<T: DeserializeOwned>(compressed: &[u8]) -> io::Result<T> {
        super::decode(compressed, DecodeLimits::OWN)
    }

    /// Bytes that cannot be compressed: the output is as long as it can become.
    fn random(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn a_value_of_any_length_comes_back() {
        // What is beside the first text in the encoding has 13 bytes.
        let around = |length: usize| length.saturating_sub(16)..length + 3;
        let lengths = [0, GATHERED, 128 << 10, 256 << 10]
            .into_iter()
            .flat_map(around);
        for length in lengths.chain([(5 << 20) + 1]) {
            for text in [random(length), vec![b' '; length]] {
                let texts = [Text::from(&text[..]), Text::from(&b"more"[..])];
                let value = (7_u64, texts.to_vec(), text.len());
                let compressed = encode(&value).expect("memory");
                let size = postcard::to_allocvec(&value).expect("an encoding").len();
                let said = get_frame_content_size(&compressed).ok().flatten();
                assert_eq!(said, Some(size as u64));
                let read = decode::<(u64, Vec<Text>, usize)>(&compressed);
                assert!(read.expect("undamaged") == value, "{length} bytes");
            }
        }
    }

    #[test]
    fn many_small_values_and_nothing_come_back() {
        decode::<()>(&encode(&()).expect("memory")).expect("undamaged");
        let value: Vec<u64> = (0..u64::from(u16::MAX))
            .map(|number| number << 20)
            .collect();
        let compressed = encode(&value).expect("memory");
        assert_eq!(decode::<Vec<u64>>(&compressed).expect("undamaged"), value);
    }

    #[test]
    fn what_is_cut_or_says_that_it_is_too_long_is_damaged() {
        let compressed = encode(&Text::from(&random(GATHERED)[..])).expect("memory");
        for length in [0, 1, compressed.len() / 2, compressed.len() - 1] {
            let error = decode::<Text>(&compressed[..length]).expect_err("cut");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{length} bytes");
        }
        // RFC 8878, 3.1.1: the magic number, a content size of 8 bytes in a single segment, and that size.
        let mut too_long = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        too_long.extend((1_u64 << 60).to_le_bytes());
        let error = decode::<Text>(&too_long).expect_err("too long");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
