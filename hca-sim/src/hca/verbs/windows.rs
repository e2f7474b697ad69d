//! The verbs of fast registration, memory windows and pools of fast memory regions.

use std::fmt;

use verbs_core::command::{Command, Pending};
use verbs_core::fast_reg::{AllocMr, FreeMr, RawFastMr, RegPages};
use verbs_core::fmr::{CreateFmrPool, DestroyFmrPool, FlushFmrPool, RawFmrPool};
use verbs_core::mem::{Fault, MrTable, PageList, Stopped, Touched, grace};
use verbs_core::mw::{AllocMw, DeallocMw, MwInfo, QueryMw};
use verbs_core::sync::Arc;
use verbs_core::{Access, Attr, DeviceCap, Error, LKey, Layout, Registration, Target, Why};

use crate::hca::verbs::memory::attach;
use crate::port::Port;
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

/// The destroy of a pool: it completes when the last of the pool's keys has been released.
struct PoolDestroyed(Option<Pending<DestroyFmrPool>>);

impl Drop for PoolDestroyed {
    fn drop(&mut self) {
        if let Some(pending) = self.0.take() {
            pending.complete(Ok(()));
        }
    }
}

pub(super) fn alloc_mr(port: &Port, command: Command<'_, AllocMr>) {
    let pd = command.target().base().id().number;
    let (layout, pages) = (command.layout, command.max_pages);
    let allowed = if port.features.takes(layout) {
        check_pages(pages)
    } else {
        Err(port
            .features
            .refusal(Attr::PageList, |features| features.takes(layout)))
    };
    let mrs = &port.mrs;
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
    attach(mrs, key.index(), mr.target());
    reply.complete(Ok(mr));
}

pub(super) fn reg_pages(port: &Port, command: Command<'_, RegPages>) {
    let (features, layout) = (&port.features, command.layout);
    let allowed = match features.lists(layout) {
        true => features.check(command.access),
        false => Err(features.refusal(Attr::PageList, |features| features.lists(layout))),
    };
    if let Err(error) = allowed {
        return command.complete(Err(error));
    }
    let pd = command.target().base().id().number;
    let (mut args, reply) = command.split();
    let registered = register_list(port, pd, &mut args);
    let made = registered.and_then(|(key, len, mapping)| {
        let raw = Fast {
            mrs: Arc::clone(&port.mrs),
            index: key.index(),
        };
        let mr = args.build(key, len, mapping, Box::new(raw), Box::new(()))?;
        attach(&port.mrs, key.index(), mr.target());
        Ok(mr)
    });
    reply.complete(made);
}

/// Makes a key valid for the list of a request: the key, its bytes, and the number of the mapping.
fn register_list(port: &Port, pd: u32, args: &mut RegPages) -> Result<(LKey, u64, u32), Error> {
    let mrs = &port.mrs;
    let (layout, access, iova) = (args.layout, args.access, args.iova);
    let list = args.list()?;
    let len = list.len();
    let key = mrs.allocate(pd, layout, list.room())?;
    let registered = mrs.stage(key.index(), list).and_then(|mapping| {
        let what = Registration {
            key,
            access,
            iova,
            mapping,
        };
        mrs.map(&what, pd).map(|()| mapping).map_err(refused)
    });
    match registered {
        Ok(mapping) => Ok((key, len, mapping)),
        Err(error) => {
            give_back(port, key, || ());
            Err(error)
        }
    }
}

pub(super) fn free_mr(port: &Port, command: Command<'_, FreeMr>) {
    let key = LKey::new(command.target().base().id().number);
    let Some((_, pending)) = command.pend() else {
        return;
    };
    give_back(port, key, move || pending.complete(Ok(())));
}

pub(super) fn alloc_mw(port: &Port, command: Command<'_, AllocMw>) {
    let kind = command.window_type;
    if let Err(error) = port.features.check_window(kind) {
        return command.complete(Err(error));
    }
    let pd = command.target().base().id().number;
    match port.mrs.allocate_window(pd, kind) {
        Ok(rkey) => {
            let (args, reply) = command.split();
            reply.complete(Ok(args.build(rkey, Box::new(()))));
        }
        Err(error) => command.complete(Err(error)),
    }
}

pub(super) fn query_mw(port: &Port, command: Command<'_, QueryMw>) {
    let core = command.target();
    let index = LKey::new(core.base().id().number).index();
    let (window_type, window) = (core.window_type(), port.mrs.window(index));
    command.complete(window.map(|(rkey, bound)| MwInfo {
        rkey,
        window_type,
        bound,
    }));
}

pub(super) fn dealloc_mw(port: &Port, command: Command<'_, DeallocMw>) {
    let key = LKey::new(command.target().base().id().number);
    let Some((_, pending)) = command.pend() else {
        return;
    };
    give_back(port, key, move || pending.complete(Ok(())));
}

/// Gives a key back whose byte is the consumer's.
fn give_back(port: &Port, key: LKey, done: impl FnOnce() + Send + 'static) {
    if port.mrs.deregister(key, done).is_err() {
        // The handle is the only source of this command, and issues it once.
        tracing::error!(%key, "a key was gone before it was given back");
    }
}

pub(super) fn create_fmr_pool(port: &Port, command: Command<'_, CreateFmrPool>) {
    let keys = match reserve(port, &command) {
        Ok(keys) => keys,
        Err(error) => return command.complete(Err(error)),
    };
    let (args, reply) = command.split();
    let raw = Box::new(Pool(Arc::clone(&port.mrs)));
    let pool = args.build(keys.iter().copied(), raw, Box::new(()));
    match &pool {
        Ok(pool) => {
            for key in &keys {
                attach(&port.mrs, key.index(), pool.target());
            }
        }
        Err(_) => free_all(port, &keys),
    }
    reply.complete(pool);
}

/// The keys of a pool, all or none.
fn reserve(port: &Port, command: &Command<'_, CreateFmrPool>) -> Result<Vec<LKey>, Error> {
    let (features, attr) = (&port.features, command.attr);
    features.require(DeviceCap::FMR_POOL, Attr::MaxFmr)?;
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
        match port.mrs.allocate(pd, layout, attr.max_pages) {
            Ok(key) => keys.push(key),
            Err(error) => {
                free_all(port, &keys);
                return Err(error);
            }
        }
    }
    Ok(keys)
}

fn free_all(port: &Port, keys: &[LKey]) {
    for &key in keys {
        give_back(port, key, || ());
    }
}

pub(super) fn flush_fmr_pool(port: &Port, command: Command<'_, FlushFmrPool>) {
    let (mrs, max_pages) = (Arc::clone(&port.mrs), command.target().max_pages());
    let Some((args, pending)) = command.pend() else {
        return;
    };
    let touched = args.keys.iter().map(|key| mrs.retire(key.index()));
    let touched = touched.fold(Touched::NOBODY, Touched::and);
    grace::after(touched, move || {
        let_go(&mrs, &args.keys, max_pages);
        pending.complete(Ok(()));
    });
}

/// Gives back the memory of keys that are no longer valid. If there is no memory for that, their next mappings do.
fn let_go(mrs: &MrTable, keys: &[LKey], max_pages: u32) {
    let Ok(mut list) = PageList::new(max_pages) else {
        return;
    };
    for key in keys {
        // Each key has the list of the one before, which is empty.
        if mrs.unstage(key.index(), &mut list) == Ok(true) && list.clear().is_err() {
            let Ok(another) = PageList::new(max_pages) else {
                return;
            };
            list = another;
        }
    }
}

pub(super) fn destroy_fmr_pool(port: &Port, command: Command<'_, DestroyFmrPool>) {
    let keys: Vec<_> = command.target().indices();
    let Some((_, pending)) = command.pend() else {
        return;
    };
    let destroyed = Arc::new(PoolDestroyed(Some(pending)));
    for index in keys {
        let destroyed = Arc::clone(&destroyed);
        give_back(port, LKey::new(index << 8), move || drop(destroyed));
    }
}

/// Why a list cannot be registered. Its key is not given out yet.
fn refused(stopped: Stopped) -> Error {
    let why = match stopped {
        Stopped::Fault(Fault::Alignment) => Why::Alignment,
        Stopped::Fault(Fault::Bounds) => Why::Overflow,
        _ => Why::State,
    };
    let attr = Attr::Iova;
    Error::Mismatch { attr, why }
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
