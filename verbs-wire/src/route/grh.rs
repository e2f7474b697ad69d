//! Global route header: on InfiniBand links between subnets, and before every datagram that a consumer receives
//! (IBTA vol. 1, 8.3). Its format is that of an IPv6 header.

use std::fmt;

use verbs_core::addr::Gid;

use crate::WireError;
use crate::field::view;

/// The next-header value of the InfiniBand transport.
const NEXT_HEADER_BTH: u8 = 0x1b;

/// A flow label: 20 bits that identify the packets of one flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// Keeps the low 20 bits, as the wire format does.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & 0xf_ffff)
    }

    /// The number, below 2^20.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for FlowLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#07x}", self.0)
    }
}

view! {
    /// A GRH in bytes; IPv6 headers have the same form.
    pub GrhView of Grh, 40 bytes
}

impl GrhView<'_> {
    /// First word: version, traffic class, flow label.
    const fn word(self) -> u32 {
        let &[a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// IP version; 6 is the only one.
    #[inline]
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Traffic class.
    #[inline]
    pub const fn traffic_class(self) -> u8 {
        // It spans bytes 0 and 1; without the version before it, it is the first byte.
        let [class, ..] = (self.word() << 4).to_be_bytes();
        class
    }

    /// Flow label.
    #[inline]
    pub const fn flow_label(self) -> FlowLabel {
        FlowLabel::new(self.word())
    }

    /// Bytes that follow the header.
    #[inline]
    pub const fn payload_len(self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// The protocol of the payload.
    #[inline]
    pub const fn next_header(self) -> u8 {
        self.0[6]
    }

    /// Routers that it may still pass.
    #[inline]
    pub const fn hop_limit(self) -> u8 {
        self.0[7]
    }

    /// The sender.
    #[inline]
    pub const fn sgid(self) -> Gid {
        let [
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            gid @ ..,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
        ] = self.0;
        Gid(*gid)
    }

    /// The receiver, or a multicast group.
    #[inline]
    pub const fn dgid(self) -> Gid {
        match self.0.last_chunk() {
            Some(gid) => Gid(*gid),
            None => Gid([0; 16]),
        }
    }
}

impl fmt::Debug for GrhView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GRH { ")?;
        if self.version() != 6 {
            write!(f, "version {}?, ", self.version())?;
        }
        if self.next_header() != NEXT_HEADER_BTH {
            write!(f, "next_header: {:#04x}, ", self.next_header())?;
        }
        write!(
            f,
            "traffic_class: {:#04x}, flow_label: {:?}, payload_len: {}, hop_limit: {}, sgid: {}, \
             dgid: {} }}",
            self.traffic_class(),
            self.flow_label(),
            self.payload_len(),
            self.hop_limit(),
            self.sgid(),
            self.dgid()
        )
    }
}

/// The global route header of an InfiniBand packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: FlowLabel,
    /// Bytes from the end of this header to the end of the ICRC.
    pub payload_len: u16,
    /// Routers that the packet may still pass.
    pub hop_limit: u8,
    /// The sender.
    pub sgid: Gid,
    /// The receiver, or a multicast group.
    pub dgid: Gid,
}

impl Grh {
    /// Bytes on the wire.
    pub const LEN: usize = GrhView::LEN;

    /// The header in these bytes.
    ///
    /// # Errors
    /// [`WireError::IpVersion`], [`WireError::Protocol`].
    #[inline]
    pub fn parse(view: GrhView<'_>) -> Result<Self, WireError> {
        Self::parse_before(view, NEXT_HEADER_BTH)
    }

    /// Reads the header in these bytes, if the expected protocol follows it.
    pub(crate) fn parse_before(view: GrhView<'_>, expected: u8) -> Result<Self, WireError> {
        if view.version() != 6 {
            return Err(WireError::IpVersion(view.version()));
        }
        if view.next_header() != expected {
            return Err(WireError::Protocol {
                expected,
                got: view.next_header(),
            });
        }
        Ok(Self {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_len: view.payload_len(),
            hop_limit: view.hop_limit(),
            sgid: view.sgid(),
            dgid: view.dgid(),
        })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        self.emit_before(NEXT_HEADER_BTH, out);
    }

    /// Writes the header with another protocol to follow it.
    pub(crate) fn emit_before(&self, next_header: u8, out: &mut [u8; Self::LEN]) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label.value();
        out[..4].copy_from_slice(&word.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[6] = next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.sgid.0);
        out[24..].copy_from_slice(&self.dgid.0);
    }
}
