//! The file of a process: rows of counters, each with a tag: day, program, driver and device.
//!
//! ```text
//! file     = magic { row }                    all numbers are words: 64 bits, little-endian
//! magic    = "oclcsta2"                       8 bytes
//! row      = claim whole day text counters    of a fixed length; rows are used in order
//! claim    = digest of the tag                0: the row is free
//! whole    = the same, once the tag is written
//! day      = days since 1970, UTC
//! text     = three lengths of a byte each, then program, driver and device, cut to fit
//! counters = see `Counter`
//! ```
//!
//! A thread claims a row by an atomic exchange of its first word. A thread that finds its row claimed and not whole, because the
//! claimer is writing the tag or was killed, writes the same tag again, so no thread waits for another. Nothing is added to a row
//! before its tag is whole. When all rows are used, other tags share the last one, which is tagged as [`OTHERS`].
//!
//! Days are in UTC: the functions for time zones read the environment and files, which a library inside applications avoids, and
//! all hosts of a shared cache have the same day.

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::counters::{COUNTERS, CounterEvent, Totals};
use super::rows::{OTHERS, RowTag, Rows};

/// The first bytes of a file.
pub const MAGIC: &[u8; WORD] = b"oclcsta2";

const WORD: usize = size_of::<u64>();
/// Words before the text.
const HEAD: usize = 3;
/// Words of the text.
const TEXT: usize = 29;
/// Words of a row.
pub const ROW: usize = HEAD + TEXT + COUNTERS;
/// Rows of a file: with the magic number they fill 16 KiB.
pub const ROWS: usize = 12;
/// Words after the magic number.
pub const WORDS: usize = ROWS * ROW;

/// The longest names that are kept, in bytes.
const MAX_PROGRAM_BYTES: usize = 100;
const MAX_DRIVER_BYTES: usize = 24;
const MAX_DEVICE_BYTES: usize = 100;
const _: () = assert!(3 + MAX_PROGRAM_BYTES + MAX_DRIVER_BYTES + MAX_DEVICE_BYTES <= TEXT * WORD);

/// The driver and the device that an event is of; empty where there is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labels<'a> {
    /// The driver's family.
    pub driver: &'a str,
    /// The device's name.
    pub device: &'a [u8],
}

/// A process as its rows name it.
pub struct Program {
    name: Vec<u8>,
    digest: u64,
}

impl Program {
    /// The program of this name.
    pub fn new(name: &[u8]) -> Program {
        let name = cut(name, MAX_PROGRAM_BYTES).to_vec();
        Program {
            digest: xxh3_64_with_seed(&name, 0),
            name,
        }
    }
}

fn cut(name: &[u8], longest: usize) -> &[u8] {
    &name[..name.len().min(longest)]
}

/// The tag of a row to be claimed.
struct RowLabels<'a> {
    program: &'a [u8],
    driver: &'a [u8],
    device: &'a [u8],
    day: u64,
    digest: u64,
}

impl RowLabels<'_> {
    fn is_whole(&self, row: &[AtomicU64]) -> bool {
        row[1].load(Ordering::Acquire) == self.digest
    }

    fn write(&self, row: &[AtomicU64]) {
        let mut text = [0; TEXT * WORD];
        let parts = [self.program, self.driver, self.device];
        let mut at = parts.len();
        for (index, part) in parts.into_iter().enumerate() {
            text[index] = part.len() as u8;
            text[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        row[2].store(self.day, Ordering::Relaxed);
        let (words, _) = text.as_chunks();
        for (to, word) in row[HEAD..].iter().zip(words) {
            to.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        row[1].store(self.digest, Ordering::Release);
    }

    /// Claims the row if it is free. Returns whether it has this tag.
    fn claim(&self, row: &[AtomicU64]) -> bool {
        let found = match row[0].load(Ordering::Acquire) {
            0 => {
                let claimed =
                    row[0].compare_exchange(0, self.digest, Ordering::AcqRel, Ordering::Acquire);
                claimed.map_or_else(|other| other, |_| self.digest)
            }
            found => found,
        };
        if found == self.digest && !self.is_whole(row) {
            self.write(row);
        }
        found == self.digest
    }
}

/// Adds events to the row of this program, driver, device and day. Returns its index.
pub fn add(
    words: &[AtomicU64],
    program: &Program,
    place: Labels<'_>,
    day: u64,
    events: &[CounterEvent],
) -> usize {
    let driver = cut(place.driver.as_bytes(), MAX_DRIVER_BYTES);
    let device = cut(place.device, MAX_DEVICE_BYTES);
    let digest = xxh3_64_with_seed(driver, program.digest.wrapping_add(day));
    let digest = xxh3_64_with_seed(device, digest).max(1);
    let wanted = RowLabels {
        program: &program.name,
        driver,
        device,
        day,
        digest,
    };
    let (rows, last) = words.split_at(words.len() - ROW);
    let taken = rows.chunks_exact(ROW).position(|row| wanted.claim(row));
    let index = taken.unwrap_or_else(|| {
        let others = RowLabels {
            program: OTHERS.as_bytes(),
            driver: OTHERS.as_bytes(),
            device: b"",
            digest: u64::MAX,
            day,
        };
        others.claim(last);
        ROWS - 1
    });
    let counters = &words[index * ROW + HEAD + TEXT..];
    for CounterEvent(counter, amount) in events {
        counters[*counter].fetch_add(*amount, Ordering::Relaxed);
    }
    index
}

/// The rows of a file; None if it is another kind of file.
pub fn decode(bytes: &[u8]) -> Option<Rows> {
    let mut rows = Rows::default();
    let (words, _) = bytes.strip_prefix(MAGIC)?.as_chunks();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    for row in words.chunks_exact(ROW).filter(|row| row[0] > 0) {
        let (head, counters) = row.split_at(HEAD + TEXT);
        let mut totals = Totals::default();
        totals.0.copy_from_slice(counters);
        rows.add(tag(head), &totals);
    }
    Some(rows)
}

/// The tag of a row; an empty one if it is not whole.
fn tag(head: &[u64]) -> RowTag {
    if head[0] != head[1] {
        return RowTag::default();
    }
    let text: Vec<u8> = head[HEAD..]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let (lengths, mut rest) = text.split_at(3);
    let [program, driver, device] = [0, 1, 2].map(|part| {
        let (name, others) = rest.split_at(usize::from(lengths[part]).min(rest.len()));
        rest = others;
        String::from_utf8_lossy(name).into_owned()
    });
    RowTag {
        day: u32::try_from(head[2]).unwrap_or(0),
        program,
        driver,
        device,
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counter;
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        let words = words.iter().map(|word| word.load(Ordering::Relaxed));
        MAGIC
            .iter()
            .copied()
            .chain(words.flat_map(u64::to_le_bytes))
            .collect()
    }

    #[test]
    fn each_day_program_and_device_has_its_row_and_the_rest_has_the_last() {
        let words = words();
        let place = |device| Labels {
            driver: "pocl",
            device,
        };
        let app = Program::new(b"app");
        for _ in 0..3 {
            add(&words, &app, place(b"one"), 7, &[Counter::Hits.by(1)]);
            add(&words, &app, place(b"two"), 7, &[Counter::Hits.by(10)]);
            add(&words, &app, place(b"one"), 8, &[Counter::Hits.by(100)]);
            add(
                &words,
                &Program::new(b"other"),
                place(b"one"),
                8,
                &[Counter::Misses.by(1)],
            );
        }
        for number in 0..100_u64 {
            add(
                &words,
                &app,
                Labels::default(),
                100 + number,
                &[Counter::Failed.by(1)],
            );
        }
        let rows = decode(&bytes(&words)).expect("rows");
        let tag = |day, program: &str, driver: &str, device: &str| RowTag {
            day,
            program: program.into(),
            driver: driver.into(),
            device: device.into(),
        };
        let hits = |tag| rows.get(&tag).map(|row| row.get(Counter::Hits));
        assert_eq!(hits(tag(7, "app", "pocl", "one")), Some(3));
        assert_eq!(hits(tag(7, "app", "pocl", "two")), Some(30));
        assert_eq!(hits(tag(8, "app", "pocl", "one")), Some(300));
        assert_eq!(hits(tag(8, "other", "pocl", "one")), Some(0));
        assert_eq!(rows.iter().count(), ROWS);
        let others = rows.get(&tag(107, OTHERS, OTHERS, "")).expect("a row");
        assert_eq!(others.get(Counter::Failed), 100 - 7);
        assert_eq!(rows.total().get(Counter::Failed), 100);
    }

    #[test]
    fn a_row_whose_claimer_was_killed_is_taken_by_the_next() {
        let words = words();
        let (app, place) = (Program::new(b"app"), Labels::default());
        add(&words, &app, place, 7, &[Counter::Hits.by(1)]);
        words[1].store(0, Ordering::Relaxed);
        assert_eq!(add(&words, &app, place, 7, &[Counter::Hits.by(1)]), 0);
        let rows = decode(&bytes(&words)).expect("rows");
        let (tag, row) = rows.iter().next().expect("a row");
        assert_eq!(
            (&*tag.program, tag.day, row.get(Counter::Hits)),
            ("app", 7, 2)
        );
    }

    #[test]
    fn names_that_are_long_or_no_text_are_cut_and_what_is_damaged_is_read() {
        let words = words();
        let place = Labels {
            driver: &"d".repeat(300),
            device: &[0xff; 300],
        };
        let program = Program::new(&[b'p'; 300]);
        add(&words, &program, place, u64::MAX, &[Counter::Hits.by(1)]);
        let mut file = bytes(&words);
        let rows = decode(&file).expect("rows");
        let (tag, _) = rows.iter().next().expect("a row");
        assert_eq!((tag.program.len(), tag.driver.len(), tag.day), (100, 24, 0));
        for byte in &mut file[MAGIC.len()..] {
            *byte = 0xff;
        }
        let rows = decode(&file).expect("rows");
        assert_eq!(rows.total().get(Counter::Hits), u64::MAX);
        assert!(decode(&file[..100]).is_some_and(|rows| rows.iter().count() == 0));
        assert!(decode(b"something else").is_none());
    }
}
