//! `oclcache remote status` and `doctor`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use oclcache::remote::protocol::{Answer, Request, VERSION};
use oclcache::remote::settings::RemoteSettings;
use oclcache::remote::state::OtherVersion;
use oclcache::remote::{NO_INIT, waits_for_orphans};

use super::{Done, print, run_to_end};
use crate::local::Local;
use crate::object::{self, Asked, Kind};
use crate::session;
use crate::shared::{SharedStore, now};
use crate::signers;

/// How long a helper may take to answer.
const WAIT: Duration = Duration::from_secs(2);

/// For how long a program of another version is shown, in seconds.
const SHOWN: u64 = 86400;

#[derive(Args)]
pub struct StatusArgs {}

#[derive(Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What happened to a program of another version, and what to do.
pub fn sentence(other: OtherVersion) -> String {
    format!(
        "a program with version {} of the protocol was not served, since this helper has version {VERSION}; end it and start it again",
        other.version
    )
}

fn row(name: &str, value: &str) {
    print(&format!("{name:<20}{value}"));
}

impl StatusArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        let address = session::address(&settings)?;
        row("store", address.url.as_str());
        for complaint in &settings.complaints {
            row("settings", complaint);
        }
        let key = signers::secret_key(&settings);
        match &key {
            Ok(Some(key)) if settings.is_readonly => row(
                "key",
                &format!("{} (nothing is sent: `remote_readonly`)", key.public().text),
            ),
            Ok(Some(key)) => row("key", &key.public().text),
            Ok(None) => row(
                "key",
                "none, so nothing is sent; make one with `oclcache remote key new`",
            ),
            Err(why) => row("key", why),
        }
        let own = key.as_ref().ok().and_then(Option::as_ref);
        let trusted = signers::trusted_keys(&settings, own);
        let (trusted, complaints) = trusted.unwrap_or_else(|why| (Default::default(), vec![why]));
        for signer in trusted.iter() {
            row("trusts", &format!("{} {}", signer.public.id, signer.name));
        }
        for id in trusted.revoked() {
            row("revoked", &id.to_string());
        }
        for complaint in complaints {
            row("settings", &complaint);
        }
        if trusted.iter().next().is_none() {
            row(
                "trusts",
                "nobody, so nothing is used; type `oclcache remote trust NAME KEY`",
            );
        }
        if address.is_plain() {
            row(
                "encryption",
                "none: who can listen on the way reads what is sent; nobody can change it, since objects are signed",
            );
        }
        let local = Local::open(&settings)?;
        let state = local.store().state();
        row(
            "counters",
            &format!(
                "{} received, {} prefetched, {} sent, {} refused, {} errors",
                state.received, state.prefetched, state.sent, state.refused, state.errors
            ),
        );
        if let Some(withheld) = state.never_sent() {
            row("never sent", &withheld);
        }
        let other = state.other_version;
        if let Some(other) = other.filter(|other| now().abs_diff(other.asked) < SHOWN) {
            row("versions", &sentence(other));
        }
        match local.store().ask(&Request::Status, WAIT) {
            Some(Answer::Text(text)) => {
                row("helper", "runs");
                print(text.trim_end());
            }
            _ => {
                match waits_for_orphans() {
                    true => row("helper", "does not run; programs start it"),
                    false => row("helper", &format!("does not run: {NO_INIT}")),
                }
                row("to be sent", &local.pending_text());
                if let Some(open) = local.store().breaker() {
                    row(
                        "state",
                        &format!(
                            "the store failed and is not asked for another {} s",
                            open.as_secs() + 1
                        ),
                    );
                }
                if !state.trouble.is_empty() {
                    row("trouble", &state.trouble);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the steps, and remembers whether one failed.
#[derive(Default)]
struct Steps {
    has_failed: bool,
    /// Collected in place of printed.
    json: Option<Vec<serde_json::Value>>,
}

impl Steps {
    fn add(&mut self, state: &str, name: &str, text: &str) {
        match &mut self.json {
            Some(steps) => {
                steps.push(serde_json::json!({ "state": state, "name": name, "text": text }))
            }
            None => print(&format!("{state:<8}{name}: {text}")),
        }
    }

    fn ok(&mut self, name: &str, text: &str) {
        self.add("ok", name, text);
    }

    fn note(&mut self, name: &str, text: &str) {
        self.add("note", name, text);
    }

    fn failed(&mut self, name: &str, why: &str) {
        self.has_failed = true;
        self.add("FAILED", name, why);
    }

    fn finish(self) -> ExitCode {
        if let Some(steps) = self.json {
            print(&serde_json::json!({ "ok": !self.has_failed, "steps": steps }).to_string());
        }
        match self.has_failed {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        }
    }
}

impl DoctorArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        let mut steps = Steps {
            json: self.json.then(Vec::new),
            ..Steps::default()
        };
        let shared = match session::open(&settings) {
            Ok(shared) => shared,
            Err(why) => {
                steps.failed("settings", &why);
                return Ok(steps.finish());
            }
        };
        let address = session::address(&settings)?;
        steps.ok("store", address.url.as_str());
        if address.is_plain() {
            steps.note(
                "encryption",
                "none; use `rediss://` or `https://` outside of networks that you trust",
            );
        }
        run_to_end(check(&shared, &mut steps))?;
        Ok(steps.finish())
    }
}

async fn check(shared: &SharedStore, steps: &mut Steps) {
    let engine = shared.guarded.engine();
    let first = Instant::now();
    let reached = tokio::time::timeout(crate::engine::OPERATION_TIMEOUT, engine.check()).await;
    match reached.unwrap_or(Err(crate::engine::EngineError::TimedOut)) {
        Ok(()) => steps.ok(
            "connection",
            &format!("{:.1} ms", first.elapsed().as_secs_f64() * 1e3),
        ),
        Err(error) => return steps.failed("connection", &error.to_string()),
    }
    let mut trips = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        if engine.check().await.is_ok() {
            trips.push(started.elapsed());
        }
    }
    trips.sort();
    if let Some(median) = trips.get(trips.len() / 2) {
        let pays = median.as_secs_f64() * 1e3 + 0.6;
        steps.ok(
            "round trip",
            &format!(
                "{:.2} ms; a hit pays for what compiles longer than about {pays:.1} ms",
                median.as_secs_f64() * 1e3
            ),
        );
    }
    match &shared.key {
        None => steps.note("writing", "off: no key, or `remote_readonly`"),
        Some(key) => {
            let asked = Asked {
                kind: Kind::Bundle,
                key: [0; 32],
                versions: Local::versions(),
            };
            match object::seal(&asked, b"doctor", now(), 0, key) {
                Err(why) => steps.failed("signature", &why),
                Ok(_) => {
                    let sent = shared
                        .upload(Kind::Bundle, &asked.key, b"doctor", now(), 0)
                        .await;
                    match sent {
                        Ok(_) => round_trip(shared, &asked, steps).await,
                        Err(error) => steps.failed("writing", &error.to_string()),
                    }
                }
            }
        }
    }
    if let Some(policy) = engine.eviction().await {
        match policy {
            Ok(policy) => steps.ok("eviction", &policy),
            Err(advice) => steps.note("eviction", &advice),
        }
    }
    let Some(leases) = engine.leases().filter(|_| shared.can_write()) else {
        return steps.note("leases", "none: several hosts may compile the same at once");
    };
    let name = shared.lease_name(&[0; 32]);
    let second = Duration::from_secs(1);
    let probe = async {
        let acquire = async |token| leases.acquire(&name, token, second, &name, 0).await;
        let first = acquire("a").await?.is_ours;
        let again = acquire("b").await?.is_ours;
        let renewed = leases.renew(&name, "a", second).await?;
        leases.release(&name, "b").await?;
        let holder = leases.holder(&name).await?;
        leases.release(&name, "a").await?;
        Ok::<_, crate::engine::EngineError>(
            first && !again && renewed && holder.as_deref() == Some("a"),
        )
    };
    match probe.await {
        Ok(true) => steps.ok("leases", "hosts build each program once"),
        Ok(false) => steps.failed("leases", "the server does not keep them"),
        Err(error) => steps.failed("leases", &error.to_string()),
    }
}

async fn round_trip(shared: &SharedStore, asked: &Asked, steps: &mut Steps) {
    use crate::shared::Fetched;
    match shared
        .fetch(&[(asked.kind, asked.key)])
        .await
        .map(|mut found| found.pop())
    {
        Ok(Some(Fetched::Found(object))) if object.payload == b"doctor" => {
            steps.ok("signature", "written, read and verified")
        }
        Ok(Some(Fetched::Refused(why))) => steps.failed("signature", &why.to_string()),
        Ok(_) => steps.failed("signature", "what was written is not there"),
        Err(error) => steps.failed("reading", &error.to_string()),
    }
    let engine = shared.guarded.engine();
    let name = shared.name(asked.kind, &asked.key);
    let _ = shared.guarded.run(engine.delete(&name)).await;
}
