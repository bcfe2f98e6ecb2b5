//! The key: pure functions from the ingredients of a build to its key.

pub mod il;
pub mod include;
pub mod ingredients;
pub mod macros;
pub mod options;
pub mod source;
pub mod work;
