//! Bytes on their way out: FPDUs that are gathered, and what a stream had no room for.

use std::fmt;
use std::io;

use verbs_core::Error;
use verbs_core::mem::Unmapped;
use verbs_link::stream::Stream;
use verbs_wire::iwarp::{Fpdu, FpduCrc};

use crate::transport::iwarp::{Fill, StreamOutlet};

/// Bytes that are gathered for one call of the system: a message of 256 KiB in FPDUs of 32 KiB, which is what the loopback
/// interface has. A connection keeps so many at most that its stream had no room for, in memory that the system only gives
/// when it is used.
pub(crate) const STAGE: usize = 9 * (32 << 10);

/// Bytes that are copied, and covered by a CRC, at a time.
pub(crate) const PIECE: usize = 8 << 10;

/// Gathers FPDUs.
pub(crate) struct FpduBuffer<'b> {
    bytes: &'b mut [u8],
    len: usize,
    has_crc: bool,
    /// Bytes of the longest FPDU of the connection.
    longest: usize,
}

impl<'b> FpduBuffer<'b> {
    /// For FPDUs with ULPDUs of so many bytes at most.
    pub(crate) fn new(bytes: &'b mut [u8], has_crc: bool, ulpdu_max: usize) -> Self {
        Self {
            bytes,
            len: 0,
            has_crc,
            longest: Fpdu::wire_len(ulpdu_max),
        }
    }

    /// Bytes that were gathered.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl StreamOutlet for FpduBuffer<'_> {
    fn is_ready(&self) -> bool {
        self.bytes.len() - self.len >= self.longest
    }

    /// Each piece is covered by the CRC while it is in the nearest cache, the last one together with the pad.
    fn put(&mut self, front: &[u8], len: usize, fill: Fill<'_>) -> Result<(), Unmapped> {
        let ulpdu_len = front.len() + len;
        let total = Fpdu::wire_len(ulpdu_len);
        let Some(out) = self.bytes.get_mut(self.len..self.len + total) else {
            debug_assert!(false, "put only when ready");
            return Ok(());
        };
        let begin = Fpdu::LENGTH_LEN + front.len();
        let (end, covered) = (begin + len, total - FpduCrc::LEN);
        // The machine makes no ULPDU that its length field cannot describe.
        let length = u16::try_from(ulpdu_len).unwrap_or(u16::MAX);
        out[..Fpdu::LENGTH_LEN].copy_from_slice(&length.to_be_bytes());
        out[Fpdu::LENGTH_LEN..begin].copy_from_slice(front);
        out[end..].fill(0);
        let mut crc = FpduCrc::default();
        let (mut at, mut done) = (begin, 0);
        while at < end {
            let next = end.min(at + PIECE);
            fill(at - begin, &mut out[at..next])?;
            at = next;
            if self.has_crc && at < end {
                crc.update(&out[done..at]);
                done = at;
            }
        }
        if self.has_crc {
            crc.update(&out[done..covered]);
            out[covered..].copy_from_slice(&crc.to_bytes());
        }
        self.len += total;
        Ok(())
    }
}

/// What a stream had no room for.
pub(crate) struct Outgoing {
    /// Room for [`STAGE`] bytes, which is not touched before it is used: most connections never need more than a page.
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    /// With all that it will ever allocate.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new() -> Result<Self, Error> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(STAGE);
        reserved.map_err(|_| Error::NoMemory)?;
        Ok(Self { bytes, sent: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Keeps bytes; those that do not fit are left out, which never are any as long as only an empty one is added to.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.capacity() - self.bytes.len();
        debug_assert!(bytes.len() <= room, "it was empty");
        self.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Sends bytes behind those that wait, and keeps those that there is no room for.
    ///
    /// # Errors
    /// The stream's: it is lost.
    pub(crate) fn send(&mut self, stream: &mut dyn Stream, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        if self.is_empty() {
            while sent < bytes.len() {
                match attempt(stream, &bytes[sent..])? {
                    0 => break,
                    count => sent += count,
                }
            }
        }
        self.push(&bytes[sent..]);
        Ok(())
    }

    /// Sends what waits, as far as there is room.
    ///
    /// # Errors
    /// The stream's: it is lost.
    pub(crate) fn flush(&mut self, stream: &mut dyn Stream) -> io::Result<()> {
        while !self.is_empty() {
            match attempt(stream, &self.bytes[self.sent..])? {
                0 => return Ok(()),
                count => self.sent += count,
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

/// How many bytes there was room for; 0 for none.
fn attempt(stream: &mut dyn Stream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match stream.send(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            sent => return sent,
        }
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing({} bytes)", self.bytes.len() - self.sent)
    }
}
