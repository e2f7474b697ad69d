//! Which elements of a scatter list one memory handle can cover. Sans-IO.
//!
//! A handle maps pages into one virtually contiguous range. So a list is one run if every boundary between
//! elements is a page boundary; each other boundary begins another run, and another descriptor of an indirect
//! table.

use std::ops::Range;

use verbs_core::{Extent, Layout};

/// Bytes of a page.
const PAGE: u64 = Layout::PAGE as u64;

/// Splits a scatter list into runs, each as long as the rules and the capacity of a handle allow. Empty elements
/// at the start of a run are skipped.
pub fn runs<'a>(list: &'a [Extent<'a>], pages_max: u32) -> impl Iterator<Item = Range<usize>> + 'a {
    split(list.len(), pages_max, |at| {
        let Extent {
            memory,
            offset,
            len,
        } = list[at];
        (memory.addr().wrapping_add(offset as u64), len)
    })
}

/// Splits elements into runs; `place` returns an element's address and length.
fn split(
    count: usize,
    pages_max: u32,
    place: impl Fn(usize) -> (u64, u32),
) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < count && place(at).1 == 0 {
            at += 1;
        }
        if at == count {
            return None;
        }
        let start = at;
        let mut used = 0;
        let mut end_before = None;
        while at < count {
            let (addr, len) = place(at);
            used += pages(addr, len);
            let follows = end_before.is_none_or(|end: u64| {
                end == addr || end.is_multiple_of(PAGE) && addr.is_multiple_of(PAGE)
            });
            // The handle refuses a single element that is too long for it.
            if at > start && (!follows || used > u64::from(pages_max)) {
                break;
            }
            end_before = Some(addr.wrapping_add(u64::from(len)));
            at += 1;
        }
        Some(start..at)
    })
}

fn pages(addr: u64, len: u32) -> u64 {
    (addr % PAGE + u64::from(len)).div_ceil(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First and last element of each run.
    fn of(places: &[(u64, u32)], pages_max: u32) -> Vec<(usize, usize)> {
        split(places.len(), pages_max, |at| places[at])
            .map(|run| (run.start, run.end - 1))
            .collect()
    }

    #[test]
    fn aligned_elements_are_one_run() {
        assert_eq!(of(&[], 8), []);
        assert_eq!(of(&[(0x1234, 100)], 8), [(0, 0)]);
        // The first begins and the last ends inside a page.
        let list = [
            (0x1e00, 0x200),
            (0x9000, 0x1000),
            (0x4000, 0x2000),
            (0x8000, 7),
        ];
        assert_eq!(of(&list, 8), [(0, 3)]);
    }

    #[test]
    fn every_other_boundary_begins_a_run() {
        assert_eq!(
            of(&[(0x1000, 0x800), (0x3000, 0x1000), (0x8000, 1)], 8),
            [(0, 0), (1, 2)]
        );
        assert_eq!(
            of(&[(0x1000, 0x1000), (0x3100, 0x100)], 8),
            [(0, 0), (1, 1)]
        );
        // An element that is contiguous with the one before needs no page boundary.
        assert_eq!(of(&[(0x1000, 0x80), (0x1080, 0x80)], 8), [(0, 1)]);
    }

    #[test]
    fn a_handle_has_so_many_pages() {
        let list = [(0x1000, 0x1000), (0x3000, 0x1000), (0x5000, 0x1000)];
        assert_eq!(of(&list, 2), [(0, 1), (2, 2)]);
        assert_eq!(of(&list, 1), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(
            of(&[(0x1800, 0x2000)], 2),
            [(0, 0)],
            "refused by the handle"
        );
    }

    #[test]
    fn elements_without_bytes_are_skipped() {
        assert_eq!(of(&[(1, 0), (0x1000, 5), (7, 0)], 8), [(1, 1)]);
        assert_eq!(of(&[(1, 0), (2, 0)], 8), []);
    }
}
