//! oclcache: a compiler cache for OpenCL, below every application and above every driver.
//!
//! An application that builds, compiles or links a program gets the program that the driver would have given it, only sooner.
//! Nothing else about the application changes. This library is an ICD, installed like a driver: it loads the real drivers, puts a
//! few functions into their own dispatch tables, and serves program binaries that it recorded earlier. It can stand beside the
//! drivers as well, or be a layer of the loader.
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
//! no OpenCL objects. `unsafe` is allowed in `cl`, `driver`, `hook`, `front`, `fork_safety`, `fork_generation`, `spawn_detached`, `priority`, `reserve`,
//! `store::lock` and `store::mapping` only.
//!
//! - `front`: the doors by which loaders come, and which drivers there are.
//! - `hook`: the functions that stand in drivers' tables.
//! - `cache`: the policy; read this first.
//! - `shadow`: what is remembered of live programs and kernels.
//! - `key`: from source, headers, options, driver, device and environment to a key.
//! - `store`: entries, the journal of what missed, statistics and remembered digests on disk, and the locks of those who share it.
//! - `driver`: one real driver, its profile, and safe calls into it.
//! - `cl`: the ABI.
//! - `outcome`, `config`, `log`: what can become of a build, the settings, and what is said to people.
//! - `file_fingerprint`: whether a file is still the one that was read.
//! - `fallible`: buffers of sizes that somebody else chose.
//! - `reserve`: the allocator, which has a little left where the system has nothing.
//! - `priority`: of work that nobody waits for.
//! - `quantity`: sizes and times as people write them.
//! - `trust`: whether nobody untrusted can write a path.
//! - `fork_safety`: the locks that all of them take, which a fork finds free.
//! - `guarded_file`: files that stay open, which an application may close under us.
//! - `spawn_detached`: a process that is nobody's child.
//! - `fork_generation`: which of the processes that were forked from one another this is.
//! - `cli`: the `oclcache` command.

#[global_allocator]
static ALLOCATOR: reserve::WithReserve = reserve::WithReserve;

mod cache;
mod cl;
pub mod cli;
mod config;
mod driver;
mod fallible;
mod file_fingerprint;
mod fork_generation;
mod fork_safety;
mod front;
mod guarded_file;
mod hook;
mod key;
mod log;
mod outcome;
mod priority;
mod quantity;
mod reserve;
mod shadow;
mod spawn_detached;
mod store;
mod trust;
