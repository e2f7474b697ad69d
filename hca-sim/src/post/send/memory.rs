//! Work requests of the memory management extensions, as the poster sees them.

use verbs_core::mem::{Pin, pin};
use verbs_core::{PostError, SendFlags, SendOp, SendWr};

use crate::direct::local::{Local, execute};
use crate::direct::message::Done;
use crate::post::send::{SendPoster, check_atomic};
use crate::queue::cq::{Cqe, note};

impl SendPoster {
    /// Checks what a work request other than SEND, WRITE and READ shows by itself.
    pub(super) fn check_memory_op(&self, wr: &SendWr<'_>, inline: bool) -> Result<(), PostError> {
        if !self.qp.port.features.posts(&wr.op) {
            return Err(self.qp.port.features.why_not(&wr.op));
        }
        let flagged = wr.flags.contains(SendFlags::INLINE);
        match wr.op {
            // A flag without the bytes, or bytes without the flag, is a mistake of the caller.
            SendOp::SendWithInv(_) if inline == flagged => Ok(()),
            SendOp::ReadWithInv(_) if !inline && !flagged => Ok(()),
            SendOp::AtomicWrite(remote) if inline == flagged => check_atomic(wr, remote),
            SendOp::CompareSwap { remote, .. }
            | SendOp::FetchAdd { remote, .. }
            | SendOp::MaskedCompareSwap { remote, .. }
            | SendOp::MaskedFetchAdd { remote, .. }
                if !inline && !flagged =>
            {
                check_atomic(wr, remote)
            }
            SendOp::Flush(what) if wr.payload.is_empty() && !what.placement.is_empty() => Ok(()),
            SendOp::LocalInv(_) | SendOp::RegMr(_) | SendOp::BindMw(_)
                if wr.payload.is_empty() && !flagged =>
            {
                Ok(())
            }
            _ => Err(PostError::Unsupported),
        }
    }

    /// Does what hardware may do that does not hold invalidates back: work posted earlier finds the key invalid. The
    /// work request itself is still carried out in its turn, and finds nothing to do.
    pub(super) fn invalidate_early(&self, wr: &SendWr<'_>) {
        if let SendOp::LocalInv(key) = wr.op
            && !wr.flags.contains(SendFlags::FENCE)
            && self.qp.port.features.early_invalidates
            && self.mrs.invalidate(key.value(), self.qp.who()).is_ok()
        {
            self.mrs.settle(key.index());
        }
    }

    /// Carries out a work request that needs no peer, if nothing waits before it. Returns `false` if something prevents
    /// it; the machine finds out what.
    pub(super) fn attempt_local(&mut self, wr: &SendWr<'_>) -> bool {
        let Some(open) = &self.open else {
            return false;
        };
        let pin = pin();
        if !open.direct.admits_poster(&pin) {
            drop(pin);
            self.open = None;
            return false;
        }
        let (placed, done) = self.carry_out_local(&pin, wr);
        // Counted before any foreign code runs, which may panic.
        self.posted = self.posted.wrapping_add(u32::from(placed));
        drop(pin);
        if !done.is_quiet() {
            self.handle_done(done);
        }
        placed
    }

    fn carry_out_local(&self, pin: &Pin, wr: &SendWr<'_>) -> (bool, Done) {
        let mut done = Done::default();
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let way = match signaled.then(|| self.qp.send_cq.enter(pin)) {
            Some(None) => return (false, done),
            Some(way) => way,
            None => None,
        };
        let (local, settle) = execute(&wr.op, &self.mrs, self.qp.who(), self.qp.core.get());
        done.settle_own = settle;
        let Local::Done(opcode) = local else {
            return (false, done);
        };
        if let (Some(way), Some(open)) = (way, &self.open) {
            let cqe = Cqe::success(wr.wr_id, self.qpn, opcode, 0);
            // A thread that polls it may post the next send at once, and that looks for the mark.
            let mark = |at| open.sends.mark(self.posted, at);
            let pushed = self.qp.send_cq.push(way, &cqe, mark);
            note(pushed, &mut done.fire_send, &mut done.overrun_send);
        }
        (true, done)
    }
}
