//! Queue pairs and their attachments to groups.

use rustix::io::Errno;
use verbs_abi as abi;
use verbs_core::cm::CmCore;
use verbs_core::mcast::{AttachMcast, McastCore};
use verbs_core::pd::PdCore;
use verbs_core::qp::{CreateQp, ModifyQp, QpCore};
use verbs_core::qp_state::check;
use verbs_core::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};
use verbs_core::sync::{Arc, Mutex, OnceLock, Weak};
use verbs_core::{
    Attr, DeviceCap, Error, Mcast, Qp, QpAttr, QpAttrMask, QpInfo, QpState as State, QpType, Qpn,
    Target, Why,
};

use super::limit::{at_most, require};
use super::{device, memory, queue};
use crate::convert::{self, error};
use crate::queue::{Limits, Lookups, ReceiveQueue, SendQueue};
use crate::shared::Shared;
use crate::slot::Slot;
use crate::sys;

/// The state kept with a queue pair.
pub(crate) struct QpState {
    pub(crate) qp: Arc<Slot<sys::Qp>>,
    /// The address by which asynchronous events name it.
    address: usize,
    /// The last known state: posts check it.
    state: Arc<AtomicU8>,
    /// The attributes that have been set since it was in RESET.
    set: Mutex<QpAttrMask>,
    uses_srq: bool,
    /// The endpoint of its current or last connection.
    endpoint: Mutex<Weak<CmCore>>,
}

impl QpState {
    /// Of a queue pair that was just made.
    pub(super) fn new(qp: Arc<Slot<sys::Qp>>, address: usize, uses_srq: bool) -> Self {
        Self {
            qp,
            address,
            state: Arc::default(),
            set: Mutex::new(QpAttrMask::empty()),
            uses_srq,
            endpoint: Mutex::default(),
        }
    }

    fn state(&self) -> State {
        convert::qp_state(self.state.load(Acquire).into())
    }

    fn is_now(&self, state: State) {
        self.state.store(state as u8, Release);
    }

    /// Queries its state: errors change the state without a command.
    fn ask(&self, qp: &sys::Qp) -> Result<State, Error> {
        let (attr, _) = qp.query().map_err(error)?;
        let state = convert::qp_state(attr.qp_state);
        self.is_now(state);
        Ok(state)
    }
}

fn state(qp: &QpCore) -> Result<&QpState, Error> {
    qp.private::<QpState>().ok_or(Error::Closing)
}

pub(super) fn check_create(nic: &Shared, args: &CreateQp) -> Result<(), Error> {
    let attr = &nic.attr;
    if matches!(args.qp_type, QpType::XrcSend | QpType::XrcRecv) {
        require(nic, DeviceCap::XRC, Attr::QpType)?;
    }
    if !attr.qp_types.contains(&args.qp_type) {
        return Err(Error::Unsupported(Attr::QpType));
    }
    match args.qp_type {
        // It belongs to a domain instead.
        QpType::XrcRecv => return Err(Error::Unsupported(Attr::QpType)),
        QpType::XrcSend if args.srq().is_some() => {
            return Err(Error::Mismatch {
                attr: Attr::Srq,
                why: Why::NoReceives,
            });
        }
        _ => {}
    }
    if args.low_latency {
        return Err(Error::Unsupported(Attr::LowLatency));
    }
    if args.block_multicast_loopback {
        return Err(Error::Unsupported(Attr::Verb));
    }
    let cap = &args.cap;
    at_most(Attr::MaxSendWr, cap.max_send_wr, attr.max_qp_wr)?;
    at_most(Attr::MaxSendSge, cap.max_send_sge, attr.max_sge)?;
    at_most(
        Attr::MaxInlineData,
        cap.max_inline_data,
        attr.max_inline_data,
    )?;
    if args.srq().is_some() || args.qp_type == QpType::XrcSend {
        return Ok(());
    }
    at_most(Attr::MaxRecvWr, cap.max_recv_wr, attr.max_qp_wr)?;
    at_most(Attr::MaxRecvSge, cap.max_recv_sge, attr.max_sge)
}

pub(super) fn create(nic: &Shared, args: CreateQp, pd: &PdCore) -> Result<Qp, Error> {
    let domain = Arc::clone(memory::domain(pd)?);
    let pd = domain.pd().get()?;
    let mut cap = args.cap;
    let srq = args.srq().map(|srq| queue::raw_srq(srq)).transpose()?;
    // An initiator of extended reliable connections receives nothing.
    let uses_srq = srq.is_some() || args.qp_type == QpType::XrcSend;
    if uses_srq {
        // Its own receive queue has no use, so its sizes mean nothing.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let config = sys::QpConfig {
        send_cq: queue::raw_cq(args.send_cq())?,
        recv_cq: queue::raw_cq(args.recv_cq())?,
        srq,
        cap,
        qp_type: args.qp_type as u32,
        sq_sig_all: args.sq_sig_all,
    };
    let (qp, granted) = sys::Qp::create(&pd, config).map_err(|errno| {
        nic.counts
            .qps
            .explain(error(errno), Attr::MaxQp, nic.attr.max_qp)
    })?;
    nic.counts.qps.up();
    let (number, address) = (Qpn::new(qp.number()), qp.address());
    let qp = Arc::new(Slot::new(qp));
    let state = QpState::new(Arc::clone(&qp), address, uses_srq);
    let limits = Limits {
        qp_type: args.qp_type,
        caps: nic.attr.caps,
        cap: granted,
        max_msg_sz: nic.max_msg_sz,
        removed: Arc::clone(&nic.removed),
        state: Arc::clone(&state.state),
    };
    let core = Arc::new(OnceLock::new());
    let lookups = Lookups {
        addresses: domain,
        keys: Arc::clone(&nic.keys),
        qp: Arc::clone(&core),
    };
    let send = SendQueue::new(Arc::clone(&qp), limits.clone(), lookups);
    let recv = ReceiveQueue::new(qp, limits, uses_srq);
    let handle = args.build(
        number,
        granted,
        Box::new(state),
        Box::new(send),
        Box::new(recv),
    );
    // It is new, so it was not set before.
    let _ = core.set(Arc::downgrade(handle.target()));
    nic.name(address, handle.target());
    Ok(handle)
}

/// Checks the values of the attributes that can be wrong for every queue pair.
pub(super) fn check_modify(nic: &Shared, args: &ModifyQp) -> Result<(), Error> {
    let attr = &args.attr;
    if let Some(port) = attr.port {
        device::check_port(nic, port)?;
    }
    for (name, value, max) in [
        (Attr::Timeout, attr.timeout, 31),
        (Attr::RetryCnt, attr.retry_cnt, 7),
        (Attr::RnrRetry, attr.rnr_retry, 7),
        (Attr::MinRnrTimer, attr.min_rnr_timer, 31),
    ] {
        at_most(name, value.unwrap_or(0).into(), max)?;
    }
    convert::qp_attr_out(attr).map(drop)
}

/// Changes attributes. A transition that the table forbids is refused with a specific error instead of an error number.
pub(crate) fn modify(attr: &QpAttr, core: &QpCore) -> Result<(), Error> {
    modify_as(attr, convert::qp_attr_out(attr)?, core)
}

/// As [`modify`], with a C structure of the same content, which may describe the path in more detail.
pub(crate) fn modify_as(attr: &QpAttr, c: abi::QpAttr, core: &QpCore) -> Result<(), Error> {
    let state = state(core)?;
    let qp = state.qp.get()?;
    let mask = attr.mask();
    let legal = |from: State| {
        let to = attr.state.unwrap_or(from);
        check(from, to, core.qp_type(), mask).map_err(Error::Transition)
    };
    let mut from = state.state();
    if legal(from).is_err() {
        from = state.ask(&qp)?;
        legal(from)?;
    }
    if let Err(errno) = qp.modify(c, mask) {
        if errno == Errno::INVAL {
            // The queue pair may have gone to ERR in the meantime.
            legal(state.ask(&qp)?)?;
        }
        return Err(error(errno));
    }
    let to = attr.state.unwrap_or(from);
    state.is_now(to);
    let mut set = state.set.lock();
    match to {
        State::Reset => *set = QpAttrMask::empty(),
        _ => *set |= mask,
    }
    Ok(())
}

/// The current state, as the driver reports it.
pub(crate) fn state_now(core: &QpCore) -> Result<State, Error> {
    let state = state(core)?;
    state.ask(&*state.qp.get()?)
}

pub(crate) fn uses_srq(core: &QpCore) -> Result<bool, Error> {
    Ok(state(core)?.uses_srq)
}

/// The address by which asynchronous events name it.
pub(crate) fn address(core: &QpCore) -> Option<usize> {
    Some(state(core).ok()?.address)
}

/// It is about to be the queue pair of that endpoint's connection.
pub(crate) fn connect(core: &QpCore, endpoint: &Arc<CmCore>) -> Result<(), Error> {
    *state(core)?.endpoint.lock() = Arc::downgrade(endpoint);
    Ok(())
}

/// The endpoint of its connection, if there still is one.
pub(crate) fn endpoint(core: &QpCore) -> Option<Arc<CmCore>> {
    state(core).ok()?.endpoint.lock().upgrade()
}

/// The kernel has taken it to RTS.
pub(crate) fn is_connected(core: &QpCore) {
    if let Ok(state) = state(core) {
        state.is_now(State::Rts);
    }
}

pub(super) fn query(core: &QpCore) -> Result<QpInfo, Error> {
    let kept = state(core)?;
    let (attr, sq_sig_all) = kept.qp.get()?.query().map_err(error)?;
    let state = convert::qp_state(attr.qp_state);
    kept.is_now(state);
    let set = *kept.set.lock() - QpAttrMask::CUR_STATE;
    let shown = verbs_abi::attr_of(&attr, set);
    Ok(QpInfo {
        state,
        attr: QpAttr {
            state: Some(state),
            ..shown
        },
        cap: core.cap(),
        sq_sig_all,
        sq_draining: attr.sq_draining != 0,
    })
}

pub(super) fn destroy(nic: &Shared, core: &QpCore) {
    if let Ok(state) = state(core) {
        nic.forget(state.address);
        state.qp.destroy();
    }
    nic.counts.qps.down();
}

/// Only datagram queue pairs can be attached (IBTA vol. 1, 10.5.2.1).
pub(super) fn check_attach(
    nic: &Shared,
    command: &verbs_core::Command<'_, AttachMcast>,
) -> Result<(), Error> {
    if nic.attr.max_mcast_grp == 0 {
        return Err(Error::Unsupported(Attr::Verb));
    }
    match command.target().qp_type() {
        QpType::Ud => Ok(()),
        _ => Err(Error::Mismatch {
            attr: Attr::QpType,
            why: Why::NotDatagram,
        }),
    }
}

pub(super) fn attach(nic: &Shared, args: AttachMcast, core: &QpCore) -> Result<Mcast, Error> {
    let (counts, max) = (&nic.counts.mcasts, nic.attr.max_mcast_qp_attach);
    let qp = state(core)?.qp.get()?;
    qp.attach(args.mgid, args.mlid)
        .map_err(|errno| counts.explain(error(errno), Attr::MaxMcast, max))?;
    counts.up();
    Ok(args.build(nic.number() as u32, Box::new(())))
}

pub(super) fn detach(nic: &Shared, core: &McastCore) {
    let qp = state(core.qp()).and_then(|state| state.qp.get());
    if let Ok(Err(errno)) = qp.map(|qp| qp.detach(core.mgid(), core.mlid())) {
        tracing::warn!(%errno, "a queue pair could not be detached; its destroy does that");
    }
    nic.counts.mcasts.down();
}
