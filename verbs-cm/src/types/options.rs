//! Options of connections, with the field's names.

use verbs_core::DeviceAttr;
use verbs_core::mad::{Bits, Blob, TimeCode};

use crate::error::Error;

/// What both sides may choose, with the defaults of `rdma_cm`'s users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// READs and atomics that the queue pair serves at a time; no more than the device can do are
    /// offered. 16 by default; the peer may use fewer.
    pub responder_resources: u8,
    /// READs and atomics that may be outstanding. 16 by default; no more than the peer serves are used.
    pub initiator_depth: u8,
    /// Transport retries. 7 by default.
    pub retry_count: u8,
    /// Retries after receiver-not-ready; 7, for ever, by default.
    pub rnr_retry_count: u8,
    /// Delay that the queue pair asks for when it is not ready: a code of the IBTA's table. 12 (0.64 ms)
    /// by default.
    pub min_rnr_timer: u8,
    /// Whether the queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// Within what time either side answers: 4.096 us * 2^n. 20 (4.3 s) by default.
    pub response_timeout: TimeCode,
    /// How often either side sends a message again. 15 by default.
    pub max_cm_retries: u8,
    /// Type of service: becomes the traffic class of the connection's packets. 0 by default.
    pub tos: u8,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
            srq: false,
            response_timeout: TimeCode::new(20),
            max_cm_retries: 15,
            tos: 0,
        }
    }
}

impl ConnParam {
    /// No more READs and atomics than the device can do.
    pub(crate) fn within(mut self, device: &DeviceAttr) -> Self {
        self.responder_resources = self.responder_resources.min(device.max_qp_rd_atom);
        self.initiator_depth = self.initiator_depth.min(device.max_qp_init_rd_atom);
        self
    }
}

/// A field of few bits; larger numbers are its largest.
pub(crate) fn bits<const N: u32>(value: u8) -> Bits<N> {
    Bits::saturating(value.into())
}

/// Private data in the field of a message.
pub(crate) fn blob<const N: usize>(data: &[u8]) -> Result<Blob<N>, Error> {
    Blob::new(data).map_err(|_| Error::PrivateData {
        got: data.len(),
        max: N,
    })
}

/// The options as methods of every type that has them in `param`.
macro_rules! options {
    ($Builder:ident) => {
        impl $Builder {
            /// Sets all parameters at once.
            pub fn param(mut self, param: ConnParam) -> Self {
                self.param = param;
                self
            }

            /// READs and atomics that the queue pair serves at a time.
            pub fn responder_resources(mut self, n: u8) -> Self {
                self.param.responder_resources = n;
                self
            }

            /// READs and atomics that may be outstanding.
            pub fn initiator_depth(mut self, n: u8) -> Self {
                self.param.initiator_depth = n;
                self
            }

            /// Transport retries, 7 at most.
            pub fn retry_count(mut self, n: u8) -> Self {
                self.param.retry_count = n;
                self
            }

            /// Retries after receiver-not-ready; 7 means for ever.
            pub fn rnr_retry_count(mut self, n: u8) -> Self {
                self.param.rnr_retry_count = n;
                self
            }

            /// Delay that the queue pair asks for when it is not ready, by its code.
            pub fn min_rnr_timer(mut self, code: u8) -> Self {
                self.param.min_rnr_timer = code;
                self
            }

            /// What the peer may do to memory through the queue pair, if it is to be brought to INIT.
            /// Everything by default: registrations say what may be done to each region.
            pub fn access(mut self, access: Access) -> Self {
                self.access = access;
                self
            }

            /// What the peer's service gets to see.
            pub fn private_data(mut self, data: &[u8]) -> Self {
                self.private_data = data.to_vec();
                self
            }
        }
    };
}
pub(crate) use options;
