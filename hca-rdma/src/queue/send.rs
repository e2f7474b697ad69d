//! Posting to a send queue.

use std::fmt;

use verbs_core::qp::QpCore;
use verbs_core::sync::{Arc, OnceLock, Weak};
use verbs_core::{
    BatchError, Binding, Capability, Datagram, Dest, DeviceCap, Payload, PostError, QpState,
    QpType, RawSendQueue, SendFlags, SendOp, SendWr,
};

use super::{Limits, answer, refused};
use crate::address::AddressHandles;
use crate::keys::Keys;
use crate::slot::Slot;
use crate::sys::{BATCH, Qp, To};

/// The capabilities with which a device can make keys invalid.
const INVALIDATES: DeviceCap = DeviceCap::MEM_MGT_EXTENSIONS
    .union(DeviceCap::MEM_WINDOW_TYPE_2A)
    .union(DeviceCap::MEM_WINDOW_TYPE_2B);

/// The capabilities with which a device binds windows.
const WINDOWS: DeviceCap = DeviceCap::MEM_WINDOW
    .union(DeviceCap::MEM_WINDOW_TYPE_2A)
    .union(DeviceCap::MEM_WINDOW_TYPE_2B);

/// What work requests name by value and the library by its objects.
pub(crate) struct Lookups {
    /// The address handles of its domain, for datagrams.
    pub(crate) addresses: Arc<AddressHandles>,
    pub(crate) keys: Arc<Keys>,
    /// The queue pair, which the window of type 2 that is bound by it uses.
    pub(crate) qp: Arc<OnceLock<Weak<QpCore>>>,
}

/// The send queue of a queue pair.
pub(crate) struct SendQueue {
    qp: Arc<Slot<Qp>>,
    limits: Limits,
    lookups: Lookups,
}

impl SendQueue {
    pub(crate) fn new(qp: Arc<Slot<Qp>>, limits: Limits, lookups: Lookups) -> Self {
        Self {
            qp,
            limits,
            lookups,
        }
    }

    /// Checks what the work request and the queue show; the driver would answer all of it with one number.
    #[inline]
    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let limits = &self.limits;
        limits.check_present()?;
        limits.check_state(QpState::Rts)?;
        match (limits.qp_type, wr.dest) {
            (QpType::Ud, Dest::Datagram(_))
            | (QpType::Rc | QpType::Uc, Dest::Peer)
            | (QpType::XrcSend, Dest::Srq(_)) => {}
            (QpType::XrcSend, Dest::Peer) if wr.op.is_local() => {}
            (QpType::Ud, _) => return Err(PostError::NoDestination),
            (QpType::XrcSend, _) => return Err(PostError::NoSrq),
            _ => return Err(PostError::Destination),
        }
        self.check_payload(wr)?;
        self.check_operation(wr)
    }

    #[inline]
    fn check_payload(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let cap = &self.limits.cap;
        let short = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        match wr.payload {
            Payload::Inline(bytes) if short(bytes.len()) > cap.max_inline_data => {
                return Err(PostError::InlineTooLong {
                    got: short(bytes.len()),
                    max: cap.max_inline_data,
                });
            }
            Payload::Inline(_) if !wr.flags.contains(SendFlags::INLINE) => {
                return Err(PostError::Unsupported);
            }
            Payload::One(_) | Payload::List(_) if wr.flags.contains(SendFlags::INLINE) => {
                return Err(PostError::Unsupported);
            }
            Payload::One(_) if cap.max_send_sge == 0 => {
                return Err(PostError::TooManySges { got: 1, max: 0 });
            }
            Payload::List(sges) if short(sges.len()) > cap.max_send_sge => {
                return Err(PostError::TooManySges {
                    got: short(sges.len()),
                    max: cap.max_send_sge,
                });
            }
            _ => {}
        }
        let max = self.limits.max_msg_sz;
        match wr.payload.len() > u64::from(max) {
            true => Err(PostError::TooLong { max }),
            false => Ok(()),
        }
    }

    #[inline]
    fn check_operation(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let limits = &self.limits;
        let is_rc = matches!(limits.qp_type, QpType::Rc | QpType::XrcSend);
        match wr.op {
            SendOp::Send => Ok(()),
            SendOp::SendWithImm(_) if limits.caps.contains(DeviceCap::SEND_WITH_IMM) => Ok(()),
            SendOp::SendWithInv(_) if is_rc && limits.caps.intersects(INVALIDATES) => Ok(()),
            SendOp::Write(_) if limits.qp_type != QpType::Ud => Ok(()),
            SendOp::WriteWithImm(..)
                if limits.qp_type != QpType::Ud
                    && limits.caps.contains(DeviceCap::WRITE_WITH_IMM) =>
            {
                Ok(())
            }
            SendOp::Read(_) if is_rc && !matches!(wr.payload, Payload::Inline(_)) => {
                self.lookups.keys.check_sink(&wr.payload)
            }
            SendOp::LocalInv(_) | SendOp::BindMw(_) => self.check_local(wr),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } if is_rc => {
                match (wr.payload.len(), remote.addr % 8) {
                    (8, 0) => Ok(()),
                    (8, _) => Err(PostError::AtomicAlignment),
                    (got, _) => Err(PostError::AtomicSize {
                        got: u32::try_from(got).unwrap_or(u32::MAX),
                    }),
                }
            }
            _ => Err(self.why_not(&wr.op)),
        }
    }

    /// Why an operation is refused that the device does not have, or not on this queue pair.
    #[cold]
    fn why_not(&self, op: &SendOp) -> PostError {
        let any_of = match op {
            SendOp::SendWithImm(_) => DeviceCap::SEND_WITH_IMM,
            SendOp::WriteWithImm(..) => DeviceCap::WRITE_WITH_IMM,
            SendOp::SendWithInv(_) | SendOp::LocalInv(_) => INVALIDATES,
            SendOp::BindMw(_) => WINDOWS,
            SendOp::RegMr(_) => DeviceCap::MEM_MGT_EXTENSIONS,
            SendOp::ReadWithInv(_) => DeviceCap::READ_WITH_INV,
            SendOp::AtomicWrite(_) => DeviceCap::ATOMIC_WRITE,
            SendOp::Flush(_) => DeviceCap::FLUSH_GLOBAL.union(DeviceCap::FLUSH_PERSISTENT),
            SendOp::MaskedCompareSwap { .. } | SendOp::MaskedFetchAdd { .. } => {
                // No call of the library posts them.
                return PostError::NoCapability(Capability::MASKED_ATOMICS);
            }
            _ => return PostError::Unsupported,
        };
        match self.limits.caps.intersects(any_of) {
            true => PostError::Unsupported,
            false => PostError::NoCapability(Capability::of(any_of)),
        }
    }

    #[cold]
    fn check_local(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let needed = match wr.op {
            SendOp::BindMw(_) => WINDOWS,
            _ => INVALIDATES,
        };
        let limits = &self.limits;
        match limits.qp_type != QpType::Ud
            && limits.caps.intersects(needed)
            && wr.payload.is_empty()
        {
            true => Ok(()),
            false => Err(self.why_not(&wr.op)),
        }
    }

    /// Posts what concerns only keys of this side.
    #[cold]
    fn post_local(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let depth = self.limits.cap.max_send_wr;
        match wr.op {
            SendOp::BindMw(what) => self.bind(wr, &what),
            SendOp::LocalInv(key) => {
                answer(self.qp.with(|qp| qp.post_send(wr, None)), depth)?;
                self.lookups.keys.unbound(key);
                Ok(())
            }
            _ => Err(PostError::Unsupported),
        }
    }

    fn bind(&self, wr: &SendWr<'_>, what: &Binding) -> Result<(), PostError> {
        let lookups = &self.lookups;
        let core = lookups.qp.get().ok_or(PostError::Destroyed)?;
        lookups.keys.bind(what, core, |bind| {
            let posted = self.qp.with(|qp| qp.bind(wr.wr_id, wr.flags, bind));
            answer(posted, self.limits.cap.max_send_wr)
        })
    }

    /// Posts a datagram with the handle of its address.
    fn post_datagram(&self, wr: &SendWr<'_>, datagram: &Datagram) -> Result<(), PostError> {
        let posted = self.lookups.addresses.with(&datagram.av, |ah| {
            let to = To {
                ah,
                qpn: datagram.qpn.value(),
                qkey: datagram.qkey.0,
            };
            self.qp.with(|qp| qp.post_send(wr, Some(to)))
        });
        let posted = posted.ok_or(PostError::Unreachable)?;
        answer(posted, self.limits.cap.max_send_wr)
    }
}

impl RawSendQueue for SendQueue {
    #[inline]
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.check(wr)?;
        if let Dest::Datagram(datagram) = wr.dest {
            return self.post_datagram(wr, datagram);
        }
        if wr.op.is_local() {
            return self.post_local(wr);
        }
        let posted = self.qp.with(|qp| qp.post_send(wr, None));
        answer(posted, self.limits.cap.max_send_wr)
    }

    fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let mut posted = 0;
        for part in wrs.chunks(BATCH) {
            let good = part
                .iter()
                .position(|wr| !is_batched(wr) || self.check(wr).is_err());
            let good = good.unwrap_or(part.len());
            let failed = match self.qp.with(|qp| qp.post_sends(&part[..good])) {
                Some(Ok(())) => None,
                Some(Err((n, errno))) => Some((n, refused(errno, self.limits.cap.max_send_wr))),
                None => Some((0, PostError::Destroyed)),
            };
            if let Some((n, error)) = failed {
                posted += n;
                return Err(BatchError { posted, error });
            }
            posted += good;
            // The others are posted one by one; one that was refused is so again, with its reason.
            for wr in &part[good..] {
                self.post(wr)
                    .map_err(|error| BatchError { posted, error })?;
                posted += 1;
            }
        }
        Ok(())
    }
}

/// Whether the library needs no object for it.
fn is_batched(wr: &SendWr<'_>) -> bool {
    !matches!(wr.dest, Dest::Datagram(_)) && !wr.op.is_local()
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("state", &self.limits.state())
            .finish_non_exhaustive()
    }
}
