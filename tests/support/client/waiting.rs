//! What a process may do besides, while it builds what others wait for: it forks, and builds from callbacks.

use std::ffi::c_void;
use std::io::Read;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::Duration;
use std::{fs, ptr, thread};

use crate::cl::{self, Handle};
use crate::forks::{at_once, forked};
use crate::session::Session;

/// As the section `keys` does, so that both want the same.
fn built(session: &Session, source: &str) -> i32 {
    let (program, code) = cl::program(session.context, source);
    match code {
        0 => cl::build(program, Some("")),
        code => code,
    }
}

/// Until somebody says something on standard input, or nobody can any more. Whether somebody did.
fn told() -> bool {
    std::io::stdin().read(&mut [0]).is_ok_and(|read| read > 0)
}

/// A build, and one more each time it is told.
fn turns(session: &Session, source: &str) {
    loop {
        println!("build: code {}", built(session, source));
        if !told() {
            return;
        }
    }
}

/// A build and, when told, another one. Then the first program creates a kernel.
fn kernel_later(session: &Session, source: &str) {
    let (program, _) = cl::program(session.context, source);
    println!("build: code {}", cl::build(program, Some("")));
    told();
    println!("build: code {}", built(session, source));
    println!("kernel: code {}", cl::kernel(program, "f").1);
}

/// A build and, when told, a child that does nothing until the test ends.
fn child(session: &Session, source: &str) {
    thread::scope(|scope| {
        scope.spawn(|| println!("build: code {}", built(session, source)));
        told();
        // SAFETY: the child calls nothing but read and _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            told();
            at_once();
        }
        println!("forked {pid}");
    });
}

/// A build and, when told, a child that builds the same.
fn fork(session: &Session, source: &str) {
    thread::scope(|scope| {
        let build = scope.spawn(|| built(session, source));
        told();
        let same = || Ok(format!("build {}", built(session, source)));
        println!("child: {}", forked(same, at_once));
        println!("build: code {}", build.join().expect("no panic"));
    });
}

struct Inner<'a> {
    session: &'a Session,
    source: &'a str,
    code: Mutex<Option<i32>>,
    called: Condvar,
}

unsafe extern "C" fn notify(_: Handle, data: *mut c_void) {
    // SAFETY: it outlives the call: `nested` waits for it.
    let inner = unsafe { &*data.cast::<Inner>() };
    let code = built(inner.session, inner.source);
    *inner.code.lock().expect("no panic") = Some(code);
    inner.called.notify_all();
}

/// A build whose callback builds another.
fn nested(session: &Session, outer: &str, inner: &str) {
    let inner = Inner {
        session,
        source: inner,
        code: Mutex::new(None),
        called: Condvar::new(),
    };
    let program = session.program(outer);
    let data = ptr::from_ref(&inner).cast_mut().cast();
    let code = cl::build_notify(program, Some(""), Some(notify), data);
    println!("build: code {code}");
    let guard = inner.code.lock().expect("no panic");
    let code = inner.called.wait_while(guard, |code| code.is_none());
    println!("nested: code {:?}", *code.expect("no panic"));
}

extern "C" fn build(data: *mut c_void) -> *mut c_void {
    // SAFETY: it outlives the thread: `canceled` joins it.
    let (session, source) = unsafe { &*data.cast::<(&Session, &str)>() };
    // Nothing is written here: there the thread would be canceled.
    ptr::without_provenance_mut(built(session, source) as usize)
}

/// A build of a thread that is canceled when told.
fn canceled(session: &Session, source: &str) {
    let data = (session, source);
    // SAFETY: an integer.
    let mut thread: libc::pthread_t = unsafe { std::mem::zeroed() };
    let data = ptr::from_ref(&data).cast_mut().cast();
    // SAFETY: the function takes what it gets; the thread is joined.
    unsafe {
        libc::pthread_create(&mut thread, ptr::null(), build, data);
        told();
        libc::pthread_cancel(thread);
        println!("canceled");
        let mut code = ptr::null_mut();
        libc::pthread_join(thread, &mut code);
        println!("build: code {}", code.addr() as i32);
    }
}

/// Whether a thread of this process sleeps: it is neither at work nor waits for a processor.
fn sleeps(thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.expect("a thread of ours");
    let (_, state) = stat.rsplit_once(") ").expect("a name in parentheses");
    state.starts_with('S')
}

/// A build of a thread whose program is released as soon as the build waits.
fn released(session: &Session, source: &str) {
    let (program, _) = cl::program(session.context, source);
    let shared = AtomicPtr::new(program);
    let (begins, begun) = mpsc::channel();
    thread::scope(|scope| {
        let build = scope.spawn(|| {
            // SAFETY: takes nothing.
            begins.send(unsafe { libc::gettid() }).expect("awaited");
            cl::build(shared.load(Ordering::Relaxed), Some(""))
        });
        let thread = begun.recv().expect("a thread");
        // Nothing else in a build sleeps so long.
        let mut times = 0;
        while times < 40 {
            thread::sleep(Duration::from_millis(5));
            times = if sleeps(thread) { times + 1 } else { 0 };
        }
        println!("released: code {}", cl::release_program(program));
        println!("build: code {}", build.join().expect("no panic"));
    });
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let (how, files) = arguments.split_first().ok_or("waiting takes a word")?;
    let read = |file: &String| fs::read_to_string(file).map_err(|error| format!("{file}: {error}"));
    let sources: Vec<String> = files.iter().map(read).collect::<Result<_, _>>()?;
    match (how.as_str(), sources.as_slice()) {
        ("turns", [source]) => turns(session, source),
        ("kernel-later", [source]) => kernel_later(session, source),
        ("child", [source]) => child(session, source),
        ("canceled", [source]) => canceled(session, source),
        ("released", [source]) => released(session, source),
        ("fork", [source]) => fork(session, source),
        ("nested", [outer, inner]) => nested(session, outer, inner),
        _ => return Err(format!("waiting does not know '{how}' of so many files")),
    }
    Ok(())
}
