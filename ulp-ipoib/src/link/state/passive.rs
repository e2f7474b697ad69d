//! Connections that neighbours have made: packets come over them, none is sent (RFC 4755).
//!
//! Their queue pairs take receives from one shared queue. One of them that is taken down goes through four
//! steps: it is moved to ERR; the device says that it takes no receive any more; a marker is posted to
//! it, which completes behind all receives that it had taken; when that has come, it is destroyed.

use futures::channel::oneshot;
use verbs_core::mad::Time;

use super::State;
use super::action::Action;

impl State {
    /// The device has said that a queue pair takes no receive any more.
    pub(in crate::link) fn last_receive(&mut self, qpn: u32) -> Option<oneshot::Sender<()>> {
        self.passive.get_mut(&qpn)?.last_receive.take()
    }

    /// The marker behind a queue pair's receives has completed.
    pub(in crate::link) fn drained(&mut self, qpn: u32) -> Option<oneshot::Sender<()>> {
        self.passive.get_mut(&qpn)?.drained.take()
    }

    /// Connections that nobody has sent over for twice the time after which the other end gives them up.
    pub(in crate::link) fn tick_passive(&mut self, now: Time) {
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
