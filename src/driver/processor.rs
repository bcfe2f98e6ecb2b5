//! The processor. Code for a CPU device is made for its model and instruction set, and different hosts may share a home directory.
//! The first processor represents all.

use memchr::memmem;

use super::profile::ProcessorFacts;
use crate::key::ingredients::{Ingredient, Kind};

/// The processor's part of a key.
///
/// None if the system does not tell.
pub fn ingredients(facts: ProcessorFacts) -> Option<Vec<Ingredient>> {
    let mut wanted = match facts {
        ProcessorFacts::None => return Some(Vec::new()),
        ProcessorFacts::Model => MODEL.to_vec(),
        ProcessorFacts::Stepping => [MODEL, &["stepping"]].concat(),
    };
    let instructions = instructions();
    if instructions.is_none() {
        wanted.extend(["flags", "Features"]);
    }
    let mut ingredients = description(&wanted)?;
    let name = "instruction set";
    ingredients.extend(instructions.map(|set| Ingredient::new(Kind::Processor, name, set)));
    Some(ingredients)
}

const MODEL: &[&str] = &[
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "CPU implementer",
    "CPU part",
];

/// Lines of the system's description of the first processor.
fn description(wanted: &[&str]) -> Option<Vec<Ingredient>> {
    use std::io::Read;
    // The description of one processor is at most a few KiB; with hundreds of them the file takes milliseconds to read. The kernel
    // gives whole lines, a page of them at a time.
    const MOST: usize = 16 << 10;
    let mut text = vec![0; MOST];
    let mut file = std::fs::File::open("/proc/cpuinfo").ok()?;
    let mut length = 0;
    while length < MOST && memmem::find(&text[..length], b"\n\n").is_none() {
        match file.read(&mut text[length..]).ok()? {
            0 => break,
            more => length += more,
        }
    }
    let text = String::from_utf8_lossy(&text[..length]);
    let first = text.split("\n\n").next()?;
    let ingredients: Vec<_> = first
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| wanted.contains(&name.trim()))
        .map(|(name, value)| Ingredient::new(Kind::Processor, name.trim(), value.trim()))
        .collect();
    (!ingredients.is_empty()).then_some(ingredients)
}

/// The instruction set as programs see it. None if only the system's description tells it.
///
/// The line `flags` of /proc/cpuinfo is not used: it has words that come from the kernel, a hypervisor and mitigations
/// (`hypervisor`, `pti`, `ibrs`, `md_clear`), which gave equal hosts unequal keys.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn instructions() -> Option<Vec<u8>> {
    Some(x86::of(&x86::Registers::read()))
}

#[cfg(target_arch = "aarch64")]
fn instructions() -> Option<Vec<u8>> {
    let (first, second) = rustix::param::linux_hwcap();
    Some(format!("{first:x} {second:x}").into_bytes())
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn instructions() -> Option<Vec<u8>> {
    None
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86 {
    #[cfg(target_arch = "x86")]
    use std::arch::x86::{__cpuid, __cpuid_count, _xgetbv};
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// The answers of CPUID that LLVM reads for features (Host.cpp: getHostCPUFeatures), and the registers that the system saves.
    #[derive(Clone, Default)]
    pub struct Registers {
        /// Leaf 1.
        pub one: [u32; 2],
        /// Leaf 7: EBX, ECX and EDX of subleaf 0, EAX and EDX of subleaf 1.
        pub seven: [u32; 5],
        /// Leaf 0xd, subleaf 1: EAX. Leaf 0x14: EBX. Leaf 0x19: EBX. Leaf 0x24: EBX.
        pub more: [u32; 4],
        /// Leaf 0x80000001: ECX, EDX. Leaf 0x80000008: EBX.
        pub extended: [u32; 3],
        /// XCR0.
        pub saved: u64,
    }

    const OSXSAVE: u32 = 1 << 27;
    const AVX10: u32 = 1 << 19;

    // Bits that are no instructions of programs: the kernel's own instructions and registers, virtualization, debugging,
    // performance counters, topology, and mitigations. All other bits count, including undefined ones.
    /// Leaf 1, ECX: DTES64, MONITOR, DS-CPL, VMX, SMX, EIST, TM2, CNXT-ID, SDBG, xTPR, PDCM, PCID, DCA, x2APIC, TSC-deadline, hypervisor.
    const NOT_ONE_C: u32 = bits(&[2, 3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 17, 18, 21, 24, 31]);
    /// Leaf 1, EDX: VME, DE, PSE, MSR, PAE, MCE, APIC, SEP, MTRR, PGE, MCA, PAT, PSE-36, PSN, DS, ACPI, SS, HTT, TM, PBE.
    const NOT_ONE_D: u32 = bits(&[
        1, 2, 3, 5, 6, 7, 9, 11, 12, 13, 14, 16, 17, 18, 21, 22, 27, 28, 29, 31,
    ]);
    /// Leaf 7, EBX: TSC_ADJUST, SGX, FDP_EXCPTN, SMEP, INVPCID, RDT-M, FCS, RDT-A, SMAP, processor trace.
    const NOT_SEVEN_B: u32 = bits(&[1, 2, 6, 7, 10, 12, 13, 15, 20, 25]);
    /// Leaf 7, ECX: UMIP, PKU, OSPKE, TME, LA57, MAWAU, bus lock detection, SGX_LC, PKS.
    const NOT_SEVEN_C: u32 = bits(&[2, 3, 4, 13, 16, 17, 18, 19, 20, 21, 24, 30, 31]);
    /// Leaf 7, EDX: SGX keys, SRBDS_CTRL, MD_CLEAR, RTM_ALWAYS_ABORT, TSX_FORCE_ABORT, hybrid, architectural LBR, IBT, IBRS, STIBP,
    /// L1D_FLUSH, ARCH_CAPABILITIES, CORE_CAPABILITIES, SSBD.
    const NOT_SEVEN_D: u32 = bits(&[1, 9, 10, 11, 13, 15, 19, 20, 26, 27, 28, 29, 30, 31]);
    /// Leaf 7.1, EAX: performance monitoring, FRED, LKGS, WRMSRNS, NMI source, LAM.
    const NOT_SEVEN_ONE_A: u32 = bits(&[8, 17, 18, 19, 20, 26]);
    /// Leaf 0x80000001, ECX: CMP, SVM, EXTAPIC, OSVW, IBS, SKINIT, WDT, TCE, NodeId, topology, performance counters, breakpoints.
    const NOT_EXTENDED_C: u32 = bits(&[1, 2, 3, 9, 10, 12, 13, 17, 19, 22, 23, 24, 26, 27, 28]);
    /// Leaf 0x80000001, EDX: 3DNow! and its extensions, MMX extensions, long mode. The others are those of leaf 1 or the kernel's.
    const EXTENDED_D: u32 = bits(&[22, 29, 30, 31]);
    /// Leaf 0x80000008, EBX: CLZERO, RDPRU, WBNOINVD. The others are mitigations and the like.
    const EXTENDED_8_B: u32 = bits(&[0, 4, 9]);

    const fn bits(numbers: &[u32]) -> u32 {
        let (mut bits, mut index) = (0, 0);
        while index < numbers.len() {
            bits |= 1 << numbers[index];
            index += 1;
        }
        bits
    }

    impl Registers {
        pub fn read() -> Registers {
            let highest = __cpuid(0).eax;
            let extended = __cpuid(0x8000_0000).eax;
            let leaf = |leaf: u32, subleaf: u32| {
                let is_there = if leaf < 0x8000_0000 {
                    leaf <= highest
                } else {
                    leaf <= extended
                };
                let answer = is_there.then(|| __cpuid_count(leaf, subleaf));
                answer.map_or([0; 4], |answer| {
                    [answer.eax, answer.ebx, answer.ecx, answer.edx]
                })
            };
            let one = leaf(1, 0);
            let seven = leaf(7, 0);
            let seven_one = if seven[0] >= 1 { leaf(7, 1) } else { [0; 4] };
            let avx10 = if seven_one[3] & AVX10 != 0 {
                leaf(0x24, 0)
            } else {
                [0; 4]
            };
            let eight = leaf(0x8000_0001, 0);
            Registers {
                one: [one[2], one[3]],
                seven: [seven[1], seven[2], seven[3], seven_one[0], seven_one[3]],
                more: [
                    leaf(0xd, 1)[0],
                    leaf(0x14, 0)[1],
                    leaf(0x19, 0)[1],
                    avx10[1],
                ],
                extended: [eight[2], eight[3], leaf(0x8000_0008, 0)[1]],
                saved: saved(one[2]),
            }
        }
    }

    #[allow(unsafe_code)]
    fn saved(features: u32) -> u64 {
        if features & OSXSAVE == 0 {
            return 0;
        }
        #[target_feature(enable = "xsave")]
        fn read() -> u64 {
            // SAFETY: register 0 exists where the instruction does.
            unsafe { _xgetbv(0) }
        }
        // SAFETY: OSXSAVE says that the instruction is there.
        unsafe { read() }
    }

    /// The instructions that programs may use.
    pub fn of(all: &Registers) -> Vec<u8> {
        let [seven_b, seven_c, seven_d, seven_one_a, seven_one_d] = all.seven;
        let [extended_c, extended_d, extended_8_b] = all.extended;
        let [xsave, trace, key_locker, avx10] = all.more;
        // Whether MPX and PKRU are saved does not matter: no code uses them.
        let saved = all.saved & !0b10_0001_1000;
        let words = [
            all.one[0] & !NOT_ONE_C,
            all.one[1] & !NOT_ONE_D,
            seven_b & !NOT_SEVEN_B,
            seven_c & !NOT_SEVEN_C,
            seven_d & !NOT_SEVEN_D,
            seven_one_a & !NOT_SEVEN_ONE_A,
            seven_one_d,
            xsave & 0xf,
            trace & 1 << 4,
            key_locker & 0b101,
            avx10,
            extended_c & !NOT_EXTENDED_C,
            extended_d & EXTENDED_D,
            extended_8_b & EXTENDED_8_B,
            saved as u32,
        ];
        words.map(|word| format!("{word:x}")).join(" ").into_bytes()
    }
}

#[cfg(all(test, any(target_arch = "x86", target_arch = "x86_64")))]
mod tests {
    use super::x86::{Registers, of};
    use super::*;

    #[test]
    fn what_a_kernel_or_hypervisor_adds_is_not_in_the_key_and_instructions_are() {
        let here = Registers::read();
        let plain = of(&here);
        let changed = |change: fn(&mut Registers)| {
            let mut there = here.clone();
            change(&mut there);
            of(&there) != plain
        };
        assert!(!changed(|all| all.one[0] ^= 1 << 31), "hypervisor");
        assert!(!changed(|all| all.one[0] ^= 1 << 24), "tsc_deadline_timer");
        assert!(!changed(|all| all.seven[2] ^= 1 << 10), "md_clear");
        assert!(!changed(|all| all.seven[2] ^= 1 << 29), "arch_capabilities");
        assert!(!changed(|all| all.extended[2] ^= 1 << 12), "ibpb");
        assert!(changed(|all| all.one[0] ^= 1 << 12), "fma");
        assert!(changed(|all| all.seven[0] ^= 1 << 5), "avx2");
        assert!(changed(|all| all.seven[0] ^= 1 << 16), "avx512f");
        assert!(changed(|all| all.seven[3] ^= 1 << 4), "avx_vnni");
        assert!(changed(|all| all.extended[0] ^= 1 << 5), "lzcnt");
        assert!(
            changed(|all| all.saved ^= 1 << 2),
            "the system saves the upper halves of AVX registers"
        );
    }

    #[test]
    fn each_driver_has_of_the_processor_what_changes_its_code() {
        let names = |facts| -> Vec<String> {
            let found = ingredients(facts).expect("the system's description");
            found.into_iter().map(|one| one.name).collect()
        };
        assert!(names(ProcessorFacts::None).is_empty());
        let model = names(ProcessorFacts::Model);
        assert!(model.contains(&"model".to_owned()), "{model:?}");
        assert!(model.contains(&"instruction set".to_owned()), "{model:?}");
        assert!(!model.contains(&"flags".to_owned()), "{model:?}");
        assert!(!model.contains(&"stepping".to_owned()), "{model:?}");
        assert!(names(ProcessorFacts::Stepping).contains(&"stepping".to_owned()));
    }
}
