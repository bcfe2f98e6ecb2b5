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

/// A copy of the elements.
///
/// # Errors
/// There is no memory for them.
pub fn copy<T: Clone>(elements: &[T]) -> Result<Vec<T>, Bypass> {
    let mut list = with_capacity(elements.len())?;
    list.extend_from_slice(elements);
    Ok(list)
}
