//! Lengths of extended headers. Separate from the opcode table, so the headers may name the table.

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Headers, Ieth, ImmDt, MaskEth, Reth, XrcEth,
};

impl Headers {
    /// Bytes of all headers in the set.
    #[inline]
    pub fn wire_len(self) -> usize {
        usize::from(HEADERS_BYTES[usize::from(self.bits())])
    }
}

/// Bytes of each extended header.
const HEADER_BYTES: [(Headers, usize); 10] = [
    (Headers::XRCETH, XrcEth::LEN),
    (Headers::DETH, Deth::LEN),
    (Headers::FETH, Feth::LEN),
    (Headers::RETH, Reth::LEN),
    (Headers::ATOMIC_ETH, AtomicEth::LEN),
    (Headers::MASK_ETH, MaskEth::LEN),
    (Headers::AETH, Aeth::LEN),
    (Headers::ATOMIC_ACK_ETH, AtomicAckEth::LEN),
    (Headers::IMMDT, ImmDt::LEN),
    (Headers::IETH, Ieth::LEN),
];

/// Bytes of every set of extended headers, precomputed so that no sum is needed per packet.
static HEADERS_BYTES: [u8; 1 << 10] = {
    let mut table = [0; 1 << 10];
    let mut bits = 0;
    while bits < table.len() {
        let mut i = 0;
        while i < HEADER_BYTES.len() {
            let (header, len) = HEADER_BYTES[i];
            if bits & header.bits() as usize != 0 {
                table[bits] += len as u8;
            }
            i += 1;
        }
        bits += 1;
    }
    table
};
