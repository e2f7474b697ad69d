//! The verbs themselves: objects, requests with three front ends, events. Work requests are in [`wr`](crate::wr),
//! completions in [`wc`](crate::wc), and what a provider implements in [`provider`](crate::provider).
//!
//! ```text
//! Device ── Pd ─┬─ Mr, Mw, FmrPool      registered memory, windows, pools of fast registrations
//!    │          ├─ Srq                  receives that several queue pairs take from
//!    │          ├─ Ah                   addresses of datagrams
//!    │          └─ Qp ── SendQueue, RecvQueue
//!    ├── Cq                             completions; a Qp names two of them
//!    └── Xrcd
//! ```

// The mechanism: what a verb is, and where its completion runs.
#[doc(no_inline)]
pub use verbs_core::{
    AnyCommand, Busy, CancelHandle, ClientQueue, Command, Issued, Kind, NoRoom, ObjectId,
    ObjectKind, Origin, Pending, PendingCommand, Private, Refused, Reply, Request, RequestFuture,
    RequestId, Target, Verb, VerbTypes, Verbs, client_queue, collect, command, compat, defer,
    no_block, object, request, task, verb,
};

// Devices and their events.
#[doc(no_inline)]
pub use verbs_core::{
    AsyncEvent, AtomicCap, Capability, CmLimits, Device, DeviceAttr, DeviceCap, DeviceList,
    EventType, Extension, Fatal, InFlight, LinkLayer, NodeType, PortAttr, PortCaps, PortState,
    ProviderAttr, Subject, Timer, TransportType, caps, device, device_list, event, extension,
    filter, provider_attr, timer,
};

// Memory.
#[doc(no_inline)]
pub use verbs_core::{
    Access, Bounce, Extent, FastMr, Fmr, FmrPool, FmrPoolAttr, Layout, Memory, Mr, Mw, PageList,
    Pd, WindowType, fast_reg, fmr, mem, mr, mw, pd,
};

// Queues, and what is posted to them.
#[doc(no_inline)]
pub use verbs_core::{
    Arm, Armed, BatchError, CompletionChannel, Cq, CqEvent, CqNotify, CqRef, EventChannel, How,
    InDomain, OtherDomain, Piece, PostCode, PostError, Shareable, Shared, Srq, SrqAttr, SrqRef,
    ThreadDomain, channel, cq, queue, shared, srq, thread_domain,
};

// Queue pairs and where they lead.
#[doc(no_inline)]
pub use verbs_core::{
    Ah, AltPath, Av, GlobalRoute, Mcast, MigState, Path, Qp, QpAttr, QpAttrMask, QpCap, QpInfo,
    QpInit, QpState, QpStats, QpType, RecvQueue, SendQueue, Xrcd, ah, mcast, qp, qp_attr, qp_state,
    xrcd,
};

// Connections and management datagrams of a device's own.
#[doc(no_inline)]
pub use verbs_core::{CmBinder, CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink, cm, mad};

// Numbers, errors.
#[doc(no_inline)]
pub use verbs_core::{
    Attr, ByteCount, Error, Gid, Guid, LKey, Lid, Mtu, PKey, Psn, QKey, Qpn, RKey, Seed, Srqn, Why,
    addr, error, seed, stats, time,
};
