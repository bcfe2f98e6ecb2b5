use super::*;

/// Where the tables of a made object are in it.
const STRINGS: usize = 0;
const NUMBERS: usize = 0x40;
const NEEDS: usize = 0x80;
const DYNAMIC: usize = 0x180;
const SIZE: usize = 0x200;

/// What an object needs of one other: Elf64_Verneed, with the distances to its first version and to the next such.
fn need(count: u16, first: u32, next: u32) -> Vec<u8> {
    let halves = [1, count];
    let words = [0, first, next];
    let halves = halves.iter().flat_map(|half: &u16| half.to_le_bytes());
    let words = words.iter().flat_map(|word: &u32| word.to_le_bytes());
    halves.chain(words).collect()
}

/// One version: Elf64_Vernaux, with the place of its name and the distance to the next.
fn version(number: u16, name: u32, next: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend([0, number].iter().flat_map(|half: &u16| half.to_le_bytes()));
    bytes.extend(
        [name, next]
            .iter()
            .flat_map(|word: &u32| word.to_le_bytes()),
    );
    bytes
}

fn segment(kind: ProgramType, start: usize, size: usize) -> libc::Elf64_Phdr {
    libc::Elf64_Phdr {
        p_type: kind.0,
        p_flags: PF_R.0,
        p_offset: 0,
        p_vaddr: start as u64,
        p_paddr: 0,
        p_filesz: size as u64,
        p_memsz: size as u64,
        p_align: 8,
    }
}

/// What dl_iterate_phdr(3) would say of an object.
fn description(base: usize, segments: &[libc::Elf64_Phdr]) -> libc::dl_phdr_info {
    // SAFETY: numbers and pointers, which may all be 0.
    let mut info: libc::dl_phdr_info = unsafe { std::mem::zeroed() };
    info.dlpi_addr = base as u64;
    info.dlpi_phdr = segments.as_ptr();
    info.dlpi_phnum = segments.len() as u16;
    info
}

#[test]
fn an_object_begins_with_its_first_segment_that_holds_something() {
    let words = [0u64; 4];
    let base = words.as_ptr() as usize;
    for (segments, start) in [
        (vec![segment(PT_LOAD, 0, 32)], Some(0)),
        (
            vec![segment(PT_LOAD, 0, 0), segment(PT_LOAD, 16, 16)],
            Some(16),
        ),
        (vec![segment(PT_LOAD, 8, 0)], None),
        (Vec::new(), None),
    ] {
        // SAFETY: the words and the headers live for as long as the image.
        let image = unsafe { ElfImage::of(&description(base, &segments)) };
        assert_eq!(image.start(), start.map(|start| base + start));
    }
}

/// The versions that an object with these tables says of symbols with these numbers.
fn versions(needs: &[Vec<u8>], count: usize, numbers: &[u16]) -> Vec<Option<String>> {
    let mut words = vec![0u64; SIZE / 8];
    let base = words.as_ptr() as usize;
    let mut put = |at: usize, bytes: &[u8]| {
        for (at, byte) in (at..).zip(bytes) {
            words[at / 8] |= u64::from(*byte) << (8 * (at % 8));
        }
    };
    put(STRINGS, b"\0A_1\0B_1\0");
    let halves: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    put(NUMBERS, &halves);
    put(NEEDS, &needs.concat());
    let dynamic = [
        (DT_STRTAB, STRINGS),
        (DT_STRSZ, NUMBERS),
        (DT_VERSYM, NUMBERS),
        (DT_VERNEED, NEEDS),
        (DT_VERNEEDNUM, count),
    ];
    let dynamic = dynamic
        .iter()
        .flat_map(|(tag, value)| [tag.0 as u64, *value as u64]);
    let dynamic: Vec<u8> = dynamic.flat_map(u64::to_le_bytes).collect();
    put(DYNAMIC, &dynamic);
    let segments = [
        segment(PT_LOAD, 0, SIZE),
        segment(PT_DYNAMIC, DYNAMIC, SIZE - DYNAMIC),
    ];
    // SAFETY: the words and the headers live for as long as the image.
    let image = unsafe { ElfImage::of(&description(base, &segments)) };
    let version = |symbol: usize| Some(image.version(symbol)?.to_str().ok()?.to_owned());
    (0..numbers.len()).map(version).collect()
}

#[test]
fn a_symbol_has_the_version_of_its_number() {
    const A: u32 = 1;
    const B: u32 = 5;
    let of_two = [
        need(1, 16, 32),
        version(2, A, 0),
        need(2, 16, 0),
        version(3, B, 16),
        version(2, B, 0),
    ];
    let numbers = [0, 1, 2, 3, 4, 0x8003];
    let found = |needs: &[Vec<u8>], count: usize| {
        let names = versions(needs, count, &numbers).into_iter();
        names
            .map(|name| name.unwrap_or_default())
            .collect::<Vec<_>>()
    };
    // The first of one number counts, and whether the symbol is hidden does not.
    assert_eq!(found(&of_two, 2), ["", "", "A_1", "B_1", "", "B_1"]);
    assert_eq!(found(&of_two, 1), ["", "", "A_1", "", "", ""]);
    // Lists end where they say so, whatever their number is.
    assert_eq!(found(&of_two, usize::MAX), found(&of_two, 2));
    let mut long = of_two.clone();
    long[0] = need(u16::MAX, 16, 32);
    assert_eq!(found(&long, 2), found(&of_two, 2));
    // What stands before damage counts.
    for damage in [
        need(1, u32::MAX, 0),
        need(1, (SIZE - 8 - (NEEDS + 32)) as u32, 0),
    ] {
        let damaged = [need(1, 16, 32), version(2, A, 0), damage];
        assert_eq!(found(&damaged, 2), ["", "", "A_1", "", "", ""]);
    }
    let damaged = [need(2, 16, 0), version(2, A, u32::MAX), version(3, B, 0)];
    assert_eq!(found(&damaged, 1), ["", "", "A_1", "", "", ""]);
}
