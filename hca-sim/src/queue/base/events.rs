//! What queues and paths ask of a queue pair that they know by nothing else.

use verbs_core::EventType;
use verbs_core::sync::Arc;

/// Something to be done once.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A queue pair, for those who wait with it or find out that it cannot go on.
///
/// Everything is called outside of pins and locks.
pub(crate) trait QpEvents: Send + Sync {
    /// Goes to ERR for a reason that a completion or an event tells; `false` if it is in RESET or ERR.
    fn fail(self: Arc<Self>) -> bool;

    /// There is reason to try again at once.
    fn kick(self: Arc<Self>);

    /// A message has come, so that the peer is there. In RTR the first one is an event, and what is sent from
    /// now on goes the short way.
    fn contact(self: Arc<Self>);

    /// Raises an event about it.
    fn raise(&self, event: EventType);

    /// Has all riders unloaded that wait for a poll, then does `then`.
    fn recall(self: Arc<Self>, then: Job);
}
