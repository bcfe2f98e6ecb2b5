//! Addresses of stores.

use std::path::PathBuf;

use url::Url;

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Redis or Valkey.
    Redis {
        /// With TLS.
        is_encrypted: bool,
    },
    /// S3, or what speaks its protocol.
    S3,
    /// WebDAV.
    WebDav {
        /// With TLS.
        is_encrypted: bool,
    },
    /// A directory.
    Directory,
}

/// Where a store is. Never holds a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The kind.
    pub scheme: Scheme,
    /// The address as it was written, without user and password.
    pub url: Url,
    /// The objects' names begin with this; no slash at either end. May be empty.
    pub prefix: String,
}

/// What an address may carry beside the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserInfo {
    /// The user, may be empty.
    pub user: String,
    /// The password.
    pub password: String,
}

const EXPECTED: &str = "expected `redis://HOST`, `rediss://HOST`, `s3://BUCKET?endpoint=https://HOST`, `https://HOST/PATH` of a WebDAV server, or `file:///PATH`";

impl Address {
    /// Reads an address, and what it carries of user and password.
    ///
    /// # Errors
    /// For people: what is wrong. A password in the text is never shown.
    pub fn parse(text: &str) -> Result<(Address, Option<UserInfo>), String> {
        let text = text.trim();
        if text.starts_with('/') {
            let url = Url::from_file_path(text).map_err(|()| format!("`{text}` is not a path"))?;
            return Address::of_url(url);
        }
        let url = Url::parse(text).map_err(|error| {
            format!("the address of the store cannot be read: {error}; {EXPECTED}")
        })?;
        Address::of_url(url)
    }

    fn of_url(mut url: Url) -> Result<(Address, Option<UserInfo>), String> {
        let decode = |text: &str| percent_decoded(text);
        let user_info =
            (!url.username().is_empty() || url.password().is_some()).then(|| UserInfo {
                user: decode(url.username()),
                password: decode(url.password().unwrap_or_default()),
            });
        if user_info.is_some() {
            let removed = url.set_username("").and_then(|()| url.set_password(None));
            removed.map_err(|()| format!("an address of this kind has no user; {EXPECTED}"))?;
        }
        let scheme = match url.scheme() {
            "redis" => Scheme::Redis {
                is_encrypted: false,
            },
            "rediss" => Scheme::Redis { is_encrypted: true },
            "s3" => Scheme::S3,
            "http" => Scheme::WebDav {
                is_encrypted: false,
            },
            "https" => Scheme::WebDav { is_encrypted: true },
            "file" => Scheme::Directory,
            other => return Err(format!("`{other}` is not a kind of store; {EXPECTED}")),
        };
        if scheme != Scheme::Directory && url.host_str().is_none_or(str::is_empty) {
            return Err(format!("`{url}` names no host; {EXPECTED}"));
        }
        let path = decode(url.path().trim_matches('/'));
        let prefix = match scheme {
            // The path is the number of a database.
            Scheme::Redis { .. } => {
                if !path.is_empty() && path.parse::<u32>().is_err() {
                    return Err(format!(
                        "`{url}`: the path of a Redis address is the number of a database, such as `/0`"
                    ));
                }
                "oclcache".to_owned()
            }
            Scheme::S3 => path,
            Scheme::WebDav { .. } | Scheme::Directory => String::new(),
        };
        let address = Address {
            scheme,
            url,
            prefix,
        };
        Ok((address, user_info))
    }

    /// A parameter of the address.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.url.query_pairs();
        let found = pairs.find(|(key, _)| key == name);
        found.map(|(_, value)| value.into_owned())
    }

    /// The scheme, host and port that credentials are bound to. S3: those of the endpoint, with the bucket.
    pub fn origin(&self) -> String {
        match self.scheme {
            Scheme::Directory => "file".to_owned(),
            Scheme::S3 => {
                let endpoint = self.endpoint();
                let origin = Url::parse(&endpoint).map(|url| origin_of(&url));
                format!("s3+{}", origin.unwrap_or(endpoint))
            }
            _ => origin_of(&self.url),
        }
    }

    /// The endpoint of S3.
    pub fn endpoint(&self) -> String {
        let given = self.parameter("endpoint");
        given.unwrap_or_else(|| "https://s3.amazonaws.com".to_owned())
    }

    /// Whether everybody on the way can read and change what is sent, and the server is not this machine.
    pub fn is_plain(&self) -> bool {
        let is_encrypted = match self.scheme {
            Scheme::Redis { is_encrypted } | Scheme::WebDav { is_encrypted } => is_encrypted,
            Scheme::S3 => self.endpoint().starts_with("https:"),
            Scheme::Directory => true,
        };
        !is_encrypted && !self.is_loopback()
    }

    fn is_loopback(&self) -> bool {
        let endpoint;
        let url = match self.scheme {
            Scheme::S3 => {
                endpoint = Url::parse(&self.endpoint());
                endpoint.as_ref().ok()
            }
            _ => Some(&self.url),
        };
        match url.and_then(|url| url.host()) {
            Some(url::Host::Domain(name)) => {
                name == "localhost"
                    || name
                        .parse::<std::net::IpAddr>()
                        .is_ok_and(|ip| ip.is_loopback())
            }
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        }
    }

    /// The directory.
    pub fn directory(&self) -> Option<PathBuf> {
        (self.scheme == Scheme::Directory).then(|| self.url.to_file_path().ok())?
    }
}

fn origin_of(url: &Url) -> String {
    let default = match url.scheme() {
        "redis" | "rediss" => Some(6379),
        _ => url.port_or_known_default(),
    };
    let port = url
        .port()
        .or(default)
        .map_or(String::new(), |port| format!(":{port}"));
    format!(
        "{}://{}{port}",
        url.scheme(),
        url.host_str().unwrap_or_default()
    )
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let digits = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten();
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_leaves_the_address() {
        let (address, user) = Address::parse("redis://me:p%40ss@lab:7000/2").unwrap();
        let (user_name, password) = ("me".to_owned(), "p@ss".to_owned());
        assert_eq!(
            user,
            Some(UserInfo {
                user: user_name,
                password
            })
        );
        assert_eq!(address.url.as_str(), "redis://lab:7000/2");
        assert_eq!(address.origin(), "redis://lab:7000");
        let (address, user) = Address::parse("redis://:only@lab").unwrap();
        assert_eq!(user.unwrap().password, "only");
        assert_eq!(address.origin(), "redis://lab:6379");
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |text: &str| Address::parse(text).unwrap().0.origin();
        assert_eq!(origin("https://dav.example/a"), "https://dav.example:443");
        assert_ne!(origin("https://dav.example"), origin("http://dav.example"));
        assert_eq!(
            origin("s3://b/x?endpoint=http://127.0.0.1:9000"),
            "s3+http://127.0.0.1:9000"
        );
        assert_eq!(origin("s3://b"), "s3+https://s3.amazonaws.com:443");
        assert_eq!(origin("/srv/cache"), "file");
    }

    #[test]
    fn what_is_no_address_is_refused_without_showing_a_password() {
        for text in [
            "",
            "lab",
            "lab:6379",
            "ftp://u:secret@lab",
            "redis://u:secret@",
            "redis://u:secret@lab/x",
            "http://",
        ] {
            let why = Address::parse(text).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn plain_text_is_noticed_outside_of_this_machine() {
        let is_plain = |text: &str| Address::parse(text).unwrap().0.is_plain();
        assert!(is_plain("redis://lab") && is_plain("http://lab/x"));
        assert!(is_plain("s3://b?endpoint=http://lab"));
        for text in [
            "rediss://lab",
            "https://lab",
            "redis://127.0.0.1",
            "redis://[::1]",
            "http://localhost/x",
            "s3://b",
            "/srv",
        ] {
            assert!(!is_plain(text), "{text}");
        }
    }

    #[test]
    fn prefixes_and_directories() {
        let parse = |text: &str| Address::parse(text).unwrap().0;
        assert_eq!(parse("s3://bucket/a/b/").prefix, "a/b");
        assert_eq!(parse("/srv/ca che").directory(), Some("/srv/ca che".into()));
        assert_eq!(parse("file:///srv/c").directory(), Some("/srv/c".into()));
        assert_eq!(parse("redis://lab").directory(), None);
    }
}
