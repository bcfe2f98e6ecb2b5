//! One step after another, when the caller says so: builds, forks and ends that a test wants between other things.

use std::io::Write;

use crate::cl;
use crate::session::Session;

/// Builds the programs of these numbers, each of another source, and tells how many went well.
fn build(session: &Session, from: u32, to: u32) -> usize {
    let built = (from..to).filter(|number| {
        let source = format!(
            "__kernel void f(__global uint *out) {{ out[get_global_id(0)] = {number}; }}\n"
        );
        let (program, _) = cl::program(session.context, &source);
        let code = cl::build(program, None);
        cl::release_program(program);
        code == 0
    });
    built.count()
}

/// The next line of standard input. It is read byte by byte: what follows is for the next program, which may be another one.
fn line() -> Option<String> {
    let mut line = Vec::new();
    loop {
        let mut byte = 0u8;
        // SAFETY: a buffer of one byte.
        match unsafe { libc::read(0, (&raw mut byte).cast(), 1) } {
            1 if byte == b'\n' => return String::from_utf8(line).ok(),
            1 => line.push(byte),
            _ => return None,
        }
    }
}

fn say(words: &str) {
    let mut output = std::io::stdout();
    let said = writeln!(output, "{words}").and_then(|()| output.flush());
    said.expect("standard output");
}

/// `turns`: does what each line of standard input says, and answers with one line. At the end of input it returns.
///
/// `build FROM TO` builds programs of these numbers, `fork FROM TO` does it in a child that ends by _exit, `exit` ends by
/// _exit, `kill` by SIGKILL, `execute` goes on in another program of this process, which is this one again, `set NAME VALUE` and
/// `unset NAME` change a variable.
pub fn section(session: &Session) -> Result<(), String> {
    while let Some(line) = line() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words.get(index).and_then(|word| word.parse().ok());
        let range = number(1).zip(number(2));
        match (words[0], range) {
            ("build", Some((from, to))) => say(&format!("built {}", build(session, from, to))),
            ("fork", Some((from, to))) => {
                // SAFETY: the child builds, as an application may that does not know better, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let built = build(session, from, to);
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(i32::from(built != (to - from) as usize)) };
                }
                let mut status = 0;
                // SAFETY: a child of this process, and a place for its status.
                unsafe { libc::waitpid(child, &mut status, 0) };
                say(&format!("child {status}"));
            }
            ("set", _) if words.len() == 3 => {
                // SAFETY: no other thread of this section runs, and drivers' threads are at rest between two builds.
                unsafe { std::env::set_var(words[1], words[2]) };
                say("set");
            }
            ("unset", _) if words.len() == 2 => {
                // SAFETY: as above.
                unsafe { std::env::remove_var(words[1]) };
                say("unset");
            }
            // SAFETY: ends the process.
            ("exit", _) => unsafe { libc::_exit(0) },
            // SAFETY: ends the process.
            ("kill", _) => unsafe {
                libc::raise(libc::SIGKILL);
            },
            ("execute", _) => {
                use std::os::unix::process::CommandExt;
                let error = std::process::Command::new("/proc/self/exe")
                    .arg("turns")
                    .exec();
                return Err(error.to_string());
            }
            _ => return Err(format!("what is '{line}'?")),
        }
    }
    Ok(())
}
