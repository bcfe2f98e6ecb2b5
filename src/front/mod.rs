//! The doors: how applications come to us.

#![allow(unsafe_code)] // exported C functions

mod icd;
mod vendors;
