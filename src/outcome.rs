//! The outcomes of a call that builds, compiles or links a program, and their reasons: append-only lists for the log, the
//! statistics and the tests.
//!
//! Each such call is exactly one of: a *hit*, a *miss* with a [`Missed`] reason, a *bypass* with a [`Bypass`] reason, or *failed*.

/// Defines an enumeration by one list: variant, number, name, and help for people if it has any. A changed name is followed by the
/// former one. The numbers count from 0 in the order of the list.
macro_rules! numbered {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident: $repr:ident {
            $(
                $(#[$doc:meta])*
                $variant:ident = $number:literal, $name:literal $(formerly $former:literal)? $(, $help:literal)?;
            )+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $type {
            $($(#[$doc])* $variant = $number,)+
        }

        impl $type {
            /// All of them, in the order of their numbers.
            pub const ALL: [$type; [$($number),+].len()] = [$($type::$variant),+];

            /// The name in statistics, logs and JSON; stable.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }

        impl crate::outcome::FormerName for $type {
            fn former_name(self) -> Option<&'static str> {
                match self {
                    $($type::$variant => crate::outcome::numbered!(@former $($former)?),)+
                }
            }

            fn names(self) -> impl Iterator<Item = &'static str> {
                std::iter::once(self.name()).chain(self.former_name())
            }

            fn stored_name(self) -> &'static str {
                self.former_name().unwrap_or(self.name())
            }
        }

        crate::outcome::numbered!(@help $type $($variant $($help)?)+);

        const _: () = {
            let mut number = 0;
            while number < $type::ALL.len() {
                assert!($type::ALL[number] as usize == number, "the list is not in the order of its numbers");
                number += 1;
            }
        };
    };
    (@former) => { None };
    (@former $former:literal) => { Some($former) };
    (@help $type:ident $($variant:ident $help:literal)+) => {
        impl $type {
            /// What it means and what to do, for people; docs/troubleshooting.md has the same words.
            pub fn help(self) -> &'static str {
                match self {
                    $($type::$variant => $help,)+
                }
            }
        }
    };
    (@help $type:ident $($variant:ident)+) => {};
}
pub(crate) use numbered;

/// What a name was before it was changed.
pub trait FormerName: Copy {
    /// The former name, which JSON has beside the new one until the next release.
    fn former_name(self) -> Option<&'static str>;

    /// The name, and the former one: the keys in JSON.
    fn names(self) -> impl Iterator<Item = &'static str>;

    /// The name in files of the cache, which never changes: other versions read them.
    fn stored_name(self) -> &'static str;
}

numbered! {
    /// Why a build call was handed to the driver without a look-up.
    ///
    /// The numbers are stored in statistics files: append, never reorder, never reuse.
    #[non_exhaustive]
    pub enum Bypass: u8 {
        /// The compiler could read a file that is unknown or unreadable here (pragmas, inline assembly, a file that is not
        /// regular), or warns of a link to a header.
        ReadsFile = 0, "reads_file",
            "a pragma, inline assembly or a file that is not regular may make the compiler read what oclcache cannot; remove it from the source; or a header is a link to a name in another case; rename it";
        /// The source uses `__DATE__`, `__TIME__`, `__TIMESTAMP__` or a name of the file being compiled.
        UsesTimeOrFileName = 1, "uses_time_or_file_name",
            "the source uses `__DATE__`, `__TIME__`, `__FILE__` or the like; remove them";
        /// The source has a preprocessor directive whose effect is not known here, or a line that compilers read differently.
        UnknownDirective = 2, "unknown_directive",
            "a preprocessor directive that oclcache does not know, or that compilers read differently; leave it out";
        /// A build option or a variable makes the compiler read another file, or a variable asks for debug information.
        OptionReadsFile = 3, "option_reads_file",
            "an option, or a variable such as `CPATH`, makes the compiler read a file that oclcache cannot identify; put the text into the source; or a variable asks for debug information; unset it";
        /// A build option whose effect is not known here.
        UnknownOption = 4, "unknown_option",
            "a build option that is not known to be harmless; leave it out";
        /// The program was not created from source text or an intermediate language that is understood, or not through us.
        FromBinary = 5, "from_binary" formerly "not_from_source",
            "loaded from the program's own binary cache, so nothing was compiled; or made from an intermediate language that is not SPIR-V, or has inline assembly";
        /// Only the driver can judge the call's arguments.
        UnusualArguments = 6, "unusual_arguments",
            "arguments that only the driver can judge, or a NUL inside the source";
        /// The call builds for some of the program's devices, and what the others have is not known, or the driver keeps it.
        SomeDevices = 7, "some_devices",
            "built for some devices only, or for several that the driver builds apart (Intel CPU); use one context per device";
        /// An earlier build of this program failed.
        AfterFailedBuild = 8, "after_failed_build",
            "an earlier build of this program failed; make a new program";
        /// Kernels of this program are alive, so only the driver knows whether it may be built again.
        LiveKernels = 9, "live_kernels",
            "built again while it has kernels; release them first, or make a new program";
        /// Another thread is building this program.
        ConcurrentBuild = 10, "concurrent_build",
            "two threads build the same program at once";
        /// The cache directory cannot be used.
        NoCacheDirectory = 11, "no_cache_directory",
            "the cache directory cannot be used; `OCLCACHE_LOG=warn` says why";
        /// The driver's files cannot be identified.
        UnidentifiedDriver = 12, "unidentified_driver",
            "a driver's file is unreadable, in a directory that cannot be listed, or was replaced while in use; or the program was \
             renamed or hides how it was started; or `LD_AUDIT`, `LD_PRELOAD` or a script (`OCLCACHE_LOG=warn` says so) changes what \
             the driver's linker loads; restart the program; or the driver's files name too many libraries, about which nothing can be done";
        /// The device does not answer a query that the key needs.
        UnidentifiedDevice = 13, "unidentified_device",
            "a device does not answer a query that the key needs; update its driver";
        /// The driver's binaries of programs with these options cannot be trusted, by its profile.
        RefusedByProfile = 14, "refused_by_profile",
            "PoCL with `-g`: such binaries do not load well; or rusticl with a header file, whose changes its own cache does not notice: leave out the option, or name its directory by `-I`";
        /// The program has a release callback, which belongs to the executing program.
        ReleaseCallback = 15, "release_callback",
            "the program has a release callback";
        /// The source or an option is larger than the cache handles.
        TooLarge = 16, "too_large",
            "a source has more than 64 MiB, or the options have more than 128 KiB";
        /// Drivers of this kind keep something of an earlier build of the same program, by their profile.
        BuiltBefore = 17, "built_before",
            "this driver keeps something of an earlier build (Intel CPU, rusticl); make a new program";
        /// A program that is linked, or given as a header, has a content that no key describes.
        UnknownInput = 18, "unknown_input",
            "linked from, or with the header of, a program that was bypassed or made from a binary";
        /// The intermediate language is not what the driver shows, or its specialization constants may have been set unseen.
        UnknownIl = 19, "unknown_il",
            "the driver does not show its SPIR-V, or its specialization constants could be set without oclcache seeing it";
        /// The name of an include directive cannot be computed from the known definitions.
        UnresolvedInclude = 20, "unresolved_include",
            "an `#include` whose name only a full preprocessor can compute; write the name out, or define it once";
        /// The headers are more, larger or deeper than the cache follows.
        TooManyHeaders = 21, "too_many_headers",
            "the headers are too many, too large or nested too deeply; include less";
        /// There is not enough memory for the cache.
        NoMemory = 22, "no_memory",
            "the process has too little memory or address space left; raise its limit";
        /// It is not known which functions answer the driver's calls of the C library and its mathematics.
        UnidentifiedFunction = 23, "unidentified_function",
            "a library audits the program (`LD_AUDIT`), or code in no known library answers for a function that the driver calls; run without it";
        /// An audit found an entry of this driver that differs from what the driver compiles.
        AuditDiffered = 24, "audit_differed",
            "an audit of an entry found a difference, so the cache is off for this driver; `oclcache doctor` says what to do";
        /// Devices were asked for, or contexts created, in different floating-point states.
        FloatingPointState = 25, "floating_point_state",
            "devices were asked for, or contexts created, in threads that round or handle denormal numbers differently; do it all in the same state";
        /// Variables of the key were others when the driver may have read them, and it may remember those.
        ChangedVariables = 26, "changed_variables",
            "the program or a library in it has changed variables of the driver after it began to use it; `OCLCACHE_LOG=info` names them; set them before it looks for devices";
        /// To read the texts in each way in which a compiler could read them would take too long.
        CostlyText = 27, "costly_text",
            "compilers could read the text in too many ways: unclosed quotes, trigraphs, blanks after a backslash, macros that name headers; remove some of them";
        /// The system's configuration file has switched the cache off since the process started.
        SwitchedOff = 28, "switched_off",
            "an administrator has switched the cache off (`disable` in the system's configuration file), which nothing counts";
        /// Another thread is in a constructor of a library that is being opened, and may wait for this one.
        OpeningLibrary = 29, "opening_library",
            "another thread is opening a library and does nothing, as if its constructor waited for this build; build where no constructor waits";
    }
}

numbered! {
    /// Why the program of a miss is not stored, nor its recipe for `oclcache bake`, or why no baker can store it.
    ///
    /// The numbers are stored in the journal: append, never reorder, never reuse.
    pub enum NotBakeable: u8 {
        /// Sources are private, so there is no recipe.
        NoSources = 0, "no_sources",
            "sources are not kept (`store_source`); set it, or set `record` to `inline`";
        /// A header has changed meanwhile, or cannot be read.
        HeaderChanged = 1, "header_changed",
            "a header was changed or removed right after the build";
        /// There are several devices, and some are sub-devices.
        DevicePart = 2, "device_part",
            "built for several devices, some of which are sub-devices; use one context per device";
        /// A device has no name, by which the baker would find it.
        UnknownDevice = 3, "unknown_device",
            "a device has no name; update its driver";
        /// A variable or a configuration file has changed since the driver was opened.
        EnvironmentChanged = 4, "environment_changed",
            "the program changed a variable or file of the driver after the driver was opened; set it before the program starts";
        /// A variable in the key that the baker does not inherit.
        NotInherited = 5, "not_inherited",
            "a variable is in the key that the baker does not inherit (`OCL_ICD_*`, `OPENCL_LAYER*`); unset it";
        /// A preloaded library, a layer of a loader or the program, in the key: it answers functions of the driver (measured: `sigaction` of
        /// the Erlang VM, for PoCL).
        AddedLibrary = 6, "added_library",
            "a preloaded library, a layer of the loader or the program itself has a function that the driver calls; unset `LD_PRELOAD` or `OPENCL_LAYERS`, or set `record = inline`";
        /// The name of the program is in the key, and cannot be a file name.
        ProgramName = 7, "program_name",
            "the driver uses the name of the program, which cannot be a file name";
        /// A program that it is made from is not stored.
        InputNotStored = 8, "input_not_stored",
            "it is made from a program that is not stored; `oclcache explain` says why";
        /// There is an entry of the key whose texts name other include directories.
        OtherDirectories = 9, "other_directories",
            "its entry has a build log that names other include directories; use the same directories";
        /// It can only be compiled in a directory that others can write, and programs or libraries are looked for there.
        UnsafeDirectory = 10, "unsafe_directory",
            "its headers are found from a working directory that others can write, and `PATH` or `LD_LIBRARY_PATH` has relative directories; make them absolute";
        /// The driver died when it was asked for the binary.
        DriverDied = 11, "driver_died",
            "the driver died when it was asked for its binary";
        /// It was tried, and failed each time.
        BakingFailed = 12, "baking_failed",
            "`oclcache bake` failed; `oclcache bake --all -v` tries again and says why";
        /// A floating-point state that the baker does not set.
        FloatingPointState = 13, "floating_point_state",
            "floating-point exceptions trap, or numbers were rounded in another way when the driver was opened";
        /// A variable of the key has another value where `oclcache explain` runs. Never stored in the journal.
        OtherEnvironment = 14, "other_environment",
            "`oclcache bake` skips it here, since a variable in its key has another value; run it with the same value";
        /// The driver has another library in the program than in the baker.
        OtherLibrary = 15, "other_library",
            "a library of the driver was another one in the program than in the baker: it was updated since, or the program had loaded its own, as in an environment of Python's; set `record` to `inline`";
        /// Neither an entry nor a recipe has room.
        NoRoom = 16, "no_room",
            "there is no room: the disk is full, less than `min_free` would be free, or `max_size` is too small; make room, or change the limit";
    }
}

numbered! {
    /// Why a build was compiled although it was looked up.
    ///
    /// The numbers are stored in statistics files: append, never reorder, never reuse.
    pub enum Missed: u8 {
        /// There is no entry of its key: it was never seen, something in the key has changed, or the entry was removed.
        New = 0, "new" formerly "absent",
            "new, changed, or removed since; `oclcache explain` says which";
        /// There is a recipe, which nobody has baked yet.
        NotBaked = 1, "not_baked",
            "seen before, not stored yet; `oclcache bake` stores it";
        /// The entry is damaged.
        Damaged = 2, "damaged",
            "the entry was damaged, and is replaced";
        /// The driver did not take the entry, or processes died while it loaded it.
        Refused = 3, "refused",
            "the driver refused the entry, which is replaced";
        /// A build from source, for OCLCACHE_VERIFY, was another program.
        Differed = 4, "differed",
            "OCLCACHE_VERIFY found another program in the entry";
        /// The texts of the entry name other include directories.
        OtherDirectories = 5, "other_directories",
            "the entry quotes other include directories";
        /// The system did not give the entry.
        Unreadable = 6, "unreadable",
            "the entry could not be read; `OCLCACHE_LOG=warn` says why";
        /// No driver has loaded the entry before, and another process is trying now whether it can be.
        BeingTried = 7, "being_tried",
            "another process was the first to load the same entry";
        /// The driver has no room for the program of the entry, or may not write the files that loading it takes.
        NoRoom = 8, "no_room",
            "the driver had no room for the program";
        /// OCLCACHE_RECACHE is set.
        Recache = 9, "recache",
            "OCLCACHE_RECACHE is set, so nothing is looked up";
        /// Another thread began to build the same program meanwhile.
        ConcurrentBuild = 10, "concurrent_build",
            "two threads built the same program at once";
        /// The process is ending.
        Ending = 11, "ending",
            "built while the process was ending";
    }
}

numbered! {
    /// The query or call that forced a real build of a program that was served.
    ///
    /// The numbers are stored in statistics files: append, never reorder, never reuse.
    pub enum Query: u8 {
        /// CL_PROGRAM_NUM_KERNELS.
        NumKernels = 0, "program_num_kernels";
        /// CL_PROGRAM_KERNEL_NAMES.
        KernelNames = 1, "program_kernel_names";
        /// CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT.
        GlobalCtors = 2, "program_scope_global_ctors_present";
        /// CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT.
        GlobalDtors = 3, "program_scope_global_dtors_present";
        /// CL_PROGRAM_BUILD_STATUS.
        BuildStatus = 4, "program_build_status";
        /// CL_PROGRAM_BUILD_OPTIONS.
        BuildOptions = 5, "program_build_options";
        /// CL_PROGRAM_BUILD_LOG.
        BuildLog = 6, "program_build_log";
        /// CL_PROGRAM_BINARY_TYPE.
        BinaryType = 7, "program_binary_type";
        /// CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE.
        GlobalVariableSize = 8, "program_build_global_variable_total_size";
        /// CL_KERNEL_ATTRIBUTES.
        KernelAttributes = 9, "kernel_attributes";
        /// clGetKernelArgInfo.
        KernelArgInfo = 10, "kernel_arg_info";
        /// clGetProgramBuildInfo of a device that the program was not built for.
        OtherDevice = 11, "build_info_of_other_device";
        /// clCreateKernel of a program that is not an executable.
        CreateKernel = 12, "create_kernel";
        /// The program is built, compiled or linked again.
        Rebuild = 13, "rebuild";
        /// The program is linked with others.
        Link = 14, "link";
        /// clSetProgramSpecializationConstant.
        SpecializationConstant = 15, "specialization_constant";
        /// A query that has no name here.
        Other = 16, "other";
    }
}

/// The outcome of one build call.
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
    fn each_name_is_used_once_in_its_list() {
        fn check(names: impl IntoIterator<Item = (&'static str, Option<&'static str>)>) {
            let mut seen = std::collections::HashSet::new();
            for name in names
                .into_iter()
                .flat_map(|(now, then)| [Some(now), then])
                .flatten()
            {
                assert!(seen.insert(name), "{name}");
            }
        }
        check(Bypass::ALL.map(|one| (one.name(), one.former_name())));
        check(NotBakeable::ALL.map(|one| (one.name(), one.former_name())));
        check(Missed::ALL.map(|one| (one.name(), one.former_name())));
        check(Query::ALL.map(|one| (one.name(), one.former_name())));
    }

    /// The reasons listed below a heading of docs/troubleshooting.md, with their explanations.
    fn listed(heading: &str) -> Vec<[&'static str; 2]> {
        let page = include_str!("../docs/troubleshooting.md");
        let (_, section) = page.split_once(heading).expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        section
            .lines()
            .filter_map(|line| line.strip_prefix("- `"))
            .map(|item| <[&str; 2]>::from(item.split_once("`: ").expect("a reason and a text")))
            .collect()
    }

    #[test]
    fn its_page_explains_each_reason_in_these_words() {
        let reasons = Bypass::ALL.map(|reason| [reason.name(), reason.help()]);
        assert_eq!(listed("## Bypass reasons"), reasons);
        let reasons = NotBakeable::ALL.map(|reason| [reason.name(), reason.help()]);
        assert_eq!(listed("## What cannot be baked"), reasons);
    }
}
