//! From keys to regions.

use std::hint::cold_path;
use std::ptr::{NonNull, null_mut};

use super::bind::unbind;
use super::entry::{Slot, View};
use super::owner::{Owner, State, What};
use crate::addr::{LKey, RKey};
use crate::error::{Attr, Error, Why};
use crate::mem::access::{Access, Who};
use crate::mem::grace;
use crate::mem::pages::Span;
use crate::mem::pin::Pin;
use crate::mem::region::{Fault, Keys, Region};
use crate::mem::touch::{TouchWord, Touched};
use crate::mem::window::Window;
use crate::seed::{Draws, Seed};
use crate::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use crate::sync::{Arc, Mutex, MutexGuard};

/// The regions of one device, by key.
///
/// A key is an index and, in the low byte, a number that changes whenever the index is used again, so a stale key
/// misses (K13). Index 0 is never used. The next index and byte are drawn from the [`Seed`]: if that is a secret,
/// a party that sees some keys cannot predict the others, however many it sees; if it is a number, the keys
/// repeat and are no secret.
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
/// A check succeeds only in LIVE. A slot's values change only outside LIVE and after the grace period of its last
/// life; so a thread admitted by the touch word reads consistent values and bytes that still exist. The region's
/// `Arc<Memory>` is dropped after the grace period.
///
/// Keys of fast registrations and of memory windows change from LIVE to INVALID and back on the data path, by one
/// step each; the grace period of their last life is part of INVALID.
///
/// # Locks
///
/// Each index has a lock, which is held for a few steps. The holder of a window's lock may take that of a region,
/// never that of another window, and the holder of a region's lock takes none: so posts of binds that name each
/// other's keys do not deadlock. `MrTable::region` is the only function that takes a second lock.
#[derive(Debug)]
pub struct MrTable {
    slots: Box<[Slot]>,
    owners: Box<[Mutex<Owner>]>,
    /// Whether an index belongs to a window; changed under its lock.
    windows: Box<[AtomicBool]>,
    free: Mutex<Free>,
    misses: AtomicU64,
}

/// The unused indices and the source of random numbers.
#[derive(Debug)]
struct Free {
    indices: Vec<u32>,
    draws: Draws,
}

impl MrTable {
    /// Regions that a table can hold: keys have 24 bits of index, and the top one is not used.
    pub const CAPACITY_MAX: u32 = (1 << 23) - 1;

    /// A table for `capacity` regions and windows (at most [`CAPACITY_MAX`](Self::CAPACITY_MAX)), about 200 bytes
    /// each, all allocated here. The seed determines the sequence of keys: use a number, or a secret if peers
    /// must not predict keys.
    pub fn new(capacity: u32, seed: impl Into<Seed>) -> Self {
        let capacity = capacity.min(Self::CAPACITY_MAX);
        Self {
            slots: (0..=capacity).map(|_| Slot::closed()).collect(),
            owners: (0..=capacity).map(|_| Mutex::default()).collect(),
            windows: (0..=capacity).map(|_| AtomicBool::new(false)).collect(),
            free: Mutex::new(Free {
                indices: (1..=capacity).collect(),
                draws: Draws::new(seed),
            }),
            misses: AtomicU64::new(0),
        }
    }

    /// Registers a region and returns its keys, which are valid at once. The remote key is 0, which no region
    /// has, if no remote right is granted.
    ///
    /// Never waits; takes as long for a gigabyte as for a byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the range extends beyond the memory, [`Error::Mismatch`] for inconsistent access
    /// flags or an address range beyond the address space, [`Error::Unsupported`] or [`Error::NoCapability`] for flags that software does not take,
    /// [`Error::Exhausted`] if the table is full.
    pub fn register(&self, mut region: Region) -> Result<(LKey, RKey), Error> {
        let host = region.check()?;
        let (index, step) = self.take()?;
        let mut owner = self.owner(index);
        owner.key_byte = owner.key_byte.wrapping_add(step);
        owner.what = What::Plain;
        // SAFETY: a free index admits no thread, and no thread was left when it became free.
        Ok(unsafe { self.publish(index, &mut owner, region, host) })
    }

    /// Withdraws a region or a window for good. After this call returns, its key misses; `done` runs when no
    /// thread can be accessing its bytes any longer and the table has dropped the memory: at once if no other
    /// thread is inside, otherwise on the thread that leaves last.
    ///
    /// Never waits. See [`grace::after`] for where `done` runs.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if no region has this key, [`Error::Closing`] if it is already being withdrawn,
    /// [`Error::Busy`] while windows are bound to it. `done` is then dropped.
    ///
    /// A key with a byte chosen by the consumer is identified by its index.
    pub fn deregister(
        self: &Arc<Self>,
        key: LKey,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let touched = self.close(key, State::Invalid)?;
        self.settle(key.index());
        let table = Arc::clone(self);
        grace::after(touched, move || {
            let left = table.vacate(key.index());
            drop(left);
            done();
        });
        Ok(())
    }

    /// Replaces a region by another: other rights, protection domain, memory or address. The old key misses from
    /// now on; the returned one, the same or the next, is valid when `done` runs.
    ///
    /// Never waits. See [`grace::after`] for where `done` runs.
    ///
    /// # Errors
    /// As for [`register`](Self::register) and [`deregister`](Self::deregister); the old region is unchanged.
    /// Keys from [`allocate`](Self::allocate) cannot be re-registered.
    pub fn reregister(
        self: &Arc<Self>,
        key: LKey,
        mut region: Region,
        keys: Keys,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<(LKey, RKey), Error> {
        // The wrapped pointer can be moved into a job on another thread.
        let host = AtomicPtr::new(region.check()?.as_ptr());
        if !matches!(self.known(key.index())?.what, What::Plain) {
            return Err(key_error(Why::State));
        }
        let step = match keys {
            Keys::New => self.free.lock().step(),
            Keys::Kept => 0,
        };
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

    /// Turns (key, range, right) into bytes, if all of it is valid. Zero-length accesses always are: neither key
    /// nor range is checked (IBTA vol. 1, 10.7.3 and C9-88).
    ///
    /// `need` is empty for gathering, `LOCAL_WRITE` for scattering, a remote right for a peer's access. After
    /// `None`, [`why`](Self::why) returns the reason.
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
        match self.check_at_once(pin, key, addr, len, &pd, need) {
            None => self
                .look(pin, key, addr, len, Who { pd, qpn: 0 }, need)?
                .window(),
            window => window,
        }
    }

    /// As [`check`](Self::check), for any key: also for bytes in several pieces, and memory that only one queue
    /// pair may access.
    #[inline]
    pub fn find<'p>(
        &self,
        pin: &'p Pin,
        key: u32,
        addr: u64,
        len: u32,
        who: Who,
        need: Access,
    ) -> Option<Span<'p>> {
        match self.check_at_once(pin, key, addr, len, &who.pd, need) {
            None => self.look(pin, key, addr, len, who, need),
            Some(window) => Some(window.into()),
        }
    }

    /// As [`check`](Self::check), for code that must stay short: also `None` if one look is not enough to decide,
    /// so a refusal has no meaning and leaves no reason. `pd` is read when it is compared.
    #[inline(always)]
    pub fn check_at_once<'p>(
        &self,
        pin: &'p Pin,
        key: u32,
        addr: u64,
        len: u32,
        pd: &u32,
        need: Access,
    ) -> Option<Window<'p>> {
        // The refusing code is cold, so no result is built just to say yes or no.
        let slot = self.slots.get((key >> 8) as usize)?;
        if !slot.word.admits_at_once(pin, TouchWord::TAG, key) {
            cold_path();
            return None;
        }
        // SAFETY: the touch word has admitted this pin.
        let view = unsafe { slot.view() };
        if !view.grants(*pd, need) {
            cold_path();
            return None;
        }
        let Some(last) = view.len.checked_sub(u64::from(len)) else {
            cold_path();
            return None;
        };
        let offset = addr.wrapping_sub(view.iova);
        if offset > last {
            cold_path();
            return None;
        }
        // SAFETY: until the pin is left the slot keeps its values and its memory; `host` starts `len` valid bytes
        // of it, and the range was found to be within.
        Some(unsafe { view.window(offset, len) })
    }

    /// Whether a key grants a right, without a range.
    ///
    /// # Errors
    /// Why not.
    pub fn grants(&self, pin: &Pin, key: u32, who: Who, need: Access) -> Result<(), Fault> {
        let slot = self.slots.get((key >> 8) as usize);
        let admitted = slot.filter(|slot| slot.word.admits(pin, TouchWord::TAG, key));
        // SAFETY: it has admitted this pin.
        match unsafe { admitted.ok_or(Fault::Key)?.view() }.judge(who, need) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// The rights among `need` that a local key does not grant, and whether work requests may change its rights. `None`
    /// if it grants all of them, or if it is not now a key of that protection domain: its rights are then unknown.
    pub fn missing_rights(
        &self,
        pin: &Pin,
        key: LKey,
        pd: u32,
        need: Access,
    ) -> Option<(Access, bool)> {
        let slot = self.slots.get(key.index() as usize)?;
        if !slot.word.admits(pin, TouchWord::TAG, key.value()) {
            return None;
        }
        // SAFETY: the touch word has admitted this pin.
        let view = unsafe { slot.view() };
        let missing = need.difference(Access::from_bits_retain(view.access));
        let is_known = view.pd == pd && !missing.is_empty();
        // Keys whose rights work requests change have pages.
        is_known.then_some((missing, !view.pages.is_null()))
    }

    /// Why the last [`check`](Self::check) under this pin returned `None`, decided from the values that it saw.
    #[cold]
    pub fn why(&self, pin: &Pin) -> Fault {
        match pin.note().load(Relaxed) {
            n if n == Fault::Pd as u8 => Fault::Pd,
            n if n == Fault::Access as u8 => Fault::Access,
            n if n == Fault::Bounds as u8 => Fault::Bounds,
            n if n == Fault::Qp as u8 => Fault::Qp,
            _ => Fault::Key,
        }
    }

    /// The region that has this key now, with a share of its memory; `None` if there is none.
    pub fn query(&self, key: LKey) -> Option<Region> {
        let owner = self.known(key.index()).ok()?;
        let current = owner.state == State::Live && owner.key_byte == key.key_byte();
        current.then(|| owner.region.clone()).flatten()
    }

    /// Keys in use, including those from [`allocate`](Self::allocate) and those being withdrawn.
    pub fn in_use(&self) -> u32 {
        self.capacity() - self.free.lock().indices.len() as u32
    }

    /// The number of regions that fit.
    pub fn capacity(&self) -> u32 {
        (self.slots.len() - 1) as u32
    }

    /// Checks refused because no region had the key, which was most likely stale (K13).
    pub fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }

    /// The cold side of `check`: zero length, a key of the data path, a refusal, or values that changed during
    /// the check.
    #[cold]
    #[inline(never)]
    fn look<'p>(
        &self,
        pin: &'p Pin,
        key: u32,
        addr: u64,
        len: u32,
        who: Who,
        need: Access,
    ) -> Option<Span<'p>> {
        if len == 0 {
            return Some(Span::empty());
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
                // SAFETY: it has admitted this pin.
                let view = unsafe { slot.view() };
                let offset = addr.wrapping_sub(view.iova);
                match view.judge(who, need) {
                    Some(fault) => fault,
                    None if !view.covers(offset, len) => Fault::Bounds,
                    // SAFETY: as in `check_at_once`; for a region in pieces the list keeps its memory, and
                    // neither changes before this pin is left.
                    None => return Some(unsafe { view.span(offset, len) }),
                }
            }
        };
        pin.note().store(fault as u8, Relaxed);
        None
    }

    /// An unused index, and the change of its key byte (never 0).
    pub(super) fn take(&self) -> Result<(u32, u8), Error> {
        let mut free = self.free.lock();
        let Some(last) = free.indices.len().checked_sub(1) else {
            return Err(Error::Exhausted {
                attr: Attr::MaxMr,
                max: self.capacity(),
            });
        };
        let drawn = free.draws.below(last as u64 + 1);
        let index = free.indices.swap_remove(drawn as usize);
        Ok((index, free.step()))
    }

    pub(super) fn owner(&self, index: u32) -> MutexGuard<'_, Owner> {
        self.owners[index as usize].lock()
    }

    /// The owner's side of an index that a caller passed in.
    pub(super) fn known(&self, index: u32) -> Result<MutexGuard<'_, Owner>, Error> {
        match self.owners.get(index as usize) {
            Some(owner) if index != 0 => Ok(owner.lock()),
            _ => Err(key_error(Why::Missing)),
        }
    }

    /// The owner's side of a region, for the holder of a window's lock. `None` if the index belongs to a window
    /// or is free.
    ///
    /// The check is an RMW, and so is every change: a thread that finds no window there precedes the change that
    /// makes the index a window, so a circle of threads that hold windows and wait for each other's would need
    /// each of them to have checked before itself.
    pub(super) fn region(&self, index: u32) -> Option<MutexGuard<'_, Owner>> {
        let is_window = self.windows.get(index as usize)?;
        if index == 0 || is_window.fetch_or(false, AcqRel) {
            return None;
        }
        let owner = self.owner(index);
        // It may have become one since.
        (!matches!(owner.what, What::Window(_))).then_some(owner)
    }

    /// Marks a locked index as a window's or not.
    pub(super) fn mark_window(&self, index: u32, is_window: bool) {
        self.windows[index as usize].swap(is_window, AcqRel);
    }

    /// Every index that belongs to a window; indices that become windows during the call may be missing.
    pub(super) fn windows(&self) -> impl Iterator<Item = u32> {
        let marked = |index: &u32| self.windows[*index as usize].load(Acquire);
        (1..=self.capacity()).filter(marked)
    }

    /// Fills a slot and opens it.
    ///
    /// # Safety
    /// As for [`MrTable::show`].
    unsafe fn publish(
        &self,
        index: u32,
        owner: &mut Owner,
        region: Region,
        host: NonNull<u8>,
    ) -> (LKey, RKey) {
        let keys = region.keys(index << 8 | u32::from(owner.key_byte));
        let view = View {
            iova: region.iova,
            len: region.len as u64,
            pd: region.pd,
            access: region.access.bits(),
            host: host.as_ptr(),
            pages: null_mut(),
            count: 0,
            base: 0,
            qpn: 0,
        };
        owner.pd = region.pd;
        owner.region = Some(region);
        // SAFETY: as the caller says.
        unsafe { self.show(index, owner, view) };
        keys
    }

    /// Fills a slot and opens it under its key byte.
    ///
    /// # Safety
    /// It is that slot's owner, its word admits no thread, and the grace period of the threads that it admitted
    /// is over.
    #[inline(always)]
    pub(super) unsafe fn show(&self, index: u32, owner: &mut Owner, view: View) {
        let slot = &self.slots[index as usize];
        // SAFETY: as the caller says; a thread that has the owner has locked it.
        unsafe { slot.set(view) };
        owner.state = State::Live;
        let key = index << 8 | u32::from(owner.key_byte);
        match owner.what {
            What::Plain => slot.word.revive(key),
            What::Fast(_) | What::Window(_) => slot.word.revive_fenced(key),
        }
    }

    /// A slot's view. For a thread that has locked its owner.
    pub(super) fn seen(&self, index: u32) -> View {
        // SAFETY: its owner is locked, as the caller says.
        unsafe { *self.slots[index as usize].view() }
    }

    pub(super) fn word(&self, index: u32) -> &TouchWord {
        &self.slots[index as usize].word
    }

    /// Closes a slot: the key must be the current one, the state LIVE or `or`. Returns the threads to wait for.
    fn close(&self, key: LKey, or: State) -> Result<Touched, Error> {
        let mut owner = self.known(key.index())?;
        if owner.state == State::Closing {
            return Err(Error::Closing);
        }
        let plain = matches!(owner.what, What::Plain);
        if owner.state == State::Free || plain && owner.key_byte != key.key_byte() {
            return Err(key_error(Why::Missing));
        }
        if owner.windows != 0 {
            return Err(Error::Busy);
        }
        if owner.state != State::Live && owner.state != or {
            return Err(key_error(Why::State));
        }
        let touched = match owner.state {
            State::Live => self.word(key.index()).kill(),
            _ => None,
        };
        owner.state = State::Closing;
        owner.wait_for(touched.unwrap_or(Touched::NOBODY));
        unbind(self, key.index(), &mut owner);
        let drain = std::mem::take(&mut owner.drain);
        if let What::Fast(fast) = &mut owner.what {
            fast.drain(drain);
        }
        Ok(drain)
    }

    /// Empties a slot whose grace period is over, for the next use. Its contents are dropped with no lock held.
    fn vacate(&self, index: u32) -> (Option<Region>, What) {
        let mut owner = self.owner(index);
        let left = (owner.region.take(), std::mem::take(&mut owner.what));
        owner.target = None;
        owner.state = State::Free;
        self.mark_window(index, false);
        drop(owner);
        self.free.lock().indices.push(index);
        left
    }

    /// Fills a slot whose grace period is over with another region.
    fn replace(&self, key: LKey, region: Region, host: &AtomicPtr<u8>) -> Option<Region> {
        let mut owner = self.owner(key.index());
        owner.key_byte = key.key_byte();
        let old = owner.region.take();
        if let Some(host) = NonNull::new(host.load(Relaxed)) {
            // SAFETY: the grace period is over, as the caller says, and no other thread opens a slot that is
            // closing.
            unsafe { self.publish(key.index(), &mut owner, region, host) };
        }
        old
    }
}

/// Windows do not borrow the table, so regions that are still registered need a grace period as well. (Those
/// being withdrawn are not handled here: their job holds the table.)
impl Drop for MrTable {
    fn drop(&mut self) {
        let mut touched = Touched::NOBODY;
        let mut regions = Vec::new();
        for (slot, owner) in self.slots.iter().zip(&self.owners) {
            let mut owner = owner.lock();
            let (region, what) = (owner.region.take(), std::mem::take(&mut owner.what));
            if owner.state != State::Free {
                touched = touched.and(slot.word.kill().unwrap_or_default());
                touched = touched.and(owner.drain);
                regions.push((region, what));
            }
        }
        if !regions.is_empty() {
            grace::after(touched, move || drop(regions));
        }
    }
}

impl Free {
    /// 1 to 255: a key byte always changes.
    fn step(&mut self) -> u8 {
        (self.draws.draw() % 255) as u8 + 1
    }
}

pub(super) fn key_error(why: Why) -> Error {
    Error::Mismatch {
        attr: Attr::Key,
        why,
    }
}
