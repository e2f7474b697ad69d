//! The verbs of shared receive queues.

use verbs_core::command::Command;
use verbs_core::srq::{CreateSrq, DestroySrq, ModifySrq, QuerySrq, SrqCore};
use verbs_core::sync::Arc;
use verbs_core::{Attr, DeviceCap, Error, Srqn, Target, Why};

use crate::hca::Hca;
use crate::hca::verbs::{check_sizes, mismatch};
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
    let number = hca.tables.lock().srqs.insert(())?;
    let made = xrc_srq(hca, command, number).and_then(|xrc| {
        SharedReceives::new(hca.port.removed.clone(), pd, xrc, attr.max_wr, attr.max_sge)
    });
    let srq = Arc::new(made.inspect_err(|_| {
        hca.tables.lock().srqs.remove(number);
    })?);
    if let Some(xrc) = &srq.xrc {
        hca.port.xrc.enter(xrc.number, &srq);
    }
    Ok((number, srq))
}

/// Makes the new shared receive queue one for extended reliable connections, if that is asked for.
fn xrc_srq(hca: &Hca, command: &CreateSrq, number: u32) -> Result<Option<XrcSrq>, Error> {
    let Some((xrcd, cq)) = command.xrc() else {
        return Ok(None);
    };
    let cq = cq.base().private::<Arc<CqRing>>();
    let cq = cq.ok_or(mismatch(Attr::Cq, Why::OtherDevice))?;
    share(hca, cq);
    Ok(Some(XrcSrq {
        number: Srqn::new(number),
        xrcd: xrcd.base().id().number,
        cq: Arc::clone(cq),
    }))
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
    let number = command.target().base().id().number;
    let srq = shared_receives(command.target());
    if let Some(xrc) = srq.and_then(|srq| srq.xrc.as_ref()) {
        hca.port.xrc.leave(xrc.number);
    }
    hca.tables.lock().srqs.remove(number);
    command.complete(Ok(()));
}

pub(super) fn shared_receives(core: &SrqCore) -> Option<&Arc<SharedReceives>> {
    core.base().private::<Arc<SharedReceives>>()
}

fn zero(attr: Attr) -> Error {
    mismatch(attr, Why::Zero)
}
