//! Posting to a send queue.

use std::fmt;

use verbs_core::sync::Arc;
use verbs_core::{
    BatchError, Datagram, Dest, Payload, PostError, QpState, QpType, RawSendQueue, SendFlags,
    SendOp, SendWr,
};

use super::{Limits, answer, refused};
use crate::address::AddressHandles;
use crate::slot::Slot;
use crate::sys::{BATCH, Qp, To};

/// The send queue of a queue pair.
pub(crate) struct SendQueue {
    qp: Arc<Slot<Qp>>,
    limits: Limits,
    /// The address handles of its domain, for datagrams.
    addresses: Arc<AddressHandles>,
}

impl SendQueue {
    pub(crate) fn new(qp: Arc<Slot<Qp>>, limits: Limits, addresses: Arc<AddressHandles>) -> Self {
        Self {
            qp,
            limits,
            addresses,
        }
    }

    /// What the work request and the queue say, and the driver would say by one number for all.
    #[inline]
    fn check(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let limits = &self.limits;
        limits.check_present()?;
        limits.check_state(QpState::Rts)?;
        match (limits.qp_type, wr.dest) {
            (QpType::Ud, Dest::Datagram(_)) | (QpType::Rc | QpType::Uc, Dest::Peer) => {}
            (QpType::Ud, _) => return Err(PostError::NoDestination),
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
        let is_rc = self.limits.qp_type == QpType::Rc;
        match wr.op {
            SendOp::Send | SendOp::SendWithImm(_) => Ok(()),
            SendOp::SendWithInv(_) if is_rc => Ok(()),
            SendOp::Write(_) | SendOp::WriteWithImm(..) if self.limits.qp_type != QpType::Ud => {
                Ok(())
            }
            SendOp::Read(_) if is_rc && !matches!(wr.payload, Payload::Inline(_)) => Ok(()),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } if is_rc => {
                match (wr.payload.len(), remote.addr % 8) {
                    (8, 0) => Ok(()),
                    (8, _) => Err(PostError::AtomicAlignment),
                    (got, _) => Err(PostError::AtomicSize {
                        got: u32::try_from(got).unwrap_or(u32::MAX),
                    }),
                }
            }
            _ => Err(PostError::Unsupported),
        }
    }

    /// Posts a datagram with the handle of its address.
    fn post_datagram(&self, wr: &SendWr<'_>, datagram: &Datagram) -> Result<(), PostError> {
        let posted = self.addresses.with(&datagram.av, |ah| {
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
        let posted = self.qp.with(|qp| qp.post_send(wr, None));
        answer(posted, self.limits.cap.max_send_wr)
    }

    fn post_batch(&mut self, wrs: &[SendWr<'_>]) -> Result<(), BatchError> {
        let mut posted = 0;
        for part in wrs.chunks(BATCH) {
            let good = part
                .iter()
                .position(|wr| self.check(wr).is_err() || wr.dest != Dest::Peer);
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
            // Datagrams have handles to look up, and what is wrong says why.
            for wr in &part[good..] {
                self.post(wr)
                    .map_err(|error| BatchError { posted, error })?;
                posted += 1;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue")
            .field("state", &self.limits.state())
            .finish_non_exhaustive()
    }
}
