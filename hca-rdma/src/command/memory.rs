//! Protection domains, and the objects in them: regions and address handles.

use verbs_core::ah::{AhCore, CreateAh};
use verbs_core::mem::Keys;
use verbs_core::mr::{MrCore, RegMr, ReregMr};
use verbs_core::pd::{AllocPd, PdCore};
use verbs_core::sync::Arc;
use verbs_core::verb::Verb;
use verbs_core::{
    Access, Ah, Attr, Av, DeviceCap, Error, LKey, Memory, Mr, Pd, RKey, Refused, Target,
};

use crate::address::AddressHandles;
use crate::convert::error;
use crate::keys::MrState;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys;

/// The state kept with a domain.
type PdState = Arc<AddressHandles>;

/// The domain that a command concerns.
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

pub(super) fn dealloc_pd(nic: &Shared, core: &PdCore) {
    if let Ok(pd) = domain(core) {
        pd.destroy();
    }
    nic.counts.pds.down();
}

pub(super) fn check_register(nic: &Shared, args: &RegMr) -> Result<(), Error> {
    check_access(nic, args.access)?;
    check_size(nic, &args.memory)
}

pub(super) fn check_again(nic: &Shared, args: &ReregMr) -> Result<(), Error> {
    if args.keys == Keys::Kept {
        return Err(Error::Unsupported(Attr::Key));
    }
    args.access
        .map_or(Ok(()), |access| check_access(nic, access))?;
    args.memory
        .as_ref()
        .map_or(Ok(()), |memory| check_size(nic, memory))
}

/// Whether a region can have these rights. What else a device lacks, its driver refuses.
fn check_access(nic: &Shared, access: Access) -> Result<(), Error> {
    match nic.attr.caps.contains(DeviceCap::ON_DEMAND_PAGING) {
        true => (access - Access::ON_DEMAND).check(),
        false => access.check(),
    }
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

/// Registers memory; returns the region and its keys.
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

pub(super) fn register(nic: &Shared, args: RegMr, pd: &PdCore) -> Result<Mr, Error> {
    let (mr, lkey, rkey) = registered(nic, pd, &args.memory, (args.iova, args.access))?;
    nic.counts.mrs.up();
    let handle = args.build(lkey, rkey, Box::new(mr));
    nic.keys.add_region(handle.target());
    Ok(handle)
}

/// Registers the memory again, and then ends the old registration. If the new one fails, the region stays as it was.
pub(super) fn register_again(nic: &Shared, args: ReregMr, old: &MrCore) -> Result<Mr, Refused<Mr>> {
    let info = old.info();
    let memory = Arc::clone(args.memory.as_ref().unwrap_or(old.memory()));
    let iova = match args.memory {
        Some(_) => memory.addr(),
        None => info.iova,
    };
    let access = args.access.unwrap_or(info.access);
    let pd = args.pd().unwrap_or(old.pd());
    let (mr, lkey, rkey) = match registered(nic, pd, &memory, (iova, access)) {
        Ok(made) => made,
        Err(error) => return Err(Verb::refuse(args, error)),
    };
    let made = args.build(lkey, rkey, iova, Box::new(mr));
    if let Ok(handle) = &made {
        nic.keys.add_region(handle.target());
    }
    destroy_region(nic, old);
    made
}

pub(super) fn deregister(nic: &Shared, core: &MrCore) {
    destroy_region(nic, core);
    nic.counts.mrs.down();
}

fn destroy_region(nic: &Shared, mr: &MrCore) {
    nic.keys.remove_region(mr.info().lkey);
    if let Some(mr) = mr.private::<MrState>() {
        mr.destroy();
    }
}

pub(super) fn create_ah(nic: &Shared, args: CreateAh, pd: &PdCore) -> Result<Ah, Error> {
    let (counts, max) = (&nic.counts.ahs, nic.attr.max_ah);
    let pd = domain(pd)?;
    pd.add(args.av)
        .map_err(|error| counts.explain(error, Attr::MaxAh, max))?;
    counts.up();
    Ok(args.build(nic.number() as u32, Box::new(Arc::clone(pd))))
}

pub(super) fn modify_ah(av: Av, core: &AhCore) -> Result<(), Error> {
    let pd = core.private::<PdState>().ok_or(Error::Closing)?;
    pd.add(av)?;
    pd.remove(core.av());
    core.replace(av);
    Ok(())
}

pub(super) fn destroy_ah(nic: &Shared, core: &AhCore) {
    if let Some(pd) = core.private::<PdState>() {
        pd.remove(core.av());
    }
    nic.counts.ahs.down();
}
