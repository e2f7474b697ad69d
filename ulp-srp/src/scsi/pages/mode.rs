//! Mode pages: how a unit operates (SPC-4, 7.5; SBC-3, 6.4).

use crate::scsi::bytes::put;
use crate::scsi::sense::{Code, Sense};

const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const ALL: u8 = 0x3f;

/// The contents of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModePages {
    /// Written data may be lost until SYNCHRONIZE CACHE: the unit has a write cache.
    pub write_cache: bool,
    /// Nothing can be written.
    pub read_only: bool,
    /// Blocks of the unit, and bytes of a block.
    pub blocks: u64,
    /// As above.
    pub block_bytes: u32,
}

/// The data of MODE SENSE: that page (0x3f for all) of that subpage, under a header of 8 bytes (`long`) or of 4,
/// with a block descriptor unless `no_descriptors`. `control` is 0 for current values, 1 for a mask of what can
/// be changed, 2 for default values, and 3 for saved ones: nothing is saved.
///
/// # Errors
/// [`Sense`] for pages that do not exist, and for saved ones.
pub fn mode_sense(
    pages: &ModePages,
    page: u8,
    subpage: u8,
    control: u8,
    no_descriptors: bool,
    long: bool,
) -> Result<Vec<u8>, Sense> {
    if control == 3 {
        return Err(Sense::illegal(Code::SAVING_UNSUPPORTED));
    }
    if subpage != 0 && !(subpage == 0xff && page == ALL) {
        return Err(Sense::cdb_field(3));
    }
    let content: Vec<u8> = match page {
        ALL => [caching(pages), self::control(), exceptions()].concat(),
        CACHING => caching(pages),
        CONTROL => self::control(),
        EXCEPTIONS => exceptions(),
        _ => return Err(Sense::cdb_field(2)),
    };
    let content = match control {
        1 => changeable(&content),
        _ => content,
    };
    let descriptor: &[u8] = match no_descriptors {
        true => &[],
        false => &block_descriptor(pages),
    };
    // WP and DPOFUA.
    let specific = u8::from(pages.read_only) << 7 | 0x10;
    let mut bytes = match long {
        true => vec![0, 0, 0, specific, 0, 0, 0, descriptor.len() as u8],
        false => vec![0, 0, specific, descriptor.len() as u8],
    };
    bytes.extend(descriptor);
    bytes.extend(content);
    // All pages together have less than 100 bytes.
    match long {
        true => bytes[1] = (bytes.len() - 2) as u8,
        false => bytes[0] = (bytes.len() - 1) as u8,
    }
    Ok(bytes)
}

fn block_descriptor(pages: &ModePages) -> [u8; 8] {
    let mut bytes = [0; 8];
    let blocks = u32::try_from(pages.blocks).unwrap_or(u32::MAX);
    put(&mut bytes, 0, &blocks.to_be_bytes());
    let [_, size @ ..] = pages.block_bytes.to_be_bytes();
    put(&mut bytes, 5, &size);
    bytes
}

/// The write cache.
fn caching(pages: &ModePages) -> Vec<u8> {
    let mut page = vec![0; 20];
    (page[0], page[1]) = (CACHING, 18);
    page[2] = u8::from(pages.write_cache) << 2;
    page
}

/// Each initiator has a task set of its own (TST), commands may be executed in any order, and an initiator whose
/// commands another one has aborted is notified (TAS).
fn control() -> Vec<u8> {
    let mut page = vec![0; 12];
    (page[0], page[1]) = (CONTROL, 10);
    page[2] = 0x20;
    page[3] = 0x10;
    page[5] = 0x40;
    page
}

/// The unit reports no exceptions.
fn exceptions() -> Vec<u8> {
    let mut page = vec![0; 12];
    (page[0], page[1]) = (EXCEPTIONS, 10);
    page
}

/// Pages with the same headers and no changeable values.
fn changeable(content: &[u8]) -> Vec<u8> {
    let mut masked = vec![0; content.len()];
    let mut at = 0;
    while let Some(&[page, len]) = content.get(at..at + 2) {
        put(&mut masked, at, &[page, len]);
        at += 2 + usize::from(len);
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: ModePages = ModePages {
        write_cache: true,
        read_only: false,
        blocks: 2048,
        block_bytes: 512,
    };

    fn sense(page: u8, control: u8, no_descriptors: bool, long: bool) -> Result<Vec<u8>, Sense> {
        mode_sense(&PAGES, page, 0, control, no_descriptors, long)
    }

    #[test]
    fn linux_finds_the_write_cache() {
        // sd asks for the header first, then for the page.
        let bytes = sense(CACHING, 0, true, false).expect("a page");
        assert_eq!(bytes[..7], [23, 0, 0x10, 0, CACHING, 18, 4]);
        let bytes = sense(ALL, 0, false, true).expect("all pages");
        assert_eq!(usize::from(bytes[1]) + 2, bytes.len());
        assert_eq!(bytes[8..16], [0, 0, 8, 0, 0, 0, 2, 0]);
        assert_eq!(bytes[16], CACHING);
        let read_only = ModePages {
            read_only: true,
            ..PAGES
        };
        let bytes = mode_sense(&read_only, ALL, 0, 0, true, false).expect("all pages");
        assert_eq!(bytes[2], 0x90);
    }

    #[test]
    fn nothing_can_be_changed_or_saved() {
        let bytes = sense(ALL, 1, true, false).expect("all pages");
        let set = bytes[4..].iter().filter(|byte| **byte != 0).count();
        assert_eq!(set, 6, "the headers of three pages");
        assert_eq!(
            sense(ALL, 3, true, false),
            Err(Sense::illegal(Code::SAVING_UNSUPPORTED))
        );
        assert_eq!(sense(0x01, 0, true, false), Err(Sense::cdb_field(2)));
        let subpage = mode_sense(&PAGES, CONTROL, 1, 0, true, false);
        assert_eq!(subpage, Err(Sense::cdb_field(3)));
    }
}
