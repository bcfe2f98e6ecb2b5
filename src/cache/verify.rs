//! OCLCACHE_VERIFY: builds a share of the hits from source as well, in the same context, and compares before the application gets
//! them.
//!
//! An entry's answer is wrong if two builds from source agree with each other and not with the entry. If the two builds differ, the
//! difference proves nothing. Some drivers copy a second build out of a cache of their own, so that even random names repeat;
//! `copies_builds` in their profile tells which. For those, only the presence of a log is compared.
//!
//! PoCL has the restored program in its own cache by then, under a digest of the preprocessed text, and a build of the same text is
//! a copy. So on PoCL this finds entries of other texts, which a wrong key or a stale header causes.
//!
//! Binaries, measured with the same source and an empty cache of the driver's own in each process:
//!
//! | driver | two builds in one process | in two processes |
//! |---|---|---|
//! | PoCL 3.1 | equal (copies) | different: names of temporary files |
//! | Intel CPU runtime 2026.2 | different: builds are counted in the names of modules | equal for the same number of builds |
//! | rusticl 22.3 | equal | equal |
//!
//! The machine code in the ELF files of these binaries was equal in all cases on PoCL and Intel's CPU runtime, so machine code is
//! compared where there is some. PoCL adds code for the work-group sizes that were used, so one binary may have more than the
//! other. Binaries without ELF files are compared byte by byte, unless the driver copies builds.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};

use object::elf::{FileHeader64, SHF_ALLOC, SHT_PROGBITS};
use object::read::elf::{FileHeader, SectionHeader};
use opencl_sys::*;
use xxhash_rust::xxh3::xxh3_64;

use super::Cache;
use super::facts::{ARGUMENT_QUERIES, BUILD_QUERIES, facts, kernel_facts};
use super::materialize::{TemporaryPrograms, make};
use super::plan::Plan;
use super::policy::Policy;
use super::program_binaries::{ProgramBinaries, binaries};
use crate::cl::{Kernel, Program};
use crate::driver::profile::RecordTime;
use crate::driver::{self, Driver};
use crate::key::ingredients::{Key, sha256};
use crate::log::{say, text};
use crate::outcome::Missed;
use crate::shadow::CachedProgram;
use crate::store::bake_attempts::FetchAdmission;
use crate::store::entry::{Answer, Answers, Defect, Facts, KernelFacts};
use crate::store::stats::Counter;

/// The queries of clGetKernelWorkGroupInfo whose answers depend on the code.
const WORK_GROUP_QUERIES: [(cl_kernel_work_group_info, &str); 5] = [
    (CL_KERNEL_WORK_GROUP_SIZE, "work-group size"),
    (
        CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
        "required work-group size",
    ),
    (CL_KERNEL_LOCAL_MEM_SIZE, "local memory"),
    (
        CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
        "preferred multiple",
    ),
    (CL_KERNEL_PRIVATE_MEM_SIZE, "private memory"),
];

/// The hits of this process so far.
static HITS: AtomicU64 = AtomicU64::new(0);

/// Whether this hit is verified. The choice depends on key, number of the hit and process, so that each kernel is chosen at times
/// even in programs that build once at each start.
fn has_turn(percent: u8, key: &Key, hit: u64, process: u32) -> bool {
    let mut bytes = key.0.to_vec();
    bytes.extend(hit.to_le_bytes());
    bytes.extend(process.to_le_bytes());
    xxh3_64(&bytes) % 100 < u64::from(percent)
}

/// Answers by the query in words.
type Answered = BTreeMap<String, Answer>;

/// The answers of a program, in a form that can be compared.
pub(super) struct ProgramAnswers {
    answers: Answered,
    /// The successful answers of the program's own kernels.
    live: Answered,
    /// The binaries of the devices that have one.
    binaries: Option<Vec<Vec<u8>>>,
}

impl ProgramAnswers {
    /// The answers that were recorded, without a program to ask.
    pub(super) fn of_facts(facts: &Facts, binaries: Vec<Vec<u8>>) -> ProgramAnswers {
        ProgramAnswers {
            answers: answers(facts),
            live: Answered::new(),
            binaries: Some(binaries),
        }
    }
}

impl Cache {
    /// Returns the restored program, unless it is chosen and a build from source differs.
    pub(super) fn verified(
        &self,
        inner: Box<CachedProgram>,
        plan: &Plan,
    ) -> Option<Box<CachedProgram>> {
        let percent = self.config.verify();
        let hit = HITS.fetch_add(1, Ordering::Relaxed);
        let has_turn = || has_turn(percent, &plan.key(), hit, std::process::id());
        if percent == 0 || driver::is_ending() || !has_turn() {
            return Some(inner);
        }
        let Ok(differences) = self.differences(&inner, plan) else {
            tracing::info!(key = %plan.key_prefix(), "not verified: the driver cannot build it now");
            return Some(inner);
        };
        if !differences.is_empty() && !self.still_holds(&inner) {
            tracing::info!(key = %plan.key_prefix(), "not verified: its inputs have changed");
            return Some(inner);
        }
        self.count(plan.place(), &[Counter::Verified.by(1)]);
        if differences.is_empty() {
            return Some(inner);
        }
        self.count(plan.place(), &[Counter::Differed.by(1)]);
        plan.missed_by(Missed::Differed);
        let names = inner.facts().kernel_names.join(&b' ');
        let (key, names) = (plan.key_prefix(), text(&names));
        let what = differences.join(", ");
        tracing::warn!(key, kernels = %names, what = %text(what.as_bytes()), "a build from source differs");
        say(&format!(
            "OCLCACHE_VERIFY: the entry {key} (kernels: {names}) is not what the driver makes of the source now, so it is not used; different: {}",
            text(what.as_bytes())
        ));
        let defect = Defect::Refused("a build from source is another program");
        self.set_aside(plan, &defect, inner.is_of_system());
        if !inner.is_inner() {
            // No application will release it.
            inner.driver().release_program(inner.program());
        }
        None
    }
}

impl Cache {
    /// The differences between an entry and the driver's build now, in words.
    ///
    /// # Errors
    /// The driver cannot build the program.
    fn differences(&self, inner: &CachedProgram, plan: &Plan) -> Result<Vec<String>, cl_int> {
        let copies = inner.driver().behavior().copies_builds;
        let recorded = recorded(inner);
        let first = self.build_again(inner, plan)?;
        let found = compare(copies, &recorded, &first);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let second = self.build_again(inner, plan)?;
        let unrepeated = compare(copies, &second, &first);
        Ok(found.difference(&unrepeated).cloned().collect())
    }

    /// The answers of a build from source, which is released at once.
    fn build_again(&self, inner: &CachedProgram, plan: &Plan) -> Result<ProgramAnswers, cl_int> {
        let (driver, indices) = (inner.driver(), inner.built());
        let program = make(driver, inner.context(), inner.recipe())?;
        let _made = TemporaryPrograms {
            driver,
            programs: vec![program],
        };
        let arguments = &inner.recipe().arguments;
        let mut facts = facts(driver, program, inner.devices(), &indices, arguments);
        let (live, kernels) = live(inner, program, &inner.facts());
        facts.kernels = kernels;
        let binaries = self.fetched(driver, program, plan);
        Ok(ProgramAnswers {
            answers: answers(&facts),
            live,
            binaries: binaries
                .filter(|binaries| binaries.built == indices)
                .map(|binaries| binaries.bytes),
        })
    }

    /// The binaries, if a miss would fetch them inside the application, too: the driver may compile for that, and crash.
    fn fetched(&self, driver: &Driver, program: Program, plan: &Plan) -> Option<ProgramBinaries> {
        if driver.behavior().record == RecordTime::InMiss {
            return binaries(driver, program, plan).ok();
        }
        if self.policy(driver).policy != Policy::InMiss {
            return None;
        }
        match self.written_store()?.begin_fetch(&plan.key()) {
            Ok(FetchAdmission::Granted(_fetching)) => binaries(driver, program, plan).ok(),
            _ => None,
        }
    }
}

/// The queries that two programs answer differently. `copies`: the driver copies builds out of a cache of its own.
pub(super) fn compare(
    copies: bool,
    one: &ProgramAnswers,
    fresh: &ProgramAnswers,
) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = [(&one.answers, &fresh.answers), (&one.live, &fresh.live)]
        .into_iter()
        .flat_map(|(ones, freshs)| {
            ones.iter().filter_map(move |(what, answer)| {
                let other = freshs.get(what)?;
                let random = copies && what.contains(LOG) && has_words(answer) && has_words(other);
                (answer != other && !random).then(|| what.clone())
            })
        })
        .collect();
    if let (Some(ones), Some(freshs)) = (&one.binaries, &fresh.binaries) {
        let pairs = ones.iter().zip(freshs).enumerate();
        let other = pairs.filter(|(_, (one, fresh))| !is_same_program(one, fresh, copies));
        found.extend(other.map(|(index, _)| format!("binary {index}")));
    }
    found
}

const LOG: &str = "build log";

fn has_words(log: &Answer) -> bool {
    match log {
        Answer::Value(value) => value.len() > 1,
        Answer::AroundOwnOptions(_) => true,
        _ => false,
    }
}

/// The answers of the entry, and of the program that was made from it.
fn recorded(inner: &CachedProgram) -> ProgramAnswers {
    let recorded = inner.facts();
    let binaries = inner.binaries().into_iter();
    ProgramAnswers {
        answers: answers(&recorded),
        live: live(inner, inner.program(), &recorded).0,
        binaries: Some(
            binaries
                .filter(|binary| !binary.is_empty())
                .map(<[u8]>::to_vec)
                .collect(),
        ),
    }
}

/// Asks the program's kernels of these names. Queries without an answer are left out: a program from a binary may not know. Returns
/// the facts of the kernels as well.
fn live(inner: &CachedProgram, program: Program, names: &Facts) -> (Answered, Vec<KernelFacts>) {
    let (mut answered, mut all) = (Answered::new(), Vec::new());
    for name in &names.kernel_names {
        let Ok(c_name) = CString::new(name.clone()) else {
            continue;
        };
        let Ok(kernel) = inner.driver().create_kernel(program, &c_name) else {
            continue;
        };
        if let Some(facts) = kernel_facts(inner.driver(), kernel) {
            for (what, answer) in arguments(&facts) {
                answered.insert(format!("{what}, by the kernel itself"), answer);
            }
            all.push(facts);
        }
        answered.extend(work_groups(inner, kernel, name));
        inner.driver().release_kernel(kernel);
    }
    answered.retain(|_, answer| matches!(answer, Answer::Value(value) if **value != *b"\0"));
    (answered, all)
}

fn work_groups(inner: &CachedProgram, kernel: Kernel, name: &[u8]) -> Answered {
    let driver: &Driver = inner.driver();
    let mut answered = Answered::new();
    for index in inner.built() {
        for (query, words) in WORK_GROUP_QUERIES {
            let device = inner.devices()[index];
            if let Ok(value) = driver.kernel_work_group_info(kernel, device, query) {
                let name = String::from_utf8_lossy(name);
                answered.insert(
                    format!("{words} of kernel {name} on device {index}"),
                    Answer::Value(value.into()),
                );
            }
        }
    }
    answered
}

/// The facts by their queries in words. The order of kernels is left out: in the result of a link it is random (measured: rusticl
/// 22.3).
fn answers(facts: &Facts) -> Answered {
    let mut answered = Answered::new();
    let mut names = facts.kernel_names.clone();
    names.sort();
    answered.insert(
        "kernel names".into(),
        Answer::Value(names.join(&b';').into()),
    );
    for (query, answer) in &facts.program {
        if *query != CL_PROGRAM_KERNEL_NAMES {
            answered.insert(format!("program query {query:#x}"), answer.clone());
        }
    }
    for (index, answers) in facts.devices.iter().enumerate() {
        for (query, answer) in answers {
            let words = build_query(*query);
            answered.insert(format!("{words} of device {index}"), answer.clone());
        }
    }
    for kernel in &facts.kernels {
        let name = String::from_utf8_lossy(&kernel.name);
        let attributes = format!("attributes of kernel {name}");
        answered.insert(attributes, kernel.attributes.clone());
        answered.extend(arguments(kernel));
    }
    answered.retain(|_, answer| *answer != Answer::Withheld);
    answered
}

fn arguments(kernel: &KernelFacts) -> Answered {
    let name = String::from_utf8_lossy(&kernel.name);
    let of_one = |(index, answers): (usize, &Answers)| {
        let of_argument = |(query, answer): &(u32, Answer)| {
            let words = argument_query(*query);
            let what = format!("{words} of argument {index} of kernel {name}");
            (what, answer.clone())
        };
        answers.iter().map(of_argument).collect::<Vec<_>>()
    };
    let mut answered: Answered = kernel
        .arguments
        .iter()
        .chain([&kernel.behind_last_argument])
        .enumerate()
        .flat_map(of_one)
        .collect();
    let count = kernel.arguments.len().to_string();
    answered.insert(
        format!("number of arguments of kernel {name}"),
        Answer::Value(count.into_bytes().into()),
    );
    answered
}

fn build_query(query: cl_program_build_info) -> &'static str {
    const WORDS: [&str; 5] = [
        "build status",
        "build options",
        LOG,
        "binary type",
        "size of global variables",
    ];
    let at = BUILD_QUERIES.iter().position(|known| *known == query);
    at.map_or("build query", |at| WORDS[at])
}

fn argument_query(query: cl_kernel_arg_info) -> &'static str {
    const WORDS: [&str; 5] = [
        "address qualifier",
        "access qualifier",
        "type",
        "type qualifier",
        "name",
    ];
    let at = ARGUMENT_QUERIES.iter().position(|known| *known == query);
    at.map_or("query", |at| WORDS[at])
}

/// Whether two binaries hold the same program, as far as can be told.
fn is_same_program(one: &[u8], other: &[u8], copies: bool) -> bool {
    if one == other {
        return true;
    }
    let (one_code, other_code) = (machine_code(one), machine_code(other));
    if one_code.is_empty() || other_code.is_empty() {
        return copies;
    }
    one_code.is_subset(&other_code) || other_code.is_subset(&one_code)
}

/// The digests of code and constants in the ELF files that a binary is or holds: the loaded sections, except the linker's tables.
fn machine_code(binary: &[u8]) -> BTreeSet<[u8; 32]> {
    const MAGIC: &[u8] = b"\x7fELF\x02";
    let starts = binary.windows(MAGIC.len()).enumerate();
    let starts = starts.filter(|(_, window)| *window == MAGIC);
    let files = starts.map(|(at, _)| &binary[at..]);
    files
        .flat_map(|file| sections(file).unwrap_or_default())
        .map(sha256)
        .collect()
}

fn sections(file: &[u8]) -> object::Result<Vec<&[u8]>> {
    let header = FileHeader64::<object::Endianness>::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let mut found = Vec::new();
    for section in sections.iter() {
        let is_loaded =
            section.sh_type(endian) == SHT_PROGBITS && section.sh_flags(endian).contains(SHF_ALLOC);
        let name = sections.section_name(endian, section)?;
        let is_table = [&b".eh_frame"[..], b".got", b".plt", b".interp"]
            .iter()
            .any(|table| name.starts_with(table));
        let data = section.data(endian, file)?;
        if is_loaded && !is_table && !data.is_empty() {
            found.push(data);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_as_many_as_was_asked_for_and_each_key_has_some() {
        for percent in [0, 1, 10, 50, 99, 100] {
            let turns = |key: &Key, process| {
                (0..100)
                    .filter(|hit| has_turn(percent, key, *hit, process))
                    .count()
            };
            let all: usize = (0..100).map(|key| turns(&Key([key; 32]), 7)).sum();
            let wanted = usize::from(percent) * 100;
            assert!(all.abs_diff(wanted) < 300, "{percent} %: {all} of 10000");
            if matches!(percent, 0 | 100) {
                assert_eq!(all, wanted);
            }
        }
        let first_hits = (0..1000).filter(|process| has_turn(10, &Key([3; 32]), 0, *process));
        assert!((50..150).contains(&first_hits.count()), "one hit a process");
    }

    #[test]
    fn binaries_differ_by_their_bytes_where_they_hold_no_machine_code() {
        assert!(is_same_program(b"one", b"one", false));
        assert!(!is_same_program(b"one", b"two", false));
        assert!(is_same_program(b"one", b"two", true));
        let file = std::fs::read("/bin/sh").expect("a program");
        let code = sections(&file).expect("an ELF file")[0];
        let at = code.as_ptr() as usize - file.as_ptr() as usize;
        let framed = |file: &[u8]| [b"header", file, b"trailer"].concat();
        assert!(is_same_program(&file, &framed(&file), false));
        let mut other = file.clone();
        other[at] ^= 1;
        assert!(!is_same_program(&file, &framed(&other), true));
    }
}
