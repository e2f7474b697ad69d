//! The verbs of queue pairs.

use std::ops::Range;

use verbs_core::command::Command;
use verbs_core::mem::faults_are_caught;
use verbs_core::object::Base;
use verbs_core::qp::{CreateQp, DestroyQp, ModifyQp, QueryQp, ResizeQp};
use verbs_core::slab_alloc::SlabBox;
use verbs_core::sync::Arc;
use verbs_core::{
    Attr, DeviceCap, Error, QpCap, QpType, Qpn, RawRecvQueue, RawSendQueue, Target, Why,
};

use crate::hca::Hca;
use crate::hca::verbs::srq::shared_receives;
use crate::hca::verbs::{check_sizes, mismatch, xrc};
use crate::port::Driver;
use crate::post::recv::RecvPoster;
use crate::post::send::Poster;
use crate::post::send::moves::{Guarded, Unguarded};
use crate::qp::{Init, QueuePair};
use crate::queue::base::events::WaitsForCq;
use crate::queue::base::limits::{self, MAX_INLINE, MAX_SGE};
use crate::queue::cq::CqRing;
use crate::queue::srq::NoReceives;

/// The numbers of the queue pairs of subnet management and of general services (IBTA vol. 1, 3.9.3).
const SMI: Qpn = Qpn::new(0);
const GSI: Qpn = Qpn::new(1);

/// A new queue pair, with the posters' ends of its queues.
type Made = (
    Arc<QueuePair>,
    SlabBox<dyn RawSendQueue>,
    SlabBox<dyn RawRecvQueue>,
);

pub(super) fn create_qp(hca: &Hca, command: Command<'_, CreateQp>) {
    let made = make_qp(hca, &command);
    match made.and_then(|qp| with_posters(hca, qp)) {
        Ok((qp, send, recv)) => {
            let (args, reply) = command.split();
            let (qpn, cap) = (qp.qpn, qp.cap.get());
            let handle = args.build(qpn, cap, Box::new(Arc::clone(&qp)), send, recv);
            qp.set_core(handle.target());
            reply.complete(Ok(handle));
        }
        Err(error) => command.complete(Err(error)),
    }
}

pub(super) fn modify_qp(command: Command<'_, ModifyQp>) {
    match queue_pair(command.target().base()) {
        Some(qp) => qp.modify(command),
        None => command.complete(Err(elsewhere())),
    }
}

pub(super) fn query_qp(command: Command<'_, QueryQp>) {
    let info = queue_pair(command.target().base()).map(|qp| qp.query());
    let (args, reply) = command.split();
    let info = info.map(|info| args.answer(info));
    reply.complete(info.ok_or(elsewhere()));
}

/// A target of another program changes there.
const fn elsewhere() -> Error {
    Error::Unsupported(Attr::TargetQpn)
}

pub(super) fn resize_qp(hca: &Hca, command: Command<'_, ResizeQp>) {
    let features = &hca.port.features;
    if let Err(error) = features.require(DeviceCap::RESIZE_MAX_WR, Attr::MaxSendWr) {
        return command.complete(Err(error));
    }
    match queue_pair(command.target().base()) {
        Some(qp) => qp.resize(command),
        None => command.complete(Err(Error::DeviceFailed)),
    }
}

pub(super) fn destroy_qp(hca: &Hca, command: Command<'_, DestroyQp>) {
    let qp = queue_pair(command.target().base()).cloned();
    match qp {
        // Another client has opened it too.
        Some(qp)
            if qp.qp_type == QpType::XrcRecv
                && !hca.port.xrc.drop_handle(qp.qpn, command.target()) =>
        {
            command.complete(Ok(()));
        }
        // Another program has.
        Some(qp) if qp.qp_type == QpType::XrcRecv && hca.port.xrc.opened.orphan(qp.qpn) => {
            hca.tables.lock().queue_pairs -= 1;
            command.complete(Ok(()));
        }
        Some(qp) => {
            hca.tables.lock().queue_pairs -= 1;
            qp.destroy(command);
        }
        None => xrc::close_elsewhere(hca, command),
    }
}

fn make_qp(hca: &Hca, command: &Command<'_, CreateQp>) -> Result<Arc<QueuePair>, Error> {
    let is_known = match command.qp_type {
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::Gsi | QpType::XrcSend => true,
        QpType::Smi => hca.port.managed.is_some(),
        _ => false,
    };
    hca.port.features.check_type(command.qp_type)?;
    if !is_known || hca.port.streams.is_some() && command.qp_type != QpType::Rc {
        return Err(Error::Unsupported(Attr::QpType));
    }
    if command.low_latency && !hca.port.driver().is_some_and(Driver::has_thread) {
        // Where no thread receives packets, a queue pair is as fast as it gets; a flag that changes nothing is
        // refused.
        return Err(Error::Unsupported(Attr::LowLatency));
    }
    let mut cap = command.cap;
    if command.qp_type == QpType::XrcSend {
        if command.srq().is_some() {
            // It has no receives at all.
            return Err(mismatch(Attr::Srq, Why::NoReceives));
        }
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let srq = match command.srq() {
        Some(core) => {
            // Its own receive queue has no use, so its sizes mean nothing.
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
            let foreign = mismatch(Attr::Srq, Why::OtherDevice);
            Some(shared_receives(core).cloned().ok_or(foreign)?)
        }
        None => None,
    };
    check_cap(&cap)?;
    let ring = |core: &verbs_core::cq::CqCore| core.base().private::<Arc<CqRing>>().cloned();
    let not_ours = mismatch(Attr::Cq, Why::OtherDevice);
    let init = Init {
        port: Arc::clone(&hca.port),
        qp_type: command.qp_type,
        blocks_own_multicast: command.block_multicast_loopback,
        low_latency: command.low_latency,
        pd: command.target().base().id().number,
        cap,
        srq,
        sq_sig_all: command.sq_sig_all,
        send_cq: ring(command.send_cq()).ok_or(not_ours)?,
        recv_cq: ring(command.recv_cq()).ok_or(not_ours)?,
    };
    add(hca, init)
}

/// The queue pair and the posters' ends of its queues.
fn with_posters(hca: &Hca, qp: Arc<QueuePair>) -> Result<Made, Error> {
    let has_receives = qp.srq.is_none() && qp.qp_type != QpType::XrcSend;
    let slabs = &hca.port.slabs;
    let send = if faults_are_caught() {
        let poster = Poster::<Guarded>::new(Arc::clone(&qp));
        slabs.boxed(poster).map(SlabBox::<dyn RawSendQueue>::from)
    } else {
        let poster = Poster::<Unguarded>::new(Arc::clone(&qp));
        slabs.boxed(poster).map(SlabBox::<dyn RawSendQueue>::from)
    };
    let recv = if has_receives {
        let poster = RecvPoster::new(Arc::clone(&qp));
        slabs.boxed(poster).map(SlabBox::<dyn RawRecvQueue>::from)
    } else {
        slabs.boxed(NoReceives).map(Into::into)
    };
    let (Ok(send), Ok(recv)) = (send, recv) else {
        hca.port.link.lock().leave(hca.port.lid, qp.qpn);
        hca.tables.lock().queue_pairs -= 1;
        return Err(Error::NoMemory);
    };
    Ok((qp, send, recv))
}

/// Makes a queue pair, if the limit allows one more.
pub(super) fn add(hca: &Hca, init: Init) -> Result<Arc<QueuePair>, Error> {
    let max = hca.about.attr.max_qp;
    {
        let mut tables = hca.tables.lock();
        if tables.queue_pairs >= max {
            return Err(Error::Exhausted {
                attr: Attr::MaxQp,
                max,
            });
        }
        tables.queue_pairs += 1;
    }
    let qp = enter(hca, init).inspect_err(|_| {
        hca.tables.lock().queue_pairs -= 1;
    })?;
    if qp.goes_as_packets() && !hca.port.is_wire() {
        hca.port.need_driver();
        // Work requests that arrive before the queues may be pushed to are put off until then.
        for cq in [&qp.send_cq, &qp.recv_cq] {
            cq.share(Arc::clone(&qp) as Arc<dyn WaitsForCq>);
        }
    }
    Ok(qp)
}

/// Makes the queue pair known on the link, under a number of its own.
fn enter(hca: &Hca, init: Init) -> Result<Arc<QueuePair>, Error> {
    let numbers = numbers(hca)?;
    let mut links = hca.port.link.lock();
    let lid = hca.port.lid;
    let special = match init.qp_type {
        QpType::Smi => Some(SMI),
        QpType::Gsi => Some(GSI),
        _ => None,
    };
    let Some(qpn) = special else {
        let entered = links.enter(lid, &numbers, |qpn| QueuePair::new(qpn, init));
        return entered.ok_or(Error::DeviceRemoved);
    };
    if hca.port.removed.is_set() {
        return Err(Error::DeviceRemoved);
    }
    let entered = links.enter_as(lid, qpn, || QueuePair::new(qpn, init));
    entered.ok_or(Error::Exhausted {
        attr: Attr::QpType,
        max: 1,
    })
}

/// The queue pair numbers that may be drawn, where other processes have the rest: they are more than the queue
/// pairs.
pub(super) fn numbers(hca: &Hca) -> Result<Vec<Range<u32>>, Error> {
    let used = hca.tables.lock().queue_pairs + hca.port.link.lock().reserved(hca.port.lid);
    let Some(numbers) = hca
        .port
        .driver()
        .and_then(|driver| driver.numbers(used as usize))
    else {
        return Ok(Vec::new());
    };
    let count: usize = numbers.iter().map(ExactSizeIterator::len).sum();
    // Some always stay free, so that a free one is found soon.
    let room = count - count / 16;
    match used as usize <= room {
        true => Ok(numbers),
        false => Err(Error::Exhausted {
            attr: Attr::MaxQp,
            max: u32::try_from(room).unwrap_or(u32::MAX),
        }),
    }
}

/// Checks the sizes of a queue pair.
fn check_cap(cap: &QpCap) -> Result<(), Error> {
    check_sizes(&[
        (Attr::MaxSendWr, cap.max_send_wr, limits::QP_WR),
        (Attr::MaxRecvWr, cap.max_recv_wr, limits::QP_WR),
        (Attr::MaxSendSge, cap.max_send_sge, MAX_SGE as u32),
        (Attr::MaxRecvSge, cap.max_recv_sge, MAX_SGE as u32),
        (Attr::MaxInlineData, cap.max_inline_data, MAX_INLINE as u32),
    ])
}

/// The queue pair behind a handle of this provider.
pub(super) fn queue_pair(base: &Base) -> Option<&Arc<QueuePair>> {
    base.private::<Arc<QueuePair>>()
}
