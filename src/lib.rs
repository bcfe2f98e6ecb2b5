//! oclcache: a compiler cache for OpenCL, below every application and above every driver.
//!
//! An application that builds, compiles or links a program gets the program that the driver would have given it, only sooner.
//! Nothing else about the application changes. This library is an ICD, installed like a driver: it loads the real drivers, puts a
//! few functions into their own dispatch tables, and serves program binaries that it recorded earlier. It also works beside drivers
//! that the loader has loaded itself, and as a layer of the loader.
//!
//! # One call, end to end
//!
//! ```text
//! application -> ICD loader -> the driver's dispatch table, one slot of which is ours (or the table of a loader's layer)
//!   -> hook      panic guard, views of the arguments
//!   -> cache     the policy
//!   -> shadow    what we know of this program
//!   -> key       would an equal build give an equal program? by which key?
//!   -> store     an entry of this key, verified
//!   hit:    an inner program P' is made of the entry's binaries with clCreateProgramWithBinary and clBuildProgram, and
//!           executes in place of the application's P; anything odd is a miss. (What a link makes is given out itself.)
//!   miss:   the driver builds P as if we were not there, then its binary and all that the API shows are recorded
//!   bypass: an equal key would prove nothing, so the driver builds P and a reason is counted
//! ```
//!
//! # Glossary
//!
//! - **hit, miss, bypass**: each build has one of these outcomes or fails. A hit is served from an entry. A miss is compiled by the
//!   driver and may become an entry. A bypass is compiled and not stored, because no key would be safe; a reason is counted.
//! - **P and P'**: P is the driver's own program, which the application holds. P' is the *inner program* that a hit makes of the
//!   entry's binaries; kernels are made from it.
//! - **shadow**: what this process remembers of a live program or kernel: its source, its outcome, its P'.
//! - **materialize**: to make the driver build P for real after a hit, for a query or call that neither the entry nor P' answers.
//! - **record**: to read binaries and answers from a program that the driver has just built, and to store them as an entry.
//! - **recipe**: the inputs of a build, from which it can be done again without the program that did it first.
//! - **bake**: to compile a recipe in another process, and to store the result. The *baker* is that process.
//! - **audit**: to compile an entry's recipe again in the baker, and to compare the result with the entry.
//! - **tier**: one local storage of entries, in the order of lookup: the user's own cache directory first, then read-only ones of
//!   the system.
//! - **door**: a way by which a loader reaches this library: as a driver, beside drivers, or as a layer.
//!
//! # Invariants
//!
//! - P is always the driver's own program, made from the application's source; the result of a link that hits is the driver's
//!   own program as well. Handles are never wrapped.
//! - Failures come from the driver: no error code is made up, no failing build is stored.
//! - In any doubt, the driver is called as if we were not there. A handle that is not in `shadow` is the driver's alone.
//! - No byte reaches a driver before the checksum of its entry was verified.
//! - No lock of this process is held across a call into a driver or a callback, and no driver is called from a destructor
//!   at exit: what is static is never dropped. The store's lock for one build of many processes is: who waits for that does so
//!   for a bounded time.
//! - No panic leaves a hook. An exception of the application's, or the end of a thread, leaves the callback of a build as it does
//!   without us: no frame of ours with a destructor lies on the stack then.
//! - Nothing here links libOpenCL, and only `oclcache doctor` calls it. Drivers are never unloaded, nor is this library.
//!
//! # Modules
//!
//! Imports point one way: `front` -> `hook` -> `cache` -> `shadow`, `key`, `store`, `driver` -> `cl`. `key` and `store` know
//! no OpenCL objects. `unsafe` is allowed only where a module allows `unsafe_code`.
//!
//! - `front`: the doors by which loaders come, and which drivers there are.
//! - `hook`: the functions that replace slots of drivers' tables.
//! - `cache`: the policy; read this first.
//! - `shadow`: what this process remembers of live programs and kernels.
//! - `key`: from source, headers, options, driver, device and environment to a key.
//! - `store`: the cache directory: entries, the journal of misses, statistics, remembered digests, and the locks between processes.
//! - `driver`: one real driver, its profile, and safe calls into it.
//! - `cl`: the ABI.
//! - `outcome`, `config`, `log`: the outcomes of a build with their reasons, the settings, and messages to people.
//! - `lru`: values in memory that take a bounded number of bytes.
//! - `file_fingerprint`: detects that a file has changed since it was read.
//! - `content_digest`: computes digests of the contents of a driver's files, large ones in parts.
//! - `host`: tells the host from others, and from itself before it was restarted.
//! - `filesystem`: the file system of a directory, and what it guarantees.
//! - `framing`: the magic number, length and checksum of files.
//! - `fallible`: allocates buffers whose size comes from the application or from a file, and reports failure.
//! - `reserve`: the allocator, with a small reserve for the case that the system has no memory left.
//! - `own_threads`: threads of ours, where the program can bear them.
//! - `task_limit`: whether limits on processes and threads leave room for these.
//! - `parallel_files`: reads large files on several threads at once.
//! - `stop`: tells work on other threads that nobody wants it any more.
//! - `priority`: lowers the priority of background work.
//! - `proc_file`: reads files of proc(5) in few system calls.
//! - `quantity`: parses and formats sizes and times.
//! - `remote`: what the library, the command and the helper of the remote level share.
//! - `regular_file`: opens files of unknown kinds without waiting or effects.
//! - `trust`: checks that no untrusted user can write a path.
//! - `fork_safety`: locks that are free in a forked child.
//! - `one_call`: asks the system once in a call who the user is, and the like.
//! - `guarded_file`: files that we keep open, and that an application may close by number.
//! - `descriptors`: whether the process has enough file descriptors left.
//! - `companion`: finds the programs that belong to this library.
//! - `peer_credentials`: who is at the other end of a Unix socket.
//! - `spawn_detached`: starts a process that is not a child of the application.
//! - `standard_error`: writes to the standard error of the application.
//! - `first_process`: the process with which a system or container ends.
//! - `syscall_filters`: which system calls would kill a thread, as far as it can be told.
//! - `fork_generation`: tells a forked child from its parent.
//! - `cli`: the `oclcache` command.

#[global_allocator]
static ALLOCATOR: reserve::WithReserve = reserve::WithReserve;

mod cache;
mod cl;
pub mod cli;
mod companion;
mod config;
mod content_digest;
mod descriptors;
mod driver;
mod fallible;
mod file_fingerprint;
mod filesystem;
mod first_process;
mod fork_generation;
mod fork_safety;
mod framing;
mod front;
mod guarded_file;
mod hook;
mod host;
mod key;
mod linker_lock;
mod log;
mod lru;
mod one_call;
mod outcome;
mod own_threads;
mod parallel_files;
mod peer_credentials;
mod priority;
mod proc_file;
mod quantity;
mod regular_file;
pub mod remote;
mod reserve;
mod shadow;
mod spawn_detached;
mod standard_error;
mod stop;
mod store;
mod syscall_filters;
mod task_limit;
mod trust;
