//! What makes two builds the same: pure functions from the ingredients of a build to its key.

pub mod il;
pub mod ingredients;
pub mod options;
pub mod source;
