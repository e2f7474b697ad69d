//! From keys to regions.

use std::ptr::NonNull;

use super::access::Access;
use super::grace;
use super::pin::Pin;
use super::region::{Fault, Region};
use super::touch::{TouchWord, Touched};
use super::window::Window;
use crate::addr::{LKey, RKey};
use crate::error::{Attr, Error, Why};
use crate::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Relaxed, Release},
};
use crate::sync::{Arc, Mutex, MutexGuard};

/// The regions of one device, by key.
///
/// A key is an index and, in the low byte, a number that changes whenever the index is used again,
/// so that a stale key misses (K13). Index 0 is never used. Which index and which byte come next is
/// drawn from the seed; who sees some keys cannot tell the others without it.
///
/// # States of a slot
///
/// ```text
///           register                    deregister, reregister, invalidate
///   FREE ------------> LIVE ------------------------------------> CLOSING
///    |  allocate        ^  map                                       |  grace period over
///    +-----> INVALID ---+                                            v
///               ^------------------------------- FREE, LIVE or INVALID again
/// ```
///
/// Only in LIVE does a check succeed. A slot's values change only outside LIVE and after the grace
/// period of its last life; so who was admitted by the touch word reads values that belong together
/// and bytes that are still there. The region's `Arc<Memory>` is dropped after the grace period.
#[derive(Debug)]
pub struct MrTable {
    slots: Box<[Slot]>,
    owners: Box<[Mutex<Owner>]>,
    free: Mutex<Free>,
    misses: AtomicU64,
}

/// What an access looks at: one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    /// The tag is the key.
    word: TouchWord,
    iova: AtomicU64,
    len: AtomicU64,
    pd: AtomicU32,
    /// Rights, as [`Access`] bits.
    access: AtomicU32,
    host: AtomicPtr<u8>,
}

/// What a verb looks at.
#[derive(Debug, Default)]
struct Owner {
    state: State,
    key_byte: u8,
    /// The key byte is the consumer's; killed on the data path.
    fast: bool,
    pd: u32,
    region: Option<Region>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Invalid,
    Live,
    Closing,
}

/// The unused indices and the source of surprise.
#[derive(Debug)]
struct Free {
    indices: Vec<u32>,
    draws: u64,
}

impl MrTable {
    /// Regions that a table can hold: keys have 24 bits of index, and the top one is not used.
    pub const CAPACITY_MAX: u32 = (1 << 23) - 1;

    /// A table for `capacity` regions (at most [`CAPACITY_MAX`](Self::CAPACITY_MAX)), about 180
    /// bytes each, all allocated here. The seed decides which keys come in which order.
    pub fn new(capacity: u32, seed: u64) -> Self {
        let capacity = capacity.min(Self::CAPACITY_MAX);
        let slot = |_| Slot {
            word: TouchWord::dead(),
            iova: AtomicU64::new(0),
            len: AtomicU64::new(0),
            pd: AtomicU32::new(0),
            access: AtomicU32::new(0),
            host: AtomicPtr::new(std::ptr::null_mut()),
        };
        Self {
            slots: (0..=capacity).map(slot).collect(),
            owners: (0..=capacity).map(|_| Mutex::default()).collect(),
            free: Mutex::new(Free {
                indices: (1..=capacity).collect(),
                draws: seed,
            }),
            misses: AtomicU64::new(0),
        }
    }

    /// Registers a region and gives its keys, which are valid at once. The remote key is 0, which
    /// no region has, if no remote right is granted.
    ///
    /// Never waits; takes as long for a gigabyte as for a byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range leaves the memory, [`Error::Mismatch`] for access flags
    /// that do not go together or an address range that leaves the address space,
    /// [`Error::Unsupported`] for unknown flags, [`Error::Exhausted`] if the table is full.
    pub fn register(&self, mut region: Region) -> Result<(LKey, RKey), Error> {
        let host = region.check()?;
        let (index, step) = self.take()?;
        let mut owner = self.owner(index);
        owner.key_byte = owner.key_byte.wrapping_add(step);
        owner.fast = false;
        Ok(self.publish(index, &mut owner, region, host))
    }

    /// Reserves a key for fast registration: [`map`](Self::map) makes it valid, on the data path.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if the table is full.
    pub fn allocate(&self, pd: u32) -> Result<LKey, Error> {
        let (index, step) = self.take()?;
        let mut owner = self.owner(index);
        owner.key_byte = owner.key_byte.wrapping_add(step);
        owner.fast = true;
        owner.pd = pd;
        owner.state = State::Invalid;
        Ok(LKey::new(index << 8 | u32::from(owner.key_byte)))
    }

    /// Makes an allocated, invalid key valid (the REG_MR work request). The key byte is the
    /// caller's choice: usually [`LKey::next`] of the last one.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the index was not allocated, is valid now, or belongs to another
    /// protection domain; otherwise as for [`register`](Self::register).
    pub fn map(&self, key: LKey, mut region: Region) -> Result<(LKey, RKey), Error> {
        let host = region.check()?;
        let mut owner = self.known(key.index())?;
        if !owner.fast || owner.state != State::Invalid {
            return Err(key_error(Why::State));
        }
        if owner.pd != region.pd {
            return Err(key_error(Why::OtherPd));
        }
        owner.key_byte = key.key_byte();
        Ok(self.publish(key.index(), &mut owner, region, host))
    }

    /// Takes a region away for good. From the return of this call on its key misses; `done` runs
    /// when nobody can be touching its bytes any more and the table has dropped the memory: at once
    /// if no other thread is inside, otherwise from the thread that leaves last.
    ///
    /// Never waits. See [`grace::after`] for where `done` runs.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if no region has this key, [`Error::Closing`] if it is being taken away
    /// already. `done` is dropped then.
    pub fn deregister(
        self: &Arc<Self>,
        key: LKey,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let touched = self.close(key, State::Invalid)?;
        let table = Arc::clone(self);
        grace::after(touched, move || {
            let region = table.vacate(key.index());
            drop(region);
            done();
        });
        Ok(())
    }

    /// Replaces a region by another under a new key: other rights, protection domain, memory or
    /// address. The old key misses from now on, the new one, given here, is valid when `done` runs.
    ///
    /// Never waits. See [`grace::after`] for where `done` runs.
    ///
    /// # Errors
    /// As for [`register`](Self::register) and [`deregister`](Self::deregister); the old region
    /// stays as it is. Keys from [`allocate`](Self::allocate) cannot be re-registered.
    pub fn reregister(
        self: &Arc<Self>,
        key: LKey,
        mut region: Region,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<(LKey, RKey), Error> {
        // Wrapping the pointer makes it fit into a job that changes thread.
        let host = AtomicPtr::new(region.check()?.as_ptr());
        if self.known(key.index())?.fast {
            return Err(key_error(Why::State));
        }
        let step = self.free.lock().step();
        let touched = self.close(key, State::Live)?;
        let number = key.value() & !0xff | u32::from(key.key_byte().wrapping_add(step));
        let keys = region.keys(number);
        let table = Arc::clone(self);
        grace::after(touched, move || {
            let old = table.replace(LKey::new(number), region, &host);
            drop(old);
            done();
        });
        Ok(keys)
    }

    /// Makes a key from [`allocate`](Self::allocate) invalid, for the next [`map`](Self::map) (the
    /// LOCAL_INV work request, a SEND with invalidate). `done` runs when nobody can be touching the
    /// bytes any more.
    ///
    /// Never waits, and costs no process-wide barrier unless somebody is inside.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if no valid region has this key or it was not made by `allocate`,
    /// [`Error::Closing`] if it is being taken away already.
    pub fn invalidate(
        self: &Arc<Self>,
        key: LKey,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        if !self.known(key.index())?.fast {
            return Err(key_error(Why::State));
        }
        let touched = self.close(key, State::Live)?;
        let table = Arc::clone(self);
        grace::after(touched, move || {
            let mut owner = table.owner(key.index());
            let region = owner.region.take();
            owner.state = State::Invalid;
            drop(owner);
            drop(region);
            done();
        });
        Ok(())
    }

    /// Turns (key, range, right) into bytes, if all of it is in order. Zero-length accesses always
    /// are: neither key nor range is looked at (IBTA vol. 1, 10.7.3 and C9-88).
    ///
    /// `need` is empty for gathering, `LOCAL_WRITE` for scattering, a remote right for a peer's
    /// access. After `None`, [`why`](Self::why) tells the reason.
    #[inline(always)]
    pub fn check<'p>(
        &self,
        pin: &'p Pin,
        key: u32,
        addr: u64,
        len: u32,
        pd: u32,
        need: Access,
    ) -> Option<Window<'p>> {
        match self.check_at_once(pin, key, addr, len, pd, need) {
            None => self.refuse(pin, key, addr, len, pd, need),
            window => window,
        }
    }

    /// As [`check`](Self::check), for code that must stay short: `None` also if more than a look is
    /// needed to tell, so that a refusal means nothing and leaves no reason.
    #[inline(always)]
    pub fn check_at_once<'p>(
        &self,
        pin: &'p Pin,
        key: u32,
        addr: u64,
        len: u32,
        pd: u32,
        need: Access,
    ) -> Option<Window<'p>> {
        if let Some(slot) = self.slots.get((key >> 8) as usize)
            && slot.word.admits_at_once(pin, TouchWord::TAG, key)
        {
            let offset = addr.wrapping_sub(slot.iova.load(Relaxed));
            if slot.grants(pd, need) && slot.covers(offset, len) {
                // SAFETY: the touch word has admitted this pin, so until the pin is left the slot
                // keeps its values and its memory; `host` starts `slot.len` valid bytes of it, and
                // the range was found to be within.
                return Some(unsafe { slot.window(offset, len) });
            }
        }
        None
    }

    /// Why the last [`check`](Self::check) under this pin that said `None` did so, decided from the
    /// values that it saw.
    #[cold]
    pub fn why(&self, pin: &Pin) -> Fault {
        match pin.note().load(Relaxed) {
            n if n == Fault::Pd as u8 => Fault::Pd,
            n if n == Fault::Access as u8 => Fault::Access,
            n if n == Fault::Bounds as u8 => Fault::Bounds,
            _ => Fault::Key,
        }
    }

    /// The region that has this key now, with a share of its memory; `None` if there is none.
    pub fn query(&self, key: LKey) -> Option<Region> {
        let owner = self.known(key.index()).ok()?;
        let current = owner.state == State::Live && owner.key_byte == key.key_byte();
        current.then(|| owner.region.clone()).flatten()
    }

    /// Keys in use, those from [`allocate`](Self::allocate) and those being taken away included.
    pub fn in_use(&self) -> u32 {
        self.capacity() - self.free.lock().indices.len() as u32
    }

    /// Regions that fit.
    pub fn capacity(&self) -> u32 {
        (self.slots.len() - 1) as u32
    }

    /// Checks refused because no region had the key: stale ones, most likely (K13).
    pub fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }

    /// The cold side of `check`: zero length, or a refusal, or values that changed meanwhile.
    #[cold]
    #[inline(never)]
    fn refuse<'p>(
        &self,
        pin: &'p Pin,
        key: u32,
        addr: u64,
        len: u32,
        pd: u32,
        need: Access,
    ) -> Option<Window<'p>> {
        if len == 0 {
            return Some(Window::empty());
        }
        let slot = self
            .slots
            .get((key >> 8) as usize)
            .filter(|slot| slot.word.admits(pin, TouchWord::TAG, key));
        let fault = match slot {
            None => {
                self.misses.fetch_add(1, Relaxed);
                Fault::Key
            }
            Some(slot) => {
                let offset = addr.wrapping_sub(slot.iova.load(Relaxed));
                if !slot.grants(pd, Access::empty()) {
                    Fault::Pd
                } else if !slot.grants(pd, need) {
                    Fault::Access
                } else if !slot.covers(offset, len) {
                    Fault::Bounds
                } else {
                    // SAFETY: as in `check`.
                    return Some(unsafe { slot.window(offset, len) });
                }
            }
        };
        pin.note().store(fault as u8, Relaxed);
        None
    }

    /// An unused index, and by how much its key byte is to change (never 0).
    fn take(&self) -> Result<(u32, u8), Error> {
        let mut free = self.free.lock();
        let Some(last) = free.indices.len().checked_sub(1) else {
            return Err(Error::Exhausted {
                attr: Attr::MaxMr,
                max: self.capacity(),
            });
        };
        let drawn = (u128::from(free.draw()) * (last as u128 + 1)) >> 64;
        let index = free.indices.swap_remove(drawn as usize);
        Ok((index, free.step()))
    }

    fn owner(&self, index: u32) -> MutexGuard<'_, Owner> {
        self.owners[index as usize].lock()
    }

    /// The owner's side of an index that somebody passed in.
    fn known(&self, index: u32) -> Result<MutexGuard<'_, Owner>, Error> {
        match self.owners.get(index as usize) {
            Some(owner) if index != 0 => Ok(owner.lock()),
            _ => Err(key_error(Why::Missing)),
        }
    }

    /// Fills a slot that nobody is admitted to and opens it.
    fn publish(
        &self,
        index: u32,
        owner: &mut Owner,
        region: Region,
        host: NonNull<u8>,
    ) -> (LKey, RKey) {
        let slot = &self.slots[index as usize];
        slot.iova.store(region.iova, Relaxed);
        slot.len.store(region.len as u64, Relaxed);
        slot.pd.store(region.pd, Relaxed);
        slot.access.store(region.access.bits(), Relaxed);
        slot.host.store(host.as_ptr(), Release);
        let key = index << 8 | u32::from(owner.key_byte);
        let keys = region.keys(key);
        owner.pd = region.pd;
        owner.region = Some(region);
        owner.state = State::Live;
        if owner.fast {
            slot.word.revive_fenced(key);
        } else {
            slot.word.revive(key);
        }
        keys
    }

    /// Shuts a slot: the key must be the current one, the state LIVE or `or`. Who must be waited for.
    fn close(&self, key: LKey, or: State) -> Result<Touched, Error> {
        let mut owner = self.known(key.index())?;
        if owner.state == State::Closing {
            return Err(Error::Closing);
        }
        if owner.state == State::Free || owner.key_byte != key.key_byte() {
            return Err(key_error(Why::Missing));
        }
        if owner.state != State::Live && owner.state != or {
            return Err(key_error(Why::State));
        }
        let touched = match owner.state {
            State::Live => self.slots[key.index() as usize].word.kill(),
            _ => None,
        };
        owner.state = State::Closing;
        Ok(touched.unwrap_or(Touched::NOBODY))
    }

    /// Empties a slot whose grace period is over, for the next one.
    fn vacate(&self, index: u32) -> Option<Region> {
        let mut owner = self.owner(index);
        let region = owner.region.take();
        owner.state = State::Free;
        drop(owner);
        self.free.lock().indices.push(index);
        region
    }

    /// Fills a slot whose grace period is over with another region.
    fn replace(&self, key: LKey, region: Region, host: &AtomicPtr<u8>) -> Option<Region> {
        let mut owner = self.owner(key.index());
        owner.key_byte = key.key_byte();
        let old = owner.region.take();
        if let Some(host) = NonNull::new(host.load(Relaxed)) {
            self.publish(key.index(), &mut owner, region, host);
        }
        old
    }
}

/// Windows do not borrow the table, so regions that are still registered go through a grace period
/// as well. (Those being taken away are none of ours: their job holds the table.)
impl Drop for MrTable {
    fn drop(&mut self) {
        let mut touched = Touched::NOBODY;
        let mut regions = Vec::new();
        for (slot, owner) in self.slots.iter().zip(&self.owners) {
            if let Some(region) = owner.lock().region.take() {
                touched = touched.and(slot.word.kill().unwrap_or_default());
                regions.push(region);
            }
        }
        if !regions.is_empty() {
            grace::after(touched, move || drop(regions));
        }
    }
}

impl Slot {
    #[inline(always)]
    fn grants(&self, pd: u32, need: Access) -> bool {
        let allows = || self.access.load(Relaxed) & need.bits() == need.bits();
        self.pd.load(Relaxed) == pd && (need.is_empty() || allows())
    }

    #[inline(always)]
    fn covers(&self, offset: u64, len: u32) -> bool {
        let size = self.len.load(Relaxed);
        u64::from(len) <= size && offset <= size - u64::from(len)
    }

    /// # Safety
    /// The pin that `'p` stands for was admitted, and `covers` said yes to this range.
    #[inline(always)]
    unsafe fn window<'p>(&self, offset: u64, len: u32) -> Window<'p> {
        let host = self.host.load(Relaxed);
        // SAFETY: a live slot's `host` is not null and starts `slot.len` bytes of one allocation, of
        // which `offset..offset + len` is a part; they stay valid for `'p` as the caller says.
        unsafe { Window::new(NonNull::new_unchecked(host.add(offset as usize)), len) }
    }
}

impl Free {
    /// The next number of a SplitMix64 sequence.
    fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.draws ^ (self.draws >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 1 to 255: a key byte always changes.
    fn step(&mut self) -> u8 {
        (self.draw() % 255) as u8 + 1
    }
}

fn key_error(why: Why) -> Error {
    Error::Mismatch {
        attr: Attr::Key,
        why,
    }
}
