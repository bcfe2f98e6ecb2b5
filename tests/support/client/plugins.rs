//! Libraries that use OpenCL themselves, from their constructors, and go again.

use std::ffi::c_void;
use std::os::fd::IntoRawFd;
use std::time::Duration;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::session::Session;

/// `plugin-behind PATH`: opens the library while a thread builds, for which its constructor waits.
pub fn behind(arguments: &[String]) -> Result<(), String> {
    let path = arguments.first().ok_or("which library?")?;
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let reader = reader.into_raw_fd().to_string();
    // SAFETY: this program has no other thread yet, and no driver that could have one.
    unsafe { std::env::set_var("PLUGIN_PIPE", reader) };
    let session = Session::open()?;
    let program = session.program("__kernel void f(__global uint *out) { out[0] = 4; }\n");
    let handle = program as usize;
    let (tell, told) = std::sync::mpsc::channel();
    let code = std::thread::scope(|scope| {
        let build = scope.spawn(move || {
            let _ = tell.send(());
            let code = crate::cl::build(handle as *mut c_void, None);
            drop(writer);
            code
        });
        // By then the driver compiles.
        let _ = told.recv();
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: its constructor has no preconditions.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        (build.join(), library.map(drop))
    });
    println!("build {:?} library {:?}", code.0.ok(), code.1.ok());
    Ok(())
}

/// `plugin PATH [loader]`: opens and closes the library three times; with `loader`, while this program has the loader open
/// and a program built.
pub fn section(arguments: &[String]) -> Result<(), String> {
    let path = arguments.first().ok_or("which library?")?;
    let session = match arguments.get(1) {
        Some(_) => Some(Session::open()?),
        None => None,
    };
    let source = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 4; }\n";
    let program = session.as_ref().map(|session| {
        let program = session.program(source);
        println!("own build: {}", crate::cl::build(program, None));
        (session, program)
    });
    for _ in 0..3 {
        // SAFETY: its constructor has no preconditions.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| error.to_string())?;
        library.close().map_err(|error| error.to_string())?;
    }
    if let Some((session, program)) = program {
        session.try_kernel("own", program, "f");
        println!("own release: {}", crate::cl::release_program(program));
    }
    Ok(())
}
