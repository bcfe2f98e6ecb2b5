//! The floating-point state of a thread.

use crate::document::State;

/// The control bits, in the processor's own words, for people and for comparisons.
pub fn text() -> String {
    imp::text()
}

pub fn set(state: State) {
    imp::set(state);
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::asm;

    use crate::document::State;

    /// All but the six sticky flags.
    const CONTROL: u32 = !0x3f;

    fn mxcsr() -> u32 {
        let mut word = 0_u32;
        // SAFETY: stores the register in a word of this size.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut word, options(nostack)) };
        word
    }

    fn control_word() -> u16 {
        let mut word = 0_u16;
        // SAFETY: stores the register in a word of this size.
        unsafe { asm!("fnstcw [{}]", in(reg) &mut word, options(nostack)) };
        word
    }

    pub fn text() -> String {
        format!("{:x} {:x}", mxcsr() & CONTROL, control_word())
    }

    pub fn set(state: State) {
        let rounding = state.rounding & 3;
        let kept = mxcsr() & !(0x6000 | 0x8000 | 0x40);
        let word =
            kept | rounding << 13 | u32::from(state.flush) << 15 | u32::from(state.zero) << 6;
        let precision = state.precision.unwrap_or(3) & 3;
        let control = (control_word() & !0xf00) | (rounding as u16) << 10 | precision << 8;
        // SAFETY: only rounding, denormals and precision change, which Rust's code here does not count on: exceptions stay masked.
        unsafe {
            asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &word, in(reg) &control, options(nostack));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use std::arch::asm;

    use crate::document::State;

    fn fpcr() -> u64 {
        let word: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack)) };
        word
    }

    pub fn text() -> String {
        format!("{:x}", fpcr())
    }

    pub fn set(state: State) {
        // 0 nearest, 1 up, 2 down, 3 zero there.
        let rounding = [0_u64, 2, 1, 3][(state.rounding & 3) as usize];
        let flush = u64::from(state.flush || state.zero);
        let word = (fpcr() & !(7 << 22)) | rounding << 22 | flush << 24;
        // SAFETY: only rounding and denormals change, which Rust's code here does not count on.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nomem, nostack)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    use crate::document::State;

    pub fn text() -> String {
        "unknown".to_owned()
    }

    pub fn set(_: State) {}
}
