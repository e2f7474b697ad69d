//! Connections that neighbours have made: packets are received on them, none is sent (RFC 4755).
//!
//! Their queue pairs take receives from one shared queue. Taking one of them down needs four steps: it is moved
//! to ERR; the device reports that it will take no more receives; a marker is posted to it, which completes after
//! all receives that it had taken; when the marker has completed, the queue pair is destroyed.

use futures::channel::oneshot;
use verbs_core::time::Instant;

use super::State;
use super::action::Action;

impl State {
    /// The device has reported that a queue pair will take no more receives.
    pub(in crate::link) fn last_receive(&mut self, qpn: u32) -> Option<oneshot::Sender<()>> {
        self.passive.get_mut(&qpn)?.last_receive.take()
    }

    /// The marker behind a queue pair's receives has completed.
    pub(in crate::link) fn drained(&mut self, qpn: u32) -> Option<oneshot::Sender<()>> {
        self.passive.get_mut(&qpn)?.drained.take()
    }

    /// Ends connections on which nothing was received for twice the time after which the other end closes them.
    pub(in crate::link) fn tick_passive(&mut self, now: Instant) {
        let idle = self.config.idle * 2;
        for (&qpn, passive) in &mut self.passive {
            let is_unused = now.since(passive.used) >= idle && passive.connection.is_some();
            if is_unused && !std::mem::replace(&mut passive.is_ending, true) {
                self.counters.connections_reaped += 1;
                self.actions.push(Action::Disconnect(qpn));
            }
        }
    }
}
