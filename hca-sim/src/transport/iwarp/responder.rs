//! The responder: places what the peer writes, and answers its READs.

use std::collections::VecDeque;

use verbs_core::mem::Span;
use verbs_core::{Access, Error, Srqn};
use verbs_wire::iwarp::{
    AtomicRequest, AtomicResponse, Cause, Header, ImmediateData, RdmapOpcode, ReadRequest, STag,
    Tagged, Untagged,
};

use super::atomics::execute;
use super::fault::{Fault, read_cause, write_cause};
use super::outlet::{Extensions, Fill, Start, Step, StreamOutlet, put, put_bytes, room};
use super::receives::Receives;
use crate::queue::base::limits::RD_ATOMIC;
use crate::transport::pieces::refused;
use crate::transport::{Ends, Events};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Responder {
    /// Memory, and where in it, that the next segment of the WRITE under way is for.
    write: Option<(STag, u64)>,
    /// Bytes of the WRITE under way, or of the one that has just ended: what follows may say so.
    written: u32,
    pub(super) receives: Receives,
    /// The number of the next READ or atomic.
    request_msn: u32,
    /// Those that are not answered, oldest first.
    asked: VecDeque<Asked>,
    /// Bytes of the answer to the oldest that were sent.
    sent: u32,
    /// The number of the next answer to an atomic.
    atomic_msn: u32,
}

/// What the peer has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Read(ReadRequest),
    /// An atomic, which is done.
    Atomic(AtomicResponse),
}

impl Responder {
    /// With room for the READs and atomics of any peer.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(super) fn new() -> Result<Self, Error> {
        let mut asked = VecDeque::new();
        asked
            .try_reserve_exact(RD_ATOMIC as usize)
            .map_err(|_| Error::NoMemory)?;
        Ok(Self {
            write: None,
            written: 0,
            receives: Receives::default(),
            request_msn: 1,
            asked,
            sent: 0,
            atomic_msn: 1,
        })
    }

    pub(super) fn reset(&mut self) {
        self.write = None;
        self.written = 0;
        self.receives = Receives::default();
        self.request_msn = 1;
        self.asked.clear();
        self.sent = 0;
        self.atomic_msn = 1;
    }

    pub(super) fn abandon(&mut self) -> Option<(u64, Option<Srqn>)> {
        self.receives.abandon().map(|wr_id| (wr_id, None))
    }

    /// Whether a message has come in part.
    pub(super) fn is_inside(&self) -> bool {
        self.write.is_some() || self.receives.is_inside()
    }

    /// Whether a READ or an atomic is not answered.
    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether a READ is answered in part.
    pub(super) fn is_answering(&self) -> bool {
        self.sent != 0
    }

    /// See [`Receives::fail`].
    pub(super) fn fail_receive(
        &mut self,
        ends: &Ends<'_>,
        status: verbs_core::WcStatus,
        reason: u32,
        events: &mut Events,
    ) -> bool {
        self.receives.fail(ends, status, reason, events)
    }

    /// A segment of a WRITE begins. One without bytes touches nothing, whatever its STag (RFC 5041, section 4.3).
    pub(super) fn begin_write(
        &mut self,
        ends: &Ends<'_>,
        header: &Tagged,
        len: u32,
    ) -> Result<(), Fault> {
        match self.write {
            Some((stag, _)) if header.stag != stag => return Err(Fault::peer(Cause::DDP_STAG)),
            Some((_, offset)) if header.offset != offset => {
                return Err(Fault::peer(Cause::DDP_BOUNDS));
            }
            Some(_) => self.written = self.written.saturating_add(len),
            None => self.written = len,
        }
        if len == 0 {
            return Ok(());
        }
        if header.offset.checked_add(u64::from(len)).is_none() {
            return Err(Fault::access(Cause::DDP_WRAP));
        }
        if !ends.path.access.contains(Access::REMOTE_WRITE) {
            return Err(Fault::access(Cause::RDMAP_ACCESS));
        }
        written(ends, header, len).map(drop)
    }

    /// Bytes of that segment, of which `header` says where they go.
    pub(super) fn place_write(
        &self,
        ends: &Ends<'_>,
        header: &Tagged,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        // A region may go away between pieces.
        let written = written(ends, header, len)?.write_from(bytes);
        written.map_err(|unmapped| Fault::access(write_cause(unmapped.into())))?;
        Ok(())
    }

    /// The segment is whole; `header` says where the next one goes.
    pub(super) fn end_write(&mut self, header: &Tagged) {
        self.write = (!header.is_last).then_some((header.stag, header.offset));
    }

    /// A segment of a SEND begins.
    pub(super) fn begin_send(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
        len: u32,
        events: &mut Events,
    ) -> Result<(), Fault> {
        self.receives.begin(ends, header, len, events)
    }

    pub(super) fn place_send(&mut self, ends: &Ends<'_>, bytes: &[u8]) -> Result<(), Fault> {
        self.receives.place(ends, bytes)
    }

    pub(super) fn end_send(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
        events: &mut Events,
    ) -> Result<(), Fault> {
        self.written = 0;
        self.receives.end(ends, header, events)
    }

    /// Immediate data: of the WRITE before it, as this side's requester sends them, or by itself.
    pub(super) fn end_immediate(
        &mut self,
        ends: &Ends<'_>,
        header: &Untagged,
        data: ImmediateData,
        events: &mut Events,
    ) -> Result<(), Fault> {
        let written = std::mem::take(&mut self.written);
        self.receives
            .end_immediate(ends, header, data, written, events)
    }

    /// The peer asks for a READ or an atomic: its header.
    pub(super) fn begin_request(&self, header: &Untagged) -> Result<(), Fault> {
        if header.msn != self.request_msn {
            return Err(Fault::read(Cause::DDP_MSN_RANGE));
        }
        if header.offset != 0 || !header.is_last {
            return Err(Fault::read(Cause::DDP_OFFSET));
        }
        Ok(())
    }

    /// The rest of it.
    pub(super) fn end_read(&mut self, ends: &Ends<'_>, request: &ReadRequest) -> Result<(), Fault> {
        self.find_room(ends)?;
        if request.len != 0 {
            if !ends.path.access.contains(Access::REMOTE_READ) || ends.path.max_dest_rd_atomic == 0
            {
                return Err(Fault::read(Cause::RDMAP_ACCESS));
            }
            for offset in [request.source_offset, request.sink_offset] {
                if offset.checked_add(u64::from(request.len)).is_none() {
                    return Err(Fault::read(Cause::RDMAP_WRAP));
                }
            }
            source(ends, request, 0, request.len)?;
        }
        self.remember(Asked::Read(*request));
        Ok(())
    }

    /// The rest of an atomic. It is done at once, so that what comes behind it finds it done.
    pub(super) fn end_atomic(
        &mut self,
        ends: &Ends<'_>,
        request: &AtomicRequest,
        has: Extensions,
    ) -> Result<(), Fault> {
        self.find_room(ends)?;
        let original = execute(ends, request, has)?;
        self.remember(Asked::Atomic(AtomicResponse {
            request: request.request,
            original,
        }));
        Ok(())
    }

    /// The peer may not ask for more than was agreed on (RFC 5040, section 6.1).
    fn find_room(&self, ends: &Ends<'_>) -> Result<(), Fault> {
        if self.asked.len() >= usize::from(ends.path.max_dest_rd_atomic).max(1) {
            return Err(Fault::read(Cause::RDMAP_STREAM_CATASTROPHIC));
        }
        Ok(())
    }

    fn remember(&mut self, asked: Asked) {
        self.request_msn = self.request_msn.wrapping_add(1);
        self.asked.push_back(asked);
    }

    /// Answers the oldest request.
    pub(super) fn step(
        &mut self,
        ends: &Ends<'_>,
        start: &Start,
        outlet: &mut dyn StreamOutlet,
    ) -> Result<Step, Fault> {
        match self.asked.front().copied() {
            None => Ok(Step::Held),
            Some(_) if !outlet.is_ready() => Ok(Step::Full),
            Some(Asked::Read(request)) => self.answer_read(ends, start, &request, outlet),
            Some(Asked::Atomic(response)) => {
                let opcode = RdmapOpcode::AtomicResponse;
                let header = Header::Untagged(Untagged::first(opcode, self.atomic_msn));
                put_bytes(outlet, &header, &response.to_bytes());
                self.atomic_msn = self.atomic_msn.wrapping_add(1);
                self.asked.pop_front();
                Ok(Step::Sent)
            }
        }
    }

    fn answer_read(
        &mut self,
        ends: &Ends<'_>,
        start: &Start,
        request: &ReadRequest,
        outlet: &mut dyn StreamOutlet,
    ) -> Result<Step, Fault> {
        loop {
            if !outlet.is_ready() {
                return Ok(Step::Full);
            }
            let left = request.len - self.sent;
            let len = left.min(room(start, Header::TAGGED_LEN));
            let bytes = if len == 0 {
                Span::empty()
            } else {
                source(ends, request, self.sent, len)?
            };
            let header = Header::Tagged(Tagged {
                opcode: RdmapOpcode::ReadResponse,
                is_last: len == left,
                stag: request.sink,
                offset: request.sink_offset + u64::from(self.sent),
            });
            let fill: Fill<'_> = &mut |at, out| {
                let part = bytes.part(at as u32, out.len() as u32);
                part.map_or(Ok(()), |part| part.read_into(out).map(drop))
            };
            put(outlet, &header, len as usize, fill)
                .map_err(|unmapped| Fault::read(read_cause(unmapped.into())))?;
            self.sent += len;
            if len == left {
                self.asked.pop_front();
                self.sent = 0;
                return Ok(Step::Sent);
            }
        }
    }
}

/// Memory that the peer writes into.
fn written<'p>(ends: &Ends<'p>, header: &Tagged, len: u32) -> Result<Span<'p>, Fault> {
    let (key, need) = (header.stag.value(), Access::REMOTE_WRITE);
    let found = ends
        .mrs
        .find(ends.pin, key, header.offset, len, ends.who(), need);
    found.ok_or_else(|| Fault::access(write_cause(refused(ends))))
}

/// Memory that the peer reads from.
fn source<'p>(
    ends: &Ends<'p>,
    request: &ReadRequest,
    offset: u32,
    len: u32,
) -> Result<Span<'p>, Fault> {
    let (key, need) = (request.source.value(), Access::REMOTE_READ);
    let at = request.source_offset + u64::from(offset);
    let found = ends.mrs.find(ends.pin, key, at, len, ends.who(), need);
    found.ok_or_else(|| Fault::read(read_cause(refused(ends))))
}
