//! The short ways of a send queue: messages that one look at everything finds in order.
//!
//! All of them are one function over what is at this end and what is at the other. It looks first and
//! acts afterwards, so that nothing has been done when it gives up; whatever it does not like goes the
//! long way, which finds out what it is.

use verbs_core::mem::{MrTable, Pin, Window, pin, pin_at_once};
use verbs_core::{
    Access, Payload, Piece, PostCode, RKey, RawSendQueue, Remote, SendFlags, SendOp, WcOpcode,
};

use crate::cq::Cqe;
use crate::landing::Landing;
use crate::recv::Waiting;
use crate::rider::BYTES_MAX;
use crate::send::SendPoster;

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
        pd: u32,
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
    fn find<'p>(self, mrs: &MrTable, pin: &'p Pin, pd: u32, need: Access) -> Option<Window<'p>>
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
    fn find<'p>(self, _: &MrTable, _: &'p Pin, _: u32, _: Access) -> Option<Self>
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

    fn find<'p>(
        self,
        land: &'p Landing,
        pin: &'p Pin,
        len: u32,
    ) -> Option<(Window<'p>, Self::Consumed<'p>)>;

    /// Copies all of it, if it is short or `LONG`.
    fn copy<const LONG: bool>(near: N::Found<'_>, far: Window<'_>);

    fn complete(land: &Landing, consumed: Self::Consumed<'_>, len: u32, flags: SendFlags);

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
    fn find<'p>(
        self,
        land: &'p Landing,
        pin: &'p Pin,
        len: u32,
    ) -> Option<(Window<'p>, Waiting<'p>)> {
        let (waiting, piece) = land.next_piece()?;
        if len > piece.len() {
            return None;
        }
        let (key, right) = (piece.key(), Access::LOCAL_WRITE);
        let target = land
            .mrs
            .check_at_once(pin, key, piece.addr, len, land.pd, right)?;
        let cq = &*land.lane;
        if !(cq.is_plain(pin) && cq.has_room_for_two()) {
            return None;
        }
        Some((target, waiting))
    }

    #[inline(always)]
    fn copy<const LONG: bool>(near: N::Found<'_>, far: Window<'_>) {
        N::put::<LONG>(near, far);
    }

    #[inline(always)]
    fn complete(land: &Landing, waiting: Waiting<'_>, len: u32, flags: SendFlags) {
        let cqe = Cqe::success(waiting.wr_id(), land.qpn, WcOpcode::Recv, len).asked_for(flags);
        // Whoever polls the completion may post the next receive at once.
        waiting.consume();
        let cq = &*land.lane;
        cq.publish_plain(cq.claim_plain(), &cqe);
    }

    #[inline(always)]
    fn can_ride(len: u32) -> bool {
        len <= BYTES_MAX
    }
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
    fn find<'p>(self, land: &'p Landing, pin: &'p Pin, len: u32) -> Option<(Window<'p>, ())> {
        let right = Access::REMOTE_WRITE;
        let mrs = &*land.mrs;
        let window = mrs.check_at_once(pin, self.1, self.0, len, land.pd, right)?;
        Some((window, ()))
    }

    #[inline(always)]
    fn copy<const LONG: bool>(near: N::Found<'_>, far: Window<'_>) {
        N::put::<LONG>(near, far);
    }

    #[inline(always)]
    fn complete(_: &Landing, (): (), _: u32, _: SendFlags) {}
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
    fn find<'p>(self, land: &'p Landing, pin: &'p Pin, len: u32) -> Option<(Window<'p>, ())> {
        let right = Access::REMOTE_READ;
        let mrs = &*land.mrs;
        let window = mrs.check_at_once(pin, self.1, self.0, len, land.pd, right)?;
        Some((window, ()))
    }

    #[inline(always)]
    fn copy<const LONG: bool>(near: Window<'_>, far: Window<'_>) {
        Piece::put::<LONG>(far, near);
    }

    #[inline(always)]
    fn complete(_: &Landing, (): (), _: u32, _: SendFlags) {}
}

impl SendPoster {
    /// Carries a message out. The last step of the short ways, so that nothing that they were given
    /// has to be kept across a call.
    #[inline(always)]
    pub(super) fn short<N: Near, F: Far<N>>(
        &mut self,
        wr_id: u64,
        near: N,
        far: F,
        flags: SendFlags,
    ) -> Result<(), PostCode> {
        if near.len() > Window::SHORT || self.posted == self.limit {
            return self.long(wr_id, near, far, flags, None);
        }
        let Some(pin) = pin_at_once() else {
            return self.long(wr_id, near, far, flags, None);
        };
        if self
            .land::<N, F, false>(&pin, wr_id, near, far, flags)
            .is_none()
        {
            return self.long(wr_id, near, far, flags, Some(pin));
        }
        drop(pin);
        Ok(())
    }

    /// As [`SendPoster::short`], for messages that are long, may ride, or have something in the way. A long
    /// copy is a call, around which registers have to be saved.
    #[inline(never)]
    fn long<N: Near, F: Far<N>>(
        &mut self,
        wr_id: u64,
        near: N,
        far: F,
        flags: SendFlags,
        mut outer: Option<Pin>,
    ) -> Result<(), PostCode> {
        if self.posted == self.limit {
            drop(outer.take());
            self.look_for_credits();
        }
        if self.posted != self.limit {
            let pin = outer.unwrap_or_else(pin);
            let landed = self.bring::<N, F>(&pin, wr_id, near, far, flags);
            let landed = landed.or_else(|| {
                self.makes_room(&pin)
                    .then(|| self.bring::<N, F>(&pin, wr_id, near, far, flags))
                    .flatten()
            });
            drop(pin);
            if landed.is_some() {
                return Ok(());
            }
        }
        self.post_parts(wr_id, far.operation(), flags, near.payload())
    }

    /// Has the message ride, if messages do and this one can, and otherwise lands it, unless riders are
    /// under way.
    #[inline(always)]
    fn bring<N: Near, F: Far<N>>(
        &mut self,
        pin: &Pin,
        wr_id: u64,
        near: N,
        far: F,
        flags: SendFlags,
    ) -> Option<()> {
        let open = self.open.as_ref()?;
        if Landing::lends(open.view) {
            if F::can_ride(near.len()) {
                let rides = self.ride(pin, wr_id, near, flags);
                if rides.is_some() {
                    return rides;
                }
            }
            if self.has_riders() {
                return None;
            }
        }
        self.land::<N, F, true>(pin, wr_id, near, far, flags)
    }

    /// Whether there is room in the completion queues now and was not before.
    #[cold]
    #[inline(never)]
    fn makes_room(&self, pin: &Pin) -> bool {
        let receiver = self.open.as_ref().map(|open| &open.land.lane);
        let receives = receiver.is_some_and(|cq| cq.makes_room_for_two(pin));
        self.lane.makes_room_for_two(pin) || receives
    }

    /// Looks, and carries the message out if all is in order.
    #[inline(always)]
    fn land<N: Near, F: Far<N>, const LONG: bool>(
        &mut self,
        pin: &Pin,
        wr_id: u64,
        near: N,
        far: F,
        flags: SendFlags,
    ) -> Option<()> {
        let flags = flags | self.always;
        let open = self.open.as_ref()?;
        let (land, cq, len) = (&*open.land, &*self.lane, near.len());
        let admits = if LONG {
            land.admits_direct(pin, open.view, F::RIGHT)
        } else {
            land.admits_short(pin, open.view, F::RIGHT)
        };
        if !admits {
            return None;
        }
        let here = near.find(&self.mrs, pin, self.pd, F::NEAR)?;
        let signaled = flags.contains(SendFlags::SIGNALED);
        if signaled && !(cq.is_plain(pin) && cq.has_room_for_two()) {
            return None;
        }
        let (there, consumed) = far.find(land, pin, len)?;
        F::copy::<LONG>(here, there);
        F::complete(land, consumed, len, flags);
        if signaled {
            let cqe = Cqe::success(wr_id, self.qpn, F::OPCODE, len);
            let at = cq.claim_plain();
            // Whoever polls it may post the next send at once, and that looks for the mark.
            open.sends.mark(self.posted, at);
            cq.publish_plain(at, &cqe);
        }
        self.posted = self.posted.wrapping_add(1);
        open.sends.advance(land, len);
        Some(())
    }
}
