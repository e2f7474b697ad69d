//! What queues and paths ask of a queue pair that they know by nothing else.

use verbs_core::EventType;
use verbs_core::sync::Arc;

/// Something to be done once.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Somebody who could not push to a completion queue, because the queue was changing hands.
pub(crate) trait WaitsForCq: Send + Sync {
    /// Any thread can push now. Outside pins and locks.
    fn go_on(self: Arc<Self>);
}

/// A queue pair, for those who wait with it or find out that it cannot go on.
///
/// Everything is called outside of pins and locks.
pub(crate) trait QpEvents: WaitsForCq {
    /// Goes to ERR for a reason that a completion or an event tells; `false` if it is in RESET or ERR.
    fn fail(self: Arc<Self>) -> bool;

    /// Its send queue goes to SQE for a reason that a completion tells; receives go on.
    fn fail_sends(self: Arc<Self>);

    /// The driver of its port has it take a turn in the next round.
    fn list(self: Arc<Self>);

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
