//! What a program notices of a process that is started behind it, and what that process finds.

use std::ffi::c_int;
use std::fmt::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{env, fs, ptr, thread};

use crate::cl;
use crate::session::Session;

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 8; }\n";

/// More than a process of these tests has.
const MAX_DESCRIPTORS: i32 = 64;

/// Who started it has forgotten it.
const FORGOTTEN: Duration = Duration::from_secs(60);

fn say(words: &[u8]) {
    // SAFETY: as many bytes as there are.
    unsafe { libc::write(1, words.as_ptr().cast(), words.len()) };
}

extern "C" fn child_changed(_: c_int) {
    say(b"SIGCHLD\n");
}

/// Tells of each child that there is.
fn wait(flags: c_int) {
    // SAFETY: nobody asks for the status.
    while unsafe { libc::waitpid(-1, ptr::null_mut(), flags) } > 0 {
        say(b"a child\n");
    }
}

extern "C" fn wait_for_all() {
    wait(0);
}

/// From now on the process is killed where this thread makes one of these calls, as browsers have it in theirs that run foreign code.
fn forbid(calls: &[libc::c_long]) {
    let instruction = |code: u16, k: u32, jf| libc::sock_filter { code, jt: 0, jf, k };
    let mut filter = vec![instruction(0x20, 0, 0)]; // load the call's number
    for call in calls {
        filter.push(instruction(0x15, *call as u32, 1)); // is it this one?
        filter.push(instruction(0x06, libc::SECCOMP_RET_KILL_PROCESS, 0));
    }
    filter.push(instruction(0x06, libc::SECCOMP_RET_ALLOW, 0));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: a program of that many instructions (seccomp(2)).
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &program), 0);
    }
}

/// What [`forbid`] is for where the program needs nothing more.
const STARTS_AND_FILES: [libc::c_long; 5] = [
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_openat,
    libc::SYS_pwrite64,
    libc::SYS_prctl,
];

/// `behind HOW`: builds and returns. HOW: `watching` (a handler of SIGCHLD, a thread that waits for any child, and a handler of
/// atexit that does, too), `ignoring` (SIGCHLD), `closed` (all descriptors), `filtered` (who clones is killed), `thread-filtered` (the same
/// for the thread that builds), `filtered-later` (who clones, opens, writes at a place or asks about its process, once it is built), `creating` (the same, and
/// makes a kernel then), `created` and `released` (makes a kernel and says so, and releases the program in the second case), `replaced OLD NEW` (a file by another one, once it is built), `jailed DIRECTORY` (as its root, likewise),
/// `adopting` (what its children leave behind, likewise), `forking` (a child in a process namespace that was asked for before the build), `unread` (standard error is a
/// pipe that nobody reads), `cut FILE` (it is a file that may not grow).
pub fn section(arguments: &[String]) -> Result<(), String> {
    let how = arguments
        .first()
        .ok_or("behind needs to know how")?
        .as_str();
    // SAFETY: functions of this program that only write and wait.
    unsafe {
        if how == "watching" {
            libc::signal(libc::SIGCHLD, child_changed as *const () as usize);
            assert_eq!(libc::atexit(wait_for_all), 0);
        } else if how == "ignoring" {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        }
    }
    before(how, &arguments[1..])?;
    let session = Session::open()?;
    let program = session.program(SOURCE);
    if how == "filtered" {
        forbid(&[libc::SYS_clone]);
    }
    let code = match how {
        "thread-filtered" => {
            let program = program as usize;
            let build = move || {
                forbid(&[libc::SYS_clone, libc::SYS_clone3]);
                cl::build(program as cl::Handle, None)
            };
            thread::spawn(build).join().map_err(|_| "it died")?
        }
        _ => cl::build(program, None),
    };
    println!("build: code {code}");
    if how == "watching" {
        thread::spawn(|| {
            loop {
                wait(libc::WNOHANG);
            }
        });
    } else if how == "closed" {
        for descriptor in 0..MAX_DESCRIPTORS {
            // SAFETY: nothing uses them any more.
            unsafe { libc::close(descriptor) };
        }
    } else {
        after(how, &arguments[1..], program)?;
    }
    Ok(())
}

/// What the program does before it uses OpenCL.
fn before(how: &str, arguments: &[String]) -> Result<(), String> {
    let words = |error: std::io::Error| error.to_string();
    let to_error = |file: OwnedFd| {
        // SAFETY: standard error is replaced by an open file, and the usual things happen again for what a write to it raises.
        unsafe {
            assert_eq!(libc::dup2(file.as_raw_fd(), 2), 2);
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        }
    };
    match (how, arguments) {
        // SAFETY: no preconditions.
        ("forking", []) => assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0),
        ("unread", []) => {
            let (_, unread) = std::io::pipe().map_err(words)?;
            to_error(unread.into());
        }
        ("cut", [file]) => {
            const MAX_BYTES: u64 = 1 << 20;
            let full = fs::File::options()
                .append(true)
                .create(true)
                .open(file)
                .map_err(words)?;
            full.set_len(MAX_BYTES).map_err(words)?;
            to_error(full.into());
            let limit = libc::rlimit {
                rlim_cur: MAX_BYTES,
                rlim_max: MAX_BYTES,
            };
            // SAFETY: it reads what is lent to it.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        }
        _ => {}
    }
    Ok(())
}

/// What the program does between its build and its end.
fn after(how: &str, arguments: &[String], program: cl::Handle) -> Result<(), String> {
    let words = |error: std::io::Error| error.to_string();
    match (how, arguments) {
        ("filtered-later", []) => forbid(&STARTS_AND_FILES),
        ("creating", []) => {
            forbid(&STARTS_AND_FILES);
            let (kernel, code) = cl::kernel(program, "f");
            println!("kernel: code {code} {}", cl::release_kernel(kernel));
        }
        ("created" | "released", []) => {
            let (_, code) = cl::kernel(program, "f");
            say(format!("kernel: code {code}\n").as_bytes());
            if how == "released" {
                cl::release_program(program);
            }
            say(b"the end\n");
        }
        ("replaced", [old, new]) => fs::rename(new, old).map_err(words)?,
        ("jailed", [directory]) => std::os::unix::fs::chroot(directory).map_err(words)?,
        ("adopting", []) => {
            // SAFETY: of this process.
            let code = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
            assert_eq!(code, 0);
        }
        ("forking", []) => {
            // SAFETY: the child ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: no preconditions.
                unsafe { libc::_exit(0) };
            }
            println!("a child: {}", child > 0);
        }
        _ => {}
    }
    Ok(())
}

/// `bake ...`: writes what it finds into the file `found` beside this program, and ends once there is a file `go`.
pub fn found(arguments: &[String]) -> Result<(), String> {
    let words = |error: std::io::Error| error.to_string();
    let mut found = String::new();
    // First: what is opened here is none of what it finds.
    for entry in fs::read_dir("/proc/self/fd").map_err(words)?.flatten() {
        let target = fs::read_link(entry.path()).map_err(words)?;
        // The directory that is being listed.
        if target
            .parent()
            .is_some_and(|parent| !parent.ends_with("proc") && !target.ends_with("fd"))
        {
            let number = entry.file_name();
            let _ = writeln!(
                found,
                "descriptor {} {}",
                number.display(),
                target.display()
            );
        }
    }
    let _ = writeln!(found, "arguments {}", arguments.join(" "));
    let directory = env::current_dir().map_err(words)?;
    let _ = writeln!(found, "directory {}", directory.display());
    let status = fs::read_to_string("/proc/self/status").map_err(words)?;
    for line in status.lines().filter(|line| {
        ["SigBlk", "SigIgn", "Umask"]
            .iter()
            .any(|name| line.starts_with(name))
    }) {
        let _ = writeln!(found, "{line}");
    }
    // SAFETY: no preconditions.
    let (own, session) = unsafe { (libc::getpid(), libc::getsid(0)) };
    let _ = writeln!(found, "session {session}, leads it {}", own == session);
    for (name, value) in env::vars_os() {
        let _ = writeln!(found, "variable {}={}", name.display(), value.display());
    }
    let program = env::current_exe().map_err(words)?;
    let unfinished = program.with_file_name("unfinished");
    // Another user may not write there.
    let written = fs::write(&unfinished, found);
    let _ = written.and_then(|()| fs::rename(&unfinished, program.with_file_name("found")));
    let started = Instant::now();
    while !program.with_file_name("go").exists() && started.elapsed() < FORGOTTEN {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
