//! Both ends of the short paths of a send queue: where the bytes are, where they are copied to, and where the
//! completions are pushed.

use verbs_core::mem::{MrTable, Pin, Window};
use verbs_core::{Access, Payload, Piece, RKey, Remote, SendFlags, SendOp, WcOpcode};

use super::moves::Moves;
use crate::direct::path::DirectPath;
use crate::queue::cq::{ClaimedEntry, CqBuffer, Cqe, Strip};
use crate::queue::cqe_inline::BYTES_MAX;
use crate::queue::recv::Waiting;

/// How entries of a completion queue are found for a message.
pub(super) trait CqeSlots<'l> {
    /// Whether this thread alone pushes to that queue, and the queue has enough entries: sends and receives may
    /// complete to one queue.
    fn are_there(&self, buffer: &CqBuffer, pin: &Pin) -> bool;

    /// The next one, after that.
    fn next(&mut self, buffer: &'l CqBuffer) -> Option<ClaimedEntry<'l>>;

    /// It is filled, with that completion.
    #[inline(always)]
    fn filled(&mut self, _buffer: &CqBuffer, _cqe: &Cqe) {}
}

/// Each entry by itself.
pub(super) struct Single;

impl<'l> CqeSlots<'l> for Single {
    #[inline(always)]
    fn are_there(&self, buffer: &CqBuffer, pin: &Pin) -> bool {
        buffer.is_plain(pin) && buffer.has_room_for_two()
    }

    #[inline(always)]
    fn next(&mut self, buffer: &'l CqBuffer) -> Option<ClaimedEntry<'l>> {
        Some(buffer.claim_plain())
    }
}

/// Each by itself, of a queue that may be armed.
#[derive(Default)]
pub(super) struct Watched {
    /// The event that the consumer wants is due.
    pub(super) fires: bool,
}

impl<'l> CqeSlots<'l> for &mut Watched {
    #[inline(always)]
    fn are_there(&self, buffer: &CqBuffer, pin: &Pin) -> bool {
        buffer.is_owned(pin) && buffer.has_room_for_two()
    }

    #[inline(always)]
    fn next(&mut self, buffer: &'l CqBuffer) -> Option<ClaimedEntry<'l>> {
        Some(buffer.claim_plain())
    }

    #[inline(always)]
    fn filled(&mut self, buffer: &CqBuffer, cqe: &Cqe) {
        self.fires |= buffer.is_watched() && buffer.fires_for(cqe);
    }
}

/// Of a queue that nothing else completes to in the meantime.
impl<'l> CqeSlots<'l> for &mut Strip<'l> {
    #[inline(always)]
    fn are_there(&self, _: &CqBuffer, _: &Pin) -> bool {
        !self.is_over()
    }

    #[inline(always)]
    fn next(&mut self, _: &'l CqBuffer) -> Option<ClaimedEntry<'l>> {
        Strip::next(self)
    }
}

/// This end of a message.
pub(super) trait Near: Copy {
    /// The bytes, when they are found to be in order.
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

    /// Copies all of it. `None`: some of the memory is gone.
    fn put<M: Moves>(found: Self::Found<'_>, to: Window<'_>) -> Option<()>;

    /// Copies all of it out, if it is short, to where there is room for it. `None`: some of the memory is gone.
    fn take(found: Self::Found<'_>, bytes: &mut [u8]) -> Option<()>;
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
    fn put<M: Moves>(found: Window<'_>, to: Window<'_>) -> Option<()> {
        M::copy(to, found)
    }

    #[inline(always)]
    fn take(found: Window<'_>, bytes: &mut [u8]) -> Option<()> {
        found.read_short_into(bytes).ok()
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
    fn put<M: Moves>(Self(bytes): Self, to: Window<'_>) -> Option<()> {
        M::write(to, bytes)
    }

    #[inline(always)]
    fn take(Self(from): Self, bytes: &mut [u8]) -> Option<()> {
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = *from;
        }
        Some(())
    }
}

/// The other end of a message.
pub(super) trait Far<N: Near>: Copy {
    const OPCODE: WcOpcode;
    /// The right that the responder must grant.
    const RIGHT: Access;
    /// The right that the memory of this end must have.
    const NEAR: Access;
    /// The entry that is consumed there.
    type Consumed<'p>: Copy;

    fn operation(self) -> SendOp;

    /// The far end of a work request, if it is of that kind.
    fn of(operation: &SendOp) -> Option<Self>;

    /// `there` are the places of what is consumed there.
    fn find<'p>(
        self,
        direct: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        there: &impl CqeSlots<'p>,
    ) -> Option<(Window<'p>, Self::Consumed<'p>)>;

    /// Copies all of it. `None`: some of the memory is gone.
    fn copy<M: Moves>(near: N::Found<'_>, far: Window<'_>) -> Option<()>;

    /// Reports to the other end, if anything is consumed there.
    #[inline(always)]
    fn complete<'p>(
        _land: &'p DirectPath,
        _consumed: Self::Consumed<'p>,
        _len: u32,
        _flags: SendFlags,
        _there: &mut impl CqeSlots<'p>,
    ) {
    }

    /// Whether a message of that length fits in a CQE.
    fn fits_cqe(_len: u32) -> bool {
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
        direct: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        there: &impl CqeSlots<'p>,
    ) -> Option<(Window<'p>, Waiting<'p>)> {
        if !there.are_there(&direct.buffer, pin) {
            return None;
        }
        let (waiting, piece) = direct.next_piece()?;
        if len > piece.len() {
            return None;
        }
        let (addr, right) = (piece.addr, Access::LOCAL_WRITE);
        let target = reach(direct, pin, addr, piece.key(), len, right)?;
        Some((target, waiting))
    }

    #[inline(always)]
    fn copy<M: Moves>(near: N::Found<'_>, far: Window<'_>) -> Option<()> {
        N::put::<M>(near, far)
    }

    #[inline(always)]
    fn complete<'p>(
        direct: &'p DirectPath,
        waiting: Waiting<'p>,
        len: u32,
        flags: SendFlags,
        there: &mut impl CqeSlots<'p>,
    ) {
        let cqe = Cqe::success(waiting.wr_id(), direct.qpn, WcOpcode::Recv, len).asked_for(flags);
        // A thread that polls the completion may post the next receive at once.
        direct.ring.consume(waiting);
        if let Some(place) = there.next(&direct.buffer) {
            place.publish(&cqe);
            there.filled(&direct.buffer, &cqe);
        }
    }

    #[inline(always)]
    fn fits_cqe(len: u32) -> bool {
        len <= BYTES_MAX
    }
}

/// Memory of the responder, if its protection domain has that right to it.
#[inline(always)]
fn reach<'p>(
    direct: &'p DirectPath,
    pin: &'p Pin,
    addr: u64,
    key: u32,
    len: u32,
    right: Access,
) -> Option<Window<'p>> {
    direct
        .mrs
        .check_at_once(pin, key, addr, len, &direct.pd, right)
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
        direct: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        _: &impl CqeSlots<'p>,
    ) -> Option<(Window<'p>, ())> {
        Some((
            reach(direct, pin, self.0, self.1, len, Access::REMOTE_WRITE)?,
            (),
        ))
    }

    #[inline(always)]
    fn copy<M: Moves>(near: N::Found<'_>, far: Window<'_>) -> Option<()> {
        N::put::<M>(near, far)
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
        direct: &'p DirectPath,
        pin: &'p Pin,
        len: u32,
        _: &impl CqeSlots<'p>,
    ) -> Option<(Window<'p>, ())> {
        Some((
            reach(direct, pin, self.0, self.1, len, Access::REMOTE_READ)?,
            (),
        ))
    }

    #[inline(always)]
    fn copy<M: Moves>(near: Window<'_>, far: Window<'_>) -> Option<()> {
        Piece::put::<M>(far, near)
    }
}

/// A message that is to be carried out. What is not needed at once is read when it is needed.
pub(super) struct ShortWr<'a, N, F> {
    pub(super) wr_id: &'a u64,
    /// The number of the work request.
    pub(super) number: &'a u32,
    pub(super) near: N,
    pub(super) far: F,
    pub(super) flags: SendFlags,
}
