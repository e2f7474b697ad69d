//! The facts of a connection for the log: noted by its machines, reported when none is held.

use std::fmt;

use bitflags::bitflags;
use verbs_core::{Qpn, WcCause, WcStatus};

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

/// What there is to say of a queue pair after a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) told: Told,
    /// How its connection has failed.
    pub(crate) gave_up: Option<WcStatus>,
    /// Why: the number of a [`WcCause`], or 0 if it is not known.
    pub(crate) why_failed: u8,
    /// Why a request of the peer was refused: likewise, or 0 if it breaks the rules of the transport.
    pub(crate) why_refused: u8,
}

impl From<Told> for Facts {
    fn from(told: Told) -> Self {
        Self {
            told,
            ..Self::default()
        }
    }
}

impl Facts {
    /// The number for that reason, which is the code of a cause if it is known.
    pub(crate) fn number(reason: u32) -> u8 {
        WcCause::from_code(reason).map_or(0, |cause| cause as u8)
    }

    /// Why the peer was refused.
    fn refusal(self) -> &'static dyn fmt::Display {
        match cause(self.why_refused) {
            Some(cause) => cause,
            None => {
                &"it breaks the rules of the transport, or asks for what the queue pair does not grant"
            }
        }
    }

    /// Why a work request that has ended like that has.
    fn failure(self, status: WcStatus) -> String {
        let known = cause(self.why_failed).map_or(0, |cause| cause.code());
        match WcCause::of(status, known) {
            Some(cause) => cause.to_string(),
            None if is_of_peer(status) => "the peer knows why, and its log says so".to_owned(),
            None => "not known".to_owned(),
        }
    }
}

/// The cause with that number.
fn cause(number: u8) -> Option<&'static WcCause> {
    WcCause::ALL.iter().find(|cause| **cause as u8 == number)
}

/// Whether the peer has refused what ends like that.
const fn is_of_peer(status: WcStatus) -> bool {
    matches!(
        status,
        WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr
    )
}

/// The events of `tracing` for that, target `verbs::rc`: level DEBUG, and INFO for what ends a connection, with the reason. A
/// subscriber is foreign code: under no lock.
pub(crate) fn tell(qpn: Qpn, facts: Facts) {
    let Facts { told, gave_up, .. } = facts;
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
    if told.contains(Told::REFUSED) {
        let why = facts.refusal();
        tracing::info!(target: "verbs::rc", %qpn, %why, "a request of the peer was refused: NAK sent");
    }
    event!(MIGRATED, "moved to the alternate path");
    event!(CNP, "congestion notification (CNP) received");
    if let Some(status) = gave_up
        && tracing::enabled!(target: "verbs::rc", tracing::Level::INFO)
    {
        let why = facts.failure(status);
        tracing::info!(target: "verbs::rc", %qpn, %status, why, "a work request failed");
    }
}
