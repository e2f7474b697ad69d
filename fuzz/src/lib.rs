//! Every fuzz target of the workspace, and the driver that runs them on the stable toolchain.
//!
//! - [`TARGETS`] lists all of them. Those of parsers are functions of the parsers' own crates; those that need
//!   a live object (a target behind a login, an interface, a host of clients) are modules of this crate.
//! - [`Script`] reads the bytes of an input as a sequence of steps.
//! - [`Mutator`] makes inputs from a corpus and a seed.
//! - [`drive()`] runs one target over the mutator's inputs: the example `seeded`, which `ci/fuzz` starts. The
//!   example `guided` (feature `guided`) hands the same targets to libFuzzer. `tests/replay.rs` runs all stored
//!   inputs in every `cargo test`.
//!
//! A live target runs in virtual time on one thread. It builds a new world for every input, so that an input fails
//! again whenever it is run. Beyond "no panic" each one checks that memory that was given to no peer is untouched, that
//! an honest session beside the hostile one still gets the right bytes, that queues and tables stay within their
//! limits, that every request ends, and that nothing is left at the end.

#![forbid(unsafe_code)]

mod drive;
mod mutate;
mod script;
mod targets;

pub use drive::{Plan, Report, corpus, drive};
pub use mutate::Mutator;
pub use script::Script;
pub use targets::{Kind, TARGETS, Target, find};
