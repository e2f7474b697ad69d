//! Entries of connections that neighbours make.

use futures::channel::oneshot;
use verbs_cm::Connection;
use verbs_core::mad::Time;

/// A connection from a neighbour.
pub(in crate::link) struct Passive {
    /// `None` while it is being accepted, and when it is being taken down.
    pub(in crate::link) connection: Option<Connection>,
    pub(in crate::link) used: Time,
    /// Told when its queue pair takes no receive any more.
    pub(in crate::link) last_receive: Option<oneshot::Sender<()>>,
    /// Told when the marker has completed.
    pub(in crate::link) drained: Option<oneshot::Sender<()>>,
    pub(in crate::link) is_ending: bool,
}

impl Passive {
    pub(in crate::link) fn new(
        now: Time,
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
