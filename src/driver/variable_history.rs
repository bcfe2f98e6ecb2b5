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

use super::process_variables;
use crate::fork_safety::Mutex;

/// How many values are kept of a variable, and of how many variables. Of one that has more, these differ already.
const MAX_VALUES: usize = 8;
const MAX_VARIABLES: usize = 1024;

static HISTORY: Mutex<Option<History>> = Mutex::new(None);

#[derive(Default)]
struct History {
    /// All variables of the last call, each with its NUL. None: there was none.
    last: Option<Vec<u8>>,
    varied: Varied,
    /// How many calls have begun.
    calls: u64,
    /// How many threads search for devices.
    searches: u32,
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

/// A call of a driver that was noted, by its number.
pub struct NotedCall {
    number: u64,
    is_search: bool,
}

/// Notes the current variables, before a driver's call in which it may read them.
pub fn note() {
    HISTORY.lock().get_or_insert_default().begin();
}

/// The same of a call in which a driver may set variables for itself. `is_search`: for devices. PoCL sets variables in its first search, by
/// its source, and frees what another thread would read: such a thread notes nothing. [`ended`] follows, unless an exception leaves
/// the call.
pub fn began(is_search: bool) -> NotedCall {
    let mut history = HISTORY.lock();
    let history = history.get_or_insert_default();
    match is_search && history.searches > 0 {
        true => history.calls += 1,
        false => history.begin(),
    }
    history.searches += u32::from(is_search);
    NotedCall {
        number: history.calls,
        is_search,
    }
}

/// Ends such a call. What has changed meanwhile, the driver has set and knows, unless another call began.
pub fn ended(call: NotedCall) {
    let mut history = HISTORY.lock();
    let history = history.get_or_insert_default();
    history.searches = history.searches.saturating_sub(u32::from(call.is_search));
    if call.is_search && history.searches > 0 {
        // The other search has not seen what changed in this one.
        history.calls += 1;
        return;
    }
    match history.calls == call.number {
        true => history.settle(),
        false => history.begin(),
    }
}

/// In a forked child: no thread searches for devices that did in the parent.
pub fn forked() {
    if let Some(history) = &mut *HISTORY.lock() {
        history.searches = 0;
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
    fn begin(&mut self) {
        self.calls += 1;
        if !self.is_current() {
            self.change(process_variables::current());
        }
    }

    fn settle(&mut self) {
        if !self.is_current() {
            self.last = Some(process_variables::current());
        }
    }

    fn is_current(&self) -> bool {
        self.last
            .as_deref()
            .is_some_and(process_variables::is_current)
    }

    fn change(&mut self, now: Vec<u8>) {
        let last = self.last.as_ref().unwrap_or(&now);
        let (before, after) = (by_name(last), by_name(&now));
        for name in before.keys().chain(after.keys()) {
            let values = [before.get(name), after.get(name)];
            if values[0] != values[1] {
                self.varied.add(name, values.map(|value| value.copied()));
            }
        }
        self.last = Some(now);
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
        let moments = moments.iter().map(all);
        let mut history = History::default();
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

    /// In its own thread the variables are what it says.
    #[test]
    fn what_changes_in_a_call_is_settled_unless_another_call_began() {
        let at = |variables: &str, run: &mut dyn FnMut()| {
            process_variables::as_at(variables.as_bytes(), run);
        };
        let is_varied = |name: &str| {
            let varied = varied_since(None).unwrap_or_default();
            varied.values.contains_key(OsStr::new(name))
        };
        let mut call = None;
        at("A=1\0", &mut || call = Some(began(false)));
        at("A=2\0", &mut || ended(call.take().expect("begun")));
        at("A=2\0", &mut note);
        assert!(!is_varied("A"), "only the driver has changed it");
        at("A=2\0B=1\0", &mut || call = Some(began(true)));
        assert!(is_varied("B"));
        let mut other = None;
        // Another thread's: the variables may not be read.
        at("B=3\0", &mut || other = Some(began(true)));
        at("C=1\0B=1\0A=2\0", &mut || {
            ended(other.take().expect("begun"))
        });
        assert!(!is_varied("C"));
        at("C=1\0B=1\0A=2\0", &mut || {
            ended(call.take().expect("begun"))
        });
        assert!(is_varied("C"), "either thread may have set it");
        let all = "C=1\0B=1\0A=2\0";
        let mut searches = Vec::new();
        at(all, &mut || searches.extend([began(true), began(true)]));
        for variables in [all, "D=1\0C=1\0B=1\0A=2\0"] {
            at(variables, &mut || ended(searches.remove(0)));
        }
        assert!(is_varied("D"), "the first one may not know it");
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
