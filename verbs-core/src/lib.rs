//! Asynchronous RDMA verbs: the vocabulary, the request mechanism and the provider trait.
//!
//! Every verb that reaches a device is a [`Request`]: a value that does nothing until it is issued. It completes
//! once, through a routine that runs where it completes, or as a future, or by a blocking wait that refuses where
//! waiting is not allowed. Posting work and polling completions are plain calls that never wait.
//!
//! # Objects, and what keeps what alive
//!
//! ```text
//! Device ── Pd ─┬─ Mr, Mw, FmrPool      registered memory, windows, pools of fast registrations
//!    │          ├─ Srq                  receives that several queue pairs take from
//!    │          ├─ Ah                   addresses of datagrams
//!    │          └─ Qp ── SendQueue, RecvQueue
//!    ├── Cq                             completions; a Qp names two of them
//!    └── Xrcd
//! ```
//!
//! A child keeps its parent: destroying an object that has children answers [`Busy`] and changes nothing. Dropping
//! a handle destroys the object when its last child is gone. Nothing cascades.
//!
//! ```
//! use std::sync::Arc;
//!
//! use futures::executor::block_on;
//! use verbs_core::testing::Null;
//! use verbs_core::{Access, Device, Issued, Memory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A provider that agrees to everything; `hca-sim` is one that moves bytes.
//! let provider = Arc::new(Null::default());
//!
//! // As a future.
//! let device = block_on(async { Device::open(provider).await })?;
//! let pd = block_on(async { device.alloc_pd().await })?;
//!
//! // With a routine, from any context: it runs once, here at once or later where the verb completes.
//! let issued = pd
//!     .register(Memory::alloc(4096)?, Access::LOCAL_WRITE)
//!     .issue(|mr| println!("registered: {}", mr.is_ok()));
//! assert!(!matches!(issued, Issued::Pending(_)));
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not do
//!
//! It has no device: `hca-sim` has one, in software. It makes no connections (`verbs-cm`) and manages no subnet
//! (`verbs-sm`). It starts no thread and depends on no runtime.
//!
//! # Where to read on
//!
//! [`request`] says in which context what may run, [`device`] how a device is opened and lost,
//! [`queue`] how work is posted, [`mem`] how memory is registered, [`provider`] how to write a provider, and
//! `testing` (a feature) how to test one.
#![deny(unsafe_code)]

mod control;
mod devices;
pub mod host;
mod management;
mod memory;
mod queue_pair;
mod queues;
#[doc(hidden)]
pub mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod types;

pub use control::{client_queue, command, compat, object, request, task, verb};
pub(crate) use control::{panics, routine, watch};
pub(crate) use devices::fatal;
pub use devices::{
    caps, device, device_list, event, extension, filter, provider, provider_attr, timer,
};
pub use management::{cm, mad};
pub use memory::{fast_reg, fmr, mem, mr, mw, pd};
pub use queue_pair::{ah, mcast, qp, qp_attr, qp_state, xrcd};
pub use queues::{channel, cq, queue, shared, srq, thread_domain, wc, wr};
#[doc(hidden)]
pub use sync::slot::{ring_index, slab_alloc, tracked};
#[doc(hidden)]
pub use sync::{biased, combiner, process};
pub use types::{addr, error, seed, stats, time};

pub use addr::{Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Srqn};
pub use ah::Ah;
pub use caps::{AtomicCap, Capability, DeviceAttr, DeviceCap, LinkLayer, PortAttr, PortState};
pub use channel::{CompletionChannel, CqEvent, EventChannel};
pub use client_queue::{ClientQueue, NoRoom};
pub use cm::{CmBinder, CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink};
pub use command::{AnyCommand, Command, Kind, Origin, Pending, PendingCommand, Reply, RequestId};
pub use cq::{Cq, CqNotify, CqRef};
pub use device::{Device, InFlight};
pub use device_list::DeviceList;
pub use error::{Attr, ByteCount, Error, Why};
pub use event::{AsyncEvent, EventType, Subject};
pub use extension::Extension;
pub use fast_reg::FastMr;
pub use fatal::Fatal;
pub use fmr::{Fmr, FmrPool, FmrPoolAttr};

pub use mcast::Mcast;
pub use mem::{Access, Bounce, Extent, Layout, Memory, PageList};
pub use mr::Mr;
pub use mw::{Mw, WindowType};
pub use object::{Busy, ObjectId, ObjectKind, Private, Refused, Target};
pub use panics::FirstPanic;
pub use pd::Pd;
pub use provider::{Done, Frame, Hook, Provider};
pub use provider_attr::{CmLimits, NodeType, PortCaps, ProviderAttr, TransportType};
pub use qp::{Qp, QpInit, RecvQueue, SendQueue};
#[doc(hidden)]
pub use qp_attr::LiveCap;
pub use qp_attr::{AltPath, Av, GlobalRoute, MigState, Path, QpAttr, QpCap, QpInfo};
pub use qp_state::{QpAttrMask, QpState, QpType};
pub use queue::{
    Arm, Armed, BatchError, How, Piece, PostCode, PostError, RawCq, RawRecvQueue, RawSendQueue,
};
pub use request::{CancelHandle, Issued, Request, RequestFuture};
#[doc(hidden)]
pub use routine::Raise;
pub use routine::{collect, defer, no_block};
pub use seed::Seed;
pub use shared::{Shareable, Shared};
pub use srq::{Srq, SrqAttr, SrqRef};
pub use stats::{ConnectedQp, QpStats};
pub use thread_domain::{InDomain, OtherDomain, ThreadDomain};
pub use timer::Timer;
pub use verb::Verb;
pub use verb::table::{VerbTypes, Verbs};
pub use wc::{Wc, WcCause, WcError, WcFlags, WcOpcode, WcStatus};
pub use wr::{
    Atomic, AtomicWrite, BindMw, Binding, Datagram, Dest, FastReg, Flush, FlushRange, LocalInv,
    Payload, Placement, Read, ReadWithInvalidate, Recv, RecvWr, Registration, Remote, Send,
    SendFlags, SendOp, SendWr, Sge, Write, read_with_invalidate,
};
pub use xrcd::Xrcd;
