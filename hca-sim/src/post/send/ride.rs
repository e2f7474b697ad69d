//! The poster's part in riders ([`crate::queue::cqe_inline`]).

use verbs_core::mem::{Pin, pin};
use verbs_core::{Access, SendFlags, WcOpcode};

use super::SendPoster;
use super::ends::Near;
use crate::direct::path::DirectPath;
use crate::queue::cq::Cqe;
use crate::queue::cqe_inline::{BYTES_MAX, Rider};
use crate::queue::recv::berth::Known;

/// How often a poster whose riders were called back looks for credits before messages ride again. To call
/// back takes a process-wide barrier (15 us), which is little beside so many messages.
///
/// With assertions on it is few, so that tests often see both.
const SHY: u32 = if cfg!(debug_assertions) { 4 } else { 4096 };

impl SendPoster {
    /// Decides whether messages ride. The ring is drained.
    pub(super) fn choose_way(&mut self) {
        let Some(open) = &mut self.open else {
            return;
        };
        let (land, pin) = (&*open.land, pin());
        let recalls = land.ring.recalls();
        if recalls != self.recalls {
            (self.recalls, self.shy) = (recalls, SHY);
        }
        self.shy = self.shy.saturating_sub(1);
        let there = land.ring.poster();
        let is_far = there != 0 && there != pin.thread();
        let apart = is_far && land.cq.takes_riders() && land.buffer.may_be_plain(&pin);
        let (lends, wanted) = (DirectPath::lends(open.view), apart && self.shy == 0);
        if lends != wanted && !land.ring.has_riders() {
            land.lend(wanted);
            (open.view, self.berths) = (land.view(), Known::default());
        }
        land.ring.forget_berths(&mut self.berths);
    }

    /// Whether riders are under way.
    #[inline]
    pub(super) fn has_riders(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.land.ring.has_riders())
    }

    /// Looks, and has the message ride if all is in order.
    #[inline(always)]
    pub(super) fn ride<N: Near>(
        &mut self,
        pin: &Pin,
        wr_id: u64,
        near: N,
        flags: SendFlags,
    ) -> Option<()> {
        let open = self.open.as_mut()?;
        let (land, cq, len) = (&*open.land, &*self.buffer, near.len());
        if !land.admits_direct(pin, open.view, Access::empty()) {
            return None;
        }
        let here = near.find(&self.mrs, pin, &self.pd, Access::empty())?;
        let signaled = flags.contains(SendFlags::SIGNALED);
        if signaled && !(cq.is_plain(pin) && cq.has_room_for_two()) {
            return None;
        }
        let there = &*land.buffer;
        if !(there.is_plain(pin) && there.has_room_for_two()) {
            return None;
        }
        let receive = land.ring.berth(&mut self.berths, len)?;
        if !land.ring.board(receive) {
            return None;
        }
        let mut bytes = [[0; 8]; (BYTES_MAX / 8) as usize];
        N::take(here, &mut bytes.as_flattened_mut()[..len as usize]);
        let rider = Rider {
            qpn: land.qpn,
            receive,
            len,
            bytes: bytes.map(u64::from_ne_bytes),
        };
        there.claim_plain().publish_rider(&rider, flags);
        if signaled {
            let cqe = Cqe::success(wr_id, self.qpn, WcOpcode::Send, len);
            let place = cq.claim_plain();
            // Whoever polls it may post the next send at once, and that looks for the mark.
            open.sends.mark(self.posted, place.at);
            place.publish(&cqe);
        }
        self.posted = self.posted.wrapping_add(1);
        land.advance(&open.sends, len);
        land.ring.look_ahead(&mut self.berths);
        Some(())
    }
}
