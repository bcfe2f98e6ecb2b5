//! Starts a process that is not a child of the application. It works at any time, also from a destructor at the end of the process.
//!
//! The new process inherits no descriptor, no terminal, no working directory, no ignored or blocked signals, and no umask that lets
//! everybody write. It keeps what somebody has set around the application: processors, control groups, resource limits and the priority,
//! which it lowers itself: this process waits until it executes its program.
//!
//! The application does not notice it. With fork or posix_spawn it would: an application that watches its children has a handler of
//! SIGCHLD, which would run when the process ends, and a wait for any child would return one that the application does not know. So
//! the first step starts a child that sends no signal at its end. waitpid(2) does not report it without `__WCLONE` or `__WALL`. It
//! starts the program and ends before [`Start::now`] returns; the kernel gives the program another parent. Who traces the application with
//! its children (`strace -f`) does not trace it, since a tracer returns only after the last process that it traces.
//!
//! Both steps share the memory of the process, which is suspended meanwhile, as with vfork: nothing is copied, allocated or locked,
//! and no handler of pthread_atfork runs. System calls bypass the C library where that would check for a canceled thread or take a
//! lock (sigaction, glibc 2.41). If the process may have no more children, or a filter forbids it, nothing happens but that
//! [`Start::now`] says so.

#![allow(unsafe_code)] // clone(2), and system calls by their number

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_long, c_void};
use std::fmt;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::{io, ptr};

use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::process::child_subreaper;

use crate::file_fingerprint::FileId;

/// How many arguments can be added to a program before it is started.
const MAX_ADDED: usize = 32;

/// The stack of each of the two steps, in bytes.
const STACK: usize = 32 << 10;

/// The size of a set of signals in the kernel, in bytes.
const SIGNAL_SET: usize = size_of::<u64>();
const SIGNALS: c_int = 64;

/// The permission that a umask takes from everybody.
const WRITE_BY_OTHERS: c_long = 0o002;

const NO_PROCESS: &str = "no process can be started";
const NOT_OPENED: &str = "the program to start cannot be opened";
const REPLACED: &str = "another file has replaced the program to start";
const NOT_EXECUTED: &str = "the program to start cannot be executed";

/// Without close_range(2) (before Linux 5.9), so many descriptors are closed one by one.
const MAX_DESCRIPTORS: u64 = 1 << 16;

/// A program that was checked, and where it was.
pub struct Program {
    /// Where it is, without links.
    pub path: PathBuf,
    /// Only this file is started.
    pub file: FileId,
    /// From before the check. None: the system does not tell.
    pub surroundings: Option<Surroundings>,
}

/// What decides which files the paths of a program, its dynamic linker and its libraries lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Surroundings {
    root: FileId,
    mounts: FileId,
}

impl Program {
    /// The program at this path, which the caller trusts.
    ///
    /// # Errors
    /// There is none, as a message.
    pub fn at(path: &Path) -> Result<Program, String> {
        let surroundings = Surroundings::now();
        let file = path.metadata().map_err(|error| error.to_string())?;
        Ok(Program {
            path: path.to_owned(),
            file: (file.dev(), file.ino()),
            surroundings,
        })
    }
}

impl Surroundings {
    /// Those of this thread.
    pub fn now() -> Option<Surroundings> {
        Some(Surroundings {
            root: file_id(c"/")?,
            mounts: file_id(c"/proc/thread-self/ns/mnt")?,
        })
    }
}

fn file_id(path: &CStr) -> Option<FileId> {
    let stat = rustix::fs::stat(path).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Why a program that was checked in those surroundings is not started here.
fn refusal(checked: Option<Surroundings>) -> Option<&'static str> {
    let (Some(now), Some(checked)) = (Surroundings::now(), checked) else {
        return Some("`/proc` does not tell the root directory and the mounts of the program");
    };
    if now != checked {
        return Some("the program has changed its root directory or its mounts");
    }
    // A child that begins another process namespace ends it: no process can be started there afterwards.
    let [own, of_children] = [
        c"/proc/thread-self/ns/pid",
        c"/proc/thread-self/ns/pid_for_children",
    ];
    match (file_id(own), file_id(of_children)) {
        (Some(own), Some(of_children)) if own == of_children => None,
        (Some(_), Some(_)) => Some("the program has asked for a new process namespace"),
        // Linux before 4.12.
        _ => Some("`/proc` does not tell in which process namespace a child would be"),
    }
}

/// A program that is ready to be started, once.
pub struct Start {
    path: CString,
    file: FileId,
    surroundings: Option<Surroundings>,
    arguments: List,
    environment: List,
    stacks: [Stack; 2],
    /// Why a step has failed.
    failed: Cell<Option<StartError>>,
    done: AtomicBool,
}

/// Why a program is not started. It is made where nothing may be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// Nothing is started in such a process.
    Refused(&'static str),
    /// A step that the system refuses.
    System(&'static str, Errno),
}

impl fmt::Display for StartError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Refused(why) => to.write_str(why),
            StartError::System(step, error) => write!(to, "{step}: {}", io::Error::from(*error)),
        }
    }
}

impl StartError {
    /// A step, of which a system call has just failed.
    fn last(step: &'static str) -> StartError {
        let error = Errno::from_io_error(&io::Error::last_os_error());
        StartError::System(step, error.unwrap_or(Errno::IO))
    }
}

/// Texts as execve takes them.
struct List {
    texts: Vec<CString>,
    /// A pointer to each text, then NULLs, of which the last one stays.
    pointers: Vec<AtomicPtr<c_char>>,
}

#[repr(align(64))]
struct Stack(Box<UnsafeCell<[u8; STACK]>>);

// SAFETY: the texts are not changed, and the stacks and `failed` are used by one thread, the one that has set `done`, and by the children
// for which it waits.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

impl Start {
    /// A program with these arguments, the first of which is its name, and this environment. None if one of them has a NUL.
    pub fn new(
        program: Program,
        arguments: Vec<OsString>,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Option<Start> {
        let variable = |(mut name, value): (OsString, OsString)| {
            name.push("=");
            name.push(value);
            name
        };
        Some(Start {
            path: CString::new(program.path.into_os_string().into_vec()).ok()?,
            file: program.file,
            surroundings: program.surroundings,
            arguments: List::new(arguments.into_iter(), MAX_ADDED)?,
            environment: List::new(environment.map(variable), 0)?,
            stacks: [Stack::new(), Stack::new()],
            failed: Cell::new(None),
            done: AtomicBool::new(false),
        })
    }

    /// Adds an argument, unless there are too many. The argument is never freed. Takes no lock: if another thread starts the
    /// program meanwhile, the program may have the argument or not.
    pub fn add(&self, argument: CString) {
        let argument = argument.into_raw();
        let list = &self.arguments;
        let spare = list.pointers.len() - 1;
        let is_added = list.pointers[list.texts.len()..spare].iter().any(|place| {
            let free = ptr::null_mut();
            let order = (Ordering::Release, Ordering::Relaxed);
            place
                .compare_exchange(free, argument, order.0, order.1)
                .is_ok()
        });
        if !is_added {
            // SAFETY: it was made of a `CString` above, and nobody else has it.
            drop(unsafe { CString::from_raw(argument) });
        }
    }

    /// Starts it. Only the first call has an effect.
    ///
    /// # Errors
    /// Why it is not started here.
    pub fn now(&self) -> Result<(), StartError> {
        if self.done.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(why) = refusal(self.surroundings) {
            return Err(StartError::Refused(why));
        }
        if child_subreaper().is_ok_and(|reaper| reaper.is_some()) {
            let why = "the program adopts the children of its children";
            return Err(StartError::Refused(why));
        }
        let (all, mut before) = (u64::MAX, 0_u64);
        // No handler of the application's may run in a child that shares its memory.
        // SAFETY: of sets of the kernel's size; `before` is put back below.
        let blocked = unsafe { mask(&all, &mut before) };
        if !blocked {
            return Err(StartError::last("the signals cannot be blocked"));
        }
        // SAFETY: the stack is used by nobody else, since `done` was not set, and this thread is suspended until the child has
        // ended, so all that it borrows lives. The child calls only what is said above.
        unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_UNTRACED;
            let child = libc::clone(first, self.stacks[0].top(), flags, self.data());
            if child > 0 {
                let nowhere = ptr::null_mut::<c_void>();
                libc::syscall(libc::SYS_wait4, child, nowhere, libc::__WCLONE, nowhere);
            } else {
                self.failed.set(Some(StartError::last(NO_PROCESS)));
            }
            mask(&before, ptr::null_mut());
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Notes for [`Start::now`] why a child ends.
    fn fail(&self, why: StartError) -> c_int {
        self.failed.set(Some(why));
        127
    }

    fn data(&self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }
}

impl List {
    /// These texts, with room for so many more.
    fn new(texts: impl Iterator<Item = OsString>, spare: usize) -> Option<List> {
        let texts: Result<Vec<CString>, _> =
            texts.map(|text| CString::new(text.into_vec())).collect();
        let texts = texts.ok()?;
        // The system only reads what they point to.
        let pointers = texts.iter().map(|text| text.as_ptr().cast_mut());
        let free = std::iter::repeat_n(ptr::null_mut(), spare + 1);
        Some(List {
            pointers: pointers.chain(free).map(AtomicPtr::new).collect(),
            texts,
        })
    }

    /// The array for the system: an `AtomicPtr` is a pointer in memory.
    fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr().cast()
    }
}

impl Stack {
    fn new() -> Stack {
        Stack(Box::new(UnsafeCell::new([0; STACK])))
    }

    /// Stacks grow downwards wherever this library is built. clone wants the end aligned to 16 bytes on some.
    fn top(&self) -> *mut c_void {
        let end = self.0.get() as usize + STACK;
        (end & !63) as *mut c_void
    }
}

/// Sets the blocked signals of the thread, including those that the C library reserves.
///
/// # Safety
/// `before` is NULL or valid for a write.
unsafe fn mask(set: &u64, before: *mut u64) -> bool {
    let set = ptr::from_ref(set);
    // SAFETY: of sets of the size that is told.
    let done = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            set,
            before,
            SIGNAL_SET,
        )
    };
    done == 0
}

/// The first child, which sends no signal: gives up what it inherited from the process, and starts the program as its child.
extern "C" fn first(data: *mut c_void) -> c_int {
    // SAFETY: `Start::now` passed itself, and waits. The rest is system calls with memory of their own or none; they change
    // descriptors, working directory, session and signals of this process, which it shares with nobody.
    unsafe {
        let start = &*data.cast::<Start>();
        libc::syscall(libc::SYS_setsid);
        libc::syscall(libc::SYS_chdir, c"/".as_ptr());
        let before = libc::syscall(libc::SYS_umask, 0o777);
        libc::syscall(libc::SYS_umask, before | WRITE_BY_OTHERS);
        if !leave_descriptors() {
            return start.fail(StartError::last("`/dev/null` cannot be opened"));
        }
        // The zeros are the default of any kernel's structure. What is not ignored a program begins with anyway.
        let default = [0_u64; 8];
        for signal in 1..=SIGNALS {
            let before = ptr::null_mut::<c_void>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                before,
                SIGNAL_SET,
            );
        }
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        if libc::clone(second, start.stacks[1].top(), flags, data) < 0 {
            return start.fail(StartError::last(NO_PROCESS));
        }
    }
    0
}

/// The process of the program. It leads no session, so that no terminal that it opens becomes its controlling terminal.
///
/// What is executed is the checked file and not its path, to which another one may have been moved or mounted since.
extern "C" fn second(data: *mut c_void) -> c_int {
    // SAFETY: as in `first`, which waits; the lists end with NULL.
    unsafe {
        let start = &*data.cast::<Start>();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let program = match rustix::fs::open(&*start.path, flags, Mode::empty()) {
            Ok(program) => program,
            Err(error) => return start.fail(StartError::System(NOT_OPENED, error)),
        };
        let stat = fstat(&program);
        // The end of the process closes it: the function of the C library might check for a canceled thread.
        let program = program.into_raw_fd();
        if !stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == start.file) {
            return start.fail(StartError::Refused(REPLACED));
        }
        mask(&0, ptr::null_mut());
        let (arguments, environment) = (start.arguments.as_ptr(), start.environment.as_ptr());
        libc::syscall(
            libc::SYS_execveat,
            program,
            c"".as_ptr(),
            arguments,
            environment,
            libc::AT_EMPTY_PATH,
        );
        // A script, as some distributions wrap programs in, finds the program by its own path: an interpreter opens it once more. Who could
        // replace it since the check is trusted.
        libc::syscall(
            libc::SYS_execve,
            start.path.as_ptr(),
            arguments,
            environment,
        );
        start.fail(StartError::last(NOT_EXECUTED))
    }
}

/// Closes everything, and opens /dev/null as the standard streams, which may have been closed before.
///
/// # Safety
/// Nobody else uses the descriptors of this process.
unsafe fn leave_descriptors() -> bool {
    // SAFETY: see above; a path that ends with NUL, and a place for the limits.
    unsafe {
        let path = c"/dev/null".as_ptr();
        let null = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDWR);
        if null < 0 {
            return false;
        }
        for stream in 0..3 as c_long {
            if stream != null && libc::syscall(libc::SYS_dup3, null, stream, 0) < 0 {
                return false;
            }
        }
        if libc::syscall(libc::SYS_close_range, 3, c_int::MAX, 0) == 0 {
            return true;
        }
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        for descriptor in 3..limit.rlim_cur.min(MAX_DESCRIPTORS) {
            libc::syscall(libc::SYS_close, descriptor);
        }
    }
    true
}
