//! The short ways of a send queue: messages that one look at everything finds in order.
//!
//! All of them are one function over what is at this end and what is at the other ([`super::ends`]). It
//! looks first and acts afterwards, so that nothing has been done when it gives up; whatever it does not
//! like goes the long way, which finds out what it is.

use std::hint::cold_path;

use verbs_core::mem::{Pin, Window, pin, pin_at_once};
use verbs_core::yard::Common;
use verbs_core::{PostCode, RawSendQueue, SendFlags};

use super::SendPoster;
use super::ends::{Errand, Far, Near, Places, Single};
use crate::direct::path::DirectPath;
use crate::queue::cq::Cqe;
use crate::queue::send::SendRing;

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
            .land::<N, F, false>(&pin, wr_id, near, far, flags)
            .is_none()
        {
            cold_path();
            return self.long(wr_id, near, far, flags, Some(pin));
        }
        drop(pin);
        Ok(())
    }

    /// As [`SendPoster::short`], with the flags that every work request has, for messages that are long, may
    /// ride, or have something in the way. A long copy is a call, around which registers have to be saved.
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
        if DirectPath::lends(open.view) {
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
        let receiver = self.open.as_ref().map(|open| &open.land.buffer);
        let receives = receiver.is_some_and(|cq| cq.makes_room_for_two(pin));
        self.buffer.makes_room_for_two(pin) || receives
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
        let open = self.open.as_ref()?;
        let land = &*open.land;
        let admits = if LONG {
            land.admits_direct(pin, open.view, F::RIGHT)
        } else {
            land.admits_short(pin, open.view, F::RIGHT)
        };
        if !admits {
            return None;
        }
        let errand = Errand {
            wr_id: &wr_id,
            number: &self.posted,
            near,
            far,
            flags,
        };
        self.carry::<N, F, LONG>(land, &open.sends, pin, errand, Single, Single)?;
        land.advance(&open.sends, near.len());
        self.posted = self.posted.wrapping_add(1);
        Some(())
    }

    /// The second half of that. What is left to be counted then is the message and its packets.
    #[inline(always)]
    pub(super) fn carry<'p, N: Near + 'p, F: Far<N>, const LONG: bool>(
        &'p self,
        land: &'p DirectPath,
        sends: &Common<SendRing>,
        pin: &'p Pin,
        errand: Errand<'_, N, F>,
        mut here: impl Places<'p>,
        mut there: impl Places<'p>,
    ) -> Option<()> {
        let Errand {
            near, far, flags, ..
        } = errand;
        let (cq, len) = (&*self.buffer, near.len());
        let signaled = flags.contains(SendFlags::SIGNALED);
        if signaled && !here.are_there(cq, pin) {
            return None;
        }
        let (target, consumed) = far.find(land, pin, len, &there)?;
        let source = near.find(&self.mrs, pin, &self.pd, F::NEAR)?;
        F::copy::<LONG>(source, target);
        F::complete(land, consumed, len, flags, &mut there);
        if signaled {
            let cqe = Cqe::success(*errand.wr_id, self.qpn, F::OPCODE, len);
            if let Some(place) = here.next(cq) {
                // Whoever polls it may post the next send at once, and that looks for the mark.
                sends.mark(*errand.number, place.at);
                place.publish(&cqe);
            }
        }
        Some(())
    }
}
