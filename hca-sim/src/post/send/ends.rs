//! What the short ways of a send queue find at both ends: where the bytes are, where they go, and where
//! what is done is told.

use verbs_core::mem::{MrTable, Pin, Window};
use verbs_core::{Access, Payload, Piece, RKey, Remote, SendFlags, SendOp, WcOpcode};

use crate::direct::path::DirectPath;
use crate::queue::cq::{CqBuffer, Cqe, Place, Strip};
use crate::queue::cqe_inline::BYTES_MAX;
use crate::queue::recv::Waiting;

/// How entries of a completion queue are found for a message.
pub(super) trait Places<'l> {
    /// Whether this thread alone pushes to that queue, and there are enough: sends and receives may
    /// complete to one queue.
    fn are_there(&self, buffer: &CqBuffer, pin: &Pin) -> bool;

    /// The next one, after that.
    fn next(&mut self, buffer: &'l CqBuffer) -> Option<Place<'l>>;
}

/// Each by itself.
pub(super) struct Single;

impl<'l> Places<'l> for Single {
    #[inline(always)]
    fn are_there(&self, buffer: &CqBuffer, pin: &Pin) -> bool {
        buffer.is_plain(pin) && buffer.has_room_for_two()
    }

    #[inline(always)]
    fn next(&mut self, buffer: &'l CqBuffer) -> Option<Place<'l>> {
        Some(buffer.claim_plain())
    }
}

/// Of a queue that nothing else completes to meanwhile.
impl<'l> Places<'l> for &mut Strip<'l> {
    #[inline(always)]
    fn are_there(&self, _: &CqBuffer, _: &Pin) -> bool {
        !self.is_over()
    }

    #[inline(always)]
    fn next(&mut self, _: &'l CqBuffer) -> Option<Place<'l>> {
        Strip::next(self)
    }
}

/// What is at this end.
pub(super) trait Near: Copy {
    /// The bytes, when they are found in order.
    type Found<'p>: Copy
    where
        Self: 'p;

    fn payload(&self) -> Payload<'_>;

    fn len(self) -> u32;

    fn find<'p>(
        self,
        mrs: &MrTable,
        pin: &'p Pin,
        pd: &u32,
        need: Access,
    ) -> Option<Self::Found<'p>>
    where
        Self: 'p;

    /// Copies all of it, if it is short or `LONG`.
    fn put<const LONG: bool>(found: Self::Found<'_>, to: Window<'_>);

    /// Copies all of it out, if it is short, to where there is room for it.
    fn take(found: Self::Found<'_>, bytes: &mut [u8]);
}

impl Near for Piece {
    type Found<'p> = Window<'p>;

    fn payload(&self) -> Payload<'_> {
        Payload::One((*self).into())
    }

    #[inline(always)]
    fn len(self) -> u32 {
        self.len()
    }

    #[inline(always)]
    fn find<'p>(self, mrs: &MrTable, pin: &'p Pin, pd: &u32, need: Access) -> Option<Window<'p>>
    where
        Self: 'p,
    {
        mrs.check_at_once(pin, self.key(), self.addr, self.len(), pd, need)
    }

    #[inline(always)]
    fn put<const LONG: bool>(found: Window<'_>, to: Window<'_>) {
        if LONG {
            to.copy_from(found);
        } else {
            to.copy_short_from(found);
        }
    }

    #[inline(always)]
    fn take(found: Window<'_>, bytes: &mut [u8]) {
        found.read_short_into(bytes);
    }
}

/// Inline bytes, not more than the queue takes.
#[derive(Clone, Copy)]
pub(super) struct Inline<'a>(pub(super) &'a [u8]);

impl Near for Inline<'_> {
    type Found<'p>
        = Self
    where
        Self: 'p;

    fn payload(&self) -> Payload<'_> {
        Payload::Inline(self.0)
    }

    #[inline(always)]
    fn len(self) -> u32 {
        self.0.len() as u32
    }

    #[inline(always)]
    fn find<'p>(self, _: &MrTable, _: &'p Pin, _: &u32, _: Access) -> Option<Self>
    where
        Self: 'p,
    {
        Some(self)
    }

    #[inline(always)]
    fn put<const LONG: bool>(Self(bytes): Self, to: Window<'_>) {
        if LONG {
            to.write_from(bytes);
        } else {
            to.write_short_from(bytes);
        }
    }

    #[inline(always)]
    fn take(Self(from): Self, bytes: &mut [u8]) {
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// What is at the other end.
pub(super) trait Far<N: Near>: Copy {
    const OPCODE: WcOpcode;
    /// What the responder must grant.
    const RIGHT: Access;
    /// What the memory of this end must allow.
    const NEAR: Access;
    /// What is consumed there.
    type Consumed<'p>: Copy;

    fn operation(self) -> SendOp;

    /// Of a work request, if it is of that kind.
    fn of(operation: &SendOp) -> Option<Self>;

    /// `there` are the places of what is consumed there.
    fn find<'p>(
        self,
        land: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        there: &impl Places<'p>,
    ) -> Option<(Window<'p>, Self::Consumed<'p>)>;

    /// Copies all of it, if it is short or `LONG`.
    fn copy<const LONG: bool>(near: N::Found<'_>, far: Window<'_>);

    /// Tells the other end, if anything is consumed there.
    #[inline(always)]
    fn complete<'p>(
        _land: &'p DirectPath,
        _consumed: Self::Consumed<'p>,
        _len: u32,
        _flags: SendFlags,
        _there: &mut impl Places<'p>,
    ) {
    }

    /// Whether a message of that length can ride.
    fn can_ride(_len: u32) -> bool {
        false
    }
}

/// The oldest receive.
#[derive(Clone, Copy)]
pub(super) struct IntoReceive;

impl<N: Near> Far<N> for IntoReceive {
    const OPCODE: WcOpcode = WcOpcode::Send;
    const RIGHT: Access = Access::empty();
    const NEAR: Access = Access::empty();
    type Consumed<'p> = Waiting<'p>;

    fn operation(self) -> SendOp {
        SendOp::Send
    }

    #[inline(always)]
    fn of(operation: &SendOp) -> Option<Self> {
        matches!(operation, SendOp::Send).then_some(Self)
    }

    #[inline(always)]
    fn find<'p>(
        self,
        land: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        there: &impl Places<'p>,
    ) -> Option<(Window<'p>, Waiting<'p>)> {
        if !there.are_there(&land.buffer, pin) {
            return None;
        }
        let (waiting, piece) = land.next_piece()?;
        if len > piece.len() {
            return None;
        }
        let (addr, right) = (piece.addr, Access::LOCAL_WRITE);
        let target = reach(land, pin, addr, piece.key(), len, right)?;
        Some((target, waiting))
    }

    #[inline(always)]
    fn copy<const LONG: bool>(near: N::Found<'_>, far: Window<'_>) {
        N::put::<LONG>(near, far);
    }

    #[inline(always)]
    fn complete<'p>(
        land: &'p DirectPath,
        waiting: Waiting<'p>,
        len: u32,
        flags: SendFlags,
        there: &mut impl Places<'p>,
    ) {
        let cqe = Cqe::success(waiting.wr_id(), land.qpn, WcOpcode::Recv, len).asked_for(flags);
        // Whoever polls the completion may post the next receive at once.
        land.ring.consume(waiting);
        if let Some(place) = there.next(&land.buffer) {
            place.publish(&cqe);
        }
    }

    #[inline(always)]
    fn can_ride(len: u32) -> bool {
        len <= BYTES_MAX
    }
}

/// Memory of the responder's, if its protection domain has that right to it.
#[inline(always)]
fn reach<'p>(
    land: &'p DirectPath,
    pin: &'p Pin,
    addr: u64,
    key: u32,
    len: u32,
    right: Access,
) -> Option<Window<'p>> {
    land.mrs.check_at_once(pin, key, addr, len, &land.pd, right)
}

/// Remote memory that is written to: its address and key.
#[derive(Clone, Copy)]
pub(super) struct IntoMemory(pub(super) u64, pub(super) u32);

impl<N: Near> Far<N> for IntoMemory {
    const OPCODE: WcOpcode = WcOpcode::RdmaWrite;
    const RIGHT: Access = Access::REMOTE_WRITE;
    const NEAR: Access = Access::empty();
    type Consumed<'p> = ();

    fn operation(self) -> SendOp {
        let (addr, rkey) = (self.0, RKey::new(self.1));
        SendOp::Write(Remote { addr, rkey })
    }

    #[inline(always)]
    fn of(operation: &SendOp) -> Option<Self> {
        match operation {
            SendOp::Write(at) => Some(Self(at.addr, at.rkey.value())),
            _ => None,
        }
    }

    #[inline(always)]
    fn find<'p>(
        self,
        land: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        _: &impl Places<'p>,
    ) -> Option<(Window<'p>, ())> {
        Some((
            reach(land, pin, self.0, self.1, len, Access::REMOTE_WRITE)?,
            (),
        ))
    }

    #[inline(always)]
    fn copy<const LONG: bool>(near: N::Found<'_>, far: Window<'_>) {
        N::put::<LONG>(near, far);
    }
}

/// Remote memory that is read from: its address and key.
#[derive(Clone, Copy)]
pub(super) struct FromMemory(pub(super) u64, pub(super) u32);

impl Far<Piece> for FromMemory {
    const OPCODE: WcOpcode = WcOpcode::RdmaRead;
    const RIGHT: Access = Access::REMOTE_READ;
    const NEAR: Access = Access::LOCAL_WRITE;
    type Consumed<'p> = ();

    fn operation(self) -> SendOp {
        let (addr, rkey) = (self.0, RKey::new(self.1));
        SendOp::Read(Remote { addr, rkey })
    }

    #[inline(always)]
    fn of(operation: &SendOp) -> Option<Self> {
        match operation {
            SendOp::Read(at) => Some(Self(at.addr, at.rkey.value())),
            _ => None,
        }
    }

    #[inline(always)]
    fn find<'p>(
        self,
        land: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        _: &impl Places<'p>,
    ) -> Option<(Window<'p>, ())> {
        Some((
            reach(land, pin, self.0, self.1, len, Access::REMOTE_READ)?,
            (),
        ))
    }

    #[inline(always)]
    fn copy<const LONG: bool>(near: Window<'_>, far: Window<'_>) {
        Piece::put::<LONG>(far, near);
    }
}

/// A message that is to be carried out. What is not needed at once is read when it is.
pub(super) struct Errand<'a, N, F> {
    pub(super) wr_id: &'a u64,
    /// Of the work request.
    pub(super) number: &'a u32,
    pub(super) near: N,
    pub(super) far: F,
    pub(super) flags: SendFlags,
}
