//! Messages of the memory management extensions: the key that a SEND invalidates, atomics beyond the first two, FLUSH.

use verbs_core::mem::{Span, Who, Window, Word};
use verbs_core::sync::atomic::{Ordering::SeqCst, fence};
use verbs_core::{Access, FlushRange, RKey, Remote, SendOp, WcCause, WcOpcode, WcStatus};

use crate::direct::message::lost::Lost;
use crate::direct::message::{Checked, Done, Gathered, Message, MessageFault, MessageOutcome};
use crate::queue::cq::Cqe;

/// What a message carries in addition to its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tail {
    Nothing,
    Imm(u32),
    /// The key that the responder invalidates.
    Inv(RKey),
}

/// How the responder's receive ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Nothing,
    Imm(u32),
    /// That key was made invalid; whether it has something to release.
    Inv(RKey, bool),
    /// The key was not valid: the sender sees success, the receive ends in error and the responder goes to ERR (IBTA
    /// vol. 1, 9.9.3, class J).
    Failed(u32),
}

impl Ending {
    /// The responder's completion.
    pub(super) fn cqe(self, wr_id: u64, success: Cqe, message: &Message<'_>) -> Cqe {
        match self {
            Self::Nothing => success,
            Self::Imm(imm) => success.imm(imm),
            Self::Inv(key, _) => success.inv(key),
            Self::Failed(reason) => {
                let status = WcStatus::RemInvReqErr;
                Cqe::failure(wr_id, message.direct.qpn, status, reason)
            }
        }
    }

    /// Adds what remains to be done afterwards.
    pub(super) fn note(self, done: &mut Done) {
        match self {
            Self::Inv(key, true) => done.settle = Some(key.index()),
            Self::Failed(_) => done.fail_responder = true,
            _ => {}
        }
    }
}

impl<'a> Message<'a> {
    /// The responder, for checks of its memory.
    pub(super) fn responder(&self) -> Who {
        Who {
            pd: self.direct.pd,
            qpn: self.direct.qpn.value(),
        }
    }

    /// Carries out what a SEND carries in addition to its bytes, which are in place.
    pub(super) fn conclude(&self, tail: Tail) -> Checked<Ending> {
        let key = match tail {
            Tail::Nothing => return Ok(Ending::Nothing),
            Tail::Imm(imm) => return Ok(Ending::Imm(imm)),
            Tail::Inv(key) => key,
        };
        match self.direct.mrs.invalidate(key.value(), self.responder()) {
            Ok(invalidated) if !invalidated.over => Err(MessageOutcome::Later(key.index())),
            Ok(invalidated) => Ok(Ending::Inv(key, invalidated.settle)),
            Err(fault) => Ok(Ending::Failed(WcCause::from(fault).code())),
        }
    }

    /// ATOMIC WRITE.
    pub(super) fn atomic_write(&self, to: Remote) -> Checked<Done> {
        let mut bytes = [0; 8];
        match self.source()? {
            Gathered::Inline(inline) => bytes.copy_from_slice(inline),
            Gathered::Pieces(pieces) => {
                let mut at = 0;
                for piece in pieces {
                    let read = piece.read_into(&mut bytes[at..]);
                    at += read.map_err(Lost::own_bytes)? as usize;
                }
            }
        }
        if !self.direct.remembers() {
            return Err(MessageOutcome::Fault(MessageFault::invalid(
                WcCause::NoReadAtomic,
            )));
        }
        let target = self.remote(to, 8, Access::REMOTE_WRITE)?;
        let ways = self.ways(false)?;
        let word = word(target).ok_or(MISALIGNED)?;
        word.store(bytes).map_err(Lost::remote_word)?;
        self.finish(&ways, None, WcOpcode::AtomicWrite, 8)
    }

    /// FLUSH: what was written before is in memory, where every other access sees it.
    pub(super) fn flush(&self, what: FlushRange) -> Checked<Done> {
        let need = what.placement.right();
        if need.is_empty() || !self.direct.remembers() {
            return Err(MessageOutcome::Fault(MessageFault::invalid(
                WcCause::NoReadAtomic,
            )));
        }
        match what.len {
            Some(len) => self.remote(what.remote, len, need).map(drop)?,
            None => self.region(what.remote.rkey, need)?,
        }
        let ways = self.ways(false)?;
        fence(SeqCst);
        self.finish(&ways, None, WcOpcode::Flush, 0)
    }

    /// Whether a key as a whole grants that access.
    fn region(&self, rkey: RKey, need: Access) -> Checked<()> {
        if !self.direct.grants(need) {
            return Err(MessageOutcome::Fault(MessageFault::invalid(
                WcCause::QpNoRight,
            )));
        }
        let mrs = &self.direct.mrs;
        let granted = mrs.grants(self.pin, rkey.value(), self.responder(), need);
        granted.map_err(|fault| {
            MessageOutcome::Fault(MessageFault::nak(
                WcStatus::RemAccessErr,
                WcCause::from(fault).code(),
            ))
        })
    }

    /// An atomic with masks.
    pub(super) fn masked(&self, op: SendOp) -> Checked<Done> {
        match op {
            SendOp::MaskedCompareSwap {
                remote,
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => self.atomic(remote, WcOpcode::MaskedCompSwap, |word| {
                word.masked_compare_swap((compare, compare_mask), (swap, swap_mask))
            }),
            SendOp::MaskedFetchAdd {
                remote,
                add,
                boundary,
            } => self.atomic(remote, WcOpcode::MaskedFetchAdd, |word| {
                word.masked_fetch_add(add, boundary)
            }),
            _ => Err(MessageOutcome::Fault(MessageFault::local(
                WcStatus::LocQpOpErr,
                0,
            ))),
        }
    }
}

/// The address is aligned, but the region may map it to memory that is not, or to two pieces.
pub(super) const MISALIGNED: MessageOutcome =
    MessageOutcome::Fault(MessageFault::invalid(WcCause::Misaligned));

/// 8 aligned bytes in one piece.
pub(super) fn word(span: Span<'_>) -> Option<Word<'_>> {
    span.window().and_then(Window::word)
}
