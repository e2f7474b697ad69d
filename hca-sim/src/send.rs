//! Send queues: the poster's side.
//!
//! The poster carries a message out itself when it may ([`crate::landing`]): the short ways for one
//! piece are written out here, with everything else out of line. Whatever they do not like goes
//! through [`SendPoster::post_any`], and what cannot be completed there goes into the ring and to the
//! machine ([`crate::engaged`]), which finds out why and says so.

use std::fmt;

use verbs_core::mem::{MrTable, Pin, Window, pin};
use verbs_core::sync::Arc;
use verbs_core::{
    Access, Payload, PostError, QpState, Qpn, RawSendQueue, Remote, SendFlags, SendOp, SendWr, Sge,
    WcOpcode,
};

use crate::cq::{CqRing, Cqe};
use crate::landing::Landing;
use crate::message::{Done, MAX_SGE, Message, Outcome};
use crate::qp::QueuePair;
use crate::ring::SendRing;

/// Largest message in bytes (IBTA vol. 1, 9.7.7).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// The poster of one queue pair.
#[repr(align(128))]
pub(crate) struct SendPoster {
    /// Posts that may go the short way before the slow one has to look again.
    credits: u32,
    /// Number of the next work request.
    posted: u32,
    open: Option<Open>,
    qp: Arc<QueuePair>,
    send_cq: Arc<CqRing>,
    mrs: Arc<MrTable>,
    pd: u32,
    qpn: Qpn,
    /// Flags that every work request has: SIGNALED, if so created.
    always: SendFlags,
    /// Work requests before this number are retired: one of them or after them was polled.
    retired: u32,
    /// Of [`QueuePair::resets`], as it was when `retired` was counted.
    resets: u32,
}

/// What the short ways need.
struct Open {
    land: Arc<Landing>,
    sends: Arc<SendRing>,
}

/// What became of a message on the short way: `None` if it could not go there and nothing was done,
/// `Some(false)` if a completion was lost.
type Short = Option<bool>;

impl SendPoster {
    /// The one poster of a new queue pair.
    pub(crate) fn new(qp: Arc<QueuePair>) -> Self {
        let always = if qp.sq_sig_all {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        let (send_cq, mrs) = (Arc::clone(&qp.send_cq), Arc::clone(&qp.port.mrs));
        let (pd, qpn) = (qp.pd, qp.qpn);
        Self {
            credits: 0,
            posted: 0,
            open: None,
            qp,
            send_cq,
            mrs,
            pd,
            qpn,
            always,
            retired: 0,
            resets: 0,
        }
    }

    /// A SEND of one piece into a receive of one piece.
    #[inline(always)]
    fn short_send(&self, pin: &Pin, wr_id: u64, sge: Sge, flags: SendFlags) -> Short {
        let open = self.open.as_ref()?;
        let land = &*open.land;
        if !land.admits_direct(pin) {
            return None;
        }
        let source = self.check(pin, sge, Access::empty())?;
        let waiting = land.ring.next()?;
        if !waiting.is_one_piece_of(sge.len) {
            return None;
        }
        let to = waiting.first();
        let (key, right) = (to.lkey.value(), Access::LOCAL_WRITE);
        let target = land
            .mrs
            .check_at_once(pin, key, to.addr, sge.len, land.pd, right)?;
        if !land.cq.is_plain(pin) || !self.may_complete(pin, flags) {
            return None;
        }
        target.copy_from(source);
        let solicited = flags.contains(SendFlags::SOLICITED);
        let cqe =
            Cqe::success(waiting.wr_id(), land.qpn, WcOpcode::Recv, sge.len).solicited(solicited);
        // Whoever polls the completion may post the next receive at once.
        waiting.consume();
        let claimed = land.cq.claim_plain();
        if let Ok(at) = claimed {
            land.cq.publish_plain(at, &cqe);
        }
        let kept = claimed.is_ok();
        Some(kept & self.finish_short(open, wr_id, WcOpcode::Send, sge.len, flags))
    }

    /// A WRITE or a READ of one piece.
    #[inline(always)]
    fn short_rdma<const READ: bool>(
        &self,
        pin: &Pin,
        wr_id: u64,
        sge: Sge,
        remote: Remote,
        flags: SendFlags,
    ) -> Short {
        let open = self.open.as_ref()?;
        let land = &*open.land;
        let (right, local, opcode) = if READ {
            (Access::REMOTE_READ, Access::LOCAL_WRITE, WcOpcode::RdmaRead)
        } else {
            (Access::REMOTE_WRITE, Access::empty(), WcOpcode::RdmaWrite)
        };
        if !land.admits_direct_with(pin, right) {
            return None;
        }
        let here = self.check(pin, sge, local)?;
        let key = remote.rkey.value();
        let there = land
            .mrs
            .check_at_once(pin, key, remote.addr, sge.len, land.pd, right)?;
        if !self.may_complete(pin, flags) {
            return None;
        }
        if READ {
            here.copy_from(there);
        } else {
            there.copy_from(here);
        }
        Some(self.finish_short(open, wr_id, opcode, sge.len, flags))
    }

    /// This side's own memory, as far as one look tells.
    #[inline(always)]
    fn check<'p>(&self, pin: &'p Pin, sge: Sge, need: Access) -> Option<Window<'p>> {
        self.mrs
            .check_at_once(pin, sge.lkey.value(), sge.addr, sge.len, self.pd, need)
    }

    /// Whether the completion can be pushed in the simplest way, if there is to be one.
    #[inline(always)]
    fn may_complete(&self, pin: &Pin, flags: SendFlags) -> bool {
        !flags.contains(SendFlags::SIGNALED) || self.send_cq.is_plain(pin)
    }

    /// The packets and the completion. `false`: the completion is lost.
    #[inline(always)]
    fn finish_short(
        &self,
        open: &Open,
        wr_id: u64,
        op: WcOpcode,
        len: u32,
        flags: SendFlags,
    ) -> bool {
        open.sends.advance(&open.land, len);
        if !flags.contains(SendFlags::SIGNALED) {
            return true;
        }
        let cqe = Cqe::success(wr_id, self.qpn, op, len);
        let Ok(at) = self.send_cq.claim_plain() else {
            return false;
        };
        open.sends.mark(self.posted, at);
        self.send_cq.publish_plain(at, &cqe);
        true
    }

    /// After a message went the short way, outside its pin.
    #[inline(always)]
    fn went(&mut self, kept: bool) -> Result<(), PostError> {
        self.posted = self.posted.wrapping_add(1);
        self.credits -= 1;
        if !kept {
            self.see_to_overrun();
        }
        Ok(())
    }

    #[cold]
    fn see_to_overrun(&self) {
        if let Some(open) = &self.open {
            let done = Done {
                overrun_recv: open.land.cq.has_overrun(),
                overrun_send: self.send_cq.has_overrun(),
                ..Done::default()
            };
            self.qp.see_to(&open.land, done);
        }
    }

    #[cold]
    fn see_to(&self, done: Done) {
        if let Some(open) = &self.open {
            self.qp.see_to(&open.land, done);
        }
    }

    /// What cannot go the short way.
    #[cold]
    #[inline(never)]
    fn post_long(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_any(wr)
    }

    /// Posts any work request, with all its checks.
    #[inline(never)]
    fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.check_sizes(wr)?;
        let mut wr = *wr;
        wr.flags |= self.always;
        if self.credits == 0 || !self.attempt(&wr) {
            // Perhaps there is a new door, and perhaps nothing may be posted any more.
            let sends = self.refill()?;
            if self.credits == 0 || !self.attempt(&wr) {
                self.append(&sends, &wr)?;
                // The door is closed until the machine is done.
                self.credits = 0;
            }
        }
        self.credits = self.credits.saturating_sub(1);
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// Finds out whether anything can be posted, and how much may go the short way.
    #[cold]
    fn refill(&mut self) -> Result<Arc<SendRing>, PostError> {
        let state = self.qp.check_post_send()?;
        let Some(sends) = self.qp.send_ring().cloned() else {
            return Err(PostError::State(state));
        };
        self.find_room(&sends)?;
        let direct = sends.is_drained() && self.look_for_door(&sends);
        let depth = self.qp.cap.max_send_wr;
        self.credits = if direct {
            depth - self.posted.wrapping_sub(self.retired)
        } else {
            0
        };
        Ok(sends)
    }

    /// What can be said from the work request and the sizes of the queue.
    fn check_sizes(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let cap = &self.qp.cap;
        let got = match wr.payload {
            Payload::One(_) => 1,
            Payload::List(sges) => sges.len(),
            Payload::Inline(_) => 0,
        };
        let max = cap.max_send_sge.min(MAX_SGE as u32);
        if got > max as usize {
            return Err(PostError::TooManySges {
                got: u32::try_from(got).unwrap_or(u32::MAX),
                max,
            });
        }
        let inline = matches!(wr.payload, Payload::Inline(_));
        if inline && wr.payload.len() > u64::from(cap.max_inline_data) {
            let got = u32::try_from(wr.payload.len()).unwrap_or(u32::MAX);
            return Err(PostError::InlineTooLong {
                got,
                max: cap.max_inline_data,
            });
        }
        if wr.payload.len() > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong { max: MAX_MESSAGE });
        }
        match wr.op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::Write(_) | SendOp::WriteWithImm(..) => {
                // A flag without the bytes, or bytes without the flag, is a mistake of the caller's.
                if inline == wr.flags.contains(SendFlags::INLINE) {
                    Ok(())
                } else {
                    Err(PostError::Unsupported)
                }
            }
            SendOp::Read(_) if !inline => Ok(()),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } if !inline => {
                check_atomic(wr, remote)
            }
            _ => Err(PostError::Unsupported),
        }
    }

    /// Makes sure that the queue has room for one more.
    fn find_room(&mut self, sends: &SendRing) -> Result<(), PostError> {
        let depth = self.qp.cap.max_send_wr;
        let resets = self.qp.resets();
        if self.resets != resets {
            // What was posted before the reset makes no completion any more.
            (self.resets, self.retired) = (resets, self.posted);
        }
        if self.posted.wrapping_sub(self.retired) < depth {
            return Ok(());
        }
        let head = self.send_cq.head();
        let polled = |index: &u32| {
            sends
                .marked(*index)
                .is_some_and(|at| at.wrapping_sub(head).cast_signed() < 0)
        };
        let waiting = self.posted.wrapping_sub(self.retired);
        // Completions come in order, so the newest that was polled retires all before it.
        let newest = (1..=waiting)
            .map(|back| self.posted.wrapping_sub(back))
            .find(polled);
        let Some(newest) = newest else {
            return Err(PostError::Full { depth });
        };
        self.retired = newest.wrapping_add(1);
        Ok(())
    }

    /// Whether the poster may land messages now; the ring is drained.
    fn look_for_door(&mut self, sends: &Arc<SendRing>) -> bool {
        if !self.open.as_ref().is_some_and(|open| open.land.is_alive()) {
            let land = self.qp.landing();
            self.open = land.map(|land| Open {
                land,
                sends: Arc::clone(sends),
            });
        }
        self.open.is_some()
    }

    /// Tries to carry the message out here. `false`: something is in the way, nothing was done.
    fn attempt(&mut self, wr: &SendWr<'_>) -> bool {
        let Some(open) = &self.open else { return false };
        let pin = pin();
        if !open.land.admits_poster(&pin) {
            drop(pin);
            self.open = None;
            return false;
        }
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        let (qp, land) = (&*self.qp, &*open.land);
        let message = Message {
            qp,
            sends: &open.sends,
            land,
            pin: &pin,
            wr,
            index: self.posted,
            signaled,
        };
        let outcome = message.carry_out();
        drop(pin);
        let Outcome::Done(done) = outcome else {
            return false;
        };
        if !done.is_quiet() {
            self.see_to(done);
        }
        true
    }

    /// Puts it into the ring and has the machine look.
    fn append(&mut self, sends: &SendRing, wr: &SendWr<'_>) -> Result<(), PostError> {
        let pin = pin();
        self.qp.enter_to_post_send(&pin)?;
        sends.append(self.posted, wr);
        drop(pin);
        self.qp.turn();
        Ok(())
    }
}

fn check_atomic(wr: &SendWr<'_>, remote: Remote) -> Result<(), PostError> {
    if wr.payload.len() != 8 {
        return Err(PostError::AtomicSize {
            got: u32::try_from(wr.payload.len()).unwrap_or(u32::MAX),
        });
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PostError::AtomicAlignment);
    }
    Ok(())
}

impl RawSendQueue for SendPoster {
    fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_any(wr)
    }

    fn send(&mut self, wr_id: u64, sge: Sge, flags: SendFlags) -> Result<(), PostError> {
        if self.credits == 0 {
            self.refill()?;
        }
        if self.credits != 0 {
            let pin = pin();
            let short = self.short_send(&pin, wr_id, sge, flags | self.always);
            if let Some(kept) = short {
                drop(pin);
                return self.went(kept);
            }
            drop(pin);
        }
        self.post_long(&SendWr {
            wr_id,
            op: SendOp::Send,
            flags,
            payload: Payload::One(sge),
        })
    }

    fn write(
        &mut self,
        wr_id: u64,
        sge: Sge,
        to: Remote,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        if self.credits == 0 {
            self.refill()?;
        }
        if self.credits != 0 {
            let pin = pin();
            let short = self.short_rdma::<false>(&pin, wr_id, sge, to, flags | self.always);
            if let Some(kept) = short {
                drop(pin);
                return self.went(kept);
            }
            drop(pin);
        }
        self.post_long(&SendWr {
            wr_id,
            op: SendOp::Write(to),
            flags,
            payload: Payload::One(sge),
        })
    }

    fn read(
        &mut self,
        wr_id: u64,
        sge: Sge,
        from: Remote,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        if self.credits == 0 {
            self.refill()?;
        }
        if self.credits != 0 {
            let pin = pin();
            let short = self.short_rdma::<true>(&pin, wr_id, sge, from, flags | self.always);
            if let Some(kept) = short {
                drop(pin);
                return self.went(kept);
            }
            drop(pin);
        }
        self.post_long(&SendWr {
            wr_id,
            op: SendOp::Read(from),
            flags,
            payload: Payload::One(sge),
        })
    }
}

impl fmt::Debug for SendPoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendPoster")
            .field("qpn", &self.qp.qpn)
            .field("posted", &self.posted)
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}

/// The state in which a post is refused, for the queue pair's own check.
pub(crate) const fn refuses_sends(state: QpState) -> bool {
    matches!(state, QpState::Reset | QpState::Init | QpState::Rtr)
}
