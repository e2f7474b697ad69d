//! What a run came to.

use crate::clock::Instant;
use crate::sim::check::Violation;
use crate::sim::run::{Options, Plan};
use crate::sim::{Counts, Coverage, Digest};

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked for.
    pub options: Options,
    /// What the seed decided.
    pub plan: Plan,
    /// Of all that happened.
    pub digest: Digest,
    /// How much that was.
    pub counts: Counts,
    /// Work requests posted.
    pub operations: u64,
    /// The virtual time at the end.
    pub end: Instant,
    /// What met what.
    pub coverage: Coverage,
    /// What was broken, if anything was.
    pub violation: Option<Violation>,
}
