//! Writes what hits have left to be written, and starts the baker, at the end of the process.
//!
//! It is an ELF destructor rather than a handler of atexit: those of the application run before it, whenever they were registered,
//! and they may stop or wait for processes that they know. No driver is called: some are gone by now.
//!
//! Everything built from this crate has it. For the command, nothing is ever prepared, so nothing is started.

use crate::cache::{self, autobake};
use crate::driver::float_registers::OwnWork;
use crate::syscall_filters;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    let _work = OwnWork::begin();
    // A panic must not leave a destructor.
    let _ = std::panic::catch_unwind(cache::at_end);
    if let Some(start) = autobake::at_end()
        && !cache::is_switched_off()
        && !syscall_filters::were_added()
    {
        let _ = start.now();
    }
}
