//! What the process may do with its memory: `/proc/self/maps`.
//!
//! A kernel pins the pages of a region, and so refuses those that the process may not access the way the region will
//! be. No system call tells the rights of a page; the list of mappings does.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

use rustix::mm::{MsyncFlags, msync};

use crate::call::Errno;

const PAGE: usize = 4096;

/// A line of the list.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    /// Reads, or on x86 writes, which imply them.
    reads: bool,
    writes: bool,
}

impl Mapping {
    /// `start-end rwxp ..`; `None` for what is no such line. What follows the rights, a path perhaps, need not be text.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|&byte| byte == b' ');
        let (range, rights) = (str::from_utf8(words.next()?).ok()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let writes = *rights.get(1)? == b'w';
        Some(Self {
            range: address(start)?..address(end)?,
            reads: rights[0] == b'r' || writes,
            writes,
        })
    }
}

/// Whether the process may read all of this memory, and write it if `writes`.
///
/// # Errors
/// EFAULT, as the kernel says of memory that it cannot pin.
pub(super) fn check(range: Range<usize>, writes: bool) -> Result<(), Errno> {
    let allowed = match File::open("/proc/self/maps") {
        Ok(maps) => covers(BufReader::new(maps), &range, writes),
        // Without the list, that everything is mapped is all that can be told.
        Err(_) => is_mapped(&range),
    };
    match allowed {
        true => Ok(()),
        false => Err(Errno(libc::EFAULT)),
    }
}

/// Whether the mappings of that list, which is in order, allow it.
fn covers(mut maps: impl BufRead, range: &Range<usize>, writes: bool) -> bool {
    let (mut line, mut covered) = (Vec::new(), range.start);
    while covered < range.end {
        line.clear();
        if !matches!(maps.read_until(b'\n', &mut line), Ok(read) if read > 0) {
            return false;
        }
        let Some(mapping) = Mapping::parse(&line) else {
            return false;
        };
        if mapping.range.end <= covered {
            continue;
        }
        let allows = if writes {
            mapping.writes
        } else {
            mapping.reads
        };
        if mapping.range.start > covered || !allows {
            return false;
        }
        covered = mapping.range.end;
    }
    true
}

/// Whether every page is mapped.
fn is_mapped(range: &Range<usize>) -> bool {
    let start = range.start - range.start % PAGE;
    let page = std::ptr::without_provenance_mut(start);
    // SAFETY: it changes nothing, and checks whether all pages are mapped.
    unsafe { msync(page, range.end - start, MsyncFlags::ASYNC) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
1000-3000 r--p 00000000 fe:00 1 /a file\xff\n\
3000-5000 rw-p 00002000 fe:00 1\n\
6000-7000 ---p 00000000 00:00 0\n\
7000-8000 -w-p 00000000 00:00 0 [heap]\n";

    #[test]
    fn every_byte_must_be_allowed() {
        let reads = |range| covers(MAPS, &range, false);
        let writes = |range| covers(MAPS, &range, true);
        assert!(reads(0x1000..0x5000) && reads(0x1fff..0x2000) && reads(0x7000..0x8000));
        assert!(!reads(0xfff..0x1001) && !reads(0x4fff..0x5001), "a hole");
        assert!(!reads(0x6000..0x6001), "no rights");
        assert!(!reads(0x7fff..0x8001), "past the last");
        assert!(writes(0x3000..0x5000) && writes(0x7000..0x8000));
        assert!(
            !writes(0x2fff..0x3001) && !writes(0x1000..0x1001),
            "read only"
        );
        assert!(reads(0x9000..0x9000), "no bytes");
        assert!(!covers(&b"what is this"[..], &(0x1000..0x1001), false));
    }

    #[test]
    fn the_list_of_this_process_is_read() {
        let mut word = 0_u64;
        let at = (&raw mut word).addr();
        assert_eq!(check(at..at + 8, true), Ok(()));
        assert!(is_mapped(&(at..at + 8)) && !is_mapped(&(0x1000..0x2000)));
        let code = the_list_of_this_process_is_read as *const () as usize;
        assert_eq!(check(code..code + 1, false), Ok(()));
        assert_eq!(check(code..code + 1, true), Err(Errno(libc::EFAULT)));
        assert_eq!(check(0x1000..0x2000, false), Err(Errno(libc::EFAULT)));
    }
}
