//! Single flight across hosts: who builds what, as long as the connection of the builder lives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oclcache::remote::protocol::{Answer, Get, Request};

use super::connection::Connection;
use super::{FetchEnd, Server, locked};
use crate::engine::Leases;
use crate::shared::KeyBytes;

/// The shortest and the longest lease.
const LIFETIME: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// The first and the longest pause between two looks at somebody else's lease.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// How often a client is told that another host builds: it takes a helper that is silent for 3 s for one that hangs.
const AGAIN: Duration = Duration::from_millis(500);
/// Leases of a key that ended without an entry before leases of this key are ignored.
const MAX_VAIN: u32 = 2;
/// For how long they are ignored.
const IGNORED: Duration = Duration::from_secs(600);

/// Leases that ended without an entry.
#[derive(Default)]
pub struct LeaseMemory(HashMap<KeyBytes, (u32, Instant)>);

impl LeaseMemory {
    fn is_ignored(&mut self, key: &KeyBytes) -> bool {
        self.0.retain(|_, (_, when)| when.elapsed() < IGNORED);
        self.0.get(key).is_some_and(|(vain, _)| *vain >= MAX_VAIN)
    }

    fn ended_in_vain(&mut self, key: KeyBytes) {
        let (vain, when) = self.0.entry(key).or_insert((0, Instant::now()));
        *vain += 1;
        *when = Instant::now();
    }
}

/// How the wait for the holder of a lease ended.
enum HolderEnd {
    /// The lease ended, or is somebody else's.
    Ended,
    /// The client has hung up.
    ClientGone,
    /// The store failed.
    Failed,
}

/// How long a lease lasts without being renewed.
fn lifetime(get: &Get) -> Duration {
    let estimate = Duration::from_micros(get.estimate_us);
    estimate.saturating_mul(3).clamp(LIFETIME.0, LIFETIME.1)
}

impl Server {
    /// Takes the lease of a key for a client, or waits until the host that has it has built the entry.
    pub(super) async fn lease(self: &Arc<Self>, get: &Get, connection: &Connection) {
        let key = get.key.0;
        let guarded = &self.shared.guarded;
        let engine = guarded.engine();
        let leases = engine.leases().filter(|_| self.shared.can_write());
        let Some(leases) = leases else {
            return connection.answer(&Answer::Miss);
        };
        if locked(&self.leases).is_ignored(&key) {
            return connection.answer(&Answer::Miss);
        }
        let (name, token) = (self.shared.lease_name(&key), token());
        let lifetime = lifetime(get);
        let release = async || {
            let _ = guarded.run(leases.release(&name, &token)).await;
        };
        let mut has_waited = false;
        loop {
            let acquired = self.shared.acquire(leases, &key, &token, lifetime).await;
            let Ok((is_ours, entry)) = acquired else {
                return connection.answer(&Answer::Miss);
            };
            // Another host may have built it since this one found that the store lacks it.
            let answer = match self.keep(key, entry).await {
                FetchEnd::Stored => Some(Answer::Hit),
                FetchEnd::Refused | FetchEnd::Failed => Some(Answer::Miss),
                FetchEnd::Missing => {
                    if has_waited {
                        locked(&self.leases).ended_in_vain(key);
                    }
                    let is_ignored = locked(&self.leases).is_ignored(&key);
                    is_ignored.then_some(Answer::Miss)
                }
            };
            if let Some(answer) = answer {
                connection.answer(&answer);
                if is_ours {
                    release().await;
                }
                return;
            }
            if is_ours {
                connection.answer(&Answer::Leased);
                self.hold(leases, &key, &name, &token, lifetime, connection)
                    .await;
                return release().await;
            }
            match self.wait_for_holder(leases, &name, connection).await {
                HolderEnd::Ended => has_waited = true,
                HolderEnd::ClientGone => return,
                HolderEnd::Failed => return connection.answer(&Answer::Miss),
            }
        }
    }

    /// Waits until the lease that somebody holds is given back, expires, or is somebody else's.
    async fn wait_for_holder(
        self: &Arc<Self>,
        leases: &dyn Leases,
        name: &str,
        connection: &Connection,
    ) -> HolderEnd {
        let guarded = &self.shared.guarded;
        let (mut pause, mut first) = (PAUSES.0, None);
        connection.answer(&Answer::Elsewhere);
        let mut told = Instant::now();
        loop {
            tokio::select! {
                _ = connection.request() => return HolderEnd::ClientGone,
                () = tokio::time::sleep(pause) => {}
            }
            pause = PAUSES.1.min(pause * 2);
            if told.elapsed() >= AGAIN {
                connection.answer(&Answer::Elsewhere);
                told = Instant::now();
            }
            match guarded.run(leases.holder(name)).await {
                Ok(None) => return HolderEnd::Ended,
                Ok(holder) if first.is_some() && holder != first => return HolderEnd::Ended,
                Ok(holder) => first = holder,
                Err(_) => return HolderEnd::Failed,
            }
        }
    }

    /// Renews a lease until the client is done or gone, and sends what it has built.
    async fn hold(
        self: &Arc<Self>,
        leases: &dyn Leases,
        key: &KeyBytes,
        name: &str,
        token: &str,
        lifetime: Duration,
        connection: &Connection,
    ) {
        let guarded = &self.shared.guarded;
        let mut renewal = tokio::time::interval(lifetime / 3);
        renewal.tick().await;
        let is_stored = loop {
            tokio::select! {
                request = connection.request() => match request {
                    Ok(Request::Done { is_stored, .. }) => break is_stored,
                    _ => break false,
                },
                _ = renewal.tick() => {
                    // A lease that was lost does no harm: the entry is sent, and overwrites an equal one.
                    let _ = guarded.run(leases.renew(name, token, lifetime)).await;
                }
            }
        };
        if is_stored {
            self.send_now(key).await;
        }
    }
}

/// A text that no other helper has.
fn token() -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let mut random = [0_u8; 16];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{host} {} {digits}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_ignored_after_two_that_ended_without_an_entry() {
        let mut memory = LeaseMemory::default();
        assert!(!memory.is_ignored(&[1; 32]));
        memory.ended_in_vain([1; 32]);
        assert!(!memory.is_ignored(&[1; 32]));
        memory.ended_in_vain([1; 32]);
        assert!(memory.is_ignored(&[1; 32]));
        assert!(!memory.is_ignored(&[2; 32]));
    }

    #[test]
    fn a_lease_lasts_three_times_the_estimate_within_bounds() {
        let key = oclcache::remote::Key([1; 32]);
        let get = |estimate_us| Get {
            key,
            first_missed: key,
            wait_us: 1,
            estimate_us,
            wants_lease: true,
        };
        assert_eq!(lifetime(&get(0)), Duration::from_secs(2));
        assert_eq!(lifetime(&get(5_000_000)), Duration::from_secs(15));
        assert_eq!(lifetime(&get(u64::MAX)), Duration::from_secs(60));
    }

    #[test]
    fn tokens_differ() {
        assert_ne!(token(), token());
    }
}
