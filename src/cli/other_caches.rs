//! Other caches of compiled kernels: which there are, where each is for this user, and what its files look like.

pub mod environment;
pub mod structure;
pub mod table;
