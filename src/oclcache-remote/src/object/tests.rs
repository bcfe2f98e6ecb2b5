use super::*;
use crate::keys::{SecretKey, TrustedKeys};

const ASKED: Asked = Asked {
    kind: Kind::Entry,
    key: [7; 32],
    versions: Versions { key: 3, entry: 4 },
};

fn payload() -> Vec<u8> {
    (0..40_000_u32)
        .map(|number| (number / 16 * 7) as u8)
        .collect()
}

fn sealed() -> (Vec<u8>, TrustedKeys) {
    let key = SecretKey::generate().unwrap();
    let bytes = seal(&ASKED, &payload(), 1_700_000_000, 5_000_000, &key).unwrap();
    let mut trusted = TrustedKeys::default();
    trusted.add("me", key.public()).unwrap();
    (bytes, trusted)
}

#[test]
fn what_was_sealed_is_opened_by_those_who_trust_the_signer() {
    let (bytes, trusted) = sealed();
    let object = open(&bytes, &ASKED, &trusted).unwrap();
    assert_eq!(object.payload, payload());
    assert_eq!(object.header.compile_ns, 5_000_000);
    assert!(bytes.len() < payload().len());
    let nobody = TrustedKeys::default();
    let refusal = open(&bytes, &ASKED, &nobody).unwrap_err();
    assert_eq!(refusal, Refusal::Untrusted(object.header.signer));
    let (_, others) = sealed();
    let refusal = open(&bytes, &ASKED, &others).unwrap_err();
    assert_eq!(refusal, Refusal::Untrusted(object.header.signer));
}

#[test]
fn a_signature_by_another_key_with_the_id_of_a_trusted_one_is_refused() {
    let (bytes, trusted) = sealed();
    let (other, _) = sealed();
    let (header, _) = Header::parse(&bytes).unwrap();
    // All of the other object but the id of its signer.
    let mut forged = other.clone();
    forged[SIGNED - 8..SIGNED].copy_from_slice(&header.signer.0);
    let refusal = open(&forged, &ASKED, &trusted).unwrap_err();
    assert_eq!(refusal, Refusal::Signature(header.signer));
}

#[test]
fn no_byte_of_an_object_can_be_changed() {
    let (bytes, trusted) = sealed();
    // Each byte of the header, and some of the payload.
    let places = (0..HEADER).chain([HEADER, HEADER + 1, bytes.len() / 2, bytes.len() - 1]);
    for at in places {
        for change in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert!(open(&changed, &ASKED, &trusted).is_err(), "byte {at}");
        }
    }
    for length in [
        0,
        1,
        MAGIC.len(),
        SIGNED,
        HEADER - 1,
        HEADER,
        bytes.len() - 1,
    ] {
        let refusal = open(&bytes[..length], &ASKED, &trusted).unwrap_err();
        assert_eq!(refusal, Refusal::Length, "{length} bytes");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(
        open(&longer, &ASKED, &trusted).unwrap_err(),
        Refusal::Length
    );
}

#[test]
fn an_object_of_another_key_kind_or_version_is_refused() {
    let (bytes, trusted) = sealed();
    let others = [
        Asked {
            key: [8; 32],
            ..ASKED
        },
        Asked {
            kind: Kind::Bundle,
            ..ASKED
        },
        Asked {
            versions: Versions { key: 4, entry: 4 },
            ..ASKED
        },
        Asked {
            versions: Versions { key: 3, entry: 5 },
            ..ASKED
        },
    ];
    for asked in others {
        assert_eq!(
            open(&bytes, &asked, &trusted).unwrap_err(),
            Refusal::OtherKey
        );
    }
}

#[test]
fn lengths_are_bounded_before_anything_is_read_or_allocated() {
    let (bytes, trusted) = sealed();
    for at in [88, 96] {
        for length in [1_u64 << 30, u64::MAX] {
            let mut changed = bytes.clone();
            changed[at..at + 8].copy_from_slice(&length.to_le_bytes());
            assert_eq!(
                open(&changed, &ASKED, &trusted).unwrap_err(),
                Refusal::TooLarge
            );
        }
    }
    let key = SecretKey::generate().unwrap();
    let large = vec![0; MAX_PLAIN_BYTES as usize + 1];
    assert!(seal(&ASKED, &large, 0, 0, &key).is_err());
}

/// Signs a payload with any length.
fn with_length(stored: &[u8], plain_length: u64) -> (Vec<u8>, TrustedKeys) {
    let key = SecretKey::generate().unwrap();
    let header = Header {
        kind: ASKED.kind,
        is_compressed: true,
        versions: ASKED.versions,
        key: ASKED.key,
        created: 0,
        compile_ns: 0,
        length: stored.len() as u64,
        plain_length,
        sha256: Sha256::digest(stored).into(),
        signer: key.id(),
    };
    let signed = header.encode();
    let signature = key.sign(&signed).unwrap();
    let parts = [
        &signed[..],
        &signature.of_data,
        &signature.of_comment,
        stored,
    ];
    let mut trusted = TrustedKeys::default();
    trusted.add("me", key.public()).unwrap();
    (parts.concat(), trusted)
}

#[test]
fn a_decompression_bomb_is_refused_even_if_it_is_signed() {
    let bomb = zstd::bulk::compress(&vec![0; 512 << 20], 3).unwrap();
    assert!(bomb.len() < 100_000);
    for length in [0, 1, 1000, MAX_PLAIN_BYTES] {
        let (bytes, trusted) = with_length(&bomb, length);
        assert_eq!(
            open(&bytes, &ASKED, &trusted).unwrap_err(),
            Refusal::Compression
        );
    }
    let (bytes, trusted) = with_length(&bomb, 512 << 20);
    assert_eq!(
        open(&bytes, &ASKED, &trusted).unwrap_err(),
        Refusal::TooLarge
    );
    let (bytes, trusted) = with_length(b"not compressed", 14);
    assert_eq!(
        open(&bytes, &ASKED, &trusted).unwrap_err(),
        Refusal::Compression
    );
}
