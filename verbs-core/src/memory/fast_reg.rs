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
use crate::error::Error;
use crate::mem::{Access, Extent, Layout, PageList};
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::request::Request;
use crate::sync::Arc;
use crate::verb::{Admit, verb, verb_admitted};
use crate::wr::{FastReg, Registration, Remote, Sge};

/// A region for fast registration. Its memory is given at each [`map`](Self::map), and kept until the next
/// one, or until [`unmap`](Self::unmap).
///
/// Dropping it gives the key back when no memory window is bound to it any longer (K12).
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
    /// [`Error::NoCapability`] if the device has no memory management extensions, or not this layout;
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
    /// still be looking at the pages of the registration before last. When its invalidate has completed, that can only be
    /// the device's thread that has told so, on its way out: call again. The mapping before stays.
    pub fn map<'m>(
        &mut self,
        extents: impl IntoIterator<Item = Extent<'m>>,
    ) -> Result<usize, Error> {
        let taken = self.list.fill(self.layout, extents)?;
        (self.iova, self.len) = (self.list.addr(), self.list.len());
        self.mapping = self.raw.stage(&mut self.list)?;
        // The memory of an earlier mapping goes, unless a thread is reading it; then it goes later.
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
    /// completed no access through it happens any longer (K11).
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back.
    pub fn free(self) -> Request<'static, FreeMr> {
        destroy(self, IfBusy::Refuse)
    }
}

/// Registers pieces of memory as one region (IBTA vol. 1, 11.2.8.4, Register Physical Memory Region); arguments of the
/// verb.
#[derive(Debug)]
pub struct RegPages {
    pd: Child<PdCore>,
    list: Result<Box<PageList>, Error>,
    /// What pieces the list has.
    pub layout: Layout,
    /// The access rights to them.
    pub access: Access,
    /// The address that the first byte is reached at.
    pub iova: u64,
}

verb_admitted!(RegPages, PdCore => FastMr, |args, _pd| {
    let checked = args.access.check().and(match &args.list {
        Ok(_) => Ok(()),
        Err(error) => Err(*error),
    });
    match checked {
        Ok(()) => Admit::Go,
        Err(error) => Admit::Refuse(error),
    }
});

impl RegPages {
    /// The list, for a provider that takes it over by exchanging it for an empty one with as much room.
    ///
    /// # Errors
    /// Why there is none, with which no request gets to a provider.
    pub fn list(&mut self) -> Result<&mut PageList, Error> {
        match &mut self.list {
            Ok(list) => Ok(list),
            Err(error) => Err(*error),
        }
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> u64 {
        self.list.as_ref().map_or(0, |list| list.len())
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The region of `len` bytes, for a provider that has registered the list under this key as its mapping of that
    /// number.
    ///
    /// # Errors
    /// As [`RegPages::list`].
    pub fn build(
        self,
        key: LKey,
        len: u64,
        mapping: u32,
        raw: Box<dyn RawFastMr>,
        private: Private,
    ) -> Result<FastMr, Error> {
        let Self {
            pd,
            list,
            layout,
            iova,
            ..
        } = self;
        let base = Base::new(
            Target::device(pd.get()),
            ObjectKind::Mr,
            key.value(),
            private,
        );
        Ok(FastMr {
            list: list?,
            core: Arc::new(FastMrCore { base, pd }),
            raw,
            layout,
            key: key.value(),
            mapping,
            iova,
            len,
        })
    }
}

impl Request<'_, RegPages> {
    /// The address that the first byte is reached at, instead of its own. Of pages, it must have the first byte's
    /// offset in its page.
    pub fn iova(mut self, iova: u64) -> Self {
        if !self.args.access.contains(Access::ZERO_BASED) {
            self.args.iova = iova;
        }
        self
    }
}

impl Pd {
    /// Registers pieces of memory as one region, which is valid when the verb completes. The low byte of its key is the
    /// consumer's: like a region from [`Pd::alloc_mr`] it can be made invalid by a work request, and be mapped and
    /// registered again with at most as many pages.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for pieces that the layout does not allow one behind the other, or for an address without
    /// the first byte's offset in its page; [`Error::OutOfRange`] for a piece that leaves its memory;
    /// [`Error::NoCapability`] if the device does not take the layout or a right; [`Error::Exhausted`] at its `max_mr`;
    /// [`Error::NoMemory`].
    ///
    /// # Examples
    /// ```
    /// # use verbs_core::testing::Null;
    /// use std::sync::Arc;
    /// use verbs_core::{Access, Device, Extent, Layout, Memory};
    ///
    /// # let device = Device::open(Arc::new(Null::default())).wait()?;
    /// # let pd = device.alloc_pd().wait()?;
    /// let memory = Arc::new(Memory::alloc(3 * 4096)?);
    /// let page = |n| Extent { memory: &memory, offset: n * 4096_usize, len: 4096 };
    /// let layout = Layout::Pages(Layout::PAGE);
    /// let mr = pd.register_pages(layout, [page(2), page(0)], Access::LOCAL_WRITE).wait()?;
    /// assert_eq!(mr.len(), 8192);
    /// # Ok::<(), verbs_core::Error>(())
    /// ```
    pub fn register_pages<'m>(
        &self,
        layout: Layout,
        pieces: impl IntoIterator<Item = Extent<'m>>,
        access: Access,
    ) -> Request<'_, RegPages> {
        let pieces: Vec<_> = pieces.into_iter().collect();
        let list = PageList::of(layout, &pieces);
        let iova = match &list {
            Ok(list) if !access.contains(Access::ZERO_BASED) => list.addr(),
            _ => 0,
        };
        let args = RegPages {
            pd: Child::new(self.core(), ObjectKind::Mr),
            list: list.map(Box::new),
            layout,
            access,
            iova,
        };
        Request::new(self.core(), args)
    }
}
