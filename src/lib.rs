//! oclcache: a compiler cache for OpenCL.

pub mod cache;
pub mod cl;
pub mod cli;
pub mod config;
pub mod driver;
mod front;
pub mod hook;
pub mod key;
pub mod log;
pub mod outcome;
pub mod shadow;
pub mod store;
