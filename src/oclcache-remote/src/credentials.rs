//! Credentials: a file that only the user can read, with one line for each origin. A credential goes to its origin and nowhere else.
//!
//! ```text
//! redis://lab:6379 USER PASSWORD
//! ```
//!
//! User and password are percent-encoded. An empty user is `-`. For S3 they are the id of the access key and the secret key.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::engine::Address;
use crate::keys::write_private;

/// The name of the file in the configuration directory.
pub const FILE: &str = "remote.credentials";

/// A user and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The user, may be empty.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

/// Finds the credential of an address.
///
/// # Errors
/// For people: why the file is not used.
pub fn read(path: &Path, address: &Address) -> Result<Option<Credential>, String> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let origin = address.origin();
    let mut lines = text.lines().filter_map(line);
    let found = lines.find(|(of, _)| *of == origin);
    Ok(found.map(|(_, credential)| credential))
}

/// Writes the credential of an address in place of an earlier one.
///
/// # Errors
/// For people: why it was not written.
pub fn write(path: &Path, address: &Address, credential: &Credential) -> Result<(), String> {
    let origin = address.origin();
    let before = text(path)?.unwrap_or_default();
    let others = before
        .lines()
        .filter(|one| line(one).is_none_or(|(of, _)| of != origin));
    let mut lines: Vec<String> = others.map(str::to_owned).collect();
    let user = match credential.user.is_empty() {
        true => "-".to_owned(),
        false => encoded(&credential.user),
    };
    lines.push(format!("{origin} {user} {}", encoded(&credential.password)));
    let bytes = lines.join("\n") + "\n";
    write_private(path, bytes.as_bytes(), false)
        .map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

fn text(path: &Path) -> Result<Option<String>, String> {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read `{shown}`: {error}")),
    };
    let uid = rustix::process::geteuid().as_raw();
    if metadata.mode() & 0o077 != 0 || ![0, uid].contains(&metadata.uid()) {
        return Err(format!(
            "other users can read or write `{shown}`, so its passwords are not used; run `chmod 600 {shown}` and change the passwords"
        ));
    }
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read `{shown}`: {error}"))?;
    Ok(Some(text))
}

fn line(line: &str) -> Option<(&str, Credential)> {
    let mut words = line.split_whitespace();
    let origin = words.next()?;
    let user = words.next()?;
    let user = if user == "-" { "" } else { user };
    let credential = Credential {
        user: decoded(user),
        password: decoded(words.next()?),
    };
    Some((origin, credential))
}

/// Percent-encodes everything but letters and digits.
pub fn encoded(text: &str) -> String {
    let bytes = text.bytes().map(|byte| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    bytes.collect()
}

fn decoded(text: &str) -> String {
    let pairs = url::form_urlencoded::parse(text.as_bytes());
    pairs
        .map(|(key, _)| key.into_owned())
        .next()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_credential_goes_to_its_origin_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let address = |text: &str| Address::parse(text).unwrap().0;
        let credential = Credential {
            user: String::new(),
            password: "p &=+% ü".to_owned(),
        };
        let lab = address("redis://lab");
        assert_eq!(read(&path, &lab), Ok(None));
        write(&path, &lab, &credential).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read(&path, &lab), Ok(Some(credential.clone())));
        assert_eq!(
            read(&path, &address("redis://lab:6379/3")),
            Ok(Some(credential.clone()))
        );
        for other in [
            "rediss://lab",
            "redis://lab:6380",
            "redis://la",
            "redis://lab.example",
            "http://lab:6379",
        ] {
            assert_eq!(read(&path, &address(other)), Ok(None), "{other}");
        }
        let new = Credential {
            user: "u".to_owned(),
            password: "2".to_owned(),
        };
        write(&path, &lab, &new).unwrap();
        assert_eq!(read(&path, &lab), Ok(Some(new)));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(format!("{credential:?}"), "Credential(..)");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&path, &lab).unwrap_err().contains("other users"));
    }
}
