//! The short path of a batch: one pin, and one look at what its messages have in common.

use verbs_core::mem::{Pin, Window, pin_at_once};
use verbs_core::{Dest, Payload, Piece, SendFlags, SendOp, SendWr};

use super::SendPoster;
use super::ends::{Far, FromMemory, IntoMemory, IntoReceive, ShortWr};
use super::moves::Moves;

/// Messages that are sent under one pin, which keeps deregistrations waiting.
pub(super) const UNDER_ONE_PIN: usize = 16;

/// Flags that the short paths handle.
const PLAIN: SendFlags = SendFlags::SIGNALED.union(SendFlags::SOLICITED);

/// Whether that is one piece of a length that the short paths handle.
#[inline(always)]
fn is_short(wr: &SendWr<'_>) -> bool {
    matches!(wr.payload, Payload::One(sge) if sge.len <= Window::SHORT)
}

impl SendPoster {
    /// Carries out as many as it can, from the first on, and returns how many. Nothing was done for the others.
    #[inline(always)]
    pub(super) fn burst<M: Moves>(&mut self, wrs: &[SendWr<'_>]) -> usize {
        match wrs {
            // A single one has the shortest path of all.
            [first, _, ..] if is_short(first) => self.burst_of::<M>(first.op, wrs),
            _ => 0,
        }
    }

    #[inline(never)]
    fn burst_of<M: Moves>(&mut self, op: SendOp, wrs: &[SendWr<'_>]) -> usize {
        let Some(pin) = pin_at_once() else {
            return 0;
        };
        match op {
            SendOp::Send => self.run::<M, IntoReceive>(&pin, wrs),
            SendOp::Write(_) => self.run::<M, IntoMemory>(&pin, wrs),
            SendOp::Read(_) => self.run::<M, FromMemory>(&pin, wrs),
            _ => 0,
        }
    }

    /// Carries out messages of one kind.
    #[inline(never)]
    fn run<M: Moves, F: Far<Piece>>(&mut self, pin: &Pin, wrs: &[SendWr<'_>]) -> usize {
        let Some(open) = &self.open else {
            return 0;
        };
        let (direct, cq) = (&*open.direct, &*self.buffer);
        // Each end counts for itself, so there must be two of them.
        let is_apart = !std::ptr::eq(cq, &*direct.buffer);
        if !is_apart || !direct.admits_short(pin, open.view, F::RIGHT) {
            return 0;
        }
        let credits = self.limit.wrapping_sub(self.posted) as usize;
        let wrs = wrs.get(..credits.min(UNDER_ONE_PIN)).unwrap_or(wrs);
        let (mut here, mut there, mut number) =
            (cq.strip(pin), direct.buffer.strip(pin), self.posted);
        for wr in wrs {
            let (Payload::One(sge), Dest::Peer) = (wr.payload, wr.dest) else {
                break;
            };
            let (near, Some(far)) = (Piece::from(sge), F::of(&wr.op)) else {
                break;
            };
            if near.len() > Window::SHORT || !PLAIN.contains(wr.flags) {
                break;
            }
            let short_wr = ShortWr {
                wr_id: &wr.wr_id,
                number: &number,
                near,
                far,
                flags: wr.flags | self.always,
            };
            let carried =
                self.carry::<M, _, F>(direct, &open.sends, pin, short_wr, &mut here, &mut there);
            if carried.is_none() {
                break;
            }
            number = number.wrapping_add(1);
        }
        cq.claim_strip(&here);
        direct.buffer.claim_strip(&there);
        let count = number.wrapping_sub(self.posted);
        direct.advance_by(&open.sends, count);
        self.posted = number;
        count as usize
    }
}
