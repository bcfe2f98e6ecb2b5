//! Asks the helper for an entry that the local store lacks, and tells it what was stored.
//!
//! One connection for each question, so nothing is kept across fork, and no lock is held. A question that may not wait is a hint: the
//! connection is closed right after it. Whatever goes wrong here, the driver compiles as if there were no remote level.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;

use super::budget::WaitBudget;
use super::outbox::{Marker, Outbox};
use super::outbox_handle::OutboxHandle;
use super::protocol::{Answer, Get, Request};
use super::socket::{self, Connection};
use super::{start, state};
use crate::config::Config;
use crate::fork_generation::generation;
use crate::key::ingredients::{Key, sha256};
use crate::store::Store;
use crate::store::entry::Meta;

/// How often a wait looks whether the call still needs the answer.
const SLICE: Duration = Duration::from_millis(25);
/// The pause between two attempts to reach a helper that was just started.
const PAUSE: Duration = Duration::from_millis(2);
/// While another host builds, the helper says so at least every second. One that is silent for longer hangs.
const SILENCE: Duration = Duration::from_secs(3);

/// The remote level as this process uses it.
pub struct RemoteClient {
    /// The setting `remote_wait`.
    longest: Duration,
    is_readonly: bool,
    budget: WaitBudget,
    /// The name of the socket, and the process that made it: a forked child may have entered other namespaces.
    name: OnceBox<(u64, String)>,
    first_missed: OnceBox<Key>,
    outbox: OnceBox<Option<OutboxHandle>>,
    /// It was said that something is not sent.
    has_warned: AtomicBool,
}

/// A question for an entry.
pub struct Question<'a> {
    /// The key.
    pub key: Key,
    /// How long the driver took to build it earlier, if that is known.
    pub compiled_in: Option<Duration>,
    /// Whether this thread may wait.
    pub may_wait: bool,
    /// How long to wait where no application waits; None: by what can be saved.
    pub patience: Option<Duration>,
    /// Whether a lease is wanted, and how long to wait for another host that has it.
    pub lease: Option<Duration>,
    /// Whether the call still needs the answer.
    pub goes_on: &'a dyn Fn() -> bool,
}

/// How a question ended.
#[derive(Debug, Default)]
pub struct Asked {
    /// The helper says that the local store has the entry now.
    pub is_stored: bool,
    /// The right to build it, among all hosts.
    pub lease: Option<Lease>,
    /// How long this thread waited.
    pub waited: Duration,
    /// What is counted.
    pub ended: Option<AskedEnd>,
}

/// What is counted of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedEnd {
    /// The entry was stored.
    Hit,
    /// The remote store has no such entry.
    Miss,
    /// The answer did not come in time.
    Late,
    /// The helper could not be reached, or broke the protocol.
    Error,
}

/// The right to build a key, among all hosts. It ends with the connection.
#[derive(Debug)]
pub struct Lease {
    key: Key,
    connection: Connection,
}

impl Lease {
    /// Gives it back.
    pub fn done(self, is_stored: bool) {
        let key = self.key;
        let _ = self.connection.ask(&Request::Done { key, is_stored });
    }
}

impl RemoteClient {
    /// The client of these settings; None if there is no remote level, or nothing can be stored. Makes no system call.
    pub fn new(config: &Config) -> Option<RemoteClient> {
        let is_used = config.remote().is_some() && !config.readonly() && !config.disable();
        is_used.then(|| RemoteClient {
            longest: config.remote_wait(),
            is_readonly: config.remote_readonly(),
            budget: WaitBudget::default(),
            name: OnceBox::new(),
            first_missed: OnceBox::new(),
            outbox: OnceBox::new(),
            has_warned: AtomicBool::new(false),
        })
    }

    /// The name of the socket of this process.
    fn name(&self, config: &Config, store: &Store) -> String {
        let make = || socket::name(config, store.root());
        let known = self.name.get_or_init(|| Box::new((generation(), make())));
        match known.0 == generation() {
            true => known.1.clone(),
            false => make(),
        }
    }

    /// Sends a message that has no answer. A helper that is not there is started; it looks into the outbox by itself.
    pub fn tell(&self, config: &Config, store: &Store, message: &Request) {
        let name = self.name(config, store);
        match socket::connect(&name, store.root()) {
            Some(connection) => {
                let _ = connection.ask(message);
            }
            None if !is_open(store, &name) => {
                start::start();
            }
            None => {}
        }
    }

    /// Asks for an entry, after the local store was found to lack it.
    pub fn ask(&self, config: &Config, store: &Store, question: &Question<'_>) -> Asked {
        let key = question.key;
        let first = self.first_missed.get_or_init(|| Box::new(key));
        let name = self.name(config, store);
        if is_open(store, &name) {
            return Asked::default();
        }
        let estimate = question.compiled_in.or_else(|| self.budget.mean());
        let wait = match (question.may_wait, question.patience) {
            (false, _) => Duration::ZERO,
            (true, Some(patience)) => patience,
            (true, None) => self.budget.next(estimate, self.longest),
        };
        let started = Instant::now();
        let connection = match reach(&name, store, started + wait) {
            Some(connection) => connection,
            // A helper that was started for a hint will be there for the next question.
            None if wait.is_zero() => return Asked::default(),
            None => return self.ended(Asked::default(), started, AskedEnd::Error),
        };
        let micros = |time: Duration| time.as_micros();
        let get = Request::Get(Get {
            key,
            first_missed: *first,
            wait_us: u32::try_from(micros(wait)).unwrap_or(u32::MAX),
            estimate_us: u64::try_from(micros(estimate.unwrap_or_default())).unwrap_or(u64::MAX),
            wants_lease: question.lease.is_some() && !wait.is_zero(),
        });
        if connection.ask(&get).is_err() {
            return self.ended(Asked::default(), started, AskedEnd::Error);
        }
        if wait.is_zero() {
            return Asked::default();
        }
        self.wait(question, connection, started, started + wait)
    }

    /// Waits for the answer.
    fn wait(
        &self,
        question: &Question<'_>,
        connection: Connection,
        started: Instant,
        mut until: Instant,
    ) -> Asked {
        let nothing = Asked::default;
        let mut is_built_elsewhere = false;
        loop {
            let now = Instant::now();
            if now >= until || !(question.goes_on)() {
                return self.ended(nothing(), started, AskedEnd::Late);
            }
            let answer = match connection.answer(until.min(now + SLICE)) {
                Ok(None) => continue,
                Ok(Some(answer)) => answer,
                Err(_) => return self.ended(nothing(), started, AskedEnd::Error),
            };
            match (answer, question.lease) {
                (Answer::Hit, _) => {
                    let asked = Asked {
                        is_stored: true,
                        ..nothing()
                    };
                    return self.ended(asked, started, AskedEnd::Hit);
                }
                (Answer::Miss, _) => return self.ended(nothing(), started, AskedEnd::Miss),
                (Answer::Leased, Some(_)) => {
                    let key = question.key;
                    let asked = Asked {
                        lease: Some(Lease { key, connection }),
                        ..nothing()
                    };
                    return self.ended(asked, started, AskedEnd::Miss);
                }
                (Answer::Later, _) => return self.ended(nothing(), started, AskedEnd::Late),
                (Answer::Open { .. }, _) => {
                    return Asked {
                        waited: started.elapsed(),
                        ..nothing()
                    };
                }
                // The build of another host is no wait in vain: it saves the build here.
                (Answer::Elsewhere, Some(longest)) => {
                    is_built_elsewhere = true;
                    until = (started + longest).min(Instant::now() + SILENCE);
                }
                _ if is_built_elsewhere => {
                    return self.ended(nothing(), started, AskedEnd::Late);
                }
                _ => return self.ended(nothing(), started, AskedEnd::Error),
            }
        }
    }

    fn ended(&self, asked: Asked, started: Instant, ended: AskedEnd) -> Asked {
        let waited = started.elapsed();
        if ended != AskedEnd::Hit {
            self.budget.in_vain(waited);
        }
        Asked {
            waited,
            ended: Some(ended),
            ..asked
        }
    }

    /// Notes that an entry that the helper said it stored could not be used.
    pub fn was_in_vain(&self, waited: Duration) {
        self.budget.in_vain(waited);
    }

    /// Notes the compile time of a program that was compiled here.
    pub fn compiled(&self, time: Duration) {
        self.budget.compiled(time);
    }

    /// Notes the compile time of a program that was served.
    pub fn saw(&self, time: Duration) {
        self.budget.saw(time);
    }

    /// Notes that this machine's driver built an entry that is about to be stored with these bytes. None: it is not to be sent.
    pub fn built(&self, config: &Config, key: &Key, meta: &Meta, bytes: &[u8]) -> Option<Marker> {
        let outbox = self.outbox(config)?;
        if meta.imported || meta.signer().is_some() {
            return None;
        }
        let marker = Marker {
            sha256: sha256(bytes),
            compile_ns: meta.compile_ns,
            is_pending: meta.is_pending(),
        };
        let noted = outbox.note_built(key, &marker);
        let noted = noted.inspect_err(|error| self.not_sent(error));
        noted.is_ok().then_some(marker)
    }

    /// Has the entry of a marker sent, which was just stored.
    pub fn send(&self, config: &Config, store: &Store, key: &Key, marker: &Marker) {
        let Some(outbox) = self.outbox(config) else {
            return;
        };
        match outbox.mark(key, marker) {
            Ok(()) => self.tell(config, store, &Request::Put(*key)),
            Err(error) => self.not_sent(&error),
        }
    }

    /// Whether this machine's driver built the entry of a key whose file has these bytes.
    pub fn is_built_here(&self, config: &Config, key: &Key, entry: &[u8]) -> bool {
        let outbox = self.outbox(config);
        outbox.is_some_and(|outbox| outbox.is_built_here(key, entry))
    }

    fn outbox(&self, config: &Config) -> Option<&Outbox> {
        if self.is_readonly {
            return None;
        }
        let open = || Outbox::open(config);
        let first = || {
            let opened = open().inspect_err(|why| self.not_sent(why));
            Box::new(opened.ok().map(OutboxHandle::new))
        };
        let handle = self.outbox.get_or_init(first).as_ref()?;
        let outbox = handle.get(|| open().map(Some));
        outbox.inspect_err(|why| self.not_sent(why)).ok().flatten()
    }

    /// Says why what was built is not noted in the outbox. The same keeps most entries, and a program may build many.
    fn not_sent(&self, why: &dyn Display) {
        match self.has_warned.swap(true, Ordering::Relaxed) {
            false => tracing::warn!(%why, "entries are not sent to other machines"),
            true => tracing::debug!(%why, "an entry is not sent to other machines"),
        }
    }
}

/// Whether the store is not to be asked now.
fn is_open(store: &Store, name: &str) -> bool {
    let place = store.root().open_below(socket::DIRECTORY).ok().flatten();
    place.is_some_and(|place| state::open_for(&place, name).is_some())
}

/// Connects to the helper. Starts it if it is not there, and waits for it until this time.
fn reach(name: &str, store: &Store, until: Instant) -> Option<Connection> {
    let connection = socket::connect(name, store.root());
    if connection.is_some() || !start::start() && !start::is_starting() {
        return connection;
    }
    while Instant::now() + PAUSE < until {
        std::thread::sleep(PAUSE);
        let connection = socket::connect(name, store.root());
        if connection.is_some() {
            return connection;
        }
    }
    None
}
