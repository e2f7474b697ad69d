//! What hears of the state machine's outputs: connections, listeners, questions.

use std::task::{Context, Poll};

use verbs_core::QpAttr;
use verbs_core::sync::Arc;

use crate::event::{Event, QpChange};
use crate::hub::Hub;

/// Hears of events. Called outside of locks, by the thread that calls the machine.
pub(crate) trait Handler: Send + Sync {
    /// The machine has something to say.
    fn event(&self, event: Event);
}

/// A connection, as the machine's outputs are about it.
pub(crate) trait ConnHandler: Handler {
    /// Issues a modify of its queue pair; the hub hears of the end ([`Hub::modified`]). Under NoBlock.
    fn modify(&self, hub: &Arc<Hub>, change: QpChange);

    /// Modifies its queue pair, and blocks the thread until it is done.
    fn modify_and_wait(&self, attr: QpAttr) -> Result<(), verbs_core::Error>;

    /// Whether it is over: its queue pair is in ERR, what was posted is flushed.
    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<()>;
}
