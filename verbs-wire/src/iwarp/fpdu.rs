//! FPDUs: the frames into which MPA divides a TCP stream (RFC 5044, section 4).

use crc_fast::{CrcAlgorithm, Digest};

use super::IwarpError;
use super::error::{Part, room};

/// An FPDU without its pad and CRC, which follow from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fpdu<'a> {
    /// DDP header and payload.
    pub ulpdu: &'a [u8],
}

impl<'a> Fpdu<'a> {
    /// Bytes of the length field before the ULPDU.
    pub const LENGTH_LEN: usize = 2;
    /// Bytes of the longest ULPDU.
    pub const ULPDU_MAX: usize = u16::MAX as usize;

    /// Bytes of the pad after a ULPDU of that length: the CRC is at a multiple of 4.
    pub const fn pad_len(ulpdu_len: usize) -> usize {
        (Self::LENGTH_LEN + ulpdu_len).wrapping_neg() & 3
    }

    /// Bytes of an FPDU around a ULPDU of that length.
    pub const fn wire_len(ulpdu_len: usize) -> usize {
        Self::LENGTH_LEN + ulpdu_len + Self::pad_len(ulpdu_len) + FpduCrc::LEN
    }

    /// Bytes of the longest ULPDU whose FPDU fits in `room` bytes, such as the maximum segment size of a TCP
    /// connection; 0 if none does.
    pub const fn ulpdu_within(room: usize) -> usize {
        let whole = room & !3;
        let len = whole.saturating_sub(Self::LENGTH_LEN + FpduCrc::LEN);
        if len < Self::ULPDU_MAX {
            len
        } else {
            Self::ULPDU_MAX
        }
    }

    /// The FPDU at the front of a stream and its length; `None` while bytes are missing. The CRC is checked only
    /// if the connection uses CRCs.
    ///
    /// # Errors
    /// [`IwarpError::Crc`].
    pub fn parse(stream: &'a [u8], has_crc: bool) -> Result<Option<(Self, usize)>, IwarpError> {
        let Some(length) = stream.first_chunk() else {
            return Ok(None);
        };
        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
        let len = Self::wire_len(ulpdu_len);
        let Some((covered, crc)) = stream
            .get(..len)
            .and_then(|fpdu| fpdu.split_last_chunk::<{ FpduCrc::LEN }>())
        else {
            return Ok(None);
        };
        if has_crc {
            let mut expected = FpduCrc::default();
            expected.update(covered);
            expected.verify(*crc)?;
        }
        let ulpdu = &covered[Self::LENGTH_LEN..Self::LENGTH_LEN + ulpdu_len];
        Ok(Some((Self { ulpdu }, len)))
    }

    /// Writes the FPDU, with a CRC of 0 if the connection has none; returns its length.
    ///
    /// # Errors
    /// [`IwarpError::UlpduLength`], [`IwarpError::NoRoom`].
    pub fn emit(&self, has_crc: bool, out: &mut [u8]) -> Result<usize, IwarpError> {
        let length = u16::try_from(self.ulpdu.len())
            .map_err(|_| IwarpError::UlpduLength(self.ulpdu.len()))?;
        let len = Self::wire_len(self.ulpdu.len());
        let out = room(out, len, Part::Fpdu)?;
        let (front, rest) = out.split_at_mut(Self::LENGTH_LEN);
        let (ulpdu, rest) = rest.split_at_mut(self.ulpdu.len());
        front.copy_from_slice(&length.to_be_bytes());
        ulpdu.copy_from_slice(self.ulpdu);
        rest.fill(0);
        if has_crc {
            let mut crc = FpduCrc::default();
            crc.update(&out[..len - FpduCrc::LEN]);
            out[len - FpduCrc::LEN..].copy_from_slice(&crc.to_bytes());
        }
        Ok(len)
    }
}

/// The CRC-32C (Castagnoli) of an FPDU so far, from its length field to its pad. For FPDUs that are read or
/// gathered piece by piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FpduCrc(u32);

impl FpduCrc {
    /// Bytes of the CRC on the wire.
    pub const LEN: usize = 4;

    /// Covers the next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        // Most FPDUs have no pad, and a digest costs more than a few bytes.
        if bytes.is_empty() {
            return;
        }
        // What is kept is the CRC as it stands on the wire; the register is its complement.
        let register = u64::from(!self.0);
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, register);
        digest.update(bytes);
        self.0 = digest.finalize() as u32;
    }

    /// The CRC in wire order, low byte first as in iSCSI.
    #[inline]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0.to_le_bytes()
    }

    /// Compares it with the one on the wire.
    ///
    /// # Errors
    /// [`IwarpError::Crc`].
    #[inline]
    pub const fn verify(self, bytes: [u8; Self::LEN]) -> Result<(), IwarpError> {
        let got = u32::from_le_bytes(bytes);
        if got == self.0 {
            Ok(())
        } else {
            let expected = self.0;
            Err(IwarpError::Crc { expected, got })
        }
    }
}
