//! Completion queues and shared receive queues.

use verbs_core::cq::{CqCore, CreateCq, ModifyCq};
use verbs_core::pd::PdCore;
use verbs_core::srq::{CreateSrq, ModifySrq, SrqCore};
use verbs_core::sync::Arc;
use verbs_core::{Attr, Cq, Error, Srq, SrqAttr, Target, Why};

use super::{at_most, memory};
use crate::convert::error;
use crate::queue;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys;

/// What is kept with a completion queue.
pub(crate) struct CqState {
    pub(crate) cq: Arc<Slot<sys::Cq>>,
    /// Comes with its events.
    number: u64,
    /// Names it in asynchronous events.
    address: usize,
}

/// What is kept with a shared receive queue.
pub(crate) struct SrqState {
    pub(crate) srq: Arc<Slot<sys::Srq>>,
    address: usize,
}

pub(super) fn check_cq(nic: &Shared, args: &CreateCq) -> Result<(), Error> {
    check_cqe(nic, args.cqe)?;
    if args.timestamps {
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

/// The queue of C that stands for a completion queue.
pub(super) fn raw_cq(cq: &CqCore) -> Result<Arc<sys::Cq>, Error> {
    cq_state(cq)?.cq.get()
}

pub(super) fn create_cq(nic: &Shared, args: CreateCq) -> Result<Cq, Error> {
    let number = nic.number();
    let notify = Arc::clone(&args.notify);
    nic.listen(number, &notify);
    let made = sys::Cq::create(&nic.channel, args.cqe, args.comp_vector, number);
    let cq = made.map_err(|errno| {
        nic.ignore(number);
        nic.counts
            .cqs
            .explain(error(errno), Attr::MaxCq, nic.attr.max_cq)
    })?;
    nic.counts.cqs.up();
    let (cqe, address) = (cq.cqe(), cq.address());
    let cq = Arc::new(Slot::new(cq));
    let raw = queue::CompletionQueue::new(Arc::clone(&cq));
    let state = CqState {
        cq,
        number,
        address,
    };
    let handle = args.build(number as u32, cqe, Box::new(state), Box::new(raw));
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
        return Err(Error::Unsupported(Attr::Xrcd));
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
        Some(max_wr) => at_most(Attr::MaxSrqWr, max_wr, nic.attr.max_srq_wr),
        None => Ok(()),
    }
}

fn srq_state(srq: &SrqCore) -> Result<&SrqState, Error> {
    srq.private::<SrqState>().ok_or(Error::Closing)
}

/// The queue of C that stands for a shared receive queue.
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
    let (srq, granted) = sys::Srq::create(&pd, attr).map_err(|errno| {
        nic.counts
            .srqs
            .explain(error(errno), Attr::MaxSrq, nic.attr.max_srq)
    })?;
    nic.counts.srqs.up();
    let address = srq.address();
    let srq = Arc::new(Slot::new(srq));
    let raw =
        queue::SharedReceiveQueue::new(nic, Arc::clone(&srq), granted.max_wr, granted.max_sge);
    let handle = args.build(
        nic.number() as u32,
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
