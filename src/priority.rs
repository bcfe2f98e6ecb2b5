//! Lowers the priority of background work.

#![allow(unsafe_code)] // system calls that no crate has safe functions for

use crate::own_threads::is_real_time;

const OF_PROCESS: libc::c_int = 1; // IOPRIO_WHO_PROCESS
const CLASS_SHIFT: libc::c_int = 13; // IOPRIO_CLASS_SHIFT

/// Lets this process and its children use only the processors and disks that others leave idle. Does nothing if the system forbids
/// that.
pub fn lower() {
    // Not SCHED_IDLE: on a busy machine the process would never run, and hold the driver's locks meanwhile.
    let _ = rustix::process::setpriority_process(None, 19);
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: of this process, with parameters that live (sched_setscheduler(2)).
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
    const IDLE: libc::c_int = 3 << CLASS_SHIFT; // IOPRIO_CLASS_IDLE
    // SAFETY: three numbers, of this process (ioprio_set(2)).
    unsafe { libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, 0, IDLE) };
}

/// Gives up priority over usual processes, which this one has inherited from the program that started it, as SCHED_RESET_ON_FORK does
/// (sched(7)). A lower priority stays. Called before there are other threads.
pub fn leave_raised() {
    if is_real_time() {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: of this process, with parameters that live (sched_setscheduler(2)).
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &parameters) };
    }
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < 0) {
        let _ = rustix::process::setpriority_process(None, 0);
    }
    const REAL_TIME: libc::c_long = 1; // IOPRIO_CLASS_RT
    const BY_NICE: libc::c_int = 0;
    // SAFETY: numbers, of this process (ioprio_set(2)).
    unsafe {
        if libc::syscall(libc::SYS_ioprio_get, OF_PROCESS, 0) >> CLASS_SHIFT == REAL_TIME {
            libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, 0, BY_NICE);
        }
    }
}
