//! Work requests: what a consumer posts.
//!
//! They are plain values that name registered memory by key and range; nothing is borrowed but
//! inline bytes and longer scatter/gather lists, and those only for the length of the post call.
//!
//! ```
//! use verbs_core::{LKey, Recv, RKey, Remote, Send, Sge, Write};
//!
//! let piece = Sge { addr: 0x1000, len: 64, lkey: LKey::new(0x100) };
//! let hello = Send::new(7).from(piece).signaled();
//! let place = Write::new(8, Remote { addr: 0x2000, rkey: RKey::new(0x205) }).from(piece);
//! let room = Recv::new(9).into(piece);
//! assert_eq!(hello.wr.wr_id, 7);
//! # let _ = (place, room);
//! ```

use bitflags::bitflags;

use crate::addr::{LKey, QKey, Qpn, RKey, Srqn};
use crate::qp_attr::Av;

/// One piece of local memory: `len` bytes from `addr` in the region that `lkey` names.
///
/// A piece of length 0 is legal and its key is not looked at (IBTA vol. 1, 10.7.3).
// In this order length and key are loaded as one word for the short ways of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Address as the region is reached at: its IOVA, by default the virtual address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Local key of the region.
    pub lkey: LKey,
}

/// Memory at the peer: an address in the region or window that `rkey` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Remote {
    /// Address as the peer's region is reached at.
    pub addr: u64,
    /// Remote key, as the peer handed it out.
    pub rkey: RKey,
}

bitflags! {
    /// Flags of a work request on a send queue, with the values of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Start only after all earlier READs and atomics of this queue have completed
        /// (IBTA vol. 1, 10.8.3.3).
        const FENCE = 1 << 0;
        /// Make a completion on success; failures always make one.
        const SIGNALED = 1 << 1;
        /// Fire a completion queue at the peer that is armed for solicited events only.
        const SOLICITED = 1 << 2;
        /// The payload is copied while posting; no key is involved.
        const INLINE = 1 << 3;
    }
}

/// What a work request on a send queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// SEND: consumes a receive at the peer.
    Send,
    /// SEND with 32 bits of immediate data.
    SendWithImm(u32),
    /// SEND that invalidates a key of the peer's.
    SendWithInv(RKey),
    /// RDMA WRITE: places bytes at the peer, which is not told.
    Write(Remote),
    /// RDMA WRITE with immediate data: consumes a receive at the peer.
    WriteWithImm(Remote, u32),
    /// RDMA READ: fetches bytes from the peer.
    Read(Remote),
    /// RDMA READ that makes the local key of its sink invalid when the bytes are there, which is the key of a fast
    /// registration; on devices with [`READ_WITH_INV`](crate::DeviceCap::READ_WITH_INV).
    ReadWithInv(Remote),
    /// Compare and swap of 8 bytes; the old value comes back.
    CompareSwap {
        /// The 8 aligned bytes.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add to 8 bytes; the old value comes back.
    FetchAdd {
        /// The 8 aligned bytes.
        remote: Remote,
        /// Addend, modulo 2^64.
        add: u64,
    },
    /// As [`SendOp::CompareSwap`], of the bits that masks have.
    MaskedCompareSwap {
        /// The 8 aligned bytes.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// New value.
        swap: u64,
        /// The bits that are replaced.
        swap_mask: u64,
    },
    /// As [`SendOp::FetchAdd`], of several numbers in one word.
    MaskedFetchAdd {
        /// The 8 aligned bytes.
        remote: Remote,
        /// The addends, each in its place.
        add: u64,
        /// The highest bit of each number: no carry leaves it.
        boundary: u64,
    },
    /// ATOMIC WRITE: 8 aligned bytes, in one step for every reader.
    AtomicWrite(Remote),
    /// FLUSH: answered when what was written before is where it is to be.
    Flush(FlushRange),
    /// Makes a key of this side's invalid: that of a fast registration or of a window of type 2.
    LocalInv(RKey),
    /// Fast registration: makes a key valid.
    RegMr(Registration),
    /// Binds a memory window.
    BindMw(Binding),
}

impl SendOp {
    /// Whether it concerns only keys of this side, and sends nothing.
    #[inline]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInv(_) | Self::RegMr(_) | Self::BindMw(_))
    }
}

/// The local side of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// One piece: the common case.
    One(Sge),
    /// Several pieces (or none), gathered or scattered in order.
    List(&'a [Sge]),
    /// Bytes copied while posting.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Total bytes; 64 bits, because the sum may exceed what a message can carry.
    pub fn len(&self) -> u64 {
        match self {
            Self::One(sge) => u64::from(sge.len),
            Self::List(list) => list.iter().map(|sge| u64::from(sge.len)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a datagram goes, and with which keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The peer's port, as [`Ah::av`](crate::Ah::av) has it.
    pub av: Av,
    /// The peer's queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The peer's Q_Key. One with the high bit is replaced by the sending queue pair's own, as only
    /// privileged consumers may choose it (IBTA vol. 1, 10.2.5).
    pub qkey: QKey,
    /// Index into the port's P_Key table. Only the general services queue pair chooses by work request;
    /// others ignore it.
    pub pkey_index: u16,
}

impl Datagram {
    /// To that queue pair behind that address, in the port's first partition.
    pub const fn new(av: Av, qpn: Qpn, qkey: QKey) -> Self {
        Self {
            av,
            qpn,
            qkey,
            pkey_index: 0,
        }
    }
}

/// The destination of a work request on a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dest<'a> {
    /// The peer that the queue pair is connected to.
    #[default]
    Peer,
    /// The destination that the work request names; on queue pairs for datagrams, and only there.
    Datagram(&'a Datagram),
    /// The shared receive queue of that number at the peer; on initiators of extended reliable
    /// connections, and only there.
    Srq(Srqn),
}

/// A work request for a send queue, in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// With what.
    pub payload: Payload<'a>,
    /// Where to.
    pub dest: Dest<'a>,
}

/// A work request for a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes, in order.
    pub sges: &'a [Sge],
}

macro_rules! builder {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[must_use = "a work request does nothing until posted"]
        pub struct $name<'a> {
            /// The work request built so far.
            pub wr: SendWr<'a>,
        }

        impl<'a> $name<'a> {
            /// Ask for a completion on success.
            #[inline(always)]
            pub const fn signaled(mut self) -> Self {
                self.wr.flags = self.wr.flags.union(SendFlags::SIGNALED);
                self
            }

            /// Start only after earlier READs and atomics of this queue have completed.
            #[inline(always)]
            pub const fn fenced(mut self) -> Self {
                self.wr.flags = self.wr.flags.union(SendFlags::FENCE);
                self
            }

            /// For the shared receive queue of that number at the peer, on an extended reliable
            /// connection.
            #[inline(always)]
            pub const fn srq(mut self, srqn: Srqn) -> Self {
                self.wr.dest = Dest::Srq(srqn);
                self
            }
        }

        impl<'a> From<$name<'a>> for SendWr<'a> {
            #[inline(always)]
            fn from(builder: $name<'a>) -> Self {
                builder.wr
            }
        }
    };
}

macro_rules! gathers {
    ($name:ident) => {
        impl<'a> $name<'a> {
            /// The one piece of memory that is sent.
            #[inline(always)]
            pub fn from(mut self, sge: impl Into<Sge>) -> Self {
                self.wr.payload = Payload::One(sge.into());
                self
            }

            /// Several pieces, sent in order.
            #[inline(always)]
            pub const fn gather(mut self, sges: &'a [Sge]) -> Self {
                self.wr.payload = Payload::List(sges);
                self
            }

            /// Bytes that are copied while posting; they need not be registered.
            #[inline(always)]
            pub const fn inline(mut self, bytes: &'a [u8]) -> Self {
                self.wr.payload = Payload::Inline(bytes);
                self.wr.flags = self.wr.flags.union(SendFlags::INLINE);
                self
            }

            /// Fire the peer's completion queue even if armed for solicited events only.
            #[inline(always)]
            pub const fn solicited(mut self) -> Self {
                self.wr.flags = self.wr.flags.union(SendFlags::SOLICITED);
                self
            }
        }
    };
}

builder! {
    /// Builds a SEND.
    Send
}
builder! {
    /// Builds an RDMA WRITE.
    Write
}
builder! {
    /// Builds an RDMA READ.
    Read
}
gathers!(Send);
gathers!(Write);

const fn empty<'a>(wr_id: u64, op: SendOp) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::empty(),
        payload: Payload::List(&[]),
        dest: Dest::Peer,
    }
}

mod memory;

pub use memory::{
    Atomic, AtomicWrite, BindMw, Binding, FastReg, Flush, FlushRange, LocalInv, Placement,
    ReadWithInvalidate, Registration, read_with_invalidate,
};

impl<'a> Send<'a> {
    /// A SEND of nothing yet.
    #[inline(always)]
    pub const fn new(wr_id: u64) -> Self {
        Self {
            wr: empty(wr_id, SendOp::Send),
        }
    }

    /// A datagram for that one.
    #[inline(always)]
    pub const fn to(mut self, datagram: &'a Datagram) -> Self {
        self.wr.dest = Dest::Datagram(datagram);
        self
    }

    /// Carry immediate data.
    #[inline(always)]
    pub const fn imm(mut self, imm: u32) -> Self {
        self.wr.op = SendOp::SendWithImm(imm);
        self
    }

    /// Invalidate a key of the peer's when the message has arrived.
    #[inline(always)]
    pub const fn invalidate(mut self, rkey: RKey) -> Self {
        self.wr.op = SendOp::SendWithInv(rkey);
        self
    }
}

impl Write<'_> {
    /// A WRITE of nothing yet to that place.
    #[inline(always)]
    pub const fn new(wr_id: u64, remote: Remote) -> Self {
        Self {
            wr: empty(wr_id, SendOp::Write(remote)),
        }
    }

    /// Carry immediate data, which consumes a receive at the peer.
    #[inline(always)]
    pub const fn imm(mut self, imm: u32) -> Self {
        if let SendOp::Write(remote) = self.wr.op {
            self.wr.op = SendOp::WriteWithImm(remote, imm);
        }
        self
    }
}

impl<'a> Read<'a> {
    /// A READ of nothing yet from that place.
    #[inline(always)]
    pub const fn new(wr_id: u64, remote: Remote) -> Self {
        Self {
            wr: empty(wr_id, SendOp::Read(remote)),
        }
    }

    /// The one piece of memory that is filled.
    #[inline(always)]
    pub fn into(mut self, sge: impl Into<Sge>) -> Self {
        self.wr.payload = Payload::One(sge.into());
        self
    }

    /// Several pieces, filled in order.
    #[inline(always)]
    pub const fn scatter(mut self, sges: &'a [Sge]) -> Self {
        self.wr.payload = Payload::List(sges);
        self
    }

    /// Make the local key of the sink invalid when the bytes are there, on devices with
    /// [`READ_WITH_INV`](crate::DeviceCap::READ_WITH_INV). [`read_with_invalidate`] does the same on every device.
    #[inline(always)]
    pub const fn invalidate(mut self) -> Self {
        if let SendOp::Read(remote) = self.wr.op {
            self.wr.op = SendOp::ReadWithInv(remote);
        }
        self
    }
}

/// Builds a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a work request does nothing until posted"]
pub struct Recv<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes; never [`Payload::Inline`].
    pub payload: Payload<'a>,
}

impl<'a> Recv<'a> {
    /// A receive with no room: takes messages without payload only.
    #[inline(always)]
    pub const fn new(wr_id: u64) -> Self {
        Self {
            wr_id,
            payload: Payload::List(&[]),
        }
    }

    /// The one piece of memory that is filled.
    #[inline(always)]
    pub fn into(mut self, sge: impl Into<Sge>) -> Self {
        self.payload = Payload::One(sge.into());
        self
    }

    /// Several pieces, filled in order.
    #[inline(always)]
    pub const fn scatter(mut self, sges: &'a [Sge]) -> Self {
        self.payload = Payload::List(sges);
        self
    }
}
