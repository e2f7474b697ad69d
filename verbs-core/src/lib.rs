//! Asynchronous RDMA verbs: the vocabulary, the request mechanism and the provider trait.

#![deny(unsafe_code)]

pub mod addr;
pub mod error;
pub mod qp_state;
pub mod queue;
#[doc(hidden)]
pub mod sync;
pub mod wc;
pub mod wr;

pub use addr::{Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey};
pub use error::{Attr, Error, Why};
pub use qp_state::{QpAttrMask, QpState, QpType, Transition};
pub use queue::{Arm, Armed, BatchError, PostError, RawCq, RawRecvQueue, RawSendQueue};
pub use wc::{Wc, WcFlags, WcOpcode, WcStatus};
pub use wr::{Payload, Read, Recv, RecvWr, Remote, Send, SendFlags, SendOp, SendWr, Sge, Write};
