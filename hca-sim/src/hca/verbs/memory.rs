//! The verbs of protection domains and memory regions.

use verbs_core::command::{Command, Pending};
use verbs_core::mem::{MrTable, Region};
use verbs_core::mr::{DeregMr, MrCore, QueryMr, RegMr, RegSharedMr, ReregMr};
use verbs_core::pd::{AllocPd, DeallocPd};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{Access, LKey, RKey, Target, Verb};

use crate::hca::Hca;
use crate::port::Port;

/// A reregistration in progress: it completes when the table has both given the new keys and replaced the region, which
/// may happen in either order and on different threads.
#[derive(Default)]
struct Rereg {
    request: Option<(ReregMr, Pending<ReregMr>)>,
    keys: Option<(LKey, RKey)>,
    replaced: bool,
    /// Where windows find the object that they hold.
    mrs: Option<Arc<MrTable>>,
}

pub(super) fn alloc_pd(hca: &Hca, command: Command<'_, AllocPd>) {
    let number = hca.tables.lock().pds.insert(());
    match number {
        Ok(number) => {
            let (args, reply) = command.split();
            reply.complete(Ok(args.build(number, Box::new(()))));
        }
        Err(error) => command.complete(Err(error)),
    }
}

pub(super) fn dealloc_pd(hca: &Hca, command: Command<'_, DeallocPd>) {
    hca.tables
        .lock()
        .pds
        .remove(command.target().base().id().number);
    command.complete(Ok(()));
}

pub(super) fn reg_mr(port: &Port, command: Command<'_, RegMr>) {
    if let Err(error) = port.features.check(command.access) {
        return command.complete(Err(error));
    }
    let region = Region {
        iova: command.iova,
        ..Region::new(
            Arc::clone(&command.memory),
            command.access,
            command.target().base().id().number,
        )
    };
    match port.mrs.register(region) {
        Ok((lkey, rkey)) => {
            let (args, reply) = command.split();
            let mr = args.build(lkey, rkey, Box::new(()));
            attach(&port.mrs, lkey.index(), mr.target());
            reply.complete(Ok(mr));
        }
        Err(error) => command.complete(Err(error)),
    }
}

pub(super) fn reg_shared_mr(port: &Port, command: Command<'_, RegSharedMr>) {
    if let Err(error) = port.features.check(command.access) {
        return command.complete(Err(error));
    }
    let memory = Arc::clone(command.target().memory());
    let region = Region {
        iova: command.iova,
        ..Region::new(
            Arc::clone(&memory),
            command.access,
            command.pd().base().id().number,
        )
    };
    match port.mrs.register(region) {
        Ok((lkey, rkey)) => {
            let (args, reply) = command.split();
            let mr = args.build(memory, lkey, rkey, Box::new(()));
            attach(&port.mrs, lkey.index(), mr.target());
            reply.complete(Ok(mr));
        }
        Err(error) => command.complete(Err(error)),
    }
}

pub(super) fn query_mr(command: Command<'_, QueryMr>) {
    let info = command.target().info();
    command.complete(Ok(info));
}

pub(super) fn rereg_mr(port: &Port, command: Command<'_, ReregMr>) {
    let core = Arc::clone(command.target());
    let access = command.access.unwrap_or(core.info().access);
    if let Err(error) = port.features.check(access) {
        return command.refuse(error);
    }
    let Some((args, pending)) = command.pend() else {
        return;
    };
    let region = changed(&args, &core);
    let (iova, keys) = (region.iova, args.keys);
    let shared = Arc::new(Mutex::new(Rereg {
        request: Some((args, pending)),
        mrs: Some(Arc::clone(&port.mrs)),
        ..Rereg::default()
    }));
    let replaced = {
        let shared = Arc::clone(&shared);
        move || {
            shared.lock().replaced = true;
            complete(&shared, iova);
        }
    };
    let old = LKey::new(core.base().id().number);
    match port.mrs.reregister(old, region, keys, replaced) {
        Ok(keys) => {
            shared.lock().keys = Some(keys);
            complete(&shared, iova);
        }
        Err(error) => {
            let request = shared.lock().request.take();
            if let Some((args, pending)) = request {
                pending.complete(Err(args.refuse(error)));
            }
        }
    }
}

pub(super) fn dereg_mr(port: &Port, command: Command<'_, DeregMr>) {
    let key = LKey::new(command.target().base().id().number);
    let Some((_, pending)) = command.pend() else {
        return;
    };
    let done = move || pending.complete(Ok(()));
    if port.mrs.deregister(key, done).is_err() {
        // The handle is the only source of this command, and issues it once.
        tracing::error!(%key, "a region was gone before it was deregistered");
    }
}

/// The region as requested: what the request does not change stays.
fn changed(args: &ReregMr, core: &MrCore) -> Region {
    let before = core.info();
    let access = args.access.unwrap_or(before.access);
    let memory = args.memory.as_ref().unwrap_or_else(|| core.memory());
    let pd = args.pd().unwrap_or_else(|| core.pd());
    let iova = if access.contains(Access::ZERO_BASED) {
        0
    } else if args.memory.is_some() || before.access.contains(Access::ZERO_BASED) {
        // An address that was chosen for other memory means nothing here.
        memory.addr()
    } else {
        before.iova
    };
    Region {
        iova,
        ..Region::new(Arc::clone(memory), access, pd.base().id().number)
    }
}

/// Completes the request if both halves are present, with no lock held.
fn complete(shared: &Mutex<Rereg>, iova: u64) {
    let ready = {
        let mut rereg = shared.lock();
        match rereg.keys {
            Some(keys) if rereg.replaced => rereg.request.take().map(|request| (request, keys)),
            _ => None,
        }
    };
    if let Some(((args, pending), (lkey, rkey))) = ready {
        let built = args.build(lkey, rkey, iova, Box::new(()));
        let mrs = shared.lock().mrs.take();
        if let (Ok(mr), Some(mrs)) = (&built, mrs) {
            attach(&mrs, lkey.index(), mr.target());
        }
        pending.complete(built);
    }
}

/// Records in the table which object the windows of a key hold.
pub(super) fn attach<T: Target>(mrs: &MrTable, index: u32, core: &Arc<T>) {
    let target: Arc<dyn Target> = Arc::clone(core) as _;
    mrs.attach(index, &target);
}
