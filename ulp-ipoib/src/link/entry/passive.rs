//! Entries for connections that neighbours make.

use futures::channel::oneshot;
use verbs_cm::Connection;
use verbs_core::time::Instant;

/// A connection from a neighbour.
pub(in crate::link) struct Passive {
    /// `None` while it is being accepted, and when it is being taken down.
    pub(in crate::link) connection: Option<Connection>,
    pub(in crate::link) used: Instant,
    /// Signals that its queue pair will take no more receives.
    pub(in crate::link) last_receive: Option<oneshot::Sender<()>>,
    /// Signals that the marker has completed.
    pub(in crate::link) drained: Option<oneshot::Sender<()>>,
    pub(in crate::link) is_ending: bool,
}

impl Passive {
    pub(in crate::link) fn new(
        now: Instant,
        last_receive: oneshot::Sender<()>,
        drained: oneshot::Sender<()>,
    ) -> Self {
        Self {
            connection: None,
            used: now,
            last_receive: Some(last_receive),
            drained: Some(drained),
            is_ending: false,
        }
    }
}
