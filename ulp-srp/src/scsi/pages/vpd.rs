//! Vital product data: the description of a unit, in pages (SPC-4, 7.8; SBC-3, 6.5).

use super::inquiry::Identity;
use crate::scsi::bytes::{padded, put, u16_at, u32_at, u64_at};

const SUPPORTED_PAGES: u8 = 0x00;
const SERIAL: u8 = 0x80;
const IDENTIFICATION: u8 = 0x83;
const BLOCK_LIMITS: u8 = 0xb0;
const CHARACTERISTICS: u8 = 0xb1;
const PROVISIONING: u8 = 0xb2;

/// In ascending order (SPC-4, 7.8.14).
const PAGES: [u8; 6] = [
    SUPPORTED_PAGES,
    SERIAL,
    IDENTIFICATION,
    BLOCK_LIMITS,
    CHARACTERISTICS,
    PROVISIONING,
];

/// The limits of a unit for one command. Numbers are blocks; 0 means that no limit is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// Blocks that one READ or WRITE moves.
    pub transfer: u32,
    /// The preferred multiple, in blocks.
    pub granularity: u16,
    /// Blocks of one COMPARE AND WRITE; 0: it is not supported.
    pub compare_and_write: u8,
    /// Blocks of all ranges of one UNMAP; 0: it is not supported.
    pub unmap: u32,
    /// Ranges of one UNMAP.
    pub unmap_ranges: u32,
    /// Blocks that can be unmapped together.
    pub unmap_granularity: u32,
    /// Blocks of one WRITE SAME.
    pub write_same: u64,
}

/// A page of vital product data; `None` if it does not exist.
pub fn vpd(page: u8, identity: &Identity, limits: &BlockLimits) -> Option<Vec<u8>> {
    let content = match page {
        SUPPORTED_PAGES => PAGES.to_vec(),
        SERIAL => identity.serial.clone().into_bytes(),
        IDENTIFICATION => identification(identity),
        BLOCK_LIMITS => emit_limits(limits).to_vec(),
        CHARACTERISTICS => {
            // Non-rotating, and the form factor is not reported.
            let mut content = vec![0; 60];
            content[1] = 1;
            content
        }
        PROVISIONING => {
            // LBPU, LBPWS and LBPWS10, LBPRZ: a unit that can unmap takes all three commands.
            let can_unmap = limits.unmap > 0;
            vec![
                0,
                if can_unmap { 0xe4 } else { 0 },
                if can_unmap { 2 } else { 0 },
                0,
            ]
        }
        _ => return None,
    };
    let mut bytes = vec![0, page, 0, 0];
    // No page comes near 64 KiB: a serial number is as long as its text.
    let len = u16::try_from(content.len()).unwrap_or(u16::MAX);
    put(&mut bytes, 2, &len.to_be_bytes());
    bytes.extend(&content[..len.into()]);
    Some(bytes)
}

/// A name by its NAA, and one by the vendor (SPC-4, 7.8.6).
fn identification(identity: &Identity) -> Vec<u8> {
    let mut bytes = vec![0x01, 0x03, 0, 8];
    bytes.extend(identity.naa.to_be_bytes());
    let mut text = padded::<8>(&identity.vendor).to_vec();
    text.extend(identity.serial.bytes().take(0x80));
    // 136 bytes at most.
    bytes.extend([0x02, 0x01, 0, text.len() as u8]);
    bytes.extend(text);
    bytes
}

fn emit_limits(limits: &BlockLimits) -> [u8; 60] {
    let mut bytes = [0; 60];
    // WSNZ: WRITE SAME needs a number of blocks.
    bytes[0] = 1;
    bytes[1] = limits.compare_and_write;
    put(&mut bytes, 2, &limits.granularity.to_be_bytes());
    put(&mut bytes, 4, &limits.transfer.to_be_bytes());
    put(&mut bytes, 8, &limits.transfer.to_be_bytes());
    put(&mut bytes, 16, &limits.unmap.to_be_bytes());
    put(&mut bytes, 20, &limits.unmap_ranges.to_be_bytes());
    put(&mut bytes, 24, &limits.unmap_granularity.to_be_bytes());
    put(&mut bytes, 32, &limits.write_same.to_be_bytes());
    bytes
}

/// Reads the page of block limits; `None` if it is another page, or too short.
pub fn block_limits(page: &[u8]) -> Option<BlockLimits> {
    let &[_, BLOCK_LIMITS, ..] = page else {
        return None;
    };
    let content = page.get(4..64)?;
    Some(BlockLimits {
        transfer: u32_at(content, 4),
        granularity: u16_at(content, 2),
        compare_and_write: content[1],
        unmap: u32_at(content, 16),
        unmap_ranges: u32_at(content, 20),
        unmap_granularity: u32_at(content, 24),
        write_same: u64_at(content, 32),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_say_their_lengths() {
        let identity = Identity::new("serial 17");
        let limits = BlockLimits {
            transfer: 2048,
            granularity: 8,
            compare_and_write: 1,
            unmap: 1 << 20,
            unmap_ranges: 64,
            unmap_granularity: 8,
            write_same: 1 << 22,
        };
        for page in PAGES {
            let bytes = vpd(page, &identity, &limits).expect("it is listed");
            assert_eq!(bytes[1], page);
            assert_eq!(usize::from(u16_at(&bytes, 2)) + 4, bytes.len());
        }
        assert_eq!(vpd(0xb3, &identity, &limits), None);
        let page = vpd(BLOCK_LIMITS, &identity, &limits).expect("it is listed");
        assert_eq!(block_limits(&page), Some(limits));
        assert_eq!(block_limits(&page[..63]), None);
        let names = vpd(IDENTIFICATION, &identity, &limits).expect("it is listed");
        assert_eq!(names[4..8], [1, 3, 0, 8]);
        assert!(names.ends_with(b"VERBS   serial 17"));
        let thick = vpd(PROVISIONING, &identity, &BlockLimits::default());
        assert_eq!(thick, Some(vec![0, PROVISIONING, 0, 4, 0, 0, 0, 0]));
    }
}
