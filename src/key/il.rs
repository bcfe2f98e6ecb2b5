//! Programs in an intermediate language: the facts about a SPIR-V module that caching its builds needs.

use super::ingredients::sha256;

const MAGIC: u32 = 0x0723_0203;
/// Words before the first instruction (SPIR-V 1.6, 2.3).
const HEADER: usize = 5;
const OP_DECORATE: u32 = 71;
const OP_DECORATE_ID: u32 = 332;
const OP_GROUP_DECORATE: u32 = 74;
const SPEC_ID: u32 = 1;
/// OpAsmTargetINTEL, OpAsmINTEL and OpAsmCallINTEL (SPV_INTEL_inline_assembly).
const INLINE_ASSEMBLY: std::ops::RangeInclusive<u32> = 5609..=5611;

/// A module, without its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// SHA-256 of the code.
    pub digest: [u8; 32],
    /// The length of the code, in bytes.
    pub length: usize,
    /// Whether it has specialization constants that an application can set.
    pub has_constants: bool,
}

/// Reads a module. None if it is not SPIR-V by its specification, in little-endian byte order. Drivers accept other bytes as well
/// (Intel's CPU runtime accepts any, measured), and of those nothing is known. Nor if it has inline assembly, which may read a file
/// (measured on Intel's CPU runtime).
pub fn read(code: &[u8]) -> Option<Module> {
    let (words, rest) = code.as_chunks::<4>();
    let word = |at: usize| words.get(at).copied().map(u32::from_le_bytes);
    if word(0) != Some(MAGIC) || !rest.is_empty() || words.len() < HEADER {
        return None;
    }
    let mut at = HEADER;
    let mut has_constants = false;
    while let Some(first) = word(at) {
        let (length, opcode) = ((first >> 16) as usize, first & 0xffff);
        if length == 0 || at + length > words.len() || INLINE_ASSEMBLY.contains(&opcode) {
            return None;
        }
        has_constants |= match opcode {
            OP_DECORATE | OP_DECORATE_ID => word(at + 2) == Some(SPEC_ID),
            // The decorations of a group are elsewhere. No compiler decorates constants by groups.
            OP_GROUP_DECORATE => true,
            _ => false,
        };
        at += length;
    }
    Some(Module {
        digest: sha256(code),
        length: code.len(),
        has_constants,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(instructions: &[&[u32]]) -> Vec<u8> {
        let header = [MAGIC, 0x0001_0000, 0, 10, 0];
        let instruction = |words: &&[u32]| {
            let mut words = words.to_vec();
            words[0] |= (words.len() as u32) << 16;
            words
        };
        let body = instructions.iter().flat_map(instruction);
        header
            .into_iter()
            .chain(body)
            .flat_map(u32::to_le_bytes)
            .collect()
    }

    #[test]
    fn constants_that_can_be_set_are_found() {
        let capability = [17, 6];
        let plain = module(&[&capability, &[OP_DECORATE, 3, 11, 28]]);
        assert!(!read(&plain).expect("SPIR-V").has_constants);
        let constant = module(&[&capability, &[OP_DECORATE, 3, SPEC_ID, 0]]);
        assert!(read(&constant).expect("SPIR-V").has_constants);
    }

    #[test]
    fn a_module_with_inline_assembly_is_not_read() {
        let capability = [17, 6];
        for opcode in INLINE_ASSEMBLY {
            assert_eq!(read(&module(&[&capability, &[opcode, 1, 2]])), None);
        }
    }

    #[test]
    fn what_is_no_module_is_not_read() {
        let good = module(&[&[17, 6]]);
        for bad in [
            &b""[..],
            b"not SPIR-V at all...",
            &good[..good.len() - 1],
            &good[..good.len() - 4],
            &[&good[..], &[0; 4]].concat(),
            &good.iter().rev().copied().collect::<Vec<_>>(),
        ] {
            assert_eq!(read(bad), None);
        }
    }
}
