//! Keys that the data path makes valid and invalid: fast registration and invalidation.
//!
//! A key of this kind is *fenced* ([`TouchWord`](super::TouchWord)), so that taking it away needs no
//! process-wide barrier. It costs a look at who is inside; the caller's own thread is left out, as it is
//! not in the middle of a copy. Nothing is dropped here: pages go to the consumer's next mapping, which
//! waits until nobody can be looking at them, and what a window held goes when [`MrTable::settle`] is
//! called outside pins.

use std::ptr::null_mut;

use super::access::{Access, Who};
use super::bind::unbind;
use super::entry::View;
use super::grace;
use super::owner::{Owner, State, What};
use super::pages::{Layout, PageList};
use super::region::Fault;
use super::table::MrTable;
use super::touch::Touched;
use crate::addr::LKey;
use crate::error::{Attr, Error, Why};
use crate::sync::Arc;
use crate::wr::Registration;

/// Why a key could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It cannot, now or later.
    Fault(Fault),
    /// Another thread may still be looking at what the key stood for before; see
    /// [`MrTable::when_over`].
    Later,
}

impl From<Fault> for Stopped {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What an invalidation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidated {
    /// No other thread can be looking at the bytes any more.
    pub over: bool,
    /// [`MrTable::settle`] is to be called when the pin was left.
    pub settle: bool,
}

/// The lists of a key for fast registration.
#[derive(Debug)]
pub(super) struct Fast {
    layout: Layout,
    /// What the next registration takes.
    staged: PageList,
    /// What is registered, or was last.
    active: PageList,
    /// Mappings so far.
    mapping: u32,
    /// `staged` was not registered yet.
    fresh: bool,
}

impl Fast {
    /// Whoever was admitted may be looking at the active list.
    pub(super) fn drain(&mut self, drain: Touched) {
        self.active.drain = self.active.drain.and(drain);
    }
}

impl MrTable {
    /// Reserves a key for fast registration of up to `room` pages: [`stage`](Self::stage) tells which
    /// pages, [`map`](Self::map) makes it valid, on the data path.
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

    /// Takes a key that is not valid yet, and gives its number.
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

    /// Gives an allocated key the pages for its next registration, by exchanging its list for this one.
    /// Which mapping that is. Legal while the key is valid; nothing changes for those who use it.
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

    /// Gives an allocated key other pages at once, and makes it valid under that key if it was not: for
    /// pools. The first byte is reached at `iova`; `list` becomes the one that it had.
    ///
    /// # Errors
    /// [`Stopped::Later`]: somebody is looking at what it stood for, and the key is invalid now.
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
        // SAFETY: it was killed, and those that were admitted have left (`drain`).
        unsafe { self.show(key.index(), &mut owner, view) };
        Ok(())
    }

    /// Makes an allocated key invalid, whatever its byte, and ends the windows that are bound to it: who may
    /// still be looking at its bytes.
    ///
    /// Never waits; looks at every window of the table if one is bound. Outside pins and locks: a destroy
    /// that one of the windows has delayed goes on.
    pub fn retire(&self, index: u32) -> Touched {
        let windows = match self.known(index) {
            Ok(mut owner) if matches!(owner.what, What::Fast(_)) => {
                // No window is bound to what is not live, so there will be no more of them.
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

    /// Takes back the pages of a key that is not valid, by exchanging its list for this one, which is
    /// empty. `false`: the key is valid.
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
            // They show the bytes of the list.
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

    /// Makes an allocated, invalid key valid (the REG_MR work request). Allocates nothing, and takes as
    /// long for many pages as for one.
    ///
    /// # Errors
    /// [`Stopped::Fault`]: the key was not allocated or its domain is another one, it is valid now, the
    /// mapping is not the newest, the rights do not go together, or the address does not fit.
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
        // SAFETY: it is invalid, and those that were admitted when it was not have left (`drain`).
        unsafe { self.show(index, &mut owner, view) };
        Ok(())
    }

    /// Makes a key invalid (the LOCAL_INV work request, a SEND with invalidate): one of a fast
    /// registration, or of a window of type 2 that is bound to the queue pair. One that is invalid
    /// already stays so.
    ///
    /// From the return of this call on the key misses; who got in before may still be looking.
    ///
    /// # Errors
    /// Why this key cannot be made invalid by that queue pair.
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

    /// Shuts a slot that is live, if it is, and notes who may still be inside.
    pub(super) fn kill(&self, index: u32, owner: &mut Owner) {
        if owner.state == State::Live {
            let touched = self.word(index).kill().unwrap_or(Touched::NOBODY);
            owner.state = State::Invalid;
            owner.wait_for(touched);
        }
    }

    /// Runs `job` when nobody can be looking any more at what a key stood for before. Outside any pin; see
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
    /// These threads may be looking at what the key stood for.
    pub(super) fn wait_for(&mut self, touched: Touched) {
        self.drain = self.drain.and(touched);
        self.epoch = self.epoch.wrapping_add(1);
    }
}

/// The address that the first byte of a list is reached at.
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
