//! Streams: what carries iWARP. So far the machine that starts an MPA connection on a stream, whichever provider
//! has it.

mod mpa;
#[cfg(all(test, not(verbs_loom)))]
mod tests;

pub use mpa::{Agreed, Mpa, MpaConfig, MpaError, MpaEvent};
