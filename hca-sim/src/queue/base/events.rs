//! The calls of queues and paths to a queue pair of which they know no more than these traits.

use verbs_core::EventType;
use verbs_core::sync::Arc;

/// Something to be done once.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A queue pair that could not push to a completion queue, because the queue was changing hands.
pub(crate) trait WaitsForCq: Send + Sync {
    /// Any thread can push now. Called outside pins and locks.
    fn go_on(self: Arc<Self>);
}

/// A queue pair, for code that waits together with it or finds out that it cannot continue.
///
/// Everything is called outside of pins and locks.
pub(crate) trait QpEvents: WaitsForCq {
    /// Goes to ERR for a reason that a completion or an event reports; `false` if it is in RESET or ERR.
    fn fail(self: Arc<Self>) -> bool;

    /// Its send queue goes to SQE for a reason that a completion reports; receives continue.
    fn fail_sends(self: Arc<Self>);

    /// The driver of its port lets it take a turn in the next round.
    fn list(self: Arc<Self>);

    /// There is a reason to try again at once.
    fn kick(self: Arc<Self>);

    /// A message has arrived, so there is a peer. In RTR the first message raises an event. Takes no lock.
    fn contact(self: Arc<Self>);

    /// Raises an event about it.
    fn raise(&self, event: EventType);

    /// Scatters all inline CQEs that wait for a poll, then calls `then`.
    fn recall(self: Arc<Self>, then: Job);
}
