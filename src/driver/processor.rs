//! The processor. Code for a CPU device is made for its model and instruction set, and different hosts may share a home directory.
//!
//! The first processor represents all, but on ARM: systems have cores of several kinds, and LLVM goes by the last one, newer versions
//! by all (`getHostCPUNameForARM` in Host.cpp, LLVM 3.9 to 21). So a key has all kinds.

use std::fmt::Write;

use memchr::memmem;

use super::profile::ProcessorFacts;
use crate::key::ingredients::{Ingredient, Kind};
use crate::proc_file;

/// The processor's part of a key.
///
/// None if the system does not tell.
pub fn ingredients(facts: ProcessorFacts) -> Option<Vec<Ingredient>> {
    if facts == ProcessorFacts::None {
        return Some(Vec::new());
    }
    told_by_itself(facts).or_else(|| told_by_system(facts))
}

/// What the processor says of itself, as LLVM asks it (Host.cpp): the same in containers that show other descriptions, and without a
/// system call.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn told_by_itself(facts: ProcessorFacts) -> Option<Vec<Ingredient>> {
    let registers = x86::Registers::read();
    let mut ingredients = registers.model(facts);
    let set = x86::of(&registers);
    ingredients.push(Ingredient::new(Kind::Processor, INSTRUCTION_SET, set));
    Some(ingredients)
}

/// Programs cannot ask other processors.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
fn told_by_itself(_facts: ProcessorFacts) -> Option<Vec<Ingredient>> {
    None
}

fn told_by_system(facts: ProcessorFacts) -> Option<Vec<Ingredient>> {
    let mut wanted = wanted(facts);
    let instructions = instructions();
    if instructions.is_none() {
        wanted.extend(["flags", "Features"]);
    }
    let of_cores = match cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
        true => cores(&proc_file::read(DESCRIPTION).ok()?, facts),
        false => None,
    };
    let mut ingredients = match of_cores {
        Some(cores) => cores,
        None => description(&wanted)?,
    };
    let set = |set| Ingredient::new(Kind::Processor, INSTRUCTION_SET, set);
    ingredients.extend(instructions.map(set));
    Some(ingredients)
}

/// The lines of the system's description that identify a model.
fn wanted(facts: ProcessorFacts) -> Vec<&'static str> {
    match facts {
        ProcessorFacts::Stepping => [MODEL, &["stepping"]].concat(),
        _ => MODEL.to_vec(),
    }
}

const INSTRUCTION_SET: &str = "instruction set";
const DESCRIPTION: &str = "/proc/cpuinfo";

const MODEL: &[&str] = &["vendor_id", "cpu family", "model", "model name"];

/// What identifies the kind of a core of ARM's, as the kernel writes it.
const CORE: [&str; 4] = ["CPU implementer", "CPU variant", "CPU part", "CPU revision"];

/// The kinds of cores, each once and in the order in which the system lists them, and that of the last core. What changes nothing but
/// the time that code takes (the revision) counts only for drivers that may go by the stepping. None: it describes no such cores.
fn cores(description: &[u8], facts: ProcessorFacts) -> Option<Vec<Ingredient>> {
    let text = String::from_utf8_lossy(description);
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.map(|(name, value)| (name.trim(), value.trim()));
    let (mut kinds, mut now, mut hardware): (Vec<String>, [&str; CORE.len()], _) =
        (Vec::new(), [""; CORE.len()], None);
    let mut last = String::new();
    let fields = match facts {
        ProcessorFacts::Stepping => CORE.len(),
        _ => CORE.len() - 1,
    };
    for (name, value) in lines {
        if name == "Hardware" {
            hardware = Some(value); // Host.cpp: two chips are told by it
        }
        let Some(field) = CORE.iter().position(|one| *one == name) else {
            continue;
        };
        now[field] = value;
        // The kernel writes it last (c_show in arch/arm64/kernel/cpuinfo.c).
        if field + 1 == CORE.len() {
            last = now[..fields].join(":");
            if !kinds.contains(&last) {
                kinds.push(last.clone());
            }
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let mut value = kinds.join(" ");
    let _ = write!(value, ", {last}");
    let of_processor = |name: &str, value: &str| Ingredient::new(Kind::Processor, name, value);
    let hardware = hardware.map(|value| of_processor("Hardware", value));
    Some(
        [of_processor("cores", &value)]
            .into_iter()
            .chain(hardware)
            .collect(),
    )
}

/// Lines of the system's description of the first processor.
fn description(wanted: &[&str]) -> Option<Vec<Ingredient>> {
    use std::io::Read;
    // The description of one processor is at most a few KiB; with hundreds of them the file takes milliseconds to read. The kernel
    // gives whole lines, a page of them at a time.
    const MOST: usize = 16 << 10;
    let mut text = vec![0; MOST];
    let mut file = std::fs::File::open(DESCRIPTION).ok()?;
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

/// The instruction set as programs see it: AT_HWCAP and AT_HWCAP2, by which the kernel says what programs may use, and those that newer
/// kernels have if they say anything. None on processors where only the system's description tells it.
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)] // asks for numbers that rustix does not know
fn instructions() -> Option<Vec<u8>> {
    /// linux/auxvec.h
    const NEWER: [libc::c_ulong; 2] = [29, 30]; // AT_HWCAP3, AT_HWCAP4
    let (first, second) = rustix::param::linux_hwcap();
    let mut words = vec![first as u64, second as u64];
    // SAFETY: it takes any number, and answers 0 to those that the kernel did not give.
    let newer = NEWER.map(|number| unsafe { libc::getauxval(number) });
    if newer != [0, 0] {
        words.extend(newer);
    }
    let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
    Some(words.join(" ").into_bytes())
}

#[cfg(not(target_arch = "aarch64"))]
fn instructions() -> Option<Vec<u8>> {
    None
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
mod x86 {
    #[cfg(target_arch = "x86")]
    use std::arch::x86::{__cpuid, __cpuid_count, _xgetbv};
    #[cfg(target_arch = "x86_64")]
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    use super::{Ingredient, Kind, ProcessorFacts, wanted};

    /// The answers of CPUID that identify the model, those that LLVM reads for features (Host.cpp: getHostCPUFeatures), and the
    /// registers that the system saves.
    #[derive(Clone, Default)]
    pub struct Registers {
        /// Leaf 0: EBX, EDX, ECX.
        pub vendor: [u32; 3],
        /// Leaf 1: EAX.
        pub signature: u32,
        /// Leaves 0x80000002 to 0x80000004.
        pub name: [[u32; 4]; 3],
        /// Leaf 1.
        pub one: [u32; 2],
        /// Leaf 7: EBX, ECX and EDX of subleaf 0, EAX and EDX of subleaf 1.
        pub seven: [u32; 5],
        /// Leaf 0xd, subleaf 1: EAX. Leaf 0x14: EBX. Leaf 0x19: EBX. Leaf 0x24: EBX. Leaf 0x1e, subleaf 1: EAX.
        pub more: [u32; 5],
        /// Leaf 0x80000001: ECX, EDX. Leaf 0x80000008: EBX.
        pub extended: [u32; 3],
        /// XCR0.
        pub saved: u64,
    }

    const OSXSAVE: u32 = 1 << 27;
    const AVX10: u32 = 1 << 19;
    const AMX_TILE: u32 = 1 << 24;

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
            let zero = __cpuid(0);
            let highest = zero.eax;
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
            let amx = if seven[3] & AMX_TILE != 0 {
                leaf(0x1e, 1)
            } else {
                [0; 4]
            };
            let eight = leaf(0x8000_0001, 0);
            Registers {
                vendor: [zero.ebx, zero.edx, zero.ecx],
                signature: one[0],
                name: [0x8000_0002, 0x8000_0003, 0x8000_0004].map(|number| leaf(number, 0)),
                one: [one[2], one[3]],
                seven: [seven[1], seven[2], seven[3], seven_one[0], seven_one[3]],
                more: [
                    leaf(0xd, 1)[0],
                    leaf(0x14, 0)[1],
                    leaf(0x19, 0)[1],
                    avx10[1],
                    amx[0],
                ],
                extended: [eight[2], eight[3], leaf(0x8000_0008, 0)[1]],
                saved: saved(one[2]),
            }
        }

        /// What identifies the model, as the kernel describes it in /proc/cpuinfo (arch/x86/lib/cpu.c, get_model_name in
        /// arch/x86/kernel/cpu/common.c).
        pub fn model(&self, facts: ProcessorFacts) -> Vec<Ingredient> {
            let field = |from: u32, bits: u32| self.signature >> from & ((1 << bits) - 1);
            let mut family = field(8, 4);
            if family == 0xf {
                family += field(20, 8);
            }
            let mut model = field(4, 4);
            if family >= 6 {
                model += field(16, 4) << 4;
            }
            let value = |name: &str| match name {
                "vendor_id" => text(&self.vendor),
                "cpu family" => family.to_string(),
                "model" => model.to_string(),
                "model name" => text(self.name.as_flattened()),
                _ => field(0, 4).to_string(),
            };
            let lines = wanted(facts).into_iter();
            lines
                .map(|name| Ingredient::new(Kind::Processor, name, value(name)))
                .collect()
        }
    }

    /// The text in registers, up to its end and without blanks around it.
    fn text(registers: &[u32]) -> String {
        let bytes: Vec<u8> = registers
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
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
    ///
    /// The line `flags` of /proc/cpuinfo is not used: it has words that come from the kernel, a hypervisor and mitigations
    /// (`hypervisor`, `pti`, `ibrs`, `md_clear`), which gave equal hosts unequal keys.
    pub fn of(all: &Registers) -> Vec<u8> {
        let [seven_b, seven_c, seven_d, seven_one_a, seven_one_d] = all.seven;
        let [extended_c, extended_d, extended_8_b] = all.extended;
        let [xsave, trace, key_locker, avx10, amx] = all.more;
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
            amx,
            extended_c & !NOT_EXTENDED_C,
            extended_d & EXTENDED_D,
            extended_8_b & EXTENDED_8_B,
            saved as u32,
        ];
        words.map(|word| format!("{word:x}")).join(" ").into_bytes()
    }
}

#[cfg(test)]
mod tests_of_arm {
    use super::*;

    /// How the kernel describes cores of these kinds: variant, part and revision.
    fn described(cores: &[(&str, &str, &str)], end: &str) -> String {
        let mut text = String::new();
        for (number, (variant, part, revision)) in cores.iter().enumerate() {
            let _ = write!(
                text,
                "processor\t: {number}\nBogoMIPS\t: 38.40\nFeatures\t: fp asimd evtstrm aes\nCPU implementer\t: 0x41\n\
                 CPU architecture: 8\nCPU variant\t: {variant}\nCPU part\t: {part}\nCPU revision\t: {revision}\n\n"
            );
        }
        text + end
    }

    fn of(cores: &[(&str, &str, &str)]) -> Vec<Ingredient> {
        let text = described(cores, "");
        super::cores(text.as_bytes(), ProcessorFacts::Model).expect("cores")
    }

    const LITTLE: (&str, &str, &str) = ("0x2", "0xd05", "0");
    const BIG: (&str, &str, &str) = ("0x1", "0xd0b", "0");
    const BIGGER: (&str, &str, &str) = ("0x1", "0xd41", "0");

    #[test]
    fn all_kinds_of_cores_count_and_which_is_last() {
        let both = of(&[LITTLE, LITTLE, BIG, BIG]);
        assert_eq!(both, of(&[LITTLE, BIG, BIG, BIG]), "their number does not");
        for other in [
            &[LITTLE, LITTLE, BIGGER, BIGGER][..],
            &[LITTLE],
            &[BIG, LITTLE],
            &[LITTLE, BIG, LITTLE],
            &[LITTLE, BIG, BIGGER],
            &[LITTLE, ("0x2", "0xd0b", "0")],
        ] {
            assert_ne!(both, of(other), "{other:?}");
        }
    }

    #[test]
    fn the_revision_counts_for_drivers_that_may_go_by_it() {
        let [one, other] = ["0", "1"].map(|revision| described(&[("0x1", "0xd0b", revision)], ""));
        for (facts, is_same) in [
            (ProcessorFacts::Model, true),
            (ProcessorFacts::Stepping, false),
        ] {
            let [one, other] = [&one, &other].map(|text| cores(text.as_bytes(), facts));
            assert_eq!(one == other, is_same, "{facts:?}");
        }
    }

    #[test]
    fn chips_are_told_where_the_kernel_names_them_and_other_descriptions_have_no_cores() {
        let of = |end| cores(described(&[BIG], end).as_bytes(), ProcessorFacts::Model);
        assert_ne!(of("Hardware\t: Qualcomm MSM8994\n"), of(""));
        let x86 = b"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\nstepping\t: 7\n\n";
        for text in [&x86[..], b"", b"CPU part\t: 0xd0b\n"] {
            assert_eq!(cores(text, ProcessorFacts::Model), None);
        }
    }

    /// As another program would read it, from the vector that the kernel gives each program.
    #[test]
    #[cfg(target_arch = "aarch64")]
    fn the_instruction_set_is_that_of_the_auxiliary_vector() {
        let vector = proc_file::read_own("auxv").expect("the vector");
        let words: Vec<u64> = vector
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let value = |number: u64| {
            let mut pairs = words.chunks_exact(2);
            pairs
                .find(|pair| pair[0] == number)
                .map_or(0, |pair| pair[1])
        };
        let [first, second] = [16, 26].map(value); // AT_HWCAP, AT_HWCAP2
        assert_ne!(first & 0b10, 0, "each such processor has ASIMD");
        let found = String::from_utf8(instructions().expect("known")).expect("text");
        assert!(
            found.starts_with(&format!("{first:x} {second:x}")),
            "{found}"
        );
        let names: Vec<String> = ingredients(ProcessorFacts::Model)
            .expect("the system's description")
            .into_iter()
            .map(|one| one.name)
            .collect();
        assert!(names.contains(&"instruction set".to_owned()), "{names:?}");
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

    /// A processor may have no name: then the kernel gives it one.
    #[test]
    fn the_model_is_the_one_that_the_system_describes() {
        let here = Registers::read();
        for facts in [ProcessorFacts::Model, ProcessorFacts::Stepping] {
            let described = description(&wanted(facts)).expect("the system's description");
            let told = here.model(facts);
            let both = told.iter().zip(&described);
            for (told, described) in both.filter(|(told, _)| !told.value.is_empty()) {
                assert_eq!(told, described);
            }
            assert_eq!(told.len(), described.len());
        }
        let of = |signature| {
            Registers {
                signature,
                ..here.clone()
            }
            .model(ProcessorFacts::Model)
        };
        let fields = |signature| -> Vec<Vec<u8>> {
            of(signature)[1..3]
                .iter()
                .map(|one| one.value.to_vec())
                .collect()
        };
        // Zen 5, Skylake-X, Pentium M.
        assert_eq!(fields(0x00b0_0f21), [b"26".to_vec(), b"2".to_vec()]);
        assert_eq!(fields(0x0005_0654), [b"6".to_vec(), b"85".to_vec()]);
        assert_eq!(fields(0x0000_06d8), [b"6".to_vec(), b"13".to_vec()]);
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
