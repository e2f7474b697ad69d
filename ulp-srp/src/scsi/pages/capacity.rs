//! The size of a unit (SBC-3, 5.12 and 5.13).

use crate::scsi::bytes::{put, u32_at, u64_at};

/// The size of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Blocks; at least 1.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Logical blocks of a physical one, as a power of two.
    pub physical_exponent: u8,
    /// Blocks can be unmapped.
    pub thin: bool,
    /// Unmapped blocks read as zeros.
    pub reads_zeros: bool,
}

impl Capacity {
    /// Bytes of the data of READ CAPACITY (16).
    pub const LONG_LEN: usize = 32;

    /// Reads the data of READ CAPACITY (16); `None` if they are too short or give an impossible size.
    pub fn parse16(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..Self::LONG_LEN)?;
        let block_bytes = u32_at(bytes, 8);
        (block_bytes != 0).then_some(())?;
        Some(Self {
            blocks: u64_at(bytes, 0).checked_add(1)?,
            block_bytes,
            physical_exponent: bytes[13] & 0xf,
            thin: bytes[14] & 0x80 != 0,
            reads_zeros: bytes[14] & 0x40 != 0,
        })
    }

    /// Reads the data of READ CAPACITY (10); `None` if they are too short, or if the size needs the longer
    /// command.
    pub fn parse10(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..8)?;
        let (last, block_bytes) = (u32_at(bytes, 0), u32_at(bytes, 4));
        (last != u32::MAX && block_bytes != 0).then(|| Self {
            blocks: u64::from(last) + 1,
            block_bytes,
            physical_exponent: 0,
            thin: false,
            reads_zeros: false,
        })
    }
}

/// The data of READ CAPACITY (10).
pub fn capacity10(capacity: &Capacity) -> [u8; 8] {
    let mut bytes = [0; 8];
    let last = u32::try_from(capacity.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    put(&mut bytes, 0, &last.to_be_bytes());
    put(&mut bytes, 4, &capacity.block_bytes.to_be_bytes());
    bytes
}

/// The data of READ CAPACITY (16).
pub fn capacity16(capacity: &Capacity) -> [u8; Capacity::LONG_LEN] {
    let mut bytes = [0; Capacity::LONG_LEN];
    let last = capacity.blocks.saturating_sub(1);
    put(&mut bytes, 0, &last.to_be_bytes());
    put(&mut bytes, 8, &capacity.block_bytes.to_be_bytes());
    bytes[13] = capacity.physical_exponent & 0xf;
    bytes[14] = u8::from(capacity.thin) << 7 | u8::from(capacity.reads_zeros) << 6;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_back() {
        let capacity = Capacity {
            blocks: (1 << 40) + 3,
            block_bytes: 512,
            physical_exponent: 3,
            thin: true,
            reads_zeros: true,
        };
        assert_eq!(Capacity::parse16(&capacity16(&capacity)), Some(capacity));
        assert_eq!(capacity10(&capacity)[..4], [0xff; 4]);
        assert_eq!(Capacity::parse10(&capacity10(&capacity)), None);
        let small = Capacity {
            blocks: 7,
            ..capacity
        };
        let parsed = Capacity::parse10(&capacity10(&small));
        assert_eq!(parsed.map(|c| (c.blocks, c.block_bytes)), Some((7, 512)));
        assert_eq!(Capacity::parse16(&[0xff; 32]), None, "too many blocks");
        assert_eq!(Capacity::parse16(&[0; 32]), None, "no bytes in a block");
        assert_eq!(Capacity::parse16(&[1; 31]), None);
    }
}
