//! Injected defects of streams: FPDUs changed as if a defective RNIC had sent them, with a correct CRC.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use verbs_wire::iwarp::{AtomicOperation, AtomicRequest, Fpdu, Header, RdmapOpcode, Tagged};

use crate::mutant::Mutant;
use crate::{Draw, Ppm};

/// How often a defect shows, of the segments that it can concern.
const OFTEN: Ppm = Ppm::percent(10);
/// Bytes of a startup frame without its private data, and where their number is.
const STARTUP: usize = 20;
const PRIVATE_LEN: usize = 18;
/// Segments after which a stream goes deaf, or is lost.
const PATIENCE: u64 = 100;

/// Changes streams; changes none unless there is a mutant of this place.
pub(crate) struct StreamMutator {
    mutant: Option<Mutant>,
    draw: Draw,
    /// What each end has sent that is no whole frame yet.
    parts: BTreeMap<Direction, Part>,
    /// The payload of the last response to a READ.
    last_read: Vec<u8>,
    passed: u64,
    /// Directions that no longer carry anything.
    deaf: BTreeSet<Direction>,
}

/// Who sends, and to whom.
type Direction = [SocketAddr; 2];

#[derive(Default)]
struct Part {
    has_started: bool,
    bytes: Vec<u8>,
}

/// What is passed on of what was sent.
pub(crate) struct PassedBytes {
    pub(crate) bytes: Vec<u8>,
    /// The connection is lost.
    pub(crate) is_cut: bool,
}

impl StreamMutator {
    pub(crate) fn new(draw: Draw) -> Self {
        Self {
            mutant: None,
            draw,
            parts: BTreeMap::new(),
            last_read: Vec::new(),
            passed: 0,
            deaf: BTreeSet::new(),
        }
    }

    /// Injects this defect from now on, if it is one of streams.
    pub(crate) fn inject(&mut self, mutant: Option<Mutant>) {
        self.mutant = mutant.filter(|mutant| mutant.needs_streams());
    }

    /// What becomes of bytes that are sent in that direction.
    pub(crate) fn pass(&mut self, direction: Direction, bytes: &[u8]) -> PassedBytes {
        let mut passed = PassedBytes {
            bytes: Vec::new(),
            is_cut: false,
        };
        let Some(mutant) = self.mutant else {
            passed.bytes = bytes.to_vec();
            return passed;
        };
        let mut part = self.parts.remove(&direction).unwrap_or_default();
        part.bytes.extend_from_slice(bytes);
        while let Some((len, is_startup)) = part.frame() {
            let frame: Vec<u8> = part.bytes.drain(..len).collect();
            if is_startup {
                passed.bytes.extend(frame);
                continue;
            }
            self.passed += 1;
            match mutant {
                Mutant::DeafStream => {
                    if self.passed == PATIENCE {
                        self.deaf.insert(direction);
                    }
                    if !self.deaf.contains(&direction) {
                        passed.bytes.extend(frame);
                    }
                }
                Mutant::UnaskedReset => {
                    passed.is_cut |= self.passed == PATIENCE;
                    passed.bytes.extend(frame);
                }
                _ => match self.change(mutant, &frame) {
                    Some(changed) => passed.bytes.extend(changed),
                    None => passed.bytes.extend(frame),
                },
            }
        }
        self.parts.insert(direction, part);
        passed
    }

    /// The FPDU to send instead of this one; an empty one if none is.
    fn change(&mut self, mutant: Mutant, frame: &[u8]) -> Option<Vec<u8>> {
        let (fpdu, _) = Fpdu::parse(frame, true).ok()??;
        let (header, payload) = Header::parse(fpdu.ulpdu).ok()?;
        let (mut changed, mut payload) = (header, payload.to_vec());
        let opcode = header.opcode();
        match (mutant, &mut changed) {
            (Mutant::LostSegment, Header::Tagged(tagged)) if is_write(tagged, &payload) => {
                return (!tagged.is_last && self.draw.chance(OFTEN)).then(Vec::new);
            }
            (Mutant::WrongOffset, Header::Tagged(tagged)) if is_write(tagged, &payload) => {
                tagged.offset += 8;
            }
            (Mutant::ResealedSegment, _) if carries_bytes(opcode) && !payload.is_empty() => {
                let at = self.draw.below(payload.len());
                payload[at] ^= 1;
            }
            (Mutant::StaleResponse, Header::Tagged(_)) if opcode == RdmapOpcode::ReadResponse => {
                let last = std::mem::replace(&mut self.last_read, payload.clone());
                payload = (last.len() == payload.len() && last != payload).then_some(last)?;
            }
            (Mutant::WrongImmediate, _)
                if matches!(
                    opcode,
                    RdmapOpcode::Immediate | RdmapOpcode::ImmediateSolicited
                ) =>
            {
                *payload.first_mut()? ^= 1;
            }
            (Mutant::AddedTwice, _) if opcode == RdmapOpcode::AtomicRequest => {
                let mut request = AtomicRequest::parse(&payload).ok()?;
                let AtomicOperation::FetchAdd { add, .. } = &mut request.operation else {
                    return None;
                };
                *add = add.wrapping_mul(2);
                payload = request.to_bytes().to_vec();
            }
            _ => return None,
        }
        if !self.draw.chance(OFTEN) {
            return None;
        }
        seal(&changed, &payload)
    }
}

impl Part {
    /// The length of the frame at the front, if it is whole, and whether it is that of the startup.
    fn frame(&mut self) -> Option<(usize, bool)> {
        if self.has_started {
            let length = self.bytes.first_chunk()?;
            let len = Fpdu::wire_len(usize::from(u16::from_be_bytes(*length)));
            return (len <= self.bytes.len()).then_some((len, false));
        }
        let length = self.bytes.get(PRIVATE_LEN..STARTUP)?;
        let len = STARTUP + usize::from(u16::from_be_bytes(length.try_into().ok()?));
        self.has_started = len <= self.bytes.len();
        self.has_started.then_some((len, true))
    }
}

/// Whether the segment writes bytes.
fn is_write(tagged: &Tagged, payload: &[u8]) -> bool {
    tagged.opcode == RdmapOpcode::Write && !payload.is_empty()
}

/// Whether messages of that opcode carry a client's bytes.
fn carries_bytes(opcode: RdmapOpcode) -> bool {
    matches!(
        opcode,
        RdmapOpcode::Write
            | RdmapOpcode::ReadResponse
            | RdmapOpcode::Send
            | RdmapOpcode::SendSolicited
    )
}

/// An FPDU with a correct CRC.
fn seal(header: &Header, payload: &[u8]) -> Option<Vec<u8>> {
    let mut ulpdu = vec![0; header.wire_len()];
    header.emit(&mut ulpdu).ok()?;
    ulpdu.extend_from_slice(payload);
    let mut out = vec![0; Fpdu::wire_len(ulpdu.len())];
    Fpdu { ulpdu: &ulpdu }.emit(true, &mut out).ok()?;
    Some(out)
}
