//! Redis and Valkey.
//!
//! Objects are strings. Reads use GETRANGE, so that the server never sends more than an object of ours may have; all reads of one
//! question are one round trip. Each read renews the object's time to live in the same round trip, where the server lets it.

use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, TlsCertificates};
use tokio::sync::Mutex;

use super::{
    Acquired, CONNECT_TIMEOUT, Engine, EngineError, EngineSettings, Leases, ListedObject, Listing,
    OPERATION_TIMEOUT, Outcome, Scheme,
};
use crate::credentials::encoded;

/// Gives a lease back if it is ours, which takes two steps that nobody may come between.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
const RENEW: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";
/// Keys that one step of a listing looks at.
const SCANNED: usize = 1000;

pub struct Redis {
    client: Client,
    /// Shared by all operations; None after it failed.
    connection: Mutex<Option<MultiplexedConnection>>,
    lifetime: Duration,
    /// A user who may not write cannot renew either.
    is_readonly: bool,
}

impl Redis {
    /// Nothing is connected yet.
    pub fn new(settings: &EngineSettings) -> Result<Redis, String> {
        let address = &settings.address;
        let mut url = address.url.clone();
        url.set_query(None);
        let mut text = url.to_string();
        if let Some(credential) = &settings.credential {
            let user = encoded(&credential.user);
            let password = encoded(&credential.password);
            text = text.replacen("://", &format!("://{user}:{password}@"), 1);
        }
        let cannot = |error: RedisError| format!("`{}` cannot be used: {error}", address.url);
        let is_encrypted = address.scheme == Scheme::Redis { is_encrypted: true };
        let client = match (&settings.authorities, is_encrypted) {
            (Some(authorities), true) => {
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(authorities.clone()),
                };
                Client::build_with_tls(text, certificates)
            }
            _ => Client::open(text),
        };
        Ok(Redis {
            client: client.map_err(cannot)?,
            connection: Mutex::new(None),
            lifetime: settings.lifetime,
            is_readonly: settings.is_readonly,
        })
    }

    async fn connection(&self) -> Outcome<MultiplexedConnection> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(OPERATION_TIMEOUT));
        let made = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        let made = made.map_err(|error| match judge(&error) {
            EngineError::Failed(why) => EngineError::Unreachable(why),
            other => other,
        })?;
        *connection = Some(made.clone());
        Ok(made)
    }

    /// Runs commands in one round trip. A connection that failed is not used again.
    async fn run<T: redis::FromRedisValue>(&self, commands: &redis::Pipeline) -> Outcome<T> {
        let mut connection = self.connection().await?;
        let result = commands.query_async::<T>(&mut connection).await;
        match result {
            Ok(value) => Ok(value),
            Err(error) => {
                let error = judge(&error);
                if !matches!(error, EngineError::Full(_)) {
                    *self.connection.lock().await = None;
                }
                Err(error)
            }
        }
    }

    fn seconds(&self) -> u64 {
        self.lifetime.as_secs().max(1)
    }
}

/// What an error of the client means.
fn judge(error: &RedisError) -> EngineError {
    let why = error.to_string();
    // The errors of a pipeline have their codes in the text only, in quotes.
    let says = |code: &str| error.code() == Some(code) || why.contains(&format!("\"{code}\""));
    let is_denied = ["NOAUTH", "WRONGPASS", "NOPERM"].into_iter().any(says)
        || error.kind() == redis::ErrorKind::AuthenticationFailed;
    if is_denied {
        EngineError::Denied(why)
    } else if ["OOM", "MISCONF", "READONLY"].into_iter().any(says) {
        EngineError::Full(why)
    } else if error.is_timeout() {
        EngineError::TimedOut
    } else if error.is_connection_refusal() || error.is_connection_dropped() || error.is_io_error()
    {
        EngineError::Unreachable(why)
    } else {
        EngineError::Failed(why)
    }
}

#[async_trait]
impl Engine for Redis {
    async fn check(&self) -> Outcome<()> {
        let mut commands = redis::pipe();
        commands.cmd("PING");
        match self.run::<(String,)>(&commands).await {
            // A server that cannot store on its disk answers so to PING as well (MISCONF). It is read.
            Ok(_) | Err(EngineError::Full(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn read(&self, names: &[String], limit: u64) -> Outcome<Vec<Option<Vec<u8>>>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut commands = redis::pipe();
        // To renew is to write. What refuses that may be read: a replica, a server whose disk has failed, one where this user may
        // only read.
        commands.ignore_errors();
        for name in names {
            commands.cmd("GETRANGE").arg(name).arg(0).arg(limit);
            if !self.is_readonly {
                let renew = commands.cmd("EXPIRE").arg(name);
                renew.arg(self.seconds()).ignore();
            }
        }
        let found: Vec<Result<Vec<u8>, RedisError>> = self.run(&commands).await?;
        // A string that is empty is one that is not there.
        let found = found.into_iter().map(|bytes| match bytes {
            Ok(bytes) => Ok(Some(bytes).filter(|bytes| !bytes.is_empty())),
            Err(error) => Err(judge(&error)),
        });
        found.collect()
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> Outcome<()> {
        let mut commands = redis::pipe();
        let write = commands.cmd("SET").arg(name).arg(bytes);
        write.arg("EX").arg(self.seconds()).ignore();
        self.run::<()>(&commands).await
    }

    async fn delete(&self, name: &str) -> Outcome<bool> {
        let mut commands = redis::pipe();
        commands.cmd("DEL").arg(name);
        let (count,): (u64,) = self.run(&commands).await?;
        Ok(count > 0)
    }

    async fn list(&self, prefix: &str) -> Outcome<Listing> {
        let (mut cursor, mut objects) = (0_u64, Vec::new());
        loop {
            let mut commands = redis::pipe();
            let scan = commands.cmd("SCAN").arg(cursor).arg("MATCH");
            scan.arg(format!("{prefix}*")).arg("COUNT").arg(SCANNED);
            let ((next, names),): ((u64, Vec<String>),) = self.run(&commands).await?;
            let mut commands = redis::pipe();
            for name in &names {
                commands.cmd("STRLEN").arg(name);
            }
            let sizes: Vec<u64> = match names.is_empty() {
                true => Vec::new(),
                false => self.run(&commands).await?,
            };
            objects.extend(
                names
                    .into_iter()
                    .zip(sizes)
                    .map(|(name, size)| ListedObject {
                        name,
                        size,
                        modified: None,
                    }),
            );
            cursor = next;
            if cursor == 0 {
                return Ok(Listing { objects, hidden: 0 });
            }
        }
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }

    async fn eviction(&self) -> Option<Result<String, String>> {
        let mut commands = redis::pipe();
        commands.cmd("CONFIG").arg("GET").arg("maxmemory-policy");
        commands.cmd("CONFIG").arg("GET").arg("maxmemory");
        let found: Outcome<(Vec<String>, Vec<String>)> = self.run(&commands).await;
        let (policy, memory) = found.ok()?;
        let (policy, memory) = (policy.get(1)?.clone(), memory.get(1)?.clone());
        Some(match (policy.as_str(), memory.as_str()) {
            (_, "0") => Err("the server has no limit of memory: set `maxmemory` and `maxmemory-policy allkeys-lru`".to_owned()),
            ("noeviction", _) => Err("the server refuses writes when it is full: set `maxmemory-policy allkeys-lru`".to_owned()),
            _ => Ok(policy),
        })
    }
}

#[async_trait]
impl Leases for Redis {
    async fn acquire(
        &self,
        name: &str,
        token: &str,
        lifetime: Duration,
        object: &str,
        limit: u64,
    ) -> Outcome<Acquired> {
        // The server executes them in this order.
        let mut commands = redis::pipe();
        let set = commands.cmd("SET").arg(name).arg(token).arg("NX");
        set.arg("PX").arg(lifetime.as_millis() as u64);
        commands.cmd("GETRANGE").arg(object).arg(0).arg(limit);
        let (set, object): (Option<String>, Vec<u8>) = self.run(&commands).await?;
        Ok(Acquired {
            is_ours: set.is_some(),
            object: Some(object).filter(|bytes| !bytes.is_empty()),
        })
    }

    async fn renew(&self, name: &str, token: &str, lifetime: Duration) -> Outcome<bool> {
        let mut commands = redis::pipe();
        let script = commands.cmd("EVAL").arg(RENEW).arg(1).arg(name);
        script.arg(token).arg(lifetime.as_millis() as u64);
        let (renewed,): (u64,) = self.run(&commands).await?;
        Ok(renewed == 1)
    }

    async fn release(&self, name: &str, token: &str) -> Outcome<()> {
        let mut commands = redis::pipe();
        let script = commands.cmd("EVAL").arg(RELEASE).arg(1).arg(name);
        script.arg(token).ignore();
        self.run::<()>(&commands).await
    }

    async fn holder(&self, name: &str) -> Outcome<Option<String>> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(name);
        let (holder,): (Option<String>,) = self.run(&commands).await?;
        Ok(holder)
    }
}
