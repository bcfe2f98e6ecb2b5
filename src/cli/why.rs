//! Explains why a build was not a hit: finds the nearest entry and the differences from it.

mod compare;
pub mod difference;
mod include;
mod options;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use super::output::ago;
use super::recipe_environment::{self, VariableMap};
use crate::key::ingredients::{Ingredient, Key, Kind};
use crate::outcome::{Bypass, NotBakeable};
use crate::store::entry::Meta;
use crate::store::journal::{self, Build, BuildResult, JournalRecord, Kept};
use crate::store::{Store, StoreError};
use compare::differences;
use difference::{Difference, Side};

/// How many entries are compared, those used last: comparing all entries of a large cache would take minutes.
const MAX_COMPARED: usize = 10_000;

const EVICTED: &str = "its entry was evicted to keep the cache within its limits: `max_size` and `min_free`, or those of an `oclcache gc`";

/// The journal and the entries that builds are compared with.
pub struct BuildHistory {
    store: Store,
    /// The journal, oldest first.
    pub records: Vec<JournalRecord>,
    entries: Vec<(Key, Meta)>,
    evictions: Vec<(Key, u64)>,
}

/// Why one build was not a hit.
pub struct MissExplanation<'a> {
    /// The reason in one word, which never changes its meaning.
    pub reason: &'static str,
    /// The reason in a sentence; empty if the differences explain it.
    pub words: String,
    /// The nearest entry that existed before the build.
    pub nearest: Option<&'a (Key, Meta)>,
    /// The differences from that entry.
    pub differences: Vec<Difference>,
    /// Why an equal build cannot be a hit later; None for what is never stored.
    pub not_stored: Option<NotStored>,
    /// When what the build left was evicted, in milliseconds since 1970.
    pub evicted_ms: Option<u64>,
}

/// Why a miss was not stored.
pub struct NotStored {
    /// The reason in one word, if it is known.
    pub reason: Option<NotBakeable>,
    /// The reason in a sentence.
    pub words: String,
}

impl NotStored {
    fn by(reason: NotBakeable) -> NotStored {
        NotStored {
            reason: Some(reason),
            words: format!("not stored: {}", reason.help()),
        }
    }
}

impl MissExplanation<'_> {
    fn plain(reason: &'static str, words: impl Into<String>) -> MissExplanation<'static> {
        MissExplanation {
            reason,
            words: words.into(),
            nearest: None,
            differences: Vec::new(),
            not_stored: None,
            evicted_ms: None,
        }
    }
}

impl BuildHistory {
    /// Reads the journal, and the entries that were used last.
    ///
    /// # Errors
    /// A directory or the journal cannot be read.
    pub fn read(store: Store) -> Result<BuildHistory, StoreError> {
        let records = journal::read(store.root())?;
        let mut files = store.entries()?;
        files.sort_by_key(|(_, file)| Reverse(file.modified_ms));
        files.truncate(MAX_COMPARED);
        let entries = files.into_iter();
        let entries = entries.filter_map(|(key, _)| Some((key, store.read_meta(&key)?)));
        let entries = entries.collect();
        Ok(BuildHistory {
            evictions: store.evictions(),
            store,
            records,
            entries,
        })
    }

    /// The keys of all entries and of the builds in the journal.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        let builds = self
            .records
            .iter()
            .filter_map(|record| record.build.as_ref());
        let mut keys: Vec<Key> = builds.map(|build| build.key).collect();
        keys.extend(self.entries.iter().map(|(key, _)| *key));
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter()
    }

    /// The entry of a key.
    pub fn entry(&self, key: &Key) -> Option<&Meta> {
        let found = self.entries.iter().find(|(known, _)| known == key);
        found.map(|(_, meta)| meta)
    }

    /// Explains a build. It need not be in the journal.
    pub fn why(&self, record: &JournalRecord) -> MissExplanation<'_> {
        let mut why = self.reason(record);
        why.not_stored = match (record.ended.clone(), &record.build) {
            (BuildResult::Miss { kept, .. }, build) => self.not_stored(kept, build.as_ref()),
            _ => None,
        };
        why.evicted_ms = self.evicted_since(record);
        if why.evicted_ms.is_some() {
            why.not_stored = None;
        }
        why
    }

    /// When what a build left was evicted, if nothing has taken its place.
    fn evicted_since(&self, record: &JournalRecord) -> Option<u64> {
        let key = record.build.as_ref()?.key;
        let kept = matches!(record.ended, BuildResult::Miss { kept, .. } if kept.is_something());
        let evicted = self.evictions_of(key).last();
        evicted.filter(|at| kept && *at >= record.time_ms && self.entry(&key).is_none())
    }

    /// When an entry was evicted, oldest first.
    fn evictions_of(&self, key: Key) -> impl Iterator<Item = u64> {
        let of_key = self
            .evictions
            .iter()
            .filter(move |(known, _)| *known == key);
        of_key.map(|(_, at)| *at)
    }

    /// Why a miss was not stored, by what it left.
    fn not_stored(&self, kept: Kept, build: Option<&Build>) -> Option<NotStored> {
        match kept {
            Kept::Entry => None,
            Kept::Recipe => {
                let key = build?.key;
                let pending = self.entry(&key).filter(|meta| meta.is_pending());
                if let Some(why) = pending.and_then(not_baked_here) {
                    return Some(why);
                }
                let is_pending = self.entry(&key).is_none_or(Meta::is_pending);
                let attempts = self.store.attempts(&key).filter(|_| is_pending)?;
                let reason = attempts.given_up();
                let mut not_stored = NotStored::by(attempts.verdict());
                let tries = match reason {
                    Some(_) => "",
                    None if attempts.is_unused() => "; it will be tried again once one has run",
                    None if attempts.has_other_library() => {
                        "; a baker that has the program's will store it"
                    }
                    None => ", which will be tried once more",
                };
                let _ = write!(not_stored.words, " ({}{tries})", attempts.reason);
                Some(not_stored)
            }
            Kept::NotBakeable(_) | Kept::Nothing => Some(match kept.reason() {
                Some(reason) => NotStored::by(reason),
                None => NotStored {
                    reason: None,
                    words:
                        "not stored, so it will be compiled again, as with `record = off`; otherwise set OCLCACHE_LOG=warn to see why"
                            .to_owned(),
                },
            }),
        }
    }

    fn reason(&self, record: &JournalRecord) -> MissExplanation<'_> {
        match (&record.ended, &record.build) {
            (BuildResult::Failed, _) => {
                MissExplanation::plain("failed", "the build failed, so nothing is stored")
            }
            (BuildResult::Bypassed(number), _) => match record.ended.reason() {
                Some(reason) => MissExplanation::plain(reason.name(), bypassed(reason)),
                None => MissExplanation::plain(
                    "unknown",
                    format!(
                        "bypassed for reason {number}, which a later version of oclcache knows"
                    ),
                ),
            },
            (BuildResult::Miss { recache: true, .. }, _) => {
                MissExplanation::plain("recache", "OCLCACHE_RECACHE is set, so no entry is used")
            }
            (BuildResult::Miss { .. }, Some(build)) => self.why_missed(record, build),
            (BuildResult::Miss { .. }, None) => unlisted(),
        }
    }

    fn why_missed(&self, record: &JournalRecord, build: &Build) -> MissExplanation<'_> {
        if let Some(why) = self.why_gone(record, &build.key) {
            return why;
        }
        let mut side = Side {
            ingredients: &build.ingredients,
            options: build.options.as_deref(),
            family: &record.driver_family,
            kernel_names: &record.kernel_names,
        };
        if side.ingredients.is_empty() {
            match self.entry(&build.key) {
                Some(own) => side = of_entry(own),
                None => return unlisted(),
            }
        }
        let of_same_run = self.of_same_run(record);
        let near = self.entries.iter().filter_map(|entry| {
            let (key, meta) = entry;
            let is_other =
                *key != build.key && !of_same_run.contains(key) && is_near(&of_entry(meta), &side);
            let stored = is_other.then(|| self.stored_before(key, meta, record))??;
            Some((entry, stored, differences(of_entry(meta), side)))
        });
        let nearest =
            near.min_by_key(|(_, stored, differences)| (distance(differences), Reverse(*stored)));
        match nearest {
            Some((nearest, _, differences)) => MissExplanation {
                reason: "changed",
                words: String::new(),
                nearest: Some(nearest),
                differences,
                not_stored: None,
                evicted_ms: None,
            },
            None => MissExplanation::plain(
                "never_seen",
                "never seen: no entry of an earlier run has this source or these kernels",
            ),
        }
    }

    /// What the same run of a program has built before. A program that makes several from one text has not changed it.
    ///
    /// Numbers of processes come again, in each container the same ones, so a pause ends a run.
    fn of_same_run(&self, record: &JournalRecord) -> BTreeSet<Key> {
        const PAUSE_MS: u64 = 60_000;
        let of_process = self.earlier(record).rev().filter(|earlier| {
            earlier.process == record.process && earlier.executable == record.executable
        });
        let mut began = record.began_ms();
        let of_run = of_process.take_while(|earlier| {
            let pause = began.saturating_sub(earlier.time_ms);
            began = earlier.began_ms();
            pause <= PAUSE_MS
        });
        let keys = of_run.filter_map(|earlier| Some(earlier.build.as_ref()?.key));
        keys.collect()
    }

    /// Whether an equal build came before, and what happened to its entry.
    fn why_gone(&self, record: &JournalRecord, key: &Key) -> Option<MissExplanation<'static>> {
        let before = self.earlier(record).rfind(|earlier| {
            let same = earlier
                .build
                .as_ref()
                .is_some_and(|build| build.key == *key);
            same && matches!(earlier.ended, BuildResult::Miss { .. })
        });
        // One that was set aside later does not explain this build.
        let aside = self.store.set_aside_at(key);
        let since = before.map_or(0, |before| before.time_ms);
        let aside = aside.is_some_and(|at| (since..=record.time_ms).contains(&at));
        let mut evictions = self.evictions_of(*key);
        if evictions.any(|at| (since..=record.time_ms).contains(&at)) {
            return Some(MissExplanation::plain("evicted", EVICTED));
        }
        let Some(before) = before else {
            return aside.then(|| {
                MissExplanation::plain(
                    "set_aside",
                    "its entry was damaged, refused by the driver or found wrong by OCLCACHE_VERIFY, and was set aside",
                )
            });
        };
        let age = ago(record.time_ms.saturating_sub(before.time_ms)).replace("ago", "earlier");
        if before.time_ms >= record.began_ms() {
            return Some(MissExplanation::plain(
                "concurrent",
                "another process or thread compiled the same program at the same time",
            ));
        }
        let kept = match before.ended {
            BuildResult::Miss { kept, .. } => kept,
            _ => Kept::Entry,
        };
        let (reason, words) = match kept {
            Kept::Recipe if self.can_be_baked(key) => {
                ("not_baked", "not stored yet; run `oclcache bake`")
            }
            // The explanation of this build says why.
            Kept::Recipe | Kept::Nothing | Kept::NotBakeable(_) => {
                ("not_stored", "but it could not be stored")
            }
            Kept::Entry if aside => (
                "set_aside",
                "but its entry was damaged, refused by the driver or found wrong by OCLCACHE_VERIFY, and was set aside",
            ),
            Kept::Entry => (
                "gone",
                "but its entry was removed, or its texts name other include directories",
            ),
        };
        let words = format!("compiled {age}, {words}");
        Some(MissExplanation::plain(reason, words))
    }

    /// Whether a baker may store this recipe, as far as earlier ones have shown.
    fn can_be_baked(&self, key: &Key) -> bool {
        let attempts = self.store.attempts(key);
        attempts
            .is_none_or(|attempts| attempts.given_up().is_none() && !attempts.has_other_library())
    }

    /// The records of the journal before this one.
    fn earlier<'a>(
        &'a self,
        record: &'a JournalRecord,
    ) -> impl DoubleEndedIterator<Item = &'a JournalRecord> {
        let is_it = |other: &&JournalRecord| !std::ptr::eq(*other, record);
        let until = record.time_ms;
        let earlier = self.records.iter().take_while(is_it).collect::<Vec<_>>();
        earlier
            .into_iter()
            .filter(move |other| other.time_ms <= until)
    }

    /// When an entry was stored, in milliseconds, if that was before a build. The journal is more precise than the entry, which has
    /// seconds.
    fn stored_before(&self, key: &Key, meta: &Meta, record: &JournalRecord) -> Option<u64> {
        let is_its = |other: &&JournalRecord| {
            let same = other.build.as_ref().is_some_and(|build| build.key == *key);
            same && matches!(other.ended, BuildResult::Miss { kept, .. } if kept.is_something())
        };
        if self.records.iter().any(|other| is_its(&other)) {
            let last = self.earlier(record).rfind(is_its);
            return last.map(|other| other.time_ms);
        }
        let created = meta.created.saturating_mul(1000);
        (created <= record.time_ms).then_some(created)
    }
}

/// The explanation in lines, with at most `of_a_kind` differences of each kind.
pub fn words(why: &MissExplanation, of_a_kind: usize) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    if !why.words.is_empty() {
        said.push(why.words.clone());
    }
    let mut rest: &[Difference] = &why.differences;
    while let Some(first) = rest.first() {
        let end = rest.iter().position(|other| other.kind != first.kind);
        let (kind, others) = rest.split_at(end.unwrap_or(rest.len()));
        rest = others;
        // On another device, everything else differs, too.
        let of_a_kind = match first.name.as_str() {
            "device name" if of_a_kind < usize::MAX => 1,
            _ => of_a_kind,
        };
        let mut all: Vec<&str> = kind.iter().map(|one| one.words.as_str()).collect();
        all.dedup();
        let more = all.len().saturating_sub(of_a_kind);
        all.truncate(of_a_kind);
        said.extend(all.into_iter().map(str::to_owned));
        if more > 0 {
            said.push(format!("and {more} more differences of the {}", first.kind));
        }
    }
    said.extend(why.not_stored.iter().map(|why| why.words.clone()));
    said.extend(why.evicted_ms.map(|at| {
        let age = ago(journal::now_ms().saturating_sub(at));
        format!("evicted {age}, so it will be compiled again")
    }));
    said
}

/// The miss that made an entry, reconstructed from the entry.
pub fn record_of_entry(key: &Key, meta: &Meta) -> JournalRecord {
    JournalRecord {
        time_ms: meta.created.saturating_mul(1000),
        compile_ns: meta.compile_ns,
        executable: meta.executable.clone(),
        process: 0,
        driver_family: meta.driver_family.clone(),
        kernel_names: meta.facts.kernel_names.clone(),
        ended: BuildResult::Miss {
            kept: match meta.is_pending() {
                true => Kept::Recipe,
                false => Kept::Entry,
            },
            recache: false,
        },
        build: Some(Build {
            key: *key,
            ingredients: meta.ingredients.clone(),
            options: meta.options.clone(),
        }),
    }
}

/// Why the baker would skip a recipe in the environment of this command.
fn not_baked_here(meta: &Meta) -> Option<NotStored> {
    let own: VariableMap = std::env::vars_os().collect();
    let known = recipe_environment::with_pyopencl(&own, Path::new(&meta.driver_library));
    let recorded = recipe_environment::recorded(&meta.driver_family, &meta.ingredients, &known);
    let why = recorded.err()?;
    let mut not_stored = NotStored::by(NotBakeable::OtherEnvironment);
    let _ = write!(not_stored.words, " ({why})");
    Some(not_stored)
}

fn bypassed(reason: Bypass) -> String {
    format!("{}: {}", reason.name(), reason.help())
}

fn unlisted() -> MissExplanation<'static> {
    MissExplanation::plain(
        "unlisted",
        "the ingredients of its key are too long for the journal",
    )
}

fn of_entry(meta: &Meta) -> Side<'_> {
    Side {
        ingredients: &meta.ingredients,
        options: meta.options.as_deref(),
        family: &meta.driver_family,
        kernel_names: &meta.facts.kernel_names,
    }
}

/// Whether two builds have the same source, inputs or kernels.
fn is_near(one: &Side, other: &Side) -> bool {
    let of_kind = |side: &Side, kind: Kind| -> Vec<Ingredient> {
        let all = side.ingredients.iter();
        all.filter(|ingredient| ingredient.kind == kind)
            .cloned()
            .collect()
    };
    let same_text = [Kind::Source, Kind::Il, Kind::Input]
        .into_iter()
        .any(|kind| {
            let texts = of_kind(one, kind);
            !texts.is_empty() && texts == of_kind(other, kind)
        });
    same_text || !one.kernel_names.is_empty() && one.kernel_names == other.kernel_names
}

/// The distance of two builds. What the application asks for counts first, so that an equal call on an older driver is nearest.
fn distance(differences: &[Difference]) -> (usize, usize, usize) {
    let of_application = |difference: &&Difference| {
        !matches!(
            difference.kind.as_str(),
            "driver" | "device" | "processor" | "environment" | "executable"
        )
    };
    let asked = differences.iter().filter(of_application);
    let asked = asked.map(|difference| match difference.kind.as_str() {
        "source" | "il" => 2, // a changed option is nearer
        _ => 1,
    });
    let other_family = differences
        .iter()
        .any(|difference| difference.name == "family");
    (asked.sum(), usize::from(other_family), differences.len())
}
