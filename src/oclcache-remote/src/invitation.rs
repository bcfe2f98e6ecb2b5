//! Invitations: what a second machine, or a colleague, needs to use a store.
//!
//! ```text
//! oclcache-invitation-1
//! remote URL
//! trust NAME PUBLIC-KEY          any number
//! credential USER PASSWORD       percent-encoded; an empty user is `-`; not in a public one
//! key SECRET-KEY                 not in a public one
//! ```

use crate::credentials::{Credential, encoded};
use crate::engine::Address;
use crate::keys::{PublicKey, SecretKey};

const MAGIC: &str = "oclcache-invitation-1";

/// An invitation.
pub struct Invitation {
    /// The store.
    pub url: String,
    /// Whom to trust.
    pub trust: Vec<(String, PublicKey)>,
    /// For the store.
    pub credential: Option<Credential>,
    /// The secret key, for another machine of the same user.
    pub key: Option<SecretKey>,
}

impl Invitation {
    /// The text.
    ///
    /// # Errors
    /// The key cannot be encoded.
    pub fn encode(&self) -> Result<String, String> {
        let mut text = format!("{MAGIC}\nremote {}\n", self.url);
        for (name, key) in &self.trust {
            text += &format!("trust {name} {}\n", key.text);
        }
        if let Some(credential) = &self.credential {
            let user = match credential.user.is_empty() {
                true => "-".to_owned(),
                false => encoded(&credential.user),
            };
            text += &format!("credential {user} {}\n", encoded(&credential.password));
        }
        if let Some(key) = &self.key {
            text += &format!("key {}\n", key.line()?);
        }
        Ok(text)
    }

    /// Reads an invitation.
    ///
    /// # Errors
    /// For people: what is wrong. Secrets are never shown.
    pub fn parse(text: &str) -> Result<Invitation, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        if lines.next() != Some(MAGIC) {
            return Err("this is not an invitation; make one on the other machine with `oclcache remote invite`".to_owned());
        }
        let mut invitation = Invitation {
            url: String::new(),
            trust: Vec::new(),
            credential: None,
            key: None,
        };
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["remote", url] => {
                    let (address, user) = Address::parse(url)?;
                    if user.is_some() {
                        return Err("the address in the invitation has a password; it has a line of its own".to_owned());
                    }
                    invitation.url = address.url.to_string();
                }
                ["trust", name, key] => {
                    invitation.trust.push((checked_name(name)?, PublicKey::parse(key)?));
                }
                ["credential", user, password] => {
                    let decode = |text: &str| {
                        let mut pairs = url::form_urlencoded::parse(text.as_bytes());
                        pairs.next().map(|(key, _)| key.into_owned()).unwrap_or_default()
                    };
                    invitation.credential = Some(Credential {
                        user: if user == "-" { String::new() } else { decode(user) },
                        password: decode(password),
                    });
                }
                ["key", line] => invitation.key = Some(SecretKey::parse(line)?),
                _ => return Err("the invitation has a line of an unknown kind; use the same version of oclcache on both machines".to_owned()),
            }
        }
        if invitation.url.is_empty() {
            return Err("the invitation names no store".to_owned());
        }
        Ok(invitation)
    }
}

/// A name of a signer that the settings can hold.
///
/// # Errors
/// For people: it cannot.
pub fn checked_name(name: &str) -> Result<String, String> {
    let is_fine = !name.is_empty()
        && name.len() <= 64
        && name
            .chars()
            .all(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.' | '@'));
    match is_fine {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "`{name}` is not a name: expected letters, digits, `-`, `_`, `.` and `@`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_comes_back() {
        let key = SecretKey::generate().unwrap();
        let invitation = Invitation {
            url: "redis://lab:7000/1".to_owned(),
            trust: vec![("alice".to_owned(), key.public())],
            credential: Some(Credential {
                user: String::new(),
                password: "a b&c=d%".to_owned(),
            }),
            key: Some(SecretKey::parse(&key.line().unwrap()).unwrap()),
        };
        let read = Invitation::parse(&invitation.encode().unwrap()).unwrap();
        assert_eq!(read.url, invitation.url);
        assert_eq!(read.credential, invitation.credential);
        assert_eq!(read.trust, invitation.trust);
        assert_eq!(read.key.unwrap().public(), key.public());
    }

    #[test]
    fn what_is_no_invitation_is_refused_and_secrets_are_not_shown() {
        let secret = SecretKey::generate().unwrap().line().unwrap();
        let bad = [
            String::new(),
            "hello".to_owned(),
            MAGIC.to_owned(),
            format!("{MAGIC}\nremote redis://u:hidden@lab\n"),
            format!(
                "{MAGIC}\nremote redis://lab\nkey {}\n",
                &secret[..secret.len() - 8]
            ),
            format!("{MAGIC}\nremote redis://lab\nkey {secret} hidden\n"),
            format!("{MAGIC}\nremote redis://lab\ntrust a:b RWQ\n"),
        ];
        for text in bad {
            let why = Invitation::parse(&text).err().unwrap();
            assert!(
                !why.contains("hidden") && !why.contains(&secret[..20]),
                "{why}"
            );
        }
    }
}
