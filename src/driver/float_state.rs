//! The floating-point state of a thread: rounding, trapping exceptions, and the handling of denormal numbers.
//!
//! Compilers fold constants with the host's arithmetic and its C library. These round as set in the thread that calls
//! clBuildProgram (measured: PoCL 3.1 folds `sqrt(2.0)` differently under FE_DOWNWARD), or in the thread that started the driver's
//! threads. The state is in the key if it differs from that of a new program. Exception flags are not in the key.

use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::sync::OnceCell;

use super::Driver;
use super::float_registers::{REGISTERS, Restored, of_program, resume};
use crate::key::ingredients::{Ingredient, Kind};
use crate::outcome::Bypass;

/// The control bits, by the register's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatState([(&'static str, u64); REGISTERS]);

/// The state in which programs start (System V ABI, AMD64 supplement, 3.4.1; AAPCS64).
#[cfg(target_arch = "x86_64")]
const AT_START: FloatState = FloatState([("MXCSR", 0x1f80), ("x87 control word", 0x37f)]);
#[cfg(target_arch = "aarch64")]
const AT_START: FloatState = FloatState([("FPCR", 0)]);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const AT_START: FloatState = FloatState([]);

/// The bits that select the rounding mode and the handling of denormal numbers. They are scattered: in MXCSR 13 and
/// 14, flush-to-zero 15, denormals-are-zero 6; in the control word of x87 8 to 11; in FPCR 19 and 22 to 26.
#[cfg(target_arch = "x86_64")]
const ROUNDING: [u64; 2] = [0xe040, 0x0f00];
#[cfg(target_arch = "aarch64")]
const ROUNDING: [u64; 1] = [0x07c8_0000];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ROUNDING: [u64; 0] = [];

/// The calls in which drivers start threads that compile later, with the state of the caller.
#[derive(Clone, Copy, Debug)]
pub enum StartOfThreads {
    /// A query of devices (measured: PoCL 3.1 starts there the threads that compile at enqueues and fold `sqrt(get_local_size(0) + 2.0)`).
    Devices,
    /// The creation of a context (measured: Intel's CPU runtime folds `sqrt(2.0)` by the rounding of the thread that created the first).
    Context,
}

/// The states in which such a call was first made, by [`StartOfThreads`].
static AT_FIRST: [OnceCell<FloatState>; 2] = [const { OnceCell::new() }; 2];
/// Whether another such call was made in another state: nobody knows which of a driver's threads has which.
static STARTS_DIFFER: AtomicBool = AtomicBool::new(false);

impl FloatState {
    /// That of this thread, as the program has it.
    pub fn of_thread() -> FloatState {
        let mut state = AT_START;
        for ((_, value), now) in state.0.iter_mut().zip(of_program().control()) {
            *value = now;
        }
        state
    }

    /// Remembers the state of the thread that makes such a call.
    pub fn note(start: StartOfThreads) {
        let now = FloatState::of_thread();
        if *AT_FIRST[start as usize].get_or_init(|| now) != now {
            STARTS_DIFFER.store(true, Ordering::Relaxed);
        }
    }

    /// Sets this state, which a thread of this process had, on this thread until the result is dropped, but for its traps: calls of the
    /// driver in it are ours.
    pub fn resume(self) -> Restored {
        resume(self.0.map(|(_, value)| value))
    }

    /// Sets the state of a key on this thread until the result is dropped. All exceptions stay masked: stored ingredients must not
    /// be able to end the process.
    pub fn enter(ingredients: &[Ingredient]) -> Restored {
        FloatState::entered(ingredients).resume()
    }

    /// Whether [`FloatState::enter`] sets the register of this ingredient to all that it says.
    pub fn can_enter(one: &Ingredient) -> bool {
        let state = FloatState::entered(std::slice::from_ref(one));
        state.ingredients("").any(|had| had == *one)
    }

    /// What [`FloatState::enter`] sets.
    fn entered(ingredients: &[Ingredient]) -> FloatState {
        let mut state = AT_START;
        for ((name, register), rounding) in state.0.iter_mut().zip(ROUNDING) {
            let mut ingredients = ingredients.iter();
            let one = ingredients.find(|one| one.kind == Kind::FloatingPoint && one.name == *name);
            let value = one.and_then(|one| str::from_utf8(&one.value).ok()?.strip_prefix("0x"));
            let value = value.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            if let Some(value) = value {
                *register = value & rounding | *register & !rounding;
            }
        }
        state
    }

    /// The registers that differ from a program's start.
    fn ingredients(self, when: &str) -> impl Iterator<Item = Ingredient> {
        let others = self.0.into_iter().zip(AT_START.0);
        let others = others.filter(|(now, at_start)| now != at_start);
        others.map(move |((name, value), _)| {
            Ingredient::new(
                Kind::FloatingPoint,
                format!("{name}{when}"),
                format!("{value:#x}"),
            )
        })
    }
}

impl Driver {
    /// The part of a key that tells the floating-point states: of the calling thread, of the thread that opened the driver, and of
    /// those that made the driver start threads.
    ///
    /// # Errors
    /// Such calls were made in different states.
    pub fn float_state(&self) -> Result<impl Iterator<Item = Ingredient>, Bypass> {
        if STARTS_DIFFER.load(Ordering::Relaxed) {
            return Err(Bypass::FloatingPointState);
        }
        let opened = self.opened_with.ingredients(Ingredient::AT_OPENING);
        let at = |start: StartOfThreads, when| {
            let state = AT_FIRST[start as usize].get().copied();
            state.unwrap_or(AT_START).ingredients(when)
        };
        Ok(FloatState::of_thread()
            .ingredients("")
            .chain(opened)
            .chain(at(StartOfThreads::Devices, Ingredient::AT_DEVICES))
            .chain(at(StartOfThreads::Context, Ingredient::AT_CONTEXT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_starts_with_what_is_not_in_the_key() {
        assert_eq!(FloatState::of_thread(), AT_START);
        assert_eq!(AT_START.ingredients("").count(), 0);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_flags_of_exceptions_are_the_programs_own() {
        let mxcsr = || {
            let mut mxcsr = 0u32;
            // SAFETY: it only stores a register, which every x86-64 processor has.
            unsafe {
                std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags));
            }
            mxcsr
        };
        let divided = std::hint::black_box(1.0f64) / std::hint::black_box(0.0);
        assert!(divided.is_infinite());
        let before = mxcsr();
        assert_ne!(before & 4, 0, "a division by zero was noted");
        let other = FloatState([("MXCSR", 0x3f80), ("x87 control word", 0x77f)]);
        for state in [AT_START, other] {
            let resumed = state.resume();
            assert_eq!(FloatState::of_thread(), state);
            let third = std::hint::black_box(1.0f64) / std::hint::black_box(3.0);
            assert!(third > 0.3);
            drop(resumed);
            assert_eq!(mxcsr() & before, before);
        }
        assert_eq!(FloatState::of_thread(), AT_START);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_state_is_told_by_name_and_had_again_without_flags_and_traps() {
        let state = |mxcsr| Ingredient::new(Kind::FloatingPoint, "MXCSR", mxcsr);
        let told = || {
            FloatState::of_thread()
                .ingredients(" then")
                .collect::<Vec<_>>()
        };
        for (given, had) in [
            ("0x3f80", "0x3f80"),
            ("0xffc0", "0xffc0"),
            ("0x2000", "0x3f80"),
        ] {
            let entered = FloatState::enter(&[state(given)]);
            let expected = Ingredient::new(Kind::FloatingPoint, "MXCSR then", had);
            assert_eq!(told(), [expected], "{given}");
            drop(entered);
            assert_eq!(FloatState::can_enter(&state(given)), given == had);
        }
        // Traps, and the state of another moment.
        assert!(!FloatState::can_enter(&state("0x1d80")));
        let opened = Ingredient::new(
            Kind::FloatingPoint,
            "MXCSR when the driver was opened",
            "0x3f80",
        );
        assert!(!FloatState::can_enter(&opened));
        let x87 = Ingredient::new(Kind::FloatingPoint, "x87 control word", "0x77f");
        let entered = FloatState::enter(std::slice::from_ref(&x87));
        assert_eq!(
            FloatState::of_thread().ingredients("").collect::<Vec<_>>(),
            [x87]
        );
        drop(entered);
        for none in ["", "0x", "down", "0x1f80", "0x1fbf"] {
            let _entered = FloatState::enter(&[state(none)]);
            assert_eq!(told(), [], "{none}");
        }
    }

    #[test]
    #[cfg(target_arch = "aarch64")]
    fn the_flags_of_exceptions_are_the_programs_own() {
        let fpsr = || {
            let fpsr: u64;
            // SAFETY: it only reads a register, which every such processor has.
            unsafe {
                std::arch::asm!("mrs {}, fpsr", out(reg) fpsr, options(nomem, nostack, preserves_flags));
            }
            fpsr
        };
        let divided = std::hint::black_box(1.0f64) / std::hint::black_box(0.0);
        assert!(divided.is_infinite());
        let before = fpsr();
        assert_ne!(before & 2, 0, "a division by zero was noted");
        let other = FloatState([("FPCR", 0x0140_0000)]);
        for state in [AT_START, other] {
            let resumed = state.resume();
            assert_eq!(FloatState::of_thread(), state);
            let third = std::hint::black_box(1.0f64) / std::hint::black_box(3.0);
            assert!(third > 0.3);
            drop(resumed);
            assert_eq!(fpsr() & before, before);
        }
        assert_eq!(FloatState::of_thread(), AT_START);
    }

    #[test]
    #[cfg(target_arch = "aarch64")]
    fn a_state_is_told_by_name_and_had_again_without_traps() {
        let state = |fpcr| Ingredient::new(Kind::FloatingPoint, "FPCR", fpcr);
        let told = || FloatState::of_thread().ingredients("").collect::<Vec<_>>();
        assert_eq!(told(), []);
        // Rounding down, and denormal numbers that are flushed.
        for value in ["0x800000", "0x1000000", "0x1c00000"] {
            let one = state(value);
            assert!(FloatState::can_enter(&one), "{value}");
            let entered = FloatState::enter(std::slice::from_ref(&one));
            assert_eq!(told(), [one]);
            drop(entered);
            assert_eq!(told(), []);
        }
        // Traps of exceptions, and bits that only some processors have.
        for (value, entered) in [
            ("0x9f00", None),
            ("0x7", None),
            ("0x800100", Some("0x800000")),
        ] {
            let one = state(value);
            assert!(!FloatState::can_enter(&one), "{value}");
            let _entered = FloatState::enter(&[one]);
            assert_eq!(
                told(),
                entered.map(state).into_iter().collect::<Vec<_>>(),
                "{value}"
            );
        }
        for none in ["", "0x", "down", "0x0"] {
            let _entered = FloatState::enter(&[state(none)]);
            assert_eq!(told(), [], "{none}");
        }
    }
}
