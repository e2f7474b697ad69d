//! The answers to READs and atomics: they come in the order of the requests.

use verbs_core::{SendOp, SendWr, Sge, WcCause, WcStatus};
use verbs_wire::iwarp::{AtomicResponse, Cause, Tagged, Untagged};

use super::{Requester, is_atomic, sink};
use crate::queue::send::Scratch;
use crate::transport::iwarp::fault::Fault;
use crate::transport::pieces::{Refused, scatter, sges};
use crate::transport::{Ends, Events};

impl Requester {
    /// A segment of a response begins: it is for the oldest READ, and the next piece of it.
    pub(in crate::transport::iwarp) fn begin_response(
        &mut self,
        ends: &Ends<'_>,
        header: &Tagged,
        len: u32,
    ) -> Result<(), Fault> {
        if self.first_read {
            return if len == 0 && header.is_last {
                Ok(())
            } else {
                Err(Fault::peer(Cause::DDP_BOUNDS))
            };
        }
        if self.reads == 0 {
            return Err(Fault::peer(Cause::DDP_CATASTROPHIC));
        }
        if is_atomic(&self.oldest(ends)) {
            return bad(Cause::RDMAP_OPCODE);
        }
        let sink = self.oldest_sink(ends);
        if sink.len != 0 && header.stag.value() != sink.lkey.value() {
            return bad(Cause::DDP_STAG);
        }
        let end = u64::from(self.placed) + u64::from(len);
        let is_next = header.offset == sink.addr.wrapping_add(u64::from(self.placed));
        if !is_next && sink.len != 0
            || end > u64::from(sink.len)
            || header.is_last != (end == u64::from(sink.len))
        {
            return bad(Cause::DDP_BOUNDS);
        }
        Ok(())
    }

    /// Bytes of it.
    pub(in crate::transport::iwarp) fn place_response(
        &mut self,
        ends: &Ends<'_>,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let sink = self.oldest_sink(ends);
        let placed = scatter(ends, std::iter::once(sink), ends.pd, self.placed, bytes);
        placed.map_err(cannot_be_placed)?;
        self.placed += u32::try_from(bytes.len()).unwrap_or(0);
        Ok(())
    }

    /// The segment is whole. The last one completes the READ, and what waits behind it.
    pub(in crate::transport::iwarp) fn end_response(
        &mut self,
        ends: &Ends<'_>,
        is_last: bool,
        events: &mut Events,
    ) -> Result<(), Fault> {
        if !is_last || std::mem::take(&mut self.first_read) {
            return Ok(());
        }
        let mut scratch = Scratch::default();
        let wr = ends.sends.read(self.base, &mut scratch);
        if matches!(wr.op, SendOp::ReadWithInv(_)) {
            invalidate_sink(ends, &wr, events)?;
        }
        self.answered(ends, &wr, events)
    }

    /// Where the response to the oldest READ goes.
    fn oldest_sink(&self, ends: &Ends<'_>) -> Sge {
        sink(&ends.sends.read(self.base, &mut Scratch::default()))
    }

    /// The answer to the oldest atomic begins.
    pub(in crate::transport::iwarp) fn begin_atomic_response(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
    ) -> Result<(), Fault> {
        if self.reads == 0 || self.first_read {
            return Err(Fault::peer(Cause::RDMAP_OPCODE));
        }
        if !is_atomic(&self.oldest(ends)) {
            return bad(Cause::RDMAP_OPCODE);
        }
        if header.msn != self.atomic_msn {
            return bad(Cause::DDP_MSN_RANGE);
        }
        if header.offset != 0 || !header.is_last {
            return bad(Cause::DDP_OFFSET);
        }
        Ok(())
    }

    /// It is whole.
    pub(in crate::transport::iwarp) fn end_atomic_response(
        &mut self,
        ends: &Ends<'_>,
        response: &AtomicResponse,
        events: &mut Events,
    ) -> Result<(), Fault> {
        if response.request != self.base {
            return bad(Cause::RDMAP_OPERATION);
        }
        let mut scratch = Scratch::default();
        let wr = ends.sends.read(self.base, &mut scratch);
        // The word is a number in the byte order of whoever looks at it.
        let word = response.original.to_ne_bytes();
        scatter(ends, sges(&wr), ends.pd, 0, &word[..]).map_err(cannot_be_placed)?;
        self.atomic_msn = self.atomic_msn.wrapping_add(1);
        self.answered(ends, &wr, events)
    }

    /// The oldest READ or atomic has its answer. It completes, and what waits behind it.
    fn answered(
        &mut self,
        ends: &Ends<'_>,
        wr: &SendWr<'_>,
        events: &mut Events,
    ) -> Result<(), Fault> {
        (self.reads, self.placed) = (self.reads - 1, 0);
        self.retire_one(ends, wr, events)?;
        self.retire(ends, events)
    }

    fn oldest(&self, ends: &Ends<'_>) -> SendOp {
        ends.sends.read(self.base, &mut Scratch::default()).op
    }
}

/// The answer is not that of the oldest request, which ends so.
fn bad<T>(cause: Cause) -> Result<T, Fault> {
    let (status, reason) = (WcStatus::BadRespErr, WcCause::BadAnswer.code());
    Err(Fault::response(cause, status, reason))
}

fn cannot_be_placed(Refused(why): Refused) -> Fault {
    Fault::response(Cause::DDP_CATASTROPHIC, WcStatus::LocProtErr, why)
}

/// The bytes of a READ are there: its sink's key is no key any longer, before that is told.
fn invalidate_sink(ends: &Ends<'_>, wr: &SendWr<'_>, events: &mut Events) -> Result<(), Fault> {
    let Some(sink) = sges(wr).next() else {
        return Ok(());
    };
    // No other thread can be inside: this one alone moves the bytes of this port.
    let (key, op) = (sink.lkey.value(), WcStatus::LocQpOpErr);
    let done = ends.mrs.invalidate(key, ends.who());
    let done = done.map_err(|why| Fault::local(op, WcCause::from(why).code()))?;
    let settle = done.settle.then_some(sink.lkey.index());
    events.settle[0] = events.settle[0].or(settle);
    Ok(())
}
