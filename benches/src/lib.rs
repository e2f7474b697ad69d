//! Helpers shared by the benchmarks.

#![deny(unsafe_code)]

pub mod control;
pub mod pair;
