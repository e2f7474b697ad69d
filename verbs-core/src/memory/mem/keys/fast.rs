//! Keys that the data path makes valid and invalid: fast registration and invalidation.
//!
//! A key of this kind is *fenced* ([`TouchWord`](crate::mem::TouchWord)), so invalidating it needs no process-wide
//! barrier, only a check for threads that are inside. The caller's own thread is left out, because it is not in
//! the middle of a copy. Nothing is dropped here: pages are kept for the consumer's next mapping, which waits
//! until no thread can be reading them, and a window's holds are released when [`MrTable::settle`] is called
//! outside pins.

use std::ptr::null_mut;

use super::bind::unbind;
use super::entry::View;
use super::owner::{Fast, Owner, State, What};
use super::table::MrTable;
use crate::addr::LKey;
use crate::error::{Attr, Error, Why};
use crate::mem::access::{Access, Who};
use crate::mem::grace;
use crate::mem::pages::{Layout, PageList};
use crate::mem::region::Fault;
use crate::mem::touch::Touched;
use crate::sync::Arc;
use crate::wr::Registration;

/// Why a key could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It never can.
    Fault(Fault),
    /// Another thread may still be reading the key's earlier memory; see [`MrTable::when_over`].
    Later,
}

impl From<Fault> for Stopped {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The result of an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidated {
    /// No other thread can be reading the bytes any longer.
    pub over: bool,
    /// [`MrTable::settle`] must be called after the pin has been left.
    pub settle: bool,
}

impl MrTable {
    /// Reserves a key for fast registration of up to `room` pages: [`stage`](Self::stage) sets the pages,
    /// [`map`](Self::map) makes it valid, on the data path.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if the table is full, [`Error::NoMemory`], [`Error::Mismatch`] for a layout
    /// that no list can have.
    pub fn allocate(&self, pd: u32, layout: Layout, room: u32) -> Result<LKey, Error> {
        layout.check()?;
        let fast = Box::new(Fast {
            layout,
            staged: PageList::new(room)?,
            active: PageList::new(room)?,
            mapping: 0,
            fresh: false,
        });
        Ok(LKey::new(self.reserve(pd, What::Fast(fast))?))
    }

    /// Reserves a key that is not valid yet, and returns its number.
    pub(super) fn reserve(&self, pd: u32, what: What) -> Result<u32, Error> {
        let (index, step) = self.take()?;
        let mut owner = self.owner(index);
        owner.key_byte = owner.key_byte.wrapping_add(step);
        self.mark_window(index, matches!(what, What::Window(_)));
        owner.what = what;
        owner.pd = pd;
        owner.state = State::Invalid;
        Ok(index << 8 | u32::from(owner.key_byte))
    }

    /// Gives an allocated key the pages for its next registration, by exchanging its list for this one. Returns
    /// the number of that mapping. Legal while the key is valid; its users see no change.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the index was not allocated.
    pub fn stage(&self, index: u32, list: &mut PageList) -> Result<u32, Error> {
        let mut owner = self.known(index)?;
        let What::Fast(fast) = &mut owner.what else {
            return Err(not_allocated());
        };
        std::mem::swap(&mut fast.staged, list);
        fast.fresh = true;
        fast.mapping = fast.mapping.wrapping_add(1);
        Ok(fast.mapping)
    }

    /// Gives an allocated key other pages at once, and makes it valid under that key if it was not: for pools.
    /// The first byte has the address `iova`; `list` becomes the key's earlier list.
    ///
    /// # Errors
    /// [`Stopped::Later`]: a thread is reading the earlier memory, and the key is now invalid.
    pub fn remap(
        &self,
        key: LKey,
        list: &mut PageList,
        iova: u64,
        access: Access,
    ) -> Result<(), Stopped> {
        let mut owner = self.known(key.index()).map_err(|_| Fault::Key)?;
        if owner.windows != 0 {
            return Err(Fault::Windows.into());
        }
        self.kill(key.index(), &mut owner);
        let Owner {
            what, drain, pd, ..
        } = &mut *owner;
        let What::Fast(fast) = what else {
            return Err(Fault::State.into());
        };
        if !grace::is_over(drain) {
            return Err(Stopped::Later);
        }
        fast.drain(*drain);
        std::mem::swap(&mut fast.active, list);
        let (pages, count) = fast.active.pages();
        let view = View {
            iova,
            len: fast.active.len(),
            pd: *pd,
            access: access.bits(),
            host: null_mut(),
            pages,
            count,
            base: 0,
            qpn: 0,
        };
        (owner.drain, owner.epoch) = (Touched::NOBODY, owner.epoch.wrapping_add(1));
        owner.key_byte = key.key_byte();
        // SAFETY: it was killed, and the threads that were admitted have left (`drain`).
        unsafe { self.show(key.index(), &mut owner, view) };
        Ok(())
    }

    /// Makes an allocated key invalid, whatever its byte, and ends the windows that are bound to it; returns the
    /// threads that may still be reading its bytes.
    ///
    /// Never waits; checks every window of the table if one is bound. To be called outside pins and locks: a
    /// destroy that one of the windows has delayed continues.
    pub fn retire(&self, index: u32) -> Touched {
        let windows = match self.known(index) {
            Ok(mut owner) if matches!(owner.what, What::Fast(_)) => {
                // No window can be bound to a region that is not live, so no more are added.
                self.kill(index, &mut owner);
                owner.windows
            }
            _ => return Touched::NOBODY,
        };
        if windows != 0 {
            self.unbind_all(index);
        }
        self.known(index)
            .map_or(Touched::NOBODY, |owner| owner.drain)
    }

    /// Takes back the pages of a key that is not valid, by exchanging its list for this one, which is empty.
    /// `false`: the key is valid.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the index was not allocated, [`Error::Busy`] while windows are bound to it.
    pub fn unstage(&self, index: u32, list: &mut PageList) -> Result<bool, Error> {
        let mut owner = self.known(index)?;
        let (valid, drain) = (owner.state != State::Invalid, owner.drain);
        let windows = owner.windows;
        let What::Fast(fast) = &mut owner.what else {
            return Err(not_allocated());
        };
        if windows != 0 {
            // They refer to the bytes of the list.
            return Err(Error::Busy);
        }
        if !valid {
            fast.drain(drain);
            std::mem::swap(&mut fast.active, list);
            fast.fresh = false;
            fast.mapping = fast.mapping.wrapping_add(1);
        }
        Ok(!valid)
    }

    /// Makes an allocated, invalid key valid (the REG_MR work request). Allocates nothing, and takes as long for
    /// many pages as for one.
    ///
    /// # Errors
    /// [`Stopped::Fault`]: the key was not allocated or its domain is another one, it is already valid, the
    /// mapping is not the newest, the rights are inconsistent, or the address does not fit.
    pub fn map(&self, what: &Registration, pd: u32) -> Result<(), Stopped> {
        let index = what.key.index();
        let mut owner = self.known(index).map_err(|_| Fault::Key)?;
        let state = owner.state;
        if owner.pd != pd {
            return Err(Fault::Pd.into());
        }
        let Owner {
            what: kind, drain, ..
        } = &mut *owner;
        let What::Fast(fast) = kind else {
            return Err(Fault::State.into());
        };
        if state != State::Invalid {
            return Err(Fault::State.into());
        }
        if fast.mapping != what.mapping {
            return Err(Fault::Mapping.into());
        }
        if what.access.check().is_err() {
            return Err(Fault::Access.into());
        }
        let list = if fast.fresh {
            &fast.staged
        } else {
            &fast.active
        };
        let iova = place(list, fast.layout, what)?;
        if !grace::is_over(drain) {
            return Err(Stopped::Later);
        }
        fast.drain(*drain);
        if fast.fresh {
            std::mem::swap(&mut fast.staged, &mut fast.active);
            fast.fresh = false;
        }
        let (len, (pages, count)) = (fast.active.len(), fast.active.pages());
        (owner.drain, owner.epoch) = (Touched::NOBODY, owner.epoch.wrapping_add(1));
        owner.key_byte = what.key.key_byte();
        let view = View {
            iova,
            len,
            pd,
            access: what.access.bits(),
            host: null_mut(),
            pages,
            count,
            base: 0,
            qpn: 0,
        };
        // SAFETY: it is invalid, and the threads that were admitted while it was valid have left (`drain`).
        unsafe { self.show(index, &mut owner, view) };
        Ok(())
    }

    /// Makes a key invalid (the LOCAL_INV work request, a SEND with invalidate): that of a fast registration, or
    /// of a window of type 2 that is bound to the queue pair. A key that is already invalid stays so.
    ///
    /// After this call returns, the key misses; threads that entered before may still be reading.
    ///
    /// # Errors
    /// Why that queue pair cannot invalidate this key.
    pub fn invalidate(&self, key: u32, who: Who) -> Result<Invalidated, Fault> {
        let mut owner = self.known(key >> 8).map_err(|_| Fault::Key)?;
        let current = matches!(owner.state, State::Live | State::Invalid);
        if !current || u32::from(owner.key_byte) != key & 0xff {
            return Err(Fault::Key);
        }
        let settle = match &owner.what {
            What::Plain => return Err(Fault::State),
            What::Fast(_) if owner.pd != who.pd => return Err(Fault::Pd),
            What::Fast(_) if owner.windows != 0 => return Err(Fault::Windows),
            What::Fast(_) => {
                self.kill(key >> 8, &mut owner);
                false
            }
            What::Window(window) => {
                window.may_invalidate(owner.pd, who)?;
                unbind(self, key >> 8, &mut owner)
            }
        };
        let over = grace::is_over(&mut owner.drain);
        Ok(Invalidated { over, settle })
    }

    /// Closes a slot if it is live, and records which threads may still be inside.
    pub(super) fn kill(&self, index: u32, owner: &mut Owner) {
        if owner.state == State::Live {
            let touched = self.word(index).kill().unwrap_or(Touched::NOBODY);
            owner.state = State::Invalid;
            owner.wait_for(touched);
        }
    }

    /// Runs `job` when no thread can be reading a key's earlier memory any longer. Call it outside any pin; see
    /// [`grace::after`] for where it runs.
    pub fn when_over(self: &Arc<Self>, index: u32, job: impl FnOnce() + Send + 'static) {
        self.settle(index);
        let Ok(owner) = self.known(index) else {
            return job();
        };
        let (drain, epoch) = (owner.drain, owner.epoch);
        drop(owner);
        let table = Arc::clone(self);
        grace::after(drain, move || {
            if let Ok(mut owner) = table.known(index)
                && owner.epoch == epoch
            {
                owner.drain = Touched::NOBODY;
            }
            job();
        });
    }
}

impl Owner {
    /// These threads may be reading the key's memory.
    pub(super) fn wait_for(&mut self, touched: Touched) {
        self.drain = self.drain.and(touched);
        self.epoch = self.epoch.wrapping_add(1);
    }
}

/// The address of the first byte of a list.
fn place(list: &PageList, layout: Layout, what: &Registration) -> Result<u64, Fault> {
    let iova = if what.access.contains(Access::ZERO_BASED) {
        0
    } else {
        what.iova
    };
    if let Layout::Pages(size) = layout
        && !what.access.contains(Access::ZERO_BASED)
        && !list.is_empty()
        && !(iova ^ list.addr()).is_multiple_of(u64::from(size))
    {
        return Err(Fault::Alignment);
    }
    match iova.checked_add(list.len()) {
        Some(_) => Ok(iova),
        None => Err(Fault::Bounds),
    }
}

fn not_allocated() -> Error {
    Error::Mismatch {
        attr: Attr::Key,
        why: Why::State,
    }
}
