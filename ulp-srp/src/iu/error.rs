//! Why bytes are not an information unit, and access to bytes that cannot panic.

use crate::iu::Unit;

/// Why bytes are not an information unit, or a unit cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IuError {
    // --- the peer ---
    /// Fewer bytes than the unit requires.
    #[error("{unit} of {needed} bytes or more, and {got} are there")]
    Truncated {
        /// The unit.
        unit: Unit,
        /// Bytes received.
        got: usize,
        /// Bytes required.
        needed: usize,
    },
    /// This side receives no unit of this type; type 0xff stands for no bytes at all.
    #[error("no information unit of type 0x{0:02x} is expected here")]
    Type(u8),
    /// The code of a data buffer's format is unknown, or not allowed in that direction.
    #[error("data buffer format {0}")]
    Format(u8),
    /// Fields contradict each other.
    #[error("the unit contradicts itself: {0}")]
    Contradiction(&'static str),

    // --- the caller ---
    /// The unit does not fit into the buffer.
    #[error("{unit} of {needed} bytes, and room for {got}")]
    NoRoom {
        /// The unit.
        unit: Unit,
        /// Bytes of the buffer.
        got: usize,
        /// Bytes of the unit.
        needed: usize,
    },
    /// A command descriptor block has 1 to 16 bytes, or 20 to 268 in steps of 4.
    #[error("a command descriptor block cannot have {0} bytes")]
    CdbLength(usize),
    /// More descriptors than the unit's field counts.
    #[error("{0} memory descriptors; a command names at most 255")]
    TooMany(usize),
}

/// The first `N` bytes of a unit.
pub(crate) fn fixed<const N: usize>(unit: Unit, bytes: &[u8]) -> Result<&[u8; N], IuError> {
    bytes.first_chunk().ok_or(IuError::Truncated {
        unit,
        got: bytes.len(),
        needed: N,
    })
}

/// `len` bytes of a unit from `at`, and the offset of their end.
pub(crate) fn part(
    unit: Unit,
    bytes: &[u8],
    at: usize,
    len: u32,
) -> Result<(&[u8], usize), IuError> {
    let end = at.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
    let part = bytes.get(at..end).ok_or(IuError::Truncated {
        unit,
        got: bytes.len(),
        needed: end,
    })?;
    Ok((part, end))
}

/// The part of `out` for a unit of `len` bytes.
pub(crate) fn place(unit: Unit, out: &mut [u8], len: usize) -> Result<&mut [u8], IuError> {
    let got = out.len();
    out.get_mut(..len).ok_or(IuError::NoRoom {
        unit,
        got,
        needed: len,
    })
}
