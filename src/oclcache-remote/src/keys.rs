//! Keys in minisign's formats: the secret key of this user, and the public keys of those whom the machine trusts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Cursor, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::object::{Signature, Signer, SignerId, Verifier};

/// The trusted comment of each signature, which minisign's second signature covers.
const COMMENT: &str = "oclcache-object-1";
/// The algorithm of prehashed signatures in minisign's format.
const PREHASHED: &[u8; 2] = b"ED";
/// Larger key files are not read, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A secret key without a password.
pub struct SecretKey {
    key: minisign::SecretKey,
    public: minisign::PublicKey,
}

/// A public key: its id, and the text in minisign's format that begins with `RW`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublicKey {
    /// The id.
    pub id: SignerId,
    /// The text.
    pub text: String,
}

impl PublicKey {
    /// From minisign's text.
    ///
    /// # Errors
    /// For people: what is wrong with the text.
    pub fn parse(text: &str) -> Result<PublicKey, String> {
        let text = text.trim();
        let expected = || {
            format!(
                "`{text}` is not a public key; expected the text that begins with `RW`, as `oclcache remote key` shows it"
            )
        };
        minisign_verify::PublicKey::from_base64(text).map_err(|_| expected())?;
        let bytes = STANDARD.decode(text).map_err(|_| expected())?;
        let id = bytes.get(2..10).and_then(|id| id.try_into().ok());
        Ok(PublicKey {
            id: SignerId(id.ok_or_else(expected)?),
            text: text.to_owned(),
        })
    }
}

impl SecretKey {
    /// A new key.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn generate() -> Result<SecretKey, String> {
        let pair = minisign::KeyPair::generate_unencrypted_keypair();
        let pair = pair.map_err(|error| format!("cannot make a key: {error}"))?;
        Ok(SecretKey {
            key: pair.sk,
            public: pair.pk,
        })
    }

    /// From the line of minisign's file that holds the key, or the whole file.
    ///
    /// # Errors
    /// For people: what is wrong with the text. The text itself is never shown.
    pub fn parse(text: &str) -> Result<SecretKey, String> {
        let mut lines = text.lines().map(str::trim);
        let line = lines.rfind(|line| !line.is_empty()).unwrap_or_default();
        let wrong =
            |error: minisign::PError| format!("it is not a secret key without a password: {error}");
        let text = format!("untrusted comment: secret key\n{line}\n");
        let key = minisign::SecretKeyBox::from_string(&text).map_err(wrong)?;
        let key = key.into_unencrypted_secret_key().map_err(wrong)?;
        let public = minisign::PublicKey::from_secret_key(&key).map_err(wrong)?;
        Ok(SecretKey { key, public })
    }

    /// Reads a key file, which only its owner may be able to read.
    ///
    /// # Errors
    /// For people: why it is not used.
    pub fn read(path: &Path) -> Result<SecretKey, String> {
        let shown = path.display();
        let metadata =
            fs::metadata(path).map_err(|error| format!("cannot read `{shown}`: {error}"))?;
        let uid = rustix::process::geteuid().as_raw();
        if metadata.uid() != uid && metadata.uid() != 0 {
            return Err(format!(
                "`{shown}` belongs to another user, so its key is not used"
            ));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(format!(
                "other users can read `{shown}`, so its key is not used; make a new one, or run `chmod 600 {shown}` if nobody has read it"
            ));
        }
        if metadata.len() > MAX_FILE_BYTES {
            return Err(format!("`{shown}` is not a key: it is too large"));
        }
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read `{shown}`: {error}"))?;
        SecretKey::parse(&text).map_err(|why| format!("`{shown}` cannot be used: {why}"))
    }

    /// Writes a key file that only this user can read. An existing file is never overwritten.
    ///
    /// # Errors
    /// For people: why it was not written.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let text = self.text()?;
        write_private(path, text.as_bytes(), true)
            .map_err(|error| format!("cannot write the key `{}`: {error}", path.display()))
    }

    /// Minisign's text with two lines.
    fn text(&self) -> Result<String, String> {
        let comment = Some("oclcache remote secret key");
        let text = self
            .key
            .to_box(comment)
            .map_err(|error| error.to_string())?;
        Ok(text.into_string())
    }

    /// The line that holds the key.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn line(&self) -> Result<String, String> {
        let text = self.text()?;
        Ok(text.lines().last().unwrap_or_default().to_owned())
    }

    /// The public key.
    pub fn public(&self) -> PublicKey {
        let text = self.public.to_base64();
        PublicKey {
            id: self.id(),
            text,
        }
    }
}

impl Signer for SecretKey {
    fn id(&self) -> SignerId {
        let mut id = [0; 8];
        id.copy_from_slice(self.public.keynum());
        SignerId(id)
    }

    fn sign(&self, data: &[u8]) -> Result<Signature, String> {
        let made = minisign::sign(
            Some(&self.public),
            &self.key,
            Cursor::new(data),
            Some(COMMENT),
            Some("object"),
        );
        let text = made.map_err(|error| error.to_string())?.into_string();
        let lines: Vec<&str> = text.lines().collect();
        let wrong = || "minisign made another kind of signature".to_owned();
        let decode = |line: usize| STANDARD.decode(lines.get(line)?).ok();
        let (first, second) = decode(1).zip(decode(3)).ok_or_else(wrong)?;
        let of_data = first.strip_prefix(PREHASHED).and_then(|rest| rest.get(8..));
        let of_data = of_data.and_then(|bytes| bytes.try_into().ok());
        Ok(Signature {
            of_data: of_data.ok_or_else(wrong)?,
            of_comment: second.try_into().map_err(|_| wrong())?,
        })
    }
}

/// Whom the machine trusts.
#[derive(Default)]
pub struct TrustedKeys {
    keys: BTreeMap<SignerId, TrustedKey>,
    revoked: BTreeSet<SignerId>,
}

/// One trusted key.
pub struct TrustedKey {
    /// The name that the user gave it.
    pub name: String,
    /// The text.
    pub public: PublicKey,
    key: minisign_verify::PublicKey,
}

impl TrustedKeys {
    /// Adds a key, unless it is known by another name. The maker of a key chooses its id, so another key of a known id is not trusted.
    ///
    /// # Errors
    /// For people: why it is not trusted.
    pub fn add(&mut self, name: &str, public: PublicKey) -> Result<(), String> {
        let id = public.id;
        match self.keys.get(&id) {
            Some(known) if known.public == public => return Ok(()),
            Some(known) => {
                return Err(format!(
                    "the key of `{name}` is not trusted: it has the id of another key, that of `{}`; its owner must make a new one",
                    known.name
                ));
            }
            None => {}
        }
        let key = minisign_verify::PublicKey::from_base64(&public.text);
        let key = key.map_err(|error| format!("the key of `{name}` cannot be used: {error}"))?;
        let name = name.to_owned();
        self.keys.insert(id, TrustedKey { name, public, key });
        Ok(())
    }

    /// Stops trusting a key, even if the system trusts it.
    pub fn revoke(&mut self, id: SignerId) {
        self.revoked.insert(id);
    }

    /// The keys that are trusted.
    pub fn iter(&self) -> impl Iterator<Item = &TrustedKey> {
        let keys = self.keys.iter();
        keys.filter(|(id, _)| !self.revoked.contains(id))
            .map(|(_, key)| key)
    }

    /// The trusted key of this id.
    pub fn get(&self, id: SignerId) -> Option<&TrustedKey> {
        self.keys.get(&id).filter(|_| !self.revoked.contains(&id))
    }

    /// Whether the key of this id is trusted, and is the one that others trust.
    pub fn agrees_with(&self, others: &TrustedKeys, id: SignerId) -> bool {
        let key = |keys: &TrustedKeys| keys.get(id).map(|key| key.public.clone());
        key(self).is_some() && key(self) == key(others)
    }

    /// The keys that are revoked.
    pub fn revoked(&self) -> &BTreeSet<SignerId> {
        &self.revoked
    }
}

impl Verifier for TrustedKeys {
    fn verify(&self, signer: SignerId, data: &[u8], signature: &Signature) -> Option<bool> {
        let key = &self.get(signer)?.key;
        let first = STANDARD.encode([&PREHASHED[..], &signer.0, &signature.of_data].concat());
        let second = STANDARD.encode(signature.of_comment);
        let text =
            format!("untrusted comment: object\n{first}\ntrusted comment: {COMMENT}\n{second}\n");
        let decoded = minisign_verify::Signature::decode(&text);
        Some(decoded.is_ok_and(|decoded| key.verify(data, &decoded, false).is_ok()))
    }
}

/// Writes a file that only this user can read. The file is whole at each moment.
///
/// # Errors
/// The system's.
pub fn write_private(path: &Path, bytes: &[u8], is_new: bool) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    make_private_directory(parent)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = parent.join(format!(".{name}.{}", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let done = written.and_then(|()| match is_new {
        // Fails if there is such a file.
        true => fs::hard_link(&temporary, path),
        false => fs::rename(&temporary, path),
    });
    let _ = fs::remove_file(&temporary);
    done
}

/// Makes a directory, and its parents, that only this user can read if it is new.
///
/// # Errors
/// The system's.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_survives_its_file_and_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oclcache/remote.key");
        let key = SecretKey::generate().unwrap();
        key.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let read = SecretKey::read(&path).unwrap();
        assert_eq!(read.public(), key.public());
        let line = SecretKey::parse(&key.line().unwrap()).unwrap();
        assert_eq!(line.public(), key.public());
        assert!(key.write(&path).unwrap_err().contains("cannot write"));
        let signature = line.sign(b"data").unwrap();
        let mut trusted = TrustedKeys::default();
        assert_eq!(trusted.verify(key.id(), b"data", &signature), None);
        let public = PublicKey::parse(&key.public().text).unwrap();
        assert_eq!(trusted.add("me", public), Ok(()));
        assert_eq!(trusted.verify(key.id(), b"data", &signature), Some(true));
        assert_eq!(trusted.verify(key.id(), b"date", &signature), Some(false));
        trusted.revoke(key.id());
        assert_eq!(trusted.verify(key.id(), b"data", &signature), None);
        assert_eq!(trusted.add("me", key.public()), Ok(()));
        assert_eq!(trusted.verify(key.id(), b"data", &signature), None);
    }

    #[test]
    fn another_key_of_a_known_id_replaces_none() {
        let [mine, theirs] = [(); 2].map(|()| SecretKey::generate().unwrap());
        let mut trusted = TrustedKeys::default();
        assert_eq!(trusted.add("me", mine.public()), Ok(()));
        let mut forged = STANDARD.decode(theirs.public().text).unwrap();
        forged[2..10].copy_from_slice(&mine.id().0);
        let forged = PublicKey::parse(&STANDARD.encode(forged)).unwrap();
        assert_eq!(forged.id, mine.id());
        let why = trusted.add("mallory", forged.clone()).unwrap_err();
        assert!(why.contains("`mallory`") && why.contains("`me`"), "{why}");
        let mut others = TrustedKeys::default();
        assert!(!trusted.agrees_with(&others, mine.id()));
        assert_eq!(others.add("mallory", forged), Ok(()));
        assert!(!trusted.agrees_with(&others, mine.id()));
        assert!(trusted.agrees_with(&trusted, mine.id()));
        let signature = mine.sign(b"data").unwrap();
        assert_eq!(trusted.verify(mine.id(), b"data", &signature), Some(true));
    }

    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remote.key");
        SecretKey::generate().unwrap().write(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let why = SecretKey::read(&path).err().unwrap();
        assert!(why.contains("other users can read"), "{why}");
    }

    #[test]
    fn an_error_never_shows_a_secret() {
        let key = SecretKey::generate().unwrap();
        let line = key.line().unwrap();
        let why = SecretKey::parse(&line[..line.len() - 4]).err().unwrap();
        assert!(!why.contains(&line[..20]), "{why}");
    }

    #[test]
    fn the_id_is_shown_as_minisign_shows_it() {
        let key = SecretKey::generate().unwrap();
        let shown = key.id().to_string();
        assert_eq!(shown.len(), 16);
        assert_eq!(SignerId::parse(&shown), Some(key.id()));
        assert_eq!(SignerId::parse("12"), None);
        assert_eq!(SignerId::parse("+123456789ABCDEF"), None);
    }
}
