//! Local route header: the first 8 bytes of every packet on an InfiniBand link (IBTA vol. 1, 7.7).

use std::fmt;

use verbs_core::addr::Lid;

use crate::WireError;
use crate::field::view;

/// The next-header value of a BTH, or of a GRH followed by a BTH. The other two values are raw packets.
const NEXT_BTH: u8 = 2;
const NEXT_GRH: u8 = 3;
/// The largest length that the length field can hold, in words of four bytes.
const WORDS_MAX: u16 = 0x7ff;

view! {
    /// An LRH in bytes.
    pub LrhView of Lrh, 8 bytes
}

impl LrhView<'_> {
    /// Virtual lane.
    #[inline]
    pub const fn vl(self) -> u8 {
        self.0[0] >> 4
    }

    /// Version of the link's protocol; 0 is the only one.
    #[inline]
    pub const fn version(self) -> u8 {
        self.0[0] & 15
    }

    /// Service level.
    #[inline]
    pub const fn sl(self) -> u8 {
        self.0[1] >> 4
    }

    /// The reserved bits after the service level.
    #[inline]
    pub const fn reserved(self) -> u8 {
        self.0[1] >> 2 & 3
    }

    /// What follows: 2 a BTH, 3 a GRH.
    #[inline]
    pub const fn next_header(self) -> u8 {
        self.0[1] & 3
    }

    /// The destination port, or a multicast group.
    #[inline]
    pub const fn dlid(self) -> Lid {
        Lid(u16::from_be_bytes([self.0[2], self.0[3]]))
    }

    /// Words of four bytes from this header to the ICRC, including both.
    #[inline]
    pub const fn words(self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]]) & WORDS_MAX
    }

    /// The reserved bits before the length.
    #[inline]
    pub const fn reserved_length(self) -> u8 {
        self.0[4] >> 3
    }

    /// The source port.
    #[inline]
    pub const fn slid(self) -> Lid {
        Lid(u16::from_be_bytes([self.0[6], self.0[7]]))
    }
}

impl fmt::Debug for LrhView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LRH { ")?;
        if self.version() != 0 {
            write!(f, "version {}?, ", self.version())?;
        }
        if !matches!(self.next_header(), NEXT_BTH | NEXT_GRH) {
            write!(f, "next_header: {}, ", self.next_header())?;
        }
        write!(
            f,
            "vl: {}, sl: {}, dlid: {}, slid: {}, global: {}, words: {} }}",
            self.vl(),
            self.sl(),
            self.dlid().0,
            self.slid().0,
            self.next_header() == NEXT_GRH,
            self.words()
        )
    }
}

/// The local route header of a packet with a transport, without its length field, which follows from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Lrh {
    /// Virtual lane, 0 to 15; 15 is for subnet management.
    pub vl: u8,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// The destination port, or a multicast group.
    pub dlid: Lid,
    /// The source port.
    pub slid: Lid,
    /// A global route header follows.
    pub global: bool,
}

impl Lrh {
    /// Bytes on the wire.
    pub const LEN: usize = LrhView::LEN;

    /// The longest packet that the length field can represent, without its VCRC.
    pub const PACKET_MAX: usize = WORDS_MAX as usize * 4;

    /// Reads the header in these bytes; returns it and its packet's length, from this header to the ICRC.
    ///
    /// # Errors
    /// [`WireError::Version`], [`WireError::NextHeader`].
    #[inline]
    pub const fn parse(view: LrhView<'_>) -> Result<(Self, usize), WireError> {
        if view.version() != 0 {
            return Err(WireError::Version(view.version()));
        }
        let global = match view.next_header() {
            NEXT_BTH => false,
            NEXT_GRH => true,
            other => return Err(WireError::NextHeader(other)),
        };
        let lrh = Self {
            vl: view.vl(),
            sl: view.sl(),
            dlid: view.dlid(),
            slid: view.slid(),
            global,
        };
        Ok((lrh, view.words() as usize * 4))
    }

    /// Writes the header of a packet of that many bytes, from this header to the ICRC.
    ///
    /// # Errors
    /// [`WireError::TooLong`] beyond [`Lrh::PACKET_MAX`], [`WireError::Unaligned`] if the length is not a
    /// multiple of 4.
    #[inline]
    pub const fn emit(
        &self,
        packet_len: usize,
        out: &mut [u8; Self::LEN],
    ) -> Result<(), WireError> {
        if packet_len > Self::PACKET_MAX {
            return Err(WireError::TooLong(packet_len));
        }
        if !packet_len.is_multiple_of(4) {
            return Err(WireError::Unaligned(packet_len));
        }
        let next = if self.global { NEXT_GRH } else { NEXT_BTH };
        let [dlid_high, dlid_low] = self.dlid.0.to_be_bytes();
        let [slid_high, slid_low] = self.slid.0.to_be_bytes();
        let [.., high, low] = (packet_len / 4).to_be_bytes();
        *out = [
            self.vl << 4,
            self.sl << 4 | next,
            dlid_high,
            dlid_low,
            high,
            low,
            slid_high,
            slid_low,
        ];
        Ok(())
    }
}
