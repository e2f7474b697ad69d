//! Protection domains, and what is in them: regions and address handles.

use verbs_core::ah::{CreateAh, DestroyAh, ModifyAh};
use verbs_core::mem::Keys;
use verbs_core::mr::{DeregMr, MrCore, RegMr, ReregMr};
use verbs_core::pd::{AllocPd, DeallocPd, PdCore};
use verbs_core::sync::Arc;
use verbs_core::verb::Verb;
use verbs_core::{Access, Attr, Error, LKey, Memory, Mr, Pd, Pending, RKey, Target};

use crate::address::AddressHandles;
use crate::convert::error;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys;

/// What is kept with a domain.
pub(crate) type PdState = Arc<AddressHandles>;

/// What is kept with a region.
type MrState = Slot<sys::Mr>;

/// The domain that a command is about.
pub(super) fn domain(pd: &PdCore) -> Result<&PdState, Error> {
    pd.private::<PdState>().ok_or(Error::Closing)
}

pub(super) fn alloc_pd(nic: &Shared, args: AllocPd) -> Result<Pd, Error> {
    let counts = &nic.counts.pds;
    let pd = sys::Pd::alloc(&nic.context)
        .map_err(|errno| counts.explain(error(errno), Attr::MaxPd, nic.attr.max_pd))?;
    counts.up();
    let state: PdState = Arc::new(AddressHandles::new(pd));
    Ok(args.build(nic.number() as u32, Box::new(state)))
}

pub(super) fn dealloc_pd(nic: &Shared, pending: Pending<DeallocPd>) {
    if let Ok(pd) = domain(pending.target()) {
        pd.destroy();
    }
    nic.counts.pds.down();
    pending.complete(Ok(()));
}

pub(super) fn check_register(nic: &Shared, args: &RegMr) -> Result<(), Error> {
    args.access.check()?;
    check_size(nic, &args.memory)
}

pub(super) fn check_again(nic: &Shared, args: &ReregMr) -> Result<(), Error> {
    if args.keys == Keys::Kept {
        return Err(Error::Unsupported(Attr::Key));
    }
    args.access.map_or(Ok(()), Access::check)?;
    args.memory
        .as_ref()
        .map_or(Ok(()), |memory| check_size(nic, memory))
}

fn check_size(nic: &Shared, memory: &Memory) -> Result<(), Error> {
    match memory.len() as u64 > nic.attr.max_mr_size {
        true => Err(Error::Invalid {
            attr: Attr::MrSize,
            got: u32::try_from(memory.len()).unwrap_or(u32::MAX),
            max: u32::try_from(nic.attr.max_mr_size).unwrap_or(u32::MAX),
        }),
        false => Ok(()),
    }
}

/// Registers memory; yields the region and its keys.
fn registered(
    nic: &Shared,
    pd: &PdCore,
    memory: &Arc<Memory>,
    (iova, access): (u64, Access),
) -> Result<(MrState, LKey, RKey), Error> {
    let pd = domain(pd)?.pd().get()?;
    let mr = sys::Mr::register(&pd, memory, iova, access).map_err(|errno| {
        let counts = &nic.counts.mrs;
        counts.explain(error(errno), Attr::MaxMr, nic.attr.max_mr)
    })?;
    let (lkey, rkey) = mr.keys();
    Ok((Slot::new(mr), LKey::new(lkey), RKey::new(rkey)))
}

pub(super) fn register(nic: &Shared, args: RegMr, pending: Pending<RegMr>) {
    let how = (args.iova, args.access);
    let made = registered(nic, pending.target(), &args.memory, how);
    pending.complete(made.map(|(mr, lkey, rkey)| {
        nic.counts.mrs.up();
        args.build(lkey, rkey, Box::new(mr))
    }));
}

/// Registers anew, and then ends the old registration: one that fails leaves it as it was.
pub(super) fn register_again(nic: &Shared, args: ReregMr, pending: Pending<ReregMr>) {
    let old = Arc::clone(pending.target());
    let info = old.info();
    let (memory, moved) = match &args.memory {
        Some(memory) => (Arc::clone(memory), true),
        None => (Arc::clone(old.memory()), false),
    };
    let iova = match moved {
        true => memory.addr(),
        false => info.iova,
    };
    let access = args.access.unwrap_or(info.access);
    let pd = Arc::clone(args.pd().unwrap_or(old.pd()));
    match registered(nic, &pd, &memory, (iova, access)) {
        Err(error) => pending.complete(Err(Verb::refuse(args, error))),
        Ok((mr, lkey, rkey)) => {
            let made: Result<Mr, _> = args.build(lkey, rkey, iova, Box::new(mr));
            destroy_region(&old);
            pending.complete(made);
        }
    }
}

pub(super) fn deregister(nic: &Shared, pending: Pending<DeregMr>) {
    destroy_region(pending.target());
    nic.counts.mrs.down();
    pending.complete(Ok(()));
}

fn destroy_region(mr: &MrCore) {
    if let Some(mr) = mr.private::<MrState>() {
        mr.destroy();
    }
}

pub(super) fn create_ah(nic: &Shared, args: CreateAh, pending: Pending<CreateAh>) {
    let (attr, max) = (Attr::MaxAh, nic.attr.max_ah);
    let made = domain(pending.target()).and_then(|pd| {
        pd.add(args.av)?;
        Ok(Arc::clone(pd))
    });
    pending.complete(match made {
        Err(error) => Err(nic.counts.ahs.explain(error, attr, max)),
        Ok(pd) => {
            nic.counts.ahs.up();
            Ok(args.build(nic.number() as u32, Box::new(pd)))
        }
    });
}

pub(super) fn modify_ah(args: ModifyAh, pending: Pending<ModifyAh>) {
    let ah = Arc::clone(pending.target());
    let changed = ah
        .private::<PdState>()
        .ok_or(Error::Closing)
        .and_then(|pd| {
            pd.add(args.av)?;
            pd.remove(ah.av());
            ah.replace(args.av);
            Ok(())
        });
    pending.complete(changed);
}

pub(super) fn destroy_ah(nic: &Shared, pending: Pending<DestroyAh>) {
    let ah = pending.target();
    if let Some(pd) = ah.private::<PdState>() {
        pd.remove(ah.av());
    }
    nic.counts.ahs.down();
    pending.complete(Ok(()));
}
