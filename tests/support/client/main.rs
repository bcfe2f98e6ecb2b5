//! An OpenCL application that prints every fact the API shows it.
//!
//! `client [--setenv NAME=VALUE]... SECTION [ARGUMENTS]` runs one section. The same section prints the same text
//! whenever the same driver serves it: no addresses, no times, no names of temporary files. So a cache between the
//! application and the driver is transparent if the text stays the same without it, cold and warm.
//!
//! | section | subject |
//! |---|---|
//! | `facts [OPTIONS]` | all queries of a program of varied kernels |
//! | `run [--source FILE --kernel NAME [--then FILE=NEW]] [--options STRING]` | results of kernels; then again with NEW in FILE |
//! | `linked --kernel NAME --source FILE... [--header NAME=FILE]... [--options STRING] [--rebuild]` | a program of compiled files, which is then built again |
//! | `lifetime` | kernels that outlive programs, reference counts, clones |
//! | `outlived` | programs whose context was released, or that were released before their kernels |
//! | `rebuild` | building a program again, with and without live kernels, after failures |
//! | `alive` | calls that change programs with live kernels |
//! | `refused` | builds that are refused because of live kernels, seen by other threads and in callbacks |
//! | `failing` | builds that fail |
//! | `callback` | builds with a callback |
//! | `compilelink` | compiling, linking, libraries, embedded headers |
//! | `exit HOW [build] [N]` | ends while N threads build, with OpenCL in use to the last |
//! | `plugin PATH [loader]` | opens and closes a library that uses OpenCL in its constructor |
//! | `plugin-behind PATH` | opens a library whose constructor waits for a build that has begun before |
//! | `forks N M K [run]` | M children that are forked one after the other while N threads build at least K programs each |
//! | `compiled OPTIONS...` | a program that is compiled with each of these in turn, and its binary |
//! | `link` | every fact of objects, libraries and link results, fresh ones and from binaries |
//! | `link-failing`, `link-callback` | compiles and links that fail; those with a callback |
//! | `headers` | embedded headers and files |
//! | `changed-file` | programs that are built again while a header file changes |
//! | `il` | programs in SPIR-V, specialization constants |
//! | `devices` | programs for all devices, for some, for one after another |
//! | `contexts` | one program in several contexts |
//! | `parts` | sub-devices |
//! | `released-parts` | sub-devices that are released while programs live that were built for them |
//! | `one-by-one` | a program that is built for one of two devices, and by another thread for the other |
//! | `il-raced [MS]` | a specialization constant that is set while a build runs |
//! | `input-contexts`, `input-parts` | what is linked where it does not belong |
//! | `input-threads HOW`, `input-moved HOW`, `input-nested N` | inputs that change, libraries of libraries |
//! | `unload` | compilers that are unloaded |
//! | `odd` | arguments that make no sense |
//! | `fatal CALL` | one call that ends the process on some driver |
//! | `recycled` | programs made in all ways that take turns at the same addresses |
//! | `hook` | one line with the nanoseconds of calls that the cache hooks, and of one that it does not hook |
//! | `load` | one line with the nanoseconds of the first clGetPlatformIDs, and the memory that is resident then |
//! | `stress N M [race\|LOADER]` | N threads that do all that a program allows with M programs, for ThreadSanitizer; half way LOADER is opened |
//! | `stack KIB HOW` | one program on a thread with a stack of so many KiB, and on standard error what it took of that |
//! | `terminators CASE` | sources whose lengths count the terminator |
//! | `threads N M` | N threads that build M programs each |
//! | `keys --source FILE... [--options STRING] [--times N] [--threads N]` | the same builds again and again |
//! | `moments STEP...` | programs, and what the process does before: `devices`, `context`, `set NAME VALUE`, `unset NAME`, `sh COMMAND`, `build FILE` |
//! | `keys --source FILE... [--options STRING] --apart MS` | each on a thread of its own, which begins so long after the one before |
//! | `waiting HOW FILE...` | what else a process may do while it builds, told when by its standard input |
//! | `closing DIRECTORY` | builds of a process that closes all descriptors after each, and opens a directory with each number |
//! | `few LEFT [own]` | builds of a process, or of a thread with descriptors of its own, that has so many left, and then all |
//! | `no-streams` | builds while the standard streams are closed |
//! | `turns` | what standard input says, line by line: builds, forks and ends |
//! | `behind HOW` | builds, and ends as a program does that watches its children, or has closed all descriptors |
//! | `bake ...` | writes what a process finds that was started behind a program into a file beside it, and waits there |
//! | `many [--keys N] [--seed N [--hot N]] ...` | many programs, in order or at random, and whether each computes what a bare run wrote |
//! | `by-name` | functions of extensions that take a program, looked up with and without a platform |
//! | `ways` | each way to make a program, without odd questions |
//! | `two-programs` | program-scope variables of two programs from one source |
//! | `time [--kernels N] [--helpers N] [--again N] [--binary FILE] [--save FILE] [--write FILE] [--mark PATH]` | one line with the nanoseconds that a program of N kernels takes, over a library of functions, from source or from a binary |
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `CLIENT_LOADER` | `libOpenCL.so.1` | the ICD loader to open; nothing is linked |
//! | `CLIENT_PLATFORM` | empty | part of the platform's name; the first one with a device is taken |
//! | `CLIENT_DEVICES` | 1 | how many devices the context has at most |
//!
//! The exit code is 0 if the section ran to its end, whatever the driver answered.

// Values of queries are in the byte order of the machine.
#![allow(clippy::disallowed_methods)]
// The C ABI of OpenCL is called through looked-up functions, in `cl` mostly.
#![allow(unsafe_code)]
// Printing is what this program is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod again;
mod alive;
mod behind;
mod by_name;
mod callback;
mod cl;
mod closing;
mod compilelink;
mod devices;
mod exits;
mod facts;
mod failing;
mod forks;
mod headers;
mod hook;
mod il;
mod inputs;
mod keys;
mod lifetime;
mod link;
mod link_calls;
mod load;
mod many;
mod moments;
mod odd;
mod outlived;
mod plugins;
mod queries;
mod rebuild;
mod refused;
mod run;
mod session;
mod stack;
mod stress;
mod terminators;
mod threads;
mod time;
mod turns;
mod two_programs;
mod waiting;
mod ways;

use std::process::ExitCode;

use session::Session;

fn main() -> ExitCode {
    match dispatch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("client: {message}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result<(), String> {
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let mut arguments: Vec<String> = arguments.collect();
    while arguments.first().is_some_and(|first| first == "--setenv") {
        let pair = arguments.get(1).and_then(|pair| pair.split_once('='));
        let (name, value) = pair.ok_or("--setenv needs NAME=VALUE")?;
        // SAFETY: no other thread runs yet and no OpenCL library is loaded.
        unsafe { std::env::set_var(name, value) };
        arguments.drain(..2);
    }
    let Some((section, arguments)) = arguments.split_first() else {
        return Err("which section?".to_owned());
    };
    let session = || Session::open();
    match section.as_str() {
        "facts" => facts::section(&session()?, arguments),
        "run" => run::section(&session()?, arguments),
        "linked" => run::linked(&session()?, arguments),
        "lifetime" => lifetime::section(&session()?),
        "outlived" => outlived::section(&session()?),
        "rebuild" => rebuild::section(&session()?),
        "alive" => alive::section(&session()?),
        "refused" => refused::section(&session()?),
        "failing" => failing::section(&session()?),
        "callback" => callback::section(&session()?),
        "behind" => behind::section(arguments),
        "by-name" => by_name::section(&session()?),
        "bake" => behind::found(arguments),
        "exit" => exits::section(arguments),
        "plugin" => plugins::section(arguments),
        "plugin-behind" => plugins::behind(arguments),
        "forks" => forks::section(&session()?, arguments),
        "compilelink" => compilelink::section(&session()?),
        "link" => link::section(&session()?),
        "link-failing" => link_calls::failing(&session()?),
        "link-callback" => link_calls::callbacks(&session()?),
        "headers" => headers::section(&session()?),
        "changed-file" => headers::changed_file(&session()?),
        "il" => il::section(&session()?),
        "devices" => devices::section(&session()?),
        "contexts" => devices::contexts(&session()?),
        "parts" => devices::parts(&session()?),
        "released-parts" => devices::released_parts(&session()?),
        "one-by-one" => devices::one_by_one(&session()?),
        "input-contexts" => inputs::contexts(&session()?),
        "input-parts" => inputs::parts(&session()?),
        "input-threads" => inputs::threads(&session()?, arguments),
        "input-nested" => inputs::nested(&session()?, arguments),
        "il-raced" => il::raced(&session()?, arguments),
        "input-moved" => inputs::moved(&session()?, arguments),
        "compiled" => compilelink::in_turn(&session()?, arguments),
        "unload" => again::unloading(&session()?),
        "odd" => odd::section(&session()?),
        "fatal" => odd::fatal(&session()?, arguments),
        "recycled" => again::recycled(&session()?),
        "hook" => hook::section(&session()?),
        "load" => load::section(),
        "stack" => stack::section(&session()?, arguments),
        "stress" => stress::section(&session()?, arguments),
        "terminators" => terminators::section(&session()?, arguments),
        "threads" => threads::section(&session()?, arguments),
        "turns" => turns::section(&session()?),
        "ways" => ways::section(&session()?),
        "two-programs" => two_programs::section(&session()?),
        "time" => time::section(&session()?, arguments),
        "closing" => closing::section(&session()?, arguments),
        "few" => closing::few(arguments),
        "no-streams" => closing::no_streams(&session()?),
        "waiting" => waiting::section(&session()?, arguments),
        "keys" => keys::section(&session()?, arguments),
        "many" => many::section(&session()?, arguments),
        "moments" => moments::section(arguments),
        _ => Err(format!("unknown section '{section}'")),
    }
}
