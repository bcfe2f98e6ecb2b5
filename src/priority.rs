//! Lowers the priority of background work.

#![allow(unsafe_code)] // system calls that no crate has safe functions for

/// Lets this process and its children use only the processors and disks that others leave idle. Does nothing if the system forbids
/// that.
pub fn lower() {
    // Not SCHED_IDLE: on a busy machine the process would never run, and hold the driver's locks meanwhile.
    let _ = rustix::process::setpriority_process(None, 19);
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: of this process, with parameters that live (sched_setscheduler(2)).
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
    const OF_PROCESS: libc::c_int = 1; // IOPRIO_WHO_PROCESS
    const IDLE: libc::c_int = 3 << 13; // IOPRIO_CLASS_IDLE
    // SAFETY: three numbers, of this process (ioprio_set(2)).
    unsafe { libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, 0, IDLE) };
}
