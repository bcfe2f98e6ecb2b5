//! What can become of a call that builds, compiles or links a program: one append-only list that feeds the log, the statistics and the tests.
//!
//! Such a call ends in exactly one of: a *hit*, a *miss*, a *bypass* with a [`Bypass`] reason, or *failed*.

/// Why a build call was handed to the driver without a look-up.
///
/// The numbers are stored in statistics files: append, never reorder, never reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Bypass {
    /// The compiler could read a file that cannot be told or read here (pragmas, inline assembly, what is no plain file).
    ReadsFile = 0,
    /// The source uses `__DATE__`, `__TIME__`, `__TIMESTAMP__` or a name of the file being compiled.
    UsesTimeOrFileName = 1,
    /// The source has a preprocessor directive whose effect is not known here.
    UnknownDirective = 2,
    /// A build option makes the compiler read another file.
    OptionReadsFile = 3,
    /// A build option whose effect is not known here.
    UnknownOption = 4,
    /// The program was not created from source text or an intermediate language, or not through us.
    NotFromSource = 5,
    /// The call's arguments are such that only the driver can judge them.
    UnusualArguments = 6,
    /// Only some of the program's devices are built, and what the others keep is not known.
    SomeDevices = 7,
    /// An earlier build of this program failed.
    AfterFailedBuild = 8,
    /// Kernels of this program are alive, so only the driver knows whether it may be built again.
    LiveKernels = 9,
    /// Another thread is building this program.
    ConcurrentBuild = 10,
    /// The cache directory cannot be used.
    NoCacheDirectory = 11,
    /// The driver's files cannot be identified.
    UnidentifiedDriver = 12,
    /// The device does not answer a query that the key needs.
    UnidentifiedDevice = 13,
    /// The driver's binaries of programs with these options cannot be trusted, by its profile.
    RefusedByProfile = 14,
    /// The program has a release callback, which belongs to the executing program.
    ReleaseCallback = 15,
    /// The source or an option is larger than the cache handles.
    TooLarge = 16,
    /// Drivers of this kind keep something of an earlier build of the same program, by their profile.
    BuiltBefore = 17,
    /// A program that is linked, or whose source is a header, holds something that is known by no key.
    UnknownInput = 18,
    /// The intermediate language is not SPIR-V, or its specialization constants may have been set unseen.
    UnknownIl = 19,
    /// An include directive whose name takes more than the definitions at hand to tell.
    UnresolvedInclude = 20,
    /// The headers are more, larger or deeper than the cache follows.
    TooManyHeaders = 21,
    /// There is no memory for what the cache would do.
    NoMemory = 22,
    /// It is not known which functions answer the driver's calls of the C library and its mathematics.
    UnidentifiedFunction = 23,
    /// An audit found an entry of this driver that is not what the driver compiles.
    AuditDiffered = 24,
    /// Contexts were made in different floating-point states.
    FloatingPointState = 25,
}

impl Bypass {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Bypass; 26] = [
        Bypass::ReadsFile,
        Bypass::UsesTimeOrFileName,
        Bypass::UnknownDirective,
        Bypass::OptionReadsFile,
        Bypass::UnknownOption,
        Bypass::NotFromSource,
        Bypass::UnusualArguments,
        Bypass::SomeDevices,
        Bypass::AfterFailedBuild,
        Bypass::LiveKernels,
        Bypass::ConcurrentBuild,
        Bypass::NoCacheDirectory,
        Bypass::UnidentifiedDriver,
        Bypass::UnidentifiedDevice,
        Bypass::RefusedByProfile,
        Bypass::ReleaseCallback,
        Bypass::TooLarge,
        Bypass::BuiltBefore,
        Bypass::UnknownInput,
        Bypass::UnknownIl,
        Bypass::UnresolvedInclude,
        Bypass::TooManyHeaders,
        Bypass::NoMemory,
        Bypass::UnidentifiedFunction,
        Bypass::AuditDiffered,
        Bypass::FloatingPointState,
    ];

    /// The name in statistics and logs; stable.
    pub fn name(self) -> &'static str {
        match self {
            Bypass::ReadsFile => "reads_file",
            Bypass::UsesTimeOrFileName => "uses_time_or_file_name",
            Bypass::UnknownDirective => "unknown_directive",
            Bypass::OptionReadsFile => "option_reads_file",
            Bypass::UnknownOption => "unknown_option",
            Bypass::NotFromSource => "not_from_source",
            Bypass::UnusualArguments => "unusual_arguments",
            Bypass::SomeDevices => "some_devices",
            Bypass::AfterFailedBuild => "after_failed_build",
            Bypass::LiveKernels => "live_kernels",
            Bypass::ConcurrentBuild => "concurrent_build",
            Bypass::NoCacheDirectory => "no_cache_directory",
            Bypass::UnidentifiedDriver => "unidentified_driver",
            Bypass::UnidentifiedDevice => "unidentified_device",
            Bypass::RefusedByProfile => "refused_by_profile",
            Bypass::ReleaseCallback => "release_callback",
            Bypass::TooLarge => "too_large",
            Bypass::BuiltBefore => "built_before",
            Bypass::UnknownInput => "unknown_input",
            Bypass::UnknownIl => "unknown_il",
            Bypass::UnresolvedInclude => "unresolved_include",
            Bypass::TooManyHeaders => "too_many_headers",
            Bypass::NoMemory => "no_memory",
            Bypass::UnidentifiedFunction => "unidentified_function",
            Bypass::AuditDiffered => "audit_differed",
            Bypass::FloatingPointState => "floating_point_state",
        }
    }

    /// What it means and what to do, for people; docs/misses.md has the same words.
    pub fn help(self) -> &'static str {
        match self {
            Bypass::ReadsFile => {
                "the compiler may read a file that cannot be told or read here: a pragma, inline assembly, or what is no plain file; take it out of the source"
            }
            Bypass::UsesTimeOrFileName => {
                "the source uses `__DATE__`, `__TIME__`, `__FILE__` or the like; remove them"
            }
            Bypass::UnknownDirective => {
                "a preprocessor directive that is not known here; please report it"
            }
            Bypass::OptionReadsFile => {
                "an option, or a variable of the driver's that holds options or directories of headers (`CPATH`), makes the compiler read a file that cannot be told here; put the text into the source"
            }
            Bypass::UnknownOption => {
                "a build option that is not known to be harmless; please report it"
            }
            Bypass::NotFromSource => {
                "made from a binary, often from the program's own cache; then nothing was compiled"
            }
            Bypass::UnusualArguments => {
                "arguments that only the driver can judge, or a NUL inside the source"
            }
            Bypass::SomeDevices => {
                "built for some devices while others keep what is not known; build for all, or make a context for each"
            }
            Bypass::AfterFailedBuild => {
                "an earlier build of this program failed; make a new program"
            }
            Bypass::LiveKernels => {
                "built again while it has kernels; release them first, or make a new program"
            }
            Bypass::ConcurrentBuild => "two threads build the same program at once",
            Bypass::NoCacheDirectory => {
                "the directory cannot be used; `OCLCACHE_LOG=warn` says why"
            }
            Bypass::UnidentifiedDriver => {
                "a driver's file is unreadable, or was replaced while in use; restart the program"
            }
            Bypass::UnidentifiedDevice => {
                "a device does not answer what the key needs; please report it"
            }
            Bypass::RefusedByProfile => {
                "PoCL with `-g`: such binaries do not load well; leave out the option"
            }
            Bypass::ReleaseCallback => "the program has a release callback",
            Bypass::TooLarge => "source or options have more than 64 MiB",
            Bypass::BuiltBefore => {
                "this driver keeps something of an earlier build (Intel CPU, rusticl); make a new program"
            }
            Bypass::UnknownInput => {
                "linked from, or with the header of, a program that was itself bypassed or made from a binary"
            }
            Bypass::UnknownIl => {
                "no SPIR-V, or its specialization constants could be set without our seeing it"
            }
            Bypass::UnresolvedInclude => {
                "an `#include` of a name that only a full preprocessor could tell; write the name out, or define it once"
            }
            Bypass::TooManyHeaders => {
                "the headers are more, larger or deeper than the cache follows; include less"
            }
            Bypass::NoMemory => {
                "the process has too little memory or address space left for the cache; raise its limit"
            }
            Bypass::UnidentifiedFunction => {
                "a library audits the program (`LD_AUDIT`), or code in no known library answers for a function that the driver calls; run without it"
            }
            Bypass::AuditDiffered => {
                "an entry of this driver was compiled again for an audit and differed, so the cache is off for the driver; `oclcache doctor` says what to do"
            }
            Bypass::FloatingPointState => {
                "contexts were made in threads that round or handle denormal numbers differently; make them all in the same state"
            }
        }
    }
}

/// Why what a miss has made can never be stored by `oclcache bake`, on a driver whose binaries are fetched by nobody else.
///
/// The numbers are stored in the journal: append, never reorder, never reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NotBakeable {
    /// Sources are private, so there is no recipe.
    NoSources = 0,
    /// A header is another by now, or cannot be read.
    HeaderChanged = 1,
    /// Several devices, of which some are parts.
    DevicePart = 2,
    /// A device does not tell its name, by which it would be found again.
    UnknownDevice = 3,
    /// A variable or a configuration file is not what it was when the driver was opened.
    EnvironmentChanged = 4,
    /// A variable in the key that the baker does not inherit.
    NotInherited = 5,
    /// A preloaded library, or a layer of a loader, in the key.
    AddedLibrary = 6,
    /// The name of the program is in the key, and is no name of a file.
    ProgramName = 7,
    /// A program that it is made from is not stored.
    InputNotStored = 8,
    /// There is an entry of the key, whose texts name other include directories.
    OtherDirectories = 9,
    /// It can only be compiled in a directory that others can write, and programs or libraries are looked for there.
    UnsafeDirectory = 10,
    /// The driver died when it was asked for the binary.
    DriverDied = 11,
    /// It was tried, and failed each time.
    BakingFailed = 12,
}

impl NotBakeable {
    /// All reasons, in the order of their numbers.
    pub const ALL: [NotBakeable; 13] = [
        NotBakeable::NoSources,
        NotBakeable::HeaderChanged,
        NotBakeable::DevicePart,
        NotBakeable::UnknownDevice,
        NotBakeable::EnvironmentChanged,
        NotBakeable::NotInherited,
        NotBakeable::AddedLibrary,
        NotBakeable::ProgramName,
        NotBakeable::InputNotStored,
        NotBakeable::OtherDirectories,
        NotBakeable::UnsafeDirectory,
        NotBakeable::DriverDied,
        NotBakeable::BakingFailed,
    ];

    /// The name in `explain --json`; stable.
    pub fn name(self) -> &'static str {
        match self {
            NotBakeable::NoSources => "no_sources",
            NotBakeable::HeaderChanged => "header_changed",
            NotBakeable::DevicePart => "device_part",
            NotBakeable::UnknownDevice => "unknown_device",
            NotBakeable::EnvironmentChanged => "environment_changed",
            NotBakeable::NotInherited => "not_inherited",
            NotBakeable::AddedLibrary => "added_library",
            NotBakeable::ProgramName => "program_name",
            NotBakeable::InputNotStored => "input_not_stored",
            NotBakeable::OtherDirectories => "other_directories",
            NotBakeable::UnsafeDirectory => "unsafe_directory",
            NotBakeable::DriverDied => "driver_died",
            NotBakeable::BakingFailed => "baking_failed",
        }
    }

    /// What it means and what to do, for people; docs/misses.md has the same words.
    pub fn help(self) -> &'static str {
        match self {
            NotBakeable::NoSources => {
                "sources are not kept (`store_source`), so the baker has nothing to compile; set it, or set `record` to `inline`"
            }
            NotBakeable::HeaderChanged => "a header was changed or removed right after the build",
            NotBakeable::DevicePart => {
                "built for several devices, of which some are parts of others; make a context for each"
            }
            NotBakeable::UnknownDevice => "a device does not tell its name; please report it",
            NotBakeable::EnvironmentChanged => {
                "the program changed a variable or file of the driver's after the driver was opened; set it before the program starts"
            }
            NotBakeable::NotInherited => {
                "a variable is in the key that the baker does not inherit (`OCL_ICD_*`, `OPENCL_LAYER*`); unset it"
            }
            NotBakeable::AddedLibrary => {
                "a preloaded library or a layer of the loader is in the key, which the baker does not load; unset `LD_PRELOAD` or `OPENCL_LAYERS`"
            }
            NotBakeable::ProgramName => {
                "the driver looks at the name of the program, which is no name of a file"
            }
            NotBakeable::InputNotStored => {
                "it is made from a program that is not stored; `oclcache explain` tells why that is not"
            }
            NotBakeable::OtherDirectories => {
                "there is an entry of it whose build log names other include directories; use the same directories"
            }
            NotBakeable::UnsafeDirectory => {
                "its headers are found from a working directory that others can write, and `PATH` or `LD_LIBRARY_PATH` has relative directories; write them out"
            }
            NotBakeable::DriverDied => "the driver died when it was asked for its binary",
            NotBakeable::BakingFailed => {
                "`oclcache bake` tried it in vain; `oclcache bake --all -v` tries again and says why"
            }
        }
    }
}

/// Why a build that was looked up was compiled all the same.
///
/// The numbers are stored in statistics files: append, never reorder, never reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Missed {
    /// There is no entry of its key: it was never seen, something in the key has changed, or the entry was removed.
    Absent = 0,
    /// There is a recipe, which nobody has baked yet.
    NotBaked = 1,
    /// The entry is damaged.
    Damaged = 2,
    /// The driver did not take the entry, or processes died while it loaded it.
    Refused = 3,
    /// A build from source, for OCLCACHE_VERIFY, was another program.
    Differed = 4,
    /// The texts of the entry name other include directories.
    OtherDirectories = 5,
    /// The system did not give the entry.
    Unreadable = 6,
    /// No driver has loaded the entry before, and another process is trying now whether it can be.
    BeingTried = 7,
    /// The driver has no room for the program of the entry, or may not write the files that loading it takes.
    NoRoom = 8,
    /// OCLCACHE_RECACHE is set.
    Recache = 9,
    /// Another thread began to build the same program meanwhile.
    ConcurrentBuild = 10,
    /// The process is ending.
    Ending = 11,
}

impl Missed {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Missed; 12] = [
        Missed::Absent,
        Missed::NotBaked,
        Missed::Damaged,
        Missed::Refused,
        Missed::Differed,
        Missed::OtherDirectories,
        Missed::Unreadable,
        Missed::BeingTried,
        Missed::NoRoom,
        Missed::Recache,
        Missed::ConcurrentBuild,
        Missed::Ending,
    ];

    /// The name in statistics; stable.
    pub fn name(self) -> &'static str {
        match self {
            Missed::Absent => "absent",
            Missed::NotBaked => "not_baked",
            Missed::Damaged => "damaged",
            Missed::Refused => "refused",
            Missed::Differed => "differed",
            Missed::OtherDirectories => "other_directories",
            Missed::Unreadable => "unreadable",
            Missed::BeingTried => "being_tried",
            Missed::NoRoom => "no_room",
            Missed::Recache => "recache",
            Missed::ConcurrentBuild => "concurrent_build",
            Missed::Ending => "ending",
        }
    }

    /// What it means, for people.
    pub fn help(self) -> &'static str {
        match self {
            Missed::Absent => "new, changed, or removed since; `oclcache explain` tells which",
            Missed::NotBaked => "compiled before, and not baked yet: `oclcache bake` does that",
            Missed::Damaged => "the entry was damaged, and is replaced",
            Missed::Refused => "the driver did not take the entry, which is replaced",
            Missed::Differed => "OCLCACHE_VERIFY found another program in the entry",
            Missed::OtherDirectories => "the entry quotes other include directories",
            Missed::Unreadable => "the entry could not be read; `OCLCACHE_LOG=warn` says why",
            Missed::BeingTried => "another process was the first to load the same entry",
            Missed::NoRoom => "the driver had no room for the program",
            Missed::Recache => "OCLCACHE_RECACHE is set, so nothing is looked up",
            Missed::ConcurrentBuild => "two threads built the same program at once",
            Missed::Ending => "built while the process was ending",
        }
    }
}

/// What had the driver build a program for real that was served.
///
/// The numbers are stored in statistics files: append, never reorder, never reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Query {
    /// CL_PROGRAM_NUM_KERNELS.
    NumKernels = 0,
    /// CL_PROGRAM_KERNEL_NAMES.
    KernelNames = 1,
    /// CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT.
    GlobalCtors = 2,
    /// CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT.
    GlobalDtors = 3,
    /// CL_PROGRAM_BUILD_STATUS.
    BuildStatus = 4,
    /// CL_PROGRAM_BUILD_OPTIONS.
    BuildOptions = 5,
    /// CL_PROGRAM_BUILD_LOG.
    BuildLog = 6,
    /// CL_PROGRAM_BINARY_TYPE.
    BinaryType = 7,
    /// CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE.
    GlobalVariableSize = 8,
    /// CL_KERNEL_ATTRIBUTES.
    KernelAttributes = 9,
    /// clGetKernelArgInfo.
    KernelArgInfo = 10,
    /// clGetProgramBuildInfo of a device that the program was not built for.
    OtherDevice = 11,
    /// clCreateKernel of what is no executable.
    CreateKernel = 12,
    /// The program is built, compiled or linked again.
    Rebuild = 13,
    /// The program is linked with others.
    Link = 14,
    /// clSetProgramSpecializationConstant.
    SpecializationConstant = 15,
    /// A query that has no name here.
    Other = 16,
}

impl Query {
    /// All of them, in the order of their numbers.
    pub const ALL: [Query; 17] = [
        Query::NumKernels,
        Query::KernelNames,
        Query::GlobalCtors,
        Query::GlobalDtors,
        Query::BuildStatus,
        Query::BuildOptions,
        Query::BuildLog,
        Query::BinaryType,
        Query::GlobalVariableSize,
        Query::KernelAttributes,
        Query::KernelArgInfo,
        Query::OtherDevice,
        Query::CreateKernel,
        Query::Rebuild,
        Query::Link,
        Query::SpecializationConstant,
        Query::Other,
    ];

    /// The name in statistics; stable.
    pub fn name(self) -> &'static str {
        match self {
            Query::NumKernels => "program_num_kernels",
            Query::KernelNames => "program_kernel_names",
            Query::GlobalCtors => "program_scope_global_ctors_present",
            Query::GlobalDtors => "program_scope_global_dtors_present",
            Query::BuildStatus => "program_build_status",
            Query::BuildOptions => "program_build_options",
            Query::BuildLog => "program_build_log",
            Query::BinaryType => "program_binary_type",
            Query::GlobalVariableSize => "program_build_global_variable_total_size",
            Query::KernelAttributes => "kernel_attributes",
            Query::KernelArgInfo => "kernel_arg_info",
            Query::OtherDevice => "build_info_of_other_device",
            Query::CreateKernel => "create_kernel",
            Query::Rebuild => "rebuild",
            Query::Link => "link",
            Query::SpecializationConstant => "specialization_constant",
            Query::Other => "other",
        }
    }
}

/// What became of one build call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served from the cache; nothing was compiled.
    Hit,
    /// Compiled by the driver after a look-up that found nothing usable.
    Miss,
    /// Handed to the driver without a look-up.
    Bypassed(Bypass),
    /// The driver's build failed; nothing was stored.
    Failed,
}

impl Outcome {
    /// The name in the log; stable.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Hit => "hit",
            Outcome::Miss => "miss",
            Outcome::Bypassed(_) => "bypassed",
            Outcome::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_keep_their_numbers_and_have_distinct_names() {
        let mut names = std::collections::HashSet::new();
        for (number, reason) in Bypass::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            assert!(
                names.insert(reason.name()),
                "{} stands twice",
                reason.name()
            );
        }
    }

    #[test]
    fn reasons_of_misses_and_queries_keep_their_numbers_and_have_distinct_names() {
        let mut names = std::collections::HashSet::new();
        for (number, reason) in Missed::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            assert!(names.insert(reason.name()), "{}", reason.name());
        }
        names.clear();
        for (number, query) in Query::ALL.into_iter().enumerate() {
            assert_eq!(query as usize, number);
            assert!(names.insert(query.name()), "{}", query.name());
        }
    }

    #[test]
    fn reasons_against_baking_keep_their_numbers_and_have_distinct_names() {
        let mut names = std::collections::HashSet::new();
        for (number, reason) in NotBakeable::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
            assert!(names.insert(reason.name()), "{}", reason.name());
        }
    }

    /// The rows of the table below a heading of docs/misses.md.
    fn rows(heading: &str) -> Vec<[&'static str; 2]> {
        let page = include_str!("../docs/misses.md");
        let (_, section) = page.split_once(heading).expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        section
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix('|'))
            .map(|row| <[&str; 2]>::from(row.split_once("` ").expect("two columns")))
            .map(|columns| columns.map(|column| column.trim_matches(['|', ' '])))
            .collect()
    }

    #[test]
    fn its_page_explains_each_reason_in_these_words() {
        let reasons = Bypass::ALL.map(|reason| [reason.name(), reason.help()]);
        assert_eq!(rows("## Bypass reasons"), reasons);
        let reasons = NotBakeable::ALL.map(|reason| [reason.name(), reason.help()]);
        assert_eq!(rows("## What cannot be baked"), reasons);
    }
}
