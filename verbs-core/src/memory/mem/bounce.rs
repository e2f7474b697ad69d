//! Private buffers for copies to and from registered memory.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes of a page.
const PAGE: usize = 4096;

/// A private buffer for copies to and from registered memory or memory shared with another process.
///
/// It begins in the middle of a page. Registered memory is mostly used from the beginning of a page, and if
/// source and destination are at nearly the same offset in their pages, the C library's copy by `rep movsb` takes
/// up to three times as long on some processors (AMD Zen 3, measured).
pub struct Bounce {
    room: Box<[u8]>,
    begin: usize,
    len: usize,
}

impl Bounce {
    /// A buffer of that many bytes, all zero.
    pub fn new(len: usize) -> Self {
        let room = vec![0; len + PAGE].into_boxed_slice();
        let begin = match room.as_ptr().align_offset(PAGE) {
            to_page @ 0..PAGE => (to_page + PAGE / 2) % PAGE,
            // The offset may be unknown, as under Miri.
            _ => 0,
        };
        Self { room, begin, len }
    }
}

impl Deref for Bounce {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.room[self.begin..self.begin + self.len]
    }
}

impl DerefMut for Bounce {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.begin..self.begin + self.len]
    }
}

impl fmt::Debug for Bounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounce")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(miri), not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_in_the_middle_of_a_page_and_has_its_length() {
        for len in [0, 1, 4096, 70_000] {
            let mut buffer = Bounce::new(len);
            assert_eq!(buffer.as_ptr().addr() % PAGE, PAGE / 2);
            assert_eq!(buffer.len(), len);
            buffer.fill(1);
            assert!(buffer.iter().all(|&byte| byte == 1));
        }
    }
}
