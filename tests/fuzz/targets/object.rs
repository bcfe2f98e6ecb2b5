//! The objects of the remote store: whatever a store returns, it is refused or is what its header says, and nothing is made larger
//! than that.
//!
//! The first byte of an input says how the rest becomes an object, since no mutation would find its way through a digest.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oclcache_fuzz::object::{
    self, Asked, HEADER, Header, Kind, MAX_PLAIN_BYTES, Signature, Signer, SignerId, Verifier,
    Versions,
};

/// Signs nothing, and takes every signature: what follows the signature must be safe as well.
struct Anybody;

impl Signer for Anybody {
    fn id(&self) -> SignerId {
        SignerId([7; 8])
    }
    fn sign(&self, _: &[u8]) -> Result<Signature, String> {
        Ok(Signature {
            of_data: [1; 64],
            of_comment: [2; 64],
        })
    }
}

impl Verifier for Anybody {
    fn verify(&self, _: SignerId, _: &[u8], _: &Signature) -> Option<bool> {
        Some(true)
    }
}

const ASKED: Asked = Asked {
    kind: Kind::Entry,
    key: [7; 32],
    versions: Versions { key: 1, entry: 1 },
};

/// An object with any payload that says it is compressed to so many bytes, under a right digest.
fn framed(payload: &[u8], plain_length: u64) -> Vec<u8> {
    let whole = object::seal(&ASKED, b"", 1, 2, &Anybody).expect("sealed");
    let digest = <sha2::Sha256 as sha2::Digest>::digest(payload);
    let mut bytes = whole[..HEADER].to_vec();
    bytes[25] = 1;
    bytes[88..96].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes[96..104].copy_from_slice(&plain_length.to_le_bytes());
    bytes[104..136].copy_from_slice(&digest);
    bytes.extend(payload);
    bytes
}

fuzz_target!(|input: &[u8]| {
    let Some((how, rest)) = input.split_first() else {
        return;
    };
    let bytes = match how % 3 {
        0 => rest.to_vec(),
        1 => framed(rest, u64::from(*how) * 100),
        _ => {
            let bytes = object::seal(&ASKED, rest, 1, 2, &Anybody).expect("sealed");
            let opened = object::open(&bytes, &ASKED, &Anybody).expect("what was sealed");
            assert_eq!(opened.payload, rest);
            return;
        }
    };
    let asked = match Header::parse(&bytes) {
        Ok((header, _)) => Asked {
            kind: header.kind,
            key: header.key,
            versions: header.versions,
        },
        Err(_) => ASKED,
    };
    if let Ok(object) = object::open(&bytes, &asked, &Anybody) {
        assert_eq!(object.payload.len() as u64, object.header.plain_length);
        assert!(object.header.plain_length <= MAX_PLAIN_BYTES);
    }
});
