//! Fast searches in bytes: the scan of a source skips irrelevant bytes, in blocks that the compiler vectorizes.

const BLOCK: usize = 64;

/// Texts below this length are searched byte by byte: a block would take longer.
const SHORT: usize = 16;

/// A condition on a byte and the one after it (a line feed after the last). Best without branches, so that a block is a few vector
/// operations.
pub(super) trait Condition {
    /// Whether it holds.
    fn holds(&self, byte: u8, next: u8) -> bool;
}

impl<F: Fn(u8, u8) -> bool> Condition for F {
    #[inline(always)]
    fn holds(&self, byte: u8, next: u8) -> bool {
        self(byte, next)
    }
}

/// Something can begin at the byte that matters to the lexer.
pub(super) struct TokenStart;

impl Condition for TokenStart {
    /// `$`, `&` and `%` do not matter, but the six bytes from `"` to `'` are one comparison.
    #[inline(always)]
    fn holds(&self, byte: u8, next: u8) -> bool {
        (byte.wrapping_sub(b'"') < 6)
            | (byte == b'\\')
            | (byte == b'/') & ((next == b'/') | (next == b'*'))
            | (byte == b'_') & ((next == b'_') | (next == b'P') | (next == b'C'))
    }
}

/// The positions in a text where a condition holds. Found a block at a time and kept: where such positions are close together, no block
/// is looked at again for each of them.
pub(super) struct Marks<'a, C> {
    text: &'a [u8],
    condition: C,
    /// The first byte of the block.
    start: usize,
    /// A bit for each byte of the block, lowest first.
    marks: u64,
}

impl<'a, C: Condition> Marks<'a, C> {
    pub(super) fn new(text: &'a [u8], condition: C) -> Self {
        Marks {
            text,
            condition,
            start: text.len(),
            marks: 0,
        }
    }

    /// The first mark from `at` on, or the text's length.
    #[inline(always)]
    pub(super) fn next(&mut self, mut at: usize) -> usize {
        if (self.start..self.start + BLOCK).contains(&at) {
            let rest = self.marks >> (at - self.start);
            if rest != 0 {
                return at + rest.trailing_zeros() as usize;
            }
            at = self.start + BLOCK;
        }
        while at < self.text.len() {
            self.start = at;
            self.marks = block(self.text, at, &self.condition);
            if self.marks != 0 {
                return at + self.marks.trailing_zeros() as usize;
            }
            at += BLOCK;
        }
        self.text.len()
    }
}

/// A bit for each of the next bytes, lowest first, where the condition holds.
#[inline(always)]
fn block(text: &[u8], at: usize, condition: &impl Condition) -> u64 {
    if let (Some(block), Some(next)) = (text.get(at..at + BLOCK), text.get(at + 1..at + BLOCK + 1))
    {
        return bits(block, next, condition);
    }
    let rest = &text[at..];
    let length = rest.len().min(BLOCK + 1);
    let mut block = [b'\n'; BLOCK + 1];
    block[..length].copy_from_slice(&rest[..length]);
    let all = bits(&block[..BLOCK], &block[1..], condition);
    all & u64::MAX >> BLOCK.saturating_sub(length)
}

#[inline(always)]
fn bits(block: &[u8], next: &[u8], condition: &impl Condition) -> u64 {
    let mut flags = [0u8; BLOCK];
    for (flag, (byte, next)) in flags.iter_mut().zip(block.iter().zip(next)) {
        *flag = u8::from(condition.holds(*byte, *next));
    }
    let eights = || {
        flags
            .as_chunks::<8>()
            .0
            .iter()
            .map(|eight| u64::from_le_bytes(*eight))
    };
    if eights().fold(0, |any, eight| any | eight) == 0 {
        return 0;
    }
    // The multiplication moves the lowest bit of each of eight bytes into the highest byte.
    eights().enumerate().fold(0, |bits, (index, eight)| {
        bits | (eight.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * index)
    })
}

/// The first position from `at` where the condition holds, or the text's length.
#[inline(always)]
pub(super) fn first(text: &[u8], at: usize, condition: impl Condition) -> usize {
    Marks::new(text, condition).next(at)
}

/// Whether the condition and the test hold anywhere in the text. The test gets the text from there on.
#[inline(always)]
pub(super) fn holds_anywhere(
    text: &[u8],
    condition: impl Condition,
    mut test: impl FnMut(&[u8]) -> bool,
) -> bool {
    if text.len() < SHORT {
        let next = |at: usize| text.get(at + 1).copied().unwrap_or(b'\n');
        return (0..text.len()).any(|at| condition.holds(text[at], next(at)) && test(&text[at..]));
    }
    let mut marks = Marks::new(text, condition);
    let mut at = marks.next(0);
    while at < text.len() {
        if test(&text[at..]) {
            return true;
        }
        at = marks.next(at + 1);
    }
    false
}

pub(super) fn line_end(text: &[u8]) -> usize {
    first(text, 0, |byte: u8, _: u8| byte == b'\n')
}

/// The first position of `word`, of two bytes or more, in `text`.
pub(super) fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    let mut place = None;
    let begins = |byte: u8, next: u8| (byte == word[0]) & (next == word[1]);
    holds_anywhere(text, begins, |rest| {
        let is_there = rest.starts_with(word);
        if is_there {
            place = Some(text.len() - rest.len());
        }
        is_there
    });
    place
}

/// Whether `word`, of two bytes or more, is anywhere in `text`.
pub(super) fn contains(text: &[u8], word: &[u8]) -> bool {
    find(text, word).is_some()
}
