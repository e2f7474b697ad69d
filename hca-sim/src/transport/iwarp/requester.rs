//! The requester: work requests become FPDUs, and responses completions.
//!
//! ```text
//!        base                           next
//!   ------|------------------------------|---------------
//! retired | put out; the oldest is a READ | not put out,
//!         | or an atomic without answer   | or only in part
//! ```
//!
//! What is put out and is neither a READ nor an atomic is done with, and retires when all before it have. So the oldest
//! that has not retired is one of those, and the next answer is its ([`answers`]).

mod answers;

use verbs_core::{Access, Remote, SendFlags, SendOp, SendWr, Sge, TransportType, WcStatus};
use verbs_wire::iwarp::{
    AtomicOperation, AtomicRequest, Header, RdmapOpcode, ReadRequest, STag, Tagged, Untagged,
};

use super::fault::Fault;
use super::outlet::{Fill, Start, Step, StreamOutlet, put, put_bytes, room};
use crate::direct::local::{Local, execute};
use crate::queue::send::Scratch;
use crate::transport::pieces::{Pieces, Refused, Source, sges};
use crate::transport::rc::Flight;
use crate::transport::{Ends, Events, completion};

/// See the module's documentation. Positions are those of the send ring.
#[derive(Debug)]
pub(super) struct Requester {
    base: u32,
    next: u32,
    /// Bytes of the message at `next` that were put out; `None` if it has not begun.
    begun: Option<u32>,
    /// READs and atomics that are not answered.
    reads: u32,
    /// Bytes of the oldest one's response that have come.
    placed: u32,
    /// Of the WRITE at `next` only the immediate data are missing.
    imm_left: bool,
    /// The numbers of the next SEND, of the next READ or atomic, and of the next answer to an atomic.
    send_msn: u32,
    request_msn: u32,
    atomic_msn: u32,
    /// The response to the ready-to-receive READ is missing.
    first_read: bool,
    /// A work request ended in error: nothing is sent or taken.
    failed: bool,
    has_put: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            base: 0,
            next: 0,
            begun: None,
            reads: 0,
            placed: 0,
            imm_left: false,
            send_msn: 1,
            request_msn: 1,
            atomic_msn: 1,
            first_read: false,
            failed: false,
            has_put: false,
        }
    }
}

impl Requester {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether no message is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.base == self.next && self.begun.is_none()
    }

    /// Whether a message was put out in part.
    pub(super) fn is_inside(&self) -> bool {
        self.begun.is_some()
    }

    /// Whether anything was put out.
    pub(super) fn has_put(&self) -> bool {
        self.has_put
    }

    /// Whether a READ or an atomic waits for its answer.
    pub(super) fn is_reading(&self) -> bool {
        self.reads != 0
    }

    /// The ready-to-receive SEND.
    pub(super) fn put_first_send(&mut self, outlet: &mut dyn StreamOutlet) {
        let header = Header::Untagged(Untagged::first(RdmapOpcode::Send, self.send_msn));
        self.send_msn = self.send_msn.wrapping_add(1);
        put_bytes(outlet, &header, &[]);
    }

    /// The ready-to-receive READ.
    pub(super) fn put_first_read(&mut self, request: &ReadRequest, outlet: &mut dyn StreamOutlet) {
        self.first_read = true;
        self.put_read(request, outlet);
    }

    fn put_read(&mut self, request: &ReadRequest, outlet: &mut dyn StreamOutlet) {
        let header = self.request_header(RdmapOpcode::ReadRequest);
        put_bytes(outlet, &header, &request.to_bytes());
    }

    /// The header of the next READ or atomic.
    fn request_header(&mut self, opcode: RdmapOpcode) -> Header {
        let header = Header::Untagged(Untagged::first(opcode, self.request_msn));
        self.request_msn = self.request_msn.wrapping_add(1);
        header
    }

    /// Puts out the next message, or as much of it as there is room for.
    pub(super) fn step(
        &mut self,
        ends: &Ends<'_>,
        start: &Start,
        outlet: &mut dyn StreamOutlet,
        events: &mut Events,
    ) -> Result<Step, Fault> {
        if self.failed {
            return Ok(Step::Held);
        }
        if self.is_idle() {
            let Some(at) = ends.sends.next() else {
                return Ok(Step::Held);
            };
            (self.base, self.next) = (at, at);
        }
        let at = self.next;
        let begins = self.begun.is_none();
        if begins && !(ends.may_begin && ends.sends.is_filled(at)) {
            return Ok(Step::Held);
        }
        if !outlet.is_ready() {
            return Ok(Step::Full);
        }
        let mut scratch = Scratch::default();
        let wr = ends.sends.read(at, &mut scratch);
        let waits = begins && wr.flags.contains(SendFlags::FENCE) && self.reads != 0;
        let is_fenced = waits && ends.path.fences;
        match wr.op {
            _ if wr.op.is_local() => self.step_local(ends, &wr, is_fenced, events),
            _ if is_fenced => Ok(Step::Held),
            SendOp::Read(from) | SendOp::ReadWithInv(from) => {
                self.step_read(ends, &wr, from, outlet)
            }
            op => match atomic(&op) {
                Some(what) => self.step_atomic(ends, &wr, what, outlet),
                None => self.step_plain(ends, start, &wr, outlet, events),
            },
        }
    }

    /// A SEND or WRITE, with its immediate data.
    fn step_plain(
        &mut self,
        ends: &Ends<'_>,
        start: &Start,
        wr: &SendWr<'_>,
        outlet: &mut dyn StreamOutlet,
        events: &mut Events,
    ) -> Result<Step, Fault> {
        let mut pieces = Pieces::new();
        let source = match Source::check(ends, wr, Access::empty(), &mut pieces) {
            Ok(source) => source,
            Err(Refused(why)) => return self.refuse(WcStatus::LocProtErr, why),
        };
        // Posting has checked that a message is not longer than 2^31 bytes.
        let total = u32::try_from(wr.payload.len()).unwrap_or(1 << 31);
        while !self.imm_left {
            let sent = self.begun.unwrap_or(0);
            if !outlet.is_ready() {
                return Ok(Step::Full);
            }
            let header_len = match wr.op {
                SendOp::Write(_) | SendOp::WriteWithImm(..) => Header::TAGGED_LEN,
                _ => Header::UNTAGGED_LEN,
            };
            let len = (total - sent).min(room(start, header_len));
            let is_last = sent + len == total;
            let header = self.header(wr, sent, is_last);
            let fill: Fill<'_> = &mut |at, out| source.read(sent + at as u32, out);
            if let Err(unmapped) = put(outlet, &header, len as usize, fill) {
                let Refused(why) = unmapped.into();
                return self.refuse(WcStatus::LocProtErr, why);
            }
            self.begun = Some(sent + len);
            if is_last {
                break;
            }
        }
        if let SendOp::WriteWithImm(_, imm) = wr.op {
            self.imm_left = true;
            if !outlet.is_ready() {
                return Ok(Step::Full);
            }
            self.put_immediate(imm, wr.flags, outlet);
            self.imm_left = false;
        }
        if !matches!(wr.op, SendOp::Write(_)) {
            self.send_msn = self.send_msn.wrapping_add(1);
        }
        let at = self.next;
        self.pass();
        // If others wait before it, the oldest is a READ or an atomic.
        if self.base == at {
            self.retire_one(ends, wr, events)?;
        }
        Ok(Step::Sent)
    }

    /// Immediate data: a message by itself, behind its WRITE (RFC 7306, section 4). Those of verbs have 32 bits, which
    /// stand first, and zeros follow, as Chelsio's RNICs have it.
    fn put_immediate(&self, imm: u32, flags: SendFlags, outlet: &mut dyn StreamOutlet) {
        let opcode = match flags.contains(SendFlags::SOLICITED) {
            true => RdmapOpcode::ImmediateSolicited,
            false => RdmapOpcode::Immediate,
        };
        let header = Header::Untagged(Untagged::first(opcode, self.send_msn));
        let [a, b, c, d] = imm.to_be_bytes();
        put_bytes(outlet, &header, &[a, b, c, d, 0, 0, 0, 0]);
    }

    fn header(&self, wr: &SendWr<'_>, sent: u32, is_last: bool) -> Header {
        if let SendOp::Write(remote) | SendOp::WriteWithImm(remote, _) = wr.op {
            return Header::Tagged(Tagged {
                opcode: RdmapOpcode::Write,
                is_last,
                stag: STag::new(remote.rkey.value()),
                offset: remote.addr.wrapping_add(u64::from(sent)),
            });
        }
        let solicited = wr.flags.contains(SendFlags::SOLICITED);
        let (opcode, invalidate) = match (wr.op, solicited) {
            (SendOp::SendWithInv(key), false) => (RdmapOpcode::SendInvalidate, key.value()),
            (SendOp::SendWithInv(key), true) => (RdmapOpcode::SendSolicitedInvalidate, key.value()),
            (_, false) => (RdmapOpcode::Send, 0),
            (_, true) => (RdmapOpcode::SendSolicited, 0),
        };
        Header::Untagged(Untagged {
            opcode,
            is_last,
            invalidate: STag::new(invalidate),
            msn: self.send_msn,
            offset: sent,
        })
    }

    fn step_read(
        &mut self,
        ends: &Ends<'_>,
        wr: &SendWr<'_>,
        from: Remote,
        outlet: &mut dyn StreamOutlet,
    ) -> Result<Step, Fault> {
        // As with `Access::READ_SINK`, if not with the right that RNICs want: only what was asked for is let in.
        let is_guarded = Source::check(ends, wr, GUARDED_SINK, &mut Pieces::new()).is_ok();
        let need = if is_guarded { GUARDED_SINK } else { SINK };
        if let Some(held) = self.hold(ends, wr, need) {
            return held;
        }
        let sink = sink(wr);
        let request = ReadRequest {
            sink: STag::new(sink.lkey.value()),
            sink_offset: sink.addr,
            len: sink.len,
            source: STag::new(from.rkey.value()),
            source_offset: from.addr,
        };
        self.put_read(&request, outlet);
        self.reads += 1;
        self.pass();
        Ok(Step::Sent)
    }

    fn step_atomic(
        &mut self,
        ends: &Ends<'_>,
        wr: &SendWr<'_>,
        (remote, operation): (Remote, AtomicOperation),
        outlet: &mut dyn StreamOutlet,
    ) -> Result<Step, Fault> {
        if let Some(held) = self.hold(ends, wr, Access::LOCAL_WRITE) {
            return held;
        }
        let request = AtomicRequest {
            request: self.next,
            stag: STag::new(remote.rkey.value()),
            offset: remote.addr,
            operation,
        };
        let header = self.request_header(RdmapOpcode::AtomicRequest);
        put_bytes(outlet, &header, &request.to_bytes());
        self.reads += 1;
        self.pass();
        Ok(Step::Sent)
    }

    /// What holds a READ or an atomic back: as many as may be are not answered, or its memory lacks that right.
    fn hold(
        &mut self,
        ends: &Ends<'_>,
        wr: &SendWr<'_>,
        need: Access,
    ) -> Option<Result<Step, Fault>> {
        let depth = u32::from(ends.path.max_rd_atomic);
        if depth == 0 {
            return Some(self.refuse(WcStatus::LocQpOpErr, 0));
        }
        if self.reads >= depth {
            return Some(Ok(Step::Held));
        }
        let mut pieces = Pieces::new();
        let checked = Source::check(ends, wr, need, &mut pieces);
        let refused = checked.err()?;
        Some(self.refuse(WcStatus::LocProtErr, refused.0))
    }

    /// A work request that sends nothing: an invalidate waits until all before it have ended.
    fn step_local(
        &mut self,
        ends: &Ends<'_>,
        wr: &SendWr<'_>,
        is_fenced: bool,
        events: &mut Events,
    ) -> Result<Step, Fault> {
        let waits = self.base != self.next;
        if waits && (is_fenced || matches!(wr.op, SendOp::LocalInv(_))) {
            return Ok(Step::Held);
        }
        let (local, settle) = execute(&wr.op, ends.mrs, ends.who(), ends.core);
        events.settle[0] = events.settle[0].or(settle);
        match local {
            Local::Fault(status, reason) => self.refuse(status, reason),
            // Another thread is looking, which has posted an early invalidate for instance.
            Local::Later(index) => {
                events.later = Some(index);
                Ok(Step::Held)
            }
            Local::Done(_) => {
                self.pass();
                self.retire(ends, events)?;
                // What was let go has to be settled before another is.
                if settle.is_some() {
                    events.again = true;
                    return Ok(Step::Held);
                }
                Ok(Step::Sent)
            }
        }
    }

    /// The message at `next` was put out as a whole.
    fn pass(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.begun = None;
        self.has_put = true;
    }

    /// A work request cannot be carried out. It completes when all before it have.
    fn refuse(&mut self, status: WcStatus, reason: u32) -> Result<Step, Fault> {
        if self.base == self.next {
            Err(Fault::local(status, reason))
        } else {
            Ok(Step::Held)
        }
    }

    /// Completes what was put out, up to the oldest READ or atomic without an answer.
    fn retire(&mut self, ends: &Ends<'_>, events: &mut Events) -> Result<(), Fault> {
        let mut scratch = Scratch::default();
        while self.base != self.next {
            let wr = ends.sends.read(self.base, &mut scratch);
            if is_answered(&wr.op) {
                return Ok(());
            }
            self.retire_one(ends, &wr, events)?;
        }
        Ok(())
    }

    fn retire_one(
        &mut self,
        ends: &Ends<'_>,
        wr: &SendWr<'_>,
        events: &mut Events,
    ) -> Result<(), Fault> {
        let flight = Flight::of(wr, ends.path);
        if !completion::send_success(ends, self.base, &flight, events) {
            self.failed = true;
            return Err(Fault::STOPPED);
        }
        self.base = self.base.wrapping_add(1);
        Ok(())
    }

    /// Completes the oldest work request in error.
    pub(super) fn fail(
        &mut self,
        ends: &Ends<'_>,
        status: WcStatus,
        reason: u32,
        events: &mut Events,
    ) {
        self.failed = true;
        if completion::send_failure(ends, self.base, status, reason, events) {
            events.failed = Some(self.base);
        }
    }
}

/// What does as well.
pub(crate) const GUARDED_SINK: Access = Access::LOCAL_WRITE.union(Access::READ_SINK);

/// What a READ needs of its sink.
const SINK: Access = TransportType::Iwarp.read_sink();

/// Whether such a work request is done only with an answer.
fn is_answered(op: &SendOp) -> bool {
    matches!(op, SendOp::Read(_) | SendOp::ReadWithInv(_)) || is_atomic(op)
}

fn is_atomic(op: &SendOp) -> bool {
    atomic(op).is_some()
}

/// The atomic of a work request: where, and what.
fn atomic(op: &SendOp) -> Option<(Remote, AtomicOperation)> {
    Some(match *op {
        SendOp::FetchAdd { remote, add } => (remote, AtomicOperation::FetchAdd { add, mask: 0 }),
        SendOp::MaskedFetchAdd {
            remote,
            add,
            boundary,
        } => {
            let mask = boundary;
            (remote, AtomicOperation::FetchAdd { add, mask })
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => (remote, swapping(compare, u64::MAX, swap, u64::MAX)),
        SendOp::MaskedCompareSwap {
            remote,
            compare,
            compare_mask,
            swap,
            swap_mask,
        } => (remote, swapping(compare, compare_mask, swap, swap_mask)),
        _ => return None,
    })
}

fn swapping(compare: u64, compare_mask: u64, swap: u64, swap_mask: u64) -> AtomicOperation {
    AtomicOperation::CmpSwap {
        swap,
        swap_mask,
        compare,
        compare_mask,
    }
}

/// The memory that a READ fills: one piece, as posting has checked, or none.
fn sink(wr: &SendWr<'_>) -> Sge {
    sges(wr).next().unwrap_or_default()
}
