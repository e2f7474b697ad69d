//! Fast registration: regions that work requests make valid and invalid.
//!
//! [`Pd::alloc_mr`] reserves a key and room for a list of pages. [`FastMr::map`] fills the list, a
//! [`FastReg`] work request makes the key valid, a
//! [`LocalInv`](crate::LocalInv) or a peer's SEND with invalidate makes it invalid again. The low byte of
//! the key is the consumer's: one that changes with each registration makes peers miss that still use the
//! last one.

use std::fmt;
use std::ops::Range;

use crate::addr::{LKey, RKey};
use crate::device::verb;
use crate::error::Error;
use crate::mem::{Access, Extent, Layout, PageList};
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::request::Request;
use crate::sync::Arc;
use crate::wr::{FastReg, Registration, Remote, Sge};

/// A region for fast registration. Its memory is given at each [`map`](Self::map), and kept until the next
/// one, or until [`unmap`](Self::unmap).
///
/// Dropping it gives the key back when no memory window is bound to it any more (K12).
pub struct FastMr {
    core: Arc<FastMrCore>,
    raw: Box<dyn RawFastMr>,
    list: Box<PageList>,
    layout: Layout,
    key: u32,
    mapping: u32,
    iova: u64,
    len: u64,
}

/// What such a region's requests act on.
#[derive(Debug)]
pub struct FastMrCore {
    base: Base,
    pd: Child<PdCore>,
}

core!(FastMrCore { pd });
handle!(FastMr, FastMrCore, FreeMr);

/// The direct calls of a region for fast registration that a provider implements. They allocate nothing
/// and never block.
pub trait RawFastMr: Send + Sync + fmt::Debug {
    /// Exchanges the list that the next registration takes for this one; which mapping that makes.
    ///
    /// # Errors
    /// [`Error::Closing`] if the key is gone.
    fn stage(&mut self, list: &mut PageList) -> Result<u32, Error>;

    /// Exchanges the list of the last registration for this one, which is empty; `false` if that is valid
    /// still.
    ///
    /// # Errors
    /// As [`RawFastMr::stage`].
    fn unstage(&mut self, list: &mut PageList) -> Result<bool, Error>;
}

/// Allocates a region for fast registration; arguments of the verb.
#[derive(Debug)]
pub struct AllocMr {
    pd: Child<PdCore>,
    list: Box<PageList>,
    /// What pieces it is to take.
    pub layout: Layout,
    /// How many pages, blocks or pieces at a time.
    pub max_pages: u32,
}

verb!(AllocMr, PdCore => FastMr);

impl AllocMr {
    /// The region, for a provider that has reserved this key.
    pub fn build(self, key: LKey, raw: Box<dyn RawFastMr>, private: Private) -> FastMr {
        let base = Base::new(
            Target::device(self.pd.get()),
            ObjectKind::Mr,
            key.value(),
            private,
        );
        FastMr {
            core: Arc::new(FastMrCore { base, pd: self.pd }),
            raw,
            list: self.list,
            layout: self.layout,
            key: key.value(),
            mapping: 0,
            iova: 0,
            len: 0,
        }
    }
}

impl Request<'_, AllocMr> {
    /// Other pieces than pages of 4 KiB.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.args.layout = layout;
        self
    }
}

impl Pd {
    /// Allocates a region for fast registration of up to `max_pages` pages of 4 KiB at a time.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no memory management extensions, or not this layout;
    /// [`Error::Invalid`] beyond the device's `max_fast_reg_pages`; [`Error::Exhausted`] at its `max_mr`;
    /// [`Error::NoMemory`].
    pub fn alloc_mr(&self, max_pages: u32) -> Request<'_, AllocMr> {
        let none = || PageList::new(0).unwrap_or_else(|_| unreachable!("room for nothing"));
        let args = AllocMr {
            pd: Child::new(self.core(), ObjectKind::Mr),
            list: Box::new(none()),
            layout: Layout::Pages(Layout::PAGE),
            max_pages,
        };
        Request::new(self.core(), args)
    }
}

impl AllocMr {
    /// Makes the consumer's own list, for a provider that accepts the sizes.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn make_list(&mut self) -> Result<(), Error> {
        *self.list = PageList::new(self.max_pages)?;
        Ok(())
    }
}

impl FastMr {
    /// What requests act on, as providers see it.
    pub fn target(&self) -> &Arc<FastMrCore> {
        &self.core
    }

    /// Takes these pieces for the next registration: as many of them as the layout and the room allow, and
    /// says how many. A direct call: allocates nothing, never blocks. What is registered stays so.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a piece that leaves its memory; [`Error::Busy`] if another thread may
    /// still be looking at the pages of the registration before last, which cannot be once its invalidate
    /// has completed. The mapping before stays.
    pub fn map<'m>(
        &mut self,
        extents: impl IntoIterator<Item = Extent<'m>>,
    ) -> Result<usize, Error> {
        let taken = self.list.fill(self.layout, extents)?;
        (self.iova, self.len) = (self.list.addr(), self.list.len());
        self.mapping = self.raw.stage(&mut self.list)?;
        // The memory of an earlier mapping goes, unless somebody is looking at it; then it goes later.
        let _ = self.list.clear();
        Ok(taken)
    }

    /// Gives the memory back, when the key is invalid.
    ///
    /// # Errors
    /// [`Error::Busy`] if the key is valid, or as [`FastMr::map`].
    pub fn unmap(&mut self) -> Result<(), Error> {
        self.list.clear()?;
        if !self.raw.unstage(&mut self.list)? {
            return Err(Error::Busy);
        }
        self.list.clear()?;
        // A mapping that was never registered.
        self.mapping = self.raw.stage(&mut self.list)?;
        (self.iova, self.len) = (0, 0);
        self.list.clear()
    }

    /// The work request that registers what was mapped last, under the current key. The address of the
    /// first byte is its own; with [`Access::ZERO_BASED`] it is 0.
    pub fn register(&mut self, wr_id: u64, access: Access) -> FastReg<'static> {
        let iova = self.iova;
        self.register_at(wr_id, access, iova)
    }

    /// As [`FastMr::register`], at another address. Of pages, it must have the first byte's offset in its
    /// page.
    pub fn register_at(&mut self, wr_id: u64, access: Access, iova: u64) -> FastReg<'static> {
        let zero_based = access.contains(Access::ZERO_BASED);
        self.iova = if zero_based { 0 } else { iova };
        let what = Registration {
            key: self.lkey(),
            access,
            iova: self.iova,
            mapping: self.mapping,
        };
        FastReg::new(wr_id, what)
    }

    /// Goes on to the next key byte, for the next registration.
    pub fn next_key(&mut self) -> RKey {
        self.key = RKey::new(self.key).next().value();
        self.rkey()
    }

    /// Chooses the key byte of the next registration.
    pub fn set_key_byte(&mut self, byte: u8) -> RKey {
        self.key = self.key & !0xff | u32::from(byte);
        self.rkey()
    }

    /// The current key, for work requests of this process.
    pub fn lkey(&self) -> LKey {
        LKey::new(self.key)
    }

    /// The current key, for work requests of peers and for invalidates.
    pub fn rkey(&self) -> RKey {
        RKey::new(self.key)
    }

    /// The piece from `range.start` to `range.end` of what was mapped, for a work request behind the
    /// registration; see [`Mr::slice`](crate::Mr::slice).
    pub fn slice(&self, range: Range<usize>) -> Sge {
        let len = u32::try_from(range.end.saturating_sub(range.start)).unwrap_or(u32::MAX);
        Sge {
            addr: self.iova.wrapping_add(range.start as u64),
            len,
            lkey: self.lkey(),
        }
    }

    /// The place `offset` bytes into what was mapped, for a peer's work request.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.iova.wrapping_add(offset as u64),
            rkey: self.rkey(),
        }
    }

    /// Bytes of what was mapped last.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the key back: Busy while memory windows are bound to it (K10). Valid or not, when this has
    /// completed no access through it happens any more (K11).
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn free(self) -> Request<'static, FreeMr> {
        destroy(self, false)
    }
}
