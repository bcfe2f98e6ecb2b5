//! Asks a program that the driver has built for everything that the API shows, and publishes it as an entry.

use std::ffi::CString;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opencl_sys::*;

use super::plan::{Plan, executable};
use super::restore::split_names;
use super::{Cache, nanoseconds};
use crate::cl::info::Number;
use crate::cl::{Device, Kernel, Program};
use crate::driver::profile::KernelFacts as When;
use crate::driver::{self, BuildArguments, Driver};
use crate::key::recipe::Key;
use crate::shadow::{self, Ticket};
use crate::store::Lookup;
use crate::store::entry::{Answer, Answers, EntryContent, Facts, KernelFacts, Meta};
use crate::store::stats::Counter;

/// clGetProgramInfo: what describes the executable rather than the object.
pub const PROGRAM_QUERIES: [cl_program_info; 4] = [
    CL_PROGRAM_NUM_KERNELS,
    CL_PROGRAM_KERNEL_NAMES,
    CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT,
    CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT,
];

/// clGetProgramBuildInfo: all of it.
pub const BUILD_QUERIES: [cl_program_build_info; 5] = [
    CL_PROGRAM_BUILD_STATUS,
    CL_PROGRAM_BUILD_OPTIONS,
    CL_PROGRAM_BUILD_LOG,
    CL_PROGRAM_BINARY_TYPE,
    CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE,
];

/// clGetKernelArgInfo: all of it.
pub const ARGUMENT_QUERIES: [cl_kernel_arg_info; 5] = [
    CL_KERNEL_ARG_ADDRESS_QUALIFIER,
    CL_KERNEL_ARG_ACCESS_QUALIFIER,
    CL_KERNEL_ARG_TYPE_NAME,
    CL_KERNEL_ARG_TYPE_QUALIFIER,
    CL_KERNEL_ARG_NAME,
];

impl Cache {
    /// Records a build that missed. Returns the names of its kernels, and the key if there is an entry now.
    ///
    /// If another build of the same program begins meanwhile, what is fetched may be the other's, so nothing is stored.
    pub(super) fn record(
        &self,
        ticket: &Ticket,
        plan: &Plan,
        elapsed: Duration,
    ) -> (Vec<Vec<u8>>, Option<Key>) {
        let driver = ticket.driver;
        if !shadow::is_alone(ticket) || driver::is_ending() {
            return (Vec::new(), None);
        }
        let facts = facts(driver, ticket.program, &plan.devices, &plan.arguments);
        let names = facts.kernel_names.clone();
        let Some(store) = self.store.as_ref().filter(|_| !self.config.readonly()) else {
            return (names, None);
        };
        let not_stored = |why: &dyn std::fmt::Display| {
            self.count(&[Counter::NotStored.by(1)]);
            tracing::warn!(key = %plan.key_prefix(), %why, "not stored");
        };
        if !is_executable(&facts) {
            not_stored(&"the driver does not call it an executable");
            return (names, None);
        }
        let binaries = match driver.program_binaries(ticket.program, plan.devices.len()) {
            Ok(binaries) => binaries,
            Err(code) => {
                not_stored(&format_args!(
                    "the driver does not give its binary ({code})"
                ));
                return (names, None);
            }
        };
        if !shadow::is_alone(ticket) {
            return (names, None);
        }
        let meta = self.meta(driver, plan, facts, elapsed);
        let content = EntryContent {
            meta: &meta,
            source: self.config.store_source().then_some(plan.source.as_slice()),
            binaries: binaries.iter().map(Vec::as_slice).collect(),
        };
        match store.publish(&plan.key, &content) {
            Ok(_) => {
                self.count(&[Counter::Stored.by(1)]);
                (names, Some(plan.key))
            }
            Err(error) => {
                not_stored(&error);
                (names, None)
            }
        }
    }

    fn meta(&self, driver: &Driver, plan: &Plan, facts: Facts, elapsed: Duration) -> Meta {
        let private = !self.config.store_source();
        let mut meta = Meta {
            ingredients: plan.ingredients.clone(),
            options: plan
                .options
                .as_ref()
                .map(|options| match &plan.arguments.options {
                    Some(written) if !private => written.as_bytes().to_vec(),
                    _ => options.private(),
                }),
            include_dirs: shows_directories(&facts, &plan.include_dirs)
                .then(|| plan.include_dirs.clone()),
            driver_family: driver.profile.family.to_owned(),
            driver_library: driver.library().to_string_lossy().into_owned(),
            executable: String::from_utf8_lossy(&executable()).into_owned(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            compile_ns: nanoseconds(elapsed),
            facts,
        };
        if private {
            withhold_texts(&mut meta.facts);
        }
        meta
    }

    /// Adds what is known of a kernel that the application made of a recorded program, on drivers where that is dear.
    pub fn record_kernel(&self, driver: &Driver, key: &Key, kernel: Kernel) {
        if driver.profile.kernel_facts != When::WhenCreated {
            return;
        }
        let Some(known) = kernel_facts(driver, kernel) else {
            return;
        };
        self.amend(key, |facts| {
            let new = facts.kernel(&known.name).is_none();
            if new {
                facts.kernels.push(known);
            }
            new
        });
    }

    /// Replaces an entry by one with more facts; `change` tells whether it changed anything.
    pub(super) fn amend(&self, key: &Key, change: impl FnOnce(&mut Facts) -> bool) {
        let Some(store) = self.store.as_ref().filter(|_| !self.config.readonly()) else {
            return;
        };
        let Lookup::Found(mut entry) = store.look_up(key) else {
            return;
        };
        let mut meta = std::mem::take(&mut entry.meta);
        if !change(&mut meta.facts) {
            return;
        }
        if !self.config.store_source() {
            withhold_texts(&mut meta.facts);
        }
        let source = entry.source().filter(|_| self.config.store_source());
        let content = EntryContent {
            meta: &meta,
            source: source.as_deref(),
            binaries: entry.binaries().collect(),
        };
        if let Err(error) = store.publish(key, &content) {
            tracing::warn!(%error, "facts not added to the entry");
        }
    }
}

/// Whether each device that tells the kind of its binary has an executable.
fn is_executable(facts: &Facts) -> bool {
    facts.devices.iter().all(|answers| {
        let kind = answers
            .iter()
            .find(|(name, _)| *name == CL_PROGRAM_BINARY_TYPE);
        !matches!(kind, Some((_, Answer::Value(value)))
            if Number::from_value(value) != Some(CL_PROGRAM_BINARY_TYPE_EXECUTABLE as cl_int))
    })
}

/// Everything that the API shows of a program that the driver has built, but for kernels where creating one is dear.
pub fn facts(
    driver: &Driver,
    program: Program,
    devices: &[Device],
    arguments: &BuildArguments,
) -> Facts {
    let mut facts = Facts {
        program: PROGRAM_QUERIES
            .map(|name| (name, answer(driver.program_info(program, name))))
            .to_vec(),
        devices: devices
            .iter()
            .map(|device| build_answers(driver, program, *device, arguments))
            .collect(),
        ..Facts::default()
    };
    if let Ok(names) = driver.program_info(program, CL_PROGRAM_KERNEL_NAMES) {
        facts.kernel_names = split_names(&names).map(<[u8]>::to_vec).collect();
    }
    if driver.profile.kernel_facts == When::AfterBuild
        && !facts.kernel_names.is_empty()
        && let Ok(kernels) = driver.create_kernels(program)
    {
        let known: Vec<_> = kernels
            .iter()
            .filter_map(|kernel| kernel_facts(driver, *kernel))
            .collect();
        for kernel in kernels {
            driver.release_kernel(kernel);
        }
        facts.creation_order = known.len() == facts.kernel_names.len();
        facts.kernels = known;
    }
    facts
}

fn build_answers(
    driver: &Driver,
    program: Program,
    device: Device,
    arguments: &BuildArguments,
) -> Answers {
    let own = arguments.options.as_ref();
    let ask = |name| {
        let answer = match (driver.build_info(program, device, name), own) {
            (Ok(value), Some(own))
                if name == CL_PROGRAM_BUILD_OPTIONS && value == own.as_bytes_with_nul() =>
            {
                Answer::OwnOptions
            }
            (Ok(value), Some(own)) if name == CL_PROGRAM_BUILD_LOG => around(own.as_bytes(), value),
            (answered, _) => answer(answered),
        };
        (name, answer)
    };
    BUILD_QUERIES.map(ask).to_vec()
}

/// The text, by what stands around the options wherever it quotes them.
fn around(options: &[u8], text: Vec<u8>) -> Answer {
    let mut parts = Vec::new();
    let mut rest = text.as_slice();
    let quoted = |rest: &[u8]| {
        rest.windows(options.len())
            .position(|window| window == options)
    };
    while let Some(at) = (!options.is_empty()).then(|| quoted(rest)).flatten() {
        parts.push(rest[..at].to_vec());
        rest = &rest[at + options.len()..];
    }
    if parts.is_empty() {
        return Answer::Value(text);
    }
    parts.push(rest.to_vec());
    Answer::AroundOwnOptions(parts)
}

/// Everything that the API shows of a kernel and a kernel made from a binary may not; None without a name.
pub fn kernel_facts(driver: &Driver, kernel: Kernel) -> Option<KernelFacts> {
    let name =
        CString::from_vec_with_nul(driver.kernel_info(kernel, CL_KERNEL_FUNCTION_NAME).ok()?)
            .ok()?;
    let count = driver.kernel_info(kernel, CL_KERNEL_NUM_ARGS).ok()?;
    let count: cl_uint = Number::from_value(&count)?;
    let argument = |index| {
        ARGUMENT_QUERIES
            .map(|query| (query, answer(driver.kernel_arg_info(kernel, index, query))))
            .to_vec()
    };
    Some(KernelFacts {
        name: name.into_bytes(),
        attributes: answer(driver.kernel_info(kernel, CL_KERNEL_ATTRIBUTES)),
        arguments: (0..count).map(argument).collect(),
        behind_last_argument: argument(count),
    })
}

fn answer(answered: Result<Vec<u8>, cl_int>) -> Answer {
    match answered {
        Ok(value) => Answer::Value(value),
        Err(code) => Answer::Error(code),
    }
}

/// Whether the spelling of an include directory shows in what the API tells. Such an entry fits only who spells it so.
fn shows_directories(facts: &Facts, directories: &[Vec<u8>]) -> bool {
    let texts = facts
        .devices
        .iter()
        .flatten()
        .flat_map(|(_, answer)| match answer {
            Answer::Value(value) => std::slice::from_ref(value),
            Answer::AroundOwnOptions(parts) => parts.as_slice(),
            _ => &[],
        });
    let shows = |text: &[u8], directory: &[u8]| {
        !directory.is_empty()
            && text
                .windows(directory.len())
                .any(|window| window == directory)
    };
    texts
        .into_iter()
        .any(|text| directories.iter().any(|directory| shows(text, directory)))
}

/// Takes out what could show the source: the driver is asked for it again if anybody wants it.
fn withhold_texts(facts: &mut Facts) {
    for (name, answer) in facts.devices.iter_mut().flatten() {
        let is_text = matches!(*name, CL_PROGRAM_BUILD_LOG | CL_PROGRAM_BUILD_OPTIONS);
        let has_words = match answer {
            Answer::Value(value) => value.len() > 1,
            Answer::AroundOwnOptions(_) => true,
            _ => false,
        };
        if is_text && has_words {
            *answer = Answer::Withheld;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(options: &[u8], text: &[u8]) -> Facts {
        let answers = vec![(CL_PROGRAM_BUILD_LOG, around(options, text.to_vec()))];
        Facts {
            devices: vec![answers],
            ..Facts::default()
        }
    }

    #[test]
    fn a_log_that_quotes_the_options_fits_whoever_spells_the_directory_otherwise() {
        let directories = [b"/venv".to_vec()];
        assert!(!shows_directories(
            &log(b"-I /venv", b"used: -I /venv done"),
            &directories
        ));
        assert!(shows_directories(
            &log(b"-I /venv", b"used: -I /venv, looked into /venv"),
            &directories
        ));
        assert!(shows_directories(
            &log(b"-I /venv -w", b"looked into /venv"),
            &directories
        ));
        assert_eq!(
            around(b"", b"text".to_vec()),
            Answer::Value(b"text".to_vec())
        );
    }

    #[test]
    fn no_word_of_a_log_is_kept_where_texts_are_private() {
        let mut facts = log(b"-DX=secret", b"used: -DX=secret, warning: about secret");
        withhold_texts(&mut facts);
        assert_eq!(facts.devices[0][0].1, Answer::Withheld);
    }
}
