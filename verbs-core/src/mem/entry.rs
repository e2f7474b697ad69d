//! What a key leads to: the line that an access looks at.

use std::ptr::NonNull;

use super::access::Access;
use super::pages::{Page, Span};
use super::region::Fault;
use super::table::{ANY_PD, ONE_QP, REMOTE_ONLY, Who};
use super::touch::TouchWord;
use super::window::Window;
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

/// What an access looks at: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// The tag is the key.
    pub(super) word: TouchWord,
    pub(super) iova: AtomicU64,
    pub(super) len: AtomicU64,
    pub(super) pd: AtomicU32,
    /// Rights, as [`Access`] bits.
    pub(super) access: AtomicU32,
    /// The first byte, of a region in one piece.
    pub(super) host: AtomicPtr<u8>,
    /// The pieces, of a region that has several, and which of their bytes is the first.
    pub(super) pages: AtomicPtr<Page>,
    pub(super) base: AtomicU64,
    pub(super) count: AtomicU32,
    /// Who reaches it, of a window that is bound to one queue pair.
    pub(super) qpn: AtomicU32,
}

impl Slot {
    #[inline(always)]
    pub(super) fn grants(&self, pd: u32, need: Access) -> bool {
        let allows = || self.access.load(Relaxed) & need.bits() == need.bits();
        self.pd.load(Relaxed) == pd && (need.is_empty() || allows())
    }

    /// Why somebody may not reach it, if so. For whoever was admitted.
    pub(super) fn judge(&self, who: Who, need: Access) -> Option<Fault> {
        let access = self.access.load(Relaxed);
        if access & ANY_PD == 0 && self.pd.load(Relaxed) != who.pd {
            return Some(Fault::Pd);
        }
        if access & ONE_QP != 0 && self.qpn.load(Relaxed) != who.qpn {
            return Some(Fault::Qp);
        }
        let remote = need.intersects(Access::REMOTE.union(Access::FLUSH));
        let wrong_side = access & REMOTE_ONLY != 0 && !remote;
        (wrong_side || access & need.bits() != need.bits()).then_some(Fault::Access)
    }

    #[inline(always)]
    pub(super) fn covers(&self, offset: u64, len: u32) -> bool {
        let size = self.len.load(Relaxed);
        u64::from(len) <= size && offset <= size - u64::from(len)
    }

    /// # Safety
    /// The pin that `'p` stands for was admitted, and `covers` said yes to this range.
    #[inline(always)]
    pub(super) unsafe fn window<'p>(&self, offset: u64, len: u32) -> Window<'p> {
        let host = self.host.load(Relaxed);
        // SAFETY: a live slot's `host` is not null and starts `slot.len` bytes of one allocation, of
        // which `offset..offset + len` is a part; they stay valid for `'p` as the caller says.
        unsafe { Window::new(NonNull::new_unchecked(host.add(offset as usize)), len) }
    }
}

impl Slot {
    /// # Safety
    /// The pin that `'p` stands for was admitted, and `covers` said yes to this range.
    pub(super) unsafe fn span<'p>(&self, offset: u64, len: u32) -> Span<'p> {
        let pages = self.pages.load(Relaxed);
        if pages.is_null() {
            // SAFETY: the caller's promise; a slot without pieces has a host.
            return unsafe { self.window(offset, len) }.into();
        }
        let count = self.count.load(Relaxed) as usize;
        let at = self.base.load(Relaxed) + offset;
        // SAFETY: a live slot's pieces are those of a list that is neither changed nor given back before
        // everybody who was admitted has left; `count` of them were there when the slot was filled. Their
        // memory is kept by the list as long, and the range was found to be within.
        unsafe { Span::pieces(std::slice::from_raw_parts(pages, count), at, len) }
    }
}
