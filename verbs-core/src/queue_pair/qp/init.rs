//! What a queue pair is created with.

use crate::cq::{CqCore, CqRef};
#[cfg(doc)]
use crate::error::Attr;
use crate::qp_attr::QpCap;
use crate::qp_state::QpType;
use crate::srq::{SrqCore, SrqRef};
use crate::sync::Arc;

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
#[must_use = "this only describes a queue pair"]
pub struct QpInit<'a> {
    pub(super) qp_type: QpType,
    pub(super) send_cq: &'a Arc<CqCore>,
    pub(super) recv_cq: &'a Arc<CqCore>,
    pub(super) cap: QpCap,
    pub(super) srq: Option<&'a Arc<SrqCore>>,
    pub(super) sq_sig_all: bool,
    pub(super) low_latency: bool,
    pub(super) block_multicast_loopback: bool,
}

impl<'a> QpInit<'a> {
    /// A reliable connection whose sends and receives complete on these queues.
    pub fn rc(send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::Rc, send_cq, recv_cq)
    }

    /// An unreliable connection whose sends and receives complete on these queues.
    pub fn uc(send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::Uc, send_cq, recv_cq)
    }

    /// A queue pair for unreliable datagrams whose sends and receives complete on these queues.
    pub fn ud(send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::Ud, send_cq, recv_cq)
    }

    /// The initiator of an extended reliable connection, whose sends complete on that queue; it has no
    /// receives. Its targets are made in a [domain](crate::Xrcd).
    pub fn xrc(send_cq: &'a impl CqRef) -> Self {
        Self::of(QpType::XrcSend, send_cq, send_cq)
    }

    /// A queue pair of that type.
    pub fn of(qp_type: QpType, send_cq: &'a impl CqRef, recv_cq: &'a impl CqRef) -> Self {
        Self {
            qp_type,
            send_cq: send_cq.cq_core(),
            recv_cq: recv_cq.cq_core(),
            cap: QpCap::default(),
            srq: None,
            sq_sig_all: false,
            low_latency: false,
            block_multicast_loopback: false,
        }
    }

    /// All sizes at once.
    pub fn cap(mut self, cap: QpCap) -> Self {
        self.cap = cap;
        self
    }

    /// Work requests on the send and on the receive queue.
    pub fn depth(mut self, send: u32, recv: u32) -> Self {
        (self.cap.max_send_wr, self.cap.max_recv_wr) = (send, recv);
        self
    }

    /// Scatter/gather elements of one send and of one receive.
    pub fn sges(mut self, send: u32, recv: u32) -> Self {
        (self.cap.max_send_sge, self.cap.max_recv_sge) = (send, recv);
        self
    }

    /// Inline bytes of one send.
    pub fn inline(mut self, bytes: u32) -> Self {
        self.cap.max_inline_data = bytes;
        self
    }

    /// Receives are taken from this queue instead of one of its own.
    pub fn srq(mut self, srq: &'a impl SrqRef) -> Self {
        self.srq = Some(srq.srq_core());
        self
    }

    /// Every send makes a completion, whatever its flags say.
    pub fn signal_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// What it sends to a multicast group that it is attached to itself does not come back to it
    /// (`IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`).
    pub fn block_multicast_loopback(mut self) -> Self {
        self.block_multicast_loopback = true;
        self
    }

    /// Asks for short latency at the price of processor time; refused with [`Attr::LowLatency`] where the device has
    /// nothing to offer. On the software HCA over a wire (RoCE, iWARP, a hosted subnet), the thread that receives packets
    /// while no consumer polls sleeps between them. While such a queue pair exists, it polls for 50 us after the last
    /// packet, unless other threads need the processor: consumers that wait for events have their completions earlier.
    pub fn low_latency(mut self) -> Self {
        self.low_latency = true;
        self
    }
}
