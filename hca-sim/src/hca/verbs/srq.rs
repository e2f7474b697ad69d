//! The verbs of shared receive queues.

use verbs_core::command::Command;
use verbs_core::srq::{CreateSrq, DestroySrq, ModifySrq, QuerySrq, SrqCore};
use verbs_core::sync::Arc;
use verbs_core::{Attr, DeviceCap, Error, Qpn, Srqn, Target, Why};

use crate::hca::Hca;
use crate::hca::verbs::{check_sizes, mismatch, xrc};
use crate::queue::base::events::WaitsForCq;
use crate::queue::base::limits::{self, MAX_SGE};
use crate::queue::cq::CqRing;
use crate::queue::srq::{SharedPoster, SharedReceives, XrcSrq};

/// No work waits for a completion queue to be shared.
struct Nobody;

impl WaitsForCq for Nobody {
    fn go_on(self: Arc<Self>) {}
}

pub(super) fn create_srq(hca: &Hca, command: Command<'_, CreateSrq>) {
    match make_srq(hca, &command) {
        Ok((number, srq)) => {
            let (args, reply) = command.split();
            let raw = Box::new(SharedPoster::new(Arc::clone(&srq)));
            let handle = args.build(number, Box::new(Arc::clone(&srq)), raw);
            srq.set_core(handle.target());
            reply.complete(Ok(handle));
        }
        Err(error) => command.complete(Err(error)),
    }
}

fn make_srq(
    hca: &Hca,
    command: &Command<'_, CreateSrq>,
) -> Result<(u32, Arc<SharedReceives>), Error> {
    let attr = command.attr;
    check_sizes(&[
        (Attr::MaxSrqWr, attr.max_wr, limits::SRQ_WR),
        (Attr::MaxRecvSge, attr.max_sge, MAX_SGE as u32),
    ])?;
    if attr.max_wr == 0 {
        return Err(zero(Attr::MaxSrqWr));
    }
    let pd = command.target().base().id().number;
    let slot = hca.tables.lock().srqs.insert(())?;
    let made = xrc_srq(hca, command, slot).and_then(|xrc| {
        let number = xrc.as_ref().map(|xrc| xrc.number);
        SharedReceives::new(hca.port.removed.clone(), pd, xrc, attr.max_wr, attr.max_sge)
            .inspect_err(|_| number.into_iter().for_each(|number| release(hca, number)))
    });
    let srq = Arc::new(made.inspect_err(|_| {
        hca.tables.lock().srqs.remove(slot);
    })?);
    let Some(xrc) = &srq.xrc else {
        return Ok((slot, srq));
    };
    hca.port.xrc.enter(xrc.number, &srq);
    Ok((xrc.number.value(), srq))
}

/// Makes the new shared receive queue one for extended reliable connections, if that is asked for.
fn xrc_srq(hca: &Hca, command: &CreateSrq, slot: u32) -> Result<Option<XrcSrq>, Error> {
    let Some((xrcd, cq)) = command.xrc() else {
        return Ok(None);
    };
    let cq = cq.base().private::<Arc<CqRing>>();
    let cq = cq.ok_or(mismatch(Attr::Cq, Why::OtherDevice))?;
    let domain = xrc::domain(xrcd.base()).ok_or(mismatch(Attr::Xrcd, Why::OtherDevice))?;
    let number = match &*xrc::shared_numbers(hca, domain.name)? {
        [] => slot,
        ranges => {
            let drawn = hca.port.link.lock().reserve(hca.port.lid, ranges);
            drawn.ok_or(Error::DeviceRemoved)?.value()
        }
    };
    share(hca, cq);
    Ok(Some(XrcSrq {
        number: Srqn::new(number),
        slot,
        xrcd: domain.number,
        cq: Arc::clone(cq),
    }))
}

/// Another queue may have that number, if it was drawn.
fn release(hca: &Hca, number: Srqn) {
    let number = Qpn::new(number.value());
    hca.port.link.lock().release(hca.port.lid, number);
}

/// The thread that drives the port will push to that queue.
fn share(hca: &Hca, cq: &Arc<CqRing>) {
    if !hca.port.is_wire() {
        cq.share(Arc::new(Nobody));
    }
}

pub(super) fn modify_srq(hca: &Hca, command: Command<'_, ModifySrq>) {
    let Some(srq) = shared_receives(command.target()).cloned() else {
        return command.complete(Err(Error::DeviceFailed));
    };
    let (resize, limit) = (command.max_wr, command.srq_limit);
    let resizable = hca
        .port
        .features
        .require(DeviceCap::SRQ_RESIZE, Attr::MaxSrqWr);
    if let (Some(_), Err(error)) = (resize, resizable) {
        return command.complete(Err(error));
    }
    // All or nothing, so the change that may be refused comes first.
    let depth = resize.unwrap_or(srq.depth());
    let sizes = [
        (Attr::MaxSrqWr, depth, limits::SRQ_WR),
        (Attr::SrqLimit, limit.unwrap_or(0), depth),
    ];
    let checked = check_sizes(&sizes).and_then(|()| match resize {
        Some(0) => Err(zero(Attr::MaxSrqWr)),
        Some(depth) => srq.resize(depth),
        None => Ok(()),
    });
    let due = checked.is_ok() && limit.is_some_and(|limit| srq.arm(limit));
    command.complete(checked);
    if due {
        srq.raise_limit();
    }
}

pub(super) fn query_srq(command: Command<'_, QuerySrq>) {
    let attr = shared_receives(command.target()).map(|srq| srq.attr());
    command.complete(attr.ok_or(Error::DeviceFailed));
}

pub(super) fn destroy_srq(hca: &Hca, command: Command<'_, DestroySrq>) {
    let mut slot = command.target().base().id().number;
    let srq = shared_receives(command.target());
    if let Some(xrc) = srq.and_then(|srq| srq.xrc.as_ref()) {
        hca.port.xrc.leave(xrc.number);
        release(hca, xrc.number);
        slot = xrc.slot;
    }
    hca.tables.lock().srqs.remove(slot);
    command.complete(Ok(()));
}

pub(super) fn shared_receives(core: &SrqCore) -> Option<&Arc<SharedReceives>> {
    core.base().private::<Arc<SharedReceives>>()
}

fn zero(attr: Attr) -> Error {
    mismatch(attr, Why::Zero)
}
