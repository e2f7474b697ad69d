//! Work requests of the memory management extensions: keys, windows, and atomics beyond the first two.

use std::ops::Deref;

use bitflags::bitflags;

use super::{Dest, Payload, Read, Remote, SendFlags, SendOp, SendWr, Sge, Srqn, empty};
use crate::addr::{LKey, RKey};
use crate::caps::DeviceCap;
use crate::mem::Access;

/// What a fast registration makes valid; [`FastMr::register`](crate::FastMr::register) makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The key: the index of an allocated region, and a byte of the consumer's choice.
    pub key: LKey,
    /// The access rights.
    pub access: Access,
    /// The address that the first byte is reached at.
    pub iova: u64,
    /// Which mapping of the region it is for, counted from 1. If another one was made in the meantime the
    /// work request ends in error instead of registering other pages than were meant.
    pub mapping: u32,
}

/// What a memory window is bound to; [`Mw::bind`](crate::Mw::bind) makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window's key as it is now.
    pub mw: RKey,
    /// The key that it is to have.
    pub rkey: RKey,
    /// The region.
    pub lkey: LKey,
    /// What peers may do.
    pub access: Access,
    /// Where the window begins, as the region is reached at.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
}

bitflags! {
    /// Where data is to be when a FLUSH is answered, with the values on the wire.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Placement: u8 {
        /// Where every other access sees it.
        const GLOBAL = 1;
        /// In memory that outlives power.
        const PERSISTENT = 1 << 1;
    }
}

impl Placement {
    /// The rights that it needs.
    pub const fn right(self) -> Access {
        let mut right = Access::empty();
        if self.contains(Self::GLOBAL) {
            right = right.union(Access::FLUSH_GLOBAL);
        }
        if self.contains(Self::PERSISTENT) {
            right = right.union(Access::FLUSH_PERSISTENT);
        }
        right
    }
}

/// What a FLUSH is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRange {
    /// The first byte; of a whole region only the key counts.
    pub remote: Remote,
    /// Bytes; `None` for all of the region.
    pub len: Option<u32>,
    /// How far.
    pub placement: Placement,
}

builder! {
    /// Builds a local invalidate. Without [`fenced`](Self::fenced), hardware may carry it out before
    /// earlier work requests that use the key.
    LocalInv
}
builder! {
    /// Builds a fast registration. Work requests behind it may use the key at once.
    FastReg
}
builder! {
    /// Builds the bind of a memory window.
    BindMw
}
builder! {
    /// Builds an ATOMIC WRITE of 8 bytes.
    AtomicWrite
}
builder! {
    /// Builds a FLUSH.
    Flush
}
builder! {
    /// Builds an atomic whose old value comes back.
    Atomic
}

impl LocalInv<'_> {
    /// Makes that key invalid.
    #[inline]
    pub const fn new(wr_id: u64, key: RKey) -> Self {
        let wr = empty(wr_id, SendOp::LocalInv(key));
        Self { wr }
    }
}

impl FastReg<'_> {
    /// Makes the key of `what` valid.
    #[inline]
    pub const fn new(wr_id: u64, what: Registration) -> Self {
        let wr = empty(wr_id, SendOp::RegMr(what));
        Self { wr }
    }
}

impl BindMw<'_> {
    /// Binds as `what` says.
    #[inline]
    pub const fn new(wr_id: u64, what: Binding) -> Self {
        let wr = empty(wr_id, SendOp::BindMw(what));
        Self { wr }
    }

    /// What is bound.
    pub const fn binding(&self) -> Option<Binding> {
        match self.wr.op {
            SendOp::BindMw(what) => Some(what),
            _ => None,
        }
    }

    /// The consumer's own key byte, instead of the next one.
    pub const fn key_byte(mut self, byte: u8) -> Self {
        if let SendOp::BindMw(mut what) = self.wr.op {
            what.rkey = RKey::new(what.rkey.value() & !0xff | byte as u32);
            self.wr.op = SendOp::BindMw(what);
        }
        self
    }
}

impl<'a> AtomicWrite<'a> {
    /// Writes nothing yet to that place, an address that is a multiple of 8.
    #[inline]
    pub const fn new(wr_id: u64, remote: Remote) -> Self {
        let wr = empty(wr_id, SendOp::AtomicWrite(remote));
        Self { wr }
    }

    /// The 8 bytes of memory that are written.
    pub fn from(mut self, sge: impl Into<Sge>) -> Self {
        self.wr.payload = Payload::One(sge.into());
        self
    }

    /// The 8 bytes, copied while posting.
    pub const fn inline(mut self, bytes: &'a [u8; 8]) -> Self {
        self.wr.payload = Payload::Inline(bytes);
        self.wr.flags = self.wr.flags.union(SendFlags::INLINE);
        self
    }
}

impl Flush<'_> {
    /// Flushes `len` bytes from that place on.
    pub const fn range(wr_id: u64, remote: Remote, len: u32, placement: Placement) -> Self {
        let len = Some(len);
        let what = FlushRange {
            remote,
            len,
            placement,
        };
        let wr = empty(wr_id, SendOp::Flush(what));
        Self { wr }
    }

    /// Flushes all of the region with that key.
    pub const fn region(wr_id: u64, rkey: RKey, placement: Placement) -> Self {
        let what = FlushRange {
            remote: Remote { addr: 0, rkey },
            len: None,
            placement,
        };
        let wr = empty(wr_id, SendOp::Flush(what));
        Self { wr }
    }
}

impl Atomic<'_> {
    /// Replaces 8 aligned bytes by `swap` if they are `compare`.
    pub const fn compare_swap(wr_id: u64, remote: Remote, compare: u64, swap: u64) -> Self {
        let op = SendOp::CompareSwap {
            remote,
            compare,
            swap,
        };
        let wr = empty(wr_id, op);
        Self { wr }
    }

    /// Adds to 8 aligned bytes.
    pub const fn fetch_add(wr_id: u64, remote: Remote, add: u64) -> Self {
        let wr = empty(wr_id, SendOp::FetchAdd { remote, add });
        Self { wr }
    }

    /// Compares only those bits and replaces only these: makes a compare and swap a masked one.
    pub const fn masks(mut self, compare_mask: u64, swap_mask: u64) -> Self {
        if let SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } = self.wr.op
        {
            self.wr.op = SendOp::MaskedCompareSwap {
                remote,
                compare,
                compare_mask,
                swap,
                swap_mask,
            };
        }
        self
    }

    /// Adds several numbers in one word, whose highest bits are set here: makes a fetch and add a
    /// masked one.
    pub const fn fields(mut self, boundary: u64) -> Self {
        if let SendOp::FetchAdd { remote, add } = self.wr.op {
            self.wr.op = SendOp::MaskedFetchAdd {
                remote,
                add,
                boundary,
            };
        }
        self
    }

    /// The 8 bytes that take the old value.
    pub fn into(mut self, sge: impl Into<Sge>) -> Self {
        self.wr.payload = Payload::One(sge.into());
        self
    }
}

/// The work requests of [`read_with_invalidate`], to be posted together: it derefs to a slice of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a work request does nothing until posted"]
pub struct ReadWithInvalidate<'a> {
    wrs: [SendWr<'a>; 2],
    count: usize,
}

impl<'a> Deref for ReadWithInvalidate<'a> {
    type Target = [SendWr<'a>];

    fn deref(&self) -> &[SendWr<'a>] {
        &self.wrs[..self.count]
    }
}

/// A READ that invalidates `key`, the key of the fast registration that its sink lies in, on any device.
///
/// One with [`READ_WITH_INV`](DeviceCap::READ_WITH_INV) among its `caps`, an RNIC (RFC 5040), has one work request for
/// it. Elsewhere it is two, a READ and a local invalidate behind it, which is fenced because hardware may carry an
/// invalidate out before a READ has ended. Either makes one completion on success, with the `wr_id` of the READ; its
/// opcode is that of the last work request, so [`RdmaRead`](crate::WcOpcode::RdmaRead) or
/// [`LocalInv`](crate::WcOpcode::LocalInv).
///
/// ```
/// use verbs_core::{DeviceCap, LKey, RKey, Read, Remote, Sge, read_with_invalidate};
///
/// let sink = Sge { addr: 0x1000, len: 64, lkey: LKey::new(0x105) };
/// let read = Read::new(7, Remote { addr: 0x2000, rkey: RKey::new(0x205) }).into(sink);
/// let wrs = read_with_invalidate(DeviceCap::empty(), read, RKey::new(0x105));
/// assert_eq!(wrs.len(), 2); // for SendQueue::post_batch
/// let wrs = read_with_invalidate(DeviceCap::READ_WITH_INV, read, RKey::new(0x105));
/// assert_eq!(wrs.len(), 1);
/// ```
pub const fn read_with_invalidate<'a>(
    caps: DeviceCap,
    read: Read<'a>,
    key: RKey,
) -> ReadWithInvalidate<'a> {
    if caps.contains(DeviceCap::READ_WITH_INV) {
        let wr = read.invalidate().signaled().wr;
        return ReadWithInvalidate {
            wrs: [wr; 2],
            count: 1,
        };
    }
    let mut first = read.wr;
    first.flags = first.flags.difference(SendFlags::SIGNALED);
    let last = LocalInv::new(first.wr_id, key).fenced().signaled().wr;
    ReadWithInvalidate {
        wrs: [first, last],
        count: 2,
    }
}
