//! Pools of fast memory regions: mapped by a direct call, unmapped in batches.
//!
//! A pool has a fixed number of keys. [`FmrPool::map`] gives one of them pages at once, also under
//! NoBlock; [`FmrPool::unmap`] only notes that it is no longer used. [`FmrPool::flush`], a request as any
//! other, makes all unused keys invalid. Nothing happens on a thread of its own: when enough keys
//! wait, `unmap` says so, and the consumer issues the flush.
//!
//! # Stale keys
//!
//! Between `unmap` and the flush, or the next mapping under the same key index, *peers can still reach the
//! pages* with the key that they were given: that is what a pool trades for its speed. A program that gives keys to
//! peers that are not trusted flushes before the memory is used for something else. Every mapping has
//! another key byte than the one before, so a key never gives access to the pages of a later mapping, until the
//! byte has gone round; the remap limit is far below that.
//!
//! A memory window that is bound to a mapping shows the same pages. The flush ends it with the key, and the
//! window can be bound again; until then the pool is in use, and its destroy is Busy.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::addr::{LKey, RKey};
use crate::command::{AnyCommand, Command, Kind};
use crate::error::{Attr, Error};
use crate::mem::{Access, Extent, Layout, PageList};
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::request::Request;
use crate::sync::{Arc, Mutex};
use crate::verb::{Admit, Verb, verb};
use crate::wr::{Remote, Sge};

/// What a pool is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FmrPoolAttr {
    /// Keys.
    pub size: u32,
    /// Pages of 4 KiB of one mapping.
    pub max_pages: u32,
    /// The access rights of every mapping.
    pub access: Access,
    /// Mappings of one key between two flushes, at most; 32 as in the field, at most 255.
    pub max_remaps: u8,
    /// Keys that wait for a flush from which on [`FmrPool::unmap`] says that one is due.
    pub dirty_watermark: u32,
    /// A mapping of pages that are mapped already shares their key.
    pub cache: bool,
}

impl FmrPoolAttr {
    /// A pool of so many keys for so many pages: 32 remaps, a flush due when a quarter waits, no cache.
    pub const fn new(size: u32, max_pages: u32, access: Access) -> Self {
        Self {
            size,
            max_pages,
            access,
            max_remaps: 32,
            dirty_watermark: if size < 4 { 1 } else { size / 4 },
            cache: false,
        }
    }
}

/// A pool of fast memory regions; see the module's documentation.
pub struct FmrPool {
    core: Arc<FmrPoolCore>,
    raw: Box<dyn RawFmrPool>,
    list: Box<PageList>,
}

/// What a pool's requests act on.
pub struct FmrPoolCore {
    base: Base,
    pd: Child<PdCore>,
    attr: FmrPoolAttr,
    /// Locked for a few steps, never around foreign code.
    keys: Mutex<Keys>,
}

core!(FmrPoolCore { pd });
handle!(FmrPool, FmrPoolCore, DestroyFmrPool);

/// The direct calls of a pool that a provider implements.
pub trait RawFmrPool: Send + Sync + fmt::Debug {
    /// Gives a key of the pool these pages instead of those it had, under that key, whose byte is a new
    /// one; the first byte is reached at `iova`. `list` becomes one that is no longer used. Never blocks.
    ///
    /// # Errors
    /// [`Error::Busy`] if another thread may be looking at what the key stood for: it is invalid then.
    fn map(
        &mut self,
        key: LKey,
        list: &mut PageList,
        iova: u64,
        access: Access,
    ) -> Result<(), Error>;
}

/// A mapping of a pool's; goes back by [`FmrPool::unmap`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a mapping that is dropped keeps its key for ever"]
pub struct Fmr {
    slot: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The key for work requests of this process.
    pub lkey: LKey,
    /// The key for work requests of peers.
    pub rkey: RKey,
}

/// The keys of a pool.
#[derive(Debug, Default)]
struct Keys {
    slots: Vec<Slot>,
    /// Not used, and may be mapped; longest first.
    free: VecDeque<u32>,
    /// Not used, and must be flushed before they are mapped again.
    dirty: Vec<u32>,
    /// By first address and length: what is mapped.
    cached: BTreeMap<(u64, u64), u32>,
}

#[derive(Debug)]
struct Slot {
    key: LKey,
    users: u32,
    /// Mappings since the last flush.
    remaps: u8,
    addr: u64,
    len: u64,
    /// The pieces, for the cache.
    pieces: Vec<(u64, u32)>,
    flushing: bool,
}

/// Creates a pool; arguments of the verb.
#[derive(Debug)]
pub struct CreateFmrPool {
    pd: Child<PdCore>,
    /// What it is made with.
    pub attr: FmrPoolAttr,
}

/// Makes the unused keys of a pool invalid; arguments of the verb.
#[derive(Debug)]
pub struct FlushFmrPool {
    /// Keys that are to miss from now on, with no access through them when this completes.
    pub keys: Vec<LKey>,
}

verb!(CreateFmrPool, PdCore => FmrPool);

impl Verb for FlushFmrPool {
    type Target = FmrPoolCore;
    type Output = ();
    type Error = Error;
    const KIND: Kind = Kind::FlushFmrPool;

    fn command(command: Command<'_, Self>) -> AnyCommand<'_> {
        AnyCommand::FlushFmrPool(command)
    }

    fn admit(&mut self, pool: &FmrPoolCore) -> Admit<Error> {
        self.keys = pool.keys.lock().begin_flush();
        Admit::Go
    }

    fn completed(pool: &Arc<FmrPoolCore>, result: &Result<(), Error>) {
        pool.keys.lock().end_flush(result.is_ok());
    }
}

impl CreateFmrPool {
    /// The pool, for a provider that has reserved these keys.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn build(
        self,
        keys: impl IntoIterator<Item = LKey>,
        raw: Box<dyn RawFmrPool>,
        private: Private,
    ) -> Result<FmrPool, Error> {
        let list = Box::new(PageList::new(self.attr.max_pages)?);
        let slot = |key| Slot {
            key,
            users: 0,
            remaps: 0,
            addr: 0,
            len: 0,
            pieces: Vec::new(),
            flushing: false,
        };
        let slots: Vec<_> = keys.into_iter().map(slot).collect();
        let number = slots.first().map_or(0, |slot| slot.key.value());
        let keys = Keys {
            free: (0..slots.len() as u32).collect(),
            slots,
            ..Keys::default()
        };
        let device = Target::device(self.pd.get());
        let base = Base::new(device, ObjectKind::FmrPool, number, private);
        let core = Arc::new(FmrPoolCore {
            base,
            pd: self.pd,
            attr: self.attr,
            keys: Mutex::new(keys),
        });
        Ok(FmrPool { core, raw, list })
    }
}

impl FmrPoolCore {
    /// The index part of every key.
    pub fn indices(&self) -> Vec<u32> {
        let keys = self.keys.lock();
        keys.slots.iter().map(|slot| slot.key.index()).collect()
    }

    /// Pages of one mapping, at most.
    pub fn max_pages(&self) -> u32 {
        self.attr.max_pages
    }
}

impl fmt::Debug for FmrPoolCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} keys", self.base, self.attr.size)
    }
}

impl Pd {
    /// Creates a pool of fast memory regions.
    ///
    /// # Errors
    /// [`Error::NoCapability`] if the device has none; [`Error::Invalid`] beyond its `max_fast_reg_pages`,
    /// or for no remap at all; [`Error::Exhausted`] at its `max_mr`; [`Error::NoMemory`].
    pub fn create_fmr_pool(&self, attr: FmrPoolAttr) -> Request<'_, CreateFmrPool> {
        let pd = Child::new(self.core(), ObjectKind::FmrPool);
        Request::new(self.core(), CreateFmrPool { pd, attr })
    }
}

impl Keys {
    fn hit(&mut self, list: &[(u64, u32)], iova: Option<u64>) -> Option<u32> {
        let len = list.iter().map(|&(_, len)| u64::from(len)).sum();
        let at = *self.cached.get(&(iova.unwrap_or(list.first()?.0), len))?;
        let slot = &mut self.slots[at as usize];
        if slot.flushing || slot.pieces != list {
            return None;
        }
        slot.users += 1;
        // One that was not in use was free, or waited for the flush.
        if slot.users == 1 {
            self.free.retain(|&free| free != at);
            self.dirty.retain(|&dirty| dirty != at);
        }
        Some(at)
    }

    fn forget(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        slot.pieces.clear();
        let name = (slot.addr, slot.len);
        if self.cached.get(&name) == Some(&at) {
            self.cached.remove(&name);
        }
    }

    fn begin_flush(&mut self) -> Vec<LKey> {
        let mapped = |keys: &[Slot], at: u32| keys[at as usize].remaps != 0;
        let (waiting, fresh): (Vec<_>, Vec<_>) = std::mem::take(&mut self.free)
            .into_iter()
            .partition(|&at| mapped(&self.slots, at));
        self.free = fresh.into();
        self.dirty.extend(waiting);
        let mut keys = Vec::new();
        for at in self.dirty.clone() {
            let slot = &mut self.slots[at as usize];
            if !std::mem::replace(&mut slot.flushing, true) {
                keys.push(slot.key);
                self.forget(at);
            }
        }
        keys
    }

    fn end_flush(&mut self, done: bool) {
        let Self {
            slots, free, dirty, ..
        } = self;
        dirty.retain(|&at| {
            let slot = &mut slots[at as usize];
            let over = std::mem::take(&mut slot.flushing) && done;
            if over {
                slot.remaps = 0;
                free.push_back(at);
            }
            !over
        });
    }
}

impl FmrPool {
    /// Maps these pieces, laid out as pages of 4 KiB ([`Layout::Pages`]), and gives the keys, which are
    /// valid at once. A direct call, legal under NoBlock: never blocks; allocates only for the cache.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if not all pieces fit; [`Error::Exhausted`] if every key is used or waits for a
    /// [`flush`](Self::flush); [`Error::OutOfRange`].
    pub fn map<'m, E>(&mut self, extents: E) -> Result<Fmr, Error>
    where
        E: IntoIterator<Item = Extent<'m>>,
        E::IntoIter: Clone + ExactSizeIterator,
    {
        self.map_to(extents.into_iter(), None)
    }

    /// As [`FmrPool::map`], at an address of the caller's choice instead of the first byte's own. It must
    /// have the first byte's offset in its page.
    ///
    /// # Errors
    /// As [`FmrPool::map`]; [`Error::Mismatch`] too for another offset.
    pub fn map_at<'m, E>(&mut self, extents: E, iova: u64) -> Result<Fmr, Error>
    where
        E: IntoIterator<Item = Extent<'m>>,
        E::IntoIter: Clone + ExactSizeIterator,
    {
        self.map_to(extents.into_iter(), Some(iova))
    }

    fn map_to<'m, E>(&mut self, extents: E, iova: Option<u64>) -> Result<Fmr, Error>
    where
        E: Iterator<Item = Extent<'m>> + Clone + ExactSizeIterator,
    {
        let attr = self.core.attr;
        let place = |extent: Extent<'_>| (extent.memory.addr() + extent.offset as u64, extent.len);
        let pieces: Vec<_> = match attr.cache {
            true => extents.clone().map(place).collect(),
            false => Vec::new(),
        };
        let hit = self.core.keys.lock().hit(&pieces, iova);
        if let Some(at) = hit {
            return Ok(self.mapping(at));
        }
        let wanted = extents.len();
        let filled = self.list.fill(Layout::Pages(Layout::PAGE), extents)?;
        let (own, len) = (self.list.addr(), self.list.len());
        let addr = iova.unwrap_or(own);
        let fits = (addr ^ own).is_multiple_of(u64::from(Layout::PAGE));
        if filled != wanted || !fits || addr.checked_add(len).is_none() {
            self.list.clear()?;
            return Err(Error::Mismatch {
                attr: Attr::PageList,
                why: crate::error::Why::Alignment,
            });
        }
        loop {
            let (at, key) = match self.take() {
                Ok(taken) => taken,
                Err(error) => {
                    let _ = self.list.clear();
                    return Err(error);
                }
            };
            let mapped = self.raw.map(key, &mut self.list, addr, attr.access);
            let mut keys = self.core.keys.lock();
            if mapped.is_err() {
                // A thread is reading what it stood for; the flush waits for that.
                keys.dirty.push(at);
                continue;
            }
            let slot = &mut keys.slots[at as usize];
            (slot.addr, slot.len, slot.pieces) = (addr, len, pieces);
            if attr.cache {
                keys.cached.insert((addr, len), at);
            }
            drop(keys);
            let _ = self.list.clear();
            return Ok(self.mapping(at));
        }
    }

    /// An unused key, with its next byte.
    fn take(&self) -> Result<(u32, LKey), Error> {
        let (attr, max) = (Attr::MaxFmr, self.core.attr.size);
        let mut keys = self.core.keys.lock();
        let at = keys.free.pop_front();
        let at = at.ok_or(Error::Exhausted { attr, max })?;
        keys.forget(at);
        let slot = &mut keys.slots[at as usize];
        slot.key = slot.key.next();
        slot.users = 1;
        slot.remaps += 1;
        Ok((at, slot.key))
    }

    fn mapping(&self, at: u32) -> Fmr {
        let keys = self.core.keys.lock();
        let slot = &keys.slots[at as usize];
        Fmr {
            slot: at,
            addr: slot.addr,
            len: slot.len,
            lkey: slot.key,
            rkey: RKey::new(slot.key.value()),
        }
    }

    /// A mapping is no longer used. Its key stays valid until a flush or until the pool maps other pages
    /// under its index; see the module's documentation. Whether a flush is due. Never blocks.
    pub fn unmap(&mut self, fmr: Fmr) -> bool {
        let Self { core, .. } = self;
        let attr = core.attr;
        let mut keys = core.keys.lock();
        let slot = &mut keys.slots[fmr.slot as usize];
        slot.users -= 1;
        if slot.users == 0 {
            match slot.remaps >= attr.max_remaps {
                true => keys.dirty.push(fmr.slot),
                false => keys.free.push_back(fmr.slot),
            }
        }
        keys.dirty.len() >= attr.dirty_watermark as usize
    }

    /// Makes every unused key invalid, and ends the memory windows that are bound to them. When it has
    /// completed, no access through keys or windows happens any longer, and the keys can be mapped again. The
    /// memory that they stood for has come back.
    ///
    /// # Errors
    /// The provider's; the keys wait for another flush then.
    pub fn flush(&self) -> Request<'_, FlushFmrPool> {
        Request::new(&self.core, FlushFmrPool { keys: Vec::new() })
    }

    /// Keys that can be mapped before the next flush.
    pub fn available(&self) -> usize {
        self.core.keys.lock().free.len()
    }

    /// Destroys the pool with all its mappings: Busy while memory windows are bound to them (K10), which
    /// [`flush`](Self::flush) ends for mappings that are not used. When it has completed, no access through
    /// the pool's keys happens any longer (K11).
    ///
    /// # Errors
    /// [`Refused`](crate::Refused) with [`Error::Busy`], which gives the handle back;
    /// [`Error::DeviceRemoved`].
    pub fn destroy(self) -> Request<'static, DestroyFmrPool> {
        destroy(self, IfBusy::Refuse)
    }

    /// As [`FmrPool::destroy`], but waits for the last memory window instead of answering Busy (K12).
    ///
    /// # Errors
    /// Only [`Error::DeviceRemoved`].
    pub fn destroy_when_idle(self) -> Request<'static, DestroyFmrPool> {
        destroy(self, IfBusy::Wait)
    }

    /// What requests act on, as providers see it.
    pub fn target(&self) -> &Arc<FmrPoolCore> {
        &self.core
    }
}

impl Fmr {
    /// `len` bytes from `offset` on, for a work request.
    pub fn slice(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.addr.wrapping_add(offset),
            len,
            lkey: self.lkey,
        }
    }

    /// The place `offset` bytes into it, for a peer's work request.
    pub fn remote(&self, offset: u64) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(offset),
            rkey: self.rkey,
        }
    }
}
