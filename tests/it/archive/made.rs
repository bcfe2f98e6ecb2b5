//! Archives as anybody can make them.

use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Archive, Builder, EntryType, Header};

use crate::support::Sandbox;

/// What stands in an entry's file, as the grammar in `store::entry` has it.
pub struct Parts {
    pub meta: Vec<u8>,
    pub binaries: Vec<Vec<u8>>,
    pub recipe: Vec<u8>,
}

impl Parts {
    pub fn of(entry: &[u8]) -> Parts {
        let mut at = 44;
        let number = |size: usize, at: &mut usize| {
            let mut bytes = [0; 8];
            bytes[..size].copy_from_slice(&entry[*at..*at + size]);
            *at += size;
            u64::from_le_bytes(bytes) as usize
        };
        let take = |length: usize, at: &mut usize| {
            *at += length;
            entry[*at - length..*at].to_vec()
        };
        let length = number(4, &mut at);
        let meta = take(length, &mut at);
        let count = number(4, &mut at);
        let lengths: Vec<usize> = (0..count).map(|_| number(8, &mut at)).collect();
        let binaries = lengths
            .into_iter()
            .map(|length| take(length, &mut at))
            .collect();
        let length = number(4, &mut at);
        let recipe = take(length, &mut at);
        Parts {
            meta: unpacked(&meta),
            binaries,
            recipe: unpacked(&recipe),
        }
    }
}

fn unpacked(frame: &[u8]) -> Vec<u8> {
    match frame.is_empty() {
        true => Vec::new(),
        false => zstd::decode_all(frame).expect("a frame"),
    }
}

/// An archive's members, in order.
pub struct Unpacked {
    pub members: Vec<(String, Vec<u8>)>,
}

impl Unpacked {
    pub fn of(file: &Path) -> Unpacked {
        let file = std::fs::File::open(file).expect("an archive");
        let mut archive = Archive::new(zstd::Decoder::new(file).expect("a frame"));
        let members = archive.entries().expect("a tar").map(|member| {
            let mut member = member.expect("a member");
            let name = String::from_utf8(member.path_bytes().into_owned()).expect("a name");
            let mut bytes = Vec::new();
            member.read_to_end(&mut bytes).expect("its content");
            (name, bytes)
        });
        Unpacked {
            members: members.collect(),
        }
    }

    /// The last entry.
    pub fn entry(&self) -> (String, Vec<u8>) {
        self.members.last().expect("an entry").clone()
    }

    /// Has the manifest say of the last member what is true of it.
    pub fn relist(&mut self) {
        use std::fmt::Write;
        let bytes = &self.members.last().expect("an entry").1;
        let digest = Sha256::digest(bytes)
            .iter()
            .fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
        let size = bytes.len();
        let mut manifest: serde_json::Value =
            serde_json::from_slice(&self.members[0].1).expect("JSON");
        let listed = manifest["entries"].as_array_mut().expect("a list");
        let last = listed.last_mut().expect("an entry");
        (last["sha256"], last["size"]) = (digest.into(), size.into());
        self.members[0].1 = manifest.to_string().into_bytes();
    }

    pub fn pack(&self, sandbox: &Sandbox, name: &str) -> PathBuf {
        let mut tar = Tar::new();
        for (name, bytes) in &self.members {
            tar.file(name.as_bytes(), bytes);
        }
        tar.pack(sandbox, name)
    }
}

/// A tar of whatever somebody likes.
pub struct Tar(Builder<Vec<u8>>);

impl Tar {
    pub fn new() -> Tar {
        Tar(Builder::new(Vec::new()))
    }

    pub fn file(&mut self, name: &[u8], content: &[u8]) {
        self.member(EntryType::Regular, name, content);
    }

    /// A member of any kind and name.
    pub fn member(&mut self, kind: EntryType, name: &[u8], content: &[u8]) {
        let mut header = Header::new_gnu();
        let field = &mut header.as_gnu_mut().expect("GNU").name;
        field[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        self.0.append(&header, content).expect("appended");
    }

    pub fn link(&mut self, kind: EntryType, name: &[u8], target: &str) {
        let mut header = Header::new_gnu();
        let field = &mut header.as_gnu_mut().expect("GNU").name;
        field[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_link_name(target).expect("a target");
        if kind == EntryType::GNUSparse {
            header.as_gnu_mut().expect("GNU").realsize = *b"00000000000\0";
        }
        header.set_size(0);
        header.set_cksum();
        self.0.append(&header, &[][..]).expect("appended");
    }

    /// A member with a name of so many bytes.
    pub fn long_name(&mut self, length: usize) {
        self.member(
            EntryType::GNULongName,
            b"././@LongLink",
            &vec![b'a'; length],
        );
        self.file(b"a", b"");
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().expect("finished")
    }

    pub fn pack(self, sandbox: &Sandbox, name: &str) -> PathBuf {
        sandbox.write(
            name,
            zstd::encode_all(&self.bytes()[..], 1).expect("a frame"),
        )
    }
}
