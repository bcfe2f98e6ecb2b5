//! The protocol of the clGet...Info functions: a size, a buffer and the size of the answer.

use std::ffi::c_void;

use opencl_sys::{CL_INVALID_VALUE, CL_OUT_OF_HOST_MEMORY, CL_SUCCESS, cl_int};

use crate::fallible;

/// The largest answer that is believed: a program with two devices on PoCL 3.1 reports garbage sizes for the device that was not
/// built.
pub const MAX_ANSWER_BYTES: usize = 1 << 30;

/// A number as the value of a query, in the byte order of the machine.
pub trait Number: Sized {
    /// The bytes of the value.
    fn to_value(self) -> Vec<u8>;
    /// The number, if the value has its size.
    fn from_value(value: &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        #[allow(clippy::disallowed_methods)] // nothing of this is ever stored
        impl Number for $number {
            fn to_value(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }

            fn from_value(value: &[u8]) -> Option<Self> {
                Some(Self::from_ne_bytes(value.try_into().ok()?))
            }
        }
    )*};
}
numbers!(u16, i32, u32, u64, usize);

/// Asks twice: for the size, then for the bytes.
///
/// # Errors
/// The driver's error code, CL_OUT_OF_HOST_MEMORY if there is no room for the answer, or CL_INVALID_VALUE for a size beyond
/// [`MAX_ANSWER_BYTES`] or one that changes in between.
pub fn ask(query: impl Fn(usize, *mut c_void, *mut usize) -> cl_int) -> Result<Vec<u8>, cl_int> {
    ask_into(0, query)
}

/// A value, and which of its bytes the driver did not write. They are 0 in the value.
pub struct PartialValue {
    /// The value.
    pub bytes: Vec<u8>,
    /// For each byte of the value 1 if it was not written, else 0. Empty if all bytes were written.
    pub unwritten: Vec<u8>,
}

/// Asks as [`ask`] does, and finds out which bytes the driver does not write although it counts them in the size. PoCL does not write
/// the one byte that it tells for the names of the kernels of a compiled program (measured on 3.1, 6.0 and 7.1).
///
/// The driver is asked once more only if a byte of its answer is the one of which the buffer was full before.
///
/// # Errors
/// Those of [`ask`].
pub fn ask_partial(
    query: impl Fn(usize, *mut c_void, *mut usize) -> cl_int,
) -> Result<PartialValue, cl_int> {
    // Neither is part of a name.
    const FILLS: [u8; 2] = [0xa5, 0x1a];
    let mut bytes = ask_into(FILLS[0], &query)?;
    if !bytes.contains(&FILLS[0]) {
        let unwritten = Vec::new();
        return Ok(PartialValue { bytes, unwritten });
    }
    let mut unwritten = ask_into(FILLS[1], &query)?;
    if unwritten.len() != bytes.len() {
        return Err(CL_INVALID_VALUE);
    }
    for (byte, other) in bytes.iter_mut().zip(&mut unwritten) {
        *other = u8::from([*byte, *other] == FILLS);
        if *other == 1 {
            *byte = 0;
        }
    }
    if !unwritten.contains(&1) {
        unwritten.clear();
    }
    Ok(PartialValue { bytes, unwritten })
}

/// See [`ask`]. The buffer is full of one byte before.
fn ask_into(
    fill: u8,
    query: impl Fn(usize, *mut c_void, *mut usize) -> cl_int,
) -> Result<Vec<u8>, cl_int> {
    let mut size = 0;
    let code = query(0, std::ptr::null_mut(), &mut size);
    if code != CL_SUCCESS {
        return Err(code);
    }
    if size > MAX_ANSWER_BYTES {
        return Err(CL_INVALID_VALUE);
    }
    if size == 0 {
        return Ok(Vec::new());
    }
    let mut bytes = fallible::with_capacity(size).map_err(|_| CL_OUT_OF_HOST_MEMORY)?;
    bytes.resize(size, fill);
    let mut written = size;
    let code = query(size, bytes.as_mut_ptr().cast(), &mut written);
    if code != CL_SUCCESS {
        return Err(code);
    }
    if written > size {
        return Err(CL_INVALID_VALUE);
    }
    bytes.truncate(written);
    Ok(bytes)
}

/// The place for the answer of a clGet...Info call, as the application gives it.
#[derive(Clone, Copy)]
pub struct Reply {
    /// `param_value_size`, in bytes.
    pub size: usize,
    /// `param_value`; may be NULL.
    pub value: *mut c_void,
    /// `param_value_size_ret`; may be NULL.
    pub size_ret: *mut usize,
}

/// Asks the driver for a value of its own, in place of a recorded one.
pub type Ask<'a> = &'a dyn Fn(Reply) -> cl_int;

impl Reply {
    /// Answers with a value that the driver would give for another program. `ask` asks the driver about the present one. If the
    /// application's arguments leave no room for the value, or want none, the driver decides about the code and what is written:
    /// PoCL tells the size of names that do not fit (measured). None if the value does not fit and the driver has no value of that
    /// kind.
    pub fn give(self, bytes: &[u8], ask: Ask) -> Option<cl_int> {
        self.give_partial(bytes, &[], ask)
    }

    /// Answers as [`Reply::give`] does, without the bytes that the driver would not write: see [`PartialValue::unwritten`].
    pub fn give_partial(self, bytes: &[u8], unwritten: &[u8], ask: Ask) -> Option<cl_int> {
        let fits = !self.value.is_null() && self.size >= bytes.len();
        if fits || self.wants_size_alone() {
            return Some(self.answer_partial(bytes, unwritten));
        }
        let own = Reply::ask_size_alone(ask).unwrap_or(0);
        let has_own = own > 0;
        match (has_own, self.value.is_null()) {
            (true, true) => Some(self.ask_with(self.size, bytes.len(), ask)),
            (false, true) => Some(self.answer_partial(bytes, unwritten)),
            (true, false) => Some(self.ask_with(self.size.min(own - 1), bytes.len(), ask)),
            (false, false) => None,
        }
    }

    /// The driver's answer, except for the size of the value.
    fn ask_with(self, size: usize, length: usize, ask: Ask) -> cl_int {
        const UNTOUCHED: usize = usize::MAX;
        let mut written = UNTOUCHED;
        let code = ask(Reply {
            size,
            value: self.value,
            size_ret: match self.size_ret.is_null() {
                true => self.size_ret,
                false => &mut written,
            },
        });
        if written != UNTOUCHED {
            self.write_size(length);
        }
        code
    }

    /// Answers a query of our own: CL_INVALID_VALUE if the buffer is too small.
    pub fn answer(self, bytes: &[u8]) -> cl_int {
        self.answer_partial(bytes, &[])
    }

    fn answer_partial(self, bytes: &[u8], unwritten: &[u8]) -> cl_int {
        if !self.value.is_null() {
            if self.size < bytes.len() {
                return CL_INVALID_VALUE;
            }
            let value = self.value.cast::<u8>();
            let is_written = |index| unwritten.get(index) != Some(&1);
            // SAFETY: the specification of every clGet...Info function requires `param_value` to point to at least
            // `param_value_size` bytes, and no more than that is written.
            unsafe {
                if unwritten.is_empty() {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), value, bytes.len());
                } else {
                    for (index, byte) in bytes.iter().enumerate().filter(|(at, _)| is_written(*at))
                    {
                        value.add(index).write(*byte);
                    }
                }
            }
        }
        self.write_size(bytes.len());
        CL_SUCCESS
    }

    /// The size that is told if nothing else is wanted.
    pub fn ask_size_alone(ask: Ask) -> Result<usize, cl_int> {
        let mut size = 0;
        let code = ask(Reply {
            size: 0,
            value: std::ptr::null_mut(),
            size_ret: &mut size,
        });
        match code {
            CL_SUCCESS => Ok(size),
            code => Err(code),
        }
    }

    /// Whether nothing but the size of the value is wanted.
    pub fn wants_size_alone(self) -> bool {
        self.value.is_null() && self.size == 0 && !self.size_ret.is_null()
    }

    /// Tells a size, without a value.
    pub fn give_size(self, length: usize) -> cl_int {
        self.write_size(length);
        CL_SUCCESS
    }

    fn write_size(self, length: usize) {
        if !self.size_ret.is_null() {
            // SAFETY: a `param_value_size_ret` that is not NULL points to a size_t, by the same specification.
            unsafe { self.size_ret.write(length) };
        }
    }

    /// Answers CL_PROGRAM_BINARIES: the value is an array of pointers, each to room for the binary of one device. `ask` as in
    /// [`Reply::give`].
    ///
    /// A NULL pointer in the array leaves that device out (OpenCL 3.0, 5.8.7); PoCL 3.1 and rusticl 22.3 crash there,
    /// which no application can want.
    pub fn give_binaries(self, binaries: &[&[u8]], ask: Ask) -> Option<cl_int> {
        let size = size_of_val(binaries) / 2;
        if self.value.is_null() || self.size < size {
            return self.give(&vec![0; size], ask);
        }
        for (index, binary) in binaries.iter().enumerate() {
            // SAFETY: `param_value` points to `size` bytes, an array of one pointer for each device; each that is not
            // NULL points to as many bytes as CL_PROGRAM_BINARY_SIZES told for the device (OpenCL 3.0, 5.8.7).
            unsafe {
                let room = self.value.cast::<*mut u8>().add(index).read_unaligned();
                if !room.is_null() {
                    std::ptr::copy_nonoverlapping(binary.as_ptr(), room, binary.len());
                }
            }
        }
        self.write_size(size);
        Some(CL_SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_cannot_be_is_not_believed() {
        let answer = ask(|_, _, size| {
            // SAFETY: `ask` always passes a valid size pointer.
            unsafe { *size = usize::MAX };
            CL_SUCCESS
        });
        assert_eq!(answer, Err(CL_INVALID_VALUE));
    }

    /// A driver that tells three bytes and writes the first and the last. Counts how often it is asked for the value.
    fn forgets_the_second<'a>(
        written: [u8; 2],
        asked: &'a std::cell::Cell<u32>,
    ) -> impl Fn(usize, *mut c_void, *mut usize) -> cl_int + 'a {
        move |_, value: *mut c_void, size: *mut usize| {
            // SAFETY: `ask` always passes a valid size pointer, and a value that is NULL or has three bytes.
            unsafe {
                *size = 3;
                if !value.is_null() {
                    asked.set(asked.get() + 1);
                    value.cast::<u8>().write(written[0]);
                    value.cast::<u8>().add(2).write(written[1]);
                }
            }
            CL_SUCCESS
        }
    }

    #[test]
    fn a_byte_that_the_driver_does_not_write_is_not_given_either() {
        let asked = std::cell::Cell::new(0);
        for written in [*b"ac", [0xa5, 0x1a], [0x1a, 0xa5]] {
            let found = ask_partial(forgets_the_second(written, &asked)).expect("an answer");
            assert_eq!(found.bytes, [written[0], 0, written[1]]);
            assert_eq!(found.unwritten, [0, 1, 0]);
            let mut buffer = [7u8; 4];
            let reply = Reply {
                size: 4,
                value: buffer.as_mut_ptr().cast(),
                size_ret: std::ptr::null_mut(),
            };
            let given = reply.give_partial(&found.bytes, &found.unwritten, &|_| -1);
            assert_eq!(given, Some(CL_SUCCESS));
            assert_eq!(buffer, [written[0], 7, written[1], 7]);
        }
    }

    #[test]
    fn a_driver_that_writes_all_bytes_is_asked_for_them_once() {
        let asked = std::cell::Cell::new(0);
        let whole = |text: [u8; 3], asked: &std::cell::Cell<u32>| {
            ask_partial(|_, value, size| {
                // SAFETY: `ask` always passes a valid size pointer, and a value that is NULL or has three bytes.
                unsafe {
                    *size = 3;
                    if !value.is_null() {
                        asked.set(asked.get() + 1);
                        value.cast::<[u8; 3]>().write(text);
                    }
                }
                CL_SUCCESS
            })
        };
        let found = whole(*b"abc", &asked).expect("an answer");
        assert_eq!((found.bytes.as_slice(), asked.get()), (&b"abc"[..], 1));
        assert!(found.unwritten.is_empty());
        // Bytes of the buffer that are part of the answer are no gaps.
        let found = whole([0xa5, 0x1a, 0xa5], &asked).expect("an answer");
        assert_eq!(found.bytes, [0xa5, 0x1a, 0xa5]);
        assert!(found.unwritten.is_empty());
    }

    /// A driver whose own value has this many bytes, and which tells the size also where that does not fit.
    fn driver(length: usize) -> impl Fn(Reply) -> cl_int {
        move |reply: Reply| {
            // SAFETY: the pointers of these tests are NULL or point to their variables.
            unsafe {
                if !reply.size_ret.is_null() {
                    reply.size_ret.write(length);
                }
            }
            match !reply.value.is_null() && reply.size < length {
                true => CL_INVALID_VALUE,
                false => CL_SUCCESS,
            }
        }
    }

    #[test]
    fn a_buffer_that_is_too_small_is_judged_by_the_driver_and_not_written() {
        let mut buffer = [7u8; 4];
        let mut size = 99;
        let reply = Reply {
            size: 2,
            value: buffer.as_mut_ptr().cast(),
            size_ret: &mut size,
        };
        let silent = |reply: Reply| match reply.value.is_null() {
            true => driver(3)(reply),
            false => CL_INVALID_VALUE,
        };
        assert_eq!(reply.give(b"abc", &silent), Some(CL_INVALID_VALUE));
        assert_eq!((buffer, size), ([7; 4], 99));
        // Also where the driver's own value would fit.
        assert_eq!(reply.give(b"abc", &driver(1)), Some(CL_INVALID_VALUE));
        assert_eq!((buffer, size), ([7; 4], 3));
        assert_eq!(reply.give(b"abc", &|_| -1), None);
        let reply = Reply { size: 4, ..reply };
        assert_eq!(reply.give(b"abc", &|_| -1), Some(CL_SUCCESS));
        assert_eq!((&buffer[..3], size), (b"abc".as_slice(), 3));
    }

    #[test]
    fn binaries_go_where_the_pointers_of_the_array_say() {
        let mut first = [0u8; 3];
        let mut rooms = [first.as_mut_ptr(), std::ptr::null_mut()];
        let mut size = 0;
        let reply = Reply {
            size: 16,
            value: rooms.as_mut_ptr().cast(),
            size_ret: &mut size,
        };
        let (binaries, ask) = ([b"one".as_slice(), b"two"], driver(16));
        assert_eq!(reply.give_binaries(&binaries, &ask), Some(CL_SUCCESS));
        assert_eq!((&first, size), (b"one", 16));
        let short = Reply { size: 15, ..reply };
        let code = short.give_binaries(&binaries, &ask);
        assert_eq!(code, Some(CL_INVALID_VALUE));
    }
}
