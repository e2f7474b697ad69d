//! The verbs of extended reliable connections.

use std::ops::Range;

use verbs_core::command::{Command, RequestId};
use verbs_core::object::Base;
use verbs_core::qp::DestroyQp;
use verbs_core::sync::Arc;
use verbs_core::xrcd::{AllocXrcd, CreateTargetQp, DeallocXrcd, OpenTargetQp, XrcdName};
use verbs_core::{Attr, DeviceCap, Error, QpType, Target};

use crate::hca::Hca;
use crate::hca::verbs::qp::{add, numbers};
use crate::port::Port;
use crate::port::xrc::{Domain, RemoteTarget, missing};
use crate::qp::worker::target;
use crate::qp::{Init, QueuePair};
use crate::queue::cq::CqRing;

pub(super) fn alloc_xrcd(hca: &Hca, command: Command<'_, AllocXrcd>) {
    if let Err(error) = hca.port.features.require(DeviceCap::XRC, Attr::Xrcd) {
        return command.complete(Err(error));
    }
    match make_domain(hca, command.name) {
        Ok((number, domain)) => {
            let (args, reply) = command.split();
            reply.complete(Ok(args.build(number, Box::new(domain))));
        }
        Err(error) => command.complete(Err(error)),
    }
}

/// The domain, and the number of its new handle.
fn make_domain(hca: &Hca, name: Option<XrcdName>) -> Result<(u32, Arc<Domain>), Error> {
    let ring = Arc::new(CqRing::new(1, Arc::default(), None, true)?);
    let numbers = shared_numbers(hca, name)?;
    if !numbers.is_empty() && hca.port.xrc.opened.messenger().is_none() {
        target::share_targets(&hca.port, &numbers, &ring)?;
    }
    let number = hca.tables.lock().xrcds.insert(())?;
    Ok((number, hca.port.xrc.domain(name, ring)))
}

/// What the numbers in a domain of that name are drawn from, so that no two programs have the same; nothing if no other
/// program shares it.
pub(super) fn shared_numbers(hca: &Hca, name: Option<XrcdName>) -> Result<Vec<Range<u32>>, Error> {
    match name {
        Some(_) => numbers(hca),
        None => Ok(Vec::new()),
    }
}

/// The domain behind a handle of this provider.
pub(super) fn domain(base: &Base) -> Option<&Arc<Domain>> {
    base.private::<Arc<Domain>>()
}

pub(super) fn dealloc_xrcd(hca: &Hca, command: Command<'_, DeallocXrcd>) {
    let number = command.target().base().id().number;
    hca.tables.lock().xrcds.remove(number);
    command.complete(Ok(()));
}

pub(super) fn create_target_qp(hca: &Hca, command: Command<'_, CreateTargetQp>) {
    match make_target(hca, command.target().base()) {
        Ok(qp) => {
            let (args, reply) = command.split();
            let handle = args.build(qp.qpn, qp.cap.get(), Box::new(Arc::clone(&qp)));
            hca.port.xrc.add_handle(qp.qpn, handle.target());
            reply.complete(Ok(handle));
        }
        Err(error) => command.complete(Err(error)),
    }
}

fn make_target(hca: &Hca, xrcd: &Base) -> Result<Arc<QueuePair>, Error> {
    let domain = domain(xrcd).ok_or(Error::DeviceFailed)?;
    add(hca, Init::target(&hca.port, domain))
}

/// Asks the program that has the number.
fn open_elsewhere(hca: &Hca, command: Command<'_, OpenTargetQp>, name: Option<XrcdName>) {
    let name = name.filter(|_| target::may_be_elsewhere(&hca.port, command.qpn));
    let Some(name) = name else {
        return command.complete(Err(missing()));
    };
    if let Some((args, pending)) = command.pend() {
        hca.port.xrc.opened.open(args, name, pending);
        target::send_messages(&hca.port);
    }
}

/// A handle of another program's target is closed.
pub(super) fn close_elsewhere(hca: &Hca, command: Command<'_, DestroyQp>) {
    if let Some(remote) = command.target().base().private::<RemoteTarget>() {
        // The home counts each handle.
        hca.port.xrc.drop_handle(remote.target, command.target());
        hca.port.xrc.opened.close(remote);
        target::send_messages(&hca.port);
    }
    command.complete(Ok(()));
}

/// Ends the request early, if it opens a target.
pub(in crate::hca) fn cancel(port: &Port, id: RequestId) {
    if let Some(job) = port.xrc.opened.cancel(id) {
        target::send_messages(port);
        job();
    }
}

pub(super) fn open_target_qp(hca: &Hca, command: Command<'_, OpenTargetQp>) {
    let domain = domain(command.target().base()).cloned();
    let number = domain.as_ref().map(|domain| domain.number);
    let found = hca.port.link.lock().of(hca.port.lid, command.qpn);
    let found = found.filter(|qp| qp.qp_type == QpType::XrcRecv && Some(qp.pd) == number);
    // One of another program is there only for a visit.
    let found = found.filter(|qp| !hca.port.xrc.is_visitor(qp.qpn));
    let Some(qp) = found else {
        return open_elsewhere(hca, command, domain.and_then(|domain| domain.name));
    };
    let (args, reply) = command.split();
    let handle = args.build(qp.cap.get(), Box::new(Arc::clone(&qp)));
    hca.port.xrc.add_handle(qp.qpn, handle.target());
    reply.complete(Ok(handle));
}
