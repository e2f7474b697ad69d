//! The poster's part in inline CQEs ([`crate::queue::cqe_inline`]).

use verbs_core::mem::{Pin, pin};
use verbs_core::{Access, SendFlags, WcOpcode};

use super::SendPoster;
use super::ends::Near;
use crate::direct::path::DirectPath;
use crate::queue::cq::Cqe;
use crate::queue::cqe_inline::{BYTES_MAX, InlineCqe};
use crate::queue::recv::inline_credits::InlineCredits;

/// How often a poster whose inline CQEs were recalled looks for credits before it sends inline CQEs again. A recall
/// takes a process-wide barrier (15 us), which is little compared with so many messages.
///
/// With assertions on the number is small, so that tests often see both cases.
const INLINE_BACKOFF: u32 = if cfg!(debug_assertions) { 4 } else { 4096 };

impl SendPoster {
    /// Decides whether messages become inline CQEs. The ring is drained.
    pub(super) fn choose_path(&mut self) {
        let Some(open) = &mut self.open else {
            return;
        };
        let (direct, pin) = (&*open.direct, pin());
        let recalls = direct.ring.recalls();
        if recalls != self.recalls {
            (self.recalls, self.inline_backoff) = (recalls, INLINE_BACKOFF);
        }
        self.inline_backoff = self.inline_backoff.saturating_sub(1);
        let there = direct.ring.poster();
        let is_far = there != 0 && there != pin.thread();
        let apart = is_far && direct.cq.takes_inline_cqes() && direct.buffer.may_be_plain(&pin);
        let (allowed, wanted) = (
            DirectPath::allows_inline_cqes(open.view),
            apart && self.inline_backoff == 0,
        );
        if allowed != wanted && !direct.ring.has_inline_cqes() {
            direct.allow_inline_cqes(wanted);
            (open.view, self.inline_credits) = (direct.view(), InlineCredits::default());
        }
        direct.ring.forget_inline_credits(&mut self.inline_credits);
    }

    /// Whether inline CQEs are under way.
    #[inline]
    pub(super) fn has_inline_cqes(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.direct.ring.has_inline_cqes())
    }

    /// Checks everything, and sends the message as an inline CQE if it can.
    #[inline(always)]
    pub(super) fn send_inline_cqe<N: Near>(
        &mut self,
        pin: &Pin,
        wr_id: u64,
        near: N,
        flags: SendFlags,
    ) -> Option<()> {
        let open = self.open.as_mut()?;
        let (direct, cq, len) = (&*open.direct, &*self.buffer, near.len());
        if !direct.admits_direct(pin, open.view, Access::empty()) {
            return None;
        }
        let here = near.find(&self.mrs, pin, &self.pd, Access::empty())?;
        let signaled = flags.contains(SendFlags::SIGNALED);
        if signaled && !(cq.is_plain(pin) && cq.has_room_for_two()) {
            return None;
        }
        let there = &*direct.buffer;
        if !(there.is_plain(pin) && there.has_room_for_two()) {
            return None;
        }
        let mut bytes = [[0; 8]; (BYTES_MAX / 8) as usize];
        N::take(here, &mut bytes.as_flattened_mut()[..len as usize])?;
        let receive = direct.ring.inline_credit(&mut self.inline_credits, len)?;
        if !direct.ring.take_inline_credit(receive) {
            return None;
        }
        let inline_cqe = InlineCqe {
            qpn: direct.qpn,
            receive,
            len,
            bytes: bytes.map(u64::from_ne_bytes),
        };
        there.claim_plain().publish_inline_cqe(&inline_cqe, flags);
        if signaled {
            let cqe = Cqe::success(wr_id, self.qpn, WcOpcode::Send, len);
            let place = cq.claim_plain();
            // A thread that polls it may post the next send at once, and that looks for the mark.
            open.sends.mark(self.posted, place.at);
            place.publish(&cqe);
        }
        self.posted = self.posted.wrapping_add(1);
        direct.advance(&open.sends, len);
        direct.ring.look_ahead(&mut self.inline_credits);
        Some(())
    }
}
