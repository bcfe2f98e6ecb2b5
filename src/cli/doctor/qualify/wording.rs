//! What was measured, in words.

use super::message::QualifiedDevice;
use super::verdict::Share;
use crate::driver::profile::measured::MeasuredBehavior;
use crate::driver::profile::{Behavior, KernelFactsTime, Rebuild, RecordTime};

/// A fact, and what it is about.
type Fact = (&'static str, &'static str);

pub fn device(device: &QualifiedDevice) -> String {
    format!(
        "{}, driver {}, of {} ({})",
        device.name, device.version, device.platform, device.family
    )
}

pub fn loading(share: Share) -> &'static str {
    match share {
        Share::Little => {
            "a hit costs next to nothing: loading a binary takes at most a twentieth of a build"
        }
        Share::Part => {
            "a hit gains most of a build: loading a binary takes less than a quarter of it"
        }
        Share::Dear | Share::Whole => {
            "a hit gains a part of a build: loading a binary takes a quarter of it or more"
        }
    }
}

fn record(record: RecordTime) -> Fact {
    let text = match record {
        RecordTime::InMiss => {
            "fetching a binary costs next to nothing: programs are recorded inside the miss"
        }
        RecordTime::Baked => "fetching a binary compiles: programs are baked",
        RecordTime::Measured => {
            "fetching a binary costs a part of a build, or is not safe: costs are measured while the cache is used"
        }
    };
    ("recording", text)
}

fn kernel_facts(time: KernelFactsTime) -> Fact {
    let text = match time {
        KernelFactsTime::AfterBuild => {
            "creating a kernel costs next to nothing: kernels are asked for their facts after the build"
        }
        KernelFactsTime::WhenCreated => {
            "creating a kernel compiles, or is not safe: kernels are asked for their facts when a program creates them"
        }
    };
    ("kernels", text)
}

fn context_counts_programs(counts: bool) -> Fact {
    let text = match counts {
        true => "each program adds one to the reference count of its context",
        false => "programs add nothing to the reference count of their context",
    };
    ("contexts", text)
}

fn kernels_keep_program(keep: bool) -> Fact {
    let text = match keep {
        true => "a program lives as long as its kernels",
        false => "a program is dead when it is released, although kernels of it live",
    };
    ("releases", text)
}

fn sub_devices_are_their_root(are: bool) -> Fact {
    let text = match are {
        true => "a program for a sub-device is one for the whole device",
        false => "a program for a sub-device is for this sub-device",
    };
    ("sub-devices", text)
}

fn rebuild(rebuild: Rebuild) -> Fact {
    let text = match rebuild {
        Rebuild::Fresh => "a program that is built again keeps nothing of its earlier build",
        Rebuild::KeepsVariables => {
            "a program that is built again with the same options keeps its variables"
        }
        Rebuild::KeepsKernels => "a program that is built again keeps its earlier kernels",
    };
    ("rebuilds", text)
}

fn copies_builds(copies: bool) -> Fact {
    let text = match copies {
        true => "a build may be a copy from the driver's own cache",
        false => "no build was a copy from a cache of the driver's",
    };
    ("own cache", text)
}

fn facts(measured: &MeasuredBehavior) -> [Option<Fact>; 7] {
    [
        measured.record.map(record),
        measured.kernel_facts.map(kernel_facts),
        measured
            .context_counts_programs
            .map(context_counts_programs),
        measured.kernels_keep_program.map(kernels_keep_program),
        measured
            .sub_devices_are_their_root
            .map(sub_devices_are_their_root),
        measured.rebuild.map(rebuild),
        measured.copies_builds.map(copies_builds),
    ]
}

/// What was measured.
pub fn behavior(measured: &MeasuredBehavior) -> Vec<Fact> {
    facts(measured).into_iter().flatten().collect()
}

/// What was measured that contradicts a row. To measure while the cache is used contradicts nothing.
pub fn contradictions(measured: &MeasuredBehavior, row: Behavior) -> Vec<Fact> {
    fn unless_same<T: PartialEq>(measured: Option<T>, row: Option<T>) -> Option<T> {
        let row = row?;
        measured.filter(|measured| *measured != row)
    }
    let is_claim = |record: &RecordTime| *record != RecordTime::Measured;
    let record = Some(row.record).filter(is_claim);
    let contradicted = MeasuredBehavior {
        record: unless_same(measured.record.filter(is_claim), record),
        kernel_facts: unless_same(measured.kernel_facts, Some(row.kernel_facts)),
        context_counts_programs: unless_same(
            measured.context_counts_programs,
            row.context_counts_programs,
        ),
        kernels_keep_program: unless_same(
            measured.kernels_keep_program,
            Some(row.kernels_keep_program),
        ),
        sub_devices_are_their_root: unless_same(
            measured.sub_devices_are_their_root,
            Some(row.sub_devices_are_their_root),
        ),
        rebuild: unless_same(measured.rebuild, Some(row.rebuild)),
        copies_builds: unless_same(measured.copies_builds, Some(row.copies_builds)),
    };
    behavior(&contradicted)
}
