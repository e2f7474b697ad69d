//! What queues ask of a queue pair that they know by nothing else.

use verbs_core::sync::Arc;

/// A queue pair, for those who wait with it or find out that it cannot go on.
///
/// Everything is called outside of pins and locks.
pub(crate) trait QpEvents: Send + Sync {
    /// Goes to ERR for a reason that a completion or an event tells; `false` if it is in RESET or ERR.
    fn fail(self: Arc<Self>) -> bool;

    /// There is reason to try again at once.
    fn kick(self: Arc<Self>);
}
