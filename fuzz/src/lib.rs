//! Every fuzz target of the workspace, and what drives them on the stable toolchain.
//!
//! - [`TARGETS`] lists all of them. Those of parsers are functions of the parsers' own crates; those that need
//!   a live object (a target behind a login, an interface, a host of clients) are modules of this crate.
//! - [`Script`] reads the bytes of an input as a sequence of steps.
//! - [`Mutator`] makes inputs from a corpus and a seed.
//! - [`drive()`] runs one target over the mutator's inputs: the example `seeded`, which `ci/fuzz` starts. The
//!   example `guided` (feature `guided`) hands the same targets to libFuzzer. `tests/replay.rs` runs all stored
//!   inputs in every `cargo test`.
//!
//! A live target runs in virtual time on one thread. It makes its world new for every input, so that an input
//! fails again whenever it is run. Beyond "no panic" each one checks that memory that was given to nobody is
//! untouched, that an honest session beside the hostile one still gets right bytes, that queues and tables stay
//! within their limits, that every request ends, and that at the end nothing is left.

#![forbid(unsafe_code)]

mod cm;
mod drive;
mod hca;
mod host;
mod ipoib;
mod mutate;
mod script;
mod seat;
mod srp;
mod targets;
mod text;

pub use drive::{Plan, Report, corpus, drive};
pub use mutate::Mutator;
pub use script::Script;
pub use targets::{Kind, TARGETS, Target, find};
