//! The helper: answers programs, fills the user's own store, and sends what the outbox names.

mod bundles;
mod connection;
mod leases;
mod uploads;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use oclcache::remote::protocol::{Answer, Get, Request};
use oclcache::remote::state::OtherVersion;
use tokio::sync::Notify;

use crate::local::{Local, Received, StateChange};
use crate::object::{Kind, Object};
use crate::shared::{Counters, Fetched, KeyBytes, SharedStore};
use bundles::Bundles;
pub use connection::Acceptor;
use connection::{Connection, NoRequest};
use leases::LeaseMemory;

/// The helper ends after so long without a client.
pub const IDLE: Duration = Duration::from_secs(120);
/// How often it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(500);
/// How long the helper sends what is left at its end.
const LAST_FLUSH: Duration = Duration::from_secs(10);
/// How long work may be queued without a client, if the store does not take it: the outbox keeps it for the next helper.
const STUCK: Duration = Duration::from_secs(600);
/// What to do about an object that cannot be written.
const OBSTRUCTED: &str = "have who owns it delete it, or let you write there: `ls -ld` shows who may; other objects are sent";
/// Clients that are served at once.
const MAX_CONNECTIONS: usize = 512;

/// How a fetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchEnd {
    /// The local store has the entry.
    Stored,
    /// The store lacks it.
    Missing,
    /// It must not be used.
    Refused,
    /// The store failed.
    Failed,
}

type SharedFetch = Shared<BoxFuture<'static, FetchEnd>>;

/// The helper.
pub struct Server {
    /// The store that machines share.
    pub shared: SharedStore,
    /// The user's own store.
    pub local: Local,
    fetches: Mutex<HashMap<KeyBytes, SharedFetch>>,
    bundles: Mutex<Bundles>,
    leases: Mutex<LeaseMemory>,
    /// Something is to be sent.
    wake_uploader: Notify,
    /// Only one pass over the outbox runs at a time.
    uploading: tokio::sync::Mutex<()>,
    connections: AtomicUsize,
    last_client: Mutex<Instant>,
    /// Processes that have asked, and have not ended yet as far as is known.
    clients: Mutex<Vec<Client>>,
    received: AtomicU64,
    prefetched: AtomicU64,
    /// What has happened since the state was written, which one thread does at a time: it is read before.
    unwritten: Mutex<StateChange>,
    /// The entries that are never sent.
    withheld: Mutex<HashSet<KeyBytes>>,
    /// Why the last one of them is not, if one was found since the state was written.
    withheld_why: Mutex<Option<String>>,
    /// Why an entry stayed in the outbox in the last pass over it, if the store is not to blame.
    stays_why: Mutex<Option<String>>,
    /// The last program of another version since the state was written.
    other_version: Mutex<Option<OtherVersion>>,
    stops: AtomicBool,
    stop: Notify,
}

/// Locks a mutex that no panic can leave inconsistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How the helper runs.
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Ends after so long without a client.
    pub idle: Duration,
    /// Ends with the last client.
    pub ends_with_clients: bool,
}

impl Server {
    /// A helper. It listens to nobody yet.
    pub fn new(shared: SharedStore, local: Local) -> Arc<Server> {
        Arc::new(Server {
            shared,
            local,
            fetches: Mutex::default(),
            bundles: Mutex::default(),
            leases: Mutex::default(),
            wake_uploader: Notify::new(),
            uploading: tokio::sync::Mutex::new(()),
            connections: AtomicUsize::new(0),
            last_client: Mutex::new(Instant::now()),
            clients: Mutex::default(),
            received: AtomicU64::new(0),
            prefetched: AtomicU64::new(0),
            unwritten: Mutex::default(),
            withheld: Mutex::default(),
            withheld_why: Mutex::default(),
            stays_why: Mutex::default(),
            other_version: Mutex::default(),
            stops: AtomicBool::new(false),
            stop: Notify::new(),
        })
    }

    /// Serves until it is idle or told to stop.
    ///
    /// # Errors
    /// The system's, if the helper cannot wait for clients.
    pub async fn serve(
        self: &Arc<Self>,
        acceptor: Acceptor,
        options: ServeOptions,
    ) -> io::Result<()> {
        let uploader = tokio::spawn(uploads::run(self.clone()));
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                accepted = acceptor.accept() => {
                    let connection = accepted?;
                    if self.connections.load(Ordering::Relaxed) < MAX_CONNECTIONS {
                        self.connections.fetch_add(1, Ordering::Relaxed);
                        let server = self.clone();
                        tokio::spawn(async move {
                            server.client(connection).await;
                            server.connections.fetch_sub(1, Ordering::Relaxed);
                            *locked(&server.last_client) = Instant::now();
                        });
                    }
                }
                _ = look.tick() => {
                    self.write_state();
                    if !acceptor.is_reachable() || self.is_to_end(options) {
                        break;
                    }
                }
                () = self.stop.notified() => break,
            }
        }
        uploader.abort();
        // Nobody is to connect to a helper that ends.
        drop(acceptor);
        let left = self.flush(LAST_FLUSH).await;
        self.write_state();
        if left > 0 {
            let text = match left {
                1 => "1 entry was not sent; it stays in the outbox".to_owned(),
                _ => format!("{left} entries were not sent; they stay in the outbox"),
            };
            self.local.log(&text);
        }
        Ok(())
    }

    fn is_to_end(&self, options: ServeOptions) -> bool {
        if self.connections.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let idle = locked(&self.last_client).elapsed();
        if options.ends_with_clients {
            let mut clients = locked(&self.clients);
            clients.retain(Client::is_alive);
            // Who started the helper has not asked yet.
            return clients.is_empty() && idle > LOOK * 4;
        }
        if idle < options.idle {
            return false;
        }
        let is_queued = self.shared.can_write() && self.local.pending_count() > 0;
        !is_queued || idle >= options.idle.max(STUCK)
    }

    /// Answers one client, who asks one question.
    async fn client(self: &Arc<Self>, connection: Connection) {
        if let Some(client) = connection.peer().and_then(Client::of) {
            let mut clients = locked(&self.clients);
            if !clients.contains(&client) {
                clients.push(client);
            }
        }
        let request = tokio::time::timeout(Duration::from_secs(5), connection.request()).await;
        let request = match request {
            Ok(Ok(request)) => request,
            Ok(Err(NoRequest::OtherVersion(version))) => {
                let asked = crate::shared::now();
                *locked(&self.other_version) = Some(OtherVersion { version, asked });
                return;
            }
            Ok(Err(NoRequest::Gone)) | Err(_) => return,
        };
        match request {
            Request::Hello => {
                if self.shared.guarded.is_open().is_none() {
                    let _ = self.shared.guarded.check().await;
                }
            }
            Request::Get(get) => self.get(get, &connection).await,
            Request::Put(_) => self.wake_uploader.notify_one(),
            Request::Done { .. } => {}
            Request::Status => connection.answer(&Answer::Text(self.status())),
            Request::Flush { wait_ms } => {
                let left = self.flush(Duration::from_millis(wait_ms.into())).await;
                connection.answer(&Answer::Left(left));
            }
            Request::Stop => {
                self.stops.store(true, Ordering::Relaxed);
                connection.answer(&Answer::Left(self.local.pending_count()));
                self.stop.notify_one();
            }
        }
    }

    async fn get(self: &Arc<Self>, get: Get, connection: &Connection) {
        let key = get.key.0;
        locked(&self.bundles).note_used(get.first_missed.0, key);
        if let Some(open) = self.shared.guarded.is_open() {
            return connection.answer(&opened(open));
        }
        let was_missing = self.shared.was_missing(Kind::Entry, &key);
        let end = match was_missing {
            true => FetchEnd::Missing,
            false => {
                let fetch = self.start_fetch(key, get.first_missed.0);
                let wait = Duration::from_micros(get.wait_us.into());
                if self.shared.guarded.is_slower_than(wait) {
                    return connection.answer(&Answer::Later);
                }
                match tokio::time::timeout(wait, fetch).await {
                    Ok(end) => end,
                    Err(_) => {
                        self.shared.guarded.note_late(wait);
                        return connection.answer(&Answer::Later);
                    }
                }
            }
        };
        match end {
            FetchEnd::Stored => connection.answer(&Answer::Hit),
            FetchEnd::Missing if get.wants_lease && get.wait_us > 0 => {
                self.lease(&get, connection).await
            }
            FetchEnd::Missing | FetchEnd::Refused => connection.answer(&Answer::Miss),
            FetchEnd::Failed => match self.shared.guarded.is_open() {
                Some(open) => connection.answer(&opened(open)),
                None => connection.answer(&Answer::Miss),
            },
        }
    }

    /// Fetches an entry, and once for each first key the bundle of that name. Requests that come meanwhile share the result.
    fn start_fetch(self: &Arc<Self>, key: KeyBytes, first_missed: KeyBytes) -> SharedFetch {
        let mut fetches = locked(&self.fetches);
        if let Some(fetch) = fetches.get(&key) {
            return fetch.clone();
        }
        let server = self.clone();
        let task = tokio::spawn(async move {
            let end = server.fetch(key, first_missed).await;
            locked(&server.fetches).remove(&key);
            end
        });
        let fetch = task
            .map(|end| end.unwrap_or(FetchEnd::Failed))
            .boxed()
            .shared();
        fetches.insert(key, fetch.clone());
        fetch
    }

    async fn fetch(self: &Arc<Self>, key: KeyBytes, first_missed: KeyBytes) -> FetchEnd {
        // It may have been prefetched since the program looked, and a round trip takes longer than a look.
        let server = self.clone();
        let is_stored = tokio::task::spawn_blocking(move || server.local.has(&key));
        if is_stored.await.unwrap_or(false) {
            return FetchEnd::Stored;
        }
        let mut wanted = vec![(Kind::Entry, key)];
        let with_bundle = locked(&self.bundles).is_to_fetch(&first_missed);
        if with_bundle {
            wanted.push((Kind::Bundle, first_missed));
        }
        let with_recipe = self.local.takes_recipes();
        if with_recipe {
            wanted.push((Kind::Recipe, key));
        }
        let Ok(found) = self.shared.fetch(&wanted).await else {
            locked(&self.bundles).not_fetched(&first_missed);
            return FetchEnd::Failed;
        };
        let mut found = found.into_iter();
        let recipe = match with_recipe {
            true => found.next_back(),
            false => None,
        };
        let entry = found.next();
        // Before the entry is stored: the rest is on its way meanwhile.
        if let Some(Fetched::Found(bundle)) = found.next() {
            let keys = locked(&self.bundles).fetched(first_missed, &bundle.payload);
            tokio::spawn(bundles::prefetch(self.clone(), first_missed, keys));
        }
        let end = self.keep(key, entry.unwrap_or(Fetched::Missing)).await;
        if end == FetchEnd::Missing {
            Counters::add(&self.shared.counters.misses, 1);
            if let Some(recipe) = recipe {
                self.keep(key, recipe).await;
            }
        }
        end
    }

    /// Stores an entry that somebody asked for, if it was found.
    async fn keep(self: &Arc<Self>, key: KeyBytes, entry: Fetched) -> FetchEnd {
        match entry {
            Fetched::Found(object) => self.store(key, *object, false).await,
            Fetched::Refused(_) => FetchEnd::Refused,
            Fetched::Missing => FetchEnd::Missing,
        }
    }

    /// Checks an entry or recipe as an import does, and stores it.
    async fn store(
        self: &Arc<Self>,
        key: KeyBytes,
        object: Object,
        is_prefetched: bool,
    ) -> FetchEnd {
        let server = self.clone();
        let kind = object.header.kind;
        let stored = tokio::task::spawn_blocking(move || {
            server
                .local
                .receive(&key, object, &server.shared.trusted, is_prefetched)
        });
        match stored
            .await
            .unwrap_or(Received::Failed("the helper failed".to_owned()))
        {
            // Somebody must compile it yet.
            Received::Stored if kind == Kind::Recipe => FetchEnd::Stored,
            Received::Stored => {
                Counters::add(&self.shared.counters.hits, 1);
                let counter = if is_prefetched {
                    &self.prefetched
                } else {
                    &self.received
                };
                counter.fetch_add(1, Ordering::Relaxed);
                FetchEnd::Stored
            }
            Received::Present => FetchEnd::Stored,
            Received::Refused(why) => {
                let name = self.shared.name(kind, &key);
                self.shared.note_refused(&name, &why);
                FetchEnd::Refused
            }
            Received::Failed(why) => {
                self.local.log(&format!("an entry cannot be stored: {why}"));
                FetchEnd::Failed
            }
        }
    }

    /// Adds what has happened since the last time to the state that others read.
    pub fn write_state(&self) {
        let mut unwritten = locked(&self.unwritten);
        let counters = &self.shared.counters;
        let count = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        unwritten.add(StateChange {
            trouble: self.trouble().unwrap_or_default(),
            refused: count(&counters.refused),
            errors: count(&counters.errors),
            received: count(&self.received),
            prefetched: count(&self.prefetched),
            sent: count(&counters.uploads),
            withheld: count(&counters.withheld),
            withheld_why: locked(&self.withheld_why).take(),
            bytes_in: count(&counters.bytes_in),
            bytes_out: count(&counters.bytes_out),
            other_version: locked(&self.other_version).take(),
        });
        if self.local.add_state(&unwritten) {
            *unwritten = StateChange::default();
        }
    }

    /// What is wrong now, and what to do, for people.
    pub fn trouble(&self) -> Option<String> {
        use crate::engine::EngineError;
        let error = self.shared.guarded.last_error();
        let advice = error.map(|error| {
            let step = match &error {
                EngineError::Unreachable(_) => "check that the server runs, its address (`oclcache config get remote`) and the network",
                EngineError::TimedOut => "check the server and the network; until then everything is compiled here",
                EngineError::Denied(_) => "set the password anew: `oclcache config set remote` with a URL that has user and password",
                EngineError::Forbidden(_) => "have who owns it let you read and write there: `ls -ld` shows who may",
                EngineError::Absent(_) => "mount its file system, or make it with `mkdir -p`",
                EngineError::Obstructed(_) => OBSTRUCTED,
                EngineError::Unwritable(_) => "set `remote_readonly`, or have who owns it let you write: see `ls -ld`; reading goes on",
                EngineError::ClockDiffers(_) => "set the clock of this machine (`timedatectl set-ntp true`), or that of the server",
                EngineError::Full(_) => "make room there, let it evict (Redis: `maxmemory-policy allkeys-lru`), or name a server that takes writes; reading goes on",
                EngineError::Failed(_) => "see the log of the server",
            };
            format!("{error}; {step}")
        });
        let stays = || locked(&self.stays_why).clone();
        advice.or_else(stays).or_else(|| {
            let refusal = self.shared.last_refusal()?;
            Some(format!(
                "an object was refused: {refusal}; if you trust its signer, type `oclcache remote trust NAME KEY`"
            ))
        })
    }

    /// The state, for people.
    pub fn status(&self) -> String {
        let guarded = &self.shared.guarded;
        let mut text = String::new();
        let mut row = |name: &str, value: String| text += &format!("  {name:<18}{value}\n");
        row(
            "state",
            match (guarded.is_open(), guarded.last_error()) {
                (Some(open), _) => format!(
                    "the store is not asked for another {} s",
                    open.as_secs() + 1
                ),
                (None, Some(_)) if guarded.refuses_writes().is_some() => {
                    "the store takes nothing now; reading goes on".to_owned()
                }
                (None, Some(_)) => "the last operation failed".to_owned(),
                (None, None) => "in order".to_owned(),
            },
        );
        if let Some(trip) = guarded.round_trip() {
            row("round trip", format!("{:.1} ms", trip.as_secs_f64() * 1e3));
        }
        if let Some(trouble) = self.trouble() {
            row("trouble", trouble);
        }
        row("to be sent", self.local.pending_text());
        text
    }
}

fn opened(open: Duration) -> Answer {
    let retry_ms = u32::try_from(open.as_millis()).unwrap_or(u32::MAX).max(1);
    Answer::Open { retry_ms }
}

/// A process that has asked.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Client {
    number: u32,
    /// In ticks since boot. Another process or thread may get the number later.
    start: u64,
}

impl Client {
    /// The process of this number. None: it has ended, whether somebody has waited for it or not.
    fn of(number: u32) -> Option<Client> {
        let stat = std::fs::read(format!("/proc/{number}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // Behind the name, which may have anything in it, comes the 3rd field, the state; the 22nd is the start (proc_pid_stat(5)).
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let has_ended = matches!(fields.next()?, "Z" | "X");
        let start = fields.nth(18)?.parse().ok()?;
        (!has_ended).then_some(Client { number, start })
    }

    fn is_alive(&self) -> bool {
        Client::of(self.number) == Some(*self)
    }
}
