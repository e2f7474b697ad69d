//! What can be wrong, as both sides are told.

use verbs_core::mem::Fault as MemoryFault;
use verbs_core::{EventType, WcCause, WcStatus};
use verbs_wire::iwarp::{Cause, IwarpError};

use crate::transport::pieces::Refused;

/// Why the stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// What a Terminate tells the peer; `None` if it is not told.
    pub(super) cause: Option<Cause>,
    /// It is about the segment that is coming.
    pub(super) quotes: bool,
    /// The oldest work request of the send queue completes so.
    pub(super) send: Option<(WcStatus, u32)>,
    /// The receive under way completes so.
    pub(super) receive: Option<(WcStatus, u32)>,
    /// What tells the client if no completion does.
    pub(super) event: Option<EventType>,
    /// This side is at fault.
    pub(super) is_local: bool,
}

impl Fault {
    const NONE: Self = Self {
        cause: None,
        quotes: true,
        send: None,
        receive: None,
        event: Some(EventType::QpFatal),
        is_local: false,
    };

    /// A message has found no receive.
    pub(super) const NO_RECEIVE: Self = Self::peer(Cause::DDP_NO_BUFFER);

    /// The peer has broken a rule.
    pub(super) const fn peer(cause: Cause) -> Self {
        Self {
            cause: Some(cause),
            // What MPA finds wrong is no segment.
            quotes: cause.layer() != Cause::LLP_CRC.layer(),
            ..Self::NONE
        }
    }

    /// The peer has reached for memory that it may not touch.
    pub(super) const fn access(cause: Cause) -> Self {
        Self {
            event: Some(EventType::QpAccessErr),
            ..Self::peer(cause)
        }
    }

    /// The same, of a READ.
    pub(super) const fn read(cause: Cause) -> Self {
        Self {
            event: Some(EventType::QpReqErr),
            ..Self::peer(cause)
        }
    }

    /// The message cannot go into its receive.
    pub(super) const fn receive(cause: Cause, status: WcStatus, reason: u32) -> Self {
        Self {
            receive: Some((status, reason)),
            ..Self::peer(cause)
        }
    }

    /// A work request of this side cannot be carried out.
    pub(super) const fn local(status: WcStatus, reason: u32) -> Self {
        Self {
            cause: Some(Cause::RDMAP_CATASTROPHIC),
            quotes: false,
            send: Some((status, reason)),
            is_local: true,
            ..Self::NONE
        }
    }

    /// The oldest READ of this side ends so, by what the peer has sent.
    pub(super) const fn response(cause: Cause, status: WcStatus, reason: u32) -> Self {
        Self {
            send: Some((status, reason)),
            ..Self::peer(cause)
        }
    }

    /// The peer has said why it ends the stream; it is not answered.
    pub(super) const fn told(send: Option<(WcStatus, u32)>) -> Self {
        Self { send, ..Self::NONE }
    }

    /// A completion could not be made; what that leads to was noted.
    pub(super) const STOPPED: Self = Self {
        cause: Some(Cause::RDMAP_CATASTROPHIC),
        quotes: false,
        is_local: true,
        ..Self::NONE
    };

    /// What is wrong with bytes of the stream.
    pub(super) fn of(error: &IwarpError) -> Self {
        // Every fault of a peer has a cause.
        Self::peer(error.cause().unwrap_or(Cause::RDMAP_OPERATION))
    }
}

/// The cause that a refused WRITE has (RFC 5041, section 7.2; RFC 5040, section 4.8 for rights, which DDP does not know).
pub(super) fn write_cause(Refused(reason): Refused) -> Cause {
    match reason {
        r if r == reason_of(MemoryFault::Pd) || r == reason_of(MemoryFault::Qp) => {
            Cause::DDP_STREAM
        }
        r if r == reason_of(MemoryFault::Access) => Cause::RDMAP_ACCESS,
        r if r == reason_of(MemoryFault::Bounds) => Cause::DDP_BOUNDS,
        _ => Cause::DDP_STAG,
    }
}

/// The cause that a refused READ has (RFC 5040, section 4.8).
pub(super) fn read_cause(Refused(reason): Refused) -> Cause {
    match reason {
        r if r == reason_of(MemoryFault::Pd) || r == reason_of(MemoryFault::Qp) => {
            Cause::RDMAP_STREAM
        }
        r if r == reason_of(MemoryFault::Access) => Cause::RDMAP_ACCESS,
        r if r == reason_of(MemoryFault::Bounds) => Cause::RDMAP_BOUNDS,
        _ => Cause::RDMAP_STAG,
    }
}

/// As [`Refused`] has it.
fn reason_of(fault: MemoryFault) -> u32 {
    WcCause::from(fault).code()
}

/// The peer's Terminate, as what it means for this side: a READ that was refused completes so.
pub(super) fn told(cause: Cause) -> WcStatus {
    match (cause.layer(), cause.etype()) {
        (0, 1) | (1, 1) => WcStatus::RemAccessErr,
        (0, 2) | (1, 2) => WcStatus::RemOpErr,
        _ => WcStatus::WrFlushErr,
    }
}
