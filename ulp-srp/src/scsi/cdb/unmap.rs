//! The list of UNMAP (SBC-3, 5.28).

use crate::scsi::bytes::{put, u16_at, u32_at, u64_at};
use crate::scsi::sense::{Code, Sense};

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first one's logical block address.
    pub lba: u64,
    /// The number of blocks.
    pub count: u32,
}

/// The ranges in the parameter list of UNMAP; incomplete ones at the end are left out.
///
/// # Errors
/// [`Sense`] for a list that is too short to have a header. An empty list is legal, and means nothing.
pub fn parse_unmap(list: &[u8]) -> Result<Vec<Extent>, Sense> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = Sense::illegal(Code::PARAMETER_LIST_LENGTH);
    let ranges = list.get(8..).ok_or(wrong)?;
    let said = usize::from(u16_at(list, 2)) / 16;
    let (ranges, _) = ranges.as_chunks::<16>();
    let extent = |range: &[u8; 16]| Extent {
        lba: u64_at(range, 0),
        count: u32_at(range, 8),
    };
    Ok(ranges.iter().take(said).map(extent).collect())
}

/// The parameter list of UNMAP; `None` for more ranges than its length field allows (4,095).
pub fn unmap_parameters(extents: &[Extent]) -> Option<Vec<u8>> {
    let ranges = u16::try_from(16 * extents.len()).ok()?;
    let all = ranges.checked_add(6)?;
    let mut bytes = vec![0; 8 + usize::from(ranges)];
    put(&mut bytes, 0, &all.to_be_bytes());
    put(&mut bytes, 2, &ranges.to_be_bytes());
    for (at, extent) in extents.iter().enumerate() {
        put(&mut bytes, 8 + 16 * at, &extent.lba.to_be_bytes());
        put(&mut bytes, 16 + 16 * at, &extent.count.to_be_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back() {
        let extents =
            [(0, 1), (1 << 40, u32::MAX), (7, 0)].map(|(lba, count)| Extent { lba, count });
        let list = unmap_parameters(&extents).expect("three fit");
        assert_eq!(list[..4], [0, 54, 0, 48]);
        assert_eq!(parse_unmap(&list), Ok(extents.to_vec()));
        assert_eq!(
            parse_unmap(&list[..30]),
            Ok(extents[..1].to_vec()),
            "cut short"
        );
        assert_eq!(parse_unmap(&[]), Ok(Vec::new()));
        assert_eq!(
            parse_unmap(&[0; 7]),
            Err(Sense::illegal(Code::PARAMETER_LIST_LENGTH))
        );
        assert_eq!(unmap_parameters(&[extents[0]; 4096]), None);
    }
}
