//! What the segment is part of that is coming, and what becomes of its parts.

use arrayvec::ArrayVec;
use verbs_core::WcStatus;
use verbs_wire::iwarp::{
    AtomicRequest, AtomicResponse, Cause, Header, ImmediateData, RdmapOpcode, ReadRequest, Tagged,
    Terminate, Untagged,
};

use super::Iwarp;
use super::deframer::Part;
use super::fault::{Fault, told};
use super::hold::Hold;
use super::outlet::Extensions;
use crate::transport::{Ends, Events};

/// See the module's documentation.
#[derive(Debug)]
pub(super) enum Segment {
    Write(Tagged),
    Send(Untagged),
    Response(Tagged),
    /// A message that is read as a whole.
    Body(Untagged, ArrayVec<u8, BODY_MAX>),
    /// Nothing of it is taken; this is said when its CRC has turned out right.
    Refused(Fault),
}

/// Bytes of the longest message that is read as a whole; what is behind them is dropped.
const BODY_MAX: usize = Terminate::LEN_MAX;

impl Segment {
    /// What is kept of its payload.
    pub(super) fn body(&self) -> &[u8] {
        match self {
            Self::Body(_, bytes) => bytes,
            _ => &[],
        }
    }
}

/// A message that is read as a whole, of that many bytes and no others.
fn body(header: Untagged, len: u32, right: usize) -> Result<Segment, Fault> {
    match len as usize {
        len if len < right => Err(Fault::peer(Cause::LLP_FRAMING)),
        len if len > right => Err(Fault::peer(Cause::DDP_TOO_LONG)),
        _ => Ok(Segment::Body(header, ArrayVec::new())),
    }
}

impl Iwarp {
    /// What this side has of RFC 7306.
    fn extensions(&self) -> Extensions {
        self.start
            .map_or(Extensions::NONE, |start| start.extensions)
    }

    /// Takes a part of the stream.
    pub(super) fn take(
        &mut self,
        ends: &Ends<'_>,
        part: Part<'_>,
        events: &mut Events,
    ) -> Result<(), Fault> {
        match part {
            Part::Header => {
                self.nudge = None;
                self.open(ends, events);
                Ok(())
            }
            Part::Payload(bytes) => {
                if let Err(fault) = self.place(ends, bytes) {
                    self.segment = Some(Segment::Refused(fault));
                }
                Ok(())
            }
            Part::End => {
                // The peer has spoken.
                self.silent_until = None;
                let ended = self.finish(ends, events);
                if ended.is_ok() {
                    self.segment = None;
                }
                ended
            }
        }
    }

    /// Begins with the segment whose header has come, unless its message has to wait for a receive.
    pub(super) fn open(&mut self, ends: &Ends<'_>, events: &mut Events) {
        let begun = self.begin(ends, events);
        if matches!(begun, Err(Fault::NO_RECEIVE)) {
            let hold = self.hold.get_or_insert_with(|| {
                ends.counters.rnr_naks.up();
                Hold::new(ends.now)
            });
            if !hold.is_over(ends.now) {
                return hold.goes_on(ends.now);
            }
        }
        self.hold = None;
        self.segment = Some(begun.unwrap_or_else(Segment::Refused));
    }

    /// Looks at a header. Nothing has changed if there is no receive for its message.
    fn begin(&mut self, ends: &Ends<'_>, events: &mut Events) -> Result<Segment, Fault> {
        let (header, _) =
            Header::parse(self.deframer.header()).map_err(|error| Fault::of(&error))?;
        let len = u32::try_from(self.deframer.payload_len()).unwrap_or(u32::MAX);
        match header {
            Header::Tagged(tagged) if tagged.opcode == RdmapOpcode::ReadResponse => {
                self.requester.begin_response(ends, &tagged, len)?;
                Ok(Segment::Response(tagged))
            }
            Header::Tagged(tagged) => {
                self.responder.begin_write(ends, &tagged, len)?;
                Ok(Segment::Write(tagged))
            }
            Header::Untagged(untagged) => match untagged.opcode {
                RdmapOpcode::Send
                | RdmapOpcode::SendSolicited
                | RdmapOpcode::SendInvalidate
                | RdmapOpcode::SendSolicitedInvalidate => {
                    self.responder.begin_send(ends, &untagged, len, events)?;
                    Ok(Segment::Send(untagged))
                }
                RdmapOpcode::ReadRequest => {
                    self.responder.begin_request(&untagged)?;
                    body(untagged, len, ReadRequest::LEN)
                }
                RdmapOpcode::Terminate => Ok(Segment::Body(untagged, ArrayVec::new())),
                _ => self.begin_extension(ends, untagged, len, events),
            },
        }
    }

    /// A message of RFC 7306: nothing that is expected where it is not offered.
    fn begin_extension(
        &mut self,
        ends: &Ends<'_>,
        untagged: Untagged,
        len: u32,
        events: &mut Events,
    ) -> Result<Segment, Fault> {
        let has = self.extensions();
        match untagged.opcode {
            RdmapOpcode::Immediate | RdmapOpcode::ImmediateSolicited if has.immediate => {
                self.responder
                    .receives
                    .begin_immediate(ends, &untagged, events)?;
                body(untagged, len, ImmediateData::LEN)
            }
            RdmapOpcode::AtomicRequest if has.atomics || has.masked => {
                self.responder.begin_request(&untagged)?;
                body(untagged, len, AtomicRequest::LEN)
            }
            // That it answers something is what makes it expected.
            RdmapOpcode::AtomicResponse => {
                self.requester.begin_atomic_response(ends, &untagged)?;
                body(untagged, len, AtomicResponse::LEN)
            }
            _ => Err(Fault::peer(Cause::RDMAP_OPCODE)),
        }
    }

    /// Places bytes of the payload.
    fn place(&mut self, ends: &Ends<'_>, bytes: &[u8]) -> Result<(), Fault> {
        match &mut self.segment {
            Some(Segment::Write(tagged)) => {
                self.responder.place_write(ends, tagged, bytes)?;
                tagged.offset += bytes.len() as u64;
            }
            Some(Segment::Send(_)) => self.responder.place_send(ends, bytes)?,
            Some(Segment::Response(_)) => self.requester.place_response(ends, bytes)?,
            Some(Segment::Body(_, body)) => {
                let count = bytes.len().min(body.remaining_capacity());
                body.extend(bytes[..count].iter().copied());
            }
            Some(Segment::Refused(_)) | None => {}
        }
        Ok(())
    }

    /// The segment is whole, and its CRC right.
    fn finish(&mut self, ends: &Ends<'_>, events: &mut Events) -> Result<(), Fault> {
        match &self.segment {
            Some(Segment::Write(tagged)) => {
                self.responder.end_write(tagged);
                Ok(())
            }
            Some(Segment::Send(untagged)) => self.responder.end_send(ends, untagged, events),
            Some(Segment::Response(tagged)) => {
                self.requester.end_response(ends, tagged.is_last, events)
            }
            Some(Segment::Body(untagged, body)) => match untagged.opcode {
                RdmapOpcode::ReadRequest => {
                    let request = ReadRequest::parse(body).map_err(|error| Fault::of(&error))?;
                    self.responder.end_read(ends, &request)
                }
                RdmapOpcode::Immediate | RdmapOpcode::ImmediateSolicited => {
                    let data = ImmediateData::parse(body).map_err(|error| Fault::of(&error))?;
                    self.responder.end_immediate(ends, untagged, data, events)
                }
                RdmapOpcode::AtomicRequest => {
                    let request = AtomicRequest::parse(body).map_err(|error| Fault::of(&error))?;
                    let has = self.extensions();
                    self.responder.end_atomic(ends, &request, has)
                }
                RdmapOpcode::AtomicResponse => {
                    let response =
                        AtomicResponse::parse(body).map_err(|error| Fault::of(&error))?;
                    self.requester.end_atomic_response(ends, &response, events)
                }
                _ => {
                    let cause = Terminate::parse(body).map(|terminate| terminate.cause);
                    tracing::debug!(?cause, "the peer has ended the stream");
                    let status = cause.map_or(WcStatus::WrFlushErr, told);
                    let reads = self.requester.is_reading();
                    let told = reads && status != WcStatus::WrFlushErr;
                    Err(Fault::told(told.then_some((status, 0))))
                }
            },
            Some(Segment::Refused(fault)) => Err(*fault),
            None => Ok(()),
        }
    }
}
