//! The verbs that make and destroy protection domains and queues, and those of completion queues and
//! shared receive queues.

use verbs_core::command::Command;
use verbs_core::cq::{CreateCq, DestroyCq, ModifyCq, ResizeCq};
use verbs_core::pd::{AllocPd, DeallocPd};
use verbs_core::qp::{CreateQp, DestroyQp};
use verbs_core::srq::{CreateSrq, DestroySrq, ModifySrq, QuerySrq, SrqCore};
use verbs_core::sync::Arc;
use verbs_core::yard::Lone;
use verbs_core::{Attr, Error, QpCap, QpType, Qpn, RawRecvQueue, Srqn, Target, Why};

use crate::hca::{Hca, queue_pair};
use crate::post::recv::RecvPoster;
use crate::post::send::SendPoster;
use crate::qp::cq_resize;
use crate::qp::{Init, QueuePair};
use crate::queue::base::events::WaitsForCq;
use crate::queue::base::limits::{self, MAX_INLINE, MAX_SGE};
use crate::queue::cq::{CqPoller, CqRing};
use crate::queue::srq::{Named, NoReceives, SharedPoster, SharedReceives};

/// The numbers of the queue pairs of subnet management and of general services (IBTA vol. 1, 3.9.3).
const SMI: Qpn = Qpn::new(0);
const GSI: Qpn = Qpn::new(1);

/// Nobody has work that waits for a completion queue to be shared.
struct Nobody;

impl WaitsForCq for Nobody {
    fn go_on(self: Arc<Self>) {}
}

/// A new queue pair, with the posters' ends of its queues.
type Made = (Arc<QueuePair>, Lone<SendPoster>, Lone<dyn RawRecvQueue>);

impl Hca {
    pub(in crate::hca) fn alloc_pd(&self, command: Command<'_, AllocPd>) {
        let number = self.tables.lock().pds.insert(());
        match number {
            Ok(number) => {
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(number, Box::new(()))));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    pub(in crate::hca) fn dealloc_pd(&self, command: Command<'_, DeallocPd>) {
        self.tables
            .lock()
            .pds
            .remove(command.target().base().id().number);
        command.complete(Ok(()));
    }

    pub(in crate::hca) fn create_cq(&self, command: Command<'_, CreateCq>) {
        match self.make_cq(&command) {
            Ok((number, cqe, ring)) => {
                let (args, reply) = command.split();
                let port = Arc::clone(&self.port);
                let raw = Box::new(CqPoller::new(Arc::clone(&ring), Some(port)));
                reply.complete(Ok(args.build(number, cqe, Box::new(ring), raw)));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    fn make_cq(&self, args: &CreateCq) -> Result<(u32, u32, Arc<CqRing>), Error> {
        check_cqe(args.cqe)?;
        if args.comp_vector != 0 {
            return Err(Error::Invalid {
                attr: Attr::CompVector,
                got: args.comp_vector,
                max: 0,
            });
        }
        let cqe = args.cqe.next_power_of_two();
        let clock = args.timestamps.then(|| self.port.engine.clock().clone());
        let shared = self.port.is_wire();
        let ring = Arc::new(CqRing::new(cqe, Arc::clone(&args.notify), clock, shared)?);
        let number = self.tables.lock().cqs.insert(())?;
        Ok((number, cqe, ring))
    }

    pub(in crate::hca) fn destroy_cq(&self, command: Command<'_, DestroyCq>) {
        self.tables
            .lock()
            .cqs
            .remove(command.target().base().id().number);
        command.complete(Ok(()));
    }

    pub(in crate::hca) fn resize_cq(&self, command: Command<'_, ResizeCq>) {
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
            let port = Arc::clone(&self.port);
            cq_resize::resize(&ring, lane, port, move |resized| {
                if let Ok(cqe) = resized {
                    core.resized(cqe);
                }
                pending.complete(resized);
            });
        }
    }

    pub(in crate::hca) fn modify_cq(&self, command: Command<'_, ModifyCq>) {
        let answer = match command.target().private::<Arc<CqRing>>() {
            Some(ring) => {
                ring.moderate(&self.port.engine, command.count, command.period_us);
                Ok(())
            }
            None => Err(Error::DeviceFailed),
        };
        command.complete(answer);
    }

    pub(in crate::hca) fn create_srq(&self, command: Command<'_, CreateSrq>) {
        match self.make_srq(&command) {
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
        &self,
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
        let number = self.tables.lock().srqs.insert(())?;
        let made = self.name_srq(command, number).and_then(|named| {
            SharedReceives::new(
                self.port.removed.clone(),
                pd,
                named,
                attr.max_wr,
                attr.max_sge,
            )
        });
        let srq = Arc::new(made.inspect_err(|_| {
            self.tables.lock().srqs.remove(number);
        })?);
        if let Some(named) = &srq.named {
            self.port.xrc.enter(named.number, &srq);
        }
        Ok((number, srq))
    }

    /// What makes the new shared receive queue one for extended reliable connections, if it is to be.
    fn name_srq(&self, command: &CreateSrq, number: u32) -> Result<Option<Named>, Error> {
        let Some((xrcd, cq)) = command.xrc() else {
            return Ok(None);
        };
        let cq = cq.base().private::<Arc<CqRing>>();
        let cq = cq.ok_or(mismatch(Attr::Cq, Why::OtherDevice))?;
        self.share(cq);
        Ok(Some(Named {
            number: Srqn::new(number),
            xrcd: xrcd.base().id().number,
            cq: Arc::clone(cq),
        }))
    }

    /// Whoever drives the port will push to that queue.
    fn share(&self, cq: &Arc<CqRing>) {
        if !self.port.is_wire() {
            cq.share(Arc::new(Nobody));
        }
    }

    pub(in crate::hca) fn modify_srq(command: Command<'_, ModifySrq>) {
        let Some(srq) = shared_receives(command.target()).cloned() else {
            return command.complete(Err(Error::DeviceFailed));
        };
        let (resize, limit) = (command.max_wr, command.srq_limit);
        // All or nothing, so the one that is refused comes first.
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

    pub(in crate::hca) fn query_srq(command: Command<'_, QuerySrq>) {
        let attr = shared_receives(command.target()).map(|srq| srq.attr());
        command.complete(attr.ok_or(Error::DeviceFailed));
    }

    pub(in crate::hca) fn destroy_srq(&self, command: Command<'_, DestroySrq>) {
        let number = command.target().base().id().number;
        let srq = shared_receives(command.target());
        if let Some(named) = srq.and_then(|srq| srq.named.as_ref()) {
            self.port.xrc.leave(named.number);
        }
        self.tables.lock().srqs.remove(number);
        command.complete(Ok(()));
    }

    pub(in crate::hca) fn create_qp(&self, command: Command<'_, CreateQp>) {
        let made = self.make_qp(&command);
        match made.and_then(|qp| self.with_posters(qp)) {
            Ok((qp, send, recv)) => {
                let (args, reply) = command.split();
                let (qpn, cap) = (qp.qpn, qp.cap);
                let handle = args.build(qpn, cap, Box::new(Arc::clone(&qp)), send, recv);
                qp.set_core(handle.target());
                reply.complete(Ok(handle));
            }
            Err(error) => command.complete(Err(error)),
        }
    }

    pub(in crate::hca) fn destroy_qp(&self, command: Command<'_, DestroyQp>) {
        let qp = queue_pair(command.target().base()).cloned();
        match qp {
            // Others have opened it too.
            Some(qp)
                if qp.qp_type == QpType::XrcRecv
                    && !self.port.xrc.closed(qp.qpn, command.target()) =>
            {
                command.complete(Ok(()));
            }
            Some(qp) => {
                self.tables.lock().queue_pairs -= 1;
                qp.destroy(command);
            }
            None => command.complete(Ok(())),
        }
    }

    fn make_qp(&self, command: &Command<'_, CreateQp>) -> Result<Arc<QueuePair>, Error> {
        let is_known = match command.qp_type {
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::Gsi | QpType::XrcSend => true,
            QpType::Smi => self.port.managed.is_some(),
            _ => false,
        };
        if !is_known {
            return Err(Error::Unsupported(Attr::QpType));
        }
        if command.low_latency {
            // Every queue pair here is as fast as it gets; a flag that changes nothing is refused.
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
            port: Arc::clone(&self.port),
            qp_type: command.qp_type,
            blocks_own_multicast: command.block_multicast_loopback,
            pd: command.target().base().id().number,
            cap,
            srq,
            sq_sig_all: command.sq_sig_all,
            send_cq: ring(command.send_cq()).ok_or(not_ours)?,
            recv_cq: ring(command.recv_cq()).ok_or(not_ours)?,
        };
        self.add(init)
    }

    /// The queue pair and the posters' ends of its queues.
    fn with_posters(&self, qp: Arc<QueuePair>) -> Result<Made, Error> {
        let has_receives = qp.srq.is_none() && qp.qp_type != QpType::XrcSend;
        let yard = &self.port.yard;
        let send = yard.lone(SendPoster::new(Arc::clone(&qp)));
        let recv = if has_receives {
            let poster = RecvPoster::new(Arc::clone(&qp));
            yard.lone(poster).map(Lone::<dyn RawRecvQueue>::from)
        } else {
            yard.lone(NoReceives).map(Into::into)
        };
        let (Ok(send), Ok(recv)) = (send, recv) else {
            self.port.link.lock().leave(self.port.lid, qp.qpn);
            self.tables.lock().queue_pairs -= 1;
            return Err(Error::NoMemory);
        };
        Ok((qp, send, recv))
    }

    /// Makes a queue pair, if there may be one more.
    pub(in crate::hca) fn add(&self, init: Init) -> Result<Arc<QueuePair>, Error> {
        let max = self.about.attr.max_qp;
        {
            let mut tables = self.tables.lock();
            if tables.queue_pairs >= max {
                return Err(Error::Exhausted {
                    attr: Attr::MaxQp,
                    max,
                });
            }
            tables.queue_pairs += 1;
        }
        let qp = self.enter(init).inspect_err(|_| {
            self.tables.lock().queue_pairs -= 1;
        })?;
        if qp.goes_as_packets() && !self.port.is_wire() {
            self.port.need_driver();
            // Work requests that come before the queues may be pushed to are put off until then.
            for cq in [&qp.send_cq, &qp.recv_cq] {
                cq.share(Arc::clone(&qp) as Arc<dyn WaitsForCq>);
            }
        }
        Ok(qp)
    }

    /// Makes the queue pair known on the link, under a number of its own.
    fn enter(&self, init: Init) -> Result<Arc<QueuePair>, Error> {
        let mut links = self.port.link.lock();
        let lid = self.port.lid;
        let special = match init.qp_type {
            QpType::Smi => Some(SMI),
            QpType::Gsi => Some(GSI),
            _ => None,
        };
        let Some(qpn) = special else {
            let entered = links.enter(lid, |qpn| QueuePair::new(qpn, init));
            return entered.ok_or(Error::DeviceRemoved);
        };
        if self.port.removed.is_set() {
            return Err(Error::DeviceRemoved);
        }
        let entered = links.enter_as(lid, qpn, || QueuePair::new(qpn, init));
        entered.ok_or(Error::Exhausted {
            attr: Attr::QpType,
            max: 1,
        })
    }
}

fn mismatch(attr: Attr, why: Why) -> Error {
    Error::Mismatch { attr, why }
}

fn zero(attr: Attr) -> Error {
    mismatch(attr, Why::Zero)
}

fn shared_receives(core: &SrqCore) -> Option<&Arc<SharedReceives>> {
    core.base().private::<Arc<SharedReceives>>()
}

fn check_cqe(cqe: u32) -> Result<(), Error> {
    if cqe == 0 {
        let (attr, got, max) = (Attr::Cqe, 0, limits::CQE);
        return Err(Error::Invalid { attr, got, max });
    }
    check_sizes(&[(Attr::Cqe, cqe, limits::CQE)])
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

/// [`Error::Invalid`] for the first value that is beyond its maximum.
fn check_sizes(sizes: &[(Attr, u32, u32)]) -> Result<(), Error> {
    match sizes.iter().find(|&&(_, got, max)| got > max) {
        Some(&(attr, got, max)) => Err(Error::Invalid { attr, got, max }),
        None => Ok(()),
    }
}
