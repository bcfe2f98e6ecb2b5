//! Children that are forked while other threads build, and that go on with OpenCL themselves.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use opencl_sys::CL_PROGRAM_KERNEL_NAMES;

use crate::cl::{self, Handle};
use crate::queries::{program_info, string};
use crate::session::{Session, Value};

/// A child that hangs ends by a signal.
const CHILD_SECONDS: u32 = 30;

fn source(number: u32) -> String {
    format!(
        "__kernel void f(__global uint *out) {{ out[get_global_id(0)] = {number} + (uint)get_global_id(0); }}\n"
    )
}

/// A program from its source to its kernel.
fn made(session: &Session, number: u32) -> Result<(Handle, Handle), String> {
    let (program, code) = cl::program(session.context, &source(number));
    check("program", code)?;
    check("build", cl::build(program, None))?;
    Ok((program, kernel_of(program)?))
}

fn kernel_of(program: Handle) -> Result<Handle, String> {
    let (kernel, code) = cl::kernel(program, "f");
    check("kernel", code)?;
    Ok(kernel)
}

fn released((program, kernel): (Handle, Handle)) -> Result<(), String> {
    check("release of the kernel", cl::release_kernel(kernel))?;
    check("release of the program", cl::release_program(program))
}

fn check(what: &str, code: i32) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("{what}: {code}")),
    }
}

/// What a child does: asks about a program of its parent's and makes a kernel of it, builds a program that was built before
/// and one that never was. Where kernels run in a child, too, it runs them.
fn child(session: &Session, parents: Handle, number: u32, runs: bool) -> Result<String, String> {
    let names = string(program_info(parents, CL_PROGRAM_KERNEL_NAMES));
    let mut words = Vec::new();
    let queue = match runs {
        true => Some(session.another_queue()),
        false => None,
    };
    let mut run = |kernel| {
        if let Some(queue) = queue {
            let result = session.launch(queue, kernel, &[Value::Out(16)]);
            words.push(result.map_err(|code| format!("run: {code}"))?[1]);
        }
        Ok::<(), String>(())
    };
    let kernel = kernel_of(parents)?;
    run(kernel)?;
    check("release", cl::release_kernel(kernel))?;
    for number in [0, number] {
        let both = made(session, number)?;
        run(both.1)?;
        released(both)?;
    }
    Ok(format!("names {names} words {words:?}"))
}

/// Forks, and tells what has become of the child: what it said, or how it ended. `leave` ends it.
pub fn forked(body: impl FnOnce() -> Result<String, String>, leave: fn() -> !) -> String {
    let mut ends = [0; 2];
    // SAFETY: an array for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0, "a pipe");
    // SAFETY: the child calls OpenCL and what it needs to say so, as an application may that does not know better; that
    // this works is what is tested. glibc lets a child allocate memory.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: no preconditions; SIGALRM ends the process.
        unsafe { libc::alarm(CHILD_SECONDS) };
        let said = body().unwrap_or_else(|error| error);
        // SAFETY: a descriptor of ours and as many bytes as there are.
        unsafe { libc::write(ends[1], said.as_ptr().cast(), said.len()) };
        leave();
    }
    // SAFETY: our descriptors; a child that was forked, which is waited for once; places for its status and its words.
    let (said, status) = unsafe {
        libc::close(ends[1]);
        let mut said = vec![0; 4096];
        let length = libc::read(ends[0], said.as_mut_ptr().cast(), said.len());
        said.truncate(usize::try_from(length).unwrap_or(0));
        libc::close(ends[0]);
        let mut status = 0;
        libc::waitpid(pid, &mut status, 0);
        (said, status)
    };
    let said = String::from_utf8_lossy(&said).into_owned();
    let ended = match (libc::WIFEXITED(status), libc::WTERMSIG(status)) {
        (true, _) => format!("exit {}", libc::WEXITSTATUS(status)),
        (false, libc::SIGALRM) => "hung".to_owned(),
        (false, signal) => format!("signal {signal}"),
    };
    format!("{said} {ended}")
}

fn by_exit() -> ! {
    // SAFETY: ends the process, with handlers.
    unsafe { libc::exit(0) }
}

pub fn at_once() -> ! {
    // SAFETY: ends the process, without handlers.
    unsafe { libc::_exit(0) }
}

/// A child builds a program of its parent's, of which another thread asks something meanwhile that may take long.
fn asked(session: &Session) -> Result<(), String> {
    let (program, kernel) = made(session, 0)?;
    let address = kernel as usize;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut size = 0;
            let none = std::ptr::null_mut();
            cl::call!(clGetKernelArgInfo(
                address as Handle,
                0,
                0,
                0,
                none,
                &mut size
            ));
        });
        thread::sleep(Duration::from_millis(300));
        let build = || Ok(format!("build {}", cl::build(program, None)));
        println!("child: {}", forked(build, at_once));
    });
    released((program, kernel))
}

/// `forks asked`, see there, or
/// `forks THREADS FORKS EACH [run]`: each of the threads builds programs until all children have ended, but at least EACH.
pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    if arguments.first().is_some_and(|word| word == "asked") {
        return asked(session);
    }
    let number = |index: usize| -> Result<u32, String> {
        let text = arguments.get(index).ok_or("forks takes three numbers")?;
        text.parse().map_err(|_| format!("no number: {text}"))
    };
    let (threads, forks, each) = (number(0)?, number(1)?, number(2)?);
    let runs = arguments.get(3).is_some_and(|word| word == "run");
    let parents = made(session, 0)?;
    let (done, more) = (AtomicBool::new(false), AtomicU32::new(0));
    let (built, next) = (AtomicU32::new(0), AtomicU32::new(1000));
    let build = || {
        let mut mine = 0;
        while mine < each || !done.load(Ordering::Relaxed) {
            if mine < each {
                released(made(session, next.fetch_add(1, Ordering::Relaxed))?)?;
                built.fetch_add(1, Ordering::Relaxed);
                mine += 1;
            } else {
                released(made(session, 0)?)?;
                more.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok::<(), String>(())
    };
    let mut outcomes: Vec<(String, u32)> = Vec::new();
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(build)).collect();
        while threads > 0
            && built.load(Ordering::Relaxed) == 0
            && !running.iter().all(|thread| thread.is_finished())
        {
            thread::sleep(Duration::from_millis(1));
        }
        for number in 1..=forks {
            let leave = if number % 2 == 0 { by_exit } else { at_once };
            let said = forked(|| child(session, parents.0, number, runs), leave);
            match outcomes.iter_mut().find(|(known, _)| *known == said) {
                Some((_, count)) => *count += 1,
                None => outcomes.push((said, 1)),
            }
        }
        done.store(true, Ordering::Relaxed);
        for thread in running {
            thread.join().expect("no panic")?;
        }
        Ok::<(), String>(())
    })?;
    for (said, count) in outcomes {
        println!("{count} children: {said}");
    }
    println!("new programs in threads {}", built.load(Ordering::Relaxed));
    println!("old programs in threads {}", more.load(Ordering::Relaxed));
    session.print_run("parent", parents.1);
    released(parents)
}
