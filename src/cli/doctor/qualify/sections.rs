//! What each section of a qualification does with the driver.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::time::{Duration, Instant};

use opencl_sys::*;
use rustix::time::{ClockId, clock_gettime};
use xxhash_rust::xxh3::xxh3_64;

use super::message::{BuildTimes, CachedBuild, Measurement, QualifyMessage};
use super::sources;
use crate::cl::{Context, Device, Kernel, Program};
use crate::driver::profile::Rebuild;
use crate::driver::{BuildArguments, Driver};

/// How many sources are timed.
const SAMPLES: u32 = 5;
/// A slow driver is timed with fewer.
const MAX_SAMPLING: Duration = Duration::from_secs(20);
/// How many sources are built that a cache of the driver's own may have.
const CACHED_SOURCES: u32 = 3;
/// How many programs are made to see whether one gets the handle of a program that should be alive.
const OTHERS: usize = 32;

/// Why a section has no measurement.
pub enum NoMeasurement {
    /// See [`QualifyMessage::Untold`].
    Untold(String),
    /// See [`QualifyMessage::Failed`].
    Failed(String),
}

/// The result of a section.
pub type Measured = Result<Measurement, NoMeasurement>;

fn untold(why: &str) -> Measured {
    Err(NoMeasurement::Untold(why.to_owned()))
}

/// The failure of a call that works on a sound driver.
fn failed(call: &str) -> impl FnOnce(cl_int) -> NoMeasurement {
    move |code| NoMeasurement::Failed(format!("{call} fails with {code}"))
}

/// The part of the driver that a section works on.
pub struct Subject<'a> {
    pub driver: &'a Driver,
    pub context: Context,
    pub device: Device,
    /// Makes sources of this qualification differ from those of all others.
    pub salt: u64,
    /// A directory that sections share.
    pub place: &'a Path,
    pub say: &'a dyn Fn(&QualifyMessage),
}

impl Subject<'_> {
    fn arguments(&self, options: &CStr) -> BuildArguments {
        BuildArguments {
            devices: Some(vec![self.device]),
            options: Some(options.to_owned()),
        }
    }

    fn create(&self, source: &str) -> Result<Program, NoMeasurement> {
        let made = self
            .driver
            .create_program_with_source(self.context, source.as_bytes());
        made.map_err(failed("clCreateProgramWithSource"))
    }

    /// Builds a new program, and tells how long the build took.
    fn build(&self, source: &str, options: &CStr) -> Result<(Program, u64), NoMeasurement> {
        let program = self.create(source)?;
        let (code, took) = timed(|| {
            let arguments = self.arguments(options);
            self.driver.build_program(program, &arguments)
        });
        match code {
            CL_SUCCESS => Ok((program, took)),
            code => {
                self.driver.release_program(program);
                Err(failed("clBuildProgram")(code))
            }
        }
    }

    /// The binary for the device; empty if the driver gives none.
    fn binary(&self, program: Program) -> Result<Vec<u8>, NoMeasurement> {
        let sizes = self.driver.program_binary_sizes(program);
        let sizes = sizes.map_err(failed("clGetProgramInfo(CL_PROGRAM_BINARY_SIZES)"))?;
        let binaries = self.driver.program_binaries(program, &sizes);
        let binaries = binaries.map_err(failed("clGetProgramInfo(CL_PROGRAM_BINARIES)"))?;
        Ok(binaries.into_iter().next().unwrap_or_default())
    }

    fn load(&self, binary: &[u8]) -> Result<Program, NoMeasurement> {
        let driver = self.driver;
        let program = driver.create_program_with_binary(self.context, &[self.device], &[binary]);
        let program = program.map_err(failed("clCreateProgramWithBinary"))?;
        match driver.build_program(program, &self.arguments(c"")) {
            CL_SUCCESS => Ok(program),
            code => Err(failed("clBuildProgram of a loaded binary")(code)),
        }
    }

    fn kernel_names(&self, program: Program) -> Result<Vec<CString>, NoMeasurement> {
        let names = self.driver.program_info(program, CL_PROGRAM_KERNEL_NAMES);
        let names = names.map_err(failed("clGetProgramInfo(CL_PROGRAM_KERNEL_NAMES)"))?;
        let names = names.split(|byte| matches!(byte, b';' | 0));
        let names = names.filter(|name| !name.is_empty());
        Ok(names.filter_map(|name| CString::new(name).ok()).collect())
    }

    /// All kernels of a program, as the library creates them after a build.
    fn kernels(&self, program: Program) -> Result<Vec<Kernel>, NoMeasurement> {
        let kernels = self.driver.create_kernels(program);
        kernels.map_err(failed("clCreateKernelsInProgram"))
    }

    fn release(&self, kernels: &[Kernel], program: Program) {
        for kernel in kernels {
            self.driver.release_kernel(*kernel);
        }
        self.driver.release_program(program);
    }

    fn binary_file(&self, number: u32) -> std::path::PathBuf {
        self.place.join(format!("binary-{number}"))
    }

    /// The first build of a process opens the compiler.
    pub fn warm_up(&self) -> Result<(), NoMeasurement> {
        let (program, _) = self.build(sources::LIGHT, c"")?;
        self.driver.release_program(program);
        (self.say)(&QualifyMessage::Step);
        Ok(())
    }

    pub fn times(&self) -> Measured {
        self.warm_up()?;
        let started = Instant::now();
        let mut times = Vec::new();
        for number in 0..SAMPLES {
            // Two programs, since a driver may compile its kernels in whichever comes first.
            let (program, build) = self.build(&sources::weighty(self.salt, 2 * number), c"")?;
            let (binary, fetch) = timed(|| self.binary(program));
            let binary = binary?;
            self.driver.release_program(program);
            if binary.is_empty() {
                let why = "the driver gives no binary, so nothing can be cached";
                return Err(NoMeasurement::Failed(why.to_owned()));
            }
            let written = std::fs::write(self.binary_file(number), &binary);
            written.map_err(|error| NoMeasurement::Untold(error.to_string()))?;
            let source = sources::weighty(self.salt, 2 * number + 1);
            let (program, other_build) = self.build(&source, c"")?;
            let (made, kernels) = timed(|| self.kernels(program));
            self.release(&made?, program);
            times.push(BuildTimes {
                build,
                fetch,
                other_build,
                kernels,
            });
            (self.say)(&QualifyMessage::Step);
            if started.elapsed() > MAX_SAMPLING {
                break;
            }
        }
        Ok(Measurement::Times(times))
    }

    pub fn loads(&self) -> Measured {
        self.warm_up()?;
        let mut loads = Vec::new();
        for number in 0..SAMPLES {
            let Ok(binary) = std::fs::read(self.binary_file(number)) else {
                break;
            };
            let (program, took) = timed(|| self.load(&binary));
            let program = program?;
            self.release(&self.kernels(program)?, program);
            loads.push(took);
            (self.say)(&QualifyMessage::Step);
        }
        match loads.is_empty() {
            true => untold("there are no binaries"),
            false => Ok(Measurement::Loads(loads)),
        }
    }

    pub fn odd_programs(&self) -> Measured {
        for source in [sources::NO_KERNEL.to_owned(), sources::long_name()] {
            // The driver may refuse them.
            if let Ok((program, _)) = self.build(&source, c"") {
                let _ = self.binary(program);
                self.driver.release_program(program);
            }
            (self.say)(&QualifyMessage::Step);
        }
        Ok(Measurement::Survived)
    }

    pub fn undefined_function(&self) -> Measured {
        if let Ok((program, _)) = self.build(sources::UNDEFINED, c"") {
            (self.say)(&QualifyMessage::MayEnd);
            // The driver may refuse it.
            let one = self.driver.create_kernel(program, c"oclcache_caller");
            let all = self.kernels(program).unwrap_or_default();
            let kernels: Vec<Kernel> = one.into_iter().chain(all).collect();
            for kernel in &kernels {
                for (_, query) in KERNEL_QUERIES {
                    let _ = self.driver.kernel_info(*kernel, query);
                }
            }
            self.release(&kernels, program);
        }
        Ok(Measurement::Survived)
    }

    fn context_references(&self) -> Result<cl_uint, NoMeasurement> {
        let references = self.driver.context_references(self.context);
        references.map_err(failed("clGetContextInfo(CL_CONTEXT_REFERENCE_COUNT)"))
    }

    pub fn context_count(&self) -> Measured {
        self.warm_up()?;
        let before = self.context_references()?;
        let (program, _) = self.build(sources::LIGHT, c"")?;
        let with_source = self.context_references()?;
        let binary = self.binary(program)?;
        let with_binary = match binary.is_empty() {
            true => None,
            false => {
                let loaded = self.load(&binary)?;
                let references = self.context_references()?;
                self.driver.release_program(loaded);
                Some(references)
            }
        };
        self.driver.release_program(program);
        let grown = |now: cl_uint, before: cl_uint| i64::from(now) - i64::from(before);
        let of_source = grown(with_source, before);
        let of_binary = with_binary.map_or(of_source, |now| grown(now, with_source));
        match (of_source, of_binary) {
            (0, 0) => Ok(Measurement::Is(false)),
            (1, 1) => Ok(Measurement::Is(true)),
            _ => untold("programs from a source and from a binary count differently"),
        }
    }

    pub fn released_program(&self) -> Measured {
        let driver = self.driver;
        let (program, _) = self.build(sources::LIGHT, c"")?;
        let _kernels = self.kernels(program)?;
        driver.release_program(program);
        (self.say)(&QualifyMessage::MayEnd);
        let is_there = || {
            driver.program_references(program).is_ok()
                && driver
                    .program_info(program, CL_PROGRAM_SOURCE)
                    .is_ok_and(|source| source.starts_with(sources::LIGHT.as_bytes()))
        };
        if !is_there() {
            return Ok(Measurement::Is(false));
        }
        // The memory of a dead program may look alive until it is used again.
        for _ in 0..OTHERS {
            if self.create(sources::NO_KERNEL)? == program {
                return Ok(Measurement::Is(false));
            }
        }
        Ok(Measurement::Is(is_there()))
    }

    /// `create_context` makes a context for a device.
    pub fn sub_devices(
        &self,
        create_context: impl FnOnce(Device) -> Result<Context, cl_int>,
    ) -> Measured {
        let driver = self.driver;
        let sub_devices = driver.create_sub_devices(self.device).unwrap_or_default();
        let Some(&first) = sub_devices.first() else {
            return untold("the device cannot be divided");
        };
        let context = create_context(first).map_err(failed("clCreateContext for a sub-device"))?;
        let program = driver.create_program_with_source(context, sources::LIGHT.as_bytes());
        let program = program.map_err(failed("clCreateProgramWithSource for a sub-device"))?;
        let devices = driver.program_devices(program);
        let devices = devices.map_err(failed("clGetProgramInfo(CL_PROGRAM_DEVICES)"))?;
        match (devices.contains(&self.device), devices.contains(&first)) {
            (true, false) => Ok(Measurement::Is(true)),
            (false, true) => Ok(Measurement::Is(false)),
            _ => untold("a program of a sub-device is for other devices"),
        }
    }

    /// Builds a program again that was built or run.
    fn build_again(&self, program: Program, options: &CStr) -> Result<(), NoMeasurement> {
        match self.driver.build_program(program, &self.arguments(options)) {
            CL_SUCCESS => Ok(()),
            code => Err(failed("clBuildProgram of a program that was built")(code)),
        }
    }

    pub fn rebuild(&self) -> Measured {
        let driver = self.driver;
        let number = |program| driver.program_info(program, CL_PROGRAM_NUM_KERNELS);
        let (program, _) = self.build(sources::EITHER, c"-DOCLCACHE_FIRST")?;
        self.build_again(program, c"")?;
        self.build_again(program, c"")?;
        let (fresh, _) = self.build(sources::EITHER, c"")?;
        let is_alike = self.kernel_names(program)? == self.kernel_names(fresh)?
            && number(program) == number(fresh);
        driver.release_program(program);
        driver.release_program(fresh);
        if !is_alike {
            return Ok(Measurement::Rebuild(Rebuild::KeepsKernels));
        }
        (self.say)(&QualifyMessage::Step);
        let built = sources::COUNTER_OPTIONS
            .into_iter()
            .find_map(|options| Some((self.build(sources::COUNTER, options).ok()?.0, options)));
        let Some((program, options)) = built else {
            return untold("no program with variables can be built");
        };
        let (first, second) = (self.count(program)?, self.count(program)?);
        if first == second {
            return untold("kernels keep nothing in variables of their program here");
        }
        self.build_again(program, options)?;
        let third = self.count(program)?;
        // Measured on PoCL 3.1: all programs of one source share their variables, so a new one would have kept them as well.
        let (fresh, _) = self.build(sources::COUNTER, options)?;
        let fourth = self.count(fresh)?;
        driver.release_program(program);
        driver.release_program(fresh);
        Ok(Measurement::Rebuild(
            match third != first && fourth == first {
                true => Rebuild::KeepsVariables,
                false => Rebuild::Fresh,
            },
        ))
    }

    /// Runs the kernel of [`sources::COUNTER`], and returns the value that it found.
    fn count(&self, program: Program) -> Result<u32, NoMeasurement> {
        let kernel = self.driver.create_kernel(program, c"oclcache_count");
        let kernel = kernel.map_err(failed("clCreateKernel"))?;
        let words = self.driver.run_kernel(self.context, self.device, kernel);
        self.driver.release_kernel(kernel);
        Ok(words.map_err(failed("a kernel"))?[0])
    }

    pub fn own_cache(&self) -> Measured {
        self.warm_up()?;
        let mut built = Vec::new();
        for number in 0..CACHED_SOURCES {
            let before = processor_time();
            let (program, _) = self.build(&sources::warned(self.salt, number), c"")?;
            let processor_ns = processor_time().saturating_sub(before);
            let driver = self.driver;
            let log = driver.build_info(program, self.device, CL_PROGRAM_BUILD_LOG);
            let shown = [self.binary(program)?, log.unwrap_or_default()].concat();
            driver.release_program(program);
            built.push(CachedBuild {
                processor_ns,
                digest: xxh3_64(&shown),
            });
            (self.say)(&QualifyMessage::Step);
        }
        Ok(Measurement::OwnCache(built))
    }

    /// The digests of everything that the API shows of a program.
    pub fn answers(&self) -> Result<BTreeMap<String, u64>, NoMeasurement> {
        let driver = self.driver;
        let mut answers = BTreeMap::new();
        let mut note = |query: String, answer: Result<Vec<u8>, cl_int>| {
            let answer = answer.unwrap_or_else(|code| format!("error {code}").into_bytes());
            answers.insert(query, xxh3_64(&answer));
        };
        let (program, _) = self.build(sources::COMPARED, c"-DUNUSED=1")?;
        let references = driver.context_references(self.context);
        note("references of the context".to_owned(), word(references));
        for (name, query) in PROGRAM_QUERIES {
            note(
                format!("program: {name}"),
                driver.program_info(program, query),
            );
        }
        for (name, query) in BUILD_QUERIES {
            let answer = driver.build_info(program, self.device, query);
            note(format!("build: {name}"), answer);
        }
        for kernel in self.kernels(program)? {
            let name = driver.kernel_info(kernel, CL_KERNEL_FUNCTION_NAME);
            let name = name.map_err(failed("clGetKernelInfo"))?;
            let shown = crate::log::text(name.strip_suffix(b"\0").unwrap_or(&name)).to_string();
            for (what, query) in KERNEL_QUERIES {
                let answer = driver.kernel_info(kernel, query);
                note(format!("kernel {shown}: {what}"), answer);
            }
            for (what, query) in GROUP_QUERIES {
                let answer = driver.kernel_work_group_info(kernel, self.device, query);
                note(format!("kernel {shown}: {what}"), answer);
            }
            for argument in 0..5 {
                for (what, query) in ARGUMENT_QUERIES {
                    let answer = driver.kernel_arg_info(kernel, argument, query);
                    note(
                        format!("kernel {shown}, argument {argument}: {what}"),
                        answer,
                    );
                }
            }
            driver.release_kernel(kernel);
        }
        let references = driver.program_references(program);
        note("references of the program".to_owned(), word(references));
        driver.release_program(program);
        let references = driver.context_references(self.context);
        note(
            "references of the context, at the end".to_owned(),
            word(references),
        );
        // Last, and of another program: queues may keep the context after they are released.
        let (program, _) = self.build(sources::COMPARED, c"-DUNUSED=2")?;
        let kernel = driver.create_kernel(program, c"oclcache_b");
        let kernel = kernel.map_err(failed("clCreateKernel"))?;
        let words = driver.run_kernel(self.context, self.device, kernel);
        let bytes = words.map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect());
        note("what a kernel computes".to_owned(), bytes);
        self.release(&[kernel], program);
        Ok(answers)
    }
}

fn word(number: Result<cl_uint, cl_int>) -> Result<Vec<u8>, cl_int> {
    number.map(|number| number.to_le_bytes().to_vec())
}

/// The processor time of all threads of this process, in nanoseconds.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The result of some work, and how long it took, in nanoseconds.
fn timed<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let begun = Instant::now();
    let result = work();
    let took = begun.elapsed().as_nanos();
    (result, u64::try_from(took).unwrap_or(u64::MAX))
}

const PROGRAM_QUERIES: [(&str, cl_program_info); 5] = [
    ("number of devices", CL_PROGRAM_NUM_DEVICES),
    ("source", CL_PROGRAM_SOURCE),
    ("number of kernels", CL_PROGRAM_NUM_KERNELS),
    ("names of kernels", CL_PROGRAM_KERNEL_NAMES),
    ("intermediate language", CL_PROGRAM_IL),
];

const BUILD_QUERIES: [(&str, cl_program_build_info); 4] = [
    ("status", CL_PROGRAM_BUILD_STATUS),
    ("options", CL_PROGRAM_BUILD_OPTIONS),
    ("log", CL_PROGRAM_BUILD_LOG),
    ("binary type", CL_PROGRAM_BINARY_TYPE),
];

const KERNEL_QUERIES: [(&str, cl_kernel_info); 4] = [
    ("name", CL_KERNEL_FUNCTION_NAME),
    ("number of arguments", CL_KERNEL_NUM_ARGS),
    ("attributes", CL_KERNEL_ATTRIBUTES),
    ("references", CL_KERNEL_REFERENCE_COUNT),
];

const GROUP_QUERIES: [(&str, cl_kernel_work_group_info); 4] = [
    ("work-group size", CL_KERNEL_WORK_GROUP_SIZE),
    (
        "compiled work-group size",
        CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
    ),
    ("local memory", CL_KERNEL_LOCAL_MEM_SIZE),
    (
        "preferred multiple",
        CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
    ),
];

const ARGUMENT_QUERIES: [(&str, cl_kernel_arg_info); 5] = [
    ("address", CL_KERNEL_ARG_ADDRESS_QUALIFIER),
    ("access", CL_KERNEL_ARG_ACCESS_QUALIFIER),
    ("type", CL_KERNEL_ARG_TYPE_NAME),
    ("qualifiers", CL_KERNEL_ARG_TYPE_QUALIFIER),
    ("name", CL_KERNEL_ARG_NAME),
];
