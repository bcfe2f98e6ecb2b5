//! The floating-point registers of a thread, and whose state is in them: the program's, or that of our own work.
//!
//! A program may let exceptions trap (feenableexcept(3)), and may ask which have happened (fetestexcept(3)). Our arithmetic raises
//! some, and so do calls of the driver that only we make (measured: clCreateKernelsInProgram of Intel's CPU runtime rounds a number,
//! which ended programs that trap FE_INEXACT with SIGFPE). So while a hook works, all exceptions are masked. When it ends, and while the
//! driver works on the application's own call, the program's masks and flags are in force. Rounding stays as the program has it.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    /// What the program had when our work began on this thread. None: the program's state is in the registers.
    static PROGRAMS: Cell<Option<Registers>> = const { Cell::new(None) };
}

/// The control bits and flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Registers {
    #[cfg(target_arch = "x86_64")]
    mxcsr: u32,
    /// The control and status words of x87.
    #[cfg(target_arch = "x86_64")]
    x87: [u16; 2],
    #[cfg(target_arch = "aarch64")]
    fpcr: u64,
    #[cfg(target_arch = "aarch64")]
    fpsr: u64,
}

/// How many registers have control bits.
#[cfg(target_arch = "x86_64")]
pub(super) const REGISTERS: usize = 2;
#[cfg(target_arch = "aarch64")]
pub(super) const REGISTERS: usize = 1;
/// They are not read on other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const REGISTERS: usize = 0;

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// The masks of the six exceptions, in MXCSR and in the control word.
    const MASKS: (u32, u16) = (0x1f80, 0x3f);
    /// Their flags in MXCSR: invalid, denormal, divide by zero, overflow, underflow, precision.
    const FLAGS: u32 = 0x3f;

    pub(super) fn now() -> Registers {
        let (mut mxcsr, mut control) = (0u32, 0u16);
        let status: u16;
        // SAFETY: the instructions only store registers, which every x86-64 processor has.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags));
            std::arch::asm!("fnstcw [{}]", in(reg) &raw mut control, options(nostack, preserves_flags));
            std::arch::asm!("fnstsw ax", out("ax") status, options(nomem, nostack, preserves_flags));
        }
        Registers {
            mxcsr,
            x87: [control, status],
        }
    }

    /// The control bits.
    pub(super) fn control(self) -> [u64; REGISTERS] {
        // Bit 6 of the second has no meaning, and is set in some processors only.
        [self.mxcsr & !Self::FLAGS, u32::from(self.x87[0] | 0x40)].map(u64::from)
    }

    /// These with other control bits.
    fn with_control(self, [mxcsr, control]: [u64; REGISTERS]) -> Registers {
        Registers {
            mxcsr: self.mxcsr & Self::FLAGS | mxcsr as u32,
            x87: [control as u16, self.x87[1]],
        }
    }

    /// Sets these control bits, with all exceptions masked. The registers are as they were read.
    fn set_control(self, [mxcsr, control]: [u64; REGISTERS]) {
        self.mask();
        let (mxcsr, control) = (mxcsr as u32 | Self::MASKS.0, control as u16 | Self::MASKS.1);
        // SAFETY: both load a register of this thread. The values were read from such a register or have only bits that all x86-64
        // processors have. All exceptions are masked, before and afterwards.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, readonly));
            std::arch::asm!("fldcw [{}]", in(reg) &raw const control, options(nostack, readonly));
        }
    }

    /// Masks all exceptions. The registers are as they were read.
    fn mask(self) {
        if self.mxcsr & Self::MASKS.0 != Self::MASKS.0 {
            let mxcsr = self.mxcsr | Self::MASKS.0;
            // SAFETY: it loads what this thread had, with more masks.
            unsafe {
                std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, readonly));
            }
        }
        if self.x87[0] & Self::MASKS.1 != Self::MASKS.1 {
            let _ = environment_of_x87();
        }
    }

    /// Puts these back. An exception that was pending traps at the program's next instruction, as it would have without us.
    fn restore(self) {
        let now = Registers::now();
        if now.mxcsr != self.mxcsr {
            // SAFETY: it loads what this thread had.
            unsafe {
                std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const self.mxcsr, options(nostack, readonly));
            }
        }
        if now.x87 != self.x87 {
            let mut environment = environment_of_x87();
            for (word, had) in environment.iter_mut().zip(self.x87) {
                *word = *word & !0xffff | u32::from(had);
            }
            // SAFETY: it loads what this thread had. No value is on the stack of x87 between functions (System V ABI), so the tag word
            // fits to any status word.
            unsafe {
                std::arch::asm!("fldenv [{}]", in(reg) &raw const environment, options(nostack, readonly));
            }
        }
    }
}

/// The environment of x87: control, status and tag words, and the last instruction. It is the only instruction that masks all
/// exceptions without raising one that is pending.
#[cfg(target_arch = "x86_64")]
fn environment_of_x87() -> [u32; 7] {
    let mut environment = [0; 7];
    // SAFETY: it stores 28 bytes where there is room for them, and masks exceptions.
    unsafe {
        std::arch::asm!("fnstenv [{}]", in(reg) &raw mut environment, options(nostack, preserves_flags));
    }
    environment
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    /// IOE, DZE, OFE, UFE, IXE and IDE.
    const TRAPS: u64 = 0x9f00;

    pub(super) fn now() -> Registers {
        let (fpcr, fpsr): (u64, u64);
        // SAFETY: they only read registers, which every such processor has.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags));
            std::arch::asm!("mrs {}, fpsr", out(reg) fpsr, options(nomem, nostack, preserves_flags));
        }
        Registers { fpcr, fpsr }
    }

    /// The control bits.
    pub(super) fn control(self) -> [u64; REGISTERS] {
        [self.fpcr]
    }

    /// These with other control bits.
    fn with_control(self, [fpcr]: [u64; REGISTERS]) -> Registers {
        Registers { fpcr, ..self }
    }

    /// Sets these control bits, without traps.
    fn set_control(self, [fpcr]: [u64; REGISTERS]) {
        let fpcr = fpcr & !Self::TRAPS;
        // SAFETY: it loads a register of this thread with what was read from it, or with bits that all such processors have.
        unsafe {
            std::arch::asm!("msr fpcr, {}", in(reg) fpcr, options(nomem, nostack, preserves_flags));
        }
    }

    /// Masks all exceptions. Most such processors never trap, and then no bit is set.
    fn mask(self) {
        if self.fpcr & Self::TRAPS != 0 {
            self.set_control([self.fpcr]);
        }
    }

    /// Puts these back.
    fn restore(self) {
        let now = Registers::now();
        if now != self {
            // SAFETY: they load what this thread had.
            unsafe {
                std::arch::asm!("msr fpsr, {}", in(reg) self.fpsr, options(nomem, nostack, preserves_flags));
                std::arch::asm!("msr fpcr, {}", in(reg) self.fpcr, options(nomem, nostack, preserves_flags));
            }
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Registers {
    pub(super) fn now() -> Registers {
        Registers {}
    }

    pub(super) fn control(self) -> [u64; REGISTERS] {
        []
    }

    fn with_control(self, _: [u64; REGISTERS]) -> Registers {
        self
    }

    fn set_control(self, _: [u64; REGISTERS]) {}

    fn mask(self) {}

    fn restore(self) {}
}

/// The program's own registers, also during our own work.
pub(super) fn of_program() -> Registers {
    PROGRAMS.get().unwrap_or_else(Registers::now)
}

/// Puts the state back that a thread had before [`resume`], when dropped. It stays on its thread.
pub struct Restored {
    registers: Registers,
    programs: Option<Registers>,
    of_thread: PhantomData<*const ()>,
}

/// Sets these control bits, but for traps, until the result is dropped. Inside our work [`of_program`] tells all of them.
pub(super) fn resume(control: [u64; REGISTERS]) -> Restored {
    let (registers, programs) = (Registers::now(), PROGRAMS.get());
    // Nothing is touched where nothing differs, which is usual.
    if registers.control() != control {
        registers.set_control(control);
    }
    PROGRAMS.set(programs.map(|programs| programs.with_control(control)));
    Restored {
        registers,
        programs,
        of_thread: PhantomData,
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        self.registers.restore();
        PROGRAMS.set(self.programs);
    }
}

/// Our own work, until it is dropped. Nothing is written where no exception traps and none was raised, which is usual.
pub struct OwnWork {
    /// False inside other work of ours.
    begun: bool,
    of_thread: PhantomData<*const ()>,
}

impl OwnWork {
    /// Begins it.
    #[inline]
    pub fn begin() -> OwnWork {
        let begun = PROGRAMS.get().is_none();
        if begun {
            let programs = Registers::now();
            programs.mask();
            PROGRAMS.set(Some(programs));
        }
        OwnWork {
            begun,
            of_thread: PhantomData,
        }
    }
}

impl Drop for OwnWork {
    #[inline]
    fn drop(&mut self) {
        if self.begun
            && let Some(programs) = PROGRAMS.take()
        {
            programs.restore();
        }
    }
}

/// Makes the application's own call, inside our work: the program's state is in force, and what it becomes meanwhile is the program's.
pub fn as_program<R>(call: impl FnOnce() -> R) -> R {
    struct Again(bool);
    impl Drop for Again {
        fn drop(&mut self) {
            if self.0 {
                let mut again = OwnWork::begin();
                // The outer work ends it.
                again.begun = false;
            }
        }
    }
    let programs = PROGRAMS.take();
    let _again = Again(programs.is_some());
    if let Some(programs) = programs {
        programs.restore();
    }
    call()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// Loads these.
    fn load(mxcsr: u32, control: u16) {
        Registers {
            mxcsr,
            x87: [control, 0],
        }
        .restore();
    }

    fn divide() {
        assert!(black_box(1.0f64) / black_box(3.0) > 0.3);
        let (mut one, three) = (1.0f64, 3.0f64);
        // SAFETY: it leaves the stack of x87 as it was, and writes one number of this size.
        unsafe {
            std::arch::asm!(
                "fld qword ptr [{0}]", "fdiv qword ptr [{1}]", "fstp qword ptr [{0}]", "fwait",
                in(reg) &raw mut one, in(reg) &raw const three, options(nostack)
            );
        }
    }

    #[test]
    fn our_work_neither_traps_nor_leaves_flags_and_the_programs_calls_do_as_without_us() {
        // Inexact results trap, and round down.
        for (mxcsr, control) in [(0x2f80, 0x75f), (0x1f80, 0x37f)] {
            load(mxcsr, control);
            let before = Registers::now();
            let work = OwnWork::begin();
            divide();
            assert_eq!(Registers::now().mxcsr, mxcsr | 0x1f80 | 0x20);
            assert!(of_program() == before);
            {
                let _inner = OwnWork::begin();
            }
            divide();
            as_program(|| {
                assert!(Registers::now() == before && of_program() == before);
                load(mxcsr | 1, control);
            });
            divide();
            assert_eq!(of_program().mxcsr, mxcsr | 1);
            drop(work);
            let after = Registers::now();
            load(0x1f80, 0x37f);
            assert_eq!((after.mxcsr, after.x87), (mxcsr | 1, before.x87));
        }
    }

    #[test]
    fn a_panic_in_the_programs_call_leaves_our_work_masked() {
        load(0x0f80, 0x35f);
        let work = OwnWork::begin();
        let panicked =
            std::panic::catch_unwind(|| as_program(|| std::panic::resume_unwind(Box::new(0))));
        divide();
        drop(work);
        let after = Registers::now();
        load(0x1f80, 0x37f);
        assert!(panicked.is_err());
        assert_eq!((after.mxcsr, after.x87[0]), (0x0f80, 0x35f));
    }
}

#[cfg(all(test, target_arch = "aarch64"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// RMode: toward minus infinity.
    const DOWN: u64 = 0b10 << 22;
    /// FZ: denormal results are zero.
    const FLUSH: u64 = 1 << 24;
    /// IOC, and IXC, which each rounded result sets.
    const INVALID: u64 = 1;
    const INEXACT: u64 = 1 << 4;

    /// Loads these.
    fn load(fpcr: u64, fpsr: u64) {
        Registers { fpcr, fpsr }.restore();
    }

    fn divide() {
        assert!(black_box(1.0f64) / black_box(3.0) > 0.3);
    }

    #[test]
    fn our_work_leaves_no_flags_and_the_programs_calls_do_as_without_us() {
        for fpcr in [0, DOWN, FLUSH, DOWN | FLUSH] {
            load(fpcr, 0);
            let before = Registers::now();
            assert_eq!(before.fpcr, fpcr);
            let work = OwnWork::begin();
            divide();
            assert_ne!(Registers::now().fpsr & INEXACT, 0);
            assert!(of_program() == before);
            {
                let _inner = OwnWork::begin();
            }
            divide();
            as_program(|| {
                assert!(Registers::now() == before && of_program() == before);
                load(fpcr, INVALID);
            });
            divide();
            assert_eq!(of_program().fpsr, INVALID);
            drop(work);
            let after = Registers::now();
            load(0, 0);
            assert_eq!((after.fpcr, after.fpsr), (fpcr, INVALID));
        }
    }

    /// Most such processors trap nothing, and then no bit is set.
    #[test]
    fn exceptions_that_trap_are_masked_meanwhile() {
        load(Registers::TRAPS | DOWN, 0);
        let before = Registers::now();
        let work = OwnWork::begin();
        let meanwhile = Registers::now();
        let panicked =
            std::panic::catch_unwind(|| as_program(|| std::panic::resume_unwind(Box::new(0))));
        let behind = Registers::now();
        drop(work);
        let after = Registers::now();
        load(0, 0);
        assert!(panicked.is_err());
        assert_eq!(meanwhile.fpcr, DOWN);
        assert_eq!(behind.fpcr, DOWN);
        assert_eq!((after.fpcr, after.fpsr), (before.fpcr, before.fpsr));
    }
}
