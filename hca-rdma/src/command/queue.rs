//! Completion queues and shared receive queues.

use verbs_core::cq::{CqCore, CreateCq, ModifyCq};
use verbs_core::pd::PdCore;
use verbs_core::srq::{CreateSrq, ModifySrq, SrqCore};
use verbs_core::sync::Arc;
use verbs_core::{Attr, Cq, DeviceCap, Error, Srq, SrqAttr, Target, Why};

use super::limit::{at_most, require};
use super::{memory, xrc};
use crate::convert::error;
use crate::queue;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys;

/// The state kept with a completion queue.
pub(crate) struct CqState {
    pub(crate) cq: Arc<Slot<sys::Cq>>,
    /// The number that its events carry.
    number: u64,
    /// The address by which asynchronous events name it.
    address: usize,
}

/// The state kept with a shared receive queue.
pub(crate) struct SrqState {
    pub(crate) srq: Arc<Slot<sys::Srq>>,
    address: usize,
}

pub(super) fn check_cq(nic: &Shared, args: &CreateCq) -> Result<(), Error> {
    check_cqe(nic, args.cqe)?;
    if args.timestamps && nic.ticks.is_none() {
        return Err(Error::Unsupported(Attr::Timestamps));
    }
    let last = nic.context.comp_vectors().saturating_sub(1);
    at_most(Attr::CompVector, args.comp_vector, last)
}

pub(super) fn check_cqe(nic: &Shared, cqe: u32) -> Result<(), Error> {
    let (attr, max) = (Attr::Cqe, nic.attr.max_cqe);
    match cqe {
        0 => Err(Error::Invalid { attr, got: 0, max }),
        cqe => at_most(attr, cqe, max),
    }
}

fn cq_state(cq: &CqCore) -> Result<&CqState, Error> {
    cq.private::<CqState>().ok_or(Error::Closing)
}

/// The address by which asynchronous events name it.
pub(crate) fn address(cq: &CqCore) -> Option<usize> {
    Some(cq_state(cq).ok()?.address)
}

/// The C library's completion queue behind one of these.
pub(super) fn raw_cq(cq: &CqCore) -> Result<Arc<sys::Cq>, Error> {
    cq_state(cq)?.cq.get()
}

pub(super) fn create_cq(nic: &Shared, args: CreateCq) -> Result<Cq, Error> {
    let number = nic.number();
    let notify = Arc::clone(&args.notify);
    nic.listen(number, &notify);
    let create = match args.timestamps {
        false => sys::Cq::create,
        true => sys::Cq::create_stamped,
    };
    let made = create(&nic.channel, args.cqe, args.comp_vector, number);
    let cq = made.map_err(|errno| {
        nic.ignore(number);
        nic.counts
            .cqs
            .explain(error(errno), Attr::MaxCq, nic.attr.max_cq)
    })?;
    nic.counts.cqs.up();
    let (cqe, address) = (cq.cqe(), cq.address());
    let cq = Arc::new(Slot::new(cq));
    let raw = queue::completion_queue(nic, &cq, args.timestamps);
    let state = CqState {
        cq,
        number,
        address,
    };
    let handle = args.build(number as u32, cqe, Box::new(state), raw);
    if let Some(core) = notify.target() {
        nic.name(address, &core);
    }
    Ok(handle)
}

pub(super) fn resize_cq(cqe: u32, core: &CqCore) -> Result<u32, Error> {
    let cq = raw_cq(core)?;
    cq.resize(cqe).map_err(|errno| match errno {
        // More completions wait than would fit.
        rustix::io::Errno::INVAL => Error::Mismatch {
            attr: Attr::Cqe,
            why: Why::StillUsed,
        },
        errno => error(errno),
    })?;
    core.resized(cq.cqe());
    Ok(cq.cqe())
}

pub(super) fn modify_cq(args: &ModifyCq, core: &CqCore) -> Result<(), Error> {
    let period = u16::try_from(args.period_us).unwrap_or(u16::MAX);
    let moderated = raw_cq(core)?.moderate(args.count, period);
    moderated.map_err(|errno| match error(errno) {
        Error::Unsupported(_) => Error::Unsupported(Attr::Moderation),
        other => other,
    })
}

pub(super) fn destroy_cq(nic: &Shared, core: &CqCore) {
    if let Ok(state) = cq_state(core) {
        nic.forget(state.address);
        state.cq.destroy();
        nic.ignore(state.number);
    }
    nic.counts.cqs.down();
}

pub(super) fn check_srq(nic: &Shared, args: &CreateSrq) -> Result<(), Error> {
    if args.xrc().is_some() {
        xrc::check(nic)?;
    }
    let (attr, max) = (Attr::MaxSrqWr, nic.attr.max_srq_wr);
    if args.attr.max_wr == 0 {
        return Err(Error::Invalid { attr, got: 0, max });
    }
    at_most(attr, args.attr.max_wr, max)?;
    at_most(Attr::MaxRecvSge, args.attr.max_sge, nic.attr.max_srq_sge)
}

pub(super) fn check_srq_change(nic: &Shared, args: &ModifySrq) -> Result<(), Error> {
    match args.max_wr {
        Some(0) => Err(Error::Mismatch {
            attr: Attr::MaxSrqWr,
            why: Why::Zero,
        }),
        Some(max_wr) => {
            require(nic, DeviceCap::SRQ_RESIZE, Attr::MaxSrqWr)?;
            at_most(Attr::MaxSrqWr, max_wr, nic.attr.max_srq_wr)
        }
        None => Ok(()),
    }
}

fn srq_state(srq: &SrqCore) -> Result<&SrqState, Error> {
    srq.private::<SrqState>().ok_or(Error::Closing)
}

/// The C library's shared receive queue behind one of these.
pub(super) fn raw_srq(srq: &SrqCore) -> Result<Arc<sys::Srq>, Error> {
    srq_state(srq)?.srq.get()
}

pub(super) fn create_srq(nic: &Shared, args: CreateSrq, pd: &PdCore) -> Result<Srq, Error> {
    let pd = memory::domain(pd)?.pd().get()?;
    let attr = verbs_abi::SrqAttr {
        max_wr: args.attr.max_wr,
        max_sge: args.attr.max_sge,
        srq_limit: 0,
    };
    let created = match args.xrc() {
        None => sys::Srq::create(&pd, attr).map(|(srq, granted)| (srq, granted, None)),
        Some((xrcd, cq)) => {
            let (xrcd, cq) = (xrc::raw_xrcd(xrcd)?, raw_cq(cq)?);
            let made = sys::xrc::create_srq((&pd, &xrcd, &cq), attr);
            made.map(|(srq, granted, number)| (srq, granted, Some(number)))
        }
    };
    let (srq, granted, number) = created.map_err(|errno| {
        let counts = &nic.counts.srqs;
        counts.explain(error(errno), Attr::MaxSrq, nic.attr.max_srq)
    })?;
    nic.counts.srqs.up();
    let address = srq.address();
    let srq = Arc::new(Slot::new(srq));
    let raw =
        queue::SharedReceiveQueue::new(nic, Arc::clone(&srq), granted.max_wr, granted.max_sge);
    let handle = args.build(
        // On extended reliable connections peers name it by the driver's number.
        number.unwrap_or_else(|| nic.number() as u32),
        Box::new(SrqState { srq, address }),
        Box::new(raw),
    );
    nic.name(address, handle.target());
    Ok(handle)
}

pub(super) fn modify_srq(args: &ModifySrq, core: &SrqCore) -> Result<(), Error> {
    let srq = raw_srq(core)?;
    srq.modify(args.max_wr, args.srq_limit).map_err(error)
}

pub(super) fn query_srq(core: &SrqCore) -> Result<SrqAttr, Error> {
    let attr = raw_srq(core)?.query().map_err(error)?;
    Ok(SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        srq_limit: attr.srq_limit,
    })
}

pub(super) fn destroy_srq(nic: &Shared, core: &SrqCore) {
    if let Ok(state) = srq_state(core) {
        nic.forget(state.address);
        state.srq.destroy();
    }
    nic.counts.srqs.down();
}
