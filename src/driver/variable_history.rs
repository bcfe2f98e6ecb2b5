//! Which variables had several values when a driver may have read them.
//!
//! Drivers read variables when they look for devices, make a context (measured: Intel's CPU runtime reads CL_CONFIG_USE_VECTORIZER there)
//! or build, whatever the cache does with that build. They keep what they have read (measured: PoCL 3.1 the first value of each variable;
//! Intel's graphics compiler IGC all that it finds in the first build). So the variables of each such call are noted. Once one has had
//! another value, nobody knows which is in force.
//!
//! The history is that of all drivers: there is one environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::process_variables;
use crate::fork_safety::Mutex;

/// How many values are kept of a variable, and of how many variables. Of one that has more, these differ already.
const MAX_VALUES: usize = 8;
const MAX_VARIABLES: usize = 1024;

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

#[derive(Default)]
struct History {
    /// All variables of the last call, each with its NUL.
    last: Vec<u8>,
    varied: Varied,
}

/// The variables that had several values.
#[derive(Clone, Default)]
pub struct Varied {
    /// Incremented at each change.
    pub changes: u64,
    /// Their names and values. None: there was no such variable.
    pub values: BTreeMap<OsString, Vec<Option<OsString>>>,
    /// There were more.
    pub is_full: bool,
}

/// Notes the current variables, before a driver's call in which it may read them.
pub fn note() {
    let mut history = HISTORY.lock();
    match &mut *history {
        Some(history) if process_variables::is_current(&history.last) => {}
        Some(history) => history.change(process_variables::current()),
        None => {
            *history = Some(History {
                last: process_variables::current(),
                varied: Varied::default(),
            });
        }
    }
}

/// How many threads are in calls in which drivers change variables. PoCL does in its first search for devices, by its source, and frees
/// what another thread would read.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Begins a call in which a driver may change variables: notes the current ones, unless another thread is in such a call.
pub fn enter() {
    if INSIDE.fetch_add(1, Ordering::SeqCst) == 0 {
        note();
    }
}

/// Ends such a call: what the driver has changed in it, it knows.
pub fn leave() {
    if INSIDE.fetch_sub(1, Ordering::SeqCst) == 1 {
        settle();
    }
}

/// In a forked child: no thread is in a call that another one had begun in the parent.
pub fn forked() {
    INSIDE.store(0, Ordering::SeqCst);
}

fn settle() {
    if let Some(history) = &mut *HISTORY.lock()
        && !process_variables::is_current(&history.last)
    {
        history.last = process_variables::current();
    }
}

/// What has varied by now; None: nothing has since so many changes.
pub fn varied_since(changes: Option<u64>) -> Option<Varied> {
    let history = HISTORY.lock();
    let varied = history.as_ref().map(|history| &history.varied);
    match changes == Some(varied.map_or(0, |varied| varied.changes)) {
        true => None,
        false => Some(varied.cloned().unwrap_or_default()),
    }
}

/// The variables by name, the first of each, as getenv(3) finds them.
fn by_name(all: &[u8]) -> BTreeMap<&OsStr, &OsStr> {
    let variables = all.split(|byte| *byte == 0);
    let variables = variables.filter_map(process_variables::parse);
    let mut named = BTreeMap::new();
    for (name, value) in variables {
        named.entry(name).or_insert(value);
    }
    named
}

impl History {
    fn change(&mut self, now: Vec<u8>) {
        let (before, after) = (by_name(&self.last), by_name(&now));
        for name in before.keys().chain(after.keys()) {
            let values = [before.get(name), after.get(name)];
            if values[0] != values[1] {
                self.varied.add(name, values.map(|value| value.copied()));
            }
        }
        self.last = now;
    }
}

impl Varied {
    fn add(&mut self, name: &OsStr, values: [Option<&OsStr>; 2]) {
        if self.values.len() == MAX_VARIABLES && !self.values.contains_key(name) {
            self.changes += u64::from(!self.is_full);
            self.is_full = true;
            return;
        }
        let known = self.values.entry(name.to_owned()).or_default();
        for value in values {
            let is_known = known.iter().any(|known| known.as_deref() == value);
            if !is_known && known.len() < MAX_VALUES {
                known.push(value.map(OsStr::to_owned));
                self.changes += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(moments: &[&str]) -> Varied {
        let all = |moment: &&str| moment.replace(' ', "\0").into_bytes();
        let mut moments = moments.iter().map(all);
        let mut history = History {
            last: moments.next().expect("one"),
            varied: Varied::default(),
        };
        moments.for_each(|now| history.change(now));
        history.varied
    }

    #[test]
    fn each_value_of_a_variable_that_changes_is_kept_and_of_others_none() {
        let varied = history(&["A=1 B=2 ", "A=1 C=3 ", "A=1 C=4 ", "A=1 B=2 ", "A=1 C=3 "]);
        let value = |value: &str| Some(OsString::from(value));
        let of_b = (OsString::from("B"), vec![value("2"), None]);
        let of_c = (OsString::from("C"), vec![None, value("3"), value("4")]);
        assert_eq!(varied.values, BTreeMap::from([of_b, of_c]));
        assert_eq!((varied.changes, varied.is_full), (5, false));
        assert_eq!(history(&["A=1 ", "A=1 "]).changes, 0);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_left_out_is_told() {
        let moments: Vec<String> = (0..100).map(|number| format!("A={number} ")).collect();
        let moments: Vec<&str> = moments.iter().map(String::as_str).collect();
        let varied = history(&moments);
        assert_eq!(varied.values[OsStr::new("A")].len(), MAX_VALUES);
        let many = |count| (0..count).map(|number| format!("A{number}=1 ")).collect();
        let [most, more]: [String; 2] = [MAX_VARIABLES, MAX_VARIABLES + 1].map(many);
        assert!(!history(&["", &most]).is_full);
        assert!(history(&["", &more]).is_full);
    }
}
