//! What a benchmark gets.

use super::machine::Machine;
use super::method::Method;
use crate::cli::Bench;

/// Which benchmark it is, where it runs, and for how long.
pub(crate) struct Stage {
    pub(super) bench: Bench,
    pub(super) machine: Machine,
    /// For the whole benchmark.
    pub(super) method: Method,
    pub(super) quick: bool,
}
