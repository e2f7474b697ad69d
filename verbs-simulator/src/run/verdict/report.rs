//! The result of a run.

use verbs_link::time::Instant;

use crate::check::Violation;
use crate::run::{Options, Plan};
use crate::{Counts, Coverage, Digest};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The options.
    pub options: Options,
    /// What was drawn from the seed.
    pub plan: Plan,
    /// The digest of everything that happened.
    pub digest: Digest,
    /// How much happened.
    pub counts: Counts,
    /// Work requests posted.
    pub operations: u64,
    /// The virtual time at the end.
    pub end: Instant,
    /// Which operations met which faults.
    pub coverage: Coverage,
    /// The broken rule, if any.
    pub violation: Option<Violation>,
}
