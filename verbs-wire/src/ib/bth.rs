//! Base transport header: the first 12 bytes of every packet (IBTA vol. 1, 9.2).

use std::fmt;

use bitflags::bitflags;
use verbs_core::addr::{PKey, Psn, Qpn};

use crate::WireError;
use crate::field::{u24, view};
use crate::opcode::Opcode;

/// Pad count within byte 1.
const PAD_MASK: u8 = 0x30;
const PAD_SHIFT: u32 = 4;
/// Transport header version within byte 1.
const VERSION_MASK: u8 = 0x0f;

bitflags! {
    /// The single bits of a BTH. The values are header bytes 1, 4 and 8 combined.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct BthFlags: u32 {
        /// Solicited event: wakes a completion queue that waits only for solicited events.
        const SOLICITED = 0x80_00_00;
        /// The sender is in the Migrated state of automatic path migration. Linux rxe sends 0,
        /// hardware sends 1.
        const MIGRATED = 0x40_00_00;
        /// The packet met congestion on its path.
        const FECN = 0x00_80_00;
        /// Packets of the other direction met congestion.
        const BECN = 0x00_40_00;
        /// The responder must acknowledge this packet.
        const ACK_REQ = 0x00_00_80;
    }
}

impl fmt::Debug for BthFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        bitflags::parser::to_writer(self, &mut *f)?;
        f.write_str("]")
    }
}

/// The number of bytes that pad a payload to a multiple of 4.
#[inline]
pub(crate) const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

view! {
    /// A BTH in bytes; also prints those of a header that [`Bth`] refuses.
    pub BthView of Bth, 12 bytes
}

impl BthView<'_> {
    /// The opcode, assigned or not.
    #[inline]
    pub const fn opcode_byte(self) -> u8 {
        self.0[0]
    }

    /// The single bits, without reserved ones.
    #[inline]
    pub const fn flags(self) -> BthFlags {
        BthFlags::from_bits_truncate(u24([self.0[1], self.0[4], self.0[8]]))
    }

    /// Pad bytes after the payload, 0 to 3.
    #[inline]
    pub const fn pad(self) -> u8 {
        (self.0[1] & PAD_MASK) >> PAD_SHIFT
    }

    /// Transport header version; 0 is the only one.
    #[inline]
    pub const fn version(self) -> u8 {
        self.0[1] & VERSION_MASK
    }

    /// Partition key.
    #[inline]
    pub const fn pkey(self) -> PKey {
        PKey(u16::from_be_bytes([self.0[2], self.0[3]]))
    }

    /// The destination queue pair.
    #[inline]
    pub const fn dest_qpn(self) -> Qpn {
        Qpn::new(u24([self.0[5], self.0[6], self.0[7]]))
    }

    /// Packet sequence number.
    #[inline]
    pub const fn psn(self) -> Psn {
        Psn::new(u24([self.0[9], self.0[10], self.0[11]]))
    }
}

impl fmt::Debug for BthView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Opcode::from_u8(self.opcode_byte()) {
            Some(opcode) => write!(f, "BTH {{ {opcode}")?,
            None => write!(f, "BTH {{ opcode {:#04x}?", self.opcode_byte())?,
        }
        if self.version() != 0 {
            write!(f, ", version {}?", self.version())?;
        }
        write!(
            f,
            ", flags: {:?}, pad: {}, pkey: {}, dest_qpn: {}, psn: {} }}",
            self.flags(),
            self.pad(),
            self.pkey(),
            self.dest_qpn(),
            self.psn().value()
        )
    }
}

/// The base transport header. The pad count is not in it: it follows from the payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// The packet's opcode.
    pub opcode: Opcode,
    /// Single bits.
    pub flags: BthFlags,
    /// Partition key.
    pub pkey: PKey,
    /// The destination queue pair.
    pub dest_qpn: Qpn,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = BthView::LEN;

    /// The header in these bytes; reserved bits are ignored.
    ///
    /// # Errors
    /// [`WireError::UnknownOpcode`], [`WireError::Version`].
    #[inline]
    pub fn parse(view: BthView<'_>) -> Result<Self, WireError> {
        let Some(opcode) = Opcode::from_u8(view.opcode_byte()) else {
            return Err(WireError::UnknownOpcode(view.opcode_byte()));
        };
        if view.version() != 0 {
            return Err(WireError::Version(view.version()));
        }
        Ok(Self {
            opcode,
            flags: view.flags(),
            pkey: view.pkey(),
            dest_qpn: view.dest_qpn(),
            psn: view.psn(),
        })
    }

    /// Writes the header of a packet with that many payload bytes.
    #[inline]
    pub fn emit(&self, payload_len: usize, out: &mut [u8; Self::LEN]) {
        let flags = self.flags.bits() & BthFlags::all().bits();
        // Only the remainder modulo 4 matters.
        let pad = (pad_len(payload_len) as u32) << PAD_SHIFT;
        let bits = flags & 0xff_00_00 | pad << 16;
        // A word of the header each, with the byte of flags that it has in its place.
        let words = [
            u32::from(self.opcode.to_u8()) << 24 | bits | u32::from(self.pkey.0),
            flags << 16 & 0xff00_0000 | self.dest_qpn.value(),
            flags << 24 | self.psn.value(),
        ];
        for (bytes, word) in out.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_be_bytes();
        }
    }
}

impl fmt::Debug for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BTH {{ {}, flags: {:?}, pkey: {}, dest_qpn: {}, psn: {} }}",
            self.opcode,
            self.flags,
            self.pkey,
            self.dest_qpn,
            self.psn.value()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_print_garbage() {
        let bytes = [0xff; 12];
        let text = format!("{:?}", BthView::of(&bytes));
        assert!(
            text.contains("opcode 0xff?") && text.contains("version 15?"),
            "{text}"
        );
        assert!(BthView::new(&bytes[..11]).is_err());
    }

    #[test]
    fn pads_bring_payloads_to_words() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad_len), [0, 3, 2, 1, 0, 3]);
    }

    #[test]
    fn header_bytes_are_those_of_the_specification() {
        let bth = Bth {
            opcode: Opcode::from_u8(0x02).unwrap(),
            flags: BthFlags::SOLICITED | BthFlags::MIGRATED | BthFlags::BECN | BthFlags::ACK_REQ,
            pkey: PKey(0x8001),
            dest_qpn: Qpn::new(0x11_2233),
            psn: Psn::new(0x44_5566),
        };
        let mut bytes = [0; 12];
        bth.emit(5, &mut bytes);
        assert_eq!(
            bytes,
            [
                0x02, 0xf0, 0x80, 0x01, 0x40, 0x11, 0x22, 0x33, 0x80, 0x44, 0x55, 0x66
            ]
        );
        assert_eq!(Bth::parse(BthView::of(&bytes)), Ok(bth));
    }
}
