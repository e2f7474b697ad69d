//! The verbs of fast registration, memory windows and pools of fast memory regions.

use std::fmt;

use verbs_core::command::{Command, Pending};
use verbs_core::fast_reg::{AllocMr, FreeMr, RawFastMr};
use verbs_core::fmr::{CreateFmrPool, DestroyFmrPool, FlushFmrPool, RawFmrPool};
use verbs_core::mem::{MrTable, PageList, Touched, grace};
use verbs_core::mw::{AllocMw, DeallocMw};
use verbs_core::sync::Arc;
use verbs_core::{Access, Attr, DeviceCap, Error, LKey, Layout, Target, Why};

use crate::hca::Hca;
use crate::port::features::FAST_REG_PAGES;

/// The consumer's direct calls on a region for fast registration.
struct Fast {
    mrs: Arc<MrTable>,
    index: u32,
}

impl RawFastMr for Fast {
    fn stage(&mut self, list: &mut PageList) -> Result<u32, Error> {
        self.mrs.stage(self.index, list)
    }

    fn unstage(&mut self, list: &mut PageList) -> Result<bool, Error> {
        self.mrs.unstage(self.index, list)
    }
}

impl fmt::Debug for Fast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fast({:#x})", self.index)
    }
}

/// The consumer's direct calls on a pool.
struct Pool(Arc<MrTable>);

impl RawFmrPool for Pool {
    fn map(
        &mut self,
        key: LKey,
        list: &mut PageList,
        iova: u64,
        access: Access,
    ) -> Result<(), Error> {
        self.0
            .remap(key, list, iova, access)
            .map_err(|_stopped| Error::Busy)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

/// The destroy of a pool: the last of its keys to let go of it completes the request.
struct PoolDestroyed(Option<Pending<DestroyFmrPool>>);

impl Drop for PoolDestroyed {
    fn drop(&mut self) {
        if let Some(pending) = self.0.take() {
            pending.complete(Ok(()));
        }
    }
}

impl Hca {
    pub(in crate::hca) fn alloc_mr(&self, command: Command<'_, AllocMr>) {
        let pd = command.target().base().id().number;
        let (layout, pages) = (command.layout, command.max_pages);
        let allowed = if self.port.features.takes(layout) {
            check_pages(pages)
        } else {
            Err(Error::Unsupported(Attr::PageList))
        };
        let mrs = &self.port.mrs;
        let key = allowed.and_then(|()| mrs.allocate(pd, layout, pages));
        let key = match key {
            Ok(key) => key,
            Err(error) => return command.complete(Err(error)),
        };
        let (mut args, reply) = command.split();
        if let Err(error) = args.make_list() {
            let freed = mrs.deregister(key, || ());
            debug_assert!(freed.is_ok(), "nobody else knows the key");
            return reply.complete(Err(error));
        }
        let raw = Fast {
            mrs: Arc::clone(mrs),
            index: key.index(),
        };
        let mr = args.build(key, Box::new(raw), Box::new(()));
        let target: Arc<dyn Target> = Arc::clone(mr.target()) as _;
        mrs.attach(key.index(), &target);
        reply.complete(Ok(mr));
    }

    pub(in crate::hca) fn free_mr(&self, command: Command<'_, FreeMr>) {
        let key = LKey::new(command.target().base().id().number);
        let Some((_, pending)) = command.pend() else {
            return;
        };
        self.give_back(key, move || pending.complete(Ok(())));
    }

    pub(in crate::hca) fn alloc_mw(&self, command: Command<'_, AllocMw>) {
        let kind = command.window_type;
        if !self.port.features.binds(kind) {
            return command.complete(Err(Error::Unsupported(Attr::MemoryWindow)));
        }
        let pd = command.target().base().id().number;
        match self.port.mrs.allocate_window(pd, kind) {
            Ok(rkey) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(rkey, Box::new(()))));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    pub(in crate::hca) fn dealloc_mw(&self, command: Command<'_, DeallocMw>) {
        let key = LKey::new(command.target().base().id().number);
        let Some((_, pending)) = command.pend() else {
            return;
        };
        self.give_back(key, move || pending.complete(Ok(())));
    }

    /// Gives a key back whose byte is the consumer's.
    fn give_back(&self, key: LKey, done: impl FnOnce() + Send + 'static) {
        if self.port.mrs.deregister(key, done).is_err() {
            // The handle is the only way here, and it comes once.
            tracing::error!(%key, "a key was gone before it was given back");
        }
    }

    pub(in crate::hca) fn create_fmr_pool(&self, command: Command<'_, CreateFmrPool>) {
        let keys = match self.reserve(&command) {
            Ok(keys) => keys,
            Err(error) => return command.complete(Err(error)),
        };
        let (args, reply) = command.split();
        let raw = Box::new(Pool(Arc::clone(&self.port.mrs)));
        let pool = args.build(keys.iter().copied(), raw, Box::new(()));
        match &pool {
            Ok(pool) => {
                let target: Arc<dyn Target> = Arc::clone(pool.target()) as _;
                for key in &keys {
                    self.port.mrs.attach(key.index(), &target);
                }
            }
            Err(_) => self.free_all(&keys),
        }
        reply.complete(pool);
    }

    /// The keys of a pool, all or none.
    fn reserve(&self, command: &Command<'_, CreateFmrPool>) -> Result<Vec<LKey>, Error> {
        let (features, attr) = (&self.port.features, command.attr);
        if !features.has(DeviceCap::FMR_POOL) {
            return Err(Error::Unsupported(Attr::MaxFmr));
        }
        features.check(attr.access)?;
        attr.access.check()?;
        check_pages(attr.max_pages)?;
        if attr.size == 0 || attr.max_remaps == 0 || attr.access.contains(Access::ZERO_BASED) {
            return Err(Error::Mismatch {
                attr: Attr::MaxFmr,
                why: Why::Zero,
            });
        }
        let pd = command.target().base().id().number;
        let mut keys = Vec::new();
        for _ in 0..attr.size {
            let layout = Layout::Pages(Layout::PAGE);
            match self.port.mrs.allocate(pd, layout, attr.max_pages) {
                Ok(key) => keys.push(key),
                Err(error) => {
                    self.free_all(&keys);
                    return Err(error);
                }
            }
        }
        Ok(keys)
    }

    fn free_all(&self, keys: &[LKey]) {
        for &key in keys {
            self.give_back(key, || ());
        }
    }

    pub(in crate::hca) fn flush_fmr_pool(&self, command: Command<'_, FlushFmrPool>) {
        let Some((args, pending)) = command.pend() else {
            return;
        };
        let touched = args
            .keys
            .iter()
            .map(|key| self.port.mrs.retire(key.index()));
        let touched = touched.fold(Touched::NOBODY, Touched::and);
        grace::after(touched, move || pending.complete(Ok(())));
    }

    pub(in crate::hca) fn destroy_fmr_pool(&self, command: Command<'_, DestroyFmrPool>) {
        let keys: Vec<_> = command.target().indices();
        let Some((_, pending)) = command.pend() else {
            return;
        };
        let destroyed = Arc::new(PoolDestroyed(Some(pending)));
        for index in keys {
            let destroyed = Arc::clone(&destroyed);
            self.give_back(LKey::new(index << 8), move || drop(destroyed));
        }
    }
}

/// [`Error::Invalid`] for a list that is too long, or for none.
fn check_pages(got: u32) -> Result<(), Error> {
    let (attr, max) = (Attr::PageList, FAST_REG_PAGES);
    match got {
        0 => Err(Error::Mismatch {
            attr,
            why: Why::Zero,
        }),
        got if got > max => Err(Error::Invalid { attr, got, max }),
        _ => Ok(()),
    }
}
