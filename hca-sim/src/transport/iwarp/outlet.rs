//! Where FPDUs are put, and how many bytes go into one.

use verbs_core::mem::Unmapped;
use verbs_wire::iwarp::{Fpdu, Header, Rtr};

use crate::clock::Instant;

/// Writes a piece of a payload.
pub(crate) type Fill<'f> = &'f mut dyn FnMut(usize, &mut [u8]) -> Result<(), Unmapped>;

/// Where the machine puts FPDUs.
pub(crate) trait StreamOutlet {
    /// Whether an FPDU can be put now. If not, the machine is called again when one can.
    fn is_ready(&self) -> bool;

    /// An FPDU: its DDP header, and `len` bytes of payload, which `fill` writes. It is given all of them in order, in
    /// pieces, with where in the payload each begins. Only after [`StreamOutlet::is_ready`].
    ///
    /// # Errors
    /// What `fill` fails with; there is no FPDU then.
    fn put(&mut self, front: &[u8], len: usize, fill: Fill<'_>) -> Result<(), Unmapped>;
}

/// Messages of RFC 7306 that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extensions {
    pub(crate) immediate: bool,
    /// Atomics of whole words.
    pub(crate) atomics: bool,
    /// Those with masks.
    pub(crate) masked: bool,
}

impl Extensions {
    pub(crate) const NONE: Self = Self {
        immediate: false,
        atomics: false,
        masked: false,
    };
}

/// What MPA has agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) has_crc: bool,
    /// This side has sent the Request, and speaks first.
    pub(crate) is_initiator: bool,
    /// The ready-to-receive message of a peer-to-peer connection.
    pub(crate) rtr: Rtr,
    /// What this side has of RFC 7306. It is agreed on nowhere: a peer without them ends the stream.
    pub(crate) extensions: Extensions,
    /// Bytes of the longest ULPDU to be sent.
    pub(crate) ulpdu_max: usize,
    pub(crate) now: Instant,
}

/// How far a message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// As a whole.
    Sent,
    /// Until something has to be waited for that comes by itself; or there is none.
    Held,
    /// Until the outlet was full.
    Full,
}

/// Puts a segment.
///
/// # Errors
/// What `fill` fails with; there is no segment then.
pub(super) fn put(
    outlet: &mut dyn StreamOutlet,
    header: &Header,
    len: usize,
    fill: Fill<'_>,
) -> Result<(), Unmapped> {
    let mut front = [0; Header::UNTAGGED_LEN];
    // The opcode fits the kind of every header that is made here.
    let front_len = header.emit(&mut front).unwrap_or(0);
    outlet.put(&front[..front_len], len, fill)
}

/// Puts a segment whose payload is these few bytes.
pub(super) fn put_bytes(outlet: &mut dyn StreamOutlet, header: &Header, bytes: &[u8]) {
    // These bytes are always there.
    let _ = put(outlet, header, bytes.len(), &mut |at, out| {
        out.copy_from_slice(&bytes[at..at + out.len()]);
        Ok(())
    });
}

/// Bytes of payload that a segment with such a header has room for.
pub(super) fn room(start: &Start, header_len: usize) -> u32 {
    let room = start.ulpdu_max.min(Fpdu::ULPDU_MAX) - header_len;
    u32::try_from(room).unwrap_or(u32::MAX)
}
