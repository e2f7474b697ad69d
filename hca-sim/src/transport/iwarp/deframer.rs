//! FPDUs of a stream that comes in pieces of any length (RFC 5044, section 4).

use verbs_wire::iwarp::{Fpdu, FpduCrc, Header, IwarpError, Part as Of, Refused};

/// A part of an FPDU, in order: header, payload in pieces, end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'b> {
    /// The DDP header is there: [`Deframer::header`].
    Header,
    /// Bytes of the payload; never none.
    Payload(&'b [u8]),
    /// The FPDU is whole, and its CRC right.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Header,
    Payload,
    Trailer,
}

/// Bytes of the length field and the longest header.
const FRONT: usize = Fpdu::LENGTH_LEN + Header::UNTAGGED_LEN;
/// Bytes of the longest pad and the CRC.
const TRAILER: usize = 3 + FpduCrc::LEN;

/// Bytes of a payload that are covered by the CRC, and handed on, at a time.
const PIECE: usize = 8 << 10;

/// Takes a stream apart. It keeps a header and a trailer, and no payload.
#[derive(Debug)]
pub(super) struct Deframer {
    has_crc: bool,
    stage: Stage,
    /// Length field and header, as far as they have come.
    front: [u8; FRONT],
    trailer: [u8; TRAILER],
    /// Bytes of the stage that have come.
    have: usize,
    /// Bytes of the payload that have not.
    left: usize,
    crc: FpduCrc,
}

impl Deframer {
    pub(super) fn new(has_crc: bool) -> Self {
        Self {
            has_crc,
            stage: Stage::Header,
            front: [0; FRONT],
            trailer: [0; TRAILER],
            have: 0,
            left: 0,
            crc: FpduCrc::default(),
        }
    }

    /// The next part, taken from the front of `bytes`; `None` when more bytes are needed, which are all taken then.
    ///
    /// # Errors
    /// What is wrong with the frame. Nothing can be read behind it.
    pub(super) fn next<'b>(
        &mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Option<Part<'b>>, IwarpError> {
        match self.stage {
            Stage::Header => self.next_header(bytes),
            Stage::Payload if self.left != 0 => {
                let mut count = self.left.min(bytes.len());
                if count == 0 {
                    return Ok(None);
                }
                if self.has_crc {
                    // It is copied next, and is in the nearest cache then.
                    count = count.min(PIECE);
                }
                let (piece, rest) = bytes.split_at(count);
                (*bytes, self.left) = (rest, self.left - count);
                if self.has_crc {
                    self.crc.update(piece);
                }
                Ok(Some(Part::Payload(piece)))
            }
            Stage::Payload => {
                (self.stage, self.have) = (Stage::Trailer, 0);
                self.next_trailer(bytes)
            }
            Stage::Trailer => self.next_trailer(bytes),
        }
    }

    /// The DDP header of the FPDU under way.
    pub(super) fn header(&self) -> &[u8] {
        let header = &self.front[Fpdu::LENGTH_LEN..];
        &header[..Header::len_from(header[0])]
    }

    /// Bytes of the payload of the FPDU under way.
    pub(super) fn payload_len(&self) -> usize {
        self.ulpdu_len() - self.header().len()
    }

    /// What a Terminate says of the FPDU under way, or that has just ended; `body` is its payload where that is kept.
    pub(super) fn refused(&self, body: &[u8]) -> Option<Refused> {
        // Behind its end it still is the last one, until the next one begins.
        let is_next = self.stage == Stage::Header && self.have != 0;
        if is_next || self.ulpdu_len() == 0 {
            return None;
        }
        let len = u16::try_from(self.ulpdu_len()).unwrap_or(u16::MAX);
        Refused::from_parts(len, self.header(), body)
    }

    /// Whether an FPDU has come in part.
    pub(super) fn is_inside(&self) -> bool {
        self.stage != Stage::Header || self.have != 0
    }

    fn ulpdu_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.front[0], self.front[1]]))
    }

    fn next_header<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<Part<'b>>, IwarpError> {
        loop {
            let need = match self.have {
                0..Fpdu::LENGTH_LEN => Fpdu::LENGTH_LEN,
                Fpdu::LENGTH_LEN => Fpdu::LENGTH_LEN + 1,
                _ => Fpdu::LENGTH_LEN + self.header().len(),
            };
            let is_whole = self.have == need;
            if !is_whole {
                self.have += fill(&mut self.front[self.have..need], bytes);
                if self.have < need {
                    return Ok(None);
                }
            }
            // The shortest header, as long as the kind of the segment is not known.
            let header_len = match self.have {
                Fpdu::LENGTH_LEN => Header::TAGGED_LEN,
                _ => self.header().len(),
            };
            let got = self.ulpdu_len();
            if got < header_len {
                return Err(IwarpError::Truncated {
                    part: Of::Header,
                    need: header_len,
                    got,
                });
            }
            if self.have == Fpdu::LENGTH_LEN + header_len {
                break;
            }
        }
        self.crc = FpduCrc::default();
        if self.has_crc {
            self.crc.update(&self.front[..self.have]);
        }
        (self.stage, self.left) = (Stage::Payload, self.payload_len());
        Ok(Some(Part::Header))
    }

    fn next_trailer<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<Part<'b>>, IwarpError> {
        let pad_len = Fpdu::pad_len(self.ulpdu_len());
        let need = pad_len + FpduCrc::LEN;
        self.have += fill(&mut self.trailer[self.have..need], bytes);
        if self.have < need {
            return Ok(None);
        }
        let (pad, crc) = self.trailer[..need].split_at(pad_len);
        if self.has_crc {
            self.crc.update(pad);
            if let Some(crc) = crc.first_chunk() {
                self.crc.verify(*crc)?;
            }
        }
        (self.stage, self.have) = (Stage::Header, 0);
        Ok(Some(Part::End))
    }
}

/// Moves bytes from the front of one slice to that of the other: how many.
fn fill(into: &mut [u8], from: &mut &[u8]) -> usize {
    let count = into.len().min(from.len());
    let (taken, rest) = from.split_at(count);
    into[..count].copy_from_slice(taken);
    *from = rest;
    count
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use verbs_wire::iwarp::{RdmapOpcode, STag, Tagged, Untagged};

    use super::*;

    fn fpdu(header: Header, payload: &[u8]) -> Vec<u8> {
        let mut ulpdu = vec![0; header.wire_len()];
        header.emit(&mut ulpdu).expect("room");
        ulpdu.extend_from_slice(payload);
        let mut out = vec![0; Fpdu::wire_len(ulpdu.len())];
        Fpdu { ulpdu: &ulpdu }.emit(true, &mut out).expect("room");
        out
    }

    fn stream() -> Vec<u8> {
        let write = Header::Tagged(Tagged {
            opcode: RdmapOpcode::Write,
            is_last: true,
            stag: STag::new(7),
            offset: 9,
        });
        let send = Header::Untagged(Untagged::first(RdmapOpcode::Send, 1));
        [
            fpdu(write, &[1; 301]),
            fpdu(send, b"hello"),
            fpdu(write, b""),
        ]
        .concat()
    }

    /// A header and its payload.
    type Segment = (Vec<u8>, Vec<u8>);

    /// All segments, whatever the pieces.
    fn read(stream: &[u8], piece: usize) -> Result<Vec<Segment>, IwarpError> {
        let mut deframer = Deframer::new(true);
        let mut all = Vec::new();
        for mut bytes in stream.chunks(piece) {
            while let Some(part) = deframer.next(&mut bytes)? {
                match part {
                    Part::Header => all.push((deframer.header().to_vec(), Vec::new())),
                    Part::Payload(bytes) => all.last_mut().expect("a header").1.extend(bytes),
                    Part::End => {}
                }
            }
            assert!(bytes.is_empty());
        }
        assert!(!deframer.is_inside());
        Ok(all)
    }

    #[test]
    fn any_segmentation_reads_the_same() {
        let stream = stream();
        let whole = read(&stream, stream.len()).expect("right");
        assert_eq!(whole.len(), 3);
        assert_eq!(whole[0].1, [1; 301]);
        assert_eq!(whole[1].1, b"hello");
        for piece in 1..64 {
            assert_eq!(read(&stream, piece), Ok(whole.clone()), "{piece}");
        }
    }

    #[test]
    fn every_bit_is_covered() {
        let stream = stream();
        for at in 0..stream.len() * 8 {
            let mut damaged = stream.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            let mut deframer = Deframer::new(true);
            let mut bytes = &damaged[..];
            let mut ends = 0;
            let refused = loop {
                match deframer.next(&mut bytes) {
                    Err(_) => break true,
                    // A length that grew: the rest of the frame never comes.
                    Ok(None) => break deframer.is_inside(),
                    Ok(Some(part)) => ends += usize::from(part == Part::End),
                }
            };
            assert!(refused && ends < 3, "bit {at}");
        }
    }

    #[test]
    fn short_ulpdus_are_refused() {
        for (len, first) in [(0_u16, 0), (13, 0xc1), (17, 0x41)] {
            let mut bytes = &[&len.to_be_bytes()[..], &[first; 32]].concat()[..];
            let error = Deframer::new(true).next(&mut bytes).expect_err("too short");
            assert!(matches!(error, IwarpError::Truncated { .. }), "{error:?}");
        }
    }
}
