//! The header before packets of a device with `IFF_VNET_HDR`: that of virtio's network devices (virtio 1.2, 5.1.6), in
//! this machine's byte order.

/// Bytes of the header.
pub const VNET_LEN: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_ECN`: a flag beside the kind.
const ECN: u8 = 0x80;

/// What a packet stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Gso {
    /// Itself.
    #[default]
    None = 0,
    /// Segments of TCP over IPv4.
    Tcp4 = 1,
    /// Segments of TCP over IPv6.
    Tcp6 = 4,
    /// Packets of UDP.
    Udp = 5,
}

/// The header before a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VnetHeader {
    /// Whether the checksum is missing: only the sum of the pseudo header is in its place.
    pub is_partial: bool,
    /// What the packet stands for.
    pub gso: Gso,
    /// Bytes of the headers before the payload. A hint.
    pub header_len: u16,
    /// Bytes of payload of each packet that it stands for; the last may have fewer.
    pub gso_size: u16,
    /// Where the bytes that the checksum is about begin.
    pub checksum_start: u16,
    /// Where the checksum is, counted from there.
    pub checksum_offset: u16,
}

/// Why a packet of a device cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// Fewer bytes than the headers have.
    #[error("{got} bytes are no packet behind its header")]
    Truncated {
        /// Bytes of the packet.
        got: usize,
    },
    /// A kind of packet that was not asked for.
    #[error("a packet that stands for others by kind {0}")]
    Kind(u8),
    /// The fields of the header do not describe the packet.
    #[error("the packet is not what its header says: {0:?}")]
    Mismatch(VnetHeader),
}

impl VnetHeader {
    /// Reads a header, and returns what follows it.
    ///
    /// # Errors
    /// [`OffloadError::Truncated`], [`OffloadError::Kind`].
    pub fn split(bytes: &mut [u8]) -> Result<(Self, &mut [u8]), OffloadError> {
        let got = bytes.len();
        let (header, packet) = bytes
            .split_first_chunk_mut::<VNET_LEN>()
            .ok_or(OffloadError::Truncated { got })?;
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let gso = match header[1] & !ECN {
            0 => Gso::None,
            1 => Gso::Tcp4,
            4 => Gso::Tcp6,
            5 => Gso::Udp,
            kind => return Err(OffloadError::Kind(kind)),
        };
        let read = Self {
            is_partial: header[0] & NEEDS_CSUM != 0,
            gso,
            header_len: word(2),
            gso_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        };
        Ok((read, packet))
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; VNET_LEN] {
        let mut bytes = [0; VNET_LEN];
        bytes[0] = if self.is_partial { NEEDS_CSUM } else { 0 };
        bytes[1] = self.gso as u8;
        let words = [
            self.header_len,
            self.gso_size,
            self.checksum_start,
            self.checksum_offset,
        ];
        for (place, word) in bytes[2..].as_chunks_mut::<2>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_it_was_written() {
        let header = VnetHeader {
            is_partial: true,
            gso: Gso::Tcp6,
            header_len: 72,
            gso_size: 1984,
            checksum_start: 40,
            checksum_offset: 16,
        };
        let mut bytes = [&header.emit()[..], &[0x60, 1]].concat();
        assert_eq!(
            VnetHeader::split(&mut bytes),
            Ok((header, &mut [0x60, 1][..]))
        );
        // The flag of ECN is no kind of its own.
        bytes[1] |= ECN;
        assert_eq!(VnetHeader::split(&mut bytes).unwrap().0, header);
        assert_eq!(VnetHeader::default().emit(), [0; VNET_LEN]);
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let short = VnetHeader::split(&mut [0; 9]).unwrap_err();
        assert_eq!(short, OffloadError::Truncated { got: 9 });
        // UDP fragmentation offload, which no device is asked for.
        let kind = VnetHeader::split(&mut [0, 3, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(kind, OffloadError::Kind(3));
    }
}
