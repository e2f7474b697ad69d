//! The verbs of completion queues.

use verbs_core::command::Command;
use verbs_core::cq::{CreateCq, DestroyCq, ModifyCq, QueryCq, ResizeCq};
use verbs_core::sync::Arc;
use verbs_core::{Attr, DeviceCap, Error, Target};

use crate::hca::Hca;
use crate::hca::verbs::check_sizes;
use crate::qp::cq_resize;
use crate::queue::base::limits;
use crate::queue::cq::{CqPoller, CqRing};

pub(super) fn create_cq(hca: &Hca, command: Command<'_, CreateCq>) {
    match make_cq(hca, &command) {
        Ok((number, cqe, ring)) => {
            let (args, reply) = command.split();
            let port = Arc::clone(&hca.port);
            let counts = port.features.has(DeviceCap::N_NOTIFY_CQ);
            let raw = Box::new(CqPoller::new(Arc::clone(&ring), Some(port)).counts(counts));
            reply.complete(Ok(args.build(number, cqe, Box::new(ring), raw)));
        }
        Err(error) => command.complete(Err(error)),
    }
}

fn make_cq(hca: &Hca, args: &CreateCq) -> Result<(u32, u32, Arc<CqRing>), Error> {
    check_cqe(args.cqe)?;
    if args.comp_vector != 0 {
        return Err(Error::Invalid {
            attr: Attr::CompVector,
            got: args.comp_vector,
            max: 0,
        });
    }
    let cqe = args.cqe.next_power_of_two();
    let clock = args.timestamps.then(|| hca.port.engine.clock().clone());
    let shared = hca.port.is_wire();
    let ring = Arc::new(CqRing::new(cqe, Arc::clone(&args.notify), clock, shared)?);
    let number = hca.tables.lock().cqs.insert(())?;
    Ok((number, cqe, ring))
}

pub(super) fn destroy_cq(hca: &Hca, command: Command<'_, DestroyCq>) {
    hca.tables
        .lock()
        .cqs
        .remove(command.target().base().id().number);
    command.complete(Ok(()));
}

pub(super) fn resize_cq(hca: &Hca, command: Command<'_, ResizeCq>) {
    let Some(ring) = command.target().private::<Arc<CqRing>>().cloned() else {
        return command.complete(Err(Error::DeviceFailed));
    };
    let lane =
        check_cqe(command.cqe).and_then(|()| ring.next_lane(command.cqe.next_power_of_two()));
    let lane = match lane {
        Ok(lane) => lane,
        Err(error) => return command.complete(Err(error)),
    };
    let core = Arc::clone(command.target());
    if let Some((_, pending)) = command.pend() {
        let port = Arc::clone(&hca.port);
        cq_resize::resize(&ring, lane, port, move |resized| {
            if let Ok(cqe) = resized {
                core.resized(cqe);
            }
            pending.complete(resized);
        });
    }
}

pub(super) fn query_cq(command: Command<'_, QueryCq>) {
    let info = command.target().private::<Arc<CqRing>>();
    let info = info.map(|ring| ring.info()).ok_or(Error::DeviceFailed);
    command.complete(info);
}

pub(super) fn modify_cq(hca: &Hca, command: Command<'_, ModifyCq>) {
    let answer = match command.target().private::<Arc<CqRing>>() {
        Some(ring) => {
            ring.moderate(&hca.port.engine, command.count, command.period_us);
            Ok(())
        }
        None => Err(Error::DeviceFailed),
    };
    command.complete(answer);
}

fn check_cqe(cqe: u32) -> Result<(), Error> {
    if cqe == 0 {
        let (attr, got, max) = (Attr::Cqe, 0, limits::CQE);
        return Err(Error::Invalid { attr, got, max });
    }
    check_sizes(&[(Attr::Cqe, cqe, limits::CQE)])
}
