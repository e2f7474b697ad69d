//! The facts of a connection for the log: noted by its machines, reported when none is held.

use bitflags::bitflags;
use verbs_core::{Qpn, WcStatus};

bitflags! {
    /// The facts of a turn.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Told: u8 {
        /// Nothing was acknowledged in time: it is sent again.
        const TIMEOUT = 1 << 0;
        /// The peer had no receive: it is sent again later.
        const RNR_NAK = 1 << 1;
        /// The peer missed something, or an answer was missing: it is sent again.
        const SEQUENCE = 1 << 2;
        /// The peer was informed that no receive is posted here.
        const NO_RECEIVE = 1 << 3;
        /// A request was refused.
        const REFUSED = 1 << 4;
        /// The peer's network reports congestion.
        const CNP = 1 << 5;
        /// The queue pair has moved to its alternate path.
        const MIGRATED = 1 << 6;
    }
}

/// The events of `tracing` for that, level DEBUG, target `verbs::rc`. A subscriber is foreign code: under no lock.
pub(crate) fn tell(qpn: Qpn, told: Told, gave_up: Option<WcStatus>) {
    let qpn = format_args!("{:#x}", qpn.value());
    macro_rules! event {
        ($flag:ident, $text:literal) => {
            if told.contains(Told::$flag) {
                tracing::debug!(target: "verbs::rc", %qpn, $text);
            }
        };
    }
    event!(TIMEOUT, "no acknowledgement in time: sending again");
    event!(RNR_NAK, "the peer has no receive posted (RNR NAK): waiting");
    event!(SEQUENCE, "something was lost (sequence): sending again");
    event!(NO_RECEIVE, "a message found no receive here: RNR NAK sent");
    event!(REFUSED, "a request was refused: NAK sent");
    event!(MIGRATED, "moved to the alternate path");
    event!(CNP, "congestion notification (CNP) received");
    if let Some(status) = gave_up {
        tracing::debug!(target: "verbs::rc", %qpn, %status, "a work request failed");
    }
}
