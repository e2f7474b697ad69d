//! Messages whose memory is gone: a program behind a C interface has unmapped, cut short or protected it since it was
//! registered.

use verbs_core::mem::{Span, Unmapped};
use verbs_core::{WcCause, WcStatus};

use crate::direct::message::{MessageFault, MessageOutcome};

const WHY: u32 = WcCause::Unmapped.code();

/// What a message ends with when the bytes of either side cannot be accessed.
pub(super) struct Lost {
    source: MessageFault,
    target: MessageFault,
}

impl Lost {
    const OWN: MessageFault = MessageFault::local(WcStatus::LocProtErr, WHY);
    const REMOTE: MessageFault = MessageFault::nak(WcStatus::RemAccessErr, WHY);

    /// From the requester's memory to a receive.
    pub(super) const SEND: Self = Self {
        source: Self::OWN,
        target: MessageFault::nak(WcStatus::RemOpErr, WHY).with_receive(WcStatus::LocProtErr),
    };
    /// From the requester's memory to the responder's.
    pub(super) const WRITE: Self = Self {
        source: Self::OWN,
        target: Self::REMOTE,
    };
    /// From the responder's memory to the requester's.
    pub(super) const READ: Self = Self {
        source: Self::REMOTE,
        target: Self::OWN,
    };

    /// How a message ends that met `unmapped`, with these bytes as its target.
    #[cold]
    pub(super) fn fault(&self, unmapped: Unmapped, target: &[Span<'_>]) -> MessageFault {
        let at_target = target.iter().any(|span| span.covers(unmapped.addr()));
        match at_target {
            true => self.target,
            false => self.source,
        }
    }

    /// How a message ends whose receive was taken from a shared queue before the memory of either side turned out to be
    /// gone: the responder has lost that receive.
    #[cold]
    pub(super) fn spoiled(status: WcStatus) -> MessageFault {
        MessageFault::nak(status, WHY).with_receive(WcStatus::LocProtErr)
    }

    /// The outcome of a message for its word of the responder's memory.
    #[cold]
    pub(super) fn remote_word(_: Unmapped) -> MessageOutcome {
        MessageOutcome::Fault(Self::REMOTE)
    }

    /// The outcome of a message for inline bytes that the requester gathers.
    #[cold]
    pub(super) fn own_bytes(_: Unmapped) -> MessageOutcome {
        MessageOutcome::Fault(Self::OWN)
    }
}
