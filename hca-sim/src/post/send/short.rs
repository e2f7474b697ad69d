//! The short paths of a send queue: messages that one look at everything finds in order.
//!
//! All of them are one function over what is at this end and what is at the other ([`super::ends`]). It looks first and
//! acts afterwards, so nothing has been done when it gives up; whatever it does not handle takes the long path, which
//! finds out why.

use std::hint::cold_path;

use verbs_core::mem::{Pin, Window, pin, pin_at_once};
use verbs_core::slab_alloc::SlabArc;
use verbs_core::{PostCode, RawSendQueue, SendFlags};

use super::SendPoster;
use super::ends::{CqeSlots, Far, Near, ShortWr, Single, Watched};
use super::moves::{AnyLength, Moves};
use crate::direct::message::Done;
use crate::direct::path::DirectPath;
use crate::queue::cq::Cqe;
use crate::queue::send::SendRing;

impl SendPoster {
    /// Carries a message out. The last step of the short paths, so nothing that they were given has to be kept across a
    /// call.
    #[inline(always)]
    pub(super) fn short<M: Moves, N: Near, F: Far<N>>(
        &mut self,
        wr_id: u64,
        near: N,
        far: F,
        flags: SendFlags,
    ) -> Result<(), PostCode> {
        let flags = flags | self.always;
        if near.len() > Window::SHORT || self.posted == self.limit {
            cold_path();
            return self.long(wr_id, near, far, flags, None);
        }
        let Some(pin) = pin_at_once() else {
            cold_path();
            return self.long(wr_id, near, far, flags, None);
        };
        if self
            .place::<M, N, F>(&pin, wr_id, near, far, flags)
            .is_none()
        {
            cold_path();
            return self.long(wr_id, near, far, flags, Some(pin));
        }
        drop(pin);
        Ok(())
    }

    /// As [`SendPoster::short`], with the flags that every work request has, for messages that are long, may become
    /// inline CQEs, or meet an obstacle. A long copy is a call, around which registers have to be saved.
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
            if self.is_watched() {
                let placed = self.land_watched::<N, F>(&pin, wr_id, near, far, flags);
                drop(pin);
                if let Some(done) = placed {
                    if !done.is_quiet() {
                        self.handle_done(done);
                    }
                    return Ok(());
                }
            } else {
                let placed = self.bring::<N, F>(&pin, wr_id, near, far, flags);
                let placed = placed.or_else(|| {
                    self.makes_room(&pin)
                        .then(|| self.bring::<N, F>(&pin, wr_id, near, far, flags))
                        .flatten()
                });
                drop(pin);
                if placed.is_some() {
                    return Ok(());
                }
            }
        }
        self.post_parts(wr_id, far.operation(), flags, near.payload())
    }

    /// Sends the message as an inline CQE if the path allows them and it fits; otherwise places it, unless inline CQEs
    /// are under way.
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
        if DirectPath::allows_inline_cqes(open.view) {
            if F::fits_cqe(near.len()) {
                let sent = self.send_inline_cqe(pin, wr_id, near, flags);
                if sent.is_some() {
                    return sent;
                }
            }
            if self.has_inline_cqes() {
                return None;
            }
        }
        self.place::<AnyLength, N, F>(pin, wr_id, near, far, flags)
    }

    /// Whether there is room in the completion queues now that was not there before.
    #[cold]
    #[inline(never)]
    fn makes_room(&self, pin: &Pin) -> bool {
        let receiver = self.open.as_ref().map(|open| &open.direct.buffer);
        let receives = receiver.is_some_and(|cq| cq.makes_room_for_two(pin));
        self.buffer.makes_room_for_two(pin) || receives
    }

    /// Whether the consumer of either completion queue may want an event.
    #[inline(always)]
    fn is_watched(&self) -> bool {
        let receives = self.open.as_ref().map(|open| &open.direct.buffer);
        self.buffer.is_watched() || receives.is_some_and(|cq| cq.is_watched())
    }

    /// As [`SendPoster::place`], of a message after which a consumer may want an event: which is due is said, to be
    /// delivered when the pin was left.
    #[inline(always)]
    fn land_watched<N: Near, F: Far<N>>(
        &mut self,
        pin: &Pin,
        wr_id: u64,
        near: N,
        far: F,
        flags: SendFlags,
    ) -> Option<Done> {
        let open = self.open.as_ref()?;
        let direct = &*open.direct;
        if !direct.admits_short(pin, open.view, F::RIGHT) {
            return None;
        }
        let short_wr = ShortWr {
            wr_id: &wr_id,
            number: &self.posted,
            near,
            far,
            flags,
        };
        let (mut here, mut there) = (Watched::default(), Watched::default());
        self.carry::<AnyLength, N, F>(direct, &open.sends, pin, short_wr, &mut here, &mut there)?;
        direct.advance(&open.sends, near.len());
        // Counted before anything foreign runs, which may panic.
        self.posted = self.posted.wrapping_add(1);
        Some(Done {
            fire_recv: there.fires,
            fire_send: here.fires,
            ..Done::default()
        })
    }

    /// Looks, and carries the message out if all is in order.
    #[inline(always)]
    fn place<M: Moves, N: Near, F: Far<N>>(
        &mut self,
        pin: &Pin,
        wr_id: u64,
        near: N,
        far: F,
        flags: SendFlags,
    ) -> Option<()> {
        let open = self.open.as_ref()?;
        let direct = &*open.direct;
        let admits = if M::ANY_LENGTH {
            direct.admits_direct(pin, open.view, F::RIGHT)
        } else {
            direct.admits_short(pin, open.view, F::RIGHT)
        };
        if !admits {
            return None;
        }
        let short_wr = ShortWr {
            wr_id: &wr_id,
            number: &self.posted,
            near,
            far,
            flags,
        };
        self.carry::<M, N, F>(direct, &open.sends, pin, short_wr, Single, Single)?;
        direct.advance(&open.sends, near.len());
        self.posted = self.posted.wrapping_add(1);
        Some(())
    }

    /// The second half of [`SendPoster::place`]. What remains to be counted then is the message and its packets.
    #[inline(always)]
    pub(super) fn carry<'p, M: Moves, N: Near + 'p, F: Far<N>>(
        &'p self,
        direct: &'p DirectPath,
        sends: &SlabArc<SendRing>,
        pin: &'p Pin,
        short_wr: ShortWr<'_, N, F>,
        mut here: impl CqeSlots<'p>,
        mut there: impl CqeSlots<'p>,
    ) -> Option<()> {
        let ShortWr {
            near, far, flags, ..
        } = short_wr;
        let (cq, len) = (&*self.buffer, near.len());
        let signaled = flags.contains(SendFlags::SIGNALED);
        if signaled && !here.are_there(cq, pin) {
            return None;
        }
        let (target, consumed) = far.find(direct, pin, len, &there)?;
        let source = near.find(&self.mrs, pin, &self.pd, F::NEAR)?;
        F::copy::<M>(source, target)?;
        F::complete(direct, consumed, len, flags, &mut there);
        if signaled {
            let cqe = Cqe::success(*short_wr.wr_id, self.qpn, F::OPCODE, len);
            if let Some(place) = here.next(cq) {
                // A thread that polls it may post the next send at once, and that looks for the mark.
                sends.mark(*short_wr.number, place.at);
                place.publish(&cqe);
                here.filled(cq, &cqe);
            }
        }
        Some(())
    }
}
