//! Asks a program that the driver has built for everything that the API shows, and publishes it as an entry.

use std::ffi::CString;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use opencl_sys::*;

use super::audit::add_kernels;
use super::plan::{Plan, executable};
use super::policy::Policy;
use super::restore::{binary_type, split_names};
use super::{Cache, bake, nanoseconds};
use crate::cl::info::Number;
use crate::cl::{Device, Kernel, Program};
use crate::driver::profile::KernelFactsTime;
use crate::driver::{BuildArguments, Driver};
use crate::key::ingredients::Key;
use crate::key::source::RANDOM_NAME;
use crate::outcome::NotBakeable;
use crate::shadow::Operation;
use crate::store::Lookup;
use crate::store::entry::{Answer, Answers, Entry, EntryContent, Facts, KernelFacts, Meta};
use crate::store::journal::Kept;
use crate::store::stats::{Counter, Labels};

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
    /// Records a call that missed and has made `program` what it is. Returns the names of its kernels, and what there is of it
    /// in the cache now.
    ///
    /// If another build of the same program begins meanwhile (`is_alone` says so), what is fetched may be the other's, so
    /// nothing is stored.
    pub(super) fn record(
        &self,
        driver: &'static Driver,
        program: Program,
        plan: &Plan,
        elapsed: Duration,
        is_alone: &dyn Fn() -> bool,
    ) -> (Vec<Vec<u8>>, Kept) {
        if !is_alone() || crate::driver::is_ending() {
            return (Vec::new(), Kept::Nothing);
        }
        let Some(store) = self.written_store() else {
            return (kernel_names(driver, program), Kept::Nothing);
        };
        let decision = self.policy(driver);
        match decision.policy {
            Policy::InMiss => {}
            Policy::Off => {
                self.not_stored(plan, &decision);
                let kept = match decision.lacks_recipes() {
                    true => Kept::not_bakeable(NotBakeable::NoSources),
                    false => Kept::Nothing,
                };
                return (kernel_names(driver, program), kept);
            }
            Policy::Baked => return self.leave_to_baker(store, driver, program, plan, elapsed),
        }
        let fetching = match self.begin_fetch(store, driver, plan) {
            Ok(fetching) => fetching,
            Err(kept) => return (kernel_names(driver, program), kept),
        };
        let started = Instant::now();
        let binaries = binaries(driver, program, plan);
        drop(fetching);
        let binaries = match binaries {
            Ok(binaries) => binaries,
            Err(why) => {
                self.not_stored(plan, &why);
                return (Vec::new(), Kept::Nothing);
            }
        };
        let mut facts = facts(
            driver,
            program,
            &plan.devices,
            &binaries.built,
            &plan.recipe.arguments,
        );
        add_kernels(driver, program, bake::audited_kernels(), &mut facts);
        self.measure_recording(driver, elapsed, started.elapsed());
        let names = facts.kernel_names.clone();
        if !is_of_the_right_type(&facts, &binaries.built, &plan.recipe.operation) {
            self.not_stored(
                plan,
                &"the driver does not call its binary what it should be",
            );
            return (names, Kept::Nothing);
        }
        if !driver.is_unchanged(&plan.ingredients(), plan.loads, self) {
            self.not_stored(
                plan,
                &"the driver or its environment changed while it compiled",
            );
            return (names, Kept::Nothing);
        }
        if !is_alone() {
            return (names, Kept::Nothing);
        }
        let recipe = self.recipe(driver, plan).ok();
        // Whoever records what others missed may have built it from a cache of the driver's.
        let missed = match store.look_up(&plan.key()) {
            Lookup::Pending(pending) => Some(pending.meta),
            _ => None,
        };
        let elapsed = missed.as_ref().map_or(elapsed, |missed| {
            elapsed.max(Duration::from_nanos(missed.compile_ns))
        });
        let meta = self.meta(driver, plan, facts, elapsed);
        let meta = Meta {
            built: binaries.built.iter().map(|index| *index as u32).collect(),
            only_built_listed: binaries.only_built_listed,
            executable: missed.map_or(meta.executable, |missed| missed.executable),
            ..meta
        };
        let Some((meta, recipe)) = self.as_recorded(plan.key(), meta, recipe) else {
            return (names, Kept::Nothing);
        };
        let content = EntryContent {
            meta: &meta,
            recipe: recipe.as_ref(),
            binaries: binaries.bytes.iter().map(Vec::as_slice).collect(),
        };
        if bake::is_audited(&plan.key(), &content) {
            return (names, Kept::Nothing);
        }
        let published = store.publish(&plan.key(), &content);
        self.memory.forget(&plan.key());
        match published {
            Ok(removed) => {
                let events = [Counter::Stored.by(1), Counter::Evicted.by(removed)];
                self.count(plan.place(), &events);
                self.recorded_by_baker(plan.key());
                (names, Kept::Entry)
            }
            Err(error) => {
                self.not_stored(plan, &error);
                (names, Kept::Nothing)
            }
        }
    }

    pub(super) fn not_stored(&self, plan: &Plan, why: &dyn std::fmt::Display) {
        self.count(plan.place(), &[Counter::NotStored.by(1)]);
        tracing::warn!(key = %plan.key_prefix(), %why, "not stored");
        bake::left(format!("it is not stored: {why}"));
    }

    /// What an entry of the plan says beside its binaries.
    pub(super) fn meta(
        &self,
        driver: &Driver,
        plan: &Plan,
        facts: Facts,
        elapsed: Duration,
    ) -> Meta {
        let private = !self.config.store_source();
        let mut meta = Meta {
            ingredients: plan.ingredients(),
            options: plan.shown_options(private),
            include_dirs: shows_directories(&facts, &plan.recipe.include_dirs)
                .then(|| plan.recipe.include_dirs.clone()),
            driver_family: driver.profile.family.to_owned(),
            driver_library: driver.library().to_string_lossy().into_owned(),
            executable: String::from_utf8_lossy(&executable()).into_owned(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            compile_ns: nanoseconds(elapsed),
            facts,
            ..Meta::default()
        };
        withhold_texts(&mut meta.facts, private);
        meta
    }

    /// Adds what is known of a kernel that the application made of a recorded program, on drivers where that is dear.
    pub fn record_kernel(&self, driver: &Driver, key: &Key, kernel: Kernel) {
        if driver.profile.kernel_facts != KernelFactsTime::WhenCreated {
            return;
        }
        let Some(known) = kernel_facts(driver, kernel) else {
            return;
        };
        self.amend(key, None, |facts| {
            let new = facts.kernel(&known.name).is_none();
            if new {
                facts.kernels.push(known);
            }
            new
        });
    }

    /// Replaces an entry by one with more facts; `change` tells whether it changed anything. `include_dirs` are those of the
    /// program that the facts are of, if they may show there.
    pub(super) fn amend(
        &self,
        key: &Key,
        include_dirs: Option<&[Vec<u8>]>,
        change: impl FnOnce(&mut Facts) -> bool,
    ) {
        let Some(store) = self.written_store() else {
            return;
        };
        let fits = |entry: &Entry| {
            let others = entry.meta.include_dirs.as_deref();
            others.is_none_or(|dirs| include_dirs.is_none_or(|own| dirs == own))
        };
        let found = match store.look_up(key) {
            Lookup::Found(entry, file) => Some((*entry, file)).filter(|(entry, _)| fits(entry)),
            // With what is learnt the system's entry becomes the user's: else each process would have the driver asked again.
            Lookup::Absent | Lookup::Pending(_) => self.tiers.look_up(key, &fits),
            Lookup::Unreadable(_) | Lookup::Bad(_) => None,
        };
        let Some((mut entry, file)) = found else {
            return;
        };
        let mut meta = std::mem::take(&mut entry.meta);
        if !change(&mut meta.facts) {
            // Another process has added them since the entry was read here.
            return self.memory.forget(key);
        }
        if let Some(own) = include_dirs {
            meta.include_dirs = shows_directories(&meta.facts, own).then(|| own.to_vec());
        }
        withhold_texts(&mut meta.facts, !self.config.store_source());
        let recipe = entry.recipe().filter(|_| self.config.store_source());
        let content = EntryContent {
            meta: &meta,
            recipe: recipe.as_ref(),
            binaries: entry.binaries().collect(),
        };
        let replaced = store.replace(key, &content, &file);
        self.memory.forget(key);
        match replaced {
            Ok(removed) => {
                let place = Labels {
                    driver: &meta.driver_family,
                    ..Labels::default()
                };
                self.count(place, &[Counter::Evicted.by(removed)]);
            }
            Err(error) => tracing::warn!(%error, "facts not added to the entry"),
        }
    }
}

/// What the driver gives of a program.
pub(super) struct Binaries {
    /// The devices that have one, by their index, ascending.
    pub(super) built: Vec<usize>,
    /// Theirs.
    pub(super) bytes: Vec<Vec<u8>>,
    /// Nothing is listed for the others.
    only_built_listed: bool,
}

/// The binaries of all devices that have one after a call.
pub(super) fn binaries(driver: &Driver, program: Program, plan: &Plan) -> Result<Binaries, String> {
    let code = |what, code: cl_int| format!("the driver does not give {what} ({code})");
    let devices = driver
        .program_devices(program)
        .map_err(|error| code("the devices", error))?;
    if devices != plan.devices {
        // As sources of AMD's driver have it after a build for some devices; unverified.
        return Err("the program has other devices now".to_owned());
    }
    let sizes = driver
        .program_binary_sizes(program)
        .map_err(|error| code("the sizes of its binary", error))?;
    let only_built_listed = sizes.len() != devices.len();
    let built = if only_built_listed {
        plan.targets.clone()
    } else {
        // Also others than those of the call: parts of theirs on Intel's CPU runtime (measured), and those that were built
        // before.
        let is_built = |index: &usize| {
            sizes[*index] > 0
                && driver.build_status(program, devices[*index]) == Ok(CL_BUILD_SUCCESS)
        };
        (0..devices.len()).filter(is_built).collect()
    };
    if only_built_listed && sizes.len() != built.len()
        || !plan.targets.iter().all(|target| built.contains(target))
    {
        return Err("a device has no binary".to_owned());
    }
    let mut all = driver
        .program_binaries(program, &sizes)
        .map_err(|error| code("its binary", error))?;
    let bytes = if only_built_listed {
        all
    } else {
        built
            .iter()
            .map(|index| std::mem::take(&mut all[*index]))
            .collect()
    };
    if bytes.iter().any(Vec::is_empty) {
        return Err("a device has no binary".to_owned());
    }
    Ok(Binaries {
        built,
        bytes,
        only_built_listed,
    })
}

/// Whether each device has what the operation makes: an executable, a compiled object, or either an executable or a library.
/// Drivers of OpenCL 1.1 do not tell, and only build.
fn is_of_the_right_type(facts: &Facts, built: &[usize], operation: &Operation) -> bool {
    let wanted: &[u32] = match operation {
        Operation::Build => &[CL_PROGRAM_BINARY_TYPE_EXECUTABLE],
        Operation::Compile(_) => &[CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT],
        Operation::Link(_) => &[
            CL_PROGRAM_BINARY_TYPE_EXECUTABLE,
            CL_PROGRAM_BINARY_TYPE_LIBRARY,
        ],
    };
    let first = built.first().and_then(|index| binary_type(facts, *index));
    built.iter().all(|index| match binary_type(facts, *index) {
        Some(kind) => Some(kind) == first && wanted.contains(&(kind as u32)),
        None => matches!(operation, Operation::Build) && first.is_none(),
    })
}

/// Everything that the API shows of a program that the driver has made, but for kernels where creating one is dear, and for
/// devices that are not `built`.
pub fn facts(
    driver: &Driver,
    program: Program,
    devices: &[Device],
    built: &[usize],
    arguments: &BuildArguments,
) -> Facts {
    let of_device = |(index, device): (usize, &Device)| {
        if built.contains(&index) {
            build_answers(driver, program, *device, arguments)
        } else {
            Answers::new()
        }
    };
    let mut facts = Facts {
        program: PROGRAM_QUERIES
            .map(|name| (name, answer(driver.program_info(program, name))))
            .to_vec(),
        devices: devices.iter().enumerate().map(of_device).collect(),
        kernel_names: kernel_names(driver, program),
        ..Facts::default()
    };
    if driver.profile.kernel_facts == KernelFactsTime::AfterBuild
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

/// The names of a program's kernels, none if the driver does not tell.
pub(super) fn kernel_names(driver: &Driver, program: Program) -> Vec<Vec<u8>> {
    let names = driver.program_info(program, CL_PROGRAM_KERNEL_NAMES);
    split_names(&names.unwrap_or_default())
        .map(<[u8]>::to_vec)
        .collect()
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
        // There may be memory the next time.
        Err(CL_OUT_OF_HOST_MEMORY) => Answer::Withheld,
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

/// Takes out the texts that could show the source if that is private, and those that quote a random name, which is another in
/// each program: the driver is asked for them again if anybody wants them.
fn withhold_texts(facts: &mut Facts, private: bool) {
    for (name, answer) in facts.devices.iter_mut().flatten() {
        let is_text = matches!(*name, CL_PROGRAM_BUILD_LOG | CL_PROGRAM_BUILD_OPTIONS);
        let (has_words, texts) = match &*answer {
            Answer::Value(value) => (value.len() > 1, std::slice::from_ref(value)),
            Answer::AroundOwnOptions(parts) => (true, parts.as_slice()),
            _ => (false, &[][..]),
        };
        let is_random = texts.iter().any(|text| {
            let mut windows = text.windows(RANDOM_NAME.len());
            windows.any(|window| window == RANDOM_NAME)
        });
        if is_text && (private && has_words || is_random) {
            *answer = Answer::Withheld;
        }
    }
}

/// The metadata of an entry as they would be had it been recorded while texts were private, and none of its directories: logs that
/// could show them are asked for again.
pub fn without_texts(mut meta: Meta) -> Meta {
    withhold_texts(&mut meta.facts, true);
    let own = |options: Vec<u8>| match crate::key::options::parse(&options) {
        Ok(parsed) => {
            let numbers =
                (0..parsed.include_dirs.len()).map(|index| format!("I{index}").into_bytes());
            let respelled = parsed.respelled(&numbers.collect::<Vec<_>>());
            let respelled = respelled.and_then(|text| crate::key::options::parse(&text).ok());
            respelled.map(|options| options.private())
        }
        Err(_) => None,
    };
    meta.options = meta
        .options
        .map(|options| own(options).unwrap_or_else(|| b"not stored".to_vec()));
    meta.include_dirs = None;
    meta
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
        withhold_texts(&mut facts, true);
        assert_eq!(facts.devices[0][0].1, Answer::Withheld);
    }

    #[test]
    fn a_log_that_quotes_a_random_name_is_not_kept() {
        let kept = |text: &[u8]| {
            let mut facts = log(b"", text);
            withhold_texts(&mut facts, false);
            facts.devices[0][0].1 != Answer::Withheld
        };
        assert!(kept(b"warning: unused variable 'x'"));
        assert!(!kept(
            b"warning: unused variable 'pyopencl_defeat_cache_00'"
        ));
    }
}
