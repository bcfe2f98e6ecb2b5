//! The order in which recipes are compiled: that of their use. The recipes of the process that was the last to build something come
//! first, in the order in which it built them, since the next process of that program builds them again in this order.
//!
//! The journal knows the order. It forgets old builds; the recipes of these come last, the latest one first.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::key::ingredients::Key;
use crate::store::Store;
use crate::store::entry::Meta;
use crate::store::journal::{self, JournalRecord};

/// A process of the journal: its number, which may be used again, and its program.
type Process<'a> = (u32, &'a str);

/// When a key was used: when the process that used it last built something for the last time, and when it built this key first.
type Use = (Reverse<u64>, u64);

/// Sorts recipes by their use.
pub fn sort_by_use(store: &Store, recipes: &mut [(Key, Meta)]) {
    // Without a journal, the time of the recipes is all that is known.
    let records = journal::read(store.root()).unwrap_or_default();
    let uses = uses(&records);
    recipes.sort_by_key(|(key, meta)| {
        let last_or_first = uses.get(key).copied().unwrap_or((Reverse(0), 0));
        (last_or_first, Reverse(meta.created), *key)
    });
}

fn process(record: &JournalRecord) -> Process<'_> {
    (record.process, &record.executable)
}

/// The use of each key. The records are sorted by time.
fn uses(records: &[JournalRecord]) -> HashMap<Key, Use> {
    let mut ended: HashMap<Process, u64> = HashMap::new();
    let mut built: HashMap<Key, (Process, u64)> = HashMap::new();
    for record in records {
        ended.insert(process(record), record.time_ms);
        let Some(build) = &record.build else {
            continue;
        };
        let first = (process(record), record.time_ms);
        let known = built.entry(build.key).or_insert(first);
        if known.0 != first.0 {
            *known = first;
        }
    }
    let of = |(key, (process, first)): (Key, (Process, u64))| {
        let last = ended.get(&process).copied().unwrap_or(0);
        (key, (Reverse(last), first))
    };
    built.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::journal::{Build, BuildResult};

    #[test]
    fn the_last_process_comes_first_and_its_keys_in_their_order() {
        let record = |time_ms, process, executable: &str, key: u8| JournalRecord {
            time_ms,
            compile_ns: 1,
            executable: executable.into(),
            process,
            driver_family: "pocl".into(),
            kernel_names: Vec::new(),
            ended: BuildResult::Failed,
            build: (key > 0).then(|| Build {
                key: Key([key; 32]),
                ingredients: Vec::new(),
                options: None,
            }),
        };
        let records = [
            record(1, 7, "a", 6),
            record(2, 8, "b", 5),
            record(3, 7, "a", 4),
            // The number of a process may be used again.
            record(4, 8, "c", 3),
            record(5, 7, "a", 4),
            record(6, 8, "c", 2),
            // Both programs build it: it counts as the later one's.
            record(7, 8, "c", 6),
            record(8, 7, "a", 0),
        ];
        let uses = uses(&records);
        let mut keys: Vec<u8> = uses.keys().map(|key| key.0[0]).collect();
        keys.sort_by_key(|key| uses[&Key([*key; 32])]);
        assert_eq!(keys, [4, 3, 2, 6, 5]);
    }
}
