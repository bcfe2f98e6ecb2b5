//! Libraries that use OpenCL themselves, from their constructors, and go again.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::session::Session;

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
