//! The objects that have keys: windows, a region for fast registration, and a pool.

use verbs_core::{Access, FastMr, Fmr, FmrPool, FmrPoolAttr, Layout, Mw, Pd, WindowType};

use crate::run::endpoint::gone;
use crate::run::keys::Whose;
use crate::run::world::{Lease, World};

/// Windows at a time.
pub(super) const WINDOWS: usize = 4;
pub(super) const TYPES: [WindowType; 3] = [WindowType::One, WindowType::TwoA, WindowType::TwoB];
/// Keys of the pool, and pages of each.
const POOL: (u32, u32) = (2, 3);

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) windows: [Option<Window>; WINDOWS],
    pub(super) fast: Option<Fast>,
    pub(super) pool: Option<FmrPool>,
    pub(super) mappings: Vec<Fmr>,
    /// Keys of the pool that are unused and have not been flushed.
    pub(super) unused: Vec<u32>,
}

/// A window, and what was done to it.
pub(super) struct Window {
    pub(super) mw: Mw,
    /// Its key and the connection that it is bound to.
    pub(super) bound: Option<(u32, usize)>,
    /// An operation that changes that is under way.
    pub(super) busy: bool,
    /// An operation of the window was flushed, and may have changed the binding before: keys that may give access until
    /// the window is deallocated, which stays busy.
    pub(super) doubted: Vec<u32>,
}

/// A region for fast registration.
pub(super) struct Fast {
    pub(super) mr: FastMr,
    pub(super) valid: Option<u32>,
    pub(super) busy: bool,
    /// As for a window.
    pub(super) doubted: Option<u32>,
}

impl Window {
    pub(super) const fn new(mw: Mw) -> Self {
        Self {
            mw,
            bound: None,
            busy: false,
            doubted: Vec::new(),
        }
    }
}

impl Objects {
    /// Makes them; `None`: a fault prevented it.
    pub(super) async fn build(&mut self, world: &World, lease: &Lease, pd: &Pd) -> Option<()> {
        for (slot, kind) in self.windows.iter_mut().zip(TYPES) {
            let mw = world.verb(lease, pd.alloc_mw(kind)).await.ok()?;
            *slot = Some(Window::new(mw));
        }
        self.allocate_fast(world, lease, pd).await?;
        let attr = FmrPoolAttr::new(POOL.0, POOL.1, Access::LOCAL_WRITE | Access::REMOTE);
        self.pool = world.verb(lease, pd.create_fmr_pool(attr)).await.ok();
        self.pool.as_ref().map(drop)
    }

    /// Makes the region for fast registration.
    pub(super) async fn allocate_fast(
        &mut self,
        world: &World,
        lease: &Lease,
        pd: &Pd,
    ) -> Option<()> {
        let request = pd.alloc_mr(4).layout(Layout::Gaps);
        self.fast = Some(Fast {
            mr: world.verb(lease, request).await.ok()?,
            valid: None,
            busy: false,
            doubted: None,
        });
        Some(())
    }

    /// The window in that slot, if there is one.
    pub(super) fn window(&mut self, slot: usize) -> Option<&mut Window> {
        self.windows.get_mut(slot)?.as_mut()
    }

    /// The operation that was to change one of these objects has ended.
    pub(super) fn idle(&mut self, whose: Whose) {
        match whose {
            Whose::Window(slot) => {
                if let Some(window) = self.window(slot) {
                    window.busy = false;
                }
            }
            Whose::Fast => {
                if let Some(fast) = &mut self.fast {
                    fast.busy = false;
                }
            }
        }
    }

    /// Its key is no longer valid.
    pub(super) fn unbound(&mut self, whose: Whose) {
        match whose {
            Whose::Window(slot) => {
                if let Some(window) = self.window(slot) {
                    (window.bound, window.busy) = (None, false);
                }
            }
            Whose::Fast => {
                if let Some(fast) = &mut self.fast {
                    (fast.valid, fast.busy) = (None, false);
                }
            }
        }
    }

    /// Whether an operation has changed these keys of that object is not known.
    pub(super) fn doubt(&mut self, whose: Whose, keys: &[u32]) {
        match whose {
            Whose::Window(slot) => {
                if let Some(window) = self.window(slot) {
                    window.doubted = keys.to_vec();
                }
            }
            Whose::Fast => {
                if let Some(fast) = &mut self.fast {
                    fast.doubted = keys.first().copied();
                }
            }
        }
    }

    /// Keys that the peer may invalidate by a SEND on that connection.
    pub(super) fn invalidable(&self, pair: usize) -> Vec<(Whose, u32)> {
        let window = |(slot, window): (usize, &Option<Window>)| {
            let window = window.as_ref().filter(|window| !window.busy)?;
            let (key, via) = window.bound?;
            let can = window.mw.window_type() != WindowType::One && via == pair;
            can.then_some((Whose::Window(slot), key))
        };
        let fast = self.fast.as_ref().filter(|fast| !fast.busy && pair == 0);
        let fast = fast.and_then(|fast| Some((Whose::Fast, fast.valid?)));
        let windows = self.windows.iter().enumerate().filter_map(window);
        windows.chain(fast).collect()
    }

    /// Whether a window that fulfils the condition is certainly bound.
    pub(super) fn is_bound(&self, of: impl Fn(&Window, usize) -> bool) -> bool {
        let mut windows = self.windows.iter().flatten();
        windows.any(|window| {
            let bound = window.bound.filter(|_| !window.busy);
            bound.is_some_and(|(_, pair)| of(window, pair))
        })
    }

    /// Destroys them, whatever state they are in.
    pub(super) async fn tear_down(&mut self, world: &World, lease: &Lease) {
        for slot in &mut self.windows {
            if let Some(window) = slot.take() {
                gone(world, world.verb(lease, window.mw.dealloc()).await);
            }
        }
        if let Some(fast) = self.fast.take() {
            gone(world, world.verb(lease, fast.mr.free()).await);
        }
        if let Some(pool) = self.pool.take() {
            gone(world, world.verb(lease, pool.destroy()).await);
        }
    }
}
