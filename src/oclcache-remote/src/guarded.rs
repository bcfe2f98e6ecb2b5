//! An engine with deadlines, a circuit breaker, and a pause of writes when the store takes none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::engine::{Engine, EngineError, Listing, OPERATION_TIMEOUT, Outcome};

/// The first and the longest time for which the store is not asked after it failed.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Errors that open the breaker. One failed connection is enough.
const MAX_ERRORS: u32 = 3;
/// How long nothing is written after the store took nothing.
const WRITE_PAUSE: Duration = Duration::from_secs(300);
/// The share of a new measurement in the mean time of a round trip, as a divisor.
const SMOOTHING: u64 = 4;

/// Keeps what outlives the helper: new processes do not even connect while the breaker is open.
pub trait BreakerFile: Send + Sync {
    /// For how long the store is not to be asked.
    fn load(&self) -> Option<Duration>;
    /// Stores for how long the store is not to be asked, and why; None: it may be asked. Failures are ignored: the breaker then
    /// begins anew.
    fn store(&self, open: Option<(Duration, &str)>);
}

/// Makes the engine anew if the credentials have changed since it was made.
pub type Reload = Box<dyn Fn() -> Option<Box<dyn Engine>> + Send + Sync>;

/// An engine that is safe to wait for.
pub struct Guarded {
    engine: Mutex<Arc<dyn Engine>>,
    reload: Option<Reload>,
    file: Box<dyn BreakerFile>,
    breaker: Mutex<Breaker>,
    /// The mean time of a round trip, in microseconds; 0: unknown.
    round_trip_us: AtomicU64,
    /// The longest time that a client has waited for an answer in vain, in microseconds; 0: one has come since.
    late_us: AtomicU64,
    clock: fn() -> u64,
}

#[derive(Default)]
struct Breaker {
    /// Until when the store is not asked, in milliseconds since 1970.
    open_until_ms: u64,
    /// How long it was not asked the last time.
    pause: Duration,
    errors: u32,
    /// Until when nothing is written, and why.
    writes_pause: Option<(Instant, EngineError)>,
    last_error: Option<EngineError>,
}

/// Now, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

impl Guarded {
    /// An engine with the state that an earlier helper left.
    pub fn new(engine: Box<dyn Engine>, file: Box<dyn BreakerFile>) -> Guarded {
        Guarded::with_reload(engine, file, None)
    }

    /// The same; if the store refuses the credentials, they are read again.
    pub fn with_reload(
        engine: Box<dyn Engine>,
        file: Box<dyn BreakerFile>,
        reload: Option<Reload>,
    ) -> Guarded {
        let pause = file.load().unwrap_or_default().min(PAUSES.1);
        let open_until_ms = match pause.is_zero() {
            true => 0,
            false => now_ms() + pause.as_millis() as u64,
        };
        let breaker = Breaker {
            open_until_ms,
            pause,
            ..Breaker::default()
        };
        Guarded {
            engine: Mutex::new(engine.into()),
            reload,
            file,
            breaker: Mutex::new(breaker),
            round_trip_us: AtomicU64::new(0),
            late_us: AtomicU64::new(0),
            clock: now_ms,
        }
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// For how long the store is not asked. None: it is asked.
    pub fn is_open(&self) -> Option<Duration> {
        let until = self.breaker().open_until_ms;
        let left = Duration::from_millis(until.saturating_sub((self.clock)()));
        // The breaker is never open for longer than its longest pause: the clock was set back.
        (!left.is_zero() && left <= PAUSES.1).then_some(left)
    }

    /// Why nothing is written now: what the store said a while ago. It may still be read.
    pub fn refuses_writes(&self) -> Option<EngineError> {
        let pause = self.breaker().writes_pause.clone();
        let pause = pause.filter(|(until, _)| *until > Instant::now());
        pause.map(|(_, why)| why)
    }

    /// The last error, if nothing has succeeded since, or why nothing is written now.
    pub fn last_error(&self) -> Option<EngineError> {
        let last = self.breaker().last_error.clone();
        last.or_else(|| self.refuses_writes())
    }

    /// The mean time of a round trip. None: nothing was measured yet.
    pub fn round_trip(&self) -> Option<Duration> {
        let mean = self.round_trip_us.load(Ordering::Relaxed);
        (mean > 0).then(|| Duration::from_micros(mean))
    }

    /// Notes that an answer did not come within this time. No other client needs to find that out.
    pub fn note_late(&self, waited: Duration) {
        let waited = waited.as_micros() as u64;
        self.late_us.fetch_max(waited, Ordering::Relaxed);
    }

    /// Whether an answer is not to be expected within this time.
    pub fn is_slower_than(&self, wait: Duration) -> bool {
        let late = Duration::from_micros(self.late_us.load(Ordering::Relaxed));
        wait <= late || self.round_trip().is_some_and(|trip| trip > wait)
    }

    /// The engine itself, for what has no deadline.
    pub fn engine(&self) -> Arc<dyn Engine> {
        let engine = self.engine.lock();
        engine
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// Reads the credentials again. Returns whether there are others.
    fn has_reloaded(&self) -> bool {
        let Some(new) = self.reload.as_ref().and_then(|reload| reload()) else {
            return false;
        };
        let mut engine = self
            .engine
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *engine = new.into();
        true
    }

    /// Runs an operation with a deadline. Nothing is tried if the breaker is open.
    pub async fn run<T>(&self, operation: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        self.run_within(OPERATION_TIMEOUT, operation).await
    }

    /// Runs an operation on single objects that the store may keep from this user, and still asks it for others then. None: it does.
    pub async fn run_if_allowed<T>(
        &self,
        operation: impl Future<Output = Outcome<T>>,
    ) -> Outcome<Option<T>> {
        let allowed = async {
            match operation.await {
                Err(EngineError::Denied(_) | EngineError::Obstructed(_)) => Ok(None),
                done => done.map(Some),
            }
        };
        self.run(allowed).await
    }

    async fn run_within<T>(
        &self,
        limit: Duration,
        operation: impl Future<Output = Outcome<T>>,
    ) -> Outcome<T> {
        if self.is_open().is_some() {
            let last = self.last_error();
            let unknown = || EngineError::Unreachable("it failed a moment ago".to_owned());
            return Err(last.unwrap_or_else(unknown));
        }
        let result = tokio::time::timeout(limit, operation).await;
        let result = result.unwrap_or(Err(EngineError::TimedOut));
        if matches!(result, Err(EngineError::Denied(_))) && self.has_reloaded() {
            // The next operation uses the new ones.
            return result;
        }
        self.note(result.as_ref().err());
        result
    }

    /// Makes a round trip and connects, if there is no connection.
    ///
    /// # Errors
    /// The engine's.
    pub async fn check(&self) -> Outcome<()> {
        let (started, engine) = (Instant::now(), self.engine());
        self.run(engine.check()).await?;
        self.measured(started.elapsed());
        Ok(())
    }

    /// See [`Engine::read`].
    ///
    /// # Errors
    /// The engine's.
    pub async fn read(&self, names: &[String], limit: u64) -> Outcome<Vec<Option<Vec<u8>>>> {
        let (started, engine) = (Instant::now(), self.engine());
        let found = self.run(engine.read(names, limit)).await?;
        self.measured(started.elapsed());
        Ok(found)
    }

    /// See [`Engine::write`]. Nothing is tried for a while after the store took nothing.
    ///
    /// # Errors
    /// The engine's.
    pub async fn write(&self, name: &str, bytes: Vec<u8>) -> Outcome<()> {
        match self.refuses_writes() {
            Some(why) => Err(why),
            None => self.run(self.engine().write(name, bytes)).await,
        }
    }

    /// See [`Engine::list`], which takes longer than one operation.
    ///
    /// # Errors
    /// The engine's.
    pub async fn list(&self, prefix: &str) -> Outcome<Listing> {
        self.run_within(OPERATION_TIMEOUT * 60, self.engine().list(prefix))
            .await
    }

    /// See [`Engine::delete_unfinished`], which takes as long as a listing.
    ///
    /// # Errors
    /// The engine's.
    pub async fn delete_unfinished(&self, before: u64, only_looks: bool) -> Outcome<u64> {
        let engine = self.engine();
        self.run_within(
            OPERATION_TIMEOUT * 60,
            engine.delete_unfinished(before, only_looks),
        )
        .await
    }

    fn measured(&self, took: Duration) {
        self.late_us.store(0, Ordering::Relaxed);
        let took = (took.as_micros() as u64).max(1);
        let mean = self.round_trip_us.load(Ordering::Relaxed);
        let new = match mean {
            0 => took,
            mean => mean - mean / SMOOTHING + took / SMOOTHING,
        };
        self.round_trip_us.store(new.max(1), Ordering::Relaxed);
    }

    fn note(&self, error: Option<&EngineError>) {
        let mut breaker = self.breaker();
        breaker.last_error = error.cloned();
        match error {
            None => {
                breaker.errors = 0;
                if !breaker.pause.is_zero() {
                    (breaker.pause, breaker.open_until_ms) = (Duration::ZERO, 0);
                    self.file.store(None);
                }
                return;
            }
            // The store works: only this object cannot be written.
            Some(EngineError::Obstructed(_)) => return,
            Some(why @ (EngineError::Full(_) | EngineError::Unwritable(_))) => {
                breaker.writes_pause = Some((Instant::now() + WRITE_PAUSE, why.clone()));
                return;
            }
            Some(
                EngineError::Unreachable(_)
                | EngineError::Absent(_)
                | EngineError::Denied(_)
                | EngineError::Forbidden(_)
                | EngineError::ClockDiffers(_)
                | EngineError::TimedOut,
            ) => breaker.errors = MAX_ERRORS,
            Some(EngineError::Failed(_)) => breaker.errors += 1,
        }
        if breaker.errors >= MAX_ERRORS {
            breaker.pause = (breaker.pause * 2).clamp(PAUSES.0, PAUSES.1);
            breaker.open_until_ms = (self.clock)() + breaker.pause.as_millis() as u64;
            let why = error.map(EngineError::to_string).unwrap_or_default();
            self.file.store(Some((breaker.pause, &why)));
        }
    }
}

#[cfg(test)]
mod tests;
