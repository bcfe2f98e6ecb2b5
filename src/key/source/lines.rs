//! Undoes trigraphs and line splices: the first two phases of C99 5.1.1.2.

use std::borrow::Cow;

use super::lexer::{
    NO_TRIGRAPHS, RETURN_IS_BLANK, STEPS_OF_MARK, STRICT_SPLICES, WHOLE_COMMENT_ENDS,
};
use super::scan::Marks;
use crate::fallible;
use crate::key::work::Work;
use crate::outcome::Bypass;

/// Undoes trigraphs and line splices (phases 1 and 2) and makes each line end one line feed.
///
/// # Errors
/// There is no memory for a copy.
pub(super) fn join_lines<'a>(
    text: &'a [u8],
    reading: u8,
    met: &mut u8,
    work: &Work,
) -> Result<Cow<'a, [u8]>, Bypass> {
    work.count_search(text.len());
    let is_odd = |byte: u8, _: u8| (byte == b'\\') | (byte == b'?') | (byte == b'\r');
    // A byte order mark is no part of the text.
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    let mut odd = Marks::new(text, is_odd);
    let mut at = odd.next(0);
    if at == text.len() {
        return Ok(Cow::Borrowed(text));
    }
    let mut joined = fallible::with_capacity(text.len())?;
    joined.extend_from_slice(&text[..at]);
    while at < text.len() {
        work.count(STEPS_OF_MARK);
        let (mut byte, mut width) = (text[at], 1);
        if let Some(meant) = trigraph(&text[at..]) {
            *met |= NO_TRIGRAPHS;
            if reading & NO_TRIGRAPHS == 0 {
                (byte, width) = (meant, 3);
            }
        }
        let mut emit = Some(byte);
        if byte == b'\r' {
            emit = match text.get(at + 1) {
                Some(b'\n') => None,
                _ => {
                    *met |= RETURN_IS_BLANK;
                    Some(if reading & RETURN_IS_BLANK == 0 {
                        b'\n'
                    } else {
                        b' '
                    })
                }
            };
        } else if byte == b'\\'
            && let Some(splice) = splice(&text[at + width..], reading, met)?
        {
            width += splice;
            emit = None;
            if joined.last() == Some(&b'*') {
                *met |= WHOLE_COMMENT_ENDS;
                emit = (reading & WHOLE_COMMENT_ENDS != 0).then_some(b' ');
            }
        }
        joined.extend(emit);
        at += width;
        let next = odd.next(at);
        joined.extend_from_slice(&text[at..next]);
        at = next;
    }
    Ok(Cow::Owned(joined))
}

/// The length of the line end, blanks before it included, which a backslash before `rest` would join over.
///
/// # Errors
/// There is a NUL among the blanks, which clang skips in the end of a comment alone.
fn splice(rest: &[u8], reading: u8, met: &mut u8) -> Result<Option<usize>, Bypass> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | 0x0B | 0x0C);
    let blanks = rest.iter().take_while(|byte| is_blank(byte)).count();
    if rest.get(blanks) == Some(&0) {
        return Err(Bypass::UnknownDirective);
    }
    let end = match rest[blanks..] {
        [b'\r', b'\n', ..] => 2,
        // For clang this is one end as well. This reading is the first.
        [b'\n', b'\r', ..] if reading & RETURN_IS_BLANK == 0 => {
            *met |= RETURN_IS_BLANK;
            2
        }
        [b'\n', ..] => 1,
        [b'\r', ..] => {
            *met |= RETURN_IS_BLANK;
            if reading & RETURN_IS_BLANK != 0 {
                return Ok(None);
            }
            1
        }
        _ => return Ok(None),
    };
    if blanks > 0 {
        *met |= STRICT_SPLICES;
        if reading & STRICT_SPLICES != 0 {
            return Ok(None);
        }
    }
    Ok(Some(blanks + end))
}

fn trigraph(text: &[u8]) -> Option<u8> {
    let [b'?', b'?', third, ..] = text else {
        return None;
    };
    let pairs = b"=#/\\'^([)]!|<{>}-~".as_chunks::<2>().0;
    pairs
        .iter()
        .find(|[from, _]| from == third)
        .map(|[_, meant]| *meant)
}
