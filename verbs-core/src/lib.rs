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

pub mod addr;
pub mod ah;
#[doc(hidden)]
#[expect(
    unsafe_code,
    reason = "a cell whose rights an atomic word hands out: argued at its head"
)]
pub mod biased;
pub mod caps;
pub mod channel;
pub mod client_queue;
pub mod cm;
pub mod command;
pub mod compat;
pub mod cq;
pub mod device;
pub mod error;
pub mod event;
pub mod extension;
pub mod fast_reg;
mod fatal;
pub mod filter;
pub mod fmr;
mod header;
pub mod mad;
pub mod mcast;
#[expect(
    unsafe_code,
    reason = "registered memory, keys and windows: argued in each file"
)]
pub mod mem;
pub mod mr;
pub mod mw;
pub mod object;
mod object_id;
mod panics;
pub mod pd;
pub mod provider;
pub mod provider_attr;
pub mod qp;
pub mod qp_attr;
pub mod qp_state;
pub mod queue;
pub mod request;
mod routine;
pub mod seed;
mod serial;
pub mod shared;
#[expect(
    unsafe_code,
    reason = "cells whose rights an atomic word hands out: argued in each file"
)]
mod slot;
pub mod srq;
#[doc(hidden)]
pub mod sync;
pub mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod thread_domain;
pub mod timer;
pub mod verb;
mod verb_table;
mod watch;
pub mod wc;
pub mod wr;
pub mod xrcd;

#[doc(hidden)]
pub use slot::{laps, tracked, yard};

pub use addr::{Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Srqn};
pub use ah::Ah;
pub use caps::{AtomicCap, DeviceAttr, DeviceCap, LinkLayer, PortAttr, PortState};
pub use channel::{CompletionChannel, CqEvent, EventChannel};
pub use client_queue::{ClientQueue, NoRoom};
pub use cm::{CmBinder, CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink};
pub use command::{AnyCommand, Command, Kind, Origin, Pending, PendingCommand, Reply, RequestId};
pub use cq::{Cq, CqNotify};
pub use device::{Device, InFlight};
pub use error::{Attr, ByteCount, Error, Why};
pub use event::{AsyncEvent, EventType, Subject};
pub use extension::Extension;
pub use fast_reg::FastMr;
pub use fatal::Fatal;
pub use fmr::{Fmr, FmrPool, FmrPoolAttr};
pub use header::Busy;
pub use mcast::Mcast;
pub use mem::{Access, Bounce, Extent, Layout, Memory, PageList};
pub use mr::Mr;
pub use mw::{Mw, WindowType};
pub use object::{ObjectId, ObjectKind, Private, Refused, Target};
pub use panics::FirstPanic;
pub use pd::Pd;
pub use provider::{Done, Frame, Hook, Provider};
pub use provider_attr::{CmLimits, NodeType, PortCaps, ProviderAttr, TransportType};
pub use qp::{Qp, QpInit, RecvQueue, SendQueue};
pub use qp_attr::{Av, GlobalRoute, Path, QpAttr, QpCap, QpInfo};
pub use qp_state::{QpAttrMask, QpState, QpType};
pub use queue::{
    Arm, Armed, BatchError, How, Piece, PostCode, PostError, RawCq, RawRecvQueue, RawSendQueue,
};
pub use request::{CancelHandle, Issued, Request, RequestFuture};
#[doc(hidden)]
pub use routine::Raise;
pub use routine::{collect, defer, no_block};
pub use seed::Seed;
pub use shared::{CqRef, Shareable, Shared, SrqRef};
pub use srq::{Srq, SrqAttr};
pub use thread_domain::{InDomain, OtherDomain, ThreadDomain};
pub use timer::Timer;
pub use verb::Verb;
pub use wc::{Wc, WcFlags, WcOpcode, WcStatus};
pub use wr::{
    Atomic, AtomicWrite, BindMw, Binding, Datagram, Dest, FastReg, Flush, FlushRange, LocalInv,
    Payload, Placement, Read, Recv, RecvWr, Registration, Remote, Send, SendFlags, SendOp, SendWr,
    Sge, Write, read_with_invalidate,
};
pub use xrcd::Xrcd;
