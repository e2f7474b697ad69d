//! What a key leads to: the line that an access looks at.

use std::ptr::{NonNull, null_mut};

use super::access::{Access, Who};
use super::pages::{Page, Span};
use super::region::Fault;
use super::touch::TouchWord;
use super::window::Window;
use crate::sync::UnsafeCell;

/// Beside the rights in a slot: the key is no local one.
pub(super) const REMOTE_ONLY: u32 = 1 << 31;
/// Only one queue pair reaches it.
pub(super) const ONE_QP: u32 = 1 << 30;
/// That queue pair may be in any protection domain.
pub(super) const ANY_PD: u32 = 1 << 29;

/// What a slot shows of memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct View {
    pub(super) iova: u64,
    pub(super) len: u64,
    /// The first byte, of a region in one piece.
    pub(super) host: *mut u8,
    pub(super) pd: u32,
    /// Rights, as [`Access`] bits.
    pub(super) access: u32,
    /// The pieces, of a region that has several, and which of their bytes is the first.
    pub(super) pages: *mut Page,
    pub(super) base: u64,
    pub(super) count: u32,
    /// Who reaches it, of a window that is bound to one queue pair.
    pub(super) qpn: u32,
}

/// What an access looks at: one cache line.
///
/// Plain values, which processors compare where they lie: they are written when nobody is admitted, see
/// [`MrTable`](super::MrTable).
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// The tag is the key.
    pub(super) word: TouchWord,
    view: UnsafeCell<View>,
}

const _: () = assert!(cfg!(verbs_loom) || size_of::<Slot>() == 64);

// SAFETY: the pointers lead to what the owner of the slot keeps, and any thread may use that.
unsafe impl Send for Slot {}
// SAFETY: as above; [`Slot::view`] and [`Slot::set`] say who may read and write the view.
unsafe impl Sync for Slot {}

impl Slot {
    /// One that admits nobody.
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

    /// What it shows.
    ///
    /// # Safety
    /// The word has admitted a pin, or the slot's owner is locked, and as long as either is so the view is
    /// used.
    #[inline(always)]
    pub(super) unsafe fn view(&self) -> &View {
        // Models see who looks, and when. The pointer leaves the closure because a look within it would not
        // be inlined where it matters.
        let view = self.view.with(|view| view);
        // SAFETY: it is written under the owner's lock and while nobody is admitted; who was admitted
        // before has left by then, which the writer has seen (acquire), and who is later sees what was
        // written before the word admitted him (release).
        unsafe { &*view }
    }

    /// Shows something else.
    ///
    /// # Safety
    /// The slot's owner is locked, the word admits nobody, and the grace period of those that it admitted
    /// is over.
    #[inline(always)]
    pub(super) unsafe fn set(&self, view: View) {
        // SAFETY: nobody reads it, as the caller says.
        self.view.with_mut(|place| unsafe { *place = view });
    }
}

impl View {
    #[inline(always)]
    pub(super) fn grants(&self, pd: u32, need: Access) -> bool {
        let allows = || self.access & need.bits() == need.bits();
        self.pd == pd && (need.is_empty() || allows())
    }

    /// Why somebody may not reach it, if so. For whoever was admitted.
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
    /// The pin that `'p` stands for was admitted, and `covers` said yes to this range.
    #[inline(always)]
    pub(super) unsafe fn window<'p>(&self, offset: u64, len: u32) -> Window<'p> {
        // SAFETY: a live slot's `host` is not null and starts `len` bytes of one allocation, of
        // which `offset..offset + len` is a part; they stay valid for `'p` as the caller says.
        unsafe { Window::new(NonNull::new_unchecked(self.host.add(offset as usize)), len) }
    }

    /// # Safety
    /// The pin that `'p` stands for was admitted, and `covers` said yes to this range.
    pub(super) unsafe fn span<'p>(&self, offset: u64, len: u32) -> Span<'p> {
        if self.pages.is_null() {
            // SAFETY: the caller's promise; a slot without pieces has a host.
            return unsafe { self.window(offset, len) }.into();
        }
        let (count, at) = (self.count as usize, self.base + offset);
        // SAFETY: a live slot's pieces are those of a list that is neither changed nor given back before
        // everybody who was admitted has left; `count` of them were there when the slot was filled. Their
        // memory is kept by the list as long, and the range was found to be within.
        unsafe { Span::pieces(std::slice::from_raw_parts(self.pages, count), at, len) }
    }
}
