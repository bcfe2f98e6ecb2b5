//! Fast searches in bytes: the scan of a source skips irrelevant bytes, in blocks that the compiler vectorizes.

const BLOCK: usize = 64;

/// The positions in a text where something can begin that matters to the lexer. Found a block at a time and kept, since such
/// positions are close together.
pub(super) struct ByteMarks<'a> {
    text: &'a [u8],
    /// The first byte of the block.
    start: usize,
    /// A bit for each byte of the block, lowest first.
    marks: u64,
}

/// Without branches, so that a block is a few vector operations. `$`, `&` and `%` do not matter, but the six bytes from `"` to `'`
/// are one comparison.
#[inline(always)]
fn is_mark(byte: u8, next: u8) -> bool {
    (byte.wrapping_sub(b'"') < 6)
        | (byte == b'\\')
        | (byte == b'/') & ((next == b'/') | (next == b'*'))
        | (byte == b'_') & ((next == b'_') | (next == b'P'))
}

impl<'a> ByteMarks<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        ByteMarks {
            text,
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
            self.marks = block(self.text, at, is_mark);
            if self.marks != 0 {
                return at + self.marks.trailing_zeros() as usize;
            }
            at += BLOCK;
        }
        self.text.len()
    }
}

/// A bit for each of the next bytes, lowest first, where the condition holds for the byte and the one after it (a line feed
/// after the last).
#[inline(always)]
fn block(text: &[u8], at: usize, stop: impl Fn(u8, u8) -> bool) -> u64 {
    if let (Some(block), Some(next)) = (text.get(at..at + BLOCK), text.get(at + 1..at + BLOCK + 1))
    {
        return bits(block, next, stop);
    }
    let rest = &text[at..];
    let length = rest.len().min(BLOCK + 1);
    let mut block = [b'\n'; BLOCK + 1];
    block[..length].copy_from_slice(&rest[..length]);
    let all = bits(&block[..BLOCK], &block[1..], stop);
    all & u64::MAX >> BLOCK.saturating_sub(length)
}

#[inline(always)]
fn bits(block: &[u8], next: &[u8], stop: impl Fn(u8, u8) -> bool) -> u64 {
    let mut flags = [0u8; BLOCK];
    for (flag, (byte, next)) in flags.iter_mut().zip(block.iter().zip(next)) {
        *flag = u8::from(stop(*byte, *next));
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

/// The first position from `at` where `stop` holds for the byte and the one after it (a line feed after the last),
/// or the text's length. `stop` is best without branches.
#[inline(always)]
pub(super) fn plain(text: &[u8], mut at: usize, stop: impl Fn(u8, u8) -> bool) -> usize {
    while at < text.len() {
        crate::key::work::count(BLOCK);
        let found = block(text, at, &stop);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        at += BLOCK;
    }
    text.len()
}

pub(super) fn line_end(text: &[u8]) -> usize {
    plain(text, 0, |byte, _| byte == b'\n')
}

/// The position of the first backslash.
pub(super) fn escape(text: &[u8]) -> Option<usize> {
    let at = plain(text, 0, |byte, _| byte == b'\\');
    (at < text.len()).then_some(at)
}

/// The first position of `word`, of two bytes or more, in `text`.
pub(super) fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at = plain(text, at, |byte, next| (byte == word[0]) & (next == word[1]));
        if at == text.len() {
            return None;
        }
        if text[at..].starts_with(word) {
            return Some(at);
        }
        at += 1;
    }
}

/// The first position of `word`, of two bytes or more and in lower case, in `text` in any case.
pub(super) fn find_in_any_case(text: &[u8], word: &[u8]) -> Option<usize> {
    // Capital letters lack this bit. Other bytes that lack it are told apart below.
    let is_like = |byte: u8, letter: u8| byte | 0x20 == letter;
    let mut at = 0;
    loop {
        at = plain(text, at, |byte, next| {
            is_like(byte, word[0]) & is_like(next, word[1])
        });
        let found = text.get(at..at + word.len())?;
        if found.eq_ignore_ascii_case(word) {
            return Some(at);
        }
        at += 1;
    }
}

/// Whether `word`, of two bytes or more, is anywhere in `text`.
pub(super) fn contains(text: &[u8], word: &[u8]) -> bool {
    find(text, word).is_some()
}
