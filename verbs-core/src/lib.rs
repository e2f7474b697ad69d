//! Asynchronous RDMA verbs: the vocabulary, the request mechanism and the provider trait.

#![deny(unsafe_code)]

pub mod addr;
pub mod error;
#[expect(
    unsafe_code,
    reason = "the door to registered memory: keys, pins and windows"
)]
pub mod mem;
pub mod qp_state;
pub mod queue;
#[doc(hidden)]
pub mod sync;
pub mod wc;
pub mod wr;

pub use addr::{Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey};
pub use error::{Attr, Error, Why};
pub use mem::{Access, Memory};
pub use qp_state::QpState;
pub use queue::{Arm, Armed, BatchError, PostError, RawCq, RawRecvQueue, RawSendQueue};
pub use wc::{Wc, WcFlags, WcOpcode, WcStatus};
pub use wr::{Payload, Read, Recv, RecvWr, Remote, Send, SendFlags, SendOp, SendWr, Sge, Write};
