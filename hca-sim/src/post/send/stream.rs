//! Requirements of RDMA over TCP on a work request that can be checked when it is posted (RFC 5040).

use verbs_core::mem::pin;
use verbs_core::{Payload, PostError, SendOp, SendWr, Sge, TransportType};

use super::SendPoster;
use crate::transport::iwarp::GUARDED_SINK;

impl SendPoster {
    /// # Errors
    /// [`PostError::TooManySges`] for a READ into several pieces, [`PostError::ReadSink`].
    pub(super) fn check_stream(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        match wr.op {
            SendOp::Read(_) | SendOp::ReadWithInv(_) => match wr.payload {
                Payload::One(sink) => self.check_sink(sink),
                Payload::List(&[sink]) => self.check_sink(sink),
                Payload::List(sges) if sges.len() > 1 => Err(PostError::TooManySges {
                    got: u32::try_from(sges.len()).unwrap_or(u32::MAX),
                    max: 1,
                }),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Whether a READ may fill that memory. Work requests that the machine has not yet carried out may change a key's
    /// rights, so the machine checks them again.
    fn check_sink(&self, sink: Sge) -> Result<(), PostError> {
        if sink.len == 0 {
            return Ok(());
        }
        let need = TransportType::Iwarp.read_sink();
        let pin = pin();
        let missing = |need| self.mrs.missing_rights(&pin, sink.lkey, self.pd, need);
        if missing(GUARDED_SINK).is_none() {
            return Ok(());
        }
        let waits = || self.qp.send_ring().is_some_and(|ring| !ring.is_drained());
        match missing(need) {
            Some((_, true)) if waits() => Ok(()),
            Some((missing, _)) => Err(PostError::ReadSink {
                lkey: sink.lkey,
                missing,
            }),
            None => Ok(()),
        }
    }
}
