//! The engines: stores of named objects that already exist. We write no server.

mod address;
mod directory;
mod operator;
mod redis;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

pub use address::{Address, Scheme};

use crate::credentials::Credential;

/// What a store without a limit of its own says about it.
const EVICTS_NOTHING: &str =
    "this kind of store evicts nothing: run `oclcache remote gc` from time to time";
/// Reads of one question that run at once.
const CONCURRENT: usize = 16;
/// How long a connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an operation may take.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// The server cannot be reached.
    Unreachable(String),
    /// It did not answer in time.
    TimedOut,
    /// It refuses our credentials, or what they may do.
    Denied(String),
    /// It refuses a signature because its clock and ours differ.
    ClockDiffers(String),
    /// This user may not use the directory that is the store.
    Forbidden(String),
    /// An object cannot be written or deleted where others have put something, or closed a directory. Others can be.
    Obstructed(String),
    /// There is no directory where the store is. Nothing but the user's own command makes one: its file system may not be mounted.
    Absent(String),
    /// This user may write nothing to the directory that is the store. Reads may still work.
    Unwritable(String),
    /// It has no room, or wants fewer requests. Reads may still work.
    Full(String),
    /// Anything else.
    Failed(String),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Unreachable(why) => write!(f, "the server cannot be reached: {why}"),
            EngineError::TimedOut => f.write_str("the server does not answer in time"),
            EngineError::Denied(why) => write!(f, "the server refuses the credentials: {why}"),
            EngineError::ClockDiffers(why) => {
                write!(f, "the clocks of this machine and the server differ: {why}")
            }
            EngineError::Forbidden(why) => {
                write!(
                    f,
                    "the file system refuses the directory to this user: {why}"
                )
            }
            EngineError::Absent(why) => write!(f, "the store is not there: {why}"),
            EngineError::Obstructed(why) => write!(f, "the file system refuses an object: {why}"),
            EngineError::Unwritable(why) => {
                write!(f, "the file system takes nothing from this user: {why}")
            }
            EngineError::Full(why) => {
                write!(
                    f,
                    "the server takes no more, or wants fewer requests: {why}"
                )
            }
            EngineError::Failed(why) => write!(f, "the server reports an error: {why}"),
        }
    }
}

/// The result of an operation.
pub type Outcome<T> = Result<T, EngineError>;

/// An object in a listing.
#[derive(Clone, Debug)]
pub struct ListedObject {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was written, in seconds since 1970 by the server's clock.
    pub modified: Option<u64>,
}

/// The objects of a store whose names begin alike.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The objects.
    pub objects: Vec<ListedObject>,
    /// How many directories this user cannot list.
    pub hidden: u64,
}

/// What the settings say about a store.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Where it is.
    pub address: Address,
    /// For this address only.
    pub credential: Option<Credential>,
    /// Whether the credentials of AWS' own tools are used.
    pub uses_aws_credentials: bool,
    /// Certificates of authorities in PEM that are trusted for it.
    pub authorities: Option<Vec<u8>>,
    /// How long an object that nobody reads is kept, if the engine can do that.
    pub lifetime: Duration,
    /// Whether this user may not write there.
    pub is_readonly: bool,
}

/// A store of named objects.
///
/// No operation is bounded in time here, and none is repeated; see `guarded`.
#[async_trait]
pub trait Engine: Send + Sync {
    /// Connects, if the engine has connections, and makes one round trip.
    async fn check(&self) -> Outcome<()>;
    /// Reads objects, in few round trips, up to a size: longer ones are cut behind it. None: there is no such object, or in a directory
    /// one that this user may not read, since all users can put that there.
    async fn read(&self, names: &[String], limit: u64) -> Outcome<Vec<Option<Vec<u8>>>>;
    /// Writes an object, and replaces the one of this name.
    async fn write(&self, name: &str, bytes: Vec<u8>) -> Outcome<()>;
    /// Deletes an object. Returns false if there certainly was none.
    async fn delete(&self, name: &str) -> Outcome<bool>;
    /// Deletes what was left unfinished before this time, in seconds since 1970, or only looks. Returns how much there is that this user
    /// may delete.
    async fn delete_unfinished(&self, _before: u64, _only_looks: bool) -> Outcome<u64> {
        Ok(0)
    }
    /// The objects whose names begin with this.
    async fn list(&self, prefix: &str) -> Outcome<Listing>;
    /// What coordinates builds of several hosts, if the engine can do that.
    fn leases(&self) -> Option<&dyn Leases> {
        None
    }
    /// What the engine says about how it evicts objects, for people.
    async fn eviction(&self) -> Option<Result<String, String>> {
        None
    }
}

/// The answer to an attempt to take a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// Whether it was taken.
    pub is_ours: bool,
    /// The object that the lease is for, if there is one.
    pub object: Option<Vec<u8>>,
}

/// Single flight across hosts. A lease has a name, and a token that only its holder knows.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes a lease unless somebody holds it, and then reads the object that the lease is for, up to a size, in one round trip.
    /// A holder writes the object first and gives the lease back then. So the next holder finds the object.
    async fn acquire(
        &self,
        name: &str,
        token: &str,
        lifetime: Duration,
        object: &str,
        limit: u64,
    ) -> Outcome<Acquired>;
    /// Makes a lease last longer. Returns whether it is still ours.
    async fn renew(&self, name: &str, token: &str, lifetime: Duration) -> Outcome<bool>;
    /// Gives a lease back, if it is ours.
    async fn release(&self, name: &str, token: &str) -> Outcome<()>;
    /// The token of the holder. None: nobody holds the lease.
    async fn holder(&self, name: &str) -> Outcome<Option<String>>;
}

/// Makes the directory of an address that is one, as `mkdir -p` does. Returns it if it was not there.
///
/// # Errors
/// For people: it cannot be made.
pub fn make_directory(address: &Address) -> Result<Option<PathBuf>, String> {
    let path = match address.directory() {
        Some(path) if !path.exists() => path,
        _ => return Ok(None),
    };
    match std::fs::create_dir_all(&path) {
        Ok(()) => Ok(Some(path)),
        Err(error) => Err(format!("`{}` cannot be made: {error}", path.display())),
    }
}

/// Makes the engine of an address. Nothing is connected yet.
///
/// # Errors
/// For people: what is wrong with the settings.
pub fn open(settings: &EngineSettings) -> Result<Box<dyn Engine>, String> {
    crate::choose_cryptography();
    match settings.address.scheme {
        Scheme::Redis { .. } => Ok(Box::new(redis::Redis::new(settings)?)),
        Scheme::S3 | Scheme::WebDav { .. } => Ok(Box::new(operator::Files::new(settings)?)),
        Scheme::Directory => Ok(Box::new(directory::SharedDirectory::new(
            &settings.address,
        )?)),
    }
}
