//! Memory windows: keys to parts of regions, bound on the data path.
//!
//! A window's slot holds the address of its region's bytes, so an access reads only one slot. It keeps no memory
//! of its own: the region counts its windows and waits for threads that entered through one.

use super::entry::{ANY_PD, ONE_QP, REMOTE_ONLY, View};
use super::fast::Stopped;
use super::owner::{Bound, Owner, State, What, WindowOwner};
use super::table::{MrTable, key_error};
use crate::addr::{Qpn, RKey};
use crate::error::{Error, Why};
use crate::mem::access::{Access, Who, WindowType};
use crate::mem::grace;
use crate::mem::region::Fault;
use crate::mem::touch::Touched;
use crate::mw::MwRange;
use crate::object::{Hold, ObjectKind, Target};
use crate::sync::Arc;
use crate::wr::Binding;

/// Ends a window's binding, if there is one; returns whether [`MrTable::settle`] must be called.
pub(super) fn unbind(table: &MrTable, index: u32, owner: &mut Owner) -> bool {
    table.kill(index, owner);
    let drain = owner.drain;
    let What::Window(window) = &mut owner.what else {
        return false;
    };
    let Some(mut bound) = window.bound.take() else {
        return window.gone.is_some();
    };
    if let Some(mut region) = table.region(bound.region) {
        region.windows -= 1;
        region.wait_for(drain);
        if let What::Fast(fast) = &mut region.what {
            fast.drain(drain);
        }
    }
    // A thread that sees the completion finds the region free.
    bound.holds.iter_mut().flatten().for_each(Hold::let_go);
    window.gone = Some(bound);
    true
}

impl MrTable {
    /// Reserves a key for a window: [`bind`](Self::bind) makes it valid, on the data path.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if the table is full.
    pub fn allocate_window(&self, pd: u32, kind: WindowType) -> Result<RKey, Error> {
        let window = Box::new(WindowOwner {
            kind,
            bound: None,
            gone: None,
        });
        Ok(RKey::new(self.reserve(pd, What::Window(window))?))
    }

    /// Sets the target whose destroy a region's windows prevent.
    pub fn attach(&self, index: u32, target: &Arc<dyn Target>) {
        if let Ok(mut owner) = self.known(index) {
            owner.target = Some(Arc::downgrade(target));
        }
    }

    /// Binds a window (the BIND_MW work request) for a queue pair; a window of type 2 prevents the destroy of
    /// that queue pair. Returns whether [`settle`](Self::settle) must be called afterwards.
    ///
    /// # Errors
    /// [`Stopped::Fault`] if a rule of binding is broken; the window is then unchanged.
    pub fn bind(
        &self,
        what: &Binding,
        who: Who,
        qp: Option<&Arc<dyn Target>>,
    ) -> Result<bool, Stopped> {
        let index = what.mw.index();
        let mut owner = self.known(index).map_err(|_| Fault::Key)?;
        let kind = check_window(&owner, what, who)?;
        if what.len != 0 {
            self.show_part(what, &owner)?;
        }
        if matches!(&owner.what, What::Window(window) if window.gone.is_some()) {
            return Err(Stopped::Later);
        }
        let settle = unbind(self, index, &mut owner);
        if what.len == 0 {
            owner.key_byte = what.rkey.key_byte();
            return Ok(settle);
        }
        if !grace::is_over(&mut owner.drain) {
            return Err(Stopped::Later);
        }
        let (mut view, region) = self.hold(what, &owner)?;
        let region_index = what.lkey.index();
        let qp = match (kind, qp) {
            (WindowType::One, _) | (_, None) => None,
            (_, Some(qp)) => {
                let held = Hold::try_new(qp, ObjectKind::Mw);
                if held.is_none() {
                    // The region is being destroyed.
                    self.give_up(&mut owner, region_index, region);
                    return Err(Fault::Qp.into());
                }
                held
            }
        };
        view.access |= REMOTE_ONLY;
        if kind != WindowType::One {
            view.access |= ONE_QP;
        }
        if kind == WindowType::TwoA {
            view.access |= ANY_PD;
        }
        (view.pd, view.qpn) = (owner.pd, who.qpn);
        if let What::Window(window) = &mut owner.what {
            window.bound = Some(Bound {
                region: region_index,
                qpn: who.qpn,
                holds: [region, qp],
            });
        }
        owner.key_byte = what.rkey.key_byte();
        (owner.drain, owner.epoch) = (Touched::NOBODY, owner.epoch.wrapping_add(1));
        // SAFETY: it is unbound or was never bound, and the threads that were admitted then have left (`drain`).
        unsafe { self.show(index, &mut owner, view) };
        Ok(settle)
    }

    /// The range and the key of the window with that index; no range if it is unbound.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the index does not belong to a window.
    pub fn window(&self, index: u32) -> Result<(RKey, Option<MwRange>), Error> {
        let owner = self.known(index)?;
        let What::Window(window) = &owner.what else {
            return Err(key_error(Why::Missing));
        };
        let range = (owner.state == State::Live).then(|| {
            let view = self.seen(index);
            let one = window.kind != WindowType::One;
            MwRange {
                addr: view.iova,
                len: view.len,
                access: Access::from_bits_truncate(view.access),
                qpn: one.then_some(Qpn::kept(view.qpn)),
            }
        });
        let key = index << 8 | u32::from(owner.key_byte);
        Ok((RKey::new(key), range))
    }

    /// Releases the earlier bindings of windows with that index, outside pins and locks: a destroy that waited
    /// for them continues.
    pub fn settle(&self, index: u32) {
        let gone = match self.known(index) {
            Ok(mut owner) => match &mut owner.what {
                What::Window(window) => window.gone.take(),
                _ => None,
            },
            Err(_) => None,
        };
        drop(gone);
    }

    /// Ends the binding of every window that is bound to that region, which is no longer live.
    pub(super) fn unbind_all(&self, region: u32) {
        for index in self.windows() {
            let mut owner = self.owner(index);
            let is_bound = matches!(&owner.what, What::Window(window)
                if window.bound.as_ref().is_some_and(|bound| bound.region == region));
            if is_bound {
                unbind(self, index, &mut owner);
            }
            drop(owner);
            if is_bound {
                self.settle(index);
            }
        }
    }

    /// Undoes [`MrTable::hold`]; the hold is released when the window is settled.
    fn give_up(&self, owner: &mut Owner, index: u32, mut held: Option<Hold>) {
        if let Some(mut region) = self.region(index) {
            region.windows -= 1;
        }
        held.iter_mut().for_each(Hold::let_go);
        if let What::Window(window) = &mut owner.what {
            window.gone = Some(Bound {
                region: index,
                qpn: 0,
                holds: [held, None],
            });
        }
    }

    /// The part of a region for a window to show; counts the window in the region.
    fn hold(&self, what: &Binding, window: &Owner) -> Result<(View, Option<Hold>), Fault> {
        let view = self.show_part(what, window)?;
        let mut region = self.region(what.lkey.index()).ok_or(Fault::Key)?;
        let held = match region.target.as_ref().map(|target| target.upgrade()) {
            None => None,
            Some(target) => {
                let held = target.and_then(|target| Hold::try_new(&target, ObjectKind::Mw));
                Some(held.ok_or(Fault::Key)?)
            }
        };
        if region.state != State::Live || region.key_byte != what.lkey.key_byte() {
            return Err(Fault::Key);
        }
        region.windows += 1;
        Ok((view, held))
    }

    /// The part of a region for a window to show, if the region allows it.
    fn show_part(&self, what: &Binding, window: &Owner) -> Result<View, Fault> {
        let index = what.lkey.index();
        let region = self.region(index).ok_or(Fault::Key)?;
        if region.state != State::Live || region.key_byte != what.lkey.key_byte() {
            return Err(Fault::Key);
        }
        if region.pd != window.pd {
            return Err(Fault::Pd);
        }
        let whole = self.seen(index);
        let granted = Access::from_bits_retain(whole.access);
        let writes = what
            .access
            .intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC));
        if granted.contains(Access::ZERO_BASED)
            || !granted.contains(Access::MW_BIND)
            || writes && !granted.contains(Access::LOCAL_WRITE)
        {
            return Err(Fault::Access);
        }
        let offset = what.addr.wrapping_sub(whole.iova);
        if what.addr < whole.iova || what.len > whole.len || offset > whole.len - what.len {
            return Err(Fault::Bounds);
        }
        let zero_based = what.access.contains(Access::ZERO_BASED);
        Ok(View {
            iova: if zero_based { 0 } else { what.addr },
            len: what.len,
            access: what.access.bits(),
            host: whole.host.wrapping_add(offset as usize),
            base: whole.base + offset,
            ..whole
        })
    }
}

/// Whether a window may be bound by that queue pair.
fn check_window(owner: &Owner, what: &Binding, who: Who) -> Result<WindowType, Fault> {
    let What::Window(window) = &owner.what else {
        return Err(Fault::Key);
    };
    let current = matches!(owner.state, State::Live | State::Invalid);
    if !current || owner.key_byte != what.mw.key_byte() || what.rkey.index() != what.mw.index() {
        return Err(Fault::Key);
    }
    if !Access::WINDOW.contains(what.access) {
        return Err(Fault::Access);
    }
    match window.kind {
        WindowType::One if what.access.contains(Access::ZERO_BASED) => Err(Fault::Access),
        WindowType::One | WindowType::TwoB if owner.pd != who.pd => Err(Fault::Pd),
        WindowType::TwoA | WindowType::TwoB if owner.state != State::Invalid => Err(Fault::State),
        WindowType::TwoA | WindowType::TwoB if what.len == 0 => Err(Fault::Bounds),
        kind => Ok(kind),
    }
}
