//! Buffers whose size comes from an application or a file: if there is no memory for one, the driver is called as if we were not
//! there.
//!
//! Without us, an application with little address space left gets its program or an error code (measured: Intel's CPU runtime).
//! Rust would end the process if an ordinary allocation fails.

use crate::outcome::Bypass;

/// Adds an element.
///
/// # Errors
/// There is no memory for it.
#[inline]
pub fn push<T>(list: &mut Vec<T>, element: T) -> Result<(), Bypass> {
    list.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
    list.push(element);
    Ok(())
}

/// An empty buffer with room for so many elements.
///
/// # Errors
/// There is no memory for it.
pub fn with_capacity<T>(count: usize) -> Result<Vec<T>, Bypass> {
    let mut list = Vec::new();
    list.try_reserve_exact(count)
        .map_err(|_| Bypass::NoMemory)?;
    Ok(list)
}

/// The same texts, one after another, with another text between them.
///
/// # Errors
/// There is no memory for them.
pub fn join<'a>(
    texts: impl Iterator<Item = &'a [u8]> + Clone,
    between: &[u8],
) -> Result<Vec<u8>, Bypass> {
    let length = texts.clone().map(|text| text.len() + between.len()).sum();
    let mut joined = with_capacity(length)?;
    for (index, text) in texts.enumerate() {
        if index > 0 {
            joined.extend_from_slice(between);
        }
        joined.extend_from_slice(text);
    }
    Ok(joined)
}

/// A copy of the elements.
///
/// # Errors
/// There is no memory for them.
pub fn copy<T: Clone>(elements: &[T]) -> Result<Vec<T>, Bypass> {
    let mut list = with_capacity(elements.len())?;
    list.extend_from_slice(elements);
    Ok(list)
}
