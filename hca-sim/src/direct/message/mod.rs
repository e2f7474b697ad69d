//! One message of a reliable connection, carried out whole: the requester's checks, the responder's
//! checks, the copy, both completions.
//!
//! [`crate::direct::path`] says which thread may call this for a direction. Nothing changes before the outcome is
//! certain, so an attempt that is refused can be made again.

mod lost;
mod memory;
mod shared;

use arrayvec::ArrayVec;
use verbs_core::mem::{MrTable, Pin, Span, Unmapped, Who, Window, Word};
use verbs_core::sync::Arc;
use verbs_core::{
    Access, Payload, Qpn, Remote, SendFlags, SendOp, SendWr, Sge, WcCause, WcOpcode, WcStatus,
};

use crate::direct::message::lost::Lost;
use crate::direct::message::memory::{Ending, MISALIGNED, Tail, word};
use crate::direct::path::DirectPath;
use crate::queue::base::limits::MAX_SGE;
use crate::queue::base::memory::reason;
use crate::queue::cq::{CqRing, Cqe, Way, note};
use crate::queue::recv::Waiting;
use crate::queue::send::SendRing;

#[cfg(all(test, not(verbs_loom)))]
std::thread_local! {
    /// How often this thread has tried to carry out a message.
    pub(crate) static TRIED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The outcome of a message.
pub(crate) enum MessageOutcome {
    /// It has been carried out.
    Done(Done),
    /// The responder has no receive posted.
    NotReady,
    /// A completion queue is changing hands: ask it to call, and try again when it does.
    Busy(Arc<CqRing>),
    /// Another thread is looking at what the key with that index stood for, which the message invalidates.
    Later(u32),
    /// Inline CQEs that come first are under way: recall them ([`crate::queue::cqe_inline`]).
    InlineCqes,
    /// It cannot be carried out, now or later.
    Fault(MessageFault),
}

impl MessageOutcome {
    /// Whether the message has reached the responder.
    pub(crate) fn arrives(&self) -> bool {
        match self {
            Self::Done(_) | Self::NotReady | Self::Later(_) | Self::InlineCqes => true,
            Self::Fault(fault) => fault.at_responder,
            Self::Busy(_) => false,
        }
    }
}

/// The events and failures of a message that has been carried out, to be handled outside the pin.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub(crate) struct Done {
    pub(crate) fire_recv: bool,
    pub(crate) fire_send: bool,
    pub(crate) overrun_recv: bool,
    pub(crate) overrun_send: bool,
    /// The limit event of the responder's shared receive queue is due.
    pub(crate) srq_limit: bool,
    /// The responder goes to ERR, although the sender sees success.
    pub(crate) fail_responder: bool,
    /// The index of a key of the sender's own that has something to release.
    pub(crate) settle_own: Option<u32>,
    /// The index of a responder's key that was made invalid and has something to release.
    pub(crate) settle: Option<u32>,
}

impl Done {
    /// Whether nothing remains to be handled: the usual case.
    #[inline(always)]
    pub(crate) fn is_quiet(self) -> bool {
        !(self.fire_recv
            | self.fire_send
            | self.overrun_recv
            | self.overrun_send
            | self.srq_limit
            | self.fail_responder
            | self.settle.is_some()
            | self.settle_own.is_some())
    }

    /// Nothing remains but to deliver events.
    #[inline(always)]
    pub(crate) fn only_fires(self) -> bool {
        let events = Self {
            fire_recv: false,
            fire_send: false,
            ..self
        };
        events.is_quiet()
    }

    /// What remains to be handled of both messages.
    fn and(self, other: Self) -> Self {
        Self {
            fire_recv: self.fire_recv | other.fire_recv,
            fire_send: self.fire_send | other.fire_send,
            overrun_recv: self.overrun_recv | other.overrun_recv,
            overrun_send: self.overrun_send | other.overrun_send,
            srq_limit: self.srq_limit | other.srq_limit,
            fail_responder: self.fail_responder | other.fail_responder,
            settle: self.settle.or(other.settle),
            settle_own: self.settle_own.or(other.settle_own),
        }
    }
}

/// Why a message cannot be carried out, and which sides that concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageFault {
    /// The status of the requester's work request.
    pub(crate) status: WcStatus,
    pub(crate) vendor_err: u32,
    /// The responder saw it too and goes to ERR.
    pub(crate) at_responder: bool,
    /// The oldest receive was consumed, and completes in error first, with this status.
    pub(crate) receive: Option<WcStatus>,
}

impl MessageFault {
    /// The requester's own fault; the responder does not learn of it.
    pub(crate) const fn local(status: WcStatus, vendor_err: u32) -> Self {
        Self {
            status,
            vendor_err,
            at_responder: false,
            receive: None,
        }
    }

    /// The responder answered with a NAK.
    pub(crate) const fn nak(status: WcStatus, vendor_err: u32) -> Self {
        Self {
            status,
            vendor_err,
            at_responder: true,
            receive: None,
        }
    }

    /// The responder found the request invalid.
    const fn invalid(cause: WcCause) -> Self {
        Self::nak(WcStatus::RemInvReqErr, cause.code())
    }

    const fn with_receive(mut self, status: WcStatus) -> Self {
        self.receive = Some(status);
        self
    }
}

/// The outcome for the receive that a fault concerns.
pub(crate) enum Faulty {
    /// It has completed in error, or there is none.
    Completed,
    /// The completion queue is changing hands; nothing was done.
    Busy,
    /// Another message has taken it in the meantime: the message is to be tried again.
    Again,
}

/// An observer that sees every message in transit.
pub(crate) trait Tamper {
    /// Changes a message with data, which lies in `target` now, if it is to be changed.
    fn tamper(&self, target: &[Span<'_>]);
}

/// The part of a sender that its messages need.
#[derive(Clone, Copy)]
pub(crate) struct DirectSender<'a> {
    pub(crate) who: Who,
    pub(crate) mrs: &'a MrTable,
    pub(crate) send_cq: &'a Arc<CqRing>,
    pub(crate) tamper: Option<&'a dyn Tamper>,
}

/// A message, with both ends of its path.
pub(crate) struct Message<'a> {
    pub(crate) requester: DirectSender<'a>,
    pub(crate) sends: &'a SendRing,
    pub(crate) direct: &'a DirectPath,
    pub(crate) pin: &'a Pin,
    pub(crate) wr: &'a SendWr<'a>,
    /// The work request's number on its queue.
    pub(crate) index: u32,
    pub(crate) signaled: bool,
}

/// Checked pieces of memory, in order. Queues are created for at most [`MAX_SGE`] pieces, and posting
/// checks that.
type Pieces<'p> = ArrayVec<Span<'p>, MAX_SGE>;

/// Where the bytes of a message come from.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one message; a box would allocate"
)]
enum Gathered<'p, 'w> {
    Pieces(Pieces<'p>),
    Inline(&'w [u8]),
}

/// How to push to both completion queues.
struct Ways {
    recv: Option<Way>,
    send: Option<Way>,
}

type Checked<T> = Result<T, MessageOutcome>;

impl<'a> Message<'a> {
    /// Carries it out, if nothing prevents it.
    pub(crate) fn carry_out(&self) -> MessageOutcome {
        #[cfg(all(test, not(verbs_loom)))]
        TRIED.set(TRIED.get() + 1);
        if self.direct.ring.has_inline_cqes() {
            return match self.wr.op {
                // No thread has to be called back for a message that waits.
                SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_)
                    if self.direct.ring.next().is_none() =>
                {
                    MessageOutcome::NotReady
                }
                _ => MessageOutcome::InlineCqes,
            };
        }
        let done = match self.wr.op {
            SendOp::Send => self.send(Tail::Nothing),
            SendOp::SendWithImm(imm) => self.send(Tail::Imm(imm)),
            SendOp::SendWithInv(key) => self.send(Tail::Inv(key)),
            SendOp::Write(to) => self.write(to, None),
            SendOp::WriteWithImm(to, imm) => self.write(to, Some(imm)),
            SendOp::Read(from) => self.read(from),
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => self.atomic(remote, WcOpcode::CompSwap, |word| {
                word.compare_swap(compare, swap)
            }),
            SendOp::FetchAdd { remote, add } => {
                self.atomic(remote, WcOpcode::FetchAdd, |word| word.fetch_add(add))
            }
            SendOp::AtomicWrite(to) => self.atomic_write(to),
            SendOp::Flush(what) => self.flush(what),
            other => self.masked(other),
        };
        done.map_or_else(|refused| refused, MessageOutcome::Done)
    }

    /// Completes the receive that a fault has consumed, as the responder would before it goes to ERR.
    pub(crate) fn complete_faulty_receive(&self, fault: &MessageFault, done: &mut Done) -> Faulty {
        if let (Some(srq), Some(_)) = (&self.direct.srq, fault.receive) {
            return self.complete_faulty_shared(srq, fault, done);
        }
        let Some((status, waiting)) = fault.receive.zip(self.direct.ring.next()) else {
            return Faulty::Completed;
        };
        let Some(way) = self.direct.cq.enter(self.pin) else {
            return Faulty::Busy;
        };
        let cqe = Cqe::failure(waiting.wr_id(), self.direct.qpn, status, fault.vendor_err);
        waiting.consume();
        note(
            self.direct.cq.push(way, &cqe, |_| {}),
            &mut done.fire_recv,
            &mut done.overrun_recv,
        );
        Faulty::Completed
    }

    fn send(&self, tail: Tail) -> Checked<Done> {
        if let Some(srq) = &self.direct.srq {
            return self.send_shared(srq, tail);
        }
        let len = self.length()?;
        let source = self.source()?;
        let waiting = self.direct.ring.next().ok_or(MessageOutcome::NotReady)?;
        if u64::from(len) > waiting.total() {
            let fault = MessageFault::invalid(WcCause::TooLong);
            return Err(MessageOutcome::Fault(
                fault.with_receive(WcStatus::LocLenErr),
            ));
        }
        let pieces = (0..waiting.pieces()).map(|number| waiting.piece(number));
        let target = self
            .scatter(pieces, self.direct.pd, len)
            .map_err(MessageOutcome::Fault)?;
        let ways = self.ways(true)?;
        self.copy(&source, &target, &Lost::SEND)?;
        let ending = self.conclude(tail)?;
        self.finish(
            &ways,
            Some((waiting, WcOpcode::Recv, ending)),
            WcOpcode::Send,
            len,
        )
    }

    fn write(&self, to: Remote, imm: Option<u32>) -> Checked<Done> {
        let len = self.length()?;
        let source = self.source()?;
        let target = self.remote(to, len, Access::REMOTE_WRITE)?;
        if let (Some(srq), Some(imm)) = (&self.direct.srq, imm) {
            return self.write_shared(srq, &source, target, imm, len);
        }
        let receive = match imm {
            None => None,
            Some(imm) => Some((
                self.direct.ring.next().ok_or(MessageOutcome::NotReady)?,
                WcOpcode::RecvRdmaWithImm,
                Ending::Imm(imm),
            )),
        };
        let ways = self.ways(receive.is_some())?;
        self.copy(&source, &[target], &Lost::WRITE)?;
        self.finish(&ways, receive, WcOpcode::RdmaWrite, len)
    }

    fn read(&self, from: Remote) -> Checked<Done> {
        let len = self.length()?;
        let sink = self.local(Access::LOCAL_WRITE)?;
        let window = self.remote(from, len, Access::REMOTE_READ)?;
        let ways = self.ways(false)?;
        let mut source = Pieces::new();
        source.push(window);
        self.copy(&Gathered::Pieces(source), &sink, &Lost::READ)?;
        self.finish(&ways, None, WcOpcode::RdmaRead, len)
    }

    fn atomic(
        &self,
        remote: Remote,
        opcode: WcOpcode,
        operation: impl FnOnce(Word<'a>) -> Result<u64, Unmapped>,
    ) -> Checked<Done> {
        let sink = self.local(Access::LOCAL_WRITE)?;
        let window = self.remote(remote, 8, Access::REMOTE_ATOMIC)?;
        let ways = self.ways(false)?;
        let word = word(window).ok_or(MISALIGNED)?;
        let old = operation(word).map_err(Lost::remote_word)?.to_ne_bytes();
        self.copy(&Gathered::Inline(&old), &sink, &Lost::READ)?;
        self.finish(&ways, None, opcode, 8)
    }

    /// Bytes of the message; posting has checked that there are not too many.
    fn length(&self) -> Checked<u32> {
        u32::try_from(self.wr.payload.len()).map_err(|_| {
            MessageOutcome::Fault(MessageFault::local(
                WcStatus::LocLenErr,
                WcCause::TooLong.code(),
            ))
        })
    }

    fn source(&self) -> Checked<Gathered<'a, 'a>> {
        match self.wr.payload {
            Payload::Inline(bytes) => Ok(Gathered::Inline(bytes)),
            _ => self.local(Access::empty()).map(Gathered::Pieces),
        }
    }

    /// The requester's own memory.
    fn local(&self, need: Access) -> Checked<Pieces<'a>> {
        let one;
        let sges = match self.wr.payload {
            Payload::One(sge) => {
                one = [sge];
                &one[..]
            }
            Payload::List(sges) => sges,
            Payload::Inline(_) => &[],
        };
        let DirectSender { who, mrs, .. } = self.requester;
        let mut pieces = Pieces::new();
        for sge in sges {
            match check(mrs, self.pin, *sge, who, need) {
                Some(window) => pieces.push(window),
                None => {
                    let fault = MessageFault::local(WcStatus::LocProtErr, reason(mrs, self.pin));
                    return Err(MessageOutcome::Fault(fault));
                }
            }
        }
        Ok(pieces)
    }

    /// Memory of the responder that the request names: first what the queue pair grants, then the key
    /// (IBTA vol. 1, 9.7.4.1.5).
    fn remote(&self, place: Remote, len: u32, need: Access) -> Checked<Span<'a>> {
        if !self.direct.grants(need) {
            return Err(MessageOutcome::Fault(MessageFault::invalid(
                WcCause::QpNoRight,
            )));
        }
        let (mrs, pin, key) = (&*self.direct.mrs, self.pin, place.rkey.value());
        mrs.find(pin, key, place.addr, len, self.responder(), need)
            .ok_or_else(|| {
                MessageOutcome::Fault(MessageFault::nak(WcStatus::RemAccessErr, reason(mrs, pin)))
            })
    }

    /// The memory of a receive, as much of it as the message needs.
    fn scatter(
        &self,
        receive: impl Iterator<Item = Sge>,
        pd: u32,
        len: u32,
    ) -> Result<Pieces<'a>, MessageFault> {
        let mrs = &*self.direct.mrs;
        let mut pieces = Pieces::new();
        let who = Who {
            pd,
            qpn: self.direct.qpn.value(),
        };
        let mut left = len;
        for mut sge in receive {
            if left == 0 {
                break;
            }
            sge.len = sge.len.min(left);
            left -= sge.len;
            match check(mrs, self.pin, sge, who, Access::LOCAL_WRITE) {
                Some(window) => pieces.push(window),
                None => {
                    let fault = MessageFault::nak(WcStatus::RemOpErr, reason(mrs, self.pin));
                    return Err(fault.with_receive(WcStatus::LocProtErr));
                }
            }
        }
        Ok(pieces)
    }

    /// Asks the completion queues before anything is done.
    fn ways(&self, receives: bool) -> Checked<Ways> {
        let enter = |cq: &Arc<CqRing>| match cq.enter(self.pin) {
            Some(way) => Ok(Some(way)),
            None => Err(MessageOutcome::Busy(Arc::clone(cq))),
        };
        let recv = if receives {
            enter(&self.direct.cq)?
        } else {
            None
        };
        let send = if self.signaled {
            enter(self.requester.send_cq)?
        } else {
            None
        };
        Ok(Ways { recv, send })
    }

    /// `lost` says how the message ends if some of the memory is gone.
    fn copy(&self, source: &Gathered<'_, '_>, target: &[Span<'_>], lost: &Lost) -> Checked<()> {
        let copied = match source {
            Gathered::Inline(bytes) => scatter_bytes(bytes, target),
            Gathered::Pieces(pieces) => scatter_windows(pieces, target),
        };
        if let Err(unmapped) = copied {
            return Err(MessageOutcome::Fault(lost.fault(unmapped, target)));
        }
        if let (Some(link), false) = (self.requester.tamper, self.wr.payload.is_empty()) {
            link.tamper(target);
        }
        Ok(())
    }

    /// The responder's completion.
    fn receive_cqe(&self, wr_id: u64, opcode: WcOpcode, ending: Ending, len: u32) -> Cqe {
        let cqe = Cqe::success(wr_id, self.direct.qpn, opcode, len)
            .solicited(self.wr.flags.contains(SendFlags::SOLICITED));
        ending.cqe(wr_id, cqe, self)
    }

    /// Both completions, and the packets that the message would have been.
    fn finish(
        &self,
        ways: &Ways,
        receive: Option<(Waiting<'_>, WcOpcode, Ending)>,
        opcode: WcOpcode,
        len: u32,
    ) -> Checked<Done> {
        let mut done = Done::default();
        if let (Some((waiting, opcode, ending)), Some(way)) = (receive, ways.recv) {
            let cqe = self.receive_cqe(waiting.wr_id(), opcode, ending, len);
            ending.note(&mut done);
            // A thread that polls the completion may post the next receive at once.
            waiting.consume();
            note(
                self.direct.cq.push(way, &cqe, |_| {}),
                &mut done.fire_recv,
                &mut done.overrun_recv,
            );
        }
        self.direct.advance(self.sends, len);
        if let Some(way) = ways.send {
            let cqe = Cqe::success(self.wr.wr_id, Qpn::new(self.requester.who.qpn), opcode, len);
            // The same holds for the next send: its poster looks for the mark.
            let mark = |at| self.sends.mark(self.index, at);
            let pushed = self.requester.send_cq.push(way, &cqe, mark);
            note(pushed, &mut done.fire_send, &mut done.overrun_send);
        }
        Ok(done)
    }
}

#[inline]
fn check<'p>(mrs: &MrTable, pin: &'p Pin, sge: Sge, who: Who, need: Access) -> Option<Span<'p>> {
    mrs.find(pin, sge.lkey.value(), sge.addr, sge.len, who, need)
}

fn scatter_bytes(mut bytes: &[u8], target: &[Span<'_>]) -> Result<(), Unmapped> {
    for span in target {
        let n = span.write_from(bytes)? as usize;
        bytes = &bytes[n..];
    }
    Ok(())
}

fn scatter_windows(source: &[Span<'_>], target: &[Span<'_>]) -> Result<(), Unmapped> {
    let mut from = source.iter().flat_map(|span| span.windows());
    let mut piece = Window::empty();
    for window in target.iter().flat_map(|span| span.windows()) {
        let mut filled = 0;
        while filled < window.len() {
            if piece.is_empty() {
                let Some(next) = from.next() else {
                    return Ok(());
                };
                piece = next;
                continue;
            }
            let Some(rest) = window.part(filled, window.len() - filled) else {
                return Ok(());
            };
            let n = rest.copy_from(piece)?;
            filled += n;
            piece = piece.part(n, piece.len() - n).unwrap_or(Window::empty());
        }
    }
    Ok(())
}
