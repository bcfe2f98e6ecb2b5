//! The end of the process: who bakes is started.
//!
//! It is an ELF destructor rather than a handler of atexit: those of the application run before it, whenever they were registered,
//! and they may stop or wait for processes that they know. No driver is called: some are gone by now.
//!
//! All that is built from this crate has it, the command as well, for which nothing is ever prepared.

use crate::cache::autobake;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    if let Some(start) = autobake::at_end() {
        start.now();
    }
}
