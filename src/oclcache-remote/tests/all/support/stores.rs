//! The shared store without a helper around it.

use std::time::Duration;

use oclcache_remote::engine::{self, Address, EngineSettings};
use oclcache_remote::guarded::{BreakerFile, Guarded};
use oclcache_remote::keys::{SecretKey, TrustedKeys};
use oclcache_remote::object::Versions;
use oclcache_remote::shared::SharedStore;

pub const VERSIONS: Versions = Versions { key: 1, entry: 1 };

struct NoFile;

impl BreakerFile for NoFile {
    fn load(&self) -> Option<Duration> {
        None
    }
    fn store(&self, _: Option<(Duration, &str)>) {}
}

pub fn settings(url: &str) -> EngineSettings {
    let (address, user) = Address::parse(url).expect("an address");
    EngineSettings {
        address,
        credential: user.map(|user| oclcache_remote::credentials::Credential {
            user: user.user,
            password: user.password,
        }),
        uses_aws_credentials: false,
        authorities: None,
        lifetime: Duration::from_secs(3600),
        is_readonly: false,
    }
}

/// The store at an address, for someone who has this key and trusts these.
pub fn store(url: &str, key: Option<&SecretKey>, trusts: &[&SecretKey]) -> SharedStore {
    let settings = settings(url);
    let prefix = settings.address.prefix.clone();
    let engine = engine::open(&settings).expect("an engine");
    let mut trusted = TrustedKeys::default();
    for other in trusts {
        let added = trusted.add("someone", other.public());
        added.expect("another id");
    }
    let key = key.map(|key| SecretKey::parse(&key.line().expect("a key")).expect("a key"));
    SharedStore::new(
        Guarded::new(engine, Box::new(NoFile)),
        trusted,
        key,
        VERSIONS,
        &prefix,
    )
}
