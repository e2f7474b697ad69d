//! The slot of a key: the cache line that an access reads.

use std::ptr::{NonNull, null_mut};

use crate::mem::access::{Access, Who};
use crate::mem::pages::{Page, Span};
use crate::mem::region::Fault;
use crate::mem::touch::TouchWord;
use crate::mem::window::Window;
use crate::sync::UnsafeCell;

/// Besides the rights in a slot: the key is not a local one.
pub(super) const REMOTE_ONLY: u32 = 1 << 31;
/// Only one queue pair may access it.
pub(super) const ONE_QP: u32 = 1 << 30;
/// That queue pair may be in any protection domain.
pub(super) const ANY_PD: u32 = 1 << 29;

/// The memory that a slot refers to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct View {
    pub(super) iova: u64,
    pub(super) len: u64,
    /// The first byte, for a region in one piece.
    pub(super) host: *mut u8,
    pub(super) pd: u32,
    /// Rights, as [`Access`] bits.
    pub(super) access: u32,
    /// The pieces, for a region that has several, and the offset of its first byte in them.
    pub(super) pages: *mut Page,
    pub(super) base: u64,
    pub(super) count: u32,
    /// The queue pair that may access it, for a window that is bound to one.
    pub(super) qpn: u32,
}

/// The data that an access reads: one cache line.
///
/// Plain values, which processors compare in place: they are written only while no thread is admitted, see
/// [`MrTable`](crate::mem::MrTable).
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// The tag is the key.
    pub(super) word: TouchWord,
    view: UnsafeCell<View>,
}

const _: () = assert!(cfg!(verbs_loom) || size_of::<Slot>() == 64);

// SAFETY: the pointers refer to memory that the slot's owner keeps, and any thread may use that.
unsafe impl Send for Slot {}
// SAFETY: as above; [`Slot::view`] and [`Slot::set`] say which threads may read and write the view.
unsafe impl Sync for Slot {}

impl Slot {
    /// A slot that admits no thread.
    pub(super) fn closed() -> Self {
        Self {
            word: TouchWord::dead(),
            view: UnsafeCell::new(View {
                iova: 0,
                len: 0,
                host: null_mut(),
                pd: 0,
                access: 0,
                pages: null_mut(),
                base: 0,
                count: 0,
                qpn: 0,
            }),
        }
    }

    /// Its view.
    ///
    /// # Safety
    /// The word has admitted a pin, or the slot's owner is locked, and the view is used only while that remains
    /// so.
    #[inline(always)]
    pub(super) unsafe fn view(&self) -> &View {
        // Models see the reads. The pointer leaves the closure because a read inside it would not be inlined
        // where it matters.
        let view = self.view.with(|view| view);
        // SAFETY: it is written under the owner's lock and while no thread is admitted; threads admitted before
        // have left by then, which the writer has seen (acquire), and a thread admitted later sees everything
        // that was written before the word admitted it (release).
        unsafe { &*view }
    }

    /// Changes its view.
    ///
    /// # Safety
    /// The slot's owner is locked, the word admits no thread, and the grace period of the threads that it
    /// admitted is over.
    #[inline(always)]
    pub(super) unsafe fn set(&self, view: View) {
        // SAFETY: no thread reads it, as the caller says.
        self.view.with_mut(|place| unsafe { *place = view });
    }
}

impl View {
    #[inline(always)]
    pub(super) fn grants(&self, pd: u32, need: Access) -> bool {
        let allows = || self.access & need.bits() == need.bits();
        self.pd == pd && (need.is_empty() || allows())
    }

    /// Why `who` may not access it, if so. For admitted threads.
    pub(super) fn judge(&self, who: Who, need: Access) -> Option<Fault> {
        let access = self.access;
        if access & ANY_PD == 0 && self.pd != who.pd {
            return Some(Fault::Pd);
        }
        if access & ONE_QP != 0 && self.qpn != who.qpn {
            return Some(Fault::Qp);
        }
        let remote = need.intersects(Access::REMOTE.union(Access::FLUSH));
        let wrong_side = access & REMOTE_ONLY != 0 && !remote;
        (wrong_side || access & need.bits() != need.bits()).then_some(Fault::Access)
    }

    #[inline(always)]
    pub(super) fn covers(&self, offset: u64, len: u32) -> bool {
        self.len
            .checked_sub(u64::from(len))
            .is_some_and(|rest| offset <= rest)
    }

    /// # Safety
    /// The pin that `'p` stands for was admitted, and `covers` accepted this range.
    #[inline(always)]
    pub(super) unsafe fn window<'p>(&self, offset: u64, len: u32) -> Window<'p> {
        // SAFETY: a live slot's `host` is not null and starts `len` bytes of one allocation, of
        // which `offset..offset + len` is a part; they stay valid for `'p` as the caller says.
        unsafe { Window::new(NonNull::new_unchecked(self.host.add(offset as usize)), len) }
    }

    /// # Safety
    /// The pin that `'p` stands for was admitted, and `covers` accepted this range.
    pub(super) unsafe fn span<'p>(&self, offset: u64, len: u32) -> Span<'p> {
        if self.pages.is_null() {
            // SAFETY: the caller's promise; a slot without pieces has a host.
            return unsafe { self.window(offset, len) }.into();
        }
        let (count, at) = (self.count as usize, self.base + offset);
        // SAFETY: a live slot's pieces are those of a list that is neither changed nor freed before every
        // admitted thread has left; `count` of them existed when the slot was filled. The list keeps their memory
        // as long, and the range was found to be within.
        unsafe { Span::pieces(std::slice::from_raw_parts(self.pages, count), at, len) }
    }
}
