//! The OpenCL ABI over `opencl_sys`: handles as plain values, dispatch-table slots, and the two-call query protocol.

#![allow(unsafe_code)] // reads and writes through the pointers of the C interface; each block says why it is sound

pub mod dispatch;
pub mod info;
pub mod unsupported;

use std::ffi::c_void;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        ///
        /// A value, not a pointer: it is compared and passed to the driver, never dereferenced here.
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(usize);

        #[allow(dead_code)] // every handle has them all
        impl $name {
            /// The handle as the application or the driver gave it.
            pub fn new(raw: *mut c_void) -> Self {
                Self(raw as usize)
            }

            /// The handle as C takes it.
            pub fn raw(self) -> *mut c_void {
                self.0 as *mut c_void
            }

            /// Whether this is the NULL handle.
            pub fn is_null(self) -> bool {
                self.0 == 0
            }

            /// The handle that a query returned as its value.
            pub fn from_value(value: &[u8]) -> Option<Self> {
                info::Number::from_value(value).map(Self)
            }

            /// The handle as the value of a query.
            pub fn to_value(self) -> Vec<u8> {
                info::Number::to_value(self.0)
            }
        }
    )*};
}

handles! {
    /// A `cl_platform_id`.
    Platform,
    /// A `cl_device_id`.
    Device,
    /// A `cl_context`.
    Context,
    /// A `cl_program`.
    Program,
    /// A `cl_kernel`.
    Kernel,
}

/// The type of `pfn_notify` of clBuildProgram, clCompileProgram and clLinkProgram. An application may leave it by an exception.
pub type Notify = unsafe extern "C-unwind" fn(program: *mut c_void, user_data: *mut c_void);
