//! The verbs of extended reliable connections.

use verbs_core::command::Command;
use verbs_core::object::Base;
use verbs_core::sync::Arc;
use verbs_core::xrcd::{AllocXrcd, CreateTargetQp, DeallocXrcd, OpenTargetQp};
use verbs_core::{Attr, DeviceCap, Error, QpCap, QpType, Target, Why};

use crate::hca::Hca;
use crate::hca::verbs::qp::add;
use crate::qp::{Init, QueuePair};
use crate::queue::cq::CqRing;

/// Sizes of a queue pair that has no queues.
const NO_QUEUES: QpCap = QpCap {
    max_send_wr: 0,
    max_recv_wr: 0,
    max_send_sge: 0,
    max_recv_sge: 0,
    max_inline_data: 0,
};

pub(super) fn alloc_xrcd(hca: &Hca, command: Command<'_, AllocXrcd>) {
    if let Err(error) = hca.port.features.require(DeviceCap::XRC, Attr::Xrcd) {
        return command.complete(Err(error));
    }
    // Targets have no completions; a queue pair has completion queues nevertheless.
    let made = CqRing::new(1, Arc::default(), None, true)
        .and_then(|ring| Ok((hca.tables.lock().xrcds.insert(())?, Arc::new(ring))));
    match made {
        Ok((number, ring)) => {
            let (args, reply) = command.split();
            reply.complete(Ok(args.build(number, Box::new(ring))));
        }
        Err(error) => command.complete(Err(error)),
    }
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
            hca.port.xrc.opened(qp.qpn, handle.target());
            reply.complete(Ok(handle));
        }
        Err(error) => command.complete(Err(error)),
    }
}

fn make_target(hca: &Hca, xrcd: &Base) -> Result<Arc<QueuePair>, Error> {
    let ring = xrcd.private::<Arc<CqRing>>().ok_or(Error::DeviceFailed)?;
    add(
        hca,
        Init {
            port: Arc::clone(&hca.port),
            qp_type: QpType::XrcRecv,
            blocks_own_multicast: false,
            low_latency: false,
            pd: xrcd.id().number,
            cap: NO_QUEUES,
            srq: None,
            sq_sig_all: false,
            send_cq: Arc::clone(ring),
            recv_cq: Arc::clone(ring),
        },
    )
}

pub(super) fn open_target_qp(hca: &Hca, command: Command<'_, OpenTargetQp>) {
    let xrcd = command.target().base().id().number;
    let found = hca.port.link.lock().of(hca.port.lid, command.qpn);
    let found = found.filter(|qp| qp.qp_type == QpType::XrcRecv && qp.pd == xrcd);
    let Some(qp) = found else {
        return command.complete(Err(Error::Mismatch {
            attr: Attr::TargetQpn,
            why: Why::Missing,
        }));
    };
    let (args, reply) = command.split();
    let handle = args.build(qp.cap.get(), Box::new(Arc::clone(&qp)));
    hca.port.xrc.opened(qp.qpn, handle.target());
    reply.complete(Ok(handle));
}
